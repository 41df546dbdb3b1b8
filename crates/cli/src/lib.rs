//! Parts of the `nvfp4-gemv` program that the tests and fuzz targets of its repository use, too.
//!
//! - [`problem`] generates whole problems, and reads and writes them as files.
//! - [`gpu_record`] says which tests ran on which GPU, and of which sources.
//! - [`output`] writes files whole or not at all, and replaces only what it may; [`mod@file`] writes safetensors files
//!   so.
//!
//! This is no library for other programs: any release may change it. Those use `nvfp4_gemv`.

pub mod file;
pub mod gpu_record;
pub mod output;
pub mod problem;
