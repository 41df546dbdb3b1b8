//! `griddepcontrol`, and the grids before and after this one in its stream.
//!
//! Grids that are given to a run together are executed: [`overlap`](super::overlap). Four things are modelled of grids
//! before the first and behind the last of them:
//!
//! - when such grids may start,
//! - that they end,
//! - the bytes that grids before the run wrote,
//! - their use of tensor memory, in the least convenient way that the ISA allows.
//!
//! Bytes that an earlier run of the same memory wrote count as written by a grid that may not have ended when a
//! dependent grid starts. No CTA of the dependent grid may touch these bytes before one of its threads has waited. The
//! grid before that of a dependent launch may be about to allocate all tensor memory of every SM. It can then end only
//! while the dependent grid holds none ([`Relaxation::AllocatedBefore`]: the grid before has all that it needs).
//!
//! A grid that depends on this one may hold all tensor memory that is free, and wait for this grid's end. Such a grid
//! starts when every CTA of this grid has executed `griddepcontrol.launch_dependents` or has ended.

use super::machine::{Machine, Tried, Trouble};
use super::pending::{Range, Rows, Use};
use super::warp::{Part, State, Wait};
use super::{Ctx, Flow};
use crate::memory::{Actor, Fault, Space};
use crate::models::relaxation::Relaxation;
use crate::report::ViolationKind;
use crate::sched::Timing;
use crate::sim::{HazardChecks, Launch};

/// The grids before and after this one. A set of grids has a bit for each grid: the first bit is that of all grids
/// before the run's, and the other bits are [`bit`]s.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    /// The grid before this one has not ended.
    pub(crate) before_runs: bool,
    /// CTAs that have not let dependents start.
    holding_back: u64,
    /// Number of this grid in the run.
    grid: usize,
    /// The grid after this one is one of the run.
    is_followed: bool,
    /// Grids that are over when a CTA starts.
    pub(crate) behind: u64,
    /// Grids that are over, besides, behind a `griddepcontrol.wait`.
    pub(crate) waited: u64,
    /// Grids that were over for any of the threads: they are over when this grid is.
    pub(crate) reach: u64,
}

/// All grids before those of the run.
const BEFORE_THE_RUN: u64 = 1;

/// A grid of the run in a set of grids.
pub(crate) fn bit(grid: usize) -> u64 {
    BEFORE_THE_RUN << (grid + 1)
}

impl Neighbours {
    /// Grids that a run may have: the bits of a set.
    pub(crate) const MOST: usize = 63;

    /// The neighbours of a launch that is run by itself.
    pub(crate) fn of(launch: &Launch) -> Self {
        let behind = if launch.dependent { 0 } else { BEFORE_THE_RUN };
        Self {
            before_runs: launch.dependent,
            holding_back: launch.grid.iter().map(|n| u64::from(*n)).product(),
            grid: 0,
            is_followed: false,
            behind,
            waited: BEFORE_THE_RUN,
            reach: behind,
        }
    }

    /// The neighbours of launches that are run together. The signal that lets a dependent grid start hands nothing on.
    /// Such a grid therefore knows no more than the grid before it knew when that one started.
    pub(crate) fn of_all(launches: &[&Launch]) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for (grid, launch) in launches.iter().enumerate() {
            let mut one = Self::of(launch);
            if let Some(before) = all.last_mut() {
                before.is_followed = true;
                one.behind = match launch.dependent {
                    true => before.behind,
                    false => bit(grid) - 1,
                };
                one.reach = one.behind;
                one.waited = 0;
            }
            one.grid = grid;
            all.push(one);
        }
        all
    }

    /// Every CTA has let dependents start.
    pub(crate) fn lets_dependents(&self) -> bool {
        self.holding_back == 0
    }

    /// The grid before this one in the run is over, and so are the grids that were over for its threads.
    pub(crate) fn grid_before_is_over(&mut self, reach: u64) {
        self.before_runs = false;
        self.waited = reach | bit(self.grid - 1);
    }

    /// Whether a CTA for which these grids are over is behind a wait for the grid before this one.
    pub(crate) fn has_waited(&self, behind: u64) -> bool {
        let before = self.grid.checked_sub(1).map_or(BEFORE_THE_RUN, bit);
        behind & before != 0
    }

    /// A CTA of this grid, among those of all grids of the run.
    pub(crate) fn holder(&self, linear: u32) -> u64 {
        (self.grid as u64) << 32 | u64::from(linear)
    }
}

