//! `cp.async`, the copies that are not bulk ones.

use super::copies::{Copy, Finish};
use super::machine::{Machine, OfLane, Tried};
use super::pieces::{From, Piece};
use super::transfer::{refuse, uses};
use super::warp::Warp;
use super::{Ctx, lanes};
use crate::models::hazard::Proxy;
use crate::models::relaxation::Relaxation;
use crate::program::{Addr, Src};

impl Machine<'_> {
    /// `cp.async`: one operation for all lanes.
    pub(super) fn small_copy(
        &mut self,
        c: &Ctx<'_>,
        w: &Warp,
        (dst, src, size): (&Addr, &Addr, u32),
        src_size: Option<Src>,
        ignored: u32,
    ) -> Tried<()> {
        let (to, from) = (w.get(c.program, dst.base), w.get(c.program, src.base));
        let mut by_lane = Vec::new();
        for lane in lanes(c.active) {
            let mut pieces = Vec::new();
            let l = lane as usize;
            let at = self.locate(c, dst, to[l], lane)?;
            self.check_range(&at, size, size, "asynchronous write", lane)?;
            let mut n = src_size.map_or(size, |s| w.get(c.program, s)[l] as u32);
            if n > size {
                return Err(refuse(
                    lane,
                    at.address,
                    format!("src-size {n} of a cp.async of {size} bytes"),
                ));
            }
            if ignored >> lane & 1 == 1 {
                n = 0;
            }
            if n > 0 {
                let from = self.locate(c, src, from[l], lane)?;
                if from.address % u64::from(size) != 0 {
                    return Err(refuse(
                        lane,
                        from.address,
                        format!("the source of a cp.async of {size} bytes is misaligned"),
                    ));
                }
                self.check_range(&from, n, 1, "asynchronous read", lane)?;
                let from =
                    From::Memory(self.range(from.space, from.owner, from.address, u64::from(n)));
                let to = self.range(at.space, at.owner, at.address, u64::from(n));
                pieces.push(Piece::in_order(from, to));
            }
            if n < size {
                let zeros = From::Data(vec![0; (size - n) as usize]);
                let to = self.range(
                    at.space,
                    at.owner,
                    at.address + u64::from(n),
                    u64::from(size - n),
                );
                pieces.push(Piece::in_order(zeros, to));
            }
            by_lane.push((lane, pieces));
        }
        self.small_issue(c, w, by_lane)
    }

    /// One operation in flight for all lanes, but one each for the hazard tracker.
    fn small_issue(&mut self, c: &Ctx<'_>, w: &Warp, by_lane: Vec<(u32, Vec<Piece>)>) -> Tried<()> {
        let first = c.active.trailing_zeros().min(31);
        // Copies that another lane has issued already, by its place.
        let mut again = Vec::new();
        let mut distinct: Vec<(u32, Vec<Piece>)> = Vec::new();
        for (lane, pieces) in by_lane {
            let allowed = self.options.allows(Relaxation::WarpCopies);
            match distinct.iter().position(|(_, p)| allowed && *p == pieces) {
                Some(at) => again.push((lane, at)),
                None => distinct.push((lane, pieces)),
            }
        }
        let by_lane = distinct;
        for (lane, pieces) in &by_lane {
            let actor = c.actor(self, w, *lane);
            self.check_uses_of_grids_before(actor, c.cta, &uses(pieces, None), None)?;
        }
        let all: Vec<_> = by_lane.iter().flat_map(|(_, p)| uses(p, None)).collect();
        let op = self.begin_operation(c.pc, &all, None).of_lane(first)?;
        let mut tracked = Vec::new();
        for (lane, pieces) in &by_lane {
            let actor = c.actor(self, w, *lane);
            // "Async Proxy" does not name the non-bulk copies.
            let mine = self.track_transfer(actor, &uses(pieces, None), Proxy::Generic, None, None);
            self.check_hazards().of_lane(*lane)?;
            let stamp = self.stamp(actor.cta, mine);
            let key = self.group_key(c, w, *lane, false);
            self.pending.join_group(key, op, stamp);
            tracked.extend(mine);
        }
        for (lane, at) in again {
            let (key, me) = (self.group_key(c, w, lane, false), c.actor(self, w, lane));
            let tracked = tracked.get(at).copied();
            let stamp = self.stamp(me.cta, tracked);
            self.pending.join_group(key, op, stamp);
            if let (Some(h), Some(op)) = (&mut self.hazards, tracked) {
                h.note_copy((me.cta, me.warp, lane), op);
            }
            let why = "lanes of a warp copy the same bytes to the same place";
            self.note(Relaxation::WarpCopies, c.pc, why);
        }
        let pieces: Vec<Piece> = by_lane.into_iter().flat_map(|(_, p)| p).collect();
        self.events.push(Box::new(Copy {
            op,
            line: c.program.code[c.pc].line,
            actor: c.actor(self, w, first),
            // Lanes may name the same bytes.
            to: pieces.iter().map(|p| p.to).collect(),
            pieces,
            fetched: Vec::new(),
            reduce: None,
            finish: Finish::Group,
            in_steps: false,
            tracked,
        }));
        Ok(())
    }
}
