//! `wgmma`: products of a warpgroup, in flight until a `wgmma.wait_group`.
//!
//! Each warp's quarter of a `wgmma.mma_async` is an event of its own: its sixteen rows of D. The event may complete, in
//! any order with everything else, under two conditions: all four warps have issued the instruction, and what went
//! before on its accumulator is complete. Only then does it read registers and shared memory. Registers are watched
//! from the issue to the wait (`registers`), shared memory by what is in flight (`exec/pending`) and by the hazard
//! tracker.

mod group;
mod registers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub(crate) use registers::{Operands, Registers};

use self::group::{MAX_AHEAD, Mismatch, Step, WARPS, Warpgroup};
use super::event::Event;
use super::machine::{Machine, Tried, Trouble, sync_fault};
use super::tcgen05::{READ_UNWRITTEN, SharedView, broken, shared_reads, uniform};
use super::warp::{Part, State, Wait, Warp};
use super::{Ctx, Flow};
use crate::memory::Fault;
use crate::models::hazard::{Op as TrackedOp, OpClass, Stamp};
use crate::models::relaxation::Relaxation;
use crate::models::sums::Rule;
use crate::models::wgmma::{A, A_REGISTERS, Product, SharedMatrix};
use crate::program::{Lanes, Wgmma, WgmmaA, WgmmaMma};
use crate::report::ViolationKind;
use crate::trace::{Kind, Operation};

/// Operations that a warp may have issued and not waited for: each is remembered.
const MAX_PENDING: usize = 1 << 12;

/// An operation of a warp that it has not waited for.
#[derive(Debug)]
struct Issued {
    id: u64,
    registers: Operands,
    /// Hazard tracking: what the wait acquires.
    stamp: Option<Stamp>,
    /// The stamps of all quarters, once all warps have issued theirs.
    group: Vec<Stamp>,
}

/// Operations that a warp has issued and not waited for.
#[derive(Debug, Default)]
struct Groups {
    open: Vec<Issued>,
    committed: VecDeque<Vec<Issued>>,
}

impl Groups {
    /// Operations.
    fn len(&self) -> usize {
        self.open.len() + self.committed.iter().map(Vec::len).sum::<usize>()
    }

    /// Committed groups that a wait which keeps so many waits for.
    fn waited_for(&self, keep: u32) -> usize {
        self.committed.len().saturating_sub(keep as usize)
    }
}

/// All warpgroups' state.
#[derive(Debug, Default)]
pub(crate) struct WgmmaState {
    /// Operations that have not completed, by linear CTA, warpgroup and id.
    running: BTreeSet<(u32, u32, u64)>,
    /// By linear CTA and warp.
    warps: BTreeMap<(u32, u32), Groups>,
    /// By linear CTA and number in it.
    groups: BTreeMap<(u32, u32), Warpgroup>,
}

impl WgmmaState {
    /// Whether a warp's wait may go on: its own quarters of the operations are complete, or with `whole` all of them.
    pub(crate) fn waited(&self, (cta, warp): (u32, u32), keep: u32, whole: bool) -> bool {
        let Some(g) = self.warps.get(&(cta, warp)) else {
            return true;
        };
        let (group, quarters) = (warp / WARPS as u32, WARPS as u64);
        let runs = |o: &Issued| {
            let (first, last) = match whole {
                true => (o.id - o.id % quarters, o.id | (quarters - 1)),
                false => (o.id, o.id),
            };
            let mut all = self.running.range((cta, group, first)..=(cta, group, last));
            all.next().is_some()
        };
        let mut all = g.committed.iter().take(g.waited_for(keep)).flatten();
        !all.any(runs)
    }

    /// The quarters of an operation learn of each other.
    fn complete_group(&mut self, (cta, warp): (u32, u32), number: u64) {
        let warps = (0..WARPS as u32).map(|rank| (warp - warp % WARPS as u32 + rank, rank));
        let mut stamps = Vec::new();
        for set in [false, true] {
            for (warp, rank) in warps.clone() {
                let id = number * WARPS as u64 + u64::from(rank);
                let groups = self.warps.get_mut(&(cta, warp)).into_iter();
                let issued =
                    groups.flat_map(|g| g.committed.iter_mut().flatten().chain(&mut g.open));
                for o in issued.filter(|o| o.id == id) {
                    match set {
                        true => o.group.clone_from(&stamps),
                        false => stamps.extend(o.stamp),
                    }
                }
            }
        }
    }
}

