//! Relaxations: behaviours that kernels rely on without a promise. Each is an error under the strict profile, and works
//! with a note if it is allowed, whatever the schedule.

mod common;

use common::hazard::{CLUSTER, PAIR, READ, kernel, kernel_with, wait};
use common::ones::edited;
use common::relies::{THREE, relies, relies_behind_a_grid, relies_where, run, tried_by};
use ptx_sim::Relaxation::{self, *};
use ptx_sim::{HazardChecks, Options, Policy, Profile};

fn all_sixteen(out: &[u32]) {
    assert!(out.iter().all(|v| f32::from_bits(*v) == 16.0), "{out:?}");
}

const LD_WAIT: &str = "    tcgen05.wait::ld.sync.aligned;\n";

fn hardware() -> Options {
    Options {
        profile: Profile::Hardware,
        ..Options::default()
    }
}

#[test]
fn no_fence_after_a_wait() {
    let ptx = edited(&[("tcgen05.fence::after_thread_sync; //wait", "")]);
    let error = "a tcgen05.fence is missing";
    relies(AfterFence, &ptx, 128, error, all_sixteen);
}

#[test]
fn a_fence_before_the_synchronisation_is_needed_all_the_same() {
    // The loads' warps do not hand on that they have read: the columns are freed under them.
    let ptx = edited(&[("    bar.sync 0; //end\n", "")]);
    assert!(run(&ptx, 128, &hardware()).is_err());
}

/// Instead of the last barrier: a second MMA onto D behind a barrier without tcgen05 fences. `late` stands behind it.
fn overwritten(late: &str) -> (&'static str, String) {
    let end = "    tcgen05.fence::before_thread_sync;\n    bar.sync 0; //end\n";
    let again = format!(
        "    bar.sync 0;\n    @%p2 bra AGAIN;\n\
         tcgen05.mma.cta_group::1.kind::f16 [%r10], %rd2, %rd3, 0x08020490, %p4;\n\
         tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [sm+4608];\n\
         AGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 %p5, [sm+4608], 1;\n@!%p5 bra AGAIN;\n\
         bar.warp.sync 0xffffffff;\n{late}tcgen05.fence::after_thread_sync;\n{end}"
    );
    (end, again)
}

#[test]
fn loads_that_were_waited_for_and_no_fences() {
    let error = "a tcgen05.fence is missing";
    let (end, again) = overwritten("");
    let ptx = edited(&[(end, &again)]);
    relies(WaitedLoads, &ptx, 128, error, all_sixteen);
    // Either fence alone is not enough.
    for fence in ["before_thread_sync", "after_thread_sync"] {
        let fence = format!("    tcgen05.fence::{fence};\n");
        let one = match fence.contains("before") {
            true => format!("{fence}{again}"),
            false => again.replacen("tcgen05.mma", &format!("{fence}tcgen05.mma"), 1),
        };
        let strict = Options::default();
        assert!(run(&edited(&[(end, &one)]), 128, &strict).is_err(), "{one}");
    }
    let both = again.replacen(
        "tcgen05.mma",
        "tcgen05.fence::after_thread_sync;\ntcgen05.mma",
        1,
    );
    let both = format!("    tcgen05.fence::before_thread_sync;\n{both}");
    run(&edited(&[(end, &both)]), 128, &Options::default()).unwrap();
}

#[test]
fn loads_that_nobody_waited_for_are_overwritten() {
    // The wait and the use of the registers are behind the second MMA.
    let stores = "    st.global.v4.u32 [%rd4], {%r20, %r21, %r22, %r23};\n\
                  \x20   st.global.v4.u32 [%rd4+16], {%r24, %r25, %r26, %r27};\n";
    let (end, again) = overwritten(&format!("{LD_WAIT}{stores}"));
    let ptx = edited(&[(LD_WAIT, ""), (stores, ""), (end, &again)]);
    let e = run(&ptx, 128, &hardware()).unwrap_err().to_string();
    assert!(
        e.contains("tensor memory columns 0..8 written here and read before"),
        "{e}"
    );
}

#[test]
fn registers_behind_the_scoreboard() {
    let stores = "    st.global.v4.u32 [%rd4+16], {%r24, %r25, %r26, %r27};\n";
    let after = format!("{stores}{LD_WAIT}");
    let ptx = edited(&[(LD_WAIT, ""), (stores, &after)]);
    let error = "is used before tcgen05.wait::ld";
    relies(LoadedRegisters, &ptx, 128, error, all_sixteen);
}

