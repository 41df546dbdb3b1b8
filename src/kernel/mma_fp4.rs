//! The kernel for up to 128 NVFP4 vectors on the block-scaled FP4 instruction of a warp:
//! `csrc/kernels/gemv_mma_fp4.cuh`. Compute capability 12.x. Verified in simulation, not yet on hardware.

use std::mem::offset_of;

use super::call::Pass;
use super::params::{
    NVFP4_MMA_FP4_ALIGN, NVFP4_MMA_FP4_BARRIER_BYTES, NVFP4_MMA_FP4_COLUMNS,
    NVFP4_MMA_FP4_MAX_STAGES, NVFP4_MMA_FP4_MAX_WARPS, NVFP4_MMA_FP4_ROW_BYTES,
    NVFP4_MMA_FP4_ROW_SCALES, NVFP4_MMA_FP4_SLICE, NVFP4_MMA_FP4_STEP, NVFP4_MMA_FP4_SUMS_PAD,
    NVFP4_MMA_FP4_WARP_ROWS, NVFP4_WARP, nvfp4_mma_fp4_params, nvfp4_tensor_map,
};
use super::plan::{KernelParameters, Launch, MOST_GRID_Y, Parameters, Plan, Repeat};
use super::tcgen05::ASSUMED_ROUNDINGS;
use super::tensor_maps::{maps_batches, vectors_map, weights_map};
use super::{
    ALPHAS, Call, Cost, Job, KernelConfig, MainLoop, Products, distinct, field, shared_memory,
};
use super::{MOST_CLUSTER, with_room};
use crate::operands::Operands;
use crate::refusal::Refusal;
use crate::shape::Shape;
use crate::types::Activation;

/// The config of the mma-fp4 kernel. A group is the rows that a CTA multiplies, 16 a warp. A step is 256 elements of K
/// of a group and of the vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MmaFp4Config {
    /// Warps of a CTA that multiply: 1 to 8. One more warp brings what they multiply.
    pub warps: u32,
    /// Steps that shared memory holds: 2 to 8.
    pub stages: u32,
    /// CTAs of a cluster, which share a group's steps: 1 to 8, each with one step or more.
    pub cluster: u32,
    /// Vectors of a pass over the weights, at most: 8, 16, 32, 64 or 128.
    pub vectors: u32,
}

impl MmaFp4Config {
    /// A legal and plain config that literals start from; not a good choice.
    pub const DEFAULT: Self = Self {
        warps: 1,
        stages: 2,
        cluster: 1,
        vectors: 8,
    };
}

const UNIT: &str = "gemv_mma_fp4";

/// Expected share of the read-only ceiling, for any number of vectors of a pass. This share lies between those that the
/// stream kernel is given for eight and for sixteen vectors. So mma-fp4 is taken from nine vectors on, whether stream
/// would read all weights twice or not. With fewer vectors mma-fp4 is taken if they do not fit stream's shared memory,
/// and for five to eight if rows are ragged for stream. On an RTX 5090 both kernels keep up with memory's rate, by
/// instructions and by bytes in flight, with up to eight vectors, and stream has run on hardware. The mma kernel takes
/// more vectors in a pass, too, but with more than three times the instructions. From 33 vectors on the rate of f16
/// matrix instructions is below memory's (docs/notes/mma-fp4.md).
const SHARE: f64 = 0.5;

/// Numbers of vectors that the kernel is compiled for, with their entry points.
const ENTRIES: [(u32, &str); 5] = [
    (8, "gemv_mma_fp4_n8"),
    (16, "gemv_mma_fp4_n16"),
    (32, "gemv_mma_fp4_n32"),
    (64, "gemv_mma_fp4_n64"),
    (128, "gemv_mma_fp4_n128"),
];

