//! The kernels that change the layout of scales.

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
