//! Issues asynchronous copies.

use super::copies::{Arrival, Copy, Finish};
use super::machine::{Machine, OfLane, Place, Tried, Trouble};
use super::pieces::{From, Piece};

use super::pending::{Range, Rows, Use, joined};
use super::warp::{Part, State, Wait, Warp};
use super::{Ctx, Flow, lanes};
use crate::memory::layout::SHARED_RANK_SHIFT;
use crate::memory::{Fault, Space};
use crate::models::hazard::{Op as TrackedOp, OpClass, Proxy, Stamp};
use crate::models::relaxation::Relaxation;
use crate::models::swizzle::Swizzle;
use crate::models::tma_bulk::check_bulk;
use crate::program::{Completion, Reduction, Src, Transfer};
use crate::report::ViolationKind;

/// A fault of a lane.
pub(super) fn refuse(lane: u32, address: u64, message: impl Into<String>) -> Trouble {
    Fault::new(ViolationKind::Other, message)
        .at(address)
        .of_lane(lane)
}

/// A bulk store that a lane has issued, for the other lanes of its instruction.
#[derive(Debug)]
pub(crate) struct Stored {
    /// Warp instructions executed so far, the warp, and its linear CTA.
    execution: (u64, u32, u32),
    pieces: Vec<Piece>,
    op: u64,
    stamp: Option<Stamp>,
}

/// Rows that a copy reads.
fn rows(pieces: &[Piece]) -> Option<Rows> {
    pieces.iter().find_map(|p| match p.from {
        From::Rows(rows) => Some(rows),
        _ => None,
    })
}

/// Ranges that a copy reads and writes, but for rows.
pub(super) fn uses(pieces: &[Piece], reduce: Option<Reduction>) -> Vec<(Range, Use)> {
    let writes = if reduce.is_some() {
        Use::Reduce
    } else {
        Use::Write
    };
    let from = pieces.iter().filter_map(|p| match &p.from {
        From::Memory(r) | From::Tf32(r) => Some(*r),
        _ => None,
    });
    let to = joined(pieces.iter().map(|p| p.to));
    let mut uses: Vec<_> = to.into_iter().map(|r| (r, writes)).collect();
    uses.extend(joined(from).into_iter().map(|r| (r, Use::Read)));
    uses
}

