//! Pending asynchronous operations. The interpreter queues them; the scheduler completes them by
//! its timing: at once, as late as possible, or in any order in between.

use std::fmt;

use super::machine::Machine;
use crate::memory::Fault;
use crate::sched::{Scheduler, Timing};

/// An asynchronous operation that was issued and has not completed.
pub(crate) trait Event: fmt::Debug {
    /// For reports: what it is and where it was issued.
    fn describe(&self) -> String;
    /// The instruction that issued it.
    fn pc(&self) -> usize;
    /// Whether the ISA allows it to complete now.
    fn ready(&self, machine: &Machine<'_>) -> bool;
    /// Makes its effects visible. It reads its sources only now.
    fn complete(self: Box<Self>, machine: &mut Machine<'_>) -> Result<(), Fault>;
}

/// All pending operations, oldest first.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    pending: Vec<Box<dyn Event>>,
}

impl EventQueue {
    /// Adds an operation.
    pub(crate) fn push(&mut self, e: Box<dyn Event>) {
        self.pending.push(e);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub(crate) fn describe(&self) -> Vec<String> {
        self.pending
            .iter()
            .map(|e| format!("pending: {}", e.describe()))
            .collect()
    }

    /// The operation to complete now, if any. `idle`: no warp can run.
    pub(crate) fn choose(
        machine: &mut Machine<'_>,
        timing: Timing,
        idle: bool,
    ) -> Option<Box<dyn Event>> {
        if machine.events.is_empty() {
            return None;
        }
        let wanted = idle
            || match timing {
                Timing::Eager => true,
                Timing::Lazy => false,
                Timing::Random => machine.scheduler.below(4) == 0,
            };
        if !wanted {
            return None;
        }
        let ready: Vec<usize> = (0..machine.events.pending.len())
            .filter(|i| machine.events.pending[*i].ready(machine))
            .collect();
        let scheduler: &mut Scheduler = &mut machine.scheduler;
        let i = match timing {
            _ if ready.is_empty() => return None,
            Timing::Eager => ready[0],
            Timing::Lazy => ready[ready.len() - 1],
            Timing::Random => ready[scheduler.below(ready.len())],
        };
        Some(machine.events.pending.remove(i))
    }
}
