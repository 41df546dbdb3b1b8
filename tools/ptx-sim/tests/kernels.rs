//! Small kernels that pin the interpreter: divergence, barriers, shuffles, memory checks, errors.

use ptx_sim::SimError::*;
use ptx_sim::report::ViolationKind;
use ptx_sim::{Launch, Module, Options, Policy, Report, Sim, SimError, Timing, Uninitialised};

const HEAD: &str = ".version 9.0\n.target sm_100a\n.address_size 64\n";

/// A kernel `k(out)` around a body; `%t` is the thread, `%out` the address of its 32-bit word.
fn kernel(body: &str) -> String {
    kernel_with("", body)
}

fn kernel_with(directives: &str, body: &str) -> String {
    format!(
        "{HEAD}.visible .entry k(.param .u64 p) {directives}\n{{\n\
         .reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<20>; .reg .b32 %t; .reg .b64 %d<9>;\n\
         .reg .b64 %out; .reg .b64 %w;\n\
         ld.param.u64 %out, [p];\n mov.u32 %t, %tid.x;\n mul.wide.u32 %w, %t, 4;\n\
         add.s64 %w, %out, %w;\n{body}\n ret;\n}}\n"
    )
}

fn policies() -> Vec<Policy> {
    let mut p = vec![Policy::Fair];
    p.extend((0..20).flat_map(|s| [Policy::Random(s), Policy::Starve(s)]));
    p
}

fn try_run(
    ptx: &str,
    grid: u32,
    block: u32,
    policy: Policy,
) -> Result<(Vec<u32>, Report), SimError> {
    let mut sim = Sim::new(Module::parse(ptx)?);
    let out = sim.alloc("out", 4096)?;
    let launch = Launch::new("k", [grid, 1, 1], [block, 1, 1]).buffer(out);
    let options = Options {
        policy,
        budget: 1_000_000,
        ..Options::default()
    };
    let report = sim.run(&launch, &options)?;
    Ok((sim.words(out), report))
}

fn run(ptx: &str, block: u32) -> Vec<u32> {
    let mut all = policies().into_iter().map(|p| {
        try_run(ptx, 1, block, p)
            .unwrap_or_else(|e| panic!("{p}: {e}"))
            .0
    });
    let first = all.next().unwrap();
    for other in all {
        assert_eq!(first, other);
    }
    first
}

fn fails(ptx: &str, block: u32) -> SimError {
    try_run(ptx, 1, block, Policy::Fair).unwrap_err()
}

fn kind(e: &SimError) -> ViolationKind {
    match e {
        Violation(v) => v.kind,
        other => panic!("{other}"),
    }
}

#[test]
fn divergent_loops_meet_again() {
    // Each lane adds 1 as often as its number says; after the loop all lanes vote.
    let ptx = kernel(
        "mov.u32 %r1, 0;\nL1: setp.ge.u32 %p1, %r1, %t;\n@%p1 bra L2;\nadd.u32 %r1, %r1, 1;\nbra L1;\n\
         L2: activemask.b32 %r2;\nadd.u32 %r2, %r2, %r1;\nst.global.u32 [%w], %r2;",
    );
    let out = run(&ptx, 32);
    for (i, v) in out.iter().take(32).enumerate() {
        assert_eq!(*v, u32::MAX.wrapping_add(i as u32));
    }
}

#[test]
fn branches_on_both_sides_and_nested() {
    let ptx = kernel(
        "and.b32 %r1, %t, 1;\nsetp.eq.u32 %p1, %r1, 0;\n@%p1 bra EVEN;\n\
         and.b32 %r2, %t, 2;\nsetp.eq.u32 %p2, %r2, 0;\n@%p2 bra A;\nmov.u32 %r3, 3;\nbra B;\n\
         A: mov.u32 %r3, 1;\nB: add.u32 %r3, %r3, 100;\nbra END;\n\
         EVEN: mov.u32 %r3, 7;\nEND: vote.sync.ballot.b32 %r4, 1, 0xffffffff;\n\
         setp.ne.u32 %p3, %r4, 0xffffffff;\n@%p3 trap;\nst.global.u32 [%w], %r3;",
    );
    let out = run(&ptx, 32);
    for i in 0..32u32 {
        let want = if i % 2 == 0 {
            7
        } else if i % 4 == 1 {
            101
        } else {
            103
        };
        assert_eq!(out[i as usize], want);
    }
}

