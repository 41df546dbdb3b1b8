//! NVRTC as this library uses it: its own names, and one NVRTC a process.

use std::sync::OnceLock;

use nvfp4_gemv_nvrtc::{Names, Nvrtc, NvrtcError};

pub(crate) const NAMES: Names = Names {
    place: "NVFP4_GEMV_NVRTC",
    cache: "NVFP4_GEMV_CACHE",
    cache_folder: "nvfp4-gemv",
    target: None,
    info: "`nvfp4_gemv::jit::library`",
    install: "The CUDA Toolkit has it (package cuda-nvrtc), and so has the PyPI package nvidia-cuda-nvrtc.",
};

/// The process's NVRTC, loaded at the first call. An error of that call is the error of all later ones.
pub(crate) fn get() -> Result<&'static Nvrtc, NvrtcError> {
    static LOADED: OnceLock<Result<Nvrtc, NvrtcError>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| Nvrtc::load(&NAMES));
    loaded.as_ref().map_err(Clone::clone)
}

/// Advice that helps where NVRTC is missing or fails.
pub fn hint(error: &NvrtcError) -> Option<String> {
    error.hint(&NAMES)
}
