//! The kernels that change the layout of scales.

mod sim;

crate::gather![sim];
