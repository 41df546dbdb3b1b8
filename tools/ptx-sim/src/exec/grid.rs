//! Runs a grid: clusters become resident, their warps take turns, events complete, deadlocks show.

use std::collections::BTreeMap;

use super::event::{EventQueue, Queued};
use super::machine::{Barrier, Cluster, Cta, Machine};
use super::warp::{State, Wait, Warp};
use crate::error::SimError;
use crate::memory::{Region, Space};
use crate::models::relaxation::Relaxation;
use crate::program::EXPLICIT_CLUSTER;
use crate::report::{Deadlock, Waiter};
use crate::sim::Uninitialised;

impl Machine<'_> {
    pub(crate) fn run_grid(&mut self) -> Result<(), SimError> {
        let total = self.cluster_count();
        loop {
            // Clusters that have ended make room; indices are the scheduler's, so all move at once.
            if self.ended_clusters().next().is_some() {
                self.retire();
            }
            while self.clusters.len() < self.options.resident && self.begun < total {
                self.admit(None);
            }
            if self.clusters.is_empty() {
                return self.drain();
            }
            self.run_resident()?;
        }
    }

    /// Runs until some cluster has ended.
    fn run_resident(&mut self) -> Result<(), SimError> {
        let total = self.cluster_count();
        let mut candidates = Vec::new();
        loop {
            candidates.clear();
            self.add_candidates(&mut candidates, false);
            if let Some(e) = EventQueue::choose(self, self.options.timing, candidates.is_empty()) {
                self.complete(e)?;
                continue;
            }
            if self.end_grid_before(candidates.is_empty()) {
                continue;
            }
            if candidates.is_empty() {
                self.add_candidates(&mut candidates, true);
            }
            if candidates.is_empty() {
                if self.time_out() {
                    continue;
                }
                let room = (self.clusters.len() as u64) < self.most_resident;
                if room && self.begun < total && self.options.allows(Relaxation::CoResident) {
                    let waiting = self.ctas.iter().flat_map(|c| c.warps.iter().flatten());
                    let mut waits = waiting.flat_map(|w| w.parts.iter().map(|p| p.pc as usize));
                    let why = "CTAs wait for others that have not begun: more run at the same time";
                    let pc = waits.next().unwrap_or(0);
                    self.note(Relaxation::CoResident, pc, why);
                    self.admit(None);
                    continue;
                }
                return Err(SimError::Deadlock(Box::new(self.deadlock())));
            }
            let (cta, warp) = self.scheduler.pick(&candidates);
            let quantum = self.scheduler.quantum();
            self.turn(cta, warp, quantum)?;
            let cluster = &self.clusters[self.ctas[cta].cluster];
            if cluster.ctas.iter().all(|i| self.ctas[*i].ended()) {
                return Ok(());
            }
        }
    }

    /// Runs a warp for at most so many instructions.
    pub(super) fn turn(&mut self, cta: usize, warp: usize, quantum: u32) -> Result<(), SimError> {
        let pc = self.ctas[cta].warps[warp]
            .as_ref()
            .and_then(|w| w.parts.first())
            .map_or(0, |p| p.pc);
        self.report.thread_instructions += self.run_warp(cta, warp, quantum)?;
        if self.report.thread_instructions <= self.options.budget {
            return Ok(());
        }
        let site = self.program.site(pc as usize);
        Err(SimError::Budget {
            budget: self.options.budget,
            line: site.line,
            text: site.text,
        })
    }

    /// Clusters of the grid in each dimension.
    fn clusters_of_grid(&self) -> [u32; 3] {
        std::array::from_fn(|i| self.launch.grid[i] / self.cluster_dims[i])
    }

    /// Clusters of the grid.
    pub(super) fn cluster_count(&self) -> u32 {
        self.clusters_of_grid().iter().product()
    }

    /// Resident clusters whose CTAs have all ended.
    pub(super) fn ended_clusters(&self) -> impl Iterator<Item = &Cluster> {
        let ended = |k: &&Cluster| k.ctas.iter().all(|i| self.ctas[*i].ended());
        self.clusters.iter().filter(ended)
    }

    /// Operations that outlive the grid's threads still complete.
    fn drain(&mut self) -> Result<(), SimError> {
        while let Some(e) = EventQueue::choose(self, self.options.timing, true) {
            self.complete(e)?;
        }
        Ok(())
    }

    pub(super) fn complete(&mut self, e: Queued) -> Result<(), SimError> {
        let pc = e.event.pc();
        self.pending.progressed();
        self.stores += 1;
        e.event
            .complete(self)
            .map_err(|f| SimError::Violation(Box::new(self.violation(f, pc, None))))?;
        self.trace_completed(e.id);
        Ok(())
    }

    /// Adds the warps that can run, by the index of their CTA and their own.
    pub(super) fn add_candidates(&self, out: &mut Vec<(usize, usize)>, alone: bool) {
        for (i, c) in self.ctas.iter().enumerate() {
            for (j, w) in c.warps.iter().enumerate() {
                if w.as_ref().is_some_and(|w| self.runnable(i, w, alone)) {
                    out.push((i, j));
                }
            }
        }
    }

    /// The first CTA of a cluster of the grid.
    fn first_cta(&self, linear: u32) -> [u32; 3] {
        let (c, shape) = (self.cluster_dims, self.clusters_of_grid());
        [
            linear % shape[0] * c[0],
            linear / shape[0] % shape[1] * c[1],
            linear / shape[0] / shape[1] * c[2],
        ]
    }

    /// Cancels the next cluster that has not begun, and says which CTA would have been its first; none if all have.
    pub(super) fn cancel_cluster(&mut self) -> Option<[u32; 3]> {
        let next = self.begun;
        (next < self.cluster_count()).then(|| {
            self.begun += 1;
            self.first_cta(next)
        })
    }

    /// Makes the next cluster resident: on these multiprocessors, a CTA each, or where the launch alone has its CTAs.
    pub(super) fn admit(&mut self, places: Option<&[u32]>) {
        let linear = self.begun;
        self.begun += 1;
        let (c, first) = (self.cluster_dims, self.first_cta(linear));
        let size = c.iter().product::<u32>();
        let index = self.clusters.len();
        let mut ctas = Vec::new();
        for rank in 0..size {
            let at = [rank % c[0], rank / c[0] % c[1], rank / c[0] / c[1]];
            let id: [u32; 3] = std::array::from_fn(|i| first[i] + at[i]);
            ctas.push(self.ctas.len());
            let place = places.and_then(|all| all.get(rank as usize));
            self.add_cta(id, index, rank, place.copied());
        }
        self.clusters.push(Cluster {
            linear,
            ctas,
            phase: 0,
        });
        for i in self.clusters[index].ctas.clone() {
            self.start_warps(i);
        }
        self.report.ctas += u64::from(size);
    }

    fn add_cta(&mut self, id: [u32; 3], cluster: usize, rank: u32, place: Option<u32>) {
        let p = self.program;
        let mut shared = Region::new(Space::Shared);
        for v in p.shared.iter().filter(|v| v.size > 0) {
            shared.add(&v.name, v.address, v.size as usize);
        }
        if self.launch.shared > 0 {
            shared.add(
                "dynamic shared memory",
                p.dynamic_shared,
                self.launch.shared as usize,
            );
        }
        if let Uninitialised::Stale(seed) = self.options.uninitialised {
            shared.upload_stale(seed);
        }
        let threads: u32 = self.launch.block.iter().product();
        let live: Vec<u32> = (0..threads.div_ceil(32))
            .map(|w| match threads - w * 32 {
                n if n >= 32 => u32::MAX,
                n => (1 << n) - 1,
            })
            .collect();
        let (g, per) = (self.launch.grid, self.cluster_dims);
        let linear = |v: [u32; 3], of: [u32; 3]| v[0] + of[0] * (v[1] + of[1] * v[2]);
        if let Some(h) = &mut self.hazards {
            let at = std::array::from_fn(|i| id[i] / per[i]);
            let of = std::array::from_fn(|i| g[i] / per[i]);
            h.admit(linear(id, g), linear(at, of), threads);
        }
        self.trace_admit(linear(id, g), id);
        // In a run without places, both CTAs of a pair have a multiprocessor of their own.
        let sm = match place {
            Some(sm) => (sm, 0),
            None => (linear(id, g) % self.options.sms, rank & 1),
        };
        self.ctas.push(Cta {
            id,
            linear: linear(id, g),
            sm,
            cluster,
            rank,
            shared,
            barriers: vec![Barrier::default(); 16],
            warps: Vec::new(),
            mbarriers: BTreeMap::new(),
            waited: BTreeMap::new(),
            cluster_arrived: vec![0; live.len()],
            cluster_token: vec![(0, 0); live.len()],
            refused: false,
            lets_dependents_start: false,
            behind: self.neighbours.behind,
            live,
        });
    }

    fn start_warps(&mut self, cta: usize) {
        let asked = self.launch.cluster.or(self.program.cluster).is_some();
        let explicit = if asked { u32::MAX } else { 0 };
        for index in 0..self.ctas[cta].live.len() {
            let mut w = Warp::new(self.program, index as u32, self.ctas[cta].live[index]);
            for (special, slot) in &self.program.specials {
                for lane in 0..32 {
                    w.regs[*slot as usize][lane as usize] =
                        self.special(*special, cta, index as u32, lane);
                }
            }
            w.set_pred(EXPLICIT_CLUSTER, explicit, u32::MAX);
            if self.hazards.is_some() && self.options.allows(Relaxation::UnusedLoads) {
                w.poison.follow_loads(w.regs.len());
            }
            self.ctas[cta].warps.push(Some(w));
        }
    }

    /// Drops clusters that have ended.
    pub(super) fn retire(&mut self) {
        let ended: Vec<bool> = self
            .clusters
            .iter()
            .map(|k| k.ctas.iter().all(|i| self.ctas[*i].ended()))
            .collect();
        let mut moved = vec![usize::MAX; self.ctas.len()];
        let mut kept = Vec::new();
        for (i, cta) in std::mem::take(&mut self.ctas).into_iter().enumerate() {
            if !ended[cta.cluster] {
                moved[i] = kept.len();
                kept.push(cta);
            }
        }
        self.ctas = kept;
        let mut clusters = Vec::new();
        for (i, mut k) in std::mem::take(&mut self.clusters).into_iter().enumerate() {
            if let (true, Some(h)) = (ended[i], &mut self.hazards) {
                h.drop_cluster(k.linear);
            }
            if !ended[i] {
                for c in &mut k.ctas {
                    *c = moved[*c];
                    self.ctas[*c].cluster = clusters.len();
                }
                clusters.push(k);
            }
        }
        self.clusters = clusters;
        let ctas = &self.ctas;
        self.pending
            .groups
            .retain(|thread, _| ctas.iter().any(|c| c.linear == thread.0));
        self.trace_retired();
    }

    pub(super) fn deadlock(&self) -> Deadlock {
        let mut d = Deadlock {
            waiting: Vec::new(),
            state: self.events.describe(),
        };
        let (begun, all) = (self.begun, self.cluster_count());
        if begun < all {
            d.state.push(format!(
                "{} of {all} clusters have not begun: {} run at once (--resident; `co-resident` admits more)",
                all - begun,
                self.clusters.len()
            ));
        }
        for (i, c) in self.ctas.iter().enumerate() {
            for w in c.warps.iter().flatten() {
                for p in &w.parts {
                    let reason = match p.state {
                        State::Ready | State::Join => "for other lanes of its warp".to_string(),
                        State::Sync(m) => {
                            format!("for lanes {m:08x} of its warp to execute this instruction")
                        }
                        State::Blocked(Wait::Bar { id, .. }) => format!("at barrier {id}"),
                        State::Blocked(Wait::Groups { .. }) => "for its asynchronous copies".into(),
                        State::Blocked(Wait::Mbarrier {
                            owner, at, phase, ..
                        }) => {
                            let seen = c.waited.get(&(at, w.index)).copied().unwrap_or(0);
                            self.describe_mbarrier_wait(owner, at, phase, seen)
                        }
                        State::Blocked(Wait::Tensor { stores, .. }) => {
                            format!("for its tcgen05.{}", if stores { "st" } else { "ld" })
                        }
                        State::Blocked(Wait::Wgmma { .. }) => {
                            "for its warpgroup's wgmma.mma_async".into()
                        }
                        State::Blocked(Wait::TensorAlloc { columns, .. }) => {
                            self.describe_alloc_wait(i, columns)
                        }
                        State::Blocked(Wait::GridBefore) => self.describe_grid_wait(),
                        State::Blocked(Wait::TensorFree { .. }) => {
                            "for the tcgen05.dealloc of its peer CTA".into()
                        }
                        State::Blocked(Wait::Store { .. }) => {
                            "for a store that changes what it loads again and again".into()
                        }
                        State::Blocked(Wait::Cluster { .. }) => "at the cluster barrier".into(),
                    };
                    let pc = match p.state {
                        State::Blocked(Wait::Mbarrier { pc, .. } | Wait::Store { pc, .. }) => pc,
                        _ => p.pc,
                    };
                    d.waiting.push(Waiter {
                        thread: self.thread(i, w.index, p.mask.trailing_zeros().min(31)),
                        lanes: p.mask,
                        site: self.program.site(pc as usize),
                        reason,
                    });
                }
            }
            for (id, b) in c
                .barriers
                .iter()
                .enumerate()
                .filter(|(_, b)| !b.arrived.is_empty())
            {
                let live: u32 = c.live.iter().map(|l| l.count_ones()).sum();
                d.state.push(format!(
                    "CTA {:?} barrier {id}: {} of {} threads have arrived",
                    c.id,
                    b.threads(&c.live),
                    b.count.unwrap_or(live)
                ));
            }
        }
        d
    }
}
