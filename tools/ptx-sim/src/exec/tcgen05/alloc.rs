//! `tcgen05.alloc`, `.dealloc` and `.relinquish_alloc_permit`.

use super::{broken, uniform};
use crate::exec::machine::{Machine, Tried, Trouble};
use crate::exec::warp::{Part, State, Wait, Warp};
use crate::exec::{Ctx, Flow};
use crate::memory::Space;
use crate::models::tcgen05_mma::CtaGroup;
use crate::models::tmem::TmemAddr;
use crate::models::tmem_alloc::{AllocError, AllocOutcome};
use crate::program::{Addr, Src};

fn refused(e: AllocError) -> Trouble {
    Trouble::Fault(broken(e), None)
}

impl Machine<'_> {
    pub(super) fn tensor_alloc(
        &mut self,
        c: &Ctx<'_>,
        w: &mut Warp,
        cur: &mut Part,
        group: CtaGroup,
        dst: &Addr,
        columns: Src,
    ) -> Tried<Flow> {
        let columns = uniform(c, w, columns, "column counts")? as u32;
        let base = uniform(c, w, dst.base, "addresses")?;
        let place = self.locate(c, dst, base, 0)?;
        if place.space != Space::Shared || place.owner != c.cta {
            return Err(Trouble::Fault(
                broken("tcgen05.alloc writes to the CTA's own shared memory only"),
                None,
            ));
        }
        let granted = match group {
            CtaGroup::One => self.alloc_one(c, columns)?,
            CtaGroup::Two => self.alloc_pair(c, columns)?,
        };
        let Some(at) = granted else {
            cur.state = State::Blocked(Wait::TensorAlloc {
                epoch: self.tensor.epoch,
                columns,
            });
            return Ok(Flow::Stop);
        };
        let actor = c.actor(self, w, 0);
        self.write(actor, place, 4, &at.0.to_le_bytes())?;
        Ok(Flow::Next)
    }

    fn alloc_one(&mut self, c: &Ctx<'_>, columns: u32) -> Tried<Option<TmemAddr>> {
        if self.dependents_left_nothing(c) {
            return Ok(None);
        }
        let (sm, linear) = (self.sm(c.cta), self.ctas[c.cta].linear);
        let holder = self.neighbours.holder(linear);
        let a = self.tensor.allocators.entry(sm).or_default();
        match a.alloc(holder, columns).map_err(refused)? {
            AllocOutcome::Allocated(at) => {
                self.mark_columns(linear, at.column(), columns, true);
                Ok(Some(at))
            }
            AllocOutcome::Blocked => Ok(None),
        }
    }

    /// Columns of a CTA are allocated or freed; their contents are uninitialised.
    fn mark_columns(&mut self, linear: u32, first: u32, columns: u32, allocated: bool) {
        self.tensor.settle(linear);
        let memory = self.tensor.tmem.entry(linear).or_default();
        memory.set_allocated(first, columns, allocated);
    }

    /// Allocates for a pair. The first CTA asks and blocks; the second allocates for both. The columns of both exist
    /// from then on, whenever the warp that blocked goes on. The allocation is one operation of the pair (9.7.16.7.1),
    /// and the CTA that goes on may have the tensor cores of both write to the columns.
    fn alloc_pair(&mut self, c: &Ctx<'_>, columns: u32) -> Tried<Option<TmemAddr>> {
        let linear = self.ctas[c.cta].linear;
        let pair = self
            .tensor_group(c.cta, CtaGroup::Two)
            .map_err(|f| Trouble::Fault(f, None))?;
        if let Some(at) = self.tensor.granted.remove(&linear) {
            return Ok(Some(at));
        }
        if self.dependents_left_nothing(c) {
            return Ok(None);
        }
        let peer = if pair[0] == linear { pair[1] } else { pair[0] };
        let Some(peer_index) = self.resident(peer) else {
            return Err(Trouble::Fault(
                broken("the peer CTA of a cta_group::2 allocation has ended"),
                None,
            ));
        };
        let Some(&theirs) = self.tensor.asked.get(&peer) else {
            self.tensor.asked.insert(linear, columns);
            return Ok(None);
        };
        let (mine, other) = (self.sm(c.cta), self.sm(peer_index));
        let mut a = self.tensor.allocators.remove(&mine).unwrap_or_default();
        let b = self.tensor.allocators.entry(other).or_default();
        let holders = [linear, peer].map(|cta| self.neighbours.holder(cta));
        let outcome = a.alloc_pair(b, holders, [columns, theirs]);
        self.tensor.allocators.insert(mine, a);
        match outcome.map_err(refused)? {
            AllocOutcome::Allocated(at) => {
                self.tensor.asked.remove(&peer);
                self.tensor.asked.remove(&linear);
                self.tensor.granted.insert(peer, at);
                for cta in [linear, peer] {
                    self.mark_columns(cta, at.column(), columns, true);
                }
                self.tensor.epoch += 1;
                Ok(Some(at))
            }
            AllocOutcome::Blocked => {
                self.tensor.asked.insert(linear, columns);
                Ok(None)
            }
        }
    }

    pub(super) fn tensor_dealloc(
        &mut self,
        c: &Ctx<'_>,
        w: &Warp,
        cur: &mut Part,
        group: CtaGroup,
        address: Src,
        columns: Src,
    ) -> Tried<Flow> {
        let columns = uniform(c, w, columns, "column counts")? as u32;
        let address = TmemAddr(uniform(c, w, address, "addresses")? as u32);
        let (sm, linear) = (self.sm(c.cta), self.ctas[c.cta].linear);
        let mine = (linear, address.0);
        if self.tensor.freeing.get(&mine) == Some(&true) {
            return Ok(self.await_peer(cur));
        }
        if self.tensor.freed.remove(&mine) {
            return Ok(Flow::Next);
        }
        let holder = self.neighbours.holder(linear);
        let a = self.tensor.allocators.entry(sm).or_default();
        let first = a
            .dealloc(holder, group.ctas() as u8, address, columns)
            .map_err(refused)?;
        let pair = self
            .tensor_group(c.cta, group)
            .map_err(|f| Trouble::Fault(f, None))?;
        let peer = pair.iter().find(|p| **p != linear).map(|p| (*p, address.0));
        let blocked = peer.and_then(|p| Some((p, self.tensor.freeing.remove(&p)?)));
        let last = peer.is_none() || blocked.is_some();
        if let Some(h) = &mut self.hazards {
            h.free_columns((linear, w.index), &pair, (first, columns), last, c.pc);
        }
        self.check_hazards().map_err(|f| Trouble::Fault(f, None))?;
        self.mark_columns(linear, first, columns, false);
        self.tensor.epoch += 1;
        if let Some((peer, true)) = blocked {
            self.tensor.freed.insert(peer);
        }
        if last {
            return Ok(Flow::Next);
        }
        // "may block": a kernel must be right either way.
        let blocks = !self.scheduler.impatient();
        self.tensor.freeing.insert(mine, blocks);
        Ok(match blocks {
            true => self.await_peer(cur),
            false => Flow::Next,
        })
    }

    fn await_peer(&self, cur: &mut Part) -> Flow {
        cur.state = State::Blocked(Wait::TensorFree {
            epoch: self.tensor.epoch,
        });
        Flow::Stop
    }

    pub(super) fn tensor_relinquish(&mut self, c: &Ctx<'_>, group: CtaGroup) -> Tried<()> {
        let (sm, linear) = (self.sm(c.cta), self.ctas[c.cta].linear);
        let holder = self.neighbours.holder(linear);
        let a = self.tensor.allocators.entry(sm).or_default();
        a.relinquish(holder, group.ctas() as u8).map_err(refused)
    }
}
