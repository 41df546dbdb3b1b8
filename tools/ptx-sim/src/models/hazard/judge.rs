//! Whether anything orders two accesses.

use super::super::relaxation::{Allowed, Relaxation};
use super::clock::{Clock, Known, Tensor};
use super::object::AgentState;
use super::operation::OpState;
use super::shadow::{Record, Shadow};
use super::{Access, AccessKind, Actor, Agent, ConflictKind, OpClass, Proxy, Tracker};
use rustc_hash::FxHashMap;

/// Accesses that the later access is ordered after.
pub(super) struct Sight<'a> {
    pub(super) known: &'a Known,
    pub(super) tensor: &'a Tensor,
    /// Order of tcgen05 operations that no fence has made the thread's own.
    pub(super) arrived: &'a Tensor,
    /// Accesses that are over in execution order.
    pub(super) over: &'a Clock,
}

/// The order between two accesses that conflict.
pub(super) enum Verdict {
    /// Order.
    Fine,
    /// Order that the ISA does not promise: a relaxation, and the conflict that there is without it.
    Excused(Relaxation, ConflictKind),
    /// Nothing.
    Conflict(ConflictKind),
}

impl Sight<'_> {
    /// Whether the earlier record may be forgotten once this access, of the same kind, has its own record. Later
    /// accesses that are ordered after this one are then ordered after the earlier one too.
    pub(super) fn outdates(&self, earlier: &Record, mine: &Access) -> bool {
        mine.proxy == Proxy::Generic
            && earlier.side.proxy == Proxy::Generic
            && earlier.class == OpClass::Plain
            && self.known.generic(earlier.slot, earlier.time)
    }
}

/// Parts of a tracker that judging accesses needs.
pub(super) struct Judge<'a> {
    allowed: Allowed,
    agents: &'a [AgentState],
    ops: &'a FxHashMap<u32, OpState>,
}

impl Tracker {
    /// Everything but the shadow, which remembers accesses.
    pub(super) fn judge(&mut self) -> (Judge<'_>, &mut Shadow) {
        let judge = Judge {
            allowed: self.allowed,
            agents: &self.agents,
            ops: &self.ops,
        };
        (judge, &mut self.shadow)
    }
}

