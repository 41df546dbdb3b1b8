//! Results of calls: CUDA's numbers, which its runtime and its driver share.

use std::ffi::CStr;

/// A result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub i32);

macro_rules! codes {
    ($($constant:ident = $number:literal, $runtime:literal, $driver:literal, $text:literal;)*) => {
        #[allow(missing_docs)]
        impl Code {
            $(pub const $constant: Code = Code($number);)*

            fn row(self) -> Option<(&'static CStr, &'static CStr, &'static CStr)> {
                match self.0 {
                    $($number => Some(($runtime, $driver, $text)),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    SUCCESS = 0, c"cudaSuccess", c"CUDA_SUCCESS", c"no error";
    INVALID_VALUE = 1, c"cudaErrorInvalidValue", c"CUDA_ERROR_INVALID_VALUE", c"invalid argument";
    OUT_OF_MEMORY = 2, c"cudaErrorMemoryAllocation", c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory";
    NOT_INITIALIZED = 3, c"cudaErrorInitializationError", c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error";
    INVALID_CONFIGURATION = 9, c"cudaErrorInvalidConfiguration", c"CUDA_ERROR_INVALID_CONFIGURATION",
        c"invalid configuration argument";
    INVALID_SYMBOL = 13, c"cudaErrorInvalidSymbol", c"CUDA_ERROR_INVALID_SYMBOL", c"invalid device symbol";
    MISSING_CONFIGURATION = 52, c"cudaErrorMissingConfiguration", c"CUDA_ERROR_MISSING_CONFIGURATION",
        c"__global__ function call is not configured";
    INVALID_DEVICE_FUNCTION = 98, c"cudaErrorInvalidDeviceFunction", c"CUDA_ERROR_INVALID_DEVICE_FUNCTION",
        c"invalid device function";
    INVALID_DEVICE = 101, c"cudaErrorInvalidDevice", c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal";
    NO_BINARY = 209, c"cudaErrorNoKernelImageForDevice", c"CUDA_ERROR_NO_BINARY_FOR_GPU",
        c"no kernel image is available for execution on the device";
    INVALID_PTX = 218, c"cudaErrorInvalidPtx", c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed";
    FILE_NOT_FOUND = 301, c"cudaErrorFileNotFound", c"CUDA_ERROR_FILE_NOT_FOUND", c"file not found";
    INVALID_HANDLE = 400, c"cudaErrorInvalidResourceHandle", c"CUDA_ERROR_INVALID_HANDLE",
        c"invalid resource handle";
    NOT_FOUND = 500, c"cudaErrorSymbolNotFound", c"CUDA_ERROR_NOT_FOUND", c"named symbol not found";
    ILLEGAL_ADDRESS = 700, c"cudaErrorIllegalAddress", c"CUDA_ERROR_ILLEGAL_ADDRESS",
        c"an illegal memory access was encountered";
    OUT_OF_RESOURCES = 701, c"cudaErrorLaunchOutOfResources", c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        c"too many resources requested for launch";
    LAUNCH_TIMEOUT = 702, c"cudaErrorLaunchTimeout", c"CUDA_ERROR_LAUNCH_TIMEOUT",
        c"the launch timed out and was terminated";
    ASSERT = 710, c"cudaErrorAssert", c"CUDA_ERROR_ASSERT", c"device-side assert triggered";
    MISALIGNED_ADDRESS = 716, c"cudaErrorMisalignedAddress", c"CUDA_ERROR_MISALIGNED_ADDRESS", c"misaligned address";
    LAUNCH_FAILED = 719, c"cudaErrorLaunchFailure", c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure";
    COOPERATIVE_TOO_LARGE = 720, c"cudaErrorCooperativeLaunchTooLarge", c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
        c"too many blocks in cooperative launch";
    NOT_PERMITTED = 800, c"cudaErrorNotPermitted", c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted";
    NOT_SUPPORTED = 801, c"cudaErrorNotSupported", c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported";
    INVALID_CLUSTER_SIZE = 912, c"cudaErrorInvalidClusterSize", c"CUDA_ERROR_INVALID_CLUSTER_SIZE",
        c"cluster configuration not supported";
    UNKNOWN = 999, c"cudaErrorUnknown", c"CUDA_ERROR_UNKNOWN", c"unknown error";
}

impl Code {
    /// Name of the code in the runtime.
    pub fn runtime_name(self) -> Option<&'static CStr> {
        self.row().map(|r| r.0)
    }

    /// Name of the code in the driver.
    pub fn driver_name(self) -> Option<&'static CStr> {
        self.row().map(|r| r.1)
    }

    /// Meaning of the code, in words.
    pub fn text(self) -> Option<&'static CStr> {
        self.row().map(|r| r.2)
    }
}

/// Why a call fails, for a person, and its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fail {
    /// The result.
    pub code: Code,
    /// Why. Empty where that was said before.
    pub message: String,
}

impl Fail {
    /// A failure.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// A wrong argument.
    pub fn value(message: impl Into<String>) -> Self {
        Self::new(Code::INVALID_VALUE, message)
    }
}