/// A in registers, by slot, or in shared memory.
#[derive(Debug, Clone, Copy)]
enum Rows {
    Registers([u32; A_REGISTERS]),
    Shared(SharedMatrix),
}

/// A warp's quarter of a `wgmma.mma_async`.
#[derive(Debug)]
struct Multiplication {
    id: u64,
    pc: usize,
    cta: u32,
    warp: u32,
    /// The operation before it on the same accumulator.
    after: Option<u64>,
    product: Product,
    /// How it adds.
    rule: Option<Rule>,
    a: Rows,
    d: Vec<u32>,
    /// Number of the operation's reads of shared memory in `Pending`.
    reads: u64,
    tracked: Option<TrackedOp>,
}

impl Multiplication {
    fn group(&self) -> (u32, u32) {
        (self.cta, self.warp / WARPS as u32)
    }
}

impl Event for Multiplication {
    fn describe(&self) -> String {
        format!(
            "wgmma.mma_async of CTA {} warp {}, N = {}",
            self.cta,
            self.warp,
            self.product.shape.n()
        )
    }

    fn trace(&self) -> Operation {
        Operation {
            kind: Kind::Wgmma,
            name: format!("wgmma 64x{} of warp {}", self.product.shape.n(), self.warp),
            details: vec![
                ("accumulates", self.product.accumulate.into()),
                (
                    "a_in_registers",
                    matches!(self.a, Rows::Registers(_)).into(),
                ),
            ],
            barriers: Vec::new(),
        }
    }

    fn pc(&self) -> usize {
        self.pc
    }

    fn ready(&self, m: &Machine<'_>) -> bool {
        let reached = |g: &Warpgroup| g.reached(self.id / WARPS as u64);
        let (cta, group) = self.group();
        let runs = |id| m.wgmma.running.contains(&(cta, group, id));
        let before = self.after.is_some_and(runs);
        !before && m.wgmma.groups.get(&self.group()).is_none_or(reached)
    }

    fn complete(self: Box<Self>, m: &mut Machine<'_>) -> Result<(), Fault> {
        let (cta, group) = self.group();
        m.wgmma.running.remove(&(cta, group, self.id));
        m.pending.finished(self.reads);
        if let (Some(op), Some(h)) = (self.tracked, &mut m.hazards) {
            h.retire(self.cta, op, true);
        }
        let cta = m.ctas.iter_mut().find(|c| c.linear == self.cta);
        let gone = || broken("a wgmma.mma_async outlives its warp");
        let cta = cta.ok_or_else(gone)?;
        let warp = cta.warps.get_mut(self.warp as usize);
        let w = warp.and_then(Option::as_mut).ok_or_else(gone)?;
        let take =
            |slots: &[u32]| -> Vec<Lanes> { slots.iter().map(|r| w.regs[*r as usize]).collect() };
        let rows;
        let a = match self.a {
            Rows::Registers(slots) => {
                rows = slots.map(|r| w.regs[r as usize]);
                A::Registers(&rows)
            }
            Rows::Shared(m) => A::Shared(m),
        };
        let rank = self.warp % WARPS as u32;
        let shared = SharedView::new(&cta.shared, m.options);
        let d = self
            .product
            .run(rank, a, &take(&self.d), &shared, self.rule)
            .map_err(broken)?;
        let unwritten = shared.took_unwritten();
        for (slot, v) in self.d.iter().zip(d) {
            w.regs[*slot as usize] = v;
        }
        if unwritten {
            m.note(Relaxation::Unwritten, self.pc, READ_UNWRITTEN);
        }
        Ok(())
    }
}

