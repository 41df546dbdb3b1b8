// Which tile of D is computed when, and how two neighbours of it are written: shared by all matmul kernels.
#pragma once

#include "instruction.cuh"
#include "tiles.cuh"
#include "types.cuh"

// Tile number `index` of D. Those that are computed at the same time lie near each other: GROUP rows of tiles are walked
// column by column, so that A and B are read from L2.
__device__ __forceinline__ void tile_of(u32 index, u32 tiles_m, u32 tiles_n, u32 &tile_m, u32 &tile_n) {
    const u32 of_group = GROUP * tiles_n;
    const u32 group = index / of_group, inside = index % of_group;
    const u32 first = group * GROUP;
    const u32 rows = tiles_m - first < GROUP ? tiles_m - first : GROUP;
    tile_m = first + inside % rows;
    tile_n = inside / rows;
}

// Writes two elements of D that follow each other in a row.
__device__ __forceinline__ void store(void *d, u64 row, u32 column, u32 n, const u32 *values) {
    const u64 at = row * n + column;
    if constexpr (ACCUMULATOR_BITS == 32) {
        u32 *to = static_cast<u32 *>(d) + at;
        if (n % 2 == 0 && column < n) {
            *reinterpret_cast<uint2 *>(to) = make_uint2(values[0], values[1]);
        } else {
            if (column < n) to[0] = values[0];
            if (column + 1 < n) to[1] = values[1];
        }
    } else {
        unsigned short *to = static_cast<unsigned short *>(d) + at;
        if (n % 2 == 0 && column < n) {
            *reinterpret_cast<u32 *>(to) = values[0];
        } else {
            if (column < n) to[0] = static_cast<unsigned short>(values[0]);
            if (column + 1 < n) to[1] = static_cast<unsigned short>(values[0] >> 16);
        }
    }
}
