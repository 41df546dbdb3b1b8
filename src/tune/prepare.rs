//! Measures the likeliest configs of a call when it is prepared: [`Options::measure`].

use std::ffi::c_void;
use std::iter;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DriverError, result, sys};

use super::device::machine;
use super::ranking::{Ranking, best_of_each_kernel};
use super::search::{Limits, search};
use crate::context::{driver_error, make_current};
use crate::dispatch::measured::Entry;
use crate::dispatch::{Options, ToMeasure, remembered, to_measure};
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::kernel::read_only::{Read, ReadConfig};
use crate::kernel::{Call, Config};
use crate::measure::{Replay, Timing};
use crate::operands::{RawOutput, RawWeights, RawWorkspace};
use crate::raw;
use crate::shape::Strides;

/// Configs that are measured, at most, beside one of each kernel.
const MOST: usize = 8;
/// Turns of a config, at most.
const ROUNDS: usize = 15;
/// Launches of a turn, at most: what begins and ends a turn is the same for all configs.
const MOST_LAUNCHES: usize = 16;
/// Launches of a turn of a chain, at least: the first one follows nothing.
const CHAIN: usize = 3;
/// Turns of the kernel that only reads.
const READS: usize = 3;
/// Addresses of copies are as far from a multiple of this as the originals: more than any kernel asks for.
const ALIGN: u64 = 256;

static LAUNCHES: AtomicU64 = AtomicU64::new(0);

/// Launches that this process has made so far to measure calls when they were prepared: for tests.
#[doc(hidden)]
pub fn launches_at_prepare() -> u64 {
    LAUNCHES.load(Ordering::Relaxed)
}

/// Measures a call that is about to be prepared and remembers the result, if the options ask for that and there is
/// something to find out. The stream's context is current, and the stream's workspace is held. The addresses are of
/// memory that lives until this returns.
///
/// # Errors
/// [`Error::MeasuredInCapture`], [`Error::Selected`], and what CUDA reports.
pub(crate) fn at_prepare(
    stream: &Arc<CudaStream>,
    call: &Call,
    gpu: &Gpu,
    options: &Options<'_>,
) -> Result<()> {
    let Some(budget) = options.measure else {
        return Ok(());
    };
    let call = &options.with_its_workspace(call)?;
    let ask = || to_measure(call, gpu, options, MOST);
    if ask()?.is_none() {
        return Ok(());
    }
    if call.vectors.digits() != 1 {
        return Err(Error::Digits {
            digits: call.vectors.digits(),
            takes: "measuring takes vectors of one",
        });
    }
    if call.weights.select.is_some() {
        return Err(Error::Selected {
            wants: "measuring reads",
        });
    }
    let status = stream.capture_status().map_err(measuring)?;
    if status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
        return Err(Error::MeasuredInCapture);
    }
    let _relaxed = Relaxed::new()?;
    // Weights may just have been copied. This waits before the lock is taken: what this stream waits for may be another
    // thread's work, which comes behind its own measuring.
    stream.synchronize().map_err(measuring)?;
    // Two that measure at once would measure each other. Whoever panicked here left nothing half done.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Another thread may have measured the same meanwhile.
    let Some(what) = ask()? else {
        return Ok(());
    };
    let entry = Bench::new(stream, call, gpu)?.measure(&what, budget)?;
    remembered::insert(what.among, &machine(gpu)?, entry);
    Ok(())
}

fn measuring(error: DriverError) -> Error {
    driver_error("measuring a call that is prepared", error)
}

/// While it is there, this thread may allocate and wait though it captures other streams: that ends their captures
/// otherwise.
struct Relaxed(sys::CUstreamCaptureMode);

impl Relaxed {
    fn new() -> Result<Self> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        exchange(mode).map(Self).map_err(measuring)
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // It could be entered, so it can be left.
        let _ = exchange(self.0);
    }
}

fn exchange(
    mut mode: sys::CUstreamCaptureMode,
) -> std::result::Result<sys::CUstreamCaptureMode, DriverError> {
    // SAFETY: the pointer is to a live variable, which the driver reads and writes before it returns.
    unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) }.result()?;
    Ok(mode)
}

