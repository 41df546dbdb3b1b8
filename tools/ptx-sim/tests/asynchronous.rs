//! Asynchronous copies and mbarriers: correct kernels under every timing, and planted faults.

use ptx_sim::models::swizzle::Swizzle;
use ptx_sim::models::tensor_map::{
    DataType, Interleave, L2Promotion, OobFill, TensorMap, TensorMapArgs,
};
use ptx_sim::report::ViolationKind::{self, Hazard, Other, Synchronisation, Uninitialised};
use ptx_sim::{Launch, Module, Options, Policy, Sim, SimError, Timing};

const WORDS: usize = 4096;

/// A kernel `k(map, in, out)`: `%t` thread, `%s` buffer, `%m` mbarriers, `%in` and `%out`.
fn kernel(body: &str) -> String {
    kernel_with("", body)
}

fn kernel_with(directives: &str, body: &str) -> String {
    format!(
        ".version 9.0\n.target sm_100a\n.address_size 64\n\
         .visible .entry k(.param .align 64 .b8 map[128], .param .u64 a, .param .u64 b) {directives}\n{{\n\
         .reg .pred %p<9>; .reg .b16 %h<4>; .reg .b32 %r<20>; .reg .b32 %t; .reg .b32 %s; .reg .b32 %m;\n\
         .reg .b64 %d<9>; .reg .b64 %in; .reg .b64 %out; .reg .b64 %map; .reg .b64 %w;\n\
         .shared .align 1024 .b8 buf[8192]; .shared .align 8 .b64 bars[8];\n\
         ld.param.u64 %in, [a]; ld.param.u64 %out, [b];\n mov.b64 %map, map; cvta.param.u64 %map, %map;\n\
         mov.u32 %t, %tid.x; mov.u32 %s, buf; mov.u32 %m, bars;\n\
         mul.wide.u32 %w, %t, 4; add.s64 %w, %out, %w; setp.ne.u32 %p8, %t, 0;\n{body}\n ret;\n}}\n"
    )
}

fn map(address: u64, swizzle: Swizzle) -> TensorMap {
    TensorMap::encode(TensorMapArgs {
        data_type: DataType::Uint32,
        global_address: address,
        global_dim: vec![60, 30],
        global_strides: vec![256],
        box_dim: vec![32, 8],
        element_strides: vec![1, 1],
        interleave: Interleave::None,
        swizzle,
        l2_promotion: L2Promotion::None,
        oob_fill: OobFill::Zero,
    })
    .unwrap()
}

struct Setup {
    grid: u32,
    block: u32,
    swizzle: Swizzle,
}

const ONE: Setup = Setup {
    grid: 1,
    block: 64,
    swizzle: Swizzle::None,
};

fn run_as(ptx: &str, s: &Setup, policy: Policy, timing: Timing) -> Result<Vec<u32>, SimError> {
    let mut sim = Sim::new(Module::parse(ptx)?);
    let input: Vec<u8> = (0..WORDS as u32)
        .flat_map(|i| (i + 1).to_le_bytes())
        .collect();
    let a = sim.upload("in", &input)?;
    let b = sim.upload("out", &vec![0xa5; WORDS * 4])?;
    // The map of loads lies over the input, that of stores over the output.
    let on = if ptx.contains("tensor.2d.global") {
        b
    } else {
        a
    };
    let launch = Launch::new("k", [s.grid, 1, 1], [s.block, 1, 1])
        .tensor_map(map(on.address, s.swizzle))
        .buffer(a)
        .buffer(b);
    let options = Options {
        policy,
        timing,
        budget: 50_000_000,
        ..Options::default()
    };
    sim.run(&launch, &options)?;
    Ok(sim.words(b))
}

fn ways() -> Vec<(Policy, Timing)> {
    let mut all = vec![(Policy::Fair, Timing::Eager), (Policy::Fair, Timing::Lazy)];
    for seed in 0..25 {
        for timing in [Timing::Eager, Timing::Lazy, Timing::Random] {
            all.push((Policy::Random(seed), timing));
            all.push((Policy::Starve(seed), timing));
        }
    }
    all
}

