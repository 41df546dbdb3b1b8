//! MXFP4 as NVFP4, without rounding.
//!
//! A block of MXFP4 has 32 E2M1 codes and a power of two, E8M0. It is two blocks of NVFP4, whose scales are that
//! power over a common factor. E4M3 has the powers of two from 2^-9 to 2^8. Where a tensor's powers span more, each row gets a
//! factor of its own.
//!
//! Source: OCP Microscaling Formats (MX) v1.0.

use std::borrow::Cow;
use std::path::Path;

use safetensors::Dtype;

use super::joined::Gathered;
use super::{Checkpoint, CheckpointError, other};
use crate::file::FileError;
use crate::format::e4m3;
use crate::{Dims, GlobalScale, Shape};

/// Elements that share a scale.
pub(super) const BLOCK: usize = 32;

/// Exponents of E4M3's powers of two.
const LEAST: i32 = -9;
const MOST: i32 = 8;

/// E8M0's code of 2^0, and the code of NaN.
const BIAS: i32 = 127;
const NAN: u8 = 255;

/// MXFP4 matrices `[L][M][K]`.
#[derive(Debug)]
pub(super) struct Mx<'a> {
    pub(super) shape: Shape,
    /// Codes `[L][M][K/2]`, the even element in the low nibble, as NVFP4 has them.
    pub(super) codes: Cow<'a, [u8]>,
    /// E8M0 codes `[L][M][K/32]`.
    pub(super) exponents: Cow<'a, [u8]>,
}

/// A row that NVFP4 cannot hold exactly.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) matrix: usize,
    pub(super) row: usize,
    pub(super) reason: String,
}

/// The least and the greatest exponent of some blocks, of which there may be none.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Span(Option<(i32, i32)>);

impl Span {
    fn and(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Some((a, b)), Some((c, d))) => Self(Some((a.min(c), b.max(d)))),
            (one, None) | (None, one) => Self(one),
        }
    }

    /// The exponent of a factor that leaves E4M3's powers of two, the nearest to 0.
    fn factor(self) -> Option<i32> {
        let (least, most) = self.0.unwrap_or((0, 0));
        let (least, most) = (most - MOST, least - LEAST);
        (least <= most).then(|| 0.clamp(least, most))
    }
}

impl<'a> Mx<'a> {
    /// The same numbers in NVFP4.
    pub(super) fn to_nvfp4(&self) -> Result<Gathered<'a>, Row> {
        let (shape, of_row) = (self.shape, self.shape.k() / BLOCK);
        let rows = self.exponents.chunks_exact(of_row);
        let codes = self.codes.chunks_exact(self.shape.row_code_bytes());
        let at = |row: usize| (row / shape.m(), row % shape.m());
        let mut spans = Vec::with_capacity(shape.l() * shape.m());
        for (row, (exponents, codes)) in rows.clone().zip(codes.clone()).enumerate() {
            let (matrix, row) = at(row);
            spans.push(span(exponents, codes).map_err(|block| Row {
                matrix,
                row,
                reason: format!("the scale of block {block} is NaN"),
            })?);
        }
        let all = spans.iter().fold(Span(None), |all, row| all.and(*row));
        let shared = all.factor();
        let mut factors = Vec::with_capacity(spans.len());
        for (row, span) in spans.iter().enumerate() {
            let (matrix, row) = at(row);
            factors.push(shared.or(span.factor()).ok_or_else(|| {
                let (least, most) = span.0.unwrap_or_default();
                let reason = format!(
                    "its scales are powers of two from 2^{least} to 2^{most}, and NVFP4's span 2^{}",
                    MOST - LEAST
                );
                Row {
                    matrix,
                    row,
                    reason,
                }
            })?);
        }
        let mut scales = Vec::with_capacity(shape.l() * shape.m() * shape.blocks());
        for ((exponents, codes), factor) in rows.zip(codes).zip(&factors) {
            for (exponent, codes) in exponents.iter().zip(codes.chunks_exact(BLOCK / 2)) {
                // A block of zeros is one with any scale.
                let scale = match is_zero(codes) {
                    true => 1.0,
                    false => power(i32::from(*exponent) - BIAS - factor),
                };
                scales.extend([e4m3::encode(scale); 2]);
            }
        }
        let by_row = || factors.iter().map(|factor| power(*factor)).collect();
        Ok(Gathered {
            shape,
            codes: self.codes.clone(),
            scales: scales.into(),
            global: match shared {
                Some(factor) => GlobalScale::Multiplier(power(factor)),
                None => GlobalScale::ONE,
            },
            row_alpha: shared.is_none().then(by_row),
            column_alpha: None,
        })
    }
}

