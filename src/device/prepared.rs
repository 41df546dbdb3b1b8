//! Calls that are prepared once: checked, dispatched, tensor maps encoded.

use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{CudaContext, CudaStream};

use super::bind::{Bound, Taken, bound};
use super::gpu;
use crate::context::same_context;
use crate::dispatch::{Choice, Options};
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::memory::Device;
use crate::output::Output;
use crate::raw::{Call, PreparedRawGemv};
use crate::shape::Shape;
use crate::tensor::{Vectors, Weights};
use crate::workspace::Workspace;

/// A GEMV on a device whose kernel, config, launches and tensor maps were made once.
///
/// A prepared call is bound to the addresses of its operands but borrows none: buffers stay the caller's, to be written
/// between launches and kept in one structure with this. Each [run](Self::run) takes the views again, which
/// proves that the memory is still there, and refuses other views.
///
/// A launch allocates nothing and looks nothing up. Beside the driver's launch it compares addresses and makes the
/// context current. Where cudarc's event tracking is on and the context has several streams, the tracking waits for and
/// records an event for each operand, as in every call with cudarc's views. That costs more than the launch.
/// [`CudaContext::disable_event_tracking`] turns the tracking off for programs that order their streams themselves, and
/// [`raw`](Self::raw) launches by address, without views. A launch can be [captured into a CUDA
/// graph](crate#cuda-graphs), where the tracking must be off.
///
/// ```no_run
/// use cudarc::driver::CudaContext;
/// use nvfp4_gemv::{
///     DenseVectors, GlobalScale, Options, Output, PreparedGemvOnDevice, ScaleLayout, Shape,
///     Vectors, Weights,
/// };
///
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let shape = Shape::matrix(128, 256)?;
/// let codes = stream.clone_htod(&vec![0x22u8; shape.weight_code_bytes()])?;
/// let scales = stream.clone_htod(&vec![0x38u8; shape.weight_scale_bytes(ScaleLayout::Linear)])?;
/// let mut x = stream.alloc_zeros::<f32>(shape.k())?;
/// let mut y = stream.alloc_zeros::<f32>(shape.m())?;
/// let weights = Weights::on_device(
///     &shape, codes.as_view(), scales.as_view(), ScaleLayout::Linear, GlobalScale::ONE,
/// )?;
///
/// let (vectors, output) =
///     (Vectors::on_device(x.as_view()), Output::on_device(y.as_view_mut()));
/// let gemv = PreparedGemvOnDevice::new(
///     &stream, &shape, &weights, &vectors, output, &Options::new(),
/// )?;
/// println!("{}: {}", gemv.choice().path, gemv.choice().reason);
/// for step in 0..3 {
///     stream.memcpy_htod(&vec![step as f32; shape.k()], &mut x)?;
///     let vectors = Vectors::on_device(x.as_view());
///     gemv.run(&stream, &weights, &vectors, Output::on_device(y.as_view_mut()))?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PreparedGemvOnDevice {
    /// Kept, so that the context in which the kernels were loaded is not replaced by another.
    context: Arc<CudaContext>,
    call: Call,
    prepared: PreparedRawGemv,
    /// Kept alive.
    workspace: Option<Workspace>,
}

const _: () = {
    const fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<PreparedGemvOnDevice>();
};

impl PreparedGemvOnDevice {
    /// Prepares [`gemv_on_device`](crate::gemv_on_device) of these operands. Enqueues nothing, unless the options ask to
    /// [measure](Options); `stream` says which device. The promise of [chained](Options::chained) options holds at each
    /// [run](Self::run).
    ///
    /// # Errors
    /// As [`gemv_on_device`](crate::gemv_on_device).
    pub fn new(
        stream: &Arc<CudaStream>,
        shape: &Shape,
        weights: &Weights<'_, Device>,
        vectors: &Vectors<'_, Device>,
        output: Output<'_, Device>,
        options: &Options<'_>,
    ) -> Result<Self> {
        let gpu = gpu(stream.context().ordinal())?;
        let operands = (vectors, Taken::AsTheyAre);
        bound(
            stream,
            options.workspace,
            shape,
            weights,
            operands,
            output,
            |bound| {
                let call = bound.call(shape)?;
                #[cfg(feature = "tune")]
                crate::tune::at_prepare(stream, &call, gpu, options)?;
                Self::of(stream, call, gpu, options)
            },
        )
    }

    /// For the stream's context, which is current.
    fn of(stream: &Arc<CudaStream>, call: Call, gpu: &Gpu, options: &Options<'_>) -> Result<Self> {
        Ok(Self {
            context: stream.context().clone(),
            call,
            prepared: PreparedRawGemv::new(&call, gpu, options)?,
            workspace: options.workspace.cloned(),
        })
    }

