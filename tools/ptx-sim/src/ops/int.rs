//! Integer arithmetic: section 9.7.1 and 9.7.2 of the ISA.

use super::{first_type, sext, zext};
use crate::ast::Ty;
use crate::program::decode::{Cx, R};
use crate::program::{Alu, CarryForm, Op};

/// An [`Alu`] for each integer type; `$a` and `$b` have that type and the result is converted back.
macro_rules! by_type {
    ($ty:expr, |$($v:ident),+| $e:expr) => {
        match $ty {
            Ty::U16 => by_type!(@ u16, u16, $e, $($v),+),
            Ty::U32 => by_type!(@ u32, u32, $e, $($v),+),
            Ty::U64 => by_type!(@ u64, u64, $e, $($v),+),
            Ty::S16 => by_type!(@ i16, u16, $e, $($v),+),
            Ty::S32 => by_type!(@ i32, u32, $e, $($v),+),
            Ty::S64 => by_type!(@ i64, u64, $e, $($v),+),
            other => return Err(format!("type {other} is not modelled here")),
        }
    };
    (@ $t:ty, $u:ty, $e:expr, $a:ident) => {
        Alu::of1(|a| { let $a = a as $t; ($e) as $u as u64 })
    };
    (@ $t:ty, $u:ty, $e:expr, $a:ident, $b:ident) => {
        Alu::of2(|a, b| { let ($a, $b) = (a as $t, b as $t); ($e) as $u as u64 })
    };
    (@ $t:ty, $u:ty, $e:expr, $a:ident, $b:ident, $c:ident) => {
        Alu::of3(|a, b, c| { let ($a, $b, $c) = (a as $t, b as $t, c as $t); ($e) as $u as u64 })
    };
}

/// A product of two values of a type, all bits, as two's complement of 128 bits.
fn full_product(ty: Ty, a: u64, b: u64) -> u128 {
    product(ty.bits(), ty.signed(), a, b)
}

/// A product of two values by width and sign, all bits, as two's complement of 128 bits.
pub(crate) fn product(bits: u32, signed: bool, a: u64, b: u64) -> u128 {
    if signed {
        (i128::from(sext(a, bits)) * i128::from(sext(b, bits))) as u128
    } else {
        u128::from(zext(a, bits)) * u128::from(zext(b, bits))
    }
}

fn wide_type(ty: Ty) -> R<Ty> {
    Ok(match ty {
        Ty::U16 => Ty::U32,
        Ty::S16 => Ty::S32,
        Ty::U32 => Ty::U64,
        Ty::S32 => Ty::S64,
        other => return Err(format!(".wide is not defined for {other}")),
    })
}

/// `n` lanes of 16 bits.
fn packed(f: impl Fn(u16, u16) -> u16 + Send + Sync + 'static) -> Alu {
    Alu::of2(move |a, b| {
        let lo = f(a as u16, b as u16);
        let hi = f((a >> 16) as u16, (b >> 16) as u16);
        u64::from(lo) | u64::from(hi) << 16
    })
}

pub(crate) fn decode(cx: &mut Cx<'_>) -> R<Option<Op>> {
    let Some(ty) = first_type(cx.ins) else {
        return Ok(None);
    };
    let op = cx.ins.opcode.as_str();
    let packed_ty = matches!(ty, Ty::U16x2 | Ty::S16x2);
    if !(ty.is_int() || packed_ty) {
        return Ok(None);
    }
    let known = matches!(
        op,
        "add"
            | "sub"
            | "addc"
            | "subc"
            | "madc"
            | "mul"
            | "mad"
            | "mul24"
            | "sad"
            | "div"
            | "rem"
            | "abs"
            | "neg"
            | "min"
            | "max"
            | "dp4a"
            | "dp2a"
    );
    if !known {
        return Ok(None);
    }
    cx.mods.ty()?;
    let op = if packed_ty {
        packed_op(cx, op, ty)?
    } else {
        scalar_op(cx, op, ty)?
    };
    Ok(Some(op))
}

