//! Launches that run at the same time, as programmatic dependent launch lets them.

use super::{Launch, Options, Sim, check};
use crate::error::SimError;
use crate::exec::grid_dependency::Neighbours;
use crate::exec::machine::Machine;
use crate::exec::overlap::Grids;
use crate::memory::{Region, Space};
use crate::program::Program;
use crate::report::Report;

/// The multiprocessors that grids share: their number, and the room of each. Each has tensor memory of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Multiprocessors {
    /// Number of multiprocessors. One brings all CTAs together; there are always as many as a cluster has CTAs.
    pub count: u32,
    /// CTAs.
    pub ctas: u32,
    /// Threads.
    pub threads: u32,
    /// Bytes of shared memory, of which each CTA takes the system's KiB besides its own.
    pub shared: u32,
}

impl Default for Multiprocessors {
    fn default() -> Self {
        Self {
            count: 1,
            ctas: 32,
            threads: 2048,
            shared: 228 << 10,
        }
    }
}

impl Sim {
    /// Runs launches in the order of a stream.
    ///
    /// A launch that is [dependent](Launch::dependent) starts at some time after every CTA of the launch before it has
    /// executed `griddepcontrol.launch_dependents` or ended. It starts on multiprocessors that may still have CTAs of
    /// the launch before. Any other launch starts when all before it are over. Conflicts between the accesses of grids
    /// that may run at the same time are errors, whichever comes first. Reports are in the order of the launches.
    pub fn run_overlapped(
        &mut self,
        launches: &[(&Program, &Launch)],
        options: &Options,
        on: Multiprocessors,
    ) -> Result<Vec<Report>, SimError> {
        if launches.len() > Neighbours::MOST {
            return Err(SimError::Launch(format!(
                "{} launches are to overlap; at most {} can",
                launches.len(),
                Neighbours::MOST
            )));
        }
        let mut runs = Vec::new();
        for &(program, launch) in launches {
            runs.push((program, launch, check(program, launch, options)?));
        }
        let Some((program, first, _)) = runs.first() else {
            return Ok(Vec::new());
        };
        self.take_memory(&runs, options)?;
        self.place_variables(program);
        self.global.begin_grid(first.dependent);
        let hopper = self.module.is_for_hopper();
        // Memory that a machine has while it is not its turn.
        let mut empty: Vec<Region> = runs.iter().map(|_| Region::new(Space::Global)).collect();
        let machines = runs
            .iter()
            .zip(&mut empty)
            .map(|((p, l, cluster), global)| {
                let run = (*p, *l, options);
                let mut one = Machine::new(run, *cluster, global, self.constants_of(p));
                one.hopper = hopper;
                one
            });
        let machines = Machine::overlapped(machines.collect());
        Grids::new(machines, &mut self.global, on, options)?.run()
    }
}
