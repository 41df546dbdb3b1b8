// D = A * B by warps (mma.sync), for any instruction that `instruction.cuh` describes and any tiles of `tiles.cuh`.
//
// A has M rows of K elements, B has N columns of K elements, D has M rows of N; all lie in memory by these rows and
// columns. The kernel knows no element type of A and B: a row of an instruction is 16 or 32 bytes of K, whatever is in
// them, and fragments of all types have the same bytes in the same lanes.
//
// A CTA computes BLOCK_M x BLOCK_N of D. It walks along K in steps of BLOCK_K bytes. STAGES steps lie in shared memory:
// one is multiplied while the copies of the next ones are under way. Its warps share the tile: each has WARP_M x WARP_N
// of it. Rows lie in shared memory with their 16-byte chunks in an order that depends on the row, so that the eight rows
// that `ldmatrix` reads at once lie in different banks.
#include "instruction.cuh"
#include "memory.cuh"
#include "output.cuh"
#include "tiles.cuh"
#include "types.cuh"

constexpr u32 WARPS_M = BLOCK_M / WARP_M;
constexpr u32 WARPS_N = BLOCK_N / WARP_N;
constexpr u32 THREADS = 32 * WARPS_M * WARPS_N;
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
static_assert(BLOCK_K % INSTRUCTION_K_BYTES == 0 && BLOCK_K % 32 == 0 && 128 % (BLOCK_K % 128 ? BLOCK_K : 128) == 0);
static_assert(STAGES >= 2);
static_assert(INSTRUCTION_N == 8 && A_REGISTERS == EIGHTS * HALVES && B_REGISTERS == HALVES);

// Where a chunk of a row stands in its tile, in bytes. 128 bytes, all banks, have one or several rows; rows whose 128
// bytes follow each other have their chunks in different orders.
__device__ __forceinline__ u32 place(u32 row, u32 chunk) {
    constexpr u32 IN_LINE = CHUNKS < 8 ? CHUNKS : 8;
    constexpr u32 ROWS_OF_LINE = 8 / IN_LINE;
    return row * BLOCK_K + (chunk ^ (row / ROWS_OF_LINE % IN_LINE)) * 16;
}

// Starts the copies of a step of ROWS rows from `first` on. What lies beyond the matrix becomes zero.
template <u32 ROWS>
__device__ __forceinline__ void copy_rows(u32 to, const u8 *from, u32 first, u32 rows, u64 row_bytes,
                                          u64 position) {
#pragma unroll
    for (u32 i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        const u32 row = i / CHUNKS, chunk = i % CHUNKS;
        const u64 at = position + chunk * 16;
        const bool inside = first + row < rows && at < row_bytes;
        const u8 *source = inside ? from + (first + row) * row_bytes + at : from;
        copy_16(to + place(row, chunk), source, inside ? 16 : 0);
    }
}

// Loads all matrices of TILES tiles of EIGHTS_OF_TILE * 8 rows and one slice of K: in the order of an instruction's
// registers, tile by tile.
template <u32 TILES, u32 EIGHTS_OF_TILE>
__device__ __forceinline__ void load_fragments(u32 (&to)[TILES][EIGHTS_OF_TILE * HALVES], u32 tile, u32 first_row,
                                               u32 slice) {
    constexpr u32 OF_TILE = EIGHTS_OF_TILE * HALVES;
    constexpr u32 ALL = TILES * OF_TILE;
    constexpr u32 AT_ONCE = ALL % 4 == 0 ? 4 : ALL % 2 == 0 ? 2 : 1;
    u32 *registers = &to[0][0];
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 first = 0; first < ALL; first += AT_ONCE) {
        const u32 matrix = first + lane / 8 % AT_ONCE;
        const u32 row = matrix / OF_TILE * EIGHTS_OF_TILE * 8 + matrix % OF_TILE % EIGHTS_OF_TILE * 8 + lane % 8;
        const u32 half = matrix % OF_TILE / EIGHTS_OF_TILE;
        load_matrices<AT_ONCE>(registers + first, tile + place(first_row + row, slice * HALVES + half));
    }
}

