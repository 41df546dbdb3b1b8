//! The kernel that keeps NVFP4 vectors decoded in shared memory, and loads rows straight into registers:
//! `csrc/kernels/gemv_dot.cuh`.

use super::expected::RAGGED;
use super::params::{
    NVFP4_BLOCK, NVFP4_DOT_MAX_WARPS, NVFP4_DOT_MAX_WARPS_OF_MANY, NVFP4_DOT_ROWS,
    NVFP4_DOT_WIDE_BLOCKS, NVFP4_DOT_WIDE_SPAN_BLOCKS, NVFP4_DOT_WIDE_X_BYTES,
    NVFP4_DOT_WIDE_X_SCALE_BYTES, NVFP4_DOT_X_BYTES, NVFP4_DOT_X_SCALE_BYTES, NVFP4_PASS_VECTORS,
    NVFP4_WARP, nvfp4_direct_params,
};
use super::plan::{Launch, MOST_GRID_Y, Parameters, Plan};
use super::row_tiles::{Entry, bytes_of_loads, can_load, parameters, roundings, row_tiles, steps};
use super::stream::is_ragged;
use super::{
    Call, Cost, Job, KernelConfig, MainLoop, Products, distinct, expected, few, field,
    shared_memory,
};
use crate::operands::Operands;
use crate::refusal::Refusal;
use crate::shape::Shape;
use crate::types::Activation;

/// The config of the dot kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DotConfig {
    /// Blocks of 16 codes that a lane loads at once: 2 (16 bytes), 1 (8 bytes), or, on Blackwell, 4 (32 bytes). With
    /// one and two, vectors are integers and products are dp4a. With four they are f16, as exact as integers.
    pub blocks_per_load: u32,
    /// Warps of a CTA: 1 to 16, or to 8 with more than two vectors.
    pub warps: u32,
    /// Warps that share a row tile and split K between them; divides `warps`.
    pub k_split: u32,
    /// CTAs that share a batch's rows.
    pub ctas: u32,
}

impl DotConfig {
    /// A legal and plain config that literals start from; not a good choice.
    pub const DEFAULT: Self = Self {
        blocks_per_load: 1,
        warps: 1,
        k_split: 1,
        ctas: 1,
    };
}

const UNIT: &str = "gemv_dot";
const WIDE_UNIT: &str = "gemv_dot_wide";
const PASS: usize = NVFP4_PASS_VECTORS as usize;

/// Entry points. Loads of one block are for weights that allow no wider load.
const ENTRIES: [Entry; 10] = [
    Entry::new("gemv_dot_n1_b1", 1, 1),
    Entry::new("gemv_dot_n1_b2", 1, 2),
    Entry::new("gemv_dot_n1_b4", 1, 4),
    Entry::new("gemv_dot_n2_b2", 2, 2),
    Entry::new("gemv_dot_n2_b4", 2, 4),
    Entry::new("gemv_dot_n4_b2", 4, 2),
    Entry::new("gemv_dot_n4_b4", 4, 4),
    Entry::new("gemv_dot_n8_b1", 8, 1),
    Entry::new("gemv_dot_n8_b4", 8, 4),
    Entry::new("gemv_dot_n8_b2", 8, 2),
];

impl KernelConfig for DotConfig {
    const MOST_VECTORS: u32 = PASS as u32;
    const WHY: &'static str =
        "decoded once, the vectors leave the fewest instructions for each weight";

    fn share_of_one(shape: &Shape, operands: &Operands) -> f64 {
        let one = expected::share_of_one(operands.activation);
        match is_ragged(shape, operands) {
            true => RAGGED * one,
            false => one,
        }
    }

    /// Fitted to shares of the ceiling on an H200: 0.48 with four NVFP4 vectors, and 0.30 with eight. One NVFP4 vector
    /// is counted as 0.85.
    fn cost(_: &Job<'_>) -> Cost {
        Cost::Linear {
            first_vector: 1.0,
            further_vector: 0.26,
            columns: 1,
        }
    }

    fn cost_with(&self, job: &Job<'_>) -> Cost {
        match self.blocks_per_load {
            NVFP4_DOT_WIDE_BLOCKS => Cost::FAST,
            _ => Self::cost(job),
        }
    }

    /// With four blocks a load, dot comes first for up to four vectors on Blackwells of data centres: their memory is
    /// too fast for the instructions of the stream kernel. With eight vectors stream is ahead, by the estimates of
    /// docs/notes/estimates.md, not by measurement.
    fn is_first(job: &Job<'_>) -> bool {
        let default = || Self::available(job).and_then(|()| Self::default_for(job));
        job.gpu.compute_capability.0 == 10
            && job.shape.n() <= 4
            && default().is_ok_and(|config| config.blocks_per_load == NVFP4_DOT_WIDE_BLOCKS)
    }

