//! What the CUDA driver does without the runtime: kernels that were compiled at run time are loaded and launched here,
//! and a build without linked kernels, which has no runtime, asks for devices.
//!
//! Kernels that are linked in belong to the runtime: `csrc/host.cu`.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_int, c_void};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};

use cudarc::driver::sys;
use libloading::Library;

use super::device::explain;
use crate::error::{Error, Result};
use crate::kernel::params::{NVFP4_SWIZZLE_128, NVFP4_TENSOR_MAP_RANK, nvfp4_tensor_map};
use crate::kernel::plan::Launch;
use crate::{ffi, jit};

/// The oldest driver that has all functions of this file, as 1000 * major + 10 * minor.
const OLDEST: c_int = 12000;

/// The driver is there, new enough and initialised: asked once a process where it is so. No other function of the driver
/// is called before.
fn ready() -> Result<()> {
    static READY: OnceLock<()> = OnceLock::new();
    if READY.get().is_some() {
        return Ok(());
    }
    let version = version()?;
    if version < OLDEST {
        return Err(Error::NoDriver {
            reason: format!(
                "the driver supports CUDA {}.{}, and 12.0 or newer is needed; update the driver",
                version / 1000,
                version % 1000 / 10
            ),
        });
    }
    // SAFETY: the driver is there.
    check("initialising the driver", unsafe { sys::cuInit(0) })?;
    READY.get_or_init(|| ());
    Ok(())
}

/// The newest CUDA that the driver supports, as 1000 * major + 10 * minor.
fn version() -> Result<c_int> {
    static THERE: OnceLock<bool> = OnceLock::new();
    let names = match cfg!(windows) {
        true => ["nvcuda.dll", "nvcuda64.dll"],
        false => ["libcuda.so.1", "libcuda.so"],
    };
    // SAFETY: this is the driver's library, whose initialisers only set it up.
    let is_there = |name: &&str| unsafe { Library::new(*name) }.is_ok();
    if !*THERE.get_or_init(|| names.iter().any(is_there)) {
        return Err(Error::NoDriver {
            reason: format!(
                "{} was not found; install the NVIDIA driver, or use the CPU path",
                names[0]
            ),
        });
    }
    let mut version = 0;
    // SAFETY: the driver is there, and the pointer is to a live integer.
    check("asking for the driver's version", unsafe {
        sys::cuDriverGetVersion(&mut version)
    })?;
    Ok(version)
}

fn check(during: &'static str, result: sys::CUresult) -> Result<()> {
    explain(during, result as i32, || {
        let mut text = std::ptr::null();
        // SAFETY: the pointer is to a live one; the text is static, or null for a number that the driver does not know.
        let known = unsafe { sys::cuGetErrorString(result, &mut text) };
        match known == sys::CUresult::CUDA_SUCCESS && !text.is_null() {
            // SAFETY: the driver's texts end with zero and are never freed.
            true => unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned(),
            false => "an error without a name".into(),
        }
    })
}

/// As [`runtime::versions`](super::runtime::versions); there is no runtime.
#[cfg(nvfp4_gemv_no_kernels)]
pub(super) fn versions() -> Result<(i32, Option<i32>)> {
    match version() {
        Ok(version) => Ok((version, None)),
        Err(Error::NoDriver { .. }) => Ok((0, None)),
        Err(other) => Err(other),
    }
}

/// As [`runtime::count`](super::runtime::count).
#[cfg(nvfp4_gemv_no_kernels)]
pub(super) fn count() -> Result<i32> {
    ready()?;
    let mut count = 0;
    // SAFETY: the pointer is to a live integer.
    check("counting devices", unsafe {
        sys::cuDeviceGetCount(&mut count)
    })?;
    Ok(count)
}

/// As [`runtime::current`](super::runtime::current).
#[cfg(nvfp4_gemv_no_kernels)]
pub(super) fn current() -> Result<i32> {
    current_device()
}

/// As [`runtime::info`](super::runtime::info).
#[cfg(nvfp4_gemv_no_kernels)]
pub(super) fn info(ordinal: u32) -> Result<ffi::nvfp4_device_info> {
    use sys::CUdevice_attribute as Attribute;
    const DURING: &str = "asking for device properties";
    ready()?;
    let (mut device, mut bytes) = (0, 0);
    let mut info = ffi::nvfp4_device_info::default();
    // SAFETY: the pointer is to a live integer.
    check(DURING, unsafe {
        sys::cuDeviceGet(&mut device, ordinal as c_int)
    })?;
    // SAFETY: the device is one; the driver ends the name with a zero inside of the array.
    check(DURING, unsafe {
        sys::cuDeviceGetName(info.name.as_mut_ptr(), info.name.len() as c_int, device)
    })?;
    // SAFETY: as above, and the pointer is to a live number.
    check(DURING, unsafe {
        sys::cuDeviceTotalMem_v2(&mut bytes, device)
    })?;
    info.memory_bytes = bytes as i64;
    info.compute_major = attribute(
        Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        device,
    )?;
    info.compute_minor = attribute(
        Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        device,
    )?;
    info.multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device)?;
    info.l2_bytes = attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device)?;
    info.shared_bytes = most_shared_bytes(device)?;
    Ok(info)
}