#[test]
fn lanes_that_wait_for_each_other_make_progress() {
    // Lane 0 spins until lane 1 has stored, behind the join: independent thread scheduling.
    let ptx = kernel(
        "setp.ne.u32 %p1, %t, 0;\n@%p1 bra L2;\nL1: ld.volatile.global.u32 %r1, [%out+64];\n\
         setp.eq.u32 %p2, %r1, 0;\n@%p2 bra L1;\nL2: st.global.u32 [%out+64], 5;",
    );
    let mut sim = Sim::new(Module::parse(&ptx).unwrap());
    let out = sim.upload("out", &[0; 128]).unwrap();
    let launch = Launch::new("k", [1; 3], [2, 1, 1]).buffer(out);
    sim.run(
        &launch,
        &Options {
            budget: 10_000_000,
            ..Options::default()
        },
    )
    .unwrap();
}

#[test]
fn barriers_order_shared_memory() {
    let ptx = kernel(
        ".shared .align 4 .b8 s[1024];\nmov.u32 %r1, s;\nshl.b32 %r2, %t, 2;\nadd.u32 %r3, %r1, %r2;\n\
         st.shared.u32 [%r3], %t;\nbar.sync 0;\nsub.u32 %r4, 255, %t;\nshl.b32 %r4, %r4, 2;\n\
         add.u32 %r4, %r1, %r4;\nld.shared.u32 %r5, [%r4];\nst.global.u32 [%w], %r5;",
    );
    let out = run(&ptx, 256);
    for (i, v) in out.iter().take(256).enumerate() {
        assert_eq!(*v, 255 - i as u32);
    }
}

#[test]
fn a_missing_barrier_is_an_uninitialised_read_under_some_order() {
    let ptx = kernel(
        ".shared .align 4 .b8 s[1024];\nmov.u32 %r1, s;\nshl.b32 %r2, %t, 2;\nadd.u32 %r3, %r1, %r2;\n\
         st.shared.u32 [%r3], %t;\nsub.u32 %r4, 255, %t;\nshl.b32 %r4, %r4, 2;\n\
         add.u32 %r4, %r1, %r4;\nld.shared.u32 %r5, [%r4];\nst.global.u32 [%w], %r5;",
    );
    let e = fails(&ptx, 256);
    assert_eq!(kind(&e), ViolationKind::Uninitialised);
    assert!(e.to_string().contains("ld.shared.u32"), "{e}");
}

#[test]
fn named_barriers_with_counts_arrive_and_reduce() {
    // Warp 0 produces and arrives, warp 1 waits; then all count odd threads.
    let ptx = kernel(
        ".shared .align 4 .b8 s[4];\nsetp.ge.u32 %p1, %t, 32;\n@%p1 bra W;\n\
         setp.eq.u32 %p2, %t, 0;\n@%p2 st.shared.u32 [s], 42;\nbar.arrive 3, 64;\nbra J;\n\
         W: bar.sync 3, 64;\nJ: and.b32 %r1, %t, 1;\nsetp.eq.u32 %p3, %r1, 1;\n\
         bar.red.popc.u32 %r2, 0, %p3;\nbar.red.and.pred %p4, 0, %p3;\nld.shared.u32 %r3, [s];\n\
         add.u32 %r2, %r2, %r3;\n@%p4 trap;\nst.global.u32 [%w], %r2;",
    );
    assert_eq!(run(&ptx, 64)[..64], [74; 64]);
}

#[test]
fn exited_warps_are_not_waited_for() {
    let ptx = kernel("setp.ge.u32 %p1, %t, 40;\n@%p1 exit;\nbar.sync 0;\nst.global.u32 [%w], 1;");
    assert_eq!(run(&ptx, 96)[..40], [1; 40]);
}

#[test]
fn shuffles_votes_and_matches() {
    let ptx = kernel(
        "shfl.sync.bfly.b32 %r1, %t, 16, 31, -1;\nshfl.sync.down.b32 %r2|%p1, %t, 4, 0x1f, -1;\n\
         shfl.sync.up.b32 %r3|%p2, %t, 1, 0, -1;\nshfl.sync.idx.b32 %r4, %t, 2, 0x1807, -1;\n\
         selp.b32 %r5, 1, 0, %p1;\nselp.b32 %r6, 1, 0, %p2;\n\
         shr.u32 %r7, %t, 3;\nmatch.any.sync.b32 %r8, %r7, -1;\nredux.sync.add.u32 %r9, %t, -1;\n\
         elect.sync _|%p3, -1;\nvote.sync.ballot.b32 %r10, %p3, -1;\npopc.b32 %r10, %r10;\n\
         mad.lo.u32 %w1, 0, 0, 0;",
    )
    .replace("mad.lo.u32 %w1, 0, 0, 0;", "");
    let store: String = (1..=10)
        .map(|i| {
            format!(
                "mul.wide.u32 %d1, %t, 4; add.s64 %d1, %d1, %out; st.global.u32 [%d1+{}], %r{i};\n",
                (i - 1) * 128
            )
        })
        .collect();
    let ptx = ptx.replace(" ret;", &format!("{store} ret;"));
    let out = run(&ptx, 32);
    for i in 0..32u32 {
        let r = |n: u32| out[((n - 1) * 32 + i) as usize];
        assert_eq!(r(1), i ^ 16);
        assert_eq!(r(2), if i + 4 < 32 { i + 4 } else { i });
        assert_eq!(r(3), i.saturating_sub(1));
        assert_eq!(r(4), i / 8 * 8 + 2);
        assert_eq!(r(5), u32::from(i + 4 < 32));
        assert_eq!(r(6), u32::from(i > 0));
        assert_eq!(r(8), 0xff << (i / 8 * 8));
        assert_eq!(r(9), 496);
        assert_eq!(r(10), 1);
    }
}

