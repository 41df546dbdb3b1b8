//! Asynchronous operations: the accesses that they are ordered after, and the threads that learn of their completion.

use super::super::relaxation::Relaxation;
use super::super::swizzle::Swizzle;
use super::clock::{Clock, Known, Tensor};
use super::object::AgentState;
use super::{Agent, Op, OpClass, Tracker};
use std::sync::Arc;

#[derive(Debug, Clone)]
pub(super) struct OpState {
    pub(super) slot: u32,
    pub(super) time: u32, // reads; writes are at time + 1
    pub(super) class: OpClass,
    pub(super) issuer: Agent,
    /// Accesses that precede the operation.
    pub(super) known: Known,
    pub(super) tensor: Tensor,
    /// Operations that the issuer had acquired in tcgen05 order without a fence; empty where nothing asks for them.
    pub(super) arrived: Tensor,
    /// Accesses that were over in execution order.
    pub(super) over: Arc<Clock>,
    pub(super) swizzle: Option<Swizzle>,
    pub(super) started: u32,
    pub(super) complete: bool,
    /// Whether the operation has accesses that are not reads.
    pub(super) writes: bool,
}

/// The slot of a finished operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Free {
    slot: u32,
    /// Time that tells that the operation is over: who knows of this time knows it.
    known: u32,
    last: u32,
}

/// The remains of an operation, for those that wait for it by groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    slot: u32,
    time: u32,
    /// Whether the operation's completion carries a proxy fence.
    fenced: bool,
}

impl Tracker {
    /// Issues an asynchronous operation: it is ordered after all that its issuer is ordered after.
    pub fn begin(&mut self, agent: Agent, class: OpClass) -> Op {
        let (slot, time) = self.reusable(agent).unwrap_or_else(|| {
            self.slots += 1;
            (self.slots - 1, 1)
        });
        let op = Op(self.next_op);
        self.next_op += 1;
        let a = &mut self.agents[agent.0 as usize];
        let known = a.seal();
        let (tensor, started, over) = (a.tensor.clone(), a.started, a.over.clone());
        let arrived = match class.tensor() && self.allowed.has(Relaxation::AfterFence) {
            true => a.tensor_in.clone(),
            false => Tensor::default(),
        };
        if class.tensor() {
            a.tensor.raise_issued(slot, time + 1);
        }
        self.ops.insert(
            op.0,
            OpState {
                slot,
                time,
                class,
                issuer: agent,
                known,
                tensor,
                arrived,
                over,
                swizzle: None,
                started,
                complete: false,
                writes: false,
            },
        );
        op
    }

    /// The slot of a finished operation that a thread knows to be over, and the time that comes next there. It is a
    /// slot of the thread's own operations or, where there is none, of another thread's.
    fn reusable(&mut self, agent: Agent) -> Option<(u32, u32)> {
        let of_whom = agent.0 as usize;
        let known = &self.agents[of_whom].now;
        let first = |free: &[Free]| free.iter().position(|f| known.generic(f.slot, f.known));
        let (whose, i) = match &self.agents[of_whom].free[..] {
            [] => {
                let all = self.with_free.iter();
                let mut all =
                    all.filter_map(|whose| Some((*whose, first(&self.agents[*whose].free)?)));
                all.next()?
            }
            mine => (of_whom, first(mine)?),
        };
        let all = &mut self.agents[whose].free;
        let free = all.swap_remove(i);
        if all.is_empty() {
            self.with_free.remove(&whose);
        }
        Some((free.slot, free.last + 1))
    }

    /// The operation writes shared memory with this swizzle, or expects the bytes that it reads to have this swizzle.
    pub fn swizzled(&mut self, op: Op, swizzle: Swizzle) {
        if let Some(o) = self.ops.get_mut(&op.0) {
            o.swizzle = Some(swizzle);
        }
    }

    /// The operation has happened. Whoever should know of it learns it by [`Tracker::signal`],
    /// [`Tracker::wait_op`] or [`Tracker::wait`].
    pub fn complete(&mut self, op: Op) {
        if let Some(o) = self.ops.get_mut(&op.0) {
            o.complete = true;
        }
    }