fn attribute(which: sys::CUdevice_attribute, device: sys::CUdevice) -> Result<i32> {
    let mut value = 0;
    // SAFETY: the pointer is to a live integer.
    check("asking for device properties", unsafe {
        sys::cuDeviceGetAttribute(&mut value, which, device)
    })?;
    Ok(value)
}

/// Bytes of shared memory that a CTA can ask for.
fn most_shared_bytes(device: sys::CUdevice) -> Result<i32> {
    use sys::CUdevice_attribute as Attribute;
    attribute(
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        device,
    )
}

/// The current context's device.
fn current_device() -> Result<sys::CUdevice> {
    ready()?;
    let mut device = 0;
    // SAFETY: the pointer is to a live integer.
    check("asking for the current device", unsafe {
        sys::cuCtxGetDevice(&mut device)
    })?;
    Ok(device)
}

/// The compute capability of the current context's device, asked for once a device.
fn compute_capability() -> Result<(i32, i32)> {
    use sys::CUdevice_attribute as Attribute;
    static KNOWN: RwLock<BTreeMap<c_int, (i32, i32)>> = RwLock::new(BTreeMap::new());
    let device = current_device()?;
    let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = known.get(&device) {
        return Ok(*known);
    }
    drop(known);
    let found = (
        attribute(
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            device,
        )?,
        attribute(
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            device,
        )?,
    );
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    known.insert(device, found);
    Ok(found)
}

/// The architecture that kernels are compiled for in the context that is current, or none where this build's machine code
/// runs there.
pub(super) fn image() -> Result<Option<&'static str>> {
    Ok(jit::image(super::COMPILED_ARCHS, compute_capability()?))
}

/// A kernel that is loaded in a context.
#[derive(Clone, Copy, Debug)]
pub(super) struct Function(sys::CUfunction);

