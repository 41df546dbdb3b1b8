//! Devices and versions that there are, and the meaning of CUDA's error codes.

use std::ffi::CStr;

#[cfg(all(feature = "jit", nvfp4_gemv_no_kernels))]
use super::driver as cuda;
#[cfg(not(all(feature = "jit", nvfp4_gemv_no_kernels)))]
use super::runtime as cuda;
use crate::error::{Error, Result};
use crate::ffi;
use crate::gpu::Gpu;

/// The architectures this build carries machine code for, as in `NVFP4_GEMV_ARCHS`. Empty in a
/// build without kernels (`NVFP4_GEMV_NO_KERNELS`, or documentation).
pub const COMPILED_ARCHS: &str = env!("NVFP4_GEMV_COMPILED_ARCHS");

/// A hash of the kernels' sources: times of other sources are not times of this build.
pub const KERNELS: &str = env!("NVFP4_GEMV_KERNELS");

/// Versions of CUDA: the newest that the driver supports, and the runtime that is linked in, if one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// Major and minor of the newest CUDA the driver supports; `None` where there is no driver.
    pub driver: Option<(i32, i32)>,
    /// Major and minor of the CUDA runtime this build carries; `None` in a build with feature `jit` and without linked
    /// kernels, which has none.
    pub runtime: Option<(i32, i32)>,
}

/// Asks for both versions. Works without a driver.
///
/// # Errors
/// [`Error::Cuda`].
pub fn versions() -> Result<Versions> {
    let (driver, runtime) = cuda::versions()?;
    Ok(Versions {
        driver: (driver > 0).then(|| release(driver)),
        runtime: runtime.map(release),
    })
}

/// Major and minor of a version as CUDA says it, 1000 * major + 10 * minor.
pub(super) fn release(version: i32) -> (i32, i32) {
    (version / 1000, version % 1000 / 10)
}

/// The number of devices that the driver shows; at least one.
///
/// # Errors
/// [`Error::NoDriver`], [`Error::NoDevice`], [`Error::NoKernels`].
pub fn device_count() -> Result<u32> {
    match u32::try_from(cuda::count()?) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(no_device()),
    }
}

/// The properties of device `ordinal`, with the images of this build's kernels.
///
/// # Errors
/// [`Error::NoDriver`], [`Error::NoDevice`], [`Error::Cuda`] for an ordinal that does not exist.
pub fn gpu(ordinal: u32) -> Result<Gpu> {
    let info = cuda::info(ordinal)?;
    let compute_capability = (info.compute_major, info.compute_minor);
    // SAFETY: the name ends with a zero inside the array.
    let name = unsafe { CStr::from_ptr(info.name.as_ptr()) };
    Ok(Gpu {
        name: name.to_string_lossy().into_owned(),
        compute_capability,
        multiprocessors: info.multiprocessors.max(1) as u32,
        l2_bytes: info.l2_bytes.max(0) as u64,
        shared_bytes: info.shared_bytes.max(0) as u32,
        memory_bytes: info.memory_bytes.max(0) as u64,
        images: images(compute_capability),
    })
}

/// The architectures that there is machine code for, on a device of a compute capability.
fn images(_compute_capability: (i32, i32)) -> &'static str {
    #[cfg(feature = "jit")]
    if let Some(own) = crate::jit::image(COMPILED_ARCHS, _compute_capability) {
        return own;
    }
    COMPILED_ARCHS
}

/// The device that is current on this thread.
fn current_device() -> Result<u32> {
    Ok(cuda::current()?.max(0) as u32)
}

fn no_device() -> Error {
    Error::NoDevice {
        visible: std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default(),
    }
}

/// `cudaErrorNoKernelImageForDevice`.
const NO_KERNEL_IMAGE: i32 = 209;

/// Translates a `cudaError_t`. The numbers are those of `driver_types.h`, which are stable.
pub(super) fn status(during: &'static str, code: i32) -> Result<()> {
    status_with(during, code, || versions().ok())
}

