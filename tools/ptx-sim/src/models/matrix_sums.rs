//! Sums of products of many lines with many others, as the warp-level tensor core forms them: the sums of [`Sum`], all
//! columns of a row at a time; and the registers that C and D lie in.
//!
//! A product of two elements has at most 22 bits, so f64 holds it exactly. The product is multiplied by a power of two,
//! which is exact as well, so that the place where terms are cut is that of 1. To cut a term is then to round it toward
//! zero. The terms that are left are integers below 2^28, and f64 holds their sums.

use std::ops::Range;

use super::element::Accumulator;
use super::mma_number::{Number, Sum, finish};
use super::versions::versions;
use crate::softfloat::{F32, Format};

/// Registers of a warp, one value a lane.
pub type Lanes = [u64; 32];

/// Row and column of each element of a warp's C or D of so many rows of `n`; and where it is: its register, its lane, and
/// its first bit there. Rows are 8 or 16.
fn places(rows: usize, n: usize, ty: Accumulator) -> impl Iterator<Item = (usize, [usize; 3])> {
    let of_lane = move |lane| (0..rows * n / 32).map(move |i| (lane, i));
    (0..32).flat_map(of_lane).map(move |(lane, i)| {
        let row = lane / 4 + 8 * (i / 2 % 2);
        let column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
        let (register, bit) = match ty {
            Accumulator::F16 => (i / 2, 16 * (i % 2)),
            Accumulator::F32 | Accumulator::S32 => (i, 0),
        };
        (row * n + column, [register, lane, bit])
    })
}

/// C of a warp, row by row.
pub(super) fn gather(c: &[Lanes], (rows, n): (usize, usize), ty: Accumulator) -> Vec<u32> {
    let mut out = vec![0; rows * n];
    let mask = u32::MAX >> (32 - ty.bits());
    for (at, [register, lane, bit]) in places(rows, n, ty) {
        out[at] = (c[register][lane] >> bit) as u32 & mask;
    }
    out
}

/// The registers of D, whose rows of `n` these are.
pub(super) fn scatter(d: &[u32], n: usize, ty: Accumulator) -> Vec<Lanes> {
    let mut out = vec![[0; 32]; d.len() * ty.bits() / (32 * 32)];
    for (at, [register, lane, bit]) in places(d.len() / n, n, ty) {
        out[register][lane] |= u64::from(d[at]) << bit;
    }
    out
}

/// C and products of whole numbers, which wrap or saturate.
pub(super) fn whole(c: u32, products: impl Iterator<Item = i64>, saturates: bool) -> u32 {
    let sum = products.sum::<i64>() + i64::from(c as i32);
    match saturates {
        true => sum.clamp(i32::MIN.into(), i32::MAX.into()) as u32,
        false => sum as u32,
    }
}

/// Columns that are summed at once.
const AT_ONCE: usize = 8;

/// Rows of A, or columns of B, of as many elements each.
#[derive(Debug)]
pub(super) struct Lines {
    format: Format,
    length: usize,
    bits: Vec<u32>,
}

impl Lines {
    /// Lines of codes, line after line, each with its sign changed if `negated`.
    pub(super) fn new(
        format: Format,
        length: usize,
        bits: impl Iterator<Item = u32>,
        negated: bool,
    ) -> Self {
        let flip = if negated { format.sign_bit() } else { 0 };
        Self {
            format,
            length,
            bits: bits.map(|bits| bits ^ flip).collect(),
        }
    }

    fn count(&self) -> usize {
        self.bits.len() / self.length
    }

    /// Parts of a line, `length` elements each but for the last.
    pub(super) fn parts(&self, length: usize) -> impl Iterator<Item = Range<usize>> {
        let all = self.length;
        let of = move |first: usize| first..(first + length).min(all);
        (0..all).step_by(length).map(of)
    }

    fn part(&self, i: usize, part: &Range<usize>) -> &[u32] {
        &self.bits[i * self.length..][part.clone()]
    }

    /// The numbers of a line.
    pub(super) fn line(&self, i: usize) -> impl Iterator<Item = Number> + '_ {
        self.numbers(i, 0..self.length)
    }

    fn numbers(&self, i: usize, part: Range<usize>) -> impl Iterator<Item = Number> + '_ {
        let bits = self.part(i, &part).iter();
        bits.map(|bits| Number::of(self.format, *bits))
    }
}

/// A finite number: its value, and the exponent that alignment goes by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Finite {
    value: f64,
    exponent: i32,
}

/// Exponent of zeros, which count for nothing: below that of any product, with either other factor.
const ZERO: i32 = -1_000_000;
/// No sum of the exponents of two factors other than zero is as low.
const NOTHING: i32 = -500_000;

impl Finite {
    /// The number that stands in for numbers that are not finite.
    const NONE: Self = Self {
        value: 0.0,
        exponent: ZERO,
    };

