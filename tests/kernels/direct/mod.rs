//! The direct kernel.

#[cfg(feature = "cuda")]
pub(crate) mod gpu;
pub(crate) mod refuse;
pub(crate) mod sim;

crate::gather![
    #[cfg(feature = "cuda")]
    gpu,
    refuse,
    sim,
];
