// D = A * B by warpgroups (wgmma), for any instruction that `instruction.cuh` describes and any tiles of `tiles.cuh`.
//
// A, B and D lie in memory as for `matmul.cu`. Here, too, elements are bytes: a step along K is 128 bytes of a row, which
// is four instructions of any type.
//
// A CTA computes tiles of BLOCK_M x BLOCK_N of D, one after another. STAGES steps lie in shared memory. One warp, the
// producer, starts copies into stages that are free. The others are warpgroups: each has WARP_M x WARP_N of the tile,
// multiplies what has landed, and frees the stage of the step before. While they write a tile of D, the copies for the
// next one are under way.
//
// CLUSTER CTAs have tiles that stand below each other, and so the same B. Each copies a part of it, into all of them.
#include "clock.cuh"
#include "hopper.cuh"
#include "instruction.cuh"
#include "memory.cuh"
#include "output.cuh"
#include "tiles.cuh"
#include "types.cuh"

constexpr u32 WARPGROUPS_M = BLOCK_M / WARP_M;
constexpr u32 WARPGROUPS = WARPGROUPS_M * (BLOCK_N / WARP_N);
constexpr u32 THREADS = 128 * WARPGROUPS + 32;
// Instructions of a warpgroup below each other, and along a step.
constexpr u32 TILES_M = WARP_M / 64;
constexpr u32 SLICES = BLOCK_K / 32;
constexpr u32 A_BYTES = BLOCK_M * BLOCK_K;
constexpr u32 STAGE_BYTES = (BLOCK_M + BLOCK_N) * BLOCK_K;
// Rows of B that each CTA of the cluster copies.
constexpr u32 B_PART = BLOCK_N / CLUSTER;
constexpr unsigned short ALL_CTAS = (1u << CLUSTER) - 1;

static_assert(BLOCK_K == 128 && INSTRUCTION_K_BYTES == 32 && INSTRUCTION_N == WARP_N);
static_assert(BLOCK_M % WARP_M == 0 && BLOCK_N % WARP_N == 0 && WARP_M % 64 == 0);
static_assert(BLOCK_M <= 256 && B_PART <= 256 && B_PART % 8 == 0 && BLOCK_N % CLUSTER == 0);
static_assert(STAGES >= 2);

