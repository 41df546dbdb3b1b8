//! NVRTC's functions, of a library that was loaded.
//!
//! The functions are looked up here, and not by cudarc. cudarc asks for the releases that it was built for. And where
//! another package of a program has cudarc link its libraries, cudarc would have the program ask for NVRTC when the
//! program starts.

use std::ffi::{CStr, c_char, c_int, c_void};

use nvfp4_gemv_files::functions;
use nvfp4_gemv_files::loader::Library;

/// `nvrtcProgram`.
pub(super) type Handle = *mut c_void;
/// `nvrtcResult`: 0 is success.
pub(super) type Status = c_int;

/// `NVRTC_ERROR_INVALID_OPTION` and `NVRTC_ERROR_COMPILATION` of nvrtc.h, where numbers do not change.
pub(super) const INVALID_OPTION: Status = 5;
pub(super) const COMPILATION: Status = 6;

/// `nvrtcGet...Size` and `nvrtcGet...`.
pub(super) type Size = unsafe extern "C" fn(Handle, *mut usize) -> Status;
pub(super) type Get = unsafe extern "C" fn(Handle, *mut c_char) -> Status;

functions! {
    /// The functions, by what their names have behind `nvrtc`.
    Api {
        version: "nvrtcVersion" unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status;
        count_of_archs: "nvrtcGetNumSupportedArchs" unsafe extern "C" fn(*mut c_int) -> Status;
        archs: "nvrtcGetSupportedArchs" unsafe extern "C" fn(*mut c_int) -> Status;
        error_string: "nvrtcGetErrorString" unsafe extern "C" fn(Status) -> *const c_char;
        create: "nvrtcCreateProgram" unsafe extern "C" fn(
            *mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char,
        ) -> Status;
        compile: "nvrtcCompileProgram" unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> Status;
        destroy: "nvrtcDestroyProgram" unsafe extern "C" fn(*mut Handle) -> Status;
        ptx_size: "nvrtcGetPTXSize" Size;
        ptx: "nvrtcGetPTX" Get;
        cubin_size: "nvrtcGetCUBINSize" Size;
        cubin: "nvrtcGetCUBIN" Get;
        log_size: "nvrtcGetProgramLogSize" Size;
        log: "nvrtcGetProgramLog" Get;
    }
}

impl Api {
    /// Looks up the functions of a library, which stays loaded for as long as the process lives. An error says what the
    /// library lacks.
    pub(super) fn kept(library: Library) -> Result<Self, String> {
        // SAFETY: this is NVRTC, by its file's name; nvrtc.h declares the functions so.
        let api = unsafe { Self::of(&library) };
        let api = api.map_err(|name| format!("it has no {name}: it is too old, or not NVRTC"))?;
        std::mem::forget(library);
        Ok(api)
    }

    /// The meaning of a result, in NVRTC's words.
    pub(super) fn text(&self, status: Status) -> String {
        // SAFETY: the function takes any number.
        let text = unsafe { (self.error_string)(status) };
        match text.is_null() {
            true => format!("result {status}"),
            // SAFETY: it returns static text.
            false => unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned(),
        }
    }
}
