//! Instructions across the lanes of a warp: section 9.7.13 and 9.7.9.6.

use crate::ast::{Operand, Ty};
use crate::models::tma_bulk::{ReduceDst, ReduceOp, check_reduction};
use crate::program::decode::{Cx, R};
use crate::program::{Dst, Op, ShflMode, VoteMode};

/// `d`, or `d|p`.
fn with_predicate(cx: &mut Cx<'_>, ty: Ty) -> R<(Option<Dst>, Option<u32>)> {
    match cx.operand(0)? {
        Operand::Pair(d, p) => Ok((cx.dst_of(d, ty)?, cx.pred_dst_of(p)?)),
        d => Ok((cx.dst_of(d, ty)?, None)),
    }
}

fn need(d: Option<Dst>) -> R<Dst> {
    d.ok_or_else(|| "`_` cannot be the result here".into())
}

pub(crate) fn decode(cx: &mut Cx<'_>) -> R<Option<Op>> {
    let opcode = cx.ins.opcode.as_str();
    if opcode == "activemask" {
        cx.mods.take("b32");
        cx.mods.finish()?;
        return Ok(Some(Op::ActiveMask {
            d: cx.dst(0, Ty::B32)?,
        }));
    }
    if !matches!(opcode, "shfl" | "vote" | "match" | "redux" | "elect") {
        return Ok(None);
    }
    if !cx.mods.take("sync") {
        return Err("the form without .sync is not modelled: it was removed for sm_70".into());
    }
    let op = match opcode {
        "shfl" => {
            let mode = cx.mods.find(ShflMode::parse).ok_or("a mode is missing")?;
            if !cx.mods.take("b32") {
                return Err("shfl moves b32".into());
            }
            cx.mods.finish()?;
            cx.count(&[5])?;
            let t = Ty::B32;
            let (d, p) = with_predicate(cx, t)?;
            let (a, b, c) = (cx.src(1, t)?, cx.src(2, t)?, cx.src(3, t)?);
            Op::Shfl {
                mode,
                d: need(d)?,
                p,
                a,
                b,
                c,
                mask: cx.src(4, t)?,
            }
        }
        "vote" => {
            cx.count(&[3])?;
            let mask = cx.src(2, Ty::B32)?;
            let p = cx.pred(1)?;
            if cx.mods.take("ballot") {
                cx.mods.take("b32");
                cx.mods.finish()?;
                Op::Ballot {
                    d: cx.dst(0, Ty::B32)?,
                    p,
                    mask,
                }
            } else {
                let mode = cx.mods.find(VoteMode::parse).ok_or("a mode is missing")?;
                cx.mods.take("pred");
                cx.mods.finish()?;
                Op::Vote {
                    mode,
                    d: cx.pred_dst(0)?,
                    p,
                    mask,
                }
            }
        }
        "match" => {
            let all = match cx.mods.one_of(&["any", "all"]) {
                Some(m) => m == "all",
                None => return Err("a mode is missing".into()),
            };
            let t = cx.mods.ty()?;
            cx.mods.finish()?;
            cx.count(&[3])?;
            let (d, p) = with_predicate(cx, Ty::B32)?;
            if !all && (d.is_none() || matches!(cx.operand(0)?, Operand::Pair(..))) {
                return Err("match.any has one result".into());
            }
            Op::Match {
                all,
                d,
                p,
                a: cx.src(1, t)?,
                mask: cx.src(2, Ty::B32)?,
            }
        }
        "redux" => {
            let op = cx.mods.find(ReduceOp::parse);
            let t = cx.mods.ty()?;
            cx.mods.finish()?;
            cx.count(&[3])?;
            let op = op
                .filter(|op| !matches!(op, ReduceOp::Inc | ReduceOp::Dec) && t.bits() == 32)
                .filter(|op| check_reduction(*op, t, ReduceDst::SharedCluster).is_ok())
                .ok_or("this reduction is not modelled")?;
            Op::Redux {
                op: (op, t),
                d: cx.dst(0, t)?,
                a: cx.src(1, t)?,
                mask: cx.src(2, Ty::B32)?,
            }
        }
        _ => {
            cx.mods.finish()?;
            cx.count(&[2])?;
            let (d, p) = with_predicate(cx, Ty::B32)?;
            let p = p.ok_or("elect has a predicate as its result")?;
            Op::Elect {
                d,
                p,
                mask: cx.src(1, Ty::B32)?,
            }
        }
    };
    Ok(Some(op))
}
