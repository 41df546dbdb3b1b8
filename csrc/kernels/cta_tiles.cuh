// CTAs that take a contiguous range of a batch's row tiles: what gemv_nvfp4 and gemv_nvfp4_wide share.
#pragma once

#include <cstdint>

#include "cuda_core.cuh"

namespace nvfp4::cta_tiles {

constexpr int kRows = 4; // rows of a tile

// The most threads of a CTA: more sums and decoded weights take more registers a thread.
__host__ __device__ constexpr int max_threads(int vectors) { return vectors <= 2 ? 512 : 256; }

// From a row of a tile to the next, in bytes: rows 32 apart are 4 bytes apart in a 128x4 atom.
__device__ __forceinline__ uint64_t code_step(const CudaCoreParams &p, int r) {
    return uint64_t(uint32_t(p.code_row_bytes) * p.row_step * r);
}
__device__ __forceinline__ uint64_t scale_step(const CudaCoreParams &p, int r) {
    return uint64_t((p.scale_layout.tiled ? 4 : uint32_t(p.scale_layout.row_stride)) * r);
}

// Sums each of V values over the warp, V a power of two up to 32. Lane i * (32 / V) ends up with
// value i, in the first element.
template <int V>
__device__ __forceinline__ void reduce_scatter(float (&value)[V], int lane) {
    int left = V;
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
        if (left > 1) {
            left /= 2;
            const bool upper = lane & offset;
#pragma unroll
            for (int i = 0; i < V / 2; ++i) {
                if (i >= left) break;
                const float send = upper ? value[i] : value[i + left];
                const float keep = upper ? value[i + left] : value[i];
                value[i] = keep + __shfl_xor_sync(0xffffffffu, send, offset);
            }
        } else {
            value[0] += __shfl_xor_sync(0xffffffffu, value[0], offset);
        }
    }
}

}  // namespace nvfp4::cta_tiles
