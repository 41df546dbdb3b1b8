/* The C ABI of the CUDA code, and bindgen's input for src/ffi.rs: everything that needs the CUDA runtime, and nothing
 * else. Kernels are launched by the driver (src/raw/driver).
 *
 * Every function may be called from any thread. Functions that return int32_t return 0 or a cudaError_t.
 */
#ifndef NVFP4_GEMV_H
#define NVFP4_GEMV_H

#include <stdint.h>

#include "shared.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Loads the kernel of this name, such as "gemv_ring_nvfp4_c1_r4_l2", in the context that is current. Lets it have all
 * the dynamic shared memory that a CTA of the device can have beside the kernel's static shared memory. `function`
 * becomes its CUfunction, which is valid as long as the context. cudaErrorNoKernelImageForDevice where this build has
 * no such kernel for any architecture. */
int32_t nvfp4_gemv_load(const char *name, void **function);

/* Properties of a device that dispatch asks for. */
typedef struct nvfp4_device_info {
    char name[256];
    int32_t compute_major;
    int32_t compute_minor;
    int32_t multiprocessors;
    int32_t l2_bytes;
    int32_t shared_bytes; /* the most that a CTA can ask for */
    int64_t memory_bytes;
} nvfp4_device_info;

/* Devices the driver shows; fails where there is no driver. */
int32_t nvfp4_gemv_device_count(int32_t *count);

/* Versions as 1000 * major + 10 * minor. A missing driver is version 0, not an error. */
int32_t nvfp4_gemv_versions(int32_t *driver, int32_t *runtime);

/* Properties of a device. */
int32_t nvfp4_gemv_device_info(int32_t device, nvfp4_device_info *info);

/* The device that is current on this thread. */
int32_t nvfp4_gemv_current_device(int32_t *device);

/* CUDA's text for a code that one of these functions returned. Static storage. */
const char *nvfp4_gemv_error_string(int32_t code);

#ifdef __cplusplus
}
#endif

#endif
