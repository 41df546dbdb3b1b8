//! The safe call: check everything, pick the path, run it.

use std::sync::OnceLock;

use crate::error::Result;
use crate::path::{self, Choice, Operands, Path, Target};
use crate::shape::Shape;
use crate::tensor::{Output, Vectors, Weights};

/// Computes `y[l][n][m] = alpha · Σ_k w[l][m][k] · x[l][n][k]` of host operands, on the CPU, and
/// says which path did. `NVFP4_GEMV_PATH` may force one.
///
/// The output has every element written or, on an error, none.
///
/// # Errors
/// Operands that contradict the shape; scales that are NaN or negative; a forced path that cannot
/// run. Nothing is computed then.
///
/// ```
/// use nvfp4_gemv::{gemv, GlobalScale, Output, ScaleLayout, Shape, Vectors, Weights};
/// let shape = Shape::gemv(2, 16, 1)?;
/// let codes = [0x22; 16]; // every element is 1.0
/// let scales = [0x38, 0x40]; // 1.0 for the first row, 2.0 for the second
/// let w = Weights::new(&shape, &codes, &scales, ScaleLayout::Linear, GlobalScale::ONE)?;
/// let x = [1.0f32; 16];
/// let mut y = [0.0f32; 2];
/// let choice = gemv(&shape, &w, &Vectors::f32(&x), Output::f32(&mut y))?;
/// assert_eq!(y, [16.0, 32.0]);
/// println!("{}: {}", choice.path, choice.reason);
/// # Ok::<(), nvfp4_gemv::Error>(())
/// ```
pub fn gemv(
    shape: &Shape,
    weights: &Weights<'_>,
    vectors: &Vectors<'_>,
    output: Output<'_>,
) -> Result<Choice> {
    gemv_on_path(environment()?, shape, weights, vectors, output)
}

/// [`gemv`] on a path of the caller's choice; `None` picks one, whatever the environment says.
///
/// # Errors
/// As [`gemv`].
pub fn gemv_on_path(
    forced: Option<Path>,
    shape: &Shape,
    weights: &Weights<'_>,
    vectors: &Vectors<'_>,
    output: Output<'_>,
) -> Result<Choice> {
    let operands = Operands::new(vectors.activation(), weights.layout());
    let choice = path::select(shape, &operands, &Target::Host, forced)?;
    weights.check(shape)?;
    output.check(shape)?;
    crate::cpu::gemv(shape, weights, vectors, output)?;
    Ok(choice)
}

/// What `NVFP4_GEMV_PATH` asks for, read once.
pub(crate) fn environment() -> Result<Option<Path>> {
    static FORCED: OnceLock<Result<Option<Path>>> = OnceLock::new();
    FORCED.get_or_init(path::forced_by_environment).clone()
}
