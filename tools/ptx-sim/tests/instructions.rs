//! Single instructions in small kernels: results of `set` and `testp`, `discard`, cluster launch control.

use ptx_sim::report::ViolationKind;
use ptx_sim::{Buffer, Launch, Module, Options, Policy, Sim, SimError, Timing};

/// A kernel `k(out)`: `%t` is the thread, `%w` the address of its word, `%out` that of the first.
fn kernel(body: &str) -> String {
    kernel_with("", body)
}

fn kernel_with(directives: &str, body: &str) -> String {
    format!(
        ".version 9.0\n.target sm_100a\n.address_size 64\n\
         .visible .entry k(.param .u64 p) {directives}\n{{\n\
         .reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<9>; .reg .f32 %f<4>; .reg .b32 %t;\n\
         .reg .b64 %d<4>; .reg .b64 %out; .reg .b64 %w; .reg .b128 %q1;\n\
         .shared .align 16 .b8 response[16]; .shared .align 8 .b64 bar;\n\
         ld.param.u64 %out, [p]; mov.u32 %t, %tid.x; mad.wide.u32 %w, %t, 4, %out;\n{body}\nret;\n}}\n"
    )
}

fn run_as(ptx: &str, grid: u32, options: &Options) -> Result<Vec<u32>, SimError> {
    let mut sim = Sim::new(Module::parse(ptx)?);
    let out: Buffer = sim.upload("out", &[0; 512])?;
    let launch = Launch::new("k", [grid, 1, 1], [32, 1, 1]).buffer(out);
    sim.run(&launch, options)?;
    Ok(sim.words(out))
}

fn run(ptx: &str, grid: u32) -> Result<Vec<u32>, SimError> {
    run_as(ptx, grid, &Options::default())
}

/// Value that one instruction leaves in `%r1`.
fn one(setup: &str, instruction: &str) -> u32 {
    let body =
        format!("mov.u32 %r1, 0x12345678;\n{setup}\n{instruction}\nst.global.u32 [%w], %r1;");
    run(&kernel(&body), 1).unwrap_or_else(|e| panic!("{instruction}: {e}"))[0]
}

fn violation(e: &SimError) -> (ViolationKind, String) {
    match e {
        SimError::Violation(v) => (v.kind, v.to_string()),
        other => panic!("{other}"),
    }
}

#[test]
fn set_writes_numbers() {
    let ints =
        "mov.u32 %r2, -1; mov.u32 %r3, 1; setp.eq.u32 %p1, %r2, %r3; setp.ne.u32 %p2, %r2, %r3;";
    for (instruction, want) in [
        ("set.lt.u32.s32 %r1, %r2, %r3;", u32::MAX),
        ("set.lt.u32.u32 %r1, %r2, %r3;", 0),
        ("set.lt.f32.s32 %r1, %r2, %r3;", 0x3f80_0000),
        ("set.lt.and.s32.s32 %r1, %r2, %r3, %p1;", 0),
        ("set.lt.and.s32.s32 %r1, %r2, %r3, !%p1;", u32::MAX),
        ("set.gt.or.f32.s32 %r1, %r2, %r3, %p2;", 0x3f80_0000),
        ("set.lt.xor.u32.s32 %r1, %r2, %r3, %p2;", 0),
        ("set.ne.u32.b32 %r1, %r2, %r3;", u32::MAX),
        ("{ set.hi.u32.u32 %r1, %r2, %r3; }", u32::MAX),
    ] {
        assert_eq!(one(ints, instruction), want, "{instruction}");
    }
    // The halves of %r2 are 1 and NaN, those of %r3 are 2 and 2.
    let halves = "mov.b32 %r2, 0x3c007e00; mov.b32 %r3, 0x40004000; mov.b32 {%h1, %h2}, %r2; mov.u16 %h3, 0x3c00;";
    for (instruction, want) in [
        ("set.lt.f16x2.f16x2 %r1, %r2, %r3;", 0x3c00_0000),
        ("set.ltu.u32.f16x2 %r1, %r2, %r3;", 0xffff_ffff),
        ("set.lt.s32.f16x2 %r1, %r2, %r3;", 0xffff_0000),
        (
            "set.eq.u16.f16 %h1, %h2, %h3; mov.b32 %r1, {%h1, 0};",
            0xffff,
        ),
        (
            "set.eq.f16.f16 %h1, %h2, %h3; mov.b32 %r1, {%h1, 0};",
            0x3c00,
        ),
        (
            "set.eq.bf16.s32 %h1, %r2, %r2; mov.b32 %r1, {%h1, 0};",
            0x3f80,
        ),
        ("set.num.u32.f16 %r1, %h1, %h3;", 0),
    ] {
        assert_eq!(one(halves, instruction), want, "{instruction}");
    }
    // A subnormal is above zero unless it is flushed.
    let tiny = "mov.b32 %f1, 1; mov.f32 %f2, 0f00000000;";
    assert_eq!(one(tiny, "set.gt.u32.f32 %r1, %f1, %f2;"), u32::MAX);
    assert_eq!(one(tiny, "set.gt.ftz.u32.f32 %r1, %f1, %f2;"), 0);
}