#[test]
fn halves_of_a_warp_synchronise_apart() {
    let ptx = kernel(
        "setp.ge.u32 %p1, %t, 16;\n@%p1 bra H;\nshfl.sync.idx.b32 %r1, %t, 3, 31, 0x0000ffff;\nbra J;\n\
         H: shfl.sync.idx.b32 %r1, %t, 20, 31, 0xffff0000;\nJ: bar.warp.sync -1;\nst.global.u32 [%w], %r1;",
    );
    let out = run(&ptx, 32);
    assert!(out[..16].iter().all(|v| *v == 3) && out[16..32].iter().all(|v| *v == 20));
}

#[test]
fn atomics_count_across_ctas() {
    let ptx = kernel(
        "atom.global.add.u32 %r1, [%out], 1;\nred.global.max.u32 [%out+4], %t;\n\
         atom.global.cas.b32 %r2, [%out+8], 0, 9;\nred.global.add.f32 [%out+12], 0f3f000000;",
    );
    for policy in policies() {
        let mut sim = Sim::new(Module::parse(&ptx).unwrap());
        let out = sim.upload("out", &[0; 16]).unwrap();
        let launch = Launch::new("k", [6, 1, 1], [64, 1, 1]).buffer(out);
        let r = sim
            .run(
                &launch,
                &Options {
                    policy,
                    ..Options::default()
                },
            )
            .unwrap();
        assert_eq!(r.ctas, 6);
        assert_eq!(sim.words(out), [384, 63, 9, 192f32.to_bits()]);
    }
}

#[test]
fn clusters_share_memory() {
    // Each CTA stores its rank; after the cluster barrier it reads its neighbour's.
    let ptx = kernel_with(
        ".reqnctapercluster 4, 1, 1",
        ".shared .align 4 .b8 s[4];\n.reg .pred %q;\nmov.u32 %r1, %cluster_ctarank;\n\
         setp.eq.u32 %q, %t, 0;\n@%q st.shared.u32 [s], %r1;\n\
         barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n\
         add.u32 %r2, %r1, 1;\nand.b32 %r2, %r2, 3;\nmov.u32 %r3, s;\n\
         mapa.shared::cluster.u32 %r4, %r3, %r2;\nld.shared::cluster.u32 %r5, [%r4];\n\
         mov.u32 %r6, %ctaid.x;\nmul.wide.u32 %d1, %r6, 4;\nadd.s64 %d1, %out, %d1;\n\
         st.global.u32 [%d1], %r5;\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;",
    );
    for policy in policies() {
        let (out, r) = try_run(&ptx, 8, 32, policy).unwrap();
        assert_eq!(out[..8], [1, 2, 3, 0, 1, 2, 3, 0]);
        assert_eq!(r.ctas, 8);
    }
    // Without the last barrier a CTA can be gone before its memory is read.
    let broken = ptx.replacen(
        "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;",
        "",
        1,
    );
    for policy in policies() {
        assert!(try_run(&broken, 8, 32, policy).is_err(), "{policy}");
    }
}

#[test]
fn packing_carry_and_wide_registers() {
    let ptx = kernel(
        ".reg .b8 %b<4>; .reg .b128 %q; .reg .f16 lo, hi;\nmov.b32 {%b0, %b1, %b2, %b3}, 0x04030201;\n\
         cvt.u32.u8 %r1, %b2;\nmov.b32 {lo, hi}, 0x3c004000;\ncvt.f32.f16 %r2, hi;\n\
         mov.b64 %d1, {%r1, %r2};\nmov.b128 %q, {%d1, %out};\nmov.b128 {%d2, %d3}, %q;\n\
         add.cc.u32 %r3, 0xffffffff, 2;\naddc.u32 %r4, 0, 0;\nbfi.b32 %r5, 0xff, 0, 8, 4;\n\
         st.global.v4.u32 [%d3], {%r1, %r2, %r3, %r4};\nst.global.u64 [%d3+16], %d2;\nst.global.u32 [%d3+24], %r5;",
    );
    assert_eq!(
        run(&ptx, 1)[..7],
        [3, 0x3f80_0000, 1, 1, 3, 0x3f80_0000, 0xf00]
    );
}

