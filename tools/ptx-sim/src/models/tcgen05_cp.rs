//! `tcgen05.cp`: shared memory to tensor memory.
//!
//! Source: PTX ISA `tcgen05.cp`, "Data Movement Shape". The source is a K-major matrix of the
//! shape's rows, 16 or 32 bytes each, found through the matrix descriptor.

use super::memory::{SharedRead, SharedReadError};
use super::smem_desc::{Major, SmemDesc, SmemDescError};
use super::tmem::{Tmem, TmemAddr, TmemError};
use thiserror::Error;

/// `.shape` with its `.multicast`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum CpShape {
    S128x256b,
    S4x256b,
    S128x128b,
    S64x128bWarpx2_02_13,
    S64x128bWarpx2_01_23,
    S32x128bWarpx4,
}

/// `.src_fmt`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum CpFormat {
    Plain,
    B6x16P32,
    B4x16P64,
}

/// The rule a copy breaks.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum CpError {
    #[error(transparent)]
    Descriptor(#[from] SmemDescError),
    #[error(transparent)]
    Shared(#[from] SharedReadError),
    #[error(transparent)]
    Tmem(#[from] TmemError),
    #[error("tcgen05.cp of {shape:?} cannot start at lane {lane}")]
    Lane { shape: CpShape, lane: u32 },
    #[error("not modelled: {0}")]
    Unmodelled(&'static str),
}

impl CpShape {
    /// Rows of the source matrix.
    pub fn rows(self) -> u32 {
        match self {
            Self::S128x256b | Self::S128x128b => 128,
            Self::S64x128bWarpx2_02_13 | Self::S64x128bWarpx2_01_23 => 64,
            Self::S32x128bWarpx4 => 32,
            Self::S4x256b => 4,
        }
    }

    /// Bytes of a row: four per column written.
    pub fn row_bytes(self) -> u32 {
        match self {
            Self::S128x256b | Self::S4x256b => 32,
            _ => 16,
        }
    }

    /// Lanes (relative to the address's lane) that receive source row `row`.
    pub fn lanes(self, row: u32) -> impl Iterator<Item = u32> {
        let (first, step, count) = match self {
            Self::S128x256b | Self::S128x128b => (row, 0, 1),
            // One row for each quarter: what tcgen05.shift leaves to be refilled.
            Self::S4x256b => (32 * row, 0, 1),
            Self::S64x128bWarpx2_02_13 => (row, 64, 2),
            Self::S64x128bWarpx2_01_23 => (row % 32 + 64 * (row / 32), 32, 2),
            Self::S32x128bWarpx4 => (row, 32, 4),
        };
        (0..count).map(move |i| first + step * i)
    }
}

/// Every shared byte range `(address, length)` a copy reads, for hazard checks.
pub fn source_ranges(shape: CpShape, desc: &SmemDesc) -> Result<Vec<(u32, u32)>, CpError> {
    let layout = desc.layout(Major::K, shape.row_bytes(), 1)?;
    let chunks = shape.row_bytes() / 16;
    let all = (0..shape.rows()).flat_map(|r| (0..chunks).map(move |c| (r, c)));
    Ok(all
        .map(|(r, c)| (layout.byte_address(r, 16 * c), 16))
        .collect())
}

/// Copies into the tensor memory of one CTA. With `.cta_group::2` call it for both CTAs, each
/// with its own shared memory: the descriptor addresses the CTA's own window.
pub fn copy<S: SharedRead + ?Sized>(
    shape: CpShape,
    format: CpFormat,
    desc: &SmemDesc,
    shared: &S,
    tmem: &mut Tmem,
    address: TmemAddr,
) -> Result<(), CpError> {
    if format != CpFormat::Plain {
        return Err(CpError::Unmodelled(
            "decompression by tcgen05.cp (.b8x16.*)",
        ));
    }
    let lane = address.lane();
    let ok = if shape == CpShape::S4x256b {
        lane < 32
    } else {
        lane == 0
    };
    if !ok {
        return Err(CpError::Lane { shape, lane });
    }
    let layout = desc.layout(Major::K, shape.row_bytes(), 1)?;
    let columns = shape.row_bytes() / 4;
    let mut words = Vec::with_capacity((shape.rows() * columns) as usize);
    for row in 0..shape.rows() {
        for column in 0..columns {
            // Swizzles move 16-byte chunks, so the four bytes of a column stay together.
            let mut word = [0; 4];
            shared.read(layout.byte_address(row, 4 * column), &mut word)?;
            words.push((row, column, u32::from_le_bytes(word)));
        }
    }
    for &(row, column, _) in &words {
        for l in shape.lanes(row) {
            tmem.check(lane + l, address.column().saturating_add(column))?;
        }
    }
    for (row, column, word) in words {
        for l in shape.lanes(row) {
            tmem.write(lane + l, address.column() + column, word)?;
        }
    }
    Ok(())
}
