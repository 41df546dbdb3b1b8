//! Names that this package has of its own, for [`nvrtc`](crate::nvrtc).

/// The environment variable that names NVRTC's folder.
pub(crate) const PLACE: &str = "NVFP4_GEMV_NVRTC";
/// The environment variable that names the cache's folder.
pub(crate) const CACHE: &str = "NVFP4_GEMV_CACHE";
/// The cache's folder in that of the user's caches.
pub(crate) const CACHE_FOLDER: &str = "nvfp4-gemv";
/// The target directory of the repository that this was built in, to look for NVRTC in. A library does not: it may be
/// anybody's on the machine where its program runs.
pub(crate) const TARGET: Option<&str> = None;
/// The function that says which NVRTC is used.
pub(crate) const INFO: &str = "`nvfp4_gemv::jit::library`";
/// Advice on where NVRTC comes from.
pub(crate) const INSTALL: &str =
    "The CUDA Toolkit has it (package cuda-nvrtc), and so has the PyPI package nvidia-cuda-nvrtc.";
