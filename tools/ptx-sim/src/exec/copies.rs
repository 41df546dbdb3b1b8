//! Asynchronous copies in flight, as events.

use std::collections::BTreeMap;

use super::event::Event;
use super::machine::{Machine, Trouble};
use super::pending::Range;
use super::pieces::{From, Piece};
use crate::memory::{Actor, Fault, Permuted, Space};
use crate::models::hazard::{Op as TrackedOp, Stamp};
use crate::models::swizzle::Swizzle;
use crate::models::tma_bulk::reduce;
use crate::program::Reduction;
use crate::report::ViolationKind;
use crate::softfloat::{F32, Round, TF32};
use crate::trace::{Kind, Operation};

/// The signal that a copy is over.
#[derive(Debug, Clone, Copy)]
pub(super) enum Finish {
    /// A complete-tx of so many bytes on an object: linear CTA and offset.
    Transaction { owner: u32, at: u64, bytes: u32 },
    /// Nothing but its group.
    Group,
}

/// A copy, or a reduction.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) op: u64,
    pub(super) line: u32,
    pub(super) actor: Actor,
    pub(super) pieces: Vec<Piece>,
    /// The destinations of all pieces, in as few ranges.
    pub(super) to: Vec<Range>,
    /// Bytes that have been read of memory.
    pub(super) fetched: Vec<u8>,
    pub(super) reduce: Option<Reduction>,
    pub(super) finish: Finish,
    /// Sources and destinations are distinct steps: something may happen in between.
    pub(super) in_steps: bool,
    /// Hazard tracking: this operation; of `cp.async` one for each lane.
    pub(super) tracked: Vec<TrackedOp>,
}

/// Pieces with bytes that nothing wrote, by their place among the pieces, and of each byte whether it was written.
type Holes = BTreeMap<usize, Vec<bool>>;

/// To nearest, ties to even; subnormals stay, and NaNs become one. As recorded on Hopper.
fn round_to_tf32(bytes: &mut [u8]) {
    for word in bytes.chunks_exact_mut(4) {
        let bits = word.iter().rev().fold(0, |v, b| v << 8 | u32::from(*b));
        let tf32 = TF32.round(F32.to_f64(bits), Round::Nearest, false) << 13;
        word.copy_from_slice(&tf32.to_le_bytes());
    }
}

fn plain(t: Trouble) -> Fault {
    match t {
        Trouble::Fault(f, _) => f,
        Trouble::Error(e) => Fault::new(ViolationKind::Other, e.to_string()),
    }
}

impl Copy {
    fn operation(&self, what: &str) -> Operation {
        let bytes: u64 = self.pieces.iter().map(|p| p.to.size).sum();
        let to = self.pieces.first().map_or_else(String::new, |p| {
            let (space, at) = (p.to.space.name(), p.to.start);
            match p.to.space {
                Space::Shared => format!("{space} +{at:#x} of CTA {}", p.to.owner),
                _ => format!("{space} {at:#x}"),
            }
        });
        let (barriers, tx) = match self.finish {
            Finish::Transaction { owner, at, bytes } => (vec![(owner, at)], bytes),
            Finish::Group => (Vec::new(), 0),
        };
        Operation {
            kind: Kind::Copy,
            name: format!("{what} {bytes} B → {to}"),
            details: vec![
                ("bytes", bytes.into()),
                ("to", to.into()),
                ("tx_bytes", tx.into()),
            ],
            barriers,
        }
    }

    /// Reads all sources. Returns the pieces with bytes that nothing wrote, and which bytes these are.
    fn fetch(&mut self, m: &mut Machine<'_>) -> Result<Holes, Fault> {
        let mut holes = Holes::new();
        let mut i = 0;
        while i < self.pieces.len() {
            i += match self.run(i) {
                Some((count, all)) if m.async_append(all, &mut self.fetched)? => {
                    let mut at = self.fetched.len() - all.size as usize;
                    for p in &mut self.pieces[i..i + count] {
                        p.from = From::Fetched(at);
                        at += p.to.size as usize;
                    }
                    count
                }
                _ => {
                    self.fetch_one(m, i, &mut holes)?;
                    1
                }
            };
        }
        Ok(holes)
    }

