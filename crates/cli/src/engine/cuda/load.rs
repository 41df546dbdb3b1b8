//! Weights by pieces to a device, beside a plain copy.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtrMut, result};
use nvfp4_gemv::checkpoint::{Joined, SendError};
use nvfp4_gemv::{DevicePieces, MatricesOnDevice, PinnedBuffer, ScaleLayout, raw};

use super::cuda;
use crate::engine::{LoadPlan, LoadTimes};

/// Loads weights to the first device; `progress` gets the bytes that have arrived of the first load.
///
/// # Errors
/// Those of the library and of CUDA; no memory for as many pinned bytes as the weights have, where rounds are asked for.
pub(crate) fn load(
    all: &[Joined<'_>],
    plan: &LoadPlan,
    progress: &mut dyn FnMut(usize),
) -> Result<LoadTimes> {
    raw::device_count()?;
    let gpu = raw::gpu(0)?;
    let context = CudaContext::new(0).map_err(|e| cuda("opening device 0", e))?;
    // SAFETY: all work of this program goes to the one stream below.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream();
    let stream = stream.map_err(|e| cuda("creating a stream", e))?;
    let wait = || stream.synchronize().map_err(|e| cuda("loading weights", e));
    let since = |begin: Instant| begin.elapsed().as_secs_f64();
    let before = resident("VmRSS:");
    let begin = Instant::now();
    let mut buffers = match plan.buffers {
        Some(count) => DevicePieces::buffers(&stream, count, plan.piece_bytes)?,
        None => DevicePieces::some_buffers(&stream)?,
    };
    let (count, buffer_bytes) = (buffers.len(), buffers[0].len());
    let pinning = since(begin);
    let matrices =
        MatricesOnDevice::from_joined(&stream, plan.layout, all, &mut buffers, |arrived, _| {
            progress(arrived)
        });
    let matrices = matrices.map_err(of_send)?;
    wait()?;
    let first = since(begin);
    let grown = resident("VmHWM:").zip(before);
    let grown = grown.map(|(most, before)| most.saturating_sub(before));
    drop(matrices);
    wait()?;

    let begin = Instant::now();
    let memory = |bytes: usize| {
        // SAFETY: it is written by copies before it is read.
        unsafe { stream.alloc::<u8>(bytes.max(1)) }.map_err(|e| cuda("allocating memory", e))
    };
    let both = |joined: &Joined<'_>| {
        let [codes, scales] = arrays(joined);
        Ok([memory(codes)?, memory(scales)?])
    };
    let parts = all.iter().map(both).collect::<Result<Vec<_>>>();
    let mut parts: Vec<[CudaSlice<u8>; 2]> = parts?;
    wait()?;
    let allocating = since(begin);

    let pinned = match plan.rounds {
        0 => None,
        _ => Some(pinned_copy(&stream, all)?),
    };
    let mut rounds = Vec::new();
    for round in 0..plan.rounds.max(1) {
        let plain = match &pinned {
            None => 0.0,
            Some(pinned) => {
                let begin = Instant::now();
                let mut from = &pinned[..];
                for (joined, both) in all.iter().zip(&mut parts) {
                    for (to, bytes) in both.iter_mut().zip(arrays(joined)) {
                        let (now, later) = from.split_at(bytes);
                        let (to, _written) = to.device_ptr_mut(&stream);
                        // SAFETY: both sides have so many bytes, and live until the stream has been waited for.
                        unsafe { result::memcpy_htod_async(to, now, stream.cu_stream()) }
                            .map_err(|e| cuda("copying pinned memory", e))?;
                        from = later;
                    }
                }
                wait()?;
                since(begin)
            }
        };
        // Memory that nothing was sent to is cleared.
        for memory in parts.iter_mut().flatten() {
            let cleared = stream.memset_zeros(memory);
            cleared.map_err(|e| cuda("clearing memory", e))?;
        }
        let views = parts.iter_mut();
        let views = views.map(|both| both.each_mut().map(|of| of.as_view_mut()));
        let mut to = DevicePieces::new(&stream, views.collect());
        wait()?;
        let begin = Instant::now();
        Joined::send(all, &mut buffers, &mut to, |_, _| {}).map_err(of_send)?;
        wait()?;
        if round < plan.rounds {
            rounds.push((since(begin), plain));
        }
    }
    drop(pinned);
    let mut same = true;
    for (joined, [codes, scales]) in all.iter().zip(&parts) {
        let mut expected = arrays(joined).map(|bytes| vec![0; bytes]);
        joined.write_codes(&mut expected[0])?;
        joined.write_scales(&mut expected[1])?;
        for (found, expected) in [codes, scales].into_iter().zip(&expected) {
            let found = stream.clone_dtoh(&found.slice(..expected.len()));
            same &= found.map_err(|e| cuda("reading memory back", e))? == *expected;
        }
    }
    Ok(LoadTimes {
        device: gpu.name,
        buffers: count,
        buffer_bytes,
        first,
        pinning,
        allocating,
        grown,
        rounds,
        same,
    })
}

/// Bytes of codes and of linear block scales.
fn arrays(joined: &Joined<'_>) -> [usize; 2] {
    let shape = joined.shape();
    let scales = shape.weight_scale_bytes(ScaleLayout::Linear);
    [shape.weight_code_bytes(), scales]
}

/// All arrays, one behind the other, in pinned memory.
fn pinned_copy(stream: &Arc<CudaStream>, all: &[Joined<'_>]) -> Result<PinnedBuffer> {
    let bytes = all.iter().flat_map(arrays).sum();
    let pinned = DevicePieces::buffers(stream, 1, bytes);
    let mut pinned = pinned.context("pinned memory for a plain copy of all weights")?;
    let mut pinned = pinned.remove(0);
    let mut to = &mut pinned[..];
    for joined in all {
        let [codes, scales] = arrays(joined);
        let (now, later) = to.split_at_mut(codes);
        joined.write_codes(now)?;
        let (now, later) = later.split_at_mut(scales);
        joined.write_scales(now)?;
        to = later;
    }
    Ok(pinned)
}

/// Bytes that the process has in memory, or has had at most: a line of what the system says of it.
fn resident(line: &str) -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let rest = status.lines().find_map(|of| of.strip_prefix(line))?;
    let kib: usize = rest.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

fn of_send(error: SendError<nvfp4_gemv::Error>) -> anyhow::Error {
    match error {
        SendError::Buffers(error) | SendError::Destination(error) => error.into(),
        SendError::File(error) => error.into(),
    }
}
