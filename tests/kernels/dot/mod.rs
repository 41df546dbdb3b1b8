//! The dot kernel.

mod sim;

crate::gather![sim];
