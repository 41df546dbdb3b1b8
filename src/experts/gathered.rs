//! Vectors of a call, copied into the order of the experts that chose them.

use half::{bf16, f16};

use crate::cpu::reserve;
use crate::error::Result;
use crate::shape::Shape;
use crate::tensor::{DenseVectors, Nvfp4Vectors, VectorScale, Vectors};
use crate::types::{Activation, ScaleLayout};

/// Copies of vectors, of one type at a time. The memory is kept for later calls.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    f16: Vec<f16>,
    bf16: Vec<bf16>,
    f32: Vec<f32>,
    codes: Vec<u8>,
    /// In linear layout.
    scales: Vec<u8>,
    globals: Vec<f32>,
}

impl Gathered {
    /// Copies some vectors of a call that was checked, one after the other.
    pub(super) fn gather(
        &mut self,
        x: &Vectors<'_>,
        shape: &Shape,
        vectors: impl ExactSizeIterator<Item = usize> + Clone,
    ) -> Result<()> {
        fn dense<T: Copy + std::fmt::Debug>(
            to: &mut Vec<T>,
            x: &DenseVectors<'_, T>,
            shape: &Shape,
            vectors: impl ExactSizeIterator<Item = usize>,
        ) -> Result<()> {
            let (row, k) = (x.resolve(shape)?.row, shape.k());
            rows(to, k, vectors, |v| &x.values[v * row..][..k])
        }
        match x {
            Vectors::F16(x) => dense(&mut self.f16, x, shape, vectors),
            Vectors::Bf16(x) => dense(&mut self.bf16, x, shape, vectors),
            Vectors::F32(x) => dense(&mut self.f32, x, shape, vectors),
            Vectors::Nvfp4(x) => {
                let (at, bytes) = (x.resolve(shape)?, shape.row_code_bytes());
                rows(&mut self.codes, bytes, vectors.clone(), |v| {
                    &x.codes[v * at.codes.row..][..bytes]
                })?;
                if let VectorScale::PerVector(all) = x.global {
                    rows(&mut self.globals, 1, vectors.clone(), |v| &all[v..=v])?;
                }
                self.scales.clear();
                reserve(&mut self.scales, vectors.len() * shape.blocks())?;
                let blocks = vectors.flat_map(|v| (0..shape.blocks()).map(move |b| (v, b)));
                let scale = |(v, b)| x.scales[at.scale_offset(x.layout, shape, 0, v, b)];
                self.scales.extend(blocks.map(scale));
                Ok(())
            }
        }
    }

    /// Copies of vectors `x` that were gathered, from the `first` one on.
    pub(super) fn some(
        &self,
        x: &Vectors<'_>,
        shape: &Shape,
        first: usize,
        count: usize,
    ) -> Vectors<'_> {
        fn part<T>(of: &[T], each: usize, first: usize, count: usize) -> &[T] {
            &of[first * each..][..count * each]
        }
        let k = shape.k();
        match x {
            Vectors::F16(_) => Vectors::of(part(&self.f16, k, first, count)),
            Vectors::Bf16(_) => Vectors::of(part(&self.bf16, k, first, count)),
            Vectors::F32(_) => Vectors::of(part(&self.f32, k, first, count)),
            Vectors::Nvfp4(x) => Vectors::Nvfp4(Nvfp4Vectors::new(
                part(&self.codes, shape.row_code_bytes(), first, count),
                part(&self.scales, shape.blocks(), first, count),
                ScaleLayout::Linear,
                match x.global {
                    VectorScale::Shared(global) => VectorScale::Shared(global),
                    VectorScale::PerVector(_) => {
                        VectorScale::PerVector(part(&self.globals, 1, first, count))
                    }
                },
            )),
        }
    }

    /// Makes room for so many vectors of a type.
    pub(super) fn reserve(
        &mut self,
        shape: &Shape,
        activation: Activation,
        count: usize,
    ) -> Result<()> {
        let elements = count.saturating_mul(shape.k());
        match activation {
            Activation::F16 => reserve(&mut self.f16, elements),
            Activation::Bf16 => reserve(&mut self.bf16, elements),
            Activation::F32 => reserve(&mut self.f32, elements),
            Activation::Nvfp4 => {
                reserve(
                    &mut self.codes,
                    count.saturating_mul(shape.row_code_bytes()),
                )?;
                reserve(&mut self.scales, count.saturating_mul(shape.blocks()))?;
                reserve(&mut self.globals, count)
            }
        }
    }
}

/// Copies rows of `len` elements each.
fn rows<'a, T: Copy + 'a>(
    to: &mut Vec<T>,
    len: usize,
    vectors: impl ExactSizeIterator<Item = usize>,
    row: impl Fn(usize) -> &'a [T],
) -> Result<()> {
    to.clear();
    reserve(to, vectors.len() * len)?;
    vectors.for_each(|v| to.extend_from_slice(row(v)));
    Ok(())
}
