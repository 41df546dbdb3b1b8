//! cudarc's contexts and errors, as every call on a device needs them.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, DriverError};

use crate::error::{Error, Result};

/// An operand lies on the device of the stream that the call's work goes to, and in its context.
pub fn same_device(
    operand: &'static str,
    found: &Arc<CudaStream>,
    stream: &Arc<CudaStream>,
) -> Result<()> {
    same_context(operand, found.context(), stream.context())
}

/// Two contexts are one.
pub fn same_context(
    operand: &'static str,
    found: &CudaContext,
    stream: &CudaContext,
) -> Result<()> {
    if found.cu_ctx() == stream.cu_ctx() {
        return Ok(());
    }
    let (found, stream) = (found.ordinal(), stream.ordinal());
    if found == stream {
        return Err(Error::WrongContext { operand });
    }
    Err(Error::WrongDevice {
        operand,
        found,
        stream,
    })
}

/// Makes the stream's context current, which the raw calls ask for.
pub fn make_current(stream: &Arc<CudaStream>) -> Result<()> {
    stream
        .context()
        .bind_to_thread()
        .map_err(|error| driver_error("making the stream's context current", error))
}

/// An error of the driver, with what it happened during.
pub fn driver_error(during: &'static str, error: DriverError) -> Error {
    Error::Cuda {
        during,
        code: error.0 as i32,
        message: error.to_string(),
    }
}
