//! NVFP4 block-scaled GEMV.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod check;
pub mod checkpoint;
#[cfg(feature = "cuda")]
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
pub mod path;
pub mod problem;
pub mod quantize;
#[cfg(feature = "cuda")]
pub mod raw;
pub mod reference;
mod scales;
mod shape;
mod tensor;

#[cfg(feature = "cuda")]
pub use config::CudaCoreConfig;
#[cfg(feature = "cuda")]
pub use cuda::{gemv_on_device, gemv_on_device_with};
pub use error::{Error, Result};
pub use gemv::{gemv, gemv_on_path};
#[cfg(feature = "cuda")]
pub use memory::Device;
pub use memory::{Buffer, Host, Memory};
pub use path::{Choice, Path, Reason, Target, Unavailable, select};
pub use scales::{ScaleLayout, convert_scales};
pub use shape::{BLOCK, Shape};
pub use tensor::{
    Activation, DenseVectors, FloatType, GlobalScale, Nvfp4Vectors, Output, Strides, VectorScale,
    Vectors, Weights,
};
