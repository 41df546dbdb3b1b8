//! Accesses: each is judged against those before it, then remembered.

use super::super::relaxation::Relaxation;
use super::judge::{Verdict, unordered};
use super::report::Mixed;
use super::report::Side;
use super::shadow::Record;
use super::{
    Access, AccessKind, Actor, Agent, Conflict, ConflictKind, Op, OpClass, Proxy, Range, Tracker,
};
use std::sync::Arc;

impl Tracker {
    /// An access by a thread itself.
    pub fn access(&mut self, agent: Agent, access: Access) {
        let a = &mut self.agents[agent.0 as usize];
        a.busy = true;
        let mine = Record {
            slot: a.now.slot,
            time: a.now.time,
            side: side_of(Actor::Agent(agent), agent, &access),
            class: OpClass::Plain,
            swizzle: None,
        };
        self.record(&access, std::iter::once(access.range), mine);
    }

    /// `mbarrier.init`. It has a slot of its own, because `fence.mbarrier_init` releases it alone.
    pub fn init(&mut self, agent: Agent, range: Range, site: u32) {
        let slot = self.slots;
        self.slots += 1;
        let access = Access::new(range, AccessKind::Init, Proxy::Generic, site);
        let mine = Record {
            slot,
            time: 1,
            side: side_of(Actor::Agent(agent), agent, &access),
            class: OpClass::Plain,
            swizzle: None,
        };
        self.record(&access, std::iter::once(access.range), mine);
        let a = &mut self.agents[agent.0 as usize];
        a.now.learn(slot, 1, false);
        a.inits.push(slot);
        if self.allowed.has(Relaxation::UnfencedInit) {
            Arc::make_mut(&mut a.over).raise(slot, 1);
        }
    }

    /// An access by an asynchronous operation; report all of them when it is issued.
    /// Unknown (finished) operations are ignored.
    pub fn op_access(&mut self, op: Op, access: Access) {
        self.op_accesses(op, access, std::iter::once(access.range));
    }

    /// Accesses of some ranges at once by an asynchronous operation, as `op_access`. The ranges lie in the space of the
    /// access and do not overlap.
    pub fn op_accesses(&mut self, op: Op, access: Access, ranges: impl Iterator<Item = Range>) {
        let Some(o) = self.ops.get_mut(&op.0) else {
            return;
        };
        o.writes |= access.kind != AccessKind::Read;
        let mine = Record {
            slot: o.slot,
            time: o.time + u32::from(access.kind != AccessKind::Read),
            side: side_of(Actor::Op(op), o.issuer, &access),
            class: o.class,
            swizzle: o.swizzle,
        };
        self.record(&access, ranges, mine);
    }

    fn record(&mut self, access: &Access, ranges: impl Iterator<Item = Range>, mine: Record) {
        let (mut found, mut excused) = (Vec::new(), Vec::new());
        let mut other: Vec<Mixed> = Vec::new();
        let lent = self.lent.iter().filter(|(r, _)| overlap(r, &access.range));
        excused.extend(lent.map(|(r, by)| {
            let what = (ConflictKind::Freed, *r, *by, mine.side);
            (Relaxation::PeerColumns, what)
        }));
        let (judge, shadow) = self.judge();
        let Some(sight) = judge.sight(mine.side.actor) else {
            return;
        };
        shadow.access(
            (access.range.space, access.kind),
            ranges.map(|r| (r.start, r.end)),
            mine,
            |earlier, at| {
                other.extend(mixed(earlier, &mine));
                match judge.verdict(earlier, &mine, &sight) {
                    Verdict::Fine => {}
                    Verdict::Excused(r, kind) => {
                        excused.push((r, (kind, at, earlier.side, mine.side)));
                    }
                    Verdict::Conflict(kind) => {
                        found.push((kind, at, earlier.side, mine.side));
                    }
                }
            },
            |earlier| sight.outdates(earlier, access),
        );
        for m in other {
            if self.mixed_at.insert((m.sides[0].site, m.sides[1].site)) {
                self.mixed.push(m);
            }
        }
        for (r, (kind, at, a, b)) in excused {
            self.note(r, kind, at, a, b);
        }
        self.report_all(found);
    }

