//! Types of matrix elements, and codes of small integers in them.

use std::fmt;

use serde::Serialize;

/// The type of a matrix's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Type {
    F32,
    F16,
    Bf16,
    Tf32,
    E4m3,
    E5m2,
    E3m2,
    E2m3,
    E2m1,
    S32,
    S8,
    U8,
    S4,
    U4,
    B1,
}

/// How a type's bits make a number.
enum Kind {
    /// Behind the sign: exponent and mantissa bits, and low bits that do not count.
    Float(u32, u32, u32),
    Signed,
    Unsigned,
}

impl Type {
    /// The name, the bits of an element, and what they mean.
    fn row(self) -> (&'static str, u32, Kind) {
        use Kind::{Float, Signed, Unsigned};
        match self {
            Self::F32 => ("f32", 32, Float(8, 23, 0)),
            Self::F16 => ("f16", 16, Float(5, 10, 0)),
            Self::Bf16 => ("bf16", 16, Float(8, 7, 0)),
            Self::Tf32 => ("tf32", 32, Float(8, 10, 13)),
            Self::E4m3 => ("e4m3", 8, Float(4, 3, 0)),
            Self::E5m2 => ("e5m2", 8, Float(5, 2, 0)),
            Self::E3m2 => ("e3m2", 6, Float(3, 2, 0)),
            Self::E2m3 => ("e2m3", 6, Float(2, 3, 0)),
            Self::E2m1 => ("e2m1", 4, Float(2, 1, 0)),
            Self::S32 => ("s32", 32, Signed),
            Self::S8 => ("s8", 8, Signed),
            Self::U8 => ("u8", 8, Unsigned),
            Self::S4 => ("s4", 4, Signed),
            Self::U4 => ("u4", 4, Unsigned),
            Self::B1 => ("b1", 1, Unsigned),
        }
    }

    /// The type as PTX writes it, without the dot.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// Bits of an element, without padding. TF32 is 19 bits, which always lie in 32.
    pub fn bits(self) -> u32 {
        self.row().1
    }

    fn kind(self) -> Kind {
        self.row().2
    }

    /// Whether the type is one of integers, single bits among them.
    pub fn is_integer(self) -> bool {
        !matches!(self.kind(), Kind::Float(..))
    }

    /// The code of an integer; `None` where the type does not have that number.
    pub fn encode(self, value: i64) -> Option<u32> {
        match self.kind() {
            Kind::Signed => {
                let limit = 1i64 << (self.bits() - 1);
                let mask = u32::MAX >> (32 - self.bits());
                (-limit..limit)
                    .contains(&value)
                    .then_some(value as u32 & mask)
            }
            Kind::Unsigned => (0..1i64 << self.bits())
                .contains(&value)
                .then_some(value as u32),
            Kind::Float(exponent, mantissa, ignored) => {
                if value == 0 {
                    return Some(0);
                }
                let magnitude = value.unsigned_abs();
                let power = magnitude.ilog2();
                // The largest exponent of IEEE formats says infinity; the narrow formats use it for numbers, E4M3
                // but for its last code, which is NaN.
                let top = match self {
                    Self::E3m2 | Self::E2m3 | Self::E2m1 | Self::E4m3 => (1 << exponent) - 1,
                    _ => (1 << exponent) - 2,
                };
                let field = power + (1 << (exponent - 1)) - 1;
                let fraction = magnitude - (1 << power);
                let shifted = if power > mantissa {
                    let below = power - mantissa;
                    if fraction & ((1 << below) - 1) != 0 {
                        return None;
                    }
                    fraction >> below
                } else {
                    fraction << (mantissa - power)
                } as u32;
                let is_nan = self == Self::E4m3 && field == top && shifted == (1 << mantissa) - 1;
                if field > top || is_nan {
                    return None;
                }
                let sign = u32::from(value < 0) << (exponent + mantissa);
                Some((sign | field << mantissa | shifted) << ignored)
            }
        }
    }

