//! CUDA devices as engines. Everything the program knows about devices is behind the three
//! functions of this file.

use nvfp4_gemv::{Error, Path, Result};
use serde_json::Value;

use super::Engine;

/// What `info` shows of the driver and the devices.
#[derive(Debug)]
pub(crate) struct Devices {
    /// The driver's and the runtime's CUDA versions, where there are any.
    pub(crate) versions: Option<String>,
    /// One line a device, and the same for scripts; or why there is none.
    pub(crate) found: Result<Vec<Device>>,
}

/// A device that the driver shows.
#[derive(Debug)]
pub(crate) struct Device {
    /// Major and minor.
    pub(crate) compute_capability: (i32, i32),
    /// For people.
    pub(crate) text: String,
    /// For scripts.
    pub(crate) json: Value,
}

/// The architectures compiled in, as in `NVFP4_GEMV_ARCHS`; empty without kernels.
pub(crate) fn compiled_archs() -> &'static str {
    ""
}

/// Asks the driver for its devices.
pub(crate) fn devices() -> Devices {
    Devices {
        versions: None,
        found: Err(unavailable(Path::CudaCore)),
    }
}

/// The first device as an engine for `path`.
pub(crate) fn open(path: Path) -> Result<Box<dyn Engine>> {
    Err(unavailable(path))
}

fn unavailable(path: Path) -> Error {
    Error::PathUnavailable {
        path,
        reason: nvfp4_gemv::Unavailable::BuiltWithoutCuda,
    }
}
