//! The truth: f64, obvious, not optimised but for rows on several threads. And the error that a path may make against
//! it.

use rayon::prelude::*;

use crate::error::Result;
use crate::format::{e2m1, e4m3};
use crate::shape::{BLOCK, Shape};
use crate::tensor::{NVFP4_ARE_WITHOUT, Nvfp4Vectors, Vectors, Weights, digit_weight};
use crate::types::FloatType;

/// The exact result, and the magnitudes that its rounding errors scale with.
#[derive(Clone, Debug)]
pub struct Reference {
    /// `y[l][n][m]`, correct to about K/16 roundings of f64.
    pub y: Vec<f64>,
    /// `Σ_k |w · x|` of the same elements, which the error of a sum is proportional to. A subnormal element of an f16
    /// or bf16 vector counts as the smallest normal number, as matrix instructions are taken to align products. An
    /// element of an f32 vector below 2^-109 counts as that: as the sum of three bf16 it has no bits below 2^-133. With
    /// bf16 and f32 vectors 2^-118 is added, times the row's factors: f32 sums times 2^-7 are kept as multiples of
    /// 2^-149. With NVFP4 vectors a block whose products are all zero, and whose block scales are not, counts as
    /// 2^(e-9), times all factors, where e is the sum of both scales' exponents. Block-scaled matrix instructions are
    /// taken to align sums to e (docs/tensor-core-path.md).
    pub magnitude: Vec<f64>,
}

impl Reference {
    /// This reference with these numbers added, one to each element: bias, or residual.
    #[must_use]
    pub fn plus(mut self, added: impl IntoIterator<Item = f64>) -> Self {
        let results = self.y.iter_mut().zip(&mut self.magnitude);
        for ((y, magnitude), added) in results.zip(added) {
            *y += added;
            *magnitude += added.abs();
        }
        self
    }
}

/// Computes the GEMV from the definition.
///
/// # Errors
/// The errors of [`gemv`](crate::gemv).
pub fn gemv(shape: &Shape, weights: &Weights<'_>, vectors: &Vectors<'_>) -> Result<Reference> {
    if let Some(v) = of_digits(vectors) {
        let digits = Vectors::Nvfp4(v.of_single_digits());
        let of = gemv(&shape.of_digits(v.digits)?, weights, &digits)?;
        v.resolve_and_scan(shape)?;
        return Ok(Reference {
            y: joined(shape, v, &of.y, shape.m()),
            magnitude: joined(shape, v, &of.magnitude, shape.m()),
        });
    }
    let x = multiplied(shape, weights, vectors)?;
    let vectors = match weights.column_alpha {
        // As which paths compute them.
        Some(_) => &Vectors::of::<f32>(&[]),
        None => vectors,
    };
    // The smallest number that keeps all its bits; what f32 may lose below its smallest normal one, in u = 2^-24.
    let (least, floor) = match vectors {
        Vectors::F16(_) => (2f64.powi(-14), 0.0),
        Vectors::Bf16(_) => (2f64.powi(-126), 2f64.powi(-142 + 24)),
        Vectors::F32(_) => (2f64.powi(-109), 2f64.powi(-142 + 24)),
        Vectors::Nvfp4(_) => (0.0, 0.0),
    };
    let counted = |x: f64| match x.abs() {
        x if x != 0.0 && x < least => least,
        x => x,
    };
    let (m, n, k) = (shape.m(), shape.n(), shape.k());
    let powers = powers_of_vectors(shape, vectors)?;
    let of_row = |at: usize| -> Vec<(f64, f64)> {
        let (batch, row) = (at / m, at % m);
        let w = decode_row(weights, batch, row);
        let floor = floor * row_factor(weights, batch, row).abs();
        let powers_of_w = powers_of_row(weights, batch, row);
        let of_vector = |(i, x): (usize, &[f64])| {
            let terms = w.iter().zip(x).map(|(w, &x)| w.abs() * counted(x));
            let y = w.iter().zip(x).map(|(w, x)| w * x).sum();
            let mut magnitude = terms.sum::<f64>() + floor;
            if let Some(powers) = &powers {
                let blocks = k / BLOCK;
                let powers = &powers[(batch * n + i) * blocks..][..blocks];
                for (block, (of_w, of_x)) in powers_of_w.iter().zip(powers).enumerate() {
                    let at = block * BLOCK..(block + 1) * BLOCK;
                    if w[at.clone()].iter().zip(&x[at]).all(|(w, x)| w * x == 0.0) {
                        magnitude += (of_w * of_x).abs() * IDLE_BLOCK;
                    }
                }
            }
            (y, magnitude)
        };
        x[batch * n * k..][..n * k]
            .chunks_exact(k)
            .enumerate()
            .map(of_vector)
            .collect()
    };
    let rows: Vec<_> = (0..shape.l() * m).into_par_iter().map(of_row).collect();
    let mut y = vec![0.0; shape.outputs()];
    let mut magnitude = vec![0.0; shape.outputs()];
    for (row, of_vectors) in rows.into_iter().enumerate() {
        for (vector, of_one) in of_vectors.into_iter().enumerate() {
            let at = (row / m * n + vector) * m + row % m;
            (y[at], magnitude[at]) = of_one;
        }
    }
    Ok(Reference { y, magnitude })
}

