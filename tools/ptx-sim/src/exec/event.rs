//! Pending asynchronous operations. The interpreter queues them; the scheduler completes them by
//! its timing: at once, as late as possible, or in any order in between.

use std::fmt;

use super::machine::Machine;
use crate::memory::Fault;
use crate::sched::{Scheduler, Timing};
use crate::trace::Operation;

/// An asynchronous operation that was issued and has not completed.
pub(crate) trait Event: fmt::Debug {
    /// For reports: the operation, and where it was issued.
    fn describe(&self) -> String;
    /// The instruction that issued it.
    fn pc(&self) -> usize;
    /// Whether the ISA allows it to complete now.
    fn ready(&self, machine: &Machine<'_>) -> bool;
    /// The linear CTA whose shared memory it, a bulk store that nobody waited for, will read.
    fn reads_shared_of(&self) -> Option<u32> {
        None
    }
    /// The operation, for traces.
    fn trace(&self) -> Operation;
    /// Makes its effects visible. It reads its sources only now.
    fn complete(self: Box<Self>, machine: &mut Machine<'_>) -> Result<(), Fault>;
}

/// All pending operations, oldest first.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    pending: Vec<Queued>,
    issued: u64,
    /// Steps that [`Timing::After`] let pass without an instruction.
    idle: u64,
}

/// An operation, and its number in the order of issue.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) id: u64,
    /// The step at which [`Timing::After`] first saw it: at the end of the turn that issued it.
    seen: Option<u64>,
    pub(crate) event: Box<dyn Event>,
}

impl EventQueue {
    /// Adds an operation.
    pub(crate) fn push(&mut self, e: Box<dyn Event>) {
        self.pending.push(Queued {
            id: self.issued,
            seen: None,
            event: e,
        });
        self.issued += 1;
    }

    /// Steps that passed without an instruction.
    pub(crate) fn idle(&self) -> u64 {
        self.idle
    }

    /// Operations issued so far.
    pub(crate) fn issued(&self) -> u64 {
        self.issued
    }

    /// Pending operations from this number on.
    pub(crate) fn since(&self, id: u64) -> &[Queued] {
        let first = self.pending.partition_point(|e| e.id < id);
        &self.pending[first..]
    }

    /// Takes an operation out that satisfies a condition.
    pub(crate) fn take(&mut self, condition: impl Fn(&dyn Event) -> bool) -> Option<Queued> {
        let i = self.pending.iter().position(|q| condition(&*q.event))?;
        Some(self.pending.remove(i))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub(crate) fn describe(&self) -> Vec<String> {
        self.pending
            .iter()
            .map(|e| format!("pending: {}", e.event.describe()))
            .collect()
    }

    /// The operation to complete now, if any. `idle`: no warp can run.
    pub(crate) fn choose(machine: &mut Machine<'_>, timing: Timing, idle: bool) -> Option<Queued> {
        if machine.events.is_empty() {
            return None;
        }
        let wanted = match timing {
            Timing::Eager => true,
            Timing::Lazy => idle,
            Timing::Random => idle || machine.scheduler.below(4) == 0,
            Timing::After(steps) => return Self::due(machine, steps, idle),
        };
        if !wanted {
            return None;
        }
        let ready: Vec<usize> = (0..machine.events.pending.len())
            .filter(|i| machine.events.pending[*i].event.ready(machine))
            .collect();
        let scheduler: &mut Scheduler = &mut machine.scheduler;
        let i = match timing {
            _ if ready.is_empty() => return None,
            Timing::Eager | Timing::After(_) => ready[0],
            Timing::Lazy => ready[ready.len() - 1],
            Timing::Random => ready[scheduler.below(ready.len())],
        };
        Some(machine.events.pending.remove(i))
    }

    /// The oldest operation that may complete, if it is so old, or if nothing else can happen until then.
    fn due(machine: &mut Machine<'_>, steps: u32, idle: bool) -> Option<Queued> {
        let now = machine.report.warp_instructions + machine.events.idle;
        for operation in &mut machine.events.pending {
            operation.seen.get_or_insert(now);
        }
        let pending = &machine.events.pending;
        let oldest = pending.iter().position(|e| e.event.ready(machine))?;
        let due = pending[oldest].seen.unwrap_or(now) + u64::from(steps);
        if due > now && !idle {
            return None;
        }
        machine.events.idle += due.saturating_sub(now);
        Some(machine.events.pending.remove(oldest))
    }
}
