//! Numbers and sums of the warp-level tensor core: products are exact, and a sum aligns its terms
//! to the largest of them. How many places are kept is said in [`sums`](super::sums).

use crate::softfloat::{F16, Format, Round, ue8m0};

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
    /// An integer times a power of two, whose exponent is 0.
    pub(super) fn whole(value: i64, unit: i32) -> Self {
        Self::Finite {
            negative: value < 0,
            magnitude: value.abs(),
            exponent: 0,
            unit,
        }
    }

    /// The number that a code of a format is.
    pub(super) fn of(format: Format, code: u32) -> Self {
        Self::of_value(format.to_f64(code), format.least_exponent())
    }

    /// The number of a format that has this value; `least` is the exponent of its subnormal numbers.
    pub(super) fn of_value(x: f64, least: i32) -> Self {
        if x.is_nan() {
            return Self::Nan;
        }
        let negative = x.is_sign_negative();
        if x.is_infinite() {
            return Self::Infinite { negative };
        }
        let (field, mantissa) = (x.to_bits() >> 52 & 0x7ff, x.to_bits() & ((1 << 52) - 1));
        // No format here has numbers that are subnormal in f64.
        if field == 0 {
            return Self::Finite {
                negative,
                magnitude: 0,
                exponent: least,
                unit: least,
            };
        }
        let (exponent, magnitude) = (field as i32 - 1023, (mantissa | 1 << 52) as i64);
        let zeros = magnitude.trailing_zeros();
        Self::Finite {
            negative,
            magnitude: magnitude >> zeros,
            exponent: exponent.max(least),
            unit: exponent - 52 + zeros as i32,
        }
    }

    /// The exact sum of products of FP4, whose units lie close together; its exponent is 0.
    pub(super) fn exact_sum(numbers: impl Iterator<Item = Self>) -> Self {
        const UNIT: i32 = -2;
        let mut sum = 0i64;
        for number in numbers {
            match number {
                Self::Finite {
                    negative,
                    magnitude,
                    unit,
                    ..
                } if magnitude == 0 || unit >= UNIT => {
                    let value = if magnitude == 0 {
                        0
                    } else {
                        magnitude << (unit - UNIT)
                    };
                    sum += if negative { -value } else { value };
                }
                // No FP4 code, or none that this function is for.
                _ => return Self::Nan,
            }
        }
        Self::whole(sum, UNIT)
    }

    /// A block scale of type UE8M0.
    pub(super) fn power_of_two(bits: u8) -> Self {
        Self::of_value(ue8m0(bits), -127)
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
    fraction: i32,
    /// The largest exponent is this at least.
    reached: i32,
}

/// Result of a sum, before it is rounded.
enum Total {
    Nan,
    Infinite(bool),
    Finite(f64),
}

impl Sum {
    /// A sum of one term, with room for as many more. Terms are cut `fraction` bits below the largest exponent.
    pub(super) fn new(first: Number, more: usize, fraction: i32) -> Self {
        let mut terms = Vec::with_capacity(1 + more);
        terms.push(first);
        Self {
            terms,
            fraction,
            reached: i32::MIN,
        }
    }

    /// Makes the largest exponent this at least.
    pub(super) fn reach(&mut self, exponent: i32) {
        self.reached = self.reached.max(exponent);
    }

    /// Adds a block's sum. Its exponent counts as that of its scale, also if the sum is zero; but not if the scale is.
    pub(super) fn add_block(&mut self, sum: Number, scale: Number) {
        if let Number::Finite {
            magnitude: 1..,
            exponent,
            ..
        } = scale
        {
            self.reach(exponent);
        }
        self.terms.push(sum);
    }

    pub(super) fn add(&mut self, term: Number) {
        self.terms.push(term);
    }

    /// Terms are cut, toward zero, to `fraction` bits below the largest exponent, and added exactly.
    fn total(&self) -> Total {
        let mut infinite = None;
        let mut largest = self.reached;
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
        let place = largest - self.fraction;
        let mut sum = 0i64;
        for t in &self.terms {
            if let Number::Finite {
                negative,
                magnitude,
                unit,
                ..
            } = *t
            {
                // At most 27 bits remain in 25 places: a product is below 4 times its exponent's power. A block of 16
                // products of FP4 is below 2^12 times it: 47 bits in 35 places. Zeros may lie beyond all others.
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

    /// The sum in the format of D.
    pub(super) fn to(&self, format: Format) -> u32 {
        match self.total() {
            Total::Nan => format.nan,
            Total::Infinite(negative) => {
                let sign = if negative { -1.0 } else { 1.0 };
                format.round(sign * f64::INFINITY, Round::Nearest, false)
            }
            Total::Finite(x) => finish(x, format),
        }
    }
}

/// Rounds a sum: to nearest in f16, and cuts it toward zero in f32. A value of 2^128 or more in magnitude is infinite
/// all the same. A sum that becomes zero is +0, also if the sum is negative.
pub(super) fn finish(x: f64, format: Format) -> u32 {
    let mode = match format == F16 || x.abs() >= 2f64.powi(128) {
        true => Round::Nearest,
        false => Round::Zero,
    };
    match format.round(x, mode, false) {
        bits if bits == format.sign_bit() => 0,
        bits => bits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::softfloat::{BF16, F32};

    /// Zero times a large element has a large exponent, and counts for nothing.
    #[test]
    fn zeros_do_not_count_whatever_their_exponents() {
        let bf16 = |bits| Number::of(BF16, bits);
        let one = bf16(0x3f80);
        let mut sum = Sum::new(Number::of(F32, 0), 3, 25);
        sum.add(one.times(one));
        sum.add(bf16(0x7f00).times(bf16(0))); // 2^127 * 0
        sum.add(bf16(0x0001).times(one)); // a subnormal: cut away
        assert_eq!(sum.to(F32), 1f32.to_bits());
        // Too far above the others to be aligned to them.
        let mut sum = Sum::new(Number::of(F32, 0), 3, 25);
        sum.add(bf16(0x0040).times(one)); // 2^-127
        sum.add(bf16(0x7f00).times(bf16(0)));
        assert_eq!(sum.to(F32), 0x0040_0000);
    }
}
