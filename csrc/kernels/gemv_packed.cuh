// GEMV for many vectors on Hopper's warpgroup matrix instructions (wgmma), in two or three launches. The first one packs
// the vectors into a workspace, as 16-bit floats in the order in which they shall lie in shared memory. The second one
// multiplies: its CTAs bring them from there with bulk copies, which cost no thread an instruction. sm_90a; K a multiple
// of 64. many_vectors.cuh has tiles, steps, and how weights and vectors lie.
//
// Work is dealt in chunks: a chunk is some steps of a group of tiles. The chunks of all groups, one group's after the
// other's, go to the CTAs in equal shares, whatever M is. So a CTA may begin and end within a group: the sums of such a
// part go to the workspace, and the third launch adds the parts of each group, in the order of K.
//
// Beside gemv_wgmma, where each CTA puts all vectors in order by itself, a warp has fewer instructions and registers of
// its own: a CTA has four warpgroups for any number of vectors, and decodes while matrix instructions multiply.

#include "many_vectors.cuh"

enum {
    NVFP4_PACKED_TILE_WARPS = 4,
    NVFP4_PACKED_MAX_GROUPS = 4, /* warpgroups of a CTA */
    /* Of vectors in shared memory: one that is multiplied, two that are brought, and one for warps that are behind. */
    NVFP4_PACKED_BUFFERS = 4,
    NVFP4_PACKED_AHEAD = 2,
    NVFP4_PACKED_BARRIER_BYTES = 2 * NVFP4_PACKED_BUFFERS * 8, /* mbarriers in shared memory: two a buffer */
    /* From so many vectors on, matrix instructions add up all steps of a warpgroup. Below that, threads add each chunk's
     * sums in f32: more exact, since matrix instructions cut what they add to, but it takes twice the registers. */
    NVFP4_PACKED_LONG_SUMS = 64,
    NVFP4_PACKED_PACK_WARPS = 8, /* of a CTA that packs */
};

/* How the chunks of all groups are dealt. A group is rows of one batch; groups are counted through all batches. */
typedef struct nvfp4_packed_deal {
    uint32_t groups;     /* of a batch */
    uint32_t chunks;     /* of a group */
    uint32_t each, more; /* chunks of each CTA; the first `more` have one more */
} nvfp4_packed_deal;

/* What packs vectors. */
typedef struct nvfp4_pack_params {
    int32_t n;
    uint32_t k, steps, l; /* of a row: elements, and steps, of which the last one may have 64 elements; batches */

    NVFP4_POINTER(const uint8_t) vectors;
    int64_t vector_row_bytes, vector_batch_bytes;
    NVFP4_POINTER(const uint8_t) vector_scales;
    nvfp4_scale_steps vector_scale_layout;
    int64_t vector_scale_batch_bytes;
    /* In the workspace, a step after the other, as it shall lie in shared memory. */
    NVFP4_POINTER(uint8_t) packed;
    int64_t packed_batch_bytes;
} nvfp4_pack_params;

/* What multiplies. Rows are counted in the order in which their scales lie: a row's place (row_at). */
typedef struct nvfp4_packed_params {
    int32_t m, n;
    uint32_t k, steps; /* as above */
    uint32_t l;        /* batches */
    uint32_t tiles;    /* of a group, and of a CTA: a warpgroup has one */
    uint32_t chunk;    /* steps */
    nvfp4_packed_deal deal;
    uint32_t x_at; /* bytes from the start of dynamic shared memory: the buffers of vectors; mbarriers are behind them */

    NVFP4_POINTER(const uint8_t) codes;
    NVFP4_POINTER(const uint8_t) scales;
    nvfp4_scale_steps scale_layout;
    int64_t code_row_bytes, scale_batch_bytes;

    NVFP4_POINTER(const uint8_t) packed;
    int64_t packed_batch_bytes;
    /* Sums of parts of groups. A CTA has at most two: [CTAs][2: where it begins, where it ends][warps][columns][lanes]
     * of four floats. A column is eight vectors of N; of them a lane has what a matrix instruction gives it. */
    NVFP4_POINTER(float) partial;

    nvfp4_epilogue epilogue;
} nvfp4_packed_params;

/* What adds the sums of parts: fields are nvfp4_packed_params'. */
typedef struct nvfp4_packed_add_params {
    int32_t m, n;
    uint32_t l, tiles;
    nvfp4_packed_deal deal;

    nvfp4_scale_steps scale_layout;
    NVFP4_POINTER(const float) partial;

    nvfp4_epilogue epilogue;
} nvfp4_packed_add_params;

#ifdef __CUDACC__

