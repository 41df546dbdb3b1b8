// D = A * B by warps (mma.sync), as `matmul.cu`, where bulk copies bring A and B to shared memory (sm_90 and later).
//
// A CTA computes tiles of BLOCK_M x BLOCK_N of D, one after another. STAGES steps lie in shared memory. A step's copies are
// one instruction for A and one for B, which one thread starts; a barrier says when they have landed, and another one when
// all warps have read a stage, so that it can be copied again. There is no barrier of the whole CTA between steps: warps
// run apart by up to a step, and the copies for the next tile are under way while a tile is written.
#include "clock.cuh"
#include "hopper.cuh"
#include "warp_tile.cuh"

static_assert(STAGES >= 2 && BLOCK_M <= 256 && BLOCK_N <= 256 && BLOCK_M % 8 == 0 && BLOCK_N % 8 == 0);

// The maps' boxes are BLOCK_K bytes of BLOCK_M rows of A and of BLOCK_N rows of B. Dynamic shared memory has the stages,
// and two barriers for each. There are no more CTAs than tiles.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul(void *d, const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, u32 m, u32 n, u32 steps) {
    extern __shared__ __align__(1024) u8 stages[];
    clock_begins();
    const u32 shared = shared_address(stages);
    const u32 full = shared + STAGES * STAGE_BYTES, empty = full + STAGES * 8;
    // From one lane, so that the compiler sees that all of a warp's have the same number.
    const u32 warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const u32 tiles_m = (m + BLOCK_M - 1) / BLOCK_M, tiles_n = (n + BLOCK_N - 1) / BLOCK_N;
    const u32 tiles = tiles_m * tiles_n;
    const bool copies = warp == 0;

    // The next step that is copied: of which tile, and where that lies.
    u32 copied_tile = blockIdx.x, copied_step = 0, copied_m = 0, copied_n = 0;
    const auto find_copied = [&] {
        tile_of(copied_tile, tiles_m, tiles_n, copied_m, copied_n);
        copied_m *= BLOCK_M;
        copied_n *= BLOCK_N;
    };
    const auto copy_step = [&](u32 stage) {
        const u32 to = shared + stage * STAGE_BYTES, landed = full + stage * 8;
        barrier_expect(landed, STAGE_BYTES);
        copy_box(to, a, copied_step * BLOCK_K, copied_m, landed);
        copy_box(to + A_BYTES, b, copied_step * BLOCK_K, copied_n, landed);
        if (++copied_step == steps) {
            copied_step = 0;
            copied_tile += gridDim.x;
            if (copied_tile < tiles) find_copied();
        }
    };
    if (threadIdx.x == 0) {
        for (u32 stage = 0; stage < STAGES; ++stage) {
            barrier_init(full + stage * 8, 1);
            barrier_init(empty + stage * 8, WARPS);
        }
        barriers_are_ready();
        find_copied();
        for (u32 stage = 0; stage < STAGES && copied_tile < tiles; ++stage) copy_step(stage);
    }
    __syncthreads();

    const Part part(warp, lane);
    Fragments fragments;
    Place<STAGES> place, before;
    barrier_wait(full, 0);
    fragments.load_first(shared, part);
    bool is_first = true;
    for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        Sums sums = {};
        const bool is_last_tile = tile + gridDim.x >= tiles;
        for (u32 step = 0; step < steps; ++step) {
            // Behind the last step its own fragments are loaded again, and not used.
            Place<STAGES> next = place;
            if (!is_last_tile || step + 1 < steps) next.advance();
            multiply_step(
                sums, fragments, part, shared + place.index * STAGE_BYTES, shared + next.index * STAGE_BYTES,
                [&] {
                    // The stage of the step before.
                    if (copies && lane == 0 && !is_first && copied_tile < tiles) {
                        barrier_wait(empty + before.index * 8, before.parity);
                        reads_before_copies();
                        copy_step(before.index);
                    }
                },
                [&] { barrier_wait(full + next.index * 8, next.parity); },
                [&] {
                    __syncwarp();
                    if (lane == 0) barrier_arrive_here(empty + place.index * 8);
                });
            is_first = false;
            before = place;
            place = next;
        }
        u32 tile_m, tile_n;
        tile_of(tile, tiles_m, tiles_n, tile_m, tile_n);
        write_part(d, m, n, tile_m * BLOCK_M + part.row, tile_n * BLOCK_N + part.column, lane, sums);
    }
    clock_ends();
}
