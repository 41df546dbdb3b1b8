//! How a path's kernels cut a problem: chosen here, obeyed by the launchers.

mod cuda_core;
mod distinct;
mod tile;

pub use cuda_core::{CudaCoreConfig, CudaCoreKernel, CudaCoreTarget};
pub use tile::{TileConfig, TileKernel, TileTarget};

use serde::{Deserialize, Serialize};

use crate::path::Path;
use crate::shape::Shape;
use crate::tensor::Activation;

/// The cut of a problem on one of the GPU's paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Config {
    /// Of the kernels that load from memory straight into registers.
    CudaCore(CudaCoreConfig),
    /// Of the kernels that stream tiles through shared memory.
    Tile(TileConfig),
}

impl Config {
    /// The path that takes it.
    pub fn path(&self) -> Path {
        match self {
            Self::CudaCore(_) => Path::CudaCore,
            Self::Tile(config) => match config.kernel {
                TileKernel::CudaCore => Path::CudaCoreTma,
                TileKernel::TensorCore { .. } => Path::TensorCore,
            },
        }
    }

    /// The most successive f32 roundings that any term passes through:
    /// [`reference::error_bound`](crate::reference::error_bound) needs it.
    pub fn roundings(&self, shape: &Shape, activation: Activation) -> u32 {
        match self {
            Self::CudaCore(config) => config.roundings(shape, activation),
            Self::Tile(config) => config.roundings(shape),
        }
    }
}

impl From<CudaCoreConfig> for Config {
    fn from(config: CudaCoreConfig) -> Self {
        Self::CudaCore(config)
    }
}

impl From<TileConfig> for Config {
    fn from(config: TileConfig) -> Self {
        Self::Tile(config)
    }
}

/// Roundings of the product of the global scales to f32, and of the multiplications by it, the row
/// alpha and the vector alpha.
const ALPHAS: u32 = 4;
