//! The tma kernel.

mod sim;

crate::gather![sim];