#[test]
fn lane_bits_of_no_account() {
    let ptx = edited(&[("add.u32 %r11, %r11, %r10", "mov.u32 %r11, %r10")]);
    relies(LaneBits, &ptx, 128, "may touch lanes", all_sixteen);
    // A column that is not there is an error all the same.
    let beyond = edited(&[("add.u32 %r11, %r11, %r10", "add.u32 %r11, %r10, 600")]);
    let e = run(&beyond, 128, &hardware()).unwrap_err().to_string();
    assert!(e.contains("does not exist"), "{e}");
}

#[test]
fn a_copy_behind_an_mma() {
    let cp = "mov.u32 %r12, %r10;\n    tcgen05.cp.cta_group::1.128x128b [%r12], %rd2;\n";
    let ptx = edited(&[("//after mma", cp)]);
    let error = "tensor memory columns 0..4 written here and written before";
    relies(CpAfterMma, &ptx, 128, error, |out| {
        let copied = 0x3f80_3f80;
        let sixteen = f32::to_bits(16.0);
        assert_eq!(out[..5], [copied, copied, copied, copied, sixteen]);
    });
}

#[test]
fn a_copy_behind_a_copy() {
    let cp = "add.u32 %r12, %r10, 16;\n    tcgen05.cp.cta_group::1.128x128b [%r12], %rd2;\n";
    let second = "    tcgen05.cp.cta_group::1.128x128b [%r12], %rd2;\n";
    let ptx = edited(&[("//after mma", &format!("{cp}{second}"))]);
    let error = "tensor memory columns 16..20 written here and written before";
    relies(CpAfterMma, &ptx, 128, error, all_sixteen);
}

#[test]
fn a_commit_to_an_address_of_shared_memory() {
    let commit = "mbarrier::arrive::one.shared::cluster.b64 [sm+4608]";
    let generic = "mbarrier::arrive::one.b64 [%rd6+4608]";
    let ptx = edited(&[
        (commit, generic),
        ("    //after mma", "    cvt.u64.u32 %rd6, %r3;"),
    ]);
    let error = "the mbarrier of tcgen05.commit is in shared memory";
    relies(GenericShared, &ptx, 128, error, all_sixteen);
}

#[test]
fn loads_whose_registers_were_used_are_over() {
    // Nothing waits for them, and the columns are freed.
    let ptx = edited(&[(LD_WAIT, "")]);
    let error = "is used before tcgen05.wait::ld";
    relies(LoadedRegisters, &ptx, 128, error, all_sixteen);
    // One whose registers nobody uses may still read.
    let unused = "    tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r28}, [%r11];\n";
    let ptx = edited(&[(LD_WAIT, unused)]);
    let e = run(&ptx, 128, &hardware()).unwrap_err().to_string();
    assert!(e.contains("freed here and read before"), "{e}");
}

#[test]
fn rows_that_nothing_wrote() {
    // The last eight of 128 rows of A are not written.
    let fill = "    st.shared.u32 [%r5], 0x3f803f80;\n";
    let most = "    setp.lt.u32 %p6, %r4, 960;\n    setp.ge.or.u32 %p6, %r4, 1024, %p6;\n    @%p6";
    let ptx = edited(&[(fill, &format!("{most}{fill}"))]);
    relies(Unwritten, &ptx, 128, "not initialised", |out| {
        all_sixteen(&out[..120 * 8]);
        let unusable = |v: &u32| f32::from_bits(*v).is_nan() || f32::from_bits(*v) > 1e30;
        assert!(out[120 * 8..].iter().all(unusable), "{:?}", &out[120 * 8..]);
    });
}

/// Warp 0 fills 128 bytes and makes them visible to bulk copies; the other warp ends.
const FILLED: &str = "setp.ge.u32 %p1, %t, 32;\n@%p1 bra END;\nst.shared.u32 [%mine], %t;\n\
                      fence.proxy.async.shared::cta;\nbar.warp.sync 0xffffffff;\n";
const STORE: &str = "cp.async.bulk.global.shared::cta.bulk_group [%out], [%s], 128;\n\
                     cp.async.bulk.commit_group;\n";

