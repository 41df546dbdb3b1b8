// D = A * B by tensor memory (tcgen05), for any instruction that `instruction.cuh` describes and any tiles of `tiles.cuh`.
//
// Verified in simulation, not yet on hardware.
//
// A, B and D lie in memory as for `matmul.cu`. Here, too, elements are bytes: a step along K is 128 bytes of a row, which
// is four instructions of any type. Which types they are stands in `what`, the instruction descriptor: one compiled kernel
// serves all types of a kind.
//
// A CTA computes tiles of BLOCK_M x BLOCK_N of D, one after another. STAGES steps lie in shared memory. One warp starts
// copies into stages that are free. One thread of another warp starts multiplications of what has landed: their sums stay
// in tensor memory, and when they have read a stage they free it. Four warps write finished sums to D. Where tensor memory
// has room for two tiles' sums (SUMS), one tile is written while the next one is multiplied.
//
// Block scales come along with a step, as atoms (`blackwell.cuh`), by copies of their own; the thread that multiplies
// copies them on to tensor memory. Each stage has columns there, because a copy does not wait for multiplications that
// still read them: a stage is free only when these are over.
//
// CLUSTER CTAs have tiles that stand below each other, and so the same B. Each copies a part of it, into all of them. Where
// an instruction has 256 rows, the cluster is a pair: a thread of its first CTA multiplies for both. Each has its rows of A,
// one half of the columns of B, all scales that its sums need, and its rows' sums.
#include "clock.cuh"
#include "blackwell.cuh"
#include "instruction.cuh"
#include "memory.cuh"
#include "output.cuh"
#include "tiles.cuh"
#include "types.cuh"

// Warps 0 to 3 write, each the lanes of tensor memory that it can reach.
constexpr u32 WRITERS = 4, COPIES = 4, MULTIPLIES = 5;
constexpr u32 THREADS = 192;
// CTAs of an instruction; instructions below each other, and along a step.
constexpr u32 CTAS = INSTRUCTION_M / LANES;
constexpr u32 TILES_M = BLOCK_M / LANES;
constexpr u32 SLICES = BLOCK_K / INSTRUCTION_K_BYTES;
// Rows of B that each CTA of the cluster copies.
constexpr u32 B_PART = BLOCK_N / CLUSTER;
constexpr u32 A_BYTES = BLOCK_M * BLOCK_K, B_BYTES = BLOCK_N / CTAS * BLOCK_K;
constexpr unsigned short ALL_CTAS = (1u << CLUSTER) - 1;

// Scales of a row in a step are four for each of ATOMS; an instruction has SCALES of them. Groups of 128 rows have atoms.
constexpr u32 ATOMS = SCALES * SLICES / 4;
constexpr u32 GROUP_BYTES = ATOMS * ATOM_BYTES;
constexpr u32 GROUPS_B = (BLOCK_N + LANES - 1) / LANES;
constexpr u32 ATOM_COLUMNS_B = GROUPS_B * ATOM_COLUMNS;
constexpr u32 SCALE_COLUMNS = ATOMS * (TILES_M * ATOM_COLUMNS + ATOM_COLUMNS_B);

// All that arrives in a stage; a stage is that, up to the next start of a swizzle pattern.
constexpr u32 ARRIVING = A_BYTES + B_BYTES + (TILES_M + GROUPS_B) * GROUP_BYTES;
constexpr u32 SUM_COLUMNS = TILES_M * BLOCK_N;

static_assert(INSTRUCTION_N == WARP_N && WARP_M == INSTRUCTION_M && WARP_N == BLOCK_N);
static_assert(CTAS == 1 || (CTAS == 2 && CLUSTER == 2));
static_assert(BLOCK_K == 128 && INSTRUCTION_K_BYTES == 32 && BLOCK_M % LANES == 0 && BLOCK_M <= 256);
static_assert(BLOCK_N % 32 == 0 && BLOCK_N <= 256 && B_PART % 8 == 0);
static_assert(SCALES == 0 || BLOCK_N % LANES == 0 || BLOCK_N == 64);
static_assert(STAGE_BYTES >= ARRIVING && STAGE_BYTES % 1024 == 0);
static_assert(SUMS * SUM_COLUMNS + STAGES * SCALE_COLUMNS <= COLUMNS && COLUMNS <= ALL_COLUMNS);
static_assert(STAGES >= 2 && SUMS >= 1);

