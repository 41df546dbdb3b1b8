// What the launchers of the two tiled kernels share: tensor maps, parameters, clusters.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "../kernels/tile_pipeline.cuh"
#include "../nvfp4_gemv.h"
#include "arguments.cuh"

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

// Launches `kernel` on every tile of every batch, a cluster each.
inline cudaError_t launch(const Kernel &kernel, const Maps &maps, Params p,
                          const nvfp4_gemv_args &a, const nvfp4_tile_config &c,
                          cudaStream_t stream) {
    constexpr int32_t kMostBatches = 65535; // of a grid's y
    cudaError_t status = allow_dynamic_shared(kernel.function, kernel.static_shared);
    if (status != cudaSuccess) return status;
    for (; p.first_batch < a.l; p.first_batch += kMostBatches) {
        cudaLaunchAttribute attributes[2] = {};
        attributes[0].id = cudaLaunchAttributeClusterDimension;
        attributes[0].val.clusterDim = {unsigned(c.cluster), 1, 1};
        attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[1].val.programmaticStreamSerializationAllowed = 1;
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(unsigned(ceil_div(a.m, kRows) * c.cluster),
                              unsigned(std::min(a.l - p.first_batch, kMostBatches)));
        config.blockDim = dim3(unsigned(kernel.threads));
        config.dynamicSmemBytes = size_t(kernel.dynamic_shared);
        config.stream = stream;
        config.attrs = attributes;
        config.numAttrs = c.dependent ? 2 : 1;
        void *arguments[] = {const_cast<Maps *>(&maps), &p};
        status = cudaLaunchKernelExC(&config, kernel.function, arguments);
        if (status != cudaSuccess) return status;
        if (a.l - p.first_batch <= kMostBatches) break;
    }
    return cudaSuccess;
}

}  // namespace nvfp4::tile
