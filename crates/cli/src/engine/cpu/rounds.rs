//! Rounds on the CPU, by wall time.

use std::cell::RefMut;
use std::fmt::Display;
use std::hint::black_box;
use std::time::{Duration, Instant};

use nvfp4_gemv::cpu::{Implementation, StreamingRead};
use nvfp4_gemv::{GemvPath, GlobalScale, Result, Weights};
use nvfp4_gemv_documents::document::{Sustained, Turn};

use super::super::rounds::scale;
use super::super::{Ask, Case, Extent, Plan, Ready, Values, Way, Ways, Work, memory};
use super::{Cpu, compute};

/// Random bytes that every case's weights are cut from, and a buffer to read.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) codes: Vec<u8>,
    pub(super) scales: Vec<u8>,
    pub(super) read: StreamingRead,
}

impl Pool {
    fn new(code_bytes: usize, scale_bytes: usize, read_bytes: usize) -> Self {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut codes = vec![0; code_bytes];
        rng.fill(&mut codes);
        let mut scales = vec![0; scale_bytes];
        rng.fill(&mut scales);
        scales.iter_mut().for_each(|byte| *byte = scale(*byte));
        Self {
            codes,
            scales,
            read: StreamingRead::new(read_bytes, rayon::current_num_threads()),
        }
    }
}

/// A round is at least this long: the clock and the start of threads must not count.
const ROUND: Duration = Duration::from_millis(2);

impl Cpu {
    pub(super) fn prepare_ways(
        &self,
        case: &Case,
        works: &[Work],
        plan: &Plan,
        drive: &mut dyn FnMut(&mut dyn Ways) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let shape = &case.shape;
        let bytes = shape.weight_bytes();
        let copies = plan.copies(bytes, 1);
        let (code_bytes, scale_bytes) = (
            shape.weight_code_bytes(),
            shape.weight_scale_bytes(case.layout),
        );
        let needed = |cold: usize| {
            let copies = Plan::copies_of(cold, bytes, 1);
            memory::sum(&[
                (copies, code_bytes),
                (copies, scale_bytes),
                // Bytes that the ceiling reads.
                (copies.checked_mul(bytes)?.max(cold), 1),
                (case.operand_bytes()?, 1),
            ])
        };
        let sizes = (
            copies.saturating_mul(code_bytes),
            copies.saturating_mul(scale_bytes),
            copies.saturating_mul(bytes),
        );
        let mut pool = self.pool(shape, sizes, plan, needed)?;
        let pool = &mut *pool;
        let weights: Vec<Weights<'_>> = pool
            .codes
            .chunks_exact(code_bytes.max(1))
            .zip(pool.scales.chunks_exact(scale_bytes.max(1)))
            .take(copies)
            .map(|(codes, scales)| {
                Weights::new(shape, codes, scales, case.layout, GlobalScale::ONE)
            })
            .collect::<Result<_>>()?;
        let inputs = case.inputs();
        let x = inputs.view();
        let mut y = Values::poisoned(case.output, shape.outputs());
        let mut next = weights.iter().cycle();
        let mut compute_next = || -> Result<()> {
            let Some(weights) = next.next() else {
                return Ok(()); // nothing to compute
            };
            compute(Ask::of_path(GemvPath::Cpu), shape, weights, &x, &mut y)?;
            black_box(&y);
            Ok(())
        };

        drive_ways(
            works,
            (bytes, bytes * copies),
            &mut pool.read,
            &mut compute_next,
            drive,
        )
    }

    /// Bytes for weights, made anew where those that are there do not suffice: at least so many of codes, of scales,
    /// and to be read. `needed` is as [`memory::check`] asks for it.
    pub(super) fn pool(
        &self,
        what: &dyn Display,
        (code_bytes, scale_bytes, read_bytes): (usize, usize, usize),
        plan: &Plan,
        needed: impl Fn(usize) -> Option<usize>,
    ) -> anyhow::Result<RefMut<'_, Pool>> {
        let mut pool = self.pool.borrow_mut();
        let fits = |pool: &Pool| pool.codes.len() >= code_bytes && pool.scales.len() >= scale_bytes;
        if !pool.as_ref().is_some_and(fits) {
            *pool = None; // freed before its successor is allocated
            memory::check(what, plan.cold_bytes, "host", memory::available(), needed)?;
        }
        Ok(RefMut::map(pool, |pool| {
            let new = || Pool::new(code_bytes, scale_bytes, read_bytes.max(plan.cold_bytes));
            pool.get_or_insert_with(new)
        }))
    }
}

