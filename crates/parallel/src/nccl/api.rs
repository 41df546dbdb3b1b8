//! NCCL's functions, by name from its library.
//!
//! Not by cudarc, whose functions panic where the library, or one of them, is not there. Names, types and numbers are
//! those of nccl.h, where they do not change.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use nvfp4_gemv_files::functions;
use nvfp4_gemv_files::loader::Library;

/// `ncclResult_t`.
pub(super) type Status = c_int;
/// `ncclComm_t`, and what CUDA calls a stream.
pub(super) type Handle = *mut c_void;

pub(super) const SUCCESS: Status = 0;
/// `ncclSystemError`: a call of the operating system failed, on a socket among others.
pub(super) const SYSTEM_ERROR: Status = 2;
/// `ncclRemoteError`: another rank, or the way to it, failed.
pub(super) const REMOTE_ERROR: Status = 6;
/// A communicator that does not block is still at work.
pub(super) const IN_PROGRESS: Status = 7;

/// `ncclSum`.
pub(super) const SUM: c_int = 0;
/// `ncclFloat16`, `ncclFloat32` and `ncclBfloat16`.
pub(super) const FLOAT16: c_int = 6;
pub(super) const FLOAT32: c_int = 7;
pub(super) const BFLOAT16: c_int = 9;

/// `NCCL_WIN_COLL_SYMMETRIC`: for collectives that read and write the memory of other ranks.
pub(super) const SYMMETRIC: c_int = 1;

/// `ncclUniqueId`, which goes by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Id {
    pub(super) bytes: [u8; Id::BYTES],
}

impl Id {
    pub(super) const BYTES: usize = 128;
}

/// `ncclConfig_t` as NCCL 2.14 had it. Newer ones append to it: they read `size` bytes, and take their defaults for
/// what `version` did not have.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    /// The field that a newer NCCL has here. The value is NCCL's "not set", should an NCCL look at the field.
    next: c_int,
}

impl Config {
    /// The config of a communicator whose calls do not block.
    pub(super) const NOT_BLOCKING: Self = Self {
        size: size_of::<Self>(),
        magic: 0xcafe_beef,
        version: 21400,
        blocking: 0,
        next: c_int::MIN,
    };
}

/// The function that every NCCL has, and that says which version the library is.
pub(super) const GET_VERSION: &str = "ncclGetVersion";
pub(super) type GetVersion = unsafe extern "C" fn(*mut c_int) -> Status;

functions! {
    /// The functions of the least version, by what their names have behind `nccl`.
    Api {
        version: "ncclGetVersion" GetVersion;
        unique_id: "ncclGetUniqueId" unsafe extern "C" fn(*mut Id) -> Status;
        error_string: "ncclGetErrorString" unsafe extern "C" fn(Status) -> *const c_char;
        last_error: "ncclGetLastError" unsafe extern "C" fn(Handle) -> *const c_char;
        init: "ncclCommInitRankConfig" unsafe extern "C" fn(*mut Handle, c_int, Id, c_int, *mut Config) -> Status;
        async_error: "ncclCommGetAsyncError" unsafe extern "C" fn(Handle, *mut Status) -> Status;
        finalize: "ncclCommFinalize" unsafe extern "C" fn(Handle) -> Status;
        destroy: "ncclCommDestroy" unsafe extern "C" fn(Handle) -> Status;
        abort: "ncclCommAbort" unsafe extern "C" fn(Handle) -> Status;
        all_reduce: "ncclAllReduce" unsafe extern "C" fn(
            *const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle,
        ) -> Status;
        all_gather: "ncclAllGather" unsafe extern "C" fn(
            *const c_void, *mut c_void, usize, c_int, Handle, Handle,
        ) -> Status;
        ?windows: Windows;
    }
}

functions! {
    /// The functions of symmetric windows, which NCCL 2.27 has first.
    Windows {
        allocate: "ncclMemAlloc" unsafe extern "C" fn(*mut *mut c_void, usize) -> Status;
        free: "ncclMemFree" unsafe extern "C" fn(*mut c_void) -> Status;
        register: "ncclCommWindowRegister" unsafe extern "C" fn(
            Handle, *mut c_void, usize, *mut Handle, c_int,
        ) -> Status;
        deregister: "ncclCommWindowDeregister" unsafe extern "C" fn(Handle, Handle) -> Status;
    }
}

impl Api {
    /// Looks up the functions of a library, which stays loaded for as long as the process lives. An error says what the
    /// library lacks.
    pub(super) fn kept(library: Library) -> Result<Self, String> {
        // SAFETY: this is NCCL, by its file's name; nccl.h declares the functions so.
        let api = unsafe { Self::of(&library) }.map_err(|name| format!("it has no {name}"))?;
        std::mem::forget(library);
        Ok(api)
    }

    /// The meaning of a result in NCCL's words, and what NCCL last said in this process. The second text may be of
    /// another communicator: NCCL keeps nothing of a failure in one communicator alone.
    pub(super) fn text(&self, status: Status) -> (String, String) {
        let of = |text: *const c_char| match text.is_null() {
            true => String::new(),
            // SAFETY: NCCL returns text that ends with a zero, and keeps it.
            false => unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .trim()
                .to_string(),
        };
        // SAFETY: the first takes any number; the second no communicator, as its documentation allows.
        let texts = unsafe {
            (
                (self.error_string)(status),
                (self.last_error)(std::ptr::null_mut()),
            )
        };
        (of(texts.0), of(texts.1))
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// As nccl.h lays them out on 64-bit machines.
    #[test]
    fn structures_have_nccls_layout() {
        assert_eq!((size_of::<Id>(), align_of::<Id>()), (128, 1));
        assert_eq!(size_of::<Config>(), 24);
        let config = Config::NOT_BLOCKING;
        let fields = [
            (offset_of!(Config, size), config.size as i64),
            (offset_of!(Config, magic), config.magic.into()),
            (offset_of!(Config, version), config.version.into()),
            (offset_of!(Config, blocking), config.blocking.into()),
            (offset_of!(Config, next), config.next.into()),
        ];
        let of_nccl = [
            (0, 24),
            (8, 0xcafe_beef),
            (12, 21400),
            (16, 0),
            (20, i64::from(i32::MIN)),
        ];
        assert_eq!(fields, of_nccl);
    }
}