fn counted(out: &[u32]) {
    assert!(
        out[..32].iter().enumerate().all(|(i, v)| *v == i as u32),
        "{out:?}"
    );
}

#[test]
fn a_store_by_all_lanes() {
    let wait = "cp.async.bulk.wait_group 0;\n";
    let ptx = kernel(&format!("{FILLED}{STORE}{wait}END:"));
    relies(
        WarpStores,
        &ptx,
        64,
        "that an asynchronous operation in flight writes",
        counted,
    );
}

#[test]
fn a_store_that_outlives_its_cta() {
    let one = STORE.replacen("cp.async", "@%p8 bra END;\ncp.async", 1);
    let ptx = kernel(&format!("{FILLED}{one}END:"));
    relies(UnreadStores, &ptx, 64, "may still be in use", counted);
}

#[test]
fn generic_addresses_of_shared_memory() {
    let generic = "mov.u64 %d1, buf;\ncvta.shared.u64 %d1, %d1;\nmul.wide.u32 %d2, %t, 4;\nadd.s64 %d1, %d1, %d2;\n";
    let rest = "ld.shared.u32 %r1, [%mine];\nst.global.u32 [%w], %r1;\n";
    let whole = kernel(&format!("{generic}st.shared.u32 [%d1], %t;\n{rest}"));
    let cut = "cvt.u32.u64 %r2, %d1;\nst.shared.u32 [%r2], %t;\n";
    let cut = kernel(&format!("{generic}{cut}{rest}"));
    for ptx in [whole, cut] {
        let error = "a generic address where one of shared memory is expected";
        relies(GenericShared, &ptx, 64, error, counted);
    }
}

#[test]
fn lanes_that_write_the_same_bytes() {
    let body =
        "st.shared.u32 [%s], 3;\nbar.sync 0;\nld.shared.u32 %r1, [%s];\nst.global.u32 [%w], %r1;\n";
    let ptx = kernel(body);
    relies(SameBytes, &ptx, 32, "nothing orders the two", |out| {
        assert!(out[..32].iter().all(|v| *v == 3));
    });
}

#[test]
fn hazards_may_be_warnings_or_nothing() {
    let body = "st.shared.u32 [%mine], %t;\nxor.b32 %r1, %mine, 128;\nld.shared.u32 %r2, [%r1];\n\
                st.global.u32 [%w], %r2;\n";
    let ptx = kernel(body);
    let o = |hazards| Options {
        hazards,
        uninitialised: ptx_sim::Uninitialised::Ignore,
        ..Options::default()
    };
    let e = run(&ptx, 64, &o(HazardChecks::Error)).unwrap_err();
    assert!(e.to_string().contains("nothing orders the two"), "{e}");
    let (report, _) = run(&ptx, 64, &o(HazardChecks::Warn)).unwrap();
    let all = &report.warnings;
    assert!(
        !all.is_empty()
            && all
                .iter()
                .all(|w| w.message.contains("nothing orders the two"))
    );
    assert!(all[0].thread.is_some());
    let (report, _) = run(&ptx, 64, &o(HazardChecks::Off)).unwrap();
    assert!(report.warnings.is_empty());
}

const RELAXED: &str = "barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;\n";

/// Each CTA writes 7 where the host reads it, if it comes to its end.
fn pair(body: &str) -> String {
    let done = "mov.u32 %r1, 7;\nst.global.u32 [%w], %r1;\n";
    kernel_with(PAIR, &format!("{done}{body}"))
}

fn sevens(out: &[u32]) {
    assert!(out[..128].iter().all(|v| *v == 7), "{out:?}");
}

#[test]
fn an_initialisation_without_a_fence() {
    let body = |sync: &str| {
        pair(&format!(
            "@!%p8 mbarrier.init.shared::cta.b64 [%m], 1;\n{sync}\
             @!%p8 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%farm];\n{}{CLUSTER}",
            wait("W", ".acquire.cluster")
        ))
    };
    let error = "is not visible";
    relies(UnfencedInit, &body(RELAXED), 64, error, sevens);
    // An initialisation that nothing synchronises is an error all the same.
    let start = format!(
        "{RELAXED}{}",
        "@!%p8 mbarrier.init.shared::cta.b64 [%m], 1;\n"
    );
    let late = body("").replacen("@!%p8 mbarrier.init.shared::cta.b64 [%m], 1;\n", &start, 1);
    assert!(run(&late, 64, &hardware()).is_err());
}