fn packed_op(cx: &mut Cx<'_>, op: &str, ty: Ty) -> R<Op> {
    let signed = ty == Ty::S16x2;
    if signed && matches!(op, "min" | "max") && cx.mods.take("relu") {
        let max = op == "max";
        let f = packed(move |a, b| {
            let (a, b) = (a as i16, b as i16);
            (if max { a.max(b) } else { a.min(b) }).max(0) as u16
        });
        return cx.alu(f, ty, &[ty, ty]);
    }
    let f = match (op, signed) {
        ("add", _) => packed(u16::wrapping_add),
        ("min", false) => packed(u16::min),
        ("max", false) => packed(u16::max),
        ("min", true) => packed(|a, b| (a as i16).min(b as i16) as u16),
        ("max", true) => packed(|a, b| (a as i16).max(b as i16) as u16),
        _ => return Err(format!("{op} is not defined for {ty}")),
    };
    cx.alu(f, ty, &[ty, ty])
}

fn scalar_op(cx: &mut Cx<'_>, op: &str, ty: Ty) -> R<Op> {
    let bits = ty.bits();
    let cc = cx.mods.take("cc");
    if cc || matches!(op, "addc" | "subc" | "madc") {
        return carry(cx, op, ty, cc);
    }
    match op {
        "add" | "sub" => {
            if cx.mods.take("sat") {
                if ty != Ty::S32 {
                    return Err(".sat is only defined for s32".into());
                }
                let add = op == "add";
                let f = Alu::of2(move |a, b| {
                    let (a, b) = (a as i32, b as i32);
                    let v = if add {
                        a.saturating_add(b)
                    } else {
                        a.saturating_sub(b)
                    };
                    u64::from(v as u32)
                });
                return cx.alu(f, ty, &[ty, ty]);
            }
            let f = if op == "add" {
                by_type!(ty, |a, b| a.wrapping_add(b))
            } else {
                by_type!(ty, |a, b| a.wrapping_sub(b))
            };
            cx.alu(f, ty, &[ty, ty])
        }
        "mul" | "mad" => multiply(cx, op == "mad", ty),
        "mul24" => {
            if !cx.mods.take("lo") || bits != 32 {
                return Err("only mul24.lo of 32 bits is modelled".into());
            }
            let signed = ty.signed();
            let f = Alu::of2(move |a, b| {
                if signed {
                    zext(sext(a, 24).wrapping_mul(sext(b, 24)) as u64, 32)
                } else {
                    zext(zext(a, 24) * zext(b, 24), 32)
                }
            });
            cx.alu(f, ty, &[ty, ty])
        }
        "sad" => {
            let f = by_type!(ty, |a, b, c| c.wrapping_add(if a < b {
                b.wrapping_sub(a)
            } else {
                a.wrapping_sub(b)
            }));
            cx.alu(f, ty, &[ty, ty, ty])
        }
        // Division by zero is unspecified; hardware gives all ones for the quotient and the
        // dividend for the remainder.
        "div" => {
            let f = by_type!(ty, |a, b| if b == 0 {
                b.wrapping_sub(1)
            } else {
                a.wrapping_div(b)
            });
            cx.alu(f, ty, &[ty, ty])
        }
        "rem" => {
            let f = by_type!(ty, |a, b| if b == 0 { a } else { a.wrapping_rem(b) });
            cx.alu(f, ty, &[ty, ty])
        }
        "abs" | "neg" if ty.signed() => {
            let f = if op == "abs" {
                Alu::of1(move |a| zext(sext(a, bits).wrapping_abs() as u64, bits))
            } else {
                Alu::of1(move |a| zext(sext(a, bits).wrapping_neg() as u64, bits))
            };
            cx.alu(f, ty, &[ty])
        }
        "min" | "max" => {
            let relu = cx.mods.take("relu");
            if relu && ty != Ty::S32 {
                return Err(".relu is only defined for s32 here".into());
            }
            let f = match (op, relu) {
                ("min", false) => by_type!(ty, |a, b| a.min(b)),
                ("max", false) => by_type!(ty, |a, b| a.max(b)),
                ("min", _) => Alu::of2(|a, b| (a as i32).min(b as i32).max(0) as u64),
                _ => Alu::of2(|a, b| (a as i32).max(b as i32).max(0) as u64),
            };
            cx.alu(f, ty, &[ty, ty])
        }
        "dp4a" | "dp2a" => dot(cx, op == "dp4a", ty),
        other => Err(format!("{other} of {ty} is not modelled")),
    }
}

