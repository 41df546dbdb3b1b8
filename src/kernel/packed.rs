//! The kernel for up to 128 vectors that a launch before packs into a workspace; multiplied on Hopper's `wgmma`:
//! `csrc/kernels/gemv_packed.cuh`.

use super::many_vectors::{self, Division, Kind, Staging};
use super::params::{
    NVFP4_MANY_COLUMNS, NVFP4_PACKED_BARRIER_BYTES, NVFP4_PACKED_BUFFERS, NVFP4_PACKED_LONG_SUMS,
    NVFP4_PACKED_MAX_GROUPS, NVFP4_PACKED_PACK_WARPS, NVFP4_PACKED_TILE_WARPS,
};
use super::plan::Plan;
use super::stream::scaled_matrix_roundings;
use super::{ALPHAS, Call, Job, KernelConfig, MainLoop, Products};
use crate::refusal::Refusal;
use crate::shape::Shape;
use crate::types::Activation;

/// The config of the packed kernel. A tile is 64 rows and has four warps, a warpgroup, and a step 128 elements of K of a
/// tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "tune",
    derive(serde::Serialize, serde::Deserialize),
    serde(deny_unknown_fields)
)]
pub struct PackedConfig {
    /// Tiles of a CTA.
    pub tiles: u32,
    /// Warpgroups that share a tile's K: 1, 2 or 4. A CTA has `tiles * parts` warpgroups: up to 4.
    pub parts: u32,
    /// Steps whose vectors a buffer in shared memory holds: a multiple of `parts`.
    pub chunk: u32,
    /// CTAs of a cluster, which share the K of their rows: 1, 2, 4 or 8.
    pub cluster: u32,
    /// Vectors of a pass over the weights, at most: 8, 16, 32, 64 or 128.
    pub vectors: u32,
}

const MOST_WARPS: u32 = NVFP4_PACKED_TILE_WARPS * NVFP4_PACKED_MAX_GROUPS;

const KIND: &Kind = &Kind {
    unit: "gemv_packed",
    tile_warps: NVFP4_PACKED_TILE_WARPS,
    products: Products::WarpgroupMatrix,
    vectors: &[8, 16, 32, 64, 128],
    takes_vectors: "8, 16, 32, 64 or 128",
    most_warps: &[MOST_WARPS; 5],
    buffers: NVFP4_PACKED_BUFFERS,
    barriers: NVFP4_PACKED_BARRIER_BYTES,
    staging: Staging::Packed {
        entries: [
            &[
                "gemv_packed_pack_nvfp4_n8",
                "gemv_packed_pack_nvfp4_n16",
                "gemv_packed_pack_nvfp4_n32",
                "gemv_packed_pack_nvfp4_n64",
                "gemv_packed_pack_nvfp4_n128",
            ],
            &[
                "gemv_packed_pack_f16_n8",
                "gemv_packed_pack_f16_n16",
                "gemv_packed_pack_f16_n32",
                "gemv_packed_pack_f16_n64",
                "gemv_packed_pack_f16_n128",
            ],
            &[
                "gemv_packed_pack_bf16_n8",
                "gemv_packed_pack_bf16_n16",
                "gemv_packed_pack_bf16_n32",
                "gemv_packed_pack_bf16_n64",
                "gemv_packed_pack_bf16_n128",
            ],
        ],
        pieces: NVFP4_PACKED_PACK_WARPS,
    },
    takes_tiles: "1 or more: tiles * parts is up to 4",
    entries: [F16, F16, BF16],
};

/// The most vectors of entry points whose sums of chunks threads add up: the next one has [`NVFP4_PACKED_LONG_SUMS`].
const SHORT_SUMS: u32 = NVFP4_PACKED_LONG_SUMS / 2;

/// NVFP4 vectors are packed as f16.
const F16: &[&str] = &[
    "gemv_packed_f16_n8",
    "gemv_packed_f16_n16",
    "gemv_packed_f16_n32",
    "gemv_packed_f16_n64",
    "gemv_packed_f16_n128",
];
const BF16: &[&str] = &[
    "gemv_packed_bf16_n8",
    "gemv_packed_bf16_n16",
    "gemv_packed_bf16_n32",
    "gemv_packed_bf16_n64",
    "gemv_packed_bf16_n128",
];

