// Bulk and tensor copies from global to shared memory (TMA), one instruction a function. When bytes
// have landed, they count at an mbarrier (complete_tx), which expect_tx has told to wait for them. sm_90 and newer.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace nvfp4::arch {

// Cache policy for data that is read once: the first to leave L2.
__device__ __forceinline__ uint64_t createpolicy_evict_first() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Cache policy for data that every CTA reads: the last to leave L2.
__device__ __forceinline__ uint64_t createpolicy_evict_last() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Prefetches a tensor map, whose first use would be slow otherwise.
__device__ __forceinline__ void prefetch_tensormap(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Copies the box of a rank 3 map at (x, y, z), innermost coordinate first. Elements outside the tensor arrive as zeros,
// and count as bytes like the others. A pattern of the map's swizzle starts at `to`, or `to` is 128-byte aligned.
__device__ __forceinline__ void cp_async_bulk_tensor_3d(uint32_t to, const CUtensorMap *map, int32_t x, int32_t y,
                                         int32_t z, uint32_t bar, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar), "l"(policy)
        : "memory");
}

// Copies `bytes` consecutive bytes, a multiple of 16, between 16-byte aligned addresses.
__device__ __forceinline__ void cp_async_bulk(uint32_t to, const void *from, uint32_t bytes,
                                          uint32_t bar, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(bar), "l"(policy)
        : "memory");
}

// Copies like cp_async_bulk, into each CTA of the cluster whose bit is set in `ctas`. In each of these CTAs the bytes
// arrive at the same place of shared memory, and the barrier is at the same place.
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

// Orders this thread's writes of global memory before bulk copies of later kernels, which read them.
__device__ __forceinline__ void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

}  // namespace nvfp4::arch
