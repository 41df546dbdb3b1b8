//! The classic mistakes around TMA, mbarriers and tcgen05, each beside its correct version.

use ptx_sim::models::hazard::AccessKind::{self, *};
use ptx_sim::models::hazard::ConflictKind::{self, *};
use ptx_sim::models::hazard::OpClass::{self, *};
use ptx_sim::models::hazard::{Access, Agent, Fence, Op, Profile, Proxy, Range, Sem, Tracker};

const SMEM: u64 = 0;
const TMEM: u64 = 1;
const FULL: u64 = 100;
const EMPTY: u64 = 101;
const CTA: u64 = 102;

fn at(space: u64, start: u64, len: u64, kind: AccessKind, proxy: Proxy, site: u32) -> Access {
    Access {
        range: Range::new(space, start, len),
        kind,
        proxy,
        site,
    }
}

fn st(site: u32) -> Access {
    at(SMEM, 0, 64, Write, Proxy::Generic, site)
}
fn ld(site: u32) -> Access {
    at(SMEM, 32, 4, Read, Proxy::Generic, site)
}
fn async_read(site: u32) -> Access {
    at(SMEM, 0, 128, Read, Proxy::Async, site)
}
fn async_write(site: u32) -> Access {
    at(SMEM, 0, 128, Write, Proxy::Async, site)
}
fn tmem(kind: AccessKind, site: u32) -> Access {
    at(TMEM, 0, 64, kind, Proxy::Tensor, site)
}

struct World(Tracker, Agent, Agent);

impl World {
    fn new() -> Self {
        Self::with(Profile::Strict)
    }
    fn with(profile: Profile) -> Self {
        let mut t = Tracker::new(profile);
        let (a, b) = (t.agent(), t.agent());
        Self(t, a, b)
    }
    fn kinds(&self) -> Vec<ConflictKind> {
        self.0.conflicts().iter().map(|c| c.kind).collect()
    }
    fn sync(&mut self) {
        for x in [self.1, self.2] {
            self.0.release_together(x, CTA);
        }
        self.0.complete_phase(CTA);
        for x in [self.1, self.2] {
            self.0.acquire(x, CTA, Sem::Strong);
        }
    }
    fn arrive(&mut self, who: Agent, object: u64) {
        self.0.release(who, object, Sem::Strong);
        self.0.complete_phase(object);
    }
    fn wait(&mut self, who: Agent, object: u64) {
        self.0.acquire(who, object, Sem::Strong);
    }
    fn wait_if(&mut self, when: bool, who: Agent, object: u64) {
        if when {
            self.wait(who, object);
        }
    }
    fn sync_if(&mut self, when: bool) {
        if when {
            self.sync();
        }
    }
    fn fence(&mut self, when: bool, who: Agent, fence: Fence) {
        if when {
            self.0.fence(who, fence);
        }
    }
    fn wait_op(&mut self, when: bool, who: Agent, op: Op) {
        if when {
            self.0.wait_op(who, op, false);
        }
    }
    fn op(&mut self, who: Agent, class: OpClass, accesses: &[Access]) -> Op {
        let op = self.0.begin(who, class);
        accesses.iter().for_each(|a| self.0.op_access(op, *a));
        op
    }
    fn finish(&mut self, op: Op, object: u64) {
        self.0.signal(op, object);
        self.0.complete_phase(object);
    }
}

#[test]
fn plain_races_and_barriers() {
    let mut w = World::new();
    w.0.access(w.1, st(1));
    w.0.access(w.2, ld(2));
    assert_eq!(w.kinds(), [Race]);
    let c = w.0.take_conflicts()[0];
    assert_eq!(
        (c.range.start, c.range.end, c.earlier.site, c.later.site),
        (32, 36, 1, 2)
    );
    assert!(c.to_string().contains("nothing orders the two"));

    let mut w = World::new();
    w.0.access(w.1, st(1));
    w.sync();
    w.0.access(w.2, ld(2));
    w.0.access(w.1, ld(3));
    assert_eq!(w.kinds(), []);
    w.0.access(w.1, st(4)); // the other thread's read is not ordered before this
    assert_eq!(w.kinds(), [Race]);
}

