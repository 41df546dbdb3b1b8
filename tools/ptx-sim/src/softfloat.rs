//! The binary formats, the values of their codes, and exact rounding into them.
//!
//! Every operation computes its exact result as a finite f64 and, where f64 cannot hold it, as
//! that f64 rounded to odd: the last bit stands for everything below. f64 has at least two bits
//! more than any format here, so one further rounding gives the correctly rounded result.

mod wide;

pub use wide::{add_f64, div_f64, fma_f64, mul_f64, sqrt_f64};

/// Rounding modes of float results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Round {
    /// To nearest, ties to even.
    Nearest,
    /// To nearest, ties away from zero.
    NearestAway,
    /// Toward zero.
    Zero,
    /// Toward negative infinity.
    Down,
    /// Toward positive infinity.
    Up,
}

/// Contents of the top of a format's range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Specials {
    /// IEEE: the largest exponent is for infinity and NaN.
    Ieee,
    /// Only the largest code is NaN, and nothing is infinite (E4M3).
    OneNan,
    /// Every code is finite (FP6 and FP4).
    Finite,
}

/// A binary float format of at most 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
    specials: Specials,
    /// The NaN that arithmetic produces.
    pub nan: u32,
}

/// binary32.
pub const F32: Format = Format::of(8, 23, Specials::Ieee, 0x7fff_ffff);
/// binary16.
pub const F16: Format = Format::of(5, 10, Specials::Ieee, 0x7fff);
/// bfloat16.
pub const BF16: Format = Format::of(8, 7, Specials::Ieee, 0x7fff);
/// tf32 in its own 19 bits.
pub const TF32: Format = Format::of(8, 10, Specials::Ieee, 0x3ffff);
/// E4M3 without infinity.
pub const E4M3: Format = Format::of(4, 3, Specials::OneNan, 0x7f);
/// E5M2 with infinity.
pub const E5M2: Format = Format::of(5, 2, Specials::Ieee, 0x7f);
/// E3M2, all codes finite. `nan` of such formats is the code that a NaN converts to: the largest value.
pub const E3M2: Format = Format::of(3, 2, Specials::Finite, 0x1f);
/// E2M3, all codes finite.
pub const E2M3: Format = Format::of(2, 3, Specials::Finite, 0x1f);
/// E2M1, all codes finite.
pub const E2M1: Format = Format::of(2, 1, Specials::Finite, 0x7);

/// Twice the values of E2M1.
pub const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// UE4M3: E4M3 without a sign. The top bit is padding and must be 0; `None` if it is not.
pub fn ue4m3(bits: u8) -> Option<f64> {
    (bits < 0x80).then(|| E4M3.to_f64(bits.into()))
}

/// UE8M0: a power of two from 2^-127; 255 is NaN.
pub fn ue8m0(bits: u8) -> f64 {
    if bits == u8::MAX {
        return f64::NAN;
    }
    f64::from_bits((u64::from(bits) + 1023 - 127) << 52)
}

impl Format {
    const fn of(exponent_bits: u32, mantissa_bits: u32, specials: Specials, nan: u32) -> Self {
        Self {
            exponent_bits,
            mantissa_bits,
            specials,
            nan,
        }
    }

    fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    /// The exponent of subnormal numbers.
    pub(crate) fn least_exponent(self) -> i32 {
        1 - self.bias()
    }

