//! The kernel for up to 128 vectors that a launch before packs into a workspace, multiplied on Hopper's `wgmma`, with work
//! dealt evenly to CTAs: `csrc/kernels/gemv_packed.cuh`.

use super::many_vectors::{STEP, at_activation, has_wgmma, places, steps, takes_operands};
use super::params::{
    NVFP4_MANY_COLUMNS, NVFP4_MANY_STAGE_BYTES, NVFP4_MANY_STAGES, NVFP4_MANY_VECTOR_STEP_BYTES,
    NVFP4_MANY_VECTORS_ALIGN, NVFP4_MANY_WARP_ROWS, NVFP4_PACKED_BARRIER_BYTES,
    NVFP4_PACKED_BUFFERS, NVFP4_PACKED_LONG_SUMS, NVFP4_PACKED_MAX_GROUPS, NVFP4_PACKED_PACK_WARPS,
    NVFP4_PACKED_TILE_WARPS, NVFP4_WARP, nvfp4_pack_params, nvfp4_packed_add_params,
    nvfp4_packed_deal, nvfp4_packed_params,
};
use super::plan::{KernelParameters, Launch, Parameters, Plan};
use super::stream::scaled_matrix_roundings;
use super::{ALPHAS, Call, Job, KernelConfig, MainLoop, Products, distinct, field, shared_memory};
use crate::refusal::Refusal;
use crate::shape::Shape;
use crate::types::Activation;

/// The config of the packed kernel. A tile is 64 rows and has four warps, a warpgroup; a group is the tiles of a CTA; a step
/// is 128 elements of K of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "tune",
    derive(serde::Serialize, serde::Deserialize),
    serde(deny_unknown_fields)
)]
pub struct PackedConfig {
    /// Tiles of a group: 1 to 4.
    pub tiles: u32,
    /// Steps of a chunk: what work is dealt in, and vectors come to shared memory in.
    pub chunk: u32,
    /// CTAs, up to one for each multiprocessor. Each has as many chunks as the others, or one more.
    pub ctas: u32,
    /// Vectors of a pass over the weights, at most: 8, 16, 32, 64 or 128.
    pub vectors: u32,
}

const UNIT: &str = "gemv_packed";

/// Numbers of vectors that the kernels are compiled for.
const VECTORS: [u32; 5] = [8, 16, 32, 64, 128];

/// Entry points that pack vectors, by their type (NVFP4, f16 and bf16) and number.
const PACK: [[&str; 5]; 3] = [
    [
        "gemv_packed_pack_nvfp4_n8",
        "gemv_packed_pack_nvfp4_n16",
        "gemv_packed_pack_nvfp4_n32",
        "gemv_packed_pack_nvfp4_n64",
        "gemv_packed_pack_nvfp4_n128",
    ],
    [
        "gemv_packed_pack_f16_n8",
        "gemv_packed_pack_f16_n16",
        "gemv_packed_pack_f16_n32",
        "gemv_packed_pack_f16_n64",
        "gemv_packed_pack_f16_n128",
    ],
    [
        "gemv_packed_pack_bf16_n8",
        "gemv_packed_pack_bf16_n16",
        "gemv_packed_pack_bf16_n32",
        "gemv_packed_pack_bf16_n64",
        "gemv_packed_pack_bf16_n128",
    ],
];

/// Entry points that multiply. NVFP4 vectors are packed as f16.
const MULTIPLY: [[&str; 5]; 3] = [F16, F16, BF16];
const F16: [&str; 5] = [
    "gemv_packed_f16_n8",
    "gemv_packed_f16_n16",
    "gemv_packed_f16_n32",
    "gemv_packed_f16_n64",
    "gemv_packed_f16_n128",
];
const BF16: [&str; 5] = [
    "gemv_packed_bf16_n8",
    "gemv_packed_bf16_n16",
    "gemv_packed_bf16_n32",
    "gemv_packed_bf16_n64",
    "gemv_packed_bf16_n128",
];

