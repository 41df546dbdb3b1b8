//! Files of tuned configs.

use std::path::Path;

use anyhow::Result;
use nvfp4_gemv::dispatch::measured::Measurements;

/// A file that was made on this machine.
#[cfg(feature = "device")]
pub(crate) fn here(file: &Path) -> Result<Measurements> {
    use nvfp4_gemv::{raw, tune};
    let machine = tune::machine(&raw::gpu(0)?)?;
    Ok(tune::Tuned::load(file, &machine)?.measurements().clone())
}

#[cfg(not(feature = "device"))]
pub(crate) fn here(file: &Path) -> Result<Measurements> {
    anyhow::bail!(
        "{}: made on a GPU, and this program was built with neither feature `cuda` nor feature `jit`",
        nvfp4_gemv_files::printable::path(file)
    )
}
