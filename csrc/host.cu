// The C ABI of nvfp4_gemv.h: device queries, entry points by name, loading, launches.
#include <cuda.h>
#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "entries.cuh"
#include "nvfp4_gemv.h"

// Tables of the units that this build has: the build script writes the list.
#define UNIT(name) extern "C" const nvfp4::Entry nvfp4_entries_##name[];
#include "compiled_units.inc"
#undef UNIT

namespace nvfp4 {
namespace {

#define UNIT(name) nvfp4_entries_##name,
const Entry *const kUnits[] = {
#include "compiled_units.inc"
};
#undef UNIT

// Contexts that a kernel is loaded in, by their ids, which CUDA never uses twice. Entries that collide
// replace each other: the kernel is loaded again, which changes nothing.
struct Loaded {
    static constexpr uint32_t kContexts = 16;
    std::atomic<const void *> kernel;
    std::atomic<uint64_t> contexts[kContexts];
};

constexpr uint32_t kKernels = 256;
Loaded loaded[kKernels]; // zeros

// A kernel's place, or none where all are taken.
Loaded *place_of(const void *kernel) {
    const uint32_t first = uint32_t(reinterpret_cast<uintptr_t>(kernel) / 16);
    for (uint32_t i = 0; i < kKernels; ++i) {
        Loaded &one = loaded[(first + i) % kKernels];
        const void *taken = one.kernel.load(std::memory_order_relaxed);
        if (!taken && one.kernel.compare_exchange_strong(taken, kernel, std::memory_order_relaxed)) {
            return &one;
        }
        if (taken == kernel) return &one;
    }
    return nullptr;
}

// The current context, or 0 where there is none yet or the driver cannot say.
uint64_t context_id() {
    // The driver is not linked. Threads that race write the same value.
    static std::atomic<void *> found;
    void *address = found.load(std::memory_order_relaxed);
    if (!address) {
        cudaDriverEntryPointQueryResult result;
        if (cudaGetDriverEntryPointByVersion("cuCtxGetId", &address, NVFP4_OLDEST_DRIVER, cudaEnableDefault,
                                             &result) != cudaSuccess ||
            result != cudaDriverEntryPointSuccess) {
            return 0;
        }
        found.store(address, std::memory_order_relaxed);
    }
    unsigned long long id = 0;
    const auto get_id = reinterpret_cast<decltype(&cuCtxGetId)>(address);
    return get_id(nullptr, &id) == CUDA_SUCCESS ? id : 0;
}

// Loads a kernel, and lets it have more dynamic shared memory. The attribute belongs to the process, and another thread
// may be about to launch. So its value is the same every time: the most that there can be beside the kernel's own
// shared memory.
cudaError_t load(const void *kernel) {
    cudaFuncAttributes attributes; // asked for to have the kernel loaded, too: the first launch need not
    cudaError_t status = cudaFuncGetAttributes(&attributes, kernel);
    if (status != cudaSuccess) return status;
    int device = 0, most = 0;
    status = cudaGetDevice(&device);
    if (status != cudaSuccess) return status;
    status = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (status != cudaSuccess) return status;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                most - int(attributes.sharedSizeBytes));
}

}  // namespace
}  // namespace nvfp4

using namespace nvfp4;

extern "C" const void *nvfp4_gemv_entry(const char *name) {
    for (const Entry *unit : kUnits) {
        for (const Entry *entry = unit; entry->name; ++entry) {
            if (std::strcmp(entry->name, name) == 0) return entry->kernel;
        }
    }
    return nullptr;
}

extern "C" int32_t nvfp4_gemv_load(const void *entry) {
    const uint64_t context = context_id();
    Loaded *known = context ? place_of(entry) : nullptr;
    std::atomic<uint64_t> *slot = known ? &known->contexts[context % Loaded::kContexts] : nullptr;
    if (slot && slot->load(std::memory_order_acquire) == context) return cudaSuccess;
    // The stream may be in a capture, which loading is no part of.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaError_t status = cudaThreadExchangeStreamCaptureMode(&mode);
    if (status != cudaSuccess) return status;
    const cudaError_t result = load(entry);
    status = cudaThreadExchangeStreamCaptureMode(&mode);
    if (result != cudaSuccess) return result;
    if (status == cudaSuccess && slot) slot->store(context, std::memory_order_release);
    return status;
}

extern "C" int32_t nvfp4_gemv_launch(const nvfp4_launch *launch, void *stream) {
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(launch->grid_x, launch->grid_y, launch->grid_z);
    config.blockDim = dim3(launch->threads);
    config.dynamicSmemBytes = launch->dynamic_shared;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = attributes;
    if (launch->cluster) {
        cudaLaunchAttribute &cluster = attributes[config.numAttrs++];
        cluster.id = cudaLaunchAttributeClusterDimension;
        cluster.val.clusterDim = {launch->cluster, 1, 1};
    }
    if (launch->dependent) {
        cudaLaunchAttribute &dependent = attributes[config.numAttrs++];
        dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        dependent.val.programmaticStreamSerializationAllowed = 1;
    }
    constexpr uint32_t kMost = sizeof launch->parameters / sizeof launch->parameters[0];
    if (launch->parameter_count > kMost) return cudaErrorInvalidValue;
    void *parameters[kMost] = {};
    // CUDA only reads them.
    for (uint32_t i = 0; i < launch->parameter_count; ++i) {
        parameters[i] = const_cast<void *>(launch->parameters[i]);
    }
    return cudaLaunchKernelExC(&config, launch->entry, parameters);
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
