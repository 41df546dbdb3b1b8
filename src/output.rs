//! The output of a product: the buffer of the result, and numbers that are added to the result.

use crate::check::{self, Batches};
use crate::element::{Element, Floats, FloatsMut};
use crate::error::{Error, Result};
use crate::memory::{Buffer, Host, Memory};
use crate::shape::{Shape, Strides};
use crate::types::FloatType;

/// The buffer of the result, `[L][N][M]`, and numbers that are added to the result.
///
/// The result is `y[l][n][m] = Σ_k w[l][m][k] · x[l][n][k] + bias[m] + r[l][n][m]`, of weights and vectors with all
/// their scales and factors. The [bias](Self::with_bias) and the residual `r` ([`adding`](Self::adding),
/// [`accumulating`](Self::accumulating)) are added where they are given, on the CPU in f64, on a GPU in f32. The sum is
/// rounded to f32, and then to the element type. Every element is written; elements that [strides](Self::with_strides)
/// leave out are not. f16 results past 65504 become infinite.
///
/// In host memory it is made by [`Output::of`], of a slice, an array or a `Vec` of f16, bf16 or f32; on a device by
/// `Output::on_device`, of a view.
///
/// ```
/// use nvfp4_gemv::Output;
/// let mut y = vec![0.0f32; 512];
/// let all = Output::of(&mut y);
/// let front = Output::of(&mut y[..256]); // for a shape with 256 results: buffers are as long as the shape
/// ```
#[derive(Debug)]
pub struct Output<'a, S: Memory = Host> {
    pub(crate) elements: FloatsMut<'a, S>,
    strides: Option<Strides>,
    pub(crate) bias: Option<S::Slice<'a, f32>>,
    pub(crate) residual: Option<Residual<'a, S>>,
}

/// Numbers that are added to the result, element by element.
#[derive(Debug)]
pub(crate) enum Residual<'a, S: Memory> {
    /// The output's content before the call.
    Itself,
    /// Something else.
    Of(Floats<'a, S>),
}

impl<'a> Output<'a> {
    /// A result in host memory, of f16, bf16 or f32.
    pub fn of<T: Element>(y: &'a mut [T]) -> Self {
        Self::new(T::floats_mut::<Host>(y))
    }

    /// This output with `bias[m]` added to each result of row m: M elements that all matrices share, or as many for
    /// each.
    ///
    /// ```
    /// use nvfp4_gemv::{gemv, GlobalScale, Options, Output, ScaleLayout, Shape, Vectors, Weights};
    /// let shape = Shape::matrix(2, 16)?;
    /// let w = Weights::new(&shape, &[0x22; 16], &[0x38; 2], ScaleLayout::Linear, GlobalScale::ONE)?;
    /// let mut y = [100.0f32, 200.0];
    /// let output = Output::of(&mut y).with_bias(&[0.5, -0.5]).accumulating();
    /// gemv(&shape, &w, &Vectors::of(&[1.0; 16]), output, &Options::new())?;
    /// assert_eq!(y, [116.5, 215.5]);
    /// # Ok::<(), nvfp4_gemv::Error>(())
    /// ```
    #[must_use]
    pub fn with_bias(self, bias: &'a [f32]) -> Self {
        let bias = Some(bias);
        Self { bias, ..self }
    }

    /// This output with `r[l][n][m]` added to each result: numbers of the output's type that lie as the output does,
    /// with its strides.
    #[must_use]
    pub fn adding<T: Element>(self, r: &'a [T]) -> Self {
        self.with_residual(Residual::Of(T::floats::<Host>(r)))
    }
}

#[cfg(feature = "device")]
impl<'a> Output<'a, crate::Device> {
    /// A result in a device's memory, of f16, bf16 or f32.
    pub fn on_device<T: Element>(y: cudarc::driver::CudaViewMut<'a, T>) -> Self {
        Self::new(T::floats_mut::<crate::Device>(y))
    }

    /// As [`Output::with_bias`].
    #[must_use]
    pub fn with_bias_on_device(self, bias: cudarc::driver::CudaView<'a, f32>) -> Self {
        let bias = Some(bias);
        Self { bias, ..self }
    }

    /// As [`Output::adding`]. The view may not share memory with the output's: see
    /// [`accumulating`](Output::accumulating).
    #[must_use]
    pub fn adding_on_device<T: Element>(self, r: cudarc::driver::CudaView<'a, T>) -> Self {
        self.with_residual(Residual::Of(T::floats::<crate::Device>(r)))
    }
}

impl<'a, S: Memory> Output<'a, S> {
    fn new(elements: FloatsMut<'a, S>) -> Self {
        Self {
            elements,
            strides: None,
            bias: None,
            residual: None,
        }
    }

    fn with_residual(self, residual: Residual<'a, S>) -> Self {
        let residual = Some(residual);
        Self { residual, ..self }
    }

    /// This output with its content before the call added to each result: `y += W x`. There is one residual: the last
    /// that was given counts, of `accumulating` or of `adding`.
    #[must_use]
    pub fn accumulating(self) -> Self {
        self.with_residual(Residual::Itself)
    }

    /// Steps in elements where results do not follow each other. From a vector to the next: M or more, and on a device
    /// less than 2^31. From a batch to the next: at least the elements that a batch spans, from its first result to its
    /// last. Elements between results are left as they are.
    #[must_use]
    pub fn with_strides(self, strides: Strides) -> Self {
        let strides = Some(strides);
        Self { strides, ..self }
    }

    /// The element type.
    pub fn element(&self) -> FloatType {
        self.elements.element()
    }

    /// Checks that buffers hold what they reach, and that types agree. `matrices` is the number of matrices of the
    /// weights. Returns the strides in elements, and the step from one matrix's bias to the next's.
    pub(crate) fn resolve(&self, shape: &Shape, matrices: usize) -> Result<OutputLayout> {
        let resolve = |operand, got| {
            let (row, apart) = (shape.m(), Batches::Apart);
            check::resolve(operand, "elements", self.strides, shape, row, got, apart)
        };
        let strides = resolve("output", self.elements.count())?;
        if let Some(Residual::Of(r)) = &self.residual {
            let (output, residual) = (self.element(), r.element());
            if output != residual {
                return Err(Error::ResidualType { output, residual });
            }
            resolve("residual", r.count())?;
        }
        let bias_batch = match &self.bias {
            Some(bias) => check::of_rows("bias", shape.m(), matrices, bias.count())?,
            None => 0,
        };
        Ok(OutputLayout {
            strides,
            bias_batch,
        })
    }
}

/// Strides of an [`Output`], checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputLayout {
    /// Strides in elements, of the residual too.
    pub(crate) strides: Strides,
    /// Elements from one matrix's bias to the next's: 0 where all share one.
    pub(crate) bias_batch: usize,
}