    /// Number of pieces, from this one on, that read bytes lying side by side, and the range of these bytes.
    fn run(&self, first: usize) -> Option<(usize, Range)> {
        let From::Memory(mut all) = self.pieces[first].from else {
            return None;
        };
        let mut count = 1;
        while let Some(next) = self.pieces.get(first + count)
            && let From::Memory(r) = &next.from
            && let Some(both) = all.joined(r)
        {
            all = both;
            count += 1;
        }
        Some((count, all))
    }

    fn fetch_one(&mut self, m: &mut Machine<'_>, i: usize, holes: &mut Holes) -> Result<(), Fault> {
        let p = &mut self.pieces[i];
        let (From::Memory(r) | From::Tf32(r)) = p.from else {
            return Ok(());
        };
        let (mut bytes, flags) = m.async_read(r)?;
        if matches!(p.from, From::Tf32(_)) {
            round_to_tf32(&mut bytes);
        }
        // Bytes that a store sends out must have been written. Bytes that a load brings in are judged by their readers.
        if let Some(missing) = flags.iter().position(|f| !f) {
            if r.space == Space::Shared {
                let message = format!(
                    "asynchronous read of shared memory that nothing wrote, {missing} bytes into {} bytes",
                    r.size
                );
                let f = Fault::new(ViolationKind::Uninitialised, message);
                let f = f.at(r.start + missing as u64);
                m.uninitialised(f, self.actor).map_err(plain)?;
            }
            holes.insert(i, flags);
        }
        p.from = From::Fetched(self.fetched.len());
        self.fetched.extend(bytes);
        Ok(())
    }

    /// Bytes that a piece brings, if its source has been read.
    fn data<'a>(&'a self, p: &'a Piece) -> Option<&'a [u8]> {
        match &p.from {
            From::Data(d) => Some(d),
            From::Fetched(at) => self.fetched.get(*at..*at + p.to.size as usize),
            From::Memory(_) | From::Rows(_) | From::Tf32(_) | From::Nothing => None,
        }
    }

    /// A load that only moves bytes from global into shared memory, where nothing is in its way. `false` if it needs a
    /// closer look, which writes all of it again.
    fn load_at_once(&self, m: &mut Machine<'_>) -> bool {
        let Some((to, start, size)) = self.destination().filter(|_| self.reduce.is_none()) else {
            return false;
        };
        let Ok(owner) = m.owner_of(&to) else {
            return false;
        };
        if to.space != Space::Shared || m.refuse_mbarrier(owner, start, size, "").is_err() {
            return false;
        }
        let global = &*m.global;
        let sources = self.pieces.iter().map(|p| {
            let (first, pitch, count) = match p.from {
                From::Memory(r) if r.space == Space::Global => (r, r.size, 1),
                From::Rows(rows) => (rows.first, rows.pitch, rows.count),
                _ => return None,
            };
            let (size, pitch) = (first.size as usize, pitch as usize);
            Some(Permuted {
                to: p.to.start,
                size: p.to.size as usize,
                swizzle: p.swizzle,
                data: global.written_rows(first.start, (size, pitch), count as usize)?,
                pitch,
            })
        });
        let marks = self.to.iter().map(|r| (r.start, r.size));
        let shared = &mut m.ctas[owner].shared;
        shared.write_permuted((start, size), sources, marks)
    }

    /// The memory that all pieces go to, by a range of it; the first byte that is written, and the number of bytes up
    /// to the last. `None` where there are several memories.
    fn destination(&self) -> Option<(Range, u64, u64)> {
        let first = *self.to.first()?;
        let same = |r: &Range| (r.space, r.owner) == (first.space, first.owner);
        let start = self.to.iter().map(|r| r.start).min()?;
        let end = self
            .to
            .iter()
            .map(|r| r.start.saturating_add(r.size))
            .max()?;
        self.to
            .iter()
            .all(same)
            .then_some((first, start, end - start))
    }

