//! A warp: registers, and the parts into which its lanes have diverged.
//!
//! Lanes run as parts that share a program counter. A divergent branch makes two parts, which meet again at the
//! branch's immediate post-dominator. A part that gets there waits for the other parts that may still come. The wait is
//! a courtesy and not a guarantee (the ISA promises no reconvergence). A part goes on alone when nothing else in its
//! warp can run, or when the others spin for long.

use rustc_hash::FxHashMap;

use super::poison::{PREDICATE, Poison};
use crate::memory::{Region, Space};
use crate::program::{Dst, Lanes, PredSrc, Program, Src};

/// The event that a part of a warp waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Barrier of the CTA, until its generation is no longer this one.
    Bar { id: u32, generation: u64 },
    /// `tcgen05.wait` for a warp's stores, or its loads.
    Tensor { warp: u32, stores: bool },
    /// `wgmma.wait_group` of a warp, until no more than so many groups are pending.
    Wgmma { warp: u32, keep: u32 },
    /// `tcgen05.alloc`, until something may have made room.
    TensorAlloc { epoch: u64, columns: u32 },
    /// `tcgen05.dealloc` of a pair, until the peer may have issued it too.
    TensorFree { epoch: u64 },
    /// `griddepcontrol.wait`, until the grid before this one has ended.
    GridBefore,
    /// A load at `pc` that found the value that it had found before, until there were more stores than these.
    Store { stores: u64, pc: u32 },
    /// Cluster barrier, until its phase is beyond this one.
    Cluster { phase: u64 },
    /// mbarrier of this linear CTA at this offset, until this phase is over. `pc` tested it;
    /// with `retry` it is executed again.
    Mbarrier {
        owner: u32,
        at: u64,
        phase: u64,
        pc: u32,
        retry: bool,
    },
    /// Asynchronous copies of these lanes of the warp: all groups but the last `keep`, or all.
    Groups {
        warp: u32,
        lanes: u32,
        keep: Option<u32>,
        bulk: bool,
        reads_only: bool,
    },
}

/// State of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Can run.
    Ready,
    /// Waits at a join for the lanes it diverged from.
    Join,
    /// Waits at a `.sync` instruction for these lanes.
    Sync(u32),
    /// Waits for something outside the warp.
    Blocked(Wait),
}

/// Lanes that share a program counter.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) pc: u32,
    pub(crate) mask: u32,
    /// Points where the part meets others again, the innermost last: instruction, and lanes that diverged.
    pub(crate) joins: Vec<(u32, u32)>,
    pub(crate) state: State,
}

/// A warp.
#[derive(Debug, Clone)]
pub(crate) struct Warp {
    pub(crate) index: u32,
    pub(crate) regs: Vec<Lanes>,
    pub(crate) preds: Vec<u32>,
    pub(crate) carry: u32,
    /// Lanes that have not exited.
    pub(crate) live: u32,
    pub(crate) parts: Vec<Part>,
    /// Local memory of each lane; empty if the kernel has none.
    pub(crate) local: Vec<Region>,
    /// Instructions since a part began to wait at a join.
    pub(crate) impatience: u32,
    /// Parts that wait at barriers: instruction, lanes and the barrier's generation.
    pub(crate) waiting: Vec<(usize, u32, u64)>,
    /// Lanes whose `mbarrier.try_wait` ran into its time limit.
    pub(crate) timed_out: u32,
    /// Strong loads since the warp's last store: instruction and lanes of each, and a hash of the values that it found
    /// last.
    pub(crate) polled: FxHashMap<(u32, u32), u64>,
    pub(crate) poison: Poison,
}

impl Warp {
    /// A part stays at its instruction with some of its lanes. The others, whose guard is false, go on behind it.
    pub(super) fn leave_rest(&mut self, part: &mut Part, staying: u32) {
        if part.mask != staying {
            let mut rest = part.clone();
            rest.mask &= !staying;
            rest.pc += 1;
            part.mask = staying;
            self.parts.push(rest);
        }
    }

    pub(crate) fn new(program: &Program, index: u32, lanes: u32) -> Self {
        let mut preds = vec![0; program.preds];
        preds[0] = u32::MAX;
        let local = if program.local.is_empty() {
            Vec::new()
        } else {
            let mut r = Region::new(Space::Local);
            for v in &program.local {
                r.add(&v.name, v.address, v.size as usize);
            }
            vec![r; 32]
        };
        Self {
            index,
            regs: vec![[0; 32]; program.reg_masks.len()],
            preds,
            carry: 0,
            live: lanes,
            parts: vec![Part {
                pc: 0,
                mask: lanes,
                joins: Vec::new(),
                state: State::Ready,
            }],
            local,
            impatience: 0,
            waiting: Vec::new(),
            timed_out: 0,
            polled: FxHashMap::default(),
            poison: Poison::default(),
        }
    }

