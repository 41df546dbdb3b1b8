//! Functions of the driver by name and version, as `cuGetProcAddress` gives them.

use std::ffi::{CStr, CString, c_void};
use std::sync::LazyLock;

use crate::call::{offer, put};
use crate::code::{Code, Fail};
use crate::driver::VERSION;

/// Versions of CUDA that gave functions another ABI, oldest first, and these functions: those of which `cudaTypedefs.h`
/// of CUDA 13.0 has several types. The first ABI has the plain name, the second ends with `_v2`, and so on. A function
/// that is not named here has one ABI.
pub const ABIS: &str = "
2000 3020: cuArray3DCreate cuArray3DGetDescriptor cuArrayCreate cuArrayGetDescriptor cuDeviceTotalMem cuMemAlloc
2000 3020: cuMemAllocHost cuMemAllocPitch cuMemFree cuMemGetAddressRange cuMemGetInfo cuMemcpy2D cuMemcpy2DAsync
2000 3020: cuMemcpy2DUnaligned cuMemcpy3D cuMemcpy3DAsync cuMemcpyAtoA cuMemcpyAtoD cuMemcpyAtoH cuMemcpyAtoHAsync
2000 3020: cuMemcpyDtoA cuMemcpyDtoD cuMemcpyDtoH cuMemcpyDtoHAsync cuMemcpyHtoA cuMemcpyHtoAAsync cuMemcpyHtoD
2000 3020: cuMemcpyHtoDAsync cuMemsetD16 cuMemsetD2D16 cuMemsetD2D32 cuMemsetD2D8 cuMemsetD32 cuMemsetD8
2000 3020: cuModuleGetGlobal cuTexRefGetAddress cuTexRefSetAddress
2000 3020 11040 12050: cuCtxCreate
2000 4000: cuCtxDestroy cuCtxPopCurrent cuCtxPushCurrent cuEventDestroy cuStreamDestroy
2000 12080: cuEventElapsedTime
2000 13000: cuCtxGetDevice cuCtxSynchronize
2020 3020: cuMemHostGetDevicePointer
2020 3020 4010: cuTexRefSetAddress2D
3000 3020: cuGraphicsResourceGetMappedPointer cuMemcpyDtoDAsync
3000 6050: cuGraphicsResourceSetMapFlags
4000 6050: cuMemHostRegister
4010 11000: cuIpcOpenMemHandle
5050 6050: cuLinkAddData cuLinkAddFile cuLinkCreate
7000 11000: cuDevicePrimaryCtxRelease cuDevicePrimaryCtxReset cuDevicePrimaryCtxSetFlags
8000 11070: cuStreamBatchMemOp cuStreamWaitValue32 cuStreamWriteValue32
8000 12020: cuMemAdvise cuMemPrefetchAsync
9000 11070: cuStreamWaitValue64 cuStreamWriteValue64
9020 11040: cuDeviceGetUuid
9020 12050: cuStreamGetCtx
10000 10010: cuStreamBeginCapture
10000 11000: cuGraphInstantiate
10000 12000: cuGraphAddKernelNode cuGraphKernelNodeGetParams cuGraphKernelNodeSetParams
10000 12030: cuGraphAddDependencies cuGraphGetEdges cuGraphNodeGetDependencies cuGraphNodeGetDependentNodes
10000 12030: cuGraphRemoveDependencies
10010 11030 12030: cuStreamGetCaptureInfo
10010 12000: cuGraphExecKernelNodeSetParams
10020 12000: cuGraphExecUpdate
11030 12000: cuGetProcAddress
11030 12030: cuStreamUpdateCaptureDependencies
12020 12030: cuGraphAddNode
12080 13000: cuMemcpy3DBatchAsync cuMemcpyBatchAsync
";

/// The table's functions, each with the versions of its ABIs.
pub fn abis() -> impl Iterator<Item = (&'static str, Vec<u32>)> {
    ABIS.trim().lines().flat_map(|row| {
        let (since, names) = row.split_once(": ").unwrap_or_default();
        let since: Vec<u32> = since.split(' ').flat_map(str::parse).collect();
        names.split(' ').map(move |name| (name, since.clone()))
    })
}

