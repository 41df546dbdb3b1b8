//! The arithmetic. Products are exact; the ISA leaves the order and rounding of sums open.

use super::super::idesc::{Accumulator, Kind};
use super::super::memory::SharedRead;
use super::operand::{self, Values};
use super::scale::{self, Factors};
use super::{CtaMemory, Mma, MmaError};
use half::f16;

/// How the sum over K, and onto D, is rounded. All agree wherever every partial sum is exact,
/// so running a kernel under two of them shows whether its test data is order-independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Summation {
    /// All products of the instruction in f64 in ascending k, then one rounding onto D.
    #[default]
    Once,
    /// One rounding to D's type per product (or per scaled block), in descending k.
    EachReversed,
}

/// A*B of one MMA, unrounded.
pub(super) struct Product {
    n: u32,
    /// One sum an element, or `steps` terms an element for [`Summation::EachReversed`].
    terms: Vec<f64>,
    steps: u32,
}

/// NaN as the tensor cores write it.
const NAN_F32: u32 = 0x7fff_ffff;
const NAN_F16: u16 = 0x7fff;

pub(super) fn product<S: SharedRead + ?Sized>(
    mma: &Mma,
    ctas: &[CtaMemory<'_, S>],
) -> Result<Product, MmaError> {
    let (a, b) = (operand::read_a(mma, ctas)?, operand::read_b(mma, ctas)?);
    let factors = scale::read(mma, ctas)?;
    let (m, n, k) = (
        mma.idesc.m as usize,
        mma.idesc.n as usize,
        mma.idesc.kind.k() as usize,
    );
    let each = mma.summation == Summation::EachReversed;
    let blocks = factors.as_ref().map_or(1, |f| f.count as usize);
    let steps = match (each, &factors) {
        (false, _) => 1,
        (true, Some(_)) => blocks,
        (true, None) => k,
    };
    let mut terms = Vec::with_capacity(m * n * steps);
    let mut line = vec![0f64; k.max(blocks)];
    for row in 0..m {
        for col in 0..n {
            let used = match (&a, &b, &factors) {
                (Values::Doubled(a), Values::Doubled(b), Some(f)) => {
                    let (a, b) = (&a[row * k..][..k], &b[col * k..][..k]);
                    scaled_blocks(f, row, col, &mut line, |i| {
                        let (lo, len) = (i * k / blocks, k / blocks);
                        f64::from(dot_i8(&a[lo..lo + len], &b[lo..lo + len])) * 0.25
                    })
                }
                (Values::Real(a), Values::Real(b), Some(f)) => {
                    let (a, b) = (&a[row * k..][..k], &b[col * k..][..k]);
                    scaled_blocks(f, row, col, &mut line, |i| {
                        let (lo, len) = (i * k / blocks, k / blocks);
                        dot_f64(&a[lo..lo + len], &b[lo..lo + len])
                    })
                }
                (Values::Real(a), Values::Real(b), None) => {
                    let (a, b) = (&a[row * k..][..k], &b[col * k..][..k]);
                    if each {
                        for (t, (x, y)) in line.iter_mut().zip(a.iter().zip(b)) {
                            *t = x * y;
                        }
                        k
                    } else {
                        line[0] = dot_f64(a, b);
                        1
                    }
                }
                _ => return Err(MmaError::Scales),
            };
            if each {
                terms.extend_from_slice(&line[..used]);
            } else {
                terms.push(line[..used].iter().sum());
            }
        }
    }
    Ok(Product {
        n: n as u32,
        terms,
        steps: steps as u32,
    })
}

fn scaled_blocks(
    f: &Factors,
    row: usize,
    col: usize,
    line: &mut [f64],
    dot: impl Fn(usize) -> f64,
) -> usize {
    let count = f.count as usize;
    let (sa, sb) = (&f.a[row * count..][..count], &f.b[col * count..][..count]);
    for (i, t) in line.iter_mut().take(count).enumerate() {
        *t = dot(i) * (sa[i] * sb[i]);
    }
    count
}

fn dot_i8(a: &[i8], b: &[i8]) -> i32 {
    a.iter()
        .zip(b)
        .map(|(x, y)| i32::from(i16::from(*x) * i16::from(*y)))
        .sum()
}

fn dot_f64(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

impl Product {
    /// The new bits of element (`row`, `col`) of D, whose old bits are `old`.
    pub(super) fn finish(&self, mma: &Mma, row: u32, col: u32, old: u32) -> u32 {
        let at = ((row * self.n + col) * self.steps) as usize;
        let terms = &self.terms[at..at + self.steps as usize];
        let start = match (mma.accumulate, mma.idesc.d) {
            (false, _) => 0.0,
            (true, Accumulator::F32) => f64::from(f32::from_bits(old)),
            (true, Accumulator::F16) => f64::from(f16::from_bits(old as u16)),
            (true, Accumulator::S32) => f64::from(old as i32),
        };
        let start = start / f64::from(1u32 << mma.scale_input_d.min(15));
        if mma.idesc.kind == Kind::I8 {
            // At most 32 * 255 * 255 + 2^31 in magnitude: exact.
            let sum = (terms.iter().sum::<f64>() + start) as i64;
            let clamped = sum.clamp(i64::from(i32::MIN), i64::from(i32::MAX));
            return if mma.idesc.saturate {
                clamped as i32 as u32
            } else {
                sum as i32 as u32
            };
        }
        let round = |x: f64| match mma.idesc.d {
            Accumulator::F16 => f64::from(f16::from_f64(x)),
            _ => f64::from(x as f32),
        };
        let value = match mma.summation {
            Summation::Once => round(start + terms[0]),
            Summation::EachReversed => terms.iter().rev().fold(start, |s, t| round(s + t)),
        };
        match mma.idesc.d {
            Accumulator::F16 if value.is_nan() => u32::from(NAN_F16),
            Accumulator::F16 => u32::from(f16::from_f64(value).to_bits()),
            _ if value.is_nan() => NAN_F32,
            _ => (value as f32).to_bits(),
        }
    }
}
