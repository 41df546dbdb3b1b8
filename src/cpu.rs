//! The CPU path.

use half::{bf16, f16};

use crate::error::Result;
use crate::reference;
use crate::shape::Shape;
use crate::tensor::{Output, Vectors, Weights};

/// Computes operands that were checked against the shape.
pub(crate) fn gemv(
    shape: &Shape,
    weights: &Weights<'_>,
    vectors: &Vectors<'_>,
    output: Output<'_>,
) -> Result<()> {
    let y = reference::gemv(shape, weights, vectors)?.y;
    match output {
        Output::F16(out) => out
            .iter_mut()
            .zip(y)
            .for_each(|(o, y)| *o = f16::from_f64(y)),
        Output::Bf16(out) => out
            .iter_mut()
            .zip(y)
            .for_each(|(o, y)| *o = bf16::from_f64(y)),
        Output::F32(out) => out.iter_mut().zip(y).for_each(|(o, y)| *o = y as f32),
    }
    Ok(())
}
