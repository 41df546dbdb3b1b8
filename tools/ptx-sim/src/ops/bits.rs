//! Logic, shifts, permutations, `mov`, `cvta` and friends: sections 9.7.8 and 9.7.9.

use super::{first_type, sext, zext};
use crate::ast::{Operand, Ty};
use crate::memory::Space;
use crate::memory::layout::generic_base;
use crate::program::decode::{Cx, R, immediate};
use crate::program::{Alu, Clock, Dst, Op, Src};

pub(crate) fn decode(cx: &mut Cx<'_>) -> R<Option<Op>> {
    let op = cx.ins.opcode.clone();
    if first_type(cx.ins) == Some(Ty::Pred) {
        return Ok(None);
    }
    let op = match op.as_str() {
        "and" | "or" | "xor" => {
            let t = bit_type(cx)?;
            let f = match op.as_str() {
                "and" => Alu::of2(|a, b| a & b),
                "or" => Alu::of2(|a, b| a | b),
                _ => Alu::of2(|a, b| a ^ b),
            };
            cx.alu(f, t, &[t, t])?
        }
        "not" => {
            let t = bit_type(cx)?;
            cx.alu(Alu::of1(|a| !a), t, &[t])?
        }
        "cnot" => {
            let t = bit_type(cx)?;
            let bits = t.bits();
            cx.alu(Alu::of1(move |a| u64::from(zext(a, bits) == 0)), t, &[t])?
        }
        "shl" | "shr" => shift(cx, op == "shl")?,
        "shf" => funnel(cx)?,
        "lop3" => lop3(cx)?,
        "prmt" => prmt(cx)?,
        "mov" => mov(cx)?,
        "slct" => {
            let t = cx.mods.ty()?;
            let by = cx.mods.ty()?;
            let ftz = cx.mods.take("ftz");
            let f = match by {
                Ty::S32 => Alu::of3(|a, b, c| if c as i32 >= 0 { a } else { b }),
                // -0 counts as zero, NaN as negative; flushing makes zeros of subnormals.
                Ty::F32 => Alu::of3(move |a, b, c| {
                    let c = f32::from_bits(c as u32);
                    if c >= 0.0 || ftz && c.is_subnormal() {
                        a
                    } else {
                        b
                    }
                }),
                _ => return Err("slct selects by s32 or f32".into()),
            };
            cx.alu(f, t, &[t, t, by])?
        }
        "cvta" => cvta(cx)?,
        "mapa" => {
            let (space, _) = cx.space();
            let t = cx.mods.ty()?;
            cx.mods.finish()?;
            cx.count(&[3])?;
            let generic = match space {
                Some(Space::Shared) => false,
                None if t.bits() == 64 => true,
                _ => return Err("mapa works on shared and generic addresses".into()),
            };
            Op::Mapa {
                d: cx.dst(0, t)?,
                a: cx.src(1, t)?,
                rank: cx.src(2, Ty::U32)?,
                generic,
            }
        }
        "getctarank" => {
            let (space, _) = cx.space();
            let t = cx.mods.ty()?;
            cx.mods.finish()?;
            let generic = space.is_none();
            Op::CtaRank {
                d: cx.dst(0, Ty::U32)?,
                a: cx.src(1, t)?,
                generic,
            }
        }
        "isspacep" => {
            let (space, own) = cx.space();
            cx.mods.finish()?;
            cx.count(&[2])?;
            let space = space.ok_or("a state space is missing")?;
            // isspacep.shared asks for this CTA's window, as .shared::cta does.
            Op::IsSpace {
                p: cx.pred_dst(0)?,
                a: cx.src(1, Ty::B64)?,
                space,
                own,
            }
        }
        // A policy is opaque and only ever a hint.
        "createpolicy" => {
            let operands: &[usize] = match cx.mods.one_of(&["fractional", "range", "cvt"]) {
                Some("fractional") => &[1, 2],
                Some("range") => &[4],
                Some(_) => &[2],
                None => return Err("the form is missing".into()),
            };
            cx.mods.take("global");
            cx.mods.take("L2");
            let priority = |m: &str| m.starts_with("L2::evict_").then_some(());
            let _ = (cx.mods.find(priority), cx.mods.find(priority));
            cx.mods.take("b64");
            cx.mods.finish()?;
            cx.count(operands)?;
            let d = cx.dst(0, Ty::B64)?;
            let policy = cx.b.constant(0x1000_0000_0000_0000);
            Op::Multi(vec![(d, policy)])
        }
        _ => return Ok(None),
    };
    Ok(Some(op))
}

fn bit_type(cx: &mut Cx<'_>) -> R<Ty> {
    match cx.mods.ty()? {
        t @ (Ty::B16 | Ty::B32 | Ty::B64) => Ok(t),
        t => Err(format!("{t} is not a bit type of this instruction")),
    }
}

