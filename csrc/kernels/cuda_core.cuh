// What the CUDA-core kernels share: their parameters, and which rows a tile has.
#pragma once

#include <cstdint>

#include "../format/scale_layout.cuh"
#include "../nvfp4_gemv.h"
#include "epilogue.cuh"

namespace nvfp4 {

constexpr int kWarp = 32;
constexpr int kBlock = 16;
constexpr int kMaxVectors = 8; // vectors a pass

struct CudaCoreParams {
    int32_t m, n, l, blocks;
    int32_t k_split;  // warps that share a row tile
    int32_t row_step; // from one row of a tile to the next: 1, or 32 to share 128x4 sectors
    // Integer dot: each CTA takes so many row tiles of a batch, and the first tiles_left one more.
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

    Epilogue epilogue;
};

// Row tiles of `rows` rows. Tiles of row step 32 come in whole groups of 32.
__host__ __device__ inline int32_t row_tiles(int32_t m, int32_t row_step, int32_t rows) {
    return int32_t(row_step == 1 ? ceil_div(m, rows) : ceil_div(m, 32 * rows) * 32);
}

// Row `i` of tile `tile`. 32 tiles of row step 32 cover 32 * kRows consecutive rows.
template <int kRows>
__device__ __forceinline__ int32_t tile_row(const CudaCoreParams &p, int32_t tile, int i) {
    return p.row_step == 1 ? tile * kRows + i : tile / 32 * (32 * kRows) + tile % 32 + i * 32;
}

}  // namespace nvfp4
