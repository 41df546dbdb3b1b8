//! f32 and f32x2 arithmetic, section 9.7.3 of the ISA, and f32 with 16-bit operands, section 9.7.5.
//!
//! Rounding to nearest runs on the host's IEEE arithmetic; directed rounding goes through
//! [`crate::softfloat`]. NaN results are the canonical NaN.

use super::first_type;
use crate::ast::Ty;
use crate::program::decode::{Cx, R};
use crate::program::{Alu, Op};
use crate::softfloat::{
    self, F32, Round, add_odd, div_odd, extreme, fma_odd, signed_zero_sum, sqrt_odd,
};

/// Takes a rounding modifier; nearest if there is none.
pub(crate) fn rounding(cx: &mut Cx<'_>) -> Round {
    match cx.mods.one_of(&["rn", "rz", "rm", "rp"]) {
        Some("rz") => Round::Zero,
        Some("rm") => Round::Down,
        Some("rp") => Round::Up,
        _ => Round::Nearest,
    }
}

/// Subnormals become zeros of their sign.
fn flush(x: f32, ftz: bool) -> f32 {
    if ftz && x.is_subnormal() {
        0f32.copysign(x)
    } else {
        x
    }
}

#[derive(Clone, Copy)]
struct Mode {
    round: Round,
    ftz: bool,
    sat: bool,
}

impl Mode {
    fn input(self, v: u64) -> f32 {
        flush(f32::from_bits(v as u32), self.ftz)
    }

    fn output(self, r: f32) -> u64 {
        if self.sat {
            // NaN saturates to +0, and so does -0.
            return u64::from(
                if r > 0.0 {
                    flush(r, self.ftz).min(1.0)
                } else {
                    0.0
                }
                .to_bits(),
            );
        }
        if r.is_nan() {
            return u64::from(F32.nan);
        }
        u64::from(flush(r, self.ftz).to_bits())
    }

    fn directed(self, x: f64) -> f32 {
        f32::from_bits(F32.round(x, self.round, false))
    }

    fn add(self, a: f32, b: f32) -> f32 {
        if self.round == Round::Nearest {
            return a + b;
        }
        let (x, y) = (f64::from(a), f64::from(b));
        self.directed(signed_zero_sum(add_odd(x, y), x, y, self.round))
    }

    /// With `.ftz` a result is flushed that is subnormal before it is rounded.
    fn tiny(self, exact: f64) -> bool {
        self.ftz && exact != 0.0 && exact.abs() < f64::from(f32::MIN_POSITIVE)
    }

    fn mul(self, a: f32, b: f32) -> f32 {
        let exact = f64::from(a) * f64::from(b);
        if self.tiny(exact) {
            return 0f32.copysign(a * b);
        }
        if self.round == Round::Nearest {
            a * b
        } else {
            self.directed(f64::from(a) * f64::from(b))
        }
    }

    /// With directed rounding.
    fn div(self, a: f32, b: f32) -> f32 {
        let exact = div_odd(f64::from(a), f64::from(b));
        if self.tiny(exact) {
            return if exact < 0.0 { -0.0 } else { 0.0 };
        }
        self.directed(exact)
    }

    fn fma(self, a: f32, b: f32, c: f32) -> f32 {
        if self.ftz {
            let exact = fma_odd(f64::from(a), f64::from(b), f64::from(c));
            if self.tiny(exact) {
                return if exact < 0.0 { -0.0 } else { 0.0 };
            }
        }
        if self.round == Round::Nearest {
            return a.mul_add(b, c);
        }
        let (x, y, z) = (f64::from(a), f64::from(b), f64::from(c));
        self.directed(signed_zero_sum(fma_odd(x, y, z), x * y, z, self.round))
    }
}

