//! What tma plans of the load pipeline of `csrc/kernels/tile_pipeline.cuh`, which streams tiles of 128 rows through shared
//! memory. A cluster of CTAs computes a tile; its CTAs share the K steps of 256 elements, each of which takes a stage of
//! shared memory.

use std::mem::offset_of;

use super::call::Pass;
use super::params::{
    NVFP4_ATOM_BLOCKS, NVFP4_ATOM_BYTES, NVFP4_ATOM_LINE_BYTES, NVFP4_SWIZZLE_NONE,
    NVFP4_TILE_ATOM_ELEMENTS, NVFP4_TILE_MAX_STAGES, NVFP4_TILE_PATTERN_BYTES, NVFP4_TILE_ROWS,
    NVFP4_TILE_SHARED_ALIGN, NVFP4_TILE_STEP_ATOMS, NVFP4_TILE_STEP_ELEMENTS, nvfp4_tensor_map,
    nvfp4_tile_params,
};
use super::plan::{KernelParameters, Launch, MOST_GRID_Y, MOST_MAPS, Parameters, Plan, Repeat};
use super::tensor_maps::{maps_batches, vectors_map, weights_map};
use super::{
    ALPHAS, Call, Job, KernelConfig, MOST_CLUSTER, MainLoop, RESERVED, distinct, field,
    shared_memory,
};
use crate::refusal::Refusal;
use crate::shape::Shape;
use crate::types::{Activation, ScaleLayout};

/// What is the kernel's own. Everything else of a [`KernelConfig`] follows from it.
pub(super) trait Tiled: Copy + PartialEq {
    /// The unit that the kernel is compiled in.
    const UNIT: &'static str;
    /// Threads of a CTA.
    const THREADS: u32;
    /// Vectors of a pass over the weights, at most: a stage has rows for so many.
    const VECTORS: u32;
    /// Rows that a stage has of each atom of the vectors' scales.
    const SCALE_ROWS: u32;
    /// Bytes of a stage.
    const STAGE_BYTES: u32;
    /// What a number of stages is a multiple of.
    const GROUPS: u32;
    /// The numbers of stages, in words.
    const STAGES: &'static str;

    /// The config of so many stages and CTAs of a cluster.
    fn new(stages: u32, cluster: u32) -> Self;

    /// Stages.
    fn stages(&self) -> u32;

    /// CTAs of a cluster.
    fn cluster(&self) -> u32;

    /// The GPU has the instructions.
    fn device(job: &Job<'_>) -> Result<(), Refusal>;

    /// The registers of an SM have room for two CTAs, for a problem of `n` vectors.
    fn two_fit(n: usize) -> bool;

    /// The entry point for a pass of `n` vectors.
    fn entry(n: u32) -> &'static str;

    /// Bytes of static shared memory for a pass of `n` vectors: barriers and partial sums.
    fn static_shared(n: u32) -> u32;

    /// What the main loop computes in a pass of `n` vectors.
    fn main_loop(n: u32) -> MainLoop;

    /// Successive f32 roundings of any term of a sum, where each of `cluster` CTAs has so many K steps.
    fn sum_roundings(steps: u32, cluster: u32) -> u32;
}

/// The methods that read and make the two fields of a config.
macro_rules! fields {
    () => {
        fn new(stages: u32, cluster: u32) -> Self {
            Self { stages, cluster }
        }

        fn stages(&self) -> u32 {
            self.stages
        }

        fn cluster(&self) -> u32 {
            self.cluster
        }
    };
}
pub(super) use fields;

/// Rows of a tile.
pub(super) const ROWS: u32 = NVFP4_TILE_ROWS;
/// Bytes of the barriers of all stages: each has one that says full, and one that says empty.
pub(super) const BARRIER_BYTES: u32 = 2 * 8 * MOST_STAGES;
pub(super) const MOST_STAGES: u32 = NVFP4_TILE_MAX_STAGES;
/// Bytes of a word of an atom's line: the scales of a row.
const LINE_WORD: u32 = NVFP4_ATOM_BLOCKS;
/// Elements of a K step.
const STEP: usize = NVFP4_TILE_STEP_ELEMENTS as usize;
/// Bytes of weights an SM must have in flight: Little's law at 8 TB/s and 148 SMs gives 43 to 54 KB for
/// latencies of 0.8 to 1 microsecond, at 4.2 TB/s and 132 SMs about half.
const BYTES_IN_FLIGHT: u64 = 64 << 10;
impl<T: Tiled> KernelConfig for T {
    const MOST_VECTORS: u32 = T::VECTORS;

