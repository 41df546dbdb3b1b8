//! Integer arithmetic: section 9.7.1 and 9.7.2 of the ISA.

use super::{first_type, sext, zext};
use crate::ast::Ty;
use crate::program::decode::{Cx, R};
use crate::program::{Alu, Op};

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
            other => return Err(format!("type {other:?} is not modelled here")),
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
    if ty.signed() {
        (i128::from(sext(a, ty.bits())) * i128::from(sext(b, ty.bits()))) as u128
    } else {
        u128::from(zext(a, ty.bits())) * u128::from(zext(b, ty.bits()))
    }
}

fn wide_type(ty: Ty) -> R<Ty> {
    Ok(match ty {
        Ty::U16 => Ty::U32,
        Ty::S16 => Ty::S32,
        Ty::U32 => Ty::U64,
        Ty::S32 => Ty::S64,
        other => return Err(format!(".wide is not defined for {other:?}")),
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
    let bitwise = matches!(op, "popc" | "clz" | "brev" | "bfi");
    let packed_ty = matches!(ty, Ty::U16x2 | Ty::S16x2);
    if !(ty.is_int() || packed_ty || bitwise && matches!(ty, Ty::B32 | Ty::B64)) {
        return Ok(None);
    }
    let known = matches!(
        op,
        "add"
            | "sub"
            | "addc"
            | "subc"
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
            | "popc"
            | "clz"
            | "bfind"
            | "brev"
            | "bfe"
            | "bfi"
            | "szext"
            | "bmsk"
            | "dp4a"
            | "dp2a"
    );
    if !known {
        return Ok(None);
    }
    cx.mods.take(
        &cx.ins
            .mods
            .iter()
            .find(|m| Ty::parse(m).is_some())
            .cloned()
            .unwrap_or_default(),
    );
    let op = if packed_ty {
        packed_op(cx, op, ty)?
    } else {
        scalar_op(cx, op, ty)?
    };
    Ok(Some(op))
}

fn packed_op(cx: &mut Cx<'_>, op: &str, ty: Ty) -> R<Op> {
    let signed = ty == Ty::S16x2;
    let f = match (op, signed) {
        ("add", _) => packed(u16::wrapping_add),
        ("min", false) => packed(u16::min),
        ("max", false) => packed(u16::max),
        ("min", true) => packed(|a, b| (a as i16).min(b as i16) as u16),
        ("max", true) => packed(|a, b| (a as i16).max(b as i16) as u16),
        _ => return Err(format!("{op} is not defined for {ty:?}")),
    };
    cx.alu(f, ty, &[ty, ty])
}

fn scalar_op(cx: &mut Cx<'_>, op: &str, ty: Ty) -> R<Op> {
    let bits = ty.bits();
    let cc = cx.mods.take("cc");
    if cc || matches!(op, "addc" | "subc") {
        if !matches!(op, "add" | "addc" | "sub" | "subc") || bits < 32 {
            return Err("this extended-precision instruction is not modelled".into());
        }
        cx.mods.finish()?;
        cx.count(&[3])?;
        return Ok(Op::Carry {
            d: cx.dst(0, ty)?,
            a: cx.src(1, ty)?,
            b: cx.src(2, ty)?,
            bits,
            subtract: op.starts_with("sub"),
            carry_in: op.ends_with('c'),
            carry_out: cc,
        });
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
        "popc" => cx.alu(
            Alu::of1(move |a| zext(a, bits).count_ones().into()),
            Ty::B32,
            &[ty],
        ),
        "clz" => {
            let f = Alu::of1(move |a| {
                u64::from(zext(a, bits).leading_zeros()) - (64 - u64::from(bits))
            });
            cx.alu(f, Ty::B32, &[ty])
        }
        "brev" => cx.alu(
            Alu::of1(move |a| zext(a, bits).reverse_bits() >> (64 - bits)),
            ty,
            &[ty],
        ),
        "bfind" => {
            let shift = cx.mods.take("shiftamt");
            let signed = ty.signed();
            let f = Alu::of1(move |a| {
                let a = if signed && sext(a, bits) < 0 {
                    zext(!a, bits)
                } else {
                    zext(a, bits)
                };
                if a == 0 {
                    return 0xffff_ffff;
                }
                let at = 63 - u64::from(a.leading_zeros());
                if shift { u64::from(bits) - 1 - at } else { at }
            });
            cx.alu(f, Ty::B32, &[ty])
        }
        "bfe" => {
            let signed = ty.signed();
            // The ISA limits position and length to 8 bits. With 64-bit sources hardware takes all
            // of their 32 bits, which is recorded.
            let field = move |v: u64| {
                if bits == 64 {
                    v & 0xffff_ffff
                } else {
                    v & 0xff
                }
            };
            let f = Alu::of3(move |a, b, c| bit_field(a, field(b), field(c), bits, signed));
            cx.alu(f, ty, &[ty, Ty::B32, Ty::B32])
        }
        "bfi" => insert(cx, ty),
        "szext" => {
            let wrap = cx.mods.take("wrap");
            if !wrap && !cx.mods.take("clamp") {
                return Err(".wrap or .clamp is missing".into());
            }
            let signed = ty.signed();
            let f = Alu::of2(move |a, b| {
                let n = if wrap { b & 31 } else { zext(b, 32).min(32) } as u32;
                match (n, signed) {
                    (0, _) => 0,
                    (32, _) => zext(a, 32),
                    (n, true) => zext(sext(a, n) as u64, 32),
                    (n, false) => zext(a, n),
                }
            });
            cx.alu(f, ty, &[ty, Ty::B32])
        }
        "dp4a" | "dp2a" => dot(cx, op == "dp4a", ty),
        other => Err(format!("{other} of {ty:?} is not modelled")),
    }
}

fn multiply(cx: &mut Cx<'_>, mad: bool, ty: Ty) -> R<Op> {
    let bits = ty.bits();
    let part = cx
        .mods
        .one_of(&["lo", "hi", "wide"])
        .ok_or(".lo, .hi or .wide is missing")?;
    if cx.mods.take("sat") {
        return Err("mad.hi.sat is not modelled".into());
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

fn bit_field(a: u64, at: u64, n: u64, bits: u32, signed: bool) -> u64 {
    let msb = u64::from(bits) - 1;
    let fill = signed && n > 0 && a >> (at + n - 1).min(msb) & 1 == 1;
    let mut d = if at > msb { 0 } else { zext(a, bits) >> at };
    // Bits that exist: up to n, and not beyond the source.
    let have = n.min((msb + 1).saturating_sub(at));
    if have < 64 {
        d &= (1 << have) - 1;
        if fill {
            d |= u64::MAX << have;
        }
    }
    zext(d, bits)
}

fn insert(cx: &mut Cx<'_>, ty: Ty) -> R<Op> {
    // Four sources: position and length are folded into one where they are literals, which is
    // what compilers emit.
    let (Some(at), Some(n)) = (
        crate::program::decode::immediate(cx.operand(3)?),
        crate::program::decode::immediate(cx.operand(4)?),
    ) else {
        return Err("bfi with a position or length in a register is not modelled".into());
    };
    cx.mods.finish()?;
    cx.count(&[5])?;
    let bits = ty.bits();
    let (at, n) = (at & 0xff, n & 0xff);
    let ones = if n >= 64 { u64::MAX } else { (1 << n) - 1 };
    let mask = if at >= 64 { 0 } else { zext(ones << at, bits) };
    let f = Alu::of2(move |a, b| {
        let shifted = if at >= 64 { 0 } else { a << at };
        zext(b & !mask | shifted & mask, bits)
    });
    let zero = cx.b.constant(0);
    Ok(Op::Alu {
        f,
        d: cx.dst(0, ty)?,
        s: [cx.src(1, ty)?, cx.src(2, ty)?, zero],
        n: 2,
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
mod tests {
    use crate::ops::testing::eval;
    use proptest::prelude::*;

    #[test]
    fn edges() {
        assert_eq!(eval("mul.hi.s32", 32, &[0x8000_0000, 2]), 0xffff_ffff);
        assert_eq!(eval("mul.hi.u64", 64, &[u64::MAX, u64::MAX]), u64::MAX - 1);
        assert_eq!(eval("mul.wide.s16", 32, &[0xffff, 4]), 0xffff_fffc);
        assert_eq!(
            eval("mad.wide.u32", 64, &[0xffff_ffff, 0xffff_ffff, 1]),
            0xffff_fffe_0000_0002
        );
        assert_eq!(
            eval("div.s32", 32, &[0x8000_0000, 0xffff_ffff]),
            0x8000_0000
        );
        assert_eq!(
            eval("rem.s32", 32, &[(-7i32) as u64, 3]),
            u64::from(-1i32 as u32)
        );
        assert_eq!(eval("neg.s16", 16, &[1]), 0xffff);
        assert_eq!(eval("abs.s32", 32, &[0x8000_0000]), 0x8000_0000);
        assert_eq!(eval("add.sat.s32", 32, &[0x7fff_ffff, 1]), 0x7fff_ffff);
        assert_eq!(eval("clz.b32", 32, &[1]), 31);
        assert_eq!(eval("clz.b64", 32, &[0]), 64);
        assert_eq!(eval("popc.b64", 32, &[u64::MAX]), 64);
        assert_eq!(eval("brev.b32", 32, &[1]), 0x8000_0000);
        assert_eq!(eval("bfind.u32", 32, &[0]), 0xffff_ffff);
        assert_eq!(eval("bfind.s32", 32, &[0xffff_fff0]), 3);
        assert_eq!(eval("bfind.shiftamt.u32", 32, &[1]), 31);
        assert_eq!(eval("bfe.s32", 32, &[0xf0, 4, 4]), 0xffff_ffff);
        assert_eq!(eval("bfe.u32", 32, &[0xf0, 4, 40]), 0xf);
        assert_eq!(
            eval("dp4a.s32.u32", 32, &[0xff01_0203, 0x0102_0304, 10]),
            10 - 1 + 2 + 6 + 12
        );
        assert_eq!(
            eval("dp2a.lo.u32.u32", 32, &[0x0002_0003, 0x0405_0607, 1]),
            1 + 2 * 6 + 3 * 7
        );
        assert_eq!(
            eval("min.s16x2", 32, &[0x0001_ffff, 0x0000_0001]),
            0x0000_ffff
        );
    }

    /// The loop of the ISA's pseudocode, bit by bit.
    fn bfe_by_bits(a: u64, b: u64, c: u64, bits: u64, signed: bool) -> u64 {
        let cut = if bits == 32 { 0xff } else { u64::MAX };
        let (pos, len, msb) = (b & cut, c & cut, bits - 1);
        let sign = if !signed || len == 0 {
            0
        } else {
            a >> (pos + len - 1).min(msb) & 1
        };
        (0..bits)
            .map(|i| if i < len && pos + i <= msb { a >> (pos + i) & 1 } else { sign } << i)
            .fold(0, |x, y| x | y)
    }

    proptest! {
        #[test]
        fn arithmetic_32(a: u32, b: u32, c: u32) {
            let s = [u64::from(a), u64::from(b), u64::from(c)];
            let (x, y) = (a as i32, b as i32);
            prop_assert_eq!(eval("mad.lo.s32", 32, &s), u64::from(a.wrapping_mul(b).wrapping_add(c)));
            prop_assert_eq!(eval("min.s32", 32, &s[..2]), u64::from(x.min(y) as u32));
            prop_assert_eq!(eval("mul.wide.s32", 64, &s[..2]), (i64::from(x) * i64::from(y)) as u64);
            prop_assert_eq!(eval("sad.s32", 32, &s), u64::from(x.abs_diff(y).wrapping_add(c)));
        }

        #[test]
        fn bit_fields(a: u64, b in 0u64..300, c in 0u64..300) {
            prop_assert_eq!(eval("bfe.u64", 64, &[a, b, c]), bfe_by_bits(a, b, c, 64, false));
            prop_assert_eq!(eval("bfe.s64", 64, &[a, b, c]), bfe_by_bits(a, b, c, 64, true));
            let low = a & 0xffff_ffff;
            prop_assert_eq!(eval("bfe.s32", 32, &[low, b, c]), bfe_by_bits(low, b, c, 32, true));
        }
    }
}
