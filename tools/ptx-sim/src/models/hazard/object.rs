//! Order that synchronisation objects hand over: barriers, mbarriers, flags.

use super::Sem;
use super::clock::{Clock, Known, Merger, Tensor, View};
use super::operation::Free;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Order that a set of releases hands over.
#[derive(Debug, Clone, Default)]
pub(super) struct Handed {
    pub(super) view: Arc<View>,
    pub(super) tensor: Tensor,
    /// Groups of threads that are known to run: execution order, which needs no memory order.
    pub(super) started: u32,
    /// Accesses that are over in execution order; see [`AgentState::over`].
    pub(super) over: Arc<Clock>,
}

/// An object with phases: the order that arrives in this phase, and the order that the phases before it handed over.
#[derive(Debug, Clone, Default)]
pub(super) struct Object {
    pub(super) arriving: Handed,
    /// The view of the last arrival, which most of the next ones share.
    last: Option<Arc<View>>,
    pub(super) complete: Handed,
    /// Of a flag: what each thread that wrote it has released with it.
    pub(super) own: BTreeMap<u32, Arc<View>>,
}

impl Object {
    /// A thread arrives with its knowledge.
    pub(super) fn arrive(&mut self, merger: &mut Merger, known: &Known) {
        let into = &mut self.arriving.view;
        if self
            .last
            .as_ref()
            .is_none_or(|l| !Arc::ptr_eq(l, &known.view))
        {
            merger.join(into, &known.view);
            self.last = Some(known.view.clone());
        }
        if into.generic.get(known.slot) < known.time || into.fenced.get(known.slot) < known.fenced {
            let into = Arc::make_mut(into);
            into.generic.raise(known.slot, known.time);
            into.fenced.raise(known.slot, known.fenced);
        }
    }

    /// All arrivals of the phase are in.
    pub(super) fn complete(&mut self, merger: &mut Merger) {
        let arrived = std::mem::take(&mut self.arriving);
        self.last = None;
        merger.join(&mut self.complete.view, &arrived.view);
        self.complete.tensor.join(merger, &arrived.tensor);
        self.complete.started |= arrived.started;
        merger.share(&mut self.complete.over, &arrived.over);
    }
}

/// A thread.
#[derive(Debug, Clone, Default)]
pub(super) struct AgentState {
    /// Accesses that the thread knows; `time` is that of its next access.
    pub(super) now: Known,
    /// Whether it has made an access at its time.
    pub(super) busy: bool,
    /// The group of threads it belongs to: its CTA.
    pub(super) home: u32,
    pub(super) started: u32,
    pub(super) tensor: Tensor,
    /// Tensor order acquired but not yet behind an after_thread_sync.
    pub(super) tensor_in: Tensor,
    /// Tensor order as of the last before_thread_sync, which a release hands over.
    pub(super) tensor_out: Tensor,
    /// Memory order as of the last release fence, which a relaxed release hands over.
    pub(super) fenced_out: Known,
    /// Memory order seen by relaxed acquires, for the next acquire fence.
    pub(super) relaxed_in: Arc<View>,
    /// The thread's `mbarrier.init`s, as slots: `fence.mbarrier_init` releases these.
    pub(super) inits: Vec<u32>,
    /// The thread's `cp.async`s, slots and times: `cp.async.mbarrier.arrive` hands these over.
    pub(super) copies: BTreeMap<u32, u32>,
    /// Accesses that are over in execution order, whatever fences say. These are `mbarrier.init`s, operations that a
    /// `tcgen05.wait` or a later commit's signal tells of, accesses that precede a relaxed arrive, and those that ended
    /// threads knew. The relaxations that do without a fence rest on this clock.
    pub(super) over: Arc<Clock>,
    /// Slots of its operations that are over.
    pub(super) free: Vec<Free>,
    /// The arrivals of its commits so far.
    pub(super) arrivals: Arc<Clock>,
}

impl AgentState {
    /// All that the thread knows, with its accesses up to here; its next access is later.
    pub(super) fn seal(&mut self) -> Known {
        if self.busy {
            self.now.time = self.now.time.saturating_add(1);
            self.busy = false;
        }
        Known {
            time: self.now.time - 1,
            ..self.now.clone()
        }
    }

    /// Learns the order that an object hands over.
    pub(super) fn take(&mut self, merger: &mut Merger, from: &Handed, sem: Sem) {
        let into = match sem {
            Sem::Strong => &mut self.now.view,
            Sem::Relaxed => &mut self.relaxed_in,
        };
        merger.join(into, &from.view);
        self.follow(merger, from);
    }

    /// Learns the part that is execution order and needs no memory order.
    pub(super) fn follow(&mut self, merger: &mut Merger, from: &Handed) {
        self.tensor_in.join(merger, &from.tensor);
        self.started |= from.started;
        merger.share(&mut self.over, &from.over);
    }
}
