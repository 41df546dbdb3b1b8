//! The kernel that decodes each weight once for up to 128 vectors, and multiplies on `mma.sync`:
//! `csrc/kernels/gemv_mma.cuh`.

use super::params::{
    NVFP4_ATOM_ROWS, NVFP4_BLOCK, NVFP4_MMA_MAX_WARPS, NVFP4_MMA_MAX_WARPS_OF_128,
    NVFP4_MMA_STAGE_BYTES, NVFP4_MMA_STEP_BLOCKS, NVFP4_MMA_SUMS_PAD, NVFP4_MMA_TILE_ROWS,
    NVFP4_MMA_VECTOR_STEP_BYTES, NVFP4_WARP, nvfp4_mma_params,
};
use super::plan::{KernelParameters, Launch, Parameters, Plan};
use super::stream::scaled_matrix_roundings;
use super::{ALPHAS, Call, Job, KernelConfig, MainLoop, Products, distinct, field, shared_memory};
use crate::refusal::Refusal;
use crate::shape::Shape;
use crate::types::Activation;

/// The config of the mma kernel. A group of rows is up to 16 tiles of 16 rows; a step is 128 elements of K of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "tune",
    derive(serde::Serialize, serde::Deserialize),
    serde(deny_unknown_fields)
)]
pub struct MmaConfig {
    /// Tiles of a CTA: 1 to 16.
    pub tiles: u32,
    /// Warps that share a tile's K: 1, 2, 4 or 8. A CTA has `tiles * parts` warps: up to 16, or to 12 with more than 64
    /// vectors in a pass.
    pub parts: u32,
    /// Steps whose vectors a buffer in shared memory holds: a multiple of `parts`.
    pub chunk: u32,
    /// Steps that a warp's queue holds: 3, 4, 6 or 8.
    pub stages: u32,
    /// CTAs of a cluster, which share the K of a group of rows: 1, 2, 4 or 8; 1 before compute capability 9.0.
    pub cluster: u32,
    /// Vectors of a pass over the weights, at most: 8, 16, 32, 64 or 128.
    pub vectors: u32,
}

const UNIT: &str = "gemv_mma";
/// Elements of K of a step.
const STEP: usize = (NVFP4_MMA_STEP_BLOCKS * NVFP4_BLOCK) as usize;
/// Numbers of stages that the kernel knows how to wait for.
const STAGES: [u32; 4] = [3, 4, 6, 8];
/// Numbers of vectors that it is compiled for.
const VECTORS: [u32; 5] = [8, 16, 32, 64, 128];
/// Warps that may share a tile, and CTAs of a cluster.
const POWERS: [u32; 4] = [1, 2, 4, 8];

impl KernelConfig for MmaConfig {
    fn available(job: &Job<'_>) -> Result<(), Refusal> {
        job.needs((8, 0), "8.0 or newer")?;
        job.image(UNIT)?;
        if job.operands.activation == Activation::F32 {
            return Err(Refusal::Activation {
                found: Activation::F32,
                takes: "NVFP4, f16 and bf16",
            });
        }
        job.row_length(64, "a multiple of 64")?;
        // Copies of 16 bytes of codes and 4 of scales; vectors have the alignment that they need.
        let alignment = &job.operands.alignment;
        if alignment.codes < 16 || alignment.scales < 4 {
            return Err(Refusal::Alignment { needed: 16 });
        }
        // The kernel counts places in 32 bits, and a grid CTAs in 31.
        let tiles = places(job)
            .div_ceil(TILE_ROWS)
            .saturating_mul(job.shape.l() as u64);
        match tiles < 1 << 27 {
            true => Ok(()),
            false => Err(Refusal::Rows),
        }
    }

    fn default_for(job: &Job<'_>) -> Result<Self, Refusal> {
        let best = Self::ranked(job).into_iter().next();
        best.ok_or(Refusal::VectorMemory)
    }