/// NVFP4 vectors of several digits, if they are such.
fn of_digits<'a, 'b>(vectors: &'a Vectors<'b>) -> Option<&'a Nvfp4Vectors<'b>> {
    match vectors {
        Vectors::Nvfp4(v) if v.digits != 1 => Some(v),
        _ => None,
    }
}

/// Numbers of vectors, `[L][N][each]`, of those of their digits, which have no global scale: sums, times what each digit
/// counts, and the global scale.
fn joined(shape: &Shape, v: &Nvfp4Vectors<'_>, of_digits: &[f64], each: usize) -> Vec<f64> {
    let mut all = Vec::with_capacity(shape.l() * shape.n() * each);
    for (i, digits) in of_digits.chunks_exact(v.digits * each).enumerate() {
        let global = v.global_of(shape, i / shape.n(), i % shape.n());
        all.extend((0..each).map(|at| {
            let digits = digits[at..].iter().step_by(each).enumerate();
            let sum: f64 = digits.map(|(d, x)| x * digit_weight(d)).sum();
            sum * global
        }));
    }
    all
}

/// Vectors as numbers, times factors of columns, after a check of all operands.
fn multiplied(shape: &Shape, weights: &Weights<'_>, vectors: &Vectors<'_>) -> Result<Vec<f64>> {
    weights.check(shape)?;
    let mut x = decode_vectors(shape, vectors)?;
    if weights.column_alpha.is_some() {
        if matches!(vectors, Vectors::Nvfp4(_)) {
            weights.no_column_alpha(NVFP4_ARE_WITHOUT)?;
        }
        for (at, vector) in x.chunks_exact_mut(shape.k()).enumerate() {
            let alpha = weights.column_alpha_of(at / shape.n()).unwrap_or_default();
            let elements = vector.iter_mut().zip(alpha);
            elements.for_each(|(x, alpha)| *x *= f64::from(*alpha));
        }
    }
    Ok(x)
}

/// The count of a block of zero products, beside the powers of two of its scales.
const IDLE_BLOCK: f64 = 1.0 / 512.0;

/// The power of two of a block scale; 0 of a scale of zero. Subnormal scales have the power of the smallest normal one.
fn power(scale: u8) -> f64 {
    match scale & 0x7f {
        0 => 0.0,
        scale => f64::from(i32::from(scale >> 3).max(1) - 7).exp2(),
    }
}

