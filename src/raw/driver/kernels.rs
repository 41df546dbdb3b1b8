//! Kernels: loaded, once a context, and launched.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_void};
use std::sync::{Mutex, PoisonError, RwLock};

use super::super::device::status;
use super::api::{self, Api, Handle, LaunchAttribute, LaunchConfig, Status};
#[cfg(feature = "jit")]
use super::compiled;
use super::ready;
use crate::error::Result;
use crate::ffi;
use crate::kernel::plan::Launch;

/// A kernel that is loaded in a context.
#[derive(Clone, Copy, Debug)]
pub(in crate::raw) struct Function(pub(super) Handle);

// SAFETY: the driver's handle of a kernel, which any thread may use in the handle's context. Nothing unloads it.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// The kernel of a launch, loaded in the context that is current. `stream`: of a call that enqueues at once, which
/// compiles nothing where that is being captured.
pub(in crate::raw) fn function(launch: &Launch, _stream: Option<*mut c_void>) -> Result<Function> {
    /// Kernels that are loaded: by context, whose ids CUDA never uses twice, and name.
    static LOADED: RwLock<BTreeMap<(u64, &str), Function>> = RwLock::new(BTreeMap::new());
    static LOADING: Mutex<()> = Mutex::new(());
    let api = ready()?;
    let context = match context_id(api) {
        // As launches of the runtime do: where a thread has no context, the runtime makes its device's current.
        Err(api::INVALID_CONTEXT) if !cfg!(nvfp4_gemv_no_kernels) => {
            linked(launch.entry)?;
            context_id(api)
        }
        asked => asked,
    };
    if let Err(status) = context {
        api.check("asking for the current context", status)?;
    }
    let context = context.unwrap_or_default();
    let key = (context, launch.entry);
    let loaded = || {
        let loaded = LOADED.read().unwrap_or_else(PoisonError::into_inner);
        loaded.get(&key).copied()
    };
    if let Some(function) = loaded() {
        return Ok(function);
    }
    #[cfg(feature = "jit")]
    let code = compiled::code(api, launch, _stream)?;
    // A kernel is loaded once in a context, whoever asks.
    let _alone = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(function) = loaded() {
        return Ok(function);
    }
    // The stream may be in a capture, which loading is no part of.
    let before = exchange_capture_mode(api, api::CAPTURE_MODE_RELAXED)?;
    #[cfg(not(feature = "jit"))]
    let function = linked(launch.entry);
    #[cfg(feature = "jit")]
    let function = match code {
        Some(code) => compiled::load(api, launch, &code),
        None => linked(launch.entry),
    };
    let restored = exchange_capture_mode(api, before);
    let function = function?;
    // The function is kept whatever else fails: the next call need not load it again.
    let mut all = LOADED.write().unwrap_or_else(PoisonError::into_inner);
    all.insert(key, function);
    restored.map(|_| function)
}

/// Loads a kernel that is linked in: the runtime's.
fn linked(name: &'static str) -> Result<Function> {
    let mut text = [0; 64];
    text[..name.len()].copy_from_slice(name.as_bytes());
    let text = CStr::from_bytes_until_nul(&text).expect("names are shorter");
    let mut function = std::ptr::null_mut();
    // SAFETY: the text lives through the call, and the pointer is to a live one.
    let code = unsafe { ffi::nvfp4_gemv_load(text.as_ptr(), &mut function) };
    status(name, code).map(|()| Function(function))
}

fn context_id(api: &Api) -> std::result::Result<u64, Status> {
    let mut id = 0;
    // SAFETY: the pointer is to a live number; null stands for the current context.
    match unsafe { (api.context_id)(std::ptr::null_mut(), &mut id) } {
        0 => Ok(id),
        status => Err(status),
    }
}

/// Says what this thread may do while streams are captured, and returns what was said before.
fn exchange_capture_mode(api: &Api, mut mode: c_int) -> Result<c_int> {
    // SAFETY: the pointer is to a live mode.
    api.check("allowing a kernel to be loaded", unsafe {
        (api.exchange_capture_mode)(&mut mode)
    })?;
    Ok(mode)
}

/// Enqueues a launch, and copies the kernel's arguments before it returns.
///
/// # Safety
/// A dependent launch may start before the kernels before it in the stream have ended, and read its weights before: no
/// kernel that may still be running writes them. Those are all dependent launches right before it, and the kernel before
/// the first of these. The function is the launch's kernel, loaded in the current context, of which `stream` is one. The arguments are those
/// that the kernel takes, and what it does with the addresses in them is allowed until it has run.
pub(in crate::raw) unsafe fn launch(
    Function(function): Function,
    launch: &Launch,
    arguments: [*const c_void; 2],
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
    let dependent = attribute(api::PROGRAMMATIC_STREAM_SERIALIZATION, [1, 0, 0]);
    let (attributes, attribute_count) = match (launch.cluster != 0, launch.dependent) {
        (true, true) => ([cluster, dependent], 2),
        (true, false) => ([cluster, dependent], 1),
        (false, true) => ([dependent, cluster], 1),
        (false, false) => ([dependent, cluster], 0),
    };
    let config = LaunchConfig {
        grid: launch.grid,
        block: [launch.threads, 1, 1],
        shared: launch.dynamic_shared,
        stream,
        attributes: attributes.as_ptr(),
        attribute_count,
    };
    // The driver only reads them, as many as the kernel takes.
    let mut arguments = arguments.map(<*const c_void>::cast_mut);
    // SAFETY: the configuration and what it points to live through the call, which copies them. The rest is this
    // function's own contract.
    api.check(launch.entry, unsafe {
        (api.launch)(
            &config,
            function,
            arguments.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    })
}