    fn candidates(job: &Job<'_>) -> Vec<Self> {
        let ranked = Self::ranked(job);
        let Some(&default) = ranked.first() else {
            return Vec::new();
        };
        let mut configs: Vec<Self> = ranked.into_iter().take(8).collect();
        for config in configs.clone() {
            configs.extend(STAGES.map(|stages| Self { stages, ..config }));
            configs.extend(POWERS.map(|parts| Self {
                parts,
                chunk: config.chunk.next_multiple_of(parts),
                ..config
            }));
            configs.extend([1, 2, 4].map(|times| Self {
                chunk: config.parts * times,
                ..config
            }));
        }
        configs.extend(VECTORS.map(|vectors| Self { vectors, ..default }));
        distinct(configs, |config| config.check(job).is_ok())
    }

    fn check(&self, job: &Job<'_>) -> Result<(), Refusal> {
        let Self {
            tiles,
            parts,
            chunk,
            stages,
            cluster,
            vectors,
        } = *self;
        field(
            "vectors",
            vectors,
            "8, 16, 32, 64 or 128",
            VECTORS.contains(&vectors),
        )?;
        field(
            "tiles",
            tiles,
            "1 to 16",
            (1..=NVFP4_MMA_MAX_WARPS).contains(&tiles),
        )?;
        field("parts", parts, "1, 2, 4 or 8", POWERS.contains(&parts))?;
        let most = most_warps(self.compiled(job.shape));
        field(
            "parts",
            parts,
            "fewer: a CTA has up to 16 warps, or 12 with more than 64 vectors in a pass",
            tiles * parts <= most,
        )?;
        field("stages", stages, "3, 4, 6 or 8", STAGES.contains(&stages))?;
        field(
            "chunk",
            chunk,
            "a multiple of parts",
            chunk != 0 && chunk.is_multiple_of(parts),
        )?;
        let clusters = job.gpu.compute_capability >= (9, 0);
        field(
            "cluster",
            cluster,
            "1, 2, 4 or 8, and 1 before compute capability 9.0",
            POWERS.contains(&cluster) && (cluster == 1 || clusters),
        )?;
        shared_memory(self.layout(self.compiled(job.shape)).bytes, job.gpu)
    }

    /// A term passes through the eight matrix instructions of a step, each of which counts for
    /// [`scaled_matrix_roundings`]. Then come the additions of a warp's steps, and those of the warps and CTAs that
    /// share a tile. The factor that ends a sum is a power of two, and exact.
    fn roundings(&self, shape: &Shape, activation: Activation) -> u32 {
        let shared = self.parts.min(8) * self.cluster.min(8);
        8 * scaled_matrix_roundings(activation) + steps(shape) as u32 + shared + ALPHAS
    }

    fn plan(&self, call: &Call, job: &Job<'_>) -> Plan {
        let shape = &call.shape;
        let scale_layout = call.weight_scale_steps();
        let steps = steps(shape) as u32;
        let chunks = steps.div_ceil(self.chunk);
        let groups = self.groups(job) as u32;
        let mut plan = Plan::new();
        for pass in call.passes(self.vectors as usize) {
            let compiled = compiled_for(pass.n as u32);
            let layout = self.layout(compiled);
            let parameters = nvfp4_mma_params {
                m: shape.m() as i32,
                n: pass.n,
                k: shape.k() as u32,
                steps,
                l: shape.l() as u32,
                groups,
                tiles: self.tiles,
                parts_log2: self.parts.ilog2(),
                stages: self.stages,
                each: self.chunk / self.parts,
                cluster_log2: self.cluster.ilog2(),
                chunks_each: chunks / self.cluster,
                chunks_left: chunks % self.cluster,
                x_at: layout.x_at as u32,
                codes: call.weights.codes,
                scales: call.weights.scales,
                scale_layout,
                code_row_bytes: shape.row_code_bytes() as i64,
                scale_batch_bytes: call.weights.layout.bytes(shape.m(), shape.blocks()) as i64,
                vectors: pass.vectors,
                vector_row_bytes: pass.vector_row_bytes,
                vector_batch_bytes: pass.vector_batch_bytes,
                vector_scales: pass.vector_scales,
                vector_scale_layout: pass.vector_scale_steps,
                vector_scale_batch_bytes: pass.vector_scale_batch_bytes,
                epilogue: pass.epilogue,
            };
            plan.push(Launch {
                entry: entry(job.operands.activation, compiled),
                grid: [groups * shape.l() as u32 * self.cluster, 1, 1],
                threads: self.warps() * NVFP4_WARP,
                cluster: if self.cluster == 1 { 0 } else { self.cluster },
                dynamic_shared: layout.bytes as u32,
                dependent: job.dependent(),
                parameters: Parameters::of(&parameters),
                ..Launch::default()
            });
        }
        plan
    }

