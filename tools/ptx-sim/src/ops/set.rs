//! `set`: a comparison whose result is a number, sections 9.7.6.1 and 9.7.7.1.

use super::predicate::{combination, comparison, comparison_name};
use crate::ast::Ty;
use crate::program::Op;
use crate::program::decode::{Cx, R};

pub(crate) fn decode(cx: &mut Cx<'_>) -> R<Option<Op>> {
    if cx.ins.opcode != "set" {
        return Ok(None);
    }
    let cmp = comparison_name(cx)?;
    let combine = combination(cx);
    let (to, from) = (cx.mods.ty()?, cx.mods.ty()?);
    let ftz = cx.mods.take("ftz");
    cx.mods.finish()?;
    let n = cx.count(if combine.is_some() { &[4] } else { &[3] })?;
    let packed = matches!(from, Ty::F16x2 | Ty::Bf16x2);
    let half = matches!(from, Ty::F16 | Ty::Bf16);
    let yes = match to {
        // Each of two comparisons gets a half.
        Ty::U32 | Ty::S32 if packed => 0xffff,
        Ty::F16x2 if from == to => 0x3c00,
        Ty::Bf16x2 if from == to => 0x3f80,
        _ if packed => return Err(format!("set of {to} from {from} is not defined")),
        Ty::U32 | Ty::S32 => 0xffff_ffff,
        Ty::U16 | Ty::S16 if half => 0xffff,
        Ty::F32 if !half => u64::from(1f32.to_bits()),
        Ty::F16 if from != Ty::Bf16 => 0x3c00,
        Ty::Bf16 if from != Ty::F16 => 0x3f80,
        _ => return Err(format!("set of {to} from {from} is not defined")),
    };
    let f = comparison(cmp, from, ftz)?;
    let with = match combine {
        None => None,
        Some(op) => Some((op, cx.pred(n - 1)?)),
    };
    Ok(Some(Op::Set {
        f,
        d: cx.dst(0, to)?,
        a: cx.src(1, from)?,
        b: cx.src(2, from)?,
        with,
        yes,
        packed,
    }))
}
