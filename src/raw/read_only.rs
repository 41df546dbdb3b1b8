//! The kernel that other kernels are measured against.

use std::ffi::c_void;

use super::launch::launch;
use crate::check::pointer;
use crate::error::Result;

/// Enqueues a kernel that only reads `bytes` (rounded down to a multiple of 16) at `data`: the
/// ceiling for any kernel that must read as much, on so many multiprocessors (at least 1). `sink` is 4 bytes that
/// are practically never written.
///
/// # Errors
/// Null or misaligned pointers, and what CUDA reports of the launch.
///
/// # Safety
/// The context of `stream` is current, `data` and `sink` are valid in it until the enqueued work has run,
/// and nothing else writes them meanwhile.
pub unsafe fn read_only(
    data: u64,
    bytes: usize,
    sink: u64,
    multiprocessors: u32,
    stream: *mut c_void,
) -> Result<()> {
    pointer("data", data, 16)?;
    pointer("sink", sink, 4)?;
    let plan = crate::kernel::read_only::launch(data, bytes, sink, multiprocessors.max(1)).into();
    // SAFETY: this function's own contract.
    unsafe { launch(plan, stream) }
}