fn multiply(cx: &mut Cx<'_>, mad: bool, ty: Ty) -> R<Op> {
    let bits = ty.bits();
    let part = cx
        .mods
        .one_of(&["lo", "hi", "wide"])
        .ok_or(".lo, .hi or .wide is missing")?;
    if cx.mods.take("sat") {
        if (part, mad, ty) != ("hi", true, Ty::S32) {
            return Err(".sat is only defined for mad.hi.s32".into());
        }
        let f = Alu::of3(|a, b, c| {
            let high = ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as i32;
            u64::from(high.saturating_add(c as i32) as u32)
        });
        return cx.alu(f, ty, &[ty, ty, ty]);
    }
    match (part, mad) {
        ("lo", false) => cx.alu(by_type!(ty, |a, b| a.wrapping_mul(b)), ty, &[ty, ty]),
        ("lo", true) => {
            let f = by_type!(ty, |a, b, c| a.wrapping_mul(b).wrapping_add(c));
            cx.alu(f, ty, &[ty, ty, ty])
        }
        ("hi", false) => {
            let f = Alu::of2(move |a, b| zext((full_product(ty, a, b) >> bits) as u64, bits));
            cx.alu(f, ty, &[ty, ty])
        }
        ("hi", true) => {
            let f = Alu::of3(move |a, b, c| {
                zext(
                    ((full_product(ty, a, b) >> bits) as u64).wrapping_add(c),
                    bits,
                )
            });
            cx.alu(f, ty, &[ty, ty, ty])
        }
        (_, false) => {
            let wide = wide_type(ty)?;
            let f = Alu::of2(move |a, b| zext(full_product(ty, a, b) as u64, wide.bits()));
            cx.alu(f, wide, &[ty, ty])
        }
        (_, true) => {
            let wide = wide_type(ty)?;
            let f = Alu::of3(move |a, b, c| {
                zext((full_product(ty, a, b) as u64).wrapping_add(c), wide.bits())
            });
            cx.alu(f, wide, &[ty, ty, wide])
        }
    }
}

fn carry(cx: &mut Cx<'_>, op: &str, ty: Ty, carry_out: bool) -> R<Op> {
    let multiply = matches!(op, "mad" | "madc");
    if !(multiply || matches!(op, "add" | "addc" | "sub" | "subc")) || ty.bits() < 32 {
        return Err("this extended-precision instruction is not modelled".into());
    }
    let part = if multiply {
        cx.mods.one_of(&["lo", "hi"])
    } else {
        None
    };
    if multiply && part.is_none() {
        return Err(".lo or .hi is missing".into());
    }
    cx.mods.finish()?;
    cx.count(&[if multiply { 4 } else { 3 }])?;
    let f = CarryForm {
        bits: ty.bits(),
        subtract: op.starts_with("sub"),
        carry_in: op.ends_with('c'),
        carry_out,
        high: part == Some("hi"),
        signed: ty.signed(),
    };
    let (d, a, b) = (cx.dst(0, ty)?, cx.src(1, ty)?, cx.src(2, ty)?);
    Ok(if multiply {
        // The addend comes last.
        Op::Carry {
            d,
            a,
            b: cx.src(3, ty)?,
            times: Some(b),
            f,
        }
    } else {
        Op::Carry {
            d,
            a,
            b,
            times: None,
            f,
        }
    })
}

fn dot(cx: &mut Cx<'_>, four: bool, a_ty: Ty) -> R<Op> {
    let b_ty = cx.mods.ty()?;
    let bits = |t: Ty| -> R<bool> {
        match t {
            Ty::U32 => Ok(false),
            Ty::S32 => Ok(true),
            _ => Err("dp4a and dp2a take u32 and s32".into()),
        }
    };
    let (sa, sb) = (bits(a_ty)?, bits(b_ty)?);
    let high = !four
        && match cx.mods.one_of(&["lo", "hi"]) {
            Some(m) => m == "hi",
            None => return Err(".lo or .hi is missing".into()),
        };
    let get = |v: u64, at: u32, n: u32, signed: bool| {
        if signed {
            sext(v >> at, n)
        } else {
            zext(v >> at, n) as i64
        }
    };
    let f = Alu::of3(move |a, b, c| {
        let mut sum = c as i64;
        if four {
            for i in 0..4 {
                sum = sum.wrapping_add(get(a, 8 * i, 8, sa) * get(b, 8 * i, 8, sb));
            }
        } else {
            for i in 0..2 {
                let from = 8 * i + if high { 16 } else { 0 };
                sum = sum.wrapping_add(get(a, 16 * i, 16, sa) * get(b, from, 8, sb));
            }
        }
        zext(sum as u64, 32)
    });
    let c = if sa || sb { Ty::S32 } else { Ty::U32 };
    cx.alu(f, c, &[a_ty, b_ty, c])
}

#[cfg(test)]
mod tests;
