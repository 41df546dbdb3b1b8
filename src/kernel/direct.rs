//! The kernel that loads rows straight into registers and decodes vectors where they are used: it takes every
//! problem. `csrc/kernels/gemv_direct.cuh`.

use super::call::{Call, Pass};
use super::params::{
    NVFP4_BLOCK, NVFP4_DIRECT_MAX_WARPS, NVFP4_DIRECT_PASS_VECTORS, NVFP4_DIRECT_ROWS,
    NVFP4_DIRECT_ROWS_OF_MANY, NVFP4_DIRECT_TILED_ROW_STEP, NVFP4_WARP, nvfp4_direct_params,
};
use super::plan::{KernelParameters, Launch, MOST_GRID_Y, Parameters, Plan};
use super::{ALPHAS, Cost, Job, KernelConfig, MainLoop, Products, distinct, few, field};
use crate::refusal::Refusal;
use crate::shape::Shape;
use crate::types::Activation;

/// The config of the direct kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DirectConfig {
    /// Blocks of 16 codes that a lane loads at once: 2 (16 bytes), or 1 (8 bytes).
    pub blocks_per_load: u32,
    /// Warps of a CTA: 1 to 8.
    pub warps: u32,
    /// Warps that share a row tile and split K between them; divides `warps`.
    pub k_split: u32,
}

impl DirectConfig {
    /// A legal and plain config that literals start from; not a good choice.
    pub const DEFAULT: Self = Self {
        blocks_per_load: 1,
        warps: 1,
        k_split: 1,
    };
}

const UNIT: &str = "gemv_direct";
const PASS: usize = NVFP4_DIRECT_PASS_VECTORS as usize;

/// An entry point, and the numbers that it is compiled for.
struct Entry {
    name: &'static str,
    /// Vectors that are computed. A pass with fewer vectors computes the last one several times.
    vectors: usize,
    blocks_per_load: u32,
}

impl Entry {
    const fn new(name: &'static str, vectors: usize, blocks_per_load: u32) -> Self {
        Self {
            name,
            vectors,
            blocks_per_load,
        }
    }

    /// The first entry point of `entries`, in the order of their vectors, for such loads and a pass of `n` vectors. If
    /// there is none, the last entry point, which has most vectors.
    fn of(entries: &'static [Self], blocks_per_load: u32, n: usize) -> &'static Self {
        entries
            .iter()
            .find(|entry| entry.blocks_per_load == blocks_per_load && entry.vectors >= n)
            .unwrap_or(&entries[entries.len() - 1])
    }
}

/// The entry points for vectors of a type. Loads of one block are for weights that allow no wider load.
macro_rules! entries {
    ($activation:literal) => {
        [
            Entry::new(concat!("gemv_direct_", $activation, "_n1_b1"), 1, 1),
            Entry::new(concat!("gemv_direct_", $activation, "_n1_b2"), 1, 2),
            Entry::new(concat!("gemv_direct_", $activation, "_n2_b2"), 2, 2),
            Entry::new(concat!("gemv_direct_", $activation, "_n4_b2"), 4, 2),
            Entry::new(concat!("gemv_direct_", $activation, "_n8_b1"), 8, 1),
            Entry::new(concat!("gemv_direct_", $activation, "_n8_b2"), 8, 2),
        ]
    };
}

impl KernelConfig for DirectConfig {
    const MOST_VECTORS: u32 = PASS as u32;
    const WHY: &'static str = "it takes every problem";
    const TAKES_MOST: bool = true;

    /// Fitted to shares of the ceiling on an H200: 0.36 to 0.41 with one f16 vector, and 0.11 with eight. One f16
    /// vector is counted as 0.75.
    fn cost(_: &Job<'_>) -> Cost {
        Cost::Linear {
            first_vector: 2.0,
            further_vector: 0.7,
            columns: 1,
        }
    }

    fn default_reaches(_: &Job<'_>) -> f64 {
        0.84
    }

    fn takes_select(_: &Job<'_>) -> Result<(), Refusal> {
        Ok(())
    }

    fn available(job: &Job<'_>) -> Result<(), Refusal> {
        job.needs((8, 0), "8.0 or newer")?;
        job.image(UNIT)
    }

    /// Enough warps for the loads in flight that the latency of memory asks for: about 16 an SM. But no warp without
    /// a step of its own.
    fn default_for(job: &Job<'_>) -> Result<Self, Refusal> {
        let blocks_per_load = if can_load(job, 2) { 2 } else { 1 };
        let shape = job.shape;
        let warps = 4;
        let mut config = Self {
            blocks_per_load,
            warps,
            k_split: 1,
        };
        let rows = rows_per_warp(config.entry(job, shape.n())) as usize;
        let tiles = shape.m().div_ceil(rows) * shape.l();
        let wanted = 16 * job.gpu.multiprocessors as usize;
        let most = warps.min(u32::try_from(steps(shape, blocks_per_load)).unwrap_or(warps));
        while config.k_split * 2 <= most && tiles * config.k_split as usize <= wanted {
            config.k_split *= 2;
        }
        Ok(config)
    }

