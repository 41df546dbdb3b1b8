//! The kernel that decodes each weight once for up to 128 vectors, and multiplies on Hopper's `wgmma`:
//! `csrc/kernels/gemv_wgmma.cuh`.

use super::many_vectors::{self, Division, Kind, Timing, divided, has_wgmma};
use super::params::{
    NVFP4_MANY_COLUMNS, NVFP4_WGMMA_BARRIER_BYTES, NVFP4_WGMMA_BUFFERS, NVFP4_WGMMA_MAX_GROUPS,
    NVFP4_WGMMA_MAX_GROUPS_OF_64, NVFP4_WGMMA_MAX_GROUPS_OF_128, NVFP4_WGMMA_TILE_WARPS,
};
use super::plan::Plan;
use super::{Call, Cost, Job, KernelConfig, MainLoop, Products};
use crate::operands::Operands;
use crate::refusal::Refusal;
use crate::shape::Shape;
use crate::types::Activation;

/// The config of the wgmma kernel. A tile is 64 rows and has four warps, a warpgroup. A step is 128 elements of K of a
/// tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WgmmaConfig {
    /// Tiles of a CTA.
    pub tiles: u32,
    /// Warpgroups that share a tile's K: 1, 2 or 4. A CTA has `tiles * parts` warpgroups: up to 4, or to 3 with more
    /// than 32 vectors in a pass, or to 2 with more than 64.
    pub parts: u32,
    /// Steps whose vectors a buffer in shared memory holds: a multiple of `parts`.
    pub chunk: u32,
    /// CTAs of a cluster, which share the K of their rows: 1, 2, 4 or 8; 1 before compute capability 9.0.
    pub cluster: u32,
    /// Vectors of a pass over the weights, at most: 8, 16, 32, 64 or 128.
    pub vectors: u32,
}

impl WgmmaConfig {
    /// A legal and plain config that literals start from; not a good choice.
    pub const DEFAULT: Self = Self {
        tiles: 1,
        parts: 1,
        chunk: 1,
        cluster: 1,
        vectors: 8,
    };
}

const KIND: &Kind = &Kind {
    unit: "gemv_wgmma",
    runs_on: has_wgmma,
    // The steps of a chunk are summed together.
    summed_steps: Division::chunk_steps,
    tile_warps: NVFP4_WGMMA_TILE_WARPS,
    default_reaches: [0.85, 0.82],
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
    held: many_vectors::held,
    takes_chunk: "less: warps hold a chunk's vectors in registers, a step of eight of them each, or two with more than 32",
    buffers: NVFP4_WGMMA_BUFFERS,
    barriers: NVFP4_WGMMA_BARRIER_BYTES,
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
    // Fitted to times of 16 to 128 vectors on an H200: docs/notes/many-vectors.md.
    cost: Cost::Linear {
        first_vector: 1.4,
        further_vector: 0.03,
        columns: NVFP4_MANY_COLUMNS,
    },
    default: Division::most_warps,
    timing: Timing {
        launch: 0.5,
        ahead: 1.0,
        wave: 3.1,
        step: [0.55, 0.19],
        chunk: 0.55,
        cluster: 2.5,
        end: 0.54,
    },
    ragged: None,
};

divided!(WgmmaConfig);
