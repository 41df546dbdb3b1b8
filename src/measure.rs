//! Times work on a device, and what the device's memory can do at most, in the same way.
//!
//! Launches are captured into one CUDA graph, which is replayed and timed with events: the host's
//! part is not in the figure, about half a microsecond of graph node a launch is. Callers rotate
//! over copies of the weights larger than twice the L2 cache, so that every launch reads memory.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DriverError, sys};

use crate::error::{Error, Result};
use crate::raw;

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

/// Copies of `bytes` that together exceed twice an L2 cache of `l2_bytes`: at least two.
pub fn copies_for_cold_l2(bytes: usize, l2_bytes: u64) -> usize {
    (2 * l2_bytes as usize / bytes.max(1) + 1).max(2)
}

/// Captures `launches` calls of `launch`, each given its index, into a graph on `stream`, and
/// times `replays` replays after two to warm up.
///
/// The stream must not be the default one, which cannot be captured, and its context's event
/// tracking must be off ([`cudarc::driver::CudaContext::disable_event_tracking`]): a captured call
/// may not wait for events of before the capture.
///
/// # Errors
/// What `launch` returns, and what CUDA reports.
pub fn time_launches(
    stream: &Arc<CudaStream>,
    launches: usize,
    replays: usize,
    mut launch: impl FnMut(usize) -> Result<()>,
) -> Result<Timing> {
    let cuda = |error: DriverError| driver_error("timing a graph of launches", error);
    stream.synchronize().map_err(cuda)?;
    stream
        .begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        .map_err(cuda)?;
    let launched = (0..launches).try_for_each(&mut launch);
    // The capture is ended whatever happened in it, or the stream would stay unusable.
    let graph = stream.end_capture(
        sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH,
    );
    launched?;
    let graph = graph.map_err(cuda)?.ok_or_else(|| Error::Cuda {
        during: "timing a graph of launches",
        code: 0,
        message: "nothing was captured".into(),
    })?;
    let event = || {
        stream
            .context()
            .new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT))
            .map_err(cuda)
    };
    let (start, end) = (event()?, event()?);
    let mut seconds = Vec::with_capacity(replays);
    for replay in 0..replays + 2 {
        start.record(stream).map_err(cuda)?;
        graph.launch().map_err(cuda)?;
        end.record(stream).map_err(cuda)?;
        let milliseconds = start.elapsed_ms(&end).map_err(cuda)?;
        if replay >= 2 {
            seconds.push(f64::from(milliseconds) * 1e-3 / launches as f64);
        }
    }
    Ok(Timing::of(seconds).unwrap_or(Timing {
        median: f64::NAN,
        min: f64::NAN,
        max: f64::NAN,
    }))
}

/// Times a kernel that only reads `bytes`, at `offsets` into `data` in turn: the ceiling for any
/// kernel that must read as many bytes of weights.
///
/// # Errors
/// An offset past the data; what CUDA reports.
pub fn time_read_only(
    stream: &Arc<CudaStream>,
    data: &CudaSlice<u8>,
    offsets: &[usize],
    bytes: usize,
    multiprocessors: u32,
    replays: usize,
) -> Result<Timing> {
    use cudarc::driver::DevicePtr;
    let end = offsets.iter().max().map_or(0, |offset| offset + bytes);
    crate::check::len("data to read", "bytes", data.len(), end)?;
    let sink = stream
        .alloc_zeros::<u32>(1)
        .map_err(|error| driver_error("allocating", error))?;
    let (address, _data) = data.device_ptr(stream);
    let (sink, _sink) = sink.device_ptr(stream);
    time_launches(stream, offsets.len(), replays, |i| {
        // SAFETY: `data` and `sink` live until the replays have run: time_launches waits for them.
        // The stream's context is current: cudarc made it so for the capture.
        unsafe {
            raw::read_only(
                address + offsets[i] as u64,
                bytes,
                sink,
                multiprocessors,
                stream.cu_stream().cast(),
            )
        }
    })
}

pub(crate) fn driver_error(during: &'static str, error: DriverError) -> Error {
    Error::Cuda {
        during,
        code: error.0 as i32,
        message: error.to_string(),
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
            assert!(copies >= 2 && copies * bytes > 2 * (60 << 20));
        }
    }
}