/// A call with its own weights and with copies of them, and memory to empty the L2 cache with.
struct Bench<'a> {
    /// Its own, so that it can be captured whatever the caller's is.
    stream: Arc<CudaStream>,
    gpu: &'a Gpu,
    /// The call with its own weights, and with each copy. All write the same results, which nobody reads.
    calls: Vec<Call>,
    /// Memory of a copy, or of the call's own codes, that a kernel which only reads reads: addresses and a length.
    reads: (Vec<u64>, usize),
    /// The caches are empty when this has been filled.
    filler: CudaSlice<u8>,
    sink: CudaSlice<u8>,
    /// The memory of results and copies.
    _memory: [CudaSlice<u8>; 3],
}

impl Drop for Bench<'_> {
    /// After an error, too, nothing reads the caller's memory any more.
    fn drop(&mut self) {
        let _ = self.stream.synchronize();
    }
}

/// A config that is ready to take its turns.
struct Ready {
    config: Config,
    graph: Replay,
}

impl<'a> Bench<'a> {
    fn new(of: &Arc<CudaStream>, call: &Call, gpu: &'a Gpu) -> Result<Self> {
        let stream = of.context().new_stream().map_err(measuring)?;
        // CUDA refuses empty allocations.
        let alloc = |bytes: usize| stream.alloc_zeros::<u8>(bytes.max(1)).map_err(measuring);
        let at = |memory: &CudaSlice<u8>| memory.device_ptr(&stream).0;
        let l2 = usize::try_from(gpu.l2_bytes).unwrap_or(usize::MAX) / 2;
        let filler = alloc(l2.saturating_mul(4))?;

        let (bytes, results) = results(call);
        let results_memory = alloc(bytes)?;
        let output = results(at(&results_memory));

        // The caller's may be in use on its own stream.
        let workspace_memory = alloc(usize::try_from(call.workspace.bytes).unwrap_or(usize::MAX))?;
        let workspace = match call.workspace.bytes {
            0 => RawWorkspace::NONE,
            bytes => RawWorkspace {
                address: at(&workspace_memory),
                bytes,
            },
        };

        let weights = &call.weights;
        let copy = Copy::of(call);
        let copies = filler.len().div_ceil(copy.bytes).min(MOST_LAUNCHES) - 1;
        let copies_memory = alloc(copies * copy.bytes)?;
        let first = at(&copies_memory);
        let copies = (0..copies).map(|i| copy.weights_at(first + (i * copy.bytes) as u64));
        let copies: Vec<RawWeights> = copies.collect();
        let pieces = copies.iter().flat_map(|one| {
            [
                (one.codes, weights.codes, copy.code_bytes),
                (one.scales, weights.scales, copy.scale_bytes),
            ]
        });
        let mut copied = pieces.map(|(to, from, bytes)| {
            // SAFETY: the call's codes and scales have so many bytes: that was checked where it was made. They are still
            // there, by this function's caller, and the copies have ended when this function returns. A copy has as many
            // bytes, in memory that lives longer than this stream's work and that overlaps nothing.
            unsafe { result::memcpy_dtod_async(to, from, bytes, stream.cu_stream()) }
                .map_err(measuring)
        });
        let copied = copied.try_for_each(|one| one);
        stream.synchronize().map_err(measuring)?;
        copied?;
        let reads = match copies.is_empty() {
            false => {
                let all = (0..copies.len()).map(|i| first + (i * copy.bytes) as u64);
                (all.collect(), copy.code_bytes + copy.scale_bytes)
            }
            // Large weights: of their scales, an eighth as much, the time follows.
            true => {
                let skipped = weights.codes.next_multiple_of(16) - weights.codes;
                let bytes = copy.code_bytes.saturating_sub(skipped as usize);
                (vec![weights.codes + skipped], bytes)
            }
        };
        let calls = iter::once(weights).chain(&copies).map(|weights| {
            let call_of = Call::new(&call.shape, weights, &call.vectors, &output)?;
            call_of.with_workspace(workspace)
        });
        Ok(Self {
            calls: calls.collect::<Result<_>>()?,
            reads,
            sink: alloc(4)?,
            gpu,
            filler,
            _memory: [results_memory, workspace_memory, copies_memory],
            stream,
        })
    }

    /// The best of each kernel, and the time of a kernel that only reads.
    fn measure(&mut self, what: &ToMeasure, budget: Duration) -> Result<Entry> {
        let chained = match what.chained.is_empty() {
            true => Vec::new(),
            false => self.race(&what.chained, true, budget)?,
        };
        let isolated = self.race(&what.isolated, false, budget)?;
        let call = &self.calls[0];
        Ok(Entry {
            shape: call.shape,
            operands: call.operands(),
            kernels: best_of_each_kernel(&isolated, &chained),
            ceiling_seconds: self.ceiling()?,
        })
    }

