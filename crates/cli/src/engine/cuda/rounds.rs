//! Rounds on a device: each way is a CUDA graph of launches, captured once and replayed each round.

use std::cell::RefMut;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use cudarc::driver::{CudaSlice, DeviceRepr};
use half::f16;
use nvfp4_gemv::kernel::read_only::ReadConfig;
use nvfp4_gemv::measure::{ReadOnly, Replay, copies_for_cold_l2};
use nvfp4_gemv::{Device, GlobalScale, Options, Result, Shape, Weights, gemv_on_device};
use nvfp4_gemv_documents::document::{Sustained, Turn};
use nvfp4_gemv_documents::statistics::median;

use super::super::rounds::scale;
use super::super::{Case, Extent, Ids, Plan, Ready, Way, Ways, Work, memory};
use super::board::Board;
use super::{Cuda, cublas, cuda};

/// Random bytes in device memory that every case's weights are cut from. They are uploaded once, because a suite's
/// weights together are many times what the host makes and copies in a second.
pub(super) struct Pool {
    pub(super) codes: CudaSlice<u8>,
    pub(super) scales: CudaSlice<u8>,
}

/// Alignment of the copies: what the widest loads and bulk copies need, and more.
pub(super) const ALIGNMENT: usize = 256;

/// Launches a graph holds at least, so that what starts it does not count.
const LAUNCHES: usize = 48;

/// Random bytes made on the host; the device repeats them. Its memory does not notice.
pub(super) const RANDOM_BYTES: usize = 16 << 20;

impl Cuda {
    fn random(&self, bytes: usize, seed: u64, map: fn(u8) -> u8) -> Result<CudaSlice<u8>> {
        let mut piece = vec![0; RANDOM_BYTES.min(bytes)];
        fastrand::Rng::with_seed(seed).fill(&mut piece);
        piece.iter_mut().for_each(|byte| *byte = map(*byte));
        self.repeated(&piece, bytes)
    }

    /// `count` values in device memory: those of `piece`, over and over.
    pub(super) fn repeated<T: DeviceRepr>(
        &self,
        piece: &[T],
        count: usize,
    ) -> Result<CudaSlice<T>> {
        let piece = self.upload(piece)?;
        let failed = |error| cuda("filling device memory", error);
        // SAFETY: every value is written below, before it is read.
        let mut all = unsafe { self.stream.alloc::<T>(count) }.map_err(failed)?;
        for at in (0..count).step_by(piece.len().max(1)) {
            let now = piece.len().min(count - at);
            self.stream
                .memcpy_dtod(&piece.slice(..now), &mut all.slice_mut(at..at + now))
                .map_err(failed)?;
        }
        Ok(all)
    }

