//! A rank with its part of an MLP, and its results.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use half::{bf16, f16};
use nvfp4_gemv::cudarc::driver::{CudaContext, CudaGraph, CudaSlice, CudaStream, sys};
use nvfp4_gemv::{
    Activation, Config, DenseVectors, Dims, GlobalScale, Options, ScaleLayout, Shape, Vectors,
    Weights,
};
use nvfp4_gemv_parallel::layers::{
    DeviceElement, LayersOnDevice, Placement, RankLayers, TensorParallel,
};
use nvfp4_gemv_parallel::nccl::{Communicator, Timeouts, UniqueId};

use super::{LONG, on_threads};

pub(crate) const HIDDEN: usize = 512;
pub(crate) const WIDE: usize = 1024;

/// Element type of vectors, here and on a device.
pub(crate) trait Number: DeviceElement + std::fmt::Debug + 'static {
    const ACTIVATION: Activation;

    fn of(value: f32) -> Self;

    /// Vectors in host memory.
    fn vectors_on_host(values: DenseVectors<'_, Self>) -> Vectors<'_>;
}

macro_rules! numbers {
    ($($type:ty => $variant:ident, $of:expr;)*) => {$(
        impl Number for $type {
            const ACTIVATION: Activation = Activation::$variant;

            fn of(value: f32) -> Self {
                $of(value)
            }

            fn vectors_on_host(values: DenseVectors<'_, Self>) -> Vectors<'_> {
                Vectors::$variant(values)
            }
        }
    )*};
}

numbers! {
    f32 => F32, std::convert::identity;
    f16 => F16, f16::from_f32;
    bf16 => Bf16, bf16::from_f32;
}

/// An MLP without a function between the layers: gate and up are the same weights, and down reads gate's results.
pub(crate) struct Work {
    codes: Vec<u8>,
    scales: Vec<u8>,
    /// Vectors a call.
    pub(crate) n: usize,
    x: Vec<f32>,
}

impl Work {
    pub(crate) fn new(n: usize) -> Self {
        let mut random = fastrand::Rng::with_seed(1);
        let codes = (0..HIDDEN * WIDE / 2).map(|_| random.u8(..)).collect();
        let scales = (0..HIDDEN * WIDE / 16)
            .map(|_| random.u8(0x30..=0x40))
            .collect();
        let x = (0..n * HIDDEN).map(|_| random.f32() - 0.5).collect();
        Self {
            codes,
            scales,
            n,
            x,
        }
    }

    /// Gate and up, and down.
    pub(crate) fn weights(&self) -> Result<[Weights<'_>; 2]> {
        let layer = |m, k| {
            let shape = Shape::matrix(m, k)?;
            let global = GlobalScale::Divisor(64.0);
            Weights::new(
                &shape,
                &self.codes,
                &self.scales,
                ScaleLayout::Linear,
                global,
            )
        };
        Ok([layer(WIDE, HIDDEN)?, layer(HIDDEN, WIDE)?])
    }

    pub(crate) fn vectors<T: Number>(&self) -> Vec<T> {
        self.x.iter().map(|&x| T::of(x)).collect()
    }

    /// The shape of weights with this work's vectors.
    pub(crate) fn shape(&self, weights: &Shape) -> Result<Shape> {
        let (m, k, n) = (weights.m(), weights.k(), self.n);
        Ok(Shape::new(Dims { m, n, k, l: 1 })?)
    }
}

/// Results of ranks, and how often a kernel rounds a term: of gate and of down, on the rank with the most roundings.
pub(crate) struct Computed {
    pub(crate) y: Vec<f32>,
    pub(crate) roundings: [u32; 2],
}

pub(crate) struct Rank<T: Number> {
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) mlp: LayersOnDevice<T>,
    computing: [(Config, Shape); 2],
}

