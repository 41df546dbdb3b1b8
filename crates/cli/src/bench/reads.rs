//! The kernels that only read: which of them are worth a place in the rounds of a problem, and the rate of a long read.
//! `bench --ceiling` lists all of these kernels.

use std::cell::RefCell;
use std::collections::HashMap;

use anyhow::{Context, Result};
use nvfp4_gemv::kernel::read_only::ReadConfig;
use nvfp4_gemv::{Activation, FloatType, ScaleLayout, Shape};
use nvfp4_gemv_documents::alternate::{WARM_UP, alternate};
use nvfp4_gemv_documents::document::{Failed, Head, LongRead, ReadTimes};
use serde::{Deserialize, Serialize};

use super::failures::Failures;
use crate::engine::{Case, Engine, NotEnoughMemory, Plan, Work};
use crate::report::{Table, bytes, figure, time};

/// The number of fastest reads that take turns with the paths.
const FASTEST: usize = 3;
/// Rounds that find the fastest. Nothing is to be thrown away before them: each turn begins with a replay that is not
/// timed.
const SELECTION_ROUNDS: usize = 2;
const LONG_READ_ROUNDS: usize = 5;

/// The schema of [`Reads`].
pub(super) const SCHEMA: &str = "nvfp4-gemv/reads/1";

/// The document of `bench --ceiling --json`: all kernels that only read, at some sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Reads {
    #[serde(flatten)]
    pub(super) head: Head,
    pub(super) sizes: Vec<ReadSize>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) failed: Vec<Failed>,
}

/// The kernels that only read, at one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ReadSize {
    /// Bytes that a launch reads.
    bytes: usize,
    rotated_bytes: usize,
    launches_per_round: usize,
    /// The fastest first.
    reads: Vec<ReadTimes>,
}

/// How a device reads: one of the GPU's kernels, or the CPU's way.
pub(super) type Read = Option<ReadConfig>;

/// The fastest reads of sizes that were asked for.
#[derive(Default)]
pub(super) struct FastestReads(RefCell<HashMap<usize, Vec<Read>>>);

impl FastestReads {
    /// The fastest few reads of as many bytes as a case's weights have, the fastest first. They are found once for
    /// each size.
    pub(super) fn of(&self, engine: &dyn Engine, case: &Case, plan: &Plan) -> Result<Vec<Read>> {
        let all = engine.reads();
        if all.len() <= FASTEST {
            return Ok(all);
        }
        let size = case.shape.weight_bytes();
        if let Some(known) = self.0.borrow().get(&size) {
            return Ok(known.clone());
        }
        let plan = Plan {
            rounds: SELECTION_ROUNDS,
            ..*plan
        };
        let fastest = fastest(engine, case, &all, 0, &plan)?;
        self.0.borrow_mut().insert(size, fastest.clone());
        Ok(fastest)
    }
}

fn fastest(
    engine: &dyn Engine,
    case: &Case,
    reads: &[Read],
    warm_up: usize,
    plan: &Plan,
) -> Result<Vec<Read>> {
    let (_, ranking) = measure(engine, case, reads, warm_up, plan)?;
    let fastest = ranking.into_iter().take(FASTEST);
    Ok(fastest.map(|(read, _)| read).collect())
}

/// Lets reads take turns at a case's size: the fastest first.
fn measure(
    engine: &dyn Engine,
    case: &Case,
    reads: &[Read],
    warm_up: usize,
    plan: &Plan,
) -> Result<(ReadSize, Vec<(Read, ReadTimes)>)> {
    let works: Vec<Work> = reads.iter().copied().map(Work::Read).collect();
    let weight_bytes = case.shape.weight_bytes();
    let mut measured = None;
    engine.with_ways(case, &works, plan, &mut |ways| {
        let count = ways.ways().len();
        let turns = alternate(count, warm_up, plan.rounds, |way| ways.turn(way))?;
        let mut ranking: Vec<(Read, ReadTimes)> = Vec::with_capacity(count);
        for (way, turns) in ways.ways().iter().zip(&turns) {
            if let Work::Read(read) = way.work {
                let mut times = ReadTimes::of(read.map(|read| read.to_string()));
                times.complete(weight_bytes, turns);
                ranking.push((read, times));
            }
        }
        ranking.sort_by(|(_, a), (_, b)| a.median_us.total_cmp(&b.median_us));
        let size = ReadSize {
            bytes: weight_bytes,
            rotated_bytes: ways.rotated_bytes(),
            launches_per_round: ways.launches(),
            reads: Vec::new(),
        };
        measured = Some((size, ranking));
        Ok(())
    })?;
    measured.context("the engine measured nothing")
}

