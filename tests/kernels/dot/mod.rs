//! The dot kernel.

#[cfg(feature = "cuda")]
pub(crate) mod gpu;
pub(crate) mod refuse;
mod sim;

crate::gather![
    #[cfg(feature = "cuda")]
    gpu,
    refuse,
    sim,
];