    /// Writes all pieces at once. Does nothing, and says so, where one of them needs a closer look.
    fn deliver_all(&self, m: &mut Machine<'_>) -> Result<bool, Fault> {
        let Some((first, start, size)) = self.destination() else {
            return Ok(false);
        };
        let owner = m.owner_of(&first)?;
        if first.space == Space::Shared && m.refuse_mbarrier(owner, start, size, "write").is_err() {
            return Ok(false);
        }
        let pieces: Option<Vec<_>> = self
            .pieces
            .iter()
            .map(|p| Some((p.to.start, self.data(p)?)))
            .collect();
        let Some(pieces) = pieces else {
            return Ok(false);
        };
        let marks = self.to.iter().map(|r| (r.start, r.size));
        let region = m.region(first.space, owner);
        Ok(region.write_all((start, size), pieces.into_iter(), marks))
    }

    fn deliver(&self, m: &mut Machine<'_>, holes: &Holes) -> Result<(), Fault> {
        if self.reduce.is_some() || !holes.is_empty() || !self.deliver_all(m)? {
            self.deliver_each(m, holes)?;
        }
        self.over(m)
    }

    /// All bytes are where they belong.
    fn over(&self, m: &mut Machine<'_>) -> Result<(), Fault> {
        m.pending.finished(self.op);
        if let Some(h) = &mut m.hazards {
            if let Finish::Transaction { owner, at, .. } = self.finish {
                h.signal(&self.tracked, owner, at);
            }
            for op in &self.tracked {
                h.retire(self.actor.cta, *op, true);
            }
        }
        match self.finish {
            Finish::Transaction { owner, at, bytes } => m.async_complete_tx(owner, at, bytes),
            Finish::Group => Ok(()),
        }
    }

    fn deliver_each(&self, m: &mut Machine<'_>, holes: &Holes) -> Result<(), Fault> {
        for (i, p) in self.pieces.iter().enumerate() {
            match (self.data(p), self.reduce) {
                (Some(d), None) => {
                    m.async_write(p.to, d)?;
                    let flags = holes.get(&i).map_or(&[][..], Vec::as_slice);
                    for (at, _) in flags.iter().enumerate().filter(|f| !*f.1) {
                        m.async_forget(Range {
                            start: p.to.start + at as u64,
                            size: 1,
                            ..p.to
                        })?;
                    }
                }
                (Some(d), Some((op, ty))) => {
                    let (mut old, flags) = m.async_read(p.to)?;
                    if flags.contains(&false) {
                        let name = p.to.space.name();
                        let message = format!("reduction into {name} memory that nothing wrote");
                        let f = Fault::new(ViolationKind::Uninitialised, message).at(p.to.start);
                        m.uninitialised(f, self.actor).map_err(plain)?;
                    }
                    reduce(op, ty, &mut old, d)
                        .map_err(|e| Fault::new(ViolationKind::Other, e.to_string()))?;
                    m.async_write(p.to, &old)?;
                }
                (None, _) if matches!(p.from, From::Nothing) => m.async_forget(p.to)?,
                (None, _) => {}
            }
        }
        Ok(())
    }
}

impl Event for Copy {
    fn describe(&self) -> String {
        format!("the asynchronous copy issued at line {}", self.line)
    }

    fn trace(&self) -> Operation {
        self.operation("copy")
    }

    fn reads_shared_of(&self) -> Option<u32> {
        let from = self.pieces.iter().find_map(|p| match p.from {
            From::Memory(r) if r.space == Space::Shared => Some(r.owner),
            _ => None,
        });
        from.filter(|_| self.in_steps)
    }

    fn pc(&self) -> usize {
        self.actor.pc as usize
    }

    fn ready(&self, _: &Machine<'_>) -> bool {
        true
    }

    fn complete(mut self: Box<Self>, m: &mut Machine<'_>) -> Result<(), Fault> {
        if self.load_at_once(m) {
            return self.over(m);
        }
        if self.pieces.iter().any(|p| p.swizzle != Swizzle::None) {
            let pieces = std::mem::take(&mut self.pieces);
            self.pieces = pieces.into_iter().flat_map(Piece::granules).collect();
        }
        let holes = self.fetch(m)?;
        if !self.in_steps {
            return self.deliver(m, &holes);
        }
        m.pending.sources_read(self.op);
        m.events.push(Box::new(Delivery { copy: *self, holes }));
        Ok(())
    }
}

