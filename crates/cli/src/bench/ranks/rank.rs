//! A thread with a GPU, and what it measures there.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaGraph, CudaSlice, CudaStream};
use nvfp4_gemv::{Activation, GlobalScale, Operands, Options, Workspace, dispatch, raw};
use nvfp4_gemv_documents::alternate::{WARM_UP, alternate};
use nvfp4_gemv_parallel::layers::{
    DeviceElement, HostRank, LayersError, LayersOnDevice, Placement, RankLayers, TensorParallel,
    VectorGlobals,
};
use nvfp4_gemv_parallel::nccl::{self, Communicator, UniqueId};

use super::super::several::{Job, Measured, Windows};
use super::steps::At;
use super::{FromF32, Outcome, bits};
use crate::configs::one_line;
use crate::shapes;

/// How long a rank waits for the others.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Pairs in a graph at most, where weights are few bytes.
const MOST_PAIRS: usize = 64;
/// Sums of one element before the measured work, in which ranks wait for each other, and so begin together.
const ALIGNING: usize = 8;
/// Bytes that each rank then fills, [`FILLS`] times. Filling takes the GPU longer than the host takes to enqueue the
/// measured work, so no GPU waits for its host in the time that counts. The bytes are few, since they are written back
/// in that time.
const FILLED: usize = 4 << 20;
const FILLS: usize = 16;

/// A thread with a GPU. Fields are dropped in their order: first what others wait for without a timeout; graphs before
/// what they use.
pub(super) struct Rank<'a, T: DeviceElement> {
    job: &'a Job,
    at: At<'a>,
    group: HostRank,
    graphs: Graphs,
    pairs: Vec<LayersOnDevice<T>>,
    communicator: Arc<Communicator>,
    stream: Arc<CudaStream>,
}

/// Graphs: `align` lets all ranks begin together, `whole` is all pairs with their sums, `own` the pairs without sums,
/// `sum` the sums alone.
struct Graphs {
    align: CudaGraph,
    whole: CudaGraph,
    own: CudaGraph,
    sum: Option<CudaGraph>,
    /// The memory that `align` fills and adds up.
    _filled: CudaSlice<f32>,
}

fn nothing<T>(_: &Arc<CudaStream>, _: &[T], _: &mut T) -> Result<(), LayersError> {
    Ok(())
}

impl<'a, T: DeviceElement + FromF32> Rank<'a, T> {
    pub(super) fn new(
        job: &'a Job,
        layers: &TensorParallel<'_>,
        group: HostRank,
        id: UniqueId,
        at: At<'a>,
    ) -> Result<Self> {
        let (rank, ranks) = (group.rank(), group.ranks());
        at.step(|| "joining the other ranks".into());
        let context = CudaContext::new(rank)?;
        // SAFETY: all work of this rank goes to the one stream below, whose order makes events unnecessary.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream()?;
        let communicator = Communicator::new(&stream, ranks, rank, &id, TIMEOUT)?;
        let communicator = Arc::new(communicator);
        let mut pairs = Vec::new();
        match Self::prepare(job, layers, &stream, &communicator, &mut pairs, at) {
            Ok(graphs) => Ok(Self {
                job,
                at,
                group,
                graphs,
                pairs,
                communicator,
                stream,
            }),
            Err(error) => {
                // Before anything is dropped that would wait for the others, who wait for this rank.
                drop(group);
                communicator.abort();
                Err(error)
            }
        }
    }

