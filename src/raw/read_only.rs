//! The kernels that other kernels are measured against.

use std::ffi::c_void;

use super::launch::{Loaded, launch};
use crate::check::pointer;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::kernel::plan::Plan;
use crate::kernel::read_only::{Read, ReadConfig};

/// Enqueues a kernel that only reads: the fastest config is the ceiling for any kernel that must read as much.
///
/// # Errors
/// Null or misaligned pointers, [`Error::Config`] for a config that the GPU cannot run. With feature `jit` the errors
/// that [`gemv()`](super::gemv()) has of kernels that are compiled. Errors that CUDA reports of the launch.
///
/// # Safety
/// The context of `stream` is current, and of the GPU. The data to be read and the sink are valid in that context until
/// the enqueued work has run, and nothing else writes them meanwhile.
pub unsafe fn read_only(
    config: &ReadConfig,
    read: &Read,
    gpu: &Gpu,
    stream: *mut c_void,
) -> Result<()> {
    pointer("data", read.data, 16)?;
    pointer("sink", read.sink, 4)?;
    let plan = plan(config, read, gpu)?;
    // SAFETY: this function's own contract.
    unsafe { launch(plan, stream) }
}

/// Loads the kernel of a config in the context that is current, which feature `jit` may compile first: [`read_only()`]
/// can then be captured. Enqueues nothing.
///
/// # Errors
/// [`Error::Config`] for a config that the GPU cannot run. With feature `jit` the errors that [`gemv()`](super::gemv())
/// has of kernels that are compiled. Errors that CUDA reports.
pub fn prepare_read_only(config: &ReadConfig, gpu: &Gpu) -> Result<()> {
    let nothing = Read {
        data: 0,
        bytes: 0,
        sink: 0,
        sums: false,
    };
    Loaded::new(plan(config, &nothing, gpu)?, None).map(|_| ())
}

fn plan(config: &ReadConfig, read: &Read, gpu: &Gpu) -> Result<Plan> {
    config.check(gpu).map_err(|reason| Error::Config {
        config: config.to_string(),
        reason,
    })?;
    Ok(config.launch(read, gpu.multiprocessors).into())
}
