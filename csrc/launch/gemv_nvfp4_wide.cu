// Prepares the CUDA-core kernel with 32-byte loads, for NVFP4 vectors: architecture-specific code of
// Blackwell.
#include "cta_tiles.cuh"
#ifndef NVFP4_GEMV_NO_KERNELS
#include "../kernels/gemv_nvfp4_wide.cuh"
#endif

namespace nvfp4 {

#ifdef NVFP4_GEMV_NO_KERNELS // built for other architectures only

cudaError_t prepare_nvfp4_wide(Prepared &, const nvfp4_gemv_args &, const nvfp4_cuda_core_config &) {
    return cudaErrorNoKernelImageForDevice;
}

#else

static CudaCoreKernel wide_kernel(int32_t n) {
    if (n <= 1) return gemv_nvfp4_wide<1>;
    if (n <= 2) return gemv_nvfp4_wide<2>;
    if (n <= 4) return gemv_nvfp4_wide<4>;
    return gemv_nvfp4_wide<8>;
}

cudaError_t prepare_nvfp4_wide(Prepared &prepared, const nvfp4_gemv_args &a,
                               const nvfp4_cuda_core_config &c) {
    return for_each_pass(a, c, [&](CudaCoreParams &p) {
        return add_cta_tiles(prepared, p, c, wide_kernel(p.n), wide::shared_bytes);
    });
}

#endif

}  // namespace nvfp4
