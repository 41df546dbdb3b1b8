//! Hazards within a CTA: each right kernel is clean, each planted mistake is reported, under every
//! schedule.

mod common;

use common::hazard::{READ, caught, caught_as, clean, clean_as, kernel, wait};
use ptx_sim::report::ViolationKind;
use ptx_sim::{Profile, SimError};

const NOTHING: &str = "nothing orders the two";
const NO_FENCE: &str = "fence.proxy.async is missing between them";

#[test]
fn barriers_of_a_cta() {
    let body = |sync: &str| {
        kernel(&format!(
            "@!%p8 st.shared.u32 [%s], 5;//@earlier\n{sync}{READ}"
        ))
    };
    clean(&body("bar.sync 0;\n"));
    clean(&body("bar.warp.sync 0xffffffff;\nbar.sync 1, 64;\n"));
    // Whoever only arrives learns nothing.
    let arrive = "setp.lt.u32 %p2, %t, 32;\n@%p2 bar.arrive 1, 64;\n@%p2 bra E;\nbar.sync 1, 64;\n";
    clean(&body(arrive).replace(" ret;", "E: ret;"));
    let racy = "setp.ge.u32 %p2, %t, 32;\n@%p2 bar.arrive 1, 64;\n@!%p2 bar.sync 1, 64;\n";
    // Threads of one warp are ordered by bar.warp.sync, and by nothing less on paper.
    let warp = |sync: &str| {
        kernel(&format!(
            "setp.lt.u32 %p2, %t, 32;\n@!%p2 bra E;\n@!%p8 st.shared.u32 [%s], 5;//@earlier\n{sync}{READ}E:"
        ))
    };
    clean(&warp("bar.warp.sync 0xffffffff;\n"));
    let shuffle = "shfl.sync.idx.b32 %r3, %t, 0, 31, 0xffffffff;\n";
    clean_as(&warp(shuffle), Profile::Hardware);
    caught(&warp(shuffle), NOTHING);
    caught_as(&body(racy), Profile::Strict, ViolationKind::Hazard, NOTHING);
}

#[test]
fn named_barriers_count_warps() {
    let first = "setp.lt.u32 %p2, %t, 32;\n";
    // Two halves of warps are no warp.
    let halves = kernel(
        "and.b32 %r1, %t, 16; setp.ne.u32 %p2, %r1, 0;\n@%p2 bra E;\nbarrier.sync 1, 32;\nE: bar.sync 0;",
    );
    for o in common::hazard::ways(Profile::Strict) {
        let e = common::hazard::run(&halves, &o).unwrap_err();
        assert!(matches!(e, SimError::Deadlock(_)), "{e}");
    }
    let bad = |body: &str, why: &str| {
        caught_as(
            &kernel(body),
            Profile::Strict,
            ViolationKind::Synchronisation,
            why,
        );
    };
    for other in ["bar.sync 1, 64;", "bar.arrive 1, 64;"] {
        let body = format!("{first}@%p2 {other}\n@!%p2 bar.red.popc.u32 %r1, 1, 64, %p8;");
        bad(&body, "by .red and by .sync or .arrive at once");
    }
    let twice = format!("{first}@%p2 bar.arrive 1, 64;\n@%p2 bar.sync 1, 64;");
    bad(&twice, "arrives at barrier 1 again");
}

#[test]
fn a_missing_barrier_is_a_race_though_the_bytes_are_right() {
    // Every thread writes its word twice the same; a reader between gets it right by luck.
    let body = |sync: &str| {
        kernel(&format!(
            "st.shared.u32 [%mine], 1;\nbar.sync 0;\nst.shared.u32 [%mine], 1;//@earlier\n{sync}\
                 xor.b32 %r2, %mine, 128;\nld.shared.u32 %r1, [%r2];//@later\nst.global.u32 [%w], %r1;"
        ))
    };
    clean(&body("bar.sync 0;\n"));
    let ptx = body("").replace("//@earlier", "").replace("//@later", "");
    caught(&ptx, NOTHING);
}

#[test]
fn lanes_that_write_one_word() {
    let ptx = kernel("setp.ge.u32 %p2, %t, 32;\n@!%p2 st.shared.u32 [%s], 5;//@later @earlier");
    caught(&ptx, NOTHING);
    clean_as(&ptx, Profile::Hardware);
}

