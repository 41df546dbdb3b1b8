//! Barriers of CTAs and clusters.

use super::machine::{Machine, Tried, sync_fault};
use super::tcgen05::uniform;
use super::warp::{Part, State, Wait, Warp};
use super::{Ctx, Flow};
use crate::memory::SyncEvent;
use crate::program::{BarMode, Op};

/// Generations whose results stay readable for warps that have not resumed yet.
const RESULTS: usize = 64;

impl Machine<'_> {
    pub(super) fn barrier(
        &mut self,
        c: &Ctx<'_>,
        w: &mut Warp,
        cur: &mut Part,
        op: &Op,
    ) -> Tried<Flow> {
        match op {
            Op::Bar {
                mode, id, count, ..
            } => {
                let uniform = |s, what| uniform(c, w, s, what).map(|v| v & 0xffff_ffff);
                let id = uniform(*id, "barriers")?;
                let count = count.map(|s| uniform(s, "thread counts of a barrier"));
                let count = count.transpose()?;
                self.cta_barrier(c, w, cur, *mode, id, count)
            }
            Op::ClusterArrive { relaxed, .. } => self.cluster_arrive(c, w, *relaxed),
            _ => self.cluster_wait(c, w, cur),
        }
    }

    fn cta_barrier(
        &mut self,
        c: &Ctx<'_>,
        w: &mut Warp,
        cur: &mut Part,
        mode: BarMode,
        id: u64,
        count: Option<u64>,
    ) -> Tried<Flow> {
        if id >= 16 {
            return Err(sync_fault(format!(
                "barrier {id} does not exist: there are 16"
            )));
        }
        if let Some(n) = count
            && (n == 0 || n % 32 != 0 || n > 1024)
        {
            return Err(sync_fault(format!(
                "a barrier's thread count is a multiple of 32, not {n}"
            )));
        }
        let index = id as usize;
        // A part that waited already only collects the result.
        if let State::Ready = cur.state
            && let Some(generation) = w.waited(c.pc, c.active)
        {
            self.collect(c, w, mode, index, generation)?;
            return Ok(Flow::Next);
        }
        let cta = &mut self.ctas[c.cta];
        let (live, barrier) = (&cta.live, &mut cta.barriers[index]);
        let count = count.map(|n| n as u32);
        let reduces = matches!(mode, BarMode::Popc(..) | BarMode::Vote(..));
        if barrier.arrived.is_empty() {
            barrier.arrived.resize(live.len(), 0);
            (barrier.popc, barrier.all, barrier.any) = (0, true, false);
            (barrier.count, barrier.reduces) = (count, reduces);
        }
        if barrier.count != count {
            return Err(sync_fault(format!(
                "barrier {id} is used with two thread counts at once: {} and {}",
                show(barrier.count),
                show(count)
            )));
        }
        if barrier.reduces != reduces {
            return Err(sync_fault(format!(
                "barrier {id} is used by .red and by .sync or .arrive at once"
            )));
        }
        let arrived = &mut barrier.arrived[w.index as usize];
        if *arrived & c.active != 0 {
            return Err(sync_fault(format!(
                "a thread arrives at barrier {id} again before the barrier has completed"
            )));
        }
        *arrived |= c.active;
        if count.is_some_and(|n| barrier.threads(live) > n) {
            return Err(sync_fault(format!(
                "more threads than {} arrive at barrier {id}",
                show(count)
            )));
        }
        if let BarMode::Popc(_, p) | BarMode::Vote(_, p, _) = mode {
            let v = w.pred(p) & c.active;
            barrier.popc += v.count_ones();
            barrier.all &= v == c.active;
            barrier.any |= v != 0;
        }
        let generation = barrier.generation;
        let (cta, warp) = (self.ctas[c.cta].linear, w.index);
        self.synchronised(SyncEvent::BarrierArrive {
            cta,
            warp,
            lanes: c.active,
            barrier: index as u32,
            waits: mode != BarMode::Arrive,
        })?;
        self.check_barrier(c.cta, index)?;
        if mode == BarMode::Arrive {
            return Ok(Flow::Next);
        }
        if self.ctas[c.cta].barriers[index].generation != generation {
            self.collect(c, w, mode, index, generation)?;
            return Ok(Flow::Next);
        }
        w.leave_rest(cur, c.active);
        w.waiting.push((c.pc, c.active, generation));
        cur.state = State::Blocked(Wait::Bar {
            id: index as u32,
            generation,
        });
        Ok(Flow::Stop)
    }

    /// Writes the result of a reduction.
    fn collect(
        &mut self,
        c: &Ctx<'_>,
        w: &mut Warp,
        mode: BarMode,
        index: usize,
        generation: u64,
    ) -> Tried<()> {
        let results = &self.ctas[c.cta].barriers[index].results;
        let Some(&(_, popc, all, any)) = results.iter().find(|r| r.0 == generation) else {
            return Err(sync_fault(
                "the barrier went on too often before this warp resumed",
            ));
        };
        match mode {
            BarMode::Popc(d, _) => w.set(c.program, d, &[u64::from(popc); 32], c.active),
            BarMode::Vote(d, _, and) => {
                let r = if and { all } else { any };
                w.set_pred(d, if r { u32::MAX } else { 0 }, c.active);
            }
            BarMode::Sync | BarMode::Arrive => {}
        }
        Ok(())
    }

    /// Completes a barrier if everyone has arrived.
    fn check_barrier(&mut self, cta: usize, index: usize) -> Tried<()> {
        let c = &mut self.ctas[cta];
        let live: u32 = c.live.iter().map(|l| l.count_ones()).sum();
        let b = &mut c.barriers[index];
        if b.arrived.is_empty() || b.threads(&c.live) < b.count.unwrap_or(live) {
            return Ok(());
        }
        if b.results.len() == RESULTS {
            b.results.remove(0);
        }
        b.results.push((b.generation, b.popc, b.all, b.any));
        b.generation += 1;
        b.arrived.clear();
        b.count = None;
        let cta = c.linear;
        self.synchronised(SyncEvent::BarrierComplete {
            cta,
            barrier: index as u32,
        })
    }

    fn cluster_arrive(&mut self, c: &Ctx<'_>, w: &Warp, relaxed: bool) -> Tried<Flow> {
        let i = w.index as usize;
        let cluster = self.ctas[c.cta].cluster;
        let phase = self.clusters[cluster].phase;
        let cta = &mut self.ctas[c.cta];
        if (cta.cluster_arrived[i] | cta.cluster_token[i].0) & c.active != 0 {
            return Err(sync_fault(
                "barrier.cluster.arrive twice without barrier.cluster.wait between",
            ));
        }
        cta.cluster_arrived[i] |= c.active;
        cta.cluster_token[i].0 |= c.active;
        cta.cluster_token[i].1 = phase;
        let cta = cta.linear;
        self.synchronised(SyncEvent::ClusterArrive {
            cta,
            warp: w.index,
            lanes: c.active,
            relaxed,
        })?;
        self.check_cluster(cluster)?;
        Ok(Flow::Next)
    }

    fn cluster_wait(&mut self, c: &Ctx<'_>, w: &mut Warp, cur: &mut Part) -> Tried<Flow> {
        let i = w.index as usize;
        let cluster = self.ctas[c.cta].cluster;
        let now = self.clusters[cluster].phase;
        let (token, phase) = &mut self.ctas[c.cta].cluster_token[i];
        if *token & c.active != c.active {
            return Err(sync_fault(
                "barrier.cluster.wait without barrier.cluster.arrive",
            ));
        }
        if now > *phase {
            *token &= !c.active;
            let cta = self.ctas[c.cta].linear;
            self.synchronised(SyncEvent::ClusterWait {
                cta,
                warp: w.index,
                lanes: c.active,
            })?;
            return Ok(Flow::Next);
        }
        let phase = *phase;
        w.leave_rest(cur, c.active);
        // Executed again once the phase is over.
        cur.state = State::Blocked(Wait::Cluster { phase });
        Ok(Flow::Stop)
    }

    fn check_cluster(&mut self, cluster: usize) -> Tried<()> {
        let members = self.clusters[cluster].ctas.clone();
        let arrived = |c: usize| {
            let c = &self.ctas[c];
            c.live
                .iter()
                .zip(&c.cluster_arrived)
                .all(|(l, a)| l & !a == 0)
        };
        let any = members
            .iter()
            .any(|c| self.ctas[*c].cluster_arrived.iter().any(|a| *a != 0));
        if !any || !members.iter().all(|c| arrived(*c)) {
            return Ok(());
        }
        for c in members {
            self.ctas[c].cluster_arrived.fill(0);
        }
        self.clusters[cluster].phase += 1;
        let cluster = self.clusters[cluster].linear;
        self.synchronised(SyncEvent::ClusterComplete { cluster })
    }

    /// Threads that are gone are not waited for.
    pub(super) fn after_exit(&mut self, cta: usize) -> Tried<()> {
        for i in 0..16 {
            self.check_barrier(cta, i)?;
        }
        self.check_cluster(self.ctas[cta].cluster)
    }
}

fn show(count: Option<u32>) -> String {
    count.map_or("all threads".into(), |n| n.to_string())
}
