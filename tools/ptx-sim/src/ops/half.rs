//! f16, f16x2, bf16 and bf16x2 arithmetic: section 9.7.4 of the ISA.
//!
//! Every operation is exact in f64, or rounded to odd there, and rounded once.

use super::first_type;
use crate::ast::Ty;
use crate::program::decode::{Cx, R};
use crate::program::{Alu, Op};
use crate::softfloat::{BF16, F16, Format, Round, add_odd, extreme, fma_odd};

#[derive(Clone, Copy)]
struct Mode {
    format: Format,
    ftz: bool,
    sat: bool,
    relu: bool,
}

impl Mode {
    fn input(self, v: u64) -> f64 {
        let bits = (v & 0xffff) as u32;
        // A conversion from a format that the compiler knows is a few instructions.
        let x = match self.format == BF16 {
            true => BF16.to_f64(bits),
            false => F16.to_f64(bits),
        };
        if self.ftz && bits & 0x7c00 == 0 {
            0f64.copysign(x)
        } else {
            x
        }
    }

    /// To nearest.
    fn round(self, x: f64) -> u32 {
        let fast = match self.format == BF16 {
            true => nearest_normal::<8, 7>(x),
            false => nearest_normal::<5, 10>(x),
        };
        fast.unwrap_or_else(|| self.format.round(x, Round::Nearest, false))
    }

    fn output(self, x: f64) -> u64 {
        if self.sat {
            // NaN and negatives, -0 included, become +0.
            let x = if x > 0.0 { x.min(1.0) } else { 0.0 };
            return self.flush(self.round(x));
        }
        // With `.ftz` a result is flushed that is subnormal before it is rounded.
        let tiny = self.ftz && x.abs() < 2f64.powi(-14);
        let bits = if tiny && !x.is_nan() {
            u32::from(x.is_sign_negative()) << 15
        } else {
            self.round(x)
        };
        if self.relu && x <= 0.0 {
            return 0;
        }
        self.flush(bits)
    }

    fn flush(self, bits: u32) -> u64 {
        u64::from(if self.ftz && bits & 0x7c00 == 0 {
            bits & 0x8000
        } else {
            bits
        })
    }
}

/// Rounds to the nearest number of a format with so many bits of exponent and mantissa, where that is a normal number.
fn nearest_normal<const EXPONENT: u32, const MANTISSA: u32>(x: f64) -> Option<u32> {
    let cut = 52 - MANTISSA;
    let magnitude = x.to_bits() & (u64::MAX >> 1);
    // A carry runs into the exponent, as it should. Ties go to even.
    let odd = magnitude >> cut & 1;
    let rounded = magnitude.wrapping_add((1 << (cut - 1)) - 1 + odd) >> cut;
    let bias = (1u64 << (EXPONENT - 1)) - 1;
    let code = rounded.wrapping_sub((1023 - bias) << MANTISSA);
    let (least, infinity) = (1 << MANTISSA, ((1u64 << EXPONENT) - 1) << MANTISSA);
    let is_normal = magnitude >> 52 >= 1024 - bias && (least..infinity).contains(&code);
    let sign = u32::from(x.is_sign_negative()) << (EXPONENT + MANTISSA);
    is_normal.then_some(sign | code as u32)
}

fn lanes(packed: bool, f: impl Fn(u64) -> u64) -> u64 {
    if packed { f(0) | f(16) << 16 } else { f(0) }
}