const MOST_VECTORS: u32 = ENTRIES[ENTRIES.len() - 1].0;
/// The fewest stages: one that is multiplied, and one that is brought.
const LEAST_STAGES: u32 = 2;
const MOST_STAGES: u32 = NVFP4_MMA_FP4_MAX_STAGES;
/// Bytes of codes and scales of a row in a step.
const STAGE_ROW_BYTES: u32 = NVFP4_MMA_FP4_ROW_BYTES + NVFP4_MMA_FP4_ROW_SCALES;
/// Matrix instructions that a step's products of a row and a vector pass through.
const STEP_INSTRUCTIONS: u32 = NVFP4_MMA_FP4_STEP / NVFP4_MMA_FP4_SLICE;
/// Bytes of weights that an SM should have in flight beside the stages that it multiplies. By Little's law an RTX 5090
/// (1.79 TB/s, 170 SMs) needs 9.5 KB an SM for the 0.9 us that docs/notes/estimates.md assumes. This number is three
/// times that, for the times at which a CTA starts and ends.
const BYTES_IN_FLIGHT: u32 = 28 << 10;
/// The cost of a CTA beside its steps, in rows of a step: the time of a memory latency, in which an RTX 5090's SM reads
/// 9.5 KB.
const START: u64 = 66;

// SAFETY: bindgen makes padding fields of this structure's padding.
unsafe impl KernelParameters for nvfp4_mma_fp4_params {}

/// Index in [`ENTRIES`] of the entry point for a pass of `n` vectors.
fn at(n: u64) -> usize {
    let at = ENTRIES.iter().position(|&(most, _)| n <= u64::from(most));
    at.unwrap_or(ENTRIES.len() - 1)
}

/// The number of vectors that the first pass is compiled for, if passes are as few as can be.
fn most_at_once(job: &Job<'_>) -> u32 {
    ENTRIES[at(job.vector_rows())].0
}

/// Steps of a row: the last one may be shorter.
fn steps(shape: &Shape) -> u64 {
    shape.k().div_ceil(NVFP4_MMA_FP4_STEP as usize) as u64
}

/// Offsets in a CTA's dynamic shared memory, in bytes: the stages' codes, then their scales, then mbarriers. After the
/// last step the sums are in the place of the stages.
struct Layout {
    scales_at: u64,
    barriers_at: u64,
    bytes: u64,
}

impl MmaFp4Config {
    /// The number of vectors that the kernel of the first pass, which has most, is compiled for.
    fn compiled(&self, job: &Job<'_>) -> u32 {
        ENTRIES[at(job.vector_rows().min(self.vectors.into()))].0
    }

    /// Rows of a group.
    fn rows(&self) -> u32 {
        self.warps * NVFP4_MMA_FP4_WARP_ROWS
    }

    /// Groups of a batch.
    fn groups(&self, shape: &Shape) -> u64 {
        (shape.m() as u64).div_ceil(self.rows().into())
    }

    /// Shared memory of a kernel that is compiled for `vectors` vectors.
    fn layout(&self, vectors: u32) -> Layout {
        let [rows, stages, columns] = [self.rows(), self.stages, vectors].map(u64::from);
        let stage_rows = rows + columns;
        let scales_at = stages * stage_rows * u64::from(NVFP4_MMA_FP4_ROW_BYTES);
        debug_assert!(scales_at.is_multiple_of(NVFP4_MMA_FP4_ALIGN.into()));
        let end = scales_at + stages * stage_rows * u64::from(NVFP4_MMA_FP4_ROW_SCALES);
        let sums = columns * (rows + u64::from(NVFP4_MMA_FP4_SUMS_PAD)) * 4;
        let barriers_at = end.max(sums);
        Layout {
            scales_at,
            barriers_at,
            bytes: barriers_at + stages * u64::from(NVFP4_MMA_FP4_BARRIER_BYTES),
        }
    }

    /// This config with the fewest stages that keep enough bytes in flight, or with as many as fit. `None` if not even
    /// the least do. If SMs have several CTAs and room for two, two CTAs keep these bytes in flight together: one
    /// starts while the other multiplies.
    fn with_stages(self, job: &Job<'_>) -> Option<Self> {
        if self.ctas(job.shape) > job.gpu.multiprocessors.into() {
            let half = self.with_in_flight(BYTES_IN_FLIGHT / 2, job);
            let two_fit =
                |config: &Self| with_room(config.layout(config.compiled(job)).bytes, job.gpu) >= 2;
            if half.is_some_and(|half| two_fit(&half)) {
                return half;
            }
        }
        self.with_in_flight(BYTES_IN_FLIGHT, job)
    }

