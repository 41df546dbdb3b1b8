//! The kernels that quantise vectors.

mod sim;

crate::gather![sim];