    /// Bytes for weights, made anew where those that are there do not suffice: at least so many of codes and of scales.
    pub(super) fn pool(
        &self,
        codes: usize,
        scales: usize,
        plan: &Plan,
    ) -> Result<RefMut<'_, Pool>> {
        let mut pool = self.pool.borrow_mut();
        let fits = |pool: &Pool| pool.codes.len() >= codes && pool.scales.len() >= scales;
        if !pool.as_ref().is_some_and(fits) {
            *pool = None; // freed before its successor is allocated
            *pool = Some(Pool {
                codes: self.random(codes.max(plan.cold_bytes), 1, |byte| byte)?,
                scales: self.random(scales.max(plan.cold_bytes / 8), 2, scale)?,
            });
        }
        Ok(RefMut::map(pool, |pool| {
            pool.as_mut().expect("it was made above")
        }))
    }

    /// The pool of f16 weights for cuBLAS.
    fn f16_pool(&self, count: usize) -> Result<RefMut<'_, CudaSlice<f16>>> {
        let mut pool = self.f16_pool.borrow_mut();
        if pool.as_ref().is_none_or(|pool| pool.len() < count) {
            *pool = None; // freed before its successor is allocated
            *pool = Some(self.f16_weights(count)?);
        }
        Ok(RefMut::map(pool, |pool| {
            pool.as_mut().expect("it was made above")
        }))
    }

    /// Whether launches can follow each other with programmatic dependent launch.
    pub(super) fn can_chain(&self) -> bool {
        self.gpu.compute_capability >= (9, 0)
    }

    pub(super) fn prepare_ways(
        &self,
        case: &Case,
        works: &[Work],
        plan: &Plan,
        drive: &mut dyn FnMut(&mut dyn Ways) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let shape = &case.shape;
        let bytes = shape.weight_bytes();
        let cold_copies = copies_for_cold_l2(bytes, self.gpu.l2_bytes);
        let copies = Plan::copies(plan.cold_bytes, bytes, cold_copies);
        let (code_bytes, scale_bytes) = (
            shape.weight_code_bytes(),
            shape.weight_scale_bytes(case.layout),
        );
        let read_stride = bytes.next_multiple_of(ALIGNMENT);
        let code_stride = code_bytes.next_multiple_of(ALIGNMENT);
        let scale_stride = scale_bytes.next_multiple_of(ALIGNMENT);
        let with_cublas = works.contains(&Work::Cublas);
        let workspace_bytes = self.workspace_bytes(shape, case.activation, case.layout);
        let workspace_bytes = usize::try_from(workspace_bytes).unwrap_or(usize::MAX);
        let on_device = |cold: usize| {
            let copies = Plan::copies(cold, bytes, cold_copies);
            let of_cublas = match with_cublas {
                true => F16Copies::new(shape, cold, self.gpu.l2_bytes)?.memory_bytes()?,
                false => 0,
            };
            memory::sum(&[
                (copies.checked_mul(read_stride)?.max(cold), 1),
                (copies.checked_mul(scale_stride)?.max(cold / 8), 1),
                (case.operand_bytes()?, 1),
                (workspace_bytes, 1),
                (of_cublas, 1),
            ])
        };
        let device_memory = usize::try_from(self.gpu.memory_bytes).ok();
        memory::check(shape, plan.cold_bytes, "device", device_memory, on_device)?;
        memory::check(shape, plan.cold_bytes, "host", memory::available(), |_| {
            memory::sum(&[(case.operand_bytes()?, 1), (2, RANDOM_BYTES)])
        })?;
        // Kernels that only read take codes instead of codes and scales: as many bytes.
        let pool = self.pool(copies * read_stride, copies * scale_stride, plan)?;
        let weights: Vec<Weights<'_, Device>> = (0..copies)
            .map(|copy| {
                Weights::on_device(
                    shape,
                    pool.codes.slice(copy * code_stride..).slice(..code_bytes),
                    pool.scales
                        .slice(copy * scale_stride..)
                        .slice(..scale_bytes),
                    case.layout,
                    GlobalScale::ONE,
                )
            })
            .collect::<Result<_>>()?;
        // Each batch selects one of a copy's matrices, no two the same. L2 keeps the ids, as those that a router has
        // just written.
        let mut ids: Vec<i32> = (0..shape.l() as i32).collect();
        fastrand::Rng::with_seed(3).shuffle(&mut ids);
        let ids = self.upload(&ids)?;
        let selecting: Vec<Weights<'_, Device>> = weights
            .iter()
            .map(|weights| weights.select_on_device(ids.as_view()).distinct())
            .map(|weights| match case.select {
                Some(Ids::Late) => weights.late(),
                _ => weights,
            })
            .collect();
        let weights = match case.select {
            Some(_) => &selecting,
            None => &weights,
        };
        let host_inputs = case.inputs();
        let inputs = self.inputs(&host_inputs)?;
        let x = inputs.view();
        let mut y = self.poisoned(case.output, shape.outputs())?;
        let workspace = self.workspace(shape, case.activation, case.layout)?;
        let read = ReadOnly::new(&self.stream, &pool.codes, &self.gpu)?;
        // Prepares the read of slow_down, which is captured.
        read.prepare(&ReadConfig::DEFAULT)?;
        let launches = copies.max(LAUNCHES);
        let extent = Extent {
            bytes,
            rotated_bytes: bytes * copies,
            launches,
        };
        let cublas = match with_cublas {
            true => Some(self.cublas_layer(shape, plan)?),
            false => None,
        };

        let mut ways = Vec::with_capacity(works.len());
        let mut graphs: Vec<Replay> = Vec::with_capacity(works.len());
        for &work in works {
            let (kernel, config, graph) = match work {
                Work::Cublas => {
                    // Without it nobody asked.
                    let Some(layer) = &cublas else { continue };
                    let (way, graph) = self.cublas_way(shape, layer)?;
                    ways.push(way);
                    graphs.push(graph);
                    continue;
                }
                Work::Read(config) => {
                    let config = config.unwrap_or(ReadConfig::DEFAULT);
                    read.prepare(&config)?;
                    let launch = |i: usize| read.enqueue(&config, i % copies * read_stride, bytes);
                    // SAFETY: weights, vectors, output and sink live to the end of this function,
                    // which waits for every replay.
                    let graph = unsafe { Replay::capture(&self.stream, launches, launch) }?;
                    (None, config.to_string(), graph)
                }
                Work::Gemv { ask, slow_percent } => {
                    if ask.is_chained && !self.can_chain() {
                        continue;
                    }
                    let stream = &self.stream;
                    let mut launch = |i: usize, options: &Options<'_>| {
                        let (weights, output) = (&weights[i % copies], y.output());
                        gemv_on_device(stream, shape, weights, &x, output, options)
                    };
                    // Once outside of the graph: it tells the config, and loads the kernel.
                    let asked = ask.options().workspace(workspace.as_ref());
                    let choice = launch(0, &asked)?;
                    let options = asked.config(choice.config);
                    let launch = |i: usize| match i.checked_sub(launches) {
                        None => launch(i, &options).map(drop),
                        Some(_) => slow_down(&read, launches * bytes, slow_percent),
                    };
                    let ends = usize::from(slow_percent > 0);
                    // SAFETY: as above.
                    let graph = unsafe { Replay::capture(&self.stream, launches + ends, launch) }?;
                    let config = choice.config;
                    let name = config.map_or(String::new(), |config| format!("{config:?}"));
                    (config.map(|config| config.kernel()), name, graph)
                }
            };
            ways.push(Way {
                work,
                kernel,
                config,
                extent,
            });
            graphs.push(graph);
        }
        drive(&mut CudaWays {
            ready: Ready { ways, extent },
            graphs,
            board: &self.board,
        })
    }

    /// The operands of cuBLAS's launches.
    fn cublas_layer(&self, shape: &Shape, plan: &Plan) -> anyhow::Result<CublasLayer<'_>> {
        let copies = F16Copies::new(shape, plan.cold_bytes, self.gpu.l2_bytes);
        let copies = copies.context("f16 weights of that shape cannot be counted")?;
        Ok(CublasLayer {
            weights: self.f16_pool(copies.copies * copies.stride)?,
            x: self.f16_vectors(shape.vector_elements())?,
            y: self.f16_results(shape.outputs())?,
            copies,
        })
    }

    fn cublas_way(&self, shape: &Shape, of: &CublasLayer<'_>) -> anyhow::Result<(Way, Replay)> {
        let cublas = self.loaded_cublas();
        let cublas = cublas.map_err(|why| anyhow::anyhow!("there is no cuBLAS: {why}"))?;
        let F16Copies { copies, stride } = of.copies;
        let layer = cublas::Layer {
            weights: &of.weights,
            x: &of.x,
            y: &of.y,
        };
        let launch = |i: usize| cublas.enqueue(shape, &layer, i % copies * stride);
        // Once outside of the graph: it loads the kernel.
        launch(0)?;
        let launches = copies.max(LAUNCHES);
        // SAFETY: weights, vectors and results live as long as the ways, and every replay is waited for. Nobody else
        // writes them, or reads the results. cuBLAS's workspace lives as long as the engine.
        let graph = unsafe { Replay::capture(&self.stream, launches, launch) }?;
        let bytes = shape.m() * shape.k() * shape.l() * size_of::<f16>();
        let way = Way {
            work: Work::Cublas,
            kernel: None,
            config: cublas.version().into(),
            extent: Extent {
                bytes,
                rotated_bytes: bytes * copies,
                launches,
            },
        };
        Ok((way, graph))
    }
}

