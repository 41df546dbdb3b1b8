//! The two number formats of NVFP4, code by code: E2M1 values and E4M3 block scales.
//!
//! Source: OCP Microscaling Formats (MX) v1.0 for E2M1, OCP 8-bit Floating Point (OFP8) v1.0
//! for E4M3.

/// 4-bit floating point: sign, 2 exponent bits (bias 1), 1 mantissa bit. No infinity, no NaN.
pub mod e2m1 {
    /// The value of every code. Code 8 is negative zero.
    pub const VALUES: [f32; 16] = [
        0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
    ];

    /// The largest magnitude.
    pub const MAX: f32 = 6.0;

    /// The value of the low 4 bits of `code`.
    pub const fn decode(code: u8) -> f32 {
        VALUES[(code & 15) as usize]
    }

    /// The nearest code, ties to the even mantissa, saturating at ±6. The sign of zero is kept;
    /// NaN becomes +6, as `cvt.rn.satfinite.e2m1x2.f32` does.
    ///
    /// ```
    /// use nvfp4_gemv::format::e2m1::{decode, encode};
    /// assert_eq!(decode(encode(2.5)), 2.0); // a tie goes to the even mantissa
    /// assert_eq!(decode(encode(-100.0)), -6.0);
    /// ```
    pub fn encode(x: f32) -> u8 {
        if x.is_nan() {
            return 7;
        }
        let a = x.abs();
        // The boundary between two codes is their midpoint; at a tie the even code wins, which
        // decides whether the comparison includes it.
        let magnitude = (a > 0.25) as u8
            + (a >= 0.75) as u8
            + (a > 1.25) as u8
            + (a >= 1.75) as u8
            + (a > 2.5) as u8
            + (a >= 3.5) as u8
            + (a > 5.0) as u8;
        magnitude | (x.is_sign_negative() as u8) << 3
    }

    /// Element `index` of packed codes: two a byte, the even index in the low nibble.
    pub const fn unpack(bytes: &[u8], index: usize) -> u8 {
        bytes[index / 2] >> (index % 2 * 4) & 15
    }

    /// Packs codes two a byte, the even index in the low nibble. An odd last code gets a zero.
    pub fn pack(codes: impl IntoIterator<Item = u8>) -> Vec<u8> {
        let mut codes = codes.into_iter();
        let mut bytes = Vec::with_capacity(codes.size_hint().0.div_ceil(2));
        while let Some(low) = codes.next() {
            bytes.push(low & 15 | codes.next().unwrap_or(0) << 4);
        }
        bytes
    }
}

/// 8-bit floating point: sign, 4 exponent bits (bias 7), 3 mantissa bits (`e4m3fn`).
/// No infinity; NaN is 0x7F and 0xFF.
pub mod e4m3 {
    /// The largest finite value.
    pub const MAX: f32 = 448.0;

    /// The smallest positive value, a subnormal.
    pub const MIN_POSITIVE: f32 = 1.0 / 512.0;

    /// The value of a code.
    pub const fn decode(code: u8) -> f32 {
        if is_nan(code) {
            return f32::NAN;
        }
        let sign = (code as u32 & 0x80) << 24;
        let magnitude = code as u32 & 0x7f;
        // A subnormal is its mantissa times 2^-9; a normal code is an f32 with a shorter exponent
        // and mantissa, its bias 120 less.
        if magnitude < 8 {
            return f32::from_bits((magnitude as f32 * MIN_POSITIVE).to_bits() | sign);
        }
        f32::from_bits(((magnitude << 20) + (120 << 23)) | sign)
    }

    /// Whether a code is NaN.
    pub const fn is_nan(code: u8) -> bool {
        code & 0x7f == 0x7f
    }

    /// The nearest code, ties to even, saturating at ±448 (infinities too). The sign of zero is
    /// kept; NaN becomes 0x7F, as `cvt.rn.satfinite.e4m3x2.f32` does.
    ///
    /// ```
    /// use nvfp4_gemv::format::e4m3::{decode, encode};
    /// assert_eq!(decode(encode(1.06)), 1.0);
    /// assert_eq!(decode(encode(1e9)), 448.0);
    /// ```
    pub fn encode(x: f32) -> u8 {
        if x.is_nan() {
            return 0x7f;
        }
        let sign = ((x.to_bits() >> 24) & 0x80) as u8;
        let a = x.abs();
        if a >= MAX {
            return sign | 0x7e;
        }
        if a < 1.0 / 64.0 {
            // Subnormal: a multiple of 2^-9. The product is exact; 8 rolls over into the first
            // normal code, as it should.
            return sign | (a * 512.0).round_ties_even() as u8;
        }
        // Round the 23-bit mantissa to 3 bits; a carry moves into the exponent, as it should.
        let bits = a.to_bits() - (120 << 23);
        let rounded = bits + 0x7ffff + (bits >> 20 & 1);
        // 0x7f would be NaN; values that round there are past the midpoint to the absent 480.
        sign | ((rounded >> 20) as u8).min(0x7e)
    }
}

