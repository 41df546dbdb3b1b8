// GEMV for many vectors on mma.sync: each weight is decoded once, and multiplied with up to 128 vectors. sm_80 and
// newer. many_vectors.cuh has how work is divided, and everything but the multiplication.
//
// Two units are made of this source. gemv_mma takes K a multiple of 64 and codes aligned to 16 bytes. gemv_mma_ragged
// (NVFP4_UNIT_RAGGED) takes K any multiple of 16 and codes aligned to 8 bytes (ragged_parts.cuh).
//
// A tile has 16 rows. One warp multiplies them, or several warps do, each with a part of K. Operands B come from shared
// memory by ldmatrix.

#include "many_vectors.cuh"

enum {
    /* Warps of a CTA, at most: a thread's sums of more vectors take more registers. */
    NVFP4_MMA_MAX_WARPS = 16,
    NVFP4_MMA_MAX_WARPS_OF_64 = 12,
    NVFP4_MMA_MAX_WARPS_OF_128 = 8,
    /* Pieces of a chunk of 128 vectors that a warp holds. One step of 128 vectors is 16 pieces. With two pieces a warp,
     * that takes eight warps, whose 100 KB are too much for the 99 KB that some GPUs have. With three, six warps will
     * do. */
    NVFP4_MMA_HELD_OF_128 = 3,
    NVFP4_MMA_BUFFERS = 2, /* of vectors in shared memory */
};

#ifdef __CUDACC__

#include "../arch/griddepcontrol.cuh"
#include "../arch/ldmatrix.cuh"
#include "../arch/registers.cuh"
#include "../entries.cuh"
#ifdef NVFP4_UNIT_RAGGED
#include "ragged_parts.cuh"
#endif

namespace nvfp4::mma {

using many::kColumns;
using many::kVectorRow;
using many::Params;

#ifdef NVFP4_UNIT_RAGGED
using Loads = many::RaggedLoads;
constexpr bool kRagged = true;
#else
using Loads = many::Loads;
constexpr bool kRagged = false;
#endif

constexpr uint32_t max_warps(int vectors) {
    return vectors < 64    ? NVFP4_MMA_MAX_WARPS
           : vectors == 64 ? NVFP4_MMA_MAX_WARPS_OF_64
                           : NVFP4_MMA_MAX_WARPS_OF_128;
}

template <int kActivation, int kVectors>
__device__ __forceinline__ void run(const Params &p, uint8_t *shared) {
    using Weights = typename many::Eight<kActivation>::Weights;
    using Work = many::Work<1>;
    constexpr uint32_t kColumnTiles = kVectors / kColumns;
    // Columns of B, in tiles of eight, for which a thread has registers at once (kAtOnce). There are fewer in ragged
    // rows and for compute capability 10.0 and newer, or ptxas spills.
#if __CUDA_ARCH__ >= 1000
    constexpr bool kFew = true;
#else
    constexpr bool kFew = kRagged;
#endif
    constexpr uint32_t kAtOnce = kColumnTiles < 4 ? kColumnTiles : kFew && kColumnTiles < 16 ? 2 : 4;
    constexpr int kHeld = kVectors == 128 ? NVFP4_MMA_HELD_OF_128 : many::kHeldOf<kVectors>;
    using Chunks = many::Chunks<kActivation, kVectors, kHeld, kRagged>;
    constexpr uint32_t kRows = Chunks::Held::kRows;

    const uint32_t lane = arch::kept(threadIdx.x % many::kWarp);
    // The warp is the same in all lanes. The shuffle tells the compiler so: there are uniform registers for what
    // follows from it.
    const Work work(p, __shfl_sync(~0u, threadIdx.x / many::kWarp, 0));
    const uint32_t base = arch::shared_address(shared);
    many::PartLoads<Loads> loads(p, work, lane, base);
    const Loads::Reader reader(p, work.batch, work.place + work.row, lane);
    uint32_t from = loads.to;
#pragma unroll 1
    for (int i = 0; i < NVFP4_MANY_STAGES - 1; ++i) loads.next(p, lane);

    arch::griddepcontrol_launch_dependents();
    arch::griddepcontrol_wait(); // the previous grid may write vectors and read the output
    const uint32_t chunk_steps = Work::chunk_steps(p), buffer_bytes = chunk_steps * 2 * kRows;
    Chunks chunks = Chunks::of(p, work, lane);
    uint32_t chunk_step = work.chunk * chunk_steps; // of the chunk that is multiplied
    uint32_t buffer = p.x_at;                       // where it lies
    if (work.chunks != 0) {
        chunks.load(p, work, chunk_step);
        chunks.store(p, work, chunk_step, shared + buffer);
    }

    // Address of one of B's rows, which a lane gives to ldmatrix. The row's order has mixed its units: see Piece.
    const uint32_t b_row = lane % 8 * kVectorRow + ((lane / 8 ^ lane % 8) * 16);
    float sum[kVectors / 2] = {};
#pragma unroll 1
    for (uint32_t chunk = 0; chunk < work.chunks; ++chunk) {
        __syncthreads();
        const bool more = chunk + 1 < work.chunks;
        if (more) chunks.load(p, work, chunk_step + chunk_steps);

        const uint32_t first = chunk_step + work.part * p.each, end = min(first + p.each, work.end);
        uint32_t x = base + buffer + work.part * p.each * 2 * kRows + b_row;
#pragma unroll 1
        for (uint32_t step = first; step < end; ++step, x += 2 * kRows) {
            arch::cp_async_wait_group<NVFP4_MANY_STAGES - 2>();
            __syncwarp();
            const many::Codes<Weights> codes(reader, from, lane);
            from = loads.behind(from);
            loads.next(p, lane); // into the stage before this one: all lanes have read it

#pragma unroll
            for (uint32_t some = 0; some < kColumnTiles; some += kAtOnce) {
                // Skips vectors that do not exist. And no load moves across a branch: there are no registers for all of
                // B.
                if (kColumnTiles >= 4 && some != 0 && some * kColumns >= uint32_t(p.n)) break;
                // Sums of a step, added to `sum` behind it, not in the matrix instructions: those cut what they add to.
                float d[kAtOnce][4] = {};
#pragma unroll
                for (int word = 0; word < 4; ++word) {
                    uint32_t a[2][4];
                    codes.decode(word, a); // once for all groups: the compiler keeps it
#pragma unroll
                    for (uint32_t tile = 0; tile < kAtOnce; ++tile) {
                        const uint32_t at = x + (word / 2 * kVectors + (some + tile) * kColumns) * kVectorRow;
                        const uint4 b = arch::ldmatrix_x4(word % 2 ? at ^ 64 : at);
                        Weights::mma(d[tile], a[0][0], a[0][1], a[0][2], a[0][3], b.x, b.y);
                        Weights::mma(d[tile], a[1][0], a[1][1], a[1][2], a[1][3], b.z, b.w);
                    }
                }
#pragma unroll
                for (uint32_t i = 0; i < 4 * kAtOnce; ++i) sum[4 * some + i] += d[i / 4][i % 4];
            }
        }
        chunk_step += chunk_steps;
        buffer = 2 * p.x_at + buffer_bytes - buffer;
        if (more) chunks.store(p, work, chunk_step, shared + buffer);
    }
    __syncthreads();
    many::finish<kVectors>(p, work, shared, lane, sum, 1.0f / Weights::kFactor);
}

}  // namespace nvfp4::mma

