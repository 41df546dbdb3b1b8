//! C's memory: pointers, lengths and numbers become slices, types and handles, or errors.

use std::ffi::{CStr, c_char, c_void};

use nvfp4_gemv::half::{bf16, f16};
use nvfp4_gemv::{Activation, FloatType, Gate, GlobalScale, RowOrder, ScaleLayout};

use crate::failure::{Failure, guarded};

/// Half precision numbers (IEEE binary16).
pub const NVFP4_F16: u32 = 0;
/// bfloat16 numbers.
pub const NVFP4_BF16: u32 = 1;
/// Single precision numbers: float.
pub const NVFP4_F32: u32 = 2;
/// E2M1 codes, two a byte with the even element in the low half, and E4M3 scales. For vectors only.
pub const NVFP4_CODES: u32 = 3;

/// Block scales row by row, as checkpoints have them.
pub const NVFP4_LINEAR: u32 = 0;
/// Block scales in atoms of 128 rows and 4 scales, as cuBLASLt's VEC16_UE4M3.
pub const NVFP4_128X4: u32 = 1;

/// A global scale that codes are multiplied by, as ModelOpt's.
pub const NVFP4_MULTIPLIER: u32 = 0;
/// A global scale that codes are divided by, as that of compressed-tensors.
pub const NVFP4_DIVISOR: u32 = 1;

/// All rows of gate, then all of up.
pub const NVFP4_STACKED: u32 = 0;
/// The first row of gate, the first of up, then the second of each.
pub const NVFP4_INTERLEAVED: u32 = 1;

/// Vectors are quantised as they are.
pub const NVFP4_AS_THEY_ARE: u32 = 0;
/// gate * sigmoid(gate) * up: SwiGLU.
pub const NVFP4_SILU: u32 = 1;
/// GeGLU with the tanh form of GELU.
pub const NVFP4_GELU_TANH: u32 = 2;
/// g * sigmoid(alpha * g) * (u + 1), of gate and up within a limit: gpt-oss's, with an alpha of 1.702 and a limit of 7.
pub const NVFP4_CLAMPED: u32 = 3;
/// RMSNorm.
pub const NVFP4_RMS_NORM: u32 = 4;

/// A type of results.
pub(crate) fn element(number: u32) -> Result<FloatType, Failure> {
    match number {
        NVFP4_F16 => Ok(FloatType::F16),
        NVFP4_BF16 => Ok(FloatType::Bf16),
        NVFP4_F32 => Ok(FloatType::F32),
        _ => Err(Failure::argument(format!("{number} is no element type"))),
    }
}

/// A type of vectors.
pub(crate) fn activation(number: u32) -> Result<Activation, Failure> {
    match number {
        NVFP4_F16 => Ok(Activation::F16),
        NVFP4_BF16 => Ok(Activation::Bf16),
        NVFP4_F32 => Ok(Activation::F32),
        NVFP4_CODES => Ok(Activation::Nvfp4),
        _ => Err(Failure::argument(format!("{number} is no type of vectors"))),
    }
}

pub(crate) fn layout(number: u32) -> Result<ScaleLayout, Failure> {
    match number {
        NVFP4_LINEAR => Ok(ScaleLayout::Linear),
        NVFP4_128X4 => Ok(ScaleLayout::Tiled128x4),
        _ => Err(Failure::argument(format!("{number} is no layout"))),
    }
}

pub(crate) fn order(number: u32) -> Result<RowOrder, Failure> {
    match number {
        NVFP4_STACKED => Ok(RowOrder::Stacked),
        NVFP4_INTERLEAVED => Ok(RowOrder::Interleaved),
        _ => Err(Failure::argument(format!("{number} is no order of rows"))),
    }
}

/// A gate, whose numbers [`NVFP4_CLAMPED`] alone has.
pub(crate) fn gate(kind: u32, alpha: f32, limit: f32) -> Option<Gate> {
    match kind {
        NVFP4_SILU => Some(Gate::Silu),
        NVFP4_GELU_TANH => Some(Gate::GeluTanh),
        NVFP4_CLAMPED => Some(Gate::Clamped { alpha, limit }),
        _ => None,
    }
}

pub(crate) fn global(kind: u32, value: f32) -> Result<GlobalScale, Failure> {
    match kind {
        NVFP4_MULTIPLIER => Ok(GlobalScale::Multiplier(value)),
        NVFP4_DIVISOR => Ok(GlobalScale::Divisor(value)),
        _ => Err(Failure::argument(format!(
            "{kind} is no kind of global scale"
        ))),
    }
}