impl From<PackedConfig> for Division {
    fn from(config: PackedConfig) -> Self {
        Self {
            tiles: config.tiles,
            parts: config.parts,
            chunk: config.chunk,
            cluster: config.cluster,
            vectors: config.vectors,
        }
    }
}

impl From<Division> for PackedConfig {
    fn from(division: Division) -> Self {
        Self {
            tiles: division.tiles,
            parts: division.parts,
            chunk: division.chunk,
            cluster: division.cluster,
            vectors: division.vectors,
        }
    }
}

impl KernelConfig for PackedConfig {
    const MOST_VECTORS: u32 = KIND.most_vectors();

    fn pass_vectors(&self) -> u32 {
        Division::from(*self).pass_vectors(KIND)
    }

    fn available(job: &Job<'_>) -> Result<(), Refusal> {
        job.needs((9, 0), "9.0")?;
        if job.gpu.compute_capability.0 != 9 {
            return Err(Refusal::ComputeCapability {
                found: job.gpu.compute_capability,
                needed: "9.0",
            });
        }
        job.image(KIND.unit)?;
        many_vectors::available(job)?;
        // Pieces of all batches are counted in 31 bits.
        let pieces = many_vectors::steps(job.shape)
            .saturating_mul(job.shape.l() as u64)
            .saturating_mul(u64::from(Self::MOST_VECTORS / NVFP4_MANY_COLUMNS));
        if pieces > i32::MAX as u64 {
            return Err(Refusal::Vectors);
        }
        // As much for all configs: passes of fewer vectors would need less, but read the weights more often than other
        // kernels do.
        let (needed, given) = (KIND.packed_bytes(job), job.operands.workspace);
        match needed <= given {
            true => Ok(()),
            false => Err(Refusal::Workspace { needed, given }),
        }
    }

    fn default_for(job: &Job<'_>) -> Result<Self, Refusal> {
        Division::default_for(KIND, job).map(Self::from)
    }

    fn candidates(job: &Job<'_>) -> Vec<Self> {
        let candidates = Division::candidates(KIND, job);
        candidates.into_iter().map(Self::from).collect()
    }

    fn check(&self, job: &Job<'_>) -> Result<(), Refusal> {
        Division::from(*self).check(KIND, job)
    }

    /// A term passes through the eight matrix instructions of each step that are added to one another, each of which
    /// counts for [`scaled_matrix_roundings`], and the additions that follow. With many vectors these are all steps that
    /// a warpgroup has of a tile, and else those of a chunk. The factor that ends a sum is a power of two, and exact.
    fn roundings(&self, shape: &Shape, activation: Activation) -> u32 {
        let division = Division::from(*self);
        let long = shape.n().min(division.pass_vectors(KIND) as usize) > SHORT_SUMS as usize;
        let chunks = match long {
            true => many_vectors::steps(shape)
                .div_ceil(self.chunk.max(1).into())
                .div_ceil(self.cluster.max(1).into()) as u32,
            false => 1,
        };
        let steps = (self.chunk / self.parts.max(1))
            .saturating_mul(chunks)
            .min(many_vectors::steps(shape) as u32);
        let matrix = 8 * scaled_matrix_roundings(activation);
        steps
            .saturating_mul(matrix)
            .saturating_add(division.additions(shape) + ALPHAS)
    }

    fn plan(&self, call: &Call, job: &Job<'_>) -> Plan {
        Division::from(*self).plan(KIND, call, job)
    }

    fn workspace_bytes(&self, job: &Job<'_>) -> u64 {
        KIND.packed_bytes(job)
    }

    fn bytes_in_flight(&self, _: &Job<'_>) -> u64 {
        Division::from(*self).bytes_in_flight(KIND)
    }

    fn main_loop(&self, job: &Job<'_>) -> MainLoop {
        Division::from(*self).main_loop(KIND, job)
    }
}
