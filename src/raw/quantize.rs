//! The quantiser kernels.

use std::ffi::c_void;

use super::launch::launch;
use crate::check::{Batches, Regions, pointer, strided};
use crate::error::{Error, Result};
use crate::gate::positive;
use crate::kernel::quantize::{Global, Input, Quantize};
use crate::shape::Shape;
use crate::types::ScaleLayout;

/// Enqueues the quantisation of N vectors of each of L batches on `stream`, a `CUstream` or
/// `cudaStream_t`, as one kernel. M of the shape means nothing. N = 0 or L = 0 enqueues nothing. Can be
/// [captured into a CUDA graph](crate#cuda-graphs).
///
/// Codes, scales and multipliers are those of [`crate::quantize::quantize_vectors_or_nan`], or with several digits of
/// [`crate::quantize::quantize_digits_or_nan`], bit for bit, for the vectors
/// themselves or for what the [`Input`] makes of them: [`Gate::of`](crate::Gate::of), [`rms_norm`](crate::rms_norm). A
/// vector that holds a NaN or an infinity then becomes zeros whose multiplier is NaN, so that all that is computed from
/// it is NaN.
///
/// # Errors
/// Null or misaligned pointers, strides that are too small or misaligned, a shared global scale or an epsilon that is not
/// positive and finite, a gate that [cannot be](crate::Error::Factor), regions that overlap, sizes past the address range,
/// [copies](crate::Error::Copies) that do not divide L. With feature `jit` the errors that [`gemv()`](super::gemv()) has of kernels that
/// are compiled. Errors that CUDA reports of the launch. Content in device memory is not looked at.
///
/// # Safety
/// The context of `stream` is current. Every address is valid in that context, for the bytes that the shape and strides
/// reach, until the work that this call enqueues has run. Nothing else writes the memory there, or reads what is
/// written, meanwhile. A chained launch counts among the [chained launches](crate::Options#chained-launches) right before
/// the next one.
pub unsafe fn quantize(shape: &Shape, quantize: &Quantize, stream: *mut c_void) -> Result<()> {
    if shape.l() == 0 || shape.n() == 0 {
        return Ok(());
    }
    check(shape, quantize)?;
    let plan = crate::kernel::quantize::launch(shape, quantize).into();
    // SAFETY: this function's own contract.
    unsafe { launch(plan, stream) }
}

/// Checks everything.
fn check(shape: &Shape, q: &Quantize) -> Result<()> {
    let vectors = shape.l() * shape.n();
    let of_digits = &shape.of_digits(q.digits)?;
    match (q.digits, q.input, q.global) {
        (1, ..) | (_, Input::Plain, Global::Computed) => {}
        (digits, ..) => {
            let takes = "what a gate or an RMSNorm makes has one, and so have vectors with given global scales";
            return Err(Error::Digits { digits, takes });
        }
    }
    let mut regions = Regions::default();
    pointer("vectors", q.values, 16)?;
    match q.input {
        Input::Plain => {}
        Input::Gated { gate, .. } => gate.check()?,
        Input::Normed { weight, epsilon } => {
            const WEIGHT: &str = "weight of the RMSNorm";
            pointer(WEIGHT, weight, 16)?;
            regions.push(WEIGHT, weight, shape.k() * q.element.bytes());
            positive("epsilon of the RMSNorm", epsilon)?;
        }
    }
    let read = q.input.source(shape, q.copies)?;
    let row = read.k() * q.element.bytes();
    let bytes = strided("vectors", &read, q.strides, row, 16, Batches::Apart)?;
    regions.push("vectors", q.values, bytes);
    match q.global {
        Global::Computed => {}
        Global::Shared(global) => drop(global.as_multiplier("given global scale")?),
        Global::PerVector(globals) => {
            pointer("given global scales", globals, 4)?;
            regions.push("given global scales", globals, vectors * 4);
        }
    }

    pointer("quantised codes", q.codes, 8)?;
    let rows = of_digits.l() * of_digits.n();
    regions.push_written("quantised codes", q.codes, rows * shape.row_code_bytes())?;
    let align = match q.layout {
        ScaleLayout::Linear => 1,
        ScaleLayout::Tiled128x4 => 16,
    };
    pointer("quantised scales", q.scales, align)?;
    let bytes = q.layout.bytes(of_digits.n(), shape.blocks()) * shape.l();
    regions.push_written("quantised scales", q.scales, bytes)?;
    pointer("vector global scales", q.vector_alpha, 4)?;
    regions.push_written("vector global scales", q.vector_alpha, vectors * 4)
}
