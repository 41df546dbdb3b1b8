//! The GEMV by address.

use std::ffi::c_void;
use std::fmt;

use super::driver::EncodedMap;
use super::launch::Loaded;
use crate::dispatch::{self, Choice, Options};
use crate::error::Result;
use crate::gpu::Gpu;
use crate::kernel::Call;
use crate::kernel::params::nvfp4_tensor_map;
use crate::kernel::plan::Plan;

/// Enqueues one problem's kernels on `stream`, a `CUstream` or `cudaStream_t`, and says which. A problem where M, N or
/// L is 0 enqueues nothing. `gpu` is what [`gpu()`](super::gpu()) says of the stream's device. The call can be
/// [captured into a CUDA graph](crate#cuda-graphs). With feature `jit` it may [compile its
/// kernels](super#kernels-that-are-compiled) first.
///
/// # Errors
/// Options that contradict each other, or ask for something that cannot run. No kernel for this problem on this GPU.
/// Errors that CUDA reports of the launch. With feature `jit`: a kernel that cannot be compiled (`Error::Jit`) or
/// loaded (`Error::NotLoaded`), or is still to be compiled while the stream is being captured (`Error::NotCompiled`).
///
/// # Safety
/// The context of `stream` is current. Every address of the call is valid in that context, for the bytes that the shape
/// and strides reach, until the work that this call enqueues has run. Nothing else writes the memory there, or reads
/// the output, meanwhile.
///
/// The workspace of the call or the options is valid as long, too. Nothing else reads or writes it meanwhile, and no
/// other thread enqueues a call that uses it between the launches of this call.
///
/// A call that is captured into a graph runs at each replay: all of this holds until the last replay has run.
pub unsafe fn gemv(
    call: &Call,
    gpu: &Gpu,
    options: &Options<'_>,
    stream: *mut c_void,
) -> Result<Choice> {
    let prepared = PreparedRawGemv::of(call, gpu, options, Some(stream))?;
    // SAFETY: this function's own contract; the context is the same. Dependent launches need complete weights. Whoever
    // made chained options has promised that of the first launch. Later launches of a plan read weights before the
    // launch in front of them has ended, and these weights were complete when the first launch started.
    unsafe { prepared.run(stream) }?;
    Ok(prepared.choice)
}

/// One problem's launches: kernels, grids, parameters and tensor maps. Plain bytes, bound to the
/// addresses that they were made of and to the context that was current; it owns no memory and does not
/// keep any alive. For other addresses, prepare another one.
///
/// A prepared call is `Send` and `Sync`: any thread may launch it, on any stream of the context. But all its launches
/// write the same output, so they must not overlap each other.
#[derive(Clone)]
pub struct PreparedRawGemv {
    loaded: Loaded,
    choice: Choice,
}

/// Any thread may launch it, several at once too, as far as the buffers allow.
const _: () = {
    const fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<PreparedRawGemv>();
};

impl fmt::Debug for PreparedRawGemv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedRawGemv")
            .field("choice", &self.choice)
            .finish_non_exhaustive()
    }
}

impl PreparedRawGemv {
    /// Prepares one problem for the context that is current: chooses, plans the launches, loads their kernels, which
    /// feature `jit` may have compiled first, and encodes tensor maps. Enqueues nothing, and follows no address. A
    /// [workspace](Options::workspace) of the options takes the place of the call's.
    ///
    /// # Errors
    /// As [`gemv()`]'s; nothing is captured here.
    pub fn new(call: &Call, gpu: &Gpu, options: &Options<'_>) -> Result<Self> {
        Self::of(call, gpu, options, None)
    }

    /// `stream` is of a call that enqueues at once.
    fn of(
        call: &Call,
        gpu: &Gpu,
        options: &Options<'_>,
        stream: Option<*mut c_void>,
    ) -> Result<Self> {
        let (choice, plan) = dispatch::plan(call, gpu, options)?;
        Ok(Self {
            loaded: Loaded::new(plan, stream)?,
            choice,
        })
    }

    /// The path and config that compute it, and the reason for the choice.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// The launches as data.
    pub fn plan(&self) -> &Plan {
        self.loaded.plan()
    }

    /// The launches' tensor maps, each as the plan describes it and as the driver encoded it: for the test that
    /// compares the driver's bytes with the simulator's.
    #[doc(hidden)]
    pub fn encoded_maps(&self) -> impl Iterator<Item = (&nvfp4_tensor_map, &EncodedMap)> {
        self.loaded.maps()
    }

    /// Enqueues the prepared kernels on `stream`, a `CUstream` or `cudaStream_t`: a driver launch each,
    /// and nothing else. Can be [captured into a CUDA graph](crate#cuda-graphs).
    ///
    /// # Errors
    /// Errors that CUDA reports of the launch.
    ///
    /// # Safety
    /// As [`gemv()`]'s, for the addresses that this was prepared with; and the current
    /// context is the one it was prepared in.
    pub unsafe fn run(&self, stream: *mut c_void) -> Result<()> {
        // SAFETY: this function's own contract; the plan is of a call that was checked. Dependent launches need
        // complete weights. Whoever made chained options has promised that of the first launch. Later launches of a
        // plan read weights before the launch in front of them has ended, and these weights were complete when the
        // first launch started.
        unsafe { self.loaded.enqueue(stream) }
    }
}