/// The symbol that has the ABI of a function in a version of CUDA; none if the function is newer.
pub fn symbol(name: &str, version: u32) -> Option<String> {
    let Some((_, since)) = abis().find(|(known, _)| *known == name) else {
        return Some(name.to_string());
    };
    match since.into_iter().filter(|s| *s <= version).count() {
        0 => None,
        1 => Some(name.to_string()),
        n => Some(format!("{name}_v{n}")),
    }
}

/// The loader's handle of this library. The program and its other libraries may have functions of the same names.
static OWN: LazyLock<usize> = LazyLock::new(|| {
    // SAFETY: an all-zero `Dl_info` is a valid one, which `dladdr` fills for an address of this library; its name is
    // then a path that ends with a zero. The library is loaded already.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        let address = ABIS.as_ptr().cast::<c_void>();
        if libc::dladdr(address, &mut info) == 0 || info.dli_fname.is_null() {
            return 0;
        }
        libc::dlopen(info.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD) as usize
    }
});

fn exported(symbol: &CStr) -> *mut c_void {
    match *OWN {
        0 => std::ptr::null_mut(),
        // SAFETY: the handle is the loader's, and the name ends with a zero.
        own => unsafe { libc::dlsym(own as *mut c_void, symbol.as_ptr()) },
    }
}

/// Results of a look-up by name, by the numbers of `CUdriverProcAddressQueryResult`.
mod status {
    pub(super) const FOUND: u32 = 0;
    pub(super) const NOT_FOUND: u32 = 1;
    pub(super) const VERSION_NOT_SUFFICIENT: u32 = 2;
}

fn look_up(name: &str, version: u32) -> (*mut c_void, u32) {
    let none = std::ptr::null_mut();
    // Functions of the runtime, and of libraries that this one needs, are none of the driver's.
    if !name.starts_with("cu") || name.starts_with("cuda") {
        return (none, status::NOT_FOUND);
    }
    let Some(symbol) = symbol(name, version) else {
        return (none, status::VERSION_NOT_SUFFICIENT);
    };
    match CString::new(symbol).map_or(none, |s| exported(&s)) {
        found if found.is_null() => (none, status::NOT_FOUND),
        found => (found, status::FOUND),
    }
}

/// Gives a program the function of a name, or null where there is none: that is no failure.
///
/// # Safety
///
/// `function` and `status` must be null or writable.
pub(crate) unsafe fn entry_point(
    name: &str,
    function: *mut *mut c_void,
    version: u32,
    status: *mut u32,
) -> Result<(), Fail> {
    if version > VERSION as u32 {
        let why = format!("{name} of version {version}: this stands in for CUDA {VERSION}");
        return Err(Fail::new(Code::INVALID_VALUE, why));
    }
    let (found, how) = look_up(name, version);
    if found.is_null() {
        crate::say(&format!(
            "the driver's {name}, asked for as of version {version}, is not there"
        ));
    }
    // SAFETY: the caller's promise.
    unsafe {
        offer(status, how);
        put(function, found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_has_its_abi() {
        let of = |name: &str, version| symbol(name, version).unwrap_or_default();
        assert_eq!(of("cuCtxCreate", 3000), "cuCtxCreate");
        assert_eq!(of("cuCtxCreate", 12000), "cuCtxCreate_v3");
        assert_eq!(of("cuCtxCreate", 12050), "cuCtxCreate_v4");
        assert_eq!(of("cuCtxSynchronize", 12080), "cuCtxSynchronize");
        assert_eq!(of("cuCtxSynchronize", 13000), "cuCtxSynchronize_v2");
        assert_eq!(of("cuMemAlloc", 12000), "cuMemAlloc_v2");
        assert_eq!(of("cuLaunchKernelEx", 12000), "cuLaunchKernelEx");
        assert_eq!(symbol("cuGraphAddNode", 12000), None);
    }

    #[test]
    fn other_functions_are_none_of_the_driver() {
        for name in ["malloc", "cudaMalloc", "", "cu\0Init"] {
            assert_eq!(look_up(name, 13000).1, status::NOT_FOUND, "{name}");
        }
    }
}
