//! Calls: on the host, on a device and by address; at once and prepared. Trials of their operands, refusals and
//! choices, for any kernel.

#[cfg(feature = "device")]
pub(crate) mod device;
#[cfg(feature = "device")]
pub(crate) mod experts;
#[cfg(feature = "device")]
pub(crate) mod linear;
#[cfg(feature = "device")]
pub(crate) mod measure;
pub(crate) mod operands;
pub(crate) mod options;
pub(crate) mod refuse;
#[cfg(feature = "device")]
pub(crate) mod tune;
