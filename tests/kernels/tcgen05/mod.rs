//! The tcgen05 kernel.

mod sim;

crate::gather![sim];