impl Machine<'_> {
    /// `griddepcontrol.wait`.
    pub(super) fn wait_for_grid_before(&mut self, c: &Ctx<'_>, cur: &mut Part) -> Flow {
        self.note_allocated_before(c);
        if !self.neighbours.before_runs {
            let behind = &mut self.ctas[c.cta].behind;
            *behind |= self.neighbours.waited;
            self.neighbours.reach |= *behind;
            return Flow::Next;
        }
        cur.state = State::Blocked(Wait::GridBefore);
        Flow::Stop
    }

    /// Notes that a CTA holds tensor memory while it waits for a grid that is none of the run's. Whether that grid is
    /// over by now depends on the schedule, and does not matter.
    fn note_allocated_before(&mut self, c: &Ctx<'_>) {
        let cta = &self.ctas[c.cta];
        let relies = self.options.allows(Relaxation::AllocatedBefore)
            && self.neighbours.grid == 0
            && cta.behind & BEFORE_THE_RUN == 0
            && self
                .tensor
                .holders()
                .contains(&self.neighbours.holder(cta.linear));
        if relies {
            let why = "a CTA that holds tensor memory waits for the grid before, which may still have to allocate its own";
            self.note(Relaxation::AllocatedBefore, c.pc, why);
        }
    }

    /// Refuses an access of a CTA to bytes of global memory, address and size, that conflicts with an access of a grid
    /// which may still run. Of grids before the run's, only the bytes that they wrote are known.
    pub(super) fn check_grids_before(
        &mut self,
        actor: Actor,
        cta: usize,
        (address, size): (u64, u64),
        how: Use,
    ) -> Tried<()> {
        if self.options.hazards == HazardChecks::Off {
            return Ok(());
        }
        if self.overlap.is_some()
            && let Some(fault) = self.conflict_of_grids(actor, cta, (address, size), how)
        {
            return self.refuse_or_warn(fault, actor, cta);
        }
        if self.ctas[cta].behind & BEFORE_THE_RUN != 0 {
            return Ok(());
        }
        // No allocation is larger: such a range is refused elsewhere.
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let Some((name, at)) = self.global.of_grids_before(address, size) else {
            return Ok(());
        };
        let does = how.passive();
        let message = format!(
            "{name}+{at} {does} here, and a grid before this one writes it: no thread of the CTA is behind a \
             griddepcontrol.wait"
        );
        let fault = Fault::new(ViolationKind::Hazard, message).at(address);
        self.refuse_or_warn(fault, actor, cta)
    }

    fn refuse_or_warn(&mut self, fault: Fault, actor: Actor, cta: usize) -> Tried<()> {
        if self.options.hazards == HazardChecks::Warn {
            let thread = self.thread(cta, actor.warp, actor.lane);
            let violation = self.violation(fault, actor.pc as usize, Some(thread));
            self.warn(violation);
            return Ok(());
        }
        Err(Trouble::Fault(fault, Some(actor.lane)))
    }

    /// Refuses conflicts, as `check_grids_before` does, of an asynchronous operation of a CTA: of its reads and writes,
    /// and of rows that it will read. The operation may access them at once.
    pub(super) fn check_uses_of_grids_before(
        &mut self,
        actor: Actor,
        cta: usize,
        uses: &[(Range, Use)],
        rows: Option<Rows>,
    ) -> Tried<()> {
        if self.options.hazards == HazardChecks::Off {
            return Ok(());
        }
        let rows = rows.into_iter().flat_map(Rows::all);
        let reads = rows.map(|row| (row, Use::Read));
        for (range, how) in uses.iter().copied().chain(reads) {
            if range.space == Space::Global {
                self.check_grids_before(actor, cta, (range.start, range.size), how)?;
            }
        }
        Ok(())
    }

    /// Ends the grid before this one, which is none of the run's, if it may end and the timing wants it to. `idle`:
    /// nothing else can happen.
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

    /// Whether a `tcgen05.alloc` finds nothing, because a grid that waits for this one's end holds all tensor memory
    /// that was free. Public kernels allocate after they let dependents start. They rely on dependents that allocate no
    /// tensor memory before they have waited.
    pub(super) fn dependents_left_nothing(&mut self, c: &Ctx<'_>) -> bool {
        if !self.dependents_may_hold_tensor_memory() {
            return false;
        }
        let relies = self.options.allows(Relaxation::LateDependents);
        if relies {
            let why =
                "all CTAs have let dependents start or ended, which may hold all tensor memory";
            self.note(Relaxation::LateDependents, c.pc, why);
        }
        !relies
    }

    /// Whether there may be a grid of which only this is known: it waits for this one's end.
    fn dependents_may_hold_tensor_memory(&self) -> bool {
        !self.neighbours.is_followed && self.neighbours.lets_dependents()
    }

    /// The grids that a `griddepcontrol.wait` waits for, for reports.
    pub(super) fn describe_grid_wait(&self) -> String {
        if let (Some(before), Some(o)) = (self.neighbours.grid.checked_sub(1), &self.overlap) {
            return format!("for the end of {}", o.label(before));
        }
        let holders = self.tensor.holders();
        let held = match holders.as_slice() {
            [] => return "for the end of the grid before this one".into(),
            [one] => format!("{} holds some", self.describe_holder(*one)),
            [first, ..] => format!(
                "{} CTAs hold some, {} among them",
                holders.len(),
                self.describe_holder(*first)
            ),
        };
        format!(
            "for the end of the grid before this one, which may be waiting for tensor memory: {held}"
        )
    }

    /// The columns that a `tcgen05.alloc` waits for, for reports.
    pub(super) fn describe_alloc_wait(&self, cta: usize, columns: u32) -> String {
        let late = self.options.allows(Relaxation::LateDependents);
        if !late && self.dependents_may_hold_tensor_memory() {
            return "for tensor memory, which a grid that waits for the end of this one may hold: all CTAs have \
                    executed griddepcontrol.launch_dependents or ended"
                .into();
        }
        if self.overlap.is_none() {
            return "for tensor memory".into();
        }
        let sm = self.sm(cta);
        format!(
            "for {columns} columns of the tensor memory of multiprocessor {}",
            sm.0
        )
    }

    /// The holders of columns of tensor memory, a line each.
    pub(super) fn describe_holders(&self) -> Vec<String> {
        let all = self.tensor.allocators.iter();
        let held = all.flat_map(|((sm, _), a)| a.held().map(move |h| (sm, h)));
        let line = |(sm, (holder, first, count)): (&u32, (u64, u32, u32))| {
            let holder = self.describe_holder(holder);
            let end = first + count;
            format!("tensor memory of multiprocessor {sm}: {holder} holds columns {first}..{end}")
        };
        held.map(line).collect()
    }

    /// A CTA as [`Neighbours::holder`] numbers it.
    fn describe_holder(&self, holder: u64) -> String {
        let cta = format!("CTA {}", holder as u32);
        match &self.overlap {
            Some(o) => format!("{cta} of {}", o.label((holder >> 32) as usize)),
            None => cta,
        }
    }
}
