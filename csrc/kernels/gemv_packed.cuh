// GEMV for many vectors on Hopper's warpgroup matrix instructions (wgmma), in two launches. The first one packs the
// vectors into a workspace, as 16-bit floats in the order in which they shall lie in shared memory. The second one
// multiplies: its CTAs bring them from there with bulk copies, which cost no thread an instruction. sm_90a; K a multiple
// of 64. many_vectors.cuh has how rows and steps are divided, and what becomes of sums.
//
// Beside gemv_wgmma, where each CTA puts all vectors in order by itself, a warp has fewer instructions and registers of
// its own: a CTA has four warpgroups for any number of vectors, and decodes while matrix instructions multiply.

#include "many_vectors.cuh"

enum {
    NVFP4_PACKED_TILE_WARPS = 4,
    NVFP4_PACKED_MAX_GROUPS = 4, /* warpgroups of a CTA */
    /* Of vectors in shared memory: one that is multiplied, two that are brought, and one for warpgroups that are behind. */
    NVFP4_PACKED_BUFFERS = 4,
    NVFP4_PACKED_AHEAD = 2,
    NVFP4_PACKED_BARRIER_BYTES = 2 * NVFP4_PACKED_BUFFERS * 8, /* mbarriers in shared memory: two a buffer */
    /* From so many vectors on, matrix instructions add up all steps of a warpgroup. Below that, threads add each chunk's
     * sums in f32: more exact, since matrix instructions cut what they add to, but it takes twice the registers. */
    NVFP4_PACKED_LONG_SUMS = 64,
    NVFP4_PACKED_PACK_WARPS = 8, /* of a CTA that packs */
};

#ifdef __CUDACC__

#include "../arch/bulk_copy.cuh"
#include "../arch/grid_dependency.cuh"
#include "../arch/mbarrier.cuh"
#include "../arch/registers.cuh"
#include "../arch/wgmma.cuh"
#include "../entries.cuh"

namespace nvfp4::packed {

using many::Params;
using PackParams = nvfp4_pack_params;

constexpr uint32_t kBuffers = NVFP4_PACKED_BUFFERS, kAhead = NVFP4_PACKED_AHEAD;
static_assert(0 < kAhead && kAhead < kBuffers, "chunks that are brought are none that are multiplied");

// Where a step of a batch's packed vectors is: `step_bytes` a step.
template <class P>
__device__ __forceinline__ uint8_t *step_at(const P &p, uint32_t batch, uint32_t step, uint32_t step_bytes) {
    return p.packed + batch * p.packed_batch_bytes + int64_t(step) * step_bytes;
}

// Stands in for many::Work where a warp packs: a chunk is one step.
struct PackWork {
    uint32_t batch, chunk;

    __device__ static __forceinline__ uint32_t chunk_steps(const PackParams &) { return 1; }
};

// A warp packs a step of eight vectors.
template <int kActivation, int kVectors>
__device__ __forceinline__ void pack(const PackParams &p) {
    using Piece = many::Piece<kActivation, kVectors>;
    const uint32_t lane = threadIdx.x % many::kWarp;
    const uint32_t piece = blockIdx.x * NVFP4_PACKED_PACK_WARPS + threadIdx.x / many::kWarp;
    const uint32_t step = piece / Piece::kOfStep, batch = step / p.steps;
    const PackWork work = {batch, step - batch * p.steps};

    arch::grid_dependency_launch();
    arch::grid_dependency_wait(); // the previous grid may write vectors, and read the workspace
    if (batch >= p.l) return;
    Piece of(p, work, lane, piece % Piece::kOfStep);
    of.load(p, work.chunk);
    of.store(p, work.chunk, step_at(p, batch, work.chunk, 2 * Piece::kRows));
    arch::fence_proxy_async_global(); // bulk copies read what was stored
}

// The chunks of vectors in shared memory: a ring of buffers, each with two mbarriers. A phase of `full` is over when a
// chunk has landed, one of `empty` when all warps have multiplied it.
struct Ring {
    uint32_t x, buffer_bytes, full, empty; // shared addresses of the first ones

    __device__ __forceinline__ Ring(const Params &p, uint32_t base, uint32_t buffer_bytes)
        : x(base + p.x_at), buffer_bytes(buffer_bytes), full(base + p.stored_at), empty(full + 8 * kBuffers) {}