/// The powers of two of a row's block scales, with all factors of the row.
fn powers_of_row(weights: &Weights<'_>, batch: usize, row: usize) -> Vec<f64> {
    let (shape, factor) = (weights.shape(), row_factor(weights, batch, row));
    let Some(matrix) = weights.matrix_of(batch) else {
        return vec![0.0; shape.blocks()];
    };
    let scales = &weights.scales[matrix * weights.layout.bytes(shape.m(), shape.blocks())..];
    let scale = |block| scales[weights.layout.offset(row, block, shape.blocks())];
    (0..shape.blocks())
        .map(|block| power(scale(block)) * factor)
        .collect()
}

/// The same of NVFP4 vectors, `[L][N][K/16]`.
fn powers_of_vectors(shape: &Shape, vectors: &Vectors<'_>) -> Result<Option<Vec<f64>>> {
    let Vectors::Nvfp4(v) = vectors else {
        return Ok(None);
    };
    let layout = v.resolve_and_scan(shape)?;
    let mut powers = Vec::with_capacity(shape.l() * shape.n() * shape.blocks());
    for (l, n) in (0..shape.l()).flat_map(|l| (0..shape.n()).map(move |n| (l, n))) {
        let global = v.global_of(shape, l, n);
        powers.extend((0..shape.blocks()).map(|block| {
            power(v.scales[layout.scale_offset(v.layout, shape, l, n, block)]) * global
        }));
    }
    Ok(Some(powers))
}

/// Row `row` of batch `batch` as numbers, all scales applied but factors of columns, which are the vectors'. Zeros where the batch has no matrix.
pub fn decode_row(weights: &Weights<'_>, batch: usize, row: usize) -> Vec<f64> {
    let shape = weights.shape();
    let Some(matrix) = weights.matrix_of(batch) else {
        return vec![0.0; shape.k()];
    };
    let codes = &weights.codes[(matrix * shape.m() + row) * shape.row_code_bytes()..];
    let scales = &weights.scales[matrix * weights.layout.bytes(shape.m(), shape.blocks())..];
    let factor = matrix_row_factor(weights, matrix, row);
    (0..shape.k())
        .map(|k| {
            let scale = scales[weights.layout.offset(row, k / BLOCK, shape.blocks())];
            f64::from(e2m1::decode(e2m1::unpack(codes, k)))
                * f64::from(e4m3::decode(scale))
                * factor
        })
        .collect()
}

/// The factor of all weights of a row: the global scale times the row's alpha.
fn row_factor(weights: &Weights<'_>, batch: usize, row: usize) -> f64 {
    let matrix = weights.matrix_of(batch);
    matrix.map_or(0.0, |matrix| matrix_row_factor(weights, matrix, row))
}

fn matrix_row_factor(weights: &Weights<'_>, matrix: usize, row: usize) -> f64 {
    let alpha = weights.row_alpha.map_or(1.0, |alpha| {
        f64::from(alpha[matrix * weights.row_alpha_batch_stride() + row])
    });
    weights.global.multiplier() * alpha
}

