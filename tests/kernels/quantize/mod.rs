//! The kernels that quantise vectors.

#[cfg(feature = "cuda")]
mod gpu;
#[cfg(feature = "cuda")]
mod refuse;
mod sim;

crate::gather![
    #[cfg(feature = "cuda")]
    gpu,
    #[cfg(feature = "cuda")]
    refuse,
    sim,
];