    /// The exponent that a number's code says: that of its leading bit, but for zero and subnormal ones, which have the
    /// least.
    #[inline]
    pub(crate) fn exponent(self, x: f64) -> i32 {
        ((x.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(self.least_exponent())
    }

    /// The bit that says that a number is negative.
    pub(crate) fn sign_bit(self) -> u32 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    /// Code of the largest finite magnitude.
    pub fn max_finite(self) -> u32 {
        let all = self.sign_bit() - 1;
        match self.specials {
            Specials::Ieee => all - (1 << self.mantissa_bits),
            Specials::OneNan => all - 1,
            Specials::Finite => all,
        }
    }

    /// Code of infinity, if there is one.
    fn infinity(self) -> Option<u32> {
        (self.specials == Specials::Ieee)
            .then_some(((1 << self.exponent_bits) - 1) << self.mantissa_bits)
    }

    /// Whether a code is NaN.
    pub fn is_nan(self, bits: u32) -> bool {
        let magnitude = bits & (self.sign_bit() - 1);
        match self.specials {
            Specials::Ieee => magnitude > self.max_finite() + 1,
            Specials::OneNan => magnitude == self.sign_bit() - 1,
            Specials::Finite => false,
        }
    }

    /// The value of a code, exactly.
    #[inline(always)]
    pub fn to_f64(self, bits: u32) -> f64 {
        match self.normal(bits) {
            Some((x, _)) => x,
            None => self.special_to_f64(bits),
        }
    }

    /// Value and exponent of most numbers: of codes with another exponent than the least, which zeros and subnormal ones
    /// have, and than the largest, which has NaN and infinities in most formats.
    #[inline(always)]
    pub(crate) fn normal(self, bits: u32) -> Option<(f64, i32)> {
        let (m, sign) = (self.mantissa_bits, self.sign_bit());
        let exponent = (bits & (sign - 1)) >> m;
        if exponent == 0 || exponent == (sign - 1) >> m {
            return None;
        }
        let magnitude = u64::from(bits & (sign - 1)) << (52 - m);
        let negative = u64::from(bits & sign != 0) << 63;
        let x = negative | (magnitude + ((1023 - self.bias()) as u64 * (1 << 52)));
        Some((f64::from_bits(x), exponent as i32 - self.bias()))
    }

    /// As [`to_f64`](Self::to_f64), of any code.
    fn special_to_f64(self, bits: u32) -> f64 {
        let m = self.mantissa_bits;
        let sign = if bits & self.sign_bit() != 0 {
            1u64 << 63
        } else {
            0
        };
        let magnitude = bits & (self.sign_bit() - 1);
        if self.is_nan(bits) {
            return f64::NAN;
        }
        if Some(magnitude) == self.infinity() {
            return f64::from_bits(sign | f64::INFINITY.to_bits());
        }
        let exponent = (magnitude >> m) as i32;
        let mantissa = u64::from(magnitude & ((1 << m) - 1));
        if exponent == 0 {
            // Exact: at most 23 bits times a power of two that f64 holds.
            let step = f64::from_bits(((1023 + 1 - self.bias() - m as i32) as u64) << 52);
            return f64::from_bits((mantissa as f64 * step).to_bits() | sign);
        }
        let e = (exponent - self.bias() + 1023) as u64;
        f64::from_bits(sign | e << 52 | mantissa << (52 - m))
    }

    /// Rounds `x` into the format. NaN gives [`Format::nan`]. With `saturate`, a value beyond the largest finite one
    /// becomes that largest value, infinity included.
    #[inline]
    pub fn round(self, x: f64, mode: Round, saturate: bool) -> u32 {
        let bits = x.to_bits();
        let negative = bits >> 63 != 0;
        let sign = if negative { self.sign_bit() } else { 0 };
        let magnitude = bits & (u64::MAX >> 1);
        if magnitude > 0x7ff0_0000_0000_0000 {
            return self.nan;
        }
        if magnitude == 0 {
            return sign;
        }
        let top = if saturate { None } else { self.infinity() };
        if magnitude == 0x7ff0_0000_0000_0000 {
            return sign | top.unwrap_or(self.max_finite());
        }
        // x = mantissa * 2^(exponent - 52), mantissa with its leading one at bit 52 unless x is subnormal in f64. A
        // subnormal lies below half of every format's smallest value anyway.
        let raw = (magnitude >> 52) as i32;
        let mantissa = magnitude & 0x000f_ffff_ffff_ffff | if raw == 0 { 0 } else { 1 << 52 };
        let exponent = raw.max(1) - 1023;
        let lowest = self.least_exponent();
        // Bits below the format's last place.
        let shift = 52 - self.mantissa_bits + (lowest - exponent).max(0) as u32;
        let (kept, rest, half) = if shift >= 63 {
            (0, 1, 2) // below half of the smallest value
        } else {
            (
                mantissa >> shift,
                mantissa & ((1 << shift) - 1),
                1u64 << (shift - 1),
            )
        };
        let up = match mode {
            Round::Nearest => rest > half || (rest == half && kept & 1 == 1),
            Round::NearestAway => rest >= half,
            Round::Zero => false,
            Round::Down => negative && rest != 0,
            Round::Up => !negative && rest != 0,
        };
        // A carry out of the mantissa runs into the exponent field, which is what it should do.
        let biased = (exponent.max(lowest) - lowest) as u64;
        let code = kept + (biased << self.mantissa_bits) + u64::from(up);
        if code > u64::from(self.max_finite()) {
            let toward_zero = match mode {
                Round::Zero => true,
                Round::Down => !negative,
                Round::Up => negative,
                Round::Nearest | Round::NearestAway => false,
            };
            return sign
                | if toward_zero {
                    self.max_finite()
                } else {
                    top.unwrap_or(self.max_finite())
                };
        }
        sign | code as u32
    }
}

/// `s + e` where `s` is the f64 nearest to the exact sum, rounded to odd.
fn odd(s: f64, e: f64) -> f64 {
    if e == 0.0 || !s.is_finite() || s.to_bits() & 1 == 1 {
        return s;
    }
    // The exact value lies between s and its neighbour toward e; that neighbour is odd.
    let toward_larger_magnitude = (s > 0.0) == (e > 0.0);
    f64::from_bits(if toward_larger_magnitude {
        s.to_bits() + 1
    } else {
        s.to_bits() - 1
    })
}

/// `a + b` rounded to odd, for values far from f64's limits.
pub fn add_odd(a: f64, b: f64) -> f64 {
    let s = a + b;
    if !s.is_finite() || s == 0.0 {
        return s;
    }
    // Knuth's two-sum: the error of the addition, exactly.
    let bb = s - a;
    odd(s, (a - (s - bb)) + (b - bb))
}

/// `a * b + c` rounded to odd, for a product that f64 holds exactly.
pub fn fma_odd(a: f64, b: f64, c: f64) -> f64 {
    add_odd(a * b, c)
}

/// `a / b` rounded to odd, for values of f32.
pub fn div_odd(a: f64, b: f64) -> f64 {
    let q = a / b;
    if !q.is_finite() || q == 0.0 {
        return q;
    }
    // The remainder is exact, and its sign against the divisor's says where the quotient lies.
    let rest = (-q).mul_add(b, a);
    odd(q, if b < 0.0 { -rest } else { rest })
}

/// Square root rounded to odd, of a value of f32.
pub fn sqrt_odd(x: f64) -> f64 {
    let s = x.sqrt();
    if !s.is_finite() || s == 0.0 {
        return s;
    }
    odd(s, (-s).mul_add(s, x))
}

/// An integer as f64, rounded to odd.
pub fn int_odd(negative: bool, magnitude: u64) -> f64 {
    let extra = (64 - magnitude.leading_zeros()).saturating_sub(53);
    let kept = magnitude >> extra;
    let sticky = u64::from(extra > 0 && magnitude & ((1 << extra) - 1) != 0);
    let v = (kept | sticky) as f64 * (1u64 << extra) as f64;
    if negative { -v } else { v }
}

/// Exact zero sums take their sign from the rounding mode: negative when rounding down.
pub fn signed_zero_sum(sum: f64, a: f64, b: f64, mode: Round) -> f64 {
    if sum == 0.0 && mode == Round::Down && (a.is_sign_negative() || b.is_sign_negative()) {
        return -0.0;
    }
    sum
}

/// Smaller or larger; -0 is below +0; a NaN loses unless `nan` lets it win.
pub(crate) fn extreme(a: f32, b: f32, max: bool, nan: bool) -> f32 {
    if a.is_nan() || b.is_nan() {
        return match (nan, a.is_nan(), b.is_nan()) {
            (false, false, _) => a,
            (false, _, false) => b,
            _ => f32::NAN,
        };
    }
    let a_first = if a == b { a.is_sign_negative() } else { a < b };
    if a_first != max { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_code_of_16_bits_and_less_comes_back() {
        for f in [F16, BF16, E4M3, E5M2, E3M2, E2M3, E2M1] {
            for bits in 0..f.sign_bit() * 2 {
                if f.is_nan(bits) {
                    assert!(f.to_f64(bits).is_nan());
                } else {
                    for mode in [Round::Nearest, Round::Zero, Round::Down, Round::Up] {
                        assert_eq!(f.round(f.to_f64(bits), mode, false), bits, "{f:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn known_values() {
        assert_eq!(E4M3.max_finite(), 0x7e);
        assert_eq!(E4M3.to_f64(0x7e), 448.0);
        assert_eq!(E4M3.to_f64(1), 1.0 / 512.0);
        assert_eq!(E2M1.to_f64(0xf), -6.0);
        assert_eq!(E2M1.round(5.0, Round::Nearest, true), 0x6); // tie, to 4
        assert_eq!(E2M1.round(0.25, Round::Nearest, true), 0); // tie, to 0
        assert_eq!(E2M1.round(1e9, Round::Nearest, true), 7);
        assert_eq!(E4M3.round(1e9, Round::Nearest, true), 0x7e);
        assert_eq!(F16.round(65520.0, Round::Nearest, false), 0x7c00);
        assert_eq!(F16.round(65520.0, Round::Zero, false), 0x7bff);
        assert_eq!(F32.round(1e-60, Round::Up, false), 1);
        assert_eq!(F32.round(-1e-60, Round::Up, false), 1 << 31);
        let all: Vec<f64> = (0..8).map(|code| E2M1.to_f64(code)).collect();
        assert_eq!(all, [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
        for (code, doubled) in (0..).zip(E2M1_DOUBLED) {
            assert_eq!(E2M1.to_f64(code) * 2.0, f64::from(doubled));
        }
        assert!(E4M3.to_f64(0xff).is_nan() && E4M3.to_f64(0x7f).is_nan());
        assert_eq!(
            (E5M2.to_f64(0x7b), E5M2.to_f64(1)),
            (57344.0, 1.0 / 65536.0)
        );
        assert!(E5M2.to_f64(0xfc) == f64::NEG_INFINITY && E5M2.to_f64(0x7d).is_nan());
        let e2m3 = [0x1f, 1, 0x20].map(|code| E2M3.to_f64(code));
        assert_eq!(e2m3, [7.5, 0.125, 0.0]);
        assert_eq!((E3M2.to_f64(0x1f), E3M2.to_f64(1)), (28.0, 0.0625));
        assert_eq!((ue8m0(127), ue8m0(0)), (1.0, 2f64.powi(-127)));
        assert!(ue8m0(255).is_nan());
        assert_eq!((ue4m3(0x38), ue4m3(0x80)), (Some(1.0), None));
    }

    proptest! {
        #[test]
        fn f32_and_halves_agree_with_other_implementations(x: f64) {
            if !x.is_nan() {
                prop_assert_eq!(F32.round(x, Round::Nearest, false), (x as f32).to_bits());
                prop_assert_eq!(F16.round(x, Round::Nearest, false),
                    u32::from(half::f16::from_f64(x).to_bits()));
                prop_assert_eq!(BF16.round(x, Round::Nearest, false),
                    u32::from(half::bf16::from_f64(x).to_bits()));
            }
        }

        #[test]
        fn odd_sums_round_as_one_operation(a: f32, b: f32, c: f32) {
            let (x, y, z) = (f64::from(a), f64::from(b), f64::from(c));
            let got = F32.round(add_odd(x, y), Round::Nearest, false);
            if !(a + b).is_nan() {
                prop_assert_eq!(got, (a + b).to_bits());
            }
            let want = a.mul_add(b, c);
            if !want.is_nan() {
                prop_assert_eq!(F32.round(fma_odd(x, y, z), Round::Nearest, false), want.to_bits());
            }
        }

        #[test]
        fn directed_roundings_bracket(x in -1e38f64..1e38) {
            let v = |m| F32.to_f64(F32.round(x, m, false));
            prop_assert!(v(Round::Down) <= x && x <= v(Round::Up));
            prop_assert!(v(Round::Zero).abs() <= x.abs());
        }

        #[test]
        fn integers(v: u64) {
            let bits = F32.round(int_odd(false, v), Round::Nearest, false);
            prop_assert_eq!(bits, (v as f32).to_bits());
        }
    }
}
