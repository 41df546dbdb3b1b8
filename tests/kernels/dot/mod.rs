//! The dot kernel.

#[cfg(feature = "cuda")]
pub(crate) mod gpu;
pub(crate) mod refuse;

crate::gather![
    #[cfg(feature = "cuda")]
    gpu,
    refuse,
];