/// A kernel in which both CTAs of a pair allocate columns and write to them; `before` stands in front of their
/// deallocation.
fn columns(before: &str) -> String {
    pair(&format!(
        "setp.ge.u32 %p2, %t, 32;\n{CLUSTER}@%p2 bra A;\n\
         tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%s], 32;\n\
         tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;\n\
         bar.warp.sync 0xffffffff;\nld.shared.u32 %r5, [%s];\ntcgen05.st.sync.aligned.32x32b.x1.b32 [%r5], {{%t}};\n\
         tcgen05.wait::st.sync.aligned;\nA:\n{before}@%p2 bra E;\n\
         tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r5, 32;\nE:"
    ))
}

#[test]
fn columns_of_the_peer_that_it_still_uses() {
    let error = "tensor memory columns 0..1";
    relies(PeerColumns, &columns(""), 64, error, sevens);
    // One's own are freed with the own deallocation.
    let late = "tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r5, 32;\n\
                tcgen05.st.sync.aligned.32x32b.x1.b32 [%r5], {%t};\ntcgen05.wait::st.sync.aligned;\nE:";
    let ptx = columns("").replace(
        "tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r5, 32;\nE:",
        late,
    );
    assert!(run(&ptx, 64, &hardware()).is_err());
}

#[test]
fn columns_freed_behind_execution_order() {
    let error = "tensor memory columns 0..8 freed here";
    let end = "    tcgen05.fence::before_thread_sync;\n    bar.sync 0; //end\n    @%p3 bra END;\n";
    let relaxed = format!("{RELAXED}    @%p3 bra END;\n");
    // A barrier of those that have not ended.
    let ended = format!("    @%p3 bra END;\n{CLUSTER}");
    for with in [relaxed, ended] {
        let ptx = edited(&[(end, &with)]);
        relies(ExecutionFree, &ptx, 128, error, all_sixteen);
    }
}

#[test]
fn a_commit_behind_which_a_later_one_was_waited_for() {
    let body = |waits: &str| {
        pair(&format!(
            "setp.ne.u32 %p3, %rank, 0;\nor.pred %p4, %p3, %p8;\n\
             @!%p8 mbarrier.init.shared::cta.b64 [%m], 1;\n@!%p8 mbarrier.init.shared::cta.b64 [%m+8], 1;\n\
             {CLUSTER}@%p4 bra C;\nmov.b16 %h1, 3;\n\
             tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%m+8], %h1;\n\
             tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%m], %h1;\n\
             C:\n{waits}"
        ))
    };
    let error = "a CTA ends here while";
    relies(CommitOrder, &body(&wait("W", "")), 64, error, sevens);
    assert!(run(&body(""), 64, &hardware()).is_err());
}

#[test]
fn an_end_behind_a_relaxed_barrier() {
    let body = |end: &str| {
        pair(&format!(
            "@!%p8 mbarrier.init.shared::cta.b64 [%m], 1;\n{CLUSTER}\
             @!%p8 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%farm];\n{end}"
        ))
    };
    let error = "a CTA ends here while";
    relies(RelaxedBarrier, &body(RELAXED), 64, error, sevens);
    assert!(run(&body(""), 64, &hardware()).is_err());
}

#[test]
fn shared_memory_behind_a_relaxed_barrier() {
    let body = |sync: &str| {
        let store = "@!%p8 st.shared.u32 [%s], 7;\n";
        kernel_with(
            PAIR,
            &format!("{store}{sync}ld.shared.u32 %r1, [%s];\nst.global.u32 [%w], %r1;\n"),
        )
    };
    let error = "nothing orders the two";
    relies(RelaxedBarrier, &body(RELAXED), 64, error, sevens);
}

