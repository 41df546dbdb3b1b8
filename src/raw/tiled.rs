//! The kernels that stream tiles through shared memory.

use std::ffi::c_void;

use super::device::DeviceInfo;
use super::gemv::{Output, Vectors, Weights, gemv};
use crate::config::{Config, TileConfig, TileKernel, TileTarget};
use crate::error::{Error, Result};
use crate::ffi;
use crate::path::{self, Operands};
use crate::shape::Shape;
use crate::types::Activation;
use crate::types::ScaleLayout;

/// What [`select`](path::select) asks about operands at these addresses.
pub fn operands(shape: &Shape, weights: &Weights, vectors: &Vectors) -> Operands {
    let aligned = |values: &[u64]| values.iter().all(|value| value.is_multiple_of(16));
    let weights_aligned = aligned(&[weights.codes, weights.scales]);
    match vectors {
        Vectors::Nvfp4 {
            codes,
            code_strides,
            scales,
            layout,
            scale_strides,
            ..
        } => {
            let row = if shape.n() > 1 { code_strides.row } else { 0 };
            let (batch, scale_batch) = match shape.l() {
                0 | 1 => (0, 0),
                _ => (code_strides.batch, scale_strides.batch),
            };
            Operands {
                activation: Activation::Nvfp4,
                weight_layout: weights.layout,
                vector_layout: *layout,
                aligned: weights_aligned
                    && aligned(&[*codes, *scales])
                    && aligned(&[row as u64, batch as u64, scale_batch as u64]),
            }
        }
        Vectors::Dense { .. } => Operands {
            activation: vectors.activation(),
            weight_layout: weights.layout,
            vector_layout: ScaleLayout::Linear,
            aligned: weights_aligned,
        },
    }
}

/// What [`TileConfig::for_problem`] asks about a device.
pub fn tile_target(device: &DeviceInfo) -> TileTarget {
    TileTarget {
        multiprocessors: device.multiprocessors,
        shared_bytes: device.shared_bytes,
    }
}

/// Enqueues the tiled kernels for one problem on `stream`, a `CUstream` or `cudaStream_t`. M = 0 or
/// L = 0 enqueues nothing.
///
/// # Errors
/// What [`cuda_core`](super::cuda_core) refuses; [`Error::PathUnavailable`] for a device, a type, a
/// layout or an alignment that the kernels do not take; a configuration that has no kernel or does
/// not fit `device`; and what CUDA reports of the launch.
///
/// # Safety
/// As [`gemv`]'s.
pub unsafe fn tiled(
    shape: &Shape,
    weights: &Weights,
    vectors: &Vectors,
    output: &Output,
    config: &TileConfig,
    device: &DeviceInfo,
    stream: *mut c_void,
) -> Result<()> {
    let config = Config::from(*config);
    // SAFETY: this function's own contract.
    unsafe { gemv(shape, weights, vectors, output, &config, device, stream) }
}

/// Checks that the kernels take the problem, and translates the configuration for the C ABI.
pub(super) fn tile_config(
    shape: &Shape,
    weights: &Weights,
    vectors: &Vectors,
    config: &TileConfig,
    device: &DeviceInfo,
) -> Result<ffi::nvfp4_tile_config> {
    let path = Config::from(*config).path();
    let operands = operands(shape, weights, vectors);
    path::available(path, shape, &operands, &device.target())
        .map_err(|reason| Error::PathUnavailable { path, reason })?;
    let target = tile_target(device);
    if !config.is_legal(shape, &target) {
        return Err(Error::TileConfig {
            config: *config,
            target,
        });
    }
    let mma_n = match config.kernel {
        TileKernel::CudaCore => 0,
        TileKernel::TensorCore { mma_n } => mma_n,
    };
    Ok(ffi::nvfp4_tile_config {
        stages: config.stages as i32,
        cluster: config.cluster as i32,
        mma_n: mma_n as i32,
        dependent: config.dependent.into(),
    })
}