    fn candidates(job: &Job<'_>) -> Vec<Self> {
        let Ok(default) = Self::default_for(job) else {
            return Vec::new();
        };
        let mut configs = vec![default];
        for warps in [4, 8] {
            for k_split in [1, 2, 4, 8] {
                configs.push(Self {
                    warps,
                    k_split,
                    ..default
                });
            }
        }
        let steps = steps(job.shape, default.blocks_per_load);
        distinct(configs, |config| {
            config.k_split as usize <= steps && config.check(job).is_ok()
        })
    }

    fn check(&self, job: &Job<'_>) -> Result<(), Refusal> {
        let Self {
            blocks_per_load,
            warps,
            k_split,
        } = *self;
        field(
            "blocks_per_load",
            blocks_per_load,
            "1, or 2 where K is a multiple of 32, codes are aligned to 16 bytes and scales to 2",
            [1, 2].contains(&blocks_per_load) && can_load(job, blocks_per_load),
        )?;
        let has_warps = (1..=NVFP4_DIRECT_MAX_WARPS).contains(&warps);
        field("warps", warps, "1 to 8", has_warps)?;
        let divides = k_split >= 1 && warps.is_multiple_of(k_split);
        field("k_split", k_split, "a divisor of the warps", divides)
    }

    /// The additions over a lane's blocks, over lanes and over the warps that split K, then the factors. Dense vectors
    /// add the 16 roundings of a block and of its product with the scale. A value of a field that no kernel has counts
    /// as the nearest value that one has.
    fn roundings(&self, shape: &Shape, activation: Activation) -> u32 {
        let in_block = match activation {
            Activation::Nvfp4 => 0,
            _ => 16,
        };
        let blocks_per_load = self.blocks_per_load.clamp(1, 2);
        let k_split = self.k_split.clamp(1, NVFP4_DIRECT_MAX_WARPS);
        let lanes = NVFP4_WARP * k_split * blocks_per_load;
        let in_lane = (shape.blocks() as u32).div_ceil(lanes) * blocks_per_load;
        let across_lanes = 5;
        in_block + in_lane + across_lanes + k_split + ALPHAS
    }

    fn plan(&self, call: &Call, job: &Job<'_>) -> Plan {
        let mut plan = Plan::new();
        for pass in call.passes(PASS) {
            let entry = self.entry(job, pass.n as usize);
            let rows = rows_per_warp(entry);
            let tiles = row_tiles(job, rows) as u32;
            plan.push(Launch {
                entry: entry.name,
                unit: UNIT,
                // The kernel strides over batches that a grid has no room for.
                grid: [
                    tiles.div_ceil(self.warps / self.k_split),
                    call.shape.l().min(MOST_GRID_Y as usize) as u32,
                    1,
                ],
                threads: self.warps * NVFP4_WARP,
                // A sum for each row and vector of each warp that there may be.
                static_shared: NVFP4_DIRECT_MAX_WARPS * rows * entry.vectors as u32 * 4,
                dependent: job.dependent(),
                parameters: Parameters::of(&parameters(call, job, &pass, self.k_split)),
                ..Launch::default()
            });
        }
        plan
    }

    fn bytes_in_flight(&self, job: &Job<'_>) -> u64 {
        let rows = rows_per_warp(self.entry(job, job.shape.n()));
        // Codes and scales of blocks, of each lane.
        let factors = [self.warps, NVFP4_WARP, rows, self.blocks_per_load, 8 + 1];
        factors
            .map(u64::from)
            .into_iter()
            .fold(1, u64::saturating_mul)
    }

