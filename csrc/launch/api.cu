// The C entry points: device queries, and the choice of the translation unit that launches.
#include <cuda_runtime.h>

#include <cstring>

#include "gemv_cuda_core.cuh"

extern "C" int32_t nvfp4_gemv_cuda_core(const nvfp4_gemv_args *args,
                                        const nvfp4_cuda_core_config *config, void *stream) {
    const auto s = static_cast<cudaStream_t>(stream);
    if (config->kernel == NVFP4_KERNEL_INTEGER_DOT) {
        return args->activation == NVFP4_ACTIVATION_NVFP4 ? nvfp4::launch_nvfp4(*args, *config, s)
                                                          : cudaErrorInvalidValue;
    }
    switch (args->activation) {
        case NVFP4_ACTIVATION_NVFP4: return nvfp4::launch_cuda_core_nvfp4(*args, *config, s);
        case NVFP4_ACTIVATION_F16: return nvfp4::launch_cuda_core_f16(*args, *config, s);
        case NVFP4_ACTIVATION_BF16: return nvfp4::launch_cuda_core_bf16(*args, *config, s);
        case NVFP4_ACTIVATION_F32: return nvfp4::launch_cuda_core_f32(*args, *config, s);
        default: return cudaErrorInvalidValue;
    }
}

extern "C" int32_t nvfp4_gemv_device_count(int32_t *count) {
    *count = 0;
    return cudaGetDeviceCount(count);
}

extern "C" int32_t nvfp4_gemv_versions(int32_t *driver, int32_t *runtime) {
    *driver = 0;
    *runtime = 0;
    const cudaError_t status = cudaDriverGetVersion(driver);
    return status != cudaSuccess ? status : cudaRuntimeGetVersion(runtime);
}

extern "C" int32_t nvfp4_gemv_device_info(int32_t device, nvfp4_device_info *info) {
    cudaDeviceProp prop;
    const cudaError_t status = cudaGetDeviceProperties(&prop, device);
    if (status != cudaSuccess) return status;
    static_assert(sizeof prop.name == sizeof info->name, "names are copied whole");
    std::memcpy(info->name, prop.name, sizeof info->name);
    info->name[sizeof info->name - 1] = 0;
    info->compute_major = prop.major;
    info->compute_minor = prop.minor;
    info->multiprocessors = prop.multiProcessorCount;
    info->l2_bytes = prop.l2CacheSize;
    info->shared_bytes = int32_t(prop.sharedMemPerBlockOptin);
    info->memory_bytes = int64_t(prop.totalGlobalMem);
    return cudaSuccess;
}

extern "C" int32_t nvfp4_gemv_current_device(int32_t *device) {
    *device = 0;
    return cudaGetDevice(device);
}

extern "C" const char *nvfp4_gemv_error_string(int32_t code) {
    return cudaGetErrorString(static_cast<cudaError_t>(code));
}
