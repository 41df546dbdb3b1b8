//! f64 arithmetic: section 9.7.3 of the ISA.

use super::float::rounding;
use crate::ast::Ty;
use crate::program::decode::{Cx, R};
use crate::program::{Alu, Op};
use crate::softfloat::{Round, add_f64, div_f64, fma_f64, mul_f64, sqrt_f64};

/// The bit that makes a NaN quiet.
const QUIET: u64 = 1 << 51;
/// The NaN of invalid operations.
const DEFAULT_NAN: u64 = 0xfff8_0000_0000_0000;

/// A NaN operand's payload comes through, made quiet; the first one's if there are several.
fn out(r: f64, sources: &[u64]) -> u64 {
    match sources.iter().find(|s| f64::from_bits(**s).is_nan()) {
        Some(s) => s | QUIET,
        None if r.is_nan() => DEFAULT_NAN,
        None => r.to_bits(),
    }
}

/// An operation in a rounding mode. To nearest, the host's arithmetic is used, which is faster.
fn binary(round: Round, near: fn(f64, f64) -> f64, exact: fn(f64, f64, Round) -> f64) -> Alu {
    let v = f64::from_bits;
    Alu::of2(move |a, b| {
        let r = match round {
            Round::Nearest => near(v(a), v(b)),
            mode => exact(v(a), v(b), mode),
        };
        out(r, &[a, b])
    })
}

/// Decodes an instruction whose type was taken.
pub(super) fn decode(cx: &mut Cx<'_>, op: &str) -> R<Op> {
    let t = Ty::F64;
    let named = cx
        .ins
        .mods
        .iter()
        .any(|m| m.len() == 2 && m.starts_with('r'));
    let round = rounding(cx);
    if matches!(op, "fma" | "mad" | "div" | "rcp" | "sqrt") && !named {
        return Err("a rounding mode is missing".into());
    }
    if named && matches!(op, "abs" | "neg" | "min" | "max" | "copysign") {
        return Err(format!("{op} does not round"));
    }
    let v = f64::from_bits;
    match op {
        "add" => cx.alu(binary(round, |a, b| a + b, add_f64), t, &[t, t]),
        "sub" => {
            let exact = |a: f64, b: f64, m| add_f64(a, -b, m);
            cx.alu(binary(round, |a, b| a - b, exact), t, &[t, t])
        }
        "mul" => cx.alu(binary(round, |a, b| a * b, mul_f64), t, &[t, t]),
        "div" => cx.alu(binary(round, |a, b| a / b, div_f64), t, &[t, t]),
        "rcp" => {
            let f = Alu::of1(move |a| out(div_f64(1.0, v(a), round), &[a]));
            cx.alu(f, t, &[t])
        }
        "sqrt" => {
            let f = Alu::of1(move |a| out(sqrt_f64(v(a), round), &[a]));
            cx.alu(f, t, &[t])
        }
        "fma" | "mad" => {
            let f = Alu::of3(move |a, b, c| {
                let r = match round {
                    Round::Nearest => v(a).mul_add(v(b), v(c)),
                    mode => fma_f64(v(a), v(b), v(c), mode),
                };
                out(r, &[a, b, c])
            });
            cx.alu(f, t, &[t, t, t])
        }
        "abs" => cx.alu(Alu::of1(|a| a & (u64::MAX >> 1)), t, &[t]),
        "neg" => cx.alu(Alu::of1(|a| a ^ (1 << 63)), t, &[t]),
        // The sign comes from the first source.
        "copysign" => {
            let f = Alu::of2(|a, b| a & (1 << 63) | b & (u64::MAX >> 1));
            cx.alu(f, t, &[t, t])
        }
        "min" | "max" => {
            let max = op == "max";
            let f = Alu::of2(move |a, b| {
                let (x, y) = (v(a), v(b));
                match (x.is_nan(), y.is_nan()) {
                    (true, true) => a | QUIET,
                    (true, false) => b,
                    (false, true) => a,
                    // -0 is below +0.
                    _ if (x.total_cmp(&y).is_lt()) != max => a,
                    _ => b,
                }
            });
            cx.alu(f, t, &[t, t])
        }
        other => Err(format!("{other} is not modelled for f64")),
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::testing::{decode, eval};

    #[test]
    fn rounding_and_extremes() {
        let (one, three) = (1f64.to_bits(), 3f64.to_bits());
        let third = 0x3fd5_5555_5555_5555;
        assert_eq!(eval("div.rm.f64", 64, &[one, three]), third);
        assert_eq!(eval("div.rp.f64", 64, &[one, three]), third + 1);
        assert_eq!(eval("rcp.rz.f64", 64, &[three]), third);
        assert_eq!(eval("sqrt.rp.f64", 64, &[9f64.to_bits()]), three);
        assert_eq!(eval("sub.rm.f64", 64, &[one, one]), 1 << 63);
        let nan = f64::NAN.to_bits();
        assert_eq!(eval("min.f64", 64, &[nan, three]), three);
        assert_eq!(eval("max.f64", 64, &[one, three]), three);
        assert_eq!(eval("min.f64", 64, &[0, 1 << 63]), 1 << 63);
        assert_eq!(eval("max.f64", 64, &[0, 1 << 63]), 0);
        assert!(decode("rcp.approx.f64", 64, 1).is_err());
        assert!(decode("min.rn.f64", 64, 2).is_err());
    }
}