#[test]
fn constants_globals_local_memory_and_generic_addresses() {
    let ptx = kernel(".local .align 4 .b8 l[16];\nmov.u64 %d1, l;\ncvta.local.u64 %d2, %d1;\nst.u32 [%d2+4], %t;\n\
         ld.local.u32 %r1, [l+4];\nld.const.u32 %r2, [c+8];\nadd.u32 %r1, %r1, %r2;\n\
         mov.u64 %d3, g;\ncvta.global.u64 %d3, %d3;\nld.u32 %r3, [%d3+4];\nadd.u32 %r1, %r1, %r3;\n\
         isspacep.local %p1, %d2;\n@!%p1 trap;\nisspacep.shared %p1, %d2;\n@%p1 trap;\nst.global.u32 [%w], %r1;",
    )
    .replace(".visible", ".const .align 4 .u32 c[3] = {1, 2, 30};\n.global .align 4 .b32 g[2] = {0, 500};\n.visible");
    let out = run(&ptx, 64);
    for (i, v) in out.iter().take(64).enumerate() {
        assert_eq!(*v, 530 + i as u32);
    }
}

#[test]
fn memory_violations_say_where() {
    let e = fails(&kernel("st.global.u32 [%out+4096], 1;"), 1);
    let Violation(v) = &e else { panic!("{e}") };
    assert_eq!(v.kind, ViolationKind::OutOfBounds);
    assert_eq!(v.nearest.as_ref().unwrap().name, "out");
    assert_eq!(v.site.text, "st.global.u32 [%out+4096], 1");
    assert!(v.site.line > 4);
    assert_eq!(
        kind(&fails(&kernel("st.global.u32 [%out+2], 1;"), 1)),
        ViolationKind::Misaligned
    );
    assert_eq!(
        kind(&fails(&kernel("ld.global.u32 %r1, [%out];"), 1)),
        ViolationKind::Uninitialised
    );
    assert_eq!(
        kind(&fails(
            &kernel("ld.global.v4.u32 {%r1,%r2,%r3,%r4}, [%out+8];"),
            1
        )),
        ViolationKind::Misaligned
    );
    assert_eq!(
        kind(&fails(&kernel("ld.shared.u32 %r1, [%t];"), 1)),
        ViolationKind::OutOfBounds
    );
    assert_eq!(kind(&fails(&kernel("trap;"), 1)), ViolationKind::Trap);
}

#[test]
fn uninitialised_reads_can_be_warnings() {
    let ptx = kernel("ld.global.u32 %r1, [%out+512];\nst.global.u32 [%w], %r1;");
    let mut sim = Sim::new(Module::parse(&ptx).unwrap());
    let out = sim.alloc("out", 1024).unwrap();
    let launch = Launch::new("k", [1; 3], [1; 3]).buffer(out);
    let options = Options {
        uninitialised: Uninitialised::Warn,
        ..Options::default()
    };
    let r = sim.run(&launch, &options).unwrap();
    assert_eq!(r.warnings.len(), 1);
    assert_eq!(r.warnings[0].kind, ViolationKind::Uninitialised);
    // Once, not for each lane.
    let launch = Launch::new("k", [1; 3], [32, 1, 1]).buffer(out);
    let r = sim.run(&launch, &options).unwrap();
    assert_eq!((r.warnings.len(), r.warnings[0].more), (1, 31));
}

/// A value from a lane that is not there may be computed with, and not used.
#[test]
fn shuffles_from_lanes_that_do_not_exist() {
    let reduce = |lanes: &str| {
        kernel(&format!(
            "mov.b32 %r1, %t;\nshfl.sync.down.b32 %r2, %r1, 8, 31, 0xffff;\nadd.u32 %r1, %r1, %r2;\n\
             setp.lt.u32 %p1, %t, {lanes};\n@%p1 st.global.u32 [%w], %r1;"
        ))
    };
    assert_eq!(run(&reduce("8"), 16)[..8], [8, 10, 12, 14, 16, 18, 20, 22]);
    let e = fails(&reduce("9"), 16);
    assert_eq!(kind(&e), ViolationKind::Synchronisation);
    let e = e.to_string();
    assert!(
        e.contains("from a lane that does not execute it; the value is used at line"),
        "{e}"
    );
}

