//! The kernels that stream tiles of 128 rows through shared memory: on tensor cores, and on CUDA
//! cores with the same load pipeline.

use super::ALPHAS;
use crate::shape::Shape;

/// Which kernel consumes the tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TileKernel {
    /// CUDA cores, `gemv_cuda_core_tma`: compute capability 9.0 and newer.
    CudaCore,
    /// Tensor cores, `gemv_tcgen05`: compute capability 10.0 and 10.3.
    TensorCore {
        /// N of the matrix instruction: 16, 64 or 128. Vectors past n are zeros; a larger N costs
        /// shared memory and time, and is there to be compared.
        mma_n: u32,
    },
}

/// The cut of a tiled kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TileConfig {
    /// Which kernel.
    pub kernel: TileKernel,
    /// K steps of 256 elements that a CTA has in flight, 2 to 12; on CUDA cores an even number,
    /// because two groups of warps take them in turn.
    pub stages: u32,
    /// CTAs of a cluster, which share a tile's K steps: 1 to 8, each with one step or more.
    pub cluster: u32,
    /// Programmatic dependent launch: the weights are read before the kernel before this one in the
    /// stream has ended. That kernel must not write them, nor their scales.
    pub dependent: bool,
}

/// What a configuration depends on besides the shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileTarget {
    /// Streaming multiprocessors of the device.
    pub multiprocessors: u32,
    /// Bytes of shared memory that a CTA can have.
    pub shared_bytes: u32,
}

/// Rows of a tile.
const ROWS: usize = 128;
/// Elements of a K step.
const STEP: usize = 256;
/// Most CTAs of a cluster on every device: CUDA C++ Programming Guide, "Thread Block Clusters".
const MOST_CLUSTER: u32 = 8;
/// `kMaxStages` in `tile_pipeline.cuh`.
const MOST_STAGES: u32 = 12;
/// `kGroups` in `gemv_cuda_core_tma.cuh`.
const GROUPS: u32 = 2;
/// Shared memory of an SM, of which every CTA takes 1 KB more than it asks for.
const RESERVED: u32 = 1024;
/// Columns of tensor memory of an SM.
const TENSOR_COLUMNS: u32 = 512;

impl TileKernel {
    /// The tensor-core kernel with the smallest N, the default.
    pub const TENSOR_CORE: Self = Self::TensorCore { mma_n: 16 };

    /// Vectors of one pass over the weights.
    fn pass_vectors(self) -> usize {
        match self {
            Self::CudaCore => 8,
            Self::TensorCore { .. } => 16,
        }
    }
}

impl TileConfig {
    /// The default for a problem on a device: as many bytes in flight as there is room for in two
    /// CTAs an SM, and the cluster size with the fewest K steps on the SM that has the most.
    pub fn for_problem(kernel: TileKernel, shape: &Shape, target: &TileTarget) -> Option<Self> {
        let steps = steps(shape);
        let tiles = shape.m().div_ceil(ROWS) * shape.l();
        let with = |cluster, ctas_per_sm: u32| {
            let mut config = Self {
                kernel,
                stages: MOST_STAGES,
                cluster,
                dependent: false,
            };
            let room = (target.shared_bytes + RESERVED) / ctas_per_sm;
            let fits = |c: &Self| {
                c.is_legal(shape, target)
                    && c.shared_bytes(shape) + RESERVED <= room
                    && c.tensor_columns() * ctas_per_sm <= TENSOR_COLUMNS
            };
            while !fits(&config) {
                config.stages = config.stages.checked_sub(1)?;
            }
            Some(config)
        };
        let cost = |config: &Self, ctas_per_sm: u32| {
            let slots = (target.multiprocessors * ctas_per_sm) as usize;
            let waves = (tiles * config.cluster as usize).div_ceil(slots);
            // A CTA's start and end cost about two K steps.
            waves * (steps.div_ceil(config.cluster as usize) + 2)
        };
        (1..=MOST_CLUSTER)
            .flat_map(|cluster| [(cluster, 2), (cluster, 1)])
            .filter_map(|(cluster, ctas)| with(cluster, ctas).map(|c| (c, ctas)))
            .min_by_key(|(config, ctas)| cost(config, *ctas))
            .map(|(config, _)| config)
    }