    __device__ __forceinline__ static uint32_t buffer(uint32_t chunk) { return chunk % kBuffers; }
    __device__ __forceinline__ static uint32_t parity(uint32_t chunk) { return chunk / kBuffers % 2; }

    // By one thread: the CTA's chunk `chunk`, counted from its first one, if it has so many.
    template <class Work>
    __device__ __forceinline__ void bring(const Params &p, const Work &work, uint32_t chunk, uint32_t step_bytes) const {
        if (chunk >= work.chunks) return;
        const uint32_t at = buffer(chunk), steps = Work::chunk_steps(p);
        if (chunk >= kBuffers) arch::mbarrier_wait(empty + 8 * at, parity(chunk - kBuffers));
        const uint32_t first = (work.chunk + chunk) * steps, bytes = min(steps, work.end - first) * step_bytes;
        arch::mbarrier_arrive_expect_tx(full + 8 * at, bytes);
        arch::load_bulk(x + at * buffer_bytes, step_at(p, work.batch, first, step_bytes), bytes, full + 8 * at,
                        arch::policy_evict_last());
    }
};

template <class Weights, class Element, int kVectors>
__device__ __forceinline__ void run(const Params &p, uint8_t *shared) {
    using Work = many::Work<NVFP4_PACKED_TILE_WARPS>;
    constexpr uint32_t kRows = kVectors * many::kVectorRow, kStepBytes = 2 * kRows;
    constexpr bool kLongSums = kVectors >= NVFP4_PACKED_LONG_SUMS;
    // Words of a lane's codes that are decoded and multiplied together, of four in a step.
    constexpr int kWords = kVectors < 128 ? 2 : 1;

    const uint32_t lane = arch::kept(threadIdx.x % many::kWarp);
    // The same in all lanes, which the compiler learns so: descriptors are uniform.
    const Work work(p, __shfl_sync(~0u, threadIdx.x / many::kWarp, 0));
    const uint32_t base = arch::shared_address(shared), chunk_steps = Work::chunk_steps(p);
    many::Loads loads(p, work, lane, base);
    uint32_t from = loads.to;
#pragma unroll 1
    for (int i = 0; i < NVFP4_MANY_STAGES - 1; ++i) loads.next(p, lane);

    const Ring ring(p, base, chunk_steps * kStepBytes);
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < kBuffers; ++i) {
            arch::mbarrier_init(ring.full + 8 * i, 1);
            arch::mbarrier_init(ring.empty + 8 * i, work.warps * arch::kWarpArrivals);
        }
        arch::fence_mbarrier_init();
    }
    __syncthreads();
    arch::grid_dependency_launch();
    arch::grid_dependency_wait(); // the previous grid packs; grids before it may still read the output
    if (threadIdx.x == 0) {
        for (uint32_t chunk = 0; chunk < kAhead; ++chunk) ring.bring(p, work, chunk, kStepBytes);
    }

    float sum[kVectors / 2] = {};
    arch::wgmma_pin(sum);
    // Operands A of two groups of instructions: one is multiplied while the other one is decoded.
    uint32_t a[2][kWords][2][4];
    uint32_t chunk_step = work.chunk * chunk_steps;
