//! Folders into which `cargo xtask toolchain` installs, below cargo's target directory, and where programs look.

/// The folder of all of it.
pub const TOOLCHAIN: &str = "toolchain";

/// Compiler and disassembler, in their folder.
pub const CUDA: &str = "cuda";

/// The disassembler alone.
pub const INSPECT: &str = "inspect";

/// NVRTC and the disassembler.
pub const NVRTC: &str = "nvrtc";

/// The CUDA tree, with `bin`, `include` and `lib`, in each of these folders.
pub const HOME: &str = "nvidia/cu13";
