//! NVFP4 block-scaled GEMV: `y[l][n][m] = alpha · Σ_k w[l][m][k] · x[l][n][k]`, W in NVFP4 (4-bit
//! E2M1 values, an FP8 scale for each 16, an FP32 global scale), on Blackwell tensor cores (verified in
//! simulation, not yet on hardware), CUDA cores and CPUs.
//!
//! # A tour
//!
//! - [`Shape`]: M rows, N vectors, K elements, L batches, checked once.
//! - [`Weights`], [`Vectors`], [`Output`]: borrowed operands, in host memory or (feature `cuda`) in
//!   a device's, with their [`ScaleLayout`], [`GlobalScale`] and [`Strides`].
//! - [`gemv`](fn@gemv) computes host operands, `gemv_on_device` a device's; both say which [`Path`]
//!   they took and why. [`path`] is where that is decided; `raw` is the unsafe API by address.
//! - `PreparedGemv` is a device call that was checked and dispatched once. [`mod@tune`] measures what a
//!   device does best with a problem, and keeps it in files; only calls that are given it use it.
//! - With feature `cuda`, `PreparedWeights` owns scales in the tensor cores' layout, and
//!   `QuantizedVectors` owns vectors that are quantised on the device.
//! - [`checkpoint`] opens ModelOpt and compressed-tensors files, [`mod@quantize`] makes NVFP4 of
//!   f32, f16 and bf16, [`format`](mod@format) has the codecs.
//! - [`output`] writes files whole or not at all, and replaces only what it may.
//! - [`mod@reference`] is the truth that everything is held to, with the error each path may make;
//!   [`problem`] generates and replays whole problems.
//!
//! # An example
//!
//! ```
//! use nvfp4_gemv::{gemv, GlobalScale, Output, ScaleLayout, Shape, Vectors, Weights};
//!
//! let shape = Shape::new(2, 1, 16, 1)?; // M, N, K, L
//! let codes = [0x22; 16]; // two elements a byte, every one 1.0
//! let scales = [0x38, 0x40]; // E4M3: 1.0 for the first row's block, 2.0 for the second's
//! let w = Weights::new(
//!     &shape, &codes, &scales, ScaleLayout::Linear, GlobalScale::Multiplier(0.5),
//! )?;
//!
//! let x = [1.0f32; 16];
//! let mut y = [0.0f32; 2];
//! let choice = gemv(&shape, &w, &Vectors::f32(&x), Output::f32(&mut y))?;
//! assert_eq!(y, [8.0, 16.0]);
//! println!("{}: {}", choice.path, choice.reason); // cpu: the operands are in host memory
//! # Ok::<(), nvfp4_gemv::Error>(())
//! ```
//!
//! # Features
//!
//! - `cuda` (default): the CUDA paths. Needs nvcc 12.9 or newer when building, no GPU and no driver.
//! - `cli` (default): the `nvfp4-gemv` program.
//! - neither: the CPU path, without nvcc or a C++ compiler.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod check;
pub mod checkpoint;
mod config;
pub mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod error;
#[cfg(feature = "cuda")]
#[allow(
    non_camel_case_types,
    missing_debug_implementations,
    unreachable_pub,
    dead_code
)]
#[allow(clippy::undocumented_unsafe_blocks)]
mod ffi;
pub mod file;
pub mod format;
mod gemv;
#[cfg(feature = "cuda")]
pub mod measure;
mod memory;
pub mod output;
pub mod path;
#[cfg(feature = "cuda")]
mod prepared;
pub mod problem;
pub mod quantize;
#[cfg(feature = "cuda")]
mod quantized;
#[cfg(feature = "cuda")]
pub mod raw;
pub mod reference;
mod scales;
mod shape;
mod tensor;
pub mod tune;

pub use config::{
    Config, CudaCoreConfig, CudaCoreKernel, CudaCoreTarget, RingConfig, RingTarget, StreamConfig,
    StreamTarget, TileConfig, TileKernel, TileTarget,
};
#[cfg(feature = "cuda")]
pub use cuda::{
    Launched, PreparedGemv, gemv_on_device, gemv_on_device_chained, gemv_on_device_tuned,
    gemv_on_device_with,
};
pub use error::{Error, Result};
pub use gemv::{gemv, gemv_on_path};
#[cfg(feature = "cuda")]
pub use memory::Device;
pub use memory::{Buffer, Host, Memory};
pub use path::{Choice, Evidence, Path, Reason, Target, Unavailable, select};
#[cfg(feature = "cuda")]
pub use prepared::PreparedWeights;
#[cfg(feature = "cuda")]
pub use quantized::QuantizedVectors;
pub use scales::{ScaleLayout, convert_scales};
pub use shape::{BLOCK, Shape};
pub use tensor::{
    Activation, DenseVectors, FloatType, GlobalScale, Nvfp4Vectors, Output, Strides, VectorScale,
    Vectors, Weights,
};

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