/// The innermost position, and those at which its function and the function around that were inlined.
#[test]
fn positions_of_inlined_functions_are_a_chain() {
    let files = ".file 1 \"user.cu\"\n.file 2 \"helper.cuh\"\n";
    let body = ".loc 1 9 3\nmov.u32 %r1, 1;\n.loc 2 5 1, function_name $L__info_string0, inlined_at 1 9 3\n\
                mov.u32 %r2, 2;\n.loc 2 77 2, function_name $L__info_string1+4, inlined_at 2 5 1\ntrap;";
    let e = fails(&format!("{}\n{files}", kernel(body)), 1).to_string();
    assert!(
        e.contains("(helper.cuh:77, inlined at helper.cuh:5, inlined at user.cu:9)"),
        "{e}"
    );
}

#[test]
fn stale_bytes_are_in_shared_memory_only() {
    let run = |seed, body: &str| {
        let ptx = kernel(&format!(".shared .align 4 .u32 s[32];\n{body}"));
        let mut sim = Sim::new(Module::parse(&ptx).unwrap());
        let out = sim.alloc("out", 1024).unwrap();
        let launch = Launch::new("k", [1; 3], [1; 3]).buffer(out);
        let options = Options {
            uninitialised: Uninitialised::Stale(seed),
            ..Options::default()
        };
        sim.run(&launch, &options)
            .map(|_| sim.download(out)[..4].to_vec())
    };
    let shared = "ld.shared.u32 %r1, [s+64];\nst.global.u32 [%w], %r1;";
    assert_eq!(run(1, shared).unwrap(), run(1, shared).unwrap());
    assert_ne!(run(1, shared).unwrap(), run(2, shared).unwrap());
    let global = "ld.global.u32 %r1, [%out+512];\nst.global.u32 [%w], %r1;";
    assert_eq!(
        kind(&run(1, global).unwrap_err()),
        ViolationKind::Uninitialised
    );
}

/// A warp that loads a flag until another CTA has set it makes room for that CTA, whatever the schedule prefers. Where
/// nobody sets it, that is a deadlock.
#[test]
fn waiting_for_a_flag() {
    let wait = |set: &str| {
        kernel(&format!(
            "mov.u32 %r1, %ctaid.x;\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra LATER;\n\
                 mov.u32 %r2, 7;\nst.global.u32 [%out+512], %r2;\nmov.u32 %r2, {set};\n\
                 st.release.gpu.global.u32 [%out+516], %r2;\nbra E;\n\
                 LATER: ld.acquire.gpu.global.u32 %r2, [%out+516];\nsetp.ne.u32 %p1, %r2, 1;\n@%p1 bra LATER;\n\
                 ld.global.u32 %r3, [%out+512];\nst.global.u32 [%w], %r3;\nE:"
        ))
    };
    for policy in [Policy::Fair, Policy::Random(1), Policy::Starve(0)] {
        for timing in [Timing::Eager, Timing::Lazy] {
            let run = |set| {
                let mut sim = Sim::new(Module::parse(&wait(set)).unwrap());
                let out = sim.upload("out", &[0; 1024]).unwrap();
                let launch = Launch::new("k", [2, 1, 1], [1, 1, 1]).buffer(out);
                let options = Options {
                    policy,
                    timing,
                    ..Options::default()
                };
                let ran = sim.run(&launch, &options);
                ran.map(|_| sim.download(out)[0])
            };
            assert_eq!(run("1").unwrap(), 7, "{policy} {timing}");
            let never = run("0").unwrap_err();
            assert!(matches!(never, Deadlock(_)), "{policy} {timing}: {never}");
            assert!(
                never.to_string().contains("loads again and again"),
                "{never}"
            );
        }
    }
}

#[test]
fn deadlocks_name_every_warp() {
    let e = fails(
        &kernel("setp.ge.u32 %p1, %t, 32;\n@%p1 bra E;\nbar.sync 1, 128;\nE:"),
        64,
    );
    let Deadlock(d) = &e else { panic!("{e}") };
    assert_eq!(d.waiting.len(), 1);
    assert!(e.to_string().contains("barrier 1: 32 of 128"), "{e}");
    // A diverged warp at an aligned barrier waits for its own lanes.
    let e = fails(
        &kernel("setp.ge.u32 %p1, %t, 7;\n@%p1 bra E;\nbar.sync 0;\nbra F;\nE: bar.sync 1;\nF:"),
        32,
    );
    assert!(matches!(e, Deadlock(_)), "{e}");
}