    /// Configs, the fastest first. Those that are not made ready before half of the budget is spent are left out; two
    /// are always measured.
    fn race(&mut self, configs: &[Config], chained: bool, budget: Duration) -> Result<Ranking> {
        make_current(&self.stream)?;
        let prepared = configs.iter().map(|&config| self.prepare(config, chained));
        let prepared: Vec<Vec<raw::PreparedRawGemv>> = prepared.collect::<Result<_>>()?;
        let launches = match chained {
            true => self.calls.len().max(CHAIN),
            false => self.calls.len(),
        };
        let begin = Instant::now();
        let mut ready = Vec::with_capacity(configs.len());
        for (&config, prepared) in configs.iter().zip(&prepared) {
            if ready.len() >= 2 && begin.elapsed() > budget / 2 {
                break;
            }
            let stream = self.stream.cu_stream().cast::<c_void>();
            // SAFETY: the stream's context is current: cudarc made it so for the capture. The memory of the calls lives
            // until the last replay has run: each turn waits for it.
            let launch = |i: usize| unsafe { prepared[i % prepared.len()].run(stream) };
            // SAFETY: as above. The caller's weights and vectors are borrowed or valid until this returns, and
            // only this stream uses the rest.
            let graph = unsafe { Replay::capture(&self.stream, launches, launch) }?;
            // The first replay of a graph takes longer.
            self.turn(&graph)?;
            ready.push(Ready { config, graph });
        }
        let limits = Limits {
            time: budget,
            rounds: ROUNDS,
        };
        let groups = vec![0; ready.len()];
        let turn = |i: usize| self.turn(&ready[i].graph);
        let found = search(&groups, &limits, || begin.elapsed(), turn, |_| ())?;
        let ranked = found
            .into_iter()
            .map(|one| (ready[one.candidate].config, one));
        Ok(ranked.collect())
    }

    /// A config's calls, one a copy of the weights.
    fn prepare(&self, config: Config, chained: bool) -> Result<Vec<raw::PreparedRawGemv>> {
        let options = Options::new().without_environment().config(config);
        let options = match chained {
            // SAFETY: nobody writes the call's weights while it is prepared, and the copies are written before any
            // launch, with other work between.
            true => unsafe { options.chained() },
            false => options,
        };
        let prepare = |call| raw::PreparedRawGemv::new(call, self.gpu, &options);
        self.calls.iter().map(prepare).collect()
    }

    /// Seconds of a launch, with nothing in the caches that the launches read.
    fn turn(&mut self, graph: &Replay) -> Result<f64> {
        self.stream
            .memset_zeros(&mut self.filler)
            .map_err(measuring)?;
        LAUNCHES.fetch_add(graph.launches() as u64, Ordering::Relaxed);
        graph.seconds_a_launch().inspect_err(|_| {
            // The replay may have been enqueued before the error, which says more than this one's.
            let _ = self.stream.synchronize();
        })
    }

    /// Seconds of a kernel that only reads as many bytes as the weights have.
    fn ceiling(&mut self) -> Result<f64> {
        let config = ReadConfig::DEFAULT;
        make_current(&self.stream)?;
        raw::prepare_read_only(&config, self.gpu)?;
        let (reads, bytes) = self.reads.clone();
        let sink = self.sink.device_ptr(&self.stream).0;
        let (gpu, stream) = (self.gpu, self.stream.cu_stream().cast::<c_void>());
        let launch = |i: usize| {
            let data = reads[i % reads.len()];
            let read = Read {
                data,
                bytes,
                sink,
                sums: false,
            };
            // SAFETY: the range lies in a copy or in the call's codes, and lives until the replays have run, as the sink
            // does. Nobody writes them. The context is current.
            unsafe { raw::read_only(&config, &read, gpu, stream) }
        };
        // SAFETY: as above; each turn waits for its replay.
        let graph = unsafe { Replay::capture(&self.stream, reads.len(), launch) }?;
        let mut seconds = Vec::with_capacity(READS);
        for _ in 0..=READS {
            seconds.push(self.turn(&graph)?);
        }
        // The first replay of a graph takes longer.
        let median = Timing::of(seconds.split_off(1)).map_or(f64::NAN, |timing| timing.median);
        Ok(median * self.calls[0].shape.weight_bytes() as f64 / bytes.max(1) as f64)
    }
}