/// Vectors `[L][N][K]` as numbers, all scales applied.
///
/// # Errors
/// The errors of [`gemv`](crate::gemv) for vectors.
pub fn decode_vectors(shape: &Shape, vectors: &Vectors<'_>) -> Result<Vec<f64>> {
    if let Some(v) = of_digits(vectors) {
        let digits = Vectors::Nvfp4(v.of_single_digits());
        let x = decode_vectors(&shape.of_digits(v.digits)?, &digits)?;
        v.resolve_and_scan(shape)?;
        return Ok(joined(shape, v, &x, shape.k()));
    }
    let mut x = Vec::with_capacity(shape.vector_elements());
    let mut dense = |strides: crate::Strides, value: &dyn Fn(usize) -> f64| {
        for l in 0..shape.l() {
            for n in 0..shape.n() {
                let start = l * strides.batch + n * strides.row;
                x.extend((start..start + shape.k()).map(value));
            }
        }
    };
    match vectors {
        Vectors::F16(v) => dense(v.resolve(shape)?, &|i| f64::from(v.values[i])),
        Vectors::Bf16(v) => dense(v.resolve(shape)?, &|i| f64::from(v.values[i])),
        Vectors::F32(v) => dense(v.resolve(shape)?, &|i| f64::from(v.values[i])),
        Vectors::Nvfp4(v) => {
            let layout = v.resolve_and_scan(shape)?;
            for l in 0..shape.l() {
                for n in 0..shape.n() {
                    let codes = &v.codes[l * layout.codes.batch + n * layout.codes.row..];
                    let global = v.global_of(shape, l, n);
                    x.extend((0..shape.k()).map(|k| {
                        let at = layout.scale_offset(v.layout, shape, l, n, k / BLOCK);
                        f64::from(e2m1::decode(e2m1::unpack(codes, k)))
                            * f64::from(e4m3::decode(v.scales[at]))
                            * global
                    }));
                }
            }
        }
    }
    Ok(x)
}

/// The most that a result may differ from `y`. The result was computed with at most `roundings` successive f32
/// roundings of any term, and one conversion to `output`. `magnitude` is `Σ |w · x|`,
/// or what [`Reference::magnitude`] counts for it where the sum has blocks of zeros.
///
/// A term that passes through `d` roundings is off by a factor of at most `(1+u)^d`, u = 2^-24. So the sum is off by at
/// most `((1+u)^d - 1) · Σ |w · x|`, whatever the order of the sum. Source: Higham, Accuracy and Stability of Numerical
/// Algorithms, 2nd ed., §3.1 and §4.2. The conversion adds half a unit in the last place of the output type, at least
/// half its smallest subnormal. [`Config::roundings`](crate::Config::roundings) and
/// [`cpu::Implementation::roundings`](crate::cpu::Implementation::roundings) give `roundings` for each path. The table
/// of both stands in `docs/architecture.md`, and every test that compares with the truth uses them.
///
/// Vectors of several [digits](crate::Nvfp4Vectors::with_digits) have one rounding more for each digit but the first on a
/// GPU, and none more on the CPU, where `roundings` is asked of N · digits vectors.
///
/// On a GPU the bound holds while a sum's products with alpha, then with the row's alpha, are 0 or normal f32 numbers.
/// Kernels multiply in this order, and a product that leaves the range on the way does not come back. The CPU has no
/// such limit.
///
/// Infinite where the output type may overflow.
pub fn error_bound(y: f64, magnitude: f64, roundings: u32, output: FloatType) -> f64 {
    let (precision, tiny, max) = limits(output);
    let growth = (f64::from(roundings) * (2f64.powi(-24)).ln_1p()).exp_m1();
    // f32 intermediate results below its normal range are off by half its smallest subnormal each.
    let sum = growth * magnitude + f64::from(roundings) * 2f64.powi(-149);
    let largest = y.abs() + sum;
    if largest >= max {
        return f64::INFINITY;
    }
    sum + (largest * 2f64.powi(-precision)).max(2f64.powi(tiny - 1))
}

/// What [`error_bound`]'s `magnitude` is joined by, and the bound itself, where vectors may be multiplied as bytes
/// ([`Accuracy::Bytes`](crate::cpu::Accuracy::Bytes)): for each element of `y` the most that exact products of bytes
/// differ. The result is then within `error_bound(|y| + bytes, magnitude + bytes, roundings, output) + bytes`.
///
/// A byte stands for a value that lies within a 254th of the largest magnitude of its block of 16, plus 2^-13 of that
/// for what the scale and the quotient are rounded by. So this is `Σ |w|` times that, by block; no less than 2^-100 / 254
/// counts. For NVFP4 vectors it is 0.
///
/// # Errors
/// The errors of [`gemv`](crate::gemv).
pub fn bytes_error(
    shape: &Shape,
    weights: &Weights<'_>,
    vectors: &Vectors<'_>,
) -> Result<Vec<f64>> {
    let mut x = multiplied(shape, weights, vectors)?;
    if matches!(vectors, Vectors::Nvfp4(_)) {
        return Ok(vec![0.0; shape.outputs()]);
    }
    for block in x.chunks_exact_mut(BLOCK) {
        let most = largest(block);
        block.fill(byte_error(most));
    }
    Ok(times_weights(shape, weights, &x))
}