    fn bytes_in_flight(&self, _: &Job<'_>) -> u64 {
        // A stage is computed while the others fill.
        u64::from(self.tiles)
            .saturating_mul(self.parts.into())
            .saturating_mul(u64::from(self.stages.saturating_sub(1)))
            .saturating_mul(NVFP4_MMA_STAGE_BYTES.into())
    }

    fn main_loop(&self, job: &Job<'_>) -> MainLoop {
        MainLoop {
            // Four lanes share a row of a step, and a lane has two rows.
            lane_weights: 2 * STEP as u32 / 4,
            vectors: self.compiled(job.shape),
            products: Products::WarpMatrix { vectors: 8 },
            tensor_columns: 0,
        }
    }
}

// SAFETY: bindgen makes padding fields of this structure's padding.
unsafe impl KernelParameters for nvfp4_mma_params {}

const TILE_ROWS: u64 = NVFP4_MMA_TILE_ROWS as u64;

/// The entry point for such vectors, compiled for so many of them.
fn entry(activation: Activation, vectors: u32) -> &'static str {
    let entries = match activation {
        Activation::Nvfp4 => [
            "gemv_mma_nvfp4_n8",
            "gemv_mma_nvfp4_n16",
            "gemv_mma_nvfp4_n32",
            "gemv_mma_nvfp4_n64",
            "gemv_mma_nvfp4_n128",
        ],
        Activation::F16 => [
            "gemv_mma_f16_n8",
            "gemv_mma_f16_n16",
            "gemv_mma_f16_n32",
            "gemv_mma_f16_n64",
            "gemv_mma_f16_n128",
        ],
        _ => [
            "gemv_mma_bf16_n8",
            "gemv_mma_bf16_n16",
            "gemv_mma_bf16_n32",
            "gemv_mma_bf16_n64",
            "gemv_mma_bf16_n128",
        ],
    };
    let at = VECTORS.iter().position(|&most| vectors <= most);
    entries[at.unwrap_or(VECTORS.len() - 1)]
}

/// The number of vectors that the kernel of a pass of `n` is compiled for.
fn compiled_for(n: u32) -> u32 {
    let [.., most] = VECTORS;
    VECTORS
        .into_iter()
        .find(|&compiled| n <= compiled)
        .unwrap_or(most)
}

fn most_warps(compiled: u32) -> u32 {
    match compiled {
        ..=64 => NVFP4_MMA_MAX_WARPS,
        _ => NVFP4_MMA_MAX_WARPS_OF_128,
    }
}

/// Steps of a row: the last one may have 64 elements.
fn steps(shape: &Shape) -> u64 {
    shape.k().div_ceil(STEP) as u64
}

/// Places of a batch, which rows take in the order of their scales; the last ones may be empty.
fn places(job: &Job<'_>) -> u64 {
    let m = job.shape.m() as u64;
    match job.operands.tiled() {
        true => m.next_multiple_of(NVFP4_ATOM_ROWS.into()),
        false => m,
    }
}

/// A CTA's dynamic shared memory, in bytes from its start: the queues, then two buffers of vectors. After the last step
/// sums take their place.
struct Layout {
    x_at: u64,
    bytes: u64,
}

impl MmaConfig {
    /// Of a CTA.
    fn warps(&self) -> u32 {
        self.tiles * self.parts
    }

    /// The number of vectors that the kernel of the first pass, which has most, is compiled for.
    fn compiled(&self, shape: &Shape) -> u32 {
        compiled_for((shape.n() as u64).min(self.vectors.into()) as u32)
    }