pub(crate) fn decode(cx: &mut Cx<'_>) -> R<Option<Op>> {
    let ty = first_type(cx.ins);
    let op = cx.ins.opcode.as_str();
    let known = matches!(
        op,
        "add"
            | "sub"
            | "mul"
            | "mad"
            | "fma"
            | "div"
            | "rcp"
            | "sqrt"
            | "abs"
            | "neg"
            | "min"
            | "max"
            | "copysign"
    );
    match ty {
        Some(Ty::F32) if known => {
            cx.mods.take("f32");
            if let Some(from) = cx.mods.one_of(&["f16", "bf16"]) {
                return mixed(cx, op, from).map(Some);
            }
            single(cx, op).map(Some)
        }
        Some(Ty::F64) if known => {
            cx.mods.take("f64");
            super::double::decode(cx, op).map(Some)
        }
        Some(Ty::F32x2) if known => {
            cx.mods.take("f32x2");
            pair(cx, op).map(Some)
        }
        _ => Ok(None),
    }
}

fn one(m: Mode, f: impl Fn(f32) -> f32 + Send + Sync + 'static) -> Alu {
    Alu::of1(move |a| m.output(f(m.input(a))))
}

fn two(m: Mode, f: impl Fn(Mode, f32, f32) -> f32 + Send + Sync + 'static) -> Alu {
    Alu::of2(move |a, b| m.output(f(m, m.input(a), m.input(b))))
}

fn single(cx: &mut Cx<'_>, op: &str) -> R<Op> {
    let t = Ty::F32;
    let explicit = cx.ins.mods.iter().any(|m| is_rounding(m));
    let computes = !matches!(op, "abs" | "neg" | "min" | "max" | "copysign");
    let m = Mode {
        round: if computes {
            rounding(cx)
        } else {
            Round::Nearest
        },
        ftz: op != "copysign" && cx.mods.take("ftz"),
        sat: computes && cx.mods.take("sat"),
    };
    // The everyday case gets a loop without any choice in it.
    let plain = m.round == Round::Nearest && !m.ftz && !m.sat;
    match op {
        "add" if plain => {
            let f = Alu::of2(|a, b| canonical(f32::from_bits(a as u32) + f32::from_bits(b as u32)));
            cx.alu(f, t, &[t, t])
        }
        "mul" if plain => {
            let f = Alu::of2(|a, b| canonical(f32::from_bits(a as u32) * f32::from_bits(b as u32)));
            cx.alu(f, t, &[t, t])
        }
        "add" => cx.alu(two(m, Mode::add), t, &[t, t]),
        "sub" => cx.alu(two(m, |m, a, b| m.add(a, -b)), t, &[t, t]),
        "mul" => cx.alu(two(m, Mode::mul), t, &[t, t]),
        "fma" | "mad" => {
            if !explicit {
                return Err("a rounding mode is missing".into());
            }
            let f = Alu::of3(move |a, b, c| m.output(m.fma(m.input(a), m.input(b), m.input(c))));
            cx.alu(f, t, &[t, t, t])
        }
        "div" | "rcp" | "sqrt" => {
            if !explicit {
                return Err(format!("{op} has .approx or a rounding mode"));
            }
            if m.round != Round::Nearest {
                return match op {
                    "div" => cx.alu(two(m, Mode::div), t, &[t, t]),
                    "rcp" => cx.alu(one(m, move |a| m.div(1.0, a)), t, &[t]),
                    _ => {
                        let f = move |a| m.directed(sqrt_odd(f64::from(a)));
                        cx.alu(one(m, f), t, &[t])
                    }
                };
            }
            match op {
                "div" => cx.alu(two(m, |_, a, b| a / b), t, &[t, t]),
                "rcp" => cx.alu(one(m, |a| 1.0 / a), t, &[t]),
                _ => cx.alu(one(m, f32::sqrt), t, &[t]),
            }
        }
        "abs" => cx.alu(one(m, f32::abs), t, &[t]),
        "neg" => cx.alu(one(m, |a| -a), t, &[t]),
        "min" | "max" => {
            let nan = cx.mods.take("NaN");
            let max = op == "max";
            if cx.mods.take("xorsign") {
                if !cx.mods.take("abs") {
                    return Err(".abs is missing".into());
                }
                let f = two(m, move |_, a, b| {
                    let sign = (a.to_bits() ^ b.to_bits()) & 1 << 31;
                    let r = extreme(a.abs(), b.abs(), max, nan);
                    if r.is_nan() {
                        r
                    } else {
                        f32::from_bits(r.to_bits() | sign)
                    }
                });
                return cx.alu(f, t, &[t, t]);
            }
            match cx.count(&[3, 4])? {
                3 => cx.alu(two(m, move |_, a, b| extreme(a, b, max, nan)), t, &[t, t]),
                _ => {
                    let f = Alu::of3(move |a, b, c| {
                        let ab = extreme(m.input(a), m.input(b), max, nan);
                        m.output(extreme(ab, m.input(c), max, nan))
                    });
                    cx.alu(f, t, &[t, t, t])
                }
            }
        }
        "copysign" => {
            // The sign comes from the first source.
            let f = Alu::of2(|a, b| a & 0x8000_0000 | b & 0x7fff_ffff);
            cx.alu(f, t, &[t, t])
        }
        other => Err(format!("{other} is not defined for f32")),
    }
}

