//! Vectors as sums of NVFP4 vectors, their *digits*: 16-bit vectors for kernels that multiply NVFP4 ones alone.
//!
//! Digit d of a vector has the global scale g / 8^d, where g is a power of two. It is what NVFP4 makes of the vector less
//! the digits before it. Scales and codes have six bits together and g has one, so that digits are exact in f32, and so is
//! what is left behind them: the error is what is left behind the last one, and nothing else.
//!
//! **What is left.** Let a be the largest magnitude of a block before a digit. A digit leaves at most a / 8. The recipe's
//! scale, the one nearest to a / 6, is taken where it does, since it leaves less in the mean. Otherwise the scale is the
//! least one, s, of those that are a / 4.5 or more. Elements are 4.5 s at most then, and no code is further off than s / 2.
//! Scales lie an eighth apart, so that s is at most 9/8 of a / 4.5, and s / 2 at most a / 8.
//!
//! Below 2^-6 scales lie 2^-9 apart, not an eighth. There s / 2 is at most a / 9 + 2^-10 g, for the digit's own g. So a
//! block of at most 9/128 g leaves at most an eighth of 9/128 g, whatever it has, and is of at most 9/128 of the next
//! digit's. The vector's largest magnitude is from 2^9 g to below 2^10 g: 9/128 g is less than 2^-12 of it. No scale is
//! above 256, since 2^10 / 4.5 is less.

use super::quantize_block;
use super::{QuantizeError, QuantizedRows, amax, check_len, finite_amax};
use crate::element::Element;
use crate::format::{e2m1, e4m3};
use crate::reference::DIGITS_LEAST;
use crate::{BLOCK, Shape};

/// Makes vectors of so many [digits](crate::Nvfp4Vectors::with_digits) of rows `[rows][k]`, which come close to 16-bit
/// vectors. There are `rows · digits` rows of codes and scales, and a global scale, a power of two, for each of the
/// `rows`.
///
/// An element is off by at most 8^-digits of the largest magnitude of its block of 16, or of 2^-12 of the largest
/// magnitude of its row where the block has less. (A row of less than 2^-100 counts as that. With f32 elements another
/// 2^-20 of this bound may be added.) Three digits are as exact as bf16's rounding is for the block's largest element,
/// and four as f16's: 2^-9 and 2^-12 of it. In the mean they are off by a third to a half of what these are.
/// [`reference::digits_error`](crate::reference::digits_error) says what that makes of results.
///
/// # Errors
/// As [`quantize`](super::quantize()); [`Error::Digits`](crate::Error::Digits).
///
/// ```
/// use nvfp4_gemv::quantize::quantize_digits;
/// let x = [half::bf16::from_f32(0.7); 16];
/// let q = quantize_digits(&x, 1, 16, 3)?;
/// assert_eq!((q.codes.len(), q.scales.len(), q.globals.len()), (3 * 8, 3, 1));
/// # Ok::<(), nvfp4_gemv::quantize::QuantizeError>(())
/// ```
pub fn quantize_digits<T: Element>(
    values: &[T],
    rows: usize,
    k: usize,
    digits: usize,
) -> Result<QuantizedRows, QuantizeError> {
    let shape = Shape::matrix(rows, k)?;
    check_len(values, rows, k)?;
    finite_amax(values, k)?;
    Ok(of_rows(values, &shape, digits)?)
}

/// Computes what the device's quantiser writes, bit for bit: [`quantize_digits`], without errors for content. A row that
/// holds a NaN or an infinity becomes zeros whose global scale is NaN, so that every product with it is NaN.
///
/// # Errors
/// K that is zero or no multiple of 16, too few or too many `values`, [`Error::Digits`](crate::Error::Digits).
pub fn quantize_digits_or_nan<T: Element>(
    values: &[T],
    rows: usize,
    k: usize,
    digits: usize,
) -> crate::Result<QuantizedRows> {
    let shape = Shape::matrix(rows, k)?;
    check_len(values, rows, k)?;
    of_rows(values, &shape, digits)
}

fn of_rows<T: Element>(values: &[T], shape: &Shape, digits: usize) -> crate::Result<QuantizedRows> {
    let k = shape.k();
    let one_each = shape.with_vectors(shape.m())?;
    let rows = one_each.of_digits(digits)?.n();
    let mut out = QuantizedRows {
        codes: vec![0; rows * shape.row_code_bytes()],
        scales: vec![0; rows * shape.blocks()],
        globals: Vec::with_capacity(shape.m()),
        digits,
    };
    let codes = out.codes.chunks_exact_mut(digits * shape.row_code_bytes());
    let scales = out.scales.chunks_exact_mut(digits * shape.blocks());
    for ((row, codes), scales) in values.chunks_exact(k).zip(codes).zip(scales) {
        let amax = amax(row);
        let is_finite = amax.is_finite();
        let global = if is_finite { global_scale(amax) } else { 1.0 };
        for (block, x) in row.as_chunks::<BLOCK>().0.iter().enumerate() {
            let mut left = x.map(|x| if is_finite { x.to_f32() } else { 0.0 });
            let mut global = global;
            for digit in 0..digits {
                let at = digit * shape.blocks() + block;
                scales[at] = quantise(&mut left, global, &mut codes[at * BLOCK / 2..][..BLOCK / 2]);
                global /= 8.0;
            }
        }
        out.globals.push(if is_finite { global } else { f32::NAN });
    }
    Ok(out)
}

/// The power of two that is 2^9 times less than the largest magnitude's; 1 of zeros.
fn global_scale(amax: f32) -> f32 {
    const BIAS: i32 = 127;
    if amax == 0.0 {
        return 1.0;
    }
    let exponent = ((amax.to_bits() >> 23) as i32 - BIAS).max(DIGITS_LEAST);
    f32::from_bits(((exponent - 9 + BIAS) as u32) << 23)
}

/// One digit of a block. What is left behind it takes the elements' place. Returns the block scale.
fn quantise(x: &mut [f32; BLOCK], global: f32, codes: &mut [u8]) -> u8 {
    let amax = largest(x);
    let near = |divisor: f32| e4m3::encode((amax / (divisor * global)).max(e4m3::MIN_POSITIVE));
    let mut scale = near(e2m1::MAX);
    let mut left = quantise_with(x, scale, global, codes);
    if largest(&left) > amax * 0.125 {
        scale = near(4.5);
        if 4.5 * e4m3::decode(scale) * global < amax {
            scale += 1;
        }
        left = quantise_with(x, scale, global, codes);
    }
    *x = left;
    scale
}

/// Writes a block's codes, with a scale. Returns what is left, exactly.
fn quantise_with(x: &[f32; BLOCK], scale: u8, global: f32, codes: &mut [u8]) -> [f32; BLOCK] {
    let step = e4m3::decode(scale) * global;
    quantize_block(x, step, codes);
    std::array::from_fn(|i| x[i] - e2m1::decode(e2m1::unpack(codes, i)) * step)
}

fn largest(x: &[f32; BLOCK]) -> f32 {
    x.iter().fold(0.0f32, |most, x| most.max(x.abs()))
}
