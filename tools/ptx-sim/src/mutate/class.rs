//! Class of an instruction, as far as faults are concerned, and the registers that it touches.

use std::collections::HashSet;

use super::body::has;
use crate::ast::{Instr, Operand, Stmt};

/// Families that faults tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Wait,
    Arrive,
    ExpectTx,
    Init,
    Fence,
    Commit,
    TensorWait,
    Tensor,
    Wgmma,
    Alloc,
    Barrier,
    WarpSync,
    GroupWait,
    Copy,
    GridWait,
    Store,
    Load,
    Shuffle,
    Branch,
    /// Only registers are touched.
    Scalar,
    Other,
}

pub(super) fn class(i: &Instr) -> Class {
    let first = i.mods.first().map_or("", String::as_str);
    match (i.opcode.as_str(), first) {
        ("mbarrier", "try_wait" | "test_wait") => Class::Wait,
        ("mbarrier", "expect_tx") => Class::ExpectTx,
        ("mbarrier", "arrive" | "arrive_drop") if has(i, "expect_tx") => Class::ExpectTx,
        ("mbarrier", "arrive" | "arrive_drop" | "complete_tx") => Class::Arrive,
        ("mbarrier", "init" | "inval") => Class::Init,
        ("fence" | "membar", _) => Class::Fence,
        ("tcgen05", f) if f.starts_with("fence") => Class::Fence,
        ("tcgen05", "commit") => Class::Commit,
        ("tcgen05", w) if w.starts_with("wait") => Class::TensorWait,
        ("tcgen05", "cp" | "mma" | "ld" | "st" | "shift") => Class::Tensor,
        ("tcgen05", _) => Class::Alloc,
        ("wgmma", "fence") => Class::Fence,
        ("wgmma", "mma_async") => Class::Wgmma,
        ("wgmma", _) => Class::GroupWait,
        ("bar", "warp") => Class::WarpSync,
        ("bar" | "barrier", _) => Class::Barrier,
        ("cp", "async") if has(i, "commit_group") => Class::GroupWait,
        ("cp", "async") if has(i, "wait_group") || has(i, "wait_all") => Class::GroupWait,
        ("cp", "async") if has(i, "mbarrier") => Class::Arrive,
        ("cp", "async" | "reduce") | ("st" | "red", "async") => Class::Copy,
        ("griddepcontrol", _) => Class::GridWait,
        ("st" | "red" | "atom" | "stmatrix", _) => Class::Store,
        ("ld" | "ldu", "param" | "const") => Class::Scalar,
        ("ld" | "ldu" | "ldmatrix", _) => Class::Load,
        ("shfl", _) => Class::Shuffle,
        ("bra" | "brx", _) => Class::Branch,
        (
            "ret" | "exit" | "trap" | "call" | "elect" | "vote" | "activemask" | "match" | "redux"
            | "setmaxnreg" | "nanosleep" | "prefetch" | "discard" | "applypriority",
            _,
        ) => Class::Other,
        _ => Class::Scalar,
    }
}

/// Whether order against it matters to a wait: it touches memory, now or later.
pub(super) fn touches_memory(i: &Instr) -> bool {
    use Class::*;
    matches!(
        class(i),
        Arrive | ExpectTx | Init | Commit | Tensor | Wgmma | Alloc | Copy | Store | Load
    )
}

/// Instructions of a statement.
pub(super) fn instructions<'a>(s: &'a Stmt, out: &mut Vec<&'a Instr>) {
    match s {
        Stmt::Instr(i) => out.push(i),
        Stmt::Block(inner) => inner.iter().for_each(|s| instructions(s, out)),
        _ => {}
    }
}

fn names<'a>(o: &'a Operand, out: &mut HashSet<&'a str>) {
    match o {
        Operand::Name(n) | Operand::NameOffset(n, _) | Operand::Not(n) => {
            out.insert(n);
        }
        Operand::Vector(all) | Operand::List(all) => all.iter().for_each(|o| names(o, out)),
        Operand::Address { base, rest, .. } => {
            names(base, out);
            rest.iter().for_each(|o| names(o, out));
        }
        Operand::Pair(a, b) => {
            names(a, out);
            names(b, out);
        }
        _ => {}
    }
}

/// Registers that statements write and read.
#[derive(Debug, Default)]
pub(super) struct Registers<'a> {
    pub(super) written: HashSet<&'a str>,
    pub(super) read: HashSet<&'a str>,
}

impl<'a> Registers<'a> {
    pub(super) fn of(s: &'a Stmt) -> Self {
        let mut r = Self::default();
        r.add(s);
        r
    }

    pub(super) fn add(&mut self, s: &'a Stmt) {
        match s {
            Stmt::Instr(i) => self.instruction(i),
            Stmt::Block(inner) => {
                let mut inside = Self::default();
                inner.iter().for_each(|s| inside.add(s));
                // A register that a block declares is its own.
                for s in inner {
                    if let Stmt::Reg(_, local, _) = s {
                        for (n, _) in local {
                            inside.written.remove(n.as_str());
                            inside.read.remove(n.as_str());
                        }
                    }
                }
                self.written.extend(inside.written);
                self.read.extend(inside.read);
            }
            _ => {}
        }
    }

    fn instruction(&mut self, i: &'a Instr) {
        if let Some(g) = &i.guard {
            self.read.insert(&g.name);
        }
        use Class::*;
        let c = class(i);
        let writes = match c {
            Scalar | Load | Shuffle | Other | Wait => true,
            Arrive | ExpectTx => !matches!(i.operands.first(), Some(Operand::Address { .. })),
            Tensor => i.mods.first().is_some_and(|m| m == "ld"),
            Store => i.opcode == "atom",
            Wgmma => true,
            _ => false,
        };
        // The accumulator is both.
        if let (Wgmma, Some(d)) = (c, i.operands.first()) {
            names(d, &mut self.read);
        }
        for (n, o) in i.operands.iter().enumerate() {
            let to = if n == 0 && writes {
                &mut self.written
            } else {
                &mut self.read
            };
            names(o, to);
        }
    }
}
