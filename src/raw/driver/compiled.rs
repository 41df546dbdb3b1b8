//! Machine code that was compiled at run time, loaded.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use super::api::{self, Api, Handle, Status};
use super::{Function, current_device, image, most_shared_bytes};
use crate::error::{Error, Result};
use crate::jit;
use crate::kernel::plan::Launch;
use crate::raw::device::release;

/// The machine code of a launch's kernel, compiled now or before; none where this build's runs on the device of the
/// context that is current. `stream` as of [`function`](super::function).
pub(super) fn code(
    api: &Api,
    launch: &Launch,
    stream: Option<*mut c_void>,
) -> Result<Option<Arc<[u8]>>> {
    let Some(arch) = image()? else {
        return Ok(None);
    };
    let code = match stream {
        Some(stream) if is_captured(api, stream)? => jit::code_that_is_there(launch, arch),
        _ => jit::code(launch, arch),
    };
    code.map(Some)
}

/// A module that is unloaded again, unless all goes well.
struct Module<'a> {
    api: &'a Api,
    handle: Handle,
}

impl Drop for Module<'_> {
    fn drop(&mut self) {
        // SAFETY: the module is loaded in the context that is current, and none of its kernels was given to anybody.
        // Nothing can be done about a failure.
        let _ = unsafe { (self.api.unload_module)(self.handle) };
    }
}

/// Loads a kernel in the context that is current, and lets it have all the dynamic shared memory that a CTA of the
/// device can, beside its static shared memory.
pub(super) fn load(api: &Api, launch: &Launch, code: &[u8]) -> Result<Function> {
    let kernel = launch.entry;
    let device = current_device(api)?;
    let name = CString::new(kernel).expect("names have no zeros");
    let (mut handle, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the code is a whole cubin, as NVRTC made it; the driver copies it.
    let status = unsafe { (api.load_module)(&mut handle, code.as_ptr().cast()) };
    if REFUSALS.contains(&status) {
        return Err(Error::NotLoaded {
            kernel,
            nvrtc: jit::release(),
            driver: release(api::version()?),
            message: api.text(status),
        });
    }
    api.check(kernel, status)?;
    let module = Module { api, handle };
    // SAFETY: the module is loaded, and the name ends with zero.
    api.check(kernel, unsafe {
        (api.function)(&mut function, module.handle, name.as_ptr())
    })?;
    let mut fixed = 0;
    // SAFETY: the function is of this context, and the pointer to a live integer.
    api.check(kernel, unsafe {
        (api.function_attribute)(&mut fixed, api::SHARED_SIZE_BYTES, function)
    })?;
    let most = most_shared_bytes(api, device)? - fixed;
    // SAFETY: the function is of this context.
    api.check(kernel, unsafe {
        (api.set_function_attribute)(function, api::MAX_DYNAMIC_SHARED_SIZE_BYTES, most)
    })?;
    // The module stays until its context goes.
    std::mem::forget(module);
    Ok(Function(function))
}

/// Results of a driver for code that it does not take: `CUDA_ERROR_INVALID_IMAGE`, `CUDA_ERROR_NO_BINARY_FOR_GPU`,
/// `CUDA_ERROR_INVALID_PTX` and `CUDA_ERROR_UNSUPPORTED_PTX_VERSION`.
const REFUSALS: [Status; 4] = [200, 209, 218, 222];

/// Whether what is put into a stream, a `CUstream` or `cudaStream_t`, goes into a graph.
fn is_captured(api: &Api, stream: *mut c_void) -> Result<bool> {
    let mut status = api::CAPTURE_STATUS_NONE;
    // SAFETY: the pointer is to a live status; that the stream is one of the current context is the caller's promise.
    api.check("asking whether the stream is captured", unsafe {
        (api.is_capturing)(stream, &mut status)
    })?;
    Ok(status != api::CAPTURE_STATUS_NONE)
}
