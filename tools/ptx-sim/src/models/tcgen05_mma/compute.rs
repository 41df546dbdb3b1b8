//! The arithmetic. Products are exact; the ISA leaves the order and rounding of sums open.

use super::super::idesc::{Accumulator, Element, Idesc, Kind, ScaleType};
use super::super::memory::SharedRead;
use super::super::mma_number::Number;
use super::super::sums::Rule;
use super::inner::{self, Link, NAN_F32, ROWS, Transposed};
use super::operand::{self, Values};
use super::scale::{self, Factors};
use super::{CtaMemory, Mma, MmaError};
use crate::softfloat::{E4M3, Format};
use half::f16;

/// Rounding of the sum over K, and onto D. All variants agree wherever every partial sum is exact, so running a kernel
/// under two of them shows whether its test data is order-independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Summation {
    /// All products of the instruction in f64 in ascending k, then one rounding onto D.
    #[default]
    Once,
    /// One rounding to D's type per product (or per scaled block), in descending k.
    EachReversed,
    /// By somebody's rule. Integers are added exactly.
    By(Rule),
}

/// A*B of one MMA, computed some rows at a time.
pub(super) struct Product {
    form: Form,
    m: usize,
    n: usize,
    k: usize,
}

/// A `[m][k]` and B `[k][n]`, by how they are multiplied.
enum Form {
    F64(Vec<f64>, Transposed<f64>),
    /// Values whose sums are all exact in f32.
    F32(Vec<f32>, Transposed<f32>),
    ScaledF64(Vec<f64>, Transposed<f64>, Scaling),
    /// Twice the values of E2M1.
    ScaledI16(Vec<i16>, Transposed<i16>, Scaling),
    /// [`Summation::EachReversed`]: so many terms an element, `[m][n][steps]`.
    Terms(Vec<f64>, usize),
    /// [`Summation::By`].
    ByRule(Rule, ByRule),
}

/// A `[m][k]` and B `[n][k]` as a [`Rule`] takes them, with their scales: `[m][count]` and `[n][count]`.
struct ByRule {
    a: Vec<Number>,
    b: Vec<Number>,
    scales: Option<(usize, Vec<Number>, Vec<Number>)>,
}

impl ByRule {
    fn new(i: &Idesc, a: &Values, b: &Values, factors: Option<Factors>) -> Self {
        let numbers = |values: &Values, of: Element| -> Vec<Number> {
            let least = of.format().map_or(0, Format::least_exponent);
            match values {
                Values::Doubled(all) => {
                    let halves = all.iter().map(|v| f64::from(*v) * 0.5);
                    halves.map(|v| Number::of_value(v, least)).collect()
                }
                Values::Real(all) => {
                    let all = all.iter().map(|v| f64::from(*v));
                    all.map(|v| Number::of_value(v, least)).collect()
                }
            }
        };
        let scale = |all: Vec<f64>| -> Vec<Number> {
            let least = match i.scale {
                ScaleType::Ue4m3 => E4M3.least_exponent(),
                ScaleType::Ue8m0 => -127,
            };
            let all = all.into_iter();
            all.map(|v| Number::of_value(v, least)).collect()
        };
        Self {
            a: numbers(a, i.a),
            b: numbers(b, i.b),
            scales: factors.map(|f| (f.count as usize, scale(f.a), scale(f.b))),
        }
    }

    /// An element of D onto an old one.
    fn add(&self, (rule, d): (&Rule, Accumulator), k: usize, at: (usize, usize), old: u32) -> u32 {
        let line =
            |all, i: usize, n: usize| -> &[Number] { &<[Number]>::as_ref(all)[i * n..][..n] };
        let scales = self
            .scales
            .as_ref()
            .map(|(n, a, b)| (line(a, at.0, *n), line(b, at.1, *n)));
        rule.add(
            d,
            old,
            (line(&self.a, at.0, k), line(&self.b, at.1, k)),
            scales,
        )
    }
}

/// Scales of A `[m][count]` and of B `[count][n]`.
struct Scaling {
    count: usize,
    a: Vec<f64>,
    b: Transposed<f64>,
}

impl Scaling {
    fn new(f: Factors) -> Self {
        let count = f.count as usize;
        Self {
            count,
            b: Transposed::new(&f.b, count, |v| v),
            a: f.a,
        }
    }
}

/// [`ROWS`] rows of sums, `[row][stride]`; filled by [`Product::rows`].
#[derive(Default)]
pub(super) struct Sums {
    f64: Vec<f64>,
    f32: Vec<f32>,
}