// Copies a box into this CTA. What arrives is counted by the barrier that has this place in the CTA that multiplies.
__device__ __forceinline__ void copy_here(u32 to, const TensorMap &map, u32 byte, u32 row, u32 barrier) {
    if constexpr (CTAS == 2) {
        copy_box_of_pair(to, map, byte, row, in_cta(barrier, 0));
    } else {
        copy_box(to, map, byte, row, barrier);
    }
}

// The maps' boxes are 128 bytes of BLOCK_M rows of A and of B_PART rows of B. Scales are, of each group of 128 rows, of each
// step, ATOMS atoms; in their maps an atom is four rows of 128 bytes, and a box is ATOMS. Where there are no scales any maps
// do. Dynamic shared memory has the stages, two barriers for each, two for each place of sums, and the address of the CTA's
// tensor memory.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    matmul(void *d, const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, u32 m, u32 n, u32 steps,
           u32 what, const __grid_constant__ TensorMap scales_a, const __grid_constant__ TensorMap scales_b) {
    extern __shared__ __align__(1024) u8 stages[];
    clock_begins();
    const u32 shared = shared_address(stages);
    const u32 full = shared + STAGES * STAGE_BYTES, empty = full + STAGES * 8;
    const u32 ready = empty + STAGES * 8, taken = ready + SUMS * 8;
    constexpr u32 ADDRESS_AT = STAGES * STAGE_BYTES + (STAGES + SUMS) * 16;
    // From one lane, so that the compiler sees that all of a warp's have the same number.
    const u32 warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const u32 rank = CLUSTER > 1 ? rank_in_cluster() : 0;

    if (warp == MULTIPLIES) {
        columns_allocate<CTAS>(shared + ADDRESS_AT, COLUMNS);
    } else if (threadIdx.x == 0) {
        for (u32 stage = 0; stage < STAGES; ++stage) {
            barrier_init(full + stage * 8, 1);
            // The commits of each CTA that multiplies what copies of this one bring.
            barrier_init(empty + stage * 8, CLUSTER / CTAS);
        }
        for (u32 sums = 0; sums < SUMS; ++sums) {
            barrier_init(ready + sums * 8, 1);
            barrier_init(taken + sums * 8, WRITERS * CTAS);
        }
        barriers_are_ready();
    }
    tensor_fence_before();
    cluster_barrier();
    tensor_fence_after();
    const u32 tensor = *reinterpret_cast<volatile u32 *>(stages + ADDRESS_AT);

    // Of the cluster: CLUSTER tiles below each other count as one.
    const u32 tiles_m = (m + CLUSTER * BLOCK_M - 1) / (CLUSTER * BLOCK_M), tiles_n = (n + BLOCK_N - 1) / BLOCK_N;
    const u32 first_tile = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
    const u32 tiles = tiles_m * tiles_n;
    u32 tile_m, tile_n;

    if (warp == COPIES) {
        if (elect_one()) {
            prefetch_map(a);
            prefetch_map(b);
            if constexpr (SCALES != 0) {
                prefetch_map(scales_a);
                prefetch_map(scales_b);
            }
            Place<STAGES> stage;
            for (u32 tile = first_tile; tile < tiles; tile += clusters) {
                tile_of(tile, tiles_m, tiles_n, tile_m, tile_n);
                const u32 first_m = (tile_m * CLUSTER + rank) * BLOCK_M;
                const u32 first_n = tile_n * BLOCK_N;
                for (u32 step = 0; step < steps; ++step, stage.advance()) {
                    const u32 to = shared + stage.index * STAGE_BYTES, landed = full + stage.index * 8;
                    // The first use of each stage waits for a phase that counts as over.
                    barrier_wait(empty + stage.index * 8, stage.parity ^ 1);
                    if constexpr (SCALES != 0) {
                        // Multiplications have read the stage's columns: that is handed on, by the barrier of what
                        // lands, to the copies that write them.
                        tensor_fence_after();
                        tensor_fence_before();
                    }
                    // The other CTA's copies for a pair may be ahead of that.
                    if (CTAS == 1 || rank == 0) barrier_expect(landed, CTAS * ARRIVING);
                    copy_here(to, a, step * BLOCK_K, first_m, landed);
                    const u32 to_b = to + A_BYTES, part = rank * B_PART;
                    if constexpr (CLUSTER > CTAS) {
                        copy_box_to(to_b + part * BLOCK_K, b, step * BLOCK_K, first_n + part, landed, ALL_CTAS);
                    } else {
                        copy_here(to_b, b, step * BLOCK_K, first_n + part, landed);
                    }
                    if constexpr (SCALES != 0) {
                        u32 to_scales = to_b + B_BYTES;
                        constexpr u32 ROWS = GROUP_BYTES / 128;
                        for (u32 i = 0; i < TILES_M; ++i, to_scales += GROUP_BYTES) {
                            const u32 row = ((first_m / LANES + i) * steps + step) * ROWS;
                            copy_here(to_scales, scales_a, 0, row, landed);
                        }
                        for (u32 i = 0; i < GROUPS_B; ++i, to_scales += GROUP_BYTES) {
                            const u32 row = ((first_n / LANES + i) * steps + step) * ROWS;
                            copy_here(to_scales, scales_b, 0, row, landed);
                        }
                    }
                }
            }
            // No commit is left that would arrive when the CTA has ended.
            for (u32 i = 0; i < STAGES; ++i, stage.advance()) barrier_wait(empty + stage.index * 8, stage.parity ^ 1);
        }
        __syncwarp();
    } else if (warp == MULTIPLIES) {
        if ((CTAS == 1 || rank == 0) && elect_one()) {
            Place<STAGES> stage;
            Place<SUMS> sums;
            for (u32 tile = first_tile; tile < tiles; tile += clusters, sums.advance()) {
                tile_of(tile, tiles_m, tiles_n, tile_m, tile_n);
                const u32 to = tensor + sums.index * SUM_COLUMNS;
                // The sums that were there have been taken. The fence is that of the first step.
                if constexpr (CTAS == 1) {
                    barrier_wait(taken + sums.index * 8, sums.parity ^ 1);
                } else {
                    barrier_wait_in_cluster(taken + sums.index * 8, sums.parity ^ 1);
                }
                for (u32 step = 0; step < steps; ++step, stage.advance()) {
                    const u32 tile_a = shared + stage.index * STAGE_BYTES, tile_b = tile_a + A_BYTES;
                    const u32 columns_a = tensor + SUMS * SUM_COLUMNS + stage.index * SCALE_COLUMNS;
                    const u32 columns_b = columns_a + TILES_M * ATOMS * ATOM_COLUMNS;
                    // A tile may begin within a group of 128 columns of D.
                    const u32 first_b = columns_b + tile_n * BLOCK_N % LANES / 32;
                    barrier_wait(full + stage.index * 8, stage.parity);
                    tensor_fence_after();
                    if constexpr (SCALES != 0) {
                        const u32 scales = tile_b + B_BYTES;
#pragma unroll
                        for (u32 i = 0; i < TILES_M * ATOMS; ++i) {
                            copy_scales<CTAS>(columns_a + i * ATOM_COLUMNS, scales + i * ATOM_BYTES);
                        }
                        // Of an atom of B, all groups lie side by side.
#pragma unroll
                        for (u32 i = 0; i < GROUPS_B * ATOMS; ++i) {
                            copy_scales<CTAS>(columns_b + i % ATOMS * ATOM_COLUMNS_B + i / ATOMS * ATOM_COLUMNS,
                                              scales + (TILES_M * ATOMS + i) * ATOM_BYTES);
                        }
                    }
                    const u64 rows = rows_descriptor(tile_a), columns = rows_descriptor(tile_b);
#pragma unroll
                    for (u32 slice = 0; slice < SLICES; ++slice) {
                        const u32 atom = slice * SCALES / 4;
                        const u32 now = SCALES != 0 ? with_scale_ids(what, slice * SCALES % 4) : what;
#pragma unroll
                        for (u32 i = 0; i < TILES_M; ++i) {
                            multiply(to + i * BLOCK_N, rows + i * (LANES * BLOCK_K / 16) + slice * 2, columns + slice * 2,
                                     now, columns_a + (i * ATOMS + atom) * ATOM_COLUMNS, first_b + atom * ATOM_COLUMNS_B,
                                     step + slice != 0);
                        }
                    }
                    if constexpr (CLUSTER > 1) {
                        tensor_commit_to<CTAS>(empty + stage.index * 8, ALL_CTAS);
                    } else {
                        tensor_commit(empty + stage.index * 8);
                    }
                }
                if constexpr (CTAS == 2) {
                    tensor_commit_to<CTAS>(ready + sums.index * 8, ALL_CTAS);
                } else {
                    tensor_commit(ready + sums.index * 8);
                }
            }
        }
        __syncwarp();
    } else {
        constexpr u32 OF_EIGHT = ACCUMULATOR_BITS / 16;
        Place<SUMS> sums;
        for (u32 tile = first_tile; tile < tiles; tile += clusters, sums.advance()) {
            tile_of(tile, tiles_m, tiles_n, tile_m, tile_n);
            const u32 first_m = (tile_m * CLUSTER + rank) * BLOCK_M + warp * 32 + lane / 4;
            const u32 first_n = tile_n * BLOCK_N + lane % 4 * 2;
            barrier_wait(ready + sums.index * 8, sums.parity);
            __syncwarp();
            tensor_fence_after();
            // Sixteen rows and 32 columns at a time.
            constexpr u32 PARTS = BLOCK_N / 32;
#pragma unroll 1
            for (u32 part = 0; part < TILES_M * 2 * PARTS; ++part) {
                const u32 i = part / (2 * PARTS), half = part / PARTS % 2, column = part % PARTS * 32;
                u32 values[8 * OF_EIGHT];
                load_sums(values, tensor + ((warp * 32 + half * 16) << 16) + sums.index * SUM_COLUMNS + i * BLOCK_N + column);
                sums_wait(values);
                if (part + 1 == TILES_M * 2 * PARTS) {
                    tensor_fence_before();
                    __syncwarp();
                    if (lane == 0) {
                        if constexpr (CTAS == 2) {
                            barrier_arrive_in_cluster(in_cta(taken + sums.index * 8, 0));
                        } else {
                            barrier_arrive_here(taken + sums.index * 8);
                        }
                    }
                }
#pragma unroll
                for (u32 eight = 0; eight < 2; ++eight) {
                    const u32 row = first_m + i * LANES + half * 16 + eight * 8;
                    if (row >= m) continue;
#pragma unroll
                    for (u32 j = 0; j < 4; ++j) {
                        store(d, row, first_n + column + j * 8, n, &values[(j * 2 + eight) * OF_EIGHT]);
                    }
                }
            }
        }
    }
    // Until then others of the cluster copy into this CTA's shared memory, arrive at its barriers, and load its sums.
    tensor_fence_before();
    cluster_barrier();
    if (warp == MULTIPLIES) {
        tensor_fence_after();
        columns_free<CTAS>(tensor, COLUMNS);
    }
    clock_ends();
}