#[test]
fn flags_and_atomics() {
    // Message passing through a flag in shared memory; thread 32 reads what thread 0 wrote.
    let body = |fence: &str, release: &str, acquire: &str, after: &str| {
        kernel(&format!(
            "@!%p8 st.shared.u32 [%s+64], 0;\nbar.sync 0;\n@%p8 bra R;\nst.shared.u32 [%s], 5;//@earlier\n{fence}\
                 st.{release}.cta.shared.u32 [%s+64], 1;\nbra E;\nR: setp.ne.u32 %p2, %t, 32;\n@%p2 bra E;\n\
                 L: ld.{acquire}.cta.shared.u32 %r3, [%s+64];\nsetp.eq.u32 %p3, %r3, 0;\n@%p3 bra L;\n{after}{READ}E:"
        ))
    };
    clean(&body("", "release", "acquire", ""));
    clean(&body(
        "fence.acq_rel.cta;\n",
        "relaxed",
        "relaxed",
        "fence.acq_rel.cta;\n",
    ));
    clean(&body("membar.cta;\n", "relaxed", "acquire", ""));
    caught(&body("", "relaxed", "acquire", ""), NOTHING);
    caught(&body("", "release", "relaxed", ""), NOTHING);
    caught(
        &body("", "relaxed", "relaxed", "fence.acq_rel.cta;\n"),
        NOTHING,
    );
    // A flag in global memory orders, too.
    let global = |fence: &str| {
        body(fence, "relaxed", "relaxed", "fence.acq_rel.gpu;\n")
            .replace(".cta.shared.u32 [%s+64]", ".gpu.global.u32 [%out+512]")
            .replace(
                ".cta.shared.u32 %r3, [%s+64]",
                ".gpu.global.u32 %r3, [%out+512]",
            )
            .replace("st.shared.u32 [%s+64], 0", "st.global.u32 [%out+512], 0")
    };
    clean(&global("fence.acq_rel.gpu;\n"));
    caught(&global(""), NOTHING);
    // Another thread's store ends what a flag hands over; its atomic addition does not, nor does the thread's own store.
    // Thread 1 sees `seen`, does something and tells thread 32, in no order with all that, to look at the flag.
    let chain = |last: &str, seen: u32, second: &str| {
        let second = format!(
            "{last}bra E;\nR: setp.ne.u32 %p2, %t, 1;\n@%p2 bra R2;\n\
             L2: ld.relaxed.cta.shared.u32 %r3, [%s+64];\nsetp.ne.u32 %p3, %r3, {seen};\n@%p3 bra L2;\n\
             {second}st.relaxed.cta.shared.u32 [%s+68], 1;\nbra E;\nR2:"
        );
        let look = "L: ld.relaxed.cta.shared.u32 %r3, [%s+68];";
        body(
            "",
            "release",
            "acquire",
            "ld.acquire.cta.shared.u32 %r3, [%s+64];\n",
        )
        .replace(
            "[%s+64], 0;",
            "[%s+64], 0;\n@!%p8 st.shared.u32 [%s+68], 0;",
        )
        .replace("L: ld.acquire.cta.shared.u32 %r3, [%s+64];", look)
        .replace("bra E;\nR:", &second)
    };
    let (store, add) = (
        "st.relaxed.cta.shared.u32 [%s+64], 2;\n",
        "red.relaxed.cta.shared.add.u32 [%s+64], 1;\n",
    );
    caught(&chain("", 1, store), NOTHING);
    clean(&chain("", 1, add));
    clean(&chain(store, 2, ""));
    // Atomics do not race with each other, but with everything else.
    let sum = |sync: &str| {
        kernel(&format!(
            "@!%p8 st.shared.u32 [%s], 0;\nbar.sync 0;\nred.shared.add.u32 [%s], 1;//@earlier\n{sync}{READ}"
        ))
    };
    clean(&sum("bar.sync 0;\n"));
    caught(
        &sum("").replace("//@earlier", "").replace("//@later", ""),
        NOTHING,
    );
}