#[test]
fn testp_knows_the_classes() {
    let properties = [
        "finite",
        "infinite",
        "number",
        "notanumber",
        "normal",
        "subnormal",
    ];
    for (bits, double, want) in [
        (0x3f80_0000u32, 0x3ff0_0000_0000_0000u64, [1, 0, 1, 0, 1, 0]),
        (0x8000_0000, 1 << 63, [1, 0, 1, 0, 1, 0]),
        (0x0000_0001, 1, [1, 0, 1, 0, 0, 1]),
        (0xff80_0000, 0xfff0_0000_0000_0000, [0, 1, 1, 0, 0, 0]),
        (0x7f80_0001, 0x7ff0_0000_0000_0001, [0, 0, 0, 1, 0, 0]),
    ] {
        let setup = format!("mov.b32 %f1, {bits}; mov.b64 %d1, {double};");
        for (property, want) in properties.iter().zip(want) {
            for source in ["f32 %p1, %f1", "f64 %p1, %d1"] {
                let i = format!("testp.{property}.{source}; selp.u32 %r1, 1, 0, %p1;");
                assert_eq!(one(&setup, &i), want, "{i} {bits:08x}");
            }
        }
    }
}

#[test]
fn discarded_bytes_hold_nothing() {
    let discard =
        "setp.ne.u32 %p1, %t, 0;\n@!%p1 discard.global.L2 [%out+128], 128;\nbar.warp.sync -1;\n";
    // Outside of it nothing happens, and a write makes the bytes readable again.
    let fine = "st.global.u32 [%w+128], %t; ld.global.u32 %r1, [%w+128]; add.u32 %r1, %r1, 1; st.global.u32 [%w], %r1;";
    let out = run(&kernel(&format!("{discard}{fine}")), 1).unwrap();
    assert_eq!(out[..32], (1..=32).collect::<Vec<u32>>());
    let reads = format!("{discard}ld.global.u32 %r1, [%out+252];");
    let (kind, text) = violation(&run(&kernel(&reads), 1).unwrap_err());
    assert_eq!(kind, ViolationKind::Uninitialised, "{text}");
    let next = format!("{discard}ld.global.u32 %r1, [%out+256];");
    run(&kernel(&next), 1).unwrap();
    for (place, want) in [
        (
            "discard.global.L2 [%out+64], 128;",
            ViolationKind::Misaligned,
        ),
        (
            "discard.global.L2 [%out+512], 128;",
            ViolationKind::OutOfBounds,
        ),
    ] {
        let (kind, text) = violation(&run(&kernel(place), 1).unwrap_err());
        assert_eq!(kind, want, "{text}");
    }
}

/// Two CTAs of a cluster ask once, all threads of both wait, and each writes what it was told.
fn cancel(after: &str) -> String {
    let body = format!(
        "mov.u32 %r5, %cluster_ctarank; setp.ne.u32 %p1, %t, 0; mov.u32 %r2, bar; mov.u32 %r3, response;\n\
         @%p1 bra READY;\nmbarrier.init.shared::cta.b64 [%r2], 1;\nfence.mbarrier_init.release.cluster;\n\
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 16;\n\
         READY: barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n\
         or.b32 %r6, %r5, %t;\nsetp.ne.u32 %p2, %r6, 0;\n\
         @!%p2 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::cluster::all.b128 [%r3], [%r2];\n\
         W: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r2], 0;\n@!%p3 bra W;\n\
         ld.shared.b128 %q1, [%r3];\nmov.u32 %r1, 7;\n\
         clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p3, %q1;\nselp.u32 %r1, 1, 2, %p3;\n\
         @%p3 clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {{%r1, _, _, _}}, %q1;\n{after}\n\
         mad.wide.u32 %w, %r5, 128, %w;\nst.global.u32 [%w], %r1;\n\
         barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;"
    );
    kernel_with(".reqnctapercluster 2, 1, 1", &body)
}

