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
mod order;
mod report;
mod shadow;

pub use report::{
    Access, AccessKind, Actor, Agent, Conflict, ConflictKind, Op, Proxy, Range, Side,
};

pub use order::{Fence, OpClass, Profile, Sem};

use clock::{Tensor, View};
use shadow::{Record, Shadow};
use std::collections::{HashMap, HashSet};

#[derive(Debug, Clone, Default)]
struct AgentState {
    slot: u32,
    time: u32,
    now: View,
    /// Tensor order acquired but not yet behind an after_thread_sync.
    tensor_in: Tensor,
    /// Tensor order as of the last before_thread_sync: what a release hands over.
    tensor_out: Tensor,
    /// Memory order as of the last release fence: what a relaxed release hands over.
    fenced_out: View,
    /// Memory order seen by relaxed acquires, for the next acquire fence.
    relaxed_in: View,
}

#[derive(Debug, Clone)]
struct OpState {
    slot: u32,
    time: u32, // reads; writes are at time + 1
    class: OpClass,
    view: View,
    complete: bool,
}

#[derive(Debug, Clone, Default)]
struct Object {
    arriving: View,
    complete: View,
}

/// The tracker. Agents and operations belong to the tracker that made them.
#[derive(Debug, Clone, Default)]
pub struct Tracker {
    profile: Profile,
    agents: Vec<AgentState>,
    ops: HashMap<u32, OpState>,
    next_op: u32,
    objects: HashMap<u64, Object>,
    slots: u32,
    /// Slots of finished operations, with the last time used.
    free: Vec<(u32, u32)>,
    shadow: Shadow,
    conflicts: Vec<Conflict>,
    seen: HashSet<(ConflictKind, u32, u32)>,
}

impl Tracker {
    /// An empty tracker.
    pub fn new(profile: Profile) -> Self {
        Self {
            profile,
            ..Self::default()
        }
    }

    /// A new thread, after everything done so far by nobody in particular.
    pub fn agent(&mut self) -> Agent {
        let slot = self.slots;
        self.slots += 1;
        let mut state = AgentState {
            slot,
            time: 1,
            ..AgentState::default()
        };
        state.now.generic.raise(slot, 1);
        self.agents.push(state);
        Agent(self.agents.len() as u32 - 1)
    }

    /// Conflicts found so far: the first of each kind and pair of sites.
    pub fn conflicts(&self) -> &[Conflict] {
        &self.conflicts
    }

    /// Takes the conflicts out.
    pub fn take_conflicts(&mut self) -> Vec<Conflict> {
        std::mem::take(&mut self.conflicts)
    }

    fn tick(&mut self, agent: Agent) {
        let a = &mut self.agents[agent.0 as usize];
        a.time = a.time.saturating_add(1);
        a.now.generic.raise(a.slot, a.time);
    }

    /// An access by a thread itself.
    pub fn access(&mut self, agent: Agent, access: Access) {
        let a = &self.agents[agent.0 as usize];
        let side = side_of(Actor::Agent(agent), &access);
        let mine = Record {
            slot: a.slot,
            time: a.time,
            side,
            class: OpClass::Plain,
        };
        self.record(&access, mine);
    }

    /// Issues an asynchronous operation: it is ordered after what its issuer is ordered after.
    pub fn begin(&mut self, agent: Agent, class: OpClass) -> Op {
        let known = &self.agents[agent.0 as usize].now;
        let reusable = self
            .free
            .iter()
            .position(|(s, t)| known.generic.get(*s) >= *t);
        let (slot, time) = match reusable {
            Some(i) => {
                let (slot, last) = self.free.swap_remove(i);
                (slot, last + 1)
            }
            None => {
                self.slots += 1;
                (self.slots - 1, 1)
            }
        };
        let op = Op(self.next_op);
        self.next_op += 1;
        let a = &mut self.agents[agent.0 as usize];
        let view = a.now.clone();
        if class != OpClass::Plain {
            a.now.tensor.issued.raise(slot, time + 1);
        }
        self.tick(agent);
        self.ops.insert(
            op.0,
            OpState {
                slot,
                time,
                class,
                view,
                complete: false,
            },
        );
        op
    }

