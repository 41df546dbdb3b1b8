//! Calls: on the host, on a device and by address; at once and prepared. What they take, refuse and choose, whichever
//! kernel it is.

#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod measure;
mod operands;
mod options;
mod refuse;
#[cfg(feature = "cuda")]
mod tune;

#[cfg(feature = "cuda")]
use {options::on_a_gpu, refuse::without_a_gpu};

crate::gather![
    #[cfg(feature = "cuda")]
    device,
    #[cfg(feature = "cuda")]
    measure,
    #[cfg(feature = "cuda")]
    on_a_gpu,
    operands,
    options,
    refuse,
    #[cfg(feature = "cuda")]
    tune,
    #[cfg(feature = "cuda")]
    without_a_gpu,
];
