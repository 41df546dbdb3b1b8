//! Ranges that asynchronous operations in flight read and write, and operations that have completed.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::machine::Machine;
use crate::memory::{Fault, Space};
use crate::models::hazard::Stamp;
use crate::models::mbarrier;
use crate::report::ViolationKind;

/// The use that an operation makes of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
    /// An atomic read and write: two of them do not conflict.
    Reduce,
}

impl Use {
    /// The use in the passive, for reports: "is read".
    pub(crate) fn passive(self) -> &'static str {
        match self {
            Use::Read => "is read",
            Use::Write => "is written",
            Use::Reduce => "is reduced into",
        }
    }
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
    fn same_memory(&self, other: &Range) -> bool {
        (self.space, self.owner) == (other.space, other.owner)
    }

    /// The range with a later one, if that begins where this one ends.
    pub(crate) fn joined(&self, next: &Range) -> Option<Range> {
        let end = self.start.checked_add(self.size)?;
        (self.same_memory(next) && end == next.start).then_some(Range {
            size: self.size + next.size,
            ..*self
        })
    }
}

/// Ranges of one size, which are further apart than that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) first: Range,
    /// From start to start.
    pub(crate) pitch: u64,
    pub(crate) count: u64,
}

impl Rows {
    pub(crate) fn row(&self, number: u64) -> Range {
        Range {
            start: self.first.start + number * self.pitch,
            ..self.first
        }
    }

    pub(crate) fn all(self) -> impl Iterator<Item = Range> {
        (0..self.count).map(move |number| self.row(number))
    }

    /// The number of the first row that ends behind an address.
    fn first_behind(&self, address: u64) -> u64 {
        match address.checked_sub(self.first.start) {
            Some(at) => at / self.pitch + u64::from(at % self.pitch >= self.first.size),
            None => 0,
        }
    }
}

/// Joins ranges: returns fewer ranges that have the same bytes. The ranges must not overlap. Ranges that follow each
/// other side by side are joined. Ranges that fill a line of 128 bytes in any order, as a swizzle leaves them, are
/// joined too.
pub(crate) fn joined(ranges: impl Iterator<Item = Range>) -> Vec<Range> {
    const LINE: u64 = 128;
    const MOST_AT_ONCE: usize = 256;
    let mut all: Vec<Range> =
        Vec::with_capacity(ranges.size_hint().1.unwrap_or(0).min(MOST_AT_ONCE));
    // Ranges of the current line so far.
    let mut line: Vec<Range> = Vec::new();
    let flush = |line: &mut Vec<Range>, all: &mut Vec<Range>| {
        if line.is_empty() {
            return;
        }
        let total: u64 = line.iter().map(|r| r.size).sum();
        let start = line.iter().map(|r| r.start).min();
        let end = line.iter().map(|r| r.start.saturating_add(r.size)).max();
        if let (Some(start), Some(end)) = (start, end)
            && end - start == total
        {
            let size = total;
            let whole = Range {
                start,
                size,
                ..line[0]
            };
            line.clear();
            line.push(whole);
        }
        line.drain(..).for_each(|r| append(all, r));
    };
    for r in ranges.filter(|r| r.size > 0) {
        let here = |l: &Range| l.same_memory(&r) && l.start / LINE == r.start / LINE;
        // A whole line stands alone, and so does a range that leaves its line.
        let alone = r.start % LINE + r.size > LINE || r.start.checked_add(r.size).is_none();
        let alone = alone || r.size == LINE;
        if alone || !line.last().is_some_and(here) {
            flush(&mut line, &mut all);
        }
        if alone {
            append(&mut all, r);
        } else {
            line.push(r);
        }
    }
    flush(&mut line, &mut all);
    all
}

/// Appends a range, or joins it to the last one.
fn append(all: &mut Vec<Range>, r: Range) {
    match all
        .last_mut()
        .and_then(|last| Some((last.joined(&r)?, last)))
    {
        Some((both, last)) => *last = both,
        None => all.push(r),
    }
}

