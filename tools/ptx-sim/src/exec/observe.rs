//! Checked accesses to memory, as the hazard tracker and observers see them.

use super::Ctx;
use super::machine::{Machine, OfLane, Place, Tried, Trouble};
use super::pending::Use;
use super::warp::Warp;
use crate::memory::{Access, AccessKind, Actor, Fault, Space};
use crate::models::relaxation::Relaxation;
use crate::program::{Addr, Dst, Lanes, Op, Order};
use crate::sim::Uninitialised;

impl Machine<'_> {
    /// Reads memory other than local.
    pub(crate) fn read(
        &mut self,
        actor: Actor,
        at: Place,
        align: u32,
        out: &mut [u8],
    ) -> Tried<()> {
        self.read_as(actor, at, align, out, Order::default())
    }

    /// Writes memory other than local.
    pub(crate) fn write(&mut self, actor: Actor, at: Place, align: u32, data: &[u8]) -> Tried<()> {
        let how = (AccessKind::Write, Order::default());
        self.write_as(actor, at, align, data, how)
    }

    /// Reads with these memory semantics.
    pub(crate) fn read_as(
        &mut self,
        actor: Actor,
        at: Place,
        align: u32,
        out: &mut [u8],
        order: Order,
    ) -> Tried<()> {
        let lane = Some(actor.lane);
        self.check_in_flight(at.space, at.owner, at.address, out.len(), false)
            .map_err(|f| Trouble::Fault(f, lane))?;
        if at.space == Space::Global {
            self.check_grids_before(actor, at.owner, (at.address, out.len() as u64), Use::Read)?;
        }
        let init = self
            .region(at.space, at.owner)
            .read(at.address, align, out)
            .map_err(|f| Trouble::Fault(f, lane))?;
        if let Err(f) = init {
            let op = &self.program.code[actor.pc as usize].op;
            let loads =
                at.space == Space::Shared && matches!(op, Op::Ld { .. } | Op::LdMatrix { .. });
            let used = matches!(
                self.options.uninitialised,
                Uninitialised::Error | Uninitialised::Warn
            );
            if loads && used && self.options.allows(Relaxation::UnusedLoads) {
                self.note(Relaxation::UnusedLoads, actor.pc as usize, &*f.message);
                self.holes.push((actor.lane, f));
            } else {
                self.uninitialised(f, actor)?;
            }
        }
        self.observe(actor, at, out.len(), (AccessKind::Read, order))
    }

    /// Writes with these memory semantics.
    pub(crate) fn write_as(
        &mut self,
        actor: Actor,
        at: Place,
        align: u32,
        data: &[u8],
        how: (AccessKind, Order),
    ) -> Tried<()> {
        self.check_in_flight(at.space, at.owner, at.address, data.len(), true)
            .of_lane(actor.lane)?;
        if at.space == Space::Global {
            let range = (at.address, data.len() as u64);
            self.check_grids_before(actor, at.owner, range, Use::Write)?;
        }
        self.region(at.space, at.owner)
            .write(at.address, align, data)
            .of_lane(actor.lane)?;
        self.observe(actor, at, data.len(), how)
    }

    /// Registers that the instruction at hand has loaded from bytes that nothing wrote: `reached` are the lanes of the
    /// register of this number that have bytes which this lane gave the address of.
    pub(super) fn undefine_loaded(
        &mut self,
        c: &Ctx<'_>,
        w: &mut Warp,
        (d, addr, base): (&[Option<Dst>], &Addr, &Lanes),
        reached: impl Fn(u32, usize) -> u32,
    ) {
        if addr.space != Some(Space::Global) {
            let at = base.map(|base| base.wrapping_add_signed(addr.offset));
            w.poison.loaded(c.pc as u32, d, &at);
        }
        for (lane, fault) in std::mem::take(&mut self.holes) {
            let v = self.violation(fault, c.pc, Some(self.thread(c.cta, w.index, lane)));
            for (i, d) in d.iter().enumerate() {
                if let (Some(d), lanes @ 1..) = (d, reached(lane, i)) {
                    w.poison.undefine(d.0, lanes, &v);
                }
            }
        }
    }

    /// Treats a read of bytes that nothing wrote as the options say.
    pub(crate) fn uninitialised(&mut self, f: Fault, actor: Actor) -> Tried<()> {
        match self.options.uninitialised {
            Uninitialised::Error | Uninitialised::Stale(_) => {
                Err(Trouble::Fault(f, Some(actor.lane)))
            }
            Uninitialised::Ignore => Ok(()),
            Uninitialised::Warn => {
                let cta = self.ctas.iter().position(|c| c.linear == actor.cta);
                let thread = cta.map(|c| self.thread(c, actor.warp, actor.lane));
                let v = self.violation(f, actor.pc as usize, thread);
                self.warn(v);
                Ok(())
            }
        }
    }

    /// Whether anybody looks at accesses to a space.
    pub(super) fn observes(&self, space: Space, order: Order) -> bool {
        self.observer.is_some() || self.tracks(space, order)
    }

    /// Whether the tracker does. Of global memory it sees flags only.
    fn tracks(&self, space: Space, order: Order) -> bool {
        let flag = space == Space::Global && order.strong;
        (space == Space::Shared || flag) && self.hazards.is_some()
    }

    pub(super) fn observe(
        &mut self,
        actor: Actor,
        at: Place,
        size: usize,
        (kind, order): (AccessKind, Order),
    ) -> Tried<()> {
        if !self.observes(at.space, order) {
            return Ok(());
        }
        let tracked = self.tracks(at.space, order);
        let access = Access {
            actor,
            space: at.space,
            owner: self.ctas[at.owner].linear,
            address: at.address,
            size: size as u32,
            kind,
            order,
        };
        let lane = Some(actor.lane);
        if let (true, Some(h)) = (tracked, &mut self.hazards) {
            h.access(&access);
            self.check_hazards().map_err(|f| Trouble::Fault(f, lane))?;
        }
        match &mut self.observer {
            Some(o) => o.access(&access).map_err(|f| Trouble::Fault(f, lane)),
            None => Ok(()),
        }
    }
}
