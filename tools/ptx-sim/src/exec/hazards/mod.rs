//! Feeds the happens-before tracker of `models::hazard`: accesses to shared and tensor memory, and
//! everything that orders them.
//!
//! Each cluster has a tracker of its own, which goes when the cluster does: nothing tracked here
//! is visible outside. Threads are linear CTA, warp and lane.

mod operations;
mod report;
mod sync;

use std::collections::BTreeMap;

use super::machine::Machine;
use crate::memory::{self, Fault, Space};
use crate::models::hazard::{
    Access, AccessKind, Actor, Agent, Conflict, ConflictKind, Mixed, Proxy, Range, Sem, Side,
    Tracker,
};
use crate::models::mbarrier;
use crate::models::relaxation::{Allowed, Relaxation};
use crate::program::{Op as Instruction, Program};
use crate::report::{Note, Report, ThreadId, Violation, ViolationKind};
use crate::sim::HazardChecks;

/// Linear CTA, warp, lane.
pub(crate) type Thread = (u32, u32, u32);

/// A CTA of a cluster, by its number in the cluster.
#[derive(Debug)]
struct Member {
    cta: u32,
    threads: Vec<Agent>,
}

/// One cluster.
#[derive(Debug)]
struct World {
    tracker: Tracker,
    members: Vec<Member>,
    /// Threads that have arrived at the current phase of a barrier, and acquire it when it completes.
    arrived: BTreeMap<u64, Vec<Agent>>,
}

impl World {
    fn home(&self, cta: u32) -> Option<usize> {
        self.members.iter().position(|m| m.cta == cta)
    }

    fn agent(&self, t: Thread) -> Option<Agent> {
        let m = self.members.iter().find(|m| m.cta == t.0)?;
        m.threads.get((t.1 * 32 + t.2) as usize).copied()
    }

    /// The thread of an agent.
    fn thread(&self, a: Agent) -> Option<Thread> {
        self.members.iter().find_map(|m| {
            let i = m.threads.iter().position(|t| *t == a)? as u32;
            Some((m.cta, i / 32, i % 32))
        })
    }

    /// The CTA whose shared memory is accessed must run.
    fn shared_reach(&mut self, actor: Actor, cta: u32, owner: u32, access: Access) {
        if let (true, Some(home)) = (cta != owner, self.home(owner)) {
            self.tracker.reach(actor, home as u32, access);
        }
    }

    /// An access to shared memory, which may be another CTA's.
    fn shared_access(&mut self, actor: Actor, cta: u32, owner: u32, access: Access) {
        self.shared_reach(actor, cta, owner, access);
        match actor {
            Actor::Agent(a) => self.tracker.access(a, access),
            Actor::Op(o) => self.tracker.op_access(o, access),
        }
    }
}

/// All resident clusters.
#[derive(Debug)]
pub(crate) struct Hazards {
    allowed: Allowed,
    /// Tensor memory order passes through execution order, so that has to be followed too.
    tensor: bool,
    /// The cluster of a CTA, both linear.
    cluster_of: BTreeMap<u32, u32>,
    worlds: BTreeMap<u32, World>,
}

// Numbers of memories and synchronisation objects.
fn shared(cta: u32) -> u64 {
    1 << 60 | u64::from(cta)
}
fn tensor(cta: u32, block: u32) -> u64 {
    2 << 60 | u64::from(cta) << 3 | u64::from(block)
}
fn barrier(cta: u32, id: u32) -> u64 {
    3 << 60 | u64::from(cta) << 8 | u64::from(id)
}
fn flag(cta: u32, at: u64) -> u64 {
    4 << 60 | u64::from(cta) << 24 | at & 0xff_ffff
}
fn global_flag(at: u64) -> u64 {
    8 << 60 | at
}
fn cluster(linear: u32) -> u64 {
    5 << 60 | u64::from(linear)
}
fn mbarrier(cta: u32, at: u64) -> u64 {
    6 << 60 | u64::from(cta) << 24 | at & 0xff_ffff
}
/// Object that stands for the part of an mbarrier which only waits of cluster scope acquire.
fn mbarrier_cluster(cta: u32, at: u64) -> u64 {
    7 << 60 | u64::from(cta) << 24 | at & 0xff_ffff
}

fn object_range(owner: u32, at: u64) -> Range {
    Range::new(shared(owner), at, u64::from(mbarrier::SIZE))
}

