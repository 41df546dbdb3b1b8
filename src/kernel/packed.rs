//! The kernel for up to 128 vectors that a launch before packs into a workspace; multiplied on Hopper's `wgmma`:
//! `csrc/kernels/gemv_packed.cuh`.

use super::many_vectors::{Division, Kind, Staging, divided, has_wgmma};
use super::params::{
    NVFP4_PACKED_BARRIER_BYTES, NVFP4_PACKED_BUFFERS, NVFP4_PACKED_LONG_SUMS,
    NVFP4_PACKED_MAX_GROUPS, NVFP4_PACKED_PACK_WARPS, NVFP4_PACKED_TILE_WARPS,
};
use super::plan::Plan;
use super::{Call, Job, KernelConfig, MainLoop, Products};
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
    runs_on: has_wgmma,
    summed_steps,
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

/// Those of a chunk; with many vectors all that a warpgroup has of a tile.
fn summed_steps(division: &Division, shape: &Shape) -> u32 {
    match division.compiled_vectors(KIND, shape) < NVFP4_PACKED_LONG_SUMS {
        true => division.chunk_steps(),
        false => division.part_steps(shape),
    }
}

divided!(PackedConfig);
