//! The MLP of a decoder layer in a device's memory.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};

use super::Mlp;
use crate::context::driver_error;
use crate::device::output;
use crate::error::{Error, Result};
use crate::gate::Gate;
use crate::linear::LinearOnDevice;
use crate::memory::Device;
use crate::output::Output;
use crate::quantized::QuantizedVectors;
use crate::shape::{Dims, Shape};
use crate::tensor::Vectors;
use crate::types::{Activation, RowOrder, ScaleLayout};
use crate::workspace::Workspace;

/// An [`Mlp`] in a device's memory, whose layers multiply NVFP4 vectors: four kernels a call, which quantise the vectors,
/// multiply gate and up, apply the [`Gate`] and quantise again, multiply down. Results between the layers are f32.
///
/// A call allocates nothing, synchronises nothing, and can be [captured into a CUDA graph](crate#cuda-graphs), once it
/// was [prepared](Self::prepare), or made, with these buffers, results and residual. What it writes between the layers
/// lies in [`MlpBuffers`], which layers of one size share, in calls on one stream.
///
/// ```no_run
/// use nvfp4_gemv::cudarc::driver::CudaContext;
/// use nvfp4_gemv::{Linear, Mlp, Output, ScaleLayout, Vectors, half::bf16};
///
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let layer = |rows, k| Linear::from_dense(&vec![1.0f32; rows * k], rows, k);
/// let mlp = Mlp::new(layer(512, 256)?, layer(512, 256)?, layer(256, 512)?)?;
/// let mlp = mlp.on_device(&stream, ScaleLayout::Tiled128x4)?;
/// let mut buffers = mlp.buffers(&stream, 2)?;
/// let x = stream.clone_htod(&vec![bf16::ONE; 2 * 256])?;
/// let mut y = stream.alloc_zeros::<bf16>(2 * 256)?;
/// let (vectors, output) = (Vectors::on_device(x.as_view()), Output::on_device(y.as_view_mut()));
/// mlp.forward(&stream, &mut buffers, &vectors, output)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct MlpOnDevice {
    gate_up: LinearOnDevice,
    down: LinearOnDevice,
    gate: Gate,
    order: RowOrder,
    layout: ScaleLayout,
    chained: bool,
}

/// Memory that [`MlpOnDevice::forward`] writes between the layers, for a number of vectors.
#[derive(Debug)]
pub struct MlpBuffers {
    x: QuantizedVectors,
    sums: CudaSlice<f32>,
    between: QuantizedVectors,
}

impl Mlp {
    /// This MLP in a device's memory, as [`Linear::on_device`](crate::Linear::on_device). The quantised vectors' scales
    /// have the layout too.
    ///
    /// # Errors
    /// As [`Linear::on_device`](crate::Linear::on_device)'s.
    pub fn on_device(&self, stream: &Arc<CudaStream>, layout: ScaleLayout) -> Result<MlpOnDevice> {
        let (layers, order) = self.gate_up();
        Ok(MlpOnDevice {
            gate_up: LinearOnDevice::stacked(stream, layout, layers)?,
            down: LinearOnDevice::stacked(stream, layout, vec![self.down()])?,
            gate: self.gate(),
            order,
            layout,
            chained: false,
        })
    }
}

impl MlpOnDevice {
    /// This MLP with a workspace for its products, as [`LinearOnDevice::with_workspace`].
    #[must_use]
    pub fn with_workspace(self, workspace: &Workspace) -> Self {
        Self {
            gate_up: self.gate_up.with_workspace(workspace.clone()),
            down: self.down.with_workspace(workspace.clone()),
            ..self
        }
    }

    /// Bytes of a [workspace](Self::with_workspace) that calls with `n` vectors would use.
    ///
    /// # Errors
    /// As [`LinearOnDevice::workspace_bytes`]'s.
    pub fn workspace_bytes(&self, n: usize) -> Result<u64> {
        let bytes = |layer: &LinearOnDevice| layer.workspace_bytes(n, Activation::Nvfp4);
        Ok(bytes(&self.gate_up)?.max(bytes(&self.down)?))
    }

    /// This MLP with chained launches: as [`Options::chained`](crate::Options::chained).
    ///
    /// # Safety
    /// As [`Options::chained`](crate::Options::chained)'s, for every later call of this MLP and of its clones. And the
    /// launch before such a call waits for those before it, as [`QuantizedVectors::chained`] says.
    #[must_use]
    pub unsafe fn chained(self) -> Self {
        // SAFETY: this function's own contract.
        let chained = |layer: LinearOnDevice| unsafe { layer.chained() };
        Self {
            gate_up: chained(self.gate_up),
            down: chained(self.down),
            chained: true,
            ..self
        }
    }