#include "../arch/bulk_copy.cuh"
#include "../arch/grid_dependency.cuh"
#include "../arch/mbarrier.cuh"
#include "../arch/registers.cuh"
#include "../arch/wgmma.cuh"
#include "../entries.cuh"

namespace nvfp4::packed {

using Params = nvfp4_packed_params;
using PackParams = nvfp4_pack_params;
using AddParams = nvfp4_packed_add_params;

constexpr uint32_t kBuffers = NVFP4_PACKED_BUFFERS, kAhead = NVFP4_PACKED_AHEAD;
static_assert(0 < kAhead && kAhead < kBuffers, "chunks that are brought are none that are multiplied");

// Where a step of a batch's packed vectors is: `step_bytes` a step.
template <class P>
__device__ __forceinline__ auto *step_at(const P &p, uint32_t batch, uint32_t step, uint32_t step_bytes) {
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

// The first chunk of a CTA, counted through all groups; of the one behind the last CTA, the number of chunks.
__device__ __forceinline__ uint32_t first_chunk(const nvfp4_packed_deal &deal, uint32_t cta) {
    return cta * deal.each + min(cta, deal.more);
}

template <class P>
__device__ __forceinline__ uint32_t batch_of(const P &p, uint32_t group) {
    return p.l > 1 ? group / p.deal.groups : 0; // a division delays the first copy
}

// Rows of a group.
template <class P>
__device__ __forceinline__ uint32_t group_rows(const P &p) {
    return p.tiles * NVFP4_PACKED_TILE_WARPS * many::kWarpRows;
}

// A lane's sums of one column after the other are so many floats apart.
constexpr uint32_t kColumnFloats = many::kWarp * 4;

// Where those of a CTA's part begin.
template <class P>
__device__ __forceinline__ auto *partial_at(const P &p, uint32_t cta, bool ends, uint32_t warp, uint32_t lane) {
    const uint32_t part = 2 * cta + ends, warps = p.tiles * NVFP4_PACKED_TILE_WARPS;
    const uint32_t columns = (p.n + many::kColumns - 1) / many::kColumns;
    return p.partial + int64_t(part * warps + warp) * columns * kColumnFloats + lane * 4;
}

// Sums of a column become outputs: of a warp's rows this lane has g and g + 8, of the column's vectors 2t and 2t + 1.
struct Outputs {
    uint32_t batch, row[2];

    template <class P>
    __device__ __forceinline__ Outputs(const P &p, uint32_t group, uint32_t warp, uint32_t lane)
        : batch(batch_of(p, group)) {
        const uint32_t place = (group - batch * p.deal.groups) * group_rows(p) + warp * many::kWarpRows + lane / 4;
#pragma unroll
        for (int i = 0; i < 2; ++i) row[i] = row_at(p.scale_layout, place + 8 * i);
    }

    template <class P>
    __device__ __forceinline__ void store(const P &p, uint32_t column, uint32_t lane, const float (&sum)[4]) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t n = column * many::kColumns + lane % 4 * 2 + i % 2;
            if (n < uint32_t(p.n) && row[i / 2] < uint32_t(p.m)) {
                nvfp4::store(p.epilogue, p.m, batch, row[i / 2], n, sum[i]);
            }
        }
    }
};

// Asked for anew wherever it is needed, so that the main loop need not keep it.
__device__ __forceinline__ uint32_t this_warp() { return arch::kept(threadIdx.x) / many::kWarp; }

// The steps of a warp, through the groups of its CTA.
struct GroupLoads : many::Loads {
    uint32_t group, left; // the group of the next step, and how many chunks are left in those behind it

    __device__ __forceinline__ GroupLoads(const Params &p, uint32_t group, uint32_t chunk, uint32_t chunks,
                                          uint32_t lane, uint32_t base)
        : many::Loads(this_warp(), base), group(group), left(chunks) {
        begin(p, chunk, lane);
    }

    // Chunks of `group`, from `chunk` on.
    __device__ __forceinline__ void begin(const Params &p, uint32_t chunk, uint32_t lane) {
        const uint32_t here = min(left, p.deal.chunks - chunk), batch = batch_of(p, group);
        left -= here;
        const uint32_t place = (group - batch * p.deal.groups) * group_rows(p) + this_warp() * many::kWarpRows;
        start(p, batch, place, chunk * p.chunk, min((chunk + here) * p.chunk, p.steps), lane);
    }

    __device__ __forceinline__ void next(const Params &p, uint32_t lane) {
        if (step == end && left != 0) {
            ++group;
            begin(p, 0, lane);
        }
        if (step < end) {
            copy(lane);
            advance(p, 1);
        }
        commit();
    }
};