#[test]
fn a_load_over_what_was_read() {
    let load = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%m], 256;\n\
                cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%s], [%in], 256, [%m];\n";
    let ptx = kernel(&format!(
        "@!%p8 mbarrier.init.shared::cta.b64 [%m], 1;\nst.shared.u32 [%mine], %t;\nbar.sync 0;\n\
             fence.proxy.async.shared::cta;\nld.shared.u32 %r2, [%mine];\nbar.sync 0;\n@%p8 bra GO;\n{load}GO:\n{}\
             ld.shared.u32 %r1, [%mine];\nst.global.u32 [%w], %r1;",
        wait("W", "")
    ));
    let error = "(write after read)";
    relies(WriteAfterRead, &ptx, 64, error, |out| {
        assert!(out[..64].iter().all(|v| *v == 0x0707_0707), "{out:?}");
    });
}

#[test]
fn a_shuffle_as_a_barrier() {
    let shuffle = "shfl.sync.idx.b32 %r3, %t, 0, 31, 0xffffffff;\n";
    let matrix = "shl.b32 %r2, %t, 4;\nadd.u32 %r2, %s, %r2;\n\
                  stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r2+1024], {%t};\n";
    let error = "nothing orders the two";
    let fives = |out: &[u32]| assert!(out[..32].iter().all(|v| *v == 5), "{out:?}");
    for meets in [shuffle, matrix] {
        let ptx = kernel(&format!("@!%p8 st.shared.u32 [%s], 5;\n{meets}{READ}"));
        relies(Collectives, &ptx, 32, error, fives);
    }
    // DeepGEMM: lane 0 arrives behind the wait, for all that its warp has read.
    let wait = "wgmma.wait_group.sync.aligned 0;";
    let write = format!(
        "@!%p8 st.shared.u32 [%s+2048], 5;\n{wait}\nsetp.lt.u32 %p2, %t, 32;\n\
         @%p2 ld.shared.u32 %r10, [%s+2048];"
    );
    let ptx = warpgroup("").replacen(wait, &write, 1);
    relies(Collectives, &ptx, 128, error, fives);
}

#[test]
fn the_lowest_lane_is_elected() {
    // CUTLASS: the elected lane waits for the bytes that the first thread expects.
    let ptx = kernel(&format!(
        "@!%p8 mbarrier.init.shared::cta.b64 [%m], 1;\nbar.warp.sync -1;\nelect.sync _|%p2, -1;\n\
         setp.eq.and.u32 %p3, %t, 0, %p2;\n@%p3 mbarrier.arrive.shared::cta.b64 _, [%m];\n{}\
         mov.u32 %r1, 7;\nst.global.u32 [%w], %r1;",
        wait("W", "")
    ));
    let random = |o: &Options| matches!(o.policy, Policy::Random(_));
    relies_where(random, FirstElected, (&ptx, 32), "deadlock", |out| {
        assert_eq!(out[..32], [7; 32]);
    });
}

#[test]
fn scopes_that_do_not_reach_the_peer() {
    let body = |arrive: &str, acquire: &str| {
        pair(&format!(
            "@!%p8 mbarrier.init.shared::cta.b64 [%m], 1;\n{CLUSTER}\
             @!%p8 st.shared::cluster.u32 [%far], 7;\n\
             @!%p8 mbarrier.arrive{arrive}.shared::cluster.b64 _, [%farm];\n{}{READ}{CLUSTER}",
            wait("W", acquire)
        ))
    };
    let error = "nothing orders the two";
    let (release, acquire) = (".release.cluster", ".acquire.cluster");
    for (arrive, acquire) in [("", ""), (release, ""), ("", acquire)] {
        let ptx = body(arrive, acquire);
        relies(BarrierScope, &ptx, 64, error, sevens);
    }
}

#[test]
fn a_relaxed_wait() {
    let ptx = kernel(&format!(
        "@!%p8 mbarrier.init.shared::cta.b64 [%m], 1;\nbar.sync 0;\n@%p8 bra R;\nst.shared.u32 [%s], 5;\n\
             mbarrier.arrive.shared::cta.b64 _, [%m];\nR:\n{}{READ}",
        wait("W", ".relaxed.cta")
    ));
    let error = "nothing orders the two";
    relies(RelaxedWait, &ptx, 64, error, |out| {
        assert!(out[..64].iter().all(|v| *v == 5), "{out:?}");
    });
}

