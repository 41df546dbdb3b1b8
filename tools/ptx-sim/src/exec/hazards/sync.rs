//! Synchronisation that orders accesses: barriers, mbarriers, fences.

use super::{Hazards, Thread, World, barrier, cluster, mbarrier, mbarrier_cluster, object_range};
use crate::exec::lanes;
use crate::memory::SyncEvent;
use crate::models::hazard::{Access, AccessKind, Actor, Fence, Proxy, Sem};
use crate::models::relaxation::Relaxation;
use crate::program::{BarrierSync, FenceKind};

impl World {
    fn arrive(&mut self, t: Thread, object: u64, sem: Sem, waits: bool) {
        let Some(a) = self.agent(t) else { return };
        match sem {
            Sem::Strong => self.tracker.release_together(a, object),
            Sem::Relaxed => self.tracker.release(a, object, sem),
        }
        if waits {
            self.arrived.entry(object).or_default().push(a);
        }
    }

    fn complete(&mut self, object: u64) {
        self.tracker.complete_phase(object);
        for a in self.arrived.remove(&object).unwrap_or_default() {
            self.tracker.acquire(a, object, Sem::Strong);
        }
    }
}

impl Hazards {
    /// Barriers and fences.
    pub(crate) fn sync(&mut self, e: &SyncEvent) {
        let (collectives, tensor) = (self.allowed.has(Relaxation::Collectives), self.tensor);
        match *e {
            SyncEvent::Warp {
                cta,
                warp: w,
                lanes: mask,
                memory,
            } => {
                let memory = memory || collectives;
                if !memory && !tensor {
                    return;
                }
                let Some(world) = self.world(cta) else { return };
                let agents: Vec<_> = lanes(mask)
                    .filter_map(|lane| world.agent((cta, w, lane)))
                    .collect();
                world.tracker.meet(&agents, memory);
            }
            SyncEvent::BarrierArrive {
                cta,
                warp,
                lanes: mask,
                barrier: id,
                waits,
            } => {
                let Some(world) = self.world(cta) else { return };
                for lane in lanes(mask) {
                    world.arrive((cta, warp, lane), barrier(cta, id), Sem::Strong, waits);
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
                    if let (true, Some(a)) = (relaxed, world.agent((cta, warp, lane))) {
                        world.tracker.arrive_relaxed(a);
                    }
                    world.arrive((cta, warp, lane), cluster(linear), sem, false);
                }
            }
            SyncEvent::ClusterWait {
                cta,
                warp,
                lanes: mask,
            } => {
                let Some(&linear) = self.cluster_of.get(&cta) else {
                    return;
                };
                let Some(world) = self.world(cta) else { return };
                for lane in lanes(mask) {
                    if let Some(a) = world.agent((cta, warp, lane)) {
                        world.tracker.acquire(a, cluster(linear), Sem::Strong);
                    }
                }
            }
            SyncEvent::ClusterComplete { cluster: linear } => {
                if let Some(world) = self.worlds.get_mut(&linear) {
                    world.tracker.arrive_ended(cluster(linear));
                    world.complete(cluster(linear));
                }
            }
            SyncEvent::Fence {
                kind,
                actor,
                lanes: mask,
            } => {
                let fence = match kind {
                    FenceKind::AcqRel => Fence::AcqRel,
                    FenceKind::Acquire => Fence::Acquire,
                    FenceKind::Release => Fence::Release,
                    FenceKind::Sc => Fence::Sc,
                    FenceKind::MbarrierInit => Fence::MbarrierInit,
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
        if let Some(w) = self.world(t.0)
            && let Some(a) = w.agent(t)
        {
            w.tracker.fence(a, fence);
        }
    }

    /// `mbarrier.init`.
    pub(crate) fn init(&mut self, t: Thread, owner: u32, at: u64, pc: usize) {
        if let Some(w) = self.world(t.0)
            && let Some(a) = w.agent(t)
        {
            w.tracker.init(a, object_range(owner, at), pc as u32);
        }
    }

    /// Any other operation on an mbarrier: its initialisation must be visible. Afterwards
    /// (`inval`) its uses must be over.
    pub(crate) fn touch(&mut self, t: Thread, owner: u32, at: u64, pc: usize, inval: bool) {
        let Some(w) = self.world(t.0) else { return };
        let Some(a) = w.agent(t) else { return };
        let access = Access::new(
            object_range(owner, at),
            if inval {
                AccessKind::Write
            } else {
                AccessKind::Sync
            },
            Proxy::Generic,
            pc as u32,
        );
        w.shared_access(Actor::Agent(a), t.0, owner, access);
        if inval {
            w.tracker.forget_object(mbarrier(owner, at));
            w.tracker.forget_object(mbarrier_cluster(owner, at));
        }
    }

    /// A thread arrives on an mbarrier. An arrive on another CTA's object synchronises with its
    /// waiters only if both have cluster scope ("morally strong"); on hardware the scope counts for
    /// nothing.
    pub(crate) fn arrive(&mut self, t: Thread, owner: u32, at: u64, sync: BarrierSync) {
        let scoped = !self.allowed.has(Relaxation::BarrierScope);
        let Some(w) = self.world(t.0) else { return };
        let Some(a) = w.agent(t) else { return };
        let remote = scoped && t.0 != owner;
        let sem = match sync.relaxed || remote && !sync.cluster {
            true => Sem::Relaxed,
            false => Sem::Strong,
        };
        let object = match remote {
            true => mbarrier_cluster(owner, at),
            false => mbarrier(owner, at),
        };
        w.tracker.release(a, object, sem);
    }

    /// A phase of an mbarrier is over.
    pub(crate) fn phase(&mut self, owner: u32, at: u64) {
        if let Some(w) = self.world(owner) {
            w.tracker.complete_phase(mbarrier(owner, at));
            w.tracker.complete_phase(mbarrier_cluster(owner, at));
        }
    }

    /// A wait on an mbarrier succeeded. On hardware a relaxed one acquires too.
    pub(crate) fn acquired(&mut self, t: Thread, owner: u32, at: u64, sync: BarrierSync) {
        let scoped = !self.allowed.has(Relaxation::BarrierScope);
        let relaxed = sync.relaxed && !self.allowed.has(Relaxation::RelaxedWait);
        let Some(w) = self.world(t.0) else { return };
        let Some(a) = w.agent(t) else { return };
        let sem = match relaxed {
            true => Sem::Relaxed,
            false => Sem::Strong,
        };
        w.tracker.acquire(a, mbarrier(owner, at), sem);
        if scoped {
            w.tracker
                .acquire_scoped(a, mbarrier_cluster(owner, at), sem, sync.cluster);
        }
    }
}
