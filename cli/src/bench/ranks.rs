//! Threads with a GPU each, which compute pairs of layers together: what `--tensor-parallel` measures.

use std::sync::Arc;
use std::thread::scope;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaGraph, CudaStream};
use half::{bf16, f16};
use nvfp4_gemv::nccl::{self, Communicator, UniqueId};
use nvfp4_gemv::parallel::{
    DeviceElement, GroupError, HostRank, LayersError, LayersOnDevice, Placement, RankLayers,
    TensorParallel, VectorGlobals,
};
use nvfp4_gemv::{
    Activation, Dims, GlobalScale, Operands, Options, ScaleLayout, Shape, Weights, Workspace,
    dispatch, raw,
};

use super::alternate::WARM_UP;
use super::several::{Job, Measured, Pair};
use crate::configs::one_line;

/// How long a rank waits for the others.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Pairs in a graph at most, where weights are few bytes.
const MOST_PAIRS: usize = 64;

/// Weights on the host: all matrices are the beginnings of the same random bytes.
struct Bytes {
    codes: Vec<u8>,
    scales: Vec<u8>,
}

impl Bytes {
    fn new(pair: &Pair, layout: ScaleLayout) -> Result<Self> {
        let mut random = fastrand::Rng::with_seed(1);
        let (mut codes, mut scales) = (0, 0);
        for (m, k) in pair.columns.iter().copied().chain([pair.row]) {
            let shape = Shape::matrix(m, k)?;
            codes = codes.max(shape.weight_code_bytes());
            scales = scales.max(shape.weight_scale_bytes(layout));
        }
        let mut bytes = Self {
            codes: vec![0; codes],
            scales: vec![0; scales],
        };
        random.fill(&mut bytes.codes);
        // From 0.5 to 2.
        bytes.scales.fill_with(|| random.u8(0x30..=0x40));
        Ok(bytes)
    }

    fn weights(&self, (m, k): (usize, usize), layout: ScaleLayout) -> Result<Weights<'_>> {
        let shape = Shape::matrix(m, k)?;
        let codes = &self.codes[..shape.weight_code_bytes()];
        let scales = &self.scales[..shape.weight_scale_bytes(layout)];
        // Results of about the size of the vectors.
        let global = GlobalScale::Multiplier(0.25 / (k as f32).sqrt());
        Ok(Weights::new(&shape, codes, scales, layout, global)?)
    }
}

/// Converts what the host makes.
trait FromF32 {
    fn from_f32(value: f32) -> Self;
}

macro_rules! from_f32 {
    ($($type:ty: $convert:expr;)*) => {$(
        impl FromF32 for $type {
            fn from_f32(value: f32) -> Self {
                $convert(value)
            }
        }
    )*};
}

from_f32! {
    f32: std::convert::identity;
    f16: f16::from_f32;
    bf16: bf16::from_f32;
}

/// Measures one pair: on one GPU, and on all ranks.
pub(super) fn measure(job: &Job) -> Result<Measured> {
    match job.activation {
        Activation::F32 => with_type::<f32>(job),
        Activation::F16 => with_type::<f16>(job),
        Activation::Bf16 => with_type::<bf16>(job),
        // Quantised from what is between the layers, and added up in that.
        Activation::Nvfp4 => with_type::<bf16>(job),
    }
}

fn with_type<T: DeviceElement + FromF32>(job: &Job) -> Result<Measured> {
    let bytes = Bytes::new(&job.pair, job.layout)?;
    let weights = |size| bytes.weights(size, job.layout);
    let columns = job.pair.columns.iter().map(|&size| weights(size));
    let columns = columns.collect::<Result<Vec<_>>>()?;
    let row = weights(job.pair.row)?;
    let divided = |ranks| -> Result<TensorParallel<'_>> {
        Ok(match (job.pair.head, &columns[..]) {
            (None, [gate, up]) => TensorParallel::mlp(gate, up, &row, ranks)?,
            (Some(head), [q, k, v]) => TensorParallel::attention([q, k, v], &row, head, ranks)?,
            _ => bail!("{} are no pair of layers", job.pair.name),
        })
    };
    // Indivisible layers are refused before anything is copied.
    let over_ranks = divided(job.ranks)?;
    let alone = Job {
        windows: false,
        ..job.clone()
    };
    let (one, measured_one) = all_ranks::<T>(&alone, &divided(1)?)?;
    let (whole, mut measured) = all_ranks::<T>(job, &over_ranks)?;
    let largest = one.iter().fold(0.0f32, |most, y| most.max(y.abs()));
    ensure!(largest > 0.0, "the result on one GPU is 0");
    let off = one
        .iter()
        .zip(&whole)
        .map(|(one, whole)| f64::from((one - whole).abs()));
    // A NaN stays one.
    let most = off.fold(0.0, |most: f64, off| {
        if off > most || off.is_nan() {
            off
        } else {
            most
        }
    });
    measured.difference = most / f64::from(largest);
    measured.one = measured_one.own;
    measured.pairs[0] = measured_one.pairs[1];
    measured.same_bits &= measured_one.same_bits;
    Ok(measured)
}

