// The CUDA-core kernels for nvfp4 vectors.
#include "gemv_cuda_core.cuh"

namespace nvfp4 {

cudaError_t launch_cuda_core_nvfp4(const nvfp4_gemv_args &args, const nvfp4_cuda_core_config &config,
                                cudaStream_t stream) {
    return launch_cuda_core<NVFP4_ACTIVATION_NVFP4>(args, config, stream);
}

}  // namespace nvfp4