    pub(crate) fn get<'a>(&'a self, program: &'a Program, s: Src) -> &'a Lanes {
        if s.0 & Src::CONST != 0 {
            &program.consts[(s.0 & !Src::CONST) as usize]
        } else {
            self.poison.note(s.0);
            &self.regs[s.0 as usize]
        }
    }

    /// Writes the lanes of `mask`, cut to the register's width.
    pub(crate) fn set(&mut self, program: &Program, d: Dst, v: &Lanes, mask: u32) {
        let i = d.0 as usize;
        let width = program.reg_masks[i];
        self.poison.note_write(d.0, mask);
        let r = &mut self.regs[i];
        if mask == u32::MAX {
            for (r, v) in r.iter_mut().zip(v) {
                *r = v & width;
            }
        } else {
            for lane in 0..32 {
                let m = 0u64.wrapping_sub(u64::from(mask >> lane & 1));
                r[lane] = r[lane] & !m | v[lane] & width & m;
            }
        }
    }

    pub(crate) fn pred(&self, p: PredSrc) -> u32 {
        let v = self.preds[p.slot as usize];
        self.poison.note_undefined(p.slot | PREDICATE);
        if p.negated { !v } else { v }
    }

    pub(crate) fn set_pred(&mut self, slot: u32, v: u32, mask: u32) {
        self.poison.note_write(slot | PREDICATE, mask);
        let p = &mut self.preds[slot as usize];
        *p = *p & !mask | v & mask;
    }

    /// Whether these lanes waited at this barrier instruction and now resume; in which generation.
    pub(crate) fn waited(&mut self, pc: usize, lanes: u32) -> Option<u64> {
        let i = self
            .waiting
            .iter()
            .position(|w| w.0 == pc && w.1 == lanes)?;
        Some(self.waiting.swap_remove(i).2)
    }

    /// Lets every part that waits inside the warp look again whether it still must.
    pub(crate) fn reconsider(&mut self) {
        for p in &mut self.parts {
            if matches!(p.state, State::Join | State::Sync(_)) {
                p.state = State::Ready;
            }
        }
    }

    /// Sends the parts that wait at joins on without the others.
    pub(crate) fn release_joins(&mut self) -> bool {
        let mut any = false;
        for p in &mut self.parts {
            if p.state == State::Join {
                p.joins.pop();
                p.state = State::Ready;
                any = true;
            }
        }
        self.impatience = 0;
        any
    }

    /// Lets waits on mbarriers run into their time limits, and loops load again; whether there are any.
    pub(crate) fn time_out(&mut self) -> bool {
        let mut any = false;
        for p in &mut self.parts {
            if let State::Blocked(Wait::Mbarrier { retry, .. }) = p.state {
                p.state = State::Ready;
                if retry {
                    self.timed_out |= p.mask;
                }
                any = true;
            }
            if let State::Blocked(Wait::Store { .. }) = p.state {
                p.state = State::Ready;
                any = true;
            }
        }
        any
    }

    /// Adds the lanes of parts that wait at `cur`'s instruction in a state that `f` accepts. Joins that both parts have
    /// stay.
    pub(crate) fn absorb(&mut self, cur: &mut Part, f: impl Fn(&Part) -> bool) {
        let mut i = 0;
        while i < self.parts.len() {
            if self.parts[i].pc == cur.pc && f(&self.parts[i]) {
                let other = self.parts.swap_remove(i);
                cur.mask |= other.mask;
                let same = cur
                    .joins
                    .iter()
                    .zip(&other.joins)
                    .take_while(|(a, b)| a == b)
                    .count();
                cur.joins.truncate(same);
            } else {
                i += 1;
            }
        }
    }

    /// Whether `cur`, at its innermost join, must wait there. Joins that are complete are left.
    pub(crate) fn must_wait_at_join(&mut self, cur: &mut Part) -> bool {
        while let Some(&(pc, lanes)) = cur.joins.last() {
            if pc != cur.pc {
                return false;
            }
            let join = (pc, lanes);
            self.absorb(cur, |p| {
                p.state == State::Join && p.joins.last() == Some(&join)
            });
            if self.parts.iter().any(|p| p.joins.contains(&join)) {
                return true;
            }
            cur.joins.pop();
            self.impatience = 0;
        }
        false
    }
}
