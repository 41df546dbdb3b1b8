//! Work that the CUDA driver does. Kernels are launched, and tensor maps encoded. Kernels that were
//! compiled at run time are loaded here, too. A build without linked kernels, which has no runtime, asks for devices
//! here.
//!
//! The runtime loads kernels that are linked in: `csrc/host.cu`. Its own launches take the host .2 us longer
//! (docs/results.md).

#[cfg_attr(
    not(all(feature = "jit", nvfp4_gemv_no_kernels)),
    allow(dead_code, reason = "other builds call some of it")
)]
mod api;
#[cfg(feature = "jit")]
mod compiled;
mod kernels;
mod maps;

#[cfg(feature = "jit")]
use std::collections::BTreeMap;
use std::ffi::{CStr, c_int};
use std::sync::OnceLock;
#[cfg(feature = "jit")]
use std::sync::{PoisonError, RwLock};

use self::api::{Api, Status};
use super::device::{explain, release};
use crate::error::{Error, Result};
#[cfg(all(feature = "jit", nvfp4_gemv_no_kernels))]
use crate::ffi;
#[cfg(feature = "jit")]
use crate::jit;
use crate::kernel::params::NVFP4_OLDEST_DRIVER;

pub(super) use self::kernels::{Function, function, launch};
pub(super) use self::maps::{EncodedMap, encode};

/// The driver's functions, where it is there, new enough and initialised: asked once a process where it is so. No other
/// function of the driver is called before.
fn ready() -> Result<&'static Api> {
    static READY: OnceLock<Api> = OnceLock::new();
    if let Some(api) = READY.get() {
        return Ok(api);
    }
    if cfg!(all(nvfp4_gemv_no_kernels, not(feature = "jit"))) {
        return Err(Error::NoKernels);
    }
    let oldest = NVFP4_OLDEST_DRIVER as c_int;
    let version = api::version()?;
    if version < oldest {
        return Err(Error::NoDriver {
            reason: format!(
                "the driver supports CUDA {}.{}, and {}.{} or newer is needed; update the driver",
                release(version).0,
                release(version).1,
                release(oldest).0,
                release(oldest).1
            ),
        });
    }
    let api = Api::of(api::library()?).map_err(|lacks| Error::NoDriver {
        reason: format!("libcuda.so.1 lacks {lacks}; update the driver"),
    })?;
    // SAFETY: the driver is there.
    api.check("initialising the driver", unsafe { (api.init)(0) })?;
    Ok(READY.get_or_init(|| api))
}

impl Api {
    fn check(&self, during: &'static str, status: Status) -> Result<()> {
        explain(during, status, || self.text(status))
    }

    /// The meaning of an error, in the driver's words.
    fn text(&self, status: Status) -> String {
        let mut text = std::ptr::null();
        // SAFETY: the pointer is to a live one; the text is static, or null for a number that the driver does not know.
        let known = unsafe { (self.error_string)(status, &mut text) };
        match known == 0 && !text.is_null() {
            // SAFETY: the driver's texts end with zero and are never freed.
            true => unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned(),
            false => "an error without a name".into(),
        }
    }
}

/// As [`runtime::versions`](super::runtime::versions); there is no runtime.
#[cfg(all(feature = "jit", nvfp4_gemv_no_kernels))]
pub(super) fn versions() -> Result<(i32, Option<i32>)> {
    match api::library() {
        Ok(_) => Ok((api::version()?, None)),
        Err(Error::NoDriver { .. }) => Ok((0, None)),
        Err(other) => Err(other),
    }
}

/// As [`runtime::count`](super::runtime::count).
#[cfg(all(feature = "jit", nvfp4_gemv_no_kernels))]
pub(super) fn count() -> Result<i32> {
    let api = ready()?;
    let mut count = 0;
    // SAFETY: the pointer is to a live integer.
    api.check("counting devices", unsafe {
        (api.device_count)(&mut count)
    })?;
    Ok(count)
}

