//! Integers as strings of bits: sections 9.7.1.14 to 9.7.1.22 of the ISA.

use super::{first_type, sext, zext};
use crate::ast::Ty;
use crate::program::decode::{Cx, R};
use crate::program::{Alu, Op};

pub(crate) fn decode(cx: &mut Cx<'_>) -> R<Option<Op>> {
    let op = cx.ins.opcode.as_str();
    let takes: fn(Ty) -> bool = match op {
        "popc" | "clz" | "brev" | "bfi" => |t| matches!(t, Ty::B32 | Ty::B64),
        "bfind" | "bfe" => |t| t.is_int() && t.bits() >= 32,
        "szext" => |t| matches!(t, Ty::U32 | Ty::S32),
        "bmsk" | "fns" => |t| t == Ty::B32,
        _ => return Ok(None),
    };
    let ty = first_type(cx.ins).ok_or("a type is missing or not modelled")?;
    if !takes(ty) {
        return Err(format!("{op} of {ty} is not defined"));
    }
    cx.mods.ty()?;
    let bits = ty.bits();
    let op = match op {
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
            let wrap = wraps(cx)?;
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
        "bmsk" => {
            let wrap = wraps(cx)?;
            let f = Alu::of2(move |a, b| mask(zext(a, 32), zext(b, 32), wrap));
            cx.alu(f, ty, &[ty, ty])
        }
        _ => {
            let f = Alu::of3(|mask, base, n| nth_set(mask as u32, base as u32, n as i32).into());
            cx.alu(f, ty, &[ty, ty, ty])
        }
    };
    op.map(Some)
}

/// Takes `.wrap` or `.clamp`.
fn wraps(cx: &mut Cx<'_>) -> R<bool> {
    match cx.mods.one_of(&["wrap", "clamp"]) {
        Some(m) => Ok(m == "wrap"),
        None => Err(".wrap or .clamp is missing".into()),
    }
}

/// `n` ones from bit `at`.
fn mask(at: u64, n: u64, wrap: bool) -> u64 {
    let (at, n) = if wrap {
        (at & 31, n & 31)
    } else {
        (at, n.min(32))
    };
    if at >= 32 {
        0
    } else {
        zext(((1 << n) - 1) << at, 32)
    }
}

/// Position of the set bit that is `n`th from `base`, counted from 1, downward if negative. A base
/// beyond 31, which the ISA leaves undefined, finds nothing.
fn nth_set(mask: u32, base: u32, n: i32) -> u32 {
    let at = |i: u32| mask.checked_shr(i).is_some_and(|m| m & 1 == 1);
    let found = match n {
        0 => at(base).then_some(base),
        1.. => (base..32).filter(|i| at(*i)).nth(n as usize - 1),
        _ if base < 32 => (0..=base)
            .rev()
            .filter(|i| at(*i))
            .nth(n.unsigned_abs() as usize - 1),
        _ => None,
    };
    found.unwrap_or(u32::MAX)
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
    cx.mods.finish()?;
    cx.count(&[5])?;
    let (d, a, b) = (cx.dst(0, ty)?, cx.src(1, ty)?, cx.src(2, ty)?);
    let bits = ty.bits();
    let (at, n) = (cx.src(3, Ty::B32)?, cx.src(4, Ty::B32)?);
    Ok(Op::Insert {
        d,
        a,
        b,
        at,
        n,
        bits,
    })
}

/// The low `n` bits of `a` put into `b` from bit `at`.
pub(crate) fn insert_bits(a: u64, b: u64, at: u64, n: u64, bits: u32) -> u64 {
    let (at, n) = if bits == 64 {
        (at, n)
    } else {
        (at & 0xff, n & 0xff)
    };
    if at >= 64 {
        return b;
    }
    let mask = zext(zext(u64::MAX, n as u32) << at, bits);
    b & !mask | a << at & mask
}

#[cfg(test)]
mod tests {
    use crate::ops::testing::{decode, eval};

    #[test]
    fn masks() {
        for (a, b, want) in [
            (1, 2, 6),
            (0, 32, 0xffff_ffff),
            (4, 32, 0xffff_fff0),
            (31, 31, 0x8000_0000),
            (32, 1, 0),
            (3, 0, 0),
            (8, 40, 0xffff_ff00),
        ] {
            assert_eq!(eval("bmsk.clamp.b32", 32, &[a, b]), want, "{a} {b}");
        }
        assert_eq!(eval("bmsk.wrap.b32", 32, &[33, 34]), 6);
        assert_eq!(eval("bmsk.wrap.b32", 32, &[5, 32]), 0);
        assert!(decode("bmsk.b32", 32, 2).is_err());
    }

    #[test]
    fn nth_set_bits() {
        let minus = |n: i64| n as u64;
        for (mask, base, n, want) in [
            // The ISA's examples.
            (0xaaaa_aaaa, 3, 1, 3),
            (0xaaaa_aaaa, 3, minus(-1), 3),
            (0xaaaa_aaaa, 2, 1, 3),
            (0xaaaa_aaaa, 2, minus(-1), 1),
            (0xaaaa_aaaa, 0, 16, 31),
            (0xaaaa_aaaa, 0, 17, 0xffff_ffff),
            (0xaaaa_aaaa, 31, minus(-16), 1),
            (0xaaaa_aaaa, 2, 0, 0xffff_ffff),
            (0xaaaa_aaaa, 5, 0, 5),
            (1, 0, minus(i32::MIN.into()), 0xffff_ffff),
        ] {
            let got = eval("fns.b32", 32, &[mask, base, n]);
            assert_eq!(got, want, "{mask:x} {base} {n}");
        }
    }

    #[test]
    fn extensions() {
        assert_eq!(eval("szext.clamp.s32", 32, &[0x80, 8]), 0xffff_ff80);
        assert_eq!(eval("szext.clamp.u32", 32, &[0xfff, 8]), 0xff);
        assert_eq!(eval("szext.clamp.s32", 32, &[0x8000_0001, 99]), 0x8000_0001);
        assert_eq!(eval("szext.wrap.s32", 32, &[0xffff_ffff, 32]), 0);
        assert_eq!(eval("szext.wrap.s32", 32, &[2, 34]), 0xffff_fffe);
    }
}