#[test]
fn misuse_of_synchronisation_is_an_error() {
    for body in [
        "bar.sync 16;",
        "bar.sync 1, 33;",
        "bar.sync 1, 32;\nbar.sync 1, 2048;",
        "shfl.sync.idx.b32 %r1, %t, 0, 31, 1;",
        "barrier.cluster.wait;",
        "barrier.cluster.arrive;\nbarrier.cluster.arrive;",
        "setp.eq.u32 %p1, %t, 0;\n@%p1 bra.uni L;\nL:",
        "setp.eq.u32 %p1, %t, 0;\n@%p1 barrier.cluster.arrive.aligned;",
        "setp.eq.u32 %p1, %t, 0;\n@%p1 bar.arrive 1, 64;",
        "setp.eq.u32 %p1, %t, 0;\n@%p1 bra E;\nbarrier.cluster.arrive.aligned;\n\
         barrier.cluster.wait.aligned;\nE:",
        "barrier.cluster.arrive;\nsetp.eq.u32 %p1, %t, 0;\n@%p1 bra E;\n\
         barrier.cluster.wait.aligned;\nbra F;\nE: barrier.cluster.wait.aligned;\nF:",
    ] {
        let e = fails(&kernel(body), 32);
        assert_eq!(kind(&e), ViolationKind::Synchronisation, "{body}: {e}");
    }
}

/// Lanes that a condition has sent apart are together again behind it, or have left.
#[test]
fn aligned_instructions_behind_a_condition() {
    let both = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;";
    run(
        &kernel(&format!(
            "setp.eq.u32 %p1, %t, 0;\n@%p1 bra E;\nst.global.u32 [%w], %t;\nE: {both}"
        )),
        32,
    );
    run(
        &kernel(&format!("setp.ge.u32 %p1, %t, 7;\n@%p1 bra E;\n{both}\nE:")),
        7,
    );
    run(
        &kernel(&format!("setp.ge.u32 %p1, %t, 7;\n@%p1 ret;\n{both}")),
        32,
    );
}

#[test]
fn endless_kernels_run_out_of_budget() {
    assert!(matches!(fails(&kernel("L: bra L;"), 32), Budget { .. }));
}

#[test]
fn unmodelled_instructions_are_errors_when_reached_only() {
    let ptx = kernel("setp.eq.u32 %p1, %t, 99;\n@%p1 brkpt;");
    run(&ptx, 32);
    let e = fails(&kernel("brkpt;"), 32);
    assert!(
        matches!(&e, Unmodelled { text, .. } if text.starts_with("brkpt")),
        "{e}"
    );
}

#[test]
fn decode_errors_name_the_instruction() {
    for body in [
        "add.s32.bogus %r1, %r2, %r3;",
        "frobnicate.b32 %r1, %r2;",
        "add.s32 %r1, %r2;",
        "add.s64 %r1, %d1, %d2;",
        "add.s32 %r1, %nope, 1;",
        "bra NOWHERE;",
        "ld.global.v4.b64 {%d1, %d2}, [%out];",
        "st.const.u32 [%d1], %r1;",
        "ld.global.u32 %r1, [%r2];",
        // Reductions of a type or into a memory that the ISA does not have.
        "atom.global.add.s64 %d1, [%out], %d2;",
        "red.global.min.noftz.f16 [%out], %h1;",
        "red.async.shared::cluster.mbarrier::complete_tx::bytes.add.f32 [%r1], %r2, [%r3];",
        "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.or.b64 [%r1], [%r2], 16, [%r3];",
        "redux.sync.inc.u32 %r1, %r2, -1;",
    ] {
        let e = fails(&kernel(body), 32);
        let Decode(d) = &e else { panic!("{body}: {e}") };
        assert!(body.starts_with(&d.text), "{body}: {e}");
    }
}

#[test]
fn coverage_lists_what_did_not_run() {
    let ptx =
        kernel("setp.eq.u32 %p1, %t, 99;\n@%p1 bra L;\nbra E;\nL: st.global.u32 [%out], 1;\nE:");
    let (_, r) = try_run(&ptx, 1, 32, Policy::Fair).unwrap();
    let c = &r.coverage;
    assert_eq!(c.never_executed.len(), 1);
    assert_eq!(c.never_executed[0].text, "st.global.u32 [%out], 1");
    assert_eq!(c.never_taken.len(), 1);
    assert!(!c.complete());
}

#[test]
fn launches_are_checked() {
    let ptx = kernel_with(".reqntid 64, 1, 1", "");
    let mut sim = Sim::new(Module::parse(&ptx).unwrap());
    let out = sim.alloc("out", 64).unwrap();
    let o = Options::default();
    let ok = Launch::new("k", [1; 3], [64, 1, 1]).buffer(out);
    sim.run(&ok, &o).unwrap();
    let bad = [
        Launch::new("nope", [1; 3], [64, 1, 1]),
        Launch::new("k", [1; 3], [32, 1, 1]).buffer(out),
        Launch::new("k", [0; 3], [64, 1, 1]).buffer(out),
        Launch::new("k", [1; 3], [64, 1, 1]),
        Launch::new("k", [1; 3], [64, 1, 1]).u32(1),
        Launch {
            cluster: Some([2, 1, 1]),
            ..ok.clone()
        },
        Launch {
            shared: 1 << 20,
            ..ok.clone()
        },
    ];
    for l in bad {
        assert!(matches!(sim.run(&l, &o), Err(SimError::Launch(_))), "{l:?}");
    }
}

