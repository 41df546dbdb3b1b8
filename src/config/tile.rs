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
/// f32 roundings of one matrix instruction of 64 elements. Neither the ISA nor anything public says how
/// it adds; an adder that aligns and truncates four sums of blocks and D could round about five times.
/// A B200 has to say.
const MATRIX_ROUNDINGS: u32 = 8;

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
    /// The default for a problem on a device: the cluster size with which the SM that has the most work
    /// ends first, where work that does not fit at once starts late, and enough stages for the bytes in
    /// flight that memory latency asks for.
    ///
    /// On CUDA cores those are the fewest that make 64 KiB of weights an SM: more only make the
    /// first stage arrive later, measured on an H200 (docs/notes/tuning.md). On tensor cores, as many as
    /// two CTAs an SM have room for: their consumer is quick, and no device was there to ask.
    pub fn for_problem(kernel: TileKernel, shape: &Shape, target: &TileTarget) -> Option<Self> {
        (1..=MOST_CLUSTER)
            .filter_map(|cluster| Self::with_cluster(kernel, cluster, shape, target))
            .map(|config| (config.load(shape, target).cost(), config))
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
        let alone = most_ctas(shape, cluster, target) == 1.0 || !kernel.two_fit(shape);
        let per_sm = if alone { 1 } else { 2 };
        let with = |stages| Self {
            kernel,
            stages,
            cluster,
            dependent: false,
        };
        let fits = |config: &Self, per_sm: u32| {
            config.is_legal(shape, target) && config.fits(per_sm, shape, target)
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

    /// So many CTAs of a legal cut have room in an SM's memories.
    fn fits(&self, ctas: u32, shape: &Shape, target: &TileTarget) -> bool {
        let shared = u64::from(self.shared_bytes(shape)) + u64::from(RESERVED);
        let columns = u64::from(self.tensor_columns());
        shared * u64::from(ctas) <= u64::from(target.shared_bytes) + u64::from(RESERVED)
            && columns * u64::from(ctas) <= u64::from(TENSOR_COLUMNS)
    }

    /// What the SM that has the most does of a problem.
    fn load(&self, shape: &Shape, target: &TileTarget) -> Load {
        let two = self.kernel.two_fit(shape) && self.fits(2, shape, target);
        Load {
            ctas: most_ctas(shape, self.cluster, target),
            at_once: if two { 2.0 } else { 1.0 },
            steps: steps(shape).div_ceil(self.cluster as usize) as f64,
        }
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
    /// CTA. On tensor cores: `MATRIX_ROUNDINGS` for each instruction, of which a K step has four, and one
    /// for each CTA.
    pub fn roundings(&self, shape: &Shape) -> u32 {
        // A cluster that no kernel has counts as the nearest one that does.
        let cluster = self.cluster.clamp(1, MOST_CLUSTER);
        let cta_steps = steps(shape).div_ceil(cluster as usize) as u32;
        let sum = match self.kernel {
            TileKernel::CudaCore => cta_steps.div_ceil(GROUPS) * 4 + 2 + GROUPS * cluster,
            TileKernel::TensorCore { .. } => cta_steps * 4 * MATRIX_ROUNDINGS + cluster,
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

/// CTAs of the SM that has the most, in clusters of this size, of which those of more than two do not fill
/// all SMs of a GPC.
fn most_ctas(shape: &Shape, cluster: u32, target: &TileTarget) -> f64 {
    let filled = if cluster > 2 { 0.9 } else { 1.0 };
    let usable = f64::from(target.multiprocessors) * filled;
    let ctas = tiles(shape) as f64 * f64::from(cluster);
    (ctas / usable).ceil().max(1.0)
}

/// The SM that has the most CTAs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Load {
    /// Its CTAs.
    ctas: f64,
    /// Those that fit at once.
    at_once: f64,
    /// K steps of each.
    steps: f64,
}

impl Load {
    /// Times that CTAs start on it, one after the end of another.
    fn waves(&self) -> f64 {
        (self.ctas / self.at_once).ceil()
    }

    /// Time in K steps, by which cuts of one problem compare: its K steps; half a step for each CTA to
    /// start and end; a twentieth where an SM has but one at a time, which nothing overlaps with; and
    /// three steps for each wave after the first, whose first loads take a memory latency and the start of a
    /// CTA to arrive. Fitted to measurements on an H200, whose 32 fastest cluster sizes it
    /// gives (docs/notes/tuning.md).
    fn cost(&self) -> f64 {
        let alone = self.ctas.min(self.at_once) == 1.0;
        let overlap = if alone { 1.06 } else { 1.0 };
        self.ctas * (self.steps + 0.5) * overlap + 3.0 * (self.waves() - 1.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::Config;
    use crate::path::Path;
    use crate::path::measured::builtin_for;

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

    /// The rule gives the cluster sizes that were measured to be the fastest of each problem.
    #[test]
    fn cluster_sizes_are_the_fastest_measured() {
        let h200 = builtin_for("NVIDIA H200", 132).unwrap();
        let target = TileTarget {
            multiprocessors: 132,
            shared_bytes: 227 << 10,
        };
        let mut measured = 0;
        for entry in h200.entries() {
            let Some(Config::Tile(fastest)) =
                entry.of(Path::CudaCoreTma).and_then(|timed| timed.config)
            else {
                continue;
            };
            let config = TileConfig::for_problem(fastest.kernel, &entry.shape, &target).unwrap();
            assert_eq!(config.cluster, fastest.cluster, "{}", entry.shape);
            measured += 1;
        }
        assert!(measured >= 32, "only {measured} problems");
    }

    /// CTAs of a cluster wait for each other while they hold tensor memory. If the CTAs of two clusters that
    /// share two SMs could each lack columns that the other holds, they would wait for ever: so all CTAs
    /// for which an SM has shared memory get their columns.
    #[test]
    fn ctas_that_share_an_sm_never_lack_tensor_memory() {
        // Of an SM: what a CTA can have, and what one takes beside.
        let of_sm = B200.shared_bytes + RESERVED;
        let shape = Shape::new(128, 16, 16384, 1).unwrap();
        let mut cuts = 0;
        for mma_n in [16, 64, 128] {
            for stages in 2..=MOST_STAGES {
                let config = TileConfig {
                    kernel: TileKernel::TensorCore { mma_n },
                    stages,
                    cluster: 2,
                    dependent: false,
                };
                if config.is_legal(&shape, &B200) {
                    let ctas = of_sm / (config.shared_bytes(&shape) + RESERVED);
                    assert!(config.fits(ctas, &shape, &B200), "{config:?}, {ctas} CTAs");
                    cuts += 1;
                }
            }
        }
        assert!(cuts > 10);
    }

    /// Eight roundings for each of 64 instructions, four CTAs, four alphas.
    #[test]
    fn roundings_of_the_tensor_cores_by_hand() {
        let shape = Shape::gemv(7168, 16384, 1).unwrap();
        let config = TileConfig {
            kernel: TileKernel::TENSOR_CORE,
            stages: 4,
            cluster: 4,
            dependent: false,
        };
        assert_eq!(config.roundings(&shape), 64 * 8 + 4 + 4);
    }

    /// 56 tiles of 7168x16384 in clusters of seven are 392 CTAs, for 296 places.
    #[test]
    fn contest_shapes_fit_a_b200_at_once() {
        for (m, k, l, cluster) in [(7168, 16384, 1, 4), (4096, 7168, 8, 1), (7168, 2048, 4, 1)] {
            for n in 1..=16 {
                let shape = Shape::new(m, n, k, l).unwrap();
                let config =
                    TileConfig::for_problem(TileKernel::TENSOR_CORE, &shape, &B200).unwrap();
                assert_eq!(config.cluster, cluster, "{shape}");
                let (ctas, places) = (tiles(&shape) * cluster as usize, 2 * 148);
                let usable = if cluster > 2 { places * 9 / 10 } else { places };
                assert!(ctas <= usable && config.fits(2, &shape, &B200), "{shape}");
                assert_eq!(config.load(&shape, &B200).waves(), 1.0);
            }
        }
    }

    proptest! {
        /// More waves than another cut needs are taken only where each SM then has less to do, by more than
        /// a wave costs; and of cuts with as many waves the one that has the least.
        #[test]
        fn waves_are_paid_for(
            m in 1usize..40_000,
            k in 1usize..1000,
            l in 1usize..9,
            n in 1usize..=8,
            sms in prop::sample::select(vec![78u32, 114, 132, 148, 160]),
            tensor in any::<bool>(),
        ) {
            let shape = Shape::new(m, n, 32 * k, l).unwrap();
            let target = TileTarget { multiprocessors: sms, ..B200 };
            let kernel = if tensor { TileKernel::TENSOR_CORE } else { TileKernel::CudaCore };
            let load = |cluster| {
                let config = TileConfig::with_cluster(kernel, cluster, &shape, &target)?;
                Some(config.load(&shape, &target))
            };
            let work = |load: &Load| load.ctas * (load.steps + 0.5);
            let default = TileConfig::for_problem(kernel, &shape, &target).unwrap();
            let default = default.load(&shape, &target);
            for other in (1..=MOST_CLUSTER).filter_map(load) {
                let more = default.waves() - other.waves();
                if more >= 0.0 {
                    let most = 1.06 * work(&other) - 2.9 * more;
                    prop_assert!(work(&default) <= most, "{default:?} {other:?}");
                }
            }
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