/// As [`runtime::current`](super::runtime::current).
#[cfg(all(feature = "jit", nvfp4_gemv_no_kernels))]
pub(super) fn current() -> Result<i32> {
    current_device(ready()?)
}

/// As [`runtime::info`](super::runtime::info).
#[cfg(all(feature = "jit", nvfp4_gemv_no_kernels))]
pub(super) fn info(ordinal: u32) -> Result<ffi::nvfp4_device_info> {
    const DURING: &str = "asking for device properties";
    let api = ready()?;
    let (mut device, mut bytes) = (0, 0);
    let mut info = ffi::nvfp4_device_info::default();
    // SAFETY: the pointer is to a live integer.
    api.check(DURING, unsafe {
        (api.device)(&mut device, ordinal as c_int)
    })?;
    // SAFETY: the device is one; the driver ends the name with a zero inside of the array.
    api.check(DURING, unsafe {
        (api.device_name)(info.name.as_mut_ptr(), info.name.len() as c_int, device)
    })?;
    // SAFETY: as above, and the pointer is to a live number.
    api.check(DURING, unsafe { (api.device_memory)(&mut bytes, device) })?;
    info.memory_bytes = bytes as i64;
    (info.compute_major, info.compute_minor) = compute_capability_of(api, device)?;
    info.multiprocessors = attribute(api, api::MULTIPROCESSOR_COUNT, device)?;
    info.l2_bytes = attribute(api, api::L2_CACHE_SIZE, device)?;
    info.shared_bytes = most_shared_bytes(api, device)?;
    Ok(info)
}

#[cfg(feature = "jit")]
fn attribute(api: &Api, which: c_int, device: api::Device) -> Result<i32> {
    let mut value = 0;
    // SAFETY: the pointer is to a live integer.
    api.check("asking for device properties", unsafe {
        (api.device_attribute)(&mut value, which, device)
    })?;
    Ok(value)
}

/// Bytes of shared memory that a CTA can ask for.
#[cfg(feature = "jit")]
fn most_shared_bytes(api: &Api, device: api::Device) -> Result<i32> {
    attribute(api, api::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device)
}

/// The current context's device.
#[cfg(feature = "jit")]
fn current_device(api: &Api) -> Result<api::Device> {
    let mut device = 0;
    // SAFETY: the pointer is to a live integer.
    api.check("asking for the current device", unsafe {
        (api.context_device)(&mut device)
    })?;
    Ok(device)
}

#[cfg(feature = "jit")]
fn compute_capability_of(api: &Api, device: api::Device) -> Result<(i32, i32)> {
    Ok((
        attribute(api, api::COMPUTE_CAPABILITY_MAJOR, device)?,
        attribute(api, api::COMPUTE_CAPABILITY_MINOR, device)?,
    ))
}

/// The compute capability of the current context's device, asked for once a device.
#[cfg(feature = "jit")]
fn compute_capability() -> Result<(i32, i32)> {
    static KNOWN: RwLock<BTreeMap<c_int, (i32, i32)>> = RwLock::new(BTreeMap::new());
    let api = ready()?;
    let device = current_device(api)?;
    let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = known.get(&device) {
        return Ok(*known);
    }
    drop(known);
    let found = compute_capability_of(api, device)?;
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    known.insert(device, found);
    Ok(found)
}

/// The architecture that kernels are compiled for in the context that is current, or none where this build's machine
/// code runs there.
#[cfg(feature = "jit")]
fn image() -> Result<Option<&'static str>> {
    Ok(jit::image(super::COMPILED_ARCHS, compute_capability()?))
}

/// Compiles the kernels of these launches that this process does not have, for the device of the context that is
/// current, on all processors at once. Where there is machine code, nothing is compiled. A kernel that does not compile
/// is an error where it is used.
#[cfg(all(feature = "jit", feature = "tune"))]
pub(crate) fn compile_ahead<'l>(
    launches: impl Iterator<Item = &'l crate::kernel::plan::Launch>,
) -> Result<()> {
    if let Some(arch) = image()? {
        jit::code_of_all(launches, arch);
    }
    Ok(())
}
