//! `clusterlaunchcontrol`: sections 9.7.13.17 and 9.7.13.18.

use crate::ast::{Operand, Ty};
use crate::memory::Space;
use crate::program::decode::{Cx, R};
use crate::program::{LaunchControl, Op};

pub(crate) fn decode(cx: &mut Cx<'_>) -> R<Option<Op>> {
    if cx.ins.opcode != "clusterlaunchcontrol" {
        return Ok(None);
    }
    let op = match cx.mods.one_of(&["try_cancel", "query_cancel"]) {
        Some("try_cancel") => {
            if !(cx.mods.take("async") && cx.mods.take("mbarrier::complete_tx::bytes")) {
                return Err(".async.mbarrier::complete_tx::bytes is missing".into());
            }
            let (space, own) = cx.space();
            if !matches!(space, None | Some(Space::Shared)) || space.is_some() && !own {
                return Err("the response lies in shared::cta".into());
            }
            let everywhere = cx.mods.take("multicast::cluster::all");
            cx.count(&[2])?;
            LaunchControl::TryCancel {
                response: cx.addr(0, space, own)?,
                mbarrier: cx.addr(1, space, own)?,
                everywhere,
            }
        }
        Some(_) if cx.mods.take("is_canceled") => {
            if !cx.mods.take("pred") {
                return Err(".pred is missing".into());
            }
            cx.count(&[2])?;
            LaunchControl::IsCanceled {
                p: cx.pred_dst(0)?,
                response: cx.src(1, Ty::B128)?,
            }
        }
        Some(_) => {
            let axis = cx.mods.one_of(&[
                "get_first_ctaid",
                "get_first_ctaid::x",
                "get_first_ctaid::y",
                "get_first_ctaid::z",
            ]);
            // All dimensions, or one.
            let axis = match axis {
                Some("get_first_ctaid") if cx.mods.take("v4") => None,
                Some("get_first_ctaid") => return Err(".v4 or a dimension is missing".into()),
                Some("get_first_ctaid::x") => Some(0),
                Some("get_first_ctaid::y") => Some(1),
                Some(_) => Some(2),
                None => return Err("the query is missing or not modelled".into()),
            };
            if !cx.mods.take("b32") {
                return Err(".b32 is missing".into());
            }
            cx.count(&[2])?;
            let mut into = [None; 3];
            match (cx.operand(0)?, axis) {
                (Operand::Vector(v), None) if v.len() == 4 => {
                    for (d, o) in into.iter_mut().zip(v) {
                        *d = cx.dst_of(o, Ty::B32)?;
                    }
                    // The ISA gives the fourth no meaning.
                    cx.dst_of(&v[3], Ty::B32)?;
                }
                (o @ Operand::Name(_), Some(axis)) => into[axis] = cx.dst_of(o, Ty::B32)?,
                (_, None) => return Err("4 registers are expected".into()),
                (_, Some(_)) => return Err("a register is expected".into()),
            }
            LaunchControl::FirstCta {
                into,
                response: cx.src(1, Ty::B128)?,
            }
        }
        None => return Err("the operation is missing or not modelled".into()),
    };
    if !cx.mods.take("b128") {
        return Err(".b128 is missing".into());
    }
    cx.mods.finish()?;
    Ok(Some(Op::LaunchControl(op)))
}
