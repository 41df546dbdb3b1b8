//! Loads, stores and atomics, lane by lane; generic addresses and addresses of other CTAs.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::machine::{Machine, OfLane, Place, Tried, Trouble};
use super::together::Together;
use super::transfer::refuse;
use super::warp::{Part, State, Wait, Warp};
use super::{Ctx, Flow, lanes};
use crate::memory::layout::{SHARED, SHARED_RANK_SHIFT, generic_shared, split_generic};
use crate::memory::{AccessKind, Actor, Fault, Space};
use crate::models::relaxation::Relaxation;
use crate::program::{Addr, Lanes, Op, Order};
use crate::report::ViolationKind;

/// Vector elements never number more.
const MAX_ELEMENTS: usize = 8;

/// Strong loads that a warp remembers.
const MAX_POLLED: usize = 4096;

impl Machine<'_> {
    pub(super) fn locate(&self, c: &Ctx<'_>, a: &Addr, base: u64, lane: u32) -> Tried<Place> {
        let mut address = base.wrapping_add_signed(a.offset);
        if a.narrow {
            address &= 0xffff_ffff;
        }
        let (space, address) = match a.space {
            None => split_generic(address),
            Some(s) => (s, address),
        };
        if space != Space::Shared {
            return Ok(Place {
                space,
                owner: c.cta,
                address,
            });
        }
        let mut address = address;
        if let (Some(_), Some(shared)) = (a.space, generic_shared(address)) {
            if !self.options.allows(Relaxation::GenericShared) {
                let message = "a generic address where one of shared memory is expected (cvta.to.shared is missing)";
                let fault = Fault::new(ViolationKind::OutOfBounds, message);
                return Err(fault.at(address).of_lane(lane));
            }
            self.generic.set(true);
            address = shared;
        }
        let (owner, address) = self.shared_owner(c.cta, a.own, address).of_lane(lane)?;
        Ok(Place {
            space,
            owner,
            address,
        })
    }

    pub(super) fn load(
        &mut self,
        w: &mut Warp,
        actor: Actor,
        at: &Place,
        align: u32,
        out: &mut [u8],
        order: Order,
    ) -> Tried<()> {
        if at.space != Space::Local {
            return self.read_as(actor, *at, align, out, order);
        }
        let Some(r) = w.local.get_mut(actor.lane as usize) else {
            return Err(no_local(at, actor));
        };
        match r.read(at.address, align, out) {
            Err(f) => Err(Trouble::Fault(f, Some(actor.lane))),
            Ok(Err(f)) => self.uninitialised(f, actor),
            Ok(Ok(())) => Ok(()),
        }
    }

    pub(super) fn store(
        &mut self,
        w: &mut Warp,
        actor: Actor,
        at: &Place,
        align: u32,
        data: &[u8],
        how: (AccessKind, Order),
    ) -> Tried<()> {
        if at.space != Space::Local {
            return self.write_as(actor, *at, align, data, how);
        }
        let Some(r) = w.local.get_mut(actor.lane as usize) else {
            return Err(no_local(at, actor));
        };
        r.write(at.address, align, data).of_lane(actor.lane)
    }

    /// `ld`, `st`, `atom` and `red`.
    pub(super) fn access(
        &mut self,
        c: &Ctx<'_>,
        w: &mut Warp,
        cur: &mut Part,
        op: &Op,
    ) -> Tried<Flow> {
        let p = c.program;
        if !matches!(op, Op::Ld { .. }) {
            self.stores += 1;
            self.pending.progressed();
            w.polled.clear();
        }
        match op {
            Op::Ld {
                d,
                addr,
                bytes,
                align,
                signed,
                order,
            } => {
                let base = *w.get(p, addr.base);
                let n = *bytes as usize;
                let shift = 64 - 8 * *bytes;
                let mut out = [[0u64; 32]; MAX_ELEMENTS];
                let together = Together {
                    addr,
                    base: &base,
                    bytes: n,
                    elements: d.len(),
                    align: *align,
                    order: *order,
                };
                if self.load_together(c, w, &together, &mut out)?.is_none() {
                    let mut buffer = [0u8; 32];
                    for lane in lanes(c.active) {
                        let at = self.locate(c, addr, base[lane as usize], lane)?;
                        let actor = c.actor(self, w, lane);
                        self.load(w, actor, &at, *align, &mut buffer[..n * d.len()], *order)?;
                        for (i, o) in out.iter_mut().take(d.len()).enumerate() {
                            let mut word = [0u8; 8];
                            word[..n].copy_from_slice(&buffer[i * n..(i + 1) * n]);
                            o[lane as usize] = u64::from_le_bytes(word);
                        }
                    }
                }
                if *signed {
                    for v in out[..d.len()].as_flattened_mut() {
                        *v = ((*v << shift) as i64 >> shift) as u64;
                    }
                }
                for (d, v) in d.iter().zip(&out) {
                    if let Some(d) = d {
                        w.set(p, *d, v, c.active);
                    }
                }
                self.undefine_loaded(c, w, (d, addr, &base), |lane, _| 1 << lane);
                if order.strong {
                    return Ok(self.polls(c, w, cur, &base, &out));
                }
            }
            Op::St {
                s,
                addr,
                bytes,
                align,
                order,
            } => {
                let base = *w.get(p, addr.base);
                let n = *bytes as usize;
                let together = Together {
                    addr,
                    base: &base,
                    bytes: n,
                    elements: s.len(),
                    align: *align,
                    order: *order,
                };
                let mut values = [&base; MAX_ELEMENTS];
                for (v, s) in values.iter_mut().zip(s) {
                    *v = w.get(p, *s);
                }
                let undefined = s.iter().fold(0, |m, s| m | w.poison.undefined(s.0)) & c.active;
                if undefined == 0 {
                    let stored = self.store_together(c, w, &together, &values[..s.len()])?;
                    if stored.is_some() {
                        return Ok(Flow::Next);
                    }
                }
                // An undefined value may go to shared memory, which then holds nothing.
                let mut used = undefined;
                let mut buffer = [0u8; 32];
                for lane in lanes(c.active) {
                    for (i, s) in s.iter().enumerate() {
                        let v = w.get(p, *s)[lane as usize].to_le_bytes();
                        buffer[i * n..(i + 1) * n].copy_from_slice(&v[..n]);
                    }
                    let at = self.locate(c, addr, base[lane as usize], lane)?;
                    let actor = c.actor(self, w, lane);
                    self.store(
                        w,
                        actor,
                        &at,
                        *align,
                        &buffer[..n * s.len()],
                        (AccessKind::Write, *order),
                    )?;
                    if undefined >> lane & 1 == 1 && at.space == Space::Shared {
                        used &= !(1 << lane);
                        let size = (n * s.len()) as u32;
                        let region = self.region(at.space, at.owner);
                        region.forget(at.address, size).of_lane(lane)?;
                    }
                }
                let used = used | w.poison.undefined(addr.base.0);
                w.poison.choose(used, u32::MAX);
            }
            Op::Atom {
                f,
                d,
                addr,
                bytes,
                b,
                c: second,
                order,
            } => {
                let base = *w.get(p, addr.base);
                let (b, second_values) = (*w.get(p, *b), *w.get(p, *second));
                let n = *bytes as usize;
                let mask = if n == 8 { u64::MAX } else { (1 << (8 * n)) - 1 };
                let mut out = [0u64; 32];
                for lane in lanes(c.active) {
                    let l = lane as usize;
                    let at = self.locate(c, addr, base[l], lane)?;
                    let actor = c.actor(self, w, lane);
                    if matches!(at.space, Space::Local | Space::Param | Space::Const) {
                        let message = format!("atomic on {} memory", at.space.name());
                        return Err(refuse(lane, at.address, message));
                    }
                    let mut word = [0u8; 8];
                    self.load(w, actor, &at, *bytes, &mut word[..n], *order)?;
                    let old = u64::from_le_bytes(word);
                    let third = if f.compares {
                        second_values[l] & mask
                    } else {
                        u64::from(at.space == Space::Global)
                    };
                    let new = (f.f)(old, b[l] & mask, third);
                    self.store(
                        w,
                        actor,
                        &at,
                        *bytes,
                        &new.to_le_bytes()[..n],
                        (AccessKind::Atomic, *order),
                    )?;
                    out[l] = old;
                }
                if let Some(d) = d {
                    w.set(p, *d, &out, c.active);
                }
            }
            _ => {}
        }
        Ok(Flow::Next)
    }

    /// Called after a load that may be one of a loop that waits for another thread's store. If the load found the same
    /// value as before, and its warp has stored nothing since then, the warp gives way to other warps until there was a
    /// store.
    fn polls(
        &self,
        c: &Ctx<'_>,
        w: &mut Warp,
        cur: &mut Part,
        addresses: &Lanes,
        found: &[Lanes],
    ) -> Flow {
        let mut hasher = DefaultHasher::new();
        for lane in lanes(c.active) {
            let lane = lane as usize;
            (lane, addresses[lane]).hash(&mut hasher);
            found
                .iter()
                .for_each(|element| element[lane].hash(&mut hasher));
        }
        let (at, now) = ((c.pc as u32, c.active), hasher.finish());
        // Lanes can come to one load in many ways.
        if w.polled.len() >= MAX_POLLED {
            w.polled.clear();
        }
        if w.polled.insert(at, now) != Some(now) {
            return Flow::Next;
        }
        cur.pc += 1;
        cur.state = State::Blocked(Wait::Store {
            stores: self.stores,
            pc: c.pc as u32,
        });
        Flow::Stop
    }

    /// `discard`: a write of nothing that could be read.
    pub(super) fn discard(&mut self, c: &Ctx<'_>, w: &Warp, addr: &Addr) -> Tried<()> {
        const SIZE: usize = 128;
        let base = w.get(c.program, addr.base);
        for lane in lanes(c.active) {
            let at = self.locate(c, addr, base[lane as usize], lane)?;
            if at.space != Space::Global {
                let message = format!("discard of {} memory", at.space.name());
                return Err(refuse(lane, at.address, message));
            }
            let actor = c.actor(self, w, lane);
            self.write(actor, at, SIZE as u32, &[0; SIZE])?;
            self.region(at.space, at.owner)
                .forget(at.address, SIZE as u32)
                .of_lane(lane)?;
        }
        Ok(())
    }

    /// `isspacep`, `mapa` and `getctarank`.
    pub(super) fn address_query(&mut self, c: &Ctx<'_>, w: &mut Warp, op: &Op) {
        let p = c.program;
        let my_rank = u64::from(self.ctas[c.cta].rank);
        let rank_of = |shared: u64| shared >> SHARED_RANK_SHIFT;
        match op {
            Op::IsSpace {
                p: d,
                a,
                space,
                own,
            } => {
                let mut r = 0;
                for (i, a) in w.get(p, *a).iter().enumerate() {
                    let (s, at) = split_generic(*a);
                    let here =
                        s == *space && (!own || s != Space::Shared || rank_of(at) == my_rank);
                    r |= u32::from(here) << i;
                }
                w.set_pred(*d, r, c.active);
            }
            Op::Mapa {
                d,
                a,
                rank,
                generic,
            } => {
                let (a, rank) = (*w.get(p, *a), *w.get(p, *rank));
                let mut out = [0; 32];
                for i in 0..32 {
                    let base = if *generic { SHARED } else { 0 };
                    let offset = a[i].wrapping_sub(base) & ((1 << SHARED_RANK_SHIFT) - 1);
                    out[i] = base.wrapping_add((rank[i] & 0xffff) << SHARED_RANK_SHIFT | offset);
                }
                w.set(p, *d, &out, c.active);
            }
            Op::CtaRank { d, a, generic } => {
                let out = w.get(p, *a).map(|a| {
                    rank_of(if *generic {
                        a.wrapping_sub(SHARED)
                    } else {
                        a & 0xffff_ffff
                    })
                });
                w.set(p, *d, &out, c.active);
            }
            _ => {}
        }
    }
}

fn no_local(at: &Place, actor: Actor) -> Trouble {
    let message = "local memory of a kernel that has none";
    let fault = Fault::new(ViolationKind::OutOfBounds, message);
    fault.at(at.address).of_lane(actor.lane)
}
