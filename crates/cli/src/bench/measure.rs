//! One problem: what is to take turns, and what came of it.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nvfp4_gemv::GemvPath;
use nvfp4_gemv_documents::alternate::{WARM_UP, alternate};
use nvfp4_gemv_documents::document::{self, ReadTimes};

use super::reads::{FastestReads, Read};
use crate::engine::{Ask, Case, Engine, Plan, Way, Ways, Work};

/// The work that is measured of each problem, and how.
pub(super) struct Measurer<'a> {
    pub(super) engine: &'a dyn Engine,
    /// The only path or kernel to measure; or each path of the engine.
    pub(super) ask: Ask,
    pub(super) slowed: &'a HashMap<GemvPath, u32>,
    pub(super) plan: Plan,
    pub(super) fastest_reads: FastestReads,
    /// How long each result is repeated to sustain it; zero: not at all.
    pub(super) sustain: Duration,
    /// Whether cuBLAS takes turns too.
    pub(super) cublas: bool,
}

impl Measurer<'_> {
    /// Measures every path on a problem.
    pub(super) fn case(&self, case: &Case) -> Result<document::Case> {
        let mut measured = None;
        self.with_ways(case, &mut |mut case, ways| {
            let count = ways.ways().len();
            let mut turns = alternate(count, WARM_UP, self.plan.rounds, |way| ways.turn(way))?;
            // cuBLAS is the last way, where it takes turns.
            let cublas = ways.ways().last().and_then(cublas);
            let cublas = cublas.and_then(|cublas| Some((cublas, turns.pop()?)));
            case.complete(&turns);
            if let Some((cublas, turns)) = cublas {
                case.complete_cublas(cublas, &turns);
            }
            if !self.sustain.is_zero() {
                for way in 0..count {
                    let place = match ways.ways()[way].work {
                        Work::Read(read) if name(read) != case.ceiling.kernel => continue,
                        Work::Read(_) => case.sustained_mut(0),
                        Work::Gemv { .. } => case.sustained_mut(way),
                        Work::Cublas => {
                            let cublas = case.cublas.as_mut();
                            cublas.map(|cublas| &mut cublas.times.board.sustained)
                        }
                    };
                    *place.context("a way without a place")? =
                        Some(ways.sustain(way, self.sustain)?);
                }
                case.compare_energy();
            }
            measured = Some(case);
            Ok(())
        })?;
        measured.context("the engine measured nothing")
    }

    /// Gives `drive` the ways of a problem, ready to take turns, and the document's case, which lacks only the
    /// measurements. Way 0 is the read that was the fastest before, way i + 1 is path i. Behind the paths are the other
    /// reads, of which one may turn out to be the ceiling. Where cuBLAS takes turns, it is the last way.
    pub(super) fn with_ways(
        &self,
        case: &Case,
        drive: &mut dyn FnMut(document::Case, &mut dyn Ways) -> Result<()>,
    ) -> Result<()> {
        let shape = &case.shape;
        let picked = self.engine.choose(case, self.ask.of_any()).ok();
        let asked = self.ask != self.ask.of_any();
        let asks = match asked {
            true => vec![self.ask],
            false => {
                let paths = self.engine.paths().iter();
                paths.copied().map(|path| self.ask.on(path)).collect()
            }
        };
        let reads = self.fastest_reads.of(self.engine, case, &self.plan)?;
        let mut reads = reads.into_iter();
        let mut works: Vec<Work> = reads.by_ref().take(1).map(Work::Read).collect();
        let mut skipped = Vec::new();
        for ask in asks {
            match self.engine.choose(case, ask) {
                Ok(choice) => {
                    let work = |ask| Work::Gemv {
                        ask,
                        slow_percent: self.slowed.get(&choice.path).copied().unwrap_or(0),
                    };
                    works.push(work(ask));
                    // Token after token, layer after layer: one vector.
                    if shape.n() == 1 {
                        works.push(work(ask.chained()));
                    }
                }
                Err(why) if !asked => skipped.push(document::Skipped {
                    path: ask.to_string(),
                    why: why.to_string(),
                }),
                Err(why) => return Err(why.into()),
            }
        }
        works.extend(reads.map(Work::Read));
        works.extend(self.cublas.then_some(Work::Cublas));
        self.engine
            .with_ways(case, &works, &self.plan, &mut |ways| {
                let mut reads = ways.ways().iter().filter_map(|way| match way.work {
                    Work::Read(read) => Some(ReadTimes::of(name(read))),
                    Work::Gemv { .. } | Work::Cublas => None,
                });
                let Some(ceiling) = reads.next() else {
                    bail!("there is no ceiling of {shape}");
                };
                let paths = ways.ways().iter().filter_map(|way| {
                    let Work::Gemv { ask, .. } = way.work else {
                        return None;
                    };
                    Some(document::Measured {
                        path: ask.path()?.to_string(),
                        kernel: way.kernel.map(|kernel| kernel.to_string()),
                        mode: ask.mode().into(),
                        picked: picked.as_ref().is_some_and(|choice| ask.is(choice)),
                        config: way.config.clone(),
                        ..document::Measured::default()
                    })
                });
                let opened = document::Case {
                    m: shape.m(),
                    n: shape.n(),
                    k: shape.k(),
                    l: shape.l(),
                    activation: case.activation.name().into(),
                    layout: case.layout.name().into(),
                    output_type: case.output.name().into(),
                    select: case.select.map(|ids| ids.name().into()),
                    weight_bytes: shape.weight_bytes(),
                    rotated_bytes: ways.rotated_bytes(),
                    launches_per_round: ways.launches(),
                    paths: paths.collect(),
                    ceiling,
                    slower_reads: reads.collect(),
                    picked: picked.as_ref().map(|choice| document::Picked {
                        path: choice.path.to_string(),
                        kernel: choice.kernel().map(|kernel| kernel.to_string()),
                        reason: choice.reason.to_string(),
                    }),
                    cublas: None,
                    skipped: skipped.clone(),
                };
                drive(opened, ways)
            })
    }
}

/// The document's entry for cuBLAS, without times, if a way is cuBLAS.
fn cublas(way: &Way) -> Option<document::Cublas> {
    (way.work == Work::Cublas).then(|| document::Cublas {
        version: way.config.clone(),
        weight_bytes: way.extent.bytes,
        rotated_bytes: way.extent.rotated_bytes,
        launches_per_round: way.extent.launches,
        times: ReadTimes::default(),
    })
}

/// How documents name a read.
fn name(read: Read) -> Option<String> {
    read.map(|read| read.to_string())
}