    /// All pairs, launched once, and captured.
    fn prepare(
        job: &Job,
        layers: &TensorParallel<'_>,
        stream: &Arc<CudaStream>,
        communicator: &Arc<Communicator>,
        pairs: &mut Vec<LayersOnDevice<T>>,
        at: At<'_>,
    ) -> Result<Graphs> {
        let (rank, ranks) = (communicator.rank(), communicator.ranks());
        let mine = layers.rank(rank)?;
        let shards = mine.first().iter().chain([mine.last()]);
        let bytes: usize = shards.map(|shard| shard.shape().weight_bytes()).sum();
        let count = job.plan.cold_bytes.div_ceil(bytes).clamp(2, MOST_PAIRS);
        let workspace = Workspace::new(stream, workspace_bytes(job, &mine, rank)?)?;
        let options = Options::new().workspace(&workspace);
        // One GPU alone adds nothing up.
        let placement = placement(job, ranks > 1);
        // All at once: each registration maps the memory of every rank on every other one.
        at.step(|| {
            format!("registering windows for {count} pairs, if their sums are made in such")
        });
        let windows = mine.windows::<T>(stream, communicator, &placement, count)?;
        let mut windows = windows.into_iter();
        for pair in 0..count {
            at.step(|| format!("copying and preparing pair {} of {count}", pair + 1));
            let window = windows.next();
            pairs.push(mine.place_with(stream, communicator, &placement, &options, window)?);
        }
        // The vectors: the same on all ranks, and of what is between each rank's part of the same ones.
        let (k, whole_k) = (mine.first()[0].shape().k(), job.pair.row.1);
        let x = vectors::<T>(2, job.n, k);
        let middle = vectors::<T>(3, job.n, whole_k);
        let part = whole_k / ranks;
        let of_vector = |vector: usize| {
            let first = vector * whole_k + rank * part;
            &middle[first..first + part]
        };
        let middle: Vec<T> = (0..job.n).flat_map(of_vector).copied().collect();
        for (number, pair) in pairs.iter_mut().enumerate() {
            at.step(|| {
                format!(
                    "launching pair {} of {count} for the first time",
                    number + 1
                )
            });
            stream.memcpy_htod(&x, pair.input())?;
            // Once outside of a capture, which also lets NCCL connect the ranks.
            pair.run(stream, |stream, _, between| -> Result<()> {
                Ok(stream.memcpy_htod(&middle, between)?)
            })?;
        }
        at.step(|| "waiting for the first launches".into());
        communicator.synchronize(stream)?;
        at.step(|| "capturing graphs".into());
        Graphs::capture(stream, communicator, pairs)
    }

    /// Measures in turns: one GPU, on the first thread; all pairs with their sums, without sums, and the sums alone.
    pub(super) fn measure(self, alone: Option<Self>) -> Result<Outcome> {
        let measured = self.turns(alone.as_ref());
        if measured.is_err() {
            // As above; and the group is the first to be dropped.
            self.communicator.abort();
        }
        measured
    }

    fn turns(&self, alone: Option<&Self>) -> Result<Outcome> {
        const ONE: usize = 0;
        const WHOLE: usize = 1;
        const OWN: usize = 2;
        let (mut one, mut whole) = (Seen::default(), Seen::default());
        const WAYS: [&str; 4] = ["one GPU", "all GPUs", "all GPUs without sums", "sums alone"];
        let mut turns_begun = 0;
        let turn = |way: usize| -> Result<f64> {
            turns_begun += 1;
            self.at
                .step(|| format!("turn {turns_begun}: {}", WAYS[way]));
            // All have ended the turn before.
            self.begin()?;
            match way {
                ONE => match alone {
                    None => Ok(0.0),
                    Some(alone) => {
                        alone.begin()?;
                        let seconds = alone.seconds(|graphs| Some(&graphs.own))?;
                        one.see(alone.result()?);
                        Ok(seconds)
                    }
                },
                WHOLE => {
                    let seconds = self.seconds(|graphs| Some(&graphs.whole))?;
                    // The results are read before the sums alone add to them.
                    whole.see(self.result()?);
                    Ok(seconds)
                }
                OWN => self.seconds(|graphs| Some(&graphs.own)),
                _ => self.seconds(|graphs| graphs.sum.as_ref()),
            }
        };
        let turns = alternate(4, WARM_UP, self.job.plan.rounds, turn)?;
        let [of_one, of_whole, of_own, of_sum] = turns.try_into().expect("four ways take turns");
        let count = |alone: &Self| alone.pairs.len();
        self.at.step(|| "giving everything back".into());
        Ok(Outcome {
            measured: Measured {
                nccl: nccl::library()?.0.to_string(),
                pairs: [alone.map_or(0, count), self.pairs.len()],
                kernels: self.kernels(),
                in_window: self.pairs[0].is_in_window(),
                one: of_one,
                whole: of_whole,
                own: of_own,
                sum: of_sum,
                same_bits: one.same && whole.same,
                difference: 0.0,
            },
            one: one.first.unwrap_or_default(),
            whole: whole.first.context("no round")?,
        })
    }

    /// Waits until all ranks are here.
    fn begin(&self) -> Result<()> {
        let mut all = vec![0.0; self.group.ranks()];
        Ok(self.group.all_gather(&[0.0], &mut all)?)
    }

    /// Seconds of one pair: all ranks begin together, and the slowest one counts.
    fn seconds<'g>(&'g self, graph: impl Fn(&'g Graphs) -> Option<&'g CudaGraph>) -> Result<f64> {
        let Some(graph) = graph(&self.graphs) else {
            return Ok(0.0);
        };
        let event = || {
            let flags = Some(CUevent_flags::CU_EVENT_DEFAULT);
            self.stream.record_event(flags)
        };
        self.graphs.align.launch()?;
        let begin = event()?;
        graph.launch()?;
        let end = event()?;
        self.communicator.synchronize(&self.stream)?;
        let mine = begin.elapsed_ms(&end)? * 1e-3;
        let mut seconds = vec![0.0; self.group.ranks()];
        self.group.all_gather(&[mine], &mut seconds)?;
        let slowest = seconds
            .iter()
            .fold(0.0f32, |most, seconds| most.max(*seconds));
        Ok(f64::from(slowest) / self.pairs.len() as f64)
    }

