//! `shfl`, `vote`, `match`, `redux`, `elect`, `activemask`: the lanes have met already.

use super::machine::{Machine, Tried, sync_fault};
use super::warp::Warp;
use super::{Ctx, lanes};
use crate::memory::{Fault, SyncEvent};
use crate::models::relaxation::Relaxation;
use crate::models::tma_bulk::reduced;
use crate::program::{Op, ShflMode, Src, VoteMode};
use crate::report::ViolationKind;

impl Machine<'_> {
    /// Groups of active lanes that gave the same member mask, and executes each.
    pub(super) fn collective(&mut self, c: &Ctx<'_>, w: &mut Warp, op: &Op) -> Tried<()> {
        let mask = match op {
            Op::ActiveMask { d } => {
                w.set(c.program, *d, &[u64::from(c.active); 32], c.active);
                return Ok(());
            }
            Op::WarpSync { mask }
            | Op::Shfl { mask, .. }
            | Op::Vote { mask, .. }
            | Op::Ballot { mask, .. }
            | Op::Match { mask, .. }
            | Op::Redux { mask, .. }
            | Op::Elect { mask, .. } => *mask,
            _ => return Ok(()),
        };
        // Results are written only after every group has read its sources.
        let masks = *w.get(c.program, mask);
        let before = w.clone_sources(c, op);
        let mut left = c.active;
        while left != 0 {
            let members = masks[left.trailing_zeros() as usize] as u32;
            let group = lanes(left)
                .filter(|l| masks[*l as usize] as u32 == members)
                .fold(0, |m, l| m | 1 << l);
            left &= !group;
            if let Some(other) = lanes(members & w.live & !group).next() {
                let theirs = masks[other as usize] as u32;
                return Err(sync_fault(format!(
                    "member mask {members:08x} names lane {other}, whose member mask is {theirs:08x}"
                )));
            }
            self.warp_meets(c, w, group, matches!(op, Op::WarpSync { .. }))?;
            self.group(c, w, op, group, members, &before);
        }
        Ok(())
    }

    /// These lanes execute one instruction together.
    fn warp_meets(&mut self, c: &Ctx<'_>, w: &Warp, lanes: u32, memory: bool) -> Tried<()> {
        let (cta, warp) = (self.ctas[c.cta].linear, w.index);
        self.synchronised(SyncEvent::Warp {
            cta,
            warp,
            lanes,
            memory,
        })
    }

    /// A whole warp executes an instruction that is none of these: where collectives order memory, it does too.
    pub(super) fn aligned(&mut self, c: &Ctx<'_>, w: &Warp) -> Tried<()> {
        match self.options.allows(Relaxation::Collectives) {
            true => self.warp_meets(c, w, u32::MAX, false),
            false => Ok(()),
        }
    }

    fn group(&self, c: &Ctx<'_>, w: &mut Warp, op: &Op, group: u32, members: u32, s: &Sources) {
        let p = c.program;
        match op {
            Op::Shfl {
                mode,
                d,
                p: pred,
                a,
                ..
            } => {
                let (from, valid) = shuffle(*mode, s, group);
                let mask = |f: &dyn Fn(Option<u32>) -> bool| {
                    let all = lanes(group).filter(|l| f(from[*l as usize]));
                    all.fold(0, |m, l| m | 1 << l)
                };
                let before = w.poison.undefined(a.0);
                let handed = mask(&|from| from.is_some_and(|l| before >> l & 1 == 1));
                w.poison.choose(handed, group);
                let out = from.map(|l| l.map_or(0xdead_beef, |l| s.a[l as usize]));
                w.set(p, *d, &out, group);
                let nobodys = mask(&|from| from.is_none());
                if nobodys != 0 {
                    let why = "shfl.sync takes a value from a lane that does not execute it";
                    let fault = Fault::new(ViolationKind::Synchronisation, why);
                    let thread = self.thread(c.cta, w.index, nobodys.trailing_zeros());
                    let fault = self.violation(fault, c.pc, Some(thread));
                    w.poison.undefine(d.0, nobodys, &fault);
                }
                if let Some(slot) = pred {
                    w.set_pred(*slot, valid, group);
                }
            }
            Op::Vote { mode, d, .. } => {
                let v = s.pred & group;
                let r = match mode {
                    VoteMode::All => v == group,
                    VoteMode::Any => v != 0,
                    VoteMode::Uni => v == group || v == 0,
                };
                w.set_pred(*d, if r { u32::MAX } else { 0 }, group);
            }
            Op::Ballot { d, .. } => w.set(p, *d, &[u64::from(s.pred & group); 32], group),
            Op::Match {
                all, d, p: pred, ..
            } => {
                let mut out = [0u64; 32];
                for l in lanes(group) {
                    let same = lanes(group)
                        .filter(|o| s.a[*o as usize] == s.a[l as usize])
                        .fold(0u32, |m, o| m | 1 << o);
                    out[l as usize] = if *all && same != group {
                        0
                    } else {
                        u64::from(same)
                    };
                }
                let every = out[group.trailing_zeros() as usize] == u64::from(group);
                if let Some(d) = d {
                    w.set(p, *d, &out, group);
                }
                if let Some(slot) = pred {
                    w.set_pred(*slot, if every { u32::MAX } else { 0 }, group);
                }
            }
            Op::Redux {
                op: (op, ty), d, ..
            } => {
                let values = lanes(group).map(|l| s.a[l as usize] & 0xffff_ffff);
                let r = values.reduce(|x, y| reduced(*op, *ty, x, y));
                w.set(p, *d, &[r.unwrap_or(0); 32], group);
            }
            Op::Elect { d, p: pred, .. } => {
                let among = members & group;
                let leader = match self.options.allows(Relaxation::FirstElected) {
                    true => among.trailing_zeros(),
                    false => self.scheduler.elect(among),
                };
                if let Some(d) = d {
                    w.set(p, *d, &[u64::from(leader); 32], group);
                }
                w.set_pred(*pred, 1 << leader, group);
            }
            _ => {}
        }
    }
}