/// Starts and ends.
pub(crate) type Parts = Vec<(u64, u64)>;

/// Bytes of the shared memory of a CTA that an operation reads.
#[derive(Debug, Clone)]
pub(crate) struct SharedReads {
    /// Linear CTA.
    pub(crate) owner: u32,
    /// Sorted and disjoint; never empty.
    pub(crate) parts: Arc<Parts>,
}

/// The use that an operation in flight makes of one memory.
#[derive(Debug)]
struct InFlight {
    op: u64,
    space: Space,
    owner: u32,
    how: Use,
    pc: usize,
    reach: Reach,
}

/// Bytes of a memory.
#[derive(Debug)]
enum Reach {
    /// Sorted and disjoint; never empty.
    Parts(Arc<Parts>),
    Rows(Rows),
}

impl Reach {
    /// One of its parts, from start to end.
    fn part(&self, number: usize) -> Option<(u64, u64)> {
        match self {
            Self::Parts(parts) => parts.get(number).copied(),
            Self::Rows(rows) => (number < rows.count as usize).then(|| {
                let row = rows.row(number as u64);
                (row.start, row.start + row.size)
            }),
        }
    }

    fn parts(&self) -> impl Iterator<Item = (u64, u64)> {
        (0..).map_while(|number| self.part(number))
    }

    /// The first part that ends behind an address.
    fn first_behind(&self, address: u64) -> Option<(u64, u64)> {
        self.part(match self {
            Self::Parts(parts) => parts.partition_point(|p| p.1 <= address),
            Self::Rows(rows) => rows.first_behind(address) as usize,
        })
    }

    fn last(&self) -> Option<(u64, u64)> {
        match self {
            Self::Parts(parts) => parts.last().copied(),
            Self::Rows(rows) => self.part(rows.count as usize - 1),
        }
    }
}

impl InFlight {
    /// From its first byte to its last.
    fn all(&self) -> Range {
        let start = self.reach.part(0).map_or(0, |p| p.0);
        let end = self.reach.last().map_or(0, |p| p.1);
        Range {
            space: self.space,
            owner: self.owner,
            start,
            size: end - start,
        }
    }

    fn overlaps(&self, r: &Range) -> bool {
        let end = r.start.saturating_add(r.size);
        if self.space != r.space || self.owner != r.owner || r.start >= end {
            return false;
        }
        self.reach.first_behind(r.start).is_some_and(|p| p.0 < end)
    }
}

/// Sorted and joined ranges of one memory and use each.
fn join(op: u64, pc: usize, uses: &[(Range, Use)]) -> Vec<InFlight> {
    let mut list: Vec<((Space, u32, Use), Parts)> = Vec::new();
    for (r, how) in uses.iter().filter(|u| u.0.size > 0) {
        let part = (r.start, r.start.saturating_add(r.size));
        let key = (r.space, r.owner, *how);
        match list.iter_mut().find(|i| i.0 == key) {
            Some((_, parts)) => parts.push(part),
            None => {
                let mut parts = Vec::with_capacity(uses.len());
                parts.push(part);
                list.push((key, parts));
            }
        }
    }
    let in_flight = |((space, owner, how), mut parts): (_, Parts)| {
        parts.sort_unstable();
        parts.dedup_by(|next, last| {
            let joins = next.0 <= last.1;
            if joins {
                last.1 = last.1.max(next.1);
            }
            joins
        });
        InFlight {
            op,
            space,
            owner,
            how,
            pc,
            reach: Reach::Parts(Arc::new(parts)),
        }
    };
    list.into_iter().map(in_flight).collect()
}

/// Progress of an operation. Operations without a stage have completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Issued,
    /// The operation's sources are read.
    Read,
}

/// Operations of a thread that a `wait_group` may wait for.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    pub(crate) open: Vec<Grouped>,
    pub(crate) committed: Vec<Vec<Grouped>>,
}