/// Weights of 1 GiB and 5 KiB: of a launch that takes so long, what it costs to begin and to end is less than 1%.
fn long_case() -> Result<Case> {
    Ok(Case {
        select: None,
        shape: Shape::matrix(116_509, 16_384)?,
        activation: Activation::Nvfp4,
        layout: ScaleLayout::Linear,
        output: FloatType::F16,
    })
}

/// The fastest kernel of a long read, and its rate. Nothing on the CPU, whose ceiling is a long read at any size, and
/// where the device's memory is too small.
pub(super) fn long_read(engine: &dyn Engine, plan: &Plan) -> Result<Option<(Read, LongRead)>> {
    let all = engine.reads();
    if all.iter().all(Option::is_none) {
        return Ok(None);
    }
    let case = long_case()?;
    let rounds = |rounds| Plan { rounds, ..*plan };
    let measured = fastest(engine, &case, &all, 0, &rounds(1))
        .and_then(|fastest| measure(engine, &case, &fastest, 0, &rounds(LONG_READ_ROUNDS)));
    match measured {
        Ok((size, ranking)) => Ok(ranking.into_iter().next().map(|(read, times)| {
            let bytes = size.bytes;
            (read, LongRead { bytes, times })
        })),
        Err(error) if error.is::<NotEnoughMemory>() => Ok(None),
        Err(error) => Err(error),
    }
}

/// All reads at the sizes of these cases, each size once, and of a long read.
pub(super) fn all(
    engine: &dyn Engine,
    cases: &[Case],
    plan: &Plan,
) -> Result<(Vec<ReadSize>, Vec<Failed>)> {
    let mut sizes: Vec<ReadSize> = Vec::new();
    let mut failures = Failures::default();
    let reads = engine.reads();
    let long = match reads.iter().any(Option::is_some) {
        true => Some(long_case()?),
        false => None,
    };
    for case in cases.iter().chain(&long) {
        let is_known = |size: &ReadSize| size.bytes == case.shape.weight_bytes();
        if sizes.iter().any(is_known) {
            continue;
        }
        let measured = measure(engine, case, &reads, WARM_UP, plan);
        let title = format!("reads of {}", bytes(case.shape.weight_bytes()));
        if let Some((mut size, ranking)) = failures.keep(title, measured) {
            size.reads = ranking.into_iter().map(|(_, times)| times).collect();
            sizes.push(size);
        }
    }
    let failed = failures.beside(sizes.len())?;
    Ok((sizes, failed))
}

/// The report for people.
pub(super) fn table(sizes: &[ReadSize]) -> Table {
    let mut table = Table::new("bytes|read by|time|fastest|slowest|GB/s|share|MHz".split('|'));
    for size in sizes {
        let best = size.reads.first().map_or(f64::NAN, |read| read.median_us);
        for read in &size.reads {
            let us = |of: fn(f64, f64) -> f64| {
                let us = read.samples_us.iter().copied().reduce(of);
                time(us.unwrap_or(f64::NAN) * 1e-6)
            };
            table.row(vec![
                bytes(size.bytes),
                read.kernel.clone().unwrap_or("-".into()),
                time(read.median_us * 1e-6),
                us(f64::min),
                us(f64::max),
                format!("{:.1}", read.gb_per_s),
                format!("{:.1}%", 100.0 * best / read.median_us),
                figure(read.board.sm_mhz, 0),
            ]);
        }
    }
    table
}