impl<T: Number> Rank<T> {
    pub(crate) fn new(
        work: &Work,
        rank: usize,
        ranks: usize,
        id: &UniqueId,
        timeouts: impl Into<Timeouts>,
        placement: Placement,
    ) -> Result<Self> {
        let stream = stream_of(rank)?;
        let all = Arc::new(Communicator::new(&stream, ranks, rank, id, timeouts)?);
        let [wide, narrow] = work.weights()?;
        let mine = TensorParallel::mlp(&wide, &wide, &narrow, ranks)?.rank(rank)?;
        let mut mlp: LayersOnDevice<T> = mine.place(&stream, &all, &placement, &Options::new())?;
        stream.memcpy_htod(&work.vectors::<T>(), mlp.input())?;
        let computing = computing(work, &mine, &mlp)?;
        Ok(Self {
            stream,
            mlp,
            computing,
        })
    }

    /// Number of roundings of a term, by gate's kernel and by down's.
    pub(crate) fn roundings(&self, activation: Activation) -> [u32; 2] {
        let of = |(config, shape): &(Config, Shape)| config.roundings(shape, activation);
        self.computing.each_ref().map(of)
    }

    /// The result: launched, then captured and replayed, with the same bits each time.
    pub(crate) fn compute(mut self) -> Result<Computed> {
        let roundings = self.roundings(T::ACTIVATION);
        let (stream, mlp) = (&self.stream, &mut self.mlp);
        mlp.run(stream, between)?;
        mlp.synchronize(stream)?;
        let result = |mlp: &LayersOnDevice<T>| -> Result<Vec<f32>> {
            let y = stream.clone_dtoh(&mlp.output())?;
            Ok(y.into_iter().map(Into::into).collect())
        };
        let first = result(mlp)?;
        let graph = captured(stream, || mlp.run(stream, between))?;
        for _ in 0..3 {
            graph.launch()?;
            mlp.synchronize(stream)?;
            let again = result(mlp)?;
            ensure!(bits(&again) == bits(&first), "a replay has other bits");
        }
        Ok(Computed {
            y: first,
            roundings,
        })
    }
}

/// A stream of its own on a rank's GPU.
pub(crate) fn stream_of(rank: usize) -> Result<Arc<CudaStream>> {
    let context = CudaContext::new(rank)?;
    // SAFETY: all of the rank's work goes to the one stream below, which orders how buffers are used and freed.
    unsafe { context.disable_event_tracking() };
    Ok(context.new_stream()?)
}

/// The work that `enqueue` puts into the stream, as a graph.
pub(crate) fn captured(
    stream: &Arc<CudaStream>,
    enqueue: impl FnOnce() -> Result<()>,
) -> Result<CudaGraph> {
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let enqueued = enqueue();
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags)?;
    enqueued?;
    graph.context("nothing was captured")
}

/// Configs that compute gate and down, and the layers' shapes here.
fn computing<T: Number>(
    work: &Work,
    mine: &RankLayers<'_>,
    mlp: &LayersOnDevice<T>,
) -> Result<[(Config, Shape); 2]> {
    let choices = mlp.choices();
    let of = |at: usize, weights: &Shape| -> Result<(Config, Shape)> {
        let config = choices[at].config.context("a GPU has configs")?;
        Ok((config, work.shape(weights)?))
    };
    // Gate, up, down.
    Ok([of(0, mine.first()[0].shape())?, of(2, mine.last().shape())?])
}

/// The operation between the layers: it copies the result of gate.
pub(crate) fn between<T: Number>(
    stream: &Arc<CudaStream>,
    gate_up: &[CudaSlice<T>],
    out: &mut CudaSlice<T>,
) -> Result<()> {
    Ok(stream.memcpy_dtod(&gate_up[0], out)?)
}

pub(crate) fn bits(y: &[f32]) -> Vec<u32> {
    y.iter().map(|y| y.to_bits()).collect()
}

/// The results of ranks that are threads, the same on all.
pub(crate) fn by_threads<T: Number>(
    work: &Work,
    ranks: usize,
    placement: Placement,
) -> Result<Computed> {
    let id = UniqueId::new()?;
    let rank = |at| Rank::<T>::new(work, at, ranks, &id, LONG, placement)?.compute();
    let mut results = on_threads(ranks, rank)?.into_iter();
    let mut first = results.next().context("there is a rank")?;
    for other in results {
        ensure!(
            bits(&other.y) == bits(&first.y),
            "two ranks have other bits"
        );
        for (most, other) in first.roundings.iter_mut().zip(other.roundings) {
            *most = other.max(*most);
        }
    }
    Ok(first)
}
