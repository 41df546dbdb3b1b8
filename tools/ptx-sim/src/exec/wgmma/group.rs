//! A warpgroup: its four warps execute the same `wgmma` instructions.

use std::collections::VecDeque;

/// `wgmma` instructions that a warp may be ahead of others of its group. A warp that does not wait
/// for products could go on for ever, and each instruction is remembered.
pub(super) const MAX_AHEAD: usize = 1 << 16;

/// Warps of a warpgroup.
pub(super) const WARPS: usize = 4;

/// An instruction and operands that the warps of a group must agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    /// The instruction.
    pub(super) pc: usize,
    /// Descriptors of A and B, and whether it accumulates.
    pub(super) operands: (Option<u64>, u64, bool),
}

/// The `wgmma` instructions that the warps of a group have executed.
#[derive(Debug, Default)]
pub(super) struct Warpgroup {
    /// Instructions that each warp has executed.
    executed: [u64; WARPS],
    /// Instructions that some warp has not reached yet. `first` is the number of instructions before them.
    steps: VecDeque<Step>,
    first: u64,
}

/// The way in which a warp departs from its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mismatch {
    /// Another warp has executed this instruction instead.
    Instruction(usize),
    /// Other descriptors, or another `scale-d`, than another warp of the group.
    Operands,
    /// The warp is more than [`MAX_AHEAD`] instructions ahead.
    Ahead,
}

impl Warpgroup {
    /// A warp executes an instruction. Returns its number.
    pub(super) fn execute(&mut self, rank: usize, step: Step) -> Result<u64, Mismatch> {
        let number = self.executed[rank];
        let at = (number - self.first) as usize;
        match self.steps.get(at) {
            None if at >= MAX_AHEAD => return Err(Mismatch::Ahead),
            None => self.steps.push_back(step),
            Some(other) if other.pc != step.pc => return Err(Mismatch::Instruction(other.pc)),
            Some(other) if *other != step => return Err(Mismatch::Operands),
            Some(_) => {}
        }
        self.executed[rank] += 1;
        let everywhere = self.executed.iter().min().copied().unwrap_or(0);
        while self.first < everywhere {
            self.steps.pop_front();
            self.first += 1;
        }
        Ok(number)
    }

    /// Whether all warps have executed the instruction of this number.
    pub(super) fn reached(&self, number: u64) -> bool {
        self.first > number
    }

    /// An instruction that another warp has executed and this one, which ends, has not.
    pub(super) fn missed(&self, rank: usize) -> Option<usize> {
        let at = (self.executed[rank] - self.first) as usize;
        self.steps.get(at).map(|s| s.pc)
    }

    /// Whether this warp has executed the instruction of this number.
    pub(super) fn has(&self, rank: usize, number: u64) -> bool {
        self.executed[rank] > number
    }
}
