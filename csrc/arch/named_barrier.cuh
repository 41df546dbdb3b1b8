// Barriers of some of a CTA's warps, by number: 0 is __syncthreads'.
#pragma once

#include <cstdint>

namespace nvfp4::arch {

// Waits until `threads` have come, those that only arrive included. A multiple of 32.
__device__ __forceinline__ void named_barrier_sync(uint32_t barrier, uint32_t threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_barrier_arrive(uint32_t barrier, uint32_t threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace nvfp4::arch
