//! The stream kernel.

mod sim;

crate::gather![sim];
