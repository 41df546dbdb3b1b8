//! Feeds the happens-before tracker of `models::hazard`: accesses to shared and tensor memory, and
//! everything that orders them. Only kernels with `tcgen05` instructions are tracked.
//!
//! Each cluster has a tracker of its own, which goes when the cluster does: nothing tracked here
//! is visible outside. Threads are linear CTA, warp and lane.

use std::collections::{BTreeMap, HashMap};

use super::lanes;
use super::machine::Machine;
use super::pending::{self, Use};
use crate::memory::{self, Fault, Space, SyncEvent};
use crate::models::hazard::{
    Access, AccessKind, Agent, Conflict, ConflictKind, Fence, Op, OpClass, Profile, Proxy, Range,
    Sem, Tracker,
};
use crate::program::{FenceKind, Op as Instruction, Program};
use crate::report::ViolationKind;

/// Linear CTA, warp, lane.
pub(crate) type Thread = (u32, u32, u32);

/// One cluster.
#[derive(Debug)]
struct World {
    tracker: Tracker,
    agents: HashMap<Thread, Agent>,
    /// Who has arrived at the current phase of a barrier, and acquires it when it completes.
    arrived: HashMap<u64, Vec<Agent>>,
}

impl World {
    fn agent(&mut self, t: Thread) -> Agent {
        let tracker = &mut self.tracker;
        *self.agents.entry(t).or_insert_with(|| tracker.agent())
    }

    fn arrive(&mut self, t: Thread, object: u64, sem: Sem) {
        let a = self.agent(t);
        self.tracker.release(a, object, sem);
        self.arrived.entry(object).or_default().push(a);
    }

    fn complete(&mut self, object: u64) {
        self.tracker.complete_phase(object);
        for a in self.arrived.remove(&object).unwrap_or_default() {
            self.tracker.acquire(a, object, Sem::Strong);
        }
    }
}

/// All resident clusters.
#[derive(Debug)]
pub(crate) struct Hazards {
    profile: Profile,
    /// The cluster of a CTA, both linear.
    cluster_of: HashMap<u32, u32>,
    worlds: BTreeMap<u32, World>,
}

// Numbers of memories and synchronisation objects.
fn shared(cta: u32) -> u64 {
    1 << 60 | u64::from(cta)
}
fn tensor(cta: u32, block: u32) -> u64 {
    2 << 60 | u64::from(cta) << 3 | u64::from(block)
}
fn barrier(cta: u32, id: u32) -> u64 {
    3 << 60 | u64::from(cta) << 8 | u64::from(id)
}
fn warp(cta: u32, warp: u32) -> u64 {
    4 << 60 | u64::from(cta) << 8 | u64::from(warp)
}
fn cluster(linear: u32) -> u64 {
    5 << 60 | u64::from(linear)
}
fn mbarrier(cta: u32, at: u64) -> u64 {
    6 << 60 | u64::from(cta) << 24 | at & 0xff_ffff
}

impl Hazards {
    /// A tracker, if the kernel needs one.
    pub(crate) fn of(program: &Program, profile: Profile) -> Option<Self> {
        let needed = program
            .code
            .iter()
            .any(|i| matches!(i.op, Instruction::Tcgen05(_)));
        needed.then(|| Self {
            profile,
            cluster_of: HashMap::new(),
            worlds: BTreeMap::new(),
        })
    }

    /// A CTA becomes resident.
    pub(crate) fn admit(&mut self, cta: u32, cluster: u32) {
        self.cluster_of.insert(cta, cluster);
        let profile = self.profile;
        self.worlds.entry(cluster).or_insert_with(|| World {
            tracker: Tracker::new(profile),
            agents: HashMap::new(),
            arrived: HashMap::new(),
        });
    }

    /// A cluster has ended.
    pub(crate) fn drop_cluster(&mut self, cluster: u32) {
        self.worlds.remove(&cluster);
        self.cluster_of.retain(|_, c| *c != cluster);
    }

    fn world(&mut self, cta: u32) -> Option<&mut World> {
        self.worlds.get_mut(self.cluster_of.get(&cta)?)
    }

    /// The first conflict of any cluster.
    fn conflict(&mut self) -> Option<Conflict> {
        let found = self
            .worlds
            .values_mut()
            .find(|w| !w.tracker.conflicts().is_empty())?;
        found.tracker.take_conflicts().first().copied()
    }