    /// An access by an asynchronous operation; report all of them when it is issued.
    /// Unknown (finished) operations are ignored.
    pub fn op_access(&mut self, op: Op, access: Access) {
        let Some(o) = self.ops.get(&op.0) else { return };
        let time = o.time + u32::from(access.kind != AccessKind::Read);
        let side = side_of(Actor::Op(op), &access);
        let mine = Record {
            slot: o.slot,
            time,
            side,
            class: o.class,
        };
        self.record(&access, mine);
    }

    /// The operation has happened. Whoever should know of it learns it by [`Tracker::signal`]
    /// or [`Tracker::wait_op`].
    pub fn complete(&mut self, op: Op) {
        if let Some(o) = self.ops.get_mut(&op.0) {
            o.complete = true;
        }
    }

    /// A completed operation signals an object: complete_tx of a TMA load, arrive of a
    /// `tcgen05.commit`. It hands over the operation and nothing its issuer did before.
    pub fn signal(&mut self, op: Op, object: u64) {
        let Some(o) = self.ops.get_mut(&op.0) else {
            return;
        };
        o.complete = true;
        let view = &mut self.objects.entry(object).or_default().arriving;
        view.observe(o.slot, o.time + 1);
        if o.class != OpClass::Plain {
            // commit implies fence::before_thread_sync
            view.tensor.done.raise(o.slot, o.time + 1);
            view.tensor.issued.raise(o.slot, o.time + 1);
        }
    }

    /// The thread waits for the operation itself: `cp.async.bulk.wait_group`,
    /// `tcgen05.wait::ld`. With `reads_only` (`.read`) only its reads are known to be over.
    pub fn wait_op(&mut self, agent: Agent, op: Op, reads_only: bool) {
        let Some(o) = self.ops.get_mut(&op.0) else {
            return;
        };
        o.complete |= !reads_only;
        let (slot, time, class) = (o.slot, o.time + u32::from(!reads_only), o.class);
        let now = &mut self.agents[agent.0 as usize].now;
        now.observe(slot, time);
        if class != OpClass::Plain {
            now.tensor.done.raise(slot, time);
        }
    }

    /// Forgets a completed operation whose signals have all been given. Its slot is used again
    /// by an issuer that knows of its completion.
    pub fn retire(&mut self, op: Op) {
        if self.ops.get(&op.0).is_some_and(|o| o.complete)
            && let Some(o) = self.ops.remove(&op.0)
        {
            self.free.push((o.slot, o.time + 1));
        }
    }

    /// A release: arrive on a barrier or mbarrier, store of a flag.
    pub fn release(&mut self, agent: Agent, object: u64, sem: Sem) {
        let a = &self.agents[agent.0 as usize];
        let into = &mut self.objects.entry(object).or_default().arriving;
        into.join_memory(if sem == Sem::Strong {
            &a.now
        } else {
            &a.fenced_out
        });
        into.tensor.join(&a.tensor_out);
        self.tick(agent);
    }

    /// All arrivals of the object's phase are in: from here on acquires see them. For objects
    /// without phases, call it after every release.
    pub fn complete_phase(&mut self, object: u64) {
        let o = self.objects.entry(object).or_default();
        let arrived = std::mem::take(&mut o.arriving);
        o.complete.join(&arrived);
    }

