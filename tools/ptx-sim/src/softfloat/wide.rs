//! f64 arithmetic in every rounding mode, from exact integers.
//!
//! An exact result is an integer of 128 bits times a power of two; where 128 bits cannot hold it the
//! last bit stands for everything below. At least 60 bits more than f64 has remain above it.

use super::{Round, signed_zero_sum};

/// A finite value: magnitude times two to a power.
#[derive(Clone, Copy)]
struct Exact {
    negative: bool,
    magnitude: u128,
    exponent: i32,
}

impl Exact {
    fn of(x: f64) -> Self {
        let bits = x.to_bits();
        let field = (bits >> 52 & 0x7ff) as i32;
        let fraction = u128::from(bits & ((1 << 52) - 1));
        Self {
            negative: bits >> 63 == 1,
            magnitude: fraction | u128::from(field != 0) << 52,
            exponent: field.max(1) - 1075,
        }
    }

    /// This value with its leading one at bit `at`; bits that fall off below are noted in the last one.
    fn with_top(self, at: i32) -> Self {
        let top = 127 - self.magnitude.leading_zeros() as i32;
        self.shifted(at - top)
    }

    fn shifted(self, left: i32) -> Self {
        let magnitude = if left >= 0 {
            self.magnitude << left
        } else {
            let right = (-left) as u32;
            let kept = self.magnitude.checked_shr(right).unwrap_or(0);
            let lost = kept.checked_shl(right).unwrap_or(0) != self.magnitude;
            kept | u128::from(lost)
        };
        Self {
            magnitude,
            exponent: self.exponent - left,
            ..self
        }
    }

    fn plus(self, other: Self) -> Self {
        if self.magnitude == 0 {
            return other;
        }
        if other.magnitude == 0 {
            return self;
        }
        // Room for a carry on top. Bits fall off the smaller only where no more than one leading
        // bit can cancel.
        let (a, b) = (self.with_top(125), other.with_top(125));
        let (a, b) = if a.exponent >= b.exponent {
            (a, b)
        } else {
            (b, a)
        };
        let b = b.shifted(b.exponent - a.exponent);
        if a.negative == b.negative {
            return Self {
                magnitude: a.magnitude + b.magnitude,
                ..a
            };
        }
        Self {
            negative: a.negative != (b.magnitude > a.magnitude),
            magnitude: a.magnitude.abs_diff(b.magnitude),
            exponent: a.exponent,
        }
    }

    fn times(self, other: Self) -> Self {
        Self {
            negative: self.negative != other.negative,
            magnitude: self.magnitude * other.magnitude,
            exponent: self.exponent + other.exponent,
        }
    }

    fn round(self, mode: Round) -> f64 {
        let sign = u64::from(self.negative) << 63;
        if self.magnitude == 0 {
            return f64::from_bits(sign);
        }
        let top = 127 - self.magnitude.leading_zeros() as i32 + self.exponent;
        let last = (top - 52).max(-1074);
        let shift = last - self.exponent;
        let (kept, rest, half) = if shift <= 0 {
            (self.magnitude << -shift, 0, 1)
        } else if shift >= 127 {
            (0, 1, 2)
        } else {
            let half = 1u128 << (shift - 1);
            (
                self.magnitude >> shift,
                self.magnitude & (2 * half - 1),
                half,
            )
        };
        let up = match mode {
            Round::Nearest => rest > half || rest == half && kept & 1 == 1,
            Round::NearestAway => rest >= half,
            Round::Zero => false,
            Round::Down => self.negative && rest != 0,
            Round::Up => !self.negative && rest != 0,
        };
        // The leading one, or a carry, adds to the exponent field.
        let code = kept as u64 + u64::from(up) + ((i64::from(last) + 1074) as u64) * (1 << 52);
        let infinity = f64::INFINITY.to_bits();
        if last > 971 || code >= infinity {
            let toward_zero = match mode {
                Round::Zero => true,
                Round::Down => !self.negative,
                Round::Up => self.negative,
                Round::Nearest | Round::NearestAway => false,
            };
            return f64::from_bits(sign | (infinity - u64::from(toward_zero)));
        }
        f64::from_bits(sign | code)
    }
}

/// `a * b + c`, rounded once.
pub fn fma_f64(a: f64, b: f64, c: f64, mode: Round) -> f64 {
    let host = a.mul_add(b, c);
    if !(a.is_finite() && b.is_finite() && c.is_finite()) {
        return host;
    }
    let product = Exact::of(a).times(Exact::of(b));
    let sum = product.plus(Exact::of(c));
    if sum.magnitude == 0 {
        // Only the signs of the parts of an exact zero matter.
        let sign = if product.negative { -0.0 } else { 0.0 };
        return signed_zero_sum(host, sign, c, mode);
    }
    sum.round(mode)
}

/// `a + b`.
pub fn add_f64(a: f64, b: f64, mode: Round) -> f64 {
    if !(a.is_finite() && b.is_finite()) {
        return a + b;
    }
    let sum = Exact::of(a).plus(Exact::of(b));
    if sum.magnitude == 0 {
        return signed_zero_sum(a + b, a, b, mode);
    }
    sum.round(mode)
}