    /// An ordinary access.
    pub(crate) fn access(&mut self, a: &memory::Access) {
        if a.space != Space::Shared {
            return;
        }
        let Some(w) = self.world(a.actor.cta) else {
            return;
        };
        let agent = w.agent((a.actor.cta, a.actor.warp, a.actor.lane));
        let kind = match a.kind {
            memory::AccessKind::Read => AccessKind::Read,
            memory::AccessKind::Write => AccessKind::Write,
            memory::AccessKind::Atomic => AccessKind::Sync,
        };
        let range = Range::new(shared(a.owner), a.address, u64::from(a.size));
        w.tracker.access(
            agent,
            Access {
                range,
                kind,
                proxy: Proxy::Generic,
                site: a.actor.pc,
            },
        );
    }

    /// Barriers and fences.
    pub(crate) fn sync(&mut self, e: &SyncEvent) {
        match *e {
            SyncEvent::Warp {
                cta,
                warp: w,
                lanes: mask,
            } => {
                let Some(world) = self.world(cta) else { return };
                let object = warp(cta, w);
                for lane in lanes(mask) {
                    world.arrive((cta, w, lane), object, Sem::Strong);
                }
                world.complete(object);
            }
            SyncEvent::BarrierArrive {
                cta,
                warp,
                lanes: mask,
                barrier: id,
            } => {
                let Some(world) = self.world(cta) else { return };
                for lane in lanes(mask) {
                    world.arrive((cta, warp, lane), barrier(cta, id), Sem::Strong);
                }
            }
            SyncEvent::BarrierComplete { cta, barrier: id } => {
                if let Some(world) = self.world(cta) {
                    world.complete(barrier(cta, id));
                }
            }
            SyncEvent::ClusterArrive {
                cta,
                warp,
                lanes: mask,
                relaxed,
            } => {
                let Some(&linear) = self.cluster_of.get(&cta) else {
                    return;
                };
                let Some(world) = self.world(cta) else { return };
                let sem = if relaxed { Sem::Relaxed } else { Sem::Strong };
                for lane in lanes(mask) {
                    world.arrive((cta, warp, lane), cluster(linear), sem);
                }
            }
            SyncEvent::ClusterComplete { cluster: linear } => {
                if let Some(world) = self.worlds.get_mut(&linear) {
                    world.complete(cluster(linear));
                }
            }
            SyncEvent::Fence {
                kind,
                actor,
                lanes: mask,
            } => {
                let fence = match kind {
                    FenceKind::Memory => Fence::AcqRel,
                    FenceKind::MbarrierInit => Fence::Release,
                    FenceKind::ProxyAsync { shared: true, .. } => Fence::ProxyAsync,
                    FenceKind::ProxyAsync { .. } | FenceKind::ProxyAlias => return,
                };
                for lane in lanes(mask) {
                    self.fence((actor.cta, actor.warp, lane), fence);
                }
            }
        }
    }

    /// A fence of one thread.
    pub(crate) fn fence(&mut self, t: Thread, fence: Fence) {
        if let Some(w) = self.world(t.0) {
            let a = w.agent(t);
            w.tracker.fence(a, fence);
        }
    }

    /// A thread arrives on an mbarrier.
    pub(crate) fn arrive(&mut self, t: Thread, owner: u32, at: u64) {
        if let Some(w) = self.world(t.0) {
            let a = w.agent(t);
            w.tracker.release(a, mbarrier(owner, at), Sem::Strong);
        }
    }

    /// A phase of an mbarrier is over.
    pub(crate) fn phase(&mut self, owner: u32, at: u64) {
        if let Some(w) = self.world(owner) {
            w.tracker.complete_phase(mbarrier(owner, at));
        }
    }

    /// A wait on an mbarrier succeeded.
    pub(crate) fn acquired(&mut self, t: Thread, owner: u32, at: u64) {
        if let Some(w) = self.world(t.0) {
            let a = w.agent(t);
            w.tracker.acquire(a, mbarrier(owner, at), Sem::Strong);
        }
    }

    /// A thread issues an asynchronous operation.
    pub(crate) fn begin(&mut self, t: Thread, class: OpClass) -> Option<Op> {
        let w = self.world(t.0)?;
        let a = w.agent(t);
        Some(w.tracker.begin(a, class))
    }