/// 2^e, of an e that an f32's normal numbers have.
fn power(e: i32) -> f32 {
    f32::from_bits(((e + BIAS) as u32) << 23)
}

fn is_zero(codes: &[u8]) -> bool {
    codes.iter().all(|pair| pair & 0x77 == 0)
}

/// The span of a row, or the number of a block whose scale is NaN.
fn span(exponents: &[u8], codes: &[u8]) -> Result<Span, usize> {
    let mut span = Span(None);
    for (block, (exponent, codes)) in exponents.iter().zip(codes.chunks(BLOCK / 2)).enumerate() {
        if *exponent == NAN {
            return Err(block);
        }
        if !is_zero(codes) {
            let exponent = i32::from(*exponent) - BIAS;
            span = span.and(Span(Some((exponent, exponent))));
        }
    }
    Ok(span)
}

impl Checkpoint {
    /// Matrices in MXFP4 as gpt-oss has them (`NAME_blocks` U8 `[.., M, K/32, 16]` and `NAME_scales` U8
    /// `[.., M, K/32]`), converted to NVFP4 exactly: the same codes, and scales that are powers of two. A factor for
    /// each row is added where the powers of a tensor span more than E4M3's. The block scales are copied.
    ///
    /// A bias beside them (`NAME_bias`) is the caller's.
    ///
    /// # Errors
    /// [`CheckpointError::MxRow`] for a row that NVFP4 does not hold exactly. [`CheckpointError::NoTensor`], and
    /// [`CheckpointError::File`] for tensors of other types or shapes. [`CheckpointError::ChangesProduct`],
    /// [`CheckpointError::UnknownTensors`], [`CheckpointError::Config`] and [`CheckpointError::Elsewhere`] as
    /// [`layer`](Self::layer)'s.
    pub fn mxfp4(&self, name: &str) -> Result<Gathered<'_>, CheckpointError> {
        self.nothing_elsewhere_of_stack(name)?;
        let named = other::MX_NAMES.iter().find_map(|(blocks, scales)| {
            let blocks = self.tensor(&format!("{name}{blocks}"))?;
            Some((blocks, self.tensor(&format!("{name}{scales}"))?))
        });
        let Some((blocks, scales)) = named else {
            let (blocks, _) = other::MX_NAMES[0];
            let blocks = self.find_tensor(&format!("{name}{blocks}"))?;
            let (file, tensor) = (blocks.file().path().into(), format!("{name}_scales"));
            let expected = "U8 [.., M, K/32]".into();
            return Err(FileError::MissingTensor {
                file,
                tensor,
                expected,
            }
            .into());
        };
        let file = blocks.file().path();
        let own = [blocks.name(), scales.name()];
        let beside = ['.', '_'].into_iter();
        let beside = beside.flat_map(|between| self.behind(format!("{name}{between}")));
        let beside = beside.filter(|(_, tensor)| !own.contains(&tensor.name()));
        // A bias is named by the documentation; there is nothing that could hold a note.
        self.nothing_else(name, &blocks, beside)?;
        const BLOCKS: &str = "U8 [M, K/32, 16] or [E, M, K/32, 16]";
        let (l, m, of_row) = match *blocks.shape() {
            [m, of_row, 16] => (1, m, of_row),
            [l, m, of_row, 16] => (l, m, of_row),
            _ => return Err(blocks.wrong(BLOCKS).into()),
        };
        let blocks = blocks.expect(Dtype::U8, blocks.shape())?;
        let dims = &blocks.shape()[..blocks.shape().len() - 1];
        let scales = match scales.dtype() {
            Dtype::F8_E8M0 => scales.expect(Dtype::F8_E8M0, dims)?,
            _ => scales.expect(Dtype::U8, dims)?,
        };
        let k = of_row.saturating_mul(BLOCK);
        let shape = Shape::new(Dims { m, n: 1, k, l }).map_err(|e| blocks.refused(e))?;
        let mx = Mx {
            shape,
            codes: blocks.bytes().into(),
            exponents: scales.bytes().into(),
        };
        mx.to_nvfp4().map_err(|row| mx_row(file, name, row))
    }
}

pub(super) fn mx_row(file: &Path, layer: &str, row: Row) -> CheckpointError {
    CheckpointError::MxRow {
        file: file.into(),
        layer: layer.into(),
        matrix: row.matrix,
        row: row.row,
        reason: row.reason,
    }
}
