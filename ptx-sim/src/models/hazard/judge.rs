//! Whether anything orders two accesses.

use super::clock::{Known, Tensor};
use super::shadow::Record;
use super::{Access, AccessKind, Actor, Agent, ConflictKind, OpClass, Profile, Proxy, Tracker};

/// What the later access is ordered after.
pub(super) struct Sight<'a> {
    pub(super) known: &'a Known,
    pub(super) tensor: &'a Tensor,
}

impl Sight<'_> {
    /// Whether the record may be forgotten once this access, of the same kind, has its own: what
    /// is ordered after this one is ordered after that one too.
    pub(super) fn outdates(&self, earlier: &Record, mine: &Access) -> bool {
        mine.proxy == Proxy::Generic
            && earlier.side.proxy == Proxy::Generic
            && earlier.class == OpClass::Plain
            && self.known.generic(earlier.slot, earlier.time)
    }
}

impl Tracker {
    /// Does anything order `earlier` before an access of `mine`?
    pub(super) fn judge(
        &self,
        earlier: &Record,
        mine: &Record,
        sight: &Sight<'_>,
    ) -> Option<ConflictKind> {
        // What frees memory has been judged by rules of its own.
        if mine.side.kind == AccessKind::Free {
            return None;
        }
        if earlier.side.kind == AccessKind::Free {
            return Some(ConflictKind::Freed);
        }
        if earlier.slot == mine.slot && earlier.side.actor == mine.side.actor {
            return match (earlier.side.actor, earlier.side.proxy == mine.side.proxy) {
                // One operation's accesses are one operation; program order of a thread.
                (Actor::Op(_), _) | (_, true) => None,
                _ => Some(ConflictKind::MissingProxyFence),
            };
        }
        // "One of the threads performs the write": of what a warp does at once, on hardware.
        let side = |r: &Record| {
            (
                r.side.site,
                r.side.kind,
                matches!(r.side.actor, Actor::Agent(_)),
            )
        };
        if self.profile == Profile::Hardware
            && side(earlier) == (mine.side.site, AccessKind::Write, true)
            && side(earlier) == side(mine)
            && self.same_warp(earlier.side.thread, mine.side.thread)
        {
            return None;
        }
        let base = sight.known.generic(earlier.slot, earlier.time);
        let fenced = || sight.known.fenced(earlier.slot, earlier.time);
        match (earlier.side.proxy, mine.side.proxy) {
            (Proxy::Tensor, _) | (_, Proxy::Tensor) => {
                let in_order = |c: &super::clock::Clock| c.get(earlier.slot) >= earlier.time;
                let piped = earlier.class.pipelined(mine.class, self.profile)
                    && in_order(&sight.tensor.issued);
                match in_order(&sight.tensor.done) || piped {
                    true => None,
                    false if base => Some(ConflictKind::MissingTcgen05Fence),
                    false => Some(self.unordered(earlier)),
                }
            }
            (Proxy::Generic, Proxy::Async) if fenced() => None,
            (Proxy::Generic, Proxy::Async) if base => {
                let war = earlier.side.kind == AccessKind::Read;
                match (war, self.profile) {
                    (true, Profile::Hardware) => None,
                    (true, Profile::Strict) => Some(ConflictKind::MissingProxyFenceWar),
                    _ => Some(ConflictKind::MissingProxyFence),
                }
            }
            // The implicit fence at completion: knowing an async operation is enough.
            (Proxy::Async, Proxy::Async) if fenced() => None,
            (_, Proxy::Generic) if base => None,
            _ if mine.side.kind == AccessKind::Sync && earlier.side.kind == AccessKind::Init => {
                Some(ConflictKind::BarrierInitNotVisible)
            }
            _ => Some(self.unordered(earlier)),
        }
    }

    /// Threads are numbered warp by warp.
    fn same_warp(&self, a: Agent, b: Agent) -> bool {
        let (x, y) = (&self.agents[a.0 as usize], &self.agents[b.0 as usize]);
        x.home == y.home && a.0 / 32 == b.0 / 32
    }

    pub(super) fn unordered(&self, earlier: &Record) -> ConflictKind {
        match earlier.side.actor {
            Actor::Agent(_) => ConflictKind::Race,
            Actor::Op(op) => match self.ops.get(&op.0) {
                Some(o) if !o.complete => ConflictKind::InFlight,
                _ => ConflictKind::NotWaitedFor,
            },
        }
    }
}
