/* The C ABI of the CUDA code, and bindgen's input for src/ffi.rs: everything that needs the CUDA runtime, and nothing
 * else. The caller (src/kernel) says which kernel runs, with which parameters and geometry.
 *
 * Every function may be called from any thread. Device work goes to the stream given, in the context that is current.
 * Nothing is allocated, synchronised or copied: every call can be captured into a CUDA graph, on any stream but the
 * legacy default one. Functions that return int32_t return 0 or a cudaError_t.
 */
#ifndef NVFP4_GEMV_H
#define NVFP4_GEMV_H

#include <stdint.h>

#include "shared.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The kernel of this name, such as "gemv_ring_nvfp4_c1_r4_l2", or null where this build has no such kernel for any
 * architecture. Valid as long as the program runs. */
const void *nvfp4_gemv_entry(const char *name);

/* Loads a kernel in the context that is current: once a context, before the kernel's first launch there. Lets it have
 * all the dynamic shared memory that a CTA of the device can have beside the kernel's static shared memory. */
int32_t nvfp4_gemv_load(const void *entry);

/* One launch of a kernel. */
typedef struct nvfp4_launch {
    const void *entry; /* of nvfp4_gemv_entry, and loaded */
    uint32_t grid_x;   /* CTAs, clusters and all */
    uint32_t grid_y;
    uint32_t grid_z;
    uint32_t threads;        /* of a CTA */
    uint32_t cluster;        /* CTAs along x, or 0 for a launch without clusters */
    uint32_t dynamic_shared; /* bytes */
    uint32_t dependent;      /* 1: programmatic dependent launch. The kernel starts before the kernels before
                                it in the stream have ended, and may read its weights before: no kernel that
                                may still be running writes them. Those are all launches of this kind right
                                before it, and the kernel before the first of these. */
    uint32_t parameter_count;
    const void *parameters[2]; /* the kernel's arguments; copied before the call returns */
} nvfp4_launch;

/* Enqueues a launch. */
int32_t nvfp4_gemv_launch(const nvfp4_launch *launch, void *stream);

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
