//! Layers in host memory.

use std::ffi::c_void;
use std::slice::from_raw_parts;
use std::sync::Arc;

use nvfp4_gemv::half::{bf16, f16};
use nvfp4_gemv::{Bytes, Element, FloatType, GlobalScale, Linear, Output, ScaleLayout, Vectors};

use crate::failure::{Failure, guarded, nvfp4_status};
use crate::memory::{self, Number};

/// A linear layer y = W x + bias in host memory.
#[derive(Debug)]
pub struct nvfp4_linear(pub(crate) Linear);

/// The parts of a layer in host memory.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvfp4_weights {
    /// Rows, M.
    pub rows: usize,
    /// Elements of a row, K: a multiple of 16.
    pub k: usize,
    /// E2M1 codes `[rows][k/2]`, the even element in the low half of a byte.
    pub codes: *const u8,
    /// Their length.
    pub codes_bytes: usize,
    /// E4M3 block scales.
    pub scales: *const u8,
    /// Their length.
    pub scales_bytes: usize,
    /// How they lie: NVFP4_LINEAR `[rows][k/16]`, or NVFP4_128X4.
    pub layout: u32,
    /// NVFP4_MULTIPLIER or NVFP4_DIVISOR.
    pub global_kind: u32,
    /// The global scale.
    pub global: f32,
    /// A factor for each row, or NULL.
    pub row_alpha: *const f32,
    /// A number for each row, which is added to its results, or NULL.
    pub bias: *const f32,
}

/// Vectors in host memory, one after the other.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvfp4_vectors {
    /// NVFP4_F16, NVFP4_BF16, NVFP4_F32 or NVFP4_CODES.
    pub element: u32,
    /// Elements `[n][k]`, or codes `[n][k/2]`.
    pub values: *const c_void,
    /// Their length.
    pub values_bytes: usize,
    /// Block scales of codes; otherwise nothing here and below is looked at.
    pub scales: *const u8,
    /// Their length.
    pub scales_bytes: usize,
    /// How the scales lie.
    pub layout: u32,
    /// NVFP4_MULTIPLIER or NVFP4_DIVISOR.
    pub global_kind: u32,
    /// The global scale.
    pub global: f32,
}

/// Results in host memory `[n][rows]`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvfp4_output {
    /// NVFP4_F16, NVFP4_BF16 or NVFP4_F32.
    pub element: u32,
    /// Whether results are added to what is there: y += W x + bias. 0: y = W x + bias.
    pub accumulate: u32,
    /// Memory that shares no byte with what is read: vectors, layers' codes and scales, ids.
    pub values: *mut c_void,
    /// Its length.
    pub values_bytes: usize,
}

/// A layer of these parts, which are copied.
///
/// # Safety
/// `weights` is NULL or there, with memory as it says; `linear` is NULL or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_linear_from_parts(
    weights: *const nvfp4_weights,
    linear: *mut *mut nvfp4_linear,
) -> nvfp4_status {
    let make = || {
        // SAFETY: this function's own contract.
        unsafe { of_parts(weights, |bytes| bytes.to_vec().into()) }
    };
    // SAFETY: this function's own contract.
    unsafe { memory::handle(linear, make) }
}

/// A layer of these parts, whose codes and scales stay where they are: valid and unchanged until the layer has been
/// freed, and whatever was made of it. Factors and bias are copied.
///
/// # Safety
/// As nvfp4_linear_from_parts, and codes and scales stay valid and unchanged until the layer has been freed,
/// and whatever was made of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_linear_borrowing_parts(
    weights: *const nvfp4_weights,
    linear: *mut *mut nvfp4_linear,
) -> nvfp4_status {
    let make = || {
        // SAFETY: this function's own contract.
        unsafe {
            of_parts(weights, |bytes| {
                // The layer, and what is made of it, does not leave this library.
                Bytes::sharing(Arc::new(Borrowed(from_raw_parts(
                    bytes.as_ptr(),
                    bytes.len(),
                ))))
            })
        }
    };
    // SAFETY: this function's own contract.
    unsafe { memory::handle(linear, make) }
}

