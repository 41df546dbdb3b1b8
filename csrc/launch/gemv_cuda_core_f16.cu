// The CUDA-core kernels for f16 vectors.
#include "gemv_cuda_core.cuh"

namespace nvfp4 {

cudaError_t prepare_cuda_core_f16(Prepared &prepared, const nvfp4_gemv_args &args,
                                  const nvfp4_cuda_core_config &config) {
    return prepare_cuda_core<NVFP4_ACTIVATION_F16>(prepared, args, config);
}

}  // namespace nvfp4