/// A grid of 3 x 2 x 2 whose CTAs take over others' work while they are granted some. Each CTA adds one to the word of
/// the CTA whose work it does. Returns how many CTAs ran, and the words.
fn take_over(options: &Options, query: &str) -> (u64, Vec<u32>) {
    let body = format!(
        "setp.ne.u32 %p1, %t, 0; mov.u32 %r2, bar; mov.u32 %r3, response; mov.u32 %r8, 0;\n\
         @!%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\nbar.sync 0;\n\
         mov.u32 %r4, %ctaid.x; mov.u32 %r5, %ctaid.y; mov.u32 %r6, %ctaid.z;\n\
         AGAIN: mad.lo.u32 %r1, %r6, 2, %r5; mad.lo.u32 %r1, %r1, 3, %r4; mad.wide.u32 %w, %r1, 4, %out;\n\
         @!%p1 red.relaxed.gpu.global.add.u32 [%w], 1;\n@%p1 bra READY;\n\
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 16;\n\
         clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r3], [%r2];\n\
         READY: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r2], %r8;\n@!%p3 bra READY;\n\
         ld.shared.b128 %q1, [%r3]; xor.b32 %r8, %r8, 1;\nfence.proxy.async.shared::cta;\nbar.sync 0;\n\
         clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p3, %q1;\n@!%p3 bra END;\n\
         {query}\nbra AGAIN;\nEND:"
    );
    let mut sim = Sim::new(Module::parse(&kernel(&body)).unwrap());
    let out: Buffer = sim.upload("out", &[0; 64]).unwrap();
    let launch = Launch::new("k", [3, 2, 2], [32, 1, 1]).buffer(out);
    let report = sim.run(&launch, options).unwrap();
    (report.ctas, sim.words(out))
}

#[test]
fn clusters_are_cancelled_once_and_not_run() {
    let together =
        "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r4, %r5, %r6, _}, %q1;";
    let one_by_one = "clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r4, %q1;\n\
         clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %r5, %q1;\n\
         clusterlaunchcontrol.query_cancel.get_first_ctaid::z.b32.b128 %r6, %q1;";
    let mut each_once = vec![1; 12];
    each_once.resize(16, 0);
    let mut refused_early = false;
    for query in [together, one_by_one] {
        for timing in [Timing::Eager, Timing::Lazy, Timing::Random] {
            for seed in 0..8 {
                let policies = [Policy::Fair, Policy::Random(seed), Policy::Starve(seed)];
                for policy in policies {
                    let options = Options {
                        policy,
                        timing,
                        ..Options::default()
                    };
                    let (ctas, words) = take_over(&options, query);
                    assert_eq!(words, each_once, "{policy} {timing:?}");
                    // Two CTAs are resident; all others' work is theirs, unless a request is refused early.
                    match policy {
                        Policy::Fair => assert_eq!(ctas, 2, "{timing:?}"),
                        _ => refused_early |= ctas > 2,
                    }
                }
            }
        }
    }
    assert!(refused_early);
}

#[test]
fn requests_fail_where_every_cluster_has_begun() {
    for policy in [Policy::Fair, Policy::Random(3), Policy::Starve(5)] {
        for timing in [Timing::Eager, Timing::Lazy, Timing::Random] {
            let options = Options {
                policy,
                timing,
                ..Options::default()
            };
            let out = run_as(&cancel(""), 4, &options).unwrap();
            assert_eq!(out[..64], [2; 64], "{policy} {timing:?}");
        }
    }
}

#[test]
fn misuse_of_responses_is_found() {
    let again = "@!%p2 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r3], [%r2];";
    let first = "clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r1, %q1;";
    let other = "mov.b128 %q1, {%d1, %d2};\nclusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p3, %q1;";
    for (after, want) in [
        (again, "has seen an earlier one fail"),
        (first, "of a request that failed"),
        (other, "not the response of a try_cancel"),
    ] {
        let (_, text) = violation(&run(&cancel(after), 2).unwrap_err());
        assert!(text.contains(want), "{text}");
    }
}

/// The message that a kernel of this body is refused with, without being run.
fn refused(body: &str) -> String {
    let e = Sim::new(Module::parse(&kernel(body)).unwrap()).program("k");
    e.expect_err(body).to_string()
}

