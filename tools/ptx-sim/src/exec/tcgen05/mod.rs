//! `tcgen05`: tensor memory of the resident CTAs, and the operations in flight on it.
//!
//! `mma`, `cp`, `ld` and `st` are events. These events complete in any order that the pipelines of section 9.7.16.6.2
//! allow, and read shared and tensor memory only then.

mod alloc;
mod commit;
mod copy;
mod load_store;
mod mma;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::machine::{Machine, Tried, Trouble, sync_fault};
use super::pending::SharedReads;
use super::warp::{Part, Warp};
use super::{Ctx, Flow, lanes};
use crate::memory::{Fault, Region};
use crate::models::hazard::{Op as TrackedOp, OpClass};
use crate::models::memory::{SharedRead, SharedReadError};
use crate::models::relaxation::Relaxation;
use crate::models::tcgen05_mma::{CtaGroup, Mma, Owed};
use crate::models::tmem::UNWRITTEN;
use crate::models::tmem::{Tmem, TmemAddr};
use crate::models::tmem_alloc::TmemAllocator;
use crate::program::{Src, Tcgen05, TensorAddr};
use crate::report::ViolationKind;
use crate::sim::Options;
use mma::Touched;

/// Committed operations of a thread that later commits still hand over.
const REMEMBERED: usize = 256;

/// An operation in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pending {
    pub(crate) what: OpClass,
    /// Issuer: linear CTA, warp, lane (0 for those of a whole warp).
    issuer: (u32, u32, u32),
    /// A `tcgen05.st`; tells it from `ld`.
    store: bool,
    /// Linear CTA of the pair's first, or the CTA: whose tensor core executes it.
    unit: u32,
}

/// Tensor memory state of the machine.
#[derive(Debug, Default)]
pub(crate) struct TensorState {
    /// By linear CTA.
    tmem: BTreeMap<u32, Tmem>,
    /// MMAs whose arithmetic is still to be done, by linear CTA.
    owed: BTreeMap<u32, Owed>,
    /// By SM, and rank in a pair.
    pub(super) allocators: BTreeMap<(u32, u32), TmemAllocator>,
    /// Pair allocations: columns that a CTA has asked for, and its address once both have.
    asked: BTreeMap<u32, u32>,
    granted: BTreeMap<u32, TmemAddr>,
    /// Pair deallocations that one CTA has issued, by its linear number and the address; and whether
    /// it waits for its peer.
    freeing: BTreeMap<(u32, u32), bool>,
    /// Pair deallocations that waited and may go on.
    freed: BTreeSet<(u32, u32)>,
    /// Counts everything that may let a blocked allocation go on.
    pub(crate) epoch: u64,
    next: u64,
    pending: BTreeMap<u64, Pending>,
    footprints: FxHashMap<Mma, Arc<Touched>>,
    /// Hazard tracking: operations of each thread, oldest first.
    issued: BTreeMap<(u32, u32, u32), VecDeque<TrackedOp>>,
    commits: BTreeMap<(u32, u32, u32), commit::Commits>,
    /// Loads and stores of each warp that it has not waited for.
    unwaited: BTreeMap<(u32, u32, bool), Vec<TrackedOp>>,
}

impl TensorState {
    /// Does the arithmetic that is still owed to a CTA's tensor memory: before anybody looks at it or frees it.
    fn settle(&mut self, cta: u32) {
        if let (Some(owed), Some(tmem)) = (self.owed.get_mut(&cta), self.tmem.get_mut(&cta)) {
            owed.settle(tmem);
        }
    }

    /// Whether these operations have all completed.
    fn over(&self, ids: &[u64]) -> bool {
        ids.iter().all(|i| !self.pending.contains_key(i))
    }

    /// CTAs that hold tensor memory, as [`Neighbours::holder`] numbers them, in ascending order.
    pub(crate) fn holders(&self) -> Vec<u64> {
        let all = self.allocators.values().flat_map(TmemAllocator::holders);
        let mut all: Vec<u64> = all.collect();
        all.sort_unstable();
        all
    }

    /// Whether a warp's loads or stores have all completed.
    pub(crate) fn waited(&self, cta: u32, warp: u32, stores: bool) -> bool {
        !self.pending.values().any(|p| {
            p.what == OpClass::LdSt && p.store == stores && p.issuer.0 == cta && p.issuer.1 == warp
        })
    }

    /// Operations that must complete before one of this class on this unit may. Order holds
    /// between threads too: those that synchronise form pipelines, the others are reported.
    fn before(&self, what: OpClass, unit: u32, options: &Options) -> Vec<u64> {
        let cp_waits = options.allows(Relaxation::CpAfterMma);
        let piped = |p: &Pending| match (p.what, what) {
            (OpClass::Mma(a), OpClass::Mma(b)) => a == b,
            (OpClass::Cp { .. }, OpClass::Mma(_)) => true,
            (OpClass::Mma(_) | OpClass::Cp { .. }, OpClass::Cp { .. }) => cp_waits,
            _ => false,
        };
        self.pending
            .iter()
            .filter(|(_, p)| p.unit == unit && piped(p))
            .map(|(i, _)| *i)
            .collect()
    }
}