#[test]
fn release_does_not_cover_what_comes_after_it() {
    let mut w = World::new();
    w.arrive(w.1, FULL);
    w.0.access(w.1, st(1));
    w.wait(w.2, FULL);
    w.0.access(w.2, ld(2));
    assert_eq!(w.kinds(), [Race]);
}

#[test]
fn tma_load_needs_its_wait() {
    let go = |wait: bool, early: bool| {
        let mut w = World::new();
        let load = w.op(w.1, Plain, &[async_write(1)]);
        if early {
            w.0.access(w.2, ld(2));
        }
        w.finish(load, FULL);
        w.wait_if(wait, w.2, FULL);
        w.0.access(w.2, ld(2));
        w.kinds()
    };
    assert_eq!(go(true, false), []);
    assert_eq!(go(false, false), [NotWaitedFor]);
    assert_eq!(go(true, true), [InFlight]);
}

#[test]
fn threads_write_then_mma_reads_needs_a_proxy_fence() {
    let go = |writer_fence: bool, reader_fence: bool, barrier: bool| {
        let mut w = World::new();
        w.0.access(w.1, st(1));
        w.fence(writer_fence, w.1, Fence::ProxyAsync);
        w.sync_if(barrier);
        w.fence(reader_fence, w.2, Fence::ProxyAsync);
        w.op(w.2, Mma(0), &[async_read(2)]);
        w.kinds()
    };
    assert_eq!(go(true, false, true), []);
    assert_eq!(
        go(false, true, true),
        [],
        "a fence anywhere on the path will do"
    );
    assert_eq!(go(false, false, true), [MissingProxyFence]);
    assert_eq!(go(true, true, false), [Race]);
}

#[test]
fn fence_before_the_write_is_no_fence() {
    let mut w = World::new();
    w.0.fence(w.1, Fence::ProxyAsync);
    w.0.access(w.1, st(1));
    w.op(w.1, Plain, &[async_read(2)]);
    assert_eq!(w.kinds(), [MissingProxyFence]);
}

#[test]
fn pipeline_of_tma_and_mma() {
    // Producer (1) loads, consumer (2) multiplies, commit frees the buffer.
    let go = |wait_empty: bool| {
        let mut w = World::new();
        for stage in 0..3 {
            w.wait_if(stage > 0 && wait_empty, w.1, EMPTY);
            let load = w.op(w.1, Plain, &[async_write(1)]);
            w.finish(load, FULL);
            w.0.retire(load);
            w.wait(w.2, FULL);
            let mma = w.op(w.2, Mma(7), &[async_read(2), tmem(Write, 2)]);
            w.finish(mma, EMPTY);
            w.0.retire(mma);
        }
        w.kinds()
    };
    assert_eq!(
        go(true),
        [],
        "TMA -> mbarrier -> mma -> commit -> TMA needs no fence"
    );
    let early = go(false);
    assert!(early.contains(&NotWaitedFor), "{early:?}");
}

#[test]
fn buffer_reused_while_the_store_still_reads_it() {
    let go = |reads_waited: bool, fence: bool| {
        let mut w = World::new();
        w.0.access(w.1, st(1));
        w.fence(fence, w.1, Fence::ProxyAsync);
        let global = at(9, 0, 128, Write, Proxy::Async, 2);
        let store = w.op(w.1, Plain, &[async_read(2), global]);
        if reads_waited {
            w.0.wait_op(w.1, store, true);
        }
        w.0.access(w.1, st(3));
        // `.read` says nothing of the global writes.
        w.0.access(w.1, at(9, 0, 4, Read, Proxy::Generic, 4));
        w.0.wait_op(w.1, store, false);
        w.0.access(w.1, at(9, 0, 4, Read, Proxy::Generic, 5));
        w.kinds()
    };
    assert_eq!(go(true, true), [InFlight]);
    assert_eq!(go(false, true), [InFlight, InFlight]);
    assert_eq!(go(true, false)[0], MissingProxyFence);
}

#[test]
fn write_after_read_across_proxies_is_a_matter_of_profile() {
    let go = |profile| {
        let mut w = World::with(profile);
        w.0.access(w.2, ld(1));
        w.arrive(w.2, EMPTY);
        w.wait(w.1, EMPTY);
        w.op(w.1, Plain, &[async_write(2)]);
        w.kinds()
    };
    assert_eq!(go(Profile::Strict), [MissingProxyFenceWar]);
    assert_eq!(go(Profile::Hardware), []);
}

