//! Parts of the `nvfp4-gemv` program that the tests and fuzz targets of its repository use, too.
//!
//! - [`problem`] generates whole problems, and reads and writes them as files.
//! - [`mod@file`] writes safetensors files, whole or not at all.
//!
//! This is no library for other programs: any release may change it. Those use `nvfp4_gemv`.

pub mod file;
pub mod problem;
