//! Numbers and sums of the warp-level tensor core: products are exact, and a sum aligns its terms
//! to the largest of them.

use crate::softfloat::{self, Round};

/// Bits that an aligned term keeps below the place of the largest term's exponent: those of f32,
/// and two more. Found by recordings on an H200.
pub(super) const FRACTION: i32 = 25;

/// A binary format as the multiplier reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
    /// Low bits of the container that do not count.
    ignored: u32,
    /// What the largest exponent says.
    top: Top,
}

/// What codes of the largest exponent say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Top {
    /// Infinities and NaNs.
    Special,
    /// Numbers, but for one NaN.
    OneNan,
    /// Numbers.
    Numbers,
}

/// A format whose codes are all numbers.
const fn narrow(exponent_bits: u32, mantissa_bits: u32) -> Format {
    Format {
        top: Top::Numbers,
        ..ieee(exponent_bits, mantissa_bits)
    }
}

const fn ieee(exponent_bits: u32, mantissa_bits: u32) -> Format {
    Format {
        exponent_bits,
        mantissa_bits,
        ignored: 0,
        top: Top::Special,
    }
}

impl Format {
    pub(super) const F32: Self = ieee(8, 23);
    pub(super) const F16: Self = ieee(5, 10);
    pub(super) const BF16: Self = ieee(8, 7);
    pub(super) const E5M2: Self = ieee(5, 2);
    /// The FP6 and FP4 formats have neither infinities nor NaNs.
    pub(super) const E3M2: Self = narrow(3, 2);
    pub(super) const E2M3: Self = narrow(2, 3);
    pub(super) const E2M1: Self = narrow(2, 1);
    pub(super) const TF32: Self = Self {
        ignored: 13,
        ..ieee(8, 10)
    };
    pub(super) const E4M3: Self = Self {
        top: Top::OneNan,
        ..ieee(4, 3)
    };

    pub(super) fn decode(self, bits: u32) -> Number {
        let bits = bits >> self.ignored;
        let ones = (1 << self.exponent_bits) - 1;
        let bias = ones >> 1;
        let negative = bits >> (self.exponent_bits + self.mantissa_bits) & 1 == 1;
        let field = (bits >> self.mantissa_bits & ones) as i32;
        let mantissa = i64::from(bits & ((1 << self.mantissa_bits) - 1));
        let hidden = 1i64 << self.mantissa_bits;
        if field == ones as i32 {
            match self.top {
                Top::Special if mantissa == 0 => return Number::Infinite { negative },
                Top::Special => return Number::Nan,
                Top::OneNan if mantissa == hidden - 1 => return Number::Nan,
                Top::OneNan | Top::Numbers => {}
            }
        }
        let magnitude = if field == 0 {
            mantissa
        } else {
            mantissa | hidden
        };
        let exponent = field.max(1) - bias as i32;
        Number::Finite {
            negative,
            magnitude,
            exponent,
            unit: exponent - self.mantissa_bits as i32,
        }
    }
}

/// A value: an integer times two to the power `unit`, and the exponent that alignment goes by, which
/// is that of the format's fields and not of the leading bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Number {
    Nan,
    Infinite {
        negative: bool,
    },
    Finite {
        negative: bool,
        magnitude: i64,
        exponent: i32,
        unit: i32,
    },
}

impl Number {
    /// UE8M0: a power of two from 2^-127 on; 255 is NaN.
    pub(super) fn power_of_two(bits: u8) -> Self {
        if bits == u8::MAX {
            return Self::Nan;
        }
        let exponent = i32::from(bits) - 127;
        Self::Finite {
            negative: false,
            magnitude: 1,
            exponent,
            unit: exponent,
        }
    }