// The chunks of vectors in shared memory: a ring of buffers, each with two mbarriers. A phase of `full` is over when a
// chunk has landed, one of `empty` when all warps have multiplied it. Chunks are counted from the CTA's first one.
struct Ring {
    uint32_t x, buffer_bytes, full, empty; // shared addresses of the first ones

    __device__ __forceinline__ Ring(const Params &p, uint32_t base, uint32_t buffer_bytes)
        : x(base + p.x_at), buffer_bytes(buffer_bytes), full(x + kBuffers * buffer_bytes), empty(full + 8 * kBuffers) {}

    __device__ __forceinline__ static uint32_t buffer(uint32_t index) { return index % kBuffers; }
    __device__ __forceinline__ static uint32_t parity(uint32_t index) { return index / kBuffers % 2; }

    // By the same thread, in front of that: nobody needs any more what is there.
    __device__ __forceinline__ void wait_empty(uint32_t index) const {
        if (index >= kBuffers) arch::mbarrier_wait(empty + 8 * buffer(index), parity(index - kBuffers));
    }

    // By one thread: the CTA's chunk `index`, which is chunk `chunk` of `group`, or of a group behind it.
    __device__ __forceinline__ void bring(const Params &p, uint32_t index, uint32_t group, uint32_t chunk,
                                          uint32_t step_bytes) const {
        while (chunk >= p.deal.chunks) {
            chunk -= p.deal.chunks;
            ++group;
        }
        const uint32_t at = buffer(index), first = chunk * p.chunk, bytes = min(p.chunk, p.steps - first) * step_bytes;
        arch::mbarrier_arrive_expect_tx(full + 8 * at, bytes);
        arch::load_bulk(x + at * buffer_bytes, step_at(p, batch_of(p, group), first, step_bytes), bytes,
                        full + 8 * at, arch::policy_evict_last());
    }
};

template <class Weights, class Element, int kVectors>
__device__ __forceinline__ void run(const Params &p, uint8_t *shared) {
    constexpr uint32_t kRows = kVectors * many::kVectorRow, kStepBytes = 2 * kRows;
    constexpr bool kLongSums = kVectors >= NVFP4_PACKED_LONG_SUMS;
    // Words of a lane's codes that are decoded and multiplied together, of four in a step.
    constexpr int kWords = kVectors < 128 ? 2 : 1;
    constexpr float kFactor = 1.0f / Weights::kFactor; // a power of two

    const uint32_t lane = arch::kept(threadIdx.x % many::kWarp);
    const uint32_t base = arch::shared_address(shared);
    const uint32_t first_of_cta = first_chunk(p.deal, blockIdx.x);
    const uint32_t chunks = p.deal.each + (blockIdx.x < p.deal.more);
    uint32_t group = first_of_cta / p.deal.chunks, begin = first_of_cta - group * p.deal.chunks;
    GroupLoads loads(p, group, begin, chunks, lane, base);
#pragma unroll 1
    for (int i = 0; i < NVFP4_MANY_STAGES - 1; ++i) loads.next(p, lane);

    const Ring ring(p, base, p.chunk * kStepBytes);
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < kBuffers; ++i) {
            arch::mbarrier_init(ring.full + 8 * i, 1);
            arch::mbarrier_init(ring.empty + 8 * i, p.tiles * NVFP4_PACKED_TILE_WARPS * arch::kWarpArrivals);
        }
        arch::fence_mbarrier_init();
    }
    __syncthreads();
    arch::grid_dependency_launch();
    arch::grid_dependency_wait(); // the previous grid packs; grids before it may still read the output
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < min(kAhead, chunks); ++i) ring.bring(p, i, group, begin + i, kStepBytes);
    }

    // Operands A of two groups of instructions: one is multiplied while the other one is decoded.
    uint32_t a[2][kWords][2][4];
    // The warp's next step, with vectors at shared address x; `add`: to what is in d.
    const auto multiply = [&](float(&d)[kVectors / 2], uint32_t x, bool add) {
        arch::wait_copies<NVFP4_MANY_STAGES - 2>();
        __syncwarp();
        const many::Codes<Weights> codes(loads.behind(loads.to), lane);
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
                arch::wgmma<Element>(d, r[0], r[1], r[2], r[3], b, kLongSums || slice != 0 || add);
            }
            arch::wgmma_commit();
        }
    };

    uint32_t index = 0; // of the CTA's next chunk