#[test]
fn order_handed_on_without_fences() {
    let init = "    fence.mbarrier_init.release.cluster;\n";
    let second = format!("    mbarrier.init.shared::cta.b64 [sm+4624], 1;\n{init}");
    let meet = "    setp.ne.u32 %p6, %r1, 32;\n    @%p6 bra MEET;\nWAIT:\n";
    let told = "    bar.warp.sync 0xffffffff;\n    tcgen05.fence::after_thread_sync; //wait\n";
    let tell = format!(
        "    mbarrier.arrive.shared::cta.b64 _, [sm+4624];\nMEET:\n\
         mbarrier.try_wait.parity.shared::cta.b64 %p5, [sm+4624], 0;\n    @!%p5 bra MEET;\n{told}"
    );
    let hands = [(init, second.as_str()), ("WAIT:\n", meet), (told, &tell)];
    let ptx = edited(&hands);
    let error = "a tcgen05.fence is missing";
    relies(HandedOn, &ptx, 128, error, all_sixteen);
}

#[test]
fn a_store_to_a_peer_that_may_not_run() {
    let ptx = pair(&format!(
        "@!%p8 st.shared::cluster.u32 [%far], 5;\n{CLUSTER}"
    ));
    let error = "nothing tells that its CTA runs";
    relies(PeerRuns, &ptx, 64, error, sevens);
}

/// One product of ones by `wgmma`, B in shared memory: `behind` stands behind its fence.
fn warpgroup(behind: &str) -> String {
    let ptx = kernel(&format!(
        "mov.b32 %r5, 0x3f803f80;\nst.shared.u32 [%mine], %r5;\nfence.proxy.async.shared::cta;\nbar.sync 0;\n\
             shr.u32 %r2, %s, 4;\ncvt.u64.u32 %d1, %r2;\nor.b64 %d1, %d1, 0x1000080000;\nmov.b32 %r6, %r5;\n\
             mov.b32 %r7, %r5;\nmov.b32 %r8, %r5;\nmov.b32 %r10, 0;\nmov.b32 %r11, 0;\nmov.b32 %r12, 0;\n\
             mov.b32 %r13, 0;\nsetp.eq.u32 %p7, %t, %t;\nwgmma.fence.sync.aligned;\n{behind}\
             wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{%r10, %r11, %r12, %r13}}, \
             {{%r5, %r6, %r7, %r8}}, %d1, %p7, 1, 1, 0;\n\
             wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\nst.global.u32 [%w], %r10;"
    ));
    ptx.replacen("sm_100a", "sm_90a", 1)
}

#[test]
fn registers_behind_a_wgmma_fence() {
    for (behind, error) in [
        (
            "mov.b32 %r10, 0;\n",
            "a register of the accumulator was accessed",
        ),
        ("mov.b32 %r5, %r6;\n", "a register of A was accessed"),
    ] {
        let ptx = warpgroup(behind);
        relies(CompiledFence, &ptx, 128, error, |out| {
            all_sixteen(&out[..128]);
        });
    }
    let (report, _) = run(&warpgroup(""), 128, &hardware()).unwrap();
    assert!(report.notes.is_empty(), "{:?}", report.notes);
}

#[test]
fn products_of_other_warps_behind_ones_own_wait() {
    let wait = "wgmma.wait_group.sync.aligned 0;";
    let write = format!("{wait}\n@!%p8 st.shared.u32 [%s], 0;\n");
    let ptx = warpgroup("").replacen(wait, &write, 1);
    let right = |out: &[u32]| all_sixteen(&out[..128]);
    relies(WarpgroupWait, &ptx, 128, "shared memory", right);
    // A wait for all but the last group does not tell of that one.
    let early = ptx.replacen("aligned 0;", "aligned 1;", 1);
    assert!(run(&early, 128, &hardware()).is_err());
}

