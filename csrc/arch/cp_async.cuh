// Copies of 16, 8 or 4 bytes a thread from global to shared memory (cp.async), sm_80 and newer.
#pragma once

#include <cstdint>

namespace nvfp4::arch {

// Between 16-byte aligned addresses; read-once data, not kept in L1, of which L2 fetches kFetched bytes at
// once. Zeros where `copy` is false; `from` is valid all the same.
template <int kFetched>
__device__ __forceinline__ void cp_async_16(uint32_t to, const void *from, bool copy) {
    static_assert(kFetched == 128 || kFetched == 256, "what L2 can fetch");
    if constexpr (kFetched == 256) {
        asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to),
                     "l"(__cvta_generic_to_global(from)), "r"(copy ? 16 : 0)
                     : "memory");
    } else {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to),
                     "l"(__cvta_generic_to_global(from)), "r"(copy ? 16 : 0)
                     : "memory");
    }
}

// The same of 128 bytes at once, kept in L1: for what an SM reads in several copies.
__device__ __forceinline__ void cp_async_ca_16(uint32_t to, const void *from, bool copy) {
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(copy ? 16 : 0)
                 : "memory");
}

// Between 8-byte aligned addresses, kept in L1, of whose lines several such copies take their parts. Zeros where `copy`
// is false, wherever `from` is.
__device__ __forceinline__ void cp_async_8(uint32_t to, const void *from, bool copy) {
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 8, %2;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(copy ? 8 : 0)
                 : "memory");
}

// Between 4-byte aligned addresses: the first `bytes` of four, and zeros behind them; with none, wherever `from` is.
__device__ __forceinline__ void cp_async_4_some(uint32_t to, const void *from, uint32_t bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
                 "r"(bytes)
                 : "memory");
}

// Between 4-byte aligned addresses; zeros where `copy` is false.
__device__ __forceinline__ void cp_async_4(uint32_t to, const void *from, bool copy) {
    cp_async_4_some(to, from, copy ? 4 : 0);
}

// The same, of which L2 fetches 128 bytes at once: where later copies take the others.
__device__ __forceinline__ void cp_async_4_of_128(uint32_t to, const void *from, bool copy) {
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 4, %2;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(copy ? 4 : 0)
                 : "memory");
}

// Ends a group of this thread's copies, which may be empty.
__device__ __forceinline__ void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Arrives at an mbarrier when this thread's copies so far have landed. The barrier counts it as one of its arrivals.
__device__ __forceinline__ void cp_async_mbarrier_arrive_noinc(uint32_t bar) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}

// Waits for all but the last kGroups groups of this thread.
template <int kGroups>
__device__ __forceinline__ void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

}  // namespace nvfp4::arch