    /// The result of the first pair. The other pairs have equal weights, and so equal results.
    fn result(&self) -> Result<Vec<f32>> {
        let y = self.stream.clone_dtoh(&self.pairs[0].output())?;
        self.communicator.synchronize(&self.stream)?;
        Ok(y.into_iter().map(Into::into).collect())
    }

    fn kernels(&self) -> Vec<String> {
        let choices = self.pairs[0].choices();
        let config = |choice: &&nvfp4_gemv::Choice| match &choice.config {
            Some(config) => one_line(config),
            None => choice.path.to_string(),
        };
        choices.iter().map(config).collect()
    }
}

/// Results of all rounds, which must be the same.
struct Seen {
    first: Option<Vec<f32>>,
    same: bool,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            first: None,
            same: true,
        }
    }
}

impl Seen {
    fn see(&mut self, y: Vec<f32>) {
        self.same &= self
            .first
            .as_ref()
            .is_none_or(|first| bits(first) == bits(&y));
        self.first.get_or_insert(y);
    }
}

impl Graphs {
    fn capture<T: DeviceElement>(
        stream: &Arc<CudaStream>,
        communicator: &Communicator,
        pairs: &mut [LayersOnDevice<T>],
    ) -> Result<Self> {
        let mut filled = stream.alloc_zeros::<f32>(FILLED / size_of::<f32>())?;
        // Once outside of a capture: a sum of so few elements may be made in another way.
        communicator.all_reduce(stream, &mut filled.slice_mut(..1))?;
        communicator.synchronize(stream)?;
        let align = captured(stream, || {
            for _ in 0..ALIGNING {
                communicator.all_reduce(stream, &mut filled.slice_mut(..1))?;
            }
            for _ in 0..FILLS {
                stream.memset_zeros(&mut filled)?;
            }
            Ok(())
        })?;
        let mut graph = |launch: &dyn Fn(&mut LayersOnDevice<T>) -> Result<(), LayersError>| {
            captured(stream, || Ok(pairs.iter_mut().try_for_each(launch)?))
        };
        Ok(Self {
            align,
            whole: graph(&|pair| pair.run(stream, nothing))?,
            own: graph(&|pair| pair.run_own(stream, nothing))?,
            // One rank has nothing to add up.
            sum: match communicator.ranks() {
                1 => None,
                _ => Some(graph(&|pair| pair.reduce(stream))?),
            },
            _filled: filled,
        })
    }
}

/// The enqueued work, as a graph.
fn captured(stream: &Arc<CudaStream>, enqueue: impl FnOnce() -> Result<()>) -> Result<CudaGraph> {
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let enqueued = enqueue();
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    // A capture is ended also where a launch in it has failed.
    let graph = stream.end_capture(flags);
    enqueued?;
    graph?.context("nothing was captured")
}

fn placement(job: &Job, is_summed: bool) -> Placement {
    let mut placement = Placement::new(job.n);
    if is_summed {
        placement = match job.windows {
            Windows::All => placement.in_window(),
            Windows::BySize => placement.by_size(),
            Windows::None => placement,
        };
    }
    if job.activation == Activation::Nvfp4 {
        // Global scale for vectors whose elements are 1 at most: the greatest code and block scale stand for 1.
        let global = GlobalScale::Divisor(6.0 * 448.0);
        let [input, between] = [global; 2];
        placement = placement.nvfp4(VectorGlobals { input, between });
    }
    placement
}

/// Bytes of workspace that the most demanding layer needs: all layers share the workspace.
fn workspace_bytes(job: &Job, layers: &RankLayers<'_>, gpu: usize) -> Result<u64> {
    let gpu = raw::gpu(gpu as u32)?;
    let operands = Operands::new(job.activation, job.layout);
    let mut most = 0;
    for shard in layers.first().iter().chain([layers.last()]) {
        let (m, k) = (shard.shape().m(), shard.shape().k());
        let shape = shapes::of(m, job.n, k, 1)?;
        let needs = dispatch::workspace_bytes(&shape, &operands, &gpu, &Options::new())?;
        most = most.max(needs);
    }
    Ok(most)
}

/// Random vectors of elements from -1 to 1.
fn vectors<T: FromF32>(seed: u64, n: usize, k: usize) -> Vec<T> {
    let mut random = fastrand::Rng::with_seed(seed);
    let value = |_| T::from_f32(2.0 * random.f32() - 1.0);
    (0..n * k).map(value).collect()
}
