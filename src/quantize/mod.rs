//! The host quantiser: f32, f16 and bf16 to NVFP4, by the two-level recipe.
//!
//! A tensor gets a global scale, so that the largest block scale is near E4M3's maximum:
//! `amax / (6 · 448)`. A block of 16 gets the E4M3 number nearest to `block_amax / 6 / global`.
//! An element becomes the E2M1 code nearest to `x / (block_scale · global)`.
//!
//! The arithmetic is f32, in the order of the tool that the [`Dialect`] names, so that codes and
//! scales are the tool's, bit for bit:
//!
//! | | ModelOpt | compressed-tensors |
//! |---|---|---|
//! | global | `amax / 2688`, a multiplier | `2688 / amax`, a divisor |
//! | block scale | `amax / (6 · global)` | `global · (amax / 6)` |
//! | block scale of zeros | 1.0 | 0.125 |
//! | block scale below half of 2^-9 | 2^-9 | 0.125 |
//! | element | `x / (scale · global)` | `x / (scale / global)` |
//!
//! Two things differ, on purpose. An all-zero tensor gets the global scale 1, where the tools
//! divide by zero. A block scale past 448 (the global scale was given, and is too small)
//! saturates, where ModelOpt's cast makes NaN.
//!
//! Sources: ModelOpt 0.47 `NVFP4QTensor` (`qtensor/nvfp4_tensor.py`); compressed-tensors 0.20
//! `calculate_qparams`, `generate_gparam` (`quantization/utils/helpers.py`) and `_quantize`
//! (`quantization/lifecycle/forward.py`). compressed-tensors divides by 6 in the tensor's own
//! type; for bf16 and f16 this quantiser stays in f32, which is closer to the recipe.

use rayon::prelude::*;

use crate::dialect::Dialect;
use crate::element::Element;
use crate::format::{e2m1, e4m3};
use crate::{BLOCK, GlobalScale, ScaleLayout, Shape, Vectors, Weights, check};

mod calibrated;
mod digits;
mod vectors;

pub use calibrated::{Calibration, quantize_calibrated};
pub use digits::{quantize_digits, quantize_digits_or_nan};
pub use vectors::{QuantizedRows, quantize_vectors, quantize_vectors_or_nan};

/// Why a tensor cannot be quantised.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    /// Lengths or the given global scale are wrong.
    #[error(transparent)]
    Operand(#[from] crate::Error),
    /// NaN and infinity have no NVFP4 code.
    #[error("row {row}, column {column} is {value}; NVFP4 has neither NaN nor infinity")]
    NotFinite {
        /// Row of the first such element.
        row: usize,
        /// Its column.
        column: usize,
        /// NaN, or an infinity.
        value: f32,
    },
    /// A mean square or mean product that no vectors have.
    #[error(
        "calibration, columns {row} and {column}: {value} is no mean of products: squares are not negative, none is \
         infinite or NaN, and a pair has the same either way around"
    )]
    Statistic {
        /// A column of the pair.
        row: usize,
        /// The other; the same for a square.
        column: usize,
        /// The value.
        value: f32,
    },
    /// Mean products that no vectors have, though each of them could be one.
    #[error(
        "calibration: no vectors have these mean products; those of columns up to {column} contradict each other"
    )]
    NoMoments {
        /// The first column with a contradiction.
        column: usize,
    },
}

/// A quantised matrix `[rows][K]` with one global scale.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantized {
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub k: usize,
    /// Codes `[rows][K/2]`, the even element in the low nibble.
    pub codes: Vec<u8>,
    /// Block scales, E4M3, linear `[rows][K/16]`.
    pub scales: Vec<u8>,
    /// A multiplier or a divisor, as the dialect has it.
    pub global: GlobalScale,
}

impl Quantized {
    /// Zeros in the place of checked values, with the global scale that is given, or else the values'. And their shape.
    fn zeros<T: Element>(
        values: &[T],
        rows: usize,
        k: usize,
        dialect: Dialect,
        global: Option<GlobalScale>,
    ) -> Result<(Shape, Self), QuantizeError> {
        let shape = Shape::matrix(rows, k)?;
        check_len(values, rows, k)?;
        let amax = finite_amax(values, k)?;
        let global = match global {
            Some(global) => global.check("given global scale")?,
            None => global_scale(amax, dialect),
        };
        let zeros = Self {
            rows,
            k,
            codes: vec![0; shape.weight_code_bytes()],
            scales: vec![0; rows * shape.blocks()],
            global,
        };
        Ok((shape, zeros))
    }

    /// The matrix as weights: M = rows, L = 1.
    ///
    /// # Errors
    /// No errors for weights that [`quantize`] made.
    pub fn weights(&self) -> crate::Result<Weights<'_>> {
        Weights::new(
            &Shape::matrix(self.rows, self.k)?,
            &self.codes,
            &self.scales,
            ScaleLayout::Linear,
            self.global,
        )
    }

    /// The rows as vectors `[L][N][K]`.
    pub fn vectors(&self) -> Vectors<'_> {
        Vectors::nvfp4(&self.codes, &self.scales, ScaleLayout::Linear, self.global)
    }
}

