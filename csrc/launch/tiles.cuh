// What the launchers of the two tiled kernels share: tensor maps, parameters, clusters.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "../kernels/tile_pipeline.cuh"
#include "../nvfp4_gemv.h"
#include "arguments.cuh"
#include "prepared.cuh"

namespace nvfp4::tile {

// Encodes the maps for vectors first..first + n, in boxes of `vector_rows` vectors and of the scales of
// `scale_rows`. No device work.
cudaError_t encode(Maps *maps, const nvfp4_gemv_args &a, int32_t first, int32_t n,
                   uint32_t vector_rows, uint32_t scale_rows);

// Bytes of dynamic shared memory for so many stages, aligned inside.
constexpr int64_t dynamic_bytes(uint32_t stage_bytes, int32_t stages) {
    return int64_t(stage_bytes) * stages + kSwizzlePattern - 16;
}

// For vectors first..first + n.
inline Params params(const nvfp4_gemv_args &a, const nvfp4_tile_config &c, int32_t first,
                     int32_t n) {
    Params p = {};
    p.m = a.m;
    p.n = n;
    p.atoms = uint32_t(ceil_div(a.k, kAtomElements));
    p.last_scales = uint32_t(a.k / 16) - (p.atoms - 1) * 4;
    p.stages = uint32_t(c.stages);
    p.dependent = c.dependent ? 1 : 0;
    p.weight_scales = device<const uint8_t>(a.weight_scales);
    p.epilogue = epilogue(a, first);
    return p;
}

// A kernel and what it takes of a CTA.
struct Kernel {
    const void *function;
    int threads;
    size_t static_shared;
    int64_t dynamic_shared;
};

// Adds the launches of `kernel` on every tile of every batch, a cluster each.
inline cudaError_t add(Prepared &prepared, const Kernel &kernel, const Maps &maps, const Params &p,
                       const nvfp4_gemv_args &a, const nvfp4_tile_config &c) {
    Call call = {};
    call.kernel = kernel.function;
    call.grid_x = uint32_t(ceil_div(a.m, kRows) * c.cluster);
    call.grid_y = uint32_t(std::min(a.l, kMostBatches));
    call.threads = uint32_t(kernel.threads);
    call.static_shared = uint32_t(kernel.static_shared);
    call.dynamic_shared = uint32_t(kernel.dynamic_shared);
    call.cluster = uint32_t(c.cluster);
    call.dependent = c.dependent ? 1 : 0;
    const cudaError_t status = prepared.add(call, maps, p);
    if (status == cudaSuccess) prepared.repeat(1, &Params::first_batch, a.l);
    return status;
}

}  // namespace nvfp4::tile
