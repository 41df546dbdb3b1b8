//! Calls that are prepared once: checked, dispatched, tensor maps encoded.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};

use super::{How, Launched, bind, device, dispatch, make_current, same_context};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::memory::Device;
use crate::path::Path;
use crate::raw;
use crate::shape::Shape;
use crate::tensor::{Output, Vectors, Weights};
use crate::tune::Tuned;

/// A GEMV on a device whose path, configuration, launches and tensor maps were made once.
///
/// It is bound to the addresses of its operands but borrows none: buffers stay the caller's, to be written
/// between launches and kept in one structure with this. Each [launch](Self::launch) takes the views
/// again, which proves that the memory is still there, and refuses other ones.
///
/// A launch allocates nothing and looks nothing up. Beside the driver's launch it compares addresses and
/// makes the context current. cudarc's event tracking, where it is on and the context has several streams,
/// waits for and records an event for each operand, as in every call with cudarc's views; that costs
/// more than the launch. [`CudaContext::disable_event_tracking`] turns it off for programs that order their
/// streams themselves, and [`raw`](Self::raw) launches by address, without views. A launch can be [captured into a
/// CUDA graph](crate#cuda-graphs), where the tracking must be off.
///
/// ```no_run
/// use cudarc::driver::CudaContext;
/// use nvfp4_gemv::{
///     DenseVectors, GlobalScale, Output, PreparedGemv, ScaleLayout, Shape, Vectors, Weights,
/// };
///
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let shape = Shape::gemv(128, 256, 1)?;
/// let codes = stream.clone_htod(&vec![0x22u8; shape.weight_code_bytes()])?;
/// let scales = stream.clone_htod(&vec![0x38u8; shape.weight_scale_bytes(ScaleLayout::Linear)])?;
/// let mut x = stream.alloc_zeros::<f32>(shape.k())?;
/// let mut y = stream.alloc_zeros::<f32>(shape.m())?;
/// let weights = Weights::on_device(
///     &shape, codes.as_view(), scales.as_view(), ScaleLayout::Linear, GlobalScale::ONE,
/// )?;
///
/// let vectors = Vectors::F32(DenseVectors::new(x.as_view()));
/// let gemv =
///     PreparedGemv::new(&stream, &shape, &weights, &vectors, Output::F32(y.as_view_mut()))?;
/// println!("{}: {}", gemv.launched().choice.path, gemv.launched().choice.reason);
/// for step in 0..3 {
///     stream.memcpy_htod(&vec![step as f32; shape.k()], &mut x)?;
///     let vectors = Vectors::F32(DenseVectors::new(x.as_view()));
///     gemv.launch(&stream, &weights, &vectors, Output::F32(y.as_view_mut()))?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PreparedGemv {
    /// Kept, so that the context in which the kernels were loaded is not replaced by another.
    context: Arc<CudaContext>,
    shape: Shape,
    weights: raw::Weights,
    vectors: raw::Vectors,
    output: raw::Output,
    launches: raw::Prepared,
    launched: Launched,
}

impl PreparedGemv {
    /// Prepares [`gemv_on_device`](crate::gemv_on_device) of these operands, on the path that it would
    /// take. Enqueues nothing; `stream` says which device.
    ///
    /// # Errors
    /// As [`gemv_on_device`](crate::gemv_on_device).
    pub fn new(
        stream: &Arc<CudaStream>,
        shape: &Shape,
        weights: &Weights<'_, Device>,
        vectors: &Vectors<'_, Device>,
        output: Output<'_, Device>,
    ) -> Result<Self> {
        Self::prepare(&How::automatic()?, stream, shape, weights, vectors, output)
    }

    /// As [`gemv_on_device_tuned`](crate::gemv_on_device_tuned): with what was tuned on this device.
    ///
    /// # Errors
    /// As [`gemv_on_device_tuned`](crate::gemv_on_device_tuned).
    pub fn tuned(
        tuned: &Tuned,
        stream: &Arc<CudaStream>,
        shape: &Shape,
        weights: &Weights<'_, Device>,
        vectors: &Vectors<'_, Device>,
        output: Output<'_, Device>,
    ) -> Result<Self> {
        let how = How::tuned(tuned)?;
        Self::prepare(&how, stream, shape, weights, vectors, output)
    }

