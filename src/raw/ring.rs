//! The kernel whose rows come in bulk copies.

use std::ffi::c_void;

use super::device::DeviceInfo;
use super::gemv::{Output, Vectors, Weights, gemv};
use super::tiled::operands;
use crate::config::{Config, RingConfig, RingTarget};
use crate::error::{Error, Result};
use crate::ffi;
use crate::path::{self, Path};
use crate::shape::Shape;
use crate::types::ScaleLayout;

/// What [`RingConfig::for_problem`] asks about operands on a device.
pub fn ring_target(weights: &Weights, device: &DeviceInfo) -> RingTarget {
    RingTarget {
        tiled: weights.layout == ScaleLayout::Tiled128x4,
        multiprocessors: device.multiprocessors,
        shared_bytes: device.shared_bytes,
    }
}

/// Enqueues the ring kernel for one problem on `stream`, a `CUstream` or `cudaStream_t`. M = 0 or L = 0
/// enqueues nothing.
///
/// # Errors
/// What [`cuda_core`](super::cuda_core) refuses; [`Error::PathUnavailable`] for a device, a type, a length or
/// an alignment that the kernel does not take; a configuration that has no kernel or does not fit the problem
/// or `device`; and what CUDA reports of the launch.
///
/// # Safety
/// As [`gemv`]'s.
pub unsafe fn ring(
    shape: &Shape,
    weights: &Weights,
    vectors: &Vectors,
    output: &Output,
    config: &RingConfig,
    device: &DeviceInfo,
    stream: *mut c_void,
) -> Result<()> {
    let config = Config::from(*config);
    // SAFETY: this function's own contract.
    unsafe { gemv(shape, weights, vectors, output, &config, device, stream) }
}

/// Checks that the kernel takes the problem, and translates the configuration for the C ABI.
pub(super) fn ring_config(
    shape: &Shape,
    weights: &Weights,
    vectors: &Vectors,
    config: &RingConfig,
    device: &DeviceInfo,
) -> Result<ffi::nvfp4_ring_config> {
    let operands = operands(shape, weights, vectors);
    path::ring_available(shape, &operands, &device.target()).map_err(|reason| {
        Error::PathUnavailable {
            path: Path::CudaCore,
            reason,
        }
    })?;
    let target = ring_target(weights, device);
    if !config.is_legal(shape, &target) {
        return Err(Error::RingConfig {
            config: *config,
            target,
        });
    }
    Ok(ffi::nvfp4_ring_config {
        chunks: config.chunks as i32,
        groups: config.groups as i32,
        rows: config.rows as i32,
        depth: config.depth as i32,
        granule: config.granule as i32,
        cached: config.cached.into(),
        ctas: config.ctas as i32,
        dependent: config.dependent.into(),
    })
}
