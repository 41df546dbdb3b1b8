// Where the block scale of (row, block) lies, for both layouts in one branch-free form.
#pragma once

#include <cstdint>

#include "../nvfp4_gemv.h"

namespace nvfp4 {

// Offset = row_offset(row) + block_offset(block):
//   linear  row * row_stride                                            + block
//   128x4   row/128 * atoms*512 + row%32 * 16 + row%128/32 * 4          + block/4 * 512 + block%4
// Since block = block/4 * 4 + block%4, only the step from one group of four blocks to the next
// differs along K.
struct ScaleLayout {
    int64_t row_stride;   // linear: bytes of a row; 128x4: bytes of a block of 128 rows
    int32_t group_stride; // bytes from four blocks to the next four
    bool tiled;

    __host__ __device__ static ScaleLayout make(int32_t layout, int32_t blocks,
                                                int64_t linear_row_stride) {
        if (layout == NVFP4_SCALES_128X4) {
            return {int64_t((blocks + 3) / 4) * 512, 512, true};
        }
        return {linear_row_stride, 4, false};
    }

    // Bytes of one batch of `rows` densely packed rows.
    __host__ __device__ int64_t batch_bytes(int64_t rows) const {
        return (tiled ? (rows + 127) / 128 : rows) * row_stride;
    }

    __device__ __forceinline__ int64_t row_offset(int32_t row) const {
        return tiled ? row / 128 * row_stride + row % 32 * 16 + row % 128 / 32 * 4
                     : row * row_stride;
    }

    __device__ __forceinline__ int32_t block_offset(int32_t block) const {
        return (block >> 2) * group_stride + (block & 3);
    }
};

}  // namespace nvfp4
