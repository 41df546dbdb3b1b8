//! The kernel that decodes each weight once for up to 128 vectors, and multiplies on `mma.sync`:
//! `csrc/kernels/gemv_mma.cuh`.

use super::many_vectors::{self, Division, Kind, Ragged, Timing, divided};
use super::params::{
    NVFP4_MANY_COLUMNS, NVFP4_MMA_BUFFERS, NVFP4_MMA_HELD_OF_128, NVFP4_MMA_MAX_WARPS,
    NVFP4_MMA_MAX_WARPS_OF_64, NVFP4_MMA_MAX_WARPS_OF_128,
};
use super::plan::Plan;
use super::{Call, Cost, Job, KernelConfig, MainLoop, Products};
use crate::operands::Operands;
use crate::refusal::Refusal;
use crate::shape::Shape;
use crate::types::Activation;

/// The config of the mma kernel. A tile is 16 rows, and a step 128 elements of K of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MmaConfig {
    /// Tiles of a CTA.
    pub tiles: u32,
    /// Warps that share a tile's K: 1, 2, 4 or 8. A CTA has `tiles * parts` warps: up to 16, or to 12 with more than 32
    /// vectors in a pass, or to 8 with more than 64.
    pub parts: u32,
    /// Steps whose vectors a buffer in shared memory holds: a multiple of `parts`.
    pub chunk: u32,
    /// CTAs of a cluster, which share the K of their rows: 1, 2, 4 or 8; 1 before compute capability 9.0.
    pub cluster: u32,
    /// Vectors of a pass over the weights, at most: 8, 16, 32, 64 or 128.
    pub vectors: u32,
}

impl MmaConfig {
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
    unit: "gemv_mma",
    runs_on: |job| job.needs((8, 0), "8.0 or newer"),
    // Each step is summed by itself.
    summed_steps: |_| 1,
    tile_warps: 1,
    default_reaches: [0.73, 0.88],
    products: Products::WarpMatrix { vectors: 8 },
    vectors: &[8, 16, 32, 64, 128],
    takes_vectors: "8, 16, 32, 64 or 128",
    most_warps: &[
        NVFP4_MMA_MAX_WARPS,
        NVFP4_MMA_MAX_WARPS,
        NVFP4_MMA_MAX_WARPS,
        NVFP4_MMA_MAX_WARPS_OF_64,
        NVFP4_MMA_MAX_WARPS_OF_128,
    ],
    held: |vectors| match vectors {
        128 => NVFP4_MMA_HELD_OF_128,
        _ => many_vectors::held(vectors),
    },
    takes_chunk: "less: warps hold a chunk's vectors in registers, a step of eight of them each, or two with more than 32, three with more than 64",
    buffers: NVFP4_MMA_BUFFERS,
    barriers: 0,
    takes_tiles: "1 or more: tiles * parts is up to 16, or to 12 with more than 32 vectors in a pass, or to 8 with more than 64",
    entries: [
        &[
            "gemv_mma_nvfp4_n8",
            "gemv_mma_nvfp4_n16",
            "gemv_mma_nvfp4_n32",
            "gemv_mma_nvfp4_n64",
            "gemv_mma_nvfp4_n128",
        ],
        &[
            "gemv_mma_f16_n8",
            "gemv_mma_f16_n16",
            "gemv_mma_f16_n32",
            "gemv_mma_f16_n64",
            "gemv_mma_f16_n128",
        ],
        &[
            "gemv_mma_bf16_n8",
            "gemv_mma_bf16_n16",
            "gemv_mma_bf16_n32",
            "gemv_mma_bf16_n64",
            "gemv_mma_bf16_n128",
        ],
    ],
    // Fitted to times on an H200, as multiples of the time of `stream` with one f16 vector (docs/notes/many-vectors.md,
    // "mma: 128 vectors"). The multiples are 1.7 to 1.9 for 16 vectors, 2.5 to 2.8 for 32, 4.5 to 5.3 for 64 and 7.9 to
    // 9.3 for 128. Matrix instructions of the kernel have eight columns, whether there are vectors for all or not.
    cost: Cost::Linear {
        first_vector: 1.32,
        further_vector: 0.056,
        columns: NVFP4_MANY_COLUMNS,
    },
    default: Division::least_time,
    timing: Timing {
        launch: 0.5,
        ahead: 0.6,
        wave: 2.9,
        step: [0.56, 0.37],
        chunk: 0.53,
        cluster: 1.7,
        end: 0.1,
    },
    ragged: Some(Ragged {
        unit: "gemv_mma_ragged",
        vectors: &[16, 32, 64, 128],
        entries: [
            &[
                "gemv_mma_ragged_nvfp4_n16",
                "gemv_mma_ragged_nvfp4_n32",
                "gemv_mma_ragged_nvfp4_n64",
                "gemv_mma_ragged_nvfp4_n128",
            ],
            &[
                "gemv_mma_ragged_f16_n16",
                "gemv_mma_ragged_f16_n32",
                "gemv_mma_ragged_f16_n64",
                "gemv_mma_ragged_f16_n128",
            ],
            &[
                "gemv_mma_ragged_bf16_n16",
                "gemv_mma_ragged_bf16_n32",
                "gemv_mma_ragged_bf16_n64",
                "gemv_mma_ragged_bf16_n128",
            ],
        ],
    }),
};

divided!(MmaConfig);
