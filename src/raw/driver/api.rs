//! The driver's functions, by name from its library.
//!
//! Not by cudarc, whose functions are those of the nvcc that it finds when it is built: of CUDA 11 it lacks three of
//! these. Names, types and numbers are those of cuda.h, where they do not change.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use nvfp4_gemv_files::loader::{self, Library};

use crate::error::{Error, Result};
use crate::raw::device::no_driver_library;

/// `CUresult`: 0 is success.
pub(super) type Status = c_int;
/// `CUdevice`.
pub(super) type Device = c_int;
/// `CUcontext`, `CUmodule`, `CUfunction` and `CUstream`.
pub(super) type Handle = *mut c_void;

pub(super) const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
pub(super) const COMPUTE_CAPABILITY_MINOR: c_int = 76;
pub(super) const MULTIPROCESSOR_COUNT: c_int = 16;
pub(super) const L2_CACHE_SIZE: c_int = 38;
pub(super) const MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: c_int = 97;

/// `CUDA_ERROR_INVALID_CONTEXT`: the thread has no current context.
pub(super) const INVALID_CONTEXT: Status = 201;

pub(super) const SHARED_SIZE_BYTES: c_int = 1;
pub(super) const MAX_DYNAMIC_SHARED_SIZE_BYTES: c_int = 8;

pub(super) const CAPTURE_STATUS_NONE: c_int = 0;
pub(super) const CAPTURE_MODE_RELAXED: c_int = 2;

pub(super) const TENSOR_MAP_UINT8: c_int = 0;
pub(super) const TENSOR_MAP_INTERLEAVE_NONE: c_int = 0;
pub(super) const TENSOR_MAP_SWIZZLE_NONE: c_int = 0;
pub(super) const TENSOR_MAP_SWIZZLE_128B: c_int = 3;
pub(super) const TENSOR_MAP_L2_PROMOTION_256B: c_int = 3;
pub(super) const TENSOR_MAP_OOB_FILL_NONE: c_int = 0;

pub(super) const CLUSTER_DIMENSION: c_int = 4;
pub(super) const PROGRAMMATIC_STREAM_SERIALIZATION: c_int = 6;

/// `CUlaunchAttribute`: the value is a union of 64 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(super) struct LaunchAttribute {
    pub(super) id: c_int,
    pub(super) pad: [u8; 4],
    /// A cluster's CTAs along x, y and z; or first whether the launch is dependent.
    pub(super) value: [c_uint; 16],
}

/// `CUlaunchConfig`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct LaunchConfig {
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    pub(super) shared: c_uint,
    pub(super) stream: Handle,
    pub(super) attributes: *const LaunchAttribute,
    pub(super) attribute_count: c_uint,
}

