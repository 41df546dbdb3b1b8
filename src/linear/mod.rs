//! Linear layers that own their weights, or share them: what an engine keeps for each layer of a model.

mod bytes;
#[cfg(feature = "checkpoint")]
mod checkpoint;
#[cfg(feature = "device")]
mod device;
#[cfg(all(feature = "device", feature = "checkpoint"))]
mod pieces;

use std::sync::Arc;

pub use bytes::Bytes;
#[cfg(feature = "device")]
pub use device::LinearOnDevice;
#[cfg(feature = "device")]
pub use device::MatricesOnDevice;
#[cfg(all(feature = "device", feature = "checkpoint"))]
pub use pieces::{DevicePieces, PinnedBuffer};

use crate::Dialect;
use crate::check;
use crate::cpu::{self, Accuracy, Manner, Pool};
use crate::dispatch::{Choice, Options};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::gemv::choice_on_host;
use crate::memory::Memory;
use crate::output::Output;
use crate::quantize::{QuantizeError, Quantized, quantize};
use crate::shape::{Dims, Shape};
use crate::tensor::{GlobalScale, Vectors, Weights, check_column_alpha};
use crate::types::{Activation, ScaleLayout};

/// A linear layer `y = W x + bias` in host memory, computed on the CPU: codes, scales, factors of rows and a bias, owned
/// or shared.
///
/// It borrows nothing, so that it can stand in a structure beside the checkpoint that its bytes lie in. A clone shares
/// everything and costs one count. Block scales are looked at once, when the layer is made. Results have the bits that
/// [`gemv`](fn@crate::gemv) gives.
///
/// ```
/// use nvfp4_gemv::{Linear, Output, Vectors};
/// let dense: Vec<f32> = (0..64).map(|i| (i % 7) as f32 - 3.0).collect();
/// let layer = Linear::from_dense(&dense, 2, 32)?.with_bias(vec![0.5, -0.5])?;
/// let (x, mut y) = ([1.0f32; 3 * 32], [0.0f32; 3 * 2]);
/// layer.forward(&Vectors::of(&x), 3, Output::of(&mut y))?; // three vectors
/// assert_eq!(y[..2], y[2..4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Calls of all layers of a process share memory for intermediate data: as much as the largest call needs, a set for
/// each of the calls that run at once. [`prepare`](Self::prepare) makes it beforehand. From then on a call allocates
/// nothing, except that rayon's queue makes room now and then for calls from threads outside of rayon's pool.
#[derive(Clone, Debug)]
pub struct Linear {
    parts: Arc<Parts>,
    manner: Manner,
    pool: Arc<Pool>,
}

#[derive(Clone, Debug)]
struct Parts {
    /// N means nothing.
    shape: Shape,
    codes: Bytes,
    scales: Bytes,
    layout: ScaleLayout,
    global: GlobalScale,
    row_alpha: Option<Arc<[f32]>>,
    column_alpha: Option<Arc<[f32]>>,
    bias: Option<Arc<[f32]>>,
}

const _: () = {
    const fn is_send_and_sync<T: Send + Sync + Clone + 'static>() {}
    is_send_and_sync::<Linear>();
};

impl Linear {
    /// A layer of `rows` rows of `k` elements, of codes `[rows][k/2]` and block scales in a layout. Reads every scale,
    /// to refuse NaN and negative ones.
    ///
    /// # Errors
    /// As [`Weights::new`]'s, and [`Shape::matrix`]'s.
    pub fn new(
        rows: usize,
        k: usize,
        codes: impl Into<Bytes>,
        scales: impl Into<Bytes>,
        layout: ScaleLayout,
        global: GlobalScale,
    ) -> Result<Self> {
        let (shape, codes, scales) = (Shape::matrix(rows, k)?, codes.into(), scales.into());
        Weights::new(&shape, codes.get(), scales.get(), layout, global)?;
        Ok(Self::of_scanned(shape, codes, scales, layout, global))
    }

