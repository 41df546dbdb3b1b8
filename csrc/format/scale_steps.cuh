// Where the block scale of (row, block) lies: row_offset + block_offset, without a branch along K.
#pragma once

#include <cstdint>

#include "../shared.h"

namespace nvfp4 {

// Bytes of one batch of `rows` densely packed rows.
__device__ __forceinline__ int64_t batch_bytes(const nvfp4_scale_steps &s, int64_t rows) {
    return (s.tiled ? (rows + 127) / 128 : rows) * s.row_stride;
}

__device__ __forceinline__ int64_t row_offset(const nvfp4_scale_steps &s, int32_t row) {
    return s.tiled ? row / 128 * s.row_stride + row % 32 * 16 + row % 128 / 32 * 4 : row * s.row_stride;
}

__device__ __forceinline__ int32_t block_offset(const nvfp4_scale_steps &s, int32_t block) {
    return (block >> 2) * s.group_stride + (block & 3);
}

}  // namespace nvfp4
