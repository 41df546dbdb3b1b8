// GEMV for many vectors on Hopper's warpgroup matrix instructions (wgmma): each weight is decoded once, and multiplied
// with up to 128 vectors. sm_90a; K a multiple of 64. many_vectors.cuh has how work is divided, and everything but the
// multiplication.
//
// A tile has 64 rows, which a warpgroup of four warps multiplies. Operands A are registers. The four warps together
// read operands B from shared memory. While a warpgroup's instructions multiply, other warpgroups decode.

#include "many_vectors.cuh"

enum {
    NVFP4_WGMMA_TILE_WARPS = 4,
    /* Warpgroups of a CTA, at most: a thread's sums of more vectors take more registers. */
    NVFP4_WGMMA_MAX_GROUPS = 4,
    NVFP4_WGMMA_MAX_GROUPS_OF_64 = 3,
    NVFP4_WGMMA_MAX_GROUPS_OF_128 = 2,
    /* Buffers of vectors in shared memory: one that is multiplied, one that is filled, and one for warpgroups that are
     * ahead. */
    NVFP4_WGMMA_BUFFERS = 3,
    NVFP4_WGMMA_BARRIER_BYTES = 8, /* an mbarrier in shared memory */
};

#ifdef __CUDACC__

#include "../arch/cp_async_bulk.cuh"
#include "../arch/griddepcontrol.cuh"
#include "../arch/mbarrier.cuh"
#include "../arch/registers.cuh"
#include "../arch/wgmma.cuh"
#include "../entries.cuh"

