//! `ldmatrix`, `stmatrix` and `movmatrix` of 8x8 matrices of 16 bits: section 9.7.14.5.

use crate::ast::{Operand, Ty};
use crate::memory::Space;
use crate::program::decode::{Cx, R};
use crate::program::{Dst, Op, Src};

pub(crate) fn decode(cx: &mut Cx<'_>) -> R<Option<Op>> {
    let opcode = cx.ins.opcode.as_str();
    if !matches!(opcode, "ldmatrix" | "stmatrix" | "movmatrix") {
        return Ok(None);
    }
    if !cx.mods.take("sync") || !cx.mods.take("aligned") || !cx.mods.take("m8n8") {
        return Err("only .sync.aligned.m8n8 is modelled".into());
    }
    let transposed = cx.mods.take("trans");
    if opcode == "movmatrix" {
        if !transposed || !cx.mods.take("b16") {
            return Err("movmatrix is .trans.b16".into());
        }
        cx.mods.finish()?;
        cx.count(&[2])?;
        return Ok(Some(Op::MovMatrix {
            d: cx.dst(0, Ty::B32)?,
            a: cx.src(1, Ty::B32)?,
        }));
    }
    let n = match cx.mods.one_of(&["x1", "x2", "x4"]) {
        Some("x1") => 1,
        Some("x2") => 2,
        Some(_) => 4,
        None => return Err(".x1, .x2 or .x4 is missing".into()),
    };
    let (space, own) = cx.space();
    if !cx.mods.take("b16") {
        return Err("only b16 is modelled".into());
    }
    cx.mods.finish()?;
    cx.count(&[2])?;
    if !matches!(space, None | Some(Space::Shared)) {
        return Err("matrices lie in shared memory".into());
    }
    let load = opcode == "ldmatrix";
    let list = match (cx.operand(if load { 0 } else { 1 })?, n) {
        (Operand::Vector(v), n) if v.len() == n => v.iter().collect::<Vec<_>>(),
        (o @ Operand::Name(_), 1) => vec![o],
        _ => return Err(format!("{n} registers are expected")),
    };
    Ok(Some(if load {
        let d: Vec<Option<Dst>> = list
            .into_iter()
            .map(|o| cx.dst_of(o, Ty::B32))
            .collect::<R<_>>()?;
        Op::LdMatrix {
            d,
            addr: cx.addr(1, space, own)?,
            transposed,
        }
    } else {
        let s: Vec<Src> = list
            .into_iter()
            .map(|o| cx.src_of(o, Ty::B32))
            .collect::<R<_>>()?;
        Op::StMatrix {
            s,
            addr: cx.addr(0, space, own)?,
            transposed,
        }
    }))
}