    fn available(job: &Job<'_>) -> Result<(), Refusal> {
        T::device(job)?;
        job.image(T::UNIT)?;
        job.nvfp4()?;
        for (layout, operand) in [
            (job.operands.weight_layout, "weights' scales"),
            (job.operands.vector_layout, "vectors' scales"),
        ] {
            if layout != ScaleLayout::Tiled128x4 {
                return Err(Refusal::ScaleLayout { operand });
            }
        }
        job.row_length(32, "a multiple of 32")?;
        job.aligned_16()?;
        maps_batches(job)
    }

    /// The cluster size with which the SM that has the most work ends first, where work that does not fit at
    /// once starts late, and enough stages for the bytes in flight that memory latency asks for.
    ///
    /// Those are the fewest that make 64 KiB of weights an SM: more only make the first stage arrive later, measured on an
    /// H200 (docs/notes/tiles.md).
    fn default_for(job: &Job<'_>) -> Result<Self, Refusal> {
        let default = (1..=MOST_CLUSTER)
            .filter_map(|cluster| with_cluster(cluster, job))
            .map(|config: T| (Load::of(&config, job).cost(), config))
            .min_by(|(a, _), (b, _)| a.total_cmp(b));
        match default {
            Some((_, config)) => Ok(config),
            None => {
                let smallest = T::new(2, 1);
                smallest.check(job).map(|()| smallest)
            }
        }
    }

    /// All cluster sizes, each with its default number of stages, fewer and more.
    fn candidates(job: &Job<'_>) -> Vec<Self> {
        let mut configs: Vec<T> = T::default_for(job).into_iter().collect();
        for cluster in 1..=MOST_CLUSTER {
            let Some(config) = with_cluster::<T>(cluster, job) else {
                continue;
            };
            let stages = config.stages();
            let stages = [stages, stages.saturating_sub(2), stages + 2];
            configs.extend(stages.map(|stages| T::new(stages, cluster)));
        }
        distinct(configs, |config| config.check(job).is_ok())
    }

    fn check(&self, job: &Job<'_>) -> Result<(), Refusal> {
        let (stages, cluster) = (self.stages(), self.cluster());
        let known = (2..=MOST_STAGES).contains(&stages) && stages.is_multiple_of(T::GROUPS);
        field("stages", stages, T::STAGES, known)?;
        let most = MOST_CLUSTER.min(u32::try_from(steps(job.shape)).unwrap_or(u32::MAX));
        field(
            "cluster",
            cluster,
            "1 to 8, and no more than K / 256, rounded up",
            (1..=most).contains(&cluster),
        )?;
        shared_memory(shared_bytes(self, job.shape), job.gpu)
    }

    fn roundings(&self, shape: &Shape, _: Activation) -> u32 {
        // A cluster that no kernel has counts as the nearest one that does.
        let cluster = self.cluster().clamp(1, MOST_CLUSTER);
        let steps = steps(shape).div_ceil(cluster as usize) as u32;
        T::sum_roundings(steps, cluster) + ALPHAS
    }

    fn plan(&self, call: &Call, job: &Job<'_>) -> Plan {
        let shape = &call.shape;
        let (stages, cluster, batches) = (self.stages(), self.cluster(), shape.l() as u32);
        let atoms = shape.k().div_ceil(NVFP4_TILE_ATOM_ELEMENTS as usize) as u32;
        let mut plan = Plan::new();
        for pass in call.passes(T::VECTORS as usize) {
            let parameters = nvfp4_tile_params {
                m: shape.m() as i32,
                n: pass.n,
                atoms,
                last_scales: shape.blocks() as u32 - (atoms - 1) * 4,
                stages,
                dependent: job.dependent().into(),
                scale_column: pass.scale_column,
                weight_scales: call.weights.scales,
                epilogue: pass.epilogue,
                ..nvfp4_tile_params::default()
            };
            plan.push(Launch {
                entry: T::entry(pass.n as u32),
                unit: T::UNIT,
                grid: [
                    shape.m().div_ceil(ROWS as usize) as u32 * cluster,
                    batches.min(MOST_GRID_Y),
                    1,
                ],
                threads: T::THREADS,
                cluster,
                dynamic_shared: dynamic_bytes(self) as u32,
                static_shared: T::static_shared(pass.n as u32),
                dependent: job.dependent(),
                auxiliary: false,
                maps: maps::<T>(call, &pass, atoms),
                parameters: Parameters::of(&parameters),
                repeat: Some(Repeat {
                    batches,
                    first_batch: offset_of!(nvfp4_tile_params, first_batch),
                }),
            });
        }
        plan
    }

