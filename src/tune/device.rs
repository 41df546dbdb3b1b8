//! Measures the candidates of a problem on a device.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaStream, DriverError};

use super::TuneError;
use super::buffers::Buffers;
use super::ranking::{Ranking, best_of_each_kernel, preferred_of_each_kernel, to_front};
use super::search::{Found, Limits, Progress, search};
use crate::context::{driver_error, make_current};
use crate::dispatch::measured::{Entry, GpuModel, Machine};
use crate::dispatch::{Options, Target, select};
use crate::error::{Error, Result};
use crate::gpu::Gpu;
#[cfg(feature = "jit")]
use crate::kernel::plan::Plan;
use crate::kernel::read_only::ReadConfig;
use crate::kernel::{Call, Config, Job, Kernel};
use crate::measure::{ReadOnly, Replay, time_launches};
use crate::operands::Operands;
use crate::raw;
use crate::shape::Shape;

/// The machine that a device makes with its driver and this build.
///
/// # Errors
/// Errors that CUDA reports.
pub fn machine(gpu: &Gpu) -> Result<Machine> {
    let driver = match raw::versions()?.driver {
        Some((major, minor)) => format!("{major}.{minor}"),
        None => "none".into(),
    };
    Ok(Machine {
        gpu: GpuModel::of(gpu),
        driver,
        crate_version: env!("CARGO_PKG_VERSION").into(),
        kernels: raw::KERNELS.into(),
    })
}

/// A device to tune on, with a stream of its own.
///
/// A tuner captures one thing at a time on that stream, without events that order work of several threads. So tuning
/// takes a tuner alone; another thread makes another tuner, or waits for this one:
///
/// ```compile_fail,E0596
/// # use nvfp4_gemv::tune::{Limits, Tuner};
/// # use nvfp4_gemv::{Operands, Shape};
/// fn two_threads(tuner: &Tuner, shape: &Shape, operands: &Operands) {
///     std::thread::scope(|threads| {
///         for _ in 0..2 {
///             threads.spawn(|| tuner.tune(shape, operands, &Limits::default(), |_| ()));
///         }
///     });
/// }
/// ```
#[derive(Debug)]
pub struct Tuner {
    pub(super) stream: Arc<CudaStream>,
    gpu: Gpu,
    machine: Machine,
}

/// Results of tuning a problem.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The best of each kernel, for [`Tuned::insert`](super::Tuned::insert).
    pub entry: Entry,
    /// Every candidate that ran, the fastest first.
    pub ranking: Vec<(Config, Found)>,
    /// Every candidate that ran in launches that follow each other with programmatic dependent launch, the fastest
    /// first; empty where they were not measured.
    pub chained: Vec<(Config, Found)>,
    /// Candidates that did not run, and why.
    pub failed: Vec<(Config, Error)>,
    /// The time that tuning took.
    pub took: Took,
}

/// Times of the parts of tuning a problem. The [limits](Limits) of tuning are those of the search alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Took {
    /// The time in all.
    pub all: Duration,
    /// The time before the search: filling memory with operands, measuring the ceiling, and, with feature `jit`,
    /// compiling.
    pub before: Duration,
    /// The time of the search; with chains, of both searches.
    pub search: Duration,
    /// The time of the first round of the search, which measures every candidate once and is always whole; with chains,
    /// of both first rounds.
    pub first_round: Duration,
}

impl Outcome {
    /// Puts candidates in front of the others of the ranking, in this order, and the best of each kernel of the new
    /// order into the entry. `isolated` and `chained` name candidates of the two rankings, the best first; a name of
    /// none is passed over.
    ///
    /// The entry's times stay those of cold launches, and the kernel with the least is taken where the entry is used.
    /// So a kernel that is faster cold than the first of the new order is left out of the entry.
    pub fn prefer(&mut self, isolated: &[Config], chained: &[Config]) {
        to_front(&mut self.ranking, isolated);
        to_front(&mut self.chained, chained);
        self.entry.kernels = preferred_of_each_kernel(&self.ranking, &self.chained);
    }
}

