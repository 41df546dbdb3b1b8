//! Every function of `csrc/arch`, alone or with the least company it needs: small kernels, checked
//! bit for bit, and wrong variants of them that must be noticed.
//!
//! Kernels that have a wrong variant take it as their last parameter; 0 is the right one.

mod barriers;
mod cluster;
mod convert;
mod copies;
mod descriptors;
mod encode;
mod loads;
mod mixed;
mod shared;
mod tensor;
mod tensor_memory;
mod trial;

crate::gather![
    barriers,
    cluster,
    convert,
    copies,
    descriptors,
    encode,
    loads,
    mixed,
    shared,
    tensor,
    tensor_memory
];
