//! Times work on a device, and what the device's memory can do at most, in the same way.
//!
//! Launches are [captured into one CUDA graph](crate#cuda-graphs), which is replayed and timed with events. The host's
//! part is not in the figure; about half a microsecond of graph node a launch is. Callers rotate over copies of the
//! weights larger than twice the L2 cache, so that every launch reads memory.

#[cfg(feature = "unstable")]
mod bare;

use std::ptr;
use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaGraph, CudaSlice, CudaStream, DevicePtr, DriverError, sys};

use crate::context::{driver_error, make_current, same_device};
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::kernel::read_only::{Read, ReadConfig};
use crate::raw;

#[cfg(feature = "unstable")]
pub use bare::Bare;

/// Seconds a launch, over several replays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// The middle one.
    pub median: f64,
    /// The fastest.
    pub min: f64,
    /// The slowest.
    pub max: f64,
}

impl Timing {
    /// Summarises seconds of one launch each. Nothing for no samples.
    pub fn of(mut seconds: Vec<f64>) -> Option<Self> {
        seconds.sort_by(f64::total_cmp);
        Some(Self {
            median: *seconds.get(seconds.len() / 2)?,
            min: *seconds.first()?,
            max: *seconds.last()?,
        })
    }
}

/// Copies of `bytes` that together exceed 64 times an L2 cache of `l2_bytes`: at least two.
///
/// More copies than the cache holds are not enough. A kernel that marks its weights as the first to leave the cache
/// lets older lines stay. Such a kernel finds as much as the cache holds of the copies that it takes turns over. With
/// four times the cache, one on an H200 seemed 11% faster than memory. Of 64 times the cache that is 1.6% at most.
pub fn copies_for_cold_l2(bytes: usize, l2_bytes: u64) -> usize {
    let several = (l2_bytes as usize).saturating_mul(64);
    (several / bytes.max(1)).saturating_add(1).max(2)
}

/// Two events on a stream: what the device does between them is timed, and nothing of the host's.
#[derive(Debug)]
pub struct Stopwatch {
    stream: Arc<CudaStream>,
    begin: CudaEvent,
    end: CudaEvent,
}

impl Stopwatch {
    /// Creates the events.
    ///
    /// # Errors
    /// Errors that CUDA reports.
    pub fn new(stream: &Arc<CudaStream>) -> Result<Self> {
        let event = || {
            stream
                .context()
                .new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT))
                .map_err(|error| driver_error("creating an event", error))
        };
        Ok(Self {
            stream: stream.clone(),
            begin: event()?,
            end: event()?,
        })
    }

    /// Begins here in the stream.
    ///
    /// # Errors
    /// Errors that CUDA reports.
    pub fn start(&self) -> Result<()> {
        let recorded = self.begin.record(&self.stream);
        recorded.map_err(|error| driver_error("recording an event", error))
    }

    /// Ends here in the stream, waits for it, and returns the seconds since [`start`](Self::start).
    ///
    /// # Errors
    /// Errors that CUDA reports, also of the work that was timed.
    pub fn stop(&self) -> Result<f64> {
        self.end
            .record(&self.stream)
            .and_then(|()| self.begin.elapsed_ms(&self.end))
            .map(|milliseconds| f64::from(milliseconds) * 1e-3)
            .map_err(|error| driver_error("timing work", error))
    }
}

/// Launches captured into one CUDA graph, to be replayed and timed.
pub struct Replay {
    graph: CudaGraph,
    stopwatch: Stopwatch,
    launches: usize,
}

impl std::fmt::Debug for Replay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replay")
            .field("launches", &self.launches)
            .finish_non_exhaustive()
    }
}

impl Replay {
    /// Captures `launches` calls of `launch`, each given its index, on `stream`.
    ///
    /// [The rules for CUDA graphs](crate#cuda-graphs) say what stream and context must be.
    ///
    /// # Errors
    /// Errors that `launch` returns or CUDA reports.
    ///
    /// # Safety
    /// A graph keeps addresses, not memory. All memory that the captured launches use lives until the last replay has
    /// run, whether `launch` borrows it, shares it or made it. Neither `launch` nor anybody else frees that memory.
    /// Until then nobody else writes it, or reads what the launches write, except between replays that were waited for.
    /// Promises that `launch` made in order to enqueue unsafe launches hold at each replay.
    pub unsafe fn capture(
        stream: &Arc<CudaStream>,
        launches: usize,
        launch: impl FnMut(usize) -> Result<()>,
    ) -> Result<Self> {
        let cuda = |error: DriverError| driver_error("capturing a graph of launches", error);
        stream.synchronize().map_err(cuda)?;
        stream
            .begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .map_err(cuda)?;
        let capture = Capture(Some(stream));
        let launched = (0..launches).try_for_each(launch);
        let graph = capture.end();
        launched?;
        let graph = graph.map_err(cuda)?.ok_or_else(|| Error::Cuda {
            during: "capturing a graph of launches",
            code: 0,
            message: "nothing was captured".into(),
        })?;
        Ok(Self {
            graph,
            stopwatch: Stopwatch::new(stream)?,
            launches,
        })
    }