    /// A code made of random bits. Floats with many exponents are between 1/16 and 2 in magnitude.
    pub fn random(self, bits: u32) -> u32 {
        match self.kind() {
            Kind::Float(exponent, mantissa, ignored) if exponent > 3 => {
                let bias = (1 << (exponent - 1)) - 1;
                let field = bias - (bits >> 30) - (bits >> 29 & 1);
                let sign = bits >> 28 & 1;
                let fraction = bits & ((1 << mantissa) - 1);
                (sign << (exponent + mantissa) | field << mantissa | fraction) << ignored
            }
            _ => bits & (u32::MAX >> (32 - self.bits())),
        }
    }

    /// The integers that the type has, of magnitude up to `limit`, in order.
    pub fn integers(self, limit: i64) -> Vec<i64> {
        (-limit..=limit)
            .filter(|value| self.encode(*value).is_some())
            .collect()
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ptx_sim::softfloat::{E2M1, E2M3, E3M2, E4M3, E5M2};

    #[test]
    fn integers_of_wide_types() {
        for value in [-4i64, -1, 0, 1, 3, 100, 2047] {
            assert_eq!(Type::F32.encode(value), Some((value as f32).to_bits()));
            assert_eq!(Type::Tf32.encode(value), Some((value as f32).to_bits()));
            let f16 = half::f16::from_f32(value as f32);
            assert_eq!(Type::F16.encode(value), Some(f16.to_bits().into()));
        }
        let code = half::bf16::from_f32(-96.0).to_bits();
        assert_eq!(Type::Bf16.encode(-96), Some(code.into()));
        assert_eq!(Type::Bf16.encode(257), None);
        assert_eq!(Type::F16.encode(2049), None);
        assert_eq!(Type::F16.encode(65504), Some(0x7bff));
        assert_eq!(Type::F16.encode(65536), None);
    }

    /// The codes are those that the simulator's decoders, written for other tests, read as the same numbers.
    #[test]
    fn codes_of_narrow_types_are_the_simulators() {
        let formats = [
            (Type::E4m3, E4M3),
            (Type::E5m2, E5M2),
            (Type::E3m2, E3M2),
            (Type::E2m3, E2M3),
            (Type::E2m1, E2M1),
        ];
        for (ty, format) in formats {
            let decode = |code| format.to_f64(code);
            let codes = 1u32 << ty.bits();
            for value in -500i64..=500 {
                let has = (0..codes).any(|code| decode(code) == value as f64);
                match ty.encode(value) {
                    Some(code) => assert_eq!(decode(code), value as f64, "{ty}"),
                    None => assert!(!has, "{ty} has {value}"),
                }
            }
        }
    }

    #[test]
    fn random_numbers_are_finite_and_of_one_size() {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state
        };
        for _ in 0..1000 {
            let f16 = half::f16::from_bits(Type::F16.random(next()) as u16).to_f64();
            let tf32 = f64::from(f32::from_bits(Type::Tf32.random(next())));
            let e4m3 = E4M3.to_f64(Type::E4m3.random(next()));
            for value in [f16, tf32, e4m3] {
                assert!((0.0625..2.0).contains(&value.abs()), "{value}");
            }
            assert!(Type::S4.random(next()) < 16 && Type::E2m1.random(next()) < 16);
            assert!(Type::B1.random(next()) < 2);
        }
    }

    #[test]
    fn whole_numbers_of_narrow_types() {
        let of_e2m1 = [-6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6];
        assert_eq!(Type::E2m1.integers(9), of_e2m1);
        assert_eq!(Type::U4.integers(99), (0..16).collect::<Vec<_>>());
        assert_eq!(Type::S4.integers(99), (-8..8).collect::<Vec<_>>());
        assert_eq!(Type::B1.integers(9), [0, 1]);
        assert_eq!(Type::S8.encode(-128), Some(0x80));
    }
}