/// Every way of running gives the same.
fn run(ptx: &str, s: &Setup) -> Vec<u32> {
    let mut first = None;
    for (policy, timing) in ways() {
        let out =
            run_as(ptx, s, policy, timing).unwrap_or_else(|e| panic!("{policy} {timing:?}: {e}"));
        let first = first.get_or_insert_with(|| out.clone());
        assert!(*first == out, "{policy} {timing:?} differs");
    }
    first.unwrap()
}

/// The error of the first way of running that fails.
fn fault(ptx: &str, s: &Setup) -> SimError {
    ways()
        .into_iter()
        .find_map(|(p, t)| run_as(ptx, s, p, t).err())
        .expect("no way of running finds the fault")
}

fn expect_violation(e: &SimError, kind: ViolationKind, text: &str) {
    match e {
        SimError::Violation(v) => {
            assert_eq!(v.kind, kind, "{v}");
            assert!(v.to_string().contains(text), "{v}");
        }
        other => panic!("{other}"),
    }
}

/// Demands that one CTA is reported with this.
fn violates(ptx: &str, kind: ViolationKind, text: &str) {
    expect_violation(&fault(ptx, &ONE), kind, text);
}

fn expect_deadlock(e: &SimError, text: &str) {
    match e {
        SimError::Deadlock(d) => {
            assert!(d.to_string().contains(text), "{d}");
            assert!(!d.waiting.is_empty() && d.waiting.iter().all(|w| w.site.line > 0));
        }
        other => panic!("{other}"),
    }
}

const INIT: &str = "@%p8 bra READY;\nmbarrier.init.shared::cta.b64 [%m], 1;\n\
    fence.mbarrier_init.release.cluster;\nREADY: bar.sync 0;\n";
const OUT: &str = "shl.b32 %r1, %t, 2; add.u32 %r1, %r1, %s; ld.shared.u32 %r2, [%r1]; st.global.u32 [%w], %r2;\n";

fn wait(label: &str, bar: &str, parity: &str) -> String {
    format!(
        "{label}: mbarrier.try_wait.parity.shared::cta.b64 %p1, [{bar}], {parity};\n@!%p1 bra {label};\n"
    )
}

fn bulk_load(expect: u32) -> String {
    format!(
        "{INIT}@%p8 bra GO;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%m], {expect};\n\
         cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%s], [%in], 256, [%m];\nGO:\n"
    )
}

/// A warp that comes when two phases have ended waits for the first of them, and gets a third one that nobody ends.
#[test]
fn a_deadlock_names_the_parity_and_a_phase_that_was_missed() {
    let arrive = "@!%p8 mbarrier.arrive.shared::cta.b64 _, [%m];\n";
    let late = |parity| {
        let body = format!(
            "{INIT}setp.gt.u32 %p2, %t, 31;\n@%p2 bra LATE;\n{arrive}{}{arrive}{}\
             LATE: bar.sync 0;\n@!%p2 bra DONE;\n{}DONE:",
            wait("A", "%m", "0"),
            wait("B", "%m", "1"),
            wait("C", "%m", parity)
        );
        kernel(&body)
    };
    let e = fault(&late("0"), &ONE);
    expect_deadlock(&e, "for parity 0 of the mbarrier at shared address");
    expect_deadlock(
        &e,
        "this waiter missed a phase: it has seen 0 end, and 2 have",
    );
    // The second phase has ended, and is the one before the current one.
    run(&late("1"), &ONE);
    // Nobody arrives: a phase that never ended was not missed.
    let e = fault(&kernel(&format!("{INIT}{}", wait("W", "%m", "0"))), &ONE);
    expect_deadlock(&e, "for parity 0 of");
    assert!(!e.to_string().contains("missed"), "{e}");
}