/// The result, and the times, of ranks with a thread each. The slowest rank's time counts.
fn all_ranks<T: DeviceElement + FromF32>(
    job: &Job,
    layers: &TensorParallel<'_>,
) -> Result<(Vec<f32>, Measured)> {
    let id = UniqueId::new()?;
    let results: Vec<Result<(Vec<f32>, Measured)>> = scope(|scope| {
        let threads: Vec<_> = HostRank::group(layers.ranks())
            .into_iter()
            .map(|group| scope.spawn(move || Rank::<T>::new(job, layers, group, id)?.measure()))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<_>>| {
            thread
                .join()
                .unwrap_or_else(|_| Err(anyhow!("a rank's thread panicked")))
        };
        threads.into_iter().map(join).collect()
    });
    // One rank's error ends the others, who say less of it.
    let ended_by_another =
        |error: &anyhow::Error| matches!(error.downcast_ref(), Some(GroupError::Gone { .. }));
    let (mut done, mut errors) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(result) => done.push(result),
            Err(error) => errors.push(error),
        }
    }
    errors.sort_by_key(ended_by_another);
    if let Some(error) = errors.into_iter().next() {
        return Err(error);
    }
    let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
    let same = done.iter().all(|(y, _)| bits(y) == bits(&done[0].0));
    let (y, mut measured) = done.into_iter().next().context("no rank")?;
    measured.same_bits &= same;
    Ok((y, measured))
}

/// A thread with a GPU. Fields are dropped in their order: graphs before what they use.
struct Rank<'a, T: DeviceElement> {
    job: &'a Job,
    graphs: Graphs,
    pairs: Vec<LayersOnDevice<T>>,
    communicator: Arc<Communicator>,
    stream: Arc<CudaStream>,
    group: HostRank,
}

/// All pairs with their sums, without, and the sums alone.
struct Graphs {
    whole: CudaGraph,
    own: CudaGraph,
    sum: Option<CudaGraph>,
}

fn nothing<T>(_: &Arc<CudaStream>, _: &[T], _: &mut T) -> Result<(), LayersError> {
    Ok(())
}

impl<'a, T: DeviceElement + FromF32> Rank<'a, T> {
    fn new(
        job: &'a Job,
        layers: &TensorParallel<'_>,
        group: HostRank,
        id: UniqueId,
    ) -> Result<Self> {
        let (rank, ranks) = (group.rank(), group.ranks());
        let context = CudaContext::new(rank)?;
        // SAFETY: all work of this rank goes to the one stream below, whose order makes events unnecessary.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream()?;
        let communicator = Communicator::new(&stream, ranks, rank, &id, TIMEOUT)?;
        let communicator = Arc::new(communicator);
        let mine = layers.rank(rank)?;
        let shards = mine.columns().iter().chain([mine.row()]);
        let bytes: usize = shards.map(|shard| shard.shape().weight_bytes()).sum();
        let count = job.plan.cold_bytes.div_ceil(bytes).clamp(2, MOST_PAIRS);
        let workspace = Workspace::new(&stream, workspace_bytes(job, &mine, rank)?)?;
        let options = Options::new().workspace(&workspace);
        let mut pairs = Vec::with_capacity(count);
        for _ in 0..count {
            pairs.push(mine.place::<T>(&stream, &communicator, &placement(job), &options)?);
        }
        // The vectors: the same on all ranks, and of what is between each rank's part of the same ones.
        let (k, whole_k) = (mine.columns()[0].shape().k(), job.pair.row.1);
        let x = vectors::<T>(2, job.n, k);
        let middle = vectors::<T>(3, job.n, whole_k);
        let part = whole_k / ranks;
        let of_vector = |vector: usize| {
            let first = vector * whole_k + rank * part;
            &middle[first..first + part]
        };
        let middle: Vec<T> = (0..job.n).flat_map(of_vector).copied().collect();
        for pair in &mut pairs {
            stream.memcpy_htod(&x, pair.input())?;
            // Once outside of a capture, which also lets NCCL connect the ranks.
            pair.launch(&stream, |stream, _, between| -> Result<()> {
                Ok(stream.memcpy_htod(&middle, between)?)
            })?;
        }
        communicator.synchronize(&stream)?;
        let graphs = Graphs::capture(&stream, &mut pairs, ranks)?;
        Ok(Self {
            job,
            graphs,
            pairs,
            communicator,
            stream,
            group,
        })
    }

