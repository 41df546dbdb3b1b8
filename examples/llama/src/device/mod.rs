//! The decoder on a GPU: the library multiplies, and small kernels compute what stands between. `host` is the same on
//! the CPU.

#[cfg(feature = "cuda")]
mod bench;
#[cfg(feature = "cuda")]
mod decoder;
#[cfg(feature = "cuda")]
mod gpu;
pub mod kernels;
#[cfg(feature = "cuda")]
mod pass;
#[cfg(feature = "cuda")]
mod product;
#[cfg(feature = "cuda")]
mod random;

#[cfg(feature = "cuda")]
pub use bench::bench;
#[cfg(feature = "cuda")]
pub use decoder::DeviceModel;
#[cfg(feature = "cuda")]
pub use random::{NAMES as RANDOM_NAMES, config as random_config};