impl Hazards {
    /// A tracker, if the kernel has anything to track.
    pub(crate) fn of(program: &Program, dynamic: u32, allowed: Allowed) -> Option<Self> {
        let any = |f: fn(&Instruction) -> bool| program.code.iter().any(|i| f(&i.op));
        let tensor = any(|op| matches!(op, Instruction::Tcgen05(_)));
        let needed = tensor || dynamic > 0 || program.shared.iter().any(|v| v.size > 0);
        needed.then(|| Self {
            allowed,
            tensor,
            cluster_of: BTreeMap::new(),
            worlds: BTreeMap::new(),
        })
    }

    /// A CTA becomes resident.
    pub(crate) fn admit(&mut self, cta: u32, cluster: u32, threads: u32) {
        self.cluster_of.insert(cta, cluster);
        let allowed = self.allowed;
        let w = self.worlds.entry(cluster).or_insert_with(|| World {
            tracker: Tracker::new(allowed),
            members: Vec::new(),
            arrived: BTreeMap::new(),
        });
        let home = w.members.len() as u32;
        // Whole warps, so that an operation of a warp is one of all its lanes.
        let threads = (0..threads.next_multiple_of(32))
            .map(|_| w.tracker.agent_of(home))
            .collect();
        w.members.push(Member { cta, threads });
    }

    /// A cluster has ended.
    pub(crate) fn drop_cluster(&mut self, cluster: u32) {
        self.worlds.remove(&cluster);
        self.cluster_of.retain(|_, c| *c != cluster);
    }

    fn world(&mut self, cta: u32) -> Option<&mut World> {
        self.worlds.get_mut(self.cluster_of.get(&cta)?)
    }

    /// The first conflict of any cluster, and the threads of both sides.
    fn conflict(&mut self) -> Option<(Conflict, [Option<Thread>; 2])> {
        let found = self
            .worlds
            .values_mut()
            .find(|w| !w.tracker.conflicts().is_empty())?;
        let c = found.tracker.take_conflict()?;
        Some((c, [c.earlier, c.later].map(|s| found.thread(s.thread))))
    }

    /// Operands read with another swizzle than they were written with.
    fn mixed(&mut self) -> Vec<Mixed> {
        let worlds = self.worlds.values_mut();
        worlds.flat_map(|w| w.tracker.take_mixed()).collect()
    }

    /// Conflicts that relaxations excused since the last call, and the threads of both sides.
    fn notes(&mut self) -> Vec<(Relaxation, Conflict, [Option<Thread>; 2])> {
        let mut all = Vec::new();
        for w in self.worlds.values_mut() {
            for (r, c) in w.tracker.take_notes() {
                all.push((r, c, [c.earlier, c.later].map(|s| w.thread(s.thread))));
            }
        }
        all
    }

    /// An ordinary access to shared memory, or a strong one to global memory.
    pub(crate) fn access(&mut self, a: &memory::Access) {
        let actor = (a.actor.cta, a.actor.warp, a.actor.lane);
        let Some(w) = self.world(a.actor.cta) else {
            return;
        };
        let Some(agent) = w.agent(actor) else { return };
        let reads = a.kind == memory::AccessKind::Read;
        // "Release and Acquire Patterns": a strong access may be a flag, of global memory too.
        let sem = |strong| if strong { Sem::Strong } else { Sem::Relaxed };
        let (acquires, releases) = (sem(a.order.acquires), sem(a.order.releases));
        let in_shared = a.space == Space::Shared;
        let object = match in_shared {
            true => flag(a.owner, a.address),
            false => global_flag(a.address),
        };
        if in_shared {
            let access = Access::new(
                Range::new(shared(a.owner), a.address, u64::from(a.size)),
                match reads {
                    _ if a.order.strong => AccessKind::Sync,
                    true => AccessKind::Read,
                    false => AccessKind::Write,
                },
                Proxy::Generic,
                a.actor.pc,
            );
            w.shared_access(Actor::Agent(agent), a.actor.cta, a.owner, access);
        }
        if !a.order.strong {
            return;
        }
        if reads && !a.order.reduces {
            w.tracker.acquire(agent, object, acquires);
        } else if !reads && (in_shared || w.tracker.hands_over(agent, object, releases)) {
            let atomic = a.kind == memory::AccessKind::Atomic;
            w.tracker.write_flag(agent, object, releases, atomic);
        }
    }

    /// Threads end; with the last one of their CTA its shared memory does.
    pub(crate) fn exit(&mut self, cta: u32, warp: u32, mask: u32, ended: bool, pc: u32) {
        let Some(w) = self.world(cta) else { return };
        let mut last = None;
        for lane in super::lanes(mask) {
            last = w.agent((cta, warp, lane));
            last.into_iter().for_each(|a| w.tracker.exit(a));
        }
        if let (true, Some(last)) = (ended, last) {
            w.tracker.end(last, shared(cta), pc);
        }
    }
}

