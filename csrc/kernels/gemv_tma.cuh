// NVFP4 weights times NVFP4 vectors on CUDA cores, fed by a pipeline of tensor copies:
// sm_90, sm_100 and sm_103.
//
// Groups of four warps take the K steps in turn. A lane has the rows r, r + 32, r + 64 and r + 96 of
// one atom: 16 bytes hold their 16 scales, and eight lanes read 128 consecutive bytes of codes or
// scales, swizzled or not. Products are integer dot products of a block, as in gemv_dot.

#include "tile_pipeline.cuh"

enum {
    NVFP4_TMA_GROUPS = 2,      /* of consumer warps, each with a K step of its own */
    NVFP4_TMA_GROUP_WARPS = 4,
    NVFP4_TMA_THREADS = (NVFP4_TMA_GROUPS * NVFP4_TMA_GROUP_WARPS + 1) * NVFP4_WARP,
    NVFP4_TMA_VECTORS = 8, /* of a pass at most, and rows of a stage for them and for their scales */
    NVFP4_TMA_STAGE_BYTES = NVFP4_TILE_STAGE_BYTES(NVFP4_TMA_VECTORS, NVFP4_TMA_VECTORS),
};

#ifdef __CUDACC__

#include "../arch/convert.cuh"
#include "../entries.cuh"
#include "integer_dot.cuh"

namespace nvfp4::tma {

constexpr uint32_t kGroups = NVFP4_TMA_GROUPS;
constexpr uint32_t kGroupWarps = NVFP4_TMA_GROUP_WARPS; // a warp has 8 of the 32 values of r
constexpr uint32_t kConsumers = kGroups * kGroupWarps * 32;
constexpr uint32_t kMaxVectors = NVFP4_TMA_VECTORS;
constexpr int kLaneRows = 4;
constexpr int kAtomBlocks = NVFP4_ATOM_BLOCKS;

using Stage = tile::Stage<kMaxVectors, kMaxVectors>;

template <int kVectors>
struct Shared {
    tile::Barriers barriers;
    tile::Partial<kGroups, kVectors> partial;
};

template <class T>
__device__ __forceinline__ T load_shared(const uint8_t *p) {
    return *reinterpret_cast<const T *>(p);
}

// Where the 16 bytes `chunk` of a row of codes lie: the 128-byte swizzle.
__device__ __forceinline__ uint32_t code_offset(uint32_t row, uint32_t chunk) {
    return row * tile::kRowBytes + ((chunk ^ (row & 7)) << 4);
}

// One row's scales of an atom, as numbers.
__device__ __forceinline__ float4 scales(uint32_t word) {
    const float2 low = __half22float2(arch::cvt_e4m3x2(uint16_t(word)));
    const float2 high = __half22float2(arch::cvt_e4m3x2(uint16_t(word >> 16)));
    return make_float4(low.x, low.y, high.x, high.y);
}

__device__ __forceinline__ float element(const float4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// A lane's part of a K step: 64 elements of four rows.
struct Weights {
    uint4 codes[kLaneRows][2];
    uint4 scales;

    __device__ __forceinline__ void load(const uint8_t *stage, uint32_t atom, uint32_t r) {
        scales = load_shared<uint4>(stage + Stage::kWeightScales + atom * tile::kAtomBytes +
                                     r * tile::kAtomLineBytes);
#pragma unroll
        for (int q = 0; q < kLaneRows; ++q) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                codes[q][c] = load_shared<uint4>(stage + Stage::kWeights +
                                                 code_offset(r + 32 * q, 2 * atom + c));
            }
        }
    }

    __device__ __forceinline__ uint2 block(int q, int b) const {
        const uint4 &chunk = codes[q][b / 2];
        return b % 2 == 0 ? make_uint2(chunk.x, chunk.y) : make_uint2(chunk.z, chunk.w);
    }

    __device__ __forceinline__ uint32_t scale_word(int q) const {
        return q == 0 ? scales.x : q == 1 ? scales.y : q == 2 ? scales.z : scales.w;
    }
};

// The same 64 elements of the vectors, in the stage.
struct Vectors {
    const uint8_t *stage;
    uint32_t atom, scale_column;

    __device__ __forceinline__ uint2 block(int n, int b) const {
        return load_shared<uint2>(stage + Stage::kVectors + code_offset(n, 2 * atom + b / 2) +
                                  b % 2 * 8);
    }
    __device__ __forceinline__ uint32_t scale_word(int n) const {
        return load_shared<uint32_t>(stage + Stage::kVectorScales +
                                     atom * Stage::kVectorAtomBytes + n * tile::kAtomLineBytes +
                                     scale_column * 4);
    }
};

// The 64 elements of one vector, in registers.
struct Vector {
    uint2 codes[kAtomBlocks];
    uint32_t scales;

    __device__ __forceinline__ void load(const Vectors &from) {
        scales = from.scale_word(0);
#pragma unroll
        for (int b = 0; b < kAtomBlocks; ++b) codes[b] = from.block(0, b);
    }
    __device__ __forceinline__ uint2 block(int, int b) const { return codes[b]; }
    __device__ __forceinline__ uint32_t scale_word(int) const { return scales; }
};

