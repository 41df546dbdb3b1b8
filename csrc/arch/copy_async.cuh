// Copies of 16 bytes a thread from global to shared memory (cp.async), sm_80 and newer, and their arrival
// at an mbarrier, sm_90 and newer.
#pragma once

#include <cstdint>

namespace nvfp4::arch {

// Between 16-byte aligned addresses. Not kept in L1.
__device__ __forceinline__ void copy_async_16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from))
                 : "memory");
}

// Arrives once all copies of this thread so far have landed. The barrier's count includes it.
__device__ __forceinline__ void mbarrier_arrive_copies(uint32_t bar) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}

}  // namespace nvfp4::arch
