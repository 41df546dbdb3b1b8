//! Instructions left out, and waits that do not wait.

use super::Plan;
use super::body::{changed, has, instr, name};
use super::class::{Class, class};
use super::kind::Kind::*;
use crate::ast::{Instr, Operand, Stmt};

pub(super) fn plan(p: &mut Plan<'_>, at: usize, i: &Instr) {
    use Class::*;
    let kind = match class(i) {
        Wait => {
            // The result of the wait; `p` or `state|p` never occurs with two results.
            if let Some(done) = i.operands.first() {
                let zero = || Operand::Int(0);
                let mut always = instr(i, "setp.eq.u32", vec![done.clone(), zero(), zero()]);
                always.guard = i.guard.clone();
                p.one(PassWait, at, i, "", vec![changed(always)]);
            }
            return;
        }
        Arrive => DropArrive,
        ExpectTx => return expect_tx(p, at, i),
        Init => DropInit,
        Fence => DropFence,
        Commit => DropCommit,
        TensorWait => DropTensorWait,
        Tensor | Wgmma => DropTensor,
        Alloc => DropAlloc,
        Barrier => DropBarrier,
        WarpSync => DropWarpSync,
        GroupWait => DropGroupWait,
        Copy => DropCopy,
        GridWait => DropGridWait,
        Store if i.opcode != "atom" => DropStore,
        Shuffle => return shuffle(p, at, i),
        _ => return,
    };
    p.one(kind, at, i, "", vec![]);
}

fn expect_tx(p: &mut Plan<'_>, at: usize, i: &Instr) {
    p.one(DropExpectTx, at, i, "all of it", vec![]);
    if i.mods.first().is_some_and(|m| m == "expect_tx") {
        return;
    }
    let mut arrive = i.clone();
    arrive.mods.retain(|m| m != "expect_tx");
    arrive.operands.pop();
    p.one(DropExpectTx, at, i, "arrive only", vec![changed(arrive)]);
    let mut expect = i.clone();
    expect.mods.retain(|m| m != "arrive" && m != "noComplete");
    expect
        .operands
        .retain(|o| !matches!(o, Operand::Sink | Operand::Name(_)) || Some(o) == i.operands.last());
    if !has(&expect, "release") {
        p.one(DropExpectTx, at, i, "bytes only", vec![changed(expect)]);
    }
}

fn shuffle(p: &mut Plan<'_>, at: usize, i: &Instr) {
    let (Some(d), Some(a)) = (i.operands.first(), i.operands.get(1)) else {
        return;
    };
    let mut out = Vec::new();
    let value = match d {
        Operand::Pair(d, valid) => {
            let zero = || Operand::Int(0);
            out.push(Stmt::Instr(instr(
                i,
                "setp.eq.u32",
                vec![(**valid).clone(), zero(), zero()],
            )));
            d
        }
        other => other,
    };
    if let Operand::Name(d) = value {
        out.push(Stmt::Instr(instr(i, "mov.b32", vec![name(d), a.clone()])));
    }
    p.one(DropShuffle, at, i, "", out);
}