#[test]
fn barrier_used_before_its_init_is_visible() {
    let object = Range::new(SMEM, 512, 8);
    let arrive = |site| at(SMEM, 512, 8, Sync, Proxy::Generic, site);
    let mut w = World::new();
    w.0.init(w.1, object, 1);
    w.0.access(w.1, arrive(2));
    w.0.access(w.2, arrive(3));
    assert_eq!(w.kinds(), [BarrierInitNotVisible]);

    // fence.mbarrier_init + relaxed cluster arrive, acquire on the other side.
    let go = |fence: bool| {
        let mut w = World::new();
        w.0.init(w.1, object, 1);
        w.fence(fence, w.1, Fence::MbarrierInit);
        w.0.release(w.1, CTA, Sem::Relaxed);
        w.0.complete_phase(CTA);
        w.0.acquire(w.2, CTA, Sem::Strong);
        w.0.access(w.2, arrive(2));
        w.0.access(w.1, arrive(3));
        w.kinds()
    };
    assert_eq!(go(true), []);
    assert_eq!(go(false), [BarrierInitNotVisible]);
}

#[test]
fn relaxed_wait_needs_an_acquire_fence() {
    let go = |fence: bool| {
        let mut w = World::new();
        w.0.access(w.1, st(1));
        w.arrive(w.1, FULL);
        w.0.acquire(w.2, FULL, Sem::Relaxed);
        w.fence(fence, w.2, Fence::Acquire);
        w.0.access(w.2, ld(2));
        w.kinds()
    };
    assert_eq!(go(true), []);
    assert_eq!(go(false), [Race]);
}

#[test]
fn accumulator_is_read_after_commit_wait_and_fence() {
    let go = |wait: bool, fence: bool, sem: Sem| {
        let mut w = World::new();
        let mma = w.op(w.1, Mma(0), &[tmem(Write, 1)]);
        w.finish(mma, FULL);
        if wait {
            w.0.acquire(w.2, FULL, sem);
        }
        w.fence(fence, w.2, Fence::Tcgen05After);
        w.op(w.2, LdSt, &[tmem(Read, 2)]);
        w.kinds()
    };
    assert_eq!(go(true, true, Sem::Strong), []);
    assert_eq!(
        go(true, true, Sem::Relaxed),
        [],
        "the canonical pattern waits relaxed"
    );
    assert_eq!(go(true, false, Sem::Strong), [MissingTcgen05Fence]);
    assert_eq!(go(false, true, Sem::Strong), [NotWaitedFor]);
}

#[test]
fn a_wait_for_a_commit_is_handed_on() {
    // The first thread waits, the barrier tells the second.
    let go = |wait: Option<Sem>, barrier: bool, after: bool| {
        let mut w = World::new();
        let mma = w.op(w.1, Mma(0), &[tmem(Write, 1)]);
        w.finish(mma, FULL);
        if let Some(sem) = wait {
            w.0.acquire(w.1, FULL, sem);
        }
        w.sync_if(barrier);
        w.fence(after, w.2, Fence::Tcgen05After);
        w.op(w.2, LdSt, &[tmem(Read, 2)]);
        w.kinds()
    };
    let strong = Some(Sem::Strong);
    assert_eq!(go(strong, true, true), []);
    assert_eq!(go(Some(Sem::Relaxed), true, true), []);
    assert_eq!(go(strong, true, false), [MissingTcgen05Fence]);
    assert_eq!(go(strong, false, true), [NotWaitedFor]);
    assert_eq!(go(None, true, true), [NotWaitedFor]);

    // Threads of a warp hand it on to each other, with memory order or without.
    let meet = |wait: bool, memory: bool| {
        let mut w = World::new();
        let mma = w.op(w.1, Mma(0), &[tmem(Write, 1)]);
        w.finish(mma, FULL);
        w.wait_if(wait, w.1, FULL);
        w.0.meet(&[w.1, w.2], memory);
        w.0.fence(w.2, Fence::Tcgen05After);
        w.op(w.2, LdSt, &[tmem(Read, 2)]);
        w.kinds()
    };
    for memory in [true, false] {
        assert_eq!(meet(true, memory), []);
        assert_eq!(meet(false, memory), [NotWaitedFor]);
    }
}

