// Launches the CUDA-core kernel with the tiled load pipeline: sm_90 and newer.
#ifdef NVFP4_GEMV_NO_KERNELS // built for other architectures only

#include <cuda_runtime.h>

#include "../nvfp4_gemv.h"

extern "C" int32_t nvfp4_gemv_cuda_core_tma(const nvfp4_gemv_args *, const nvfp4_tile_config *, void *) {
    return cudaErrorNoKernelImageForDevice;
}

#else

#include "../kernels/gemv_cuda_core_tma.cuh"
#include "tiles.cuh"

namespace nvfp4 {

template <int kVectors>
static tile::Kernel tma_kernel(int32_t stages) {
    return {reinterpret_cast<const void *>(tma::gemv_cuda_core_tma<kVectors>), tma::kThreads,
            sizeof(tma::Shared<kVectors>), tile::dynamic_bytes(tma::Stage::kBytes, stages)};
}

static tile::Kernel tma_kernel(int32_t n, int32_t stages) {
    if (n <= 1) return tma_kernel<1>(stages);
    if (n <= 2) return tma_kernel<2>(stages);
    if (n <= 4) return tma_kernel<4>(stages);
    return tma_kernel<8>(stages);
}

}  // namespace nvfp4

extern "C" int32_t nvfp4_gemv_cuda_core_tma(const nvfp4_gemv_args *args,
                                            const nvfp4_tile_config *config, void *stream) {
    using namespace nvfp4;
    constexpr int32_t kMost = tma::kMaxVectors;
    for (int32_t first = 0; first < args->n; first += kMost) {
        const int32_t n = std::min(args->n - first, kMost);
        tile::Maps maps;
        cudaError_t status = tile::encode(&maps, *args, first, n, tma::Stage::kVectorRows,
                                          tma::Stage::kScaleRows);
        if (status != cudaSuccess) return status;
        status = tile::launch(tma_kernel(n, config->stages), maps,
                              tile::params(*args, *config, first, n), *args, *config,
                              static_cast<cudaStream_t>(stream));
        if (status != cudaSuccess) return status;
    }
    return cudaSuccess;
}

#endif