    /// Of parts that [`Weights::new`] takes.
    fn of_scanned(
        shape: Shape,
        codes: Bytes,
        scales: Bytes,
        layout: ScaleLayout,
        global: GlobalScale,
    ) -> Self {
        let parts = Parts {
            shape,
            codes,
            scales,
            layout,
            global,
            row_alpha: None,
            column_alpha: None,
            bias: None,
        };
        Self {
            parts: Arc::new(parts),
            manner: Manner::default(),
            pool: Pool::shared(),
        }
    }

    /// A layer of a dense row-major matrix `[rows][k]`, quantised as [`quantize`](fn@crate::quantize::quantize) does in
    /// ModelOpt's dialect.
    ///
    /// # Errors
    /// As [`quantize`](fn@crate::quantize::quantize)'s.
    pub fn from_dense<T: Element>(
        values: &[T],
        rows: usize,
        k: usize,
    ) -> Result<Self, QuantizeError> {
        let matrix = quantize(values, rows, k, Dialect::ModelOpt, None)?;
        Ok(Self::from_quantized(matrix)?)
    }

    /// A layer of a matrix that was quantised.
    ///
    /// # Errors
    /// As [`new`](Self::new)'s. No errors for a matrix that the quantiser made.
    pub fn from_quantized(matrix: Quantized) -> Result<Self> {
        let Quantized {
            rows,
            k,
            codes,
            scales,
            global,
        } = matrix;
        Self::new(rows, k, codes, scales, ScaleLayout::Linear, global)
    }

    /// This layer with a factor for each row, on top of the global scale: as [`Weights::with_row_alpha`].
    ///
    /// # Errors
    /// Another number of factors than of rows; a factor that is NaN or infinite.
    pub fn with_row_alpha(mut self, alpha: impl Into<Arc<[f32]>>) -> Result<Self> {
        let alpha = alpha.into();
        self.weights().with_row_alpha(&alpha)?;
        Arc::make_mut(&mut self.parts).row_alpha = Some(alpha);
        Ok(self)
    }

    /// This layer with a factor for each element of a vector, which vectors are multiplied by before the product: as
    /// [`Weights::with_column_alpha`].
    ///
    /// # Errors
    /// Another number of factors than of a row's elements; a factor that is NaN or infinite.
    pub fn with_column_alpha(mut self, alpha: impl Into<Arc<[f32]>>) -> Result<Self> {
        let alpha = alpha.into();
        check_column_alpha(&alpha, &self.parts.shape)?;
        Arc::make_mut(&mut self.parts).column_alpha = Some(alpha);
        Ok(self)
    }

    /// This layer without factors of columns: for vectors that were multiplied by them. Devices take no other.
    #[must_use]
    pub fn without_column_alpha(mut self) -> Self {
        if self.parts.column_alpha.is_some() {
            Arc::make_mut(&mut self.parts).column_alpha = None;
        }
        self
    }

    /// This layer with a bias, a number for each row, which is added to each result.
    ///
    /// # Errors
    /// Another number of numbers than of rows.
    pub fn with_bias(mut self, bias: impl Into<Arc<[f32]>>) -> Result<Self> {
        let bias = bias.into();
        check::len("bias", "elements", bias.len(), self.rows())?;
        Arc::make_mut(&mut self.parts).bias = Some(bias);
        Ok(self)
    }

    /// This layer with vectors that need not be multiplied exactly.
    #[must_use]
    pub fn with_accuracy(self, accuracy: Accuracy) -> Self {
        let manner = Manner {
            accuracy,
            ..self.manner
        };
        Self { manner, ..self }
    }

    /// This layer with results that do not depend on the other vectors of a call, or that may: as
    /// [`Options::batch_invariant`].
    #[must_use]
    pub fn with_batch_invariance(self, batch_invariant: bool) -> Self {
        let manner = Manner {
            batch_invariant,
            ..self.manner
        };
        Self { manner, ..self }
    }

    /// Whether results do not depend on the other vectors of a call.
    pub fn is_batch_invariant(&self) -> bool {
        self.manner.batch_invariant
    }

    /// How exactly vectors are multiplied.
    pub fn accuracy(&self) -> Accuracy {
        self.manner.accuracy
    }

