//! Vectors, each with a global scale of its own.

use super::{QuantizeError, amax, block_scale, check_len, finite_amax, global_scale};
use crate::dialect::Dialect;
use crate::element::Element;
use crate::{GlobalScale, Nvfp4Vectors, ScaleLayout, Shape, VectorScale, Vectors, check};

/// Quantised vectors `[rows][K]` in host memory, each with its own global scale. Those in a
/// device's memory are `nvfp4_gemv::QuantizedVectors`.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedRows {
    /// Codes `[rows][digits][K/2]`, the even element in the low nibble.
    pub codes: Vec<u8>,
    /// Block scales, E4M3, linear `[rows][digits][K/16]`.
    pub scales: Vec<u8>,
    /// A multiplier for each row.
    pub globals: Vec<f32>,
    /// NVFP4 vectors that each of these vectors is the sum of: 1, but for [`quantize_digits`](super::quantize_digits).
    pub digits: usize,
}

impl QuantizedRows {
    /// The rows as vectors `[L][N][K]`.
    pub fn vectors(&self) -> Vectors<'_> {
        let vectors = Nvfp4Vectors::new(
            &self.codes[..],
            &self.scales[..],
            ScaleLayout::Linear,
            VectorScale::PerVector(&self.globals[..]),
        );
        Vectors::Nvfp4(vectors.with_digits(self.digits))
    }

    fn with_capacity(shape: &Shape) -> Self {
        Self {
            codes: vec![0; shape.weight_code_bytes()],
            scales: vec![0; shape.m() * shape.blocks()],
            globals: Vec::with_capacity(shape.m()),
            digits: 1,
        }
    }

    /// Appends the next row.
    fn push<T: Element>(&mut self, row: &[T], global: f32) {
        let (at, codes, blocks) = (self.globals.len(), row.len() / 2, row.len() / crate::BLOCK);
        super::quantize_row(
            row,
            Dialect::ModelOpt,
            GlobalScale::Multiplier(global),
            &mut self.codes[at * codes..][..codes],
            &mut self.scales[at * blocks..][..blocks],
        );
        self.globals.push(global);
    }

    /// Appends a row of zeros, whose products are NaN.
    fn push_nan(&mut self, k: usize) {
        let blocks = k / crate::BLOCK;
        let zeros = block_scale(0.0, Dialect::ModelOpt, GlobalScale::ONE);
        self.scales[self.globals.len() * blocks..][..blocks].fill(zeros);
        self.globals.push(f32::NAN);
    }
}

/// Quantises each row of `[rows][k]` with a global scale of its own: activations, one row a
/// vector. The arithmetic is ModelOpt's.
///
/// # Errors
/// As [`quantize`](super::quantize()).
pub fn quantize_vectors<T: Element>(
    values: &[T],
    rows: usize,
    k: usize,
) -> Result<QuantizedRows, QuantizeError> {
    let shape = Shape::matrix(rows, k)?;
    check_len(values, rows, k)?;
    finite_amax(values, k)?;
    let mut out = QuantizedRows::with_capacity(&shape);
    for row in values.chunks_exact(k) {
        out.push(row, global_scale(amax(row), Dialect::ModelOpt).stored());
    }
    Ok(out)
}

/// Computes what the device's quantiser writes, bit for bit: [`quantize_vectors`], without errors for content, which a
/// device call cannot look at. A row that holds a NaN or an infinity becomes zeros (codes 0, block scales 1.0) whose
/// global scale is NaN, so that every product with it is NaN.
///
/// With `global` the global scales are given instead of computed; one for each row that is not
/// positive and finite makes its row such a NaN row. A divisor counts as its reciprocal in f32.
///
/// # Errors
/// K that is zero or no multiple of 16, too few or too many `values` or global scales, a shared global scale
/// that is not positive and finite.
pub fn quantize_vectors_or_nan<T: Element>(
    values: &[T],
    rows: usize,
    k: usize,
    global: Option<VectorScale<'_>>,
) -> crate::Result<QuantizedRows> {
    let shape = Shape::matrix(rows, k)?;
    check_len(values, rows, k)?;
    let shared = match &global {
        Some(VectorScale::Shared(global)) => Some(global.as_multiplier("given global scale")?),
        Some(VectorScale::PerVector(globals)) => {
            check::len("given global scales", "elements", globals.len(), rows)?;
            None
        }
        None => None,
    };
    let mut out = QuantizedRows::with_capacity(&shape);
    for (i, row) in values.chunks_exact(k).enumerate() {
        let amax = amax(row);
        let global = match (&global, shared) {
            (Some(VectorScale::PerVector(globals)), _) => globals[i],
            (_, Some(shared)) => shared,
            _ => global_scale(amax, Dialect::ModelOpt).stored(),
        };
        if amax.is_finite() && global > 0.0 && global.is_finite() {
            out.push(row, global);
        } else {
            out.push_nan(k);
        }
    }
    Ok(out)
}
