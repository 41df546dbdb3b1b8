//! Happens-before between threads, asynchronous operations and proxies.
//!
//! Sources: PTX ISA "Memory Consistency Model" (causality order, proxies, asynchronous
//! operations), "Async Proxy", "Memory Consistency Model for 5th generation of TensorCore
//! operations". The caller feeds events in execution order; the tracker reports every pair of
//! conflicting accesses that the events do not order, however the schedule happened to fall.
//!
//! A thread is an [`Agent`]: one per lane is exact, one per warp is cheaper and misses races
//! between lanes of a warp. Clocks are vectors over agents and asynchronous operations in
//! flight; slots of operations that their issuer has waited for are reused.

mod clock;
mod judge;
mod memory;
mod object;
mod operation;
mod order;
mod report;
mod shadow;

pub use report::{
    Access, AccessKind, Actor, Agent, Conflict, ConflictKind, Mixed, Op, Proxy, Range, Side,
};

pub use operation::Stamp;
pub use order::{Fence, OpClass, Profile, Sem};

use super::relaxation::{Allowed, Relaxation};
use clock::{Clock, Known, Merger};
use object::{AgentState, Object};
use operation::OpState;
use rustc_hash::{FxHashMap, FxHashSet};
use shadow::Shadow;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The tracker. Agents and operations belong to the tracker that made them.
#[derive(Debug, Clone, Default)]
pub struct Tracker {
    allowed: Allowed,
    agents: Vec<AgentState>,
    /// Agents that have free slots.
    with_free: BTreeSet<usize>,
    ops: FxHashMap<u32, OpState>,
    next_op: u32,
    objects: FxHashMap<u64, Object>,
    /// Knowledge of the threads that have ended, by group.
    exits: FxHashMap<u32, Object>,
    /// Knowledge that earlier `fence.sc`s hand to later ones.
    fences: Object,
    slots: u32,
    shadow: Shadow,
    merger: Merger,
    /// A thread that knows nothing, and an object that nobody has used: copies share its clocks, which costs no
    /// allocation.
    nobody: AgentState,
    unused: Object,
    conflicts: Vec<Conflict>,
    seen: FxHashSet<(ConflictKind, u32, u32)>,
    notes: Vec<(Relaxation, Conflict)>,
    noted: FxHashSet<(Relaxation, u32, u32)>,
    /// Ranges that another group has freed, and who did; those whose memory it is still use them.
    lent: Vec<(Range, Side)>,
    mixed: Vec<Mixed>,
    mixed_at: FxHashSet<(u32, u32)>,
}

impl Tracker {
    /// An empty tracker.
    pub fn new(allowed: impl Into<Allowed>) -> Self {
        Self {
            allowed: allowed.into(),
            ..Self::default()
        }
    }

    /// A new thread, after everything done so far by nobody in particular.
    pub fn agent(&mut self) -> Agent {
        self.agent_of(0)
    }

    /// A new thread of a group (CTA), numbered below 32.
    pub fn agent_of(&mut self, home: u32) -> Agent {
        let mut state = AgentState {
            home,
            started: 1 << (home & 31),
            ..self.nobody.clone()
        };
        (state.now.slot, state.now.time) = (self.slots, 1);
        self.slots += 1;
        self.agents.push(state);
        Agent(self.agents.len() as u32 - 1)
    }

    /// Whether nothing was found that nobody has taken out yet.
    pub fn is_quiet(&self) -> bool {
        self.conflicts.is_empty() && self.mixed.is_empty() && self.notes.is_empty()
    }

    /// Conflicts found so far: the first of each kind and pair of sites.
    pub fn conflicts(&self) -> &[Conflict] {
        &self.conflicts
    }

    /// Takes the conflicts out.
    pub fn take_conflicts(&mut self) -> Vec<Conflict> {
        std::mem::take(&mut self.conflicts)
    }

    /// Takes out operands that were read with another swizzle than they were written with, once for each pair of sites.
    pub fn take_mixed(&mut self) -> Vec<Mixed> {
        std::mem::take(&mut self.mixed)
    }

    /// Takes the oldest conflict out.
    pub fn take_conflict(&mut self) -> Option<Conflict> {
        (!self.conflicts.is_empty()).then(|| self.conflicts.remove(0))
    }

    /// Takes the conflicts out that a relaxation excused: the first of each relaxation and pair of sites.
    pub fn take_notes(&mut self) -> Vec<(Relaxation, Conflict)> {
        std::mem::take(&mut self.notes)
    }

    /// A release: arrive on an mbarrier, store of a flag.
    pub fn release(&mut self, agent: Agent, object: u64, sem: Sem) {
        self.release_to(agent, object, sem, false);
    }

    /// A release at a barrier in which those who acquire take part. Order of tcgen05 operations that the agent acquired
    /// goes on to these threads, though no fence of the agent covers the operations. With a mere release that order
    /// goes on under [`Relaxation::HandedOn`] only.
    pub fn release_together(&mut self, agent: Agent, object: u64) {
        self.release_to(agent, object, Sem::Strong, true);
    }

    fn release_to(&mut self, agent: Agent, object: u64, sem: Sem, together: bool) {
        let a = &mut self.agents[agent.0 as usize];
        let sealed = a.seal();
        let into = self.objects.entry(object).or_default();
        let known = match sem {
            Sem::Strong => &sealed,
            Sem::Relaxed => &a.fenced_out,
        };
        into.arrive(&mut self.merger, known);
        into.arriving.tensor.join(&mut self.merger, &a.tensor_out);
        if together || self.allowed.has(Relaxation::HandedOn) {
            into.arriving.tensor.join(&mut self.merger, &a.tensor_in);
        }
        into.arriving.started |= a.started;
        self.merger.share(&mut into.arriving.over, &a.over);
    }