#[test]
fn what_a_thread_hands_on_of_others_needs_no_fence_but_its_own_does() {
    // The first thread loads, then waits for an MMA and tells the second, which overwrites both.
    let go = |before: bool| {
        let mut w = World::new();
        let elsewhere = at(TMEM, 64, 64, Read, Proxy::Tensor, 1);
        let ld = w.op(w.1, LdSt, &[elsewhere]);
        w.0.wait_op(w.1, ld, false);
        w.fence(before, w.1, Fence::Tcgen05Before);
        let mma = w.op(w.1, Mma(0), &[tmem(Write, 2)]);
        w.finish(mma, FULL);
        w.wait(w.1, FULL);
        w.sync();
        w.0.fence(w.2, Fence::Tcgen05After);
        let both = at(TMEM, 0, 128, Write, Proxy::Tensor, 3);
        w.op(w.2, LdSt, &[both]);
        w.0.take_conflicts()
    };
    assert_eq!(go(true), []);
    let c = go(false);
    assert_eq!(c.len(), 1);
    assert_eq!((c[0].kind, c[0].earlier.site), (MissingTcgen05Fence, 1));
}

#[test]
fn a_thread_between_two_mbarriers_fences_again() {
    // The first thread multiplies, the second waits for the commit and tells the third.
    let go = |profile, sem: Sem, after: bool, before: bool| {
        let mut w = World::with(profile);
        let third = w.0.agent();
        let mma = w.op(w.1, Mma(0), &[tmem(Write, 1)]);
        w.finish(mma, FULL);
        w.0.acquire(w.2, FULL, sem);
        w.fence(after, w.2, Fence::Tcgen05After);
        w.fence(before, w.2, Fence::Tcgen05Before);
        w.0.release(w.2, EMPTY, sem);
        w.0.complete_phase(EMPTY);
        w.0.acquire(third, EMPTY, sem);
        w.0.fence(third, Fence::Tcgen05After);
        w.op(third, LdSt, &[tmem(Read, 2)]);
        w.kinds()
    };
    for (sem, kind) in [
        (Sem::Strong, MissingTcgen05Fence),
        (Sem::Relaxed, NotWaitedFor),
    ] {
        assert_eq!(go(Profile::Strict, sem, true, true), []);
        assert_eq!(go(Profile::Strict, sem, false, true), [kind]);
        assert_eq!(go(Profile::Strict, sem, true, false), [kind]);
        assert_eq!(go(Profile::Strict, sem, false, false), [kind]);
        assert_eq!(go(Profile::Hardware, sem, false, false), []);
    }
}

#[test]
fn accumulator_overwritten_while_it_is_loaded() {
    // ld; wait::ld; before; arrive | wait; after; mma
    let go = |wait_ld: bool, before: bool, after: bool| {
        let mut w = World::new();
        let ld = w.op(w.2, LdSt, &[tmem(Read, 1)]);
        w.wait_op(wait_ld, w.2, ld);
        w.fence(before, w.2, Fence::Tcgen05Before);
        w.arrive(w.2, EMPTY);
        w.wait(w.1, EMPTY);
        w.fence(after, w.1, Fence::Tcgen05After);
        w.op(w.1, Mma(0), &[tmem(Write, 2)]);
        w.kinds()
    };
    assert_eq!(go(true, true, true), []);
    assert_eq!(go(false, true, true), [InFlight]);
    assert_eq!(go(true, false, true), [MissingTcgen05Fence]);
    assert_eq!(go(true, true, false), [MissingTcgen05Fence]);
}