/// NaN as the tensor cores write it in f16.
const NAN_F16: u16 = 0x7fff;

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

pub(super) fn product<S: SharedRead + ?Sized>(
    mma: &Mma,
    ctas: &[CtaMemory<'_, S>],
) -> Result<Product, MmaError> {
    let (a, b) = (operand::read_a(mma, ctas)?, operand::read_b(mma, ctas)?);
    let (a, b) = (operand::decode_a(mma, &a), operand::decode_b(mma, &b));
    let factors = scale::read(mma, ctas)?;
    product_of(mma, a, b, factors)
}

/// The product of operands that were read.
pub(super) fn product_of(
    mma: &Mma,
    a: Values,
    b: Values,
    factors: Option<Factors>,
) -> Result<Product, MmaError> {
    let (m, n, k) = (
        mma.idesc.m as usize,
        mma.idesc.n as usize,
        mma.idesc.kind.k() as usize,
    );
    let form = if mma.summation == Summation::EachReversed {
        terms(&a, &b, factors.as_ref(), (m, n, k))?
    } else if let (Summation::By(rule), true) = (mma.summation, mma.idesc.kind != Kind::I8) {
        Form::ByRule(rule, ByRule::new(&mma.idesc, &a, &b, factors))
    } else {
        match (a, b, factors) {
            (Values::Doubled(a), Values::Doubled(b), Some(f)) => {
                let a = a.iter().map(|v| i16::from(*v)).collect();
                let b = Transposed::new(&b, k, i16::from);
                Form::ScaledI16(a, b, Scaling::new(f))
            }
            (Values::Real(a), Values::Real(b), Some(f)) => {
                let b = Transposed::new(&b, k, f64::from);
                Form::ScaledF64(wide(&a), b, Scaling::new(f))
            }
            (Values::Real(a), Values::Real(b), None) if inner::exact_f32(&a, &b, k) => {
                let b = Transposed::new(&b, k, |v| v);
                Form::F32(a, b)
            }
            (Values::Real(a), Values::Real(b), None) => {
                let b = Transposed::new(&b, k, f64::from);
                Form::F64(wide(&a), b)
            }
            _ => return Err(MmaError::Scales),
        }
    };
    Ok(Product { form, m, n, k })
}

/// The terms of [`Summation::EachReversed`].
fn terms(
    a: &Values,
    b: &Values,
    factors: Option<&Factors>,
    (m, n, k): (usize, usize, usize),
) -> Result<Form, MmaError> {
    let steps = factors.map_or(k, |f| f.count as usize);
    let mut terms = Vec::with_capacity(m * n * steps);
    for row in 0..m {
        for col in 0..n {
            let block = |i: usize| (i * k / steps, k / steps);
            match (a, b, factors) {
                (Values::Doubled(a), Values::Doubled(b), Some(f)) => {
                    let (a, b) = (&a[row * k..][..k], &b[col * k..][..k]);
                    terms.extend(scaled_blocks(f, row, col, |i| {
                        let (lo, len) = block(i);
                        f64::from(dot_i8(&a[lo..lo + len], &b[lo..lo + len])) * 0.25
                    }));
                }
                (Values::Real(a), Values::Real(b), Some(f)) => {
                    let (a, b) = (&a[row * k..][..k], &b[col * k..][..k]);
                    terms.extend(scaled_blocks(f, row, col, |i| {
                        let (lo, len) = block(i);
                        dot_f64(&a[lo..lo + len], &b[lo..lo + len])
                    }));
                }
                (Values::Real(a), Values::Real(b), None) => {
                    let (a, b) = (&a[row * k..][..k], &b[col * k..][..k]);
                    terms.extend(a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)));
                }
                _ => return Err(MmaError::Scales),
            }
        }
    }
    Ok(Form::Terms(terms, steps))
}

fn scaled_blocks(
    f: &Factors,
    row: usize,
    col: usize,
    dot: impl Fn(usize) -> f64,
) -> impl Iterator<Item = f64> {
    let count = f.count as usize;
    let (sa, sb) = (&f.a[row * count..][..count], &f.b[col * count..][..count]);
    (0..count).map(move |i| dot(i) * (sa[i] * sb[i]))
}

fn dot_i8(a: &[i8], b: &[i8]) -> i32 {
    a.iter()
        .zip(b)
        .map(|(x, y)| i32::from(i16::from(*x) * i16::from(*y)))
        .sum()
}

fn dot_f64(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(x, y)| f64::from(*x) * f64::from(*y))
        .sum()
}