/// Operands and results of cuBLAS.
struct CublasLayer<'a> {
    weights: RefMut<'a, CudaSlice<f16>>,
    x: CudaSlice<f16>,
    y: CudaSlice<f16>,
    copies: F16Copies,
}

/// Copies of f16 weights in one buffer, of which no cache holds a turn.
#[derive(Clone, Copy, Debug)]
struct F16Copies {
    copies: usize,
    /// Elements from one copy to the next.
    stride: usize,
}

impl F16Copies {
    /// The copies; nothing where they cannot be counted.
    fn new(shape: &Shape, cold_bytes: usize, l2_bytes: u64) -> Option<Self> {
        let elements = shape.m().checked_mul(shape.k())?.checked_mul(shape.l())?;
        let bytes = elements.checked_mul(size_of::<f16>())?;
        let cold_copies = copies_for_cold_l2(bytes, l2_bytes);
        Some(Self {
            copies: Plan::copies(cold_bytes, bytes, cold_copies),
            stride: elements.checked_next_multiple_of(ALIGNMENT)?,
        })
    }

    fn memory_bytes(&self) -> Option<usize> {
        let elements = self.copies.checked_mul(self.stride)?;
        elements.checked_mul(size_of::<f16>())
    }
}

/// Reads `percent` of `bytes` once more: what a rehearsal adds to a turn. A path at the ceiling takes as many percent
/// longer, one at half of the ceiling half as many.
fn slow_down(read: &ReadOnly<'_>, bytes: usize, percent: u32) -> Result<()> {
    let mut left = bytes / 100 * percent as usize;
    while left > 0 {
        let now = left.min(read.len());
        read.enqueue(&ReadConfig::DEFAULT, 0, now)?;
        left -= now;
    }
    Ok(())
}