#[test]
fn pipelined_pairs() {
    let pair = |profile, first, second| {
        let mut w = World::with(profile);
        w.op(w.1, first, &[tmem(Write, 1)]);
        w.op(w.1, second, &[tmem(Write, 2)]);
        w.kinds()
    };
    let cp = Cp { is_4x256b: false };
    let flight = [InFlight];
    let strict = Profile::Strict;
    assert_eq!(pair(strict, Mma(1), Mma(1)), []);
    assert_eq!(pair(strict, Mma(1), Mma(2)), flight);
    assert_eq!(pair(strict, cp, Mma(1)), []);
    assert_eq!(pair(strict, Mma(1), cp), flight, "not listed by the ISA");
    assert_eq!(pair(Profile::Hardware, Mma(1), cp), []);
    assert_eq!(pair(strict, Shift, Cp { is_4x256b: true }), []);
    assert_eq!(pair(strict, Shift, cp), flight);
    assert_eq!(pair(strict, LdSt, Mma(1)), flight);
    // Across threads, with both fences: cp in one, mma in the other.
    let across = |before: bool| {
        let mut w = World::new();
        w.op(w.1, cp, &[tmem(Write, 1)]);
        w.fence(before, w.1, Fence::Tcgen05Before);
        w.0.release(w.1, FULL, Sem::Relaxed);
        w.0.complete_phase(FULL);
        w.0.acquire(w.2, FULL, Sem::Relaxed);
        w.0.fence(w.2, Fence::Tcgen05After);
        w.op(w.2, Mma(1), &[tmem(Read, 2)]);
        w.kinds()
    };
    assert_eq!(across(true), []);
    assert_eq!(across(false), flight);
}

#[test]
fn tensor_memory_freed_while_another_warp_loads() {
    let go = |wait: bool, barrier: bool| {
        let mut w = World::new();
        let ld = w.op(w.2, LdSt, &[tmem(Read, 1)]);
        w.wait_op(wait, w.2, ld);
        w.sync_if(barrier);
        w.0.free(w.1, Range::new(TMEM, 0, 64), 2);
        // The next owner starts from nothing.
        w.op(w.1, Mma(0), &[tmem(Write, 3)]);
        w.kinds()
    };
    assert_eq!(go(true, true), []);
    assert_eq!(go(false, true), [InFlight]);
    assert_eq!(go(true, false), [NotWaitedFor]);
}

#[test]
fn tensor_memory_freed_behind_relaxed_synchronisation() {
    // An MMA whose commit one thread waits for; the other frees.
    let mma = |wait: bool, barrier: bool| {
        let mut w = World::new();
        let mma = w.op(w.1, Mma(0), &[tmem(Write, 1)]);
        w.finish(mma, FULL);
        if wait {
            w.0.acquire(w.1, FULL, Sem::Relaxed);
        }
        w.sync_if(barrier);
        w.0.free(w.2, Range::new(TMEM, 0, 64), 2);
        w.kinds()
    };
    assert_eq!(mma(true, true), []);
    assert_eq!(mma(false, true), [NotWaitedFor]);
    assert_eq!(mma(true, false), [NotWaitedFor]);
    // A load that its thread has waited for: what is relaxed passes on what was fenced before it.
    let load = |wait: bool, before: bool| {
        let mut w = World::new();
        let ld = w.op(w.1, LdSt, &[tmem(Read, 1)]);
        w.wait_op(wait, w.1, ld);
        w.fence(before, w.1, Fence::Tcgen05Before);
        w.0.release(w.1, CTA, Sem::Relaxed);
        w.0.complete_phase(CTA);
        w.0.acquire(w.2, CTA, Sem::Strong);
        w.0.free(w.2, Range::new(TMEM, 0, 64), 2);
        w.kinds()
    };
    assert_eq!(load(true, true), []);
    assert_eq!(load(true, false), [NotWaitedFor]);
    assert_eq!(load(false, true), [InFlight]);
}

#[test]
fn a_completion_hands_over_nothing_of_its_issuer() {
    let mut w = World::new();
    w.0.access(w.1, at(SMEM, 4096, 4, Write, Proxy::Generic, 1));
    let load = w.op(w.1, Plain, &[async_write(2)]);
    w.finish(load, FULL);
    w.wait(w.2, FULL);
    w.0.access(w.2, at(SMEM, 4096, 4, Read, Proxy::Generic, 3));
    assert_eq!(w.kinds(), [Race]);
}

