// CTAs that take a contiguous range of a batch's row tiles: what gemv_nvfp4 and gemv_nvfp4_wide share.
#pragma once

#include <cstdint>

#include "cuda_core.cuh"
#include "warp_sums.cuh"

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

}  // namespace nvfp4::cta_tiles