// `row_bytes`: bytes of a row of A and of a column of B; a multiple of 16. Both matrices are aligned to 16 bytes.
extern "C" __global__ void __launch_bounds__(THREADS)
    matmul(void *d, const u8 *a, const u8 *b, u32 m, u32 n, u64 row_bytes) {
    extern __shared__ __align__(128) u8 stages[];
    const u32 shared = shared_address(stages);
    u32 tile_m, tile_n;
    tile_of(blockIdx.x, (m + BLOCK_M - 1) / BLOCK_M, (n + BLOCK_N - 1) / BLOCK_N, tile_m, tile_n);
    const u32 first_m = tile_m * BLOCK_M, first_n = tile_n * BLOCK_N;
    const u32 steps = static_cast<u32>((row_bytes + BLOCK_K - 1) / BLOCK_K);
    const u32 warp = threadIdx.x / 32;
    const u32 warp_m = warp % WARPS_M * WARP_M, warp_n = warp / WARPS_M * WARP_N;

    const auto copy_step = [&](u32 step) {
        if (step < steps) {
            const u32 to = shared + step % STAGES * STAGE_BYTES;
            const u64 position = u64(step) * BLOCK_K;
            copy_rows<BLOCK_M>(to, a, first_m, m, row_bytes, position);
            copy_rows<BLOCK_N>(to + A_BYTES, b, first_n, n, row_bytes, position);
        }
        // Also where there is no such step, so that the count of groups stays that of steps.
        copies_commit();
    };

#pragma unroll
    for (u32 step = 0; step < STAGES - 1; ++step) copy_step(step);

    u32 sums[TILES_M][TILES_N][C_REGISTERS] = {};
    for (u32 step = 0; step < steps; ++step) {
        // This thread's copies of the step have landed, then everybody's; and everybody has read the stage of the step
        // before, which the copies that start now write.
        copies_wait<STAGES - 2>();
        __syncthreads();
        copy_step(step + STAGES - 1);

        const u32 tile_a = shared + step % STAGES * STAGE_BYTES;
        const u32 tile_b = tile_a + A_BYTES;
        // The fragments of the next slice are loaded while this one is multiplied.
        u32 fragments_a[2][TILES_M][A_REGISTERS], fragments_b[2][TILES_N][B_REGISTERS];
        load_fragments<TILES_M, EIGHTS>(fragments_a[0], tile_a, warp_m, 0);
        load_fragments<TILES_N, 1>(fragments_b[0], tile_b, warp_n, 0);
#pragma unroll
        for (u32 slice = 0; slice < SLICES; ++slice) {
            const u32 now = slice % 2, next = (slice + 1) % 2;
            if (slice + 1 < SLICES) {
                load_fragments<TILES_M, EIGHTS>(fragments_a[next], tile_a, warp_m, slice + 1);
                load_fragments<TILES_N, 1>(fragments_b[next], tile_b, warp_n, slice + 1);
            }
#pragma unroll
            for (u32 i = 0; i < TILES_M; ++i) {
#pragma unroll
                for (u32 j = 0; j < TILES_N; ++j) {
                    // Back and forth, so that neighbours share fragments.
                    const u32 column = i % 2 ? TILES_N - 1 - j : j;
                    multiply(sums[i][column], fragments_a[now][i], fragments_b[now][column]);
                }
            }
        }
    }
    copies_wait<0>();

    // Of each group of eight rows a lane has two elements of one row.
    constexpr u32 OF_EIGHT = C_REGISTERS / EIGHTS;
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 i = 0; i < TILES_M; ++i) {
#pragma unroll
        for (u32 eight = 0; eight < EIGHTS; ++eight) {
            const u32 row = first_m + warp_m + i * INSTRUCTION_M + eight * 8 + lane / 4;
            if (row >= m) continue;
#pragma unroll
            for (u32 j = 0; j < TILES_N; ++j) {
                const u32 column = first_n + warp_n + j * INSTRUCTION_N + lane % 4 * 2;
                store(d, row, column, n, &sums[i][j][eight * OF_EIGHT]);
            }
        }
    }
}