    /// An acquire that saw the object's last completed phase.
    pub fn acquire(&mut self, agent: Agent, object: u64, sem: Sem) {
        let Some(o) = self.objects.get(&object) else {
            return;
        };
        let a = &mut self.agents[agent.0 as usize];
        let into = if sem == Sem::Strong {
            &mut a.now
        } else {
            &mut a.relaxed_in
        };
        into.join_memory(&o.complete);
        a.tensor_in.join(&o.complete.tensor);
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
                let generic = a.now.generic.clone();
                a.now.fenced.join(&generic);
            }
            Fence::Tcgen05Before => {
                let tensor = a.now.tensor.clone();
                a.tensor_out.join(&tensor);
            }
            Fence::Tcgen05After => {
                let tensor = a.tensor_in.clone();
                a.now.tensor.join(&tensor);
            }
            Fence::Release | Fence::Acquire | Fence::AcqRel => {
                if fence != Fence::Release {
                    let seen = a.relaxed_in.clone();
                    a.now.join_memory(&seen);
                }
                if fence != Fence::Acquire {
                    let now = a.now.clone();
                    a.fenced_out.join_memory(&now);
                }
            }
        }
        self.tick(agent);
    }

    /// Frees memory (tensor memory columns, a buffer): every access to it must be over and
    /// known to be; later accesses belong to somebody else.
    pub fn free(&mut self, agent: Agent, range: Range, site: u32) {
        let a = &self.agents[agent.0 as usize];
        let access = Access {
            range,
            kind: AccessKind::Write,
            proxy: Proxy::Generic,
            site,
        };
        let side = side_of(Actor::Agent(agent), &access);
        let now = &a.now;
        let mut found = Vec::new();
        let mut shadow = std::mem::take(&mut self.shadow);
        shadow.clear(range, |r, at| {
            let known = now.generic.get(r.slot) >= r.time || now.tensor.done.get(r.slot) >= r.time;
            if !known {
                found.push((self.unordered(r), at, r.side, side));
            }
        });
        self.shadow = shadow;
        found
            .into_iter()
            .for_each(|(kind, at, a, b)| self.report(kind, at, a, b));
    }

    fn record(&mut self, access: &Access, mine: Record) {
        let mut shadow = std::mem::take(&mut self.shadow);
        let view = match mine.side.actor {
            Actor::Agent(a) => Some(&self.agents[a.0 as usize].now),
            Actor::Op(o) => self.ops.get(&o.0).map(|o| &o.view),
        };
        let mut found = Vec::new();
        if let Some(view) = view {
            shadow.access(access, mine, |earlier, at| {
                if let Some(kind) = self.judge(earlier, &mine, view) {
                    found.push((kind, at, earlier.side, mine.side));
                }
            });
        }
        self.shadow = shadow;
        found
            .into_iter()
            .for_each(|(kind, at, a, b)| self.report(kind, at, a, b));
    }

    /// Does anything order `earlier` before an access of `mine` that sees `view`?
    fn judge(&self, earlier: &Record, mine: &Record, view: &View) -> Option<ConflictKind> {
        if earlier.slot == mine.slot && earlier.side.actor == mine.side.actor {
            return match (earlier.side.actor, earlier.side.proxy == mine.side.proxy) {
                // One operation's accesses are one operation; program order of a thread.
                (Actor::Op(_), _) | (_, true) => None,
                _ => Some(ConflictKind::MissingProxyFence),
            };
        }
        let known = |c: &clock::Clock| c.get(earlier.slot) >= earlier.time;
        let base = known(&view.generic);
        match (earlier.side.proxy, mine.side.proxy) {
            (Proxy::Tensor, _) | (_, Proxy::Tensor) => {
                let piped =
                    earlier.class.pipelined(mine.class, self.profile) && known(&view.tensor.issued);
                match known(&view.tensor.done) || piped {
                    true => None,
                    false if base => Some(ConflictKind::MissingTcgen05Fence),
                    false => Some(self.unordered(earlier)),
                }
            }
            (Proxy::Generic, Proxy::Async) if known(&view.fenced) => None,
            (Proxy::Generic, Proxy::Async) if base => {
                let war = earlier.side.kind == AccessKind::Read;
                match (war, self.profile) {
                    (true, Profile::Hardware) => None,
                    (true, Profile::Strict) => Some(ConflictKind::MissingProxyFenceWar),
                    _ => Some(ConflictKind::MissingProxyFence),
                }
            }
            // The implicit fence at completion: knowing an async operation is enough.
            (Proxy::Async, Proxy::Async) if known(&view.fenced) => None,
            (_, Proxy::Generic) if base => None,
            _ if mine.side.kind == AccessKind::Sync && earlier.side.kind == AccessKind::Write => {
                Some(ConflictKind::BarrierInitNotVisible)
            }
            _ => Some(self.unordered(earlier)),
        }
    }

    fn unordered(&self, earlier: &Record) -> ConflictKind {
        match earlier.side.actor {
            Actor::Agent(_) => ConflictKind::Race,
            Actor::Op(op) => match self.ops.get(&op.0) {
                Some(o) if !o.complete => ConflictKind::InFlight,
                _ => ConflictKind::NotWaitedFor,
            },
        }
    }

    fn report(&mut self, kind: ConflictKind, range: Range, earlier: Side, later: Side) {
        if self.seen.insert((kind, earlier.site, later.site)) {
            self.conflicts.push(Conflict {
                kind,
                range,
                earlier,
                later,
            });
        }
    }
}

fn side_of(actor: Actor, access: &Access) -> Side {
    Side {
        actor,
        site: access.site,
        kind: access.kind,
        proxy: access.proxy,
    }
}