    /// `None` of an infinity or a NaN.
    fn of(format: Format, code: u32) -> Option<Self> {
        if let Some((value, exponent)) = format.normal(code) {
            return Some(Self { value, exponent });
        }
        let value = format.to_f64(code);
        let exponent = match value == 0.0 {
            true => ZERO,
            false => format.exponent(value),
        };
        value.is_finite().then_some(Self { value, exponent })
    }
}

/// Two to a power that f64 has as a normal number.
#[inline(always)]
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((1023 + i64::from(exponent)) as u64) << 52)
}

/// Finite numbers in order, and which lines have others as well.
#[derive(Debug, Default)]
struct Decoded {
    values: Vec<f64>,
    exponents: Vec<i32>,
    is_odd: Vec<bool>,
}

impl Decoded {
    /// Decodes a part of each line. Lines lie `line_step` apart then, and their elements `k_step` apart: rows of A are
    /// `[row][k]`, columns of B `[k][stride]`.
    fn of(lines: &Lines, part: &Range<usize>, line_step: usize, k_step: usize) -> Self {
        let (number, length) = (lines.count(), part.len());
        let room = length * number.max(k_step);
        let mut all = Self {
            values: vec![Finite::NONE.value; room],
            exponents: vec![Finite::NONE.exponent; room],
            is_odd: vec![false; number],
        };
        for i in 0..number {
            for (k, bits) in lines.part(i, part).iter().enumerate() {
                let finite = Finite::of(lines.format, *bits);
                all.is_odd[i] |= finite.is_none();
                let at = i * line_step + k * k_step;
                let Finite { value, exponent } = finite.unwrap_or(Finite::NONE);
                (all.values[at], all.exponents[at]) = (value, exponent);
            }
        }
        all
    }
}

/// Adds to each element of C the products of a part of its row and of its column. C is `[row of A][column of B]`, as
/// codes of a format. Terms are cut `fraction` bits below the largest exponent.
pub(super) fn add_products(
    (a, b): (&Lines, &Lines),
    part: &Range<usize>,
    c: &mut [u32],
    format: Format,
    fraction: i32,
) {
    let (columns, length) = (b.count(), part.len());
    let stride = columns.next_multiple_of(AT_ONCE);
    let (rows, of_b) = (
        Decoded::of(a, part, length, 1),
        Decoded::of(b, part, 1, stride),
    );
    let mut old = vec![Finite::NONE; stride];
    let mut sums = vec![0.0; stride];
    for (row, c) in c.chunks_exact_mut(columns).enumerate() {
        let mut is_odd = rows.is_odd[row];
        for (old, c) in old.iter_mut().zip(&*c) {
            let finite = Finite::of(format, *c);
            is_odd |= finite.is_none();
            *old = finite.unwrap_or(Finite::NONE);
        }
        let line = row * length..(row + 1) * length;
        row_sums(
            (&rows.values[line.clone()], &rows.exponents[line]),
            (&of_b.values, &of_b.exponents),
            (&old, fraction),
            &mut sums,
        );
        for (column, (c, sum)) in c.iter_mut().zip(&sums).enumerate() {
            // For the few rows and columns with infinities and the like, each sum is formed by itself.
            *c = match is_odd || of_b.is_odd[column] {
                false if format == F32 => to_f32(*sum),
                false => finish(*sum, format),
                true => {
                    let mut sum = Sum::new(Number::of(format, *c), length, fraction);
                    for (x, y) in a
                        .numbers(row, part.clone())
                        .zip(b.numbers(column, part.clone()))
                    {
                        sum.add(x.times(y));
                    }
                    sum.to(format)
                }
            };
        }
    }
}

/// The sum as f32, cut toward zero as [`finish`] cuts it.
fn to_f32(sum: f64) -> u32 {
    const LEAST_NORMAL: f64 = f32::MIN_POSITIVE as f64;
    /// Two to the power of 128.
    const TOO_LARGE: f64 = 2.0 * (1u128 << 127) as f64;
    /// Bits of the mantissa that f32 does not have.
    const CUT: u64 = (1 << 29) - 1;
    match sum.abs() {
        0.0 => 0,
        LEAST_NORMAL..TOO_LARGE => (f64::from_bits(sum.to_bits() & !CUT) as f32).to_bits(),
        _ => finish(sum, F32),
    }
}

versions!(
    /// Sums of a row with all columns.
    row_sums(
        row: (&[f64], &[i32]), columns: (&[f64], &[i32]), c: (&[Finite], i32), sums: &mut [f64]
    ) = row_sums_of
);

