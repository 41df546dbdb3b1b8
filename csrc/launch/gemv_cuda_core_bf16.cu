// The CUDA-core kernels for bf16 vectors.
#include "gemv_cuda_core.cuh"

namespace nvfp4 {

cudaError_t launch_cuda_core_bf16(const nvfp4_gemv_args &args, const nvfp4_cuda_core_config &config,
                                cudaStream_t stream) {
    return launch_cuda_core<NVFP4_ACTIVATION_BF16>(args, config, stream);
}

}  // namespace nvfp4