/// For each element of `y`, the most that an exact product changes where the vectors are multiplied as `digits`
/// [digits](crate::quantize::quantize_digits): `Σ |w|` times the most that elements of a block are off by. With digits,
/// a result is within this and [`error_bound`], with `y` and magnitude of the vectors of digits, of the exact product of
/// the vectors that are given here. For vectors that are NVFP4 already it is 0.
///
/// # Errors
/// The errors of [`gemv`](crate::gemv); [`Error::Digits`](crate::Error::Digits).
pub fn digits_error(
    shape: &Shape,
    weights: &Weights<'_>,
    vectors: &Vectors<'_>,
    digits: usize,
) -> Result<Vec<f64>> {
    shape.of_digits(digits)?;
    let mut x = multiplied(shape, weights, vectors)?;
    if matches!(vectors, Vectors::Nvfp4(_)) {
        return Ok(vec![0.0; shape.outputs()]);
    }
    for vector in x.chunks_exact_mut(shape.k()) {
        let of_vector = largest(vector);
        for block in vector.chunks_exact_mut(BLOCK) {
            let off = digit_error(digits, largest(block), of_vector);
            block.fill(off);
        }
    }
    Ok(times_weights(shape, weights, &x))
}

/// The largest magnitude of a vector of digits counts as at least 2^this, so that their global scales are normal numbers.
pub(crate) const DIGITS_LEAST: i32 = -100;

/// The most that an element may be off by, of a block and a vector with these largest magnitudes: the derivation stands in
/// `src/quantize/digits.rs`.
fn digit_error(digits: usize, of_block: f64, of_vector: f64) -> f64 {
    let of_vector = of_vector.max(f64::from(DIGITS_LEAST).exp2());
    let most = of_block.max(of_vector * (-12.0f64).exp2());
    // A quotient of two f32 numbers may round to the middle between two codes, and the code then be the further one.
    most * digit_weight(digits) * (1.0 + (-20.0f64).exp2())
}

fn largest(x: &[f64]) -> f64 {
    x.iter().fold(0.0, |most, x| x.abs().max(most))
}

/// `Σ |w| · off` of each result.
fn times_weights(shape: &Shape, weights: &Weights<'_>, off: &[f64]) -> Vec<f64> {
    let (m, n, k) = (shape.m(), shape.n(), shape.k());
    let of_one = |at: usize| {
        let w = decode_row(weights, at / m / n, at % m);
        let off = &off[at / m * k..][..k];
        w.iter().zip(off).map(|(w, off)| w.abs() * off).sum()
    };
    (0..shape.outputs()).map(of_one).collect()
}

/// The largest magnitude of a block counts as this where it is less, so that products of scales are normal numbers.
pub(crate) const BYTES_LEAST: f32 = f32::from_bits((127 - 100) << 23);

/// How far from a value the byte that is multiplied in its stead may lie, in a block with such a largest magnitude. It
/// is half a scale, which is at most 2^-15 larger than a 127th of it, and 2^-15 of that, which the value in units of
/// the scale is rounded by, twice, before it becomes an integer.
fn byte_error(most: f64) -> f64 {
    most.max(f64::from(BYTES_LEAST)) / 254.0 * (1.0 + 2f64.powi(-13))
}

