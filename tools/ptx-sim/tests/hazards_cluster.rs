//! Hazards between the CTAs of a cluster.

mod common;

use common::hazard::{
    CLUSTER, PAIR, caught, caught_as, clean, clean_as, kernel_with, run, wait, ways,
};
use ptx_sim::report::ViolationKind;
use ptx_sim::{HazardChecks, Options, Profile};

const NOTHING: &str = "nothing orders the two";
const RELAXED: &str = "barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;\n";
const READ_FAR: &str = "ld.shared::cluster.u32 %r1, [%far];//@later\nst.global.u32 [%w], %r1;\n";

fn pair(body: &str) -> String {
    kernel_with(PAIR, body)
}

#[test]
fn the_cluster_barrier_orders_what_is_released() {
    let body = |sync: &str| {
        pair(&format!(
            "@!%p8 st.shared.u32 [%s], 5;//@earlier\n{sync}{READ_FAR}{CLUSTER}"
        ))
    };
    clean(&body(CLUSTER));
    clean(&body(&format!("fence.acq_rel.cluster;\n{RELAXED}")));
    for profile in [Profile::Strict, Profile::Hardware] {
        caught_as(&body(RELAXED), profile, ViolationKind::Hazard, NOTHING);
    }
    caught(&body(&format!("bar.sync 0;\n{RELAXED}")), NOTHING);
    // A relaxed barrier does not tell that a read is over, either.
    let overwritten = |sync: &str| {
        pair(&format!(
            "@!%p8 st.shared.u32 [%s], 5;\n{CLUSTER}\
             @!%p8 ld.shared::cluster.u32 %r1, [%far];//@earlier\n@!%p8 st.global.u32 [%w], %r1;\n{sync}\
             @!%p8 st.shared.u32 [%s], 6;//@later\n{CLUSTER}"
        ))
    };
    clean(
        &overwritten(CLUSTER)
            .replace("//@earlier", "")
            .replace("//@later", ""),
    );
    for profile in [Profile::Strict, Profile::Hardware] {
        caught_as(
            &overwritten(RELAXED),
            profile,
            ViolationKind::Hazard,
            NOTHING,
        );
    }
    // A fence behind the arrival is none.
    let late = RELAXED.replace("\n", "\nfence.acq_rel.cluster;\n");
    caught(&body(&late), NOTHING);
    // The fence releases the barriers' initialisation and nothing else.
    caught(
        &body(&format!("fence.mbarrier_init.release.cluster;\n{RELAXED}")),
        NOTHING,
    );
    // Arriving is not waiting.
    let early = body("barrier.cluster.arrive.aligned;\n").replace(
        READ_FAR,
        &format!("{READ_FAR}barrier.cluster.wait.aligned;\n"),
    );
    let early = early.replace("@!%p8 st.shared.u32 [%s], 5;//@earlier", "");
    let written = early.replace(
        "ld.shared::cluster.u32 %r1, [%far]",
        "st.shared::cluster.u32 [%far], 1",
    );
    caught(&written, "nothing tells that its CTA runs");
}

#[test]
fn remote_memory_exists_from_start_to_end() {
    let body = |start: &str, end: &str| {
        pair(&format!(
            "{start}@!%p8 st.shared::cluster.u32 [%far], 5;//@store\n{end}"
        ))
    };
    clean(&body(CLUSTER, CLUSTER));
    // A relaxed barrier is enough to know that the peer runs, and no memory order is needed.
    clean(&body(RELAXED, CLUSTER));
    let early = body("", CLUSTER).replace("//@store", "//@later");
    caught(&early, "nothing tells that its CTA runs");
    clean_as(&early, Profile::Hardware);
    let gone = body(CLUSTER, "").replace("//@store", "");
    // The peer ends first, or might have.
    caught(&gone, "a CTA ends here while");
    caught(&gone, "has ended");
    // Where nothing looks for hazards, the memory is there until the cluster ends.
    for o in ways(Profile::Hardware) {
        let with = |hazards| {
            run(
                &gone,
                &Options {
                    hazards,
                    ..o.clone()
                },
            )
        };
        with(HazardChecks::Off).unwrap();
        with(HazardChecks::Warn).unwrap();
    }
    caught_as(
        &gone,
        Profile::Hardware,
        ViolationKind::Hazard,
        "a CTA ends here while",
    );
    // Arrived without waiting: the peer waits in vain for nobody, and this one may end.
    caught(
        &body(CLUSTER, "@%p8 bra E;\nbar.warp.sync 1;\nE:"),
        "a CTA ends here while",
    );
}