    fn bytes_in_flight(&self, _: &Job<'_>) -> u64 {
        let elements = u64::from(ROWS) * STEP as u64;
        // Codes, and a byte of scales for 16 of them.
        u64::from(self.stages()) * (elements / 2 + elements / 16)
    }

    fn main_loop(&self, job: &Job<'_>) -> MainLoop {
        let n = job.shape.n().min(T::VECTORS as usize) as u32;
        T::main_loop(n)
    }
}

// SAFETY: bindgen makes padding fields of this structure's padding.
unsafe impl KernelParameters for nvfp4_tile_params {}

/// The tensor maps of a pass: what tensor copies read.
fn maps<T: Tiled>(call: &Call, pass: &Pass, atoms: u32) -> [nvfp4_tensor_map; MOST_MAPS] {
    let l = call.shape.l() as u64;
    let atoms = u64::from(atoms);
    let [atom, atom_row] = [NVFP4_ATOM_BYTES, NVFP4_ATOM_LINE_BYTES].map(u64::from);
    let scale_batch = match l {
        0 | 1 => atoms * atom,
        _ => pass.vector_scale_batch_bytes as u64,
    };
    [
        weights_map(call, ROWS),
        vectors_map(call, pass, T::VECTORS),
        nvfp4_tensor_map {
            // A map begins at a line.
            address: pass.vector_scales - u64::from(pass.scale_column * LINE_WORD),
            size: [atom_row, pass.n as u64, atoms, l],
            stride: [1, atom_row, atom, scale_batch],
            box_size: [
                NVFP4_ATOM_LINE_BYTES,
                T::SCALE_ROWS,
                NVFP4_TILE_STEP_ATOMS,
                1,
            ],
            rank: 4,
            swizzle: NVFP4_SWIZZLE_NONE,
        },
    ]
}

/// Bytes of dynamic shared memory of a CTA: the stages, and what aligns the first.
fn dynamic_bytes<T: Tiled>(config: &T) -> u64 {
    u64::from(config.stages()) * u64::from(T::STAGE_BYTES)
        + u64::from(NVFP4_TILE_PATTERN_BYTES - NVFP4_TILE_SHARED_ALIGN)
}

/// Bytes of shared memory of a CTA, of the pass that takes the most.
fn shared_bytes<T: Tiled>(config: &T, shape: &Shape) -> u64 {
    let vectors = (shape.n() as u32).min(T::VECTORS);
    dynamic_bytes(config) + u64::from(T::static_shared(vectors))
}

/// So many CTAs of a legal config have room in an SM's memories.
fn fit<T: Tiled>(ctas: u32, config: &T, job: &Job<'_>) -> bool {
    let shared = shared_bytes(config, job.shape) + u64::from(RESERVED);
    shared * u64::from(ctas) <= u64::from(job.gpu.shared_bytes) + u64::from(RESERVED)
}

/// The config of a cluster size with its default number of stages, if the GPU has room for one.
fn with_cluster<T: Tiled>(cluster: u32, job: &Job<'_>) -> Option<T> {
    let alone = most_ctas(cluster, job) == 1.0 || !T::two_fit(job.shape.n());
    let per_sm = if alone { 1 } else { 2 };
    let with = |stages| T::new(stages, cluster);
    let fits = |config: &T, per_sm: u32| config.check(job).is_ok() && fit(per_sm, config, job);
    let enough = |config: &T| config.bytes_in_flight(job) * u64::from(per_sm) >= BYTES_IN_FLIGHT;
    // No more than there are K steps.
    let steps = steps(job.shape).div_ceil(cluster as usize) as u32;
    let most = MOST_STAGES.min(steps.next_multiple_of(2));
    let mut stages = (2..=most).map(with);
    stages
        .find(|config| fits(config, per_sm) && (enough(config) || config.stages() == most))
        // A device with less shared memory.
        .or_else(|| {
            (2..=MOST_STAGES)
                .rev()
                .map(with)
                .find(|config| fits(config, 1))
        })
}

/// K steps of a row.
fn steps(shape: &Shape) -> usize {
    shape.k().div_ceil(STEP)
}

/// Tiles of all batches.
fn tiles(shape: &Shape) -> usize {
    shape.m().div_ceil(ROWS as usize) * shape.l()
}

/// CTAs of the SM that has the most, in clusters of this size, of which those of more than two do not fill
/// all SMs of a GPC.
fn most_ctas(cluster: u32, job: &Job<'_>) -> f64 {
    let filled = if cluster > 2 { 0.9 } else { 1.0 };
    let usable = f64::from(job.gpu.multiprocessors) * filled;
    let ctas = tiles(job.shape) as f64 * f64::from(cluster);
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
    fn of<T: Tiled>(config: &T, job: &Job<'_>) -> Self {
        let two = T::two_fit(job.shape.n()) && fit(2, config, job);
        Self {
            ctas: most_ctas(config.cluster(), job),
            at_once: if two { 2.0 } else { 1.0 },
            steps: steps(job.shape).div_ceil(config.cluster() as usize) as f64,
        }
    }

    /// Times that CTAs start on it, one after the end of another.
    fn waves(&self) -> f64 {
        (self.ctas / self.at_once).ceil()
    }

    /// Time in K steps, by which configs of one problem compare: its K steps; half a step for each CTA to
    /// start and end; a twentieth where an SM has but one at a time, which nothing overlaps with; and
    /// three steps for each wave after the first, whose first loads take a memory latency and the start of a
    /// CTA to arrive. Fitted to measurements on an H200, whose 32 fastest cluster sizes it
    /// gives (docs/notes/tiles.md).
    fn cost(&self) -> f64 {
        let alone = self.ctas.min(self.at_once) == 1.0;
        let overlap = if alone { 1.06 } else { 1.0 };
        self.ctas * (self.steps + 0.5) * overlap + 3.0 * (self.waves() - 1.0)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use proptest::prelude::*;

    use super::super::{Config, TmaConfig};
    use super::*;
    use crate::gpu::Gpu;
    use crate::operands::{Alignment, Operands, RawVectors};
    use crate::shape::Dims;
    use crate::shape::Strides;

    const OPERANDS: Operands = Operands {
        activation: Activation::Nvfp4,
        weight_layout: ScaleLayout::Tiled128x4,
        vector_layout: ScaleLayout::Tiled128x4,
        alignment: Alignment::BEST,
        workspace: 0,
    };

    fn b200() -> Gpu {
        Gpu::of_compute_capability((10, 0), "100f")
    }

    fn job<'a>(shape: &'a Shape, gpu: &'a Gpu) -> Job<'a> {
        Job::new(shape, &OPERANDS, gpu)
    }

    /// The default, which is legal, the first of the candidates, and not among them twice; nor is another.
    fn default<T: Tiled + Debug>(job: &Job<'_>) -> T {
        let default = T::default_for(job).unwrap();
        let candidates = T::candidates(job);
        assert_eq!(candidates.first(), Some(&default));
        for (i, config) in candidates.iter().enumerate() {
            assert_eq!(config.check(job), Ok(()), "{config:?}");
            assert!(!candidates[..i].contains(config), "{config:?} twice");
        }
        default
    }

    fn keeps_enough_in_flight<T: Tiled + Debug>(shape: &Shape) {
        let gpu = b200();
        let job = job(shape, &gpu);
        let config: T = default(&job);
        let ctas = tiles(shape) * config.cluster() as usize;
        let two = ctas > 148 && T::two_fit(shape.n());
        let per_sm = if two { 2 } else { 1 };
        assert!(config.bytes_in_flight(&job) * per_sm >= BYTES_IN_FLIGHT);
    }

    #[test]
    fn defaults_keep_enough_in_flight() {
        for (m, k, l) in [(7168, 16384, 1), (4096, 7168, 8), (7168, 2048, 4)] {
            for n in [1, 2, 8, 16] {
                let shape = Shape::new(Dims { m, n, k, l }).unwrap();
                keeps_enough_in_flight::<TmaConfig>(&shape);
            }
        }
    }

    #[test]
    fn every_shape_has_a_default() {
        let gpu = b200();
        for (m, n, k, l) in [
            (1, 1, 32, 1),
            (129, 16, 96, 1),
            (1, 1, 32, 70_000),
            (1 << 20, 3, 64, 1),
        ] {
            let shape = Shape::new(Dims { m, n, k, l }).unwrap();
            let job = job(&shape, &gpu);
            // A K step or less.
            assert_eq!(default::<TmaConfig>(&job).stages, 2);
        }
    }

    /// Four roundings in each of eight K steps, two over lanes, two groups of four CTAs, and four alphas.
    #[test]
    fn roundings_by_hand() {
        let shape = Shape::matrix(7168, 16384).unwrap();
        let (stages, cluster) = (4, 4);
        let tma = Config::from(TmaConfig { stages, cluster });
        assert_eq!(tma.roundings(&shape, Activation::Nvfp4), 8 * 4 + 2 + 8 + 4);
    }

    fn pays_for_waves<T: Tiled>(job: &Job<'_>) -> Result<(), TestCaseError> {
        let work = |load: &Load| load.ctas * (load.steps + 0.5);
        let default = Load::of(&T::default_for(job).unwrap(), job);
        let others = (1..=MOST_CLUSTER).filter_map(|cluster| with_cluster::<T>(cluster, job));
        for other in others.map(|config| Load::of(&config, job)) {
            let more = default.waves() - other.waves();
            if more >= 0.0 {
                let most = 1.06 * work(&other) - 2.9 * more;
                prop_assert!(work(&default) <= most, "{default:?} {other:?}");
            }
        }
        Ok(())
    }

    proptest! {
        /// More waves than another config needs are taken only where each SM then has less to do, by more than
        /// a wave costs; and of configs with as many waves the one that has the least.
        #[test]
        fn waves_are_paid_for(
            m in 1usize..40_000,
            k in 1usize..1000,
            l in 1usize..9,
            n in 1usize..=8,
            multiprocessors in prop::sample::select(vec![78u32, 114, 132, 148, 160]),
        ) {
            let shape = Shape::new(Dims { m, n, k: 32 * k, l }).unwrap();
            let gpu = Gpu { multiprocessors, ..b200() };
            let job = job(&shape, &gpu);
            pays_for_waves::<TmaConfig>(&job)?;
        }
    }

    /// Nine vectors, of which CUDA cores take eight in a pass, and more batches than a grid holds.
    #[test]
    fn plans_by_hand() {
        let shape = Shape::new(Dims {
            m: 130,
            n: 9,
            k: 288,
            l: 70_000,
        })
        .unwrap();
        let layout = ScaleLayout::Tiled128x4;
        let mut call = Call::nowhere(&shape, Activation::Nvfp4, layout, 0x1_0000);
        call.vectors = match call.vectors {
            RawVectors::Nvfp4 {
                global,
                vector_alpha,
                ..
            } => RawVectors::Nvfp4 {
                codes: 0x3_0000,
                code_strides: Strides {
                    row: 160,
                    batch: 1600,
                },
                scales: 0x4_0000,
                layout,
                scale_strides: Strides {
                    row: 0,
                    batch: 2560,
                },
                global,
                vector_alpha,
            },
            dense => dense,
        };
        let (stages, cluster) = (4, 2);
        let tma = Config::from(TmaConfig { stages, cluster });
        let plan = tma.plan(&call, &b200(), true).unwrap();
        let [first, second] = plan.launches() else {
            panic!("{plan:?}");
        };
        assert_eq!([first.entry, second.entry], ["gemv_tma_n8", "gemv_tma_n1"]);
        assert_eq!(
            [first.static_shared, second.static_shared],
            [192 + 8192, 192 + 1024]
        );
        let [weights, vectors, scales] = second.maps() else {
            panic!("{second:?}");
        };
        assert_eq!(weights.address, call.weights.codes);
        assert_eq!(weights.size, [144, 130, 70_000, 0]);
        assert_eq!(weights.stride, [1, 144, 144 * 130, 0]);
        assert_eq!(vectors.address, 0x3_0000 + 8 * 160);
        assert_eq!(vectors.size, [144, 1, 70_000, 0]);
        assert_eq!(vectors.stride, [1, 160, 1600, 0]);
        assert_eq!(
            (weights.box_size, vectors.box_size),
            ([128, 128, 1, 0], [128, 8, 1, 0])
        );
        assert_eq!(scales.address, 0x4_0000 + 8 * 16);
        assert_eq!(scales.size, [16, 1, 5, 70_000]);
        assert_eq!(scales.stride, [1, 16, 512, 2560]);
        assert_eq!(scales.box_size, [16, 8, 4, 1]);

        let parts: Vec<Launch> = second.parts().collect();
        let batches = [65_535, 70_000 - 65_535];
        assert_eq!(parts.len(), 2);
        for (part, (batches, first)) in parts.iter().zip(batches.into_iter().zip([0, 65_535])) {
            assert_eq!((part.grid, part.cluster), ([2 * 2, batches, 1], 2));
            let words = part.parameters.bytes().chunks_exact(4);
            let words: Vec<u32> = words
                .map(|b| u32::from_ne_bytes(b.try_into().unwrap()))
                .collect();
            // m, n, first_batch, atoms, last_scales, stages, dependent, tmem_columns
            assert_eq!(words[..8], [130, 1, first, 5, 2, 4, 1, 0]);
        }
    }
}
