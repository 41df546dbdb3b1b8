//! Instructions in another order. Only moves that keep every register's value are made.

use super::Plan;
use super::body::{Edit, Line, changed, guard, has};
use super::class::{Class, Registers, class, instructions, touches_memory};
use super::kind::Kind;
use crate::ast::{Instr, Operand, Stmt};

pub(super) fn plan(p: &mut Plan<'_>, line: &Line<'_>) {
    for (n, (_, s)) in line.iter().enumerate() {
        let Some(i) = sole(s) else { continue };
        use Class::*;
        match class(i) {
            Wait => {
                if let Some((first, last)) = wait_loop(line, n) {
                    late(p, Kind::LateWait, i, line, first, last, touches_memory);
                }
            }
            TensorWait => late(p, Kind::LateWait, i, line, n, n, touches_memory),
            GroupWait if !has(i, "commit_group") => {
                late(p, Kind::LateWait, i, line, n, n, touches_memory);
            }
            Barrier if has(i, "wait") || has(i, "sync") => {
                late(p, Kind::LateWait, i, line, n, n, touches_memory);
            }
            ExpectTx => late(p, Kind::LateExpectTx, i, line, n, n, |i| class(i) == Copy),
            Fence => early(p, Kind::EarlyFence, i, line, n, |i| {
                touches_memory(i) || matches!(class(i), Wait | Barrier | TensorWait)
            }),
            Commit => early(p, Kind::EarlyCommit, i, line, n, |i| class(i) == Tensor),
            GroupWait => early(p, Kind::EarlyCommit, i, line, n, |i| {
                matches!(class(i), Copy | Wgmma)
            }),
            Arrive => early(p, Kind::EarlyArrive, i, line, n, touches_memory),
            Barrier if has(i, "arrive") => {
                early(p, Kind::EarlyArrive, i, line, n, touches_memory);
            }
            _ => {}
        }
    }
}

/// The one instruction of a statement that is more than arithmetic.
fn sole(s: &Stmt) -> Option<&Instr> {
    let mut all = Vec::new();
    instructions(s, &mut all);
    all.retain(|i| !matches!(class(i), Class::Scalar | Class::Branch));
    match all.as_slice() {
        [one] => Some(one),
        _ => None,
    }
}

fn branch(s: &Stmt) -> Option<&Instr> {
    match s {
        Stmt::Instr(i) if class(i) == Class::Branch => Some(i),
        _ => None,
    }
}

/// Statements of the loop around a wait, from its label to its branch. A block that loops inside
/// stands for itself.
fn wait_loop(line: &Line<'_>, n: usize) -> Option<(usize, usize)> {
    if matches!(line[n].1, Stmt::Block(inner) if inner.iter().any(|s| branch(s).is_some())) {
        return Some((n, n));
    }
    let first = (0..n)
        .rev()
        .find(|k| matches!(line[*k].1, Stmt::Label(..)))?;
    let Stmt::Label(label, _) = line[first].1 else {
        return None;
    };
    let last = (n..line.len()).find(|k| branch(line[*k].1).is_some())?;
    let target = branch(line[last].1)?.operands.last()?;
    (*target == Operand::Name(label.clone())).then_some((first, last))
}

/// Moves statements `first..=last` behind the next one that `stop` names. Guarded branches on the
/// way are crossed: then only the lanes that go on wait.
fn late(
    p: &mut Plan<'_>,
    kind: Kind,
    like: &Instr,
    line: &Line<'_>,
    first: usize,
    last: usize,
    stop: fn(&Instr) -> bool,
) {
    let mut moved = Registers::default();
    for (_, s) in &line[first..=last] {
        moved.add(s);
    }
    for n in last + 1..line.len() {
        let (at, s) = line[n];
        if matches!(s, Stmt::Label(..)) || branch(s).is_some_and(|b| b.guard.is_none()) {
            return;
        }
        let here = Registers::of(s);
        let clash = !here.written.is_disjoint(&moved.read)
            || !here.read.is_disjoint(&moved.written)
            || !here.written.is_disjoint(&moved.written);
        if clash {
            return;
        }
        let mut all = Vec::new();
        instructions(s, &mut all);
        let Some(over) = all.iter().find(|i| stop(i)) else {
            continue;
        };
        let mut edit = Edit::new();
        for (at, _) in &line[first..=last] {
            edit.insert(*at, Vec::new());
        }
        let mut new = vec![s.clone()];
        new.extend(line[first..=last].iter().map(|(_, s)| (*s).clone()));
        edit.insert(at, new);
        let detail = format!("behind {}", over.full_opcode());
        p.add(kind, like, detail, edit);
        return;
    }
}

