// The CUDA-core kernels with integer dot products, for NVFP4 vectors.
#include "../kernels/gemv_nvfp4.cuh"
#include "cta_tiles.cuh"

namespace nvfp4 {

template <int kBlocks>
static CudaCoreKernel nvfp4_kernel(int32_t n) {
    if (n <= 1) return gemv_nvfp4<1, kBlocks>;
    if (n <= 2) return gemv_nvfp4<2, kBlocks>;
    if (n <= 4) return gemv_nvfp4<4, kBlocks>;
    return gemv_nvfp4<8, kBlocks>;
}

cudaError_t prepare_nvfp4(Prepared &prepared, const nvfp4_gemv_args &a,
                          const nvfp4_cuda_core_config &c) {
    return for_each_pass(a, c, [&](CudaCoreParams &p) {
        const CudaCoreKernel kernel =
            c.blocks_per_load == 2 ? nvfp4_kernel<2>(p.n) : nvfp4_kernel<1>(p.n);
        return add_cta_tiles(prepared, p, c, kernel, int8::shared_bytes);
    });
}

}  // namespace nvfp4