impl Product {
    /// [`ROWS`] rows from one on as a link of a chain, if its sums are exact in f32.
    pub(super) fn link(&self, first: usize, accumulate: bool) -> Option<Link<'_>> {
        match &self.form {
            Form::F32(a, b) => Some(Link {
                a: a.get(first * self.k..(first + ROWS) * self.k)?,
                k: self.k,
                b,
                accumulate,
            }),
            _ => None,
        }
    }

    /// Computes rows `first..first + ROWS`.
    pub(super) fn rows(&self, first: usize, out: &mut Sums) {
        let k = self.k;
        let a = first * k..(first + ROWS).min(self.m) * k;
        let scales = |s: &Scaling| first * s.count..(first + ROWS).min(self.m) * s.count;
        match &self.form {
            Form::F64(all, b) => {
                out.f64.resize(ROWS * b.stride, 0.0);
                inner::products_f64(&all[a], k, b, &mut out.f64);
            }
            Form::F32(all, b) => {
                out.f32.resize(ROWS * b.stride, 0.0);
                inner::products_f32(&all[a], k, b, &mut out.f32);
            }
            Form::ScaledF64(all, b, s) => {
                out.f64.resize(ROWS * b.stride, 0.0);
                let scaling = (&s.a[scales(s)], &s.b, s.count);
                inner::scaled_f64(&all[a], k, b, scaling, &mut out.f64);
            }
            Form::ScaledI16(all, b, s) => {
                out.f64.resize(ROWS * b.stride, 0.0);
                let scaling = (&s.a[scales(s)], &s.b, s.count);
                inner::scaled_i16(&all[a], k, b, scaling, &mut out.f64);
            }
            Form::Terms(..) | Form::ByRule(..) => {}
        }
    }

    /// The new bits of a row's elements from column `col` on, in place of their old ones. `sums` holds the row.
    pub(super) fn finish(&self, mma: &Mma, sums: &Sums, row: usize, col: usize, cells: &mut [u32]) {
        let n = cells.len();
        let place = |stride: usize| row % ROWS * stride + col..row % ROWS * stride + col + n;
        let scale = 1.0 / f64::from(1u32 << mma.scale_input_d.min(15));
        let plain = mma.idesc.d == Accumulator::F32;
        match &self.form {
            Form::F32(_, b) if plain => {
                let sums = &sums.f32[place(b.stride)];
                match mma.accumulate {
                    true => inner::accumulate_f32(cells, scale, sums),
                    false => inner::store_f32(cells, sums),
                }
            }
            Form::F32(_, b) => {
                for (cell, sum) in cells.iter_mut().zip(&sums.f32[place(b.stride)]) {
                    *cell = finish_one(mma, &[f64::from(*sum)], *cell);
                }
            }
            Form::F64(_, Transposed { stride, .. })
            | Form::ScaledF64(_, Transposed { stride, .. }, _)
            | Form::ScaledI16(_, Transposed { stride, .. }, _) => {
                let sums = &sums.f64[place(*stride)];
                match mma.accumulate {
                    true if plain => inner::accumulate_f64(cells, scale, sums),
                    false if plain => inner::store_f64(cells, sums),
                    _ => {
                        for (cell, sum) in cells.iter_mut().zip(sums) {
                            *cell = finish_one(mma, &[*sum], *cell);
                        }
                    }
                }
            }
            Form::ByRule(rule, of) => {
                for (i, cell) in cells.iter_mut().enumerate() {
                    let old = if mma.accumulate { *cell } else { 0 };
                    *cell = of.add((rule, mma.idesc.d), self.k, (row, col + i), old);
                }
            }
            Form::Terms(terms, steps) => {
                for (i, cell) in cells.iter_mut().enumerate() {
                    let at = (row * self.n + col + i) * steps;
                    *cell = finish_one(mma, &terms[at..at + steps], *cell);
                }
            }
        }
    }
}

/// The new bits of an element of D, whose old bits are `old`.
fn finish_one(mma: &Mma, terms: &[f64], old: u32) -> u32 {
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
        Summation::Once | Summation::By(_) => round(start + terms[0]),
        Summation::EachReversed => terms.iter().rev().fold(start, |s, t| round(s + t)),
    };
    match mma.idesc.d {
        Accumulator::F16 if value.is_nan() => u32::from(NAN_F16),
        Accumulator::F16 => u32::from(f16::from_f64(value).to_bits()),
        _ if value.is_nan() => NAN_F32,
        _ => (value as f32).to_bits(),
    }
}
