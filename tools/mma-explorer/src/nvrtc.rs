//! NVRTC as this program uses it: its own names, and one NVRTC a process.

use std::sync::OnceLock;

pub use nvfp4_gemv_nvrtc::*;

/// Names of this program's own.
pub const NAMES: Names = Names {
    place: "MMA_EXPLORER_NVRTC",
    cache: "MMA_EXPLORER_CACHE",
    cache_folder: "mma-explorer",
    target: Some(match option_env!("CARGO_TARGET_DIR") {
        Some(folder) => folder,
        None => concat!(env!("CARGO_MANIFEST_DIR"), "/../../target"),
    }),
    info: "`mma-explorer info`",
    install: "`cargo xtask toolchain --nvrtc` installs it where this program looks, without root.",
};

/// The process's NVRTC, loaded at the first call.
///
/// # Errors
/// As [`Nvrtc::load`]'s; all later calls then say the same.
pub fn get() -> Result<&'static Nvrtc, NvrtcError> {
    static LOADED: OnceLock<Result<Nvrtc, NvrtcError>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| Nvrtc::load(&NAMES));
    loaded.as_ref().map_err(Clone::clone)
}