#[test]
fn barrier_objects_before_their_initialisation_is_visible() {
    let body = |sync: &str, second: &str| {
        kernel(&format!(
            "@!%p8 mbarrier.init.shared::cta.b64 [%m], 1;//@earlier\n{sync}\
                 setp.ne.u32 %p2, %t, 32;\n@!%p2 {second} //@later"
        ))
    };
    let uses = [
        "mbarrier.arrive.shared::cta.b64 _, [%m];",
        "mbarrier.try_wait.parity.shared::cta.b64 %p3, [%m], 1;",
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%m], 16;",
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%m];",
    ];
    for second in uses {
        if !second.starts_with("cp") {
            clean(&body("bar.sync 0;\n", second));
        }
        let seen = |ptx: &str| {
            // The other warp comes first in some schedules, where the object does not exist yet.
            caught_as(
                ptx,
                Profile::Strict,
                ViolationKind::BarrierInit,
                "is not visible",
            );
        };
        seen(&body("", second));
        seen(&body("fence.mbarrier_init.release.cluster;\n", second));
    }
    // "This instruction accesses its mbarrier operand using generic-proxy": no proxy fence, but the
    // issuing thread must be synchronised.
    let copy =
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%s], [%in], 128, [%m];";
    let load = |sync: &str| {
        let ptx = body(sync, copy).replace(" ret;", "");
        format!(
            "{}@%p2 bra E;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%m], 128;\n{}E: ret;\n}}\n",
            ptx.trim_end().trim_end_matches('}'),
            wait("W", "")
        )
    };
    clean(&load("bar.sync 0;\n"));
    caught_as(
        &load(""),
        Profile::Hardware,
        ViolationKind::BarrierInit,
        "is not visible",
    );
}

#[test]
fn objects_end_when_nobody_uses_them_any_more() {
    let body = |sync: &str| {
        kernel(&format!(
            "@!%p8 mbarrier.init.shared::cta.b64 [%m], 64;\nbar.sync 0;\n\
                 mbarrier.arrive.shared::cta.b64 _, [%m];\n{}{sync}@!%p8 mbarrier.inval.shared::cta.b64 [%m];//@later",
            wait("W", "")
        ))
    };
    clean(&body("bar.sync 0;\n"));
    let ptx = body("");
    let e = std::panic::catch_unwind(|| clean(&ptx));
    assert!(e.is_err(), "an inval under the waiters is found");
}

/// A bulk store of what all threads wrote.
fn store(fence: &str, sync: &str, wait: &str, after: &str) -> String {
    kernel(&format!(
        "st.shared.u32 [%mine], %t;//@written\n{fence}{sync}@%p8 bra E;\n\
             cp.async.bulk.global.shared::cta.bulk_group [%out], [%s], 256;//@store\n\
             cp.async.bulk.commit_group;\n{wait}E: {after}"
    ))
}

fn marked(ptx: &str, earlier: &str, later: &str) -> String {
    ptx.replace(&format!("//@{earlier}"), "//@earlier")
        .replace(&format!("//@{later}"), "//@later")
}

#[test]
fn bulk_stores_need_a_proxy_fence_and_their_wait() {
    const FENCE: &str = "fence.proxy.async.shared::cta;\n";
    const SYNC: &str = "bar.sync 0;\n";
    const WAIT: &str = "cp.async.bulk.wait_group.read 0;\n";
    clean(&store(FENCE, SYNC, WAIT, ""));
    // Fenced on the other side of the barrier is as good.
    clean(&store("", &format!("{SYNC}{FENCE}"), WAIT, ""));
    clean(&store(FENCE, SYNC, "cp.async.bulk.wait_group 0;\n", ""));
    let bad = |f, s, w| marked(&store(f, s, w, ""), "written", "store");
    caught(&bad("", SYNC, WAIT), NO_FENCE);
    caught(&bad("fence.proxy.async.global;\n", SYNC, WAIT), NO_FENCE);
    caught(&store(FENCE, "", WAIT, ""), NOTHING);
    // The buffer is written again: by the thread that waited, or by others that it has told.
    let again = "st.shared.u32 [%mine], 3;//@again";
    clean(&store(FENCE, SYNC, WAIT, &format!("{SYNC}{again}")));
    let early = marked(&store(FENCE, SYNC, WAIT, again), "store", "again");
    caught(&early, "was not waited for");
    let kept = store(
        FENCE,
        SYNC,
        "cp.async.bulk.wait_group.read 1;\n",
        &format!("{SYNC}{again}"),
    );
    let early = marked(&kept, "store", "again");
    caught(&early, "");
    // The CTA ends while the store may still read.
    caught(&store(FENCE, SYNC, "", ""), "a CTA ends here while");
}