#[test]
fn operands_of_128_bits_are_registers_of_128_bits() {
    for i in [
        "st.global.b128 [%out], 5;",
        "mov.b128 {%d1, %d2}, 5;",
        "mov.b128 %q1, %tid.x;",
        "mov.b128 %q1, response;",
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, 5;",
    ] {
        let e = refused(i);
        assert!(e.contains("is not a register of 128 bits"), "{i}: {e}");
    }
    for i in ["mov.b64 {%d2}, %d1;", "mov.b64 %d2, {%d1};"] {
        let e = refused(i);
        assert!(e.contains("1 parts do not make b64"), "{i}: {e}");
    }
}

#[test]
fn either_result_of_match_all_may_be_dropped() {
    let two = "match.all.sync.b32 _|%p1, 7, -1; selp.u32 %r1, 1, 0, %p1;";
    assert_eq!(one("", two), 1);
    assert_eq!(one("", "match.all.sync.b32 %r1|_, 7, -1;"), u32::MAX);
    for i in [
        "match.any.sync.b32 _, 7, -1;",
        "match.any.sync.b32 %r1|%p1, 7, -1;",
    ] {
        assert!(refused(i).contains("match.any has one result"), "{i}");
    }
}

#[test]
fn lanes_that_meet_have_the_same_member_mask() {
    // Lane 0 names lane 1 too, lane 1 only itself.
    let lane_1 =
        "setp.ne.u32 %p1, %t, 0; selp.u32 %r2, 2, 3, %p1; setp.gt.u32 %p2, %t, 1; @%p2 bra E;\n";
    for i in [
        "vote.sync.ballot.b32 %r1, 1, %r2;",
        "match.any.sync.b32 %r1, 7, %r2;",
        "bar.warp.sync %r2;",
    ] {
        let (kind, text) = violation(&run(&kernel(&format!("{lane_1}{i}\nE:")), 1).unwrap_err());
        assert_eq!(kind, ViolationKind::Synchronisation, "{text}");
        let masks = "mask 00000003 names lane 1, whose member mask is 00000002";
        assert!(text.contains(masks), "{text}");
        // Groups of their own may meet at one place.
        let own = i.replace("%r2", "%r3");
        let body = format!("{lane_1}add.u32 %r3, %t, 1;\n{own}\nE:");
        run(&kernel(&body), 1).unwrap_or_else(|e| panic!("{own}: {e}"));
    }
}

#[test]
fn uniform_branches_and_cluster_directives_hold() {
    let table = "T: .branchtargets A, B;\n";
    let three = "setp.gt.u32 %p1, %t, 2;\n";
    for (body, want) in [
        (
            format!("{three}@%p1 bra.uni A;\nA:"),
            "`@%p1 bra.uni A` is taken by a part",
        ),
        (
            format!("{three}@%p1 ret.uni;"),
            "`@%p1 ret.uni` is taken by a part",
        ),
        (
            format!("{table}and.b32 %r1, %t, 1; brx.idx.uni %r1, T;\nA: B:"),
            "a different index in some lanes",
        ),
    ] {
        let (kind, text) = violation(&run(&kernel(&body), 1).unwrap_err());
        assert_eq!(kind, ViolationKind::Synchronisation, "{text}");
        assert!(text.contains(want), "{text}");
    }
    run(
        &kernel(&format!(
            "{table}mov.u32 %r1, 1; brx.idx.uni %r1, T;\nA: B: ret.uni;"
        )),
        1,
    )
    .unwrap();
    let clusters = |directives: &str, cluster: Option<[u32; 3]>| {
        let mut sim = Sim::new(Module::parse(&kernel_with(directives, "")).unwrap());
        let out = sim.upload("out", &[0; 512]).unwrap();
        let mut launch = Launch::new("k", [4, 1, 1], [32, 1, 1]).buffer(out);
        launch.cluster = cluster;
        sim.run(&launch, &Options::default()).map(drop)
    };
    clusters(".maxclusterrank 4", Some([4, 1, 1])).unwrap();
    clusters(".explicitcluster", Some([1; 3])).unwrap();
    clusters(".reqnctapercluster 2, 1, 1 .explicitcluster", None).unwrap();
    for (directive, cluster) in [
        (".maxclusterrank 2", Some([4, 1, 1])),
        (".explicitcluster", None),
    ] {
        let e = clusters(directive, cluster).unwrap_err();
        assert!(matches!(e, SimError::Launch(_)), "{directive}: {e}");
    }
}

