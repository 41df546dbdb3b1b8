//! `cp.async`: copies that complete later, in any order, and groups of them that threads wait for.

use super::event::Event;
use super::machine::{Machine, Place, Trouble};
use super::warp::{Part, State, Wait, Warp};
use super::{Ctx, Flow, lanes};
use crate::memory::{AccessKind, Actor, Fault, Space};
use crate::program::Op;
use crate::report::ViolationKind;

/// Copies of a warp that have not completed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Copies {
    /// Lane and group of each.
    pending: Vec<(u32, u64)>,
    /// Groups that each lane has committed.
    committed: [u64; 32],
}

impl Copies {
    /// Whether nothing is pending that these lanes wait for. `keep` of the last committed groups
    /// may be; without it nothing at all may.
    pub(crate) fn done(&self, lanes: u32, keep: Option<u32>) -> bool {
        self.pending.iter().all(|(lane, group)| {
            let free = keep.is_some_and(|k| group + u64::from(k) >= self.committed[*lane as usize]);
            lanes >> lane & 1 == 0 || free
        })
    }
}

/// One lane's copy.
#[derive(Debug)]
struct Copy {
    actor: Actor,
    group: u64,
    from: u64,
    /// Offset in the shared memory of the actor's CTA.
    to: u64,
    bytes: u32,
    /// Bytes that are read; the others are zero.
    size: u32,
}

impl Event for Copy {
    fn describe(&self) -> String {
        let a = self.actor;
        format!(
            "cp.async of {} bytes from 0x{:x} by CTA {} warp {} lane {}",
            self.bytes, self.from, a.cta, a.warp, a.lane
        )
    }

    fn pc(&self) -> usize {
        self.actor.pc as usize
    }

    fn ready(&self, _: &Machine<'_>) -> bool {
        true
    }

    fn complete(self: Box<Self>, m: &mut Machine<'_>) -> Result<(), Fault> {
        let Some(cta) = m.ctas.iter().position(|c| c.linear == self.actor.cta) else {
            return Err(Fault::new(
                ViolationKind::Hazard,
                format!("{} completes after its CTA has ended", self.describe()),
            ));
        };
        let mut data = [0; 16];
        let fault = |t| match t {
            Trouble::Fault(f, _) => f,
            Trouble::Error(e) => Fault::new(ViolationKind::Other, e.to_string()),
        };
        if self.size > 0 {
            let at = Place {
                space: Space::Global,
                owner: cta,
                address: self.from,
            };
            // The address is aligned for the whole copy, whatever part of it is read.
            m.read(self.actor, at, self.bytes, &mut data[..self.size as usize])
                .map_err(fault)?;
        }
        let at = Place {
            space: Space::Shared,
            owner: cta,
            address: self.to,
        };
        let data = &data[..self.bytes as usize];
        m.write(self.actor, at, self.bytes, data, AccessKind::Write)
            .map_err(fault)?;
        let pending = &mut m.ctas[cta].copies[self.actor.warp as usize].pending;
        let mine = (self.actor.lane, self.group);
        if let Some(i) = pending.iter().position(|p| *p == mine) {
            pending.swap_remove(i);
        }
        Ok(())
    }
}

impl Machine<'_> {
    pub(super) fn copy(
        &mut self,
        c: &Ctx<'_>,
        w: &mut Warp,
        cur: &mut Part,
        op: &Op,
    ) -> Result<Flow, Trouble> {
        let warp = w.index as usize;
        match op {
            Op::Copy {
                dst,
                src,
                bytes,
                size,
            } => {
                let (to, from) = (*w.get(c.program, dst.base), *w.get(c.program, src.base));
                let sizes = size.map(|s| *w.get(c.program, s));
                for lane in lanes(c.active) {
                    let l = lane as usize;
                    let to = self.locate(c, dst, to[l], lane)?;
                    let from = self.locate(c, src, from[l], lane)?;
                    let size = sizes.map_or(*bytes, |s| s[l] as u32);
                    if size > *bytes {
                        let f = format!("{size} source bytes of a copy of {bytes}");
                        return Err(Trouble::Fault(
                            Fault::new(ViolationKind::Other, f),
                            Some(lane),
                        ));
                    }
                    let actor = c.actor(self, w, lane);
                    // Bad addresses show where the copy is issued, not when it completes.
                    self.check(to, *bytes, "copy", actor)?;
                    if size > 0 {
                        self.check(from, *bytes, "copy", actor)?;
                    }
                    let copies = &mut self.ctas[c.cta].copies[warp];
                    let group = copies.committed[l];
                    copies.pending.push((lane, group));
                    self.events.push(Box::new(Copy {
                        actor,
                        group,
                        from: from.address,
                        to: to.address,
                        bytes: *bytes,
                        size,
                    }));
                }
            }
            Op::CopyCommit => {
                for lane in lanes(c.active) {
                    self.ctas[c.cta].copies[warp].committed[lane as usize] += 1;
                }
            }
            Op::CopyWait { keep } => return Ok(self.copy_wait(c, w, cur, *keep)),
            _ => {}
        }
        Ok(Flow::Next)
    }

    fn copy_wait(&mut self, c: &Ctx<'_>, w: &mut Warp, cur: &mut Part, keep: Option<u32>) -> Flow {
        if self.ctas[c.cta].copies[w.index as usize].done(c.active, keep) {
            return Flow::Next;
        }
        if cur.mask != c.active {
            // Lanes whose guard is false do not wait.
            let mut rest = cur.clone();
            rest.mask &= !c.active;
            rest.pc += 1;
            cur.mask = c.active;
            w.parts.push(rest);
        }
        // Executed again once they are complete.
        cur.state = State::Blocked(Wait::Copies {
            warp: w.index,
            lanes: c.active,
            keep,
        });
        Flow::Stop
    }

    fn check(&mut self, at: Place, bytes: u32, what: &str, actor: Actor) -> Result<(), Trouble> {
        let region = match at.space {
            Space::Shared => &mut self.ctas[at.owner].shared,
            _ => &mut *self.global,
        };
        region
            .check(at.address, bytes, bytes, what)
            .map_err(|f| Trouble::Fault(f, Some(actor.lane)))
    }
}