    /// The product, exactly.
    pub(super) fn times(self, other: Self) -> Self {
        use Number::*;
        match (self, other) {
            (Nan, _) | (_, Nan) => Nan,
            (Infinite { .. }, Finite { magnitude: 0, .. })
            | (Finite { magnitude: 0, .. }, Infinite { .. }) => Nan,
            (Infinite { negative: a }, Infinite { negative: b } | Finite { negative: b, .. })
            | (Finite { negative: a, .. }, Infinite { negative: b }) => {
                Infinite { negative: a != b }
            }
            (
                Finite {
                    negative: a,
                    magnitude: x,
                    exponent: e,
                    unit: u,
                },
                Finite {
                    negative: b,
                    magnitude: y,
                    exponent: f,
                    unit: v,
                },
            ) => Finite {
                negative: a != b,
                magnitude: x * y,
                exponent: e + f,
                unit: u + v,
            },
        }
    }
}

/// A sum of terms, complete once all are known.
#[derive(Debug)]
pub(super) struct Sum {
    terms: Vec<Number>,
}

/// What a sum comes to.
enum Total {
    Nan,
    Infinite(bool),
    Finite(f64),
}

impl Sum {
    /// A sum of one term, with room for as many more.
    pub(super) fn new(first: Number, more: usize) -> Self {
        let mut terms = Vec::with_capacity(1 + more);
        terms.push(first);
        Self { terms }
    }

    pub(super) fn add(&mut self, term: Number) {
        self.terms.push(term);
    }

    /// Terms are cut, toward zero, to `FRACTION` bits below the largest exponent, and added exactly.
    fn total(&self) -> Total {
        let mut infinite = None;
        let mut largest = i32::MIN;
        for t in &self.terms {
            match *t {
                Number::Nan => return Total::Nan,
                Number::Infinite { negative } => match infinite {
                    Some(other) if other != negative => return Total::Nan,
                    _ => infinite = Some(negative),
                },
                Number::Finite { magnitude: 0, .. } => {}
                Number::Finite { exponent, .. } => largest = largest.max(exponent),
            }
        }
        if let Some(negative) = infinite {
            return Total::Infinite(negative);
        }
        if largest == i32::MIN {
            return Total::Finite(0.0);
        }
        let place = largest - FRACTION;
        let mut sum = 0i64;
        for t in &self.terms {
            if let Number::Finite {
                negative,
                magnitude,
                unit,
                ..
            } = *t
            {
                // At most 27 bits remain: a product is below 4 times its exponent's power. Zeros may lie
                // beyond all others.
                let aligned = if magnitude == 0 {
                    0
                } else if unit >= place {
                    magnitude << (unit - place)
                } else {
                    magnitude.checked_shr((place - unit) as u32).unwrap_or(0)
                };
                sum += if negative { -aligned } else { aligned };
            }
        }
        // Below 2^53, and far from f64's limits: exact.
        Total::Finite(sum as f64 * 2f64.powi(place))
    }

    /// As f32, cut toward zero.
    pub(super) fn to_f32(&self) -> u32 {
        self.round(softfloat::F32, Round::Zero)
    }

    /// As f16, to nearest.
    pub(super) fn to_f16(&self) -> u32 {
        self.round(softfloat::F16, Round::Nearest)
    }

    fn round(&self, format: softfloat::Format, mode: Round) -> u32 {
        match self.total() {
            Total::Nan => format.nan,
            Total::Infinite(negative) => {
                let x = if negative {
                    f64::NEG_INFINITY
                } else {
                    f64::INFINITY
                };
                format.round(x, Round::Nearest, false)
            }
            Total::Finite(x) => finish(x, format, mode),
        }
    }
}

/// A finite number as a factor of many products: its value is `signed` times two to the power of
/// `exponent` minus the mantissa bits of its format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Factor {
    signed: i32,
    exponent: i32,
}

impl Factor {
    /// Zeros count for nothing: below the exponent of any product, with either other factor.
    const ZERO: i32 = -1_000_000;
    /// No sum of the exponents of two factors other than zero is as low.
    const NOTHING: i32 = -500_000;

    /// `None` of what is infinite or no number.
    fn of(n: Number) -> Option<Self> {
        match n {
            Number::Finite {
                negative,
                magnitude,
                exponent,
                ..
            } => {
                let magnitude = magnitude as i32;
                Some(Self {
                    signed: if negative { -magnitude } else { magnitude },
                    exponent: if magnitude == 0 { Self::ZERO } else { exponent },
                })
            }
            _ => None,
        }
    }
}