    /// This config with the fewest stages that keep `bytes` bytes in flight, or with as many as fit.
    fn with_in_flight(self, bytes: u32, job: &Job<'_>) -> Option<Self> {
        let of_cta = steps(job.shape).div_ceil(self.cluster.into());
        let beside = bytes.div_ceil(self.rows() * STAGE_ROW_BYTES);
        let enough = (beside + 1).clamp(LEAST_STAGES, MOST_STAGES);
        let enough = u64::from(enough).min(of_cta.max(LEAST_STAGES.into())) as u32;
        let with = |stages| Self { stages, ..self };
        let fits = |config: &Self| config.check(job).is_ok();
        (LEAST_STAGES..=enough).rev().map(with).find(fits)
    }

    /// Configs for as few passes as can be, of every division of rows and K.
    fn divisions(job: &Job<'_>) -> impl Iterator<Item = Self> {
        let most = u64::from(MOST_CLUSTER).min(steps(job.shape)) as u32;
        let vectors = most_at_once(job);
        (1..=NVFP4_MMA_FP4_MAX_WARPS).rev().flat_map(move |warps| {
            (1..=most).filter_map(move |cluster| {
                let config = Self {
                    warps,
                    stages: LEAST_STAGES,
                    cluster,
                    vectors,
                };
                config.with_stages(job)
            })
        })
    }

    /// CTAs of all batches.
    fn ctas(&self, shape: &Shape) -> u64 {
        self.groups(shape) * shape.l() as u64 * u64::from(self.cluster)
    }

    /// Rows of steps that come to the SM with most CTAs: a measure of the time, as long as memory limits it. Vectors
    /// come from L2, and count half. Clusters of more than two CTAs do not fill all SMs of a GPC. The larger a cluster
    /// is, the longer its sums take.
    fn cost(&self, job: &Job<'_>) -> u64 {
        let shape = job.shape;
        let sms = u64::from(job.gpu.multiprocessors);
        let usable = match self.cluster {
            ..=2 => sms,
            _ => sms * 9 / 10,
        };
        let steps = steps(shape).div_ceil(self.cluster.into());
        let rows = u64::from(self.rows() + self.compiled(job) / 2);
        let of_cta = steps * rows + START + 8 * u64::from(self.cluster);
        let ctas = self.ctas(shape).div_ceil(usable.max(1));
        ctas.saturating_mul(of_cta)
    }

    fn maps(&self, call: &Call, pass: &Pass) -> Vec<nvfp4_tensor_map> {
        let columns = ENTRIES[at(pass.n as u64)].0;
        vec![
            weights_map(call, self.rows()),
            vectors_map(call, pass, columns),
        ]
    }
}

impl KernelConfig for MmaFp4Config {
    const MOST_VECTORS: u32 = MOST_VECTORS;
    const WHY: &'static str = "it multiplies codes and scales as they lie in memory, and reads them once for up to 128 vectors";
    const TAKES_MOST: bool = true;

    fn share_of_one(_: &Shape, _: &Operands) -> f64 {
        SHARE
    }

    fn cost(_: &Job<'_>) -> Cost {
        Cost::Whole
    }

    fn takes_digits(job: &Job<'_>) -> Result<(), Refusal> {
        job.digits_fit(MOST_VECTORS)
    }

    fn pass_vectors(&self) -> u32 {
        match ENTRIES.iter().any(|&(vectors, _)| vectors == self.vectors) {
            true => self.vectors,
            false => MOST_VECTORS,
        }
    }

    fn available(job: &Job<'_>) -> Result<(), Refusal> {
        let found = job.gpu.compute_capability;
        if found.0 != 12 {
            return Err(Refusal::ComputeCapability {
                found,
                needed: "12.x",
            });
        }
        job.image(UNIT)?;
        job.nvfp4()?;
        job.row_length(NVFP4_MMA_FP4_SLICE as usize, "a multiple of 64")?;
        // Tensor copies of codes, and copies of four scales.
        let alignment = &job.operands.alignment;
        if alignment.codes.min(alignment.vector_codes) < 16 {
            return Err(Refusal::Alignment { needed: 16 });
        }
        if alignment.scales.min(alignment.vector_scales) < 4 {
            return Err(Refusal::Alignment { needed: 4 });
        }
        maps_batches(job)
    }

