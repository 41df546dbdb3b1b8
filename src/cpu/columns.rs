//! Factors of columns: vectors are multiplied by them before anything else is done with them.

use half::{bf16, f16};

use super::buffers::reserve;
use crate::error::{Error, Result};
use crate::shape::{Shape, Strides};
use crate::tensor::{DenseVectors, NVFP4_ARE_WITHOUT, Vectors};

/// The vectors times `alpha`, element by element, in f32. Each product is rounded once: f16, bf16 and f32 elements are
/// f32 numbers. Batches that share their vectors go on sharing them.
pub(super) fn scaled<'a>(
    shape: &Shape,
    vectors: &Vectors<'_>,
    alpha: &[f32],
    scaled: &'a mut Vec<f32>,
) -> Result<Vectors<'a>> {
    match vectors {
        Vectors::F16(v) => of(shape, v, alpha, scaled, f16::to_f32),
        Vectors::Bf16(v) => of(shape, v, alpha, scaled, bf16::to_f32),
        Vectors::F32(v) => of(shape, v, alpha, scaled, |x| x),
        Vectors::Nvfp4(_) => Err(Error::HasColumnAlpha {
            why: NVFP4_ARE_WITHOUT,
        }),
    }
}

fn of<'a, T: Copy + std::fmt::Debug + 'static>(
    shape: &Shape,
    vectors: &DenseVectors<'_, T>,
    alpha: &[f32],
    scaled: &'a mut Vec<f32>,
    widen: impl Fn(T) -> f32,
) -> Result<Vectors<'a>> {
    let at = vectors.resolve(shape)?;
    let (n, k) = (shape.n(), shape.k());
    // A step of 0 between batches: all have the first one's vectors.
    let batches = if at.batch == 0 {
        shape.l().min(1)
    } else {
        shape.l()
    };
    scaled.clear();
    reserve(scaled, batches * n * k)?;
    for batch in 0..batches {
        for vector in 0..n {
            let values = &vectors.values[batch * at.batch + vector * at.row..][..k];
            let products = values.iter().zip(alpha).map(|(x, alpha)| widen(*x) * alpha);
            scaled.extend(products);
        }
    }
    let packed = Strides::packed(n, k);
    let batch = if at.batch == 0 { 0 } else { packed.batch };
    let vectors = DenseVectors::new(&scaled[..]).with_strides(Strides { batch, ..packed });
    Ok(Vectors::F32(vectors))
}
