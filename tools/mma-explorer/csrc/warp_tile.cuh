// A warp's work on its part of a tile: fragments from shared memory, multiplications, and D. Shared by the kernels
// with `mma.sync`, which differ in how A and B come to shared memory.
//
// No element type is known here: a row of an instruction is 16 or 32 bytes of K, whatever is in them, and fragments of all
// types have the same bytes in the same lanes. A slice is what one instruction takes of K; a step, BLOCK_K bytes, has
// several.
//
// A stage in shared memory holds a step: BLOCK_M rows of A, then BLOCK_N rows of B. The 16-byte chunks of a row stand in an
// order that depends on the row, so that the eight rows that `ldmatrix` reads at once lie in different banks. It is the
// order that bulk copies make with a swizzle of BLOCK_K bytes.
#pragma once

#include "instruction.cuh"
#include "memory.cuh"
#include "output.cuh"
#include "tiles.cuh"
#include "types.cuh"

constexpr u32 WARPS_M = BLOCK_M / WARP_M;
constexpr u32 WARPS_N = BLOCK_N / WARP_N;
constexpr u32 WARPS = WARPS_M * WARPS_N;
constexpr u32 THREADS = 32 * WARPS;
// Instructions of a warp, along each side of its tile and along a step.
constexpr u32 TILES_M = WARP_M / INSTRUCTION_M;
constexpr u32 TILES_N = WARP_N / INSTRUCTION_N;
constexpr u32 SLICES = BLOCK_K / INSTRUCTION_K_BYTES;
// 16-byte chunks of a row of a step.
constexpr u32 CHUNKS = BLOCK_K / 16;
constexpr u32 A_BYTES = BLOCK_M * BLOCK_K;
constexpr u32 STAGE_BYTES = (BLOCK_M + BLOCK_N) * BLOCK_K;
// Groups of eight rows, and halves of 16 bytes, of an instruction: a matrix of ldmatrix is one of each.
constexpr u32 EIGHTS = INSTRUCTION_M / 8;
constexpr u32 HALVES = INSTRUCTION_K_BYTES / 16;

static_assert(BLOCK_M % WARP_M == 0 && BLOCK_N % WARP_N == 0);
static_assert(WARP_M % INSTRUCTION_M == 0 && WARP_N % INSTRUCTION_N == 0);
static_assert(BLOCK_K == 64 || BLOCK_K == 128);
static_assert(INSTRUCTION_N == 8 && A_REGISTERS == EIGHTS * HALVES && B_REGISTERS == HALVES);

// Matrices that one ldmatrix loads where there are so many in all.
__device__ constexpr u32 matrices_at_once(u32 all) { return all % 4 == 0 ? 4 : all % 2 == 0 ? 2 : 1; }

// Fragments of A are loaded in groups: as many instructions below each other as one ldmatrix serves.
constexpr u32 A_AT_ONCE = matrices_at_once(TILES_M * A_REGISTERS);
constexpr u32 GROUP_TILES = A_AT_ONCE / A_REGISTERS;
constexpr u32 GROUPS = TILES_M / GROUP_TILES;
// Those of B are loaded by so many ldmatrix for a slice.
constexpr u32 B_AT_ONCE = matrices_at_once(TILES_N * B_REGISTERS);
constexpr u32 B_LOADS = TILES_N * B_REGISTERS / B_AT_ONCE;
// Turns of a step: a group of A with all of B.
constexpr u32 TURNS = SLICES * GROUPS;

// Groups of A in registers: the one that is multiplied, and those that are on their way. As many as there is room for, so
// that each stands in the same registers in every step.
__device__ constexpr u32 ring() {
    constexpr u32 of_thread = 65536 / THREADS / 8 * 8;
    constexpr u32 most = of_thread < 255 ? of_thread : 255;
    constexpr u32 others = TILES_M * TILES_N * C_REGISTERS + 2 * TILES_N * B_REGISTERS + 24;
    for (u32 groups = 4; groups > 2; --groups) {
        if (TURNS % groups == 0 && groups <= GROUPS + 1 && others + groups * A_AT_ONCE <= most) return groups;
    }
    return 2;
}
constexpr u32 RING = ring();
static_assert(A_AT_ONCE % A_REGISTERS == 0 && SLICES % 2 == 0 && TURNS % RING == 0);

// Where a chunk of a row stands in its rows, in bytes. 128 bytes, all banks, have one row or two; rows whose 128 bytes
// follow each other have their chunks in different orders.
__device__ __forceinline__ u32 place(u32 row, u32 chunk) {
    return row * BLOCK_K + (chunk ^ row / (8 / CHUNKS) % CHUNKS) * 16;
}

using Sums = u32[TILES_M][TILES_N][C_REGISTERS];

// A warp's part of the tile, and how its lanes read it.
struct Part {
    // First row and column, of the CTA's tile.
    u32 row, column;
    // The places from which this lane reads the first group of A and of the first instructions of B, of the first
    // slice: bytes from the start of the stage.
    u32 a, b;