    fn available(job: &Job<'_>) -> Result<(), Refusal> {
        job.needs((8, 0), "8.0 or newer")?;
        job.image(UNIT)?;
        job.nvfp4()?;
        let tiles = row_tiles(job, NVFP4_DOT_ROWS) as u32;
        let fits = |blocks_per_load| {
            let smallest = Self {
                blocks_per_load,
                warps: 1,
                k_split: 1,
                ctas: tiles,
            };
            smallest.check(job).is_ok()
        };
        match loads(job).any(fits) {
            true => Ok(()),
            false => Err(Refusal::VectorMemory),
        }
    }

    /// The widest loads and as many warps as there is room for, and the K split with the fewest steps on the SM that
    /// has the most.
    fn default_for(job: &Job<'_>) -> Result<Self, Refusal> {
        loads(job)
            .find_map(|blocks_per_load| Self::default_with(blocks_per_load, job))
            .ok_or(Refusal::VectorMemory)
    }

    fn candidates(job: &Job<'_>) -> Vec<Self> {
        let Ok(default) = Self::default_for(job) else {
            return Vec::new();
        };
        let mut configs = vec![default];
        for blocks_per_load in loads(job) {
            // No warp without a step of its own.
            let steps = steps(job.shape, blocks_per_load);
            for (warps, ctas_per_sm) in [(16, 1), (8, 1), (8, 2), (4, 2), (4, 4)] {
                for k_split in [1, 2, 4, 8] {
                    if k_split as usize <= steps {
                        configs.push(Self {
                            blocks_per_load,
                            warps,
                            k_split,
                            ctas: ctas(job, ctas_per_sm),
                        });
                    }
                }
            }
        }
        distinct(configs, |config| config.check(job).is_ok())
    }

    fn check(&self, job: &Job<'_>) -> Result<(), Refusal> {
        let Self {
            blocks_per_load,
            warps,
            k_split,
            ctas,
        } = *self;
        // The fields that a size is computed from are checked first.
        field(
            "blocks_per_load",
            blocks_per_load,
            "1, 2 or 4; K has whole loads, codes are aligned to 8 bytes a block and scales to one",
            [1, 2, NVFP4_DOT_WIDE_BLOCKS].contains(&blocks_per_load)
                && can_load(job, blocks_per_load),
        )?;
        if blocks_per_load == NVFP4_DOT_WIDE_BLOCKS {
            job.needs((10, 0), "10.0 or newer")?;
            job.image(WIDE_UNIT)?;
        }
        let most = match few(self.entry(job.shape.n()).vectors) {
            true => NVFP4_DOT_MAX_WARPS,
            false => NVFP4_DOT_MAX_WARPS_OF_MANY,
        };
        field(
            "warps",
            warps,
            "1 to 16, or to 8 with more than two vectors",
            (1..=most).contains(&warps),
        )?;
        let divides = k_split >= 1 && warps.is_multiple_of(k_split);
        field("k_split", k_split, "a divisor of the warps", divides)?;
        let is_counted = ctas >= 1 && i32::try_from(ctas).is_ok();
        field("ctas", ctas, "1 to 2147483647", is_counted)?;
        shared_memory(self.shared_bytes(job, self.entry(job.shape.n())), job.gpu)
    }

    /// The products of a block are exact. A value of a field that no kernel has counts as the nearest value that one
    /// has.
    fn roundings(&self, shape: &Shape, _: Activation) -> u32 {
        let blocks_per_load = self.blocks_per_load.clamp(1, NVFP4_DOT_WIDE_BLOCKS);
        let k_split = self.k_split.clamp(1, NVFP4_DOT_MAX_WARPS);
        roundings(shape, blocks_per_load, k_split)
    }

    fn plan(&self, call: &Call, job: &Job<'_>) -> Plan {
        let tiles = row_tiles(job, NVFP4_DOT_ROWS) as u32;
        let mut plan = Plan::new();
        for pass in call.passes(PASS) {
            let entry = self.entry(pass.n as usize);
            let parameters = nvfp4_direct_params {
                tiles_per_cta: (tiles / self.ctas) as i32,
                tiles_left: (tiles % self.ctas) as i32,
                ..parameters(call, job, &pass, self.k_split)
            };
            plan.push(Launch {
                entry: entry.name,
                unit: if self.blocks_per_load == NVFP4_DOT_WIDE_BLOCKS {
                    WIDE_UNIT
                } else {
                    UNIT
                },
                // The kernel strides over batches that a grid has no room for.
                grid: [
                    self.ctas,
                    call.shape.l().min(MOST_GRID_Y as usize) as u32,
                    1,
                ],
                threads: self.warps * NVFP4_WARP,
                dynamic_shared: self.shared_bytes(job, entry) as u32,
                dependent: job.dependent(),
                parameters: Parameters::of(&parameters),
                ..Launch::default()
            });
        }
        plan
    }