    /// A thread is about to arrive at a relaxed barrier of its cluster.
    pub fn arrive_relaxed(&mut self, agent: Agent) {
        if self.allowed.has(Relaxation::RelaxedBarrier) {
            let a = &mut self.agents[agent.0 as usize];
            let sealed = a.seal();
            Arc::make_mut(&mut a.over).raise(sealed.slot, sealed.time);
        }
    }

    /// Threads that have ended arrive with their knowledge, in execution order: a barrier of the cluster counts them.
    pub fn arrive_ended(&mut self, object: u64) {
        if !self.allowed.has(Relaxation::ExecutionFree) {
            return;
        }
        let into = &mut self.objects.entry(object).or_default().arriving.over;
        for ended in self.exits.values() {
            self.merger.share(into, &ended.arriving.over);
        }
    }

    /// All arrivals of the object's phase are in: from here on acquires see them. For objects
    /// without phases, call it after every release.
    pub fn complete_phase(&mut self, object: u64) {
        let o = self.objects.entry(object).or_default();
        o.complete(&mut self.merger);
    }

    /// A strong write of a flag. An atomic operation hands on what the writes before it did; a store hands over what its
    /// own thread has released with the flag, and no more.
    pub fn write_flag(&mut self, agent: Agent, object: u64, sem: Sem, atomic: bool) {
        self.release(agent, object, sem);
        let o = self.objects.entry(object).or_default();
        if o.arriving.view.generic != Clock::default() {
            let own = o.own.entry(agent.0).or_default();
            self.merger.join(own, &o.arriving.view);
        }
        if !atomic {
            o.complete.view = o.own.get(&agent.0).cloned().unwrap_or_default();
        }
        o.complete(&mut self.merger);
    }

    /// Whether a strong write of an object by this thread could change what the object hands over: a relaxed one
    /// without a fence before it gives an object that nobody has used nothing.
    pub fn hands_over(&self, agent: Agent, object: u64, sem: Sem) -> bool {
        let fenced = &self.agents[agent.0 as usize].fenced_out;
        sem == Sem::Strong
            || fenced.time > 0
            || fenced.view.generic != Clock::default()
            || self.objects.contains_key(&object)
    }

    /// An acquire that saw the object's last completed phase.
    pub fn acquire(&mut self, agent: Agent, object: u64, sem: Sem) {
        if let Some(o) = self.objects.get(&object) {
            self.agents[agent.0 as usize].take(&mut self.merger, &o.complete, sem);
        }
    }

    /// An acquire whose memory order counts only if its scope reaches the releases; execution order
    /// passes in any case.
    pub fn acquire_scoped(&mut self, agent: Agent, object: u64, sem: Sem, reaches: bool) {
        if reaches {
            self.acquire(agent, object, sem);
        } else if let Some(o) = self.objects.get(&object) {
            self.agents[agent.0 as usize].follow(&mut self.merger, &o.complete);
        }
    }

    /// Threads meet, as at `bar.warp.sync`; without `memory` in execution only, as at `shfl.sync`.
    pub fn meet(&mut self, agents: &[Agent], memory: bool) {
        let mut meeting = self.unused.clone();
        let mut news = false;
        for agent in agents {
            let a = &mut self.agents[agent.0 as usize];
            let sealed = a.seal();
            let view = &self.agents[agents[0].0 as usize].now.view;
            news |= !Arc::ptr_eq(view, &sealed.view)
                || view.generic.get(sealed.slot) < sealed.time
                || view.fenced.get(sealed.slot) < sealed.fenced;
            let a = &self.agents[agent.0 as usize];
            meeting
                .arriving
                .tensor
                .join(&mut self.merger, &a.tensor_out);
            meeting.arriving.tensor.join(&mut self.merger, &a.tensor_in);
            meeting.arriving.started |= a.started;
            self.merger.share(&mut meeting.arriving.over, &a.over);
        }
        news &= memory;
        if news {
            for agent in agents {
                let sealed = self.agents[agent.0 as usize].seal();
                meeting.arrive(&mut self.merger, &sealed);
            }
        }
        for agent in agents {
            let a = &mut self.agents[agent.0 as usize];
            if news {
                a.take(&mut self.merger, &meeting.arriving, Sem::Strong);
            } else {
                a.follow(&mut self.merger, &meeting.arriving);
            }
        }
    }

    /// The object's memory is given another purpose (`mbarrier.inval`).
    pub fn forget_object(&mut self, object: u64) {
        self.objects.remove(&object);
    }

    /// A fence by a thread.
    pub fn fence(&mut self, agent: Agent, fence: Fence) {
        let a = &mut self.agents[agent.0 as usize];
        match fence {
            Fence::ProxyAsync => {
                let sealed = a.seal();
                self.merger.fence(&mut a.now.view);
                a.now.fenced = sealed.time;
            }
            Fence::MbarrierInit => {
                for slot in &a.inits {
                    a.fenced_out.learn(*slot, 1, false);
                }
            }
            Fence::Tcgen05Before => a.tensor_out.join(&mut self.merger, &a.tensor),
            Fence::Tcgen05After => a.tensor.join(&mut self.merger, &a.tensor_in),
            Fence::Release => a.fenced_out = a.seal(),
            Fence::Acquire => self.merger.join(&mut a.now.view, &a.relaxed_in),
            Fence::AcqRel | Fence::Sc => {
                self.merger.join(&mut a.now.view, &a.relaxed_in);
                if fence == Fence::Sc {
                    a.take(&mut self.merger, &self.fences.complete, Sem::Strong);
                    let sealed: Known = a.seal();
                    self.fences.arrive(&mut self.merger, &sealed);
                    self.fences.complete(&mut self.merger);
                }
                a.fenced_out = a.seal();
            }
        }
    }
}