/// Translates a `cudaError_t` of the function that asks for versions: they are not asked for again.
pub(super) fn status_of_versions(during: &'static str, code: i32) -> Result<()> {
    status_with(during, code, || None)
}

fn status_with(
    during: &'static str,
    code: i32,
    versions: impl FnOnce() -> Option<Versions>,
) -> Result<()> {
    #[cfg(nvfp4_gemv_no_kernels)]
    if code != 0 {
        return Err(Error::NoKernels);
    }
    let text = || {
        // SAFETY: the function takes any number and returns static text.
        let text = unsafe { CStr::from_ptr(ffi::nvfp4_gemv_error_string(code)) };
        text.to_string_lossy().into_owned()
    };
    explain_with(during, code, text, versions)
}

/// Translates a `cudaError_t` or a `CUresult`, which have the same numbers for what is told apart here.
pub(super) fn explain(
    during: &'static str,
    code: i32,
    text: impl FnOnce() -> String,
) -> Result<()> {
    explain_with(during, code, text, || versions().ok())
}

/// Translates a code to an error. Where a driver is missing, its version and the runtime's say why.
fn explain_with(
    during: &'static str,
    code: i32,
    text: impl FnOnce() -> String,
    versions: impl FnOnce() -> Option<Versions>,
) -> Result<()> {
    match code {
        0 => Ok(()),
        // Stub library, insufficient driver, initialisation, system not ready, mismatches.
        3 | 34 | 35 | 802 | 803 | 804 => Err(no_driver(versions(), text)),
        100 => Err(no_device()),
        NO_KERNEL_IMAGE => {
            let compute_capability = current_device()
                .and_then(gpu)
                .map_or((0, 0), |gpu| gpu.compute_capability);
            Err(Error::NoKernelImage {
                major: compute_capability.0,
                minor: compute_capability.1,
                archs: COMPILED_ARCHS.into(),
            })
        }
        _ => Err(Error::Cuda {
            during,
            code,
            message: text(),
        }),
    }
}

/// There is no library of the driver.
pub(super) fn no_driver_library() -> Error {
    Error::NoDriver {
        reason: "libcuda.so.1 was not found; install the NVIDIA driver, or use the CPU path".into(),
    }
}

fn no_driver(versions: Option<Versions>, text: impl FnOnce() -> String) -> Error {
    let reason = match versions {
        Some(Versions { driver: None, .. }) => return no_driver_library(),
        Some(Versions {
            driver: Some((major, minor)),
            runtime: Some(runtime),
        }) if (major, minor) < (runtime.0, 0) => format!(
            "the driver supports CUDA {major}.{minor}, this build needs {}.0 or newer; update the \
             driver, or rebuild with an older nvcc",
            runtime.0
        ),
        _ => text(),
    };
    Error::NoDriver { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every error of a driver that is no use says so. The versions are asked for once, and not where the error is of
    /// asking for them.
    #[test]
    fn a_driver_that_is_no_use_is_no_driver() {
        for code in [3, 34, 35, 802, 803, 804] {
            let says = |versions: Option<Versions>| {
                let text = || "CUDA's own words".to_owned();
                let error = explain_with("asking", code, text, || versions).unwrap_err();
                assert!(matches!(error, Error::NoDriver { .. }), "{error:?}");
                error.to_string()
            };
            let of = |driver, runtime| Some(Versions { driver, runtime });
            assert!(says(None).contains("CUDA's own words"));
            assert!(says(of(None, Some((13, 0)))).contains("libcuda.so.1 was not found"));
            let old = says(of(Some((12, 4)), Some((13, 0))));
            assert!(
                old.contains("supports CUDA 12.4") && old.contains("needs 13.0"),
                "{old}"
            );
            let ready = of(Some((13, 0)), None);
            assert!(says(ready).contains("CUDA's own words"));
        }
        let fine = explain_with("asking", 0, String::new, || panic!("not asked"));
        assert_eq!(fine, Ok(()));
    }
}