    fn bytes_in_flight(&self, _: &Job<'_>) -> u64 {
        bytes_of_loads(self.warps, NVFP4_DOT_ROWS, self.blocks_per_load)
    }

    fn main_loop(&self, job: &Job<'_>) -> MainLoop {
        MainLoop {
            lane_weights: NVFP4_DOT_ROWS * self.blocks_per_load * NVFP4_BLOCK,
            vectors: self.entry(job.shape.n().min(PASS)).vectors as u32,
            products: match self.blocks_per_load {
                NVFP4_DOT_WIDE_BLOCKS => Products::PackedHalf,
                _ => Products::Integer,
            },
            tensor_columns: 0,
        }
    }
}

impl DotConfig {
    fn default_with(blocks_per_load: u32, job: &Job<'_>) -> Option<Self> {
        let shape = job.shape;
        let tiles = row_tiles(job, NVFP4_DOT_ROWS);
        // Short rows: two CTAs an SM, so that one starts while the other ends. Measured on an H200:
        // docs/notes/dot.md.
        let vectors = Entry::of(&ENTRIES, blocks_per_load, shape.n().min(PASS)).vectors;
        let sizes: &[(u32, usize)] = match vectors <= 2 && shape.k() <= 4096 {
            true => &[(8, 2), (8, 1), (4, 1)],
            false => &[(16, 1), (8, 1), (4, 1)],
        };
        sizes.iter().find_map(|&(warps, ctas_per_sm)| {
            let ctas = ctas(job, ctas_per_sm);
            let cost = |k_split: u32| {
                let rounds = tiles
                    .div_ceil(ctas as usize)
                    .div_ceil((warps / k_split) as usize);
                // In quarters of a step; ending a tile costs about one.
                rounds * (4 * steps(shape, blocks_per_load * k_split) + 1)
            };
            let config = Self {
                blocks_per_load,
                warps,
                k_split: (0..=warps.ilog2())
                    .map(|log| 1 << log)
                    .min_by_key(|&k_split| cost(k_split))?,
                ctas,
            };
            config.check(job).is_ok().then_some(config)
        })
    }

    /// The entry point for a pass of `n` vectors, or for the largest pass of more.
    fn entry(&self, n: usize) -> &'static Entry {
        Entry::of(&ENTRIES, self.blocks_per_load, n.min(PASS))
    }

    /// Bytes of shared memory of a CTA: the vectors, which in f16 are whole spans, their scales, and the sums of each
    /// warp that shares a tile.
    fn shared_bytes(&self, job: &Job<'_>, entry: &Entry) -> u64 {
        let blocks = job.shape.blocks() as u64;
        let vector_bytes = match self.blocks_per_load {
            NVFP4_DOT_WIDE_BLOCKS => {
                let spans = blocks.next_multiple_of(NVFP4_DOT_WIDE_SPAN_BLOCKS.into());
                spans * u64::from(NVFP4_DOT_WIDE_X_BYTES + NVFP4_DOT_WIDE_X_SCALE_BYTES)
            }
            _ => blocks * u64::from(NVFP4_DOT_X_BYTES + NVFP4_DOT_X_SCALE_BYTES),
        };
        let tiles = row_tiles(job, NVFP4_DOT_ROWS).div_ceil(self.ctas as usize) as u64;
        let sum_bytes = tiles * u64::from(self.k_split * NVFP4_DOT_ROWS * 4);
        entry.vectors as u64 * (vector_bytes + sum_bytes)
    }
}

/// Blocks of a load that are worth trying, the widest first.
fn loads(job: &Job<'_>) -> impl Iterator<Item = u32> {
    let wide = can_load(job, NVFP4_DOT_WIDE_BLOCKS) && job.image(WIDE_UNIT).is_ok();
    let two = can_load(job, 2);
    [
        wide.then_some(NVFP4_DOT_WIDE_BLOCKS),
        two.then_some(2),
        (!two).then_some(1),
    ]
    .into_iter()
    .flatten()
}

