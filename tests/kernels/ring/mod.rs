//! The ring kernel.

mod sim;

crate::gather![sim];