/// Sources of a collective as they were before it.
struct Sources {
    a: [u64; 32],
    b: [u64; 32],
    c: [u64; 32],
    pred: u32,
}

impl Warp {
    fn clone_sources(&self, c: &Ctx<'_>, op: &Op) -> Sources {
        let get = |s: Src| *self.get(c.program, s);
        let mut s = Sources {
            a: [0; 32],
            b: [0; 32],
            c: [0; 32],
            pred: 0,
        };
        match op {
            Op::Shfl { a, b, c, .. } => {
                (s.a, s.b, s.c) = (get(*a).map(|v| v & 0xffff_ffff), get(*b), get(*c));
            }
            Op::Vote { p, .. } | Op::Ballot { p, .. } => s.pred = self.pred(*p),
            Op::Match { a, .. } | Op::Redux { a, .. } => s.a = get(*a),
            _ => {}
        }
        s
    }
}

/// Section 9.7.9.6: the lane that each one takes its value from, if that lane executes, and whether it is in range.
fn shuffle(mode: ShflMode, s: &Sources, group: u32) -> ([Option<u32>; 32], u32) {
    let mut out = [None; 32];
    let mut valid = 0;
    for l in lanes(group) {
        let i = l as usize;
        let b = (s.b[i] & 0x1f) as i32;
        let clamp = (s.c[i] & 0x1f) as i32;
        let segment = (s.c[i] >> 8 & 0x1f) as i32;
        let lane = l as i32;
        let max = lane & segment | clamp & !segment;
        let min = lane & segment;
        let (from, ok) = match mode {
            ShflMode::Up => (lane - b, lane - b >= max),
            ShflMode::Down => (lane + b, lane + b <= max),
            ShflMode::Bfly => (lane ^ b, (lane ^ b) <= max),
            ShflMode::Idx => {
                let j = min | b & !segment;
                (j, j <= max)
            }
        };
        let from = if ok { from as u32 & 31 } else { l };
        valid |= u32::from(ok) << l;
        out[i] = (group >> from & 1 == 1).then_some(from);
    }
    (out, valid)
}
