//! The kernels that stream tiles of 128 rows through shared memory: on tensor cores, and on CUDA
//! cores with the same load pipeline.

use serde::{Deserialize, Serialize};

use super::ALPHAS;
use super::distinct::distinct;
use crate::shape::Shape;

/// Which kernel consumes the tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TileConfig {
    /// Which kernel.
    pub kernel: TileKernel,
    /// K steps of 256 elements that a CTA has in flight, 2 to 12; on CUDA cores an even number,
    /// because two groups of warps take them in turn.
    pub stages: u32,
    /// CTAs of a cluster, which share a tile's K steps: 1 to 8, each with one step or more.
    pub cluster: u32,
    /// Programmatic dependent launch, from compute capability 9.0 on: weights are read before the kernels before
    /// this one have ended. [What that asks of the caller](crate::Config#programmatic-dependent-launch).
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
/// Vectors of a pass over the weights: `kMaxVectors` in `gemv_cuda_core_tma.cuh`.
const CUDA_CORE_VECTORS: u32 = 8;
/// Shared memory that every CTA takes beside what it asks for.
const RESERVED: u32 = 1024;
/// Bytes of weights an SM must have in flight: Little's law at 8 TB/s and 148 SMs gives 43 to 54 KB for
/// latencies of 0.8 to 1 microsecond, at 4.2 TB/s and 132 SMs about half.
const BYTES_IN_FLIGHT: u32 = 64 << 10;
/// Columns of tensor memory of an SM.
const TENSOR_COLUMNS: u32 = 512;

impl TileKernel {
    /// The tensor-core kernel with the smallest N, the default.
    pub const TENSOR_CORE: Self = Self::TensorCore { mma_n: 16 };

    /// Two CTAs have room in an SM's registers: `__launch_bounds__` of the kernels.
    fn two_fit(self, shape: &Shape) -> bool {
        match self {
            Self::CudaCore => shape.n() <= 2,
            Self::TensorCore { .. } => true,
        }
    }
}

impl TileConfig {
    /// The default for a problem on a device: the cluster size with the least work on the SM that has
    /// the most, and enough stages for the bytes in flight that memory latency asks for.
    ///
    /// On CUDA cores those are the fewest that make 64 KiB of weights an SM: more only make the
    /// first stage arrive later, measured on an H200 (docs/notes/tuning.md). On tensor cores, as many as
    /// two CTAs an SM have room for: their consumer is quick, and no device was there to ask.
    pub fn for_problem(kernel: TileKernel, shape: &Shape, target: &TileTarget) -> Option<Self> {
        (1..=MOST_CLUSTER)
            .filter_map(|cluster| {
                let cost = cost(shape, cluster, target.multiprocessors);
                let config = Self::with_cluster(kernel, cluster, shape, target)?;
                Some((cost, config))
            })
            .min_by(|(a, _), (b, _)| a.total_cmp(b))
            .map(|(_, config)| config)
    }

    /// Cuts worth measuring, the default first: all cluster sizes, each with the default's stages, fewer
    /// and more. Programmatic dependent launch is no matter of speed alone, and is left out.
    pub fn candidates(kernel: TileKernel, shape: &Shape, target: &TileTarget) -> Vec<Self> {
        let mut cuts: Vec<Self> = Self::for_problem(kernel, shape, target)
            .into_iter()
            .collect();
        for cluster in 1..=MOST_CLUSTER {
            let Some(cut) = Self::with_cluster(kernel, cluster, shape, target) else {
                continue;
            };
            let stages = [cut.stages, cut.stages.saturating_sub(2), cut.stages + 2];
            cuts.extend(stages.map(|stages| Self { stages, ..cut }));
        }
        distinct(cuts, |cut| cut.is_legal(shape, target))
    }

