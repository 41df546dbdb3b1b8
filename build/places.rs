//! Folder into which `cargo xtask toolchain` installs, below cargo's target directory. Shared by xtask and by programs
//! that look there.

/// The folder of all of it.
pub(crate) const TOOLCHAIN: &str = "toolchain";

/// Compiler and disassembler, in their folder.
pub(crate) const CUDA: &str = "cuda";

/// The disassembler alone.
pub(crate) const INSPECT: &str = "inspect";

/// NVRTC and the disassembler.
pub(crate) const NVRTC: &str = "nvrtc";

/// The CUDA tree, with `bin`, `include` and `lib`, in each of these folders.
pub(crate) const HOME: &str = "nvidia/cu13";
