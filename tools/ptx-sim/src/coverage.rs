//! Instructions and branch directions that a run executed.

use serde::Serialize;

use crate::program::{Op, Program};
use crate::report::Site;

/// Counts per instruction of one kernel; runs can be added up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Warp executions of each instruction.
    pub executed: Vec<u64>,
    /// Branches: some lane jumped.
    pub taken: Vec<bool>,
    /// Branches: some lane went on.
    pub fell_through: Vec<bool>,
}

impl Counters {
    /// All zero for `n` instructions.
    pub fn new(n: usize) -> Self {
        Self {
            executed: vec![0; n],
            taken: vec![false; n],
            fell_through: vec![false; n],
        }
    }

    /// Adds another run of the same kernel.
    pub fn merge(&mut self, other: &Self) {
        if self.executed.is_empty() {
            *self = other.clone();
            return;
        }
        for (a, b) in self.executed.iter_mut().zip(&other.executed) {
            *a += b;
        }
        for (a, b) in self.taken.iter_mut().zip(&other.taken) {
            *a |= b;
        }
        for (a, b) in self.fell_through.iter_mut().zip(&other.fell_through) {
            *a |= b;
        }
    }

    /// The readable summary.
    pub fn summary(&self, program: &Program) -> Coverage {
        let mut c = Coverage {
            instructions: program.code.len(),
            ..Coverage::default()
        };
        for (pc, ins) in program.code.iter().enumerate() {
            if self.executed[pc] == 0 {
                c.never_executed.push(program.site(pc));
                continue;
            }
            c.executed += 1;
            if matches!(ins.op, Op::Bra { .. }) && ins.guard.is_some() {
                if !self.taken[pc] {
                    c.never_taken.push(program.site(pc));
                }
                if !self.fell_through[pc] {
                    c.always_taken.push(program.site(pc));
                }
            }
        }
        c.counters = self.clone();
        c
    }
}

/// Instructions and branches that ran, and those that did not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Coverage {
    /// Instructions of the kernel.
    pub instructions: usize,
    /// Instructions executed at least once.
    pub executed: usize,
    /// Instructions that no thread reached.
    pub never_executed: Vec<Site>,
    /// Conditional branches that no thread took.
    pub never_taken: Vec<Site>,
    /// Conditional branches that every thread took.
    pub always_taken: Vec<Site>,
    /// The raw counts.
    #[serde(skip)]
    pub counters: Counters,
}

impl Coverage {
    /// Whether everything ran in every direction.
    pub fn complete(&self) -> bool {
        self.never_executed.is_empty()
            && self.never_taken.is_empty()
            && self.always_taken.is_empty()
    }
}