#[test]
fn bulk_load_with_wait() {
    let body = format!("{}{}{OUT}", bulk_load(256), wait("W", "%m", "0"));
    let out = run(&kernel(&body), &ONE);
    assert_eq!(out[..64], (1..=64).collect::<Vec<u32>>());
    // The state form, polled.
    let body = format!(
        "{INIT}@%p8 bra GO;\nmbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %d1, [%m], 256;\n\
         cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%s], [%in], 256, [%m];\n\
         W: mbarrier.test_wait.acquire.cta.shared::cta.b64 %p1, [%m], %d1;\n@!%p1 bra W;\n\
         mbarrier.pending_count.b64 %r5, %d1;\nsetp.ne.u32 %p2, %r5, 1;\n@%p2 trap;\n\
         GO: bar.sync 0;\n{OUT}"
    );
    assert_eq!(
        run(&kernel(&body), &ONE)[..64],
        (1..=64).collect::<Vec<u32>>()
    );
}

#[test]
fn a_missing_wait_is_found() {
    // The bytes are in flight, or not even requested yet.
    let found = |ptx: &str| match fault(ptx, &ONE) {
        SimError::Violation(v) => {
            assert!(matches!(v.kind, Hazard | Uninitialised), "{v}");
        }
        e => panic!("{e}"),
    };
    found(&kernel(&format!("{}{OUT}", bulk_load(256))));
    // A wait that ignores the answer.
    let body = format!(
        "{}mbarrier.try_wait.parity.shared::cta.b64 %p1, [%m], 0;\n{OUT}",
        bulk_load(256)
    );
    found(&kernel(&body));
    // The wrong parity is already complete.
    let body = format!("{}{}{OUT}", bulk_load(256), wait("W", "%m", "1"));
    found(&kernel(&body));
    // By the thread that issued it.
    let body = format!(
        "{}@%p8 bra E;\nld.shared.u32 %r2, [%s];\nE:",
        bulk_load(256)
    );
    violates(&kernel(&body), Hazard, "was not waited for");
}

#[test]
fn wrong_transaction_counts() {
    let body = |n| kernel(&format!("{}{}{OUT}", bulk_load(n), wait("W", "%m", "0")));
    expect_deadlock(&fault(&body(272), &ONE), "tx-count 16");
    expect_deadlock(&fault(&body(240), &ONE), "tx-count -16");
    violates(&body(1 << 20), Synchronisation, "tx-count");
}

#[test]
fn objects_are_not_memory() {
    let (init, parity) = (INIT, wait("W", "%m", "2"));
    let arrive = "mbarrier.arrive.shared::cta.b64 _, [%m]";
    let object = "mbarrier object";
    for (body, kind, text) in [
        (format!("{init}ld.shared.u32 %r1, [%m+4];"), Hazard, object),
        (
            format!("{init}@%p8 bra E;\nst.shared.u32 [%m], 1;\nE:"),
            Hazard,
            object,
        ),
        (
            format!("{arrive};"),
            Synchronisation,
            "no initialised mbarrier",
        ),
        (format!("{init}{arrive}, 2;"), Synchronisation, "pending"),
        (format!("{init}{parity}"), Synchronisation, "parity"),
    ] {
        violates(&kernel(&body), kind, text);
    }
    // After invalidation they are memory again, with nothing in it.
    let body = format!(
        "{INIT}@%p8 bra E;\nmbarrier.inval.shared::cta.b64 [%m];\nst.shared.u32 [%m], 7;\n\
         ld.shared.u32 %r1, [%m];\nst.global.u32 [%w], %r1;\nld.shared.u32 %r1, [%m+4];\nE:"
    );
    violates(&kernel(&body), Uninitialised, "nothing wrote");
}

