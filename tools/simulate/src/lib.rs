//! Runs the kernels of nvfp4-gemv on the CPU.
//!
//! The crate describes a launch as plain data (`nvfp4_gemv::kernel::plan`). nvcc makes PTX of the kernel, [`ptx`];
//! [`launch`] hands both to ptx-sim, with the operands' bytes ([`operands`]) in its memory. The tests of the kernels
//! are made of these modules. The program `nvfp4-gemv-simulate` simulates a part of a checkpoint's layer ([`layer`])
//! and draws what the warps of a kernel do ([`warps`]).

mod compiler;
pub mod launch;
pub mod layer;
pub mod operands;
pub mod picture;
pub mod ptx;
pub use ptx_sim::schedules;
pub mod warps;

use std::env;
use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn repository() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}

/// The folder of what is built.
pub fn target() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR").filter(|folder| !folder.is_empty()) {
        Some(folder) => folder.into(),
        None => repository().join("target"),
    }
}