/// The bytes that a call's results reach over, with room to begin as far from a multiple of [`ALIGN`], and the call's
/// output with results in such memory. What the call adds to its own results it then adds to what is there.
fn results(call: &Call) -> (usize, impl Fn(u64) -> RawOutput) {
    let (shape, output) = (call.shape, call.output);
    let row = shape.m() * output.element.bytes();
    let strides = output.strides.unwrap_or(Strides::packed(shape.n(), row));
    let bytes = (shape.l() - 1) * strides.batch + (shape.n() - 1) * strides.row + row;
    let at = move |memory: u64| {
        let address = memory + output.address % ALIGN;
        let residual = match output.residual == output.address {
            true => address,
            false => output.residual,
        };
        RawOutput {
            address,
            residual,
            ..output
        }
    };
    (bytes + ALIGN as usize, at)
}

/// How copies of a call's weights lie in memory.
struct Copy {
    weights: RawWeights,
    code_bytes: usize,
    scale_bytes: usize,
    /// Where codes and scales begin: as far from a multiple of [`ALIGN`] as the originals.
    codes_at: u64,
    scales_at: u64,
    /// From one copy to the next.
    bytes: usize,
}

impl Copy {
    fn of(call: &Call) -> Self {
        let (shape, weights) = (&call.shape, call.weights);
        let code_bytes = shape.weight_code_bytes();
        let scale_bytes = shape.weight_scale_bytes(weights.layout);
        let codes_at = weights.codes % ALIGN;
        let scales_at =
            (codes_at + code_bytes as u64).next_multiple_of(ALIGN) + weights.scales % ALIGN;
        let end = (scales_at + scale_bytes as u64).next_multiple_of(ALIGN);
        Self {
            weights,
            code_bytes,
            scale_bytes,
            codes_at,
            scales_at,
            bytes: end as usize,
        }
    }

    /// The weights of a copy in this memory.
    fn weights_at(&self, memory: u64) -> RawWeights {
        RawWeights {
            codes: memory + self.codes_at,
            scales: memory + self.scales_at,
            ..self.weights
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::{Dims, Shape};
    use crate::types::{Activation, FloatType, ScaleLayout};

    fn call(output: impl Fn(RawOutput) -> RawOutput) -> Call {
        let shape = Shape::new(Dims {
            m: 40,
            n: 3,
            k: 256,
            l: 2,
        })
        .unwrap();
        let call = Call::nowhere(&shape, Activation::Nvfp4, ScaleLayout::Tiled128x4, 8);
        Call {
            output: output(call.output),
            ..call
        }
    }

    /// Memory that the caller adds to is not written, and a strided output stays within what is allocated.
    #[test]
    fn results_lie_in_memory_of_their_own() {
        let strides = Strides {
            row: 256,
            batch: 1024,
        };
        for (residual, expected) in [(5 << 59, (9 << 20) + 8), (3 << 60, 3 << 60), (0, 0)] {
            let of = call(|output| RawOutput {
                address: (5 << 59) + if residual == 5 << 59 { 0 } else { 8 },
                residual,
                strides: Some(strides),
                ..output
            });
            let (bytes, at) = results(&of);
            let output = at(9 << 20);
            assert_eq!(output.address % ALIGN, of.output.address % ALIGN);
            assert_eq!(output.strides, Some(strides));
            let last = output.address - (9 << 20) + 1024 + 2 * 256 + 40 * 4;
            assert!(last <= bytes as u64);
            let moved = of.output.residual == of.output.address;
            let expected = if moved { output.address } else { expected };
            assert_eq!(output.residual, expected);
            assert_eq!(output.element, FloatType::F32);
        }
    }

    /// A kernel that needs 16 bytes would be measured where the original has 8, and the other way round.
    #[test]
    fn copies_are_aligned_as_the_original() {
        let of = call(|output| output);
        let copy = Copy::of(&of);
        for i in 0..3 {
            let memory = (1 << 40) + (i * copy.bytes) as u64;
            let weights = copy.weights_at(memory);
            assert_eq!(weights.codes % ALIGN, of.weights.codes % ALIGN);
            assert_eq!(weights.scales % ALIGN, of.weights.scales % ALIGN);
            assert!(weights.codes >= memory);
            assert!(weights.codes + copy.code_bytes as u64 <= weights.scales);
            assert!(weights.scales + copy.scale_bytes as u64 <= memory + copy.bytes as u64);
            let moved = Call { weights, ..of };
            assert_eq!(moved.operands(), of.operands());
        }
    }
}