/// A barrier in each CTA that the peer arrives on.
fn barriers(init: &str, sync: &str, arrive: &str, acquire: &str) -> String {
    pair(&format!(
        "@%p8 bra I;\nmbarrier.init.shared::cta.b64 [%m], 1;//@init\n{init}I:\n{sync}\
         @!%p8 st.shared::cluster.u32 [%far], 5;//@store\n\
         @!%p8 mbarrier.arrive{arrive}.shared::cluster.b64 _, [%farm];//@arrive\n{}\
         ld.shared.u32 %r1, [%s];//@read\nst.global.u32 [%w], %r1;\n{CLUSTER}",
        wait("W", acquire)
    ))
}

#[test]
fn initialisation_of_a_barrier_that_the_peer_uses() {
    let (fence, release, acquire) = (
        "fence.mbarrier_init.release.cluster;\n",
        ".release.cluster",
        ".acquire.cluster",
    );
    clean(&barriers(fence, RELAXED, release, acquire));
    clean(&barriers(fence, CLUSTER, release, acquire));
    // The barrier's own release covers it.
    clean(&barriers("", CLUSTER, release, acquire));
    // On hardware a relaxed barrier hands it on as well.
    let ptx = barriers("", RELAXED, release, acquire);
    caught_as(
        &ptx.replace("//@init", "//@earlier"),
        Profile::Strict,
        ViolationKind::BarrierInit,
        "is not visible",
    );
    clean_as(&ptx, Profile::Hardware);
}

#[test]
fn scopes_of_remote_arrivals() {
    let (release, acquire) = (".release.cluster", ".acquire.cluster");
    let bad = |arrive: &str, acquire: &str| {
        let ptx = barriers("", CLUSTER, arrive, acquire);
        let ptx = ptx.replace("//@store", "//@earlier");
        ptx.replace("//@read", "//@later")
    };
    clean(&barriers("", CLUSTER, release, acquire));
    // The default scope is the CTA on both sides.
    for (arrive, acquire) in [
        ("", ""),
        ("", acquire),
        (release, ""),
        (".release.cta", acquire),
        (release, ".relaxed.cluster"),
    ] {
        caught(&bad(arrive, acquire), NOTHING);
        clean_as(&bad(arrive, acquire), Profile::Hardware);
    }
    // An arrive that says it releases nothing does so in any profile, whatever the wait.
    for profile in [Profile::Strict, Profile::Hardware] {
        for acquire in [acquire, "", ".relaxed.cluster"] {
            let ptx = bad(".relaxed.cluster", acquire);
            caught_as(&ptx, profile, ViolationKind::Hazard, NOTHING);
        }
    }
    // Fences restore what relaxed operations leave out.
    let fenced = barriers("", CLUSTER, ".relaxed.cluster", ".relaxed.cluster")
        .replace("//@store", "\nfence.acq_rel.cluster;")
        .replace("ld.shared.u32", "fence.acq_rel.cluster;\nld.shared.u32");
    clean(&fenced);
}

#[test]
fn asynchronous_stores_to_the_peer() {
    let body = |expect: &str, end: &str| {
        pair(&format!(
            "@%p8 bra I;\nmbarrier.init.shared::cta.b64 [%m], 1;\nst.shared.u32 [%s], 0;\nI:\n{CLUSTER}\
             {expect}@!%p8 st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%far], %t, [%farm];//@earlier\n\
             {}ld.shared.u32 %r1, [%s];//@later\nst.global.u32 [%w], %r1;\n{end}",
            wait("W", "")
        ))
    };
    let expect = "@!%p8 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%m], 4;\n";
    clean(&body(expect, CLUSTER));
    // The peer's barrier tells that the store into this CTA is over, so that it may end.
    clean(&body(expect, ""));
    let unwaited = body(expect, CLUSTER).replace(&wait("W", ""), "");
    caught(&unwaited, "was not waited for");
}

/// A kernel in which both CTAs free a pair allocation.
fn pair_memory(before: &str, first: &str, second: &str) -> String {
    let free = "tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r5, 32;";
    pair(&format!(
        "setp.ge.u32 %p2, %t, 32;\nsetp.ne.u32 %p3, %rank, 0;\n{CLUSTER}@%p2 bra A;\n\
         tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%s], 32;\n\
         tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;\nA: bar.sync 0;\n\
         ld.shared.u32 %r5, [%s];\nbar.warp.sync 0xffffffff;\n@%p2 bra E;\n\
         tcgen05.st.sync.aligned.32x32b.x1.b32 [%r5], {{%t}};\ntcgen05.wait::st.sync.aligned;\n\
         tcgen05.fence::before_thread_sync;\nE:\n{before}@%p2 bra F;\n@%p3 bra S;\n{first}{free}//@first\nbra F;\n\
         S:\n{second}{free}//@second\nF:"
    ))
}

