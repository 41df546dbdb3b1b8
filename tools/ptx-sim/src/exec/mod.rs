//! Executes warps: one instruction over all lanes of a part at a time.

mod barrier;
mod collective;
mod copies;
pub(crate) mod event;
mod flow;
mod grid;
pub(crate) mod grid_dependency;
pub(crate) mod hazards;
mod launch_control;
pub(crate) mod machine;
mod matrix;
mod mbarrier;
mod mbarrier_wait;
mod memory;
mod mma;
mod observe;
pub(crate) mod overlap;
pub(crate) mod pending;
mod pieces;
mod poison;
mod printf;
mod registers;
mod small_copy;
pub(crate) mod tcgen05;
pub(crate) mod tensor;
mod together;
mod trace;
mod transfer;
pub(crate) mod warp;
pub(crate) mod wgmma;
mod wmma;

use crate::error::SimError;
use crate::memory::{Actor, Fault, SyncEvent};
use crate::models::relaxation::Relaxation;
use crate::models::sums::NoRule;
use crate::program::{Clock, Dst, Ins, Op, Program, WarpSync};
use crate::report::{Violation, ViolationKind};
use crate::sim::{HazardChecks, Uninitialised};
use machine::{Machine, Tried, Trouble, sync_fault};
use warp::{Part, State, Warp};

/// Instructions that other parts may run while one waits at a join.
const PATIENCE: u32 = 20_000;

/// Next step of a part behind an instruction.
pub(crate) enum Flow {
    /// Go on behind it.
    Next,
    /// Go on there.
    Jump(u32),
    /// The part is gone, or waits, and its state says so.
    Stop,
}

/// The part that executes, and what its instruction sees.
pub(crate) struct Ctx<'p> {
    pub(crate) program: &'p Program,
    pub(crate) cta: usize,
    pub(crate) pc: usize,
    /// Lanes of the part for which the guard holds.
    pub(crate) active: u32,
}

impl Ctx<'_> {
    pub(crate) fn actor(&self, m: &Machine<'_>, w: &Warp, lane: u32) -> Actor {
        Actor {
            cta: m.ctas[self.cta].linear,
            warp: w.index,
            lane,
            pc: self.pc as u32,
        }
    }

    /// The refusal of an instruction whose sums nobody says anything of.
    fn no_rule(&self, why: NoRule) -> Trouble {
        let ins = &self.program.code[self.pc];
        Trouble::Error(SimError::SumRule {
            line: ins.line,
            text: ins.text.clone(),
            why,
        })
    }
}

/// Lanes of a mask, lowest first.
pub(crate) fn lanes(mut mask: u32) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        (mask != 0).then(|| {
            let l = mask.trailing_zeros();
            mask &= mask - 1;
            l
        })
    })
}