/// Shared memory that an operation reads: from indices of its CTAs, addresses and lengths.
pub(in crate::exec) fn shared_reads(
    ctas: &[u32],
    reads: &mut [(usize, u32, u32)],
) -> Vec<SharedReads> {
    // Each operand is sorted, or nearly so: a stable sort merges them.
    reads.sort();
    let of_one = reads.chunk_by(|a, b| a.0 == b.0);
    let of_one = of_one.filter_map(|reads| {
        let owner = *ctas.get(reads[0].0)?;
        let mut parts: Vec<(u64, u64)> = Vec::new();
        for (_, at, len) in reads {
            let (start, end) = (u64::from(*at), u64::from(*at) + u64::from(*len));
            match parts.last_mut() {
                // Operands may overlap, and rows of one that has no stride.
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => parts.push((start, end)),
            }
        }
        let parts = Arc::new(parts);
        Some(SharedReads { owner, parts })
    });
    of_one.collect()
}

/// Shared memory of a CTA as the tensor core reads it.
pub(in crate::exec) struct SharedView<'a> {
    region: &'a Region,
    /// Bytes that nothing wrote may be read: they are [`UNWRITTEN`].
    lenient: bool,
    /// Whether any were.
    unwritten: Cell<bool>,
}

impl<'a> SharedView<'a> {
    pub(in crate::exec) fn new(region: &'a Region, options: &Options) -> Self {
        Self {
            region,
            lenient: options.allows(Relaxation::Unwritten),
            unwritten: Cell::new(false),
        }
    }

    /// Whether bytes that nothing wrote were read.
    pub(in crate::exec) fn took_unwritten(&self) -> bool {
        self.unwritten.get()
    }
}

/// Text of the note of [`Relaxation::Unwritten`].
pub(in crate::exec) const READ_UNWRITTEN: &str = "an operand has bytes that nothing wrote";

impl SharedRead for SharedView<'_> {
    fn byte(&self, address: u32) -> Option<u8> {
        let mut b = [0];
        if self.region.peek(u64::from(address), &mut b) {
            return Some(b[0]);
        }
        // Unwritten is not nowhere.
        if !self.lenient || !self.region.holds(u64::from(address)) {
            return None;
        }
        self.unwritten.set(true);
        Some(UNWRITTEN)
    }

    fn read(&self, address: u32, out: &mut [u8]) -> Result<(), SharedReadError> {
        if self.region.peek(u64::from(address), out) {
            return Ok(());
        }
        if !self.lenient {
            return Err(SharedReadError { address });
        }
        for (i, b) in out.iter_mut().enumerate() {
            let address = address.wrapping_add(i as u32);
            *b = self.byte(address).ok_or(SharedReadError { address })?;
        }
        Ok(())
    }

    fn window(&self, address: u32, len: u32) -> Option<&[u8]> {
        self.region.written(u64::from(address), len as usize)
    }
}

/// A broken rule of tcgen05 or wgmma.
pub(in crate::exec) fn broken(message: impl ToString) -> Fault {
    Fault::new(ViolationKind::Other, message.to_string())
}

fn trouble(lane: u32) -> impl Fn(Fault) -> Trouble {
    move |f| Trouble::Fault(f, Some(lane))
}

/// The value of a source that must be the same in all active lanes.
pub(in crate::exec) fn uniform(c: &Ctx<'_>, w: &Warp, s: Src, what: &str) -> Tried<u64> {
    let v = w.get(c.program, s);
    let first = v[c.active.trailing_zeros() as usize & 31];
    if lanes(c.active).any(|l| v[l as usize] != first) {
        return Err(sync_fault(format!(
            "lanes of the warp give different {what}"
        )));
    }
    Ok(first)
}

fn tensor_address(c: &Ctx<'_>, w: &Warp, a: TensorAddr, lane: u32) -> TmemAddr {
    let base = w.get(c.program, a.base)[lane as usize & 31];
    TmemAddr(base.wrapping_add_signed(a.offset) as u32)
}

