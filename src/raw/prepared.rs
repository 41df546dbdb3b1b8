//! Launches that are prepared once and enqueued many times.

use std::ffi::c_void;
use std::fmt;

use super::call::Call;
use super::device::{DeviceInfo, status};
use super::gemv::{Output, Vectors, Weights};
use crate::config::Config;
use crate::error::Result;
use crate::ffi;
use crate::shape::Shape;

/// One problem's launches: kernels, grids, tensor maps and addresses. 4 KiB of plain bytes, bound to the
/// addresses that it was made of and to the context that was current; it owns no memory and does not
/// keep any alive.
#[derive(Clone)]
pub struct Prepared {
    launches: ffi::nvfp4_gemv_prepared,
    config: Config,
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Prepares one problem, as `config` cuts it, for the context that is current: checks everything,
/// encodes tensor maps, loads the kernels. Enqueues nothing, and follows no address.
///
/// # Errors
/// As [`gemv`](super::gemv)'s.
pub fn prepare(
    shape: &Shape,
    weights: &Weights,
    vectors: &Vectors,
    output: &Output,
    config: &Config,
    device: &DeviceInfo,
) -> Result<Prepared> {
    let launches = match Call::new(shape, weights, vectors, output, config, device)? {
        Some(call) => call.prepare()?,
        None => ffi::nvfp4_gemv_prepared::default(), // all zeros: no launches
    };
    Ok(Prepared {
        launches,
        config: *config,
    })
}

impl Prepared {
    /// How it cuts the problem.
    pub fn config(&self) -> Config {
        self.config
    }

    /// Enqueues the prepared kernels on `stream`, a `CUstream` or `cudaStream_t`: a driver launch each,
    /// and nothing else. Can be [captured into a CUDA graph](crate#cuda-graphs).
    ///
    /// # Errors
    /// What CUDA reports of the launch.
    ///
    /// # Safety
    /// As [`gemv`](super::gemv)'s, for the addresses that this was prepared with; and the current
    /// context is the one it was prepared in.
    pub unsafe fn launch(&self, stream: *mut c_void) -> Result<()> {
        // SAFETY: the structure is one that nvfp4_gemv_prepare_* wrote, or zeros; the rest is this
        // function's own contract.
        let code = unsafe { ffi::nvfp4_gemv_launch(&self.launches, stream) };
        status("launching a prepared GEMV", code)
    }
}
