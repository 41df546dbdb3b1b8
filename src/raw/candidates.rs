//! The configurations that are worth measuring.

use super::gemv::{Vectors, Weights, cuda_core_target};
use super::{DeviceInfo, operands, tile_target};
use crate::config::{Config, CudaCoreConfig, TileConfig, TileKernel};
use crate::path::{Path, available};
use crate::shape::Shape;

/// Legal configurations of a path for a problem, its default first; none where the path cannot run it.
pub fn candidates(
    path: Path,
    shape: &Shape,
    weights: &Weights,
    vectors: &Vectors,
    device: &DeviceInfo,
) -> Vec<Config> {
    let operands = operands(shape, weights, vectors);
    if available(path, shape, &operands, &device.target()).is_err() {
        return Vec::new();
    }
    let tile = |kernel| into(TileConfig::candidates(kernel, shape, &tile_target(device)));
    match path {
        Path::Cpu => Vec::new(),
        Path::CudaCore => {
            let target = cuda_core_target(shape, weights, vectors, device);
            into(CudaCoreConfig::candidates(shape, &target))
        }
        Path::CudaCoreTma => tile(TileKernel::CudaCore),
        Path::TensorCore => tile(TileKernel::TENSOR_CORE),
    }
}

fn into<T: Into<Config>>(cuts: Vec<T>) -> Vec<Config> {
    cuts.into_iter().map(Into::into).collect()
}

/// Whether a configuration has a kernel for a problem, and room on a device.
pub(super) fn is_legal(
    config: &Config,
    shape: &Shape,
    weights: &Weights,
    vectors: &Vectors,
    device: &DeviceInfo,
) -> bool {
    match config {
        Config::CudaCore(config) => {
            config.is_legal(shape, &cuda_core_target(shape, weights, vectors, device))
        }
        Config::Tile(config) => config.is_legal(shape, &tile_target(device)),
    }
}