impl Machine<'_> {
    /// Runs one part of a warp for at most `quantum` instructions. Returns those executed, counted
    /// once a thread.
    pub(crate) fn run_warp(
        &mut self,
        cta: usize,
        index: usize,
        quantum: u32,
    ) -> Result<u64, SimError> {
        let Some(mut w) = self.ctas[cta].warps[index].take() else {
            return Ok(0);
        };
        for i in 0..w.parts.len() {
            if let State::Blocked(wait) = w.parts[i].state
                && self.done(cta, wait)
            {
                w.parts[i].state = State::Ready;
            }
        }
        let ready = |w: &Warp| -> Vec<usize> {
            (0..w.parts.len())
                .filter(|i| w.parts[*i].state == State::Ready)
                .collect()
        };
        let mut choice = ready(&w);
        if choice.is_empty() || w.impatience > PATIENCE {
            w.release_joins();
            choice = ready(&w);
        }
        let mut executed = 0;
        if !choice.is_empty() {
            let cur = w
                .parts
                .swap_remove(choice[self.scheduler.part(choice.len())]);
            executed = if self.trace.is_some() {
                self.trace_begin(cta, w.index);
                let n = self.run_part::<true>(cta, &mut w, cur, quantum)?;
                self.trace_end(cta, &w);
                n
            } else {
                self.run_part::<false>(cta, &mut w, cur, quantum)?
            };
        }
        if w.live != 0 {
            self.ctas[cta].warps[index] = Some(w);
        }
        Ok(executed)
    }

    fn run_part<const TRACED: bool>(
        &mut self,
        cta: usize,
        w: &mut Warp,
        mut cur: Part,
        quantum: u32,
    ) -> Result<u64, SimError> {
        let program = self.program;
        let mut executed = 0u64;
        for _ in 0..quantum {
            if cur.joins.last().is_some_and(|j| j.0 == cur.pc) && w.must_wait_at_join(&mut cur) {
                cur.state = State::Join;
                break;
            }
            let pc = cur.pc as usize;
            let Some(ins) = program.code.get(pc) else {
                // The end of the body: as `ret`, which counts.
                executed += u64::from(cur.mask.count_ones());
                self.exit(cta, w, &mut cur, u32::MAX)
                    .map_err(|t| self.place(t, cta, w, pc, cur.mask))?;
                break;
            };
            let active = match ins.guard {
                Some(p) => {
                    if let Some(v) = w.poison.guard(p.slot, cur.mask) {
                        self.use_undefined(v, pc)?;
                    }
                    cur.mask & w.pred(p)
                }
                None => cur.mask,
            };
            self.counters.executed[pc] += 1;
            self.report.warp_instructions += 1;
            executed += u64::from(cur.mask.count_ones());
            if !w.parts.is_empty() {
                w.impatience += 1;
            }
            let ctx = Ctx {
                program,
                cta,
                pc,
                active,
            };
            let flow = self
                .step(&ctx, w, &mut cur, ins)
                .map_err(|t| self.place(t, cta, w, pc, active))?;
            if let Some((why, excuse)) = w.poison.touched() {
                match excuse.filter(|r| self.options.allows(*r)) {
                    Some(r) => {
                        self.note(r, pc, why);
                        self.tensor_loads_used(cta, w);
                    }
                    None => {
                        let f = Fault::new(ViolationKind::Hazard, why);
                        return Err(self.place(Trouble::Fault(f, None), cta, w, pc, active));
                    }
                }
            }
            if let Some(v) = w.poison.settle(ins.op.hands_values_on(), active) {
                self.use_undefined(v, pc)?;
            }
            if self.late.take() {
                let why = "an access to shared memory of a CTA of the cluster that has ended";
                let f = Fault::new(ViolationKind::Hazard, why);
                let thread = self.thread(cta, w.index, active.trailing_zeros().min(31));
                let v = self.violation(f, pc, Some(thread));
                self.warn(v);
            }
            if self.generic.take() {
                let why = "the address is a generic one";
                self.note(Relaxation::GenericShared, pc, why);
            }
            if TRACED {
                self.trace_instruction(cta, w.index, pc);
            }
            match flow {
                Flow::Next => cur.pc += 1,
                Flow::Jump(to) => cur.pc = to,
                Flow::Stop => break,
            }
        }
        if cur.mask != 0 {
            w.parts.push(cur);
        }
        Ok(executed)
    }

    /// An instruction uses what nothing defined.
    fn use_undefined(&mut self, mut v: Violation, pc: usize) -> Result<(), SimError> {
        if v.site != self.program.site(pc) {
            v.message += &format!("; the value is used at {}", self.program.site(pc));
        }
        let warns = match v.kind {
            ViolationKind::Hazard => self.options.hazards == HazardChecks::Warn,
            _ => matches!(self.options.uninitialised, Uninitialised::Warn),
        };
        match warns {
            true => self.warn(v),
            false => return Err(SimError::Violation(Box::new(v))),
        }
        Ok(())
    }

    /// Adds thread and place to a fault.
    fn place(&self, t: Trouble, cta: usize, w: &Warp, pc: usize, active: u32) -> SimError {
        match t {
            Trouble::Error(e) => e,
            Trouble::Fault(f, lane) => {
                let lane = lane.unwrap_or(active.trailing_zeros().min(31));
                let thread = self.thread(cta, w.index, lane);
                SimError::Violation(Box::new(self.violation(f, pc, Some(thread))))
            }
        }
    }

    fn step(&mut self, c: &Ctx<'_>, w: &mut Warp, cur: &mut Part, ins: &Ins) -> Tried<Flow> {
        if c.active == 0 {
            if matches!(ins.op, Op::Bra { .. } | Op::BrxIdx { .. }) {
                self.counters.fell_through[c.pc] = true;
            }
            return Ok(Flow::Next);
        }
        let sync = ins.op.warp_sync();
        if sync != WarpSync::None {
            if let Some(flow) = self.gather(c, w, cur, sync)? {
                return Ok(flow);
            }
            // Lanes may have joined: look again who executes.
            let active = match ins.guard {
                Some(p) => cur.mask & w.pred(p),
                None => cur.mask,
            };
            let c = Ctx {
                program: c.program,
                cta: c.cta,
                pc: c.pc,
                active,
            };
            return self.execute(&c, w, cur, ins);
        }
        self.execute(c, w, cur, ins)
    }

    /// Makes the lanes meet that a `.sync` instruction names. `None` once they have.
    fn gather(
        &mut self,
        c: &Ctx<'_>,
        w: &mut Warp,
        cur: &mut Part,
        sync: WarpSync,
    ) -> Tried<Option<Flow>> {
        let required = |w: &Warp, active: u32| -> Tried<u32> {
            let WarpSync::Mask(src) = sync else {
                return Ok(w.live);
            };
            let masks = w.get(c.program, src);
            let mut all = 0;
            for l in lanes(active) {
                let m = masks[l as usize] as u32;
                if m >> l & 1 == 0 {
                    return Err(sync_fault(format!(
                        "lane {l} is not in its own member mask {m:08x}"
                    )));
                }
                all |= m;
            }
            Ok(all & w.live)
        };
        let guard = c.program.code[c.pc].guard;
        let active = |w: &Warp, mask: u32| guard.map_or(mask, |p| mask & w.pred(p));
        if required(w, c.active)? & !c.active == 0 {
            return Ok(None);
        }
        let pc = cur.pc;
        w.absorb(cur, |p| p.pc == pc && matches!(p.state, State::Sync(_)));
        let now = active(w, cur.mask);
        let missing = required(w, now)? & !now;
        if missing == 0 {
            return Ok(None);
        }
        if sync == WarpSync::Aligned && (now != cur.mask || !cur.joins.is_empty()) {
            return Err(sync_fault(format!(
                "an .aligned instruction in code that lanes {missing:08x} do not execute"
            )));
        }
        // Lanes whose guard is false do not execute it: they go on, and may come again.
        if now != cur.mask {
            let join = (pc + 1, cur.mask);
            let mut rest = cur.clone();
            if cur.joins.last().is_none_or(|j| j.0 != join.0) {
                cur.joins.push(join);
                rest.joins.push(join);
            }
            rest.mask &= !now;
            rest.pc += 1;
            rest.state = State::Ready;
            cur.mask = now;
            w.parts.push(rest);
        }
        cur.state = State::Sync(missing);
        Ok(Some(Flow::Stop))
    }

    /// Executes the instruction for the active lanes.
    fn execute(&mut self, c: &Ctx<'_>, w: &mut Warp, cur: &mut Part, ins: &Ins) -> Tried<Flow> {
        let p = c.program;
        match &ins.op {
            Op::Alu { f, d, s, n } => {
                let mut out = [0; 32];
                let a = w.get(p, s[0]);
                // Sources that the instruction does not have are not fetched.
                let b = if *n > 1 { w.get(p, s[1]) } else { a };
                let cc = if *n > 2 { w.get(p, s[2]) } else { a };
                (f.0)(a, b, cc, &mut out);
                w.set(p, *d, &out, c.active);
            }
            Op::Approx { f, d, s } => {
                let [a, b] = s.map(|s| w.get(p, s));
                let choice = self.options.approximations;
                let out = std::array::from_fn(|i| f.of(choice, a[i], b[i]));
                w.set(p, *d, &out, c.active);
            }
            Op::Multi(_)
            | Op::Pack { .. }
            | Op::Unpack { .. }
            | Op::Setp { .. }
            | Op::Set { .. }
            | Op::Selp { .. }
            | Op::PredLogic { .. }
            | Op::Insert { .. }
            | Op::Carry { .. } => registers::execute(p, w, &ins.op, c.active),
            Op::ReadClock { d, which } => self.clock(c, w, *d, *which),
            Op::Bra { uniform: true, .. }
            | Op::BrxIdx { uniform: true, .. }
            | Op::Exit { uniform: true }
                if c.active != cur.mask =>
            {
                let what = &ins.text;
                return Err(sync_fault(format!(
                    "`{what}` is taken by a part of the active lanes only"
                )));
            }
            Op::Bra { target, .. } => return self.branch(c, w, cur, *target),
            Op::BrxIdx {
                targets,
                index,
                uniform,
            } => {
                let v = *w.get(p, *index);
                let first = v[c.active.trailing_zeros() as usize & 31] as u32;
                if *uniform && lanes(c.active).any(|l| v[l as usize] as u32 != first) {
                    return Err(sync_fault(
                        "brx.idx.uni has a different index in some lanes",
                    ));
                }
                return self.indexed_branch(c, w, cur, targets, &v);
            }
            Op::Exit { .. } => {
                self.exit(c.cta, w, cur, c.active)?;
                return Ok(if cur.mask == 0 {
                    Flow::Stop
                } else {
                    Flow::Next
                });
            }
            Op::Trap => {
                let f = crate::memory::Fault::new(ViolationKind::Trap, "trap was executed");
                return Err(Trouble::Fault(f, None));
            }
            Op::Hint | Op::Registers | Op::Prefetch => {}
            Op::GridWait => return Ok(self.wait_for_grid_before(c, cur)),
            Op::LaunchDependents => self.launch_dependents(c.cta),
            Op::Fence { kind } => {
                let actor = c.actor(self, w, c.active.trailing_zeros());
                self.synchronised(SyncEvent::Fence {
                    kind: *kind,
                    actor,
                    lanes: c.active,
                })?;
            }
            Op::Ld { .. } | Op::St { .. } | Op::Atom { .. } => {
                return self.access(c, w, cur, &ins.op);
            }
            Op::IsSpace { .. } | Op::Mapa { .. } | Op::CtaRank { .. } => {
                self.address_query(c, w, &ins.op)
            }
            Op::Bar { .. } | Op::ClusterArrive { .. } | Op::ClusterWait { .. } => {
                return self.barrier(c, w, cur, &ins.op);
            }
            Op::Tcgen05(t) => return self.tcgen05(c, w, cur, t),
            Op::Mbarrier { op, addr } => return self.mbarrier(c, w, cur, op, addr),
            Op::PendingCount { d, a } => self.pending_count(c, w, *d, *a)?,
            Op::Transfer(t) => return self.transfer(c, w, cur, t),
            Op::WarpSync { .. }
            | Op::Shfl { .. }
            | Op::Vote { .. }
            | Op::Ballot { .. }
            | Op::Match { .. }
            | Op::Redux { .. }
            | Op::Elect { .. }
            | Op::ActiveMask { .. } => self.collective(c, w, &ins.op)?,
            Op::LdMatrix { .. } | Op::StMatrix { .. } | Op::MovMatrix { .. } => {
                self.matrix(c, w, &ins.op)?;
                self.aligned(c, w)?;
            }
            Op::LaunchControl(l) => self.launch_control(c, w, l)?,
            Op::Discard { addr } => self.discard(c, w, addr)?,
            Op::Mma(m) => self.mma_sync(c, w, m)?,
            Op::Wmma(m) => self.wmma(c, w, m)?,
            Op::Wgmma(i) => return self.wgmma(c, w, cur, i),
            Op::Printf {
                result,
                format,
                values,
            } => self.printf(c, w, [*result, *format, *values])?,
            Op::AssertFail { texts, line } => self.assert_fail(c, w, *texts, *line)?,
            Op::Unmodelled { reason } => {
                return Err(Trouble::Error(SimError::Unmodelled {
                    line: ins.line,
                    text: ins.text.clone(),
                    reason: reason.clone(),
                }));
            }
        }
        Ok(Flow::Next)
    }

    fn clock(&mut self, c: &Ctx<'_>, w: &mut Warp, d: Dst, which: Clock) {
        // A counter that always advances; the timer counts the same, as nanoseconds.
        let t = self.report.warp_instructions;
        let v = match which {
            Clock::Clock | Clock::Clock64 | Clock::Timer | Clock::TimerLo => t,
            Clock::ClockHi | Clock::TimerHi => t >> 32,
        };
        w.set(c.program, d, &[v; 32], c.active);
    }
}