    __device__ __forceinline__ Part(u32 warp, u32 lane) {
        row = warp % WARPS_M * WARP_M;
        column = warp / WARPS_M * WARP_N;
        const u32 of_a = lane / 8 % A_AT_ONCE, of_b = lane / 8 % B_AT_ONCE;
        const u32 row_a = of_a / A_REGISTERS * INSTRUCTION_M + of_a % EIGHTS * 8 + lane % 8;
        const u32 row_b = of_b / B_REGISTERS * 8 + lane % 8;
        a = place(row + row_a, of_a % A_REGISTERS / EIGHTS);
        b = A_BYTES + place(column + row_b, of_b % B_REGISTERS);
    }
};

// Fragments of A and B that are multiplied or on their way.
struct Fragments {
    u32 a[RING][GROUP_TILES][A_REGISTERS];
    u32 b[2][TILES_N][B_REGISTERS];

    // Loads a group of A of a slice, from the stage at that address. The slice is a part of the chunk's number, in which
    // the row's order has changed other bits, or the same ones.
    __device__ __forceinline__ void load_a(u32 turn, u32 stage, const Part &part) {
        const u32 slice = turn / GROUPS, group = turn % GROUPS;
        const u32 from = ((stage + part.a) ^ slice * INSTRUCTION_K_BYTES) + group * GROUP_TILES * INSTRUCTION_M * BLOCK_K;
        load_matrices<A_AT_ONCE>(&a[turn % RING][0][0], from);
    }

    // Loads a part of B of a slice.
    __device__ __forceinline__ void load_b(u32 slice, u32 load, u32 stage, const Part &part) {
        const u32 from =
            ((stage + part.b) ^ slice * INSTRUCTION_K_BYTES) + load * (B_AT_ONCE / B_REGISTERS) * 8 * BLOCK_K;
        load_matrices<B_AT_ONCE>(&b[slice % 2][0][0] + load * B_AT_ONCE, from);
    }

    // The fragments that are loaded before the first step.
    __device__ __forceinline__ void load_first(u32 stage, const Part &part) {
#pragma unroll
        for (u32 load = 0; load < B_LOADS; ++load) load_b(0, load, stage, part);
#pragma unroll
        for (u32 turn = 0; turn + 1 < RING; ++turn) load_a(turn, stage, part);
    }
};

// Multiplies the step at `stage`, and loads the first fragments of the next one, which is at `next`. Fragments are loaded
// while earlier ones are multiplied.
//
// `half_way()` is called in the middle. Before the first load from `next` comes `before_next()`, and after the last load
// from `stage` comes `is_read()`.
template <class HalfWay, class BeforeNext, class IsRead>
__device__ __forceinline__ void multiply_step(Sums &sums, Fragments &fragments, const Part &part, u32 stage, u32 next,
                                              HalfWay half_way, BeforeNext before_next, IsRead is_read) {
#pragma unroll
    for (u32 turn = 0; turn < TURNS; ++turn) {
        const u32 slice = turn / GROUPS, group = turn % GROUPS;
        if (turn == TURNS / 2) half_way();
        if (turn == (SLICES - 1) * GROUPS) before_next();
        const u32 ahead = turn + RING - 1;
        if (ahead < TURNS) {
            fragments.load_a(ahead, stage, part);
        } else {
            fragments.load_a(ahead - TURNS, next, part);
        }
#pragma unroll
        for (u32 load = group * B_LOADS / GROUPS; load < (group + 1) * B_LOADS / GROUPS; ++load) {
            fragments.load_b((slice + 1) % SLICES, load, slice + 1 < SLICES ? stage : next, part);
        }
        if (turn == TURNS - RING) is_read();
#pragma unroll
        for (u32 i = 0; i < GROUP_TILES; ++i) {
            const u32 tile = group * GROUP_TILES + i;
#pragma unroll
            for (u32 j = 0; j < TILES_N; ++j) {
                // Back and forth, so that neighbours share fragments.
                const u32 column = tile % 2 ? TILES_N - 1 - j : j;
                multiply(sums[tile][column], fragments.a[turn % RING][i], fragments.b[slice % 2][column]);
            }
        }
    }
}

// Writes the sums of a part whose first row and column in D are these. Of each group of eight rows a lane has two elements
// of one row.
__device__ __forceinline__ void write_part(void *d, u32 m, u32 n, u32 first_row, u32 first_column, u32 lane,
                                           const Sums &sums) {
    constexpr u32 OF_EIGHT = C_REGISTERS / EIGHTS;
#pragma unroll
    for (u32 i = 0; i < TILES_M; ++i) {
#pragma unroll
        for (u32 eight = 0; eight < EIGHTS; ++eight) {
            const u32 row = first_row + i * INSTRUCTION_M + eight * 8 + lane / 4;
            if (row >= m) continue;
#pragma unroll
            for (u32 j = 0; j < TILES_N; ++j) {
                const u32 column = first_column + j * INSTRUCTION_N + lane % 4 * 2;
                store(d, row, column, n, &sums[i][j][eight * OF_EIGHT]);
            }
        }
    }
}