const MOST_VECTORS: u32 = VECTORS[VECTORS.len() - 1];
const MOST_TILES: u32 = NVFP4_PACKED_MAX_GROUPS;
const TILE_ROWS: u32 = NVFP4_PACKED_TILE_WARPS * NVFP4_MANY_WARP_ROWS;
/// Of where sums begin in the workspace.
const PARTIAL_ALIGN: u64 = 256;

// SAFETY: bindgen makes padding fields of this structure's padding.
unsafe impl KernelParameters for nvfp4_pack_params {}
// SAFETY: as above.
unsafe impl KernelParameters for nvfp4_packed_params {}
// SAFETY: as above.
unsafe impl KernelParameters for nvfp4_packed_add_params {}

/// At which of [`VECTORS`] a pass of `n` is.
fn at(n: u64) -> usize {
    let at = VECTORS.iter().position(|&most| n <= u64::from(most));
    at.unwrap_or(VECTORS.len() - 1)
}

/// Where the first pass is, if passes are as few as can be.
fn most_at_once(shape: &Shape) -> u32 {
    VECTORS[at(shape.n() as u64)]
}

/// Bytes of the vectors of a batch, packed for a kernel that is compiled for so many.
fn packed_batch_bytes(vectors: u32, shape: &Shape) -> u64 {
    (steps(shape) * u64::from(vectors)).saturating_mul(NVFP4_MANY_VECTOR_STEP_BYTES.into())
}

/// Where sums of parts of groups begin in the workspace, behind the packed vectors.
fn partial_at(vectors: u32, shape: &Shape) -> u64 {
    packed_batch_bytes(vectors, shape)
        .saturating_mul(shape.l() as u64)
        .checked_next_multiple_of(PARTIAL_ALIGN)
        .unwrap_or(u64::MAX)
}

/// Bytes of the workspace where passes are as few as can be. As much for all configs: those with fewer CTAs or vectors
/// would need less.
fn workspace_bytes(job: &Job<'_>) -> u64 {
    let vectors = most_at_once(job.shape);
    // A CTA leaves two sums at most: of the group that it begins in, and the one that it ends in.
    let of_cta = 2 * u64::from(MOST_TILES * TILE_ROWS * vectors) * size_of::<f32>() as u64;
    let all = of_cta.saturating_mul(job.gpu.multiprocessors.into());
    partial_at(vectors, job.shape).saturating_add(all)
}

/// A CTA's dynamic shared memory, in bytes from its start: the queues, then buffers of vectors, then mbarriers.
struct Layout {
    x_at: u64,
    bytes: u64,
}

impl PackedConfig {
    /// With the largest chunk: four buffers of it leave room for the queues of most tiles. One with a CTA for each
    /// multiprocessor, and one with fewer, if there is a number near it with which no group is divided, or all groups are
    /// divided alike.
    fn with_tiles(job: &Job<'_>, tiles: u32) -> [Self; 2] {
        const TRIES: usize = 64;
        let vectors = most_at_once(job.shape);
        let sms = job.gpu.multiprocessors;
        let one_a_multiprocessor = Self {
            tiles,
            chunk: (MOST_VECTORS / vectors).min(8),
            ctas: sms,
            vectors,
        };
        let groups = one_a_multiprocessor
            .groups(job)
            .saturating_mul(job.shape.l() as u64);
        let chunks = one_a_multiprocessor.chunks(job.shape);
        let even = match u64::from(sms).checked_div(groups) {
            None => None,
            // Groups of as many for each CTA.
            Some(0) => (1..=sms)
                .rev()
                .take(TRIES)
                .find(|&ctas| groups.is_multiple_of(ctas.into())),
            // CTAs of as many for each group.
            Some(most) => {
                let mut times = (1..=most).rev().take(TRIES);
                let times = times.find(|&times| chunks.is_multiple_of(times));
                times.map(|times| (times * groups) as u32)
            }
        };
        let even = even.unwrap_or(sms);
        let even = Self {
            ctas: even,
            ..one_a_multiprocessor
        };
        [one_a_multiprocessor, even]
    }