// The maps' boxes are 128 bytes of BLOCK_M rows of A and of B_PART rows of B. Dynamic shared memory has the stages, and
// two barriers for each.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    matmul(void *d, const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, u32 m, u32 n, u32 steps) {
    extern __shared__ __align__(1024) u8 stages[];
    clock_begins();
    const u32 shared = shared_address(stages);
    const u32 full = shared + STAGES * STAGE_BYTES, empty = full + STAGES * 8;
    // From one lane, so that the compiler sees that all of a warp's have the same number.
    const u32 warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const u32 rank = CLUSTER > 1 ? rank_in_cluster() : 0;

    if (threadIdx.x == 0) {
        for (u32 stage = 0; stage < STAGES; ++stage) {
            barrier_init(full + stage * 8, 1);
            // Each warp that multiplies, of each CTA whose copies come here.
            barrier_init(empty + stage * 8, 4 * WARPGROUPS * CLUSTER);
        }
        barriers_are_ready();
    }
    cluster_barrier();

    // Of the cluster: CLUSTER tiles below each other count as one.
    const u32 tiles_m = (m + CLUSTER * BLOCK_M - 1) / (CLUSTER * BLOCK_M), tiles_n = (n + BLOCK_N - 1) / BLOCK_N;
    const u32 first_tile = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
    Place<STAGES> place;

    if (warp == 4 * WARPGROUPS) {
        if (lane == 0) {
            prefetch_map(a);
            prefetch_map(b);
            for (u32 tile = first_tile; tile < tiles_m * tiles_n; tile += clusters) {
                u32 tile_m, tile_n;
                tile_of(tile, tiles_m, tiles_n, tile_m, tile_n);
                const u32 first_m = (tile_m * CLUSTER + rank) * BLOCK_M;
                const u32 first_n = tile_n * BLOCK_N + rank * B_PART;
                for (u32 step = 0; step < steps; ++step, place.advance()) {
                    const u32 to = shared + place.index * STAGE_BYTES, landed = full + place.index * 8;
                    // The first use of each stage waits for a phase that counts as over.
                    barrier_wait(empty + place.index * 8, place.parity ^ 1);
                    barrier_expect(landed, STAGE_BYTES);
                    copy_box(to, a, step * BLOCK_K, first_m, landed);
                    const u32 part = to + A_BYTES + rank * B_PART * BLOCK_K;
                    if constexpr (CLUSTER > 1) {
                        copy_box_to(part, b, step * BLOCK_K, first_n, landed, ALL_CTAS);
                    } else {
                        copy_box(part, b, step * BLOCK_K, first_n, landed);
                    }
                }
            }
        }
        __syncwarp();
    } else {
        const u32 warpgroup = warp / 4;
        const u32 own_m = warpgroup % WARPGROUPS_M * WARP_M, own_n = warpgroup / WARPGROUPS_M * WARP_N;
        const auto free_stage = [&](u32 stage) {
            if (lane < CLUSTER) barrier_arrive(empty + stage * 8, lane);
        };
        for (u32 tile = first_tile; tile < tiles_m * tiles_n; tile += clusters) {
            u32 sums[TILES_M][C_REGISTERS] = {};
            u32 before = 0;
            for (u32 step = 0; step < steps; ++step, place.advance()) {
                const u32 tile_a = shared + place.index * STAGE_BYTES;
                const u64 rows = rows_of_128_bytes(tile_a + own_m * BLOCK_K);
                const u64 columns = rows_of_128_bytes(tile_a + A_BYTES + own_n * BLOCK_K);
                barrier_wait(full + place.index * 8, place.parity);
                multiplications_begin();
#pragma unroll
                for (u32 slice = 0; slice < SLICES; ++slice) {
#pragma unroll
                    for (u32 i = 0; i < TILES_M; ++i) {
                        multiply(sums[i], rows + i * (64 * BLOCK_K / 16) + slice * 2, columns + slice * 2,
                                 step + slice != 0);
                    }
                }
                multiplications_commit();
                // Those of the step before are over.
                multiplications_wait<1>();
                if (step > 0) free_stage(before);
                before = place.index;
            }
            multiplications_wait<0>();
#pragma unroll
            for (u32 i = 0; i < TILES_M; ++i) changed_here(sums[i]);
            free_stage(before);

            // A warp has sixteen rows of an instruction; a lane, of each eight rows and columns, two elements of a row.
            u32 tile_m, tile_n;
            tile_of(tile, tiles_m, tiles_n, tile_m, tile_n);
            const u32 first_m = (tile_m * CLUSTER + rank) * BLOCK_M + own_m + warp % 4 * 16;
            const u32 first_n = tile_n * BLOCK_N + own_n + lane % 4 * 2;
            constexpr u32 OF_EIGHT = ACCUMULATOR_BITS / 16;
#pragma unroll
            for (u32 i = 0; i < TILES_M; ++i) {
#pragma unroll
                for (u32 eight = 0; eight < 2; ++eight) {
                    const u32 row = first_m + i * 64 + eight * 8 + lane / 4;
                    if (row >= m) continue;
#pragma unroll
                    for (u32 j = 0; j < WARP_N / 8; ++j) {
                        store(d, row, first_n + j * 8, n, &sums[i][(j * 2 + eight) * OF_EIGHT]);
                    }
                }
            }
        }
    }
    // Until then others of the cluster copy into this CTA's shared memory, and arrive at its barriers.
    cluster_barrier();
    clock_ends();
}