    /// The division of rows and K with the least `cost`: the SM that has most to bring then has least. Nothing of this
    /// rule was measured.
    fn default_for(job: &Job<'_>) -> Result<Self, Refusal> {
        match Self::divisions(job).min_by_key(|config| config.cost(job)) {
            Some(config) => Ok(config),
            None => {
                let smallest = Self {
                    warps: 1,
                    stages: LEAST_STAGES,
                    cluster: 1,
                    vectors: most_at_once(job),
                };
                smallest.check(job).map(|()| smallest)
            }
        }
    }

    /// Candidates are the divisions whose `cost` is at most half as much again as the default's. Further candidates are
    /// the default with fewer and more stages, and with other numbers of vectors in a pass.
    fn candidates(job: &Job<'_>) -> Vec<Self> {
        let Ok(default) = Self::default_for(job) else {
            return Vec::new();
        };
        let mut configs = vec![default];
        let most = default.cost(job).saturating_mul(3) / 2;
        configs.extend(Self::divisions(job).filter(|config| config.cost(job) <= most));
        configs.extend([1, 2].map(|more| Self {
            stages: default.stages + more,
            ..default
        }));
        configs.push(Self {
            stages: default.stages - 1,
            ..default
        });
        configs.extend(ENTRIES.map(|(vectors, _)| Self { vectors, ..default }));
        distinct(configs, |config| config.check(job).is_ok())
    }

    fn check(&self, job: &Job<'_>) -> Result<(), Refusal> {
        let Self {
            warps,
            stages,
            cluster,
            vectors,
        } = *self;
        let compiled_for = ENTRIES.iter().any(|&(most, _)| vectors == most);
        field("vectors", vectors, "8, 16, 32, 64 or 128", compiled_for)?;
        job.digits_fit(vectors)?;
        let has_warps = (1..=NVFP4_MMA_FP4_MAX_WARPS).contains(&warps);
        field("warps", warps, "1 to 8", has_warps)?;
        let has_stages = (LEAST_STAGES..=MOST_STAGES).contains(&stages);
        field("stages", stages, "2 to 8", has_stages)?;
        let most = u64::from(MOST_CLUSTER).min(steps(job.shape)) as u32;
        field(
            "cluster",
            cluster,
            "1 to 8, and no more than K / 256, rounded up",
            (1..=most).contains(&cluster),
        )?;
        shared_memory(self.layout(self.compiled(job)).bytes, job.gpu)
    }

    /// A term passes through the instructions of its step, each of which counts for `ASSUMED_ROUNDINGS`. The term then
    /// passes through an addition for each step of its CTA, and one for each CTA of the cluster.
    fn roundings(&self, shape: &Shape, _: Activation) -> u32 {
        // A size of a cluster that no kernel has counts as the nearest size that one has.
        let cluster = self.cluster.clamp(1, MOST_CLUSTER);
        let steps = steps(shape).div_ceil(cluster.into()) as u32;
        STEP_INSTRUCTIONS * ASSUMED_ROUNDINGS + steps + cluster + ALPHAS
    }

    fn plan(&self, call: &Call, job: &Job<'_>) -> Plan {
        let shape = &call.shape;
        let batches = shape.l() as u32;
        let mut plan = Plan::new();
        for pass in call.passes(self.vectors as usize) {
            let (columns, entry) = ENTRIES[at(pass.n as u64)];
            let layout = self.layout(columns);
            let parameters = nvfp4_mma_fp4_params {
                m: shape.m() as i32,
                n: pass.n,
                slices: (shape.k() / NVFP4_MMA_FP4_SLICE as usize) as u32,
                warps: self.warps,
                stages: self.stages,
                dependent: job.dependent().into(),
                scales_at: layout.scales_at as u32,
                barriers_at: layout.barriers_at as u32,
                digits: job.operands.digits as u32,
                weights: pass.weights,
                vectors: pass.vectors,
                epilogue: pass.epilogue,
                ..nvfp4_mma_fp4_params::default()
            };
            plan.push(Launch {
                entry,
                unit: UNIT,
                grid: [
                    self.groups(shape) as u32 * self.cluster,
                    batches.min(MOST_GRID_Y),
                    1,
                ],
                threads: (self.warps + 1) * NVFP4_WARP,
                cluster: self.cluster,
                dynamic_shared: layout.bytes as u32,
                dependent: job.dependent(),
                maps: self.maps(call, &pass),
                parameters: Parameters::of(&parameters),
                repeat: (batches > MOST_GRID_Y).then_some(Repeat {
                    batches,
                    first_batch: offset_of!(nvfp4_mma_fp4_params, first_batch),
                }),
                ..Launch::default()
            });
        }
        plan
    }