#[test]
fn matrices_move_between_shared_memory_and_registers() {
    // Row r of the matrix holds 8 * r + column; lane l reads two elements of row l / 4.
    let ptx = kernel(
        ".shared .align 16 .b8 s[128];\nmov.u32 %r1, s;\nshl.b32 %r2, %t, 2;\nadd.u32 %r2, %r1, %r2;\n\
         shl.b32 %r3, %t, 1;\nadd.u32 %r4, %r3, 1;\nshl.b32 %r4, %r4, 16;\nor.b32 %r3, %r3, %r4;\n\
         st.shared.u32 [%r2], %r3;\nbar.sync 0;\nand.b32 %r5, %t, 7;\nshl.b32 %r5, %r5, 4;\n\
         add.u32 %r5, %r1, %r5;\nldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r6}, [%r5];\n\
         ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r7}, [%r5];\n\
         movmatrix.sync.aligned.m8n8.trans.b16 %r8, %r7;\n\
         st.global.u32 [%w], %r6;\nst.global.u32 [%w+128], %r7;\nst.global.u32 [%w+256], %r8;",
    );
    let out = run(&ptx, 32);
    for l in 0..32u32 {
        let (row, column) = (l / 4, l % 4 * 2);
        let plain = (8 * row + column) | (8 * row + column + 1) << 16;
        let transposed = (8 * column + row) | (8 * (column + 1) + row) << 16;
        assert_eq!(out[l as usize], plain);
        assert_eq!(out[32 + l as usize], transposed);
        assert_eq!(out[64 + l as usize], plain);
    }
}

/// Copies two groups to shared memory and waits for the first; `wait` and `barrier` may be broken.
fn copies(wait: &str, barrier: &str) -> Vec<Result<Vec<u32>, SimError>> {
    let ptx = kernel(&format!(
        ".shared .align 16 .b8 s[1024];\nmov.u32 %r1, s;\nshl.b32 %r2, %t, 2;\nadd.u32 %r2, %r1, %r2;\n\
             cp.async.ca.shared.global [%r2], [%w], 4;\ncp.async.commit_group;\n\
             cp.async.ca.shared.global [%r2+512], [%w], 4, 0;\ncp.async.commit_group;\n\
             {wait}\n{barrier}\nsub.u32 %r3, 63, %t;\nshl.b32 %r3, %r3, 2;\nadd.u32 %r3, %r1, %r3;\n\
             ld.shared.u32 %r4, [%r3];\nst.global.u32 [%w+256], %r4;\ncp.async.wait_all;"
    ));
    let mut out = Vec::new();
    for timing in [Timing::Eager, Timing::Lazy, Timing::Random] {
        for seed in 0..10 {
            let mut sim = Sim::new(Module::parse(&ptx).unwrap());
            let input: Vec<u8> = (0..64u32).flat_map(|v| (v * 3).to_le_bytes()).collect();
            let b = sim.alloc("out", 512).unwrap();
            sim.write(b, 0, &input).unwrap();
            let launch = Launch::new("k", [1; 3], [64, 1, 1]).buffer(b);
            let options = Options {
                timing,
                policy: Policy::Random(seed),
                ..Options::default()
            };
            let ran = sim.run(&launch, &options);
            out.push(ran.map(|_| sim.words(b)[64..].to_vec()));
        }
    }
    out
}

#[test]
fn asynchronous_copies_complete_when_waited_for() {
    let want: Vec<u32> = (0..64).map(|i| (63 - i) * 3).collect();
    for r in copies("cp.async.wait_group 1;", "bar.sync 0;") {
        assert_eq!(r.unwrap(), want);
    }
}

#[test]
fn asynchronous_copies_without_wait_or_barrier_are_caught() {
    for (wait, barrier) in [
        ("", "bar.sync 0;"),
        ("cp.async.wait_group 2;", "bar.sync 0;"),
        ("cp.async.wait_group 1;", ""),
    ] {
        assert!(
            copies(wait, barrier).iter().any(|r| r.is_err()),
            "{wait} {barrier}"
        );
    }
}