    /// Reads of shared memory: index in `ctas`, address and length each.
    pub(crate) fn op_shared(
        &mut self,
        op: Op,
        ctas: &[u32],
        mut reads: Vec<(usize, u32, u32)>,
        pc: usize,
    ) {
        reads.sort_unstable();
        let Some(w) = ctas.first().and_then(|c| self.world(*c)) else {
            return;
        };
        for run in reads.chunk_by(|a, b| a.0 == b.0 && a.1 + a.2 == b.1) {
            let bytes: u32 = run.iter().map(|r| r.2).sum();
            let Some(cta) = ctas.get(run[0].0) else {
                continue;
            };
            let range = Range::new(shared(*cta), u64::from(run[0].1), u64::from(bytes));
            let access = Access {
                range,
                kind: AccessKind::Read,
                proxy: Proxy::Async,
                site: pc as u32,
            };
            w.tracker.op_access(op, access);
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
            w.tracker.op_access(
                op,
                Access {
                    range,
                    kind,
                    proxy: Proxy::Tensor,
                    site: pc as u32,
                },
            );
        }
    }

    /// `tcgen05.commit` arrives on an mbarrier.
    pub(crate) fn signal(&mut self, ops: &[Op], owner: u32, at: u64) {
        if let Some(w) = self.world(owner) {
            for op in ops {
                w.tracker.signal(*op, mbarrier(owner, at));
            }
        }
    }

    /// `tcgen05.wait` of a warp.
    pub(crate) fn waited(&mut self, cta: u32, warp: u32, ops: &[Op]) {
        let Some(w) = self.world(cta) else { return };
        for op in ops {
            for lane in 0..32 {
                let a = w.agent((cta, warp, lane));
                w.tracker.wait_op(a, *op, false);
            }
            w.tracker.retire(*op);
        }
    }

    /// Nobody will hand this operation over again.
    pub(crate) fn retire(&mut self, cta: u32, op: Op) {
        if let Some(w) = self.world(cta) {
            w.tracker.retire(op);
        }
    }

    /// Columns are freed by a warp.
    pub(crate) fn free_columns(&mut self, cta: u32, warp: u32, first: u32, count: u32, pc: usize) {
        let Some(w) = self.world(cta) else { return };
        let a = w.agent((cta, warp, 0));
        for block in 0..8 {
            let range = Range::new(tensor(cta, block), u64::from(first), u64::from(count));
            w.tracker.free(a, range, pc as u32);
        }
    }
}

impl Machine<'_> {
    /// Tracks an asynchronous copy that signals an mbarrier.
    pub(crate) fn track_transfer(
        &mut self,
        actor: memory::Actor,
        uses: &[(pending::Range, Use)],
    ) -> Option<Op> {
        let w = self.hazards.as_mut()?.world(actor.cta)?;
        let agent = w.agent((actor.cta, actor.warp, actor.lane));
        let op = w.tracker.begin(agent, OpClass::Plain);
        for (r, how) in uses.iter().filter(|u| u.0.space == Space::Shared) {
            let kind = match how {
                Use::Read => AccessKind::Read,
                Use::Write => AccessKind::Write,
                Use::Reduce => AccessKind::Sync,
            };
            let range = Range::new(shared(r.owner), r.start, r.size);
            w.tracker.op_access(
                op,
                Access {
                    range,
                    kind,
                    proxy: Proxy::Async,
                    site: actor.pc,
                },
            );
        }
        Some(op)
    }

    /// The first hazard found since the last call.
    pub(crate) fn check_hazards(&mut self) -> Result<(), Fault> {
        let Some(c) = self.hazards.as_mut().and_then(Hazards::conflict) else {
            return Ok(());
        };
        let why = match c.kind {
            ConflictKind::Race => "nothing orders the two",
            ConflictKind::InFlight => "the earlier one is still in flight",
            ConflictKind::NotWaitedFor => "the completion of the earlier one was not waited for",
            ConflictKind::MissingProxyFence => "fence.proxy.async is missing between them",
            ConflictKind::MissingProxyFenceWar => {
                "fence.proxy.async is missing between them (write after read)"
            }
            ConflictKind::MissingTcgen05Fence => "a tcgen05.fence is missing between them",
            ConflictKind::BarrierInitNotVisible => "the mbarrier's initialisation is not visible",
        };
        let memory = if c.later.proxy == Proxy::Tensor || c.range.space >> 60 == 2 {
            format!("tensor memory columns {}..{}", c.range.start, c.range.end)
        } else {
            format!("shared memory 0x{:x}..0x{:x}", c.range.start, c.range.end)
        };
        let does = |k| match k {
            AccessKind::Read => "read",
            AccessKind::Write => "written",
            AccessKind::Sync => "changed atomically",
        };
        Err(Fault::new(
            ViolationKind::Hazard,
            format!(
                "{memory} {} here and {} before at {}: {why}",
                does(c.later.kind),
                does(c.earlier.kind),
                self.program.site(c.earlier.site as usize)
            ),
        ))
    }
}