impl Machine<'_> {
    pub(super) fn wgmma(
        &mut self,
        c: &Ctx<'_>,
        w: &mut Warp,
        cur: &mut Part,
        i: &Wgmma,
    ) -> Tried<Flow> {
        if c.active != u32::MAX {
            return Err(sync_fault("wgmma needs all 32 lanes of the warp"));
        }
        let me = (self.ctas[c.cta].linear, w.index);
        match i {
            Wgmma::Fence => {
                self.wgmma_step(c, w, (None, 0, false))?;
                w.poison.wgmma_fence(c.program.reg_masks.len());
            }
            Wgmma::Commit => {
                self.wgmma_step(c, w, (None, 0, false))?;
                let groups = self.wgmma.warps.entry(me).or_default();
                let group = std::mem::take(&mut groups.open);
                groups.committed.push_back(group);
                // A wait finds nothing in the oldest ones.
                while groups.committed.front().is_some_and(Vec::is_empty) {
                    groups.committed.pop_front();
                }
            }
            Wgmma::Wait { keep } => {
                let wait = Wait::Wgmma {
                    warp: w.index,
                    keep: *keep,
                };
                if !self.done(c.cta, wait) {
                    cur.state = State::Blocked(wait);
                    return Ok(Flow::Stop);
                }
                self.wgmma_step(c, w, (None, 0, false))?;
                self.wgmma_waited(w, me, *keep);
                self.aligned(c, w)?;
            }
            Wgmma::Mma(m) => self.wgmma_mma(c, w, m)?,
        }
        Ok(Flow::Next)
    }

    /// A warp executes an instruction of its group; its number.
    fn wgmma_step(
        &mut self,
        c: &Ctx<'_>,
        w: &Warp,
        operands: (Option<u64>, u64, bool),
    ) -> Tried<u64> {
        let cta = &self.ctas[c.cta];
        let rank = w.index as usize % WARPS;
        let first = w.index as usize - rank;
        if cta.live.len() < first + WARPS {
            return Err(sync_fault(format!(
                "warp {} is in no warpgroup: four warps from {first} on would be one, and the CTA has {}",
                w.index,
                cta.live.len()
            )));
        }
        let live: [u32; WARPS] = std::array::from_fn(|i| cta.live[first + i]);
        let key = (cta.linear, w.index / WARPS as u32);
        let group = self.wgmma.groups.entry(key).or_default();
        let step = Step { pc: c.pc, operands };
        let number = group.execute(rank, step).map_err(|e| match e {
            Mismatch::Instruction(pc) => sync_fault(format!(
                "the warps of a warpgroup must execute the same wgmma instructions; another one has executed {}",
                self.program.site(pc)
            )),
            Mismatch::Ahead => sync_fault(format!(
                "a warp is {MAX_AHEAD} wgmma instructions ahead of another one of its warpgroup"
            )),
            Mismatch::Operands => sync_fault(
                "the warps of a warpgroup give different descriptors or another scale-d",
            ),
        })?;
        let ended = (0..WARPS).find(|r| live[*r] == 0 && !group.has(*r, number));
        match ended {
            Some(r) => Err(sync_fault(format!(
                "warp {} of the warpgroup has ended and will not execute this",
                first + r
            ))),
            None => Ok(number),
        }
    }

    fn wgmma_waited(&mut self, w: &mut Warp, me: (u32, u32), keep: u32) {
        let Some(groups) = self.wgmma.warps.get_mut(&me) else {
            return;
        };
        let n = groups.waited_for(keep);
        let done: Vec<Issued> = groups.committed.drain(..n).flatten().collect();
        for o in &done {
            if let Some(registers) = w.poison.wgmma() {
                registers.release(&o.registers);
            }
        }
        let stamps: Vec<Stamp> = done.iter().filter_map(|o| o.stamp).collect();
        let groups: Vec<Stamp> = done.into_iter().flat_map(|o| o.group).collect();
        if let Some(h) = &mut self.hazards {
            for lane in 0..32 {
                h.waited_group((me.0, me.1, lane), &stamps, false);
            }
            h.over(me, &groups);
        }
    }

    fn wgmma_mma(&mut self, c: &Ctx<'_>, w: &mut Warp, m: &WgmmaMma) -> Tried<()> {
        let warp = |f: Fault| Trouble::Fault(f, None);
        let hazard = |why: &str| warp(Fault::new(ViolationKind::Hazard, why));
        let accumulate = match w.pred(m.accumulate) {
            0 => false,
            u32::MAX => true,
            _ => return Err(sync_fault("lanes of the warp give different scale-d")),
        };
        let rule = m.shape.rule(self.options.sums);
        let rule = rule.map_err(|why| c.no_rule(why))?;
        let descriptor = |s, which| uniform(c, w, s, &format!("descriptors of {which}"));
        let a = match m.a {
            WgmmaA::Registers(_) => None,
            WgmmaA::Shared { descriptor: s, .. } => Some(descriptor(s, "A")?),
        };
        let b = descriptor(m.b, "B")?;
        let number = self.wgmma_step(c, w, (a, b, accumulate))?;
        let of = |which: char| move |e| warp(broken(format!("{which}: {e}")));
        let rows = match m.a {
            WgmmaA::Registers(r) => Rows::Registers(r.map(|r| r.0)),
            WgmmaA::Shared { transposed, .. } => {
                let a = SharedMatrix::a(&m.shape, a.unwrap_or(0), transposed);
                Rows::Shared(a.map_err(of('A'))?)
            }
        };
        let product = Product {
            shape: m.shape,
            b: SharedMatrix::b(&m.shape, b, m.transposed_b).map_err(of('B'))?,
            negate_a: m.negate_a,
            negate_b: m.negate_b,
            accumulate,
            saturate: m.saturate,
        };
        let operands = Operands {
            d: m.d.iter().map(|r| r.0).collect(),
            a: match rows {
                Rows::Registers(slots) => slots.to_vec(),
                Rows::Shared(_) => Vec::new(),
            },
            key: m.shape.accumulator_key(),
        };
        operands.a.iter().for_each(|r| w.poison.note_undefined(*r));
        let pending = self.wgmma.warps.get(&(self.ctas[c.cta].linear, w.index));
        if pending.map_or(0, Groups::len) >= MAX_PENDING {
            return Err(warp(broken(format!(
                "{MAX_PENDING} wgmma.mma_async of a warp were not waited for"
            ))));
        }
        let id = number * WARPS as u64 + u64::from(w.index) % WARPS as u64;
        let compiled = self.options.allows(Relaxation::CompiledFence);
        let Some(registers) = w.poison.wgmma() else {
            return Err(hazard("a wgmma.mma_async without a wgmma.fence before it"));
        };
        let place = registers.issue(id, &operands, compiled).map_err(hazard)?;
        if let Some(lacks) = place.lacks {
            self.note(Relaxation::CompiledFence, c.pc, lacks);
        }

        let cta = self.ctas[c.cta].linear;
        let in_shared = match rows {
            Rows::Shared(a) => Some(a),
            Rows::Registers(_) => None,
        };
        let matrices = in_shared.iter().chain([&product.b]);
        let mut reads: Vec<(usize, u32, u32)> = matrices
            .flat_map(|m| m.bytes())
            .map(|(at, len)| (0, at, len))
            .collect();
        let reads = shared_reads(&[cta], &mut reads);
        let (mut tracked, mut stamp) = (None, None);
        if let Some(h) = &mut self.hazards
            && let Some(op) = h.begin((cta, w.index, 0), OpClass::Plain)
        {
            let swizzle = product.b.swizzle();
            // With one for both, no range has another.
            if in_shared.is_none_or(|a| a.swizzle() == swizzle) {
                h.expects(op, cta, swizzle);
            }
            h.op_shared((op, cta), &reads, c.pc);
            stamp = h.stamp(cta, op);
            tracked = Some(op);
        }
        self.check_hazards().map_err(warp)?;
        let reads = self.begin_reads(c.pc, &reads).map_err(warp)?;
        let me = (cta, w.index);
        let group = (cta, w.index / WARPS as u32);
        self.wgmma.running.insert((group.0, group.1, id));
        let d = operands.d.clone();
        self.wgmma.warps.entry(me).or_default().open.push(Issued {
            id,
            registers: operands,
            stamp,
            group: Vec::new(),
        });
        let whole = self.options.allows(Relaxation::WarpgroupWait);
        if whole
            && self
                .wgmma
                .groups
                .get(&group)
                .is_some_and(|g| g.reached(number))
        {
            self.wgmma.complete_group(me, number);
        }
        self.events.push(Box::new(Multiplication {
            id,
            pc: c.pc,
            cta,
            warp: w.index,
            after: place.after,
            product,
            rule,
            a: rows,
            d,
            reads,
            tracked,
        }));
        Ok(())
    }

    /// A warp ends.
    pub(super) fn wgmma_exit(&mut self, cta: usize, w: &Warp) -> Result<(), Fault> {
        let linear = self.ctas[cta].linear;
        if w.poison.wgmma_is_busy() {
            return Err(Fault::new(
                ViolationKind::Hazard,
                "a warp ends with a wgmma.mma_async that it has not waited for",
            ));
        }
        self.wgmma.warps.remove(&(linear, w.index));
        let key = (linear, w.index / WARPS as u32);
        let Some(group) = self.wgmma.groups.get(&key) else {
            return Ok(());
        };
        if let Some(pc) = group.missed(w.index as usize % WARPS) {
            return Err(Fault::new(
                ViolationKind::Synchronisation,
                format!(
                    "a warp ends that has not executed what another warp of its warpgroup has: {}",
                    self.program.site(pc)
                ),
            ));
        }
        if self.ctas[cta].ended() {
            self.wgmma.groups.retain(|(owner, _), _| *owner != linear);
        }
        Ok(())
    }
}
