// GEMV on CUDA cores, sm_80 and newer: the simplest kernel, which takes every problem.
//
// A warp computes a tile of kRows rows for all vectors. Its 32 lanes stride over K, 16 or 32 elements each. They load
// weights straight from global memory into registers; nothing is staged. `k_split` warps of a CTA may share a tile:
// each takes every k_split-th step. Partial sums meet by a butterfly of shuffles inside the warp, and in shared memory,
// in an order that depends on the config only.
//
// NVFP4 vectors: the 16 products of a block are summed exactly in f16x2. Each half's 8 products are multiples of 1/4,
// and at most 288 in sum: 11 bits. The block's sum times two scales is exact in f32 (12 + 8 bits). Only the f32 sum
// over blocks rounds. Other vectors: products and sums in f32.

#include "../shared.h"

enum {
    NVFP4_DIRECT_PASS_VECTORS = 8, /* vectors of one pass over the weights, at most */
    NVFP4_DIRECT_MAX_WARPS = 8,    /* of a CTA */
    /* Rows that a warp computes at once, with few vectors and with more. More rows share the decoded vectors; fewer
     * rows leave registers for the sums of many vectors. */
    NVFP4_DIRECT_ROWS = 4,
    NVFP4_DIRECT_ROWS_OF_MANY = 2,
    /* Step from one row of a tile to the next where scales lie 128x4, so that the tile's rows share their sectors.
     * Tiles then come in whole groups of as many. */
    NVFP4_DIRECT_TILED_ROW_STEP = 32,
};

typedef struct nvfp4_direct_params {
    int32_t m, n, l, blocks;
    int32_t k_split;  /* warps that share a row tile */
    int32_t row_step; /* from one row of a tile to the next: 1, or NVFP4_DIRECT_TILED_ROW_STEP */

    nvfp4_weights weights;
    nvfp4_vectors vectors;
    nvfp4_epilogue epilogue;
    nvfp4_select select;
} nvfp4_direct_params;

#ifdef __CUDACC__

#include <cuda_fp16.h>

#include "../arch/griddepcontrol.cuh"
#include "../arch/memory.cuh"
#include "../entries.cuh"
#include "../format/dense.cuh"
#include "../format/e2m1.cuh"
#include "../format/operands.cuh"
#include "../format/scale_steps.cuh"
#include "epilogue.cuh"

namespace nvfp4 {

constexpr int kWarp = NVFP4_WARP;
constexpr int kBlock = NVFP4_BLOCK;
constexpr int kMaxWarps = NVFP4_DIRECT_MAX_WARPS;

// Row `i` of tile `tile`. 32 tiles of row step 32 cover 32 * kRows consecutive rows.
template <int kRows>
__device__ __forceinline__ int32_t tile_row(const nvfp4_direct_params &p, int32_t tile, int i) {
    constexpr int kStep = NVFP4_DIRECT_TILED_ROW_STEP;
    return p.row_step == 1 ? tile * kRows + i : tile / kStep * (kStep * kRows) + tile % kStep + i * kStep;
}

__host__ __device__ constexpr int rows_per_warp(int vectors) {
    return vectors <= NVFP4_FEW_VECTORS ? NVFP4_DIRECT_ROWS : NVFP4_DIRECT_ROWS_OF_MANY;
}

// A block of 16 weights, decoded to multiply with vectors of one activation type, and a block of such a vector. `dot`
// returns the sum of the 16 products. That sum times the block's two scales is what the block adds to the result.
template <int kActivation>
struct Block;

template <>
struct Block<NVFP4_ACTIVATION_NVFP4> {
    static constexpr int kVectorBytes = kBlock / 2;

    struct Weight {
        E2m1x8 lo, hi; // times E2m1x8::kFactor

        __device__ __forceinline__ void decode(uint2 codes) {
            lo.decode(codes.x);
            hi.decode(codes.y);
        }
    };

    struct Vector {
        E2m1x8 lo, hi;
        float scale; // undoes the weights' factor too, once for all rows

        __device__ __forceinline__ void load(const uint8_t *x, const uint8_t *scale_at) {
            const uint2 codes = arch::ld_global_64(x);
            lo.decode(codes.x);
            hi.decode(codes.y);
            lo.normalize();
            hi.normalize();
            scale = __low2float(arch::cvt_e4m3x2(arch::ld_global_8(scale_at))) *
                    (1.0f / E2m1x8::kFactor);
        }
    };

