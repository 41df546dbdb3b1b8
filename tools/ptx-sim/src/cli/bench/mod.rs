//! `ptx-sim bench`.

mod matmul;
mod straight;
mod tile;

use std::time::Instant;

use ptx_sim::models::swizzle::Swizzle;
use ptx_sim::models::tensor_map::{
    DataType, Interleave, L2Promotion, OobFill, TensorMap, TensorMapArgs,
};
use ptx_sim::{Buffer, SimError};
use serde_json::{Value, json};

/// Thread-instructions a second on one core.
const RATE_GOAL: f64 = 20e6;
/// Seconds for the tile.
const TILE_GOAL: f64 = 1.0;
/// Thread-instructions a second of the matrix multiplication: with hazards, and without.
const MATMUL_GOALS: [(bool, f64); 2] = [(true, 20e6), (false, 100e6)];
/// The best of so many runs counts.
const RUNS: u32 = 10;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        ptx_sim::sched::split_mix(&mut self.0)
    }
}

/// The tensor map of rows that are `row_bytes` apart, whose boxes lie in the swizzle of 128 bytes.
fn rows(
    b: Buffer,
    data_type: DataType,
    size: [u64; 2],
    row_bytes: u64,
    of_box: [u32; 2],
) -> Result<TensorMap, SimError> {
    TensorMap::encode(TensorMapArgs {
        data_type,
        global_address: b.address,
        global_dim: size.to_vec(),
        global_strides: vec![row_bytes],
        box_dim: of_box.to_vec(),
        element_strides: vec![1, 1],
        interleave: Interleave::None,
        swizzle: Swizzle::B128,
        l2_promotion: L2Promotion::None,
        oob_fill: OobFill::Zero,
    })
    .map_err(|e| SimError::Launch(format!("tensor map: {e}")))
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
    let (mut best, mut executed) = (f64::INFINITY, 0);
    for _ in 0..RUNS {
        let tile = tile::Tile::new()?;
        let started = Instant::now();
        let (done, report) = tile.run()?;
        best = best.min(started.elapsed().as_secs_f64());
        executed = report.thread_instructions;
        // Not part of the time, and not left out either.
        done.verify()?;
    }
    let (m, n, k) = tile::SHAPE;
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
    let n = matmul::SIZE;
    let mut matmul = matmul::Matmul::new()?;
    let (mut lines, mut runs, mut all_met) = (Vec::new(), Vec::new(), true);
    for (hazards, goal) in MATMUL_GOALS {
        let (mut best, mut executed) = (f64::INFINITY, 0);
        for _ in 0..RUNS {
            let started = Instant::now();
            executed = matmul.run(hazards)?.thread_instructions;
            best = best.min(started.elapsed().as_secs_f64());
        }
        matmul.verify()?;
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
