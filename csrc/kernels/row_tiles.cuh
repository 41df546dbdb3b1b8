// Common part of gemv_direct and gemv_dot: their parameters, and the rows of a tile.
#pragma once

#include "../shared.h"

enum {
    NVFP4_PASS_VECTORS = 8, /* vectors of one pass over the weights, at most */
    /* Step from one row of a tile to the next where scales lie 128x4, so that the tile's rows share their sectors.
     * Tiles then come in whole groups of as many. */
    NVFP4_TILED_ROW_STEP = 32,
};

typedef struct nvfp4_direct_params {
    int32_t m, n, l, blocks;
    int32_t k_split;  /* warps that share a row tile */
    int32_t row_step; /* from one row of a tile to the next: 1, or NVFP4_TILED_ROW_STEP */
    /* gemv_dot: each CTA takes so many row tiles of a batch, and the first tiles_left one more. */
    int32_t tiles_per_cta, tiles_left;

    nvfp4_weights weights;
    nvfp4_vectors vectors;
    nvfp4_epilogue epilogue;
} nvfp4_direct_params;

#ifdef __CUDACC__

#include "../format/operands.cuh"
#include "../format/scale_steps.cuh"
#include "epilogue.cuh"

namespace nvfp4 {

constexpr int kWarp = NVFP4_WARP;
constexpr int kBlock = NVFP4_BLOCK;

// Row `i` of tile `tile`. 32 tiles of row step 32 cover 32 * kRows consecutive rows.
template <int kRows>
__device__ __forceinline__ int32_t tile_row(const nvfp4_direct_params &p, int32_t tile, int i) {
    constexpr int kStep = NVFP4_TILED_ROW_STEP;
    return p.row_step == 1 ? tile * kRows + i : tile / kStep * (kStep * kRows) + tile % kStep + i * kStep;
}

}  // namespace nvfp4

#endif