#[test]
fn values_that_nothing_wrote_and_nothing_uses() {
    let unused = |behind: &str| {
        kernel(&format!(
            "ld.shared.u32 %r1, [%s];\nmov.b32 %r2, %r1;\nadd.u32 %r3, %r2, 1;\nmov.u32 %r4, 5;\n{behind}\
             st.global.u32 [%w], %r4;"
        ))
    };
    let fives = |out: &[u32]| assert_eq!(out[..32], [5; 32]);
    relies(UnusedLoads, &unused(""), 32, "nothing wrote", fives);
    // Neither does a selection of another value, or a lane that nobody reads.
    for harmless in [
        "setp.ne.u32 %p2, %t, %t;\nselp.b32 %r4, %r3, %r4, %p2;\n",
        "shfl.sync.idx.b32 %r5, %r3, 0, 31, -1;\nadd.u32 %r5, %r5, 1;\n",
        "mov.b32 %r3, 1;\nadd.u32 %r4, %r3, 4;\n",
        "bar.warp.sync -1;\nst.shared.u32 [%mine], %r3;\nld.shared.u32 %r6, [%mine];\n",
    ] {
        let (_, out) = run(&unused(harmless), 32, &hardware()).unwrap();
        fives(&out);
    }
    for used in [
        "st.global.u32 [%w], %r3;\n",
        "setp.eq.u32 %p1, %r3, 0;\n@%p1 mov.u32 %r4, 6;\n",
        "shl.b32 %r5, %r3, 2;\nadd.u32 %r5, %s, %r5;\nld.shared.u32 %r6, [%r5];\n",
        "setp.eq.u32 %p2, %t, %t;\nselp.b32 %r4, %r3, %r4, %p2;\n",
        "shfl.sync.idx.b32 %r4, %r3, 0, 31, -1;\n",
    ] {
        let e = run(&unused(used), 32, &hardware()).unwrap_err().to_string();
        assert!(e.contains("; the value is used at line"), "{used}: {e}");
    }
}

#[test]
fn loads_that_race_and_whose_values_nothing_uses() {
    let racing = |at_once: &str, later: &str| {
        kernel(&format!(
            "@!%p8 st.shared.u32 [%s], 4;\nbar.sync 0;\nmov.u32 %r4, 5;\nsetp.ge.u32 %p2, %t, 32;\n\
             @%p2 ld.shared.u32 %r1, [%s];\n{at_once}@!%p8 st.shared.u32 [%s], 5;\nbar.sync 0;\n{later}\
             st.global.u32 [%w], %r4;"
        ))
    };
    let error = "nothing orders the two";
    let ptx = racing("", "");
    relies(UnusedLoads, &ptx, 64, error, |out| {
        assert_eq!(out[..64], [5; 64]);
    });
    let used = "@%p2 mov.u32 %r4, %r1;\n";
    let again = "@%p2 ld.shared.u32 %r1, [%mine];\n@%p2 st.global.u32 [%w], %r1;\n";
    for ptx in [
        racing(used, ""),
        racing("", used),
        racing(&format!("{used}{again}"), ""),
    ] {
        for seed in 0..6 {
            let o = Options {
                policy: Policy::Random(seed),
                ..hardware()
            };
            let e = run(&ptx, 64, &o).unwrap_err().to_string();
            assert!(e.contains("nothing"), "{e}\n{ptx}");
        }
    }
}

#[test]
fn a_copy_by_all_lanes() {
    let ptx = kernel(&format!(
        "cp.async.ca.shared.global [%s], [%in], 4;\ncp.async.wait_all;\nbar.warp.sync -1;\n{READ}"
    ));
    relies(WarpCopies, &ptx, 32, "and written before", |out| {
        assert_eq!(out[..32], [0x0707_0707; 32]);
    });
}

#[test]
fn ctas_that_wait_for_one_that_has_not_begun() {
    let ptx = kernel(&format!(
        "{THREE}\n@%p8 bra DONE;\natom.global.add.u32 %r1, [%in], 1;\n\
         LOOP: ld.acquire.gpu.global.u32 %r2, [%in];\nsetp.lt.u32 %p1, %r2, 0x0707070a;\n@%p1 bra LOOP;\n\
         DONE: mov.u32 %r4, 5;\nst.global.u32 [%w], %r4;"
    ));
    let error = "1 of 3 clusters have not begun";
    relies(CoResident, &ptx, 32, error, |out| {
        assert_eq!([out[0], out[95], out[128]], [5; 3]);
    });
}

const ALLOC: &str = "    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [sm+4616], 32;\n";

#[test]
fn dependents_that_start_before_the_allocation() {
    let early = format!("    griddepcontrol.launch_dependents;\n{ALLOC}");
    let ptx = edited(&[(ALLOC, &early)]);
    let error = "which a grid that waits for the end of this one";
    relies(LateDependents, &ptx, 128, error, all_sixteen);
    let late = edited(&[(
        ALLOC,
        &format!("{ALLOC}    griddepcontrol.launch_dependents;\n"),
    )]);
    let (report, _) = run(&late, 128, &hardware()).unwrap();
    assert!(report.notes.is_empty(), "{:?}", report.notes);
}

