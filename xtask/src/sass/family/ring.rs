//! `gemv_ring`: how its default (`src/config/ring.rs`) cuts the representative problem.

use super::{Dot, Facts, K, L, M, Step, plain};
use crate::sass::gpu::{Gpu, RESERVED_SHARED};

const TILE_ROWS: u32 = 16;
/// Bytes of weights of 256 elements of a tile's rows.
const SLICE_BYTES: u32 = TILE_ROWS * 256 / 16 * 9;
/// `Barriers` in the kernel.
const BARRIER_BYTES: u32 = 2 * 32 * 8;
/// `kWindowBytes` and `kZeroBytes`.
const WINDOW_BYTES: u32 = 24 << 10;
const ZERO_BYTES: u32 = 128;

struct Cut {
    slices: u32,
    groups: u32,
    stages: u32,
}

/// One CTA an SM: groups of warps that multiply, and four that copy. A lane multiplies 64 elements of two
/// rows a step.
pub(super) fn facts(activation: u32, vectors: u32, gpu: &Gpu) -> Facts {
    let nvfp4 = activation == 0;
    // Of 28 slices of 256 elements.
    let (slices, groups, mut stages) = match vectors {
        1 | 2 if nvfp4 => (14, 1, 3),
        8 => (4, 2, 4),
        _ => (7, 1, 3),
    };
    // Of 128x4 scales, in `lay_out` of `csrc/launch/gemv_ring.cu`.
    let shared = |stages: u32, batches: u32| {
        let cut = Cut {
            slices,
            groups,
            stages,
        };
        let x_block_bytes = if nvfp4 { 16 + 4 } else { 32 };
        let vectors_bytes = batches * vectors * (K / 16) * x_block_bytes;
        stages_bytes(&cut) + vectors_bytes + ZERO_BYTES + window_bytes(&cut, vectors, gpu)
    };
    let room = gpu.sm.shared_bytes - RESERVED_SHARED - BARRIER_BYTES;
    // A CTA's rows may be of two batches. Where those vectors leave no room: a problem of one batch.
    let batches = if shared(groups, 2) <= room { 2 } else { 1 };
    while stages > groups && shared(stages, batches) > room {
        stages -= groups;
    }
    Facts {
        threads: (slices * groups + 4) * 32,
        dynamic_shared: shared(stages, batches),
        launched: Some(1),
        cta_bytes_in_flight: stages * slices * SLICE_BYTES,
        step: Some(Step {
            vectors,
            weights: 2 * 64,
            dot: Dot::WarpMatrix,
        }),
        ..plain(None, 0)
    }
}

fn stages_bytes(cut: &Cut) -> u32 {
    let codes = TILE_ROWS * (cut.slices * 128 + 16);
    cut.stages * (codes + cut.slices * 4 * 96)
}

/// Of sums that wait.
fn window_bytes(cut: &Cut, vectors: u32, gpu: &Gpu) -> u32 {
    let tiles = (M * L / 4).div_ceil(gpu.multiprocessors) * 4;
    let tiles = tiles.div_ceil(TILE_ROWS) + 1;
    let tile_bytes = cut.groups * cut.slices * TILE_ROWS * vectors * 4;
    tiles.min(WINDOW_BYTES / tile_bytes).max(1) * tile_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_stages_fit_hopper_and_fewer_a_smaller_sm() {
        let of = |arch: &str| facts(0, 1, Gpu::of_arch(arch).unwrap());
        let (hopper, consumer) = (of("90a"), of("120a"));
        assert_eq!(hopper.cta_bytes_in_flight, 3 * 14 * 16 * 144);
        // Stages, vectors of two batches with their scales, zeros, sums of 17 tiles by 14 warps.
        let shared = 3 * (16 * 1808 + 14 * 384) + 2 * 448 * 20 + 128 + 17 * 14 * 64;
        assert_eq!(hopper.dynamic_shared, shared);
        assert!(consumer.cta_bytes_in_flight < hopper.cta_bytes_in_flight);
        assert!(consumer.dynamic_shared <= 99 << 10);
    }
}