    /// The number of launches that a replay makes.
    pub fn launches(&self) -> usize {
        self.launches
    }

    /// The number of kernels, copies and fills that a replay runs, of which a captured launch may have several.
    ///
    /// # Errors
    /// Errors that CUDA reports.
    pub fn nodes(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: the graph lives as long as `self`. Without a place for the nodes, CUDA writes their number alone.
        let got =
            unsafe { sys::cuGraphGetNodes(self.graph.cu_graph(), ptr::null_mut(), &raw mut count) };
        let error = |error| driver_error("counting what a graph runs", error);
        got.result().map(|()| count).map_err(error)
    }

    /// Enqueues one replay.
    ///
    /// # Errors
    /// Errors that CUDA reports.
    pub fn enqueue(&self) -> Result<()> {
        let launched = self.graph.launch();
        launched.map_err(|error| driver_error("replaying a graph of launches", error))
    }

    /// Replays once, and returns the seconds of one launch.
    ///
    /// # Errors
    /// Errors that CUDA reports.
    pub fn seconds_a_launch(&self) -> Result<f64> {
        self.stopwatch.start()?;
        self.enqueue()?;
        Ok(self.stopwatch.stop()? / self.launches as f64)
    }
}

/// A capture that has begun on a stream. It is ended whatever happens in it, also where the launches panic, or the
/// stream would stay unusable.
struct Capture<'a>(Option<&'a Arc<CudaStream>>);

impl Capture<'_> {
    fn end(mut self) -> std::result::Result<Option<CudaGraph>, DriverError> {
        self.0.take().map_or(Ok(None), end_capture)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        // The panic says more than what CUDA reports here.
        let _ = self.0.map(end_capture);
    }
}

fn end_capture(stream: &Arc<CudaStream>) -> std::result::Result<Option<CudaGraph>, DriverError> {
    stream
        .end_capture(sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
}

/// Captures `launches` calls of `launch` as [`Replay::capture`] does, and times `replays` replays after
/// two to warm up. All of them have run when it returns, also with an error.
///
/// # Errors
/// Errors that `launch` returns or CUDA reports.
///
/// # Safety
/// As [`Replay::capture`]'s, until this returns. That `launch` borrows a buffer is not enough: `launch` is called
/// before the replays, and a closure can as well free what it used. Hence a call without the promise is not allowed:
///
#[cfg_attr(feature = "unstable", doc = "```compile_fail,E0133")]
#[cfg_attr(not(feature = "unstable"), doc = "```text")]
/// # use std::sync::Arc;
/// # use cudarc::driver::{CudaSlice, CudaStream};
/// # use nvfp4_gemv::Gpu;
/// # use nvfp4_gemv::kernel::read_only::ReadConfig;
/// # use nvfp4_gemv::measure::{ReadOnly, Timing, time_launches};
/// fn freed(stream: &Arc<CudaStream>, gpu: &Gpu, mut data: Option<CudaSlice<u8>>) -> nvfp4_gemv::Result<Timing> {
///     time_launches(stream, 2, 5, |_| {
///         let Some(freed_after_the_first_launch) = data.take() else { return Ok(()) };
///         let read = ReadOnly::new(stream, &freed_after_the_first_launch, gpu)?;
///         read.enqueue(&ReadConfig::DEFAULT, 0, 16)
///     })
/// }
/// ```
pub unsafe fn time_launches(
    stream: &Arc<CudaStream>,
    launches: usize,
    replays: usize,
    mut launch: impl FnMut(usize) -> Result<()>,
) -> Result<Timing> {
    // SAFETY: this function's own contract; the replays below have been waited for when it returns.
    let graph = unsafe { Replay::capture(stream, launches, &mut launch) }?;
    let mut seconds = Vec::with_capacity(replays);
    for replay in 0..replays.saturating_add(2) {
        let time = graph.seconds_a_launch().inspect_err(|_| {
            // The replay may have been enqueued before the error; that error says more than this one's.
            let _ = stream.synchronize();
        })?;
        if replay >= 2 {
            seconds.push(time);
        }
    }
    Ok(Timing::of(seconds).unwrap_or(Timing {
        median: f64::NAN,
        min: f64::NAN,
        max: f64::NAN,
    }))
}

/// Kernels that only read: the fastest at a size is the ceiling for any kernel that must read as many bytes of weights.
#[derive(Debug)]
pub struct ReadOnly<'a> {
    stream: Arc<CudaStream>,
    data: &'a CudaSlice<u8>,
    sink: CudaSlice<u32>,
    gpu: &'a Gpu,
}

