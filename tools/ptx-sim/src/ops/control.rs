//! Branches, barriers, fences and hints: sections 9.7.12, 9.7.13 and 9.7.19.

use crate::ast::{Operand, Ty};
use crate::program::decode::{Cx, R, immediate};
use crate::program::{BarMode, FenceKind, Op};

pub(crate) fn decode(cx: &mut Cx<'_>) -> R<Option<Op>> {
    let op = match cx.ins.opcode.as_str() {
        "bra" => {
            let uniform = cx.mods.take("uni");
            cx.mods.finish()?;
            cx.count(&[1])?;
            Op::Bra {
                target: cx.label(0)?,
                uniform,
            }
        }
        "brx" => {
            if !cx.mods.take("idx") {
                return Err(".idx is missing".into());
            }
            let uniform = cx.mods.take("uni");
            cx.mods.finish()?;
            cx.count(&[2])?;
            Op::BrxIdx {
                uniform,
                index: cx.src(0, Ty::U32)?,
                targets: cx.table(1)?,
            }
        }
        "exit" | "ret" => {
            let uniform = cx.ins.opcode == "ret" && cx.mods.take("uni");
            cx.mods.finish()?;
            cx.count(&[0])?;
            match cx.back() {
                Some(target) if cx.ins.opcode == "ret" => Op::Bra { target, uniform },
                _ => Op::Exit { uniform },
            }
        }
        "trap" => {
            cx.mods.finish()?;
            Op::Trap
        }
        "griddepcontrol" => {
            let Some(action) = cx.mods.one_of(&["wait", "launch_dependents"]) else {
                return Err(".wait or .launch_dependents is missing".into());
            };
            cx.mods.finish()?;
            cx.count(&[0])?;
            match action {
                "wait" => Op::GridWait,
                _ => Op::LaunchDependents,
            }
        }
        "nanosleep" | "pmevent" => {
            let sleeps = cx.ins.opcode == "nanosleep";
            cx.mods.take(if sleeps { "u32" } else { "mask" });
            cx.mods.finish()?;
            cx.count(&[1])?;
            cx.src(0, Ty::U32)?;
            Op::Hint
        }
        "setmaxnreg" => {
            if cx.mods.one_of(&["inc", "dec"]).is_none() {
                return Err(".inc or .dec is missing".into());
            }
            if !["sync", "aligned", "u32"].iter().all(|m| cx.mods.take(m)) {
                return Err(".sync.aligned.u32 is missing".into());
            }
            cx.mods.finish()?;
            cx.count(&[1])?;
            let count = immediate(cx.operand(0)?);
            if !count.is_some_and(|n| n % 8 == 0 && (24..=256).contains(&n)) {
                return Err("the count is a multiple of 8 from 24 to 256".into());
            }
            Op::Registers
        }
        "membar" | "fence" => fence(cx)?,
        "bar" | "barrier" => barrier(cx)?,
        _ => return Ok(None),
    };
    Ok(Some(op))
}

fn fence(cx: &mut Cx<'_>) -> R<Op> {
    let all = cx.ins.mods.join(".");
    let kind = match all.as_str() {
        "mbarrier_init.release.cluster" => FenceKind::MbarrierInit,
        "proxy.alias" => FenceKind::ProxyAlias,
        "proxy.async" => FenceKind::ProxyAsync {
            global: true,
            shared: true,
        },
        "proxy.async.global" => FenceKind::ProxyAsync {
            global: true,
            shared: false,
        },
        "proxy.async.shared::cta" | "proxy.async.shared::cluster" | "proxy.async.shared" => {
            FenceKind::ProxyAsync {
                global: false,
                shared: true,
            }
        }
        _ if all.starts_with("proxy.") => {
            return Ok(Op::Unmodelled {
                reason: "this proxy fence is not modelled".into(),
            });
        }
        _ => {
            let (sems, scopes): (&[_], &[_]) = match cx.ins.opcode.as_str() {
                "membar" => (&[], &["cta", "gl", "sys"]),
                _ => (
                    &["sc", "acq_rel", "acquire", "release"],
                    &["cta", "cluster", "gpu", "sys"],
                ),
            };
            let sem = cx.mods.one_of(sems);
            let scope = cx.mods.one_of(scopes);
            cx.mods.finish()?;
            scope.ok_or("a scope is missing")?;
            match sem {
                _ if cx.ins.opcode == "membar" => FenceKind::Sc,
                Some("sc") => FenceKind::Sc,
                Some("acquire") => FenceKind::Acquire,
                Some("release") => FenceKind::Release,
                _ => FenceKind::AcqRel,
            }
        }
    };
    cx.count(&[0])?;
    Ok(Op::Fence { kind })
}

fn barrier(cx: &mut Cx<'_>) -> R<Op> {
    if cx.mods.take("cluster") {
        let arrive = match cx.mods.one_of(&["arrive", "wait"]) {
            Some(m) => m == "arrive",
            None => return Err(".arrive or .wait is missing".into()),
        };
        let aligned = cx.mods.take("aligned");
        let relaxed = arrive && cx.mods.take("relaxed");
        if !relaxed {
            cx.mods.take(if arrive { "release" } else { "acquire" });
        }
        cx.mods.finish()?;
        cx.count(&[0])?;
        return Ok(if arrive {
            Op::ClusterArrive { relaxed, aligned }
        } else {
            Op::ClusterWait { aligned }
        });
    }
    if cx.mods.take("warp") {
        if !cx.mods.take("sync") {
            return Err(".sync is missing".into());
        }
        cx.mods.finish()?;
        cx.count(&[1])?;
        return Ok(Op::WarpSync {
            mask: cx.src(0, Ty::B32)?,
        });
    }
    cx.mods.take("cta");
    // `bar` is the aligned form of `barrier`.
    let aligned = cx.mods.take("aligned") || cx.ins.opcode == "bar";
    if cx.mods.take("sync") {
        cx.mods.finish()?;
        let n = cx.count(&[1, 2])?;
        let count = if n == 2 {
            Some(cx.src(1, Ty::U32)?)
        } else {
            None
        };
        return Ok(Op::Bar {
            mode: BarMode::Sync,
            id: cx.src(0, Ty::U32)?,
            count,
            aligned,
        });
    }
    if cx.mods.take("arrive") {
        cx.mods.finish()?;
        cx.count(&[2])?;
        let count = Some(cx.src(1, Ty::U32)?);
        return Ok(Op::Bar {
            mode: BarMode::Arrive,
            id: cx.src(0, Ty::U32)?,
            count,
            aligned,
        });
    }
    if !cx.mods.take("red") {
        return Err(".sync, .arrive or .red is missing".into());
    }
    let what = cx
        .mods
        .one_of(&["popc", "and", "or"])
        .ok_or("the reduction is missing")?;
    let t = cx.mods.ty()?;
    cx.mods.finish()?;
    let n = cx.count(&[3, 4])?;
    let count = if n == 4 {
        Some(cx.src(2, Ty::U32)?)
    } else {
        None
    };
    let p = cx.pred(n - 1)?;
    let mode = match (what, t) {
        ("popc", Ty::U32) => BarMode::Popc(cx.dst(0, Ty::U32)?, p),
        ("and" | "or", Ty::Pred) => BarMode::Vote(cx.pred_dst(0)?, p, what == "and"),
        _ => return Err(format!(".{what} does not give {t}")),
    };
    if matches!(cx.operand(1)?, Operand::Vector(_)) {
        return Err("a barrier is a number".into());
    }
    Ok(Op::Bar {
        mode,
        id: cx.src(1, Ty::U32)?,
        count,
        aligned,
    })
}
