//! NVFP4 layers over several ranks, which are GPUs or threads of a CPU: what [`nvfp4_gemv`] computes on one.
//!
//! - [`layers`] computes pairs of layers on the ranks, with one sum for both layers.
//! - [`experts`] gives each rank whole experts of a mixture.
//! - [`shard`] cuts weights for the ranks.
//! - [`ranks`] reads the variables that a launcher sets for its processes, and lets the processes meet.
//! - `nccl` lets the ranks' GPUs add up and collect what each of them has.
//!
//! # Features
//!
//! - `nccl` (default): several GPUs through NCCL: module `nccl`, and layers on GPUs. Needs nothing when building, and
//!   libnccl at run time.
//! - `cuda`, `jit`: those of [`nvfp4_gemv`], of which one brings the kernels. A program may ask for them here or there.
//! - none: ranks that are threads, on the CPU.

pub mod experts;
pub mod layers;
#[cfg(feature = "nccl")]
pub mod nccl;
pub mod ranks;
pub mod shard;

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