/// `a * b`.
pub fn mul_f64(a: f64, b: f64, mode: Round) -> f64 {
    if !(a.is_finite() && b.is_finite()) {
        return a * b;
    }
    Exact::of(a).times(Exact::of(b)).round(mode)
}

/// `a / b`.
pub fn div_f64(a: f64, b: f64, mode: Round) -> f64 {
    if !(a.is_finite() && b.is_finite()) || a == 0.0 || b == 0.0 {
        return a / b;
    }
    let (x, y) = (Exact::of(a).with_top(126), Exact::of(b).with_top(52));
    let (quotient, rest) = (x.magnitude / y.magnitude, x.magnitude % y.magnitude);
    Exact {
        negative: x.negative != y.negative,
        magnitude: quotient | u128::from(rest != 0),
        exponent: x.exponent - y.exponent,
    }
    .round(mode)
}

/// Square root.
pub fn sqrt_f64(a: f64, mode: Round) -> f64 {
    if !a.is_finite() || a <= 0.0 {
        return a.sqrt();
    }
    let mut x = Exact::of(a).with_top(126);
    if x.exponent % 2 != 0 {
        x = x.shifted(-1);
    }
    let root = x.magnitude.isqrt();
    Exact {
        negative: false,
        magnitude: root | u128::from(root * root != x.magnitude),
        exponent: x.exponent / 2,
    }
    .round(mode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DIRECTED: [Round; 3] = [Round::Down, Round::Zero, Round::Up];

    /// Down and up are `x` or its neighbours, in order, and zero is the one nearer to zero.
    fn brackets(nearest: f64, directed: [f64; 3], exact: bool) {
        if !nearest.is_finite() || nearest == 0.0 {
            return;
        }
        let [down, zero, up] = directed;
        assert!(down <= nearest && nearest <= up, "{down} {nearest} {up}");
        assert_eq!(zero, if nearest > 0.0 { down } else { up });
        if exact {
            assert_eq!((down, up), (nearest, nearest));
        } else if up.is_finite() && down.is_finite() {
            assert_eq!(down.next_up(), up);
        }
    }

    #[test]
    fn known_values() {
        assert_eq!(mul_f64(1.5, 1.5, Round::Up), 2.25);
        assert_eq!(add_f64(1.0, -1.0, Round::Down).to_bits(), 1 << 63);
        assert_eq!(add_f64(1.0, 1e-300, Round::Up), 1.0 + f64::EPSILON);
        assert_eq!(add_f64(1.0, -1e-300, Round::Zero), 1.0 - f64::EPSILON / 2.0);
        assert_eq!(mul_f64(f64::MAX, 2.0, Round::Zero), f64::MAX);
        assert_eq!(mul_f64(f64::MAX, -2.0, Round::Down), f64::NEG_INFINITY);
        assert_eq!(mul_f64(1e-300, 1e-300, Round::Up).to_bits(), 1);
        assert_eq!(mul_f64(1e-300, 1e-300, Round::Zero), 0.0);
        assert_eq!(div_f64(1.0, 3.0, Round::Up), (1.0 / 3.0f64).next_up());
        assert_eq!(div_f64(-1.0, 0.0, Round::Zero), f64::NEG_INFINITY);
        assert_eq!(sqrt_f64(9.0, Round::Down), 3.0);
        assert!(sqrt_f64(-1.0, Round::Up).is_nan());
        assert_eq!(fma_f64(3.0, 5.0, -15.0, Round::Down).to_bits(), 1 << 63);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn nearest_is_the_hosts(x: u64, y: u64, z: u64) {
            let [a, b, c] = [x, y, z].map(f64::from_bits);
            let n = Round::Nearest;
            for (got, want) in [
                (add_f64(a, b, n), a + b),
                (mul_f64(a, b, n), a * b),
                (div_f64(a, b, n), a / b),
                (sqrt_f64(a, n), a.sqrt()),
                (fma_f64(a, b, c, n), a.mul_add(b, c)),
            ] {
                prop_assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{a} {b} {c}: {got} {want}");
            }
        }

        #[test]
        fn close_operands_too(a in -4f64..4.0, b in -4f64..4.0, c in -16f64..16.0, scale in -60i32..60) {
            let c = c * 2f64.powi(scale);
            let n = Round::Nearest;
            prop_assert_eq!(fma_f64(a, b, c, n), a.mul_add(b, c));
            prop_assert_eq!(add_f64(a, c, n), a + c);
            brackets(a.mul_add(b, c), DIRECTED.map(|m| fma_f64(a, b, c, m)), false);
            let exact = (a + c) - c == a && (a + c) - a == c;
            brackets(a + c, DIRECTED.map(|m| add_f64(a, c, m)), exact);
            brackets(a / b, DIRECTED.map(|m| div_f64(a, b, m)), (a / b).mul_add(-b, a) == 0.0);
            let r = a.abs().sqrt();
            brackets(r, DIRECTED.map(|m| sqrt_f64(a.abs(), m)), r.mul_add(-r, a.abs()) == 0.0);
            brackets(a * b, DIRECTED.map(|m| mul_f64(a, b, m)), a.mul_add(b, -(a * b)) == 0.0);
        }
    }
}