#[test]
fn a_commit_hands_over_what_its_operations_are_ordered_after() {
    // Thread 1 writes, fences, and has the tensor core read; thread 2 waits for the commit and refills.
    #[derive(Clone, Copy, PartialEq)]
    enum Fenced {
        Before,
        Between,
        Never,
    }
    let go = |fence: Fenced, wait: bool| {
        let mut w = World::new();
        w.0.access(w.1, at(SMEM, 4096, 128, Write, Proxy::Generic, 1));
        w.fence(fence == Fenced::Before, w.1, Fence::ProxyAsync);
        let mma = w.op(w.1, Mma(0), &[async_read(2)]);
        w.fence(fence == Fenced::Between, w.1, Fence::ProxyAsync);
        w.0.signal_commit(&[mma], EMPTY);
        w.0.complete_phase(EMPTY);
        w.wait_if(wait, w.2, EMPTY);
        let refill = at(SMEM, 4096, 128, Write, Proxy::Async, 3);
        w.op(w.2, Plain, &[refill]);
        w.kinds()
    };
    assert_eq!(go(Fenced::Before, true), []);
    assert_eq!(go(Fenced::Before, false), [Race]);
    // Neither fence is ordered before what the MMA reads.
    assert_eq!(go(Fenced::Between, true), [Race]);
    assert_eq!(go(Fenced::Never, true), [Race]);
}

#[test]
fn a_commit_hands_over_what_was_over_in_tensor_memory() {
    // st; wait::st; mma reads it; commit | wait; after; another operation overwrites it.
    let go = |waited: bool, after: bool| {
        let mut w = World::new();
        let elsewhere = |kind, site| at(TMEM, 256, 8, kind, Proxy::Tensor, site);
        let st = w.op(w.1, LdSt, &[elsewhere(Write, 1)]);
        w.wait_op(waited, w.1, st);
        let mma = w.op(w.1, Mma(0), &[tmem(Write, 2)]);
        w.0.signal_commit(&[mma], FULL);
        w.0.complete_phase(FULL);
        w.wait(w.2, FULL);
        w.fence(after, w.2, Fence::Tcgen05After);
        let cp = Cp { is_4x256b: false };
        w.op(w.2, cp, &[elsewhere(Write, 3)]);
        w.kinds()
    };
    assert_eq!(go(true, true), []);
    assert_eq!(go(true, false), [MissingTcgen05Fence]);
    assert_eq!(go(false, true), [InFlight]);
}

#[test]
fn slots_are_reused_only_by_issuers_that_know() {
    let mut w = World::new();
    let a = w.op(w.1, Plain, &[async_write(1)]);
    w.0.complete(a);
    w.0.retire(a);
    // The issuer never waited: its next operation must not look ordered after the first.
    w.op(w.1, Plain, &[async_write(2)]);
    assert_eq!(w.kinds(), [NotWaitedFor]);
    assert!(w.0.conflicts()[0].to_string().contains("not waited for"));
}

#[test]
fn knowing_a_later_operation_is_not_knowing_an_unwaited_earlier_one() {
    let mut w = World::new();
    let first = w.op(w.1, Plain, &[async_write(1)]);
    w.0.complete(first);
    w.0.retire(first);
    let elsewhere = at(SMEM, 4096, 16, Write, Proxy::Async, 2);
    let second = w.op(w.1, Plain, &[elsewhere]);
    w.finish(second, FULL);
    w.wait(w.2, FULL);
    w.0.access(w.2, ld(3));
    assert_eq!(w.kinds(), [NotWaitedFor]);
}

#[test]
fn ranges_split_and_overlap_exactly() {
    let mut w = World::new();
    let write = |s, n, site| at(SMEM, s, n, Write, Proxy::Generic, site);
    for i in 0..8 {
        w.0.access(w.1, write(16 * i, 16, 1));
    }
    w.0.access(w.2, write(128, 16, 2));
    w.0.access(w.2, at(5, 0, 16, Write, Proxy::Generic, 3));
    assert_eq!(w.kinds(), []);
    w.0.access(w.2, write(127, 1, 4));
    let c = w.0.take_conflicts();
    assert_eq!((c.len(), c[0].range.start, c[0].range.end), (1, 127, 128));
    w.0.access(w.1, write(u64::MAX, 9, 5)); // saturates to nothing
    assert_eq!(w.kinds(), []);
}
