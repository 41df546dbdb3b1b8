//! The safe call on a CUDA device: cudarc's views in, checks, dispatch, launch.

mod bind;
mod prepared;

use std::sync::{Arc, OnceLock};

use cudarc::driver::CudaStream;

use crate::dispatch::{Choice, Options};
use crate::error::Result;
use crate::gpu::Gpu;
use crate::memory::Device;
use crate::output::Output;
use crate::raw;
use crate::shape::Shape;
use crate::tensor::{Vectors, Weights};

pub(crate) use bind::{Taken, dense, output, read};
pub(crate) use prepared::Kept;
pub use prepared::PreparedGemvOnDevice;

/// Computes `y[l][n][m] = alpha · Σ_k w[l][m][k] · x[l][n][k]` of operands in a device's memory,
/// on `stream`, as the [`Options`] ask, and says what it enqueued.
///
/// Nothing is allocated, synchronised or copied, so that the call can be [captured into a CUDA
/// graph](crate#cuda-graphs). The operands' own events order this call after earlier writes of the buffers, as cudarc
/// does for all of its views.
///
/// # Errors
/// Operands that contradict the shape, lie on another device or in another context, or are misaligned. A workspace of
/// another stream. Options that contradict each other, were [tuned on another GPU](crate::Error::TunedElsewhere), or
/// ask for something that cannot run. No kernel for this device. Errors that CUDA reports of the launch.
///
/// ```no_run
/// use cudarc::driver::CudaContext;
/// use nvfp4_gemv::{
///     DenseVectors, GlobalScale, Options, Output, ScaleLayout, Shape, Vectors, Weights,
/// };
///
/// nvfp4_gemv::raw::device_count()?; // a typed error where there is no driver or device
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let shape = Shape::matrix(128, 256)?;
/// let codes = stream.clone_htod(&vec![0x22u8; shape.weight_code_bytes()])?;
/// let scales = stream.clone_htod(&vec![0x38u8; shape.weight_scale_bytes(ScaleLayout::Linear)])?;
/// let x = stream.clone_htod(&vec![1.0f32; shape.k()])?;
/// let mut y = stream.alloc_zeros::<f32>(shape.m())?;
///
/// let weights = Weights::on_device(
///     &shape, codes.as_view(), scales.as_view(), ScaleLayout::Linear, GlobalScale::ONE,
/// )?;
/// let vectors = Vectors::on_device(x.as_view());
/// let output = Output::on_device(y.as_view_mut());
/// let options = Options::new();
/// nvfp4_gemv::gemv_on_device(&stream, &shape, &weights, &vectors, output, &options)?;
/// assert_eq!(stream.clone_dtoh(&y)?, [256.0; 128]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Calls that are [chained](Options#chained-launches), as layers of a model can be:
///
/// ```no_run
/// # use cudarc::driver::CudaContext;
/// # use nvfp4_gemv::{
/// #     DenseVectors, GlobalScale, Options, Output, ScaleLayout, Shape, Vectors, Weights, gemv_on_device,
/// # };
/// # let stream = CudaContext::new(0)?.new_stream()?;
/// # let shape = Shape::matrix(256, 256)?;
/// # let codes = stream.clone_htod(&vec![0x22u8; shape.weight_code_bytes()])?;
/// # let scales = stream.clone_htod(&vec![0x38u8; shape.weight_scale_bytes(ScaleLayout::Linear)])?;
/// # let weights = Weights::on_device(
/// #     &shape, codes.as_view(), scales.as_view(), ScaleLayout::Linear, GlobalScale::Divisor(256.0),
/// # )?;
/// # let mut x = stream.clone_htod(&vec![1.0f32; 256])?;
/// # let mut y = stream.alloc_zeros::<f32>(256)?;
/// // SAFETY: the weights were copied to the device before, and no kernel writes them.
/// let options = unsafe { Options::new().chained() };
/// for _layer in 0..8 {
///     let vectors = Vectors::on_device(x.as_view());
///     let output = Output::on_device(y.as_view_mut());
///     gemv_on_device(&stream, &shape, &weights, &vectors, output, &options)?;
///     std::mem::swap(&mut x, &mut y); // what one layer writes, the next one reads
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn gemv_on_device(
    stream: &Arc<CudaStream>,
    shape: &Shape,
    weights: &Weights<'_, Device>,
    vectors: &Vectors<'_, Device>,
    output: Output<'_, Device>,
    options: &Options<'_>,
) -> Result<Choice> {
    let gpu = gpu(stream.context().ordinal())?;
    let operands = (vectors, Taken::AsTheyAre);
    bind::bound(
        stream,
        options.workspace,
        shape,
        weights,
        operands,
        output,
        |bound| {
            let call = bound.call(shape)?;
            // SAFETY: the stream's context is current. The views hold valid device memory of at least the lengths that
            // were checked against the shape, borrowed through this call. cudarc's events, recorded by the guards that
            // `bound` holds, keep the memory from being freed or reused before the enqueued work has run. The workspace
            // is this stream's, and held: the launches of calls that use it follow each other there, and it is freed
            // behind them.
            unsafe { raw::gemv(&call, gpu, options, stream.cu_stream().cast()) }
        },
    )
}

/// Properties of a device, asked for once a process.
pub(crate) fn gpu(ordinal: usize) -> Result<&'static Gpu> {
    static GPUS: OnceLock<Vec<OnceLock<Gpu>>> = OnceLock::new();
    let known = |gpus: &'static Vec<OnceLock<Gpu>>| gpus.get(ordinal)?.get();
    if let Some(gpu) = GPUS.get().and_then(known) {
        return Ok(gpu);
    }
    // A device that does not exist has no properties.
    let (count, gpu) = (raw::device_count()?, raw::gpu(ordinal as u32)?);
    let gpus = GPUS.get_or_init(|| vec![OnceLock::new(); count as usize]);
    Ok(gpus[ordinal].get_or_init(|| gpu))
}