impl Machine<'_> {
    /// The first hazard found since the last call; all of them are warnings where that was asked for.
    pub(crate) fn check_hazards(&mut self) -> Result<(), Fault> {
        let Some(h) = &mut self.hazards else {
            return Ok(());
        };
        if h.worlds.values().all(|w| w.tracker.is_quiet()) {
            return Ok(());
        }
        let mixed = h.mixed();
        let notes = match h.allowed {
            Allowed::NONE => Vec::new(),
            _ => h.notes(),
        };
        for (r, c, threads) in notes {
            let message = self.hazard(&c, threads).message;
            self.note(r, c.later.site as usize, message);
        }
        for m in mixed {
            let [written, read] = m.swizzles;
            let site = self.program.site(m.sides[0].site as usize);
            let message = format!(
                "an operand is read with swizzle {read:?} and was written with {written:?}, at {site}"
            );
            let f = Fault::new(ViolationKind::Other, message);
            let v = self.violation(f, m.sides[1].site as usize, None);
            self.warn(v);
        }
        while let Some((c, threads)) = self.hazards.as_mut().and_then(Hazards::conflict) {
            let fault = self.hazard(&c, threads);
            if self.in_vain(&c, threads, &fault).is_some() {
                self.note(
                    Relaxation::UnusedLoads,
                    c.later.site as usize,
                    fault.message,
                );
                continue;
            }
            if self.options.hazards != HazardChecks::Warn {
                return Err(fault);
            }
            let v = self.violation(fault, c.later.site as usize, self.who(threads[1]));
            self.warn(v);
        }
        Ok(())
    }

    /// A thread that has not ended.
    fn who(&self, thread: Option<Thread>) -> Option<ThreadId> {
        let (linear, warp, lane) = thread?;
        let cta = self.ctas.iter().position(|c| c.linear == linear)?;
        Some(self.thread(cta, warp, lane))
    }

    /// Of two accesses that nothing orders one may be a load whose value nothing has used: whoever uses it from here on
    /// is at fault.
    fn in_vain(&mut self, c: &Conflict, threads: [Option<Thread>; 2], f: &Fault) -> Option<()> {
        use ConflictKind::{InFlight, NotWaitedFor, Race};
        let excused = self.options.allows(Relaxation::UnusedLoads);
        if !excused || !matches!(c.kind, Race | InFlight | NotWaitedFor) {
            return None;
        }
        let program = self.program;
        let load = |side: &Side| match &program.code[side.site as usize].op {
            _ if side.kind != AccessKind::Read || !matches!(side.actor, Actor::Agent(_)) => None,
            Instruction::Ld { d, bytes, .. } => {
                Some((d, u64::from(*bytes) * d.len() as u64, false))
            }
            Instruction::LdMatrix { d, .. } => Some((d, 16, true)),
            _ => None,
        };
        if load(&c.later).is_some() {
            self.holes.push((threads[1]?.2, f.clone()));
            return Some(());
        }
        let (pc, (d, size, whole)) = (c.earlier.site, load(&c.earlier)?);
        let (linear, warp, lane) = threads[0]?;
        let cta = self.ctas.iter().position(|c| c.linear == linear)?;
        let later = self.who(threads[1]);
        let v = self.violation(f.clone(), c.later.site as usize, later);
        let w = self.ctas[cta].warps[warp as usize].as_mut()?;
        let at = w.poison.unread(pc, d, lane)? & 0xff_ffff;
        if !(at..at + size).contains(&c.range.start) {
            return None;
        }
        let lanes = if whole { u32::MAX } else { 1 << lane };
        for d in d.iter().flatten() {
            w.poison.undefine(d.0, lanes, &v);
        }
        Some(())
    }

    /// Keeps a relaxation that the kernel relied on, once for each relaxation and instruction.
    pub(crate) fn note(&mut self, relaxation: Relaxation, pc: usize, message: impl Into<String>) {
        if self.noted.insert((relaxation, pc)) {
            let site = self.program.site(pc);
            self.report.notes.push(Note {
                relaxation,
                message: message.into(),
                site,
            });
        }
    }

    /// Keeps a violation that was asked to be a warning.
    pub(crate) fn warn(&mut self, v: Violation) {
        let same = |w: &&mut Violation| {
            let hazard = v.kind == ViolationKind::Hazard;
            (w.kind, w.site.line) == (v.kind, v.site.line) && (!hazard || w.message == v.message)
        };
        if let Some(w) = self.report.warnings.iter_mut().find(same) {
            w.more += 1;
        } else if self.report.warnings.len() < Report::MAX_WARNINGS {
            self.report.warnings.push(v);
        } else {
            self.report.warnings_dropped += 1;
        }
    }
}
