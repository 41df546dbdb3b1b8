//! Kernels that were compiled at run time: loaded, and launched.

use std::collections::BTreeMap;
use std::ffi::{CString, c_int, c_void};
use std::sync::{Mutex, PoisonError, RwLock};

use super::super::device::release;
use super::api::{self, Api, Handle, LaunchAttribute, LaunchConfig, Status};
use super::{current_device, most_shared_bytes, ready};
use crate::error::{Error, Result};
use crate::kernel::plan::Launch;
use crate::{ffi, jit};

/// A kernel that is loaded in a context.
#[derive(Clone, Copy, Debug)]
pub(in crate::raw) struct Function(Handle);

// SAFETY: the driver's handle of a kernel, which any thread may use in the handle's context. Nothing unloads it.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// The kernel of a launch, compiled for `arch` and loaded in the context that is current. `stream`: of a call that
/// enqueues at once, which compiles nothing where that is being captured.
pub(in crate::raw) fn function(
    launch: &Launch,
    arch: &'static str,
    stream: Option<*mut c_void>,
) -> Result<Function> {
    /// Kernels that are loaded: by context, whose ids CUDA never uses twice, and name.
    static LOADED: RwLock<BTreeMap<(u64, &str), Function>> = RwLock::new(BTreeMap::new());
    static LOADING: Mutex<()> = Mutex::new(());
    let api = ready()?;
    let key = (context_id(api)?, launch.entry);
    let loaded = || {
        let loaded = LOADED.read().unwrap_or_else(PoisonError::into_inner);
        loaded.get(&key).copied()
    };
    if let Some(function) = loaded() {
        return Ok(function);
    }
    let code = match stream {
        Some(stream) if is_captured(api, stream)? => jit::code_that_is_there(launch, arch)?,
        _ => jit::code(launch, arch)?,
    };
    // A kernel is loaded once in a context, whoever asks.
    let _alone = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(function) = loaded() {
        return Ok(function);
    }
    // The stream may be in a capture, which loading is no part of.
    let before = exchange_capture_mode(api, api::CAPTURE_MODE_RELAXED)?;
    let function = load(api, launch, &code);
    let restored = exchange_capture_mode(api, before);
    let function = function?;
    // The function is kept whatever else fails: the next call need not load it again.
    let mut all = LOADED.write().unwrap_or_else(PoisonError::into_inner);
    all.insert(key, function);
    restored.map(|_| function)
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
fn load(api: &Api, launch: &Launch, code: &[u8]) -> Result<Function> {
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

fn context_id(api: &Api) -> Result<u64> {
    let mut id = 0;
    // SAFETY: the pointer is to a live number; null stands for the current context.
    api.check("asking for the current context", unsafe {
        (api.context_id)(std::ptr::null_mut(), &mut id)
    })?;
    Ok(id)
}

/// Whether what is put into a stream, a `CUstream` or `cudaStream_t`, goes into a graph.
fn is_captured(api: &Api, stream: *mut c_void) -> Result<bool> {
    let mut status = api::CAPTURE_STATUS_NONE;
    // SAFETY: the pointer is to a live status; that the stream is one of the current context is the caller's promise.
    api.check("asking whether the stream is captured", unsafe {
        (api.is_capturing)(stream, &mut status)
    })?;
    Ok(status != api::CAPTURE_STATUS_NONE)
}

/// Says what this thread may do while streams are captured, and returns what was said before.
fn exchange_capture_mode(api: &Api, mut mode: c_int) -> Result<c_int> {
    // SAFETY: the pointer is to a live mode.
    api.check("allowing a kernel to be loaded", unsafe {
        (api.exchange_capture_mode)(&mut mode)
    })?;
    Ok(mode)
}

/// As `nvfp4_gemv_launch` of `csrc/nvfp4_gemv.h`, which takes the same description.
///
/// # Safety
/// The function was loaded in the current context, of which `stream` is one. The parameters are those that the kernel
/// takes, and what it does with the addresses in them is allowed until it has run.
pub(in crate::raw) unsafe fn launch(
    during: &'static str,
    Function(function): Function,
    launch: &ffi::nvfp4_launch,
    stream: *mut c_void,
) -> Result<()> {
    let api = ready()?;
    let attribute = |id, first: [u32; 3]| {
        let mut value = [0; 16];
        value[..3].copy_from_slice(&first);
        let pad = [0; 4];
        LaunchAttribute { id, pad, value }
    };
    let cluster = attribute(api::CLUSTER_DIMENSION, [launch.cluster, 1, 1]);
    let dependent = attribute(
        api::PROGRAMMATIC_STREAM_SERIALIZATION,
        [launch.dependent, 0, 0],
    );
    let (attributes, attribute_count) = match (launch.cluster != 0, launch.dependent != 0) {
        (true, true) => ([cluster, dependent], 2),
        (true, false) => ([cluster, dependent], 1),
        (false, true) => ([dependent, cluster], 1),
        (false, false) => ([dependent, cluster], 0),
    };
    let config = LaunchConfig {
        grid: [launch.grid_x, launch.grid_y, launch.grid_z],
        block: [launch.threads, 1, 1],
        shared: launch.dynamic_shared,
        stream,
        attributes: attributes.as_ptr(),
        attribute_count,
    };
    // The driver only reads them, as many as the kernel takes.
    let mut parameters = launch.parameters.map(<*const c_void>::cast_mut);
    // SAFETY: the configuration and what it points to live through the call, which copies them. The rest is this
    // function's own contract.
    api.check(during, unsafe {
        (api.launch)(
            &config,
            function,
            parameters.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    })
}