    /// As [`gemv_on_device_with`](crate::gemv_on_device_with): on a path, and with a configuration, of
    /// the caller's choice.
    ///
    /// # Errors
    /// As [`gemv_on_device_with`](crate::gemv_on_device_with).
    pub fn with(
        forced: Option<Path>,
        config: Option<Config>,
        stream: &Arc<CudaStream>,
        shape: &Shape,
        weights: &Weights<'_, Device>,
        vectors: &Vectors<'_, Device>,
        output: Output<'_, Device>,
    ) -> Result<Self> {
        let how = How::with(forced, config);
        Self::prepare(&how, stream, shape, weights, vectors, output)
    }

    /// As [`gemv_on_device_chained`](crate::gemv_on_device_chained): for launches that follow each other with
    /// programmatic dependent launch.
    ///
    /// # Errors
    /// As [`gemv_on_device_chained`](crate::gemv_on_device_chained).
    ///
    /// # Safety
    /// What [`gemv_on_device_chained`](crate::gemv_on_device_chained) asks for holds at every
    /// [launch](Self::launch) of what this returns, and at every replay of a graph that such a launch was captured
    /// into. `launch` itself is safe: the promise is made here, once for all of them. Do not give what this
    /// returns to code that cannot keep it.
    pub unsafe fn chained(
        forced: Option<Path>,
        config: Option<Config>,
        stream: &Arc<CudaStream>,
        shape: &Shape,
        weights: &Weights<'_, Device>,
        vectors: &Vectors<'_, Device>,
        output: Output<'_, Device>,
    ) -> Result<Self> {
        let how = How::chained(forced, config);
        Self::prepare(&how, stream, shape, weights, vectors, output)
    }

    fn prepare(
        how: &How<'_>,
        stream: &Arc<CudaStream>,
        shape: &Shape,
        weights: &Weights<'_, Device>,
        vectors: &Vectors<'_, Device>,
        mut output: Output<'_, Device>,
    ) -> Result<Self> {
        let device = device(stream.context().ordinal())?;
        let bound = bind::bind(stream, shape, weights, vectors, &mut output)?;
        let (choice, config) = dispatch(how, shape, &bound, device)?;
        make_current(stream)?;
        let launches = raw::prepare(
            shape,
            &bound.weights,
            &bound.vectors,
            &bound.output,
            &config,
            device,
        )?;
        Ok(Self {
            context: stream.context().clone(),
            shape: *shape,
            weights: bound.weights,
            vectors: bound.vectors,
            output: bound.output,
            launches,
            launched: Launched { choice, config },
        })
    }

    /// Enqueues it on a stream of the device it was prepared on. The views are those that it was prepared
    /// with, or others of the same memory.
    ///
    /// # Errors
    /// [`Error::NotAsPrepared`] for other operands, [`Error::WrongDevice`], [`Error::WrongContext`], operands that
    /// contradict the shape; and what CUDA reports of the launch.
    pub fn launch(
        &self,
        stream: &Arc<CudaStream>,
        weights: &Weights<'_, Device>,
        vectors: &Vectors<'_, Device>,
        mut output: Output<'_, Device>,
    ) -> Result<()> {
        same_context("prepared call", &self.context, stream.context())?;
        let bound = bind::bind(stream, &self.shape, weights, vectors, &mut output)?;
        let same = |operand, same| match same {
            true => Ok(()),
            false => Err(Error::NotAsPrepared { operand }),
        };
        same("weights", bound.weights == self.weights)?;
        same("vectors", bound.vectors == self.vectors)?;
        same("outputs", bound.output == self.output)?;
        make_current(stream)?;
        // SAFETY: the stream's context is current, and is the one that was current when this was
        // prepared. The views hold valid device memory at the addresses that were prepared, of at least
        // the lengths that were checked against the shape; cudarc's events, recorded by the guards in
        // `bound`, keep it from being freed or reused before the enqueued work has run. A chained call was made
        // by `chained`, whose caller has promised what that asks for.
        unsafe { self.launches.launch(stream.cu_stream().cast()) }
    }

    /// The shape it was prepared for.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The path, why, and how it cuts the problem.
    pub fn launched(&self) -> Launched {
        self.launched
    }

    /// The launches, for programs that answer for the memory themselves.
    pub fn raw(&self) -> &raw::Prepared {
        &self.launches
    }
}
