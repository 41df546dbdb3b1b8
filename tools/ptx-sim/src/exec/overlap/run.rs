//! Runs grids that overlap: when they start, whose turn it is, when they are over, and deadlocks of all of them.

use super::room::{Needs, Room};
use super::{Overlap, Shared};
use crate::error::SimError;
use crate::exec::event::EventQueue;
use crate::exec::grid_dependency::Neighbours;
use crate::exec::machine::Machine;
use crate::memory::Region;
use crate::report::{Deadlock, Report};
use crate::sched::{Candidate, Scheduler, Timing};
use crate::sim::{Multiprocessors, Options};

/// A grid of the run.
struct Grid<'a> {
    machine: Machine<'a>,
    needs: Needs,
    /// All of its clusters.
    clusters: u32,
    /// Whether the grid's CTAs may become resident.
    started: bool,
    /// Whether the grid's threads have ended, and its memory operations are performed.
    over: bool,
}

/// All of them.
pub(crate) struct Grids<'a> {
    grids: Vec<Grid<'a>>,
    shared: Shared<'a>,
    room: Room,
    options: &'a Options,
    scheduler: Scheduler,
    /// The grid that runs before all others for so many turns, if any.
    favourite: (Option<usize>, u32),
}

impl<'a> Grids<'a> {
    /// The machines of the grids, in the order of the stream. Refuses CTAs for which there is never room.
    pub(crate) fn new(
        machines: Vec<Machine<'a>>,
        global: &'a mut Region,
        on: Multiprocessors,
        options: &'a Options,
    ) -> Result<Self, SimError> {
        let sizes = machines.iter().map(Machine::cluster_size);
        let room = Room::new(on, sizes.max().unwrap_or(1));
        let shared = Shared::new(global, machines.len());
        let grids = machines.into_iter().map(|machine| Grid {
            needs: Needs::of(machine.program, machine.launch),
            clusters: machine.cluster_count(),
            started: false,
            over: false,
            machine,
        });
        let grids: Vec<Grid<'a>> = grids.collect();
        for g in &grids {
            room.check(&g.machine.program.kernel, g.needs)?;
        }
        Ok(Self {
            grids,
            shared,
            room,
            options,
            scheduler: Scheduler::new(options.policy),
            favourite: (None, 0),
        })
    }

    /// Runs all to their ends. Reports are in the order of the grids.
    pub(crate) fn run(mut self) -> Result<Vec<Report>, SimError> {
        let mut candidates = Vec::new();
        while !self.grids.iter().all(|g| g.over) {
            self.retire();
            self.admit();
            self.collect(&mut candidates, false);
            let idle = candidates.is_empty();
            if self.start(idle) || self.complete(idle)? || self.end(idle) {
                continue;
            }
            if idle {
                self.collect(&mut candidates, true);
            }
            if candidates.is_empty() {
                if self.time_out() {
                    continue;
                }
                return Err(SimError::Deadlock(Box::new(self.deadlock())));
            }
            self.turn(&candidates)?;
        }
        let reports = self.grids.into_iter().map(|g| {
            let mut report = g.machine.report;
            report.coverage = g.machine.counters.summary(g.machine.program);
            report
        });
        Ok(reports.collect())
    }