template <int kVectors, class Source>
__device__ __forceinline__ void multiply(float (&sum)[kLaneRows][kVectors],
                                         const int8::Lookup &lookup, const Weights &w,
                                         const Source &x, uint32_t mask) {
    float4 w_scale[kLaneRows];
#pragma unroll
    for (int q = 0; q < kLaneRows; ++q) w_scale[q] = scales(w.scale_word(q) & mask);
#pragma unroll
    for (int b = 0; b < kAtomBlocks; ++b) {
        uint4 x_block[kVectors];
        float x_factor[kVectors];
#pragma unroll
        for (int n = 0; n < kVectors; ++n) {
            x_block[n] = int8::Magnitudes(lookup, x.block(n, b)).joined();
            x_factor[n] = 0.25f * element(scales(x.scale_word(n) & mask), b); // both operands are times two
        }
#pragma unroll
        for (int q = 0; q < kLaneRows; ++q) {
            const int8::Magnitudes w_block(lookup, w.block(q, b));
            const float w_factor = element(w_scale[q], b);
#pragma unroll
            for (int n = 0; n < kVectors; ++n) {
                sum[q][n] = fmaf(w_block.dot(x_block[n]), w_factor * x_factor[n], sum[q][n]);
            }
        }
    }
}

// By the warps of a group.
template <int kVectors>
__device__ __forceinline__ void multiply_steps(const tile::Params &p, const tile::Ring &ring,
                                               const uint8_t *stages, const tile::Work &work,
                                               tile::Partial<kGroups, kVectors> &partial) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t group = warp / kGroupWarps;
    const uint32_t atom = lane / 8, r = warp % kGroupWarps * 8 + lane % 8;
    const int8::Lookup lookup;
    float sum[kLaneRows][kVectors] = {};
    tile::Position at;
    at.slot = group;
#pragma unroll 1
    for (uint32_t step = work.begin + group; step < work.end; step += kGroups) {
        arch::mbarrier_wait(ring.full_barrier(at.slot), at.parity);
        const uint8_t *stage = stages + at.slot * Stage::kBytes;
        // Past the end of K a stage holds nothing, or what it held before.
        const bool exists = atom < tile::step_atoms(p, step);
        const uint32_t mask = tile::scale_mask(p, step * tile::kStepAtoms + atom);
        const Vectors in_stage = {stage, atom, p.scale_column};
        // Every lane for itself: as fast as one for its warp, and compute-sanitizer can follow it.
        const auto release = [&] { arch::mbarrier_arrive(ring.empty_barrier(at.slot)); };
        Weights w;
        if (exists) w.load(stage, atom, r);
        if constexpr (kVectors == 1) {
            Vector x; // all in registers, so that the next load need not wait for the arithmetic
            if (exists) x.load(in_stage);
            release();
            if (exists) multiply(sum, lookup, w, x, mask);
        } else {
            if (exists) multiply(sum, lookup, w, in_stage, mask);
            release();
        }
        at.advance(kGroups, p.stages);
    }
#pragma unroll
    for (int q = 0; q < kLaneRows; ++q) {
#pragma unroll
        for (int n = 0; n < kVectors; ++n) {
            float &s = sum[q][n];
            s += __shfl_xor_sync(0xffffffffu, s, 8);
            s += __shfl_xor_sync(0xffffffffu, s, 16);
            if (atom == 0) partial.sum[group][n][r + 32 * q] = s;
        }
    }
}

// Grid: x clusters of a tile each, y batches. Dynamic shared memory: the stages, a multiple of
// kGroups, and a swizzle pattern less 16 bytes to align them.
template <int kVectors>
__device__ __forceinline__ void gemv(const tile::Maps &maps, const tile::Params &p) {
    extern __shared__ uint8_t dynamic[];
    __shared__ Shared<kVectors> shared;
    const uint8_t *stages = tile::align_to_pattern(dynamic);
    const tile::Ring ring(stages, shared.barriers);
    const tile::Work work(p);
    const bool loads = threadIdx.x >= kConsumers;

    if (loads && arch::elect_one()) {
        tile::prefetch(maps);
        tile::init_barriers(ring, p.stages, kGroupWarps * 32);
    }
    __syncthreads();

    if (loads) {
        if (arch::elect_one()) {
            const tile::Loader<Stage, tile::ReuseAfterLoads> loader(p, maps, ring, work);
            loader.fill();
            loader.refill();
        }
        __syncwarp();
    } else {
        multiply_steps<kVectors>(p, ring, stages, work, shared.partial);
        arch::grid_dependency_wait(); // the previous grid may still read what is stored here
    }

    arch::cluster_arrive();
    arch::cluster_wait();
    if (!loads) tile::reduce_and_store<kConsumers>(p, work, shared.partial, threadIdx.x);
    arch::cluster_arrive(); // a peer may still read this CTA's partial sums
    arch::cluster_wait();
}

}  // namespace nvfp4::tma

// Vectors of a pass.
#define GEMV_TMA(X)   \
    X(gemv_tma_n1, 1) \
    X(gemv_tma_n2, 2) \
    X(gemv_tma_n4, 4) \
    X(gemv_tma_n8, 8)

#define ENTRY(name, vectors)                                                                                \
    NVFP4_KERNEL(name)(                                                                                     \
    extern "C" __global__ void __launch_bounds__(NVFP4_TMA_THREADS, vectors <= NVFP4_FEW_VECTORS ? 2 : 1)   \
        name(const __grid_constant__ nvfp4::tile::Maps maps, const __grid_constant__ nvfp4_tile_params p) { \
        nvfp4::tma::gemv<vectors>(maps, p);                                                                 \
    })
GEMV_TMA(ENTRY)
NVFP4_TABLE(gemv_tma, GEMV_TMA)

#endif