/// Types of which any bits are a value.
///
/// # Safety
/// Any bits are one, and it has no padding.
pub(crate) unsafe trait Number: Copy {}
// SAFETY: any bits are a value of these, and they have no padding.
unsafe impl Number for u8 {}
// SAFETY: as above.
unsafe impl Number for f16 {}
// SAFETY: as above.
unsafe impl Number for bf16 {}
// SAFETY: as above.
unsafe impl Number for f32 {}
// SAFETY: as above.
unsafe impl Number for i32 {}

/// Elements of so many bytes, if there is memory for them.
fn count<T>(what: &str, pointer: *const c_void, bytes: usize) -> Result<usize, Failure> {
    let size = size_of::<T>();
    if bytes == 0 {
        return Ok(0);
    }
    if pointer.is_null() {
        return Err(Failure::null(what));
    }
    if !pointer.cast::<T>().is_aligned() {
        return Err(Failure::argument(format!(
            "{what}: not aligned to its {size} byte elements"
        )));
    }
    if !bytes.is_multiple_of(size) || isize::try_from(bytes).is_err() {
        return Err(Failure::argument(format!(
            "{what}: {bytes} bytes are no number of {size} byte elements"
        )));
    }
    Ok(bytes / size)
}

/// # Safety
/// Where `pointer` is not null, so many bytes are there that nobody writes during `'a`.
pub(crate) unsafe fn slice<'a, T: Number>(
    what: &str,
    pointer: *const c_void,
    bytes: usize,
) -> Result<&'a [T], Failure> {
    match count::<T>(what, pointer, bytes)? {
        0 => Ok(&[]),
        // SAFETY: not null, aligned, and of a size that memory has; the rest is the caller's promise. Any bits are
        // numbers.
        count => Ok(unsafe { std::slice::from_raw_parts(pointer.cast(), count) }),
    }
}

/// # Safety
/// Where `pointer` is not null, so many bytes are there that nobody else reads or writes during `'a`.
pub(crate) unsafe fn slice_mut<'a, T: Number>(
    what: &str,
    pointer: *mut c_void,
    bytes: usize,
) -> Result<&'a mut [T], Failure> {
    match count::<T>(what, pointer, bytes)? {
        0 => Ok(&mut []),
        // SAFETY: as in `slice`.
        count => Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast(), count) }),
    }
}

/// Refuses a pointer that no value can be at.
pub(crate) fn check<T>(what: &str, pointer: *const T) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::null(what));
    }
    match pointer.is_aligned() {
        true => Ok(()),
        false => Err(Failure::argument(format!("{what} is misaligned"))),
    }
}

/// # Safety
/// Where `pointer` is not null, a value is there that nobody writes during `'a`.
pub(crate) unsafe fn read<'a, T>(what: &str, pointer: *const T) -> Result<&'a T, Failure> {
    check(what, pointer)?;
    // SAFETY: not null and aligned; the rest is the caller's promise.
    Ok(unsafe { &*pointer })
}

/// # Safety
/// Where `pointer` is not null, text is there that ends with a zero and that nobody writes during `'a`.
pub(crate) unsafe fn text<'a>(what: &str, pointer: *const c_char) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Err(Failure::null(what));
    }
    // SAFETY: not null; the rest is the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str()
        .map_err(|_| Failure::argument(format!("{what} is no UTF-8")))
}

/// Calls `f` and writes its value through `out`; writes `none` there on an error.
///
/// # Safety
/// Where `out` is not null, there is room for a value.
pub(crate) unsafe fn value<T>(
    out: *mut T,
    none: T,
    f: impl FnOnce() -> Result<T, Failure>,
) -> crate::nvfp4_status {
    guarded(|| {
        check("the place for the result", out)?;
        // SAFETY: not null and aligned, and there is room, says the caller. A pointer or a number needs no drop.
        unsafe { out.write(none) };
        let made = f()?;
        // SAFETY: as above.
        unsafe { out.write(made) };
        Ok(())
    })
}

/// [`value`] for a handle.
///
/// # Safety
/// As [`value`]'s.
pub(crate) unsafe fn handle<T>(
    out: *mut *mut T,
    f: impl FnOnce() -> Result<T, Failure>,
) -> crate::nvfp4_status {
    let boxed = || f().map(|made| Box::into_raw(Box::new(made)));
    // SAFETY: the caller's promise.
    unsafe { value(out, std::ptr::null_mut(), boxed) }
}

/// Drops a handle, or nothing.
///
/// # Safety
/// It is null or came from [`handle`], and nobody uses it any more.
pub(crate) unsafe fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        guarded(|| {
            // SAFETY: made by `Box::into_raw` in `handle`, and freed once, says the caller.
            drop(unsafe { Box::from_raw(handle) });
            Ok(())
        });
    }
}