/// How [`Tuner::sustain`] repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// Whether launches follow each other with programmatic dependent launch.
    pub chained: bool,
    /// The time of repeating a config.
    pub time: Duration,
}

/// Time and energy of a config that is repeated for seconds without rest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sustained {
    /// Seconds of one launch, the mean.
    pub seconds: f64,
    /// Energy of the whole board for each 10^9 bytes of weights, where it was counted.
    pub joules_per_gb: Option<f64>,
}

/// Seconds of launches that one measurement replays.
const REPLAY: f64 = 1e-3;
pub(super) const REPLAYS: usize = 3;
/// The number of the fastest isolated configs that are tried in chains, too.
const BEST_ALONE: usize = 4;
/// Launches of a replay of a kernel that only reads, at least: what starts a graph does not count.
const CEILING_LAUNCHES: usize = 40;
/// The number of the kernels that only read that are measured again at the end.
const FASTEST_READS: usize = 3;
/// The pause before work that is sustained.
const COOL: Duration = Duration::from_secs(1);
/// Work that is sustained is handed to the device in pieces of about so many seconds.
const PIECE: f64 = 0.05;

impl Tuner {
    /// Device `ordinal`.
    ///
    /// # Errors
    /// [`Error::NoDriver`], [`Error::NoDevice`], errors that CUDA reports.
    pub fn new(ordinal: usize) -> Result<Self> {
        raw::device_count()?;
        let gpu = raw::gpu(u32::try_from(ordinal).unwrap_or(u32::MAX))?;
        let cuda = |error: DriverError| driver_error("opening the device to tune on", error);
        let context = CudaContext::new(ordinal).map_err(cuda)?;
        // SAFETY: all work of this object goes to its one stream, whose order makes events unnecessary.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(cuda)?;
        let machine = machine(&gpu)?;
        Ok(Self {
            stream,
            gpu,
            machine,
        })
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The machine that files of this device are for.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Measures the configs of every kernel that can compute a problem, with caches cold, in turns, until one has won
    /// or `limits` are reached. The operands are made here, packed, and aligned as allocations are: the results are for
    /// such operands.
    ///
    /// # Errors
    /// [`TuneError::NoCandidates`]; [`TuneError::Gemv`] where memory is short, or no candidate ran.
    pub fn tune(
        &mut self,
        shape: &Shape,
        operands: &Operands,
        limits: &Limits,
        progress: impl FnMut(Progress),
    ) -> std::result::Result<Outcome, TuneError> {
        self.run(shape, operands, limits, false, progress)
    }

    /// [`tune`](Self::tune), and then as long for launches that follow each other with programmatic dependent launch,
    /// as layers of a model can. [`Timed::chained`](crate::dispatch::measured::Timed::chained) is a time of such
    /// launches. Calls whose options are [chained](Options::chained) take the configs that were found for them. Below
    /// compute capability 9.0 there are no such launches, and nothing more is measured.
    ///
    /// # Errors
    /// [`tune`](Self::tune)'s.
    pub fn tune_with_chains(
        &mut self,
        shape: &Shape,
        operands: &Operands,
        limits: &Limits,
        progress: impl FnMut(Progress),
    ) -> std::result::Result<Outcome, TuneError> {
        self.run(shape, operands, limits, true, progress)
    }

    /// Repeats configs for seconds each without rest, after a pause of one, with the operands of [`tune`](Self::tune).
    /// Cold times are of bursts; a GPU that works for seconds may reach its power limit, and lowers its clock then.
    /// Only the last half of the time counts.
    ///
    /// `joules` is asked for the energy that the board has taken so far, before and after that half: this crate does
    /// not know it. `progress` is told the share of the configs that are done.
    ///
    /// # Errors
    /// [`TuneError::Gemv`] where memory is short, or a config does not run.
    pub fn sustain(
        &mut self,
        shape: &Shape,
        operands: &Operands,
        configs: &[Config],
        how: Repeat,
        joules: impl Fn() -> Option<f64>,
        mut progress: impl FnMut(f64),
    ) -> std::result::Result<Vec<Sustained>, TuneError> {
        let stream = &self.stream;
        let buffers = Buffers::new(stream, shape, operands, &self.gpu)?;
        let calls: Vec<Call> = (0..buffers.offsets.len())
            .map(|i| buffers.call(stream, i))
            .collect::<Result<_>>()?;
        let race = Race {
            calls: &calls,
            launches: calls.len().max(CEILING_LAUNCHES),
            candidates: configs.to_vec(),
            chained: how.chained,
        };
        let bytes = shape.weight_bytes() as f64;
        let mut all = Vec::with_capacity(configs.len());
        for (i, &config) in configs.iter().enumerate() {
            progress(i as f64 / configs.len() as f64);
            let prepared = self.prepare(race.calls, config, race.chained)?;
            let launch = |i: usize| self.launch(&prepared, i);
            // SAFETY: the buffers live to the end of this function, and so do what is prepared and the stream. Every
            // replay is waited for below, also after an error. Only this object's one call at a time uses them.
            let graph = unsafe { Replay::capture(stream, race.launches, launch) }?;
            let sustained = repeat(&graph, how.time, bytes, &joules).inspect_err(|_| {
                // The error says more than what this one could.
                let _ = stream.synchronize();
            })?;
            all.push(sustained);
        }
        Ok(all)
    }

    fn run(
        &self,
        shape: &Shape,
        operands: &Operands,
        limits: &Limits,
        chains: bool,
        mut progress: impl FnMut(Progress),
    ) -> std::result::Result<Outcome, TuneError> {
        let stream = &self.stream;
        if shape.is_empty() {
            return Err(self.no_candidates(shape, operands));
        }
        let begin = Instant::now();
        let buffers = Buffers::new(stream, shape, operands, &self.gpu)?;
        let calls: Vec<Call> = (0..buffers.offsets.len())
            .map(|i| buffers.call(stream, i))
            .collect::<Result<_>>()?;
        // Operands with the alignment that calls with packed operands will have.
        let operands = calls[0].operands();
        let reads = ReadConfig::candidates(&self.gpu);
        let (before, fastest) = self.ceiling(&buffers, shape, &reads)?;
        let race = |chained| Race {
            calls: &calls,
            // A replay goes over all copies, or the next one would find the first ones in the cache.
            launches: ((REPLAY / before) as usize).max(calls.len()).max(8),
            candidates: self.candidates(shape, &operands, chained),
            chained,
        };
        let alone = race(false);
        if alone.candidates.is_empty() {
            return Err(self.no_candidates(shape, &operands));
        }
        #[cfg(feature = "jit")]
        self.compile(&calls[0], &alone.candidates, alone.chained)?;
        let parts = if chains { 2.0 } else { 1.0 };
        let mut part = |done: f64, at: Progress| {
            progress(Progress {
                share: (done + at.share) / parts,
                ..at
            });
        };
        let mut took = Took {
            before: begin.elapsed(),
            ..Took::default()
        };
        let (ranking, mut failed) = self.rank(&alone, limits, &mut took, |at| part(0.0, at))?;
        let mut chained = Vec::new();
        if chains && self.gpu.compute_capability >= (9, 0) {
            let mut race = race(true);
            // The config that is best alone may be best here, and need not be a candidate for chains. Nor need the
            // config that calls take without a table.
            let alone = ranking.iter().take(BEST_ALONE).map(|(config, _)| *config);
            for config in alone.chain(self.choice(shape, &operands)) {
                if !race.candidates.contains(&config) {
                    race.candidates.push(config);
                }
            }
            let (found, more) = self.rank(&race, limits, &mut took, |at| part(1.0, at))?;
            chained = found;
            failed.extend(more);
        }
        let (after, _) = self.ceiling(&buffers, shape, &fastest)?;
        took.all = begin.elapsed();
        Ok(Outcome {
            entry: Entry {
                shape: *shape,
                operands,
                ceiling_seconds: after.min(before),
                kernels: best_of_each_kernel(&ranking, &chained),
            },
            ranking,
            chained,
            failed,
            took,
        })
    }

    /// The config of a chained call that is given no tuned table.
    pub(super) fn choice(&self, shape: &Shape, operands: &Operands) -> Option<Config> {
        // SAFETY: nothing is launched with these options.
        let chained = unsafe { Options::new().without_environment().chained() };
        let choice = select(shape, operands, Target::Gpu(&self.gpu), &chained);
        choice.ok()?.config
    }

    fn candidates(&self, shape: &Shape, operands: &Operands, chained: bool) -> Vec<Config> {
        let job = Job::new(shape, operands, &self.gpu).chained(chained);
        let all = Kernel::ALL.iter();
        all.flat_map(|kernel| kernel.candidates(&job)).collect()
    }

    /// The candidates that ran, the fastest first, and those that did not.
    fn rank(
        &self,
        race: &Race<'_>,
        limits: &Limits,
        took: &mut Took,
        mut progress: impl FnMut(Progress),
    ) -> std::result::Result<(Ranking, Vec<(Config, Error)>), TuneError> {
        let candidates = &race.candidates;
        let groups: Vec<usize> = candidates
            .iter()
            .map(|config| config.kernel() as usize)
            .collect();
        let mut failed: Vec<(usize, Error)> = Vec::new();
        let start = Instant::now();
        let mut first_round = Duration::ZERO;
        let found = search(
            &groups,
            limits,
            || start.elapsed(),
            |candidate| {
                let timing = self.time(race, candidates[candidate]);
                Ok::<f64, TuneError>(timing.unwrap_or_else(|error| {
                    // A candidate that cannot run loses; whether any can is seen at the end.
                    if failed.iter().all(|(one, _)| *one != candidate) {
                        failed.push((candidate, error));
                    }
                    f64::INFINITY
                }))
            },
            |at| {
                if at.round == 0 {
                    first_round = start.elapsed();
                }
                progress(at);
            },
        )?;
        took.search += start.elapsed();
        took.first_round += first_round;
        let ran = |found: &Found| failed.iter().all(|(one, _)| *one != found.candidate);
        let ranking: Ranking = found
            .into_iter()
            .filter(ran)
            .map(|found| (candidates[found.candidate], found))
            .collect();
        if ranking.is_empty()
            && let Some((_, error)) = failed.first()
        {
            return Err(error.clone().into());
        }
        let failed = failed
            .into_iter()
            .map(|(one, error)| (candidates[one], error))
            .collect();
        Ok((ranking, failed))
    }

    /// Compiles what configs of a call need and this process does not have, on all processors: one after another, when
    /// they are prepared, takes minutes.
    #[cfg(feature = "jit")]
    pub(super) fn compile(&self, call: &Call, configs: &[Config], chained: bool) -> Result<()> {
        make_current(&self.stream)?;
        let plans = self.plans(call, configs, chained);
        raw::compile_ahead(plans.iter().flat_map(|plan| plan.launches()))
    }

    /// The plans of configs, as far as they compute a call.
    #[cfg(feature = "jit")]
    pub(super) fn plans(&self, call: &Call, configs: &[Config], chained: bool) -> Vec<Plan> {
        let plan = |config: &Config| config.plan(call, &self.gpu, chained).ok();
        configs.iter().filter_map(plan).collect()
    }

    /// Calls with a config, one a copy of the weights.
    pub(super) fn prepare(
        &self,
        calls: &[Call],
        config: Config,
        chained: bool,
    ) -> Result<Vec<raw::PreparedRawGemv>> {
        let options = Options::new().config(config);
        let options = match chained {
            // SAFETY: copies filled the weights before, and no kernel writes them.
            true => unsafe { options.chained() },
            false => options,
        };
        make_current(&self.stream)?;
        let prepare = |call| raw::PreparedRawGemv::new(call, &self.gpu, &options);
        calls.iter().map(prepare).collect()
    }

    /// Enqueues the next of what was prepared, within a capture.
    pub(super) fn launch(&self, prepared: &[raw::PreparedRawGemv], i: usize) -> Result<()> {
        let stream = self.stream.cu_stream().cast();
        // SAFETY: the buffers of the calls are of their shape, and live until the replays have run: who captures them
        // waits. The stream's context is current: cudarc made it so for the capture. Nothing else uses the stream.
        unsafe { prepared[i % prepared.len()].run(stream) }
    }

    /// Seconds of a launch.
    fn time(&self, race: &Race<'_>, config: Config) -> Result<f64> {
        let prepared = self.prepare(race.calls, config, race.chained)?;
        let launch = |i: usize| self.launch(&prepared, i);
        // SAFETY: the buffers are borrowed, and only this object's one call at a time uses them.
        let timing = unsafe { time_launches(&self.stream, race.launches, REPLAYS, launch) }?;
        Ok(timing.median)
    }

    /// Seconds of the fastest kernel that only reads as much; and the fastest few.
    fn ceiling(
        &self,
        buffers: &Buffers,
        shape: &Shape,
        reads: &[ReadConfig],
    ) -> Result<(f64, Vec<ReadConfig>)> {
        let offsets = &buffers.offsets;
        let launches = offsets.len().max(CEILING_LAUNCHES);
        let offset = |i: usize| offsets[i % offsets.len()];
        let read = ReadOnly::new(&self.stream, &buffers.weights, &self.gpu)?;
        let ranking = read.rank(reads, shape.weight_bytes(), launches, REPLAYS, offset)?;
        let seconds = ranking
            .first()
            .map_or(f64::NAN, |(_, timing)| timing.median);
        let fastest = ranking.iter().take(FASTEST_READS);
        Ok((seconds, fastest.map(|(config, _)| *config).collect()))
    }

    pub(super) fn no_candidates(&self, shape: &Shape, operands: &Operands) -> TuneError {
        let job = Job::new(shape, operands, &self.gpu);
        let why = |kernel: &Kernel| Some(format!("{kernel}: {}", kernel.available(&job).err()?));
        TuneError::NoCandidates {
            shape: *shape,
            reasons: Kernel::ALL.iter().filter_map(why).collect(),
        }
    }
}

/// Replays for so long without rest, and measures the last half of it. `bytes` are those of a launch.
fn repeat(
    graph: &Replay,
    time: Duration,
    bytes: f64,
    joules: impl Fn() -> Option<f64>,
) -> Result<Sustained> {
    std::thread::sleep(COOL);
    let replay = graph.seconds_a_launch()? * graph.launches() as f64;
    let replays = (PIECE / replay).ceil().max(1.0) as usize;
    let piece = || -> Result<usize> {
        for _ in 1..replays {
            graph.enqueue()?;
        }
        graph.seconds_a_launch()?; // waits
        Ok(replays * graph.launches())
    };
    let begin = Instant::now();
    while begin.elapsed() < time / 2 {
        piece()?;
    }
    let (from, before) = (Instant::now(), joules());
    let mut launches = 0;
    loop {
        launches += piece()?;
        if begin.elapsed() >= time {
            break;
        }
    }
    let elapsed = from.elapsed().as_secs_f64();
    let taken = before.and_then(|before| Some(joules()? - before));
    Ok(Sustained {
        seconds: elapsed / launches as f64,
        joules_per_gb: taken.map(|joules| joules * 1e9 / (bytes * launches as f64)),
    })
}

/// Candidates of a problem, and what they are measured with.
struct Race<'a> {
    /// The problem, with each copy of the weights.
    calls: &'a [Call],
    launches: usize,
    candidates: Vec<Config>,
    chained: bool,
}