/// An operation of a group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grouped {
    op: u64,
    /// Hazard tracking: the stamp that a wait acquires, until the wait has acquired it.
    stamp: Option<Stamp>,
}

/// All operations in flight.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    next: u64,
    stages: FxHashMap<u64, Stage>,
    ranges: Vec<InFlight>,
    /// By linear CTA, thread in it, and whether they are bulk groups.
    pub(crate) groups: FxHashMap<(u32, u32, bool), Groups>,
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

    /// Whether a thread's `wait_group` may go on.
    pub(crate) fn waited_for(
        &self,
        thread: (u32, u32, bool),
        keep: Option<u32>,
        reads_only: bool,
    ) -> bool {
        let Some(g) = self.groups.get(&thread) else {
            return true;
        };
        let done = |ops: &[Grouped]| ops.iter().all(|g| self.is_done(g.op, reads_only));
        match keep {
            Some(keep) => {
                let n = g.committed.len().saturating_sub(keep as usize);
                g.committed[..n].iter().all(|ops| done(ops))
            }
            None => done(&g.open) && g.committed.iter().all(|ops| done(ops)),
        }
    }

    /// Adds an operation to a thread's open group.
    pub(crate) fn join_group(&mut self, thread: (u32, u32, bool), op: u64, stamp: Option<Stamp>) {
        let open = &mut self.groups.entry(thread).or_default().open;
        open.push(Grouped { op, stamp });
    }

    /// Stamps that a thread acquires by a wait that may go on.
    pub(crate) fn acquired(&mut self, thread: (u32, u32, bool), keep: Option<u32>) -> Vec<Stamp> {
        let Some(g) = self.groups.get_mut(&thread) else {
            return Vec::new();
        };
        let n = g.committed.len() - g.committed.len().min(keep.unwrap_or(0) as usize);
        let open: &mut [Grouped] = if keep.is_none() { &mut g.open } else { &mut [] };
        let waited = g.committed[..n].iter_mut().flatten().chain(open);
        waited.filter_map(|g| g.stamp.take()).collect()
    }

    /// Closes a thread's open group, and forgets old ones that are over.
    pub(crate) fn commit_group(&mut self, thread: (u32, u32, bool)) {
        let mut g = self.groups.remove(&thread).unwrap_or_default();
        let over = g
            .committed
            .iter()
            .take_while(|ops| {
                let over = |g: &Grouped| g.stamp.is_none() && self.is_done(g.op, false);
                ops.iter().all(over)
            })
            .count();
        g.committed.drain(..over);
        g.committed.push(std::mem::take(&mut g.open));
        self.groups.insert(thread, g);
    }

    /// Operations of a thread that are not over.
    pub(crate) fn of_thread(&self, thread: (u32, u32, bool)) -> Vec<u64> {
        let Some(g) = self.groups.get(&thread) else {
            return Vec::new();
        };
        let all = g.open.iter().chain(g.committed.iter().flatten());
        all.map(|g| g.op)
            .filter(|op| !self.is_done(*op, false))
            .collect()
    }

    /// Whether an operation in flight forbids an access.
    pub(crate) fn conflicts(&self, range: &Range, how: Use) -> bool {
        self.conflict(range, how).is_some()
    }

    fn conflict(&self, range: &Range, how: Use) -> Option<&InFlight> {
        self.ranges.iter().find(|r| {
            let harmless = r.how == how && how != Use::Write;
            !harmless && r.overlaps(range)
        })
    }
}