    // Exact: see the top of the file.
    __device__ static __forceinline__ float dot(const Weight &w, const Vector &x) {
        __half2 sum = __hmul2(w.lo.pair[0], x.lo.pair[0]);
#pragma unroll
        for (int i = 1; i < 4; ++i) sum = __hfma2(w.lo.pair[i], x.lo.pair[i], sum);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum = __hfma2(w.hi.pair[i], x.hi.pair[i], sum);
        return __low2float(sum) + __high2float(sum);
    }
};

// Vectors of 16 or 32 bits; Load turns 16 bytes of them into floats.
template <class Load>
struct WideBlock {
    static constexpr int kVectorBytes = kBlock * Load::kBytes;

    struct Weight {
        float value[kBlock];

        __device__ __forceinline__ void decode(uint2 codes) {
            decode8(codes.x, value);
            decode8(codes.y, value + 8);
        }

      private:
        __device__ static __forceinline__ void decode8(uint32_t codes, float *out) {
            E2m1x8 w;
            w.decode(codes);
            w.normalize();
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                out[E2m1x8::low(i)] = __low2float(w.pair[i]);
                out[E2m1x8::high(i)] = __high2float(w.pair[i]);
            }
        }
    };

    struct Vector {
        float value[kBlock];
        static constexpr float scale = 1.0f;

        __device__ __forceinline__ void load(const uint8_t *x, const uint8_t *) {
#pragma unroll
            for (int i = 0; i < kVectorBytes / 16; ++i) {
                Load::unpack(arch::ld_global_128(x + 16 * i), value + i * (16 / Load::kBytes));
            }
        }
    };

    __device__ static __forceinline__ float dot(const Weight &w, const Vector &x) {
        float sum = w.value[0] * x.value[0];
#pragma unroll
        for (int i = 1; i < kBlock; ++i) sum = fmaf(w.value[i], x.value[i], sum);
        return sum;
    }
};

template <>
struct Block<NVFP4_ACTIVATION_F16> : WideBlock<LoadF16> {};
template <>
struct Block<NVFP4_ACTIVATION_BF16> : WideBlock<LoadBf16> {};
template <>
struct Block<NVFP4_ACTIVATION_F32> : WideBlock<LoadF32> {};

// Weights that a lane loads in one step: kBlocks blocks of kRows rows.
template <int kRows, int kBlocks>
struct WeightStep {
    uint2 codes[kRows][kBlocks];
    uint16_t scales[kRows]; // kBlocks E4M3 codes

    __device__ __forceinline__ void load(const nvfp4_direct_params &p,
                                         const uint8_t *const (&codes_at)[kRows],
                                         const uint8_t *const (&scales_at)[kRows], int32_t block) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const uint8_t *at = codes_at[r] + int64_t(block) * (kBlock / 2);
            if constexpr (kBlocks == 2) {
                const uint4 v = arch::ld_global_nc_no_allocate_128(at);
                codes[r][0] = make_uint2(v.x, v.y);
                codes[r][1] = make_uint2(v.z, v.w);
            } else {
                codes[r][0] = arch::ld_global_nc_no_allocate_64(at);
            }
        }
        const int32_t offset = block_offset(p.weights.scale_steps, block);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            scales[r] = kBlocks == 2 ? arch::ld_global_nc_16(scales_at[r] + offset)
                                     : arch::ld_global_nc_8(scales_at[r] + offset);
        }
    }
};