#[inline(always)]
fn row_sums_of<const LANES: usize, const FUSED: bool>(
    (x, of_x): (&[f64], &[i32]),
    (y, of_y): (&[f64], &[i32]),
    (c, fraction): (&[Finite], i32),
    sums: &mut [f64],
) {
    let stride = sums.len();
    let blocks = sums.as_chunks_mut::<AT_ONCE>().0.iter_mut();
    for (block, (sums, c)) in blocks.zip(c.as_chunks::<AT_ONCE>().0).enumerate() {
        let at = |k: usize| k * stride + block * AT_ONCE;
        let mut largest = c.map(|c| c.exponent);
        for (k, of_x) in of_x.iter().enumerate() {
            let of_y = &of_y[at(k)..][..AT_ONCE];
            for (largest, of_y) in largest.iter_mut().zip(of_y) {
                *largest = (*largest).max(of_x + of_y);
            }
        }
        // Any place will do for a sum of nothing but zeros.
        let place = largest.map(|largest| match largest < NOTHING {
            true => 0,
            false => largest - fraction,
        });
        let scale = place.map(|place| power_of_two(-place));
        let cut = |v: f64| match FUSED {
            true => v.trunc(),
            // Without `FUSED`, `trunc` is a function call.
            false => f64::from(v as i32),
        };
        for ((sum, c), scale) in sums.iter_mut().zip(c).zip(&scale) {
            *sum = cut(c.value * scale);
        }
        for (k, x) in x.iter().enumerate() {
            let y = &y[at(k)..][..AT_ONCE];
            for ((sum, y), scale) in sums.iter_mut().zip(y).zip(&scale) {
                *sum += cut(x * y * scale);
            }
        }
        for (sum, place) in sums.iter_mut().zip(&place) {
            *sum *= power_of_two(*place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::softfloat::{BF16, E4M3, E5M2, F16, TF32};

    const FRACTION: i32 = 25;

    /// Any elements, many of them special, subnormal or zero, and far apart.
    #[test]
    fn all_sums_are_those_of_one_by_one() {
        let mut random = fastrand::Rng::with_seed(1);
        let formats = [
            (F16, 16, 16),
            (BF16, 16, 16),
            (TF32, 19, 8),
            (E4M3, 8, 32),
            (E5M2, 8, 32),
        ];
        for (format, size, length) in formats {
            for round in 0..600 {
                let (rows, columns) = (3, [1, 8, 13][round % 3]);
                let spread = [!0xf000, !0, !0x7c00, !0x3800][round % 4];
                let mut bits = |n: usize| -> Vec<u32> {
                    let draw =
                        |_| (random.u32(..) >> (32 - size)) & (spread >> (16 - size.min(16)));
                    (0..n * length).map(draw).collect()
                };
                let (a, b) = (bits(rows), bits(columns));
                for (result, negated, fraction) in [
                    (F32, false, FRACTION),
                    (F32, true, 13),
                    (F16, false, FRACTION),
                ] {
                    let c: Vec<u32> = (0..rows * columns)
                        .map(|_| match (round % 3, result) {
                            (0, _) => 0,
                            (_, F16) => random.u16(..).into(),
                            (1, _) => random.u32(..),
                            _ => random.f32().to_bits(),
                        })
                        .collect();
                    let mut d = c.clone();
                    let lines = |bits: &[u32], negated| {
                        Lines::new(format, length, bits.iter().copied(), negated)
                    };
                    let (x, y) = (lines(&a, negated), lines(&b, false));
                    add_products((&x, &y), &(0..length), &mut d, result, fraction);
                    for (i, (d, c)) in d.iter().zip(c).enumerate() {
                        let mut sum = Sum::new(Number::of(result, c), length, fraction);
                        for (x, y) in x.line(i / columns).zip(y.line(i % columns)) {
                            sum.add(x.times(y));
                        }
                        assert_eq!(*d, sum.to(result), "{format:?}, {result:?}, round {round}");
                    }
                }
            }
        }
    }

    /// A negative sum that the result's format cannot tell from zero gives +0.
    #[test]
    fn zeros_have_no_sign() {
        let product = |format, result, a: u32, b: u32| {
            let line = |bits| Lines::new(format, 1, [bits].into_iter(), false);
            let mut d = [0];
            add_products((&line(a), &line(b)), &(0..1), &mut d, result, FRACTION);
            d[0]
        };
        let f16 = |a, b| product(F16, F16, a, b);
        assert_eq!(f16(0x8001, 0x3800), 0); // -2^-24 * 0.5: a tie, to even
        assert_eq!(f16(0x8001, 0x3801), 0x8001); // just beyond it
        let bf16 = |a, b| product(BF16, F32, a, b);
        assert_eq!(bf16(0x8001, 0x377f), 0); // -2^-133, times nearly 2^-16: cut
        assert_eq!(bf16(0x8001, 0x3780), 0x8000_0001); // times 2^-16: the least that f32 holds
        let of = |code| Number::of(F16, code);
        let mut sum = Sum::new(of(0x8000), 1, FRACTION);
        sum.add(of(0x8001).times(of(0x3800)));
        assert_eq!(sum.to(F16), 0);
    }
}
