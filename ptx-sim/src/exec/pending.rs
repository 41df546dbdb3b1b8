//! What asynchronous operations in flight read and write, and which operations have completed.

use std::collections::HashMap;

use super::machine::Machine;
use crate::memory::{Fault, Space};
use crate::report::ViolationKind;

/// How an operation uses a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
    /// An atomic read and write: two of them do not conflict.
    Reduce,
}

/// Bytes of a memory. `owner` is the linear CTA of shared memory, 0 otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) space: Space,
    pub(crate) owner: u32,
    pub(crate) start: u64,
    pub(crate) size: u64,
}

impl Range {
    fn overlaps(&self, other: &Range) -> bool {
        self.space == other.space
            && self.owner == other.owner
            && self.start < other.start.saturating_add(other.size)
            && other.start < self.start.saturating_add(self.size)
    }
}

#[derive(Debug)]
struct InFlight {
    op: u64,
    range: Range,
    how: Use,
    pc: usize,
}

/// How far an operation has come; those that are not known have completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Issued,
    /// Its sources are read.
    Read,
}

/// Operations of a thread that a `wait_group` may wait for.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    pub(crate) open: Vec<u64>,
    pub(crate) committed: Vec<Vec<u64>>,
}

/// All operations in flight.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    next: u64,
    stages: HashMap<u64, Stage>,
    ranges: Vec<InFlight>,
    /// By linear CTA, thread in it, and whether they are bulk groups.
    pub(crate) groups: HashMap<(u32, u32, bool), Groups>,
    /// Time limits that waits ran into since anything happened.
    timeouts: u32,
}

impl Pending {
    /// Something happened that a waiting thread may wait for.
    pub(crate) fn progressed(&mut self) {
        self.timeouts = 0;
    }

    pub(crate) fn is_done(&self, op: u64, reads_only: bool) -> bool {
        match self.stages.get(&op) {
            None => true,
            Some(Stage::Read) => reads_only,
            Some(Stage::Issued) => false,
        }
    }

    /// The sources are read: they may be written again.
    pub(crate) fn sources_read(&mut self, op: u64) {
        if let Some(s) = self.stages.get_mut(&op) {
            *s = Stage::Read;
        }
        self.ranges.retain(|r| r.op != op || r.how != Use::Read);
    }

    /// The operation is over.
    pub(crate) fn finished(&mut self, op: u64) {
        self.stages.remove(&op);
        self.ranges.retain(|r| r.op != op);
    }

    fn conflict(&self, range: &Range, how: Use) -> Option<&InFlight> {
        self.ranges.iter().find(|r| {
            let harmless = r.how == how && how != Use::Write;
            !harmless && r.range.overlaps(range)
        })
    }
}

impl Machine<'_> {
    /// Registers an operation and what it will read and write.
    pub(crate) fn begin_operation(&mut self, pc: usize, uses: &[(Range, Use)]) -> Result<u64, Fault> {
        for (range, how) in uses {
            self.refuse_conflict(range, *how)?;
        }
        let op = self.pending.next;
        self.pending.next += 1;
        self.pending.stages.insert(op, Stage::Issued);
        self.pending.ranges.extend(uses.iter().map(|(range, how)| InFlight { op, range: *range, how: *how, pc }));
        Ok(op)
    }

    fn refuse_conflict(&self, range: &Range, how: Use) -> Result<(), Fault> {
        let Some(r) = self.pending.conflict(range, how) else { return Ok(()) };
        let does = |how| match how {
            Use::Read => "reads",
            Use::Write => "writes",
            Use::Reduce => "reduces into",
        };
        Err(Fault {
            kind: ViolationKind::Hazard,
            message: format!(
                "this {} {} bytes of {} memory that an asynchronous operation in flight {}: {}",
                does(how),
                range.size,
                range.space.name(),
                does(r.how),
                self.program.site(r.pc)
            ),
            address: Some(range.start),
            nearest: None,
        })
    }

    /// Refuses an ordinary access that touches an mbarrier object, or conflicts with an operation
    /// in flight.
    pub(crate) fn check_in_flight(
        &mut self,
        space: Space,
        owner: usize,
        address: u64,
        size: usize,
        writes: bool,
    ) -> Result<(), Fault> {
        if space == Space::Shared && !self.ctas[owner].mbarriers.is_empty() {
            let end = address.saturating_add(size as u64);
            let from = address.saturating_sub(7);
            if let Some((at, _)) = self.ctas[owner].mbarriers.range(from..end).next() {
                return Err(Fault {
                    kind: ViolationKind::Hazard,
                    message: format!(
                        "ordinary {} of the mbarrier object at shared address 0x{at:x}",
                        if writes { "write" } else { "read" }
                    ),
                    address: Some(address),
                    nearest: None,
                });
            }
        }
        if self.pending.ranges.is_empty() || !matches!(space, Space::Shared | Space::Global) {
            return Ok(());
        }
        let range = self.range(space, owner, address, size as u64);
        self.refuse_conflict(&range, if writes { Use::Write } else { Use::Read })
    }

    /// A range of memory; `owner` is an index of the resident CTAs.
    pub(crate) fn range(&self, space: Space, owner: usize, start: u64, size: u64) -> Range {
        let owner = if space == Space::Shared { self.ctas[owner].linear } else { 0 };
        Range { space, owner, start, size }
    }

    /// Lets waits on mbarriers run into their time limits, because nothing else can happen.
    /// `false` if that has been of no use for long, or nothing waits so.
    pub(crate) fn time_out(&mut self) -> bool {
        if self.pending.timeouts >= self.options.timeouts {
            return false;
        }
        self.pending.timeouts += 1;
        let warps = self.ctas.iter_mut().flat_map(|c| c.warps.iter_mut().flatten());
        warps.fold(false, |any, w| w.time_out() | any)
    }
}
