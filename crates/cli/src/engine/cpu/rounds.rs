//! Rounds on the CPU, by wall time.

use std::cell::RefMut;
use std::fmt::Display;
use std::hint::black_box;
use std::time::{Duration, Instant};

use nvfp4_gemv::cpu::{Implementation, StreamingRead};
use nvfp4_gemv::{GemvPath, GlobalScale, Result, Weights};
use nvfp4_gemv_documents::document::{Sustained, Turn};

use super::super::rounds::scale;
use super::super::{
    Ask, Case, Chain, Extent, Inputs, Plan, Ready, Values, Way, Ways, Work, memory,
};
use super::{Cpu, compute};

/// Random bytes that every case's weights are cut from, and a buffer to read.
#[derive(Debug)]
pub(super) struct Pool {
    codes: Vec<u8>,
    scales: Vec<u8>,
    read: StreamingRead,
    read_bytes: usize,
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
            read_bytes,
        }
    }

    /// Bytes of memory that this takes.
    fn bytes(&self) -> usize {
        self.codes.len() + self.scales.len() + self.read_bytes
    }
}

/// The largest alignment that the CPU path asks for.
const ALIGNMENT: usize = 64;

/// A round is at least this long: the clock and the start of threads must not count.
const ROUND: Duration = Duration::from_millis(2);

impl Cpu {
    /// Lets `drive` have ways that compute one layer of a chain after the other: as many layers as `layers` says of
    /// bytes to rotate over, each with weights of its own.
    pub(super) fn prepare(
        &self,
        chain: &Chain,
        layers: &dyn Fn(usize) -> usize,
        works: &[Work],
        plan: &Plan,
        drive: &mut dyn FnMut(&mut dyn Ways) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let bytes = chain.layer_bytes();
        let layer = chain.places(1, ALIGNMENT);
        let needed = |cold: usize| {
            let layers = layers(cold);
            memory::sum(&[
                (layers, layer.code_bytes),
                (layers, layer.scale_bytes),
                // Bytes that the ceiling reads.
                (layers.checked_mul(bytes)?.max(cold), 1),
                (chain.operand_bytes()?, 1),
            ])
        };
        let layers = layers(plan.cold_bytes);
        let sizes = [layer.code_bytes, layer.scale_bytes, bytes];
        let [codes, scales, read] = sizes.map(|bytes| layers.saturating_mul(bytes));
        let mut pool = self.pool(&chain.name, (codes, scales, read), plan, needed)?;
        let pool = &mut *pool;
        let weights = chain
            .places(layers, ALIGNMENT)
            .all
            .into_iter()
            .map(|place| {
                let Case { shape, layout, .. } = &chain.linears[place.linear];
                let codes = &pool.codes[place.codes..][..shape.weight_code_bytes()];
                let scales = &pool.scales[place.scales..][..shape.weight_scale_bytes(*layout)];
                Weights::new(shape, codes, scales, *layout, GlobalScale::ONE)
            });
        let weights = weights.collect::<Result<Vec<_>>>()?;
        let inputs: Vec<Inputs> = chain.linears.iter().map(Case::inputs).collect();
        let outputs = chain.linears.iter();
        let mut outputs: Vec<Values> = outputs
            .map(|case| Values::poisoned(case.output, case.shape.outputs()))
            .collect();
        let ask = Ask::of_path(GemvPath::Cpu);
        let mut next = weights.chunks_exact(chain.linears.len()).cycle();
        let mut compute_layer = || -> Result<()> {
            let weights = next.next().into_iter().flatten();
            let linears = chain.linears.iter().zip(weights);
            for (((case, weights), x), y) in linears.zip(&inputs).zip(&mut outputs) {
                compute(ask, &case.shape, weights, &x.view(), y)?;
            }
            black_box(&outputs);
            Ok(())
        };
        let sizes = (bytes, layers * bytes);
        drive_ways(works, sizes, &mut pool.read, &mut compute_layer, drive)
    }

    /// Bytes for weights, made anew where those that are there do not suffice: at least so many of codes, of scales,
    /// and to be read. `needed` is as [`memory::check`] asks for it.
    fn pool(
        &self,
        what: &dyn Display,
        (code_bytes, scale_bytes, read_bytes): (usize, usize, usize),
        plan: &Plan,
        needed: impl Fn(usize) -> Option<usize>,
    ) -> anyhow::Result<RefMut<'_, Pool>> {
        let mut pool = self.pool.borrow_mut();
        let fits = |pool: &Pool| pool.codes.len() >= code_bytes && pool.scales.len() >= scale_bytes;
        // Kept memory counts as available: it is used again, or freed before its successor is allocated. Vectors and
        // results are new each time, so this is checked where the pool fits, too.
        let kept = pool.as_ref().map_or(0, Pool::bytes);
        let available = memory::available().map(|bytes| bytes.saturating_add(kept));
        memory::check(what, plan.cold_bytes, "host", available, needed)?;
        if !pool.as_ref().is_some_and(fits) {
            *pool = None;
        }
        Ok(RefMut::map(pool, |pool| {
            let new = || Pool::new(code_bytes, scale_bytes, read_bytes.max(plan.cold_bytes));
            pool.get_or_insert_with(new)
        }))
    }
}

/// Finds out how many calls of `compute_next` make a turn, and lets `drive` have the ways. Bytes are those of a call,
/// and those that calls rotate over.
fn drive_ways(
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
