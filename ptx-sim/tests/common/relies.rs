//! Kernels that rely on one relaxation.

use super::hazard::PAIR;
use ptx_sim::{
    Allowed, Launch, Module, Options, Policy, Profile, Relaxation, Report, Sim, SimError, Timing,
};

/// Runs a kernel `k(in, out)` or `k(out)` of so many threads, a CTA or a pair; `out` as words.
pub(crate) fn run(ptx: &str, threads: u32, o: &Options) -> Result<(Report, Vec<u32>), SimError> {
    let mut sim = Sim::new(Module::parse(ptx)?);
    let input = sim.upload("in", &[7; 4096])?;
    let out = sim.alloc("out", 4096)?;
    let ctas = if ptx.contains(PAIR) { 2 } else { 1 };
    let launch = Launch::new("k", [ctas, 1, 1], [threads, 1, 1]);
    let launch = match ptx.contains(".param .u64 b") {
        true => launch.buffer(input).buffer(out),
        false => launch.buffer(out),
    };
    let report = sim.run(&launch, o)?;
    let words = sim.download(out).chunks_exact(4);
    let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    Ok((report, words.map(word).collect()))
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

/// The kernel relies on this and on nothing else, and its output is right where that is allowed.
pub(crate) fn relies(
    relaxation: Relaxation,
    ptx: &str,
    threads: u32,
    error: &str,
    right: impl Fn(&[u32]),
) {
    for o in schedules() {
        let with = |allow: Allowed| run(ptx, threads, &Options { allow, ..o.clone() });
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
        let runs = [
            with(Allowed::NONE.with(relaxation)),
            run(ptx, threads, &hardware),
        ];
        for result in runs {
            let (report, out) =
                result.unwrap_or_else(|e| panic!("{relaxation} with {o:?}: {e}\n{ptx}"));
            let notes: Vec<_> = report.notes.iter().map(|n| n.relaxation).collect();
            assert!(
                !notes.is_empty() && notes.iter().all(|n| *n == relaxation),
                "{notes:?}"
            );
            assert!(report.warnings.is_empty());
            right(&out);
        }
    }
}
