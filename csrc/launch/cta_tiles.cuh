// Prepares the kernels whose CTAs take ranges of row tiles.
#pragma once

#include "../kernels/cta_tiles.cuh"
#include "gemv_cuda_core.cuh"

namespace nvfp4 {

// Adds the launch of a pass. shared_bytes(vectors, blocks, k_split, tiles of a CTA) is the kernel's.
template <class SharedBytes>
cudaError_t add_cta_tiles(Prepared &prepared, CudaCoreParams &p, const nvfp4_cuda_core_config &c,
                          CudaCoreKernel kernel, SharedBytes shared_bytes) {
    const int vectors = p.n <= 2 ? p.n : p.n <= 4 ? 4 : 8;
    const int32_t tiles = row_tiles(p.m, p.row_step, cta_tiles::kRows);
    p.tiles_per_cta = tiles / c.ctas;
    p.tiles_left = tiles % c.ctas;
    Call call = {};
    call.kernel = reinterpret_cast<const void *>(kernel);
    call.grid_x = uint32_t(c.ctas);
    call.grid_y = uint32_t(std::min(p.l, kMostBatches)); // the kernel strides over the others
    call.threads = uint32_t(c.warps * kWarp);
    call.dependent = uint32_t(c.dependent);
    call.dynamic_shared =
        uint32_t(shared_bytes(vectors, p.blocks, p.k_split, ceil_div(tiles, c.ctas)));
    return prepared.add(call, p);
}

}  // namespace nvfp4
