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

    /// The same cut with programmatic dependent launch, or without: the weights are read before the
    /// kernel before this one in the stream has ended, which must not write them. Unchanged where the
    /// path's kernels have no such launch.
    #[must_use]
    pub fn with_dependent(self, dependent: bool) -> Self {
        match self {
            Self::CudaCore(_) => self,
            Self::Tile(config) => Self::Tile(TileConfig {
                dependent,
                ..config
            }),
        }
    }

    /// Whether it asks for programmatic dependent launch.
    pub fn is_dependent(&self) -> bool {
        match self {
            Self::CudaCore(_) => false,
            Self::Tile(config) => config.dependent,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernels_that_have_it_become_dependent() {
        let shape = Shape::gemv(256, 1024, 1).unwrap();
        let target = TileTarget {
            multiprocessors: 132,
            shared_bytes: 227 << 10,
        };
        let tile = TileConfig::for_problem(TileKernel::CudaCore, &shape, &target).unwrap();
        let dependent = Config::from(tile).with_dependent(true);
        assert!(dependent.is_dependent() && !Config::from(tile).is_dependent());
        assert_eq!(dependent.with_dependent(false), tile.into());
        let target = CudaCoreTarget {
            activation: Activation::F16,
            wide: true,
            tiled: false,
            multiprocessors: 132,
            shared_bytes: 227 << 10,
        };
        let direct = Config::from(CudaCoreConfig::for_problem(&shape, &target));
        assert_eq!(direct.with_dependent(true), direct);
    }
}
