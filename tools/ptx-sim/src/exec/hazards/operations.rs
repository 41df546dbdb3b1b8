//! Asynchronous operations: copies, tcgen05, and the arrivals that tell of them.

use super::{Hazards, Thread, mbarrier, object_range, shared, tensor};
use crate::exec::machine::Machine;
use crate::exec::pending::{self, SharedReads, Use};
use crate::memory::{self, Space};
use crate::models::hazard::{Access, AccessKind, Actor, Op, OpClass, Proxy, Range, Stamp};
use crate::models::relaxation::Relaxation;
use crate::models::swizzle::Swizzle;

impl Hazards {
    /// A thread issues an asynchronous operation.
    pub(crate) fn begin(&mut self, t: Thread, class: OpClass) -> Option<Op> {
        let w = self.world(t.0)?;
        let a = w.agent(t)?;
        Some(w.tracker.begin(a, class))
    }

    /// An operation will arrive on an mbarrier, "using generic-proxy": it must be initialised when
    /// the operation is issued.
    pub(crate) fn op_barrier(&mut self, op: Op, cta: u32, owner: u32, at: u64, pc: usize) {
        let Some(w) = self.world(cta) else { return };
        let access = Access::new(
            object_range(owner, at),
            AccessKind::Sync,
            Proxy::Generic,
            pc as u32,
        );
        w.shared_access(Actor::Op(op), cta, owner, access);
    }

    /// Reads of shared memory through the async proxy, issued by a CTA.
    pub(crate) fn op_shared(&mut self, (op, cta): (Op, u32), reads: &[SharedReads], pc: usize) {
        let Some(w) = self.world(cta) else { return };
        for SharedReads { owner, parts } in reads {
            let range = |(start, end): &(u64, u64)| Range::new(shared(*owner), *start, end - start);
            let access = Access::new(range(&parts[0]), AccessKind::Read, Proxy::Async, pc as u32);
            w.shared_reach(Actor::Op(op), cta, *owner, access);
            w.tracker.op_accesses(op, access, parts.iter().map(range));
        }
    }

    /// An access to tensor memory of a CTA: lanes and columns, as first and count.
    pub(crate) fn op_tensor(
        &mut self,
        op: Op,
        cta: u32,
        lanes: (u32, u32),
        columns: (u32, u32),
        kind: AccessKind,
        pc: usize,
    ) {
        let Some(w) = self.world(cta) else { return };
        for block in lanes.0 / 16..(lanes.0 + lanes.1).div_ceil(16) {
            let range = Range::new(
                tensor(cta, block),
                u64::from(columns.0),
                u64::from(columns.1),
            );
            w.tracker
                .op_access(op, Access::new(range, kind, Proxy::Tensor, pc as u32));
        }
    }

    /// An operation that expects its operands in shared memory with a swizzle.
    pub(crate) fn expects(&mut self, op: Op, cta: u32, swizzle: Swizzle) {
        if let Some(w) = self.world(cta) {
            w.tracker.swizzled(op, swizzle);
        }
    }

    /// Operations arrive on an mbarrier.
    pub(crate) fn signal(&mut self, ops: &[Op], owner: u32, at: u64) {
        if let Some(w) = self.world(owner) {
            for op in ops {
                w.tracker.signal(*op, mbarrier(owner, at));
            }
        }
    }

    /// A `tcgen05.commit` arrives on an mbarrier: operations of its thread, oldest first.
    pub(crate) fn signal_commit(&mut self, ops: &[Op], owner: u32, at: u64) {
        if let Some(w) = self.world(owner) {
            w.tracker.signal_commit(ops, mbarrier(owner, at));
        }
    }

    /// The arrival of a commit has come. The arrival is an operation itself. The arrivals of its thread's earlier
    /// commits came before it.
    pub(crate) fn arrived(&mut self, issuer: Thread, arrival: Op, owner: u32, at: u64) {
        if let Some(w) = self.world(issuer.0)
            && let Some(a) = w.agent(issuer)
        {
            w.tracker.arrived(a, arrival, mbarrier(owner, at));
        }
    }

    /// The copy is this thread's, too.
    pub(crate) fn note_copy(&mut self, t: Thread, op: Op) {
        if let Some(w) = self.world(t.0)
            && let Some(a) = w.agent(t)
        {
            w.tracker.note_copy(a, op);
        }
    }

    /// Copies that a `cp.async.mbarrier.arrive` hands over.
    pub(crate) fn copies(&mut self, t: Thread) -> Vec<Stamp> {
        let Some(w) = self.world(t.0) else {
            return Vec::new();
        };
        w.agent(t).map_or(Vec::new(), |a| w.tracker.copies(a))
    }

    /// The arrival of a `cp.async.mbarrier.arrive`.
    pub(crate) fn signal_copies(&mut self, copies: &[Stamp], owner: u32, at: u64) {
        if let Some(w) = self.world(owner) {
            w.tracker.signal_stamps(copies, mbarrier(owner, at));
        }
    }