/// A copy whose sources have been read.
#[derive(Debug)]
struct Delivery {
    copy: Copy,
    holes: Holes,
}

impl Event for Delivery {
    fn describe(&self) -> String {
        format!(
            "the writes of the asynchronous copy issued at line {}",
            self.copy.line
        )
    }

    fn trace(&self) -> Operation {
        self.copy.operation("writes of a copy")
    }

    fn pc(&self) -> usize {
        self.copy.pc()
    }

    fn ready(&self, _: &Machine<'_>) -> bool {
        true
    }

    fn complete(self: Box<Self>, m: &mut Machine<'_>) -> Result<(), Fault> {
        self.copy.deliver(m, &self.holes)
    }
}

/// The arrive-on that follows a thread's `cp.async` operations.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) after: Vec<u64>,
    /// Linear CTA of the thread.
    pub(super) issuer: u32,
    pub(super) owner: u32,
    pub(super) at: u64,
    pub(super) pc: usize,
    pub(super) line: u32,
    /// Hazard tracking: the arrival as an operation, and the copies that it hands over.
    pub(super) tracked: Option<TrackedOp>,
    pub(super) copies: Vec<Stamp>,
}

impl Event for Arrival {
    fn describe(&self) -> String {
        format!(
            "the arrive of cp.async.mbarrier.arrive at line {}",
            self.line
        )
    }

    fn trace(&self) -> Operation {
        Operation {
            kind: Kind::Arrive,
            name: "arrive after cp.async".into(),
            details: Vec::new(),
            barriers: vec![(self.owner, self.at)],
        }
    }

    fn pc(&self) -> usize {
        self.pc
    }

    fn ready(&self, m: &Machine<'_>) -> bool {
        self.after.iter().all(|op| m.pending.is_done(*op, false))
    }

    fn complete(self: Box<Self>, m: &mut Machine<'_>) -> Result<(), Fault> {
        if let (Some(op), Some(h)) = (self.tracked, &mut m.hazards) {
            h.signal_copies(&self.copies, self.owner, self.at);
            h.signal(&[op], self.owner, self.at);
            h.retire(self.issuer, op, true);
        }
        m.async_arrive(self.issuer, self.owner, self.at, 1)
    }
}

impl Machine<'_> {
    fn owner_of(&self, r: &Range) -> Result<usize, Fault> {
        if r.space == Space::Shared {
            self.cta_index(r.owner)
        } else {
            Ok(0)
        }
    }

    /// Reads for an asynchronous operation: the bytes, and which of them were ever written.
    pub(crate) fn async_read(&mut self, r: Range) -> Result<(Vec<u8>, Vec<bool>), Fault> {
        let owner = self.owner_of(&r)?;
        if r.space == Space::Shared {
            self.refuse_mbarrier(owner, r.start, r.size, "asynchronous read")?;
        }
        self.region(r.space, owner).copy_out(r.start, r.size as u32)
    }

    /// Appends a range to `out`, if all of it was written, lies in one allocation and holds no mbarrier object.
    fn async_append(&mut self, r: Range, out: &mut Vec<u8>) -> Result<bool, Fault> {
        let owner = self.owner_of(&r)?;
        if r.space == Space::Shared
            && self
                .refuse_mbarrier(owner, r.start, r.size, "read")
                .is_err()
        {
            return Ok(false);
        }
        let found = self
            .region(r.space, owner)
            .written(r.start, r.size as usize);
        if let Some(bytes) = found {
            out.extend_from_slice(bytes);
        }
        Ok(found.is_some())
    }

    /// Writes for an asynchronous operation.
    pub(crate) fn async_write(&mut self, r: Range, data: &[u8]) -> Result<(), Fault> {
        let owner = self.owner_of(&r)?;
        if r.space == Space::Shared {
            self.refuse_mbarrier(owner, r.start, r.size, "asynchronous write")?;
        }
        self.region(r.space, owner).write(r.start, 1, data)
    }

    fn async_forget(&mut self, r: Range) -> Result<(), Fault> {
        let owner = self.owner_of(&r)?;
        self.region(r.space, owner).forget(r.start, r.size as u32)
    }
}