/// Quantises a row-major matrix `[rows][k]`. With a global scale of `None` it is computed from
/// the largest magnitude; a given one is used as it is, and elements past its range saturate.
///
/// # Errors
/// K that is zero or no multiple of 16, `values` shorter than `rows · k`, a given global scale
/// that is [not usable](crate::Error::GlobalScale), NaN or infinity among the values.
///
/// ```
/// use nvfp4_gemv::{Dialect, quantize::quantize, format::e4m3};
/// let row = [6.0f32, 3.0, -1.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
/// let q = quantize(&row, 1, 16, Dialect::ModelOpt, None)?;
/// assert_eq!(e4m3::decode(q.scales[0]), 448.0); // the largest block uses the whole range
/// assert_eq!(q.codes[0], 0x57); // 3.0 and 6.0
/// # Ok::<(), nvfp4_gemv::quantize::QuantizeError>(())
/// ```
pub fn quantize<T: Element>(
    values: &[T],
    rows: usize,
    k: usize,
    dialect: Dialect,
    global: Option<GlobalScale>,
) -> Result<Quantized, QuantizeError> {
    let (shape, mut out) = Quantized::zeros(values, rows, k, dialect, global)?;
    let global = out.global;
    out.codes
        .par_chunks_exact_mut(shape.row_code_bytes())
        .zip(out.scales.par_chunks_exact_mut(shape.blocks()))
        .zip(values.par_chunks_exact(k))
        .for_each(|((codes, scales), row)| quantize_row(row, dialect, global, codes, scales));
    Ok(out)
}

/// There are `rows · k` values.
fn check_len<T>(values: &[T], rows: usize, k: usize) -> crate::Result<()> {
    check::len("values to quantise", "elements", values.len(), rows * k)
}

/// The largest magnitude, or the first element that is NaN or infinite.
fn finite_amax<T: Element>(values: &[T], k: usize) -> Result<f32, QuantizeError> {
    let amax = amax(values);
    if amax.is_finite() {
        return Ok(amax);
    }
    let at = values.iter().position(|x| !x.to_f32().is_finite());
    let at = at.unwrap_or_default();
    Err(QuantizeError::NotFinite {
        row: at / k,
        column: at % k,
        value: values[at].to_f32(),
    })
}

/// The largest magnitude; infinity or NaN if there is one among the values.
fn amax<T: Element>(values: &[T]) -> f32 {
    // Without its sign bit, a float's bits order like its magnitude, NaN above infinity: one
    // maximum finds both.
    let magnitude = |x: &T| x.to_f32().to_bits() & 0x7fff_ffff;
    f32::from_bits(values.par_iter().map(magnitude).max().unwrap_or(0))
}

/// Magnitudes that the format covers with a global scale of 1: 6 · 448.
const RANGE: f32 = e2m1::MAX * e4m3::MAX;

/// The global scale for a tensor whose largest magnitude is `amax`, one that a GEMV takes. Zeros get 1. The tiniest
/// tensors get the least normal f32, or the divisor whose reciprocal that is.
fn global_scale(amax: f32, dialect: Dialect) -> GlobalScale {
    match dialect {
        Dialect::ModelOpt if amax == 0.0 => GlobalScale::Multiplier(1.0),
        Dialect::CompressedTensors if amax == 0.0 => GlobalScale::Divisor(1.0),
        Dialect::ModelOpt => GlobalScale::Multiplier((amax / RANGE).max(f32::MIN_POSITIVE)),
        Dialect::CompressedTensors => {
            GlobalScale::Divisor((RANGE / amax).min(1.0 / f32::MIN_POSITIVE))
        }
    }
}

/// One row, block by block.
fn quantize_row<T: Element>(
    values: &[T],
    dialect: Dialect,
    global: GlobalScale,
    codes: &mut [u8],
    scales: &mut [u8],
) {
    let (blocks, _) = values.as_chunks::<BLOCK>();
    let (codes, _) = codes.as_chunks_mut::<{ BLOCK / 2 }>();
    for ((block, codes), scale) in blocks.iter().zip(codes).zip(scales) {
        let x = block.map(Element::to_f32);
        let amax = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        *scale = block_scale(amax, dialect, global);
        quantize_block(&x, step(*scale, global), codes);
    }
}

/// The codes of a block in which a code of 1.0 is `step`.
fn quantize_block(x: &[f32; BLOCK], step: f32, codes: &mut [u8]) {
    for (code, pair) in codes.iter_mut().zip(x.as_chunks::<2>().0) {
        *code = encode(pair[0] / step) | encode(pair[1] / step) << 4;
    }
}

/// The E4M3 scale of a block.
fn block_scale(amax: f32, dialect: Dialect, global: GlobalScale) -> u8 {
    // The global scale is given in the form that the file has; each tool's formula takes its own.
    match dialect {
        Dialect::ModelOpt => {
            let multiplier = match global {
                GlobalScale::Multiplier(value) => value,
                GlobalScale::Divisor(value) => 1.0 / value,
            };
            let scale = amax / (e2m1::MAX * multiplier);
            let scale = if scale == 0.0 { 1.0 } else { scale };
            e4m3::encode(scale.max(e4m3::MIN_POSITIVE))
        }
        Dialect::CompressedTensors => {
            let divisor = match global {
                GlobalScale::Divisor(value) => value,
                GlobalScale::Multiplier(value) => 1.0 / value,
            };
            match e4m3::encode(divisor * (amax / e2m1::MAX)) {
                0 => e4m3::encode(0.125),
                code => code,
            }
        }
    }
}

/// The value of a code of 1.0 in a block.
fn step(scale: u8, global: GlobalScale) -> f32 {
    let scale = e4m3::decode(scale);
    match global {
        GlobalScale::Multiplier(value) => scale * value,
        GlobalScale::Divisor(value) => scale / value,
    }
}

/// The nearest code. Zeros of either sign are code 0, as both tools have it; a negative number
/// that rounds to zero keeps its sign (code 8), as both tools have it too.
fn encode(x: f32) -> u8 {
    // A step that has underflowed makes 0/0 of zeros.
    if x == 0.0 || x.is_nan() {
        0
    } else {
        e2m1::encode(x)
    }
}