/// One warp loads stages, another consumes them; 16 stages through a ring of 2.
fn ring(consumer_arrives: bool, first_empty: u32) -> String {
    let arrive = if consumer_arrives {
        "@!%p7 mbarrier.arrive.shared::cta.b64 _, [%r6];"
    } else {
        ""
    };
    kernel(&format!(
        "@%p8 bra READY;\nmbarrier.init.shared::cta.b64 [%m], 1;\nmbarrier.init.shared::cta.b64 [%m+8], 1;\n\
             mbarrier.init.shared::cta.b64 [%m+16], 1;\nmbarrier.init.shared::cta.b64 [%m+24], 1;\n\
             fence.mbarrier_init.release.cluster;\nREADY: bar.sync 0;\n\
             mov.u32 %r0, 0;\nsetp.ge.u32 %p2, %t, 32;\nand.b32 %r10, %t, 31;\nsetp.ne.u32 %p7, %r10, 0;\n\
             @%p2 bra CONSUMER;\n@%p7 bra END;\n\
             P: and.b32 %r1, %r0, 1;\nshl.b32 %r2, %r1, 3;\nadd.u32 %r3, %m, %r2;\nadd.u32 %r6, %r3, 16;\n\
             shr.u32 %r4, %r0, 1;\nadd.u32 %r4, %r4, {first_empty};\nand.b32 %r4, %r4, 1;\n\
             {}mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 128;\n\
             shl.b32 %r5, %r1, 7;\nadd.u32 %r5, %r5, %s;\nmul.wide.u32 %d1, %r0, 128;\nadd.s64 %d1, %d1, %in;\n\
             cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r5], [%d1], 128, [%r3];\n\
             add.u32 %r0, %r0, 1;\nsetp.lt.u32 %p3, %r0, 16;\n@%p3 bra P;\nbra END;\n\
             CONSUMER:\nand.b32 %r1, %r0, 1;\nshl.b32 %r2, %r1, 3;\nadd.u32 %r3, %m, %r2;\nadd.u32 %r6, %r3, 16;\n\
             shr.u32 %r4, %r0, 1;\nand.b32 %r4, %r4, 1;\n{}\
             shl.b32 %r5, %r1, 7;\nadd.u32 %r5, %r5, %s;\nshl.b32 %r7, %r10, 2;\nadd.u32 %r5, %r5, %r7;\n\
             ld.shared.u32 %r8, [%r5];\nfence.proxy.async.shared::cta;\nbar.warp.sync 0xffffffff;\n{arrive}\n\
             mul.wide.u32 %d1, %r0, 128;\nadd.s64 %d1, %d1, %out;\nmul.wide.u32 %d2, %r10, 4;\n\
             add.s64 %d1, %d1, %d2;\nst.global.u32 [%d1], %r8;\n\
             add.u32 %r0, %r0, 1;\nsetp.lt.u32 %p3, %r0, 16;\n@%p3 bra CONSUMER;\nEND:",
        wait("PW", "%r6", "%r4"),
        wait("CW", "%r3", "%r4"),
    ))
}

#[test]
fn ring_of_stages() {
    let out = run(&ring(true, 1), &ONE);
    assert_eq!(out[..512], (1..=512).collect::<Vec<u32>>());
    // Nobody says that a stage is empty.
    expect_deadlock(&fault(&ring(false, 1), &ONE), "1 of 1 arrivals pending");
    // The producer waits for the first release before it has filled anything.
    expect_deadlock(&fault(&ring(true, 0), &ONE), "phase 0");
}

#[test]
fn a_stage_reused_too_early_is_found() {
    let ptx = ring(true, 1).replace(
        "PW: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r6], %r4;\n@!%p1 bra PW;",
        "",
    );
    let e = fault(&ptx, &ONE);
    assert!(
        matches!(&e, SimError::Violation(_) | SimError::Deadlock(_)),
        "{e}"
    );
}

#[test]
fn bulk_stores_and_groups() {
    let store = |wait: &str| {
        kernel(&format!(
            "add.u32 %r2, %t, 7;\nshl.b32 %r1, %t, 2;\nadd.u32 %r1, %r1, %s;\nst.shared.u32 [%r1], %r2;\n\
                 fence.proxy.async.shared::cta;\nbar.sync 0;\n@%p8 bra E;\n\
                 cp.async.bulk.global.shared::cta.bulk_group [%out], [%s], 256;\ncp.async.bulk.commit_group;\n{wait}\nE:"
        ))
    };
    let out = run(&store("cp.async.bulk.wait_group 0;"), &ONE);
    assert_eq!(out[..64], (7..71).collect::<Vec<u32>>());
    run(
        &store("cp.async.bulk.wait_group.read 0;\nst.shared.u32 [%s], 1;"),
        &ONE,
    );
    violates(&store(""), Hazard, "a CTA ends here while");
    violates(
        &store("cp.async.bulk.wait_group 1;\nst.shared.u32 [%s], 1;"),
        Hazard,
        "in flight reads",
    );
    violates(
        &store("cp.async.bulk.wait_group.read 0;\nld.global.u32 %r3, [%out];"),
        Hazard,
        "in flight writes",
    );
    let e = fault(&store("").replace("st.shared.u32 [%r1], %r2;", ""), &ONE);
    assert!(
        matches!(&e, SimError::Violation(v) if matches!(v.kind, Uninitialised | Hazard)),
        "{e}"
    );
}

