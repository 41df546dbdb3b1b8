//! Devices and versions, as the CUDA runtime that is linked in reports them.

use super::device::{status, status_of_versions};
use crate::error::Result;
use crate::ffi;

/// Devices that the driver shows.
pub(super) fn count() -> Result<i32> {
    let mut count = 0;
    // SAFETY: the pointer is to a live integer.
    let code = unsafe { ffi::nvfp4_gemv_device_count(&mut count) };
    status("counting devices", code)?;
    Ok(count)
}

/// Properties of a device. The name ends with a zero.
pub(super) fn info(ordinal: u32) -> Result<ffi::nvfp4_device_info> {
    let mut info = ffi::nvfp4_device_info::default();
    // SAFETY: the pointer is to a live structure.
    let code = unsafe { ffi::nvfp4_gemv_device_info(ordinal as i32, &mut info) };
    status("asking for device properties", code)?;
    Ok(info)
}

/// The device that is current on this thread.
pub(super) fn current() -> Result<i32> {
    let mut device = 0;
    // SAFETY: the pointer is to a live integer.
    let code = unsafe { ffi::nvfp4_gemv_current_device(&mut device) };
    status("asking for the current device", code)?;
    Ok(device)
}

/// Versions as 1000 * major + 10 * minor, of the driver, 0 where there is none, and of the runtime.
pub(super) fn versions() -> Result<(i32, Option<i32>)> {
    let (mut driver, mut runtime) = (0, 0);
    // SAFETY: both pointers are to live integers.
    let code = unsafe { ffi::nvfp4_gemv_versions(&mut driver, &mut runtime) };
    status_of_versions("asking for CUDA versions", code)?;
    Ok((driver, Some(runtime)))
}