    /// Groups of rows of a batch.
    fn groups(&self, job: &Job<'_>) -> u64 {
        places(job).div_ceil(TILE_ROWS * u64::from(self.tiles))
    }

    /// For a kernel that is compiled for so many vectors.
    fn layout(&self, compiled: u32) -> Layout {
        let [warps, stages, parts, chunk, vectors, rows] = [
            self.warps(),
            self.stages,
            self.parts,
            self.chunk,
            compiled,
            self.tiles * NVFP4_MMA_TILE_ROWS,
        ]
        .map(u64::from);
        // The order of a row's 16-byte units depends on the address.
        let x_at = (warps * stages * u64::from(NVFP4_MMA_STAGE_BYTES)).next_multiple_of(128);
        let buffers = 2 * chunk * vectors * u64::from(NVFP4_MMA_VECTOR_STEP_BYTES);
        let sums = parts * vectors * (rows + u64::from(NVFP4_MMA_SUMS_PAD)) * 4;
        Layout {
            x_at,
            bytes: (x_at + buffers).max(sums),
        }
    }

    /// Legal configs for one pass over the weights, those that are expected to be fastest first: one for each number of
    /// tiles and CTAs of a cluster.
    fn ranked(job: &Job<'_>) -> Vec<Self> {
        let mut ranked = Vec::new();
        let clusters: &[u32] = match job.gpu.compute_capability {
            (..9, _) => &[1],
            _ => &POWERS,
        };
        for tiles in 1..=NVFP4_MMA_MAX_WARPS {
            for &cluster in clusters {
                if let Some(config) = Self::of(job, tiles, cluster) {
                    ranked.push((config.cycles(job), config));
                }
            }
        }
        ranked.sort_by_key(|&(cycles, _)| cycles);
        ranked.into_iter().map(|(_, config)| config).collect()
    }

    /// With as many warps and bytes in flight as there is room for.
    fn of(job: &Job<'_>, tiles: u32, cluster: u32) -> Option<Self> {
        let [.., most] = VECTORS;
        let vectors = compiled_for(job.shape.n().min(most as usize) as u32);
        let steps = steps(job.shape).div_ceil(cluster.into());
        let parts = POWERS.into_iter().rev();
        let parts = parts.filter(|&parts| {
            parts == 1 || tiles * parts <= most_warps(vectors) && u64::from(parts) <= steps
        });
        let legal = |parts: u32, stages| {
            // A warp holds a piece of eight vectors in registers, or two with many vectors.
            let held = tiles * parts * if vectors > 32 { 2 } else { 1 };
            let chunk = (held * 8 / vectors).min(8) / parts * parts;
            let config = Self {
                tiles,
                parts,
                chunk: chunk.max(parts),
                stages,
                cluster,
                vectors,
            };
            config.check(job).is_ok().then_some(config)
        };
        let mut all = parts.flat_map(|parts| [6, 4, 3].map(|stages| (parts, stages)));
        all.find_map(|(parts, stages)| legal(parts, stages))
    }

    /// Cycles that the config is expected to take: counts of what an SM does in a step, not a measurement.
    fn cycles(&self, job: &Job<'_>) -> u64 {
        let sms = u64::from(job.gpu.multiprocessors.max(1));
        let ctas = self.groups(job) * job.shape.l() as u64 * u64::from(self.cluster);
        let steps = steps(job.shape).div_ceil(self.cluster.into());
        let (tiles, n) = (u64::from(self.tiles), u64::from(self.vectors));
        // Bytes of weights at the rate of memory; matrix instructions; all instructions on four schedulers.
        let memory = 64 * tiles;
        let matrix = 2 * n * tiles;
        let issue = (tiles * (170 + 3 * n / 2) + 8 * n) / 4;
        let step = memory.max(matrix).max(issue) + n;
        // To start, and to add the sums of a group.
        let ends = 3000 + n * tiles * if self.cluster > 1 { 4 } else { 2 };
        ctas.div_ceil(sms).saturating_mul(steps * step + ends)
    }
}
