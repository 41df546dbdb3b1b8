//! Points where diverged lanes meet again: immediate post-dominators of the branches.

use super::{Ins, Op};

fn successors(code: &[Ins], pc: usize) -> Vec<usize> {
    let end = code.len();
    let next = (pc + 1).min(end);
    let mut out = match &code[pc].op {
        Op::Bra { target, .. } => vec![*target as usize],
        Op::BrxIdx { targets, .. } => targets.iter().map(|t| *t as usize).collect(),
        Op::Exit { .. } | Op::Trap => vec![end],
        _ => return vec![next],
    };
    if code[pc].guard.is_some() && !out.contains(&next) {
        out.push(next);
    }
    out
}

/// Sets [`Ins::join`] of every branch whose lanes meet again before they exit.
///
/// Cooper, Harvey and Kennedy's iteration on the reversed graph, with one node an instruction
/// and one for the end.
///
/// `None` where that would take too long: the iteration can be quadratic.
pub(super) fn set_joins(code: &mut [Ins]) -> Option<()> {
    let mut steps = 1 << 26;
    let end = code.len();
    let succ: Vec<Vec<usize>> = (0..end).map(|pc| successors(code, pc)).collect();
    let mut pred = vec![Vec::new(); end + 1];
    for (pc, s) in succ.iter().enumerate() {
        for &t in s {
            pred[t].push(pc);
        }
    }
    // Post-order of the reversed graph from the end.
    let mut order = Vec::with_capacity(end + 1);
    let mut number = vec![usize::MAX; end + 1];
    let mut seen = vec![false; end + 1];
    let mut stack = vec![(end, 0)];
    seen[end] = true;
    while let Some((node, i)) = stack.pop() {
        if let Some(&p) = pred[node].get(i) {
            stack.push((node, i + 1));
            if !seen[p] {
                seen[p] = true;
                stack.push((p, 0));
            }
        } else {
            number[node] = order.len();
            order.push(node);
        }
    }
    const NONE: usize = usize::MAX;
    let mut idom = vec![NONE; end + 1];
    idom[end] = end;
    let mut changed = true;
    while changed {
        changed = false;
        for &node in order.iter().rev().skip(1) {
            let mut new = NONE;
            for &s in &succ[node] {
                if idom[s] == NONE {
                    continue;
                }
                new = if new == NONE {
                    s
                } else {
                    meet(new, s, &idom, &number, &mut steps)?
                };
            }
            if new != NONE && idom[node] != new {
                idom[node] = new;
                changed = true;
            }
        }
    }
    for (pc, ins) in code.iter_mut().enumerate() {
        let branch = matches!(ins.op, Op::Bra { .. } | Op::BrxIdx { .. });
        ins.join = (branch && idom[pc] != NONE && idom[pc] != end).then_some(idom[pc] as u32);
    }
    Some(())
}

fn meet(
    mut a: usize,
    mut b: usize,
    idom: &[usize],
    number: &[usize],
    steps: &mut u32,
) -> Option<usize> {
    while a != b {
        *steps = steps.checked_sub(1)?;
        if number[a] < number[b] {
            a = idom[a];
        } else {
            b = idom[b];
        }
    }
    Some(a)
}
