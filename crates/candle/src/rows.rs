//! Vectors of tensors, read where they lie.

use std::fmt::Debug;
use std::ops::Range;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Error, Layout, Result, Shape};
use nvfp4_gemv::{
    Activation, DenseVectors, Element, Linear, Memory, Mlp, Output, Strides, Vectors,
};

/// The vectors of a tensor `[.., K]`, which follow each other with one step.
#[derive(Debug)]
pub(crate) struct Rows {
    /// How many there are.
    pub(crate) n: usize,
    /// Elements of each.
    k: usize,
    /// The place of the first.
    start: usize,
    /// Elements from one to the next. 0: all are the first.
    step: usize,
    /// Whether each is a batch of its own, with weights of its own.
    batches: bool,
}

/// A layer as the rows of its weights and their elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) rows: usize,
    pub(crate) k: usize,
}

/// A layer in host memory.
pub(crate) trait OnHost {
    fn forward<'a>(&'a self, x: &Vectors<'_>, n: usize, y: Output<'a>) -> nvfp4_gemv::Result<()>;
}

impl OnHost for Linear {
    fn forward<'a>(&'a self, x: &Vectors<'_>, n: usize, y: Output<'a>) -> nvfp4_gemv::Result<()> {
        self.forward(x, n, y)
    }
}

impl OnHost for Mlp {
    fn forward<'a>(&'a self, x: &Vectors<'_>, n: usize, y: Output<'a>) -> nvfp4_gemv::Result<()> {
        self.forward(x, n, y)
    }
}

impl Rows {
    /// # Errors
    /// A last dimension of another size than K; elements of a vector that do not follow each other; vectors that do
    /// not follow each other with one step, or overlap.
    pub(crate) fn of(layout: &Layout, size: Size, op: &'static str) -> Result<Self> {
        let rows = Self::that_may_be_one(layout, size, op)?;
        match rows.n > 1 && rows.step < rows.k {
            true => Err(Error::RequiresContiguous { op }),
            false => Ok(rows),
        }
    }

    /// As [`of`](Self::of); all vectors may be one.
    pub(crate) fn that_may_be_one(layout: &Layout, size: Size, op: &'static str) -> Result<Self> {
        let Size { rows: m, k } = size;
        let (Some((last, leading)), Some((inner, strides))) =
            (layout.dims().split_last(), layout.stride().split_last())
        else {
            return Err(mismatch(layout.shape(), m, k, op));
        };
        if *last != k {
            return Err(mismatch(layout.shape(), m, k, op));
        }
        let mut rows = Self {
            n: leading.iter().product(),
            k,
            start: layout.start_offset(),
            step: k,
            batches: false,
        };
        if rows.n == 0 {
            return Ok(rows);
        }
        let (mut before, mut follow) = (1, *inner == 1);
        for (&dim, &stride) in leading.iter().zip(strides).rev() {
            match dim {
                1 => continue,
                _ if before == 1 => rows.step = stride,
                _ => follow &= stride == before * rows.step,
            }
            before *= dim;
        }
        match follow && (rows.step == 0 || rows.step >= k) {
            true => Ok(rows),
            false => Err(Error::RequiresContiguous { op }),
        }
    }

    /// The elements from the first vector's first to the last one's last.
    pub(crate) fn range(&self) -> Range<usize> {
        let elements = match self.n {
            0 => 0,
            n => (n - 1) * self.step + self.k,
        };
        self.start..self.start + elements
    }

    /// Each vector with weights of its own.
    #[cfg(feature = "device")]
    pub(crate) fn into_batches(self) -> Self {
        let batches = true;
        Self { batches, ..self }
    }

    /// The vectors of one call.
    pub(crate) fn vectors<'a, T: Debug + 'static, S: Memory>(
        &self,
        values: S::Slice<'a, T>,
    ) -> DenseVectors<'a, T, S> {
        let (row, batch) = match self.batches {
            true => (self.k, self.step),
            false => (self.step, self.n * self.step),
        };
        DenseVectors::new(values).with_strides(Strides { row, batch })
    }

    /// The shape of results, of which each has as many elements as the weights have rows.
    pub(crate) fn results(layout: &Layout, m: usize) -> Shape {
        let mut dims = layout.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = m;
        }
        dims.into()
    }

    /// Computes the vectors of one storage by a layer in host memory, into results of the same type.
    pub(crate) fn on_host(
        &self,
        storage: &CpuStorage,
        m: usize,
        op: &'static str,
        layer: &impl OnHost,
    ) -> Result<CpuStorage> {
        Ok(match storage {
            CpuStorage::F32(x) => CpuStorage::F32(self.compute(x, Vectors::F32, m, layer)?),
            CpuStorage::F16(x) => CpuStorage::F16(self.compute(x, Vectors::F16, m, layer)?),
            CpuStorage::BF16(x) => CpuStorage::BF16(self.compute(x, Vectors::Bf16, m, layer)?),
            other => return Err(unsupported(other.dtype(), op)),
        })
    }

    fn compute<'x, T: Element + Default>(
        &self,
        x: &'x [T],
        vectors: fn(DenseVectors<'x, T>) -> Vectors<'x>,
        m: usize,
        layer: &impl OnHost,
    ) -> Result<Vec<T>> {
        let x = vectors(self.vectors(&x[self.range()]));
        let mut y = vec![T::default(); self.n * m];
        layer
            .forward(&x, self.n, Output::of(&mut y))
            .map_err(|error| Error::Wrapped(Box::new(error)))?;
        Ok(y)
    }
}

fn mismatch(found: &Shape, m: usize, k: usize, op: &'static str) -> Error {
    let (lhs, rhs) = (found.clone(), (m, k).into());
    Error::ShapeMismatchBinaryOp { lhs, rhs, op }
}

pub(crate) fn unsupported(dtype: DType, op: &'static str) -> Error {
    Error::UnsupportedDTypeForOp(dtype, op)
}

/// The type of vectors.
pub(crate) fn activation(dtype: DType, op: &'static str) -> Result<Activation> {
    match dtype {
        DType::F32 => Ok(Activation::F32),
        DType::F16 => Ok(Activation::F16),
        DType::BF16 => Ok(Activation::Bf16),
        other => Err(unsupported(other, op)),
    }
}