#pragma unroll 1
    for (; index < chunks; begin = 0, ++group) {
        uint32_t chunk = begin; // the group's next chunk
        const uint32_t here = min(chunks - index, p.deal.chunks - begin);
        uint32_t steps = min((begin + here) * p.chunk, p.steps) - begin * p.chunk;
        // Where the vectors of the next chunk are, when they are there.
        const auto next_chunk = [&] {
            if (threadIdx.x == 0 && index + kAhead < chunks) {
                ring.wait_empty(index + kAhead);
                ring.bring(p, index + kAhead, group, chunk + kAhead, kStepBytes);
            }
            __syncwarp();
            const uint32_t at = Ring::buffer(index);
            arch::mbarrier_wait(ring.full + 8 * at, Ring::parity(index));
            ++chunk;
            ++index;
            return ring.x + at * ring.buffer_bytes;
        };
        float sum[kVectors / 2] = {};
        arch::wgmma_pin(sum);
        if constexpr (kLongSums) {
            // One loop over all steps, not one for chunks around it: through that ptxas would not have multiplications on
            // their way.
            uint32_t left = 0, x = 0; // of the chunk
#pragma unroll 1
            for (; steps != 0; --steps, --left, x += kStepBytes) {
                const bool starts = left == 0;
                if (starts) {
                    x = next_chunk();
                    left = min(p.chunk, steps);
                }
                multiply(sum, x, true);
                // Of the steps before this one all is over: the wait in front of the last group says so.
                if (starts && index > 1) arch::mbarrier_arrive_warp(ring.empty + 8 * Ring::buffer(index - 2), lane);
            }
            arch::wgmma_wait<0>();
            arch::wgmma_pin(sum);
        } else {
#pragma unroll 1
            while (steps != 0) {
                uint32_t x = next_chunk();
                const uint32_t of_chunk = min(p.chunk, steps);
                steps -= of_chunk;
                float own[kVectors / 2];
#pragma unroll 1
                for (uint32_t step = 0; step < of_chunk; ++step, x += kStepBytes) multiply(own, x, step != 0);
                arch::wgmma_wait<0>();
                arch::wgmma_pin(own);
                arch::mbarrier_arrive_warp(ring.empty + 8 * Ring::buffer(index - 1), lane);
#pragma unroll
                for (int i = 0; i < kVectors / 2; ++i) sum[i] += own[i];
            }
        }

        const bool whole = chunk - begin == p.deal.chunks;
        const uint32_t warp = this_warp();
        const Outputs outputs(p, group, warp, lane);
        float *const partial = partial_at(p, blockIdx.x, index != chunk - begin, warp, lane);
#pragma unroll
        for (int column = 0; column < kVectors / many::kColumns; ++column) {
            float of[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) of[i] = sum[4 * column + i] * kFactor;
            if (whole) {
                outputs.store(p, column, lane, of);
            } else if (column * many::kColumns < p.n) {
                arch::store_128(partial + column * kColumnFloats, of, arch::policy_evict_last());
            }
        }
    }
}

// The parts of a group that is divided where CTA blockIdx.x + 1 begins, and nowhere before, become outputs. Of the rows of
// the group's warp blockIdx.y, a warp has a column.
__device__ __forceinline__ void add(const AddParams &p) {
    const uint32_t lane = threadIdx.x % many::kWarp, column = threadIdx.x / many::kWarp, warp = blockIdx.y;
    const uint32_t border = first_chunk(p.deal, blockIdx.x + 1), group = border / p.deal.chunks;
    const uint32_t first = group * p.deal.chunks;
    arch::grid_dependency_launch();
    arch::grid_dependency_wait(); // the previous grid writes sums
    if (first == border || first_chunk(p.deal, blockIdx.x) > first) return;

    float sum[4] = {};
    uint32_t begin = first_chunk(p.deal, blockIdx.x);
#pragma unroll 1
    for (uint32_t cta = blockIdx.x; begin < first + p.deal.chunks; begin = first_chunk(p.deal, ++cta)) {
        const float *const at = partial_at(p, cta, begin < first, warp, lane) + column * kColumnFloats;
        const float4 part = *reinterpret_cast<const float4 *>(at);
        sum[0] += part.x;
        sum[1] += part.y;
        sum[2] += part.z;
        sum[3] += part.w;
    }
    Outputs(p, group, warp, lane).store(p, column, lane, sum);
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
        name(const __grid_constant__ nvfp4_packed_params p) {                                             \
        extern __shared__ __align__(1024) uint8_t dynamic[];                                              \
        nvfp4::packed::run<Weights, Element, vectors>(p, dynamic);                                        \
    }
GEMV_PACKED(ENTRY)
extern "C" __global__ void gemv_packed_add(const __grid_constant__ nvfp4_packed_add_params p) {
    nvfp4::packed::add(p);
}
#define GEMV_PACKED_ALL(X) GEMV_PACKED_PACK(X) GEMV_PACKED(X) X(gemv_packed_add)
NVFP4_TABLE(gemv_packed, GEMV_PACKED_ALL)

#endif
