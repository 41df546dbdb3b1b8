//! Status codes, and the text of a thread's last error.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use nvfp4_gemv::Error;
use nvfp4_gemv::checkpoint::CheckpointError;
use nvfp4_gemv::quantize::QuantizeError;

/// The result of a function: NVFP4_OK or a kind of error.
pub type nvfp4_status = i32;

/// All went well.
pub const NVFP4_OK: i32 = 0;
/// An argument that means nothing: NULL, a number that names nothing, text that is no UTF-8. And memory that cannot be
/// used so, of the host or of a device: a misaligned address or stride, results over what is read.
pub const NVFP4_BAD_ARGUMENT: i32 = 1;
/// Operands that contradict each other or their sizes, and scales that are NaN or negative.
pub const NVFP4_BAD_OPERAND: i32 = 2;
/// A file that cannot be read, or a layer that is missing there or is not computed.
pub const NVFP4_BAD_FILE: i32 = 3;
/// A path, device, driver, kernel or memory that is not there.
pub const NVFP4_UNAVAILABLE: i32 = 4;
/// An error that CUDA reported.
pub const NVFP4_CUDA_ERROR: i32 = 5;
/// A fault of the library itself. Please report it.
pub const NVFP4_PANIC: i32 = 6;

/// An error on its way to C.
pub(crate) struct Failure {
    status: nvfp4_status,
    text: String,
}

impl Failure {
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        let (status, text) = (NVFP4_BAD_ARGUMENT, text.into());
        Self { status, text }
    }

    #[cfg_attr(feature = "device", allow(dead_code))]
    pub(crate) fn unavailable(text: impl Into<String>) -> Self {
        let (status, text) = (NVFP4_UNAVAILABLE, text.into());
        Self { status, text }
    }

    pub(crate) fn null(what: &str) -> Self {
        Self::argument(format!("{what} is NULL"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::NullPointer { .. }
            | Error::Misaligned { .. }
            | Error::Overlap { .. }
            | Error::OutputOverlaps { .. } => NVFP4_BAD_ARGUMENT,
            Error::Cuda { .. } => NVFP4_CUDA_ERROR,
            Error::PathUnavailable { .. }
            | Error::KernelUnavailable { .. }
            | Error::UnknownPath { .. }
            | Error::NoDriver { .. }
            | Error::NoDevice { .. }
            | Error::NoKernelImage { .. }
            | Error::NoKernels
            | Error::NoMemory { .. } => NVFP4_UNAVAILABLE,
            #[cfg(feature = "jit")]
            Error::Jit { .. } | Error::NotLoaded { .. } | Error::NotCompiled { .. } => {
                NVFP4_UNAVAILABLE
            }
            _ => NVFP4_BAD_OPERAND,
        };
        let text = error.to_string();
        Self { status, text }
    }
}

impl From<QuantizeError> for Failure {
    fn from(error: QuantizeError) -> Self {
        match error {
            QuantizeError::Operand(error) => error.into(),
            error => Self {
                status: NVFP4_BAD_OPERAND,
                text: error.to_string(),
            },
        }
    }
}

impl From<CheckpointError> for Failure {
    fn from(error: CheckpointError) -> Self {
        Self {
            status: NVFP4_BAD_FILE,
            text: error.to_string(),
        }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Calls `f`, and keeps the text of its error or panic.
pub(crate) fn guarded(f: impl FnOnce() -> Result<(), Failure>) -> nvfp4_status {
    // A panic leaves nothing half done but the memory of the call, and the caller is told.
    let failure = match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(())) => return NVFP4_OK,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure {
            status: NVFP4_PANIC,
            text: format!("the library has a fault: {}", message(&*panic)),
        },
    };
    let text: Vec<u8> = failure
        .text
        .into_bytes()
        .into_iter()
        .filter(|&b| b != 0)
        .collect();
    // A thread that ends may have no variables any more; its status is still right.
    let _ = LAST.try_with(|last| last.replace(CString::new(text).unwrap_or_default()));
    failure.status
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without text")
}

/// The text of the last error of a function that this thread called; empty if there was none. It is valid until the
/// thread calls a function that fails.
#[unsafe(no_mangle)]
pub extern "C" fn nvfp4_last_error() -> *const c_char {
    let text = LAST.try_with(|last| last.borrow().as_ptr());
    text.unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn panics_are_a_status() {
        for text in ["of static text", "of text with\0 a zero"] {
            let status = guarded(|| std::panic::panic_any(text.to_owned()));
            assert_eq!(status, NVFP4_PANIC);
            // SAFETY: the text ends with a zero and is valid until the next error.
            let last = unsafe { CStr::from_ptr(nvfp4_last_error()) };
            let expected = format!("the library has a fault: {}", text.replace('\0', ""));
            assert_eq!(last.to_str(), Ok(&*expected));
        }
        assert_eq!(guarded(|| std::panic::panic_any(5)), NVFP4_PANIC);
        assert_eq!(guarded(|| panic!("literal")), NVFP4_PANIC);
    }
}