#[test]
fn deallocation_of_a_pair() {
    clean(&pair_memory(CLUSTER, "", ""));
    // Execution order is enough where tcgen05.fence::before_thread_sync is.
    clean(&pair_memory(RELAXED, "", ""));
    let unfenced = pair_memory(RELAXED, "", "").replace("tcgen05.fence::before_thread_sync;", "");
    caught(&unfenced, "tensor memory columns 0..1");
    // The peer's accesses must be known to be over.
    caught(&pair_memory("", "", ""), "tensor memory columns 0..1");
    // Nothing may be touched once either CTA has freed it.
    let late =
        "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r5], {%t};\ntcgen05.wait::st.sync.aligned;\n";
    caught(&pair_memory(CLUSTER, "", late), "");
    // A CTA that waits for its peer before it frees hangs if the peer's instruction blocks.
    let barrier = "barrier.cluster.arrive;\nbarrier.cluster.wait;\n";
    let ptx = pair_memory(CLUSTER, barrier, "");
    assert!(std::panic::catch_unwind(|| clean(&ptx)).is_err());
}

/// The even CTA copies into the tensor memory of both as soon as its own allocation is there, `columns`
/// columns behind the allocation's first. Behind `wait`, all warps of both read, `first` columns behind it.
fn copy_into_both(columns: u32, wait: &str, first: u32) -> String {
    pair(&format!(
        "setp.ge.u32 %p2, %t, 32;\nsetp.ne.u32 %p3, %rank, 0;\nor.pred %p4, %p3, %p8;\n\
         shl.b32 %r2, %t, 4;\nadd.u32 %r2, %r2, %s;\nst.shared.v4.u32 [%r2], {{%t, %t, %t, %t}};\n\
         @!%p8 mbarrier.init.shared::cta.b64 [%m], 1;\nfence.proxy.async.shared::cta;\n{CLUSTER}@%p2 bra A;\n\
         tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%s+2048], 32;\n\
         tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;\n@%p4 bra A;\n\
         ld.shared.u32 %r5, [%s+2048];\nadd.u32 %r5, %r5, {columns};\n\
         cvt.u64.u32 %d1, %s;\nshr.u64 %d1, %d1, 4;\nor.b64 %d1, %d1, 0x0000400800010000;\n\
         tcgen05.cp.cta_group::2.32x128b.warpx4 [%r5], %d1;\nmov.b16 %h1, 3;\n\
         tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%m], %h1;\n\
         A: bar.sync 0;\nld.shared.u32 %r5, [%s+2048];\nshr.u32 %r6, %t, 5;\nshl.b32 %r6, %r6, 21;\n\
         add.u32 %r6, %r6, %r5;\nadd.u32 %r6, %r6, {first};\n{wait}bar.warp.sync 0xffffffff;\n\
         tcgen05.fence::after_thread_sync;\ntcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r7}}, [%r6];//@read\n\
         tcgen05.wait::ld.sync.aligned;\nst.global.u32 [%w], %r7;\n\
         tcgen05.fence::before_thread_sync;\n{CLUSTER}@%p2 bra E;\n\
         tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r5, 32;\nE:"
    ))
}

#[test]
fn an_allocation_of_a_pair_is_there_for_both_at_once() {
    let copied = wait("W", "");
    // One CTA goes on, and its peer is still about to: the peer's columns exist, and keep what is
    // written to them.
    clean(&copy_into_both(0, &copied, 0));
    // Columns that neither has allocated.
    for profile in [Profile::Strict, Profile::Hardware] {
        let beyond = copy_into_both(32, &copied, 0);
        caught_as(&beyond, profile, ViolationKind::Other, "is not allocated");
        // Allocated, and not written since.
        let unwritten = copy_into_both(0, &copied, 4);
        let message = "is read but not initialised";
        caught_as(&unwritten, profile, ViolationKind::Other, message);
    }
    // The copy is there when the commit says so, and not before.
    let early = copy_into_both(0, "", 0).replace("//@read", "//@later");
    caught(&early, "tensor memory columns 0..1 read here");
}

#[test]
fn a_commit_to_the_peer_ends_before_the_peer() {
    let body = |mask: u32, waits: &str| {
        pair(&format!(
            "setp.ne.u32 %p3, %rank, 0;\nor.pred %p4, %p3, %p8;\n\
             @!%p8 mbarrier.init.shared::cta.b64 [%m], 1;\n{CLUSTER}@%p4 bra C;\nmov.b16 %h1, {mask};\n\
             tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%m], %h1;//@commit\n\
             C: @!%p3 bra E;\n{waits}E:"
        ))
    };
    let waited = wait("W", "");
    // The odd CTA waits for what it gets; the even one's own arrival may be late.
    clean(&body(1, ""));
    clean(&body(2, &waited));
    clean(&body(3, &waited));
    for mask in [2, 3] {
        let ends = body(mask, "");
        caught(&ends, "a CTA ends here while");
        // The peer had ended before the commit was issued.
        caught(&ends, "has ended");
    }
    // A barrier tells that the commit was issued, not that it has arrived.
    let issued = body(3, "").replace("E:", &format!("E: {CLUSTER}"));
    let issued = issued.replace("//@commit", "//@earlier");
    caught(&issued, "a CTA ends here while");
}
