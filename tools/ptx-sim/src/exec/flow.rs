//! Branches, divergence and the end of lanes.

use super::machine::{Machine, OfLane, Tried, Trouble};
use super::warp::{Part, State, Warp};
use super::{Ctx, Flow, lanes};
use crate::memory::Fault;
use crate::models::relaxation::Relaxation;
use crate::program::Lanes;
use crate::report::ViolationKind;

impl Machine<'_> {
    pub(super) fn branch(
        &mut self,
        c: &Ctx<'_>,
        w: &mut Warp,
        cur: &mut Part,
        target: u32,
    ) -> Tried<Flow> {
        let rest = cur.mask & !c.active;
        self.counters.taken[c.pc] = true;
        if rest == 0 {
            return Ok(Flow::Jump(target));
        }
        self.counters.fell_through[c.pc] = true;
        diverge(c, w, cur, rest, cur.pc + 1);
        Ok(Flow::Jump(target))
    }

    pub(super) fn indexed_branch(
        &mut self,
        c: &Ctx<'_>,
        w: &mut Warp,
        cur: &mut Part,
        targets: &[u32],
        index: &Lanes,
    ) -> Tried<Flow> {
        let rest = cur.mask & !c.active;
        if rest != 0 {
            diverge(c, w, cur, rest, cur.pc + 1);
        }
        let mut left = c.active;
        loop {
            let lane = left.trailing_zeros();
            let i = index[lane as usize] & 0xffff_ffff;
            let Some(&to) = targets.get(i as usize) else {
                let f = format!("brx.idx with index {i} of {} targets", targets.len());
                return Err(Trouble::Fault(
                    Fault::new(ViolationKind::Other, f),
                    Some(lane),
                ));
            };
            let same = lanes(left)
                .filter(|l| index[*l as usize] & 0xffff_ffff == i)
                .fold(0, |m, l| m | 1 << l);
            left &= !same;
            if left == 0 {
                return Ok(Flow::Jump(to));
            }
            diverge(c, w, cur, same, to);
        }
    }

    /// Has a CTA's own bulk stores read their sources before the CTA's last threads end, where that is allowed.
    fn keep_for_stores(&mut self, cta: usize, w: &Warp, gone: u32) -> Result<(), Fault> {
        let of = &self.ctas[cta];
        let others = (0..)
            .zip(&of.live)
            .any(|(i, live)| i != w.index && *live != 0);
        if others || w.live & !gone != 0 || !self.options.allows(Relaxation::UnreadStores) {
            return Ok(());
        }
        let linear = of.linear;
        while let Some(q) = self.events.take(|e| e.reads_shared_of() == Some(linear)) {
            let pc = q.event.pc();
            q.event.complete(self)?;
            let why = "its CTA ends before the store has read its source";
            self.note(Relaxation::UnreadStores, pc, why);
        }
        Ok(())
    }

    /// Ends lanes.
    pub(super) fn exit(
        &mut self,
        cta: usize,
        w: &mut Warp,
        cur: &mut Part,
        lanes: u32,
    ) -> Tried<()> {
        let gone = cur.mask & lanes;
        self.keep_for_stores(cta, w, gone)
            .of_lane(gone.trailing_zeros().min(31))?;
        cur.mask &= !gone;
        w.live &= !gone;
        self.ctas[cta].live[w.index as usize] = w.live;
        w.reconsider();
        let ended = self.ctas[cta].ended();
        let linear = self.ctas[cta].linear;
        if let (Some(h), true) = (&mut self.hazards, gone != 0) {
            h.exit(linear, w.index, gone, ended, cur.pc);
        }
        self.check_hazards()
            .of_lane(gone.trailing_zeros().min(31))?;
        if w.live == 0 {
            self.wgmma_exit(cta, w)
                .of_lane(gone.trailing_zeros().min(31))?;
        }
        if ended {
            self.launch_dependents(cta);
            self.tensor_exit(cta).of_lane(lanes.trailing_zeros() & 31)?;
        }
        self.after_exit(cta)
    }
}

/// Splits lanes off to another instruction.
fn diverge(c: &Ctx<'_>, w: &mut Warp, cur: &mut Part, off: u32, to: u32) {
    if let Some(join) = c.program.code[c.pc].join {
        // Lanes that leave a loop one after another meet at one join, with the first's lanes.
        if cur.joins.last().is_none_or(|j| j.0 != join) {
            cur.joins.push((join, cur.mask));
        }
    }
    w.parts.push(Part {
        pc: to,
        mask: off,
        joins: cur.joins.clone(),
        state: State::Ready,
    });
    cur.mask &= !off;
}