template <int kActivation, int kVectors, int kBlocks>
__device__ __forceinline__ void gemv_direct(const nvfp4_direct_params &p) {
    using B = Block<kActivation>;
    constexpr int kRows = rows_per_warp(kVectors);
    __shared__ float partial[kMaxWarps][kRows * kVectors];

    const int warp = threadIdx.x / kWarp;
    const int lane = threadIdx.x % kWarp;
    const int tiles_per_cta = blockDim.x / kWarp / p.k_split;
    const int tile_in_cta = warp / p.k_split;
    const int part = warp % p.k_split;
    const int32_t tile = blockIdx.x * tiles_per_cta + tile_in_cta;

    arch::griddepcontrol_launch_dependents();
    if (p.select.late) arch::griddepcontrol_wait();
    for (int32_t batch = blockIdx.y; batch < p.l; batch += gridDim.y) {
        // In place of a matrix that does not exist, matrix 0 is read, and its sums are not stored.
        const Matrix matrix = selected(p.select, batch);
        const uint8_t *codes_at[kRows];
        const uint8_t *scales_at[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            // Rows past the end repeat the last one: read, computed, not stored.
            const int32_t row = min(tile_row<kRows>(p, tile, r), p.m - 1);
            codes_at[r] = codes_of(p.weights, matrix.number) + int64_t(row) * p.weights.row_bytes;
            scales_at[r] = scales_of(p.weights, matrix.number) + row_offset(p.weights.scale_steps, row);
        }

        const uint8_t *x_at = values_of(p.vectors, batch);
        const uint8_t *x_scale_at = scales_of(p.vectors, batch);

        float sum[kRows][kVectors] = {};
        const int32_t stride = p.k_split * kWarp * kBlocks;
        int32_t block = (part * kWarp + lane) * kBlocks;
        WeightStep<kRows, kBlocks> next;
        if (block < p.blocks) next.load(p, codes_at, scales_at, block);
        // The previous grid may write vectors and read the output. The wait is over at once after the first batch.
        arch::griddepcontrol_wait();
#pragma unroll 1
        while (block < p.blocks) {
            const WeightStep<kRows, kBlocks> step = next;
            const int32_t here = block;
            block += stride;
            // The next step's loads are in flight while this one is computed.
            if (block < p.blocks) next.load(p, codes_at, scales_at, block);

            float scale[kRows][2];
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                const __half2 s = arch::cvt_e4m3x2(step.scales[r]);
                scale[r][0] = __low2float(s);
                scale[r][1] = __high2float(s);
            }
#pragma unroll
            for (int b = 0; b < kBlocks; ++b) {
                typename B::Weight w[kRows];
#pragma unroll
                for (int r = 0; r < kRows; ++r) w[r].decode(step.codes[r][b]);
                const int64_t x_offset = int64_t(here + b) * B::kVectorBytes;
                const int32_t x_scale_offset = block_offset(p.vectors.scale_steps, here + b);
#pragma unroll
                for (int n = 0; n < kVectors; ++n) {
                    // Vectors past the end repeat the last one: computed, not stored.
                    const int32_t row = kVectors == 1 ? 0 : min(n, p.n - 1);
                    typename B::Vector x;
                    x.load(x_at + row * p.vectors.row_bytes + x_offset,
                           x_scale_at + row_offset(p.vectors.scale_steps, row) + x_scale_offset);
#pragma unroll
                    for (int r = 0; r < kRows; ++r) {
                        sum[r][n] =
                            fmaf(B::dot(w[r], x), scale[r][b] * x.scale, sum[r][n]);
                    }
                }
            }
        }

#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
            for (int n = 0; n < kVectors; ++n) {
#pragma unroll
                for (int other = kWarp / 2; other > 0; other /= 2) {
                    sum[r][n] += __shfl_xor_sync(0xffffffffu, sum[r][n], other);
                }
                if (lane == 0) partial[warp][r * kVectors + n] = sum[r][n];
            }
        }
        __syncthreads();

        for (int i = threadIdx.x; i < tiles_per_cta * kRows * kVectors; i += blockDim.x) {
            const int t = i / (kRows * kVectors);
            const int n = i % kVectors;
            const int32_t row = tile_row<kRows>(p, blockIdx.x * tiles_per_cta + t, i / kVectors % kRows);
            if (row >= p.m || n >= p.n) continue;
            float y = 0.0f;
            for (int s = 0; s < p.k_split; ++s) {
                y += partial[t * p.k_split + s][i % (kRows * kVectors)];
            }
            store(p.epilogue, prepare(p.epilogue, matrix, batch, row, n), matrix.exists ? y : 0.0f);
        }
        __syncthreads(); // `partial` is free for the next batch
    }
}

}  // namespace nvfp4

// Entry points, by vectors of a pass and blocks of a load.
#define GEMV_DIRECT_OF(X, name, activation) \
    X(gemv_direct_##name##_n1_b1, activation, 1, 1) \
    X(gemv_direct_##name##_n8_b1, activation, 8, 1) \
    X(gemv_direct_##name##_n1_b2, activation, 1, 2) \
    X(gemv_direct_##name##_n2_b2, activation, 2, 2) \
    X(gemv_direct_##name##_n4_b2, activation, 4, 2) \
    X(gemv_direct_##name##_n8_b2, activation, 8, 2)
#define GEMV_DIRECT(X)                               \
    GEMV_DIRECT_OF(X, nvfp4, NVFP4_ACTIVATION_NVFP4) \
    GEMV_DIRECT_OF(X, f16, NVFP4_ACTIVATION_F16)     \
    GEMV_DIRECT_OF(X, bf16, NVFP4_ACTIVATION_BF16)   \
    GEMV_DIRECT_OF(X, f32, NVFP4_ACTIVATION_F32)

#define ENTRY(name, activation, vectors, blocks)                                        \
    NVFP4_KERNEL(name)(                                                                 \
    extern "C" __global__ void __launch_bounds__(NVFP4_DIRECT_MAX_WARPS *NVFP4_WARP, 1) \
        name(const __grid_constant__ nvfp4_direct_params p) {                           \
        nvfp4::gemv_direct<activation, vectors, blocks>(p);                             \
    })
GEMV_DIRECT(ENTRY)
NVFP4_TABLE(gemv_direct, GEMV_DIRECT)

#endif
