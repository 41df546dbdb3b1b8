// Functions of the driver, which is not linked.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <atomic>

namespace nvfp4 {

// The function `name` of the driver, of CUDA 12.0. Looked for once: `found` is a static of the caller's.
// Threads that race write the same value.
template <class Function>
cudaError_t driver_function(const char *name, std::atomic<void *> &found, Function *function) {
    void *address = found.load(std::memory_order_relaxed);
    if (!address) {
        cudaDriverEntryPointQueryResult result;
        const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &address, 12000,
                                                                    cudaEnableDefault, &result);
        if (status != cudaSuccess) return status;
        if (result != cudaDriverEntryPointSuccess) return cudaErrorInsufficientDriver;
        found.store(address, std::memory_order_relaxed);
    }
    *function = reinterpret_cast<Function>(address);
    return cudaSuccess;
}

}  // namespace nvfp4