#[test]
fn forms_that_the_isa_does_not_have_are_refused() {
    let forms = "copysign.rz.f32 %f1, %f1, %f2; copysign.ftz.f32 %f1, %f1, %f2; abs.rz.f32 %f1, %f2; \
        min.sat.f32 %f1, %f1, %f2; neg.sat.bf16 %h1, %h2; add.sat.bf16 %h1, %h1, %h2; \
        fma.f16 %h1, %h1, %h2, %h3; createpolicy.bogus.b64 %d1; \
        createpolicy.fractional.L2::evict_first.bogus.b64 %d1; prefetch.global.L9 [%out]; \
        prefetch.global.L1 nothing; fence.acquire.release.cta; fence.sc.cta.sys; fence.sc; membar.acq_rel; \
        ld.acquire.relaxed.cta.global.u32 %r1, [%w]; ld.global.ca.cg.u32 %r1, [%w]; \
        isspacep.global %p1, %d1, %d2; and.pred %p1, %p2, %p3, %p0; setmaxnreg.u32 24; \
        setmaxnreg.inc.sync.aligned.u32 1000; setmaxnreg.dec.sync.aligned.u32 25; nanosleep.inc.mask 7;";
    for i in forms.split_inclusive(';') {
        refused(i);
    }
    // A lane alone waits for its warp.
    let alone =
        "setp.ne.u32 %p1, %t, 0;\n@%p1 bra W;\nsetmaxnreg.dec.sync.aligned.u32 24;\nW: bar.sync 0;";
    assert!(matches!(run(&kernel(alone), 1), Err(SimError::Deadlock(_))));
    run(&kernel("setmaxnreg.dec.sync.aligned.u32 24;"), 1).unwrap();
}

#[test]
fn the_size_of_shared_memory_is_what_the_kernel_asked_for() {
    // 24 bytes of variables.
    let body = "mov.u32 %r1, %total_smem_size; st.global.u32 [%w], %r1;";
    for (dynamic, want) in [(0, 128), (96, 128), (97, 256)] {
        let mut sim = Sim::new(Module::parse(&kernel(body)).unwrap());
        let out = sim.upload("out", &[0; 512]).unwrap();
        let mut launch = Launch::new("k", [1, 1, 1], [32, 1, 1]).buffer(out);
        launch.shared = dynamic;
        sim.run(&launch, &Options::default()).unwrap();
        assert_eq!(sim.words(out)[0], want, "{dynamic}");
    }
}

#[test]
fn nan_of_f64_becomes_the_lowest_number() {
    let nan = "mov.f64 %d1, 0d7FF8000000000000;";
    for (i, want) in [
        ("cvt.rzi.s16.f64 %r1, %d1;", 0xffff_8000),
        ("cvt.rzi.s8.f64 %r1, %d1;", 0xffff_ff80),
        ("cvt.rzi.u16.f64 %r1, %d1;", 0x8000),
        (
            "cvt.rzi.s32.f64 %d2, %d1; shr.u64 %d2, %d2, 32; cvt.u32.u64 %r1, %d2;",
            u32::MAX,
        ),
    ] {
        assert_eq!(one(nan, i), want, "{i}");
    }
}

/// 32-byte accesses, of Blackwell: 32-byte aligned, in global memory.
#[test]
fn accesses_of_32_bytes() {
    const LOAD: &str = "ld.global.nc.L1::no_allocate.L2::evict_first.L2::256B";
    let eight = "{%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}";
    let fill = "setp.ne.u32 %p1, %t, 0; st.global.u32 [%w+256], %t; bar.warp.sync -1;\n";
    let four = "{%d1, %d2, %d3, %d0}";
    for load in [
        format!("{LOAD}.v8.u32 {eight}, [%out+288];"),
        format!("{LOAD}.v4.u64 {four}, [%out+288]; shr.u64 %d3, %d3, 32; cvt.u32.u64 %r6, %d3;"),
    ] {
        let body = format!("{fill}{load}\nst.global.u32 [%w], %r6;");
        let out = run(&kernel(&body), 1).unwrap_or_else(|e| panic!("{load}: {e}"));
        assert_eq!(out[0], 13, "{load}");
    }
    for offset in [272, 264, 260] {
        let load = format!("{LOAD}.v8.u32 {eight}, [%out+{offset}];");
        let (kind, text) = violation(&run(&kernel(&load), 1).unwrap_err());
        assert_eq!(kind, ViolationKind::Misaligned, "{text}");
    }
    let (kind, text) =
        violation(&run(&kernel(&format!("{LOAD}.v8.u32 {eight}, [%out+512];")), 1).unwrap_err());
    assert_eq!(kind, ViolationKind::OutOfBounds, "{text}");
    let shared = format!("ld.shared.v8.u32 {eight}, [response];");
    assert!(run(&kernel(&shared), 1).is_err());
}