    /// Computes `n` vectors `[n][K]`, f16, bf16, f32 or NVFP4, into results `[n][rows]`: `y = W x + bias`, with what the
    /// [`Output`] adds besides. The output has every element written or, on an error, none.
    ///
    /// # Errors
    /// Vectors or an output that contradict the layer and `n`. Vectors' scales that are NaN or negative. NVFP4 vectors,
    /// where the layer has factors of columns. An output with a bias, where the layer has one. `NVFP4_GEMV_PATH` that asks
    /// for another path than the CPU.
    pub fn forward<'a>(&'a self, x: &Vectors<'_>, n: usize, y: Output<'a>) -> Result<()> {
        let shape = self.shape(n)?;
        choice_on_host(&shape, self.parts.layout, &Options::new())?;
        let y = with_bias(y, self.bias(), |y, bias| y.with_bias(bias))?;
        cpu::gemv(&shape, &self.weights(), x, y, (&self.pool, self.manner))
    }

    /// Makes memory for calls with up to `n` vectors of a type, on the pool of threads that is current, so that the
    /// first such call allocates nothing either.
    ///
    /// # Errors
    /// As [`shape`](Self::shape)'s; [`Error::NoMemory`].
    pub fn prepare(&self, n: usize, activation: Activation) -> Result<()> {
        self.prepare_for(1, n, activation)
    }

    /// For so many calls at once.
    pub(crate) fn prepare_for(
        &self,
        at_once: usize,
        n: usize,
        activation: Activation,
    ) -> Result<()> {
        let (shape, layout) = (self.shape(n)?, self.parts.layout);
        let has_column_alpha = self.parts.column_alpha.is_some();
        let vectors = (activation, self.manner);
        (self.pool).reserve(at_once, &shape, layout, vectors, has_column_alpha)
    }

    /// The path of a call, and the reason.
    ///
    /// # Errors
    /// `NVFP4_GEMV_PATH` that asks for another path than the CPU, or names none.
    pub fn choice(&self) -> Result<Choice> {
        choice_on_host(&self.parts.shape, self.parts.layout, &Options::new())
    }

    /// The weights, for calls that take them borrowed. Nothing is looked at again.
    pub fn weights(&self) -> Weights<'_> {
        let parts = &*self.parts;
        Weights {
            shape: parts.shape,
            codes: parts.codes.get(),
            scales: parts.scales.get(),
            layout: parts.layout,
            global: parts.global,
            row_alpha: parts.row_alpha.as_deref(),
            column_alpha: parts.column_alpha.as_deref(),
            select: None,
            late: false,
            distinct: false,
        }
    }

    /// The factors of [columns](Self::with_column_alpha).
    pub fn column_alpha(&self) -> Option<&[f32]> {
        self.parts.column_alpha.as_deref()
    }

    /// The numbers that are added to the results of rows.
    pub fn bias(&self) -> Option<&[f32]> {
        self.parts.bias.as_deref()
    }

    /// Rows of the weights, M: elements of a result.
    pub fn rows(&self) -> usize {
        self.parts.shape.m()
    }

    /// Elements of a row, K: elements of a vector.
    pub fn k(&self) -> usize {
        self.parts.shape.k()
    }

    /// The shape of a call with `n` vectors.
    ///
    /// # Errors
    /// [`Error::SizeOverflow`] for more vectors than memory can have.
    pub fn shape(&self, n: usize) -> Result<Shape> {
        with_vectors(&self.parts.shape, n)
    }

    /// The pool that results between layers come from, too.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }
}

/// The shape of a layer's call with `n` vectors.
fn with_vectors(shape: &Shape, n: usize) -> Result<Shape> {
    let (m, k) = (shape.m(), shape.k());
    Shape::new(Dims { m, n, k, l: 1 })
}

/// The output with the layer's bias, if the layer has one and the output none.
pub(crate) fn with_bias<'a, S: Memory, B>(
    output: Output<'a, S>,
    bias: Option<B>,
    add: impl FnOnce(Output<'a, S>, B) -> Output<'a, S>,
) -> Result<Output<'a, S>> {
    match (bias, &output.bias) {
        (None, _) => Ok(output),
        (Some(bias), None) => Ok(add(output, bias)),
        (Some(_), Some(_)) => Err(Error::BiasTwice),
    }
}