    fn measure(mut self) -> Result<(Vec<f32>, Measured)> {
        let mut measured = Measured {
            nccl: nccl::library()?.0.to_string(),
            pairs: [0, self.pairs.len()],
            kernels: self.kernels(),
            same_bits: true,
            ..Measured::default()
        };
        let mut first: Option<Vec<f32>> = None;
        for round in 0..WARM_UP + self.job.plan.rounds {
            let whole = self.seconds(&self.graphs.whole)?;
            // Before the sums alone add to them what is there.
            let y = self.result()?;
            let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
            measured.same_bits &= first.as_ref().is_none_or(|first| bits(first) == bits(&y));
            first.get_or_insert(y);
            let own = self.seconds(&self.graphs.own)?;
            let sum = match &self.graphs.sum {
                Some(sum) => self.seconds(sum)?,
                None => 0.0,
            };
            if round >= WARM_UP {
                measured.whole.push(whole);
                measured.own.push(own);
                measured.sum.push(sum);
            }
        }
        Ok((first.context("no round")?, measured))
    }

    /// Of one pair: all ranks begin together, and the slowest one counts.
    fn seconds(&self, graph: &CudaGraph) -> Result<f64> {
        let event = || {
            let flags = Some(CUevent_flags::CU_EVENT_DEFAULT);
            self.stream.record_event(flags)
        };
        let mut seconds = vec![0.0; self.group.ranks()];
        self.group.all_gather(&[0.0], &mut seconds)?;
        let begin = event()?;
        graph.launch()?;
        let end = event()?;
        self.communicator.synchronize(&self.stream)?;
        let mine = begin.elapsed_ms(&end)? * 1e-3;
        self.group.all_gather(&[mine], &mut seconds)?;
        let slowest = seconds
            .iter()
            .fold(0.0f32, |most, seconds| most.max(*seconds));
        Ok(f64::from(slowest) / self.pairs.len() as f64)
    }

    /// Of the first pair. That of the others is the same, since their weights are.
    fn result(&mut self) -> Result<Vec<f32>> {
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

impl Graphs {
    fn capture<T: DeviceElement>(
        stream: &Arc<CudaStream>,
        pairs: &mut [LayersOnDevice<T>],
        ranks: usize,
    ) -> Result<Self> {
        let mut graph = |launch: &dyn Fn(&mut LayersOnDevice<T>) -> Result<(), LayersError>| {
            stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
            let launched = pairs.iter_mut().try_for_each(launch);
            let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
            // A capture is ended also where a launch in it has failed.
            let graph = stream.end_capture(flags);
            launched?;
            graph?.context("nothing was captured")
        };
        Ok(Self {
            whole: graph(&|pair| pair.launch(stream, nothing))?,
            own: graph(&|pair| pair.launch_own(stream, nothing))?,
            // One rank has nothing to add up.
            sum: match ranks {
                1 => None,
                _ => Some(graph(&|pair| pair.reduce(stream))?),
            },
        })
    }
}

fn placement(job: &Job) -> Placement {
    let mut placement = Placement::new(job.n);
    if job.windows {
        placement = placement.in_window();
    }
    if job.activation == Activation::Nvfp4 {
        // Of vectors whose elements are 1 at most: the greatest code and block scale make that of it.
        let global = GlobalScale::Divisor(6.0 * 448.0);
        let [input, between] = [global; 2];
        placement = placement.nvfp4(VectorGlobals { input, between });
    }
    placement
}

/// As much as the layer needs that needs most: all of them share it.
fn workspace_bytes(job: &Job, layers: &RankLayers<'_>, gpu: usize) -> Result<u64> {
    let gpu = raw::gpu(gpu as u32)?;
    let operands = Operands::new(job.activation, job.layout);
    let mut most = 0;
    for shard in layers.columns().iter().chain([layers.row()]) {
        let (m, k) = (shard.shape().m(), shard.shape().k());
        let shape = Shape::new(Dims {
            m,
            n: job.n,
            k,
            l: 1,
        })?;
        let needs = dispatch::workspace_bytes(&shape, &operands, &gpu, &Options::new())?;
        most = most.max(needs);
    }
    Ok(most)
}

/// From -1 to 1.
fn vectors<T: FromF32>(seed: u64, n: usize, k: usize) -> Vec<T> {
    let mut random = fastrand::Rng::with_seed(seed);
    let value = |_| T::from_f32(2.0 * random.f32() - 1.0);
    (0..n * k).map(value).collect()
}