#[test]
fn small_copies() {
    let copy = |wait: &str| {
        kernel(&format!(
            "shl.b32 %r1, %t, 4;\nadd.u32 %r2, %r1, %s;\ncvt.u64.u32 %d1, %r1;\nadd.s64 %d1, %d1, %in;\n\
                 and.b32 %r3, %t, 15;\ncp.async.cg.shared.global [%r2], [%d1], 16, %r3;\ncp.async.commit_group;\n\
                 {wait}\nbar.sync 0;\n{OUT}"
        ))
    };
    let out = run(&copy("cp.async.wait_group 0;"), &ONE);
    let mut want: Vec<u8> = (0..256u32).flat_map(|i| (i + 1).to_le_bytes()).collect();
    for t in 0..64 {
        want[t * 16 + t % 16..t * 16 + 16].fill(0);
    }
    let want: Vec<u32> = want
        .chunks(4)
        .take(64)
        .map(|c| u32::from_le_bytes(c.try_into().unwrap()))
        .collect();
    assert_eq!(out[..64], want);
    run(&copy("cp.async.wait_all;"), &ONE);
    violates(&copy("cp.async.wait_group 1;"), Hazard, "in flight");
    let by_barrier = format!(
        "cp.async.mbarrier.arrive.noinc.shared.b64 [%m];\n{}",
        wait("W", "%m", "0")
    );
    let init =
        "setp.eq.u32 %p8, %t, 0;\n@%p8 mbarrier.init.shared::cta.b64 [%m], 64;\nbar.sync 0;\n";
    let ptx = copy(&by_barrier).replace(
        "shl.b32 %r1, %t, 4;\n",
        &format!("{init}shl.b32 %r1, %t, 4;\n"),
    );
    assert_eq!(run(&ptx, &ONE)[..64], want);
}

fn tensor_load(x: i32, y: i32) -> String {
    let body = format!(
        "{INIT}@%p8 bra GO;\nprefetch.tensormap [%map];\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%m], 1024;\n\
         cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%s], [%map, {{{x}, {y}}}], [%m];\n\
         GO:\n{}{OUT}",
        wait("W", "%m", "0")
    );
    kernel(&body)
}

#[test]
fn tensor_loads() {
    let all = Setup { block: 256, ..ONE };
    for (swizzle, lines) in [(Swizzle::None, 0), (Swizzle::B128, 7)] {
        for (x, y) in [(0, 0), (32, 8), (48, 25), (-4, -3)] {
            let out = run(&tensor_load(x, y), &Setup { swizzle, ..all });
            for row in 0..8i32 {
                for column in 0..32i32 {
                    let (gx, gy) = (x + column, y + row);
                    let inside = (0..60).contains(&gx) && (0..30).contains(&gy);
                    let want = if inside { (gy * 64 + gx + 1) as u32 } else { 0 };
                    // 16-byte chunks move by the row's number; the buffer is 1024-byte aligned.
                    let chunk = (column / 4) ^ (row & lines);
                    let at = row * 32 + chunk * 4 + column % 4;
                    assert_eq!(
                        out[at as usize], want,
                        "{swizzle:?} ({x}, {y}) row {row} column {column}"
                    );
                }
            }
        }
    }
    let e = fault(&tensor_load(0, 0).replace("[%map, {", "[%in, {"), &all);
    expect_violation(&e, Other, "no tensor map");
}