#[test]
fn an_allocation_before_the_wait_for_the_grid_before() {
    let held = edited(&[(ALLOC, &format!("{ALLOC}    griddepcontrol.wait;\n"))]);
    let error = "for tensor memory: CTA 0 holds some";
    let allocated = AllocatedBefore;
    relies_behind_a_grid(allocated, &held, 128, error, all_sixteen);
    // There is no grid before it.
    let (report, _) = run(&held, 128, &hardware()).unwrap();
    assert!(report.notes.is_empty(), "{:?}", report.notes);
}

/// By the name that `--allow` takes, a test that tries it.
const TRIED: [(&str, fn()); Relaxation::ALL.len()] = [
    ("cp-after-mma", a_copy_behind_an_mma),
    ("after-fence", no_fence_after_a_wait),
    ("loaded-registers", registers_behind_the_scoreboard),
    ("waited-loads", loads_that_were_waited_for_and_no_fences),
    ("warp-stores", a_store_by_all_lanes),
    ("lane-bits", lane_bits_of_no_account),
    ("unread-stores", a_store_that_outlives_its_cta),
    ("generic-shared", generic_addresses_of_shared_memory),
    ("unwritten", rows_that_nothing_wrote),
    ("write-after-read", a_load_over_what_was_read),
    ("collectives", a_shuffle_as_a_barrier),
    ("barrier-scope", scopes_that_do_not_reach_the_peer),
    ("relaxed-wait", a_relaxed_wait),
    ("handed-on", order_handed_on_without_fences),
    ("same-bytes", lanes_that_write_the_same_bytes),
    ("peer-runs", a_store_to_a_peer_that_may_not_run),
    ("compiled-fence", registers_behind_a_wgmma_fence),
    (
        "late-dependents",
        dependents_that_start_before_the_allocation,
    ),
    ("unfenced-init", an_initialisation_without_a_fence),
    ("peer-columns", columns_of_the_peer_that_it_still_uses),
    ("execution-free", columns_freed_behind_execution_order),
    (
        "commit-order",
        a_commit_behind_which_a_later_one_was_waited_for,
    ),
    ("relaxed-barrier", an_end_behind_a_relaxed_barrier),
    (
        "allocated-before",
        an_allocation_before_the_wait_for_the_grid_before,
    ),
    ("unused-loads", values_that_nothing_wrote_and_nothing_uses),
    ("warp-copies", a_copy_by_all_lanes),
    ("co-resident", ctas_that_wait_for_one_that_has_not_begun),
    (
        "warpgroup-wait",
        products_of_other_warps_behind_ones_own_wait,
    ),
    ("first-elected", the_lowest_lane_is_elected),
];

/// Each test proves that its kernel needs one relaxation and no other: so names and bits are not mixed up.
#[test]
fn every_relaxation_is_tried_by_its_name() {
    let mut named = Vec::new();
    for (name, test) in TRIED {
        let tried = tried_by(test);
        let names: Vec<_> = tried.iter().map(|r| r.name()).collect();
        assert_eq!(names, [name]);
        named.extend(tried);
    }
    named.sort();
    assert_eq!(named, Relaxation::ALL);
}

/// The table in docs/semantics-async.md has each of them once, and those last that are never noted.
#[test]
fn the_documentation_lists_every_relaxation() {
    let page = include_str!("../docs/semantics-async.md");
    let (_, table) = page.split_once("\n| name | what is relied on |").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let cells = table.lines().skip(2).map(|row| row.split(" | "));
    let rows: Vec<(Relaxation, usize)> = cells
        .map(|mut row| {
            let name = row.next().unwrap().trim_matches(['|', ' ', '`']);
            let full = row.filter(|cell| !cell.trim_matches(['|', ' ']).is_empty());
            (name.parse().unwrap(), full.count())
        })
        .collect();
    assert!(rows.iter().all(|(_, cells)| *cells == 3), "{rows:?}");
    assert!(rows.is_sorted_by_key(|(r, _)| !r.is_noted()), "{rows:?}");
    let mut names: Vec<_> = rows.iter().map(|(r, _)| *r).collect();
    names.sort();
    assert_eq!(names, Relaxation::ALL);
}
