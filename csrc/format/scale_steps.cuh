// Offset of the block scale of (row, block): row_offset + block_offset, without a branch along K.
#pragma once

#include <cstdint>

#include "../shared.h"

namespace nvfp4 {

__device__ __forceinline__ int64_t row_offset(const nvfp4_scale_steps &s, int32_t row) {
    return s.tiled ? row / 128 * s.row_stride + row % 32 * 16 + row % 128 / 32 * 4 : row * s.row_stride;
}

__device__ __forceinline__ int32_t block_offset(const nvfp4_scale_steps &s, int32_t block) {
    return (block >> 2) * s.group_stride + (block & 3);
}

// The row at a place of a batch, which may be past the end. Rows are counted in the order in which their scales lie: in
// the 128x4 layout four rows 32 apart follow each other.
__device__ __forceinline__ uint32_t row_at(const nvfp4_scale_steps &s, uint32_t place) {
    return s.tiled ? (place & ~127u) + (place / 4 & 31) + (place & 3) * 32 : place;
}

// Bytes from the start of a batch's scales to those of the row at a place. In the 128x4 layout places lie four bytes
// apart in their block of 128.
__device__ __forceinline__ int64_t place_offset(const nvfp4_scale_steps &s, uint32_t place) {
    return s.tiled ? place / 128 * s.row_stride + place % 128 * 4 : place * s.row_stride;
}

}  // namespace nvfp4
