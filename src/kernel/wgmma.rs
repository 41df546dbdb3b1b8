//! The kernel that decodes each weight once for up to 128 vectors, and multiplies on Hopper's `wgmma`:
//! `csrc/kernels/gemv_wgmma.cuh`.

use super::many_vectors::{self, Division, Kind, Staging};
use super::params::{
    NVFP4_WGMMA_BARRIER_BYTES, NVFP4_WGMMA_BUFFERS, NVFP4_WGMMA_MAX_GROUPS,
    NVFP4_WGMMA_MAX_GROUPS_OF_64, NVFP4_WGMMA_MAX_GROUPS_OF_128, NVFP4_WGMMA_TILE_WARPS,
};
use super::plan::Plan;
use super::stream::scaled_matrix_roundings;
use super::{ALPHAS, Call, Job, KernelConfig, MainLoop, Products};
use crate::refusal::Refusal;
use crate::shape::Shape;
use crate::types::Activation;

/// The config of the wgmma kernel. A tile is 64 rows and has four warps, a warpgroup, and a step 128 elements of K of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "tune",
    derive(serde::Serialize, serde::Deserialize),
    serde(deny_unknown_fields)
)]
pub struct WgmmaConfig {
    /// Tiles of a CTA.
    pub tiles: u32,
    /// Warpgroups that share a tile's K: 1, 2 or 4. A CTA has `tiles * parts` warpgroups: up to 4, or to 3 with more than
    /// 32 vectors in a pass, or to 2 with more than 64.
    pub parts: u32,
    /// Steps whose vectors a buffer in shared memory holds: a multiple of `parts`.
    pub chunk: u32,
    /// CTAs of a cluster, which share the K of their rows: 1, 2, 4 or 8; 1 before compute capability 9.0.
    pub cluster: u32,
    /// Vectors of a pass over the weights, at most: 8, 16, 32, 64 or 128.
    pub vectors: u32,
}

const KIND: &Kind = &Kind {
    unit: "gemv_wgmma",
    tile_warps: NVFP4_WGMMA_TILE_WARPS,
    products: Products::WarpgroupMatrix,
    vectors: &[8, 16, 32, 64, 128],
    takes_vectors: "8, 16, 32, 64 or 128",
    most_warps: &[
        NVFP4_WGMMA_TILE_WARPS * NVFP4_WGMMA_MAX_GROUPS,
        NVFP4_WGMMA_TILE_WARPS * NVFP4_WGMMA_MAX_GROUPS,
        NVFP4_WGMMA_TILE_WARPS * NVFP4_WGMMA_MAX_GROUPS,
        NVFP4_WGMMA_TILE_WARPS * NVFP4_WGMMA_MAX_GROUPS_OF_64,
        NVFP4_WGMMA_TILE_WARPS * NVFP4_WGMMA_MAX_GROUPS_OF_128,
    ],
    buffers: NVFP4_WGMMA_BUFFERS,
    barriers: NVFP4_WGMMA_BARRIER_BYTES,
    staging: Staging::Registers,
    takes_tiles: "1 or more: tiles * parts is up to 4, or to 3 with more than 32 vectors in a pass, or to 2 with more than 64",
    entries: [
        &[
            "gemv_wgmma_nvfp4_n8",
            "gemv_wgmma_nvfp4_n16",
            "gemv_wgmma_nvfp4_n32",
            "gemv_wgmma_nvfp4_n64",
            "gemv_wgmma_nvfp4_n128",
        ],
        &[
            "gemv_wgmma_f16_n8",
            "gemv_wgmma_f16_n16",
            "gemv_wgmma_f16_n32",
            "gemv_wgmma_f16_n64",
            "gemv_wgmma_f16_n128",
        ],
        &[
            "gemv_wgmma_bf16_n8",
            "gemv_wgmma_bf16_n16",
            "gemv_wgmma_bf16_n32",
            "gemv_wgmma_bf16_n64",
            "gemv_wgmma_bf16_n128",
        ],
    ],
};

impl From<WgmmaConfig> for Division {
    fn from(config: WgmmaConfig) -> Self {
        Self {
            tiles: config.tiles,
            parts: config.parts,
            chunk: config.chunk,
            cluster: config.cluster,
            vectors: config.vectors,
        }
    }
}

impl From<Division> for WgmmaConfig {
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

impl KernelConfig for WgmmaConfig {
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
        many_vectors::available(job)
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

    /// A term passes through the eight matrix instructions of each step of a warpgroup's chunk, each of which counts for
    /// [`scaled_matrix_roundings`], and the additions that follow. The factor that ends a sum is a power of two, and
    /// exact.
    fn roundings(&self, shape: &Shape, activation: Activation) -> u32 {
        let additions = Division::from(*self).additions(shape);
        let steps = (self.chunk / self.parts.max(1)).min(many_vectors::steps(shape) as u32);
        let matrix = 8 * scaled_matrix_roundings(activation);
        steps
            .saturating_mul(matrix)
            .saturating_add(additions + ALPHAS)
    }

    fn plan(&self, call: &Call, job: &Job<'_>) -> Plan {
        Division::from(*self).plan(KIND, call, job)
    }

    fn bytes_in_flight(&self, _: &Job<'_>) -> u64 {
        Division::from(*self).bytes_in_flight(KIND)
    }

    fn main_loop(&self, job: &Job<'_>) -> MainLoop {
        Division::from(*self).main_loop(KIND, job)
    }
}
