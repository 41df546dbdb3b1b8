//! The kernels that change a scale layout.

use std::ffi::c_void;

use super::launch::launch;
use crate::check::{Regions, pointer};
use crate::error::Result;
use crate::shape::Shape;
use crate::types::ScaleLayout;

/// Enqueues the change of weight scales `[L][M][K/16]` into the layout `to` from the other one, on
/// `stream`, a `CUstream` or `cudaStream_t`. Batches are densely packed on both sides:
/// [`Shape::weight_scale_bytes`]. The padding of a 128x4 result is zeroed. N of the shape means
/// nothing. M = 0 or L = 0 enqueues nothing.
///
/// # Errors
/// Null pointers, a 128x4 side that is not 16-byte aligned, regions that overlap. With feature `jit` the errors that
/// [`gemv()`](super::gemv()) has of kernels that are compiled. Errors that CUDA reports of the launch.
///
/// # Safety
/// The context of `stream` is current, and both addresses are valid in it, for the bytes of their
/// layouts, until the work that this call enqueues has run. Nothing else writes them, or reads the
/// destination, meanwhile.
pub unsafe fn relayout(
    shape: &Shape,
    to: ScaleLayout,
    source: u64,
    destination: u64,
    stream: *mut c_void,
) -> Result<()> {
    if shape.m() == 0 || shape.l() == 0 {
        return Ok(());
    }
    let from = to.other();
    let align = |layout| match layout {
        ScaleLayout::Linear => 1,
        ScaleLayout::Tiled128x4 => 16,
    };
    let mut regions = Regions::default();
    pointer("source scales", source, align(from))?;
    regions.push("source scales", source, shape.weight_scale_bytes(from));
    pointer("destination scales", destination, align(to))?;
    let bytes = shape.weight_scale_bytes(to);
    regions.push_written("destination scales", destination, bytes)?;
    let plan = crate::kernel::relayout::launch(shape, to, source, destination).into();
    // SAFETY: this function's own contract.
    unsafe { launch(plan, stream) }
}
