//! The direct kernel.

pub(crate) mod sim;

crate::gather![sim];