impl Machine<'_> {
    /// Registers an operation, the ranges that it will read and write, and rows that it will read.
    pub(crate) fn begin_operation(
        &mut self,
        pc: usize,
        uses: &[(Range, Use)],
        rows: Option<Rows>,
    ) -> Result<u64, Fault> {
        let op = self.pending.next;
        let mut mine = join(op, pc, uses);
        mine.extend(rows.map(|rows| InFlight {
            op,
            space: rows.first.space,
            owner: rows.first.owner,
            how: Use::Read,
            pc,
            reach: Reach::Rows(rows),
        }));
        self.begin(mine)
    }

    /// Registers an operation and the shared memory that it will read.
    pub(crate) fn begin_reads(&mut self, pc: usize, reads: &[SharedReads]) -> Result<u64, Fault> {
        let op = self.pending.next;
        let mine = reads.iter().map(|r| InFlight {
            op,
            space: Space::Shared,
            owner: r.owner,
            how: Use::Read,
            pc,
            reach: Reach::Parts(r.parts.clone()),
        });
        self.begin(mine.collect())
    }

    fn begin(&mut self, mine: Vec<InFlight>) -> Result<u64, Fault> {
        for m in &mine {
            // Mostly nothing is near, and then no part need be looked at.
            if !self.pending.conflicts(&m.all(), m.how) {
                continue;
            }
            for (start, end) in m.reach.parts() {
                let range = Range {
                    space: m.space,
                    owner: m.owner,
                    start,
                    size: end - start,
                };
                self.refuse_conflict(&range, m.how)?;
            }
        }
        let op = self.pending.next;
        self.pending.next += 1;
        self.pending.stages.insert(op, Stage::Issued);
        self.pending.ranges.extend(mine);
        Ok(op)
    }

    fn refuse_conflict(&self, range: &Range, how: Use) -> Result<(), Fault> {
        let Some(r) = self.pending.conflict(range, how) else {
            return Ok(());
        };
        let does = |how| match how {
            Use::Read => "reads",
            Use::Write => "writes",
            Use::Reduce => "reduces into",
        };
        Err(Fault::new(
            ViolationKind::Hazard,
            format!(
                "this {} {} bytes of {} memory that an asynchronous operation in flight {}: {}",
                does(how),
                range.size,
                range.space.name(),
                does(r.how),
                self.program.site(r.pc)
            ),
        )
        .at(range.start))
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
        if space == Space::Shared {
            self.refuse_mbarrier(
                owner,
                address,
                size as u64,
                if writes { "write" } else { "read" },
            )?;
        }
        if self.pending.ranges.is_empty() || !matches!(space, Space::Shared | Space::Global) {
            return Ok(());
        }
        let range = self.range(space, owner, address, size as u64);
        self.refuse_conflict(&range, if writes { Use::Write } else { Use::Read })
    }

    /// Refuses an access that touches an mbarrier object.
    pub(crate) fn refuse_mbarrier(
        &self,
        owner: usize,
        address: u64,
        size: u64,
        what: &str,
    ) -> Result<(), Fault> {
        let objects = &self.ctas[owner].mbarriers;
        let end = address.saturating_add(size);
        let from = address.saturating_sub(u64::from(mbarrier::SIZE) - 1);
        if objects.is_empty() || from >= end {
            return Ok(());
        }
        let Some((at, _)) = objects.range(from..end).next() else {
            return Ok(());
        };
        let message = format!("{what} of the mbarrier object at shared address 0x{at:x}");
        Err(Fault::new(ViolationKind::Hazard, message).at(address))
    }

    /// A range of memory; `owner` is an index of the resident CTAs.
    pub(crate) fn range(&self, space: Space, owner: usize, start: u64, size: u64) -> Range {
        let owner = if space == Space::Shared {
            self.ctas[owner].linear
        } else {
            0
        };
        Range {
            space,
            owner,
            start,
            size,
        }
    }

    /// Lets waits on mbarriers run into their time limits, because nothing else can happen.
    /// `false` if that has been of no use for long, or nothing waits so.
    pub(crate) fn time_out(&mut self) -> bool {
        if self.pending.timeouts >= self.options.timeouts {
            return false;
        }
        self.pending.timeouts += 1;
        let warps = self
            .ctas
            .iter_mut()
            .flat_map(|c| c.warps.iter_mut().flatten());
        warps.fold(false, |any, w| w.time_out() | any)
    }
}
