//! `mbarrier.test_wait` and `.try_wait`.

use super::machine::{Machine, OfLane, Tried};
use super::mbarrier::fault;
use super::warp::{Part, State, Wait, Warp};
use super::{Ctx, Flow, lanes};
use crate::memory::Fault;
use crate::program::{Addr, BarrierSync, Src};
use crate::report::ViolationKind;

impl Machine<'_> {
    pub(super) fn mbarrier_wait(
        &mut self,
        c: &Ctx<'_>,
        w: &mut Warp,
        cur: &mut Part,
        (p, operand, parity, suspends, sync): (u32, Src, bool, bool, BarrierSync),
        addr: &Addr,
    ) -> Tried<Flow> {
        let base = *w.get(c.program, addr.base);
        let operands = *w.get(c.program, operand);
        let (mut done, mut barrier, mut same) = (0, None, true);
        for lane in lanes(c.active) {
            let l = lane as usize;
            let (owner, at) = self.mbarrier_place(c, addr, base[l], lane)?;
            if owner != c.cta {
                let message = "a wait on an mbarrier object of another CTA";
                let fault = Fault::new(ViolationKind::Synchronisation, message);
                return Err(fault.at(at).of_lane(lane));
            }
            let me = (self.ctas[c.cta].linear, w.index, lane);
            self.touch_mbarrier(me, owner, at, c.pc, false)
                .of_lane(lane)?;
            let result = self.object(owner, at, "mbarrier wait").and_then(|b| {
                let phase = b.phase();
                let r = if parity {
                    b.test_parity(operands[l] as u32)
                } else {
                    b.test_state(operands[l])
                };
                r.map(|r| (r, phase)).map_err(|e| fault(&e, at))
            });
            let (complete, phase) = result.of_lane(lane)?;
            if complete {
                self.ctas[c.cta].waited.insert((at, w.index), phase);
                if let Some(h) = &mut self.hazards {
                    h.acquired(me, me.0, at, sync);
                }
            }
            done |= u32::from(complete) << lane;
            same &= barrier.is_none_or(|b| b == (at, phase));
            barrier = Some((at, phase));
        }
        let timed_out = w.timed_out & c.active != 0;
        w.timed_out &= !c.active;
        let stuck = done == 0 && same;
        // A time limit may pass at any moment, so now and then it passes at once.
        let waits =
            suspends && stuck && !timed_out && cur.mask == c.active && !self.scheduler.impatient();
        let owner = self.ctas[c.cta].linear;
        let blocked = |retry| {
            barrier.map(|(at, phase)| {
                State::Blocked(Wait::Mbarrier {
                    owner,
                    at,
                    phase,
                    pc: c.pc as u32,
                    retry,
                })
            })
        };
        if waits && let Some(state) = blocked(true) {
            cur.state = state;
            return Ok(Flow::Stop);
        }
        w.set_pred(p, done, c.active);
        if stuck
            && !timed_out
            && !suspends
            && let Some(state) = blocked(false)
        {
            // The answer stands, but the warp makes room for those it waits for.
            cur.pc += 1;
            cur.state = state;
            return Ok(Flow::Stop);
        }
        Ok(Flow::Next)
    }
}
