//! `ptx-sim bench`.

mod straight;

use std::path::Path;
use std::time::Instant;

use ptx_sim::launch::{Expectation, LaunchSpec, Prepared};
use ptx_sim::{HazardChecks, Module, Options, Program, SimError};
use serde_json::{Value, json};

/// Thread-instructions a second on one core.
const RATE_GOAL: f64 = 20e6;
/// Seconds for the tile.
const TILE_GOAL: f64 = 1.0;
/// Thread-instructions a second of the matrix multiplication: with hazards, and without.
const MATMUL_GOALS: [(bool, f64); 2] = [(true, 20e6), (false, 100e6)];
/// The best of so many runs counts.
const RUNS: u32 = 10;

/// A kernel of `conformance/` on random inputs whose product is exact.
struct Product {
    prepared: Prepared,
    program: Program,
    expected: Vec<Expectation>,
}

impl Product {
    fn new(ptx: &str, launch: &str) -> Result<Self, SimError> {
        let spec = LaunchSpec::parse(launch)?;
        let kernel = spec.kernel.as_deref().unwrap_or_default();
        let prepared = spec.prepare(Module::parse(ptx)?, kernel, Path::new(""))?;
        let expected = spec.expectations(&prepared, Path::new(""))?;
        let program = prepared.sim.program(kernel)?;
        Ok(Self {
            prepared,
            program,
            expected,
        })
    }

    /// Seconds of the best run, and thread-instructions of one. Every result is compared, outside of the time.
    fn best(&mut self, hazards: HazardChecks) -> Result<(f64, u64), SimError> {
        let options = Options {
            hazards,
            ..Options::default()
        };
        let Prepared {
            sim,
            launch,
            buffers,
            ..
        } = &mut self.prepared;
        let (mut best, mut executed) = (f64::INFINITY, 0);
        for _ in 0..RUNS {
            sim.poison(buffers["d"]);
            let started = Instant::now();
            let report = sim.run_program(&self.program, launch, &options, None)?;
            best = best.min(started.elapsed().as_secs_f64());
            executed = report.thread_instructions;
            self.expected.iter().try_for_each(|e| e.check(sim))?;
        }
        Ok((best, executed))
    }
}

#[derive(clap::Args)]
pub(super) struct Bench {
    /// Thread-instructions to run on straight-line code, in millions.
    #[arg(long, default_value_t = 400)]
    millions: u64,
    /// Fail where a goal is missed. They are meant for release builds.
    #[arg(long)]
    check: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Result of one part of the benchmark: its lines of text and of JSON, and whether its goals are met.
struct Outcome {
    name: &'static str,
    text: String,
    json: Value,
    met: bool,
}

pub(super) fn command(b: &Bench) -> Result<(), SimError> {
    let outcomes = [straight_line(b.millions)?, nvfp4_tile()?, matrix_product()?];
    if b.json {
        let mut all = json!({ "optimised": !cfg!(debug_assertions) });
        for o in &outcomes {
            all[o.name] = o.json.clone();
        }
        super::print_json(&all);
    } else {
        outcomes.iter().for_each(|o| outln!("{}", o.text));
    }
    if b.check && outcomes.iter().any(|o| !o.met) {
        return Err(SimError::Launch("a goal is missed".into()));
    }
    Ok(())
}

fn straight_line(millions: u64) -> Result<Outcome, SimError> {
    let (instructions, seconds) = straight::run(millions)?;
    let rate = instructions as f64 / seconds;
    let met = rate >= RATE_GOAL;
    Ok(Outcome {
        name: "straight_line",
        text: format!(
            "straight-line f32: {:.0} million thread-instructions/s ({instructions} in {seconds:.2} s, \
             one core); goal {:.0}",
            rate / 1e6,
            RATE_GOAL / 1e6
        ),
        json: json!({
            "thread_instructions": instructions, "seconds": seconds,
            "per_second": rate, "goal_per_second": RATE_GOAL, "met": met,
        }),
        met,
    })
}

fn nvfp4_tile() -> Result<Outcome, SimError> {
    let ptx = include_str!("../../../conformance/ptx/mma_tile.ptx");
    let mut tile = Product::new(ptx, include_str!("tile.json"))?;
    let (best, executed) = tile.best(HazardChecks::Error)?;
    let (m, n, k) = (128, 64, 4096);
    let met = best < TILE_GOAL;
    Ok(Outcome {
        name: "tile",
        text: format!(
            "NVFP4 tile {m} x {n} x {k}: {best:.3} s, best of {RUNS} (TMA, tcgen05.cp, .mma, .commit \
             and .ld through the interpreter, result exact to the bit); goal {TILE_GOAL} s"
        ),
        json: json!({
            "m": m, "n": n, "k": k, "thread_instructions": executed,
            "seconds": best, "goal_seconds": TILE_GOAL, "met": met,
        }),
        met,
    })
}

fn matrix_product() -> Result<Outcome, SimError> {
    let ptx = include_str!("../../../conformance/ptx/mma_matmul.ptx");
    let mut matmul = Product::new(ptx, include_str!("matmul.json"))?;
    let n = 1024;
    let (mut lines, mut runs, mut all_met) = (Vec::new(), Vec::new(), true);
    for (hazards, goal) in MATMUL_GOALS {
        let (best, executed) = matmul.best(match hazards {
            true => HazardChecks::Error,
            false => HazardChecks::Off,
        })?;
        let rate = executed as f64 / best;
        let met = rate >= goal;
        all_met &= met;
        lines.push(format!(
            "f16 matrix product {n} x {n} x {n}, {} hazards: {best:.3} s, best of {RUNS}; {:.1} million \
             thread-instructions/s; goal {:.0}",
            if hazards { "with" } else { "without" },
            rate / 1e6,
            goal / 1e6
        ));
        runs.push(json!({
            "hazards": hazards, "thread_instructions": executed, "seconds": best,
            "per_second": rate, "goal_per_second": goal, "met": met,
        }));
    }
    Ok(Outcome {
        name: "matmul",
        text: lines.join("\n"),
        json: json!({ "size": n, "runs": runs }),
        met: all_met,
    })
}