    /// The kernel has code for this, and the device room.
    pub fn is_legal(&self, shape: &Shape, target: &TileTarget) -> bool {
        let kernel = match self.kernel {
            TileKernel::CudaCore => self.stages.is_multiple_of(GROUPS),
            TileKernel::TensorCore { mma_n } => {
                [16, 64, 128].contains(&mma_n) && self.tensor_columns() <= TENSOR_COLUMNS
            }
        };
        kernel
            && (2..=MOST_STAGES).contains(&self.stages)
            && (1..=MOST_CLUSTER).contains(&self.cluster)
            && self.cluster as usize <= steps(shape)
            && self.shared_bytes(shape) <= target.shared_bytes
    }

    /// Successive f32 roundings of any term.
    ///
    /// On CUDA cores: one addition a block of a lane's, two over lanes, and one for each group and
    /// CTA. A matrix instruction adds 64 products of both scales to f32 sums; the ISA does not say
    /// how it rounds. Two roundings an instruction allow for truncation.
    pub fn roundings(&self, shape: &Shape) -> u32 {
        let cta_steps = steps(shape).div_ceil(self.cluster as usize) as u32;
        let sum = match self.kernel {
            TileKernel::CudaCore => cta_steps.div_ceil(GROUPS) * 4 + 2 + GROUPS * self.cluster,
            TileKernel::TensorCore { .. } => cta_steps * 4 * 2 + self.cluster,
        };
        sum + ALPHAS
    }

    /// Bytes of weights, codes and scales, that a CTA has in flight.
    pub fn bytes_in_flight(&self) -> u32 {
        self.stages * (ROWS * STEP / 2 + ROWS * STEP / 16) as u32
    }

    /// Bytes of shared memory of a CTA: `dynamic_bytes` in `tiles.cuh`, and the kernels' `Shared`.
    pub fn shared_bytes(&self, shape: &Shape) -> u32 {
        let (vector_rows, parts, vectors) = match self.kernel {
            TileKernel::CudaCore => {
                let pass = shape.n().min(self.kernel.pass_vectors());
                (8, GROUPS, pass.next_power_of_two())
            }
            TileKernel::TensorCore { mma_n } => (mma_n, 1, 16),
        };
        let stage = ROWS as u32 * 128 + vector_rows * 128 + 2 * 4 * 512;
        let barriers = 2 * MOST_STAGES * 8 + 16;
        let partial = parts * vectors as u32 * ROWS as u32 * 4;
        self.stages * stage + 1024 - 16 + barriers + partial
    }

    /// Columns of tensor memory of a CTA: `columns` in `gemv_tcgen05.cuh`.
    pub fn tensor_columns(&self) -> u32 {
        match self.kernel {
            TileKernel::CudaCore => 0,
            TileKernel::TensorCore { mma_n } => {
                (mma_n.max(32) + self.stages * 32).next_power_of_two()
            }
        }
    }
}

/// K steps of a row.
fn steps(shape: &Shape) -> usize {
    shape.k().div_ceil(STEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    const B200: TileTarget = TileTarget {
        multiprocessors: 148,
        shared_bytes: 227 << 10,
    };

    #[test]
    fn defaults_are_legal_and_keep_enough_in_flight() {
        for (m, k, l) in [
            (7168, 16384, 1),
            (4096, 7168, 8),
            (7168, 2048, 4),
            (1, 32, 1),
        ] {
            for n in [1, 2, 8, 16] {
                let shape = Shape::new(m, n, k, l).unwrap();
                for kernel in [
                    TileKernel::CudaCore,
                    TileKernel::TENSOR_CORE,
                    TileKernel::TensorCore { mma_n: 64 },
                    TileKernel::TensorCore { mma_n: 128 },
                ] {
                    let config = TileConfig::for_problem(kernel, &shape, &B200).unwrap();
                    assert!(config.is_legal(&shape, &B200), "{config:?}");
                    assert!(config.bytes_in_flight() >= 64 << 10, "{config:?}");
                }
            }
        }
    }

    #[test]
    fn what_has_no_kernel_is_illegal() {
        let shape = Shape::gemv(256, 1024, 1).unwrap();
        let legal = TileConfig::for_problem(TileKernel::CudaCore, &shape, &B200).unwrap();
        for config in [
            TileConfig { stages: 3, ..legal },
            TileConfig {
                stages: 14,
                ..legal
            },
            TileConfig {
                cluster: 5,
                ..legal
            }, // four K steps
            TileConfig {
                cluster: 0,
                ..legal
            },
            TileConfig {
                kernel: TileKernel::TensorCore { mma_n: 32 },
                ..legal
            },
        ] {
            assert!(!config.is_legal(&shape, &B200), "{config:?}");
        }
    }
}