    /// An access to memory of another group of threads: it must be known to run, because its memory
    /// exists from then on only.
    pub fn reach(&mut self, actor: Actor, home: u32, access: Access) {
        let (started, thread) = match actor {
            Actor::Agent(a) => (self.agents[a.0 as usize].started, a),
            Actor::Op(o) => match self.ops.get(&o.0) {
                Some(o) => (o.started, o.issuer),
                None => return,
            },
        };
        if started >> home & 1 == 0 {
            let (side, kind) = (
                side_of(actor, thread, &access),
                ConflictKind::PeerNotStarted,
            );
            match self.allowed.has(Relaxation::PeerRuns) {
                true => self.note(Relaxation::PeerRuns, kind, access.range, side, side),
                false => self.report(kind, access.range, side, side),
            }
        }
    }

    /// Frees memory (tensor memory columns, a buffer): every access to it must be over and
    /// known to be; later accesses belong to somebody else.
    pub fn free(&mut self, agent: Agent, range: Range, site: u32) {
        self.release_memory(agent, range, site, false);
        self.lent.retain(|(r, _)| !overlap(r, &range));
    }

    fn release_memory(&mut self, agent: Agent, range: Range, site: u32, keep: bool) {
        let side = self.freeing(agent, range, site);
        let found = self.unknown(agent, range, keep);
        let a = &self.agents[agent.0 as usize];
        let (mut conflicts, mut excused) = (Vec::new(), Vec::new());
        for (r, at) in found {
            let over = a.over.get(r.slot) >= r.time;
            let found = (unordered(&self.ops, &r), at, r.side, side);
            match over && self.allowed.has(Relaxation::ExecutionFree) {
                true => excused.push(found),
                false => conflicts.push(found),
            }
        }
        for (kind, at, a, b) in excused {
            self.note(Relaxation::ExecutionFree, kind, at, a, b);
        }
        self.report_all(conflicts);
    }

    /// Accesses of a range that a thread which frees it does not know to be over.
    fn unknown(&mut self, agent: Agent, range: Range, keep: bool) -> Vec<(Record, Range)> {
        let a = &self.agents[agent.0 as usize];
        let mut found = Vec::new();
        let mut shadow = std::mem::take(&mut self.shadow);
        shadow.clear(range, keep, |r, at| {
            let known = r.side.kind == AccessKind::Free
                || a.now.generic(r.slot, r.time)
                || a.tensor.done.get(r.slot) >= r.time
                || a.tensor_in.done.get(r.slot) >= r.time
                || (r.slot == a.now.slot && r.side.actor == Actor::Agent(agent));
            if !known {
                found.push((*r, at));
            }
        });
        self.shadow = shadow;
        found
    }

    fn freeing(&self, agent: Agent, range: Range, site: u32) -> Side {
        let access = Access::new(range, AccessKind::Free, Proxy::Generic, site);
        side_of(Actor::Agent(agent), agent, &access)
    }

    /// A thread frees memory together with others whose memory it is, and who have not done so: under
    /// [`Relaxation::PeerColumns`] they may use it until then.
    pub fn free_others(&mut self, agent: Agent, range: Range, site: u32) {
        let side = self.freeing(agent, range, site);
        for (r, at) in self.unknown(agent, range, true) {
            let kind = unordered(&self.ops, &r);
            self.note(Relaxation::PeerColumns, kind, at, r.side, side);
        }
        self.lent.push((range, side));
    }

    /// The memory was freed by those whose it is.
    pub fn forget(&mut self, range: Range) {
        let mut shadow = std::mem::take(&mut self.shadow);
        shadow.clear(range, false, |_, _| {});
        self.shadow = shadow;
        self.lent.retain(|(r, _)| !overlap(r, &range));
    }

    /// The memory was freed by one of its owners, but others still have to free it: until then any access to it is
    /// reported.
    pub fn give_up(&mut self, agent: Agent, range: Range, site: u32) {
        self.release_memory(agent, range, site, true);
        let kind = AccessKind::Free;
        self.access(agent, Access::new(range, kind, Proxy::Generic, site));
    }