/// A device's ways: each a graph.
pub(super) struct CudaWays<'a> {
    pub(super) ready: Ready,
    pub(super) graphs: Vec<Replay>,
    pub(super) board: &'a Board,
}

/// The pause before a turn, as a multiple of the turn before it: at a third of the time at work, no board comes
/// near its power limit.
const REST: u32 = 2;

/// Longer pauses, for a turn that the board's power limit slowed down all the same.
const RECOVERY: [Duration; 3] = [
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_millis(800),
];

/// The pause before work that is to be sustained.
const COOL: Duration = Duration::from_secs(1);

/// Work that is sustained is handed to the device in pieces of about this length.
const PIECE: Duration = Duration::from_millis(50);

impl CudaWays<'_> {
    fn seconds(&self, way: usize) -> Result<f64> {
        // Launches that a rehearsal adds count as time, not as launches.
        let graph = &self.graphs[way];
        let launches = self.ready.ways[way].extent.launches;
        Ok(graph.seconds_a_launch()? * graph.launches() as f64 / launches as f64)
    }
}

impl Ways for CudaWays<'_> {
    fn ready(&self) -> &Ready {
        &self.ready
    }

    fn turn(&mut self, way: usize) -> Result<Turn> {
        let once = || -> Result<Turn> {
            let begin = Instant::now();
            // The first replay brings back what another program's turn pushed out of the device's caches.
            self.graphs[way].enqueue()?;
            let seconds = self.seconds(way)?;
            let state = self.board.state();
            let turn = Turn {
                us: seconds * 1e6,
                sm_mhz: state.sm_mhz,
                watts: state.watts,
                held_back: self.board.is_held_back(&state),
            };
            thread::sleep(begin.elapsed() * REST);
            Ok(turn)
        };
        let mut turn = once()?;
        for pause in self.board.worth_waiting(&RECOVERY) {
            if !turn.held_back {
                break;
            }
            thread::sleep(*pause);
            turn = once()?;
        }
        self.board.remember(turn.held_back);
        Ok(turn)
    }

    fn sustain(&mut self, way: usize, time: Duration) -> Result<Sustained> {
        thread::sleep(COOL);
        let extent = self.ready.ways[way].extent;
        let replay = self.seconds(way)? * extent.launches as f64;
        let replays = (PIECE.as_secs_f64() / replay).ceil().max(1.0) as usize;
        let is_counted = self.board.joules().is_some();
        // The board is asked while the device works, so that the questions cost it nothing.
        let piece = || -> Result<(Option<f64>, Option<f64>)> {
            for _ in 0..replays {
                self.graphs[way].enqueue()?;
            }
            let mhz = self.board.sm_mhz();
            let watts = match is_counted {
                true => None,
                false => self.board.watts(),
            };
            self.seconds(way)?;
            Ok((mhz, watts))
        };
        let begin = Instant::now();
        while begin.elapsed() < time / 2 {
            piece()?;
        }
        let (from, energy) = (Instant::now(), self.board.joules());
        let (mut done, mut clocks, mut powers) = (0, Vec::new(), Vec::new());
        loop {
            let (mhz, watts) = piece()?;
            clocks.extend(mhz);
            powers.extend(watts);
            done += (replays + 1) * extent.launches;
            if begin.elapsed() >= time {
                break;
            }
        }
        let elapsed = from.elapsed().as_secs_f64();
        let counted = energy.and_then(|before| Some(self.board.joules()? - before));
        let joules = counted.or_else(|| {
            let mean = powers.iter().sum::<f64>() / powers.len() as f64;
            (!powers.is_empty()).then_some(mean * elapsed)
        });
        let bytes = (done * extent.bytes) as f64;
        Ok(Sustained::new(
            begin.elapsed().as_secs_f64(),
            elapsed / done as f64,
            bytes / elapsed,
            joules.map(|joules| (joules / elapsed, joules / bytes)),
            (!clocks.is_empty()).then(|| median(&clocks)),
        ))
    }
}