    /// Memory for what lies between the layers, for calls with `n` vectors.
    ///
    /// # Errors
    /// Sizes past the address range; errors that CUDA reports of the allocations.
    pub fn buffers(&self, stream: &Arc<CudaStream>, n: usize) -> Result<MlpBuffers> {
        let quantized = |k| {
            let shape = Shape::new(Dims { m: 0, n, k, l: 1 })?;
            let vectors = QuantizedVectors::new(stream, &shape, self.layout)?;
            match self.chained {
                // SAFETY: whoever called `chained` has promised more.
                true => unsafe { vectors.chained() },
                false => Ok(vectors),
            }
        };
        let [x, between] = [quantized(self.k())?, quantized(self.down.k())?];
        let count = self.gate_up.shape(n)?.outputs();
        let sums = stream.alloc_zeros(count.max(1));
        Ok(MlpBuffers {
            x,
            sums: sums.map_err(|error| driver_error("allocating buffers of an MLP", error))?,
            between,
        })
    }

    /// Enqueues the vectors `[n][K]`, f16, bf16 or f32, into results `[n][M of down]`, with what the [`Output`] adds. The
    /// number of vectors is the buffers'.
    ///
    /// # Errors
    /// As [`QuantizedVectors::quantize`]'s and [`LinearOnDevice::forward`]'s. [`Error::BuffersMismatch`] for
    /// buffers of an MLP of another size, [`Error::BuffersChained`] for those of a chained one where this is not.
    pub fn forward<'a>(
        &'a self,
        stream: &Arc<CudaStream>,
        buffers: &mut MlpBuffers,
        x: &Vectors<'_, Device>,
        y: Output<'a, Device>,
    ) -> Result<()> {
        self.call(stream, buffers, x, y, true)
    }

    /// Checks a call with these operands and prepares its products, and enqueues nothing: before a capture. With
    /// feature `jit` make a call instead: this does not compile the quantiser, nor what follows the products.
    ///
    /// # Errors
    /// As [`forward`](Self::forward)'s.
    pub fn prepare<'a>(
        &'a self,
        stream: &Arc<CudaStream>,
        buffers: &mut MlpBuffers,
        x: &Vectors<'_, Device>,
        y: Output<'a, Device>,
    ) -> Result<()> {
        self.call(stream, buffers, x, y, false)
    }

    fn call<'a>(
        &'a self,
        stream: &Arc<CudaStream>,
        buffers: &mut MlpBuffers,
        x: &Vectors<'_, Device>,
        mut y: Output<'a, Device>,
        launch: bool,
    ) -> Result<()> {
        let MlpBuffers {
            x: own,
            sums,
            between,
        } = buffers;
        let n = own.shape().n();
        let found = [own.shape().k(), between.shape().k(), self.rows()];
        let needed = [self.k(), self.down.k(), self.rows()];
        if found != needed {
            return Err(Error::BuffersMismatch { found, needed });
        }
        if own.is_chained() && !self.chained {
            return Err(Error::BuffersChained);
        }
        // Operands that do not fit are refused before anything is enqueued, and before the output is written what a
        // product refuses when it is prepared.
        own.check(stream, x)?;
        if y.bias.is_some() && self.down.has_bias() {
            return Err(Error::BiasTwice);
        }
        output(stream, &self.down.shape(n)?, &mut y)?;
        let all = n * self.gate_up.rows();
        let to = Output::on_device(sums.slice_mut(..all));
        if !launch {
            self.gate_up.prepare(stream, &own.vectors(), n, to)?;
            self.down.prepare(stream, &between.vectors(), n, y)?;
            return Ok(());
        }
        own.quantize(stream, x)?;
        self.gate_up.forward(stream, &own.vectors(), n, to)?;
        let results = Vectors::on_device(sums.slice(..all));
        between.quantize_gated(stream, &results, self.gate, self.order, None)?;
        self.down.forward(stream, &between.vectors(), n, y)?;
        Ok(())
    }

    /// Elements of a vector.
    pub fn k(&self) -> usize {
        self.gate_up.k()
    }

    /// Elements of a result.
    pub fn rows(&self) -> usize {
        self.down.rows()
    }
}
