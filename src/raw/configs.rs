//! The configurations of a path for a problem: the default, and those worth measuring.

use super::gemv::{Vectors, Weights, cuda_core_target};
use super::{DeviceInfo, operands, ring_target, stream_target, tile_target};
use crate::config::{Config, CudaCoreConfig, RingConfig, StreamConfig, TileConfig, TileKernel};
use crate::error::{Error, Result};
use crate::path::{Path, Unavailable, available, measured, ring_available, stream_available};
use crate::shape::Shape;

/// The configuration that a path of the GPU takes for a problem by default: the one that was fastest for
/// this problem on this model of GPU, where a built-in table has it, or else what the path's rule says.
///
/// # Errors
/// [`Error::PathUnavailable`] for the CPU path, and where the device has no room for any.
pub fn default_config(
    path: Path,
    shape: &Shape,
    weights: &Weights,
    vectors: &Vectors,
    device: &DeviceInfo,
) -> Result<Config> {
    let measured = measured(path, shape, weights, vectors, device, |timed| timed.config);
    if let Some(config) = measured {
        return Ok(config);
    }
    let tile = |kernel| {
        TileConfig::for_problem(kernel, shape, &tile_target(device))
            .map(Config::from)
            .ok_or(Unavailable::SharedMemory)
    };
    match path {
        Path::Cpu => Err(Unavailable::OperandsOnDevice),
        Path::CudaCore => Ok(wide_default(shape, weights, vectors, device)
            .or_else(|| ring_default(shape, weights, vectors, device))
            .or_else(|| stream_default(shape, weights, vectors, device))
            .unwrap_or_else(|| {
                let target = cuda_core_target(shape, weights, vectors, device);
                CudaCoreConfig::for_problem(shape, &target).into()
            })),
        Path::CudaCoreTma => tile(TileKernel::CudaCore),
        Path::TensorCore => tile(TileKernel::TENSOR_CORE),
    }
    .map_err(|reason| Error::PathUnavailable { path, reason })
}

/// The integer-dot kernel with 32-byte loads, for up to four vectors on Blackwells of data centres. Their memory
/// is too fast for the instructions of the stream kernel. By the estimates of `docs/notes/estimates.md`, not by
/// measurement, the stream kernel is ahead with eight.
fn wide_default(
    shape: &Shape,
    weights: &Weights,
    vectors: &Vectors,
    device: &DeviceInfo,
) -> Option<Config> {
    if device.compute_capability.0 != 10 || shape.n() > 4 {
        return None;
    }
    let target = cuda_core_target(shape, weights, vectors, device);
    CudaCoreConfig::integer_dot(shape, &target)
        .filter(|config| config.blocks_per_load == 4)
        .map(Config::from)
}

/// The configuration for launches that follow each other with [programmatic dependent
/// launch](Config#programmatic-dependent-launch), as layers of a model can: the one that was fastest so, where the
/// built-in table has it, or else [`default_config`]'s kernel, in its cut for chains. Below compute capability 9.0
/// launches do not overlap, whatever it says.
///
/// # Errors
/// [`default_config`]'s.
pub fn chained_config(
    path: Path,
    shape: &Shape,
    weights: &Weights,
    vectors: &Vectors,
    device: &DeviceInfo,
) -> Result<Config> {
    let measured = measured(path, shape, weights, vectors, device, |timed| {
        Some(timed.chained?.config)
    });
    if let Some(config) = measured {
        return Ok(config);
    }
    let single = default_config(path, shape, weights, vectors, device)?;
    Ok(single.for_chain(shape, &ring_target(weights, device)))
}

/// The ring kernel's, where it takes the problem.
fn ring_default(
    shape: &Shape,
    weights: &Weights,
    vectors: &Vectors,
    device: &DeviceInfo,
) -> Option<Config> {
    let operands = operands(shape, weights, vectors);
    ring_available(shape, &operands, &device.target()).ok()?;
    RingConfig::for_problem(shape, &ring_target(weights, device)).map(Config::from)
}

/// The stream kernel's, where it takes the problem.
fn stream_default(
    shape: &Shape,
    weights: &Weights,
    vectors: &Vectors,
    device: &DeviceInfo,
) -> Option<Config> {
    let operands = operands(shape, weights, vectors);
    stream_available(shape, &operands, &device.target()).ok()?;
    let target = stream_target(weights, vectors, device);
    StreamConfig::for_problem(shape, &target).map(Config::from)
}

/// Of the built-in table of this model of GPU.
fn measured(
    path: Path,
    shape: &Shape,
    weights: &Weights,
    vectors: &Vectors,
    device: &DeviceInfo,
    config_of: impl Fn(&measured::Timed) -> Option<Config>,
) -> Option<Config> {
    let table = measured::builtin_for(&device.name, device.multiprocessors)?;
    let entry = table.find(shape, &operands(shape, weights, vectors))?;
    let config = config_of(entry.of(path)?)?;
    // Kernels may have changed since.
    is_legal(&config, shape, weights, vectors, device).then_some(config)
}

/// [`candidates`] for launches that follow each other with programmatic dependent launch, [`chained_config`]'s
/// rule first; none where the device knows no such launches.
pub fn chained_candidates(
    path: Path,
    shape: &Shape,
    weights: &Weights,
    vectors: &Vectors,
    device: &DeviceInfo,
) -> Vec<Config> {
    if device.compute_capability < (9, 0) {
        return Vec::new();
    }
    let alone = candidates(path, shape, weights, vectors, device);
    let mut cuts = Vec::new();
    if alone.iter().any(|config| matches!(config, Config::Ring(_))) {
        let target = ring_target(weights, device);
        cuts.extend(into(RingConfig::chained_candidates(shape, &target)));
    }
    let others = alone
        .into_iter()
        .filter(|config| !matches!(config, Config::Ring(_)))
        .map(|config| config.with_dependent(true));
    cuts.extend(others);
    cuts
}

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
            let mut cuts = Vec::new();
            if ring_available(shape, &operands, &device.target()).is_ok() {
                cuts.extend(into(RingConfig::candidates(
                    shape,
                    &ring_target(weights, device),
                )));
            }
            if stream_available(shape, &operands, &device.target()).is_ok() {
                let target = stream_target(weights, vectors, device);
                cuts.extend(into(StreamConfig::candidates(shape, &target)));
            }
            let target = cuda_core_target(shape, weights, vectors, device);
            cuts.extend(into(CudaCoreConfig::candidates(shape, &target)));
            cuts
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
        Config::Stream(config) => config.is_legal(shape, &stream_target(weights, vectors, device)),
        Config::Ring(config) => config.is_legal(shape, &ring_target(weights, device)),
    }
}
