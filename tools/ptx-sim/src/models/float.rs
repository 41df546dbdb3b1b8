//! The small floating-point formats of the tensor cores, decoded exactly.
//!
//! Source: PTX ISA "Alternate Floating-Point Data Formats" and the OCP microscaling formats
//! it names. All values of all these formats are exact in f32, except UE8M0's 2^-127, which
//! is an f32 subnormal and exact too.

/// A decoder from bits to value.
fn decode(bits: u32, exp_bits: u32, man_bits: u32) -> f64 {
    let exp_mask = (1 << exp_bits) - 1;
    let bias = (1 << (exp_bits - 1)) - 1;
    let man = bits & ((1 << man_bits) - 1);
    let exp = (bits >> man_bits) & exp_mask;
    let negative = bits >> (exp_bits + man_bits) & 1 == 1;
    let (significand, power) = if exp == 0 {
        (man, 1 - bias)
    } else {
        (man | 1 << man_bits, exp as i32 - bias)
    };
    let magnitude = f64::from(significand) * exp2(power - man_bits as i32);
    if negative { -magnitude } else { magnitude }
}

/// 2 to an integer power in the normal range of f64.
fn exp2(power: i32) -> f64 {
    f64::from_bits(((power + 1023) as u64) << 52)
}

/// E2M1 (4 bits; the upper bits of the argument are ignored).
pub fn e2m1(bits: u8) -> f64 {
    decode(u32::from(bits & 0xf), 2, 1)
}

/// Twice an E2M1 value, an integer in -12..=12.
pub fn e2m1_doubled(bits: u8) -> i8 {
    const MAGNITUDE: [i8; 8] = [0, 1, 2, 3, 4, 6, 8, 12];
    let m = MAGNITUDE[usize::from(bits & 7)];
    if bits & 8 != 0 { -m } else { m }
}

/// E2M3 (6 bits), no infinity and no NaN.
pub fn e2m3(bits: u8) -> f64 {
    decode(u32::from(bits & 0x3f), 2, 3)
}

/// E3M2 (6 bits), no infinity and no NaN.
pub fn e3m2(bits: u8) -> f64 {
    decode(u32::from(bits & 0x3f), 3, 2)
}

/// E4M3: no infinity; all ones below the sign is NaN.
pub fn e4m3(bits: u8) -> f64 {
    if bits & 0x7f == 0x7f {
        f64::NAN
    } else {
        decode(u32::from(bits), 4, 3)
    }
}

/// E5M2: IEEE-like infinities and NaNs.
pub fn e5m2(bits: u8) -> f64 {
    match bits & 0x7f {
        0x7c if bits & 0x80 == 0 => f64::INFINITY,
        0x7c => f64::NEG_INFINITY,
        0x7d..=0x7f => f64::NAN,
        _ => decode(u32::from(bits), 5, 2),
    }
}

/// UE4M3: E4M3 without a sign. The top bit is padding and must be 0; `None` if it is not.
pub fn ue4m3(bits: u8) -> Option<f64> {
    (bits < 0x80).then(|| e4m3(bits))
}

/// UE8M0: a power of two from 2^-127; 255 is NaN.
pub fn ue8m0(bits: u8) -> f64 {
    if bits == 0xff {
        f64::NAN
    } else {
        exp2(i32::from(bits) - 127)
    }
}

/// TF32 in a 32-bit container: the low 13 bits are ignored.
pub fn tf32(bits: u32) -> f64 {
    f64::from(f32::from_bits(bits & 0xffff_e000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        let all: Vec<f64> = (0..8).map(e2m1).collect();
        assert_eq!(all, [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
        for b in 0..16 {
            assert_eq!(e2m1(b) * 2.0, f64::from(e2m1_doubled(b)));
        }
        assert_eq!((e4m3(0x7e), e4m3(1), e4m3(0x38)), (448.0, 1.0 / 512.0, 1.0));
        assert!(e4m3(0xff).is_nan() && e4m3(0x7f).is_nan());
        assert_eq!((e5m2(0x7b), e5m2(1)), (57344.0, 1.0 / 65536.0));
        assert!(e5m2(0xfc) == f64::NEG_INFINITY && e5m2(0x7d).is_nan());
        assert_eq!((e2m3(0x1f), e2m3(1), e2m3(0x20)), (7.5, 0.125, 0.0));
        assert_eq!((e3m2(0x1f), e3m2(1)), (28.0, 0.0625));
        assert_eq!((ue8m0(127), ue8m0(0)), (1.0, 2f64.powi(-127)));
        assert!(ue8m0(255).is_nan());
        assert_eq!(ue4m3(0x80), None);
        assert_eq!(tf32(0x3f80_1fff), 1.0);
        assert_eq!(tf32(0x3f80_2000), 1.0 + 2f64.powi(-10));
    }
}