/// Moves statement `n` in front of the last one before it that `stop` names, with the arithmetic
/// it needs. One guarded branch may be crossed: its condition then guards the moved instruction.
fn early(
    p: &mut Plan<'_>,
    kind: Kind,
    like: &Instr,
    line: &Line<'_>,
    n: usize,
    stop: fn(&Instr) -> bool,
) {
    let (_, s) = line[n];
    let mut needed = Registers::of(s).read;
    let mut slice: Vec<usize> = Vec::new();
    let mut crossed: Option<&Instr> = None;
    for k in (0..n).rev() {
        let (_, before) = line[k];
        if matches!(before, Stmt::Label(..)) {
            return;
        }
        if let Some(b) = branch(before) {
            match &b.guard {
                // A wait's own loop is stepped over as a whole.
                Some(_) if loop_of(line, k).is_some() => {
                    let Some(start) = loop_of(line, k) else {
                        return;
                    };
                    let waits = line[start..=k].iter().any(|(_, s)| {
                        let mut all = Vec::new();
                        instructions(s, &mut all);
                        all.iter().any(|i| class(i) == Class::Wait)
                    });
                    if waits {
                        return finish(p, kind, like, line, (start, n), &slice, crossed);
                    }
                }
                Some(_) => {}
                None => return,
            }
            if crossed.is_some() || like.guard.is_some() {
                return;
            }
            crossed = Some(b);
            if let Some(g) = &b.guard {
                needed.insert(&g.name);
            }
            continue;
        }
        let mut all = Vec::new();
        instructions(before, &mut all);
        let here = Registers::of(before);
        let stops = all.iter().any(|i| stop(i));
        if !here.written.is_disjoint(&needed) {
            if stops || all.iter().any(|i| class(i) != Class::Scalar) {
                return;
            }
            // An instruction that stays must not use a result of one that goes, nor the reverse.
            slice.push(k);
            needed.extend(here.read);
        }
        if stops {
            return finish(p, kind, like, line, (k, n), &slice, crossed);
        }
    }
}

/// Start of the loop that the branch at `k` closes.
fn loop_of(line: &Line<'_>, k: usize) -> Option<usize> {
    let target = branch(line[k].1)?.operands.last()?;
    (0..k).find(|n| matches!(line[*n].1, Stmt::Label(l, _) if *target == Operand::Name(l.clone())))
}

fn finish(
    p: &mut Plan<'_>,
    kind: Kind,
    like: &Instr,
    line: &Line<'_>,
    (to, from): (usize, usize),
    slice: &[usize],
    crossed: Option<&Instr>,
) {
    let mut moved = Registers::default();
    slice.iter().for_each(|k| moved.add(line[*k].1));
    for k in (to..from).filter(|k| !slice.contains(k)) {
        let here = Registers::of(line[k].1);
        if !here.written.is_disjoint(&moved.read) || !here.written.is_disjoint(&moved.written) {
            return;
        }
        // A branch that was crossed reads its predicate later, and it has not changed.
        if k == to && !here.read.is_disjoint(&moved.written) {
            return;
        }
    }
    let mut moved_one = line[from].1.clone();
    if let Some(g) = crossed.and_then(|b| b.guard.as_ref()) {
        match &mut moved_one {
            Stmt::Instr(i) => {
                i.guard = guard(&g.name, !g.negated);
                moved_one = changed(i.clone());
            }
            _ => return,
        }
    }
    let mut new: Vec<Stmt> = slice.iter().rev().map(|k| line[*k].1.clone()).collect();
    new.push(moved_one);
    new.push(line[to].1.clone());
    let mut edit = Edit::new();
    for k in slice.iter().chain([&from]) {
        edit.insert(line[*k].0, Vec::new());
    }
    edit.insert(line[to].0, new);
    let over = line[to..from].iter().find_map(|(_, s)| sole(s));
    let detail = format!(
        "in front of {}",
        over.map(Instr::full_opcode).unwrap_or_default()
    );
    p.add(kind, like, detail, edit);
}
