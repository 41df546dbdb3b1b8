//! The quantiser kernels.

use std::ffi::c_void;

use super::device::status;
use super::operand::{Regions, layout_code, pointer, strided};
use crate::error::Result;
use crate::ffi;
use crate::shape::Shape;
use crate::types::FloatType;
use crate::types::ScaleLayout;

pub use crate::kernel::quantize::{Global, Quantize};

/// Enqueues the quantisation of N vectors of each of L batches on `stream`, a `CUstream` or
/// `cudaStream_t`, as one kernel. M of the shape means nothing. L = 0 enqueues nothing. Can be
/// [captured into a CUDA graph](crate#cuda-graphs).
///
/// Codes, scales and multipliers are those of [`crate::quantize::quantize_vectors_or_nan`], bit for
/// bit: a vector that holds a NaN or an infinity becomes zeros whose multiplier is NaN, so that all
/// that is computed from it is NaN.
///
/// # Errors
/// Null or misaligned pointers, strides that are too small or misaligned, a shared global scale that
/// is not positive and finite, regions that overlap; and what CUDA reports of the launch. Content in
/// device memory is not looked at.
///
/// # Safety
/// The context of `stream` is current, and every address is valid in it, for the bytes that the
/// shape and strides reach, until the work that this call enqueues has run. Nothing else writes
/// them, or reads what is written, meanwhile.
pub unsafe fn quantize(shape: &Shape, quantize: &Quantize, stream: *mut c_void) -> Result<()> {
    if shape.l() == 0 {
        return Ok(());
    }
    let args = arguments(shape, quantize)?;
    // SAFETY: the structure lives through the call, which does not keep it; the rest is this
    // function's own contract.
    let code = unsafe { ffi::nvfp4_gemv_quantize(&args, stream) };
    status("launching quantize", code)
}

/// Checks everything and translates it for the C ABI.
fn arguments(shape: &Shape, q: &Quantize) -> Result<ffi::nvfp4_quantize_args> {
    let vectors = shape.l() * shape.n();
    let mut regions = Regions::default();
    pointer("vectors", q.values, 16)?;
    let row = shape.k() * q.element.bytes();
    let bytes = strided("vectors", shape, q.strides, row, 16)?;
    regions.push("vectors", q.values, bytes);
    let (global_kind, global, globals) = match q.global {
        Global::Computed => (ffi::NVFP4_GLOBAL_COMPUTED, 0.0, 0),
        Global::Shared(global) => {
            let multiplier = global.as_multiplier("given global scale")?;
            (ffi::NVFP4_GLOBAL_SHARED, multiplier, 0)
        }
        Global::PerVector(globals) => {
            pointer("given global scales", globals, 4)?;
            regions.push("given global scales", globals, vectors * 4);
            (ffi::NVFP4_GLOBAL_PER_VECTOR, 0.0, globals)
        }
    };

    pointer("quantised codes", q.codes, 8)?;
    regions.push_written("quantised codes", q.codes, vectors * shape.row_code_bytes())?;
    let align = match q.layout {
        ScaleLayout::Linear => 1,
        ScaleLayout::Tiled128x4 => 16,
    };
    pointer("quantised scales", q.scales, align)?;
    let bytes = q.layout.bytes(shape.n(), shape.blocks()) * shape.l();
    regions.push_written("quantised scales", q.scales, bytes)?;
    pointer("vector global scales", q.vector_alpha, 4)?;
    regions.push_written("vector global scales", q.vector_alpha, vectors * 4)?;

    Ok(ffi::nvfp4_quantize_args {
        n: shape.n() as i32,
        k: shape.k() as i32,
        l: shape.l() as i32,
        source: match q.element {
            FloatType::F16 => ffi::NVFP4_ACTIVATION_F16,
            FloatType::Bf16 => ffi::NVFP4_ACTIVATION_BF16,
            FloatType::F32 => ffi::NVFP4_ACTIVATION_F32,
        } as i32,
        vectors: q.values,
        vector_row_stride: q.strides.row as i64,
        vector_batch_stride: q.strides.batch as i64,
        global_kind: global_kind as i32,
        global,
        globals,
        codes: q.codes,
        scales: q.scales,
        scale_layout: layout_code(q.layout),
        ctas: crate::kernel::quantize::ctas(shape) as i32,
        vector_alpha: q.vector_alpha,
    })
}