// SAFETY: the driver's handle of a kernel, which any thread may use in the handle's context. Nothing unloads it.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// The kernel of a launch, compiled for `arch` and loaded in the context that is current. `stream`: of a call that
/// enqueues at once, which compiles nothing where that is being captured.
pub(super) fn function(
    launch: &Launch,
    arch: &'static str,
    stream: Option<*mut c_void>,
) -> Result<Function> {
    /// By context, whose ids CUDA never uses twice, and name.
    static LOADED: RwLock<BTreeMap<(u64, &str), Function>> = RwLock::new(BTreeMap::new());
    static LOADING: Mutex<()> = Mutex::new(());
    let key = (context_id()?, launch.entry);
    let loaded = || {
        let loaded = LOADED.read().unwrap_or_else(PoisonError::into_inner);
        loaded.get(&key).copied()
    };
    if let Some(function) = loaded() {
        return Ok(function);
    }
    let code = match stream {
        Some(stream) if is_captured(stream)? => jit::code_that_is_there(launch, arch)?,
        _ => jit::code(launch, arch)?,
    };
    // Once in a context, whoever asks.
    let _alone = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(function) = loaded() {
        return Ok(function);
    }
    // The stream may be in a capture, which loading is no part of.
    let relaxed = exchange_capture_mode(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
    let function = load(launch, &code);
    exchange_capture_mode(relaxed)?;
    let function = function?;
    let mut all = LOADED.write().unwrap_or_else(PoisonError::into_inner);
    all.insert(key, function);
    Ok(function)
}

/// Loads a kernel in the context that is current, and lets it have all the dynamic shared memory that a CTA of the device
/// can, beside its static shared memory.
fn load(launch: &Launch, code: &[u8]) -> Result<Function> {
    use sys::CUfunction_attribute as Attribute;
    let kernel = launch.entry;
    let device = current_device()?;
    let name = CString::new(kernel).expect("names have no zeros");
    let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the code is a whole cubin, as NVRTC made it; the driver copies it. The module stays until its context goes.
    check(kernel, unsafe {
        sys::cuModuleLoadData(&mut module, code.as_ptr().cast())
    })?;
    // SAFETY: the module is loaded, and the name ends with zero.
    check(kernel, unsafe {
        sys::cuModuleGetFunction(&mut function, module, name.as_ptr())
    })?;
    let mut fixed = 0;
    // SAFETY: the function is of this context, and the pointer to a live integer.
    check(kernel, unsafe {
        sys::cuFuncGetAttribute(
            &mut fixed,
            Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
            function,
        )
    })?;
    // SAFETY: the function is of this context.
    check(kernel, unsafe {
        sys::cuFuncSetAttribute(
            function,
            Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            most_shared_bytes(device)? - fixed,
        )
    })?;
    Ok(Function(function))
}

fn context_id() -> Result<u64> {
    ready()?;
    let mut id = 0;
    // SAFETY: the pointer is to a live number; null stands for the current context.
    check("asking for the current context", unsafe {
        sys::cuCtxGetId(std::ptr::null_mut(), &mut id)
    })?;
    Ok(id)
}

/// Whether what is put into a stream, a `CUstream` or `cudaStream_t`, goes into a graph.
fn is_captured(stream: *mut c_void) -> Result<bool> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the pointer is to a live status; that the stream is one of the current context is the caller's promise.
    check("asking whether the stream is captured", unsafe {
        sys::cuStreamIsCapturing(stream.cast(), &mut status)
    })?;
    Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// Says what this thread may do while streams are captured, and returns what was said before.
fn exchange_capture_mode(mut mode: sys::CUstreamCaptureMode) -> Result<sys::CUstreamCaptureMode> {
    // SAFETY: the pointer is to a live mode.
    check("allowing a kernel to be loaded", unsafe {
        sys::cuThreadExchangeStreamCaptureMode(&mut mode)
    })?;
    Ok(mode)
}

/// As `nvfp4_gemv_encode` of `csrc/nvfp4_gemv.h`: a tensor map of bytes, in place.
pub(super) fn encode(
    map: &nvfp4_tensor_map,
    encoded: &mut super::launch::EncodedMap,
) -> Result<()> {
    const _: () = assert!(size_of::<sys::CUtensorMap>() == size_of::<super::launch::EncodedMap>());
    use sys::CUtensorMapSwizzle as Swizzle;
    let element_strides = [1; NVFP4_TENSOR_MAP_RANK as usize];
    let swizzle = match map.swizzle {
        NVFP4_SWIZZLE_128 => Swizzle::CU_TENSOR_MAP_SWIZZLE_128B,
        _ => Swizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
    };
    // SAFETY: the arrays have as many elements as the rank says, or more, and live through the call. The driver follows no
    // device address, and writes as many bytes as an encoded map has; all maps of a launch are aligned as it asks.
    check("encoding a tensor map", unsafe {
        sys::cuTensorMapEncodeTiled(
            encoded.as_mut_ptr().cast(),
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
            map.rank,
            map.address as *mut c_void,
            map.size.as_ptr(),
            // The innermost dimension's stride is that of bytes, and not asked for.
            map.stride[1..].as_ptr(),
            map.box_size.as_ptr(),
            element_strides.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    })
}

/// As `nvfp4_gemv_launch` of `csrc/nvfp4_gemv.h`, which takes the same description.
///
/// # Safety
/// The function was loaded in the current context, of which `stream` is one. The parameters are those that the kernel
/// takes, and what it does with the addresses in them is allowed until it has run.
pub(super) unsafe fn launch(
    during: &'static str,
    Function(function): Function,
    launch: &ffi::nvfp4_launch,
    stream: *mut c_void,
) -> Result<()> {
    use sys::CUlaunchAttributeID as Id;
    let attribute = |id, set: fn(&mut sys::CUlaunchAttributeValue, u32), value| {
        let mut attribute = sys::CUlaunchAttribute {
            id,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { pad: [0; 64] },
        };
        set(&mut attribute.value, value);
        attribute
    };
    let cluster = attribute(
        Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        |value, ctas| {
            value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 {
                x: ctas,
                y: 1,
                z: 1,
            };
        },
        launch.cluster,
    );
    let dependent = attribute(
        Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        |value, yes| value.programmaticStreamSerializationAllowed = yes as c_int,
        launch.dependent,
    );
    let (mut attributes, count) = match (launch.cluster != 0, launch.dependent != 0) {
        (true, true) => ([cluster, dependent], 2),
        (true, false) => ([cluster, dependent], 1),
        (false, true) => ([dependent, cluster], 1),
        (false, false) => ([dependent, cluster], 0),
    };
    let config = sys::CUlaunchConfig {
        gridDimX: launch.grid_x,
        gridDimY: launch.grid_y,
        gridDimZ: launch.grid_z,
        blockDimX: launch.threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: launch.dynamic_shared,
        hStream: stream.cast(),
        attrs: attributes.as_mut_ptr(),
        numAttrs: count,
    };
    // The driver only reads them, as many as the kernel takes.
    let mut parameters = launch.parameters.map(<*const c_void>::cast_mut);
    // SAFETY: the configuration and what it points to live through the call, which copies them. The rest is this function's
    // own contract.
    check(during, unsafe {
        sys::cuLaunchKernelEx(
            &config,
            function,
            parameters.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    })
}
