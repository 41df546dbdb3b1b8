//! `griddepcontrol`, and the grids before and after this one in its stream.
//!
//! A run has one grid. Of its neighbours only this is modelled: when they may start, that they end,
//! what those before it wrote, and that they use tensor memory in the least convenient way that the ISA
//! allows. What a run of the same memory wrote is written by a grid that may not have ended when a
//! dependent one starts: no CTA may touch it before one of its threads has waited. The grid before
//! one of a dependent launch may be about to allocate all tensor memory of every SM, so that it can
//! end only while this grid holds none ([`Relaxation::AllocatedBefore`]: it has all that it needs). A
//! grid that depends on this one may hold all that is free, and wait for this grid's end; it starts
//! when every CTA has executed `griddepcontrol.launch_dependents` or has ended.

use super::Flow;
use super::machine::{Machine, Trouble};
use super::pending::{Range, Use};
use super::warp::{Part, State, Wait};
use crate::memory::{Actor, Fault, Space};
use crate::models::relaxation::Relaxation;
use crate::report::ViolationKind;
use crate::sched::Timing;
use crate::sim::{HazardChecks, Launch};

/// The grids before and after.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    /// The grid before this one has not ended.
    pub(crate) before_runs: bool,
    /// CTAs that have not let dependents start.
    holding_back: u64,
}

impl Neighbours {
    pub(crate) fn of(launch: &Launch) -> Self {
        Self {
            before_runs: launch.dependent,
            holding_back: launch.grid.iter().map(|n| u64::from(*n)).product(),
        }
    }
}

impl Machine<'_> {
    /// `griddepcontrol.wait`.
    pub(super) fn wait_for_grid_before(&mut self, cta: usize, cur: &mut Part) -> Flow {
        if !self.neighbours.before_runs {
            self.ctas[cta].is_behind_grid_before = true;
            return Flow::Next;
        }
        cur.state = State::Blocked(Wait::GridBefore);
        Flow::Stop
    }

    /// Refuses an access of a CTA to bytes of global memory, address and size, that a grid wrote which may still run.
    pub(super) fn check_grids_before(
        &mut self,
        actor: Actor,
        cta: usize,
        (address, size): (u64, u64),
        how: Use,
    ) -> Result<(), Trouble> {
        if self.ctas[cta].is_behind_grid_before || self.options.hazards == HazardChecks::Off {
            return Ok(());
        }
        // No allocation is larger: such a range is refused elsewhere.
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let Some((name, at)) = self.global.of_grids_before(address, size) else {
            return Ok(());
        };
        let does = match how {
            Use::Read => "is read",
            Use::Write => "is written",
            Use::Reduce => "is reduced into",
        };
        let fault = Fault {
            address: Some(address),
            ..Fault::new(
                ViolationKind::Hazard,
                format!(
                    "{name}+{at} {does} here, and a grid before this one writes it: no thread of the CTA is behind a \
                     griddepcontrol.wait"
                ),
            )
        };
        if self.options.hazards == HazardChecks::Warn {
            let thread = self.thread(cta, actor.warp, actor.lane);
            let violation = self.violation(fault, actor.pc as usize, Some(thread));
            self.warn(violation);
            return Ok(());
        }
        Err(Trouble::Fault(fault, Some(actor.lane)))
    }

    /// The same for what an asynchronous operation of a CTA will read and write: it may do so at once.
    pub(super) fn check_uses_of_grids_before(
        &mut self,
        actor: Actor,
        cta: usize,
        uses: &[(Range, Use)],
    ) -> Result<(), Trouble> {
        let global = uses
            .iter()
            .filter(|(range, _)| range.space == Space::Global);
        for (range, how) in global {
            self.check_grids_before(actor, cta, (range.start, range.size), *how)?;
        }
        Ok(())
    }

    /// Ends the grid before this one, if it may end and the timing wants it to. `idle`: nothing else
    /// can happen.
    pub(super) fn end_grid_before(&mut self, idle: bool) -> bool {
        if !self.neighbours.before_runs {
            return false;
        }
        let wanted = idle
            || match self.options.timing {
                Timing::Eager => true,
                Timing::Lazy | Timing::After(_) => false,
                Timing::Random => self.scheduler.below(16) == 0,
            };
        let may =
            self.options.allows(Relaxation::AllocatedBefore) || self.tensor.holders().is_empty();
        let ends = wanted && may;
        self.neighbours.before_runs = !ends;
        ends
    }

    /// `griddepcontrol.launch_dependents`, which the end of a CTA implies.
    pub(super) fn launch_dependents(&mut self, cta: usize) {
        let cta = &mut self.ctas[cta];
        if !cta.lets_dependents_start {
            cta.lets_dependents_start = true;
            self.neighbours.holding_back -= 1;
        }
    }

    /// Whether a grid that waits for this one's end may hold all tensor memory that was free. Public
    /// kernels allocate after they let dependents start: they rely on those to allocate none before
    /// they wait.
    pub(super) fn dependents_hold_tensor_memory(&self) -> bool {
        !self.options.allows(Relaxation::LateDependents) && self.neighbours.holding_back == 0
    }

    /// What a `griddepcontrol.wait` waits for, for reports.
    pub(super) fn describe_grid_wait(&self) -> String {
        let holders = self.tensor.holders();
        let held = match holders.as_slice() {
            [] => return "for the end of the grid before this one".into(),
            [one] => format!("CTA {one} holds some"),
            [first, ..] => format!("{} CTAs hold some, CTA {first} among them", holders.len()),
        };
        format!(
            "for the end of the grid before this one, which may be waiting for tensor memory: {held}"
        )
    }

    /// What a `tcgen05.alloc` waits for, for reports.
    pub(super) fn describe_alloc_wait(&self) -> String {
        if !self.dependents_hold_tensor_memory() {
            return "for tensor memory".into();
        }
        "for tensor memory, which a grid that waits for the end of this one may hold: all CTAs have \
         executed griddepcontrol.launch_dependents or ended"
            .into()
    }
}
