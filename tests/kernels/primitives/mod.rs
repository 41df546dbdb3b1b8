//! Every function of `csrc/arch`, alone or with the least company it needs: small kernels, checked
//! bit for bit, and wrong variants of them that must be noticed.
//!
//! Kernels that have a wrong variant take it as their last parameter; 0 is the right one.

pub(crate) mod barriers;
pub(crate) mod cluster;
pub(crate) mod convert;
pub(crate) mod copies;
pub(crate) mod descriptors;
pub(crate) mod encode;
pub(crate) mod loads;
pub(crate) mod shared;
pub(crate) mod tensor;
pub(crate) mod tensor_memory;
mod trial;
pub(crate) mod wgmma;