/// The first operand of sums, and both factors, have 16 bits and become f32 without rounding.
fn mixed(cx: &mut Cx<'_>, op: &str, from: &str) -> R<Op> {
    let (format, half) = match from {
        "f16" => (softfloat::F16, Ty::F16),
        _ => (softfloat::BF16, Ty::Bf16),
    };
    let named = cx.ins.mods.iter().any(|m| is_rounding(m));
    let m = Mode {
        round: rounding(cx),
        ftz: false,
        sat: cx.mods.take("sat"),
    };
    let wide = move |v: u64| format.to_f64((v & 0xffff) as u32) as f32;
    let t = Ty::F32;
    match op {
        "add" | "sub" => {
            let sign = if op == "sub" { -1.0 } else { 1.0 };
            let f = Alu::of2(move |a, c| m.output(m.add(wide(a), sign * m.input(c))));
            cx.alu(f, t, &[half, t])
        }
        "fma" if named => {
            let f = Alu::of3(move |a, b, c| m.output(m.fma(wide(a), wide(b), m.input(c))));
            cx.alu(f, t, &[half, half, t])
        }
        "fma" => Err("a rounding mode is missing".into()),
        other => Err(format!("{other} is not defined for f32 with {from}")),
    }
}

fn is_rounding(modifier: &str) -> bool {
    matches!(modifier, "rn" | "rz" | "rm" | "rp")
}

fn canonical(r: f32) -> u64 {
    u64::from(if r.is_nan() { F32.nan } else { r.to_bits() })
}