    /// A completed operation signals an object, as the complete_tx of a TMA load does. It hands over
    /// the operation and nothing its issuer did before.
    pub fn signal(&mut self, op: Op, object: u64) {
        let Some(o) = self.ops.get_mut(&op.0) else {
            return;
        };
        o.complete = true;
        let into = &mut self.objects.entry(object).or_default().arriving;
        let view = Arc::make_mut(&mut into.view);
        view.generic.raise(o.slot, o.time + 1);
        if o.class != OpClass::Copy {
            view.fenced.raise(o.slot, o.time + 1);
        }
        if o.class.tensor() {
            // commit implies fence::before_thread_sync
            into.tensor.raise_done(o.slot, o.time + 1);
            into.tensor.raise_issued(o.slot, o.time + 1);
        }
    }

    /// The arrive of a `tcgen05.commit`: operations of one thread, oldest first, have completed and signal an object.
    ///
    /// Beyond [`Tracker::signal`] the arrive hands over the accesses that these operations were ordered after. Such
    /// accesses were over before the operations were. They are accesses to tensor memory, and to shared memory as far
    /// as the async proxy sees it, through which the operations access it. 8.9.1.1 denies this transitivity to
    /// complete-tx; nothing in the text denies it to a commit. Accesses that no proxy fence brought before the
    /// operations are not handed over.
    pub fn signal_commit(&mut self, ops: &[Op], object: u64) {
        for op in ops {
            self.signal(*op, object);
        }
        let mut newest = ops.iter().rev().filter_map(|op| self.ops.get(&op.0));
        // Accesses that precede an operation precede every later one of its thread too.
        let Some(last) = newest.find(|o| o.class.tensor()) else {
            return;
        };
        let into = &mut self.objects.entry(object).or_default().arriving;
        let view = Arc::make_mut(&mut into.view);
        for clock in [&mut view.generic, &mut view.fenced] {
            clock.join(&last.known.view.fenced);
            clock.raise(last.known.slot, last.known.fenced);
        }
        into.tensor.join(&mut self.merger, &last.tensor);
    }

    /// The arrive of a commit of this thread has come, itself an operation. With the signals of those before it, which
    /// came before it, it tells whoever waits for it in execution order.
    pub fn arrived(&mut self, agent: Agent, arrival: Op, object: u64) {
        let a = &mut self.agents[agent.0 as usize];
        if let Some(o) = self.ops.get(&arrival.0) {
            Arc::make_mut(&mut a.arrivals).raise(o.slot, o.time + 1);
        }
        let into = &mut self.objects.entry(object).or_default().arriving;
        self.merger.share(&mut into.over, &a.arrivals);
    }

    /// The operation is a `cp.async` of this thread.
    pub fn note_copy(&mut self, agent: Agent, op: Op) {
        if let Some(o) = self.ops.get(&op.0) {
            let copies = &mut self.agents[agent.0 as usize].copies;
            copies.insert(o.slot, o.time);
        }
    }

    /// A thread's `cp.async`s up to here, which a `cp.async.mbarrier.arrive` now will hand over.
    pub fn copies(&self, agent: Agent) -> Vec<Stamp> {
        let copies = self.agents[agent.0 as usize].copies.iter();
        copies
            .map(|(slot, time)| Stamp {
                slot: *slot,
                time: *time,
                fenced: false,
            })
            .collect()
    }

    /// Operations that have completed signal an object.
    pub fn signal_stamps(&mut self, stamps: &[Stamp], object: u64) {
        let into = &mut self.objects.entry(object).or_default().arriving;
        let view = Arc::make_mut(&mut into.view);
        for s in stamps {
            view.generic.raise(s.slot, s.time + 1);
        }
    }

    /// The stamp of an operation, which a group keeps.
    pub fn stamp(&self, op: Op) -> Option<Stamp> {
        let o = self.ops.get(&op.0)?;
        Some(Stamp {
            slot: o.slot,
            time: o.time,
            fenced: o.class != OpClass::Copy,
        })
    }

    /// The thread waits for operations by their group: `cp.async.bulk.wait_group`. With
    /// `reads_only` (`.read`) only their reads are known to be over.
    pub fn wait(&mut self, agent: Agent, stamps: &[Stamp], reads_only: bool) {
        let a = &mut self.agents[agent.0 as usize];
        for s in stamps {
            a.now
                .learn(s.slot, s.time + u32::from(!reads_only), s.fenced);
        }
    }