/// A bulk load over what the threads had in the buffer.
fn load(before: &str) -> String {
    kernel(&format!(
        "@!%p8 mbarrier.init.shared::cta.b64 [%m], 1;\nst.shared.u32 [%mine], %t;//@written\n\
             bar.sync 0;\n{before}@%p8 bra GO;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%m], 256;\n\
             cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%s], [%in], 256, [%m];//@load\nGO:\n{}\
             ld.shared.u32 %r1, [%mine];\nst.global.u32 [%w], %r1;",
        wait("W", "")
    ))
}

#[test]
fn bulk_loads_over_generic_memory() {
    let read = "ld.shared.u32 %r2, [%mine];//@read\n";
    let fence = "fence.proxy.async.shared::cta;\n";
    clean(&load(fence));
    clean(&load(&format!("{read}{fence}bar.sync 0;\n")));
    caught(&marked(&load(""), "written", "load"), NO_FENCE);
    // Without the last wait of the readers.
    let ptx = load(&format!("{fence}{read}"));
    caught(&ptx, "");
    // Write after read: by the letter too, but hardware orders it.
    let war = load(&format!("{fence}{read}bar.sync 0;\n"));
    caught(&marked(&war, "read", "load"), "(write after read)");
    clean_as(&war, Profile::Hardware);
}

#[test]
fn small_copies_and_their_groups() {
    let body = |before: &str, after: &str| {
        kernel(&format!(
            "shl.b32 %r4, %t, 2;\ncvt.u64.u32 %d1, %r4;\nadd.s64 %d1, %d1, %in;\n\
                 @!%p8 mbarrier.init.shared::cta.b64 [%m], 64;\nbar.sync 0;\n{before}\
                 cp.async.ca.shared.global [%mine], [%d1], 4;//@copy\ncp.async.commit_group;\n{after}"
        ))
    };
    let own = "ld.shared.u32 %r1, [%mine];//@later\nst.global.u32 [%w], %r1;\n";
    let other =
        "xor.b32 %r2, %mine, 128;\nld.shared.u32 %r1, [%r2];//@later\nst.global.u32 [%w], %r1;\n";
    let arrive = format!(
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%m];\n{}",
        wait("W", "")
    );
    // Each thread waits for its own copies; a barrier tells the others.
    clean(&body("", &format!("cp.async.wait_group 0;\n{own}")));
    clean(&body(
        "",
        &format!("cp.async.wait_all;\nbar.sync 0;\n{other}"),
    ));
    clean(&body("", &format!("{arrive}{other}")));
    let bad = |after: &str| body("", after).replace("//@copy", "//@earlier");
    caught(&bad(&format!("cp.async.wait_group 1;\n{own}")), "");
    let race = body("", &format!("cp.async.wait_all;\n{other}"));
    caught(&race.replace("//@later", ""), "was not waited for");
    // The copies go through the generic proxy: no fence before, but one before a bulk store.
    clean(&body(
        "st.shared.u32 [%mine], 1;\n",
        &format!("cp.async.wait_all;\n{own}"),
    ));
    let out = "bar.sync 0;\n@%p8 bra E;\ncp.async.bulk.global.shared::cta.bulk_group [%out], [%s], 256;//@later\n\
        cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\nE:";
    clean(&body(
        "",
        &format!("cp.async.wait_all;\nfence.proxy.async;\n{out}"),
    ));
    caught(&bad(&format!("cp.async.wait_all;\n{out}")), NO_FENCE);
    // A third barrier is not told by another's copies.
    let late = format!("bar.sync 0;\ncp.async.wait_group 1;\n{own}");
    caught(&bad(&late), "");
}

