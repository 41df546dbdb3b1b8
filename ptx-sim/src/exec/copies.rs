//! Asynchronous copies in flight, as events.

use super::event::Event;
use super::machine::{Machine, Trouble};
use super::pending::Range;
use crate::memory::{Actor, Fault, Space};
use crate::models::hazard::{Op as TrackedOp, Stamp};
use crate::models::tma_bulk::{ReduceDst, reduce};
use crate::program::Reduction;
use crate::report::ViolationKind;
use crate::softfloat::{F32, Round, TF32};
use crate::trace::{Kind, Operation};

/// Where bytes come from.
#[derive(Debug, Clone)]
pub(super) enum From {
    /// Memory, read when the copy happens.
    Memory(Range),
    /// Memory that holds 32-bit floats, which are rounded to tf32 on the way.
    Tf32(Range),
    /// Known since it was issued.
    Data(Vec<u8>),
    /// Nowhere: the destination becomes uninitialised.
    Nothing,
}

/// One contiguous run of bytes.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub(super) from: From,
    pub(super) to: Range,
}

/// What tells that a copy is over.
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
    pub(super) reduce: Option<Reduction>,
    pub(super) finish: Finish,
    /// Sources and destinations are distinct steps: something may happen in between.
    pub(super) in_steps: bool,
    /// Hazard tracking: this operation; of `cp.async` one for each lane.
    pub(super) tracked: Vec<TrackedOp>,
}

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

    fn fetch(&mut self, m: &mut Machine<'_>) -> Result<Vec<Vec<bool>>, Fault> {
        let mut written = Vec::with_capacity(self.pieces.len());
        for p in &mut self.pieces {
            let mut init = Vec::new();
            if let From::Memory(r) | From::Tf32(r) = p.from {
                let (mut bytes, flags) = m.async_read(r)?;
                if matches!(p.from, From::Tf32(_)) {
                    round_to_tf32(&mut bytes);
                }
                // What a store sends out must exist; what a load brings in is judged by its readers.
                if r.space == Space::Shared
                    && let Some(i) = flags.iter().position(|f| !f)
                {
                    let f = Fault {
                        kind: ViolationKind::Uninitialised,
                        message: format!(
                            "asynchronous read of shared memory that nothing wrote, {i} bytes into {} bytes",
                            r.size
                        ),
                        address: Some(r.start + i as u64),
                        nearest: None,
                    };
                    m.uninitialised(f, self.actor).map_err(plain)?;
                }
                p.from = From::Data(bytes);
                init = flags;
            }
            written.push(init);
        }
        Ok(written)
    }

    fn deliver(&self, m: &mut Machine<'_>, written: &[Vec<bool>]) -> Result<(), Fault> {
        for (i, p) in self.pieces.iter().enumerate() {
            match (&p.from, self.reduce) {
                (From::Data(d), None) => {
                    m.async_write(p.to, d)?;
                    let flags = written.get(i).map_or(&[][..], Vec::as_slice);
                    for (at, _) in flags.iter().enumerate().filter(|f| !*f.1) {
                        m.async_forget(Range {
                            start: p.to.start + at as u64,
                            size: 1,
                            ..p.to
                        })?;
                    }
                }
                (From::Data(d), Some((op, ty))) => {
                    let (mut old, flags) = m.async_read(p.to)?;
                    if flags.contains(&false) {
                        let f = Fault {
                            kind: ViolationKind::Uninitialised,
                            message: format!(
                                "reduction into {} memory that nothing wrote",
                                p.to.space.name()
                            ),
                            address: Some(p.to.start),
                            nearest: None,
                        };
                        m.uninitialised(f, self.actor).map_err(plain)?;
                    }
                    let place = match p.to.space {
                        Space::Shared => ReduceDst::SharedCluster,
                        _ => ReduceDst::Global,
                    };
                    reduce(op, ty, place, &mut old, d)
                        .map_err(|e| Fault::new(ViolationKind::Other, e.to_string()))?;
                    m.async_write(p.to, &old)?;
                }
                (From::Nothing, _) => m.async_forget(p.to)?,
                (From::Memory(_) | From::Tf32(_), _) => {}
            }
        }
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
}

impl Event for Copy {
    fn describe(&self) -> String {
        format!("the asynchronous copy issued at line {}", self.line)
    }

    fn trace(&self) -> Operation {
        self.operation("copy")
    }

    fn pc(&self) -> usize {
        self.actor.pc as usize
    }

    fn ready(&self, _: &Machine<'_>) -> bool {
        true
    }

    fn complete(mut self: Box<Self>, m: &mut Machine<'_>) -> Result<(), Fault> {
        let written = self.fetch(m)?;
        if !self.in_steps {
            return self.deliver(m, &written);
        }
        m.pending.sources_read(self.op);
        m.events.push(Box::new(Delivery {
            copy: *self,
            written,
        }));
        Ok(())
    }
}

/// A copy whose sources have been read.
#[derive(Debug)]
struct Delivery {
    copy: Copy,
    written: Vec<Vec<bool>>,
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
        self.copy.deliver(m, &self.written)
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
    /// Hazard tracking: the arrival as an operation, and what it hands over.
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
            kind: Kind::Commit,
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