pub(crate) fn decode(cx: &mut Cx<'_>) -> R<Option<Op>> {
    let Some(ty) = first_type(cx.ins) else {
        return Ok(None);
    };
    let (format, packed) = match ty {
        Ty::F16 => (F16, false),
        Ty::F16x2 => (F16, true),
        Ty::Bf16 => (BF16, false),
        Ty::Bf16x2 => (BF16, true),
        _ => return Ok(None),
    };
    let op = cx.ins.opcode.as_str();
    if !matches!(
        op,
        "add" | "sub" | "mul" | "fma" | "neg" | "abs" | "min" | "max"
    ) {
        return Ok(None);
    }
    cx.mods.find(Ty::parse);
    let computes = matches!(op, "add" | "sub" | "mul" | "fma");
    let rounds = computes && cx.mods.take("rn");
    if op == "fma" && !rounds {
        return Err("a rounding mode is missing".into());
    }
    let ftz = cx.mods.take("ftz");
    if ftz && format == BF16 {
        return Err(".ftz is not defined for bf16".into());
    }
    let m = Mode {
        format,
        ftz,
        sat: computes && format == F16 && cx.mods.take("sat"),
        relu: cx.mods.take("relu"),
    };
    if m.relu && op != "fma" {
        return Err(".relu is only defined for fma here".into());
    }
    let t = ty;
    let op = match op {
        "add" | "sub" | "mul" => {
            let f: fn(f64, f64) -> f64 = match op {
                "add" => add_odd,
                "sub" => |a, b| add_odd(a, -b),
                _ => |a, b| a * b,
            };
            let f = Alu::of2(move |a, b| {
                lanes(packed, |s| m.output(f(m.input(a >> s), m.input(b >> s))))
            });
            cx.alu(f, t, &[t, t])?
        }
        "fma" => {
            let f = Alu::of3(move |a, b, c| {
                lanes(packed, |s| {
                    m.output(fma_odd(m.input(a >> s), m.input(b >> s), m.input(c >> s)))
                })
            });
            cx.alu(f, t, &[t, t, t])?
        }
        // With .ftz subnormals are flushed first; NaNs become the canonical one.
        "neg" | "abs" => {
            let negate = op == "neg";
            let f = Alu::of1(move |a| {
                lanes(packed, |s| {
                    let v = m.flush((a >> s & 0xffff) as u32);
                    if m.format.is_nan(v as u32) {
                        return u64::from(m.format.nan);
                    }
                    if negate { v ^ 0x8000 } else { v & 0x7fff }
                })
            });
            cx.alu(f, t, &[t])?
        }
        _ => {
            let nan = cx.mods.take("NaN");
            let max = op == "max";
            let xorsign = cx.mods.take("xorsign");
            if xorsign && !cx.mods.take("abs") {
                return Err(".abs is missing".into());
            }
            // Values of both formats are exact in f32.
            let f = Alu::of2(move |a, b| {
                lanes(packed, |s| {
                    let (x, y) = (m.input(a >> s) as f32, m.input(b >> s) as f32);
                    if !xorsign {
                        return m.output(f64::from(extreme(x, y, max, nan)));
                    }
                    let r = m.output(f64::from(extreme(x.abs(), y.abs(), max, nan)));
                    if m.format.is_nan(r as u32) {
                        r
                    } else {
                        r | (a ^ b) >> s & 0x8000
                    }
                })
            });
            cx.alu(f, t, &[t, t])?
        }
    };
    Ok(Some(op))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{eval, gives};
    use half::{bf16, f16};
    use proptest::prelude::*;

    fn same(got: u64, want: u16, nan: bool) -> bool {
        if nan {
            got == 0x7fff
        } else {
            got == u64::from(want)
        }
    }

    /// The short way rounds as the long one does, near every number of the formats and between them.
    #[test]
    fn normal_numbers_are_rounded_alike() {
        for (format, short) in [
            (F16, nearest_normal::<5, 10> as fn(f64) -> Option<u32>),
            (BF16, nearest_normal::<8, 7>),
        ] {
            let mut normal = 0;
            for bits in 0..=u16::MAX {
                let x = format.to_f64(bits.into());
                let next = format.to_f64(u32::from(bits ^ 1));
                let middle = (x + next) / 2.0;
                for x in [x, middle, middle.next_up(), middle.next_down(), x * 1.01] {
                    let long = format.round(x, Round::Nearest, false);
                    if let Some(short) = short(x) {
                        assert_eq!(short, long, "{x:e}");
                        normal += 1;
                    }
                }
            }
            assert!(normal > 300_000 - 40_000, "{normal}");
        }
    }

    #[test]
    fn single_rounding_of_fma() {
        // 1 + 2^-11 is a tie in f16; a product below it decides which way.
        let (a, b) = (
            f16::from_f32(1.0 + 1.0 / 1024.0),
            f16::from_f32(1.0 / 2048.0),
        );
        let s = [
            u64::from(a.to_bits()),
            u64::from(b.to_bits()),
            u64::from(f16::ONE.to_bits()),
        ];
        assert_eq!(
            eval("fma.rn.f16", 16, &s),
            u64::from(f16::ONE.to_bits()) + 1
        );
        gives! {
            "fma.rn.relu.f16" 16 [s[2] | 0x8000, s[2], 0] => 0;
            "add.sat.f16" 16 [0x7e00, 0] => 0;
            "neg.bf16x2" 32 [0x3f80_8000] => 0xbf80_0000;
        }
    }

    proptest! {
        #[test]
        fn sums_and_products(a: u16, b: u16) {
            let s = [u64::from(a), u64::from(b)];
            let (x, y) = (f16::from_bits(a), f16::from_bits(b));
            let sum = f16::from_f64(x.to_f64() + y.to_f64());
            prop_assert!(same(eval("add.f16", 16, &s), sum.to_bits(), sum.is_nan()));
            let product = f16::from_f64(x.to_f64() * y.to_f64());
            prop_assert!(same(eval("mul.rn.f16", 16, &s), product.to_bits(), product.is_nan()));
            let (x, y) = (bf16::from_bits(a), bf16::from_bits(b));
            let product = bf16::from_f64(x.to_f64() * y.to_f64());
            prop_assert!(same(eval("mul.bf16", 16, &s), product.to_bits(), product.is_nan()));
        }

        #[test]
        fn packed_is_twice_scalar(a: u32, b: u32, c: u32) {
            for (packed, scalar) in [("fma.rn.f16x2", "fma.rn.f16"), ("fma.rn.bf16x2", "fma.rn.bf16")] {
                let s = [u64::from(a), u64::from(b), u64::from(c)];
                let hi = s.map(|v| v >> 16);
                let lo = s.map(|v| v & 0xffff);
                prop_assert_eq!(eval(packed, 32, &s), eval(scalar, 16, &lo) | eval(scalar, 16, &hi) << 16);
            }
        }
    }
}