namespace nvfp4::wgmma {

using many::kSlices;
using many::Params;

constexpr uint32_t max_groups(int vectors) {
    return vectors < 64    ? NVFP4_WGMMA_MAX_GROUPS
           : vectors == 64 ? NVFP4_WGMMA_MAX_GROUPS_OF_64
                           : NVFP4_WGMMA_MAX_GROUPS_OF_128;
}

template <int kActivation, int kVectors>
__device__ __forceinline__ void run(const Params &p, uint8_t *shared) {
    using Weights = typename many::Eight<kActivation>::Weights;
    using Work = many::Work<NVFP4_WGMMA_TILE_WARPS>;
    using Element = std::conditional_t<kActivation == NVFP4_ACTIVATION_BF16, arch::WgmmaBf16, arch::WgmmaF16>;
    using Chunks = many::Chunks<kActivation, kVectors, many::kHeldOf<kVectors>>;
    constexpr uint32_t kRows = Chunks::Held::kRows;

    const uint32_t lane = arch::kept(threadIdx.x % many::kWarp);
    // The warp is the same in all lanes. The shuffle tells the compiler so: descriptors are uniform.
    const Work work(p, __shfl_sync(~0u, threadIdx.x / many::kWarp, 0));
    const uint32_t base = arch::shared_address(shared);
    many::PartLoads<many::Loads> loads(p, work, lane, base);
    uint32_t from = loads.to;
#pragma unroll 1
    for (int i = 0; i < NVFP4_MANY_STAGES - 1; ++i) loads.next(p, lane);

    arch::griddepcontrol_launch_dependents();
    arch::griddepcontrol_wait(); // the previous grid may write vectors and read the output
    const uint32_t chunk_steps = Work::chunk_steps(p), buffer_bytes = chunk_steps * 2 * kRows;
    Chunks chunks = Chunks::of(p, work, lane);
    uint32_t chunk_step = work.chunk * chunk_steps; // of the chunk that is multiplied
    uint32_t buffer = 0, filled = 0;                // of that chunk, and the one that was filled last
    // Phase c is over when all warps have stored their pieces of chunk c, counted from the CTA's first. A warp stores
    // its pieces of chunk c + 1 when it starts to multiply chunk c. So it is through with chunk c - 1.
    const uint32_t stored = base + p.stored_at;
    if (threadIdx.x == 0) {
        arch::mbarrier_init(stored, work.warps * arch::kWarpArrivals);
        arch::fence_mbarrier_init();
    }
    __syncthreads();
    const auto store = [&](uint32_t chunk, uint32_t step) {
        if (chunk >= work.chunks) return;
        chunks.store(p, work, step, shared + p.x_at + filled * buffer_bytes);
        filled = filled == NVFP4_WGMMA_BUFFERS - 1 ? 0 : filled + 1;
        arch::fence_proxy_async(); // matrix instructions read what was stored
        arch::mbarrier_arrive_warp(stored, lane);
        if (chunk + 1 < work.chunks) chunks.load(p, work, step + chunk_steps);
    };
    if (work.chunks != 0) chunks.load(p, work, chunk_step);
    store(0, chunk_step);

    float sum[kVectors / 2] = {};
#pragma unroll 1
    for (uint32_t chunk = 0; chunk < work.chunks; ++chunk) {
        arch::mbarrier_wait(stored, chunk % 2);
        store(chunk + 1, chunk_step + chunk_steps);

        const uint32_t first = chunk_step + work.part * p.each, end = min(first + p.each, work.end);
        uint32_t x = base + p.x_at + buffer * buffer_bytes + work.part * p.each * 2 * kRows;
        // A chunk's sums, added to `sum` after the chunk: matrix instructions cut what they add to.
        float d[kVectors / 2];
#pragma unroll 1
        for (uint32_t step = first; step < end; ++step, x += 2 * kRows) {
            arch::cp_async_wait_group<NVFP4_MANY_STAGES - 2>();
            __syncwarp();
            const many::Codes<Weights> codes(many::Loads::Reader(), from, lane);
            from = loads.behind(from);
            loads.next(p, lane); // into the stage before this one: all lanes have read it

            uint32_t a[4][2][4];
#pragma unroll
            for (int word = 0; word < 4; ++word) {
                codes.decode(word, a[word]);
                arch::wgmma_pin(a[word][0]);
                arch::wgmma_pin(a[word][1]);
            }
            const uint64_t rows = arch::wgmma_rows_descriptor(x);
            arch::wgmma_pin(d);
            arch::wgmma_fence();
#pragma unroll
            for (int i = 0; i < kSlices; ++i) {
                const auto &of = a[i / 2][i % 2];
                // Only the lower word of a descriptor has the address, and has room for all of shared memory.
                const uint64_t b = rows >> 32 << 32 | (uint32_t(rows) + (i / 4 * kRows + i % 4 * 32) / 16);
                arch::wgmma<Element>(d, of[0], of[1], of[2], of[3], b, i != 0 || step != first);
            }
            arch::wgmma_commit_group();
            arch::wgmma_wait_group<0>();
            arch::wgmma_pin(d);
        }
        if (first < end) {
#pragma unroll
            for (int i = 0; i < kVectors / 2; ++i) sum[i] += d[i];
        }
        chunk_step += chunk_steps;
        buffer = buffer == NVFP4_WGMMA_BUFFERS - 1 ? 0 : buffer + 1;
    }
    __syncthreads();
    many::finish<kVectors>(p, work, shared, lane, sum, 1.0f / Weights::kFactor);
}

}  // namespace nvfp4::wgmma

// Entry points, by vectors of a pass and their type.
#define GEMV_WGMMA_OF(X, name, activation) \
    X(gemv_wgmma_##name##_n8, activation, 8) \
    X(gemv_wgmma_##name##_n16, activation, 16) \
    X(gemv_wgmma_##name##_n32, activation, 32) \
    X(gemv_wgmma_##name##_n64, activation, 64) \
    X(gemv_wgmma_##name##_n128, activation, 128)
#define GEMV_WGMMA(X)                               \
    GEMV_WGMMA_OF(X, nvfp4, NVFP4_ACTIVATION_NVFP4) \
    GEMV_WGMMA_OF(X, f16, NVFP4_ACTIVATION_F16)     \
    GEMV_WGMMA_OF(X, bf16, NVFP4_ACTIVATION_BF16)

#define ENTRY(name, activation, vectors)                                                          \
    NVFP4_KERNEL(name)(                                                                           \
    extern "C" __global__ void                                                                    \
    __launch_bounds__(nvfp4::wgmma::max_groups(vectors) * NVFP4_WGMMA_TILE_WARPS * NVFP4_WARP, 1) \
        name(const __grid_constant__ nvfp4_many_params p) {                                       \
        extern __shared__ __align__(1024) uint8_t dynamic[];                                      \
        nvfp4::wgmma::run<activation, vectors>(p, dynamic);                                       \
    })
GEMV_WGMMA(ENTRY)
NVFP4_TABLE(gemv_wgmma, GEMV_WGMMA)

#endif