/// Elements of a row of A or a column of B that are multiplied with those of many others: the
/// same sums as [`Sum`]'s, faster.
#[derive(Debug, Clone)]
pub(super) struct Line {
    numbers: Vec<Number>,
    /// The same; empty if one of them is not finite.
    factors: Vec<Factor>,
    mantissa_bits: i32,
}

impl Line {
    /// Of elements as bits, each with its sign changed if `negated`.
    pub(super) fn new(format: Format, bits: impl Iterator<Item = u32>, negated: bool) -> Self {
        let sign = 1 << (format.exponent_bits + format.mantissa_bits + format.ignored);
        let flip = if negated { sign } else { 0 };
        let numbers: Vec<Number> = bits.map(|b| format.decode(b ^ flip)).collect();
        let factors: Option<Vec<Factor>> = numbers.iter().map(|n| Factor::of(*n)).collect();
        Self {
            numbers,
            factors: factors.unwrap_or_default(),
            mantissa_bits: format.mantissa_bits as i32,
        }
    }

    /// `c` and the products with another line, as f32, cut toward zero. Terms are cut `fraction` bits below the
    /// largest exponent.
    pub(super) fn dot_f32(&self, other: &Self, c: u32, fraction: i32) -> u32 {
        match self.finite_dot(other, Format::F32.decode(c), fraction) {
            Some(total) => finish(total, softfloat::F32, Round::Zero),
            None => self.sum(other, Format::F32.decode(c)).to_f32(),
        }
    }

    /// The same as f16, to nearest.
    pub(super) fn dot_f16(&self, other: &Self, c: u32, fraction: i32) -> u32 {
        match self.finite_dot(other, Format::F16.decode(c), fraction) {
            Some(total) => finish(total, softfloat::F16, Round::Nearest),
            None => self.sum(other, Format::F16.decode(c)).to_f16(),
        }
    }

    fn sum(&self, other: &Self, c: Number) -> Sum {
        let mut sum = Sum::new(c, self.numbers.len());
        for (x, y) in self.numbers.iter().zip(&other.numbers) {
            sum.add(x.times(*y));
        }
        sum
    }

    /// As [`Sum::total`], where all terms are finite.
    fn finite_dot(&self, other: &Self, c: Number, fraction: i32) -> Option<f64> {
        let Number::Finite {
            negative,
            magnitude,
            exponent,
            unit,
        } = c
        else {
            return None;
        };
        if self.factors.len() != self.numbers.len() || other.factors.len() != other.numbers.len() {
            return None;
        }
        let products = || self.factors.iter().zip(&other.factors);
        let of_products = products().map(|(x, y)| x.exponent + y.exponent).max();
        let mut largest = of_products.unwrap_or(Factor::ZERO);
        if magnitude != 0 {
            largest = largest.max(exponent);
        }
        if largest < Factor::NOTHING {
            return Some(0.0);
        }
        let place = largest - fraction;
        // Exponents of products are those of their lowest bits, plus the mantissa bits of both.
        let below = place + self.mantissa_bits + other.mantissa_bits;
        let mut sum: i64 = products()
            .map(|(x, y)| {
                let product = x.signed * y.signed;
                let up = x.exponent + y.exponent - below;
                let aligned = if up >= 0 {
                    product << up
                } else {
                    // A division that rounds toward zero.
                    let cut = product.unsigned_abs() >> (-up).min(31);
                    if product < 0 {
                        -(cut as i32)
                    } else {
                        cut as i32
                    }
                };
                i64::from(aligned)
            })
            .sum();
        let up = unit - place;
        let aligned = match up {
            // Far above all others it is zero.
            _ if magnitude == 0 => 0,
            0.. => magnitude << up,
            _ => magnitude.checked_shr(up.unsigned_abs()).unwrap_or(0),
        };
        sum += if negative { -aligned } else { aligned };
        Some(sum as f64 * 2f64.powi(place))
    }
}

