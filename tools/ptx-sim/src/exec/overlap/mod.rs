//! Grids of a stream that run at the same time, as programmatic dependent launch lets them, and share multiprocessors.
//!
//! Each grid is a [`Machine`] of its own, with its program, CTAs, events and hazards. Shared state goes from one
//! machine to the next with each turn: global memory, who holds which columns of tensor memory, and what each grid
//! accessed. So a grid that runs alone carries none of this.

mod accesses;
mod footprint;
mod room;
mod run;

use std::collections::BTreeMap;
use std::rc::Rc;

pub(crate) use run::Grids;

use super::machine::Machine;
use super::pending::Use;
use crate::demangle::demangled;
use crate::memory::{Actor, Fault, Region};
use crate::models::tmem_alloc::TmemAllocator;
use crate::program::Program;
use crate::report::ViolationKind;
use accesses::{Accesses, Touch};

/// State that a grid has of the grids that may run at the same time.
pub(crate) struct Overlap<'a> {
    /// Number of this grid in the run.
    grid: usize,
    /// The programs of all.
    programs: Rc<[&'a Program]>,
    /// All grids' accesses, while it is this one's turn.
    accesses: Accesses,
}

impl<'a> Overlap<'a> {
    /// One state for each of the grids.
    pub(crate) fn of(programs: &[&'a Program]) -> Vec<Self> {
        let programs: Rc<[&Program]> = programs.into();
        let grids = 0..programs.len();
        grids
            .map(|grid| Self {
                grid,
                programs: programs.clone(),
                accesses: Accesses::default(),
            })
            .collect()
    }

    /// A grid, for reports.
    pub(super) fn label(&self, grid: usize) -> String {
        let kernel = self.programs.get(grid).map_or("", |p| &p.kernel);
        format!("grid {} ({})", grid + 1, demangled(kernel))
    }
}

/// State that the grids of a run share.
struct Shared<'a> {
    global: &'a mut Region,
    allocators: BTreeMap<(u32, u32), TmemAllocator>,
    accesses: Accesses,
}

impl<'a> Shared<'a> {
    fn new(global: &'a mut Region, grids: usize) -> Self {
        Self {
            global,
            allocators: BTreeMap::new(),
            accesses: Accesses::of(grids),
        }
    }

    /// Gives it to a machine, or takes it back.
    fn swap(&mut self, machine: &mut Machine<'_>) {
        std::mem::swap(self.global, machine.global);
        std::mem::swap(&mut self.allocators, &mut machine.tensor.allocators);
        if let Some(overlap) = &mut machine.overlap {
            std::mem::swap(&mut self.accesses, &mut overlap.accesses);
        }
    }
}

impl Machine<'_> {
    /// The fault of an access to global memory that conflicts with an access of another grid which may run at the same
    /// time.
    pub(super) fn conflict_of_grids(
        &mut self,
        actor: Actor,
        cta: usize,
        (address, size): (u64, u64),
        how: Use,
    ) -> Option<Fault> {
        let behind = self.ctas[cta].behind;
        let overlap = self.overlap.as_mut()?;
        let touch = Touch {
            grid: overlap.grid,
            behind,
            range: address..address.checked_add(size)?,
            how,
            pc: actor.pc,
        };
        let found = overlap.accesses.touch(&touch)?;
        let other = overlap.label(found.grid);
        let site = overlap.programs[found.grid].site(found.pc as usize);
        let verb = if found.wrote { "writes" } else { "reads" };
        let why = if found.grid > overlap.grid {
            "has started: no griddepcontrol.wait has told its CTA that this grid is over"
        } else if !self.neighbours.has_waited(behind) {
            "may still run: no thread of the CTA is behind a griddepcontrol.wait"
        } else {
            "may still run: this CTA's griddepcontrol.wait was for the grid in between only, no thread of which has waited"
        };
        let me = overlap.label(overlap.grid);
        let name = self.global.name_of(found.address);
        let message = format!(
            "{name} {} here by {me}, and {other} {verb} it, which {why}\n  the other access is at {site}",
            how.passive()
        );
        Some(Fault::new(ViolationKind::Hazard, message).at(found.address))
    }
}
