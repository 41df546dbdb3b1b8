//! mbarrier objects: the instructions, and the arrivals and transactions of asynchronous operations.

use super::machine::{Machine, OfLane, Tried, Trouble};
use super::warp::{Part, State, Wait, Warp};
use super::{Ctx, Flow, lanes};
use crate::memory::{Fault, Space};
use crate::models::mbarrier::{self, Effect, Mbarrier, MbarrierError, Slot};
use crate::program::{Addr, Dst, MbarrierOp, Src};
use crate::report::ViolationKind;

/// A broken rule at an address.
pub(super) fn fault(e: &MbarrierError, at: u64) -> Fault {
    Fault::new(ViolationKind::Synchronisation, e.to_string()).at(at)
}

impl Machine<'_> {
    /// Index of a resident CTA by its number in the grid.
    pub(crate) fn cta_index(&self, linear: u32) -> Result<usize, Fault> {
        match self
            .ctas
            .iter()
            .position(|c| c.linear == linear && !c.ended())
        {
            Some(i) => Ok(i),
            None => Err(Fault::new(
                ViolationKind::Hazard,
                format!(
                    "an asynchronous operation uses the shared memory of CTA {linear}, which has ended"
                ),
            )),
        }
    }

    /// Phase of an object, if there is one.
    pub(crate) fn mbarrier_phase(&self, owner: u32, at: u64) -> Option<u64> {
        let c = self.ctas.iter().find(|c| c.linear == owner)?;
        Some(c.mbarriers.get(&at)?.peek()?.phase())
    }

    /// An object's state in words.
    pub(crate) fn describe_mbarrier(&self, owner: u32, at: u64) -> String {
        let object = self
            .ctas
            .iter()
            .find(|c| c.linear == owner)
            .and_then(|c| c.mbarriers.get(&at))
            .and_then(Slot::peek);
        match object {
            Some(b) => format!(
                "the mbarrier at shared address 0x{at:x} of CTA {owner}: phase {}, {} of {} arrivals pending, tx-count {}",
                b.phase(),
                b.pending(),
                b.expected(),
                b.tx_count()
            ),
            None => {
                format!("the mbarrier at shared address 0x{at:x} of CTA {owner}, which is gone")
            }
        }
    }

    /// A wait for the end of a phase, by a warp that has seen so many phases end.
    pub(crate) fn describe_mbarrier_wait(
        &self,
        owner: u32,
        at: u64,
        phase: u64,
        seen: u64,
    ) -> String {
        let parity = phase & 1;
        let object = self.describe_mbarrier(owner, at);
        // Whoever waits for each phase in turn asks for the parity of the one behind those it has seen.
        let missed = phase > seen && (phase - seen).is_multiple_of(2);
        let missed = match missed {
            true => {
                format!("; this waiter missed a phase: it has seen {seen} end, and {phase} have")
            }
            false => String::new(),
        };
        format!("for parity {parity} of {object}{missed}")
    }

    pub(super) fn object(
        &mut self,
        owner: usize,
        at: u64,
        op: &'static str,
    ) -> Result<&mut Mbarrier, Fault> {
        self.ctas[owner]
            .mbarriers
            .get_mut(&at)
            .ok_or(MbarrierError::Uninitialised { op })
            .and_then(|s| s.get(op))
            .map_err(|e| fault(&e, at))
    }

    /// The complete-tx of an asynchronous operation, on an object of a CTA by its linear number.
    pub(crate) fn async_complete_tx(
        &mut self,
        owner: u32,
        at: u64,
        bytes: u32,
    ) -> Result<(), Fault> {
        let what = "complete_tx of an asynchronous operation";
        self.async_effect(owner, at, what, |object| object.complete_tx(bytes))
    }

    /// The arrive-on of an asynchronous operation that a thread of the CTA `issuer` started.
    ///
    /// A CTA may end before such a signal on an object of its own. 2.2.2 makes the end of a CTA wait for what its peers
    /// do to its shared memory. Nothing in the text makes it wait for its own `tcgen05.commit` or
    /// `cp.async.mbarrier.arrive`. The object is gone then, and nobody can wait on it. Operations that the signal
    /// tracks are judged apart from it. An operation that still uses the memory of a CTA that has ended remains an
    /// error, as does a signal to another CTA.
    pub(crate) fn async_arrive(
        &mut self,
        issuer: u32,
        owner: u32,
        at: u64,
        count: u32,
    ) -> Result<(), Fault> {
        if issuer == owner && self.resident(owner).is_none() {
            return Ok(());
        }
        let what = "arrive of an asynchronous operation";
        self.async_effect(owner, at, what, |object| object.arrive(count))
    }

    fn async_effect(
        &mut self,
        owner: u32,
        at: u64,
        what: &'static str,
        f: impl FnOnce(&mut Mbarrier) -> Result<Effect, MbarrierError>,
    ) -> Result<(), Fault> {
        let i = self.cta_index(owner)?;
        let effect = f(self.object(i, at, what)?).map_err(|e| fault(&e, at))?;
        self.phase_over(effect, owner, at);
        self.pending.progressed();
        Ok(())
    }

    /// Tells the hazard tracker of a phase that is over.
    fn phase_over(&mut self, effect: Effect, owner: u32, at: u64) {
        if let (true, Some(h)) = (effect.completed, &mut self.hazards) {
            h.phase(owner, at);
        }
    }

    /// Tells the hazard tracker that a thread uses an object, or ends it.
    pub(super) fn touch_mbarrier(
        &mut self,
        me: (u32, u32, u32),
        owner: usize,
        at: u64,
        pc: usize,
        inval: bool,
    ) -> Result<(), Fault> {
        // An address without an object is not reported here: the access to the object does that.
        if !self.ctas[owner].mbarriers.contains_key(&at) {
            return Ok(());
        }
        let owner = self.ctas[owner].linear;
        if let Some(h) = &mut self.hazards {
            h.touch(me, owner, at, pc, inval);
        }
        self.check_hazards()
    }

    /// The pending count's increment of `cp.async.mbarrier.arrive`.
    pub(crate) fn async_increment(&mut self, owner: usize, at: u64) -> Result<(), Fault> {
        let r = self
            .object(owner, at, "cp.async.mbarrier.arrive")?
            .increment_pending();
        r.map_err(|e| fault(&e, at))
    }

    /// Owner (an index) and offset of an object's address.
    pub(crate) fn mbarrier_place(
        &self,
        c: &Ctx<'_>,
        addr: &Addr,
        base: u64,
        lane: u32,
    ) -> Tried<(usize, u64)> {
        let place = self.locate(c, addr, base, lane)?;
        if place.space == Space::Shared {
            return Ok((place.owner, place.address));
        }
        let message = format!("mbarrier address in {} memory", place.space.name());
        let fault = Fault::new(ViolationKind::OutOfBounds, message);
        Err(fault.at(place.address).of_lane(lane))
    }

    /// Executes an `mbarrier` instruction.
    pub(super) fn mbarrier(
        &mut self,
        c: &Ctx<'_>,
        w: &mut Warp,
        cur: &mut Part,
        op: &MbarrierOp,
        addr: &Addr,
    ) -> Tried<Flow> {
        let base = *w.get(c.program, addr.base);
        if let MbarrierOp::Wait {
            p,
            operand,
            parity,
            suspends,
            sync,
        } = *op
        {
            return self.mbarrier_wait(c, w, cur, (p, operand, parity, suspends, sync), addr);
        }
        let mut states = [0; 32];
        for lane in lanes(c.active) {
            let l = lane as usize;
            let value = |s: Src| w.get(c.program, s)[l] as u32;
            let (owner, at) = self.mbarrier_place(c, addr, base[l], lane)?;
            let me = (self.ctas[c.cta].linear, w.index, lane);
            if !matches!(op, MbarrierOp::Init { .. }) {
                self.touch_mbarrier(me, owner, at, c.pc, matches!(op, MbarrierOp::Inval))
                    .of_lane(lane)?;
            }
            let effect = match *op {
                MbarrierOp::Init { count } => self.mbarrier_init(owner, at, value(count)),
                MbarrierOp::Inval => self.mbarrier_inval(owner, at),
                MbarrierOp::ExpectTx { tx } => self
                    .object(owner, at, "mbarrier.expect_tx")
                    .and_then(|b| b.expect_tx(value(tx)).map_err(|e| fault(&e, at)))
                    .map(|()| None),
                MbarrierOp::CompleteTx { tx } => self
                    .object(owner, at, "mbarrier.complete_tx")
                    .and_then(|b| b.complete_tx(value(tx)).map_err(|e| fault(&e, at)))
                    .map(Some),
                MbarrierOp::Arrive {
                    count,
                    tx,
                    drop,
                    no_complete,
                    ..
                } => {
                    let count = count.map_or(1, value);
                    let name = if drop {
                        "mbarrier.arrive_drop"
                    } else {
                        "mbarrier.arrive"
                    };
                    let tx = tx.map(value);
                    self.object(owner, at, name)
                        .and_then(|b| {
                            arrive(b, count, tx, drop, no_complete).map_err(|e| fault(&e, at))
                        })
                        .map(Some)
                }
                MbarrierOp::Wait { .. } => Ok(None),
            };
            let effect = effect.of_lane(lane)?;
            let owner = self.ctas[owner].linear;
            if let (MbarrierOp::Init { .. }, Some(h)) = (op, &mut self.hazards) {
                h.init(me, owner, at, c.pc);
                self.check_hazards().of_lane(lane)?;
            }
            if let Some(e) = effect {
                states[l] = e.state;
                if let (MbarrierOp::Arrive { sync, .. }, Some(h)) = (op, &mut self.hazards) {
                    h.arrive(me, owner, at, *sync);
                }
                self.phase_over(e, owner, at);
                self.pending.progressed();
            }
        }
        if let MbarrierOp::Arrive { d: Some(d), .. } = *op {
            w.set(c.program, d, &states, c.active);
        }
        Ok(Flow::Next)
    }

    fn mbarrier_init(
        &mut self,
        owner: usize,
        at: u64,
        count: u32,
    ) -> Result<Option<Effect>, Fault> {
        self.ctas[owner]
            .shared
            .check(at, mbarrier::SIZE, mbarrier::SIZE, "mbarrier object")?;
        if !self.ctas[owner].mbarriers.contains_key(&at) {
            self.check_in_flight(Space::Shared, owner, at, mbarrier::SIZE as usize, true)?;
        }
        self.ctas[owner].waited.retain(|(of, _), _| *of != at);
        let slot = self.ctas[owner].mbarriers.entry(at).or_default();
        slot.init(at as u32, count).map_err(|e| fault(&e, at))?;
        Ok(None)
    }

    /// The bytes may be used for anything afterwards, and hold nothing yet.
    fn mbarrier_inval(&mut self, owner: usize, at: u64) -> Result<Option<Effect>, Fault> {
        let linear = self.ctas[owner].linear;
        let waits = |s: &State| matches!(s, State::Blocked(Wait::Mbarrier { owner: o, at: a, .. }) if (*o, *a) == (linear, at));
        let waiters = self
            .ctas
            .iter()
            .flat_map(|c| c.warps.iter().flatten().flat_map(|w| &w.parts))
            .filter(|p| waits(&p.state))
            .count();
        let gone = self.ctas[owner].mbarriers.get_mut(&at).map_or(
            Err(MbarrierError::Uninitialised {
                op: "mbarrier.inval",
            }),
            Slot::inval,
        );
        gone.map_err(|e| fault(&e, at))?;
        self.ctas[owner].mbarriers.remove(&at);
        self.ctas[owner].shared.forget(at, mbarrier::SIZE)?;
        if waiters > 0 {
            let message =
                format!("mbarrier.inval while {waiters} parts of warps wait on the object");
            return Err(Fault::new(ViolationKind::Synchronisation, message).at(at));
        }
        Ok(None)
    }

    /// `mbarrier.pending_count`.
    pub(super) fn pending_count(&mut self, c: &Ctx<'_>, w: &mut Warp, d: Dst, a: Src) -> Tried<()> {
        let states = *w.get(c.program, a);
        let mut out = [0; 32];
        for lane in lanes(c.active) {
            let count = mbarrier::pending_count(states[lane as usize]);
            let count = count.map_err(|e| {
                Trouble::Fault(
                    Fault::new(ViolationKind::Synchronisation, e.to_string()),
                    Some(lane),
                )
            })?;
            out[lane as usize] = u64::from(count);
        }
        w.set(c.program, d, &out, c.active);
        Ok(())
    }
}

fn arrive(
    b: &mut Mbarrier,
    count: u32,
    tx: Option<u32>,
    drop: bool,
    no_complete: bool,
) -> Result<Effect, MbarrierError> {
    match (tx, drop, no_complete) {
        (Some(tx), false, _) => b.arrive_expect_tx(tx),
        (Some(tx), true, _) => b.arrive_drop_expect_tx(tx),
        (None, false, false) => b.arrive(count),
        (None, false, true) => b.arrive_no_complete(count),
        (None, true, false) => b.arrive_drop(count),
        (None, true, true) => b.arrive_drop_no_complete(count),
    }
}
