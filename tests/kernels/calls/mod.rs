//! Calls: on the host, on a device and by address; at once and prepared. What they take, refuse and choose, whichever
//! kernel it is.

#[cfg(feature = "device")]
pub(crate) mod device;
#[cfg(feature = "device")]
pub(crate) mod measure;
pub(crate) mod operands;
pub(crate) mod options;
pub(crate) mod refuse;
#[cfg(feature = "device")]
pub(crate) mod tune;
