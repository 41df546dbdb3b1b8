//! The kernel that sums experts.

use std::ffi::c_void;

use super::launch::launch;
use crate::check::{Batches, Regions, pointer, strided};
use crate::error::{Error, Result};
use crate::kernel::combine::Combine;
use crate::shape::{Dims, Shape, Strides};

/// Enqueues the sums of N tokens of M elements on `stream`, a `CUstream` or `cudaStream_t`, as one kernel. K and L of
/// the shape mean nothing, nor do the batch strides of the output. M = 0 or N = 0 enqueues nothing. Can be [captured into
/// a CUDA graph](crate#cuda-graphs).
///
/// # Errors
/// Null or misaligned pointers, strides that are too small or too large, regions that overlap: a residual may be the
/// output itself. With feature `jit` the errors that [`gemv()`](super::gemv()) has of kernels that are compiled. Errors
/// that CUDA reports of the launch.
///
/// # Safety
/// The context of `stream` is current. Every address is valid in that context, for the bytes that the shape and strides
/// reach, until the work that this call enqueues has run. Nothing else writes the memory there, or reads what is
/// written, meanwhile. A chained launch lets the next one start at once: it counts among the [chained
/// launches](crate::Options#chained-launches) right before that one.
pub unsafe fn combine(shape: &Shape, combine: &Combine, stream: *mut c_void) -> Result<()> {
    check_combine(shape, combine)?;
    if shape.m() == 0 || shape.n() == 0 {
        return Ok(());
    }
    let plan = crate::kernel::combine::launch(shape, combine).into();
    // SAFETY: this function's own contract.
    unsafe { launch(plan, stream) }
}

/// Checks everything.
pub(crate) fn check_combine(shape: &Shape, c: &Combine) -> Result<()> {
    const RESULTS: &str = "results of experts";
    const WEIGHTS: &str = "weights of experts";
    const IDS: &str = "ids of experts";
    const OUTPUT: &str = "output";
    let (m, n) = (shape.m(), shape.n());
    if m == 0 || n == 0 {
        return Ok(());
    }
    let overflow = || Error::SizeOverflow {
        m,
        n,
        k: shape.k(),
        l: c.slots,
    };
    let slots = n
        .checked_mul(c.slots)
        .filter(|&slots| i32::try_from(slots).is_ok());
    let slots = slots.ok_or_else(overflow)?;
    let results = slots
        .checked_mul(m * c.element.bytes())
        .ok_or_else(overflow)?;

    let mut regions = Regions::default();
    if slots > 0 {
        pointer(RESULTS, c.inputs, c.element.bytes() as u64)?;
        regions.push(RESULTS, c.inputs, results);
        pointer(WEIGHTS, c.weights, 4)?;
        regions.push(WEIGHTS, c.weights, slots * 4);
    }
    if c.ids != 0 {
        pointer(IDS, c.ids, 4)?;
        regions.push(IDS, c.ids, slots * 4);
    }
    let (output, size) = (&c.output, c.output.element.bytes());
    if output.bias != 0 {
        pointer("bias", output.bias, 4)?;
        regions.push("bias", output.bias, m * 4);
    }
    let strides = output.strides.unwrap_or(Strides::packed(n, m * size));
    let tokens = Shape::new(Dims {
        m,
        n,
        k: shape.k(),
        l: 1,
    })?;
    let bytes = strided(
        OUTPUT,
        &tokens,
        strides,
        m * size,
        size as u64,
        Batches::Apart,
    )?;
    if i32::try_from(strides.row / size).is_err() {
        return Err(overflow());
    }
    if output.residual != 0 && output.residual != output.address {
        pointer("residual", output.residual, size as u64)?;
        regions.push("residual", output.residual, bytes);
    }
    pointer(OUTPUT, output.address, size as u64)?;
    regions.push_written(OUTPUT, output.address, bytes)
}