#pragma unroll 1
    for (uint32_t chunk = 0; chunk < work.chunks; ++chunk) {
        if (threadIdx.x == 0) ring.bring(p, work, chunk + kAhead, kStepBytes);
        __syncwarp();
        const uint32_t at = Ring::buffer(chunk);
        arch::mbarrier_wait(ring.full + 8 * at, Ring::parity(chunk));

        const uint32_t first = chunk_step + work.part * p.each, end = min(first + p.each, work.end);
        uint32_t x = ring.x + at * ring.buffer_bytes + work.part * p.each * kStepBytes;
        float own[kVectors / 2];
        float(&d)[kVectors / 2] = kLongSums ? sum : own;
#pragma unroll 1
        for (uint32_t step = first; step < end; ++step, x += kStepBytes) {
            arch::wait_copies<NVFP4_MANY_STAGES - 2>();
            __syncwarp();
            const many::Codes<Weights> codes(from, lane);
            from = loads.behind(from);
            loads.next(p, lane); // into the stage before this one: all lanes have read it

            const uint64_t rows = arch::wgmma_rows_descriptor(__shfl_sync(~0u, x, 0));
#pragma unroll
            for (int word = 0; word < 4; word += kWords) {
                // What was multiplied from these registers is over. The other group may still be multiplied.
                auto &of = a[word / kWords % 2];
                arch::wgmma_wait<1>();
#pragma unroll
                for (int i = 0; i < kWords; ++i) {
                    codes.decode(word + i, of[i]);
                    arch::wgmma_pin(of[i][0]);
                    arch::wgmma_pin(of[i][1]);
                }
                arch::wgmma_fence();
#pragma unroll
                for (int i = 0; i < 2 * kWords; ++i) {
                    const int slice = 2 * word + i;
                    // Only the lower word holds the address, in bits that shared memory does not exceed.
                    const uint64_t b = rows >> 32 << 32 | (uint32_t(rows) + (slice / 4 * kRows + slice % 4 * 32) / 16);
                    const auto &r = of[i / 2][i % 2];
                    arch::wgmma<Element>(d, r[0], r[1], r[2], r[3], b, kLongSums || slice != 0 || step != first);
                }
                arch::wgmma_commit();
            }
        }
        arch::wgmma_wait<0>();
        arch::wgmma_pin(d);
        arch::mbarrier_arrive_warp(ring.empty + 8 * at, lane);
        if constexpr (!kLongSums) {
            if (first < end) {
#pragma unroll
                for (int i = 0; i < kVectors / 2; ++i) sum[i] += own[i];
            }
        }
        chunk_step += chunk_steps;
    }
    __syncthreads();
    // Computed again, so that the loop need not keep them in registers.
    const uint32_t thread = arch::kept(threadIdx.x);
    const Work same(p, thread / many::kWarp);
    many::finish<kVectors>(p, same, shared, thread % many::kWarp, sum, 1.0f / Weights::kFactor);
}

}  // namespace nvfp4::packed

// What packs vectors, by their type, for so many of a pass; and what multiplies with them, by their type after that.
#define GEMV_PACKED_PACK_OF(X, name, activation) \
    X(gemv_packed_pack_##name##_n8, activation, 8) \
    X(gemv_packed_pack_##name##_n16, activation, 16) \
    X(gemv_packed_pack_##name##_n32, activation, 32) \
    X(gemv_packed_pack_##name##_n64, activation, 64) \
    X(gemv_packed_pack_##name##_n128, activation, 128)
#define GEMV_PACKED_PACK(X)                               \
    GEMV_PACKED_PACK_OF(X, nvfp4, NVFP4_ACTIVATION_NVFP4) \
    GEMV_PACKED_PACK_OF(X, f16, NVFP4_ACTIVATION_F16)     \
    GEMV_PACKED_PACK_OF(X, bf16, NVFP4_ACTIVATION_BF16)
#define GEMV_PACKED_OF(X, name, Weights, Element) \
    X(gemv_packed_##name##_n8, Weights, Element, 8) \
    X(gemv_packed_##name##_n16, Weights, Element, 16) \
    X(gemv_packed_##name##_n32, Weights, Element, 32) \
    X(gemv_packed_##name##_n64, Weights, Element, 64) \
    X(gemv_packed_##name##_n128, Weights, Element, 128)
#define GEMV_PACKED(X)                                             \
    GEMV_PACKED_OF(X, f16, nvfp4::ScaledF16, nvfp4::arch::WgmmaF16) \
    GEMV_PACKED_OF(X, bf16, nvfp4::ScaledBf16, nvfp4::arch::WgmmaBf16)

#define PACK_ENTRY(name, activation, vectors)                                             \
    extern "C" __global__ void __launch_bounds__(NVFP4_PACKED_PACK_WARPS * NVFP4_WARP)     \
        name(const __grid_constant__ nvfp4_pack_params p) {                               \
        nvfp4::packed::pack<activation, vectors>(p);                                      \
    }
GEMV_PACKED_PACK(PACK_ENTRY)
#define ENTRY(name, Weights, Element, vectors)                                                            \
    extern "C" __global__ void                                                                            \
    __launch_bounds__(NVFP4_PACKED_MAX_GROUPS * NVFP4_PACKED_TILE_WARPS * NVFP4_WARP, 1)                  \
        name(const __grid_constant__ nvfp4_many_params p) {                                               \
        extern __shared__ __align__(1024) uint8_t dynamic[];                                              \
        nvfp4::packed::run<Weights, Element, vectors>(p, dynamic);                                        \
    }
GEMV_PACKED(ENTRY)
#define GEMV_PACKED_ALL(X) GEMV_PACKED_PACK(X) GEMV_PACKED(X)
NVFP4_TABLE(gemv_packed, GEMV_PACKED_ALL)

#endif
