//! The kernel that multiplies on CUDA cores what a pipeline of tensor copies brings: `csrc/kernels/gemv_tma.cuh`.
//!
//! It is not the fastest kernel in any problem measured on an H200, and is ranked with the others nevertheless.

use super::params::{
    NVFP4_TILE_STEP_ELEMENTS, NVFP4_TMA_GROUP_WARPS, NVFP4_TMA_GROUPS, NVFP4_TMA_STAGE_BYTES,
    NVFP4_TMA_THREADS, NVFP4_TMA_VECTORS, NVFP4_WARP,
};
use super::tile::{BARRIER_BYTES, ROWS, Tiled};
use super::{Job, MainLoop, Products, few};
use crate::refusal::Refusal;

/// The config of the tma kernel. A cluster of CTAs computes a tile of 128 rows; two groups of a CTA's warps
/// take its K steps of 256 elements in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "tune",
    derive(serde::Serialize, serde::Deserialize),
    serde(deny_unknown_fields)
)]
pub struct TmaConfig {
    /// K steps that a CTA has in flight: an even number, 2 to 12.
    pub stages: u32,
    /// CTAs of a cluster, which share a tile's K steps: 1 to 8, each with one step or more.
    pub cluster: u32,
}

impl Tiled for TmaConfig {
    const UNIT: &'static str = "gemv_tma";
    const THREADS: u32 = NVFP4_TMA_THREADS;
    const VECTORS: u32 = NVFP4_TMA_VECTORS;
    const SCALE_ROWS: u32 = NVFP4_TMA_VECTORS;
    const STAGE_BYTES: u32 = NVFP4_TMA_STAGE_BYTES;
    const GROUPS: u32 = NVFP4_TMA_GROUPS;
    const STAGES: &'static str = "2, 4, 6, 8, 10 or 12";

    super::tile::fields!();

    fn device(job: &Job<'_>) -> Result<(), Refusal> {
        match job.gpu.compute_capability {
            (9 | 10, _) => Ok(()),
            found => Err(Refusal::ComputeCapability {
                found,
                needed: "9.x or 10.x",
            }),
        }
    }

    /// `__launch_bounds__` of the kernels.
    fn two_fit(n: usize) -> bool {
        few(n)
    }

    fn entry(n: u32) -> &'static str {
        match n {
            1 => "gemv_tma_n1",
            2 => "gemv_tma_n2",
            3 | 4 => "gemv_tma_n4",
            _ => "gemv_tma_n8",
        }
    }

    fn static_shared(n: u32) -> u32 {
        BARRIER_BYTES + NVFP4_TMA_GROUPS * n.next_power_of_two() * ROWS * 4
    }

    /// A group of warps multiplies a K step of all rows.
    fn main_loop(n: u32) -> MainLoop {
        MainLoop {
            lane_weights: ROWS * NVFP4_TILE_STEP_ELEMENTS / (NVFP4_TMA_GROUP_WARPS * NVFP4_WARP),
            vectors: n.next_power_of_two(),
            products: Products::Integer,
            tensor_columns: 0,
        }
    }

    /// One addition a block of a lane's, two over lanes, and one for each group and CTA.
    fn sum_roundings(steps: u32, cluster: u32) -> u32 {
        steps.div_ceil(NVFP4_TMA_GROUPS) * 4 + 2 + NVFP4_TMA_GROUPS * cluster
    }
}
