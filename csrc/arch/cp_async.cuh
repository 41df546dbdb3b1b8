// Copies of 16, 8 or 4 bytes a thread from global to shared memory (cp.async), sm_80 and newer.
#pragma once

#include <cstdint>

namespace nvfp4::arch {

// Copies 16 bytes between 16-byte aligned addresses. For data that is read once: .cg does not keep it in L1, and L2
// fetches kFetched bytes at once. Where `copy` is false, zeros arrive, but `from` must be valid.
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

// Copies 16 bytes and keeps them in L1 (.ca), for data that an SM reads in several copies. L2 fetches 128 bytes at
// once.
__device__ __forceinline__ void cp_async_ca_16(uint32_t to, const void *from, bool copy) {
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(copy ? 16 : 0)
                 : "memory");
}

// Copies 8 bytes between 8-byte aligned addresses. L1 keeps them (.ca), because several such copies take parts of a
// line. Where `copy` is false, zeros arrive, and `from` may be any address.
__device__ __forceinline__ void cp_async_8(uint32_t to, const void *from, bool copy) {
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 8, %2;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(copy ? 8 : 0)
                 : "memory");
}

// Copies the first `bytes` of four bytes between 4-byte aligned addresses; zeros arrive behind them. With no bytes,
// `from` may be any address.
__device__ __forceinline__ void cp_async_4_some(uint32_t to, const void *from, uint32_t bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
                 "r"(bytes)
                 : "memory");
}

// Copies 4 bytes between 4-byte aligned addresses. Where `copy` is false, zeros arrive.
__device__ __forceinline__ void cp_async_4(uint32_t to, const void *from, bool copy) {
    cp_async_4_some(to, from, copy ? 4 : 0);
}

// Copies like cp_async_4, but L2 fetches 128 bytes at once, for later copies of the other bytes.
__device__ __forceinline__ void cp_async_4_of_128(uint32_t to, const void *from, bool copy) {
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 4, %2;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(copy ? 4 : 0)
                 : "memory");
}

// Makes a group of this thread's copies since the last call. The group may be empty.
__device__ __forceinline__ void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Arrives at an mbarrier when this thread's copies so far have landed. noinc: the barrier counts that as one of its
// arrivals.
__device__ __forceinline__ void cp_async_mbarrier_arrive_noinc(uint32_t bar) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}

// Waits for all but the last kGroups groups of this thread.
template <int kGroups>
__device__ __forceinline__ void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

}  // namespace nvfp4::arch