    /// At which of [`VECTORS`] the first pass is, which has most.
    fn compiled(&self, shape: &Shape) -> usize {
        at((shape.n() as u64).min(self.vectors.into()))
    }

    fn layout(&self, vectors: u32) -> Layout {
        let [tiles, chunk, vectors] = [self.tiles, self.chunk, vectors].map(u64::from);
        let warps = tiles * u64::from(NVFP4_PACKED_TILE_WARPS);
        let queues = warps * u64::from(NVFP4_MANY_STAGES * NVFP4_MANY_STAGE_BYTES);
        let x_at = queues.next_multiple_of(NVFP4_MANY_VECTORS_ALIGN.into());
        let buffers = u64::from(NVFP4_PACKED_BUFFERS * NVFP4_MANY_VECTOR_STEP_BYTES);
        let bytes = (buffers * vectors)
            .saturating_mul(chunk)
            .saturating_add(x_at + u64::from(NVFP4_PACKED_BARRIER_BYTES));
        Layout { x_at, bytes }
    }

    /// Chunks of a group.
    fn chunks(&self, shape: &Shape) -> u64 {
        steps(shape).div_ceil(self.chunk.into())
    }

    /// Groups of a batch.
    fn groups(&self, job: &Job<'_>) -> u64 {
        places(job).div_ceil((self.tiles * TILE_ROWS).into())
    }

    /// The chunks of all groups, which [`takes_chunks`] has found to be less than 2³¹.
    fn all_chunks(&self, job: &Job<'_>) -> u32 {
        (self.groups(job) * job.shape.l() as u64 * self.chunks(job.shape)) as u32
    }

    /// How they are dealt, and to how many CTAs.
    fn deal(&self, job: &Job<'_>) -> (nvfp4_packed_deal, u32) {
        let all = self.all_chunks(job);
        let ctas = self.ctas.min(all);
        let deal = nvfp4_packed_deal {
            groups: self.groups(job) as u32,
            chunks: self.chunks(job.shape) as u32,
            each: all / ctas,
            more: all % ctas,
        };
        (deal, ctas)
    }

    /// The most parts that a group is divided into.
    fn most_parts(&self, shape: &Shape) -> u32 {
        // What takes less than 2^31 chunks is a shape of this kernel.
        let chunks = self.chunks(shape).min(u32::MAX.into()) as u32;
        chunks.min(self.ctas)
    }
}

/// Whether chunks are counted in 31 bits, for every config.
fn takes_chunks(job: &Job<'_>) -> Result<(), Refusal> {
    let shape = job.shape;
    let columns = u64::from(MOST_VECTORS / NVFP4_MANY_COLUMNS);
    // Pieces that are packed are counted too, a step of eight vectors each.
    let pieces = steps(shape)
        .saturating_mul(shape.l() as u64)
        .saturating_mul(columns);
    if pieces > i32::MAX as u64 {
        return Err(Refusal::Vectors);
    }
    let tiles = places(job).div_ceil(TILE_ROWS.into());
    let chunks = tiles
        .saturating_mul(shape.l() as u64)
        .saturating_mul(steps(shape));
    match chunks <= i32::MAX as u64 {
        true => Ok(()),
        false => Err(Refusal::Rows),
    }
}

impl KernelConfig for PackedConfig {
    const MOST_VECTORS: u32 = MOST_VECTORS;

    fn pass_vectors(&self) -> u32 {
        match VECTORS.contains(&self.vectors) {
            true => self.vectors,
            false => MOST_VECTORS,
        }
    }

    fn available(job: &Job<'_>) -> Result<(), Refusal> {
        has_wgmma(job)?;
        job.image(UNIT)?;
        takes_operands(job)?;
        takes_chunks(job)?;
        let (needed, given) = (workspace_bytes(job), job.operands.workspace);
        match needed <= given {
            true => Ok(()),
            false => Err(Refusal::Workspace { needed, given }),
        }
    }