// Entry points, by vectors of a pass and their type.
#ifdef NVFP4_UNIT_RAGGED
#define UNIT gemv_mma_ragged
#define GEMV_MMA_OF(X, name, activation) \
    X(gemv_mma_ragged_##name##_n16, activation, 16) \
    X(gemv_mma_ragged_##name##_n32, activation, 32) \
    X(gemv_mma_ragged_##name##_n64, activation, 64) \
    X(gemv_mma_ragged_##name##_n128, activation, 128)
#else
#define UNIT gemv_mma
#define GEMV_MMA_OF(X, name, activation) \
    X(gemv_mma_##name##_n8, activation, 8) \
    X(gemv_mma_##name##_n16, activation, 16) \
    X(gemv_mma_##name##_n32, activation, 32) \
    X(gemv_mma_##name##_n64, activation, 64) \
    X(gemv_mma_##name##_n128, activation, 128)
#endif
#define GEMV_MMA(X)                               \
    GEMV_MMA_OF(X, nvfp4, NVFP4_ACTIVATION_NVFP4) \
    GEMV_MMA_OF(X, f16, NVFP4_ACTIVATION_F16)     \
    GEMV_MMA_OF(X, bf16, NVFP4_ACTIVATION_BF16)

#define ENTRY(name, activation, vectors)                                                         \
    NVFP4_KERNEL(name)(                                                                          \
    extern "C" __global__ void __launch_bounds__(nvfp4::mma::max_warps(vectors) * NVFP4_WARP, 1) \
        name(const __grid_constant__ nvfp4_many_params p) {                                      \
        extern __shared__ __align__(1024) uint8_t dynamic[];                                     \
        nvfp4::mma::run<activation, vectors>(p, dynamic);                                        \
    })
GEMV_MMA(ENTRY)
NVFP4_TABLE(UNIT, GEMV_MMA)

#endif