fn shift(cx: &mut Cx<'_>, left: bool) -> R<Op> {
    let t = cx.mods.ty()?;
    let bits = t.bits();
    if !matches!(bits, 16 | 32 | 64) || left && t.signed() {
        return Err(format!("shifts of {t} are not defined"));
    }
    // Amounts beyond the width count as the width.
    let f = if left {
        Alu::of2(move |a, n| {
            if zext(n, 32) >= u64::from(bits) {
                0
            } else {
                zext(a << zext(n, 32), bits)
            }
        })
    } else if t.signed() {
        Alu::of2(move |a, n| zext((sext(a, bits) >> zext(n, 32).min(63)) as u64, bits))
    } else {
        Alu::of2(move |a, n| {
            if zext(n, 32) >= u64::from(bits) {
                0
            } else {
                zext(a, bits) >> zext(n, 32)
            }
        })
    };
    cx.alu(f, t, &[t, Ty::B32])
}

fn funnel(cx: &mut Cx<'_>) -> R<Op> {
    let left = match cx.mods.one_of(&["l", "r"]) {
        Some(d) => d == "l",
        None => return Err(".l or .r is missing".into()),
    };
    let clamp = match cx.mods.one_of(&["clamp", "wrap"]) {
        Some(m) => m == "clamp",
        None => return Err(".clamp or .wrap is missing".into()),
    };
    if cx.mods.ty()? != Ty::B32 {
        return Err("shf works on b32".into());
    }
    let f = Alu::of3(move |a, b, c| {
        let n = if clamp { zext(c, 32).min(32) } else { c & 31 };
        let both = zext(b, 32) << 32 | zext(a, 32);
        if left {
            (both << n) >> 32
        } else {
            zext(both >> n, 32)
        }
    });
    cx.alu(f, Ty::B32, &[Ty::B32, Ty::B32, Ty::B32])
}

fn lop3(cx: &mut Cx<'_>) -> R<Op> {
    if cx.mods.ty()? != Ty::B32 {
        return Err("lop3 works on b32".into());
    }
    cx.mods.finish()?;
    cx.count(&[5])?;
    let Some(table) = immediate(cx.operand(4)?).filter(|t| *t < 256) else {
        return Err("the table is an integer from 0 to 255".into());
    };
    let f = Alu::of3(move |a, b, c| {
        let mut d = 0;
        for i in 0..8 {
            if table >> i & 1 == 1 {
                let x = if i & 4 != 0 { a } else { !a };
                let y = if i & 2 != 0 { b } else { !b };
                let z = if i & 1 != 0 { c } else { !c };
                d |= x & y & z;
            }
        }
        zext(d, 32)
    });
    let t = Ty::B32;
    Ok(Op::Alu {
        f,
        d: cx.dst(0, t)?,
        s: [cx.src(1, t)?, cx.src(2, t)?, cx.src(3, t)?],
        n: 3,
    })
}

/// Selectors of the special modes, lowest byte first, by the low two bits of the control.
fn prmt_mode(mode: &str) -> [[u64; 4]; 4] {
    match mode {
        "f4e" => [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]],
        "b4e" => [[0, 7, 6, 5], [1, 0, 7, 6], [2, 1, 0, 7], [3, 2, 1, 0]],
        "rc8" => [[0; 4], [1; 4], [2; 4], [3; 4]],
        "ecl" => [[0, 1, 2, 3], [1, 1, 2, 3], [2, 2, 2, 3], [3; 4]],
        "ecr" => [[0; 4], [0, 1, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3]],
        _ => [[0, 1, 0, 1], [2, 3, 2, 3], [0, 1, 0, 1], [2, 3, 2, 3]],
    }
}

fn prmt(cx: &mut Cx<'_>) -> R<Op> {
    if cx.mods.ty()? != Ty::B32 {
        return Err("prmt works on b32".into());
    }
    let table = cx
        .mods
        .one_of(&["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"])
        .map(prmt_mode);
    let f = Alu::of3(move |a, b, c| {
        let bytes = zext(b, 32) << 32 | zext(a, 32);
        let mut d = 0;
        for i in 0..4 {
            let s = match &table {
                Some(t) => t[(c & 3) as usize][i],
                None => c >> (4 * i) & 15,
            };
            let mut v = bytes >> (8 * (s & 7)) & 0xff;
            if s & 8 != 0 {
                v = if v & 0x80 != 0 { 0xff } else { 0 };
            }
            d |= v << (8 * i);
        }
        d
    });
    cx.alu(f, Ty::B32, &[Ty::B32, Ty::B32, Ty::B32])
}

fn cvta(cx: &mut Cx<'_>) -> R<Op> {
    let to = cx.mods.take("to");
    let (space, _) = cx.space();
    let t = cx.mods.ty()?;
    let space = space.ok_or("a state space is missing")?;
    if !matches!(t, Ty::U64 | Ty::B64) {
        return Err("addresses have 64 bits".into());
    }
    let base = generic_base(space);
    let f = if to {
        Alu::of1(move |a| a.wrapping_sub(base))
    } else {
        Alu::of1(move |a| a.wrapping_add(base))
    };
    cx.alu(f, t, &[t])
}