#[test]
fn relaxed_operations_order_nothing() {
    let body = |fence: &str, arrive: &str, acquire: &str, after: &str| {
        kernel(&format!(
            "@!%p8 mbarrier.init.shared::cta.b64 [%m], 1;\nbar.sync 0;\n@%p8 bra R;\n\
                 st.shared.u32 [%s], 5;//@earlier\n{fence}mbarrier.arrive{arrive}.shared::cta.b64 _, [%m];\n\
                 bra E;\nR:\n{}{after}{READ}E:",
            wait("W", acquire)
        ))
    };
    let relaxed = ".relaxed.cta";
    clean(&body("", "", "", ""));
    clean(&body("", ".release.cta", ".acquire.cta", ""));
    clean(&body("fence.acq_rel.cta;\n", relaxed, "", ""));
    clean(&body("", "", relaxed, "fence.acq_rel.cta;\n"));
    clean(&body(
        "fence.sc.cta;\n",
        relaxed,
        relaxed,
        "fence.acquire.cta;\n",
    ));
    caught(&body("", relaxed, "", ""), NOTHING);
    caught(&body("", "", relaxed, ""), NOTHING);
    // The fence on the wrong side.
    let late = body("", relaxed, "", "").replace("bra E;\nR:", "fence.acq_rel.cta;\nbra E;\nR:");
    caught(&late, NOTHING);
    // Hardware is taken to acquire whatever a wait says, but not to release more than is said.
    clean_as(&body("", "", relaxed, ""), Profile::Hardware);
    let hazard = ViolationKind::Hazard;
    for acquire in ["", relaxed] {
        clean_as(
            &body("fence.acq_rel.cta;\n", relaxed, acquire, ""),
            Profile::Hardware,
        );
        let ptx = body("", relaxed, acquire, "");
        caught_as(&ptx, Profile::Hardware, hazard, NOTHING);
    }
    // The other instructions that arrive.
    let expect = |arrive: &str| {
        let ptx = body("", arrive, "", "").replace("mbarrier.arrive", "mbarrier.arrive.expect_tx");
        ptx.replace("_, [%m];", "_, [%m], 0;")
    };
    // One of two expected arrivals comes before the store; the second does not come back.
    let drop = |arrive: &str| {
        let ptx = body("", arrive, "", "").replace("mbarrier.arrive", "mbarrier.arrive_drop");
        ptx.replace("[%m], 1;", "[%m], 2;").replace(
            "st.shared",
            "mbarrier.arrive.shared::cta.b64 _, [%m];\nst.shared",
        )
    };
    let both = |arrive: &str| [expect(arrive), drop(arrive)];
    for ptx in both(".release.cta") {
        clean(&ptx);
    }
    for ptx in both(relaxed) {
        caught(&ptx, NOTHING);
        caught_as(&ptx, Profile::Hardware, hazard, NOTHING);
    }
}

#[test]
fn signals_to_a_cta_itself_may_come_after_its_end() {
    let body = |after: &str| {
        kernel(&format!(
            "@!%p8 mbarrier.init.shared::cta.b64 [%m], 1;\n@!%p8 mbarrier.init.shared::cta.b64 [%m+8], 64;\n\
                 fence.proxy.async.shared::cta;\nbar.sync 0;\n{after}E:"
        ))
    };
    // The last arrivals of a ring: nobody waits for them, and what they track is over.
    let commit = "@%p8 bra E;\ntcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%m];\n";
    clean(&body(commit));
    let copies = |wait: &str| {
        body(&format!(
            "shl.b32 %r4, %t, 2;\ncvt.u64.u32 %d1, %r4;\nadd.s64 %d1, %d1, %in;\n\
             cp.async.ca.shared.global [%mine], [%d1], 4;//@earlier\n\
             cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%m+8];\n{wait}"
        ))
    };
    clean(&copies("cp.async.wait_all;\n"));
    // The tracked operations must be over: a copy writes memory that is gone.
    caught(&copies(""), "a CTA ends here while");
    let load = "@%p8 bra E;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%m], 256;\n\
        cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%s], [%in], 256, [%m];//@earlier\n";
    caught(&body(load), "a CTA ends here while");
}

