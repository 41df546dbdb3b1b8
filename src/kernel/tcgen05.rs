//! The kernel that multiplies on Blackwell's block-scaled tensor cores: `csrc/kernels/gemv_tcgen05.cuh`. Verified in
//! simulation, not yet on hardware.

use super::params::{
    NVFP4_ATOM_LINES, NVFP4_TCGEN05_N, NVFP4_TCGEN05_STAGE_BYTES, NVFP4_TCGEN05_STAGE_COLUMNS,
    NVFP4_TCGEN05_SUM_COLUMNS, NVFP4_TCGEN05_THREADS, NVFP4_TILE_ATOM_ELEMENTS, NVFP4_WARP,
};
use super::tile::{BARRIER_BYTES, MOST_STAGES, ROWS, TENSOR_COLUMNS, Tiled};
use super::{Job, MainLoop, Products};
use crate::refusal::Refusal;

/// The config of the tcgen05 kernel. A cluster of CTAs computes a tile of 128 rows, for up to 16 vectors a
/// pass over the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "tune",
    derive(serde::Serialize, serde::Deserialize),
    serde(deny_unknown_fields)
)]
pub struct Tcgen05Config {
    /// K steps of 256 elements that a CTA has in flight: 2 to 12.
    pub stages: u32,
    /// CTAs of a cluster, which share a tile's K steps: 1 to 8, each with one step or more.
    pub cluster: u32,
}

/// f32 roundings of one block-scaled matrix instruction of 64 elements, here and in mma-fp4. Neither the ISA nor anything
/// public says how it adds; an adder that aligns and truncates four sums of blocks and D could round about five times.
/// A B200 and an RTX 50 have to say.
pub(super) const MATRIX_ROUNDINGS: u32 = 8;

impl Tiled for Tcgen05Config {
    const UNIT: &'static str = "gemv_tcgen05";
    const THREADS: u32 = NVFP4_TCGEN05_THREADS;
    const VECTORS: u32 = NVFP4_TCGEN05_N;
    // Copies to tensor memory take whole atoms of scales.
    const SCALE_ROWS: u32 = NVFP4_ATOM_LINES;
    const STAGE_BYTES: u32 = NVFP4_TCGEN05_STAGE_BYTES;
    const GROUPS: u32 = 1;
    const STAGES: &'static str = "2 to 12";
    const DEEPEST: bool = true;

    super::tile::fields!();

    fn device(job: &Job<'_>) -> Result<(), Refusal> {
        match job.gpu.compute_capability {
            (10, _) => Ok(()),
            found => Err(Refusal::ComputeCapability {
                found,
                needed: "10.x",
            }),
        }
    }

    fn two_fit(_: usize) -> bool {
        true
    }

    fn entry(_: u32) -> &'static str {
        "gemv_tcgen05"
    }

    /// After the barriers of stages one of the whole tile, and the address of tensor memory.
    fn static_shared(_: u32) -> u32 {
        (BARRIER_BYTES + 8 + 4 + NVFP4_TCGEN05_N * ROWS * 4).next_multiple_of(8)
    }

    fn tensor_columns(stages: u32) -> u32 {
        columns(stages)
    }

    /// One warp issues the instructions, each of which multiplies 64 elements of all rows.
    fn main_loop(_: u32) -> MainLoop {
        MainLoop {
            lane_weights: ROWS * NVFP4_TILE_ATOM_ELEMENTS / NVFP4_WARP,
            vectors: NVFP4_TCGEN05_N,
            products: Products::Matrix,
            tensor_columns: 0,
        }
    }

    /// `MATRIX_ROUNDINGS` for each instruction, of which a K step has four, and one for each CTA.
    fn sum_roundings(steps: u32, cluster: u32) -> u32 {
        steps * 4 * MATRIX_ROUNDINGS + cluster
    }
}

/// Columns of the sums and of the stages' scales: a CTA allocates a power of two.
const fn columns(stages: u32) -> u32 {
    (NVFP4_TCGEN05_SUM_COLUMNS + stages * NVFP4_TCGEN05_STAGE_COLUMNS).next_power_of_two()
}

const _: () = assert!(columns(MOST_STAGES) <= TENSOR_COLUMNS);