impl Machine<'_> {
    pub(super) fn transfer(
        &mut self,
        c: &Ctx<'_>,
        w: &mut Warp,
        cur: &mut Part,
        t: &Transfer,
    ) -> Tried<Flow> {
        match t {
            Transfer::Small {
                dst,
                src,
                size,
                src_size,
                ignore,
            } => {
                let ignored = ignore.map_or(0, |p| w.pred(p));
                self.small_copy(c, w, (dst, src, *size), *src_size, ignored)?;
            }
            Transfer::Commit { bulk } => {
                for lane in lanes(c.active) {
                    self.pending.commit_group(self.group_key(c, w, lane, *bulk));
                }
            }
            Transfer::Wait {
                bulk,
                keep,
                reads_only,
            } => {
                let wait = Wait::Groups {
                    warp: w.index,
                    lanes: c.active,
                    keep: *keep,
                    bulk: *bulk,
                    reads_only: *reads_only,
                };
                if !self.done(c.cta, wait) {
                    cur.state = State::Blocked(wait);
                    return Ok(Flow::Stop);
                }
                for lane in lanes(c.active) {
                    let key = self.group_key(c, w, lane, *bulk);
                    let stamps = self.pending.acquired(key, *keep);
                    if let Some(h) = &mut self.hazards {
                        h.waited_group((key.0, w.index, lane), &stamps, *reads_only);
                    }
                }
            }
            Transfer::Arrive { addr, increments } => {
                let base = *w.get(c.program, addr.base);
                for lane in lanes(c.active) {
                    let (owner, at) = self.mbarrier_place(c, addr, base[lane as usize], lane)?;
                    if *increments {
                        self.async_increment(owner, at).of_lane(lane)?;
                    }
                    let after = self.pending.of_thread(self.group_key(c, w, lane, false));
                    let (owner, line) = (self.ctas[owner].linear, c.program.code[c.pc].line);
                    let me = (self.ctas[c.cta].linear, w.index, lane);
                    let (mut tracked, mut copies) = (None, Vec::new());
                    if let Some(h) = &mut self.hazards
                        && let Some(op) = h.begin(me, OpClass::Plain)
                    {
                        h.op_barrier(op, me.0, owner, at, c.pc);
                        copies = h.copies(me);
                        tracked = Some(op);
                    }
                    self.check_hazards().of_lane(lane)?;
                    self.events.push(Box::new(Arrival {
                        after,
                        issuer: me.0,
                        owner,
                        at,
                        pc: c.pc,
                        line,
                        tracked,
                        copies,
                    }));
                }
            }
            Transfer::Bulk { .. } => {
                for lane in lanes(c.active) {
                    self.bulk_copy(c, w, lane, t)?;
                }
            }
            Transfer::Tensor { .. } => {
                for lane in lanes(c.active) {
                    self.tensor_copy(c, w, lane, t)?;
                }
            }
            Transfer::Store {
                dst,
                values,
                bytes,
                mbarrier,
                reduce,
            } => {
                for lane in lanes(c.active) {
                    let l = lane as usize;
                    let n = *bytes as usize;
                    let data: Vec<u8> = values
                        .iter()
                        .flat_map(|s| w.get(c.program, *s)[l].to_le_bytes().into_iter().take(n))
                        .collect();
                    let to = self.locate(c, dst, w.get(c.program, dst.base)[l], lane)?;
                    let align = data.len() as u32;
                    self.check_range(&to, align, align, "asynchronous write", lane)?;
                    let (owner, at) =
                        self.mbarrier_place(c, mbarrier, w.get(c.program, mbarrier.base)[l], lane)?;
                    if owner != to.owner {
                        return Err(refuse(
                            lane,
                            at,
                            "the mbarrier object lies in another CTA than the destination",
                        ));
                    }
                    let to = self.range(Space::Shared, to.owner, to.address, data.len() as u64);
                    let finish = Finish::Transaction {
                        owner: to.owner,
                        at,
                        bytes: data.len() as u32,
                    };
                    let piece = Piece::in_order(From::Data(data), to);
                    // "Async Proxy" names the bulk copies only.
                    self.issue(
                        c,
                        w,
                        lane,
                        vec![piece],
                        *reduce,
                        (finish, Proxy::Generic, None),
                    )?;
                }
            }
        }
        Ok(Flow::Next)
    }

    /// Key of a thread's groups.
    pub(super) fn group_key(
        &self,
        c: &Ctx<'_>,
        w: &Warp,
        lane: u32,
        bulk: bool,
    ) -> (u32, u32, bool) {
        (self.ctas[c.cta].linear, w.index * 32 + lane, bulk)
    }

    pub(super) fn check_range(
        &mut self,
        p: &Place,
        size: u32,
        align: u32,
        what: &str,
        lane: u32,
    ) -> Tried<()> {
        let region = self.region(p.space, p.owner);
        region.check(p.address, size, align, what).of_lane(lane)
    }

    /// Starts a copy of one thread.
    pub(super) fn issue(
        &mut self,
        c: &Ctx<'_>,
        w: &Warp,
        lane: u32,
        pieces: Vec<Piece>,
        reduce: Option<Reduction>,
        (finish, through, swizzle): (Finish, Proxy, Option<Swizzle>),
    ) -> Tried<()> {
        let stores = pieces.iter().all(|p| p.to.space == Space::Global);
        let alone = matches!(finish, Finish::Group) && reduce.is_none() && stores;
        let execution = (
            self.report.warp_instructions,
            w.index,
            self.ctas[c.cta].linear,
        );
        // A store that another lane of this instruction has issued already.
        if alone && self.options.allows(Relaxation::WarpStores) {
            let same = |s: &&Stored| s.execution == execution && s.pieces == pieces;
            if let Some(s) = self.stored.iter().find(same) {
                let (op, stamp) = (s.op, s.stamp);
                let key = self.group_key(c, w, lane, true);
                self.pending.join_group(key, op, stamp);
                let why = "lanes of a warp store the same bytes to the same place";
                self.note(Relaxation::WarpStores, c.pc, why);
                return Ok(());
            }
        }
        let (uses, rows) = (uses(&pieces, reduce), rows(&pieces));
        let barrier = match finish {
            Finish::Transaction { owner, at, .. } => Some((owner, at)),
            Finish::Group => None,
        };
        let actor = c.actor(self, w, lane);
        self.check_uses_of_grids_before(actor, c.cta, &uses, rows)?;
        let op = self.begin_operation(c.pc, &uses, rows).of_lane(lane)?;
        let tracked = self.track_transfer(actor, &uses, through, barrier, swizzle);
        self.check_hazards().of_lane(lane)?;
        // Only a copy that a group tracks has a `.read` that tells the two steps apart.
        let in_steps = barrier.is_none()
            && uses
                .iter()
                .any(|u| u.0.space == Space::Global && u.1 != Use::Read);
        if in_steps {
            let stamp = self.stamp(actor.cta, tracked);
            let key = self.group_key(c, w, lane, true);
            self.pending.join_group(key, op, stamp);
            if alone && self.options.allows(Relaxation::WarpStores) {
                self.stored.retain(|s| s.execution == execution);
                self.stored.push(Stored {
                    execution,
                    pieces: pieces.clone(),
                    op,
                    stamp,
                });
            }
        }
        let to = uses.iter().filter(|u| u.1 != Use::Read).map(|u| u.0);
        self.events.push(Box::new(Copy {
            op,
            line: c.program.code[c.pc].line,
            actor,
            pieces,
            to: to.collect(),
            fetched: Vec::new(),
            reduce,
            finish,
            in_steps,
            tracked: tracked.into_iter().collect(),
        }));
        Ok(())
    }

    /// The stamp of a tracked operation, which a group keeps.
    pub(super) fn stamp(&mut self, cta: u32, tracked: Option<TrackedOp>) -> Option<Stamp> {
        self.hazards.as_mut()?.stamp(cta, tracked?)
    }

    /// CTAs (as indices) that a multicast mask names.
    pub(super) fn multicast(&self, c: &Ctx<'_>, mask: u64, lane: u32) -> Tried<Vec<usize>> {
        let peers = &self.clusters[self.ctas[c.cta].cluster].ctas;
        let mask = mask & 0xffff;
        if mask == 0 || mask >> peers.len() != 0 {
            let message = format!(
                "multicast mask 0x{mask:04x} in a cluster of {} CTAs",
                peers.len()
            );
            return Err(refuse(lane, mask, message));
        }
        Ok((0..peers.len())
            .filter(|r| mask >> r & 1 == 1)
            .map(|r| peers[r])
            .collect())
    }

    fn bulk_copy(&mut self, c: &Ctx<'_>, w: &Warp, lane: u32, t: &Transfer) -> Tried<()> {
        let Transfer::Bulk {
            dst,
            src,
            size,
            completion,
            mask,
            reduce,
        } = t
        else {
            return Ok(());
        };
        let (completion, mask, reduce) = (*completion, *mask, *reduce);
        let l = lane as usize;
        let value = |s: Src| w.get(c.program, s)[l];
        let size = value(*size) as u32;
        let to = self.locate(c, dst, value(dst.base), lane)?;
        let from = self.locate(c, src, value(src.base), lane)?;
        let side = |p: &Place| {
            let end = if p.space == Space::Shared {
                1 << SHARED_RANK_SHIFT
            } else {
                u64::MAX
            };
            (p.space.name(), p.address, end)
        };
        check_bulk(size, [side(&to), side(&from)])
            .map_err(|e| refuse(lane, to.address, e.to_string()))?;
        self.check_range(&to, size, 16, "asynchronous write", lane)?;
        self.check_range(&from, size, 16, "asynchronous read", lane)?;
        let targets = match mask {
            Some(m) => self.multicast(c, value(m), lane)?,
            None => vec![to.owner],
        };
        let from = From::Memory(self.range(from.space, from.owner, from.address, u64::from(size)));
        for owner in targets {
            let to_range = self.range(to.space, owner, to.address, u64::from(size));
            let piece = Piece::in_order(from.clone(), to_range);
            let finish = match completion {
                Completion::Group => Finish::Group,
                Completion::Mbarrier(addr) => {
                    let (of, at) = self.mbarrier_place(c, &addr, value(addr.base), lane)?;
                    if mask.is_none() && of != to.owner {
                        return Err(refuse(
                            lane,
                            at,
                            "the mbarrier object lies in another CTA than the destination",
                        ));
                    }
                    Finish::Transaction {
                        owner: self.ctas[owner].linear,
                        at,
                        bytes: size,
                    }
                }
            };
            self.issue(
                c,
                w,
                lane,
                vec![piece],
                reduce,
                (finish, Proxy::Async, None),
            )?;
        }
        Ok(())
    }
}