#[cfg(test)]
mod tests {
    use super::{e2m1, e4m3};
    use proptest::prelude::*;

    /// Value of a minifloat, straight from the definition.
    fn by_definition(code: u8, exponent_bits: u32, mantissa_bits: u32, bias: i32) -> f64 {
        let sign = if code >> (exponent_bits + mantissa_bits) & 1 == 1 {
            -1.0
        } else {
            1.0
        };
        let e = i32::from(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
        let m = f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1u8 << mantissa_bits);
        let value = if e == 0 {
            m * 2f64.powi(1 - bias)
        } else {
            (1.0 + m) * 2f64.powi(e - bias)
        };
        sign * value
    }

    /// Every finite non-negative code with its value, in ascending order.
    fn ladder(decode: fn(u8) -> f32, codes: u8) -> Vec<(u8, f64)> {
        (0..codes).map(|c| (c, f64::from(decode(c)))).collect()
    }

    /// Nearest code by exhaustive search, ties to the even code.
    fn nearest(x: f32, ladder: &[(u8, f64)], sign_bit: u8) -> u8 {
        // Past the largest code the answer does not change, but f64 differences would lose it.
        let a = f64::from(x.abs()).min(1000.0);
        let best = ladder
            .iter()
            .min_by(|p, q| {
                ((p.1 - a).abs(), p.0 & 1)
                    .partial_cmp(&((q.1 - a).abs(), q.0 & 1))
                    .unwrap()
            })
            .unwrap();
        best.0 | if x.is_sign_negative() { sign_bit } else { 0 }
    }

    #[test]
    fn e2m1_every_code() {
        for code in 0..16 {
            let value = e2m1::decode(code);
            assert_eq!(f64::from(value), by_definition(code, 2, 1, 1));
            assert_eq!(value.is_sign_negative(), code >= 8);
            assert_eq!(e2m1::encode(value), code);
        }
    }

    #[test]
    fn e4m3_every_code() {
        for code in 0..=255 {
            let value = e4m3::decode(code);
            if code & 0x7f == 0x7f {
                assert!(value.is_nan() && e4m3::is_nan(code));
                assert_eq!(e4m3::encode(value), 0x7f);
                continue;
            }
            assert_eq!(f64::from(value), by_definition(code, 4, 3, 7), "{code:#x}");
            assert_eq!(value.is_sign_negative(), code >= 0x80);
            assert_eq!(e4m3::encode(value), code);
        }
    }

    #[test]
    fn midpoints_and_their_neighbours() {
        for (ladder, encode, sign) in [
            (ladder(e2m1::decode, 8), e2m1::encode as fn(f32) -> u8, 8),
            (ladder(e4m3::decode, 127), e4m3::encode, 0x80),
        ] {
            for pair in ladder.windows(2) {
                let midpoint = ((pair[0].1 + pair[1].1) / 2.0) as f32;
                for x in [midpoint.next_down(), midpoint, midpoint.next_up()] {
                    assert_eq!(encode(x), nearest(x, &ladder, sign), "{x}");
                    assert_eq!(encode(-x), nearest(-x, &ladder, sign), "{x}");
                }
            }
        }
    }

    #[test]
    fn saturation_and_nan() {
        for x in [6.0, 7.0, 1e30, f32::INFINITY] {
            assert_eq!(e2m1::encode(x), 7);
            assert_eq!(e2m1::encode(-x), 15);
        }
        assert_eq!(e2m1::encode(f32::NAN), 7);
        for x in [448.0, 464.0, 465.0, 480.0, 1e30, f32::INFINITY] {
            assert_eq!(e4m3::encode(x), 0x7e);
            assert_eq!(e4m3::encode(-x), 0xfe);
        }
        assert_eq!(e4m3::encode(f32::from_bits(1)), 0);
        assert_eq!(e4m3::encode(-0.0), 0x80);
    }

    proptest! {
        #[test]
        fn encode_is_nearest(bits: u32, small in -8f32..8.0, wide in -500f32..500.0) {
            let e2m1_ladder = ladder(e2m1::decode, 8);
            let e4m3_ladder = ladder(e4m3::decode, 127);
            for x in [f32::from_bits(bits), small, wide, small / 256.0] {
                if !x.is_nan() {
                    prop_assert_eq!(e2m1::encode(x), nearest(x, &e2m1_ladder, 8));
                    prop_assert_eq!(e4m3::encode(x), nearest(x, &e4m3_ladder, 0x80));
                }
            }
        }

        #[test]
        fn packing(codes in prop::collection::vec(0u8..16, 0..50)) {
            let bytes = e2m1::pack(codes.iter().copied());
            for (i, &code) in codes.iter().enumerate() {
                prop_assert_eq!(e2m1::unpack(&bytes, i), code);
            }
        }
    }
}