fn pair(cx: &mut Cx<'_>, op: &str) -> R<Op> {
    let t = Ty::F32x2;
    let m = Mode {
        round: rounding(cx),
        ftz: cx.mods.take("ftz"),
        sat: false,
    };
    let both = move |f: &dyn Fn(u64) -> u64| f(0) | f(32) << 32;
    match op {
        "add" | "sub" | "mul" => {
            let f: fn(Mode, f32, f32) -> f32 = match op {
                "add" => Mode::add,
                "sub" => |m, a, b| m.add(a, -b),
                _ => Mode::mul,
            };
            let f =
                Alu::of2(move |a, b| both(&|s| m.output(f(m, m.input(a >> s), m.input(b >> s)))));
            cx.alu(f, t, &[t, t])
        }
        "fma" => {
            let f = Alu::of3(move |a, b, c| {
                both(&|s| m.output(m.fma(m.input(a >> s), m.input(b >> s), m.input(c >> s))))
            });
            cx.alu(f, t, &[t, t, t])
        }
        other => Err(format!("{other} is not defined for f32x2")),
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::testing::{decode, eval, gives};
    use proptest::prelude::*;

    fn f(x: f32) -> u64 {
        u64::from(x.to_bits())
    }

    #[test]
    fn sums_and_products_of_16_bit_operands() {
        let half = |x: f32| u64::from(half::f16::from_f32(x).to_bits());
        let brain = |x: f32| u64::from(half::bf16::from_f32(x).to_bits());
        // One more than f16 could hold beside 2^-14; bits above an operand's 16 are not read.
        let exact = f(1.0 + 2f32.powi(-14));
        let tiny = half(2f32.powi(-14)) | 0xffff_0000;
        gives! {
            "add.rn.f32.f16" 32 [tiny, f(1.0)] => exact;
            "add.f32.bf16" 32 [brain(-3.0), f(1.5)] => f(-1.5);
            "sub.f32.f16" 32 [half(3.0), f(1.5)] => f(1.5);
        }
        let product = [half(448.0), half(448.0), f(-0.0)];
        assert_eq!(eval("fma.rn.f32.f16", 32, &product), f(200_704.0));
        let zero = [half(0.0), half(448.0), f(-0.0)];
        assert_eq!(eval("fma.rn.f32.f16", 32, &zero), f(0.0));
        // A tie to even, unless rounding goes up.
        let once = [half(2f32.powi(-12)), half(2f32.powi(-12)), f(1.0)];
        assert_eq!(eval("fma.rn.f32.f16", 32, &once), f(1.0));
        assert_eq!(eval("fma.rp.f32.f16", 32, &once), f(1.0) + 1);
        assert_eq!(eval("fma.rn.sat.f32.f16", 32, &product), f(1.0));
        assert!(decode("fma.f32.f16", 32, 3).is_err());
        assert!(decode("mul.f32.f16", 32, 2).is_err());
    }

    #[test]
    fn special_values() {
        let (nan, inf) = (f(f32::NAN), f(f32::INFINITY));
        gives! {
            "add.f32" 32 [nan | 1, f(1.0)] => 0x7fff_ffff;
            "add.f32" 32 [inf, f(f32::NEG_INFINITY)] => 0x7fff_ffff;
            "max.f32" 32 [nan, f(-3.0)] => f(-3.0);
            "max.NaN.f32" 32 [nan, f(-3.0)] => 0x7fff_ffff;
            "min.f32" 32 [f(0.0), f(-0.0)] => f(-0.0);
            "max.f32" 32 [f(-0.0), f(0.0)] => f(0.0);
            "add.sat.f32" 32 [nan, nan] => 0;
            "add.sat.f32" 32 [f(3.0), f(1.0)] => f(1.0);
            "mul.ftz.f32" 32 [1, f(1.0)] => 0;
            "mul.f32" 32 [1, f(1.0)] => 1;
            "add.rm.f32" 32 [f(1.0), f(-1.0)] => f(-0.0);
            "add.rp.f32" 32 [f(1.0), f(1e-30)] => f(1.0) + 1;
            "fma.rz.f32" 32 [f(1.0), f(1.0), f(-1e-30)] => f(1.0) - 1;
            "mul.f32x2" 64 [f(2.0) << 32 | f(3.0), f(5.0) << 32 | f(7.0)] => f(10.0) << 32 | f(21.0);
            // One third is 2^-2 * 1.0101...01|01: down ends in 0xaaaa.
            "div.rm.f32" 32 [f(1.0), f(3.0)] => 0x3eaa_aaaa;
            "rcp.rp.f32" 32 [f(3.0)] => 0x3eaa_aaab;
            "div.rz.f32" 32 [f(-1.0), f(3.0)] => 0xbeaa_aaaa;
            // The root of 2 is 1.41421356..., between these two.
            "sqrt.rm.f32" 32 [f(2.0)] => 0x3fb5_04f3;
            "sqrt.rp.f32" 32 [f(2.0)] => 0x3fb5_04f4;
            "div.rp.f32" 32 [f(-1.0), 0] => f(f32::NEG_INFINITY);
            "div.rz.ftz.f32" 32 [f(f32::MIN_POSITIVE), f(2.0)] => 0;
        }
        assert!(decode("div.f32", 32, 2).is_err());
        assert!(decode("add.bogus.f32", 32, 2).is_err());
    }

    proptest! {
        #[test]
        fn nearest_agrees_with_the_host(a: u32, b: u32, c: u32) {
            let (x, y, z) = (f32::from_bits(a), f32::from_bits(b), f32::from_bits(c));
            let s = [u64::from(a), u64::from(b), u64::from(c)];
            for (op, want) in [("add.rn.f32", x + y), ("mul.f32", x * y), ("div.rn.f32", x / y)] {
                let got = f32::from_bits(eval(op, 32, &s[..2]) as u32);
                prop_assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan());
            }
            let got = f32::from_bits(eval("fma.rn.f32", 32, &s) as u32);
            let want = x.mul_add(y, z);
            prop_assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan());
        }
    }
}
