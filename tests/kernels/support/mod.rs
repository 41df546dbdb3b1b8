//! Shared parts of the trials of several kernels.

#[cfg(feature = "device")]
pub(crate) mod battery;
pub(crate) mod chained;
#[cfg(feature = "device")]
pub(crate) mod device;
pub(crate) mod faults;
pub(crate) mod fields;
#[cfg(feature = "device")]
pub(crate) mod gpu;
pub(crate) mod nowhere;
pub(crate) mod operands;
pub(crate) mod passes;
pub(crate) mod quantize_data;
pub(crate) mod rank_order;
pub(crate) mod refuse;
pub(crate) mod sim;
#[cfg(feature = "device")]
pub(crate) mod tensor_maps;
pub(crate) mod trial;

use nvfp4_gemv::{Dims, Shape};

pub(crate) use nvfp4_gemv_simulate::{ptx, schedules};

/// The shape of these sizes, which must be one.
pub(crate) fn sized(m: usize, n: usize, k: usize, l: usize) -> Shape {
    Shape::new(Dims { m, n, k, l }).unwrap()
}