#[test]
fn tensor_stores() {
    let body = "shl.b32 %r1, %t, 2;\nadd.u32 %r1, %r1, %s;\nst.shared.u32 [%r1], %t;\n\
        fence.proxy.async.shared::cta;\nbar.sync 0;\n@%p8 bra E;\n\
        cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%map, {40, 26}], [%s];\n\
        cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\nE:";
    let out = run(&kernel(body), &Setup { block: 256, ..ONE });
    for (i, v) in out.iter().enumerate() {
        let (x, y) = (i % 64, i / 64);
        let inside = (40..60).contains(&x) && (26..30).contains(&y);
        let want = if inside {
            ((y - 26) * 32 + x - 40) as u32
        } else {
            0xa5a5_a5a5
        };
        assert_eq!(*v, want, "({x}, {y})");
    }
}

#[test]
fn multicast_in_a_cluster() {
    let body = format!(
        "mov.u32 %r9, %cluster_ctarank;\n@%p8 bra READY;\nmbarrier.init.shared::cta.b64 [%m], 1;\n\
         fence.mbarrier_init.release.cluster;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%m], 512;\n\
         READY: barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n@%p8 bra GO;\n\
         mov.u16 %h1, 3;\nshl.b32 %r2, %r9, 8;\nadd.u32 %r3, %s, %r2;\ncvt.u64.u32 %d1, %r2;\nadd.s64 %d1, %d1, %in;\n\
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r3], [%d1], 256, [%m], %h1;\n\
         GO:\n{}mul.lo.u32 %r4, %r9, 512;\ncvt.u64.u32 %d2, %r4;\nadd.s64 %w, %w, %d2;\n{OUT}\
         barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;",
        wait("W", "%m", "0")
    );
    let two = Setup {
        grid: 2,
        block: 128,
        ..ONE
    };
    let out = run(&kernel_with(".reqnctapercluster 2, 1, 1", &body), &two);
    let once: Vec<u32> = (1..=128).collect();
    assert_eq!(out[..256], [once.clone(), once].concat());
    let e = fault(
        &kernel_with(
            ".reqnctapercluster 2, 1, 1",
            &body.replace("%h1, 3", "%h1, 4"),
        ),
        &two,
    );
    expect_violation(&e, Other, "multicast mask");
}

#[test]
fn remote_barriers_and_stores() {
    // Each CTA sends its thread numbers to the other one, and signals its barrier there.
    let body = format!(
        "mov.u32 %r9, %cluster_ctarank;\nxor.b32 %r8, %r9, 1;\n@%p8 bra READY;\nmbarrier.init.shared::cta.b64 [%m], 2;\n\
         fence.mbarrier_init.release.cluster;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%m], 256;\n\
         READY: barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n\
         shl.b32 %r1, %t, 2;\nadd.u32 %r1, %r1, %s;\nmapa.shared::cluster.u32 %r2, %r1, %r8;\n\
         mapa.shared::cluster.u32 %r3, %m, %r8;\nshl.b32 %r4, %r9, 8;\nadd.u32 %r4, %r4, %t;\n\
         st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r2], %r4, [%r3];\n\
         @!%p8 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3];\n{}\
         mul.lo.u32 %r4, %r9, 256;\ncvt.u64.u32 %d2, %r4;\nadd.s64 %w, %w, %d2;\n{OUT}\
         barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;",
        wait("W", "%m", "0")
    );
    let two = Setup { grid: 2, ..ONE };
    let ptx = kernel_with(".reqnctapercluster 2, 1, 1", &body);
    let out = run(&ptx, &two);
    let want: Vec<u32> = (256..320).chain(0..64).collect();
    assert_eq!(out[..128], want);
    // Without the last barrier a CTA may end while the other one still writes to it.
    let e = fault(
        &ptx.replace(
            "mbarrier.init.shared::cta.b64 [%m], 2",
            "mbarrier.init.shared::cta.b64 [%m], 3",
        ),
        &two,
    );
    expect_deadlock(&e, "1 of 3 arrivals pending");
}