    /// The default number of stages for a cluster size, if there is a legal one.
    fn with_cluster(
        kernel: TileKernel,
        cluster: u32,
        shape: &Shape,
        target: &TileTarget,
    ) -> Option<Self> {
        let ctas = tiles(shape) * cluster as usize;
        let alone = ctas <= target.multiprocessors as usize || !kernel.two_fit(shape);
        let per_sm = if alone { 1 } else { 2 };
        let with = |stages| Self {
            kernel,
            stages,
            cluster,
            dependent: false,
        };
        let fits = |config: &Self, per_sm: u32| {
            config.is_legal(shape, target)
                && u64::from(config.shared_bytes(shape) + RESERVED) * u64::from(per_sm)
                    <= u64::from(target.shared_bytes) + u64::from(RESERVED)
                && config.tensor_columns() * per_sm <= TENSOR_COLUMNS
        };
        let enough = |config: &Self| config.bytes_in_flight() * per_sm >= BYTES_IN_FLIGHT;
        // No more than there are K steps.
        let steps = steps(shape).div_ceil(cluster as usize) as u32;
        let stages = 2..=MOST_STAGES.min(steps.next_multiple_of(GROUPS));
        match kernel {
            TileKernel::CudaCore => {
                let most = *stages.end();
                let mut stages = stages.map(with);
                stages.find(|c| fits(c, per_sm) && (enough(c) || c.stages == most))
            }
            TileKernel::TensorCore { .. } => stages.rev().map(with).find(|c| fits(c, per_sm)),
        }
        // A device with less shared memory, or a wide instruction.
        .or_else(|| (2..=MOST_STAGES).rev().map(with).find(|c| fits(c, 1)))
    }

    /// The kernel has code for this, and the device room.
    pub fn is_legal(&self, shape: &Shape, target: &TileTarget) -> bool {
        let kernel = match self.kernel {
            TileKernel::CudaCore => self.stages.is_multiple_of(GROUPS),
            TileKernel::TensorCore { mma_n } => [16, 64, 128].contains(&mma_n),
        };
        kernel
            && (2..=MOST_STAGES).contains(&self.stages)
            && (1..=MOST_CLUSTER).contains(&self.cluster)
            && self.cluster as usize <= steps(shape)
            && self.tensor_columns() <= TENSOR_COLUMNS
            && self.shared_bytes(shape) <= target.shared_bytes
    }

    /// Successive f32 roundings of any term.
    ///
    /// On CUDA cores: one addition a block of a lane's, two over lanes, and one for each group and
    /// CTA. A matrix instruction adds 64 products of both scales to f32 sums; the ISA does not say
    /// how it rounds. Two roundings an instruction allow for truncation.
    pub fn roundings(&self, shape: &Shape) -> u32 {
        // A cluster that no kernel has counts as the nearest one that does.
        let cluster = self.cluster.clamp(1, MOST_CLUSTER);
        let cta_steps = steps(shape).div_ceil(cluster as usize) as u32;
        let sum = match self.kernel {
            TileKernel::CudaCore => cta_steps.div_ceil(GROUPS) * 4 + 2 + GROUPS * cluster,
            TileKernel::TensorCore { .. } => cta_steps * 4 * 2 + cluster,
        };
        sum + ALPHAS
    }

    /// Bytes of weights, codes and scales, that a CTA has in flight.
    pub fn bytes_in_flight(&self) -> u32 {
        let stage = (ROWS * STEP / 2 + ROWS * STEP / 16) as u32;
        self.stages.saturating_mul(stage)
    }

