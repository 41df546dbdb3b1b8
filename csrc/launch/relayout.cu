// Launches the change of a scale layout.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "../kernels/relayout.cuh"
#include "../nvfp4_gemv.h"

extern "C" int32_t nvfp4_gemv_relayout(const nvfp4_relayout_args *args, void *stream) {
    const nvfp4_relayout_args &a = *args;
    nvfp4::RelayoutParams p = {};
    p.m = a.m;
    p.l = a.l;
    p.blocks = a.k / 16;
    p.source = reinterpret_cast<const uint8_t *>(a.source);
    p.destination = reinterpret_cast<uint8_t *>(a.destination);
    const void *kernel = a.to == NVFP4_SCALES_128X4
                             ? reinterpret_cast<const void *>(nvfp4::relayout<true>)
                             : reinterpret_cast<const void *>(nvfp4::relayout<false>);
    const int64_t rows = (int64_t(a.m) + nvfp4::kTileRows - 1) / nvfp4::kTileRows * a.l;
    constexpr int kTileBlocks = 4 * nvfp4::kTileAtoms;
    const int64_t tiles = rows * ((p.blocks + kTileBlocks - 1) / kTileBlocks);
    void *arguments[] = {&p};
    // The kernel strides over what a grid cannot hold.
    const dim3 grid(unsigned(std::min<int64_t>(tiles, INT32_MAX)));
    return cudaLaunchKernel(kernel, grid, dim3(nvfp4::kRelayoutThreads), arguments, 0,
                            static_cast<cudaStream_t>(stream));
}