impl Machine<'_> {
    /// Index of a resident CTA that has not ended.
    pub(super) fn resident(&self, linear: u32) -> Option<usize> {
        self.ctas
            .iter()
            .position(|c| c.linear == linear && !c.ended())
    }

    /// The CTAs of an operation, as linear indices, the even rank first.
    fn tensor_group(&self, cta: usize, group: CtaGroup) -> Result<Vec<u32>, Fault> {
        let me = &self.ctas[cta];
        if group == CtaGroup::One {
            return Ok(vec![me.linear]);
        }
        let peers = &self.clusters[me.cluster].ctas;
        let even = me.rank & !1;
        [even, even | 1]
            .iter()
            .map(|r| peers.get(*r as usize).map(|i| self.ctas[*i].linear))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| broken("cta_group::2 in a cluster without a peer CTA"))
    }

    pub(super) fn tcgen05(
        &mut self,
        c: &Ctx<'_>,
        w: &mut Warp,
        cur: &mut Part,
        op: &Tcgen05,
    ) -> Tried<Flow> {
        if op.aligned() && c.active != u32::MAX {
            return Err(sync_fault(
                "a warp with exited or absent lanes executes an aligned tcgen05 instruction",
            ));
        }
        match op {
            Tcgen05::Alloc {
                group,
                dst,
                columns,
            } => return self.tensor_alloc(c, w, cur, *group, dst, *columns),
            Tcgen05::Dealloc {
                group,
                address,
                columns,
            } => return self.tensor_dealloc(c, w, cur, *group, *address, *columns),
            Tcgen05::Relinquish { group } => self.tensor_relinquish(c, *group)?,
            Tcgen05::Cp { .. } => {
                for lane in lanes(c.active) {
                    self.tcgen05_copy(c, w, lane, op)?;
                }
            }
            Tcgen05::Mma(m) => {
                for lane in lanes(c.active) {
                    self.tensor_mma(c, w, lane, m)?;
                }
            }
            Tcgen05::Commit {
                group,
                barrier,
                mask,
            } => {
                for lane in lanes(c.active) {
                    self.tensor_commit(c, w, lane, *group, barrier, *mask)?;
                }
            }
            Tcgen05::Ld { shape, d, address } => self.tensor_load(c, w, shape, d, *address)?,
            Tcgen05::St { shape, s, address } => self.tensor_store(c, w, shape, s, *address)?,
            Tcgen05::Wait { stores } => return self.tensor_wait(c, w, cur, *stores),
            Tcgen05::Fence { after } => self.tensor_fence(c, w, *after),
        }
        Ok(Flow::Next)
    }

    /// Notes an operation in flight and gives it a number.
    fn tensor_issue(&mut self, p: Pending) -> u64 {
        let id = self.tensor.next;
        self.tensor.next += 1;
        self.tensor.pending.insert(id, p);
        id
    }

    /// An operation in flight has completed; `unwritten`: it read bytes that nothing wrote.
    fn tensor_done(&mut self, id: u64, reads: u64, pc: usize, unwritten: bool) {
        if unwritten {
            self.note(Relaxation::Unwritten, pc, READ_UNWRITTEN);
        }
        self.tensor.pending.remove(&id);
        self.pending.finished(reads);
    }

    /// Runs `f` on the tensor memories of some CTAs, which must all be resident.
    fn with_tmem<T>(
        &mut self,
        ctas: &[u32],
        f: impl FnOnce(&Self, &[usize], &mut [Tmem]) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        for cta in ctas {
            self.tensor.settle(*cta);
        }
        self.with_owing_tmem(ctas, f)
    }

    /// Runs `f` on the tensor memories of some CTAs, which may have arithmetic that is still to be done.
    fn with_owing_tmem<T>(
        &mut self,
        ctas: &[u32],
        f: impl FnOnce(&Self, &[usize], &mut [Tmem]) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let indices = ctas
            .iter()
            .map(|l| self.resident(*l))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| {
                Fault::new(
                    ViolationKind::Hazard,
                    "a CTA ended before the operation on its memory did",
                )
            })?;
        let mut memories: Vec<Tmem> = ctas
            .iter()
            .map(|l| self.tensor.tmem.remove(l).unwrap_or_default())
            .collect();
        let result = f(self, &indices, &mut memories);
        for (l, m) in ctas.iter().zip(memories) {
            self.tensor.tmem.insert(*l, m);
        }
        result
    }

    /// At the end of a CTA: leaks, and operations that are still in flight.
    pub(super) fn tensor_exit(&mut self, cta: usize) -> Result<(), Fault> {
        let linear = self.ctas[cta].linear;
        self.tensor.tmem.remove(&linear);
        self.tensor.owed.remove(&linear);
        let key = self.sm(cta);
        let Some(a) = self.tensor.allocators.get_mut(&key) else {
            return Ok(());
        };
        self.tensor.epoch += 1;
        let leaks = a.exit(self.neighbours.holder(linear));
        if let Some((first, count)) = leaks.first() {
            return Err(broken(format!(
                "the CTA ends without tcgen05.dealloc of tensor memory columns {first}..{}",
                first + count
            )));
        }
        Ok(())
    }

    /// The SM a CTA runs on. Both CTAs of a pair have their own.
    pub(super) fn sm(&self, cta: usize) -> (u32, u32) {
        self.ctas[cta].sm
    }
}