    /// Bytes of shared memory of a CTA: `dynamic_bytes` in `tiles.cuh`, and the kernels' `Shared`. `u32::MAX` where
    /// they are more, which no legal configuration's are.
    pub fn shared_bytes(&self, shape: &Shape) -> u32 {
        // Rows of vectors, and of their scales in an atom, that a stage keeps.
        let (vector_rows, scale_rows, parts, vectors) = match self.kernel {
            TileKernel::CudaCore => {
                let pass = shape.n().min(CUDA_CORE_VECTORS as usize);
                let rows = CUDA_CORE_VECTORS;
                (rows, rows, GROUPS, pass.next_power_of_two())
            }
            TileKernel::TensorCore { mma_n } => (mma_n, 32, 1, 16),
        };
        let codes = (ROWS as u64 + u64::from(vector_rows)) * 128;
        let stage = (codes + 4 * 512 + 4 * u64::from(scale_rows) * 16).next_multiple_of(1024);
        let barriers = 2 * u64::from(MOST_STAGES) * 8 + 16;
        let partial = u64::from(parts) * vectors as u64 * ROWS as u64 * 4;
        let stages = u64::from(self.stages).saturating_mul(stage);
        let bytes = stages.saturating_add(1024 - 16 + barriers + partial);
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    /// Columns of tensor memory of a CTA: `columns` in `gemv_tcgen05.cuh`. `u32::MAX` where they are more than
    /// fit, which no legal configuration's are.
    pub fn tensor_columns(&self) -> u32 {
        match self.kernel {
            TileKernel::CudaCore => 0,
            TileKernel::TensorCore { mma_n } => mma_n
                .max(32)
                .saturating_add(self.stages.saturating_mul(32))
                .checked_next_power_of_two()
                .unwrap_or(u32::MAX),
        }
    }
}

/// K steps of a row.
fn steps(shape: &Shape) -> usize {
    shape.k().div_ceil(STEP)
}

/// Tiles of all batches.
fn tiles(shape: &Shape) -> usize {
    shape.m().div_ceil(ROWS) * shape.l()
}

/// K steps of the SM that has the most, and what CTAs cost beside them: half a step to start and end,
/// and a twentieth where an SM has but one, which nothing overlaps with. Clusters of more than two do not
/// fill all SMs of a GPC. Fitted to measurements on an H200: docs/notes/tuning.md.
fn cost(shape: &Shape, cluster: u32, multiprocessors: u32) -> f64 {
    let usable = f64::from(multiprocessors) * if cluster > 2 { 0.9 } else { 1.0 };
    let ctas = tiles(shape) as f64 * f64::from(cluster);
    let per_sm = (ctas / usable).ceil().max(1.0);
    let alone = if per_sm == 1.0 { 1.06 } else { 1.0 };
    per_sm * (steps(shape).div_ceil(cluster as usize) as f64 + 0.5) * alone
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
        for (m, k, l) in [(7168, 16384, 1), (4096, 7168, 8), (7168, 2048, 4)] {
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
                    let ctas = tiles(&shape) * config.cluster as usize;
                    let two = ctas > 148 && kernel.two_fit(&shape);
                    let per_sm = if two { 2 } else { 1 };
                    assert!(
                        config.bytes_in_flight() * per_sm >= BYTES_IN_FLIGHT,
                        "{config:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn every_shape_has_a_default() {
        for (m, n, k, l) in [
            (1, 1, 32, 1),
            (129, 16, 96, 1),
            (1, 1, 32, 70_000),
            (1 << 20, 3, 64, 1),
        ] {
            let shape = Shape::new(m, n, k, l).unwrap();
            for kernel in [TileKernel::CudaCore, TileKernel::TENSOR_CORE] {
                let config = TileConfig::for_problem(kernel, &shape, &B200).unwrap();
                assert!(config.is_legal(&shape, &B200), "{config:?}");
                assert!(config.stages <= 2, "a K step or less: {config:?}");
            }
        }
    }

    /// The cluster sizes that were fastest on an H200.
    #[test]
    fn cluster_sizes_of_the_benchmark_shapes() {
        let h200 = TileTarget {
            multiprocessors: 132,
            shared_bytes: 227 << 10,
        };
        for (m, k, l, cluster) in [
            (7168, 16384, 1, 4),
            (4096, 7168, 8, 1),
            (7168, 2048, 4, 1),
            (4096, 4096, 1, 3),
            (14336, 4096, 1, 2),
            (4096, 14336, 1, 7),
            (28672, 8192, 1, 1),
            (8192, 28672, 1, 2),
        ] {
            let shape = Shape::gemv(m, k, l).unwrap();
            let config = TileConfig::for_problem(TileKernel::CudaCore, &shape, &h200).unwrap();
            assert_eq!(config.cluster, cluster, "{shape}");
        }
    }

    #[test]
    fn candidates_are_legal_and_start_with_the_default() {
        for (m, k, l) in [(7168, 16384, 1), (1, 32, 1), (300, 4128, 3)] {
            let shape = Shape::gemv(m, k, l).unwrap();
            for kernel in [TileKernel::CudaCore, TileKernel::TENSOR_CORE] {
                let cuts = TileConfig::candidates(kernel, &shape, &B200);
                assert_eq!(
                    cuts.first(),
                    TileConfig::for_problem(kernel, &shape, &B200).as_ref()
                );
                for (i, cut) in cuts.iter().enumerate() {
                    assert!(cut.is_legal(&shape, &B200), "{cut:?}");
                    assert!(!cuts[..i].contains(cut), "{cut:?} twice");
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
