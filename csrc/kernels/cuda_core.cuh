// What the CUDA-core kernels share: their parameters, which rows a tile has, the last step.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "../format/scale_layout.cuh"
#include "../nvfp4_gemv.h"

namespace nvfp4 {

constexpr int kWarp = 32;
constexpr int kBlock = 16;
constexpr int kMaxVectors = 8; // vectors a pass

struct CudaCoreParams {
    int32_t m, n, l, blocks;
    int32_t k_split;  // warps that share a row tile
    int32_t row_step; // from one row of a tile to the next: 1, or 32 to share 128x4 sectors
    // Integer dot: each CTA takes so many row tiles, and the first tiles_left one more.
    int32_t tiles_per_cta, tiles_left;

    const uint8_t *codes;
    const uint8_t *scales;
    ScaleLayout scale_layout;
    int64_t code_row_bytes;

    const uint8_t *vectors;
    int64_t vector_row_bytes, vector_batch_bytes;
    const uint8_t *vector_scales;
    ScaleLayout vector_scale_layout;
    int64_t vector_scale_batch_bytes;

    float alpha;
    const float *row_alpha;
    int64_t row_alpha_batch;
    const float *vector_alpha;
    int64_t vector_alpha_batch;

    void *output;
    int64_t output_batch; // elements of a batch: N * M of the whole problem
    int32_t output_type;
};

__host__ __device__ constexpr int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

// Row tiles of `rows` rows. Tiles of row step 32 come in whole groups of 32.
__host__ __device__ inline int32_t row_tiles(int32_t m, int32_t row_step, int32_t rows) {
    return int32_t(row_step == 1 ? ceil_div(m, rows) : ceil_div(m, 32 * rows) * 32);
}

// Row `i` of tile `tile`. 32 tiles of row step 32 cover 32 * kRows consecutive rows.
template <int kRows>
__device__ __forceinline__ int32_t tile_row(const CudaCoreParams &p, int32_t tile, int i) {
    return p.row_step == 1 ? tile * kRows + i : tile / 32 * (32 * kRows) + tile % 32 + i * 32;
}

// The sum of a row and a vector becomes an output.
__device__ __forceinline__ void finish(const CudaCoreParams &p, int32_t batch, int32_t row, int n,
                                       float y) {
    y *= p.alpha;
    if (p.row_alpha) y *= p.row_alpha[batch * p.row_alpha_batch + row];
    if (p.vector_alpha) y *= p.vector_alpha[batch * p.vector_alpha_batch + n];
    const int64_t at = batch * p.output_batch + int64_t(n) * p.m + row;
    switch (p.output_type) {
        case NVFP4_OUTPUT_F16: static_cast<__half *>(p.output)[at] = __float2half_rn(y); break;
        case NVFP4_OUTPUT_BF16:
            static_cast<__nv_bfloat16 *>(p.output)[at] = __float2bfloat16_rn(y);
            break;
        default: static_cast<float *>(p.output)[at] = y;
    }
}

}  // namespace nvfp4
