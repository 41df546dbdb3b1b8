#![doc = include_str!("../README.md")]
#![allow(non_camel_case_types, reason = "the names are C's")]

mod checkpoint;
mod device;
mod experts;
mod failure;
mod linear;
mod memory;
mod mlp;
mod plan;

pub use checkpoint::*;
pub use device::*;
pub use experts::*;
pub use failure::*;
pub use linear::*;
pub use memory::*;
pub use mlp::*;
pub use plan::*;

use std::ffi::c_char;

/// Version of the functions and structures here, as this header declares them. A library with another number of
/// nvfp4_abi_version() does not fit the header.
pub const NVFP4_ABI_VERSION: u32 = 2;

/// NVFP4_ABI_VERSION of the library that is linked or loaded.
#[unsafe(no_mangle)]
pub extern "C" fn nvfp4_abi_version() -> u32 {
    NVFP4_ABI_VERSION
}

/// The library's own version, such as "0.1.0". The text is static.
#[unsafe(no_mangle)]
pub extern "C" fn nvfp4_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
