//! The kernel whose warps stream rows through queues of their own in shared memory.

use std::ffi::c_void;

use super::device::DeviceInfo;
use super::gemv::{Output, Vectors, Weights, gemv};
use super::tiled::operands;
use crate::config::{Config, StreamConfig, StreamTarget};
use crate::error::{Error, Result};
use crate::ffi;
use crate::path::{self, Path};
use crate::shape::Shape;
use crate::types::ScaleLayout;

/// What [`StreamConfig::for_problem`] asks about operands on a device.
pub fn stream_target(weights: &Weights, vectors: &Vectors, device: &DeviceInfo) -> StreamTarget {
    StreamTarget {
        activation: vectors.activation(),
        tiled: weights.layout == ScaleLayout::Tiled128x4,
        multiprocessors: device.multiprocessors,
        shared_bytes: device.shared_bytes,
    }
}

/// Enqueues the stream kernel for one problem on the stream `on`, a `CUstream` or `cudaStream_t`. M = 0 or
/// L = 0 enqueues nothing.
///
/// # Errors
/// What [`cuda_core`](super::cuda_core) refuses; [`Error::PathUnavailable`] for a device, a type, a
/// length or an alignment that the kernel does not take; a configuration that has no kernel or does
/// not fit `device`; and what CUDA reports of the launch.
///
/// # Safety
/// As [`gemv`]'s.
pub unsafe fn stream(
    shape: &Shape,
    weights: &Weights,
    vectors: &Vectors,
    output: &Output,
    config: &StreamConfig,
    device: &DeviceInfo,
    on: *mut c_void,
) -> Result<()> {
    let config = Config::from(*config);
    // SAFETY: this function's own contract.
    unsafe { gemv(shape, weights, vectors, output, &config, device, on) }
}

/// Checks that the kernel takes the problem, and translates the configuration for the C ABI.
pub(super) fn stream_config(
    shape: &Shape,
    weights: &Weights,
    vectors: &Vectors,
    config: &StreamConfig,
    device: &DeviceInfo,
) -> Result<ffi::nvfp4_stream_config> {
    let operands = operands(shape, weights, vectors);
    path::stream_available(shape, &operands, &device.target()).map_err(|reason| {
        Error::PathUnavailable {
            path: Path::CudaCore,
            reason,
        }
    })?;
    let target = stream_target(weights, vectors, device);
    if !config.is_legal(shape, &target) {
        return Err(Error::StreamConfig {
            config: *config,
            target,
        });
    }
    Ok(ffi::nvfp4_stream_config {
        warps: config.warps as i32,
        stages: config.stages as i32,
        vectors: config.vectors as i32,
        fetch: config.fetch as i32,
        ctas: config.ctas as i32,
        // Older devices have no such launch; the kernel is right without it.
        dependent: (config.dependent && device.compute_capability >= (9, 0)).into(),
    })
}
