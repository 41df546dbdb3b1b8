//! `cvt.pack`: two saturated integers side by side, section 9.7.9.22.

use super::{sext, zext};
use crate::ast::Ty;
use crate::program::decode::{Cx, R};
use crate::program::{Alu, Op};

/// Bits, and whether they are signed.
fn target(name: &str) -> Option<(u32, bool)> {
    Some(match name {
        "u16" => (16, false),
        "s16" => (16, true),
        "u8" => (8, false),
        "s8" => (8, true),
        "u4" => (4, false),
        "s4" => (4, true),
        "u2" => (2, false),
        "s2" => (2, true),
        _ => return None,
    })
}

/// Decodes the modifiers and operands that follow `cvt.pack`.
pub(super) fn decode(cx: &mut Cx<'_>) -> R<Op> {
    if !cx.mods.take("sat") {
        return Err(".sat is missing".into());
    }
    let (bits, signed) = cx.mods.find(target).ok_or("a type is missing")?;
    if cx.mods.ty()? != Ty::S32 {
        return Err("cvt.pack takes s32".into());
    }
    let (low, high) = if signed {
        (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    } else {
        (0, (1i64 << bits) - 1)
    };
    let fit = move |v: u64| zext(sext(v, 32).clamp(low, high) as u64, bits);
    if bits == 16 {
        let f = Alu::of2(move |a, b| fit(a) << 16 | fit(b));
        return cx.alu(f, Ty::B32, &[Ty::S32, Ty::S32]);
    }
    if cx.mods.ty()? != Ty::B32 {
        return Err("the third source is b32".into());
    }
    let f = Alu::of3(move |a, b, c| zext(c << (2 * bits) | fit(a) << bits | fit(b), 32));
    cx.alu(f, Ty::B32, &[Ty::S32, Ty::S32, Ty::B32])
}

#[cfg(test)]
mod tests {
    use crate::ops::testing::{decode, eval};

    #[test]
    fn saturated_side_by_side() {
        let minus = |v: i32| u64::from(v as u32);
        let eval = |op, s: &[u64]| eval(op, 32, s);
        assert_eq!(
            eval("cvt.pack.sat.s16.s32", &[70_000, minus(-70_000)]),
            0x7fff_8000
        );
        assert_eq!(
            eval("cvt.pack.sat.u8.s32.b32", &[300, minus(-5), 0x1234_5678]),
            0x5678_ff00
        );
        assert_eq!(
            eval("cvt.pack.sat.s4.s32.b32", &[minus(-1), 9, 0xab]),
            0xabf7
        );
        assert!(decode("cvt.pack.sat.u8.s32", 32, 2).is_err());
    }
}
