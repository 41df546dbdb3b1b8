//! Feeds the recorder, if there is one. Nothing here is called, or does anything, without it.

use std::collections::BTreeMap;

use super::machine::Machine;
use super::warp::{State, Wait, Warp};
use crate::models::mbarrier::Slot;
use crate::program::{Op, Transfer};
use crate::trace::{Cause, MbarrierState, Recorder, WaitFor};

impl Machine<'_> {
    /// The recorder's clock.
    fn step_count(&self) -> u64 {
        let completions = self.trace.as_ref().map_or(0, |t| t.completions);
        self.report.warp_instructions + self.events.idle() + completions
    }

    pub(super) fn trace_admit(&mut self, cta: u32, id: [u32; 3]) {
        if let Some(t) = &mut self.trace {
            t.admit(cta, id);
        }
    }

    /// Before a warp runs.
    pub(super) fn trace_begin(&mut self, cta: usize, warp: u32) {
        let (step, linear) = (self.step_count(), self.ctas[cta].linear);
        if let Some(t) = &mut self.trace {
            t.begin(linear, warp, step);
        }
    }

    /// After each instruction.
    pub(super) fn trace_instruction(&mut self, cta: usize, warp: u32, pc: usize) {
        let (step, linear) = (self.step_count(), self.ctas[cta].linear);
        let program = self.program;
        let (Some(t), Some(ins)) = (&mut self.trace, program.code.get(pc)) else {
            return;
        };
        t.instruction(linear, warp, ins, step);
        self.trace_issued((linear, warp));
        let touches = match &ins.op {
            Op::Mbarrier { .. } => true,
            Op::Transfer(t) => matches!(**t, Transfer::Arrive { .. }),
            _ => false,
        };
        if touches {
            self.trace_mbarriers(Cause::Warp(linear, warp));
        }
    }

    /// After a warp has run.
    pub(super) fn trace_end(&mut self, cta: usize, w: &Warp) {
        let (step, linear) = (self.step_count(), self.ctas[cta].linear);
        let Some(t) = &mut self.trace else { return };
        let runs = w.parts.iter().any(|p| p.state == State::Ready);
        let wait = w.parts.iter().find_map(|p| match p.state {
            State::Blocked(wait) if !runs => Some(wait_for(wait)),
            _ => None,
        });
        t.end(linear, w.index, step, wait);
    }

    /// After an asynchronous operation has completed.
    pub(super) fn trace_completed(&mut self, id: u64) {
        let Some(t) = &mut self.trace else { return };
        t.completions += 1;
        let step = self.report.warp_instructions + self.events.idle() + t.completions;
        let (slice, by) = t.complete(id, step);
        self.trace_issued(by);
        self.trace_mbarriers(Cause::Operation(slice));
    }

    /// Operations that were issued since the last look.
    fn trace_issued(&mut self, by: (u32, u32)) {
        let step = self.step_count();
        let Some(t) = &mut self.trace else { return };
        for e in self.events.since(t.seen) {
            let (opcode, line) = match self.program.code.get(e.event.pc()) {
                Some(i) => (i.text.split_whitespace().next().unwrap_or(""), i.line),
                None => ("", 0),
            };
            t.issue(e.id, e.event.trace(), (opcode.into(), line), by, step);
        }
        t.seen = self.events.issued();
    }

    fn trace_mbarriers(&mut self, cause: Cause) {
        let step = self.step_count();
        let Some(t) = &mut self.trace else { return };
        let mut now = BTreeMap::new();
        for c in &self.ctas {
            for (at, slot) in &c.mbarriers {
                if let Some(b) = Slot::peek(slot) {
                    let state = MbarrierState {
                        phase: b.phase(),
                        pending: b.pending(),
                        expected: b.expected(),
                        tx: i64::from(b.tx_count()),
                    };
                    now.insert((c.linear, *at), state);
                }
            }
        }
        t.mbarriers(&now, cause, step);
    }

    /// CTAs have gone.
    pub(super) fn trace_retired(&mut self) {
        self.trace_mbarriers(Cause::Operation(None));
    }

    /// Takes the recorder, and closes slices that are open.
    pub(crate) fn take_trace(&mut self) -> Option<crate::trace::Trace> {
        let step = self.step_count();
        self.trace.take().map(|t: Box<Recorder>| t.finish(step))
    }
}

fn wait_for(wait: Wait) -> WaitFor {
    let mut phase_waited = None;
    let name = match wait {
        Wait::Bar { id, .. } => format!("bar.sync {id}"),
        Wait::Tensor { stores: false, .. } => "tcgen05.wait::ld".into(),
        Wait::Tensor { stores: true, .. } => "tcgen05.wait::st".into(),
        Wait::Wgmma { keep, .. } => format!("wgmma.wait_group {keep}"),
        Wait::TensorAlloc { .. } => "tcgen05.alloc".into(),
        Wait::TensorFree { .. } => "tcgen05.dealloc".into(),
        Wait::GridBefore => "griddepcontrol.wait".into(),
        Wait::Store { .. } => "a store".into(),
        Wait::Cluster { .. } => "barrier.cluster.wait".into(),
        Wait::Mbarrier {
            owner,
            at,
            phase,
            retry,
            ..
        } => {
            phase_waited = Some((owner, at, phase));
            let op = if retry { "try_wait" } else { "test_wait" };
            format!("{op} barrier +0x{at:x} parity {}", phase & 1)
        }
        Wait::Groups { bulk, keep, .. } => {
            let bulk = if bulk { "bulk." } else { "" };
            match keep {
                Some(n) => format!("cp.async.{bulk}wait_group {n}"),
                None => format!("cp.async.{bulk}wait_all"),
            }
        }
    };
    WaitFor {
        name,
        phase: phase_waited,
    }
}