/// Bytes that C promises to keep while they are used.
struct Borrowed(&'static [u8]);

impl AsRef<[u8]> for Borrowed {
    fn as_ref(&self) -> &[u8] {
        self.0
    }
}

/// # Safety
/// `weights` is null or there, with memory as it says.
unsafe fn of_parts(
    weights: *const nvfp4_weights,
    keep: impl Fn(&[u8]) -> Bytes,
) -> Result<nvfp4_linear, Failure> {
    // SAFETY: this function's own contract.
    let w = unsafe { memory::read("weights", weights) }?;
    // SAFETY: this function's own contract.
    let (codes, scales) = unsafe {
        (
            memory::slice("weights.codes", w.codes.cast(), w.codes_bytes)?,
            memory::slice("weights.scales", w.scales.cast(), w.scales_bytes)?,
        )
    };
    let layout = memory::layout(w.layout)?;
    let global = memory::global(w.global_kind, w.global)?;
    // Sizes are right from here on, so that as many rows are there as the layer has.
    let mut linear = Linear::new(w.rows, w.k, keep(codes), keep(scales), layout, global)?;
    let of_rows = |what, numbers: *const f32| match numbers.is_null() {
        true => Ok(None),
        // SAFETY: this function's own contract.
        false => unsafe { memory::slice(what, numbers.cast(), w.rows * 4) }.map(Some),
    };
    if let Some(alpha) = of_rows("weights.row_alpha", w.row_alpha)? {
        linear = linear.with_row_alpha(alpha)?;
    }
    if let Some(bias) = of_rows("weights.bias", w.bias)? {
        linear = linear.with_bias(bias)?;
    }
    Ok(nvfp4_linear(linear))
}

/// A layer of a dense matrix `[rows][k]` of NVFP4_F16, NVFP4_BF16 or NVFP4_F32, quantised.
///
/// # Safety
/// `values` is NULL or has `values_bytes` bytes, and `linear` is NULL or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_linear_from_dense(
    element: u32,
    values: *const c_void,
    values_bytes: usize,
    rows: usize,
    k: usize,
    linear: *mut *mut nvfp4_linear,
) -> nvfp4_status {
    /// # Safety
    /// As this function's.
    unsafe fn of<T: Number + Element>(
        values: *const c_void,
        bytes: usize,
        (rows, k): (usize, usize),
    ) -> Result<nvfp4_linear, Failure> {
        // SAFETY: this function's own contract.
        let values: &[T] = unsafe { memory::slice("values", values, bytes) }?;
        Ok(nvfp4_linear(Linear::from_dense(values, rows, k)?))
    }
    let (bytes, size) = (values_bytes, (rows, k));
    let make = || {
        let element = memory::element(element)?;
        // SAFETY: this function's own contract.
        unsafe {
            match element {
                FloatType::F16 => of::<f16>(values, bytes, size),
                FloatType::Bf16 => of::<bf16>(values, bytes, size),
                FloatType::F32 => of::<f32>(values, bytes, size),
            }
        }
    };
    // SAFETY: this function's own contract.
    unsafe { memory::handle(linear, make) }
}

/// Frees a layer.
///
/// # Safety
/// `linear` is NULL or a layer, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_linear_free(linear: *mut nvfp4_linear) {
    // SAFETY: this function's own contract.
    unsafe { memory::free(linear) }
}

/// The parts of a layer, to copy them to a device for example. They are valid while the layer is there.
///
/// # Safety
/// `linear` is NULL or a layer, and `weights` is NULL or has room for the structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_linear_weights(
    linear: *const nvfp4_linear,
    weights: *mut nvfp4_weights,
) -> nvfp4_status {
    let null = std::ptr::null();
    let none = nvfp4_weights {
        rows: 0,
        k: 0,
        codes: null,
        codes_bytes: 0,
        scales: null,
        scales_bytes: 0,
        layout: 0,
        global_kind: 0,
        global: 0.0,
        row_alpha: std::ptr::null(),
        bias: std::ptr::null(),
    };
    let parts = || {
        // SAFETY: this function's own contract.
        let linear = &unsafe { memory::read("linear", linear) }?.0;
        let w = linear.weights();
        w.no_column_alpha("these parts do not have them")?;
        Ok(nvfp4_weights {
            rows: linear.rows(),
            k: linear.k(),
            codes: w.codes().as_ptr(),
            codes_bytes: w.codes().len(),
            scales: w.scales().as_ptr(),
            scales_bytes: w.scales().len(),
            layout: match w.layout() {
                ScaleLayout::Linear => memory::NVFP4_LINEAR,
                ScaleLayout::Tiled128x4 => memory::NVFP4_128X4,
            },
            global_kind: match w.global() {
                GlobalScale::Multiplier(_) => memory::NVFP4_MULTIPLIER,
                GlobalScale::Divisor(_) => memory::NVFP4_DIVISOR,
            },
            global: w.global().stored(),
            row_alpha: w.row_alpha().map_or(std::ptr::null(), <[f32]>::as_ptr),
            bias: linear.bias().map_or(std::ptr::null(), <[f32]>::as_ptr),
        })
    };
    // SAFETY: this function's own contract.
    unsafe { memory::value(weights, none, parts) }
}

/// Makes memory for calls with n vectors of a type, so that the first such call allocates nothing either.
///
/// # Safety
/// `linear` is NULL or a layer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_linear_prepare(
    linear: *const nvfp4_linear,
    n: usize,
    element: u32,
) -> nvfp4_status {
    guarded(|| {
        // SAFETY: this function's own contract.
        let linear = &unsafe { memory::read("linear", linear) }?.0;
        Ok(linear.prepare(n, memory::activation(element)?)?)
    })
}

