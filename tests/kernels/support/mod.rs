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

pub(crate) use nvfp4_gemv_simulate::{ptx, schedules};
