//! Kernels that rely on one relaxation.

use std::cell::RefCell;

use super::hazard::PAIR;
use ptx_sim::{
    Allowed, Launch, Module, Options, Policy, Profile, Relaxation, Report, Sim, SimError, Timing,
};

/// Three CTAs.
pub(crate) const THREE: &str = "//three";

thread_local! {
    /// Relaxations that were tried on this thread.
    static TRIED: RefCell<Vec<Relaxation>> = const { RefCell::new(Vec::new()) };
}

/// The relaxations that a test tries.
pub(crate) fn tried_by(test: fn()) -> Vec<Relaxation> {
    TRIED.take();
    test();
    let mut tried = TRIED.take();
    tried.dedup();
    tried
}

/// Runs a kernel `k(in, out)` or `k(out)` of so many threads, a CTA or a pair; `out` as words.
pub(crate) fn run(ptx: &str, threads: u32, o: &Options) -> Result<(Report, Vec<u32>), SimError> {
    run_as(ptx, threads, false, o)
}

/// `dependent`: the grid before it may still run.
fn run_as(
    ptx: &str,
    threads: u32,
    dependent: bool,
    o: &Options,
) -> Result<(Report, Vec<u32>), SimError> {
    let mut sim = Sim::new(Module::parse(ptx)?);
    let input = sim.upload("in", &[7; 4096])?;
    let out = sim.alloc("out", 4096)?;
    let ctas = match ptx.contains(THREE) {
        true => 3,
        false => 1 + u32::from(ptx.contains(PAIR)),
    };
    let launch = Launch::new("k", [ctas, 1, 1], [threads, 1, 1]);
    let mut launch = match ptx.contains(".param .u64 b") {
        true => launch.buffer(input).buffer(out),
        false => launch.buffer(out),
    };
    launch.dependent = dependent;
    let report = sim.run(&launch, o)?;
    Ok((report, sim.words(out)))
}

fn schedules() -> Vec<Options> {
    let mut all = Vec::new();
    for timing in [Timing::Eager, Timing::Lazy, Timing::Random] {
        for policy in [Policy::Fair, Policy::Random(1), Policy::Random(2)] {
            all.push(Options {
                policy,
                timing,
                budget: 10_000_000,
                ..Options::default()
            });
        }
    }
    all
}

/// Demands that the kernel relies on this relaxation and on nothing else, and that its output is right if the
/// relaxation is allowed.
pub(crate) fn relies(
    relaxation: Relaxation,
    ptx: &str,
    threads: u32,
    error: &str,
    right: impl Fn(&[u32]),
) {
    relies_where(|_| true, relaxation, (ptx, threads), error, right);
}

/// As [`relies`], under some of the schedules: it is not needed under the others.
pub(crate) fn relies_where(
    needed: fn(&Options) -> bool,
    relaxation: Relaxation,
    (ptx, threads): (&str, u32),
    error: &str,
    right: impl Fn(&[u32]),
) {
    let mut all = schedules();
    all.retain(needed);
    let run = |o: &Options| run(ptx, threads, o);
    relies_in(all, relaxation, run, (ptx, error), right);
}

/// The check of [`relies`] for a dependent launch whose operations complete late: so does the grid before it.
pub(crate) fn relies_behind_a_grid(
    relaxation: Relaxation,
    ptx: &str,
    threads: u32,
    error: &str,
    right: impl Fn(&[u32]),
) {
    let mut late = schedules();
    late.retain(|o| o.timing == Timing::Lazy);
    let run = |o: &Options| run_as(ptx, threads, true, o);
    relies_in(late, relaxation, run, (ptx, error), right);
}

fn relies_in(
    schedules: Vec<Options>,
    relaxation: Relaxation,
    run: impl Fn(&Options) -> Result<(Report, Vec<u32>), SimError>,
    (ptx, error): (&str, &str),
    right: impl Fn(&[u32]),
) {
    TRIED.with_borrow_mut(|tried| tried.push(relaxation));
    for o in schedules {
        let with = |allow: Allowed| run(&Options { allow, ..o.clone() });
        for refused in [Allowed::NONE, Allowed::ALL.without(relaxation)] {
            let e = match with(refused) {
                Ok(_) => panic!("{relaxation} is not needed with {o:?}\n{ptx}"),
                Err(e) => e.to_string(),
            };
            assert!(e.contains(error), "{relaxation} with {o:?}: {e}");
        }
        let hardware = Options {
            profile: Profile::Hardware,
            ..o.clone()
        };
        let runs = [with(Allowed::NONE.with(relaxation)), run(&hardware)];
        for result in runs {
            let (report, out) =
                result.unwrap_or_else(|e| panic!("{relaxation} with {o:?}: {e}\n{ptx}"));
            let notes: Vec<_> = report.notes.iter().map(|n| n.relaxation).collect();
            assert_eq!(notes.is_empty(), !relaxation.is_noted(), "{relaxation}");
            assert!(notes.iter().all(|n| *n == relaxation), "{notes:?}");
            assert!(report.warnings.is_empty());
            right(&out);
        }
    }
}
