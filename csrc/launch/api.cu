// The C entry points: device queries, the choice of the translation unit that prepares, and calls that
// are not prepared.
#include <cuda_runtime.h>

#include <cstring>

#include "gemv_cuda_core.cuh"

using namespace nvfp4;

static cudaError_t prepare_cuda_core(Prepared &prepared, const nvfp4_gemv_args &args,
                                     const nvfp4_cuda_core_config &config) {
    if (config.kernel == NVFP4_KERNEL_INTEGER_DOT) {
        if (args.activation != NVFP4_ACTIVATION_NVFP4) return cudaErrorInvalidValue;
        return config.blocks_per_load == 4 ? prepare_nvfp4_wide(prepared, args, config)
                                           : prepare_nvfp4(prepared, args, config);
    }
    switch (args.activation) {
        case NVFP4_ACTIVATION_NVFP4: return prepare_cuda_core_nvfp4(prepared, args, config);
        case NVFP4_ACTIVATION_F16: return prepare_cuda_core_f16(prepared, args, config);
        case NVFP4_ACTIVATION_BF16: return prepare_cuda_core_bf16(prepared, args, config);
        case NVFP4_ACTIVATION_F32: return prepare_cuda_core_f32(prepared, args, config);
        default: return cudaErrorInvalidValue;
    }
}

extern "C" int32_t nvfp4_gemv_prepare_cuda_core(nvfp4_gemv_prepared *prepared,
                                                const nvfp4_gemv_args *args,
                                                const nvfp4_cuda_core_config *config) {
    return prepare_cuda_core(Prepared::in(prepared), *args, *config);
}

// Prepares and launches.
template <class Prepare, class Config>
static int32_t at_once(Prepare prepare, const nvfp4_gemv_args *args, const Config *config,
                       void *stream) {
    nvfp4_gemv_prepared prepared;
    const int32_t status = prepare(&prepared, args, config);
    return status != cudaSuccess ? status : nvfp4_gemv_launch(&prepared, stream);
}

extern "C" int32_t nvfp4_gemv_cuda_core(const nvfp4_gemv_args *args,
                                        const nvfp4_cuda_core_config *config, void *stream) {
    return at_once(nvfp4_gemv_prepare_cuda_core, args, config, stream);
}

extern "C" int32_t nvfp4_gemv_cuda_core_tma(const nvfp4_gemv_args *args,
                                            const nvfp4_tile_config *config, void *stream) {
    return at_once(nvfp4_gemv_prepare_cuda_core_tma, args, config, stream);
}

extern "C" int32_t nvfp4_gemv_stream(const nvfp4_gemv_args *args, const nvfp4_stream_config *config,
                                     void *stream) {
    return at_once(nvfp4_gemv_prepare_stream, args, config, stream);
}

extern "C" int32_t nvfp4_gemv_ring(const nvfp4_gemv_args *args, const nvfp4_ring_config *config,
                                   void *stream) {
    return at_once(nvfp4_gemv_prepare_ring, args, config, stream);
}

extern "C" int32_t nvfp4_gemv_tensor_core(const nvfp4_gemv_args *args,
                                          const nvfp4_tile_config *config, void *stream) {
    return at_once(nvfp4_gemv_prepare_tensor_core, args, config, stream);
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