macro_rules! api {
    ($($field:ident: $name:literal $type:ty;)*) => {
        /// The functions of a driver of CUDA 12.0 or newer, by what their names have behind `cu`.
        #[derive(Debug)]
        pub(super) struct Api {
            $(pub(super) $field: $type,)*
        }

        impl Api {
            /// Looks up the functions of the library. An error is the name that the library lacks.
            pub(super) fn of(library: &'static Library) -> std::result::Result<Self, &'static str> {
                Ok(Self {
                    $($field: {
                        // SAFETY: this is the driver, by its file's name; cuda.h declares the function so.
                        let found = unsafe { library.get::<$type>($name.as_bytes()) };
                        *found.map_err(|_| $name)?
                    },)*
                })
            }
        }
    };
}

api! {
    init: "cuInit" unsafe extern "C" fn(c_uint) -> Status;
    error_string: "cuGetErrorString" ErrorString;
    device_count: "cuDeviceGetCount" unsafe extern "C" fn(*mut c_int) -> Status;
    device: "cuDeviceGet" unsafe extern "C" fn(*mut Device, c_int) -> Status;
    device_name: "cuDeviceGetName" unsafe extern "C" fn(*mut c_char, c_int, Device) -> Status;
    device_memory: "cuDeviceTotalMem_v2" unsafe extern "C" fn(*mut usize, Device) -> Status;
    device_attribute: "cuDeviceGetAttribute" unsafe extern "C" fn(*mut c_int, c_int, Device) -> Status;
    context_device: "cuCtxGetDevice" unsafe extern "C" fn(*mut Device) -> Status;
    context_id: "cuCtxGetId" unsafe extern "C" fn(Handle, *mut u64) -> Status;
    load_module: "cuModuleLoadData" unsafe extern "C" fn(*mut Handle, *const c_void) -> Status;
    unload_module: "cuModuleUnload" unsafe extern "C" fn(Handle) -> Status;
    function: "cuModuleGetFunction" unsafe extern "C" fn(*mut Handle, Handle, *const c_char) -> Status;
    function_attribute: "cuFuncGetAttribute" unsafe extern "C" fn(*mut c_int, c_int, Handle) -> Status;
    set_function_attribute: "cuFuncSetAttribute" unsafe extern "C" fn(Handle, c_int, c_int) -> Status;
    is_capturing: "cuStreamIsCapturing" unsafe extern "C" fn(Handle, *mut c_int) -> Status;
    exchange_capture_mode: "cuThreadExchangeStreamCaptureMode" unsafe extern "C" fn(*mut c_int) -> Status;
    launch: "cuLaunchKernelEx" unsafe extern "C" fn(
        *const LaunchConfig,
        Handle,
        *mut *mut c_void,
        *mut *mut c_void,
    ) -> Status;
    encode_tiled: "cuTensorMapEncodeTiled" unsafe extern "C" fn(
        *mut c_void,
        c_int,
        u32,
        *mut c_void,
        *const u64,
        *const u64,
        *const u32,
        *const u32,
        c_int,
        c_int,
        c_int,
        c_int,
    ) -> Status;
}

pub(super) type ErrorString = unsafe extern "C" fn(Status, *mut *const c_char) -> Status;

/// The driver's library, looked for once a process.
pub(super) fn library() -> Result<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    // SAFETY: this is the driver's library, whose initialisers only set it up.
    let load = |name: &str| unsafe { loader::by_name(name) }.ok();
    let library = LIBRARY.get_or_init(|| ["libcuda.so.1", "libcuda.so"].into_iter().find_map(load));
    library.as_ref().ok_or_else(no_driver_library)
}

/// The newest CUDA that the driver supports, as 1000 * major + 10 * minor.
pub(super) fn version() -> Result<c_int> {
    let library = library()?;
    let name = b"cuDriverGetVersion";
    // SAFETY: cuda.h declares the function so.
    let found = unsafe { library.get::<unsafe extern "C" fn(*mut c_int) -> Status>(name) };
    let ask = found.map_err(|error| Error::NoDriver {
        reason: error.to_string(),
    })?;
    let mut version = 0;
    // SAFETY: the pointer is to a live integer.
    version_of(unsafe { ask(&mut version) }, version)
}

/// The version that the driver answers. Its error is not explained as others are, which would ask for the version
/// again.
fn version_of(status: Status, version: c_int) -> Result<c_int> {
    match status {
        0 => Ok(version),
        code => Err(Error::NoDriver {
            reason: format!("it does not say which CUDA it supports (CUDA error {code})"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_does_not_say_its_version_is_none() {
        assert_eq!(version_of(0, 12040), Ok(12040));
        for code in [3, 34, 35, 802, 803, 804, 999] {
            let error = version_of(code, 0).unwrap_err();
            assert!(matches!(error, Error::NoDriver { .. }), "{error:?}");
            assert!(error.to_string().contains(&code.to_string()), "{error}");
        }
    }

    /// As cuda.h lays them out on 64-bit machines.
    #[test]
    fn structures_have_the_drivers_layout() {
        assert_eq!(size_of::<LaunchAttribute>(), 72);
        assert_eq!(std::mem::offset_of!(LaunchAttribute, value), 8);
        assert_eq!(size_of::<LaunchConfig>(), 56);
        assert_eq!(std::mem::offset_of!(LaunchConfig, stream), 32);
        assert_eq!(std::mem::offset_of!(LaunchConfig, attribute_count), 48);
    }
}