impl<'a> ReadOnly<'a> {
    /// A kernel that reads from `data`, on the stream's device.
    ///
    /// # Errors
    /// Data on another device than the stream's; errors that CUDA reports of an allocation of four bytes.
    pub fn new(stream: &Arc<CudaStream>, data: &'a CudaSlice<u8>, gpu: &'a Gpu) -> Result<Self> {
        same_device("data to read", data.stream(), stream)?;
        let sink = stream.alloc_zeros::<u32>(1);
        Ok(Self {
            stream: stream.clone(),
            data,
            sink: sink.map_err(|error| driver_error("allocating", error))?,
            gpu,
        })
    }

    /// The number of bytes that there are to read from.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Loads the kernel of a config, which feature `jit` may compile first: from then on
    /// [`enqueue`](Self::enqueue) can be captured.
    ///
    /// # Errors
    /// [`Error::Config`] for a config that the GPU cannot run; errors that CUDA reports.
    pub fn prepare(&self, config: &ReadConfig) -> Result<()> {
        make_current(&self.stream)?;
        raw::prepare_read_only(config, self.gpu)
    }

    /// Enqueues a read of `bytes` (rounded down to a multiple of 16) at `offset`, a multiple of 16.
    ///
    /// # Errors
    /// A range past the data; [`Error::Config`] for a config that the GPU cannot run; errors that CUDA reports.
    pub fn enqueue(&self, config: &ReadConfig, offset: usize, bytes: usize) -> Result<()> {
        let end = offset.saturating_add(bytes);
        let needed = end..=usize::MAX;
        crate::check::len_or(
            "data to read",
            "bytes",
            self.data.len(),
            needed,
            String::new,
        )?;
        let (address, _data) = self.data.device_ptr(&self.stream);
        let (sink, _sink) = self.sink.device_ptr(&self.stream);
        make_current(&self.stream)?;
        let read = Read {
            data: address + offset as u64,
            bytes,
            sink,
            sums: false,
        };
        // SAFETY: the range was checked; `data` outlives this value, and `sink` is part of it. The
        // kernel practically never writes the sink, and nobody reads it.
        unsafe { raw::read_only(config, &read, self.gpu, self.stream.cu_stream().cast()) }
    }

    /// Times reads of `bytes`, launch `i` at `offset(i)`, with each config: as [`time_launches`] does, the fastest
    /// first.
    ///
    /// # Errors
    /// [`prepare`](Self::prepare)'s and [`enqueue`](Self::enqueue)'s.
    pub fn rank(
        &self,
        configs: &[ReadConfig],
        bytes: usize,
        launches: usize,
        replays: usize,
        offset: impl Fn(usize) -> usize,
    ) -> Result<Vec<(ReadConfig, Timing)>> {
        let mut ranking = Vec::with_capacity(configs.len());
        for &config in configs {
            self.prepare(&config)?;
            let launch = |i| self.enqueue(&config, offset(i), bytes);
            // SAFETY: `data` and `sink` outlive this call, which waits for the replays. `data` is borrowed, so that
            // nobody writes it; the launches write nothing that anybody reads.
            let timing = unsafe { time_launches(&self.stream, launches, replays, launch) }?;
            ranking.push((config, timing));
        }
        ranking.sort_by(|(_, a), (_, b)| a.median.total_cmp(&b.median));
        Ok(ranking)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timings_and_copies() {
        let timing = Timing::of(vec![3.0, 1.0, 2.0]).unwrap();
        assert_eq!((timing.min, timing.median, timing.max), (1.0, 2.0, 3.0));
        assert_eq!(Timing::of(vec![]), None);
        for bytes in [1, 1 << 20, 60 << 20, 1 << 30] {
            let copies = copies_for_cold_l2(bytes, 60 << 20);
            assert!(copies >= 2 && copies * bytes > 64 * (60 << 20));
        }
        assert_eq!(copies_for_cold_l2(0, u64::MAX), usize::MAX);
        assert_eq!(copies_for_cold_l2(usize::MAX, 60 << 20), 2);
    }
}
