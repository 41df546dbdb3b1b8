//! Factors of columns: vectors are multiplied by them before anything else is done with them.

use half::{bf16, f16};

use super::buffers::reserve;
use crate::error::{Error, Result};
use crate::shape::{Shape, Strides};
use crate::tensor::{DenseVectors, NVFP4_ARE_WITHOUT, Vectors, Weights};

/// The vectors times the weights' factors of columns, element by element, in f32. Each product is rounded once: f16, bf16
/// and f32 elements are f32 numbers. Batches that share their vectors go on sharing them where they share factors.
pub(super) fn scaled<'a>(
    shape: &Shape,
    weights: &Weights<'_>,
    vectors: &Vectors<'_>,
    scaled: &'a mut Vec<f32>,
) -> Result<Vectors<'a>> {
    match vectors {
        Vectors::F16(v) => of(shape, weights, v, scaled, f16::to_f32),
        Vectors::Bf16(v) => of(shape, weights, v, scaled, bf16::to_f32),
        Vectors::F32(v) => of(shape, weights, v, scaled, |x| x),
        Vectors::Nvfp4(_) => Err(Error::HasColumnAlpha {
            why: NVFP4_ARE_WITHOUT,
        }),
    }
}

fn of<'a, T: Copy + std::fmt::Debug + 'static>(
    shape: &Shape,
    weights: &Weights<'_>,
    vectors: &DenseVectors<'_, T>,
    scaled: &'a mut Vec<f32>,
    widen: impl Fn(T) -> f32,
) -> Result<Vectors<'a>> {
    let at = vectors.resolve(shape)?;
    let (n, k) = (shape.n(), shape.k());
    // A step of 0 between batches: all have the first one's vectors.
    let is_shared = at.batch == 0 && !weights.has_column_alpha_each();
    let batches = if is_shared {
        shape.l().min(1)
    } else {
        shape.l()
    };
    scaled.clear();
    reserve(scaled, batches * n * k)?;
    for batch in 0..batches {
        // Factors of a batch that has no matrix, and is skipped, are any.
        let Some(alpha) = weights.column_alpha_of(batch) else {
            scaled.resize(scaled.len() + n * k, 0.0);
            continue;
        };
        for vector in 0..n {
            let values = &vectors.values[batch * at.batch + vector * at.row..][..k];
            let products = values.iter().zip(alpha).map(|(x, alpha)| widen(*x) * alpha);
            scaled.extend(products);
        }
    }
    let packed = Strides::packed(n, k);
    let batch = if is_shared { 0 } else { packed.batch };
    let vectors = DenseVectors::new(&scaled[..]).with_strides(Strides { batch, ..packed });
    Ok(Vectors::F32(vectors))
}