/// Finds out how many calls of `compute_next` make a turn, and lets `drive` have the ways. Bytes are those of a call,
/// and those that calls rotate over.
pub(super) fn drive_ways(
    works: &[Work],
    (bytes, rotated_bytes): (usize, usize),
    read: &mut StreamingRead,
    compute_next: &mut dyn FnMut() -> Result<()>,
    drive: &mut dyn FnMut(&mut dyn Ways) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // The first warms up.
    compute_next()?;
    let start = Instant::now();
    compute_next()?;
    let once = start.elapsed().max(Duration::from_nanos(1));
    let launches = (ROUND.as_nanos() / once.as_nanos()).clamp(1, 256) as usize;
    let extent = Extent {
        bytes,
        rotated_bytes,
        launches,
    };
    drive(&mut CpuWays {
        ready: ready(works, extent),
        read,
        compute_next,
    })
}

/// Those of `works` that a CPU can do.
fn ready(works: &[Work], extent: Extent) -> Ready {
    let works = works.iter().copied().filter(runs_here);
    let ways = works.map(|work| Way {
        work,
        kernel: None,
        config: match work {
            Work::Gemv { .. } => Implementation::best().to_string(),
            Work::Read(_) | Work::Cublas => String::new(),
        },
        extent,
    });
    Ready {
        ways: ways.collect(),
        extent,
    }
}

/// The CPU's ways: one launch is one call.
struct CpuWays<'a> {
    ready: Ready,
    read: &'a mut StreamingRead,
    compute_next: &'a mut dyn FnMut() -> Result<()>,
}

impl CpuWays<'_> {
    /// One turn: seconds a launch.
    fn seconds(&mut self, way: usize) -> Result<f64> {
        let extent = self.ready.extent;
        match self.ready.ways[way].work {
            Work::Cublas => unreachable!("it is no way of a CPU"),
            Work::Read(_) => Ok(extent.bytes as f64 / self.read.pass()),
            Work::Gemv { slow_percent, .. } => {
                let start = Instant::now();
                (0..extent.launches).try_for_each(|_| (self.compute_next)())?;
                let until = start.elapsed() * (100 + slow_percent) / 100;
                while start.elapsed() < until {
                    std::hint::spin_loop();
                }
                Ok(start.elapsed().as_secs_f64() / extent.launches as f64)
            }
        }
    }
}

impl Ways for CpuWays<'_> {
    fn ready(&self) -> &Ready {
        &self.ready
    }

    fn turn(&mut self, way: usize) -> Result<Turn> {
        Ok(Turn {
            us: self.seconds(way)? * 1e6,
            sm_mhz: None,
            watts: None,
            held_back: false,
        })
    }

    fn sustain(&mut self, way: usize, time: Duration) -> Result<Sustained> {
        let begin = Instant::now();
        while begin.elapsed() < time / 2 {
            self.seconds(way)?;
        }
        let mut seconds = Vec::new();
        loop {
            seconds.push(self.seconds(way)?);
            if begin.elapsed() >= time {
                break;
            }
        }
        let launch = seconds.iter().sum::<f64>() / seconds.len() as f64;
        Ok(Sustained::new(
            begin.elapsed().as_secs_f64(),
            launch,
            self.ready.extent.bytes as f64 / launch,
            None,
            None,
        ))
    }
}

fn runs_here(work: &Work) -> bool {
    match work {
        Work::Read(config) => config.is_none(),
        // Without a path, the library picks this one.
        Work::Gemv { ask, .. } => {
            ask.path().is_none_or(|path| path == GemvPath::Cpu) && !ask.is_chained
        }
        Work::Cublas => false,
    }
}
