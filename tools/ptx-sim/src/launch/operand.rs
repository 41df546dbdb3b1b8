//! Matrices in buffers, as operands of an expected product.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::BufferType;
use crate::sim::{Buffer, Sim};

/// A matrix in a buffer, without gaps.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operand {
    /// The buffer.
    pub buffer: String,
    /// The type of its elements.
    #[serde(rename = "type")]
    pub element: BufferType,
    /// k is the slow index: A is `[k][m]`, B is `[k][n]`.
    #[serde(default)]
    pub transposed: bool,
    /// Block scales, which multiply the operand's elements.
    #[serde(default)]
    pub scales: Option<Scales>,
}

/// Block scales in a buffer: one for so many elements of a row, along k.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scales {
    /// The buffer.
    pub buffer: String,
    /// Type of the scales, of a byte: `ue4m3` of NVFP4, `ue8m0` of the MX formats.
    #[serde(rename = "type")]
    pub element: BufferType,
    /// Elements of k that share one: 16 of NVFP4, 32 of the MX formats. The last block of a row may have fewer.
    pub block: usize,
    /// Layout of the scales in the buffer.
    #[serde(default)]
    pub layout: ScaleLayout,
}

/// Layout of block scales in their buffer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum ScaleLayout {
    /// `[rows][blocks]`.
    #[default]
    #[serde(rename = "linear")]
    Linear,
    /// Tiles as tensor cores of compute capability 10.x take them. A tile of 128 rows x 4 blocks is 512 bytes, and
    /// tiles follow each other along k. In a tile rows 32 apart follow each other, with four bytes each (cuBLAS, "1D
    /// Block Scaling Factors Layout").
    #[serde(rename = "128x4")]
    Tiled,
}

impl ScaleLayout {
    /// Offset of a block's scale, in bytes; `None` where a `usize` cannot hold it.
    fn offset(self, row: usize, block: usize, blocks: usize) -> Option<usize> {
        match self {
            Self::Linear => row.checked_mul(blocks)?.checked_add(block),
            Self::Tiled => {
                let tiles = blocks.div_ceil(4);
                let tile = (row / 128).checked_mul(tiles)?.checked_add(block / 4)?;
                let within = row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
                tile.checked_mul(512)?.checked_add(within)
            }
        }
    }
}

fn find(buffers: &BTreeMap<String, Buffer>, name: &str) -> Result<Buffer, String> {
    let found = buffers.get(name).copied();
    found.ok_or_else(|| format!("there is no buffer `{name}`"))
}

impl Operand {
    /// Values of the operand, `[rows][k]`, times their scales.
    pub(super) fn values(
        &self,
        sim: &Sim,
        buffers: &BTreeMap<String, Buffer>,
        (rows, k): (usize, usize),
    ) -> Result<Vec<f64>, String> {
        let bytes = self.bytes(sim, buffers, (rows, k))?;
        let values = self.element.read(bytes);
        let mut values = match self.transposed {
            false => values,
            true => (0..rows * k)
                .map(|i| values[i % k * rows + i / k])
                .collect(),
        };
        if let Some(scales) = &self.scales {
            scales.multiply(sim, buffers, &mut values, k)?;
        }
        Ok(values)
    }

    /// Bytes of the operand.
    fn bytes<'s>(
        &self,
        sim: &'s Sim,
        buffers: &BTreeMap<String, Buffer>,
        (rows, k): (usize, usize),
    ) -> Result<&'s [u8], String> {
        let (name, buffer) = (&self.buffer, find(buffers, &self.buffer)?);
        let needs = rows.checked_mul(k).and_then(|n| self.element.bytes(n));
        let Some(needs) = needs.filter(|n| *n <= buffer.size) else {
            return Err(format!(
                "buffer `{name}` of {} bytes is no {rows} x {k} of {:?}",
                buffer.size, self.element
            ));
        };
        if !sim.written(buffer, 0, needs) {
            return Err(format!("some of buffer `{name}` was never written"));
        }
        Ok(&sim.download(buffer)[..needs])
    }
}

impl Scales {
    /// Multiplies rows of `k` values.
    fn multiply(
        &self,
        sim: &Sim,
        buffers: &BTreeMap<String, Buffer>,
        values: &mut [f64],
        k: usize,
    ) -> Result<(), String> {
        let (name, buffer) = (&self.buffer, find(buffers, &self.buffer)?);
        if self.element.bits() != 8 {
            return Err(format!("scales are bytes, and {:?} is not", self.element));
        }
        if self.block == 0 {
            return Err("a block of scales has one element or more".into());
        }
        let blocks = k.div_ceil(self.block);
        let bytes = sim.download(buffer);
        for (row, values) in values.chunks_exact_mut(k).enumerate() {
            for (block, values) in values.chunks_mut(self.block).enumerate() {
                let at = self.layout.offset(row, block, blocks);
                let Some(at) = at.filter(|at| *at < bytes.len()) else {
                    return Err(format!(
                        "buffer `{name}` of {} bytes has no scale of row {row}, block {block}",
                        bytes.len()
                    ));
                };
                if !sim.written(buffer, at, 1) {
                    return Err(format!(
                        "the scale of row {row}, block {block} in buffer `{name}` was never written"
                    ));
                }
                let scale = self.element.value(u64::from(bytes[at]));
                values.iter_mut().for_each(|value| *value *= scale);
            }
        }
        Ok(())
    }
}