    /// The stamp of an operation, which a group keeps.
    pub(crate) fn stamp(&mut self, cta: u32, op: Op) -> Option<Stamp> {
        self.world(cta)?.tracker.stamp(op)
    }

    /// A thread waited for its group.
    pub(crate) fn waited_group(&mut self, t: Thread, stamps: &[Stamp], reads_only: bool) {
        let Some(w) = self.world(t.0) else { return };
        if let (false, Some(a)) = (stamps.is_empty(), w.agent(t)) {
            w.tracker.wait(a, stamps, reads_only);
        }
    }

    /// A warp knows that operations are over, in execution order.
    pub(crate) fn over(&mut self, (cta, warp): (u32, u32), stamps: &[Stamp]) {
        if let (false, Some(w)) = (stamps.is_empty(), self.world(cta)) {
            let lanes: Vec<_> = (0..32).filter_map(|l| w.agent((cta, warp, l))).collect();
            w.tracker.over(&lanes, stamps);
        }
    }

    /// `tcgen05.wait` of a warp.
    pub(crate) fn waited(&mut self, cta: u32, warp: u32, ops: &[Op]) {
        let Some(w) = self.world(cta) else { return };
        let lanes: Vec<_> = (0..32).filter_map(|l| w.agent((cta, warp, l))).collect();
        for op in ops {
            w.tracker.wait_op_together(&lanes, *op);
            w.tracker.retire(*op);
        }
    }

    /// The operation is over, and nobody will hand it over again but by its stamp.
    pub(crate) fn retire(&mut self, cta: u32, op: Op, over: bool) {
        if let Some(w) = self.world(cta) {
            if over {
                w.tracker.complete(op);
            }
            w.tracker.retire(op);
        }
    }

    /// Columns are freed by a warp. With `pair`, its peer's too, which frees them later: until
    /// then nobody may touch them any more, or where [`Relaxation::PeerColumns`] is allowed the peer may its own.
    pub(crate) fn free_columns(
        &mut self,
        (cta, warp): (u32, u32),
        pair: &[u32],
        (first, count): (u32, u32),
        last: bool,
        pc: usize,
    ) {
        let separate = self.allowed.has(Relaxation::PeerColumns);
        let Some(w) = self.world(cta) else { return };
        let Some(a) = w.agent((cta, warp, 0)) else {
            return;
        };
        for of in pair {
            let others = separate && *of != cta;
            for block in 0..8 {
                let range = Range::new(tensor(*of, block), u64::from(first), u64::from(count));
                match (others, last) {
                    (false, true) => w.tracker.free(a, range, pc as u32),
                    (false, false) => w.tracker.give_up(a, range, pc as u32),
                    (true, false) => w.tracker.free_others(a, range, pc as u32),
                    (true, true) => w.tracker.forget(range),
                }
            }
        }
    }
}

impl Machine<'_> {
    /// Tracks an asynchronous copy. `through` is the proxy of its accesses; `barrier` is the mbarrier that it signals.
    pub(crate) fn track_transfer(
        &mut self,
        actor: memory::Actor,
        uses: &[(pending::Range, Use)],
        through: Proxy,
        barrier: Option<(u32, u64)>,
        swizzle: Option<Swizzle>,
    ) -> Option<Op> {
        let t = (actor.cta, actor.warp, actor.lane);
        let class = match through {
            Proxy::Generic => OpClass::Copy,
            _ => OpClass::Plain,
        };
        let h = self.hazards.as_mut()?;
        let op = h.begin(t, class)?;
        if let Some((owner, at)) = barrier {
            h.op_barrier(op, t.0, owner, at, actor.pc as usize);
        }
        let w = h.world(actor.cta)?;
        if let Some(swizzle) = swizzle {
            w.tracker.swizzled(op, swizzle);
        }
        // Pieces of a box lie side by side: fewer, longer ranges.
        let mut list: Vec<(u32, u64, u64, Use)> = uses
            .iter()
            .filter(|u| u.0.space == Space::Shared)
            .map(|(r, how)| (r.owner, r.start, r.size, *how))
            .collect();
        list.sort_by_key(|u| (u.0, u.1));
        list.dedup_by(|next, last| {
            let joins = (next.0, next.1, next.3) == (last.0, last.1 + last.2, last.3);
            if joins {
                last.2 += next.2;
            }
            joins
        });
        for (owner, start, size, how) in list {
            let kind = match how {
                Use::Read => AccessKind::Read,
                Use::Write => AccessKind::Write,
                Use::Reduce => AccessKind::Sync,
            };
            let access = Access::new(
                Range::new(shared(owner), start, size),
                kind,
                through,
                actor.pc,
            );
            w.shared_access(Actor::Op(op), actor.cta, owner, access);
        }
        if through == Proxy::Generic && barrier.is_none() {
            let a = w.agent(t)?;
            w.tracker.note_copy(a, op);
        }
        Some(op)
    }
}
