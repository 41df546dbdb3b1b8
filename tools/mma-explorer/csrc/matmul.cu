// D = A * B by warps (mma.sync), for any instruction that `instruction.cuh` describes and any tiles of `tiles.cuh`. Threads
// copy A and B to shared memory.
//
// A has M rows of K elements, B has N columns of K elements, D has M rows of N; all lie in memory by these rows and
// columns. A CTA computes BLOCK_M x BLOCK_N of D. It walks along K in steps of BLOCK_K bytes. STAGES steps lie in shared
// memory: one is multiplied while the copies of the next ones are under way. Its warps share the tile: each has
// WARP_M x WARP_N of it.
#include "clock.cuh"
#include "warp_tile.cuh"

// Of three stages one is multiplied, the first fragments are loaded from the next one, and the third one is copied.
static_assert(STAGES >= 3);

// A thread's copies of ROWS rows: every step the same chunk of the same rows.
template <u32 ROWS>
struct Copies {
    // Chunks of all rows, and those of one pass of all threads.
    static constexpr u32 ALL = ROWS * CHUNKS;
    static constexpr u32 PASSES = (ALL + THREADS - 1) / THREADS;
    static constexpr u32 PASS_ROWS = THREADS / CHUNKS;
    static_assert(PASSES <= 32);

    // Of the first pass: in the matrix, and in shared memory from the start of the rows.
    const u8 *from;
    u32 to;
    // A bit for each pass whose row is in the matrix.
    u32 inside;

    __device__ __forceinline__ Copies(const u8 *matrix, u32 first, u32 rows, u64 row_bytes) {
        const u32 row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
        from = matrix + (first + row) * row_bytes + chunk * 16;
        to = place(row, chunk);
        inside = 0;
#pragma unroll
        for (u32 pass = 0; pass < PASSES; ++pass) {
            if (first + row + pass * PASS_ROWS < rows) inside |= 1u << pass;
        }
    }

    // Starts the copies of the step of which `position` is the first byte. What lies beyond the matrix becomes zero.
    __device__ __forceinline__ void start(u32 rows_at, u64 position, u64 row_bytes) const {
        const u32 row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
        const u32 passes = position + chunk * 16 < row_bytes ? inside : 0;
        const u8 *source = from + position;
#pragma unroll
        for (u32 pass = 0; pass < PASSES; ++pass, source += PASS_ROWS * row_bytes) {
            if (ALL % THREADS != 0 && pass * THREADS + threadIdx.x >= ALL) break;
            // Rows whose distance is a multiple of eight have their chunks in the same order.
            const u32 at = PASS_ROWS % 8 == 0 ? to + pass * PASS_ROWS * BLOCK_K : place(row + pass * PASS_ROWS, chunk);
            const bool copied = passes >> pass & 1;
            // Where nothing is read the address counts all the same.
            copy_16(rows_at + at, copied ? source : from, copied ? 16 : 0);
        }
    }
};

// `row_bytes`: bytes of a row of A and of a column of B; a multiple of 16. Both matrices are aligned to 16 bytes.
extern "C" __global__ void __launch_bounds__(THREADS)
    matmul(void *d, const u8 *a, const u8 *b, u32 m, u32 n, u64 row_bytes) {
    extern __shared__ __align__(128) u8 stages[];
    clock_begins();
    const u32 shared = shared_address(stages);
    u32 tile_m, tile_n;
    tile_of(blockIdx.x, (m + BLOCK_M - 1) / BLOCK_M, (n + BLOCK_N - 1) / BLOCK_N, tile_m, tile_n);
    const u32 first_m = tile_m * BLOCK_M, first_n = tile_n * BLOCK_N;
    const u32 steps = static_cast<u32>((row_bytes + BLOCK_K - 1) / BLOCK_K);
    // From one lane, so that the compiler sees that all of a warp's have the same number.
    const u32 warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const Part part(warp, lane);

    const Copies<BLOCK_M> copies_a(a, first_m, m, row_bytes);
    const Copies<BLOCK_N> copies_b(b, first_n, n, row_bytes);
    // The next step that is copied, and its stage.
    u32 copied = 0, to = shared;
    const auto after = [&](u32 stage) { return stage + STAGE_BYTES == shared + STAGES * STAGE_BYTES ? shared : stage + STAGE_BYTES; };
    const auto copy_step = [&] {
        if (copied < steps) {
            const u64 position = u64(copied) * BLOCK_K;
            copies_a.start(to, position, row_bytes);
            copies_b.start(to + A_BYTES, position, row_bytes);
        }
        // Also where there is no such step, so that the count of groups stays that of steps.
        copies_commit();
        ++copied;
        to = after(to);
    };
#pragma unroll
    for (u32 step = 0; step < STAGES - 1; ++step) copy_step();

    Sums sums = {};
    Fragments fragments;
    copies_wait<STAGES - 2>();
    __syncthreads();
    u32 stage = shared;
    fragments.load_first(stage, part);
    for (u32 step = 0; step < steps; ++step) {
        // Behind the last step its own fragments are loaded again, and not used.
        const u32 next = step + 1 < steps ? after(stage) : stage;
        multiply_step(
            sums, fragments, part, stage, next, [] {},
            [&] {
                // This thread's copies of the next step have landed, then everybody's; and everybody has read the stage of
                // the step before this one, which the copies that start now write.
                copies_wait<STAGES - 3>();
                __syncthreads();
                copy_step();
            },
            [] {});
        stage = next;
    }
    copies_wait<0>();
    write_part(d, m, n, first_m + part.row, first_n + part.column, lane, sums);
    clock_ends();
}
