// Bulk and tensor copies from global to shared memory (TMA), one instruction a function. Each adds
// its bytes to an mbarrier's transaction count when they have landed. sm_90 and newer.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace nvfp4::arch {

// Read once: the first to leave L2.
__device__ __forceinline__ uint64_t createpolicy_evict_first() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Read by every CTA: the last to leave L2.
__device__ __forceinline__ uint64_t createpolicy_evict_last() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// A tensor map's first use is slow without it.
__device__ __forceinline__ void prefetch_tensormap(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// The box of a rank 3 map at (x, y, z), innermost first. What lies outside the tensor arrives as
// zeros, and counts as bytes like the rest. `to` starts a pattern of the map's swizzle, or is
// 128-byte aligned.
__device__ __forceinline__ void cp_async_bulk_tensor_3d(uint32_t to, const CUtensorMap *map, int32_t x, int32_t y,
                                         int32_t z, uint32_t bar, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar), "l"(policy)
        : "memory");
}

// `bytes` in a row, a multiple of 16, between 16-byte aligned addresses.
__device__ __forceinline__ void cp_async_bulk(uint32_t to, const void *from, uint32_t bytes,
                                          uint32_t bar, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(bar), "l"(policy)
        : "memory");
}

// The same into CTAs of the cluster, those whose bits are set in `ctas`: at the same place in the shared memory of each, and
// with its barrier at the same place.
__device__ __forceinline__ void cp_async_bulk_multicast(uint32_t to, const void *from, uint32_t bytes, uint32_t bar, uint16_t ctas,
                                                    uint64_t policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4, %5;" ::"r"(to),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(bar), "h"(ctas), "l"(policy)
        : "memory");
}

// Orders this thread's accesses of shared memory before the asynchronous copies and matrix
// instructions that are known to follow, and the other way round.
__device__ __forceinline__ void fence_proxy_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The same of global memory, which this thread wrote and bulk copies of later kernels read.
__device__ __forceinline__ void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

}  // namespace nvfp4::arch
