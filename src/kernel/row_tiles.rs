//! Code that the kernels direct and dot share, after `csrc/kernels/row_tiles.cuh`. A lane loads one or several blocks
//! of a row at once; a warp computes a tile of rows.

use super::call::{Call, Pass};
use super::params::{NVFP4_TILED_ROW_STEP, NVFP4_WARP, nvfp4_direct_params};
use super::plan::KernelParameters;
use super::{ALPHAS, Job};
use crate::shape::Shape;

/// An entry point, and the numbers that it is compiled for.
pub(super) struct Entry {
    pub(super) name: &'static str,
    /// Vectors that are computed. A pass with fewer vectors computes the last one several times.
    pub(super) vectors: usize,
    pub(super) blocks_per_load: u32,
}

impl Entry {
    pub(super) const fn new(name: &'static str, vectors: usize, blocks_per_load: u32) -> Self {
        Self {
            name,
            vectors,
            blocks_per_load,
        }
    }

    /// The first entry point of `entries`, in the order of their vectors, for such loads and a pass of `n` vectors. If
    /// there is none, the last entry point, which has most vectors.
    pub(super) fn of(entries: &'static [Self], blocks_per_load: u32, n: usize) -> &'static Self {
        entries
            .iter()
            .find(|entry| entry.blocks_per_load == blocks_per_load && entry.vectors >= n)
            .unwrap_or(&entries[entries.len() - 1])
    }
}

/// Whether a load of the weights can have `blocks` blocks: rows are whole loads, codes are aligned to 8 bytes a block
/// and scales to one.
pub(super) fn can_load(job: &Job<'_>, blocks: u32) -> bool {
    let alignment = job.operands.alignment;
    job.shape.blocks().is_multiple_of(blocks as usize)
        && alignment.codes >= 8 * blocks
        && alignment.scales >= blocks
}

/// Steps of a row. A step is one load of each lane of a warp.
pub(super) fn steps(shape: &Shape, blocks_per_load: u32) -> usize {
    shape
        .blocks()
        .div_ceil((NVFP4_WARP * blocks_per_load) as usize)
}

/// Rows from one row of a tile to the next. In the 128x4 layout the rows of a tile share sectors of scales.
fn row_step(job: &Job<'_>) -> u32 {
    if job.operands.tiled() {
        NVFP4_TILED_ROW_STEP
    } else {
        1
    }
}

/// Tiles of `rows` rows that a batch takes: a multiple of the row step.
pub(super) fn row_tiles(job: &Job<'_>, rows: u32) -> usize {
    let step = row_step(job) as usize;
    job.shape.m().div_ceil(step * rows as usize) * step
}

/// Bytes of codes and scales that the lanes of a CTA load at once, each `blocks` blocks of `rows` rows.
pub(super) fn bytes_of_loads(warps: u32, rows: u32, blocks: u32) -> u64 {
    [warps, NVFP4_WARP, rows, blocks, 8 + 1]
        .into_iter()
        .map(u64::from)
        .fold(1, u64::saturating_mul)
}

/// Successive f32 roundings of a sum over blocks: the additions over a lane's blocks, over lanes and over the warps
/// that split K, then the factors.
pub(super) fn roundings(shape: &Shape, blocks_per_load: u32, k_split: u32) -> u32 {
    let lanes = NVFP4_WARP * k_split * blocks_per_load;
    let in_lane = (shape.blocks() as u32).div_ceil(lanes) * blocks_per_load;
    let across_lanes = 5;
    in_lane + across_lanes + k_split + ALPHAS
}

/// The parameters for a pass. The kernel dot adds parameters of its own.
pub(super) fn parameters(
    call: &Call,
    job: &Job<'_>,
    pass: &Pass,
    k_split: u32,
) -> nvfp4_direct_params {
    let shape = &call.shape;
    nvfp4_direct_params {
        m: shape.m() as i32,
        n: pass.n,
        l: shape.l() as i32,
        blocks: shape.blocks() as i32,
        k_split: k_split as i32,
        row_step: row_step(job) as i32,
        weights: pass.weights,
        vectors: pass.vectors,
        epilogue: pass.epilogue,
        ..nvfp4_direct_params::default()
    }
}

// SAFETY: bindgen makes padding fields of this structure's padding.
unsafe impl KernelParameters for nvfp4_direct_params {}