/// What the largest finite value cannot hold is infinite, whichever way is cut. What becomes zero is
/// +0, a negative sum too.
fn finish(x: f64, format: softfloat::Format, mode: Round) -> u32 {
    let mode = match x.abs() >= 2f64.powi(128) {
        true => Round::Nearest,
        false => mode,
    };
    let bits = format.round(x, mode, false);
    let negative_zero = format.round(-0.0, mode, false);
    match bits == negative_zero {
        true => 0,
        false => bits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any elements, many of them special, subnormal or zero, and far apart.
    #[test]
    fn lines_give_the_same_sums() {
        let mut random = fastrand::Rng::with_seed(1);
        for format in [Format::F16, Format::BF16] {
            for round in 0..20_000 {
                let mut bits = || -> Vec<u32> {
                    let spread = [0x0fff, 0xffff, 0x83ff, 0xc7ff][round % 4];
                    let draw = |_| u32::from(random.u16(..)) & spread;
                    (0..16).map(draw).collect()
                };
                let (a, b) = (bits(), bits());
                let c = match round % 3 {
                    0 => 0,
                    1 => random.u32(..),
                    _ => random.f32().to_bits(),
                };
                let line = |bits: &[u32], negated| Line::new(format, bits.iter().copied(), negated);
                for negated in [false, true] {
                    let (x, y) = (line(&a, negated), line(&b, false));
                    let sum = |c: Number| {
                        let mut sum = Sum::new(c, 16);
                        let flip = if negated { 0x8000 } else { 0 };
                        for (a, b) in a.iter().zip(&b) {
                            sum.add(format.decode(a ^ flip).times(format.decode(*b)));
                        }
                        sum
                    };
                    assert_eq!(
                        x.dot_f32(&y, c, FRACTION),
                        sum(Format::F32.decode(c)).to_f32()
                    );
                    let c = c & 0xffff;
                    assert_eq!(
                        x.dot_f16(&y, c, FRACTION),
                        sum(Format::F16.decode(c)).to_f16()
                    );
                }
            }
        }
    }

    /// A negative sum that the result's format cannot tell from zero gives +0.
    #[test]
    fn zeros_have_no_sign() {
        let line = |format, bits: u32| Line::new(format, [bits].into_iter(), false);
        let f16 = |a, b| line(Format::F16, a).dot_f16(&line(Format::F16, b), 0, FRACTION);
        assert_eq!(f16(0x8001, 0x3800), 0); // -2^-24 * 0.5: a tie, to even
        assert_eq!(f16(0x8001, 0x3801), 0x8001); // just beyond it
        let bf16 = |a, b| line(Format::BF16, a).dot_f32(&line(Format::BF16, b), 0, FRACTION);
        assert_eq!(bf16(0x8001, 0x377f), 0); // -2^-133, times nearly 2^-16: cut
        assert_eq!(bf16(0x8001, 0x3780), 0x8000_0001); // times 2^-16: the least that f32 holds
        let mut sum = Sum::new(Format::F16.decode(0x8000), 1);
        sum.add(Format::F16.decode(0x8001).times(Format::F16.decode(0x3800)));
        assert_eq!(sum.to_f16(), 0);
    }

    /// Zero times a large element has a large exponent, and counts for nothing.
    #[test]
    fn zeros_do_not_count_whatever_their_exponents() {
        let bf16 = |bits| Format::BF16.decode(bits);
        let one = bf16(0x3f80);
        let mut sum = Sum::new(Format::F32.decode(0), 3);
        sum.add(one.times(one));
        sum.add(bf16(0x7f00).times(bf16(0))); // 2^127 * 0
        sum.add(bf16(0x0001).times(one)); // a subnormal: cut away
        assert_eq!(sum.to_f32(), 1f32.to_bits());
        // Too far above the others to be aligned to them.
        let mut sum = Sum::new(Format::F32.decode(0), 3);
        sum.add(bf16(0x0040).times(one)); // 2^-127
        sum.add(bf16(0x7f00).times(bf16(0)));
        assert_eq!(sum.to_f32(), 0x0040_0000);
    }
}