    /// What was fastest or nearly so for problems measured on an H200 (docs/notes/many-vectors.md): four tiles where most
    /// multiprocessors then have a group, and two where they have not; the largest chunk; and one CTA a multiprocessor, or
    /// nearly so many if groups are then divided evenly.
    fn default_for(job: &Job<'_>) -> Result<Self, Refusal> {
        let all = places(job).div_ceil(TILE_ROWS.into());
        let sms = u64::from(job.gpu.multiprocessors);
        let of_all = all * job.shape.l() as u64;
        let tiles = match of_all / u64::from(MOST_TILES) {
            groups if 4 * groups >= 3 * sms => MOST_TILES,
            _ => 2,
        };
        let tiles = all.clamp(1, tiles.into()) as u32;
        let configs = (1..=tiles).rev().map(|tiles| {
            let [one_a_multiprocessor, even] = Self::with_tiles(job, tiles);
            match u64::from(even.ctas) * 20 >= 19 * sms {
                true => even,
                false => one_a_multiprocessor,
            }
        });
        let mut fit = configs.filter(|config| config.check(job).is_ok());
        fit.next().ok_or(Refusal::VectorMemory)
    }

    fn candidates(job: &Job<'_>) -> Vec<Self> {
        let Ok(default) = Self::default_for(job) else {
            return Vec::new();
        };
        let mut configs = vec![default];
        for tiles in 2..=MOST_TILES {
            for config in Self::with_tiles(job, tiles) {
                configs.extend([1, 2].map(|by| Self {
                    chunk: config.chunk / by,
                    ..config
                }));
            }
        }
        configs.extend(VECTORS.map(|vectors| Self { vectors, ..default }));
        distinct(configs, |config| config.check(job).is_ok())
    }

    fn check(&self, job: &Job<'_>) -> Result<(), Refusal> {
        let Self {
            tiles,
            chunk,
            ctas,
            vectors,
        } = *self;
        field(
            "vectors",
            vectors,
            "8, 16, 32, 64 or 128",
            VECTORS.contains(&vectors),
        )?;
        field("tiles", tiles, "1 to 4", (1..=MOST_TILES).contains(&tiles))?;
        field("chunk", chunk, "1 or more", chunk != 0)?;
        field(
            "ctas",
            ctas,
            "1 to the number of multiprocessors",
            (1..=job.gpu.multiprocessors).contains(&ctas),
        )?;
        let bytes = self.layout(VECTORS[self.compiled(job.shape)]).bytes;
        shared_memory(bytes, job.gpu)
    }

    /// A term passes through the eight matrix instructions of each step that are added to one another, those of a chunk, or
    /// with many vectors all of its part of a group, each of which counts for [`scaled_matrix_roundings`]. The additions of
    /// chunks and of parts follow. The factor that ends a sum is a power of two, and exact.
    fn roundings(&self, shape: &Shape, activation: Activation) -> u32 {
        let steps = steps(shape).min(u32::MAX.into()) as u32;
        let chunk = self.chunk.max(1);
        let (summed, chunks) = match VECTORS[self.compiled(shape)] {
            ..NVFP4_PACKED_LONG_SUMS => (chunk.min(steps), steps.div_ceil(chunk)),
            _ => (steps, 1),
        };
        let parts = Self { chunk, ..*self }.most_parts(shape);
        summed
            .saturating_mul(8 * scaled_matrix_roundings(activation))
            .saturating_add(chunks)
            .saturating_add(parts)
            .saturating_add(ALPHAS)
    }

