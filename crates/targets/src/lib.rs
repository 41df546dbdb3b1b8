//! Targets of the kernels of nvfp4-gemv, and their compiler: for the library, its build script and the
//! commands that serve its development.
//!
//! - [`arch`]: GPU architectures, and the list of those to compile for. [`products`]: GPUs, with published figures.
//! - [`units`]: which kernels are compiled together, and for which architectures they exist. [`sources`]: hashes of
//!   kernels and of what launches them.
//! - [`nvcc`]: the search for nvcc, and the oldest CUDA release that will do. [`advice`] where there is none;
//!   [`no_kernels`] for builds that need none. [`places`]: where `cargo xtask toolchain` installs.

pub mod advice;
pub mod arch;
pub mod no_kernels;
pub mod nvcc;
pub mod places;
pub mod products;
pub mod sources;
pub mod units;

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
