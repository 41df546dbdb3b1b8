//! `tcgen05.commit`: arrives on mbarriers once the thread's earlier operations have completed.

use super::{REMEMBERED, broken, trouble};
use crate::exec::Ctx;
use crate::exec::event::Event;
use crate::exec::machine::{Machine, Tried};
use crate::exec::warp::Warp;
use crate::memory::{Fault, Space};
use crate::models::hazard::{Op as TrackedOp, OpClass};
use crate::models::relaxation::Relaxation;
use crate::models::tcgen05_mma::CtaGroup;
use crate::program::{Addr, Src};
use crate::trace::{Kind, Operation};

/// Commits that a thread has issued, and commits that have signalled.
#[derive(Debug, Default)]
pub(super) struct Commits {
    issued: u64,
    signalled: u64,
}

#[derive(Debug)]
struct CommitEvent {
    pc: usize,
    after: Vec<u64>,
    /// The thread.
    issuer: (u32, u32, u32),
    /// Number of the commit among the thread's commits, where these signal in order.
    turn: Option<u64>,
    /// Linear CTAs and the address of the mbarrier in each.
    barriers: Vec<(u32, u64)>,
    /// Operations that the arrival hands over.
    tracked: Vec<TrackedOp>,
    /// The arrival, as an operation.
    arrival: Option<TrackedOp>,
}

impl Event for CommitEvent {
    fn describe(&self) -> String {
        let (cta, at) = self.barriers[0];
        format!(
            "tcgen05.commit to the mbarrier at {at:#x} of CTA {cta} ({} in all)",
            self.barriers.len()
        )
    }

    fn trace(&self) -> Operation {
        Operation {
            kind: Kind::Commit,
            name: "commit".into(),
            details: Vec::new(),
            barriers: self.barriers.clone(),
        }
    }

    fn pc(&self) -> usize {
        self.pc
    }

    fn ready(&self, m: &Machine<'_>) -> bool {
        let signalled = || {
            m.tensor
                .commits
                .get(&self.issuer)
                .map_or(0, |c| c.signalled)
        };
        m.tensor.over(&self.after) && self.turn.is_none_or(|turn| turn == signalled())
    }

    fn complete(self: Box<Self>, m: &mut Machine<'_>) -> Result<(), Fault> {
        for (linear, address) in &self.barriers {
            if let Some(h) = &mut m.hazards {
                h.signal_commit(&self.tracked, *linear, *address);
                if let (Some(op), Some(_)) = (self.arrival, self.turn) {
                    h.arrived(self.issuer, op, *linear, *address);
                }
            }
            m.async_arrive(self.issuer.0, *linear, *address, 1)?;
        }
        if let (Some(op), Some(h)) = (self.arrival, &mut m.hazards) {
            h.retire(self.issuer.0, op, true);
        }
        m.tensor.commits.entry(self.issuer).or_default().signalled += 1;
        Ok(())
    }
}

impl Machine<'_> {
    /// Keeps an operation for the thread's commits.
    pub(super) fn remember(&mut self, issuer: (u32, u32, u32), op: TrackedOp) {
        let list = self.tensor.issued.entry(issuer).or_default();
        list.push_back(op);
        if list.len() > REMEMBERED
            && let (Some(old), Some(h)) = (list.pop_front(), &mut self.hazards)
        {
            h.retire(issuer.0, old, false);
        }
    }

    pub(super) fn tensor_commit(
        &mut self,
        c: &Ctx<'_>,
        w: &Warp,
        lane: u32,
        group: CtaGroup,
        barrier: &Addr,
        mask: Option<Src>,
    ) -> Tried<()> {
        let t = trouble(lane);
        self.tensor_group(c.cta, group).map_err(&t)?;
        let base = w.get(c.program, barrier.base)[lane as usize];
        let mut place = self.locate(c, barrier, base, lane)?;
        if barrier.space.is_none()
            && place.space != Space::Shared
            && self.options.allows(Relaxation::GenericShared)
        {
            let space = Some(Space::Shared);
            if let Ok(shared) = self.locate(c, &Addr { space, ..*barrier }, base, lane) {
                place = shared;
                let why = "the address is one of shared memory, where a generic one is expected";
                self.note(Relaxation::GenericShared, c.pc, why);
            }
        }
        if place.space != Space::Shared {
            return Err(t(broken(
                "the mbarrier of tcgen05.commit is in shared memory",
            )));
        }
        let barriers = match mask {
            None => vec![(self.ctas[place.owner].linear, place.address)],
            Some(m) => {
                let mask = w.get(c.program, m)[lane as usize] as u32 & 0xffff;
                let peers = &self.clusters[self.ctas[c.cta].cluster].ctas;
                if mask == 0 || mask >> peers.len() != 0 {
                    let n = peers.len();
                    return Err(t(broken(format!(
                        "CTA mask {mask:#x} of a cluster of {n} CTAs"
                    ))));
                }
                crate::exec::lanes(mask)
                    .map(|r| (self.ctas[peers[r as usize]].linear, place.address))
                    .collect()
            }
        };
        let issuer = (self.ctas[c.cta].linear, w.index, lane);
        let after = self
            .tensor
            .pending
            .iter()
            .filter(|(_, p)| p.issuer == issuer && p.what != OpClass::LdSt)
            .map(|(i, _)| *i)
            .collect();
        let mut tracked: Vec<_> = self
            .tensor
            .issued
            .get(&issuer)
            .map(|l| l.iter().copied().collect())
            .unwrap_or_default();
        // The arrival itself, which uses the objects.
        let mut arrival = None;
        if let Some(h) = &mut self.hazards
            && let Some(op) = h.begin(issuer, OpClass::Plain)
        {
            for (owner, at) in &barriers {
                h.op_barrier(op, issuer.0, *owner, *at, c.pc);
            }
            tracked.push(op);
            arrival = Some(op);
        }
        self.check_hazards().map_err(&t)?;
        let in_order = self.options.allows(Relaxation::CommitOrder);
        let commits = self.tensor.commits.entry(issuer).or_default();
        let turn = in_order.then_some(commits.issued);
        commits.issued += 1;
        self.events.push(Box::new(CommitEvent {
            pc: c.pc,
            after,
            issuer,
            turn,
            barriers,
            tracked,
            arrival,
        }));
        Ok(())
    }
}
