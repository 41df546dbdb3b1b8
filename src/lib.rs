//! NVFP4 block-scaled GEMV.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod check;
pub mod cpu;
mod error;
pub mod format;
mod gemv;
mod memory;
pub mod path;
pub mod reference;
mod scales;
mod shape;
mod tensor;

pub use error::{Error, Result};
pub use gemv::{gemv, gemv_on_path};
#[cfg(feature = "cuda")]
pub use memory::Device;
pub use memory::{Buffer, Host, Memory};
pub use path::{Choice, Path, Reason, Target, Unavailable, select};
pub use scales::{ScaleLayout, convert_scales};
pub use shape::{BLOCK, Shape};
pub use tensor::{
    Activation, DenseVectors, GlobalScale, Nvfp4Vectors, Output, OutputType, Strides, VectorScale,
    Vectors, Weights,
};