    fn plan(&self, call: &Call, job: &Job<'_>) -> Plan {
        let shape = &call.shape;
        let (k, l) = (shape.k() as u32, shape.l() as u32);
        let steps = steps(shape) as u32;
        let (deal, ctas) = self.deal(job);
        // No group is divided if each share is whole groups.
        let whole = deal.chunks == 1 || deal.more == 0 && deal.each.is_multiple_of(deal.chunks);
        let activation = at_activation(job.operands.activation);
        let mut plan = Plan::new();
        for pass in call.passes(self.vectors as usize) {
            let compiled = at(pass.n as u64);
            let vectors = VECTORS[compiled];
            let columns = vectors / NVFP4_MANY_COLUMNS;
            let layout = self.layout(vectors);
            let scale_layout = call.weight_scale_steps();
            let packed = call.workspace.address;
            let packed_batch_bytes = packed_batch_bytes(vectors, shape) as i64;
            let partial = packed + partial_at(vectors, shape);
            let warps = self.tiles * NVFP4_PACKED_TILE_WARPS;
            plan.push(Launch {
                entry: PACK[activation][compiled],
                grid: [
                    (l * steps * columns).div_ceil(NVFP4_PACKED_PACK_WARPS),
                    1,
                    1,
                ],
                threads: NVFP4_PACKED_PACK_WARPS * NVFP4_WARP,
                dependent: job.dependent(),
                auxiliary: true,
                parameters: Parameters::of(&nvfp4_pack_params {
                    n: pass.n,
                    k,
                    steps,
                    l,
                    vectors: pass.vectors,
                    vector_row_bytes: pass.vector_row_bytes,
                    vector_batch_bytes: pass.vector_batch_bytes,
                    vector_scales: pass.vector_scales,
                    vector_scale_layout: pass.vector_scale_steps,
                    vector_scale_batch_bytes: pass.vector_scale_batch_bytes,
                    packed,
                    packed_batch_bytes,
                }),
                ..Launch::default()
            });
            plan.push(Launch {
                entry: MULTIPLY[activation][compiled],
                grid: [ctas, 1, 1],
                threads: warps * NVFP4_WARP,
                dynamic_shared: layout.bytes as u32,
                // It may start at once: it reads weights, which were there before this call.
                dependent: true,
                parameters: Parameters::of(&nvfp4_packed_params {
                    m: shape.m() as i32,
                    n: pass.n,
                    k,
                    steps,
                    l,
                    tiles: self.tiles,
                    chunk: self.chunk,
                    deal,
                    x_at: layout.x_at as u32,
                    codes: call.weights.codes,
                    scales: call.weights.scales,
                    scale_layout,
                    code_row_bytes: shape.row_code_bytes() as i64,
                    scale_batch_bytes: call.weights.layout.bytes(shape.m(), shape.blocks()) as i64,
                    packed,
                    packed_batch_bytes,
                    partial,
                    epilogue: pass.epilogue,
                }),
                ..Launch::default()
            });
            if whole {
                continue;
            }
            plan.push(Launch {
                entry: "gemv_packed_add",
                grid: [ctas - 1, warps, 1],
                threads: (pass.n as u32).div_ceil(NVFP4_MANY_COLUMNS) * NVFP4_WARP,
                dependent: true,
                auxiliary: true,
                parameters: Parameters::of(&nvfp4_packed_add_params {
                    m: shape.m() as i32,
                    n: pass.n,
                    l,
                    tiles: self.tiles,
                    deal,
                    scale_layout,
                    partial,
                    epilogue: pass.epilogue,
                }),
                ..Launch::default()
            });
        }
        plan
    }

    fn workspace_bytes(&self, job: &Job<'_>) -> u64 {
        workspace_bytes(job)
    }

    fn bytes_in_flight(&self, _: &Job<'_>) -> u64 {
        // A stage is computed while the others fill.
        let warps = u64::from(self.tiles).saturating_mul(NVFP4_PACKED_TILE_WARPS.into());
        warps.saturating_mul(u64::from((NVFP4_MANY_STAGES - 1) * NVFP4_MANY_STAGE_BYTES))
    }

    fn main_loop(&self, job: &Job<'_>) -> MainLoop {
        MainLoop {
            // Four lanes share a row of a step, and a lane has two rows.
            lane_weights: 2 * STEP as u32 / 4,
            vectors: VECTORS[self.compiled(job.shape)],
            products: Products::WarpgroupMatrix,
            tensor_columns: 0,
        }
    }
}