/// Computes n vectors on the CPU, on a pool of threads that the library keeps. A child of fork has none of them: where
/// its parent has computed before, such a call of the child waits for ever.
///
/// # Safety
/// `linear` is NULL or a layer; `x` and `y` are NULL or there, with memory as they say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_linear_forward(
    linear: *const nvfp4_linear,
    x: *const nvfp4_vectors,
    n: usize,
    y: *const nvfp4_output,
) -> nvfp4_status {
    guarded(|| {
        // SAFETY: this function's own contract.
        unsafe {
            let linear = &memory::read("linear", linear)?.0;
            computed(x, y, parts(linear), |x, y| linear.forward(x, n, y))
        }
    })
}

/// The name of a piece of memory, its address and its length.
pub(crate) type Place = (&'static str, (usize, usize));

/// The parts of a layer that can be read: memory that C keeps for it, or may know from nvfp4_linear_weights.
pub(crate) fn parts(layer: &Linear) -> impl Iterator<Item = Place> {
    fn at<T>(of: &[T]) -> (usize, usize) {
        (of.as_ptr().addr(), size_of_val(of))
    }
    let weights = layer.weights();
    let each = [
        Some(("a layer's codes", at(weights.codes()))),
        Some(("a layer's scales", at(weights.scales()))),
        weights
            .row_alpha()
            .map(|of| ("a layer's row_alpha", at(of))),
        layer.bias().map(|of| ("a layer's bias", at(of))),
    ];
    each.into_iter().flatten()
}

/// Lets `f` compute vectors to results, once these are checked. `others` are names of other memory that is read
/// meanwhile, and where that lies.
///
/// # Safety
/// `x` and `y` are null or there, with memory as they say.
pub(crate) unsafe fn computed(
    x: *const nvfp4_vectors,
    y: *const nvfp4_output,
    others: impl IntoIterator<Item = Place>,
    f: impl FnOnce(&Vectors<'_>, Output<'_>) -> nvfp4_gemv::Result<()>,
) -> Result<(), Failure> {
    /// # Safety
    /// The memory is there as `y` says, and nobody else reads or writes it.
    unsafe fn output<'a, T: Number + Element>(y: &nvfp4_output) -> Result<Output<'a>, Failure> {
        // SAFETY: this function's own contract.
        let values: &mut [T] = unsafe { memory::slice_mut("y.values", y.values, y.values_bytes) }?;
        let output = Output::of(values);
        Ok(match y.accumulate {
            0 => output,
            _ => output.accumulating(),
        })
    }
    // SAFETY: this function's own contract.
    let (x, y) = unsafe { (memory::read("x", x)?, memory::read("y", y)?) };
    let written = (y.values.addr(), y.values_bytes);
    let of_x = ("x.values", (x.values.addr(), x.values_bytes));
    let scales = ("x.scales", (x.scales.addr(), x.scales_bytes));
    let scales = (x.element == memory::NVFP4_CODES).then_some(scales);
    let read = others.into_iter().chain([of_x]).chain(scales);
    if let Some((what, _)) = { read }.find(|(_, at)| overlap(*at, written)) {
        return Err(Failure::argument(format!("y.values and {what} overlap")));
    }
    let element = memory::element(y.element)?;
    // SAFETY: this function's own contract; what is read lies apart, so that y's memory is written by nobody else.
    unsafe {
        let x = vectors(x)?;
        let y = match element {
            FloatType::F16 => output::<f16>(y),
            FloatType::Bf16 => output::<bf16>(y),
            FloatType::F32 => output::<f32>(y),
        };
        Ok(f(&x, y?)?)
    }
}

/// Two pieces of memory share a byte.
fn overlap((a, a_bytes): (usize, usize), (b, b_bytes): (usize, usize)) -> bool {
    a_bytes > 0 && b_bytes > 0 && a < b.saturating_add(b_bytes) && b < a.saturating_add(a_bytes)
}

/// # Safety
/// The memory is there as `x` says.
unsafe fn vectors(x: &nvfp4_vectors) -> Result<Vectors<'_>, Failure> {
    /// # Safety
    /// As `vectors`.
    unsafe fn of<T: Number + Element>(x: &nvfp4_vectors) -> Result<Vectors<'_>, Failure> {
        // SAFETY: this function's own contract.
        let values: &[T] = unsafe { memory::slice("x.values", x.values, x.values_bytes) }?;
        Ok(Vectors::of(values))
    }
    // SAFETY: this function's own contract.
    unsafe {
        match x.element {
            memory::NVFP4_CODES => {
                let codes = memory::slice("x.values", x.values, x.values_bytes)?;
                let scales = memory::slice("x.scales", x.scales.cast(), x.scales_bytes)?;
                let layout = memory::layout(x.layout)?;
                let global = memory::global(x.global_kind, x.global)?;
                Ok(Vectors::nvfp4(codes, scales, layout, global))
            }
            other => match memory::element(other)? {
                FloatType::F16 => of::<f16>(x),
                FloatType::Bf16 => of::<bf16>(x),
                FloatType::F32 => of::<f32>(x),
            },
        }
    }
}
