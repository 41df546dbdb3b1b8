//! `mbarrier` instructions: section 9.7.13.15 of the ISA.

use crate::ast::{Operand, Ty};
use crate::memory::Space;
use crate::program::decode::{Cx, R};
use crate::program::{Addr, BarrierSync, MbarrierOp, Op};

pub(crate) fn decode(cx: &mut Cx<'_>) -> R<Option<Op>> {
    if cx.ins.opcode != "mbarrier" {
        return Ok(None);
    }
    let what = cx
        .mods
        .one_of(&[
            "init",
            "inval",
            "arrive_drop",
            "arrive",
            "expect_tx",
            "complete_tx",
            "test_wait",
            "try_wait",
            "pending_count",
        ])
        .ok_or("the operation is missing or not modelled")?;
    let op = match what {
        "init" => {
            let (addr, _) = place(cx, 0)?;
            cx.count(&[2])?;
            Op::Mbarrier {
                op: MbarrierOp::Init {
                    count: cx.src(1, Ty::B32)?,
                },
                addr,
            }
        }
        "inval" => {
            let (addr, _) = place(cx, 0)?;
            cx.count(&[1])?;
            Op::Mbarrier {
                op: MbarrierOp::Inval,
                addr,
            }
        }
        "expect_tx" | "complete_tx" => {
            ordering(cx);
            let (addr, _) = place(cx, 0)?;
            cx.count(&[2])?;
            let tx = cx.src(1, Ty::B32)?;
            let expect = what == "expect_tx";
            Op::Mbarrier {
                op: if expect {
                    MbarrierOp::ExpectTx { tx }
                } else {
                    MbarrierOp::CompleteTx { tx }
                },
                addr,
            }
        }
        "arrive" | "arrive_drop" => arrive(cx, what == "arrive_drop")?,
        "pending_count" => {
            if !cx.mods.take("b64") {
                return Err(".b64 is missing".into());
            }
            cx.count(&[2])?;
            Op::PendingCount {
                d: cx.dst(0, Ty::B32)?,
                a: cx.src(1, Ty::B64)?,
            }
        }
        _ => wait(cx, what == "try_wait")?,
    };
    cx.mods.finish()?;
    Ok(Some(op))
}

/// Semantics and scope, which default to `.release.cta` and `.acquire.cta`.
fn ordering(cx: &mut Cx<'_>) -> BarrierSync {
    BarrierSync {
        relaxed: cx.mods.one_of(&["release", "relaxed", "acquire"]) == Some("relaxed"),
        cluster: cx.mods.one_of(&["cta", "cluster"]) == Some("cluster"),
    }
}

/// The object's address, and whether it must be this CTA's own.
fn place(cx: &mut Cx<'_>, i: usize) -> R<(Addr, bool)> {
    let (space, own) = cx.space();
    if !matches!(space, None | Some(Space::Shared)) {
        return Err("an mbarrier object lies in shared memory".into());
    }
    if !cx.mods.take("b64") {
        return Err(".b64 is missing".into());
    }
    Ok((cx.addr(i, space, own)?, own))
}

fn arrive(cx: &mut Cx<'_>, drop: bool) -> R<Op> {
    let expect = cx.mods.take("expect_tx");
    let no_complete = cx.mods.take("noComplete");
    let sync = ordering(cx);
    // The result may be left out; then the address comes first.
    let first = usize::from(!matches!(cx.operand(0)?, Operand::Address { .. }));
    let (addr, _) = place(cx, first)?;
    let n = cx.count(&[first + 1, first + 2])?;
    let d = if first == 1 {
        let o = cx.operand(0)?;
        cx.dst_of(o, Ty::B64)?
    } else {
        None
    };
    if d.is_some() && addr.space == Some(Space::Shared) && !addr.own {
        return Err("an arrive on shared::cluster has no result but `_`".into());
    }
    let operand = if n == first + 2 {
        Some(cx.src(first + 1, Ty::B32)?)
    } else {
        None
    };
    if (expect || no_complete) && operand.is_none() {
        return Err("the count is missing".into());
    }
    let (count, tx) = if expect {
        (None, operand)
    } else {
        (operand, None)
    };
    Ok(Op::Mbarrier {
        op: MbarrierOp::Arrive {
            d,
            count,
            tx,
            drop,
            no_complete,
            sync,
        },
        addr,
    })
}

fn wait(cx: &mut Cx<'_>, suspends: bool) -> R<Op> {
    let parity = cx.mods.take("parity");
    let sync = ordering(cx);
    let (addr, _) = place(cx, 1)?;
    let n = cx.count(if suspends { &[3, 4] } else { &[3] })?;
    if n == 4 {
        // The time limit: only a hint.
        cx.src(3, Ty::B32)?;
    }
    let operand = cx.src(2, if parity { Ty::B32 } else { Ty::B64 })?;
    let p = cx.pred_dst(0)?;
    Ok(Op::Mbarrier {
        op: MbarrierOp::Wait {
            p,
            operand,
            parity,
            suspends,
            sync,
        },
        addr,
    })
}