/// Warp 0 writes 512 bytes, its first thread copies them into tensor memory, and its commit tells thread
/// 32, which does `then` and commits or loads onto the second barrier. `before` and `behind` stand around
/// the copy, for warp 0 and for its first thread.
fn staged(before: &str, behind: &str, wait_first: bool, then: &str) -> String {
    let first = if wait_first {
        wait("W", "")
    } else {
        String::new()
    };
    let second = wait("V", "").replace("[%m]", "[%m+8]");
    kernel(&format!(
        "setp.ge.u32 %p2, %t, 32;\nsetp.ne.u32 %p3, %t, 32;\nshl.b32 %r2, %t, 4;\nadd.u32 %r2, %r2, %s;\n\
             @!%p8 mbarrier.init.shared::cta.b64 [%m], 1;\n@!%p8 mbarrier.init.shared::cta.b64 [%m+8], 1;\n\
             @%p2 bra A;\ntcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%s+2048], 32;\n\
             tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\nA: bar.sync 0;\n\
             ld.shared.u32 %r5, [%s+2048];\nadd.u32 %r6, %r5, 8;\ncvt.u64.u32 %d1, %s;\nshr.u64 %d1, %d1, 4;\n\
             or.b64 %d1, %d1, 0x0000400800010000;\n@%p2 bra L;\n\
             st.shared.v4.u32 [%r2], {{%t, %t, %t, %t}};//@written\n{before}bar.warp.sync 0xffffffff;\n@%p8 bra E;\n\
             tcgen05.cp.cta_group::1.32x128b.warpx4 [%r5], %d1;//@copied\n{behind}\
             tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%m];\nbra E;\n\
             L: @%p3 bra E;\n{first}{then}{second}E: bar.warp.sync 0xffffffff;\nbar.sync 0;\n@%p2 bra F;\n\
             tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r5, 32;\nF:"
    ))
}

/// A bulk load over the buffer.
fn overwritten(bytes: u32) -> String {
    format!(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%m+8], {bytes};\n\
         cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%s], [%in], {bytes}, [%m+8];//@load\n"
    )
}

#[test]
fn a_commit_orders_what_was_ordered_before_the_copy() {
    const FENCE: &str = "fence.proxy.async.shared::cta;\n";
    let load = overwritten(512);
    // The writes are over before the copy, and the copy before the commit.
    clean(&staged(FENCE, "", true, &load));
    let unfenced = marked(&staged("", "", true, &load), "written", "copied");
    caught(&unfenced, NO_FENCE);
    caught(&staged(FENCE, "", false, &load), "");
    // A commit orders only what the copy is ordered after. It does not order a write behind the fence, which no proxy
    // fence brings before the copy, or a write behind the copy.
    let more = "st.shared.u32 [%r2+512], %t;//@more\n";
    let longer = overwritten(1024);
    clean(&staged(&format!("{more}{FENCE}"), "", true, &longer));
    let late = staged(&format!("{FENCE}{more}"), "", true, &longer);
    caught(&marked(&late, "more", "load"), NOTHING);
    let behind = staged(FENCE, &format!("{more}{FENCE}"), true, &longer);
    caught(&marked(&behind, "more", "load"), NOTHING);
}

#[test]
fn a_commit_orders_what_was_over_before_the_copy_in_tensor_memory() {
    let before = |wait: &str| {
        format!(
            "fence.proxy.async.shared::cta;\n\
             tcgen05.st.sync.aligned.32x32b.x1.b32 [%r6], {{%t}};//@earlier\n{wait}"
        )
    };
    let again = |fence: &str| {
        format!(
            "{fence}tcgen05.cp.cta_group::1.32x128b.warpx4 [%r6], %d1;//@later\n\
             tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%m+8];\n"
        )
    };
    let wait = "tcgen05.wait::st.sync.aligned;\n";
    let fence = "tcgen05.fence::after_thread_sync;\n";
    clean(&staged(&before(wait), "", true, &again(fence)));
    let unfenced = staged(&before(wait), "", true, &again(""));
    caught(&unfenced, "tcgen05.fence is missing");
    // Nothing tells that the store is over.
    let unwaited = staged(&before(""), "", true, &again(fence));
    caught(&unwaited, "tensor memory columns 8..9 written here");
}