    /// Runs `f` on a grid's machine, which has the shared state meanwhile.
    fn with<T>(&mut self, grid: usize, f: impl FnOnce(&mut Machine<'a>) -> T) -> T {
        let machine = &mut self.grids[grid].machine;
        self.shared.swap(machine);
        let result = f(machine);
        self.shared.swap(machine);
        // An event that wakes a warp of one grid may be another grid's.
        let (epoch, stores) = (machine.tensor.epoch, machine.stores);
        for other in &mut self.grids {
            other.machine.tensor.epoch = epoch;
            other.machine.stores = stores;
        }
        result
    }

    /// Whether an event that may happen at any time happens now.
    fn wanted(&mut self, idle: bool) -> bool {
        idle || match self.options.timing {
            Timing::Eager | Timing::After(_) => true,
            Timing::Lazy => false,
            Timing::Random => self.scheduler.below(16) == 0,
        }
    }

    /// Drops clusters that have ended, and gives their room back.
    fn retire(&mut self) {
        for g in &mut self.grids {
            let ended = g.machine.ended_clusters().flat_map(|k| &k.ctas);
            let places: Vec<u32> = ended.map(|i| g.machine.ctas[*i].sm.0).collect();
            if places.is_empty() {
                continue;
            }
            g.machine.retire();
            places.iter().for_each(|sm| self.room.release(*sm, g.needs));
        }
    }

    /// Makes clusters of grids that have started resident, the first grid's first.
    fn admit(&mut self) {
        for i in 0..self.grids.len() {
            let g = &mut self.grids[i];
            let size = g.machine.cluster_size();
            while g.started
                && g.machine.begun < g.clusters
                && g.machine.clusters.len() < self.options.resident
                && let Some(places) = self.room.take(size, g.needs)
            {
                g.machine.admit(Some(&places));
            }
        }
    }

    /// Starts the next grid, if it may start and the timing wants it to.
    fn start(&mut self, idle: bool) -> bool {
        let Some(next) = self.grids.iter().position(|g| !g.started) else {
            return false;
        };
        let dependent = self.grids[next].machine.launch.dependent;
        let may = match next.checked_sub(1) {
            None => true,
            Some(before) if dependent => self.grids[before].machine.neighbours.lets_dependents(),
            Some(_) => {
                let before = &self.grids[..next];
                before.iter().all(|g| g.over) && !before[0].machine.neighbours.before_runs
            }
        };
        // Late is how grids run that do not overlap: no timing asks for it each time.
        let starts = may && (self.options.timing != Timing::Random || self.wanted(idle));
        self.grids[next].started |= starts;
        starts
    }

    /// Completes an asynchronous operation of some grid. The grids take turns in being asked first.
    fn complete(&mut self, idle: bool) -> Result<bool, SimError> {
        let (n, timing) = (self.grids.len(), self.options.timing);
        let first = match timing {
            Timing::Random => self.scheduler.below(n),
            _ => 0,
        };
        for i in (0..n).map(|i| (first + i) % n) {
            if self.grids[i].machine.events.is_empty() {
                continue;
            }
            let completed = self.with(i, |m| match EventQueue::choose(m, timing, idle) {
                Some(e) => m.complete(e).map(|()| true),
                None => Ok(false),
            });
            if completed? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Ends a grid, or the grids before the first one, if it may end and the timing wants it to.
    fn end(&mut self, idle: bool) -> bool {
        if self.with(0, |m| m.end_grid_before(idle)) {
            return true;
        }
        let may = |g: &Grid<'_>| {
            let m = &g.machine;
            !g.over && m.begun == g.clusters && m.ctas.is_empty() && m.events.is_empty()
        };
        let Some(i) = self.grids.iter().position(may) else {
            return false;
        };
        if !self.wanted(idle) {
            return false;
        }
        self.grids[i].over = true;
        let reach = self.grids[i].machine.neighbours.reach;
        if let Some(next) = self.grids.get_mut(i + 1) {
            next.machine.neighbours.grid_before_is_over(reach);
        }
        true
    }

    /// Warps that can run: the index of the CTA counts through the grids.
    fn collect(&self, out: &mut Vec<Candidate>, alone: bool) {
        out.clear();
        let mut ctas = 0;
        for g in &self.grids {
            let first = out.len();
            g.machine.add_candidates(out, alone);
            out[first..].iter_mut().for_each(|c| c.0 += ctas);
            ctas += g.machine.ctas.len();
        }
    }

    /// The grid of a candidate, and the index of its CTA there.
    fn grid_of(&self, mut cta: usize) -> (usize, usize) {
        for (i, g) in self.grids.iter().enumerate() {
            match cta.checked_sub(g.machine.ctas.len()) {
                None => return (i, cta),
                Some(rest) => cta = rest,
            }
        }
        (self.grids.len(), cta)
    }

    /// Runs one of these warps.
    fn turn(&mut self, candidates: &[Candidate]) -> Result<(), SimError> {
        if self.favourite.1 == 0 {
            self.favourite = self.scheduler.favourite(self.grids.len());
        }
        self.favourite.1 -= 1;
        let of = |c: &&Candidate| Some(self.grid_of(c.0).0) == self.favourite.0;
        let favoured: Vec<Candidate> = candidates.iter().filter(of).copied().collect();
        let from = if favoured.is_empty() {
            candidates
        } else {
            &favoured
        };
        let (cta, warp) = self.scheduler.pick(from);
        let quantum = self.scheduler.quantum();
        let (grid, cta) = self.grid_of(cta);
        self.with(grid, |m| m.turn(cta, warp, quantum))
    }

    /// Waits with a time limit give up.
    fn time_out(&mut self) -> bool {
        let all = self.grids.iter_mut();
        all.fold(false, |any, g| g.machine.time_out() | any)
    }

    fn deadlock(&mut self) -> Deadlock {
        let mut all = Deadlock {
            waiting: Vec::new(),
            state: Vec::new(),
        };
        for i in 0..self.grids.len() {
            let mut one = self.with(i, |m| m.deadlock());
            let g = &self.grids[i];
            let label = g.machine.label();
            for w in &mut one.waiting {
                w.reason = format!("in {label}, {}", w.reason);
            }
            all.waiting.append(&mut one.waiting);
            let state = one.state.into_iter();
            all.state
                .extend(state.map(|line| format!("{label}: {line}")));
            all.state.extend(g.not_started(&label));
        }
        all.state.extend(self.with(0, |m| m.describe_holders()));
        all
    }
}

impl Grid<'_> {
    /// The clusters of the grid that have not started, for reports.
    fn not_started(&self, label: &str) -> Option<String> {
        let all = self.clusters;
        match all - self.machine.begun {
            0 => None,
            _ if !self.started => Some(format!("{label} has not started")),
            n => Some(format!("{label}: {n} of {all} clusters have not started")),
        }
    }
}

impl<'a> Machine<'a> {
    fn cluster_size(&self) -> u32 {
        self.cluster_dims.iter().product()
    }

    /// The grid, for reports.
    fn label(&self) -> String {
        let overlap = self.overlap.as_ref();
        overlap.map_or_else(String::new, |o| o.label(o.grid))
    }

    /// Tells machines of grids that they run together, in this order.
    pub(crate) fn overlapped(mut machines: Vec<Machine<'a>>) -> Vec<Machine<'a>> {
        let programs: Vec<_> = machines.iter().map(|m| m.program).collect();
        let launches: Vec<_> = machines.iter().map(|m| m.launch).collect();
        let neighbours = Neighbours::of_all(&launches);
        let all = machines.iter_mut().zip(Overlap::of(&programs));
        for ((machine, overlap), neighbours) in all.zip(neighbours) {
            machine.overlap = Some(Box::new(overlap));
            machine.neighbours = neighbours;
        }
        machines
    }
}