/// The most that a sum of parts may differ from the sum of the exact parts, as ranks add up what each has. A part is
/// given as the exact number and how far from it the part may lie ([`error_bound`]). Parts are numbers of type
/// `element`, and so is the result of each addition of two of them.
///
/// Each of n parts passes through n - 1 additions at most, in whatever order they are made. So the sum is off by the
/// errors of the parts, and by `((1+v)^(n-1) - 1) · Σ |part|`, where v is how far an addition rounds. Source: Higham,
/// Accuracy and Stability of Numerical Algorithms, 2nd ed., §4.2. v is half a unit in the last place. For f16 and bf16,
/// f32's half unit is added, since parts may be added in f32 and rounded again. Sums below the normal range are exact.
///
/// Infinite where a sum on the way may overflow.
///
/// ```
/// use nvfp4_gemv::{FloatType, reference::sum_error_bound};
/// // Two exact numbers: one addition, which rounds to the 24 bits of f32.
/// assert_eq!(sum_error_bound(&[(1.0, 0.0), (3.0, 0.0)], FloatType::F32), 4.0 * 2f64.powi(-24));
/// ```
pub fn sum_error_bound(parts: &[(f64, f64)], element: FloatType) -> f64 {
    let (precision, _, max) = limits(element);
    let own: f64 = parts.iter().map(|(_, bound)| bound).sum();
    let largest: f64 = parts.iter().map(|(y, bound)| y.abs() + bound).sum();
    let unit = match element {
        FloatType::F32 => 2f64.powi(-precision),
        FloatType::F16 | FloatType::Bf16 => 2f64.powi(-precision) + 2f64.powi(-24),
    };
    let additions = parts.len().saturating_sub(1);
    let growth = (additions as f64 * unit.ln_1p()).exp_m1();
    // Written so that a bound that is no number makes it infinite.
    let fits = largest * (1.0 + growth) < max;
    if fits {
        own + growth * largest
    } else {
        f64::INFINITY
    }
}