fn mov(cx: &mut Cx<'_>) -> R<Op> {
    let t = cx.mods.ty()?;
    cx.mods.finish()?;
    cx.count(&[2])?;
    let (to, from) = (cx.operand(0)?, cx.operand(1)?);
    if let Operand::Name(n) = from {
        let clock = match n.as_str() {
            "%clock" => Some((Clock::Clock, 32)),
            "%clock_hi" => Some((Clock::ClockHi, 32)),
            "%clock64" => Some((Clock::Clock64, 64)),
            "%globaltimer" => Some((Clock::Timer, 64)),
            "%globaltimer_lo" => Some((Clock::TimerLo, 32)),
            "%globaltimer_hi" => Some((Clock::TimerHi, 32)),
            _ => None,
        };
        if let Some((which, bits)) = clock {
            if t.bits() != bits {
                return Err(format!("`{n}` has {bits} bits"));
            }
            return Ok(Op::ReadClock {
                d: cx.dst(0, t)?,
                which,
            });
        }
    }
    let part = |n: usize| -> R<(Ty, u32)> {
        match t.bits().checked_div(n as u32).filter(|_| n > 1) {
            Some(8) => Ok((Ty::B8, 8)),
            Some(16) => Ok((Ty::B16, 16)),
            Some(32) => Ok((Ty::B32, 32)),
            Some(64) => Ok((Ty::B64, 64)),
            _ => Err(format!("{n} parts do not make {t}")),
        }
    };
    let next = |Dst(d): Dst| Dst(d + 1);
    match (to, from) {
        (Operand::Vector(v), _) => {
            let (pt, bits) = part(v.len())?;
            let parts = v.iter().map(|o| cx.dst_of(o, pt)).collect::<R<Vec<_>>>()?;
            let a = cx.src(1, t)?;
            if t == Ty::B128 {
                if bits != 64 {
                    return Err("b128 splits into two b64".into());
                }
                let moves = parts.iter().enumerate();
                return Ok(Op::Multi(
                    moves
                        .filter_map(|(i, d)| d.map(|d| (d, Src(a.0 + i as u32))))
                        .collect(),
                ));
            }
            Ok(Op::Unpack { parts, a, bits })
        }
        (_, Operand::Vector(v)) => {
            let (pt, bits) = part(v.len())?;
            let parts = v.iter().map(|o| cx.src_of(o, pt)).collect::<R<Vec<_>>>()?;
            let d = cx.dst(0, t)?;
            if t == Ty::B128 {
                if bits != 64 {
                    return Err("b128 is made of two b64".into());
                }
                return Ok(Op::Multi(vec![(d, parts[0]), (next(d), parts[1])]));
            }
            Ok(Op::Pack { d, parts, bits })
        }
        _ if t == Ty::B128 => {
            let (d, a) = (cx.dst(0, t)?, cx.src(1, t)?);
            Ok(Op::Multi(vec![(d, a), (next(d), Src(a.0 + 1))]))
        }
        _ => {
            let (d, a) = (cx.dst(0, t)?, cx.src(1, t)?);
            Ok(Op::Multi(vec![(d, a)]))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::testing::{decode, eval, gives};
    use proptest::prelude::*;

    #[test]
    fn edges() {
        gives! {
            "shl.b32" 32 [1, 32] => 0;
            "shl.b32" 32 [1, 31] => 1 << 31;
            "shr.s32" 32 [0x8000_0000, 99] => 0xffff_ffff;
            "shr.u16" 16 [0xffff_8000, 15] => 1;
            "shr.s16" 16 [0x8000, 15] => 0xffff;
            "shf.l.wrap.b32" 32 [0x8000_0000, 1, 33] => 3;
            "shf.l.clamp.b32" 32 [5, 1, 40] => 5;
            "shf.r.clamp.b32" 32 [5, 7, 40] => 7;
            "prmt.b32" 32 [0x3322_1180, 0x7766_5544, 0x0478] => 0x8044_77ff;
            "prmt.b32.b4e" 32 [0x0302_0100, 0x0706_0504, 1] => 0x0607_0001;
            "prmt.b32.ecr" 32 [0x0302_0100, 0, 2] => 0x0202_0100;
            "not.b16" 16 [0] => 0xffff;
            "cnot.b32" 32 [0] => 1;
            "slct.b32.s32" 32 [1, 2, 0xffff_ffff] => 2;
        }
        assert!(decode("shl.s32", 32, 2).is_err());
    }

    proptest! {
        #[test]
        fn shifts(a: u64, n in 0u32..64) {
            prop_assert_eq!(eval("shl.b64", 64, &[a, n.into()]), a << n);
            prop_assert_eq!(eval("shr.s64", 64, &[a, n.into()]), (a as i64 >> n) as u64);
            let r = (a as u32).rotate_left(n & 31);
            prop_assert_eq!(eval("shf.l.wrap.b32", 32, &[a, a, n.into()]), u64::from(r));
        }
    }
}
