// The C ABI of nvfp4_gemv.h: device queries, and kernels by name.
#include <cuda_runtime.h>

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

// The kernel of a name, or null.
const void *entry_of(const char *name) {
    for (const Entry *unit : kUnits) {
        for (const Entry *entry = unit; entry->name; ++entry) {
            if (std::strcmp(entry->name, name) == 0) return entry->kernel;
        }
    }
    return nullptr;
}

}  // namespace
}  // namespace nvfp4

using namespace nvfp4;

// The attribute belongs to the process, and another thread may be about to launch. So its value is the same every time:
// the most that there can be beside the kernel's own shared memory.
extern "C" int32_t nvfp4_gemv_load(const char *name, void **function) {
    const void *const kernel = entry_of(name);
    if (!kernel) return cudaErrorNoKernelImageForDevice;
    cudaFuncAttributes attributes; // asked for to have the kernel loaded, too: the first launch need not
    cudaError_t status = cudaFuncGetAttributes(&attributes, kernel);
    if (status != cudaSuccess) return status;
    int device = 0, most = 0;
    status = cudaGetDevice(&device);
    if (status != cudaSuccess) return status;
    status = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (status != cudaSuccess) return status;
    status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  most - int(attributes.sharedSizeBytes));
    if (status != cudaSuccess) return status;
    cudaFunction_t found = nullptr;
    status = cudaGetFuncBySymbol(&found, kernel);
    *function = found;
    return status;
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