    fn main_loop(&self, job: &Job<'_>) -> MainLoop {
        let entry = self.entry(job, job.shape.n().min(PASS));
        MainLoop {
            lane_weights: rows_per_warp(entry) * self.blocks_per_load * NVFP4_BLOCK,
            vectors: entry.vectors as u32,
            products: Products::Float,
            tensor_columns: 0,
        }
    }
}

impl DirectConfig {
    /// The entry point for a pass of `n` vectors.
    fn entry(&self, job: &Job<'_>, n: usize) -> &'static Entry {
        let entries: &'static [Entry] = match job.operands.activation {
            Activation::Nvfp4 => const { &entries!("nvfp4") },
            Activation::F16 => const { &entries!("f16") },
            Activation::Bf16 => const { &entries!("bf16") },
            Activation::F32 => const { &entries!("f32") },
        };
        Entry::of(entries, self.blocks_per_load, n)
    }
}

/// Whether a load of the weights can have `blocks` blocks: rows are whole loads, codes are aligned to 8 bytes a block
/// and scales to one.
fn can_load(job: &Job<'_>, blocks: u32) -> bool {
    let alignment = job.operands.alignment;
    job.shape.blocks().is_multiple_of(blocks as usize)
        && alignment.codes >= 8 * blocks
        && alignment.scales >= blocks
}

/// Steps of a row. A step is one load of each lane of a warp.
fn steps(shape: &Shape, blocks_per_load: u32) -> usize {
    shape
        .blocks()
        .div_ceil((NVFP4_WARP * blocks_per_load) as usize)
}

/// Rows from one row of a tile to the next. In the 128x4 layout the rows of a tile share sectors of scales.
fn row_step(job: &Job<'_>) -> u32 {
    if job.operands.tiled() {
        NVFP4_DIRECT_TILED_ROW_STEP
    } else {
        1
    }
}

/// Tiles of `rows` rows that a batch takes: a multiple of the row step.
fn row_tiles(job: &Job<'_>, rows: u32) -> usize {
    let step = row_step(job) as usize;
    job.shape.m().div_ceil(step * rows as usize) * step
}

/// The parameters for a pass.
fn parameters(call: &Call, job: &Job<'_>, pass: &Pass, k_split: u32) -> nvfp4_direct_params {
    let shape = &call.shape;
    nvfp4_direct_params {
        m: shape.m() as i32,
        n: pass.n,
        l: shape.l() as i32,
        blocks: shape.blocks() as i32,
        k_split: k_split as i32,
        row_step: row_step(job) as i32,
        weights: pass.weights,
        vectors: pass.vectors,
        epilogue: pass.epilogue,
        select: call.select_operand(job),
    }
}

// SAFETY: bindgen makes padding fields of this structure's padding.
unsafe impl KernelParameters for nvfp4_direct_params {}

/// Rows that a warp computes at once.
fn rows_per_warp(entry: &Entry) -> u32 {
    match few(entry.vectors) {
        true => NVFP4_DIRECT_ROWS,
        false => NVFP4_DIRECT_ROWS_OF_MANY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Gpu;
    use crate::kernel::Kernel;
    use crate::operands::Operands;
    use crate::shape::Dims;
    use crate::types::ScaleLayout;

    const LINEAR: ScaleLayout = ScaleLayout::Linear;

    fn h200() -> Gpu {
        Gpu::of_compute_capability((9, 0), "90a")
    }

    /// The kernel is measured with vectors of all types, of any length, and with a selection.
    #[test]
    fn every_problem_has_candidates() {
        let gpu = h200();
        for (n, k) in [(8, 4096), (8, 28672), (1, 1 << 20)] {
            let shape = Shape::new(Dims {
                m: 4096,
                n,
                k,
                l: 1,
            })
            .unwrap();
            for (activation, select) in Activation::ALL.map(|a| [(a, false), (a, true)]).concat() {
                let operands = Operands {
                    select,
                    ..Operands::new(activation, LINEAR)
                };
                let job = Job::new(&shape, &operands, &gpu);
                assert!(Kernel::Direct.candidates(&job).len() > 4, "{shape}");
            }
        }
    }

    /// Eleven vectors are a pass of eight and one of three, for which loads of one block have no kernel of four.
    #[test]
    fn passes_take_the_smallest_entry_point() {
        let (shape, gpu) = (
            Shape::new(Dims {
                m: 1000,
                n: 11,
                k: 4096,
                l: 3,
            })
            .unwrap(),
            h200(),
        );
        for (activation, blocks_per_load, entries) in [
            (Activation::F16, 2, ["f16_n8_b2", "f16_n4_b2"]),
            (Activation::F32, 1, ["f32_n8_b1", "f32_n8_b1"]),
            (Activation::Nvfp4, 2, ["nvfp4_n8_b2", "nvfp4_n4_b2"]),
        ] {
            let operands = Operands::new(activation, LINEAR);
            let config = DirectConfig {
                blocks_per_load,
                warps: 4,
                k_split: 2,
            };
            let call = Call::nowhere(&shape, operands.activation, operands.weight_layout, 32);
            let plan = config.plan(&call, &Job::new(&shape, &operands, &gpu));
            let launches = plan.launches();
            assert_eq!(launches.len(), 2);
            for (launch, entry) in launches.iter().zip(entries) {
                assert_eq!(launch.entry, format!("gemv_direct_{entry}"));
                // 500 tiles of two rows, two of them a CTA.
                assert_eq!(launch.grid, [250, 3, 1]);
                assert_eq!((launch.threads, launch.dynamic_shared), (128, 0));
            }
        }
        // One vector has tiles of four rows, and with tiled scales they come in groups of 32.
        let operands = Operands::new(Activation::Bf16, ScaleLayout::Tiled128x4);
        let shape = Shape::new(Dims {
            m: 1000,
            n: 1,
            k: 4096,
            l: 100_000,
        })
        .unwrap();
        let job = Job::new(&shape, &operands, &gpu);
        let config = DirectConfig::default_for(&job).unwrap();
        assert_eq!((config.warps, config.k_split), (4, 1));
        let plan = config.plan(
            &Call::nowhere(&shape, operands.activation, operands.weight_layout, 32),
            &job,
        );
        assert_eq!(plan.launches()[0].entry, "gemv_direct_bf16_n1_b2");
        assert_eq!(plan.launches()[0].grid, [64, 65535, 1]);
    }
}