    fn bytes_in_flight(&self, _: &Job<'_>) -> u64 {
        // A stage is multiplied while the others fill.
        let stage = u64::from(self.warps) * u64::from(NVFP4_MMA_FP4_WARP_ROWS * STAGE_ROW_BYTES);
        u64::from(self.stages.saturating_sub(1)).saturating_mul(stage)
    }

    fn main_loop(&self, job: &Job<'_>) -> MainLoop {
        MainLoop {
            lane_weights: NVFP4_MMA_FP4_WARP_ROWS * NVFP4_MMA_FP4_STEP / NVFP4_WARP,
            vectors: self.compiled(job),
            products: Products::ScaledWarpMatrix {
                vectors: NVFP4_MMA_FP4_COLUMNS,
            },
            tensor_columns: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;
    use crate::gpu::Gpu;
    use crate::operands::RawVectors;
    use crate::shape::{Dims, Strides};
    use crate::types::ScaleLayout;

    /// Nine vectors with eight in a pass, and more batches than a grid holds.
    #[test]
    fn plans_by_hand() {
        let shape = Shape::new(Dims {
            m: 130,
            n: 9,
            k: 320,
            l: 70_000,
        })
        .unwrap();
        let layout = ScaleLayout::Tiled128x4;
        let mut call = Call::nowhere(&shape, Activation::Nvfp4, layout, 0x1_0000);
        if let RawVectors::Nvfp4 {
            codes,
            code_strides,
            scales,
            scale_strides,
            ..
        } = &mut call.vectors
        {
            (*codes, *scales) = (0x3_0000, 0x4_0000);
            let [row, batch] = [192, 1920];
            *code_strides = Strides { row, batch };
            scale_strides.batch = 2560;
        }
        let config = Config::from(MmaFp4Config {
            warps: 2,
            stages: 2,
            cluster: 2,
            vectors: 8,
        });
        let gpu = Gpu::of_compute_capability((12, 0), "120f");
        let plan = config.plan(&call, &gpu, true).unwrap();
        let [first, second] = plan.launches() else {
            panic!("{plan:?}");
        };
        assert_eq!([first.entry, second.entry], ["gemv_mma_fp4_n8"; 2]);
        // Two stages of 32 rows and eight vectors: codes, scales, barriers.
        assert_eq!(second.dynamic_shared, 2 * 40 * (128 + 16) + 2 * 16);
        assert_eq!((second.threads, second.cluster), (3 * 32, 2));
        let [weights, vectors] = second.maps.as_slice() else {
            panic!("{second:?}");
        };
        assert_eq!(weights.address, call.weights.codes);
        assert_eq!(weights.size, [160, 130, 70_000, 0]);
        assert_eq!(weights.stride, [1, 160, 160 * 130, 0]);
        assert_eq!(vectors.address, 0x3_0000 + 8 * 192);
        assert_eq!(vectors.size, [160, 1, 70_000, 0]);
        assert_eq!(vectors.stride, [1, 192, 1920, 0]);
        assert_eq!(
            (weights.box_size, vectors.box_size),
            ([128, 32, 1, 0], [128, 8, 1, 0])
        );

        let parts: Vec<Launch> = second.parts().collect();
        let batches = [65_535, 70_000 - 65_535];
        assert_eq!(parts.len(), 2);
        for (part, (batches, first)) in parts.iter().zip(batches.into_iter().zip([0, 65_535])) {
            assert_eq!(part.grid, [5 * 2, batches, 1]);
            let bytes = part.parameters.bytes();
            let words = bytes.chunks_exact(4);
            let words: Vec<u32> = words
                .map(|b| u32::from_ne_bytes(b.try_into().unwrap()))
                .collect();
            // m, n, first_batch, slices, warps, stages, dependent
            assert_eq!(words[..7], [130, 1, first, 5, 2, 2, 1]);
            let at = offset_of!(nvfp4_mma_fp4_params, vectors.scales);
            let scales = u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
            assert_eq!(scales, 0x4_0000 + 8 * 16);
        }
    }
}
