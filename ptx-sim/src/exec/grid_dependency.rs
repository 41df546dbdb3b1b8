//! `griddepcontrol`, and the grids before and after this one in its stream.
//!
//! A run has one grid. Of its neighbours only this is modelled: when they may start, that they end,
//! and that they use tensor memory in the least convenient way that the ISA allows. The grid before
//! one of a dependent launch may be about to allocate all tensor memory of every SM, so that it can
//! end only while this grid holds none. A grid that depends on this one may hold all that is free,
//! and wait for this grid's end; it starts when every CTA has executed
//! `griddepcontrol.launch_dependents` or has ended.

use super::Flow;
use super::machine::Machine;
use super::warp::{Part, State, Wait};
use crate::models::hazard::Profile;
use crate::sched::Timing;
use crate::sim::Launch;

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
    pub(super) fn wait_for_grid_before(&self, cur: &mut Part) -> Flow {
        if !self.neighbours.before_runs {
            return Flow::Next;
        }
        cur.state = State::Blocked(Wait::GridBefore);
        Flow::Stop
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
        let ends = wanted && self.tensor.holders().is_empty();
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
        self.options.profile == Profile::Strict && self.neighbours.holding_back == 0
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