/// CTAs that share a batch: `per_sm` for each SM over all batches, but no more than the batch has tiles. A CTA stays
/// inside a batch, whose vectors it decodes.
fn ctas(job: &Job<'_>, per_sm: usize) -> u32 {
    let tiles = row_tiles(job, NVFP4_DOT_ROWS).max(1);
    let ctas = job.gpu.multiprocessors as usize * per_sm / job.shape.l().max(1);
    ctas.clamp(1, tiles) as u32
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;
    use crate::gpu::Gpu;
    use crate::operands::Operands;
    use crate::shape::Dims;
    use crate::types::ScaleLayout;

    fn gpu(major: i32) -> Gpu {
        Gpu::of_compute_capability((major, 0), "90a;100f")
    }

    fn default(m: usize, n: usize, k: usize, major: i32) -> DotConfig {
        let shape = Shape::new(Dims { m, n, k, l: 1 }).unwrap();
        let operands = Operands::new(Activation::Nvfp4, ScaleLayout::Linear);
        DotConfig::default_for(&Job::new(&shape, &operands, &gpu(major))).unwrap()
    }

    #[test]
    fn four_blocks_a_load_where_they_can_be() {
        assert_eq!(default(4096, 1, 7168, 10).blocks_per_load, 4);
        assert_eq!(default(4096, 8, 7168, 10).blocks_per_load, 4);
        assert_eq!(default(4096, 1, 7168, 9).blocks_per_load, 2);
        // In f16 these vectors take more room than there is.
        assert_eq!(default(4096, 8, 16384, 10).blocks_per_load, 2);
        // The tuner tries both widths.
        let (shape, gpu) = (Shape::matrix(4096, 7168).unwrap(), gpu(10));
        let operands = Operands::new(Activation::Nvfp4, ScaleLayout::Linear);
        let candidates = DotConfig::candidates(&Job::new(&shape, &operands, &gpu));
        for blocks in [2, 4] {
            let of_them = |config: &&DotConfig| config.blocks_per_load == blocks;
            assert!(candidates.iter().filter(of_them).count() > 4, "{blocks}");
        }
    }

    #[test]
    fn few_rows_split_k() {
        assert_eq!(default(128, 1, 16384, 9).k_split, 16);
        assert_eq!(default(128, 1, 256, 9).k_split, 1); // one step: nothing to split
        let short = default(4096, 1, 4096, 9);
        assert_eq!((short.warps, short.k_split, short.ctas), (8, 2, 264));
    }

    /// By hand: 1000 rows are 250 tiles, or 256 where scales are tiled; 4160 elements are 260 blocks, or three spans
    /// of 128.
    #[test]
    fn launches_by_hand() {
        let shape = Shape::new(Dims {
            m: 1000,
            n: 11,
            k: 4160,
            l: 2,
        })
        .unwrap();
        let gpu = gpu(10);
        let config = DotConfig {
            blocks_per_load: 2,
            warps: 8,
            k_split: 2,
            ctas: 100,
        };
        for (layout, blocks_per_load, tiles_left, entries, bytes) in [
            (ScaleLayout::Linear, 2, 50, ["n8_b2", "n4_b2"], 260 * 20),
            (ScaleLayout::Tiled128x4, 1, 56, ["n8_b1", "n8_b1"], 260 * 20),
            (ScaleLayout::Linear, 4, 50, ["n8_b4", "n4_b4"], 384 * 34),
        ] {
            let operands = Operands::new(Activation::Nvfp4, layout);
            let config = DotConfig {
                blocks_per_load,
                ..config
            };
            let call = Call::nowhere(&shape, operands.activation, operands.weight_layout, 32);
            let plan = config.plan(&call, &Job::new(&shape, &operands, &gpu));
            assert_eq!(plan.launches().len(), 2);
            for (launch, entry) in plan.launches().iter().zip(entries) {
                assert_eq!(launch.entry, format!("gemv_dot_{entry}"));
                assert_eq!((launch.grid, launch.threads), ([100, 2, 1], 256));
                let vectors = if entry.starts_with("n8") { 8 } else { 4 };
                let sums = 3 * 2 * 4 * 4;
                assert_eq!(launch.dynamic_shared, vectors * (bytes + sums));
                let low_byte = |at: usize| launch.parameters.bytes()[at];
                assert_eq!(low_byte(offset_of!(nvfp4_direct_params, tiles_per_cta)), 2);
                let left = low_byte(offset_of!(nvfp4_direct_params, tiles_left));
                assert_eq!(left, tiles_left);
            }
        }
    }
}