#[test]
fn dynamic_shared_memory_lies_behind_static() {
    let ptx = kernel(
        ".shared .align 4 .b8 s[12];\nmov.u32 %r1, s;\nmov.u32 %r2, dyn;\nmov.u64 %d1, dyn;\n\
         cvta.shared.u64 %d1, %d1;\nst.shared.u32 [other+8], 77;\nld.u32 %r3, [%d1+8];\n\
         mov.u32 %r4, dyn+4;\nsub.u32 %r4, %r4, %r2;\n\
         st.global.v4.u32 [%out], {%r1, %r2, %r3, %r4};",
    )
    .replace(
        ".visible",
        ".extern .shared .align 1024 .b8 dyn[];\n.extern .shared .align 16 .b8 other[];\n.visible",
    );
    let mut sim = Sim::new(Module::parse(&ptx).unwrap());
    let out = sim.alloc("out", 16).unwrap();
    let mut launch = Launch::new("k", [1; 3], [1; 3]).buffer(out);
    let e = sim.run(&launch, &Options::default()).unwrap_err();
    assert_eq!(kind(&e), ViolationKind::OutOfBounds);
    launch.shared = 12;
    sim.run(&launch, &Options::default()).unwrap();
    assert_eq!(sim.words(out), [1024, 2048, 77, 4]);
}

#[test]
fn observers_see_accesses_and_synchronisation() {
    use ptx_sim::memory::{Access, AccessKind, Fault, Observer, Space, SyncEvent};

    #[derive(Default)]
    struct Log {
        shared_writes: usize,
        completed: usize,
    }
    impl Observer for Log {
        fn access(&mut self, a: &Access) -> Result<(), Fault> {
            self.shared_writes +=
                usize::from(a.space == Space::Shared && a.kind == AccessKind::Write);
            Ok(())
        }
        fn sync(&mut self, e: &SyncEvent) -> Result<(), Fault> {
            self.completed += usize::from(matches!(e, SyncEvent::BarrierComplete { .. }));
            if self.completed == 2 {
                return Err(Fault::new(ViolationKind::Hazard, "enough"));
            }
            Ok(())
        }
    }
    let ptx = kernel(
        ".shared .align 4 .b8 s[256];\nmov.u32 %r1, s;\nshl.b32 %r2, %t, 2;\nadd.u32 %r1, %r1, %r2;\n\
         st.shared.u32 [%r1], %t;\nbar.sync 0;\nbar.sync 0;",
    );
    let mut sim = Sim::new(Module::parse(&ptx).unwrap());
    let out = sim.alloc("out", 16).unwrap();
    let launch = Launch::new("k", [1; 3], [64, 1, 1]).buffer(out);
    let program = sim.program("k").unwrap();
    let mut log = Log::default();
    let e = sim
        .run_program(&program, &launch, &Options::default(), Some(&mut log))
        .unwrap_err();
    assert_eq!(kind(&e), ViolationKind::Hazard);
    assert_eq!((log.shared_writes, log.completed), (64, 2));
}

#[test]
fn wide_multiplication_by_parts_and_fields_in_registers() {
    // 64 x 64 -> 128 bits from 32-bit pieces, as compilers write it, against mul.hi.
    let ptx = kernel(
        "mov.u32 %r1, 0xfedcba98;\nmov.u32 %r2, 0x76543210;\nmov.u32 %r3, 0x89abcdef;\nmov.u32 %r4, 0xffffffff;\n\
         mul.lo.u32 %r5, %r1, %r3;\nmul.hi.u32 %r6, %r1, %r3;\nmad.lo.cc.u32 %r6, %r1, %r4, %r6;\n\
         madc.hi.u32 %r7, %r1, %r4, 0;\nmad.lo.cc.u32 %r6, %r2, %r3, %r6;\nmadc.hi.cc.u32 %r7, %r2, %r3, %r7;\n\
         addc.u32 %r8, 0, 0;\nmad.lo.cc.u32 %r7, %r2, %r4, %r7;\nmadc.hi.u32 %r8, %r2, %r4, %r8;\n\
         mov.b64 %d1, {%r1, %r2};\nmov.b64 %d2, {%r3, %r4};\nmul.hi.u64 %d3, %d1, %d2;\nmul.lo.u64 %d4, %d1, %d2;\n\
         mov.b64 %d5, {%r5, %r6};\nmov.b64 %d6, {%r7, %r8};\nst.global.v2.u64 [%out], {%d3, %d4};\n\
         st.global.v2.u64 [%out+16], {%d6, %d5};\nmov.u32 %r9, 40;\nbfi.b32 %r10, %r4, 0, %t, %r9;\n\
         bfi.b32 %r11, %r4, 5, %r9, 3;\nst.global.v2.u32 [%out+32], {%r10, %r11};",
    );
    let out = run(&ptx, 1);
    assert_eq!(out[..4], out[4..8]);
    assert_eq!(out[8..10], [u32::MAX, 5]);
}