impl<'a> Judge<'a> {
    /// The accesses that somebody's next access is ordered after; `None` for an operation that is over.
    pub(super) fn sight(&self, actor: Actor) -> Option<Sight<'a>> {
        Some(match actor {
            Actor::Agent(a) => {
                let a = &self.agents[a.0 as usize];
                Sight {
                    known: &a.now,
                    tensor: &a.tensor,
                    arrived: &a.tensor_in,
                    over: &a.over,
                }
            }
            Actor::Op(o) => {
                let o = self.ops.get(&o.0)?;
                Sight {
                    known: &o.known,
                    tensor: &o.tensor,
                    arrived: &o.arrived,
                    over: &o.over,
                }
            }
        })
    }

    /// Does anything order `earlier` before an access of `mine`?
    pub(super) fn verdict(&self, earlier: &Record, mine: &Record, sight: &Sight<'_>) -> Verdict {
        match self.conflict(earlier, mine, sight) {
            None => Verdict::Fine,
            Some((kind, Some(r))) if self.allowed.has(r) => Verdict::Excused(r, kind),
            Some((kind, _)) => Verdict::Conflict(kind),
        }
    }

    /// The conflict by the letter, and the relaxation that would excuse it.
    fn conflict(
        &self,
        earlier: &Record,
        mine: &Record,
        sight: &Sight<'_>,
    ) -> Option<(ConflictKind, Option<Relaxation>)> {
        // An access that frees memory has been judged by rules of its own.
        if mine.side.kind == AccessKind::Free {
            return None;
        }
        if earlier.side.kind == AccessKind::Free {
            return Some((ConflictKind::Freed, None));
        }
        if earlier.slot == mine.slot && earlier.side.actor == mine.side.actor {
            return match (earlier.side.actor, earlier.side.proxy == mine.side.proxy) {
                // One operation's accesses are one operation; program order of a thread.
                (Actor::Op(_), _) | (_, true) => None,
                _ => Some((ConflictKind::MissingProxyFence, None)),
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
        let together = side(earlier) == (mine.side.site, AccessKind::Write, true)
            && side(earlier) == side(mine)
            && self.same_warp(earlier.side.thread, mine.side.thread);
        let base = sight.known.generic(earlier.slot, earlier.time);
        let fenced = || sight.known.fenced(earlier.slot, earlier.time);
        match (earlier.side.proxy, mine.side.proxy) {
            (Proxy::Tensor, _) | (_, Proxy::Tensor) => {
                let in_order = |c: &super::clock::Clock| c.get(earlier.slot) >= earlier.time;
                let issued = in_order(&sight.tensor.issued);
                if in_order(&sight.tensor.done) || issued && earlier.class.pipelined(mine.class) {
                    return None;
                }
                let unfenced = in_order(&sight.arrived.done)
                    || in_order(&sight.arrived.issued) && earlier.class.pipelined(mine.class);
                let excuse = match (earlier.class, mine.class) {
                    (OpClass::Mma(_) | OpClass::Cp { .. }, OpClass::Cp { .. }) if issued => {
                        Some(Relaxation::CpAfterMma)
                    }
                    _ if unfenced => Some(Relaxation::AfterFence),
                    (OpClass::LdSt, _)
                        if earlier.side.kind == AccessKind::Read && in_order(sight.over) =>
                    {
                        Some(Relaxation::WaitedLoads)
                    }
                    _ => None,
                };
                let kind = match base {
                    true => ConflictKind::MissingTcgen05Fence,
                    false => unordered(self.ops, earlier),
                };
                Some((kind, excuse))
            }
            (Proxy::Generic, Proxy::Async) if fenced() => None,
            (Proxy::Generic, Proxy::Async) if base => match earlier.side.kind == AccessKind::Read {
                true => {
                    let excuse = Some(Relaxation::WriteAfterRead);
                    Some((ConflictKind::MissingProxyFenceWar, excuse))
                }
                false => Some((ConflictKind::MissingProxyFence, None)),
            },
            // The implicit fence at completion: knowing an async operation is enough.
            (Proxy::Async, Proxy::Async) if fenced() => None,
            (_, Proxy::Generic) if base => None,
            _ if mine.side.kind == AccessKind::Sync && earlier.side.kind == AccessKind::Init => {
                let ran = sight.over.get(earlier.slot) >= earlier.time;
                let excuse = ran.then_some(Relaxation::UnfencedInit);
                Some((ConflictKind::BarrierInitNotVisible, excuse))
            }
            proxies => {
                let threads = proxies == (Proxy::Generic, Proxy::Generic)
                    && matches!(mine.side.actor, Actor::Agent(_))
                    && matches!(earlier.side.actor, Actor::Agent(_));
                let passed = threads
                    && self.same_cta(earlier.side.thread, mine.side.thread)
                    && sight.over.get(earlier.slot) >= earlier.time;
                // Of operations of this class, only the products of a warpgroup are told in execution order.
                let product = earlier.class == OpClass::Plain
                    && matches!(earlier.side.actor, Actor::Op(_))
                    && sight.over.get(earlier.slot) >= earlier.time;
                let excuse = match (together, passed, product) {
                    (true, ..) => Some(Relaxation::SameBytes),
                    (_, true, _) => Some(Relaxation::RelaxedBarrier),
                    (.., true) => Some(Relaxation::WarpgroupWait),
                    _ => None,
                };
                Some((unordered(self.ops, earlier), excuse))
            }
        }
    }

    fn same_cta(&self, a: Agent, b: Agent) -> bool {
        self.agents[a.0 as usize].home == self.agents[b.0 as usize].home
    }

    /// Threads are numbered warp by warp.
    fn same_warp(&self, a: Agent, b: Agent) -> bool {
        let (x, y) = (&self.agents[a.0 as usize], &self.agents[b.0 as usize]);
        x.home == y.home && a.0 / 32 == b.0 / 32
    }
}

/// Kind of the conflict of an earlier access with a later one that nothing orders behind it.
pub(super) fn unordered(ops: &FxHashMap<u32, OpState>, earlier: &Record) -> ConflictKind {
    match earlier.side.actor {
        Actor::Agent(_) => ConflictKind::Race,
        Actor::Op(op) => match ops.get(&op.0) {
            Some(o) if !o.complete => ConflictKind::InFlight,
            _ => ConflictKind::NotWaitedFor,
        },
    }
}
