// Prepares the CUDA-core kernel with the tiled load pipeline: sm_90 and newer.
#ifdef NVFP4_GEMV_NO_KERNELS // built for other architectures only

#include <cuda_runtime.h>

#include "../nvfp4_gemv.h"

extern "C" int32_t nvfp4_gemv_prepare_cuda_core_tma(nvfp4_gemv_prepared *, const nvfp4_gemv_args *,
                                                    const nvfp4_tile_config *) {
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

// A pass over the weights: vectors first..first + n.
static cudaError_t prepare_pass(Prepared &prepared, const nvfp4_gemv_args &a,
                                const nvfp4_tile_config &c, int32_t first, int32_t n) {
    tile::Maps maps;
    const cudaError_t status =
        tile::encode(&maps, a, first, n, tma::Stage::kVectorRows, tma::Stage::kScaleRows);
    if (status != cudaSuccess) return status;
    return tile::add(prepared, tma_kernel(n, c.stages), maps, tile::params(a, c, first, n), a, c);
}

}  // namespace nvfp4

extern "C" int32_t nvfp4_gemv_prepare_cuda_core_tma(nvfp4_gemv_prepared *out,
                                                    const nvfp4_gemv_args *args,
                                                    const nvfp4_tile_config *config) {
    using namespace nvfp4;
    Prepared &prepared = Prepared::in(out);
    constexpr int32_t kMost = tma::kMaxVectors;
    for (int32_t first = 0; first < args->n; first += kMost) {
        const cudaError_t status =
            prepare_pass(prepared, *args, *config, first, std::min(args->n - first, kMost));
        if (status != cudaSuccess) return status;
    }
    return cudaSuccess;
}

#endif
