//! Small kernels for hazards: clean under every schedule, or reported under every schedule.

use ptx_sim::report::{Violation, ViolationKind};
use ptx_sim::{Launch, Module, Options, Policy, Profile, Sim, SimError, Timing};

/// A kernel `k(in, out)`: `%t` thread, `%s` buffer, `%m` mbarriers, `%w` the thread's word of the
/// output. `%p8` is false for thread 0 only, `%rank` the CTA's rank.
pub(crate) fn kernel(body: &str) -> String {
    kernel_with("", body)
}

pub(crate) fn kernel_with(directives: &str, body: &str) -> String {
    format!(
        ".version 9.0\n.target sm_100a\n.address_size 64\n\
         .visible .entry k(.param .u64 a, .param .u64 b) {directives}\n{{\n\
         .reg .pred %p<9>; .reg .b16 %h<4>; .reg .b32 %r<20>; .reg .b32 %t; .reg .b32 %s; .reg .b32 %m;\n\
         .reg .b32 %rank; .reg .b32 %peer; .reg .b32 %far; .reg .b32 %farm; .reg .b32 %mine;\n\
         .reg .b64 %d<9>; .reg .b64 %in; .reg .b64 %out; .reg .b64 %w;\n\
         .shared .align 128 .b8 buf[4096]; .shared .align 8 .b64 bars[4];\n\
         ld.param.u64 %in, [a]; ld.param.u64 %out, [b];\n\
         mov.u32 %t, %tid.x; mov.u32 %s, buf; mov.u32 %m, bars; mov.u32 %rank, %cluster_ctarank;\n\
         xor.b32 %peer, %rank, 1; mapa.shared::cluster.u32 %far, %s, %peer;\n\
         mapa.shared::cluster.u32 %farm, %m, %peer;\nshl.b32 %mine, %t, 2; add.u32 %mine, %mine, %s;\n\
         mov.u32 %r19, %ctaid.x; shl.b32 %r19, %r19, 6; add.u32 %r19, %r19, %t;\n\
         mul.wide.u32 %w, %r19, 4; add.s64 %w, %out, %w; setp.ne.u32 %p8, %t, 0;\n{body}\n ret;\n}}\n"
    )
}

/// Two CTAs of a cluster.
pub(crate) const PAIR: &str = ".reqnctapercluster 2, 1, 1";
pub(crate) const CLUSTER: &str = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n";
/// Every thread reads the whole buffer's first word.
pub(crate) const READ: &str = "ld.shared.u32 %r1, [%s];//@later\nst.global.u32 [%w], %r1;\n";

pub(crate) fn wait(label: &str, how: &str) -> String {
    format!(
        "{label}: mbarrier.try_wait.parity{how}.shared::cta.b64 %p1, [%m], 0;\n@!%p1 bra {label};\n"
    )
}

pub(crate) fn run(ptx: &str, o: &Options) -> Result<(), SimError> {
    let mut sim = Sim::new(Module::parse(ptx)?);
    let a = sim.upload("in", &[7; 4096])?;
    let b = sim.upload("out", &[0; 4096])?;
    let ctas = if ptx.contains(PAIR) { 2 } else { 1 };
    let launch = Launch::new("k", [ctas, 1, 1], [64, 1, 1])
        .buffer(a)
        .buffer(b);
    sim.run(&launch, o).map(|_| ())
}

pub(crate) fn ways(profile: Profile) -> Vec<Options> {
    let mut all = Vec::new();
    for seed in 0..6 {
        for policy in [Policy::Fair, Policy::Random(seed), Policy::Starve(seed)] {
            for timing in [Timing::Eager, Timing::Lazy, Timing::Random] {
                all.push(Options {
                    policy,
                    timing,
                    profile,
                    budget: 200_000,
                    ..Options::default()
                });
            }
        }
    }
    all
}

/// Demands that no way of running finds anything, whatever the profile.
pub(crate) fn clean(ptx: &str) {
    clean_as(ptx, Profile::Strict);
    clean_as(ptx, Profile::Hardware);
}

pub(crate) fn clean_as(ptx: &str, profile: Profile) {
    for o in ways(profile) {
        match run(ptx, &o) {
            Ok(()) => {}
            Err(e) if starved(&o, &e) => {}
            Err(e) => panic!("{o:?}: {e}\n{ptx}"),
        }
    }
}

/// A warp that never runs while another spins for it.
fn starved(o: &Options, e: &SimError) -> bool {
    matches!((o.policy, e), (Policy::Starve(_), SimError::Budget { .. }))
}

fn line(ptx: &str, marker: &str) -> Option<u32> {
    let at = ptx.lines().position(|l| l.contains(marker))?;
    Some(at as u32 + 1)
}

/// Demands that every way of running ends with a violation. Some end with this one, at the line marked `//@later`,
/// naming the line marked `//@earlier`.
pub(crate) fn caught_as(ptx: &str, profile: Profile, kind: ViolationKind, text: &str) {
    let mut others = Vec::new();
    let mut found = 0;
    for o in ways(profile) {
        match run(ptx, &o) {
            Err(SimError::Violation(v)) if v.kind == kind && v.message.contains(text) => {
                check_lines(ptx, &v);
                found += 1;
            }
            Err(SimError::Violation(v)) => others.push(v.to_string()),
            Err(e) if starved(&o, &e) => {}
            other => panic!("{o:?}: {other:?}\n{ptx}"),
        }
    }
    others.sort();
    others.dedup();
    assert!(found > 0, "{text}: {others:#?}\n{ptx}");
}

fn check_lines(ptx: &str, v: &Violation) {
    if let Some(l) = line(ptx, "//@later") {
        assert_eq!(v.site.line, l, "{v}\n{ptx}");
    }
    if let Some(l) = line(ptx, "//@earlier") {
        assert!(v.message.contains(&format!("line {l}:")), "{l}: {v}\n{ptx}");
    }
}

pub(crate) fn caught(ptx: &str, text: &str) {
    caught_as(ptx, Profile::Strict, ViolationKind::Hazard, text);
}
