//! `gemv_stream`: one cut of the representative problem. Its default is a matter of measurements.

use super::{Dot, Facts, K, L, M, Step, plain};
use crate::sass::gpu::{Gpu, RESERVED_SHARED};

/// Bytes of a stage of a warp's queue: 16 rows of 256 elements, and their scales.
const STAGE_BYTES: u32 = 16 * 256 / 16 * 9;
const TILE_ROWS: u32 = 16;

/// One CTA an SM, as many warps as the kernel is compiled for, and the most stages that fit. A lane
/// multiplies 64 elements of two rows a step.
pub(super) fn facts(activation: u32, vectors: u32, gpu: &Gpu) -> Facts {
    let most = if vectors <= 2 { 16 } else { 12 };
    // `scaled_from` in `csrc/kernels/gemv_stream.cuh`.
    let scaled = vectors >= if activation == 2 { 2 } else { 4 };
    let shared = |warps: u32, stages: u32, batches: u32| {
        let zero_blocks = if scaled { 0 } else { 10 };
        let (columns, block_bytes, scale_bytes) = match (activation, vectors) {
            (0, _) if !scaled => (vectors, 16, vectors * 8),
            (2, _) if !scaled => (2 * vectors, 32, 0),
            _ => (vectors, 32, 0),
        };
        let blocks = batches * columns * (K / 16);
        let x = (blocks + batches * columns + zero_blocks) * block_bytes
            + batches * (K / 16) * scale_bytes;
        let tiles = (M * L).div_ceil(gpu.multiprocessors).div_ceil(TILE_ROWS) + 1;
        warps * stages * STAGE_BYTES + x + (warps + tiles) * TILE_ROWS * columns * 4 + tiles * 4
    };
    let room = gpu.sm.shared_bytes - RESERVED_SHARED;
    // A CTA's rows may be of two batches. Where those vectors leave no room: a problem of one batch.
    let cuts = [2, 1].into_iter().flat_map(|batches| {
        [most, most / 2, most / 4]
            .into_iter()
            .flat_map(move |warps| [6, 4, 3].map(|stages| (warps, stages, batches)))
    });
    let fits = |&(warps, stages, batches): &(u32, u32, u32)| shared(warps, stages, batches) <= room;
    let (warps, stages, batches) = cuts.clone().find(fits).unwrap_or((most / 4, 3, 1));
    Facts {
        threads: warps * 32,
        dynamic_shared: shared(warps, stages, batches),
        launched: Some(1),
        // The oldest stage is being multiplied.
        cta_bytes_in_flight: warps * (stages - 1) * STAGE_BYTES,
        step: Some(Step {
            vectors,
            weights: 2 * 64,
            dot: Dot::WarpMatrix {
                vectors: if scaled { 8 } else { 2 },
            },
        }),
        ..plain(None, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_take_what_shared_memory_has() {
        let of = |arch: &str| facts(0, 1, Gpu::of_arch(arch).unwrap());
        let (hopper, consumer) = (of("90a"), of("120f"));
        assert_eq!(hopper.threads, 512);
        assert_eq!(hopper.cta_bytes_in_flight, 16 * 3 * 2304);
        assert!(consumer.cta_bytes_in_flight < hopper.cta_bytes_in_flight);
        assert!(consumer.dynamic_shared <= 99 << 10);
    }
}