    /// Threads know that operations are over in execution order.
    pub fn over(&mut self, agents: &[Agent], stamps: &[Stamp]) {
        let mut clock = Clock::default();
        stamps.iter().for_each(|s| clock.raise(s.slot, s.time + 1));
        let clock = Arc::new(clock);
        for agent in agents {
            let over = &mut self.agents[agent.0 as usize].over;
            self.merger.share(over, &clock);
        }
    }

    /// The thread waits for the operation itself: `tcgen05.wait::ld`. `reads_only` as above.
    pub fn wait_op(&mut self, agent: Agent, op: Op, reads_only: bool) {
        let Some(stamp) = self.stamp(op) else { return };
        let Some(o) = self.ops.get_mut(&op.0) else {
            return;
        };
        o.complete |= !reads_only;
        let tensor = o.class.tensor();
        self.wait(agent, &[stamp], reads_only);
        if tensor {
            let until = stamp.time + u32::from(!reads_only);
            let a = &mut self.agents[agent.0 as usize];
            a.tensor.raise_done(stamp.slot, until);
            let asked = [Relaxation::ExecutionFree, Relaxation::WaitedLoads];
            if asked.into_iter().any(|r| self.allowed.has(r)) {
                Arc::make_mut(&mut a.over).raise(stamp.slot, until);
            }
        }
    }

    /// Threads wait for the operation together, as the lanes of a warp do. Threads that knew the same before share
    /// their knowledge afterwards.
    pub fn wait_op_together(&mut self, agents: &[Agent], op: Op) {
        let Some((first, others)) = agents.split_first() else {
            return;
        };
        let known = |a: &AgentState| (a.now.view.clone(), a.tensor.done.clone(), a.over.clone());
        let (view, done, over) = known(&self.agents[first.0 as usize]);
        self.wait_op(*first, op, false);
        let after = known(&self.agents[first.0 as usize]);
        for agent in others {
            let a = &mut self.agents[agent.0 as usize];
            let same = Arc::ptr_eq(&a.now.view, &view) && Arc::ptr_eq(&a.tensor.done, &done);
            if same && a.over == over {
                (a.now.view, a.tensor.done, a.over) = after.clone();
            } else {
                self.wait_op(*agent, op, false);
            }
        }
    }

    /// Forgets a completed operation whose signals have all been given. Its slot is used again
    /// by an issuer that knows of its completion.
    pub fn retire(&mut self, op: Op) {
        if self.ops.get(&op.0).is_some_and(|o| o.complete)
            && let Some(o) = self.ops.remove(&op.0)
        {
            let issuer = o.issuer.0 as usize;
            self.with_free.insert(issuer);
            self.agents[issuer].free.push(Free {
                slot: o.slot,
                known: o.time + u32::from(o.writes),
                last: o.time + 1,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Profile;
    use super::*;

    /// The slot of an operation that is issued and ends at once.
    fn slot(tracker: &mut Tracker, agent: Agent) -> u32 {
        let op = tracker.begin(agent, OpClass::Plain);
        let slot = tracker.ops[&op.0].slot;
        tracker.wait_op(agent, op, false);
        tracker.complete(op);
        tracker.retire(op);
        slot
    }

    #[test]
    fn slots_are_ones_own_first_and_then_of_others_that_are_known_to_be_over() {
        let mut tracker = Tracker::new(Profile::Strict);
        let [a, b, c] = [(); 3].map(|()| tracker.agent());
        let of_a = slot(&mut tracker, a);
        assert_eq!(slot(&mut tracker, a), of_a);
        // Agent `b` has no free slot, and knows of none.
        let of_b = slot(&mut tracker, b);
        assert_ne!(of_b, of_a);
        tracker.meet(&[a, b, c], true);
        assert_eq!(slot(&mut tracker, b), of_b);
        assert_eq!(slot(&mut tracker, a), of_a);
        // Agent `c` has no free slot, but knows of both; the slot that it took is its own from then on.
        tracker.meet(&[a, b, c], true);
        let of_c = slot(&mut tracker, c);
        assert!([of_a, of_b].contains(&of_c));
        assert_eq!(slot(&mut tracker, c), of_c);
        assert_eq!(tracker.slots, 3 + 2);
    }
}
