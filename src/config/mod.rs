//! How a path's kernels cut a problem: chosen here, obeyed by the launchers.

mod cuda_core;
mod distinct;
mod ring;
mod stream;
mod tile;

pub use cuda_core::{CudaCoreConfig, CudaCoreKernel, CudaCoreTarget};
#[cfg(feature = "cuda")]
pub(crate) use ring::RING_STEP;
pub use ring::{RingConfig, RingTarget};
#[cfg(feature = "cuda")]
pub(crate) use stream::STEP as STREAM_STEP;
pub use stream::{StreamConfig, StreamTarget};
pub use tile::{TileConfig, TileKernel, TileTarget};

use serde::{Deserialize, Serialize};

use crate::path::Path;
use crate::shape::Shape;
use crate::types::Activation;

/// The cut of a problem on one of the GPU's paths.
///
/// # Programmatic dependent launch
///
/// Each of these has a field `dependent`. A configuration that has it set is *chained*: from compute
/// capability 9.0 on, its kernel may start before the kernels before it in the stream have ended. It reads
/// codes and block scales of the weights at once. Then it waits for those kernels, and only after that it
/// reads vectors and row factors, and writes the output.
///
/// Nothing can check that the weights are complete by then, so whoever enqueues such a launch promises it:
/// **no kernel that may still be running when this one starts writes the codes or block scales that it
/// reads.** The kernel right before it is not the only one that may be. A chained launch lets the next one
/// start before it has waited itself. So the promise is about all chained launches right before this one in
/// the stream, and about the kernel before the first of those. An ordinary launch, a copy or a memset starts
/// when all that is before it has ended: what was written before one of these is complete.
///
/// The functions that enqueue chained launches are therefore `unsafe`: `gemv_on_device_chained`,
/// `PreparedGemv::chained`, and those of `raw`, all with the feature `cuda`. Safe functions refuse a chained
/// configuration, [`Error::ChainedConfig`](crate::Error::ChainedConfig). The configurations themselves are
/// plain data, and launch nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Config {
    /// Of the kernels that load from memory straight into registers.
    CudaCore(CudaCoreConfig),
    /// Of the kernels that stream tiles through shared memory.
    Tile(TileConfig),
    /// Of the kernel whose warps stream rows through queues of their own.
    Stream(StreamConfig),
    /// Of the kernel whose rows come in bulk copies.
    Ring(RingConfig),
}

impl Config {
    /// The path that takes it.
    pub fn path(&self) -> Path {
        match self {
            Self::CudaCore(_) | Self::Stream(_) | Self::Ring(_) => Path::CudaCore,
            Self::Tile(config) => match config.kernel {
                TileKernel::CudaCore => Path::CudaCoreTma,
                TileKernel::TensorCore { .. } => Path::TensorCore,
            },
        }
    }

    /// The same cut with [programmatic dependent launch](Self#programmatic-dependent-launch), or without.
    #[must_use]
    pub fn with_dependent(self, dependent: bool) -> Self {
        match self {
            Self::CudaCore(config) => Self::CudaCore(CudaCoreConfig {
                dependent,
                ..config
            }),
            Self::Tile(config) => Self::Tile(TileConfig {
                dependent,
                ..config
            }),
            Self::Stream(config) => Self::Stream(StreamConfig {
                dependent,
                ..config
            }),
            Self::Ring(config) => Self::Ring(RingConfig {
                dependent,
                ..config
            }),
        }
    }

    /// The cut of the same kernel for launches that follow each other with programmatic dependent launch, as
    /// layers of a model can: [`RingConfig::for_chain`] where it is the ring kernel's, for operands that `target`
    /// is about, and elsewhere [`with_dependent`](Self::with_dependent).
    #[must_use]
    pub fn for_chain(self, shape: &Shape, target: &RingTarget) -> Self {
        match self {
            Self::Ring(_) => RingConfig::for_chain(shape, target).map(Self::Ring),
            _ => None,
        }
        .unwrap_or_else(|| self.with_dependent(true))
    }

    /// Whether it asks for [programmatic dependent launch](Self#programmatic-dependent-launch).
    pub fn is_dependent(&self) -> bool {
        match self {
            Self::CudaCore(config) => config.dependent,
            Self::Tile(config) => config.dependent,
            Self::Stream(config) => config.dependent,
            Self::Ring(config) => config.dependent,
        }
    }

    /// The most successive f32 roundings that any term passes through:
    /// [`reference::error_bound`](crate::reference::error_bound) needs it.
    pub fn roundings(&self, shape: &Shape, activation: Activation) -> u32 {
        match self {
            Self::CudaCore(config) => config.roundings(shape, activation),
            Self::Tile(config) => config.roundings(shape),
            Self::Stream(config) => config.roundings(shape, activation),
            Self::Ring(config) => config.roundings(shape),
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

impl From<StreamConfig> for Config {
    fn from(config: StreamConfig) -> Self {
        Self::Stream(config)
    }
}

impl From<RingConfig> for Config {
    fn from(config: RingConfig) -> Self {
        Self::Ring(config)
    }
}

/// Roundings of the product of the global scales to f32, and of the multiplications by it, the row
/// alpha and the vector alpha.
const ALPHAS: u32 = 4;

#[cfg(test)]
mod extremes;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_can_be_dependent() {
        let shape = Shape::gemv(256, 1024, 1).unwrap();
        let (multiprocessors, shared_bytes) = (132, 227 << 10);
        let tile = TileTarget {
            multiprocessors,
            shared_bytes,
        };
        let stream = StreamTarget {
            activation: Activation::F16,
            tiled: false,
            multiprocessors,
            shared_bytes,
        };
        let direct = CudaCoreTarget {
            activation: Activation::F16,
            most_blocks_per_load: 2,
            tiled: false,
            multiprocessors,
            shared_bytes,
        };
        let ring = RingTarget {
            tiled: false,
            multiprocessors,
            shared_bytes,
        };
        let configs: [Config; 4] = [
            TileConfig::for_problem(TileKernel::CudaCore, &shape, &tile)
                .unwrap()
                .into(),
            StreamConfig::for_problem(&shape, &stream).unwrap().into(),
            CudaCoreConfig::for_problem(&shape, &direct).into(),
            RingConfig::for_problem(&shape, &ring).unwrap().into(),
        ];
        for config in configs {
            let dependent = config.with_dependent(true);
            assert!(dependent.is_dependent() && !config.is_dependent());
            assert_eq!(dependent.path(), config.path());
            assert_eq!(dependent.with_dependent(false), config);
            let chain = config.for_chain(&shape, &ring);
            assert!(chain.is_dependent() && chain.path() == config.path());
            assert_eq!(chain == dependent, !matches!(config, Config::Ring(_)));
            let text = serde_json::to_string(&dependent).unwrap();
            assert_eq!(serde_json::from_str::<Config>(&text).unwrap(), dependent);
        }
    }

    /// Files of before the direct kernels had such launches.
    #[test]
    fn direct_cuts_without_the_field_are_not_dependent() {
        let text = r#"{"cuda-core":{"kernel":"direct","blocks_per_load":2,"warps":4,"k_split":1,"ctas":0}}"#;
        let config: Config = serde_json::from_str(text).unwrap();
        assert!(!config.is_dependent());
    }
}