    /// A thread ends.
    pub fn exit(&mut self, agent: Agent) {
        let a = &mut self.agents[agent.0 as usize];
        let known = a.seal();
        let (tensor, mut over) = (a.tensor.clone(), a.over.clone());
        if self.allowed.has(Relaxation::ExecutionFree) {
            self.merger.share(&mut over, &a.tensor.done);
            self.merger.share(&mut over, &a.tensor_in.done);
        }
        let home = a.home;
        let exit = self.exits.entry(home).or_default();
        exit.arrive(&mut self.merger, &known);
        exit.arriving.tensor.join(&mut self.merger, &tensor);
        self.merger.share(&mut exit.arriving.over, &over);
    }

    /// All threads of a group have ended, this one last, and a memory with them. Accesses of others to it must be over,
    /// and one thread of the group at least must have known so when it ended.
    pub fn end(&mut self, agent: Agent, space: u64, site: u32) {
        let home = self.agents[agent.0 as usize].home;
        let exit = self.exits.remove(&home).unwrap_or_default().arriving;
        let range = Range {
            space,
            start: 0,
            end: u64::MAX,
        };
        let access = Access::new(range, AccessKind::Free, Proxy::Generic, site);
        let side = side_of(Actor::Agent(agent), agent, &access);
        let (mut found, mut excused) = (Vec::new(), Vec::new());
        let mut shadow = std::mem::take(&mut self.shadow);
        shadow.clear(range, false, |r, at| {
            let own = self.agents[r.side.thread.0 as usize].home == home;
            let harmless =
                own && (matches!(r.side.actor, Actor::Agent(_)) || r.side.kind == AccessKind::Sync);
            let known =
                exit.view.generic.get(r.slot) >= r.time || exit.tensor.done.get(r.slot) >= r.time;
            let store = own && r.side.kind == AccessKind::Read && r.class == OpClass::Plain;
            let signal = r.side.kind == AccessKind::Sync && exit.over.get(r.slot) >= r.time;
            let excuse = match (store, signal, r.side.actor) {
                (true, ..) => Some(Relaxation::UnreadStores),
                (_, true, Actor::Op(_)) => Some(Relaxation::CommitOrder),
                (_, true, Actor::Agent(_)) => Some(Relaxation::RelaxedBarrier),
                _ => None,
            };
            match !harmless && !known {
                false => {}
                true if excuse.is_some_and(|r| self.allowed.has(r)) => {
                    excused.push((excuse, (ConflictKind::MayOutlive, at, r.side, side)));
                }
                true => found.push((ConflictKind::MayOutlive, at, r.side, side)),
            }
        });
        self.shadow = shadow;
        for (excuse, (kind, at, a, b)) in excused {
            if let Some(r) = excuse {
                self.note(r, kind, at, a, b);
            }
        }
        self.report_all(found);
    }

    fn report_all(&mut self, found: Vec<(ConflictKind, Range, Side, Side)>) {
        for (kind, at, a, b) in found {
            self.report(kind, at, a, b);
        }
    }

    fn note(
        &mut self,
        r: Relaxation,
        kind: ConflictKind,
        range: Range,
        earlier: Side,
        later: Side,
    ) {
        if self.noted.insert((r, earlier.site, later.site)) {
            let conflict = Conflict {
                kind,
                range,
                earlier,
                later,
            };
            self.notes.push((r, conflict));
        }
    }

    fn report(&mut self, kind: ConflictKind, range: Range, earlier: Side, later: Side) {
        if self.seen.insert((kind, earlier.site, later.site)) {
            self.conflicts.push(Conflict {
                kind,
                range,
                earlier,
                later,
            });
        }
    }
}

/// A report of an operand that is read with another swizzle than it was written with.
fn mixed(earlier: &Record, mine: &Record) -> Option<Mixed> {
    let swizzles = [earlier.swizzle?, mine.swizzle?];
    let kinds = (earlier.side.kind, mine.side.kind);
    let proxies = (earlier.side.proxy, mine.side.proxy);
    let differ = swizzles[0] != swizzles[1]
        && proxies == (Proxy::Async, Proxy::Async)
        && kinds == (AccessKind::Write, AccessKind::Read);
    differ.then_some(Mixed {
        swizzles,
        sides: [earlier.side, mine.side],
    })
}

fn overlap(a: &Range, b: &Range) -> bool {
    a.space == b.space && a.start < b.end && b.start < a.end
}

fn side_of(actor: Actor, thread: Agent, access: &Access) -> Side {
    Side {
        actor,
        thread,
        site: access.site,
        kind: access.kind,
        proxy: access.proxy,
    }
}