    /// Enqueues it on a stream of the device it was prepared on, with a workspace on the workspace's stream. The views
    /// are those that it was prepared with, or others of the same memory.
    ///
    /// # Errors
    /// [`Error::NotAsPrepared`] for other operands, [`Error::WrongDevice`], [`Error::WrongContext`], operands that
    /// contradict the shape, a workspace of another stream; and what CUDA reports of the launch.
    pub fn run(
        &self,
        stream: &Arc<CudaStream>,
        weights: &Weights<'_, Device>,
        vectors: &Vectors<'_, Device>,
        output: Output<'_, Device>,
    ) -> Result<()> {
        same_context("prepared call", &self.context, stream.context())?;
        let call = &self.call;
        let operands = (vectors, Taken::AsTheyAre);
        bound(
            stream,
            self.workspace.as_ref(),
            &call.shape,
            weights,
            operands,
            output,
            |bound| {
                let same = |operand, same| match same {
                    true => Ok(()),
                    false => Err(Error::NotAsPrepared { operand }),
                };
                same("weights", bound.weights == call.weights)?;
                same("vectors", bound.vectors == call.vectors)?;
                same("outputs", bound.output == call.output)?;
                // SAFETY: the stream's context is current, and is the one that was current when this was prepared. The
                // views hold valid device memory at the addresses that were prepared, of at least the lengths that were
                // checked against the shape. cudarc's events, recorded by the guards that `bound` holds, keep the
                // memory from being freed or reused before the enqueued work has run. The workspace is kept by `self`
                // and held: the launches of calls that use it follow each other on its stream, and it is freed behind
                // them.
                unsafe { self.prepared.run(stream.cu_stream().cast()) }
            },
        )
    }

    /// The shape it was prepared for.
    pub fn shape(&self) -> &Shape {
        self.call.shape()
    }

    /// The path and config that compute it, and the reason for the choice.
    pub fn choice(&self) -> &Choice {
        self.prepared.choice()
    }

    /// The launches, for programs that answer for the memory themselves.
    pub fn raw(&self) -> &PreparedRawGemv {
        &self.prepared
    }
}

/// Calls of one layer that were prepared with the same options, for operands at different places.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// The one that was used last comes first.
    calls: Mutex<Vec<PreparedGemvOnDevice>>,
}

impl Kept {
    /// The most calls that are kept: those of 1 to 128 vectors in the same buffers.
    pub(crate) const MOST: usize = 128;

    /// Enqueues the call that was prepared for these operands, or prepares it first. Without `launch` nothing is
    /// enqueued.
    #[allow(clippy::too_many_arguments, reason = "a call's operands, and how")]
    pub(crate) fn call(
        &self,
        stream: &Arc<CudaStream>,
        shape: &Shape,
        weights: &Weights<'_, Device>,
        operands: (&Vectors<'_, Device>, Taken),
        output: Output<'_, Device>,
        options: &Options<'_>,
        launch: bool,
    ) -> Result<Choice> {
        bound(
            stream,
            options.workspace,
            shape,
            weights,
            operands,
            output,
            |bound| self.kept(stream, shape, bound, options, launch),
        )
    }

    /// The same of operands that are [bound].
    fn kept(
        &self,
        stream: &Arc<CudaStream>,
        shape: &Shape,
        bound: &Bound,
        options: &Options<'_>,
        launch: bool,
    ) -> Result<Choice> {
        let lock = || self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        // Held until the call is enqueued: another thread does not wait for that long.
        let mut calls = lock();
        let is_this = |kept: &PreparedGemvOnDevice| {
            let call = &kept.call;
            call.shape == *shape
                && call.vectors == bound.vectors
                && call.output == bound.output
                && call.weights == bound.weights
                && kept.context.cu_ctx() == stream.context().cu_ctx()
        };
        match calls.iter().position(is_this) {
            Some(0) => {}
            Some(at) => calls[..=at].rotate_right(1),
            None => {
                drop(calls); // to prepare may take seconds
                let gpu = gpu(stream.context().ordinal())?;
                let call = bound.call(shape)?;
                #[cfg(feature = "tune")]
                if !launch {
                    crate::tune::at_prepare(stream, &call, gpu, options)?;
                }
                let prepared = PreparedGemvOnDevice::of(stream, call, gpu, options)?;
                calls = lock();
                calls.truncate(Self::MOST - 1);
                calls.insert(0, prepared);
            }
        }
        let kept = &calls[0];
        if launch {
            // SAFETY: as in `PreparedGemvOnDevice::run`: the stream's context is current, and is the one that this was
            // prepared in; the views are of the memory that it was prepared with; `bind::bound` holds the guards and
            // the workspace.
            unsafe { kept.prepared.run(stream.cu_stream().cast()) }?;
        }
        Ok(*kept.choice())
    }
}
