//! Control flow, addresses and arithmetic that differ.

use super::Plan;
use super::body::{changed, has};
use super::class::{Class, class};
use super::kind::Kind;
use super::tweak::{Tweak, base, index};
use crate::ast::{Instr, Operand, Ty};

pub(super) fn plan(p: &mut Plan<'_>, at: usize, i: &Instr) {
    if i.guard.is_some() {
        let mut other = i.clone();
        if let Some(g) = &mut other.guard {
            g.negated = !g.negated;
        }
        p.one(Kind::Guard, at, i, "negated", vec![changed(other)]);
    }
    if class(i) == Class::WarpSync {
        p.tweak(Kind::ShuffleLane, at, i, "mask", index(0), Tweak::Xor(1));
    }
    match i.opcode.as_str() {
        "ld" | "st" | "red" | "atom" if !has(i, "async") => offset(p, at, i),
        "shfl" => {
            p.tweak(Kind::ShuffleLane, at, i, "half", index(2), Tweak::Half);
            // A butterfly over another basis of the lanes' numbers adds up the same.
            if !has(i, "bfly") {
                p.tweak(Kind::ShuffleLane, at, i, "xor 1", index(2), Tweak::Xor(1));
            }
            p.tweak(Kind::ShuffleLane, at, i, "mask", index(4), Tweak::Xor(1));
        }
        "setp" | "set" => compare(p, at, i),
        "selp" => {
            let mut other = i.clone();
            if other.operands.len() == 4 {
                other.operands.swap(1, 2);
            }
            if other != *i {
                p.one(Kind::Select, at, i, "swapped", vec![changed(other)]);
            }
        }
        "prmt" => {
            for by in [0x1, 0x1000] {
                let detail = format!("xor {by:#x}");
                p.tweak(Kind::Selector, at, i, &detail, index(3), Tweak::Xor(by));
            }
        }
        "shl" | "shr" => shift(p, at, i, 2),
        "shf" => shift(p, at, i, 3),
        _ => {
            constants(p, at, i);
            operation(p, at, i);
        }
    }
}

fn offset(p: &mut Plan<'_>, at: usize, i: &Instr) {
    let Some(n) = i
        .operands
        .iter()
        .position(|o| matches!(o, Operand::Address { .. }))
    else {
        return;
    };
    let element = i.mods.iter().rev().find_map(|m| Ty::parse(m));
    let lanes = match () {
        () if has(i, "v2") => 2,
        () if has(i, "v4") => 4,
        () if has(i, "v8") => 8,
        () => 1,
    };
    let size = i64::from(element.map_or(4, Ty::bytes) * lanes);
    let detail = format!("+{size}");
    p.tweak(Kind::Offset, at, i, &detail, base(n), Tweak::Add(size));
}

/// The comparison that differs at equality only, or the opposite of an equality.
fn neighbour(op: &str) -> Option<&'static str> {
    Some(match op {
        "lt" => "le",
        "le" => "lt",
        "gt" => "ge",
        "ge" => "gt",
        "lo" => "ls",
        "ls" => "lo",
        "hi" => "hs",
        "hs" => "hi",
        "eq" => "ne",
        "ne" => "eq",
        _ => return None,
    })
}

fn compare(p: &mut Plan<'_>, at: usize, i: &Instr) {
    let found = i
        .mods
        .iter()
        .enumerate()
        .find_map(|(n, m)| Some((n, neighbour(m)?)));
    if let Some((n, other)) = found {
        let mut new = i.clone();
        let detail = format!("{} for {}", other, new.mods[n]);
        new.mods[n] = other.into();
        p.one(Kind::Compare, at, i, &detail, vec![changed(new)]);
    }
    let closes = |o: &Operand| match o {
        Operand::Name(n) => p.body.loop_guards.contains(n.as_str()),
        Operand::Pair(a, b) => [a, b]
            .iter()
            .any(|o| matches!(&***o, Operand::Name(n) if p.body.loop_guards.contains(n.as_str()))),
        _ => false,
    };
    if i.operands.first().is_some_and(closes) {
        p.tweak(Kind::LoopBound, at, i, "-1", index(2), Tweak::Add(-1));
        p.tweak(Kind::LoopBound, at, i, "+1", index(2), Tweak::Add(1));
    }
}

fn shift(p: &mut Plan<'_>, at: usize, i: &Instr, n: usize) {
    p.tweak(Kind::Shift, at, i, "+1", index(n), Tweak::Add(1));
    if !matches!(i.operands.get(n), Some(Operand::Int(0))) {
        p.tweak(Kind::Shift, at, i, "-1", index(n), Tweak::Add(-1));
    }
}

fn constants(p: &mut Plan<'_>, at: usize, i: &Instr) {
    for (n, o) in i.operands.iter().enumerate() {
        let Operand::Int(v) = o else { continue };
        let bits = match i.opcode.as_str() {
            "and" => {
                let low = v.trailing_zeros().min(63);
                // The other end of the mask; where it has none, the bit that it clears.
                let other = match v >> 63 {
                    0 => 63 - v.leading_zeros().min(63),
                    _ => low.saturating_sub(1),
                };
                vec![1 << low, 1 << other]
            }
            "or" | "xor" | "lop3" | "mov" => vec![1],
            "bfe" | "bfi" => vec![1],
            // The unit of an offset: less is often lost in a shift.
            "add" | "sub" => vec![1 << v.trailing_zeros().min(63)],
            "mul" | "mad" | "min" | "max" | "div" | "rem" => {
                let detail = format!("operand {n} +1");
                p.tweak(Kind::Constant, at, i, &detail, index(n), Tweak::Add(1));
                continue;
            }
            _ => continue,
        };
        let mut done: Vec<u64> = Vec::new();
        for bit in bits {
            if !done.contains(&bit) {
                let detail = format!("operand {n} xor {bit:#x}");
                p.tweak(Kind::Constant, at, i, &detail, index(n), Tweak::Xor(bit));
                done.push(bit);
            }
        }
    }
}

fn operation(p: &mut Plan<'_>, at: usize, i: &Instr) {
    let mut new = i.clone();
    let float = i.mods.iter().any(|m| m == "f32");
    let other = match i.opcode.as_str() {
        "add" => "sub",
        "sub" => "add",
        "min" => "max",
        "max" => "min",
        "and" => "or",
        "or" | "xor" => "and",
        "fma" | "mad" | "dp4a" | "dp2a" => {
            // The sum is forgotten.
            if let Some(c) = new.operands.get_mut(3) {
                let zero = if float {
                    Operand::F32(0)
                } else {
                    Operand::Int(0)
                };
                if *c == zero {
                    return;
                }
                *c = zero;
                p.one(Kind::Operation, at, i, "addend 0", vec![changed(new)]);
            }
            return;
        }
        _ => return,
    };
    new.opcode = other.into();
    p.one(Kind::Operation, at, i, other, vec![changed(new)]);
}
