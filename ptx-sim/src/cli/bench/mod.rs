//! `ptx-sim bench`.

mod straight;
mod tile;

use std::time::Instant;

use ptx_sim::SimError;
use serde_json::json;

/// Thread-instructions a second on one core.
const RATE_GOAL: f64 = 20e6;
/// Seconds for the tile.
const TILE_GOAL: f64 = 1.0;
/// The best of so many tiles counts.
const TILES: u32 = 3;

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

pub(super) fn command(b: &Bench) -> Result<(), SimError> {
    let (instructions, seconds) = straight::run(b.millions)?;
    let rate = instructions as f64 / seconds;
    let (mut best, mut executed) = (f64::INFINITY, 0);
    for _ in 0..TILES {
        let tile = tile::Tile::new()?;
        let started = Instant::now();
        let (done, report) = tile.run()?;
        best = best.min(started.elapsed().as_secs_f64());
        executed = report.thread_instructions;
        // Not part of the time, and not left out either.
        done.verify()?;
    }
    let (m, n, k) = tile::SHAPE;
    if b.json {
        super::print_json(&json!({
            "optimised": !cfg!(debug_assertions),
            "straight_line": {
                "thread_instructions": instructions, "seconds": seconds,
                "per_second": rate, "goal_per_second": RATE_GOAL, "met": rate >= RATE_GOAL,
            },
            "tile": {
                "m": m, "n": n, "k": k, "thread_instructions": executed,
                "seconds": best, "goal_seconds": TILE_GOAL, "met": best < TILE_GOAL,
            },
        }));
    } else {
        outln!(
            "straight-line f32: {:.0} million thread-instructions/s ({instructions} in {seconds:.2} s, \
             one core); goal {:.0}",
            rate / 1e6,
            RATE_GOAL / 1e6
        );
        outln!(
            "NVFP4 tile {m} x {n} x {k}: {best:.3} s, best of {TILES} (TMA, tcgen05.cp, .mma, .commit \
             and .ld through the interpreter, result exact to the bit); goal {TILE_GOAL} s"
        );
    }
    if b.check && (rate < RATE_GOAL || best >= TILE_GOAL) {
        return Err(SimError::Launch("a goal is missed".into()));
    }
    Ok(())
}
