//! Stand-ins for CUDA devices in a build with neither feature `cuda` nor feature `jit`: the functions of `cuda.rs`,
//! none of which finds any device.

use nvfp4_gemv::checkpoint::Joined;
use nvfp4_gemv::{Error, GemvPath, Refusal, Result};

use super::{Devices, Engine, LoadPlan, LoadTimes};

/// The architectures compiled in, as in `NVFP4_GEMV_ARCHS`; empty without kernels.
pub(crate) fn compiled_archs() -> &'static str {
    ""
}

/// A hash of the kernels' sources; nothing without kernels.
pub(crate) fn kernels() -> Option<&'static str> {
    None
}

/// Asks the driver for its devices.
pub(crate) fn devices() -> Devices {
    Devices {
        versions: None,
        found: Err(unavailable(GemvPath::CudaCore)),
    }
}

/// The first device as an engine for `path`.
pub(crate) fn open(path: GemvPath) -> Result<Box<dyn Engine>> {
    Err(unavailable(path))
}

/// Loads weights to the first device.
pub(crate) fn load(
    _all: &[Joined<'_>],
    _plan: &LoadPlan,
    _progress: &mut dyn FnMut(usize),
) -> anyhow::Result<LoadTimes> {
    Err(unavailable(GemvPath::CudaCore).into())
}

fn unavailable(path: GemvPath) -> Error {
    Error::PathUnavailable {
        path,
        reason: Refusal::BuiltWithoutCuda,
    }
}