/// Limits of a type: precision with the hidden bit, exponent of the smallest subnormal, largest finite value.
fn limits(of: FloatType) -> (i32, i32, f64) {
    match of {
        FloatType::F16 => (11, -24, 65504.0),
        FloatType::Bf16 => (8, -133, 3.3895313892515355e38),
        FloatType::F32 => (24, -149, f64::from(f32::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;
    use crate::shape::Dims;
    use crate::{GlobalScale, ScaleLayout, VectorScale};

    #[test]
    fn by_hand() {
        let shape = Shape::new(Dims {
            m: 2,
            n: 2,
            k: 16,
            l: 1,
        })
        .unwrap();
        // Row 0: sixteen 1.0; row 1: eight pairs (0.5, -6).
        let mut codes = vec![0x22; 8];
        codes.extend([0xf1; 8]);
        let weights = Weights::new(
            &shape,
            &codes,
            &[0x38, 0x40], // 1, 2
            ScaleLayout::Linear,
            GlobalScale::Divisor(4.0),
        )
        .unwrap()
        .with_row_alpha(&[1.0, 3.0])
        .unwrap();
        let x: Vec<f32> = (0..32).map(|i| (i % 16) as f32 + (i / 16) as f32).collect();
        let out = gemv(&shape, &weights, &Vectors::of(&x)).unwrap();
        // Evens sum to 56, odds to 64; the second vector adds 1 to each of 16 elements.
        let row1 = |even: f64, odd: f64| (0.5 * even - 6.0 * odd) * 2.0 / 4.0 * 3.0;
        assert_eq!(out.y, [30.0, row1(56.0, 64.0), 34.0, row1(64.0, 72.0)]);
        assert_eq!(out.magnitude[1], (28.0 + 384.0) * 1.5);
        let plus = out.clone().plus([-0.5, 2.0, 0.0, 1.0]);
        assert_eq!(plus.y[..2], [29.5, out.y[1] + 2.0]);
        assert_eq!(plus.magnitude[0], out.magnitude[0] + 0.5);
    }

    /// Only a block of zero products with scales that are not zero counts, and its exponents alone.
    #[test]
    fn idle_blocks_count_by_their_scales() {
        let shape = Shape::matrix(1, 64).unwrap();
        // Codes of 1 over zeros, over ones, over ones with a scale of zero, and over zeros with a subnormal scale.
        let ones = [0x22; 32];
        let x_codes: Vec<u8> = [[0; 8], [0x22; 8], [0x22; 8], [0x88; 8]].concat();
        let (w_scales, x_scales) = ([0x7e, 0x38, 0x7e, 0x44], [0x7e, 0x38, 0x00, 0x01]);
        let linear = ScaleLayout::Linear;
        let global = GlobalScale::Divisor(2.0);
        let w = Weights::new(&shape, &ones, &w_scales, linear, global).unwrap();
        let global = VectorScale::Shared(GlobalScale::Divisor(4.0));
        let x = Nvfp4Vectors::new(&x_codes[..], &x_scales[..], linear, global);
        let out = gemv(&shape, &w, &Vectors::Nvfp4(x)).unwrap();
        assert_eq!(out.y, [2.0]);
        // 16 ones; 448 twice: 2^(8+8-9); 3 and 2^-9: 2^(1-6-9).
        let sum = 16.0 + 2f64.powi(7) + 2f64.powi(-14);
        assert_eq!(out.magnitude, [sum / 8.0]);
    }

    #[test]
    fn bound_is_at_least_half_an_ulp_and_grows() {
        let bound = error_bound(1.0, 1.0, 0, FloatType::F16);
        assert_eq!(bound, 2f64.powi(-11));
        assert!(error_bound(1.0, 100.0, 10, FloatType::F16) > bound);
        assert_eq!(error_bound(0.0, 0.0, 0, FloatType::F16), 2f64.powi(-25));
        assert!(error_bound(7e4, 7e4, 1, FloatType::F16).is_infinite());
        assert!(error_bound(7e4, 7e4, 1, FloatType::Bf16).is_finite());
    }

    #[test]
    fn sums_have_what_their_parts_and_their_additions_round() {
        let unit = 2f64.powi(-11) + 2f64.powi(-24);
        let two = sum_error_bound(&[(1.0, 0.25), (-2.0, 0.5)], FloatType::F16);
        assert!((two - (0.75 + unit * 3.75)).abs() < 1e-12, "{two}");
        // One part is added to nothing, and none are 0.
        assert_eq!(sum_error_bound(&[(5.0, 0.125)], FloatType::Bf16), 0.125);
        assert_eq!(sum_error_bound(&[], FloatType::F32), 0.0);
        // The sum may be small, and a sum on the way not.
        let on_the_way = [(4e4, 0.0), (4e4, 0.0), (-8e4, 0.0)];
        assert!(sum_error_bound(&on_the_way, FloatType::F16).is_infinite());
        assert!(sum_error_bound(&on_the_way, FloatType::Bf16).is_finite());
        assert!(sum_error_bound(&[(1.0, f64::NAN)], FloatType::F32).is_infinite());
    }

    /// In every order of four parts, and by pairs; the worst one comes near.
    #[test]
    fn sums_in_any_order_are_within_their_bound() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut worst = 0f64;
        for _ in 0..2000 {
            let mut parts = [(); 4].map(|()| f16::from_f32(random.f32() * 2.0 - 0.5));
            let exact: f64 = parts.iter().map(|part| part.to_f64()).sum();
            let of = parts.map(|part| (part.to_f64(), 0.0));
            let bound = sum_error_bound(&of, FloatType::F16);
            random.shuffle(&mut parts);
            let [a, b, c, d] = parts;
            for sum in [((a + b) + c) + d, (a + b) + (c + d)] {
                let share = (sum.to_f64() - exact).abs() / bound;
                assert!(share <= 1.0, "{parts:?}: {sum}");
                worst = worst.max(share);
            }
        }
        assert!(worst > 0.25, "a bound that is never near: {worst}");
    }
}
