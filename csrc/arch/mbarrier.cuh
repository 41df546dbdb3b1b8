// mbarrier: barriers in shared memory that also count bytes of asynchronous copies. One instruction
// a function; rules are the PTX ISA's, section "mbarrier". sm_90 and newer.
#pragma once

#include <cstdint>

namespace nvfp4::arch {

// Makes an mbarrier whose phases have `arrivals` arrivals. One thread calls this once. No other thread or copy may use
// the barrier before a fence and a CTA barrier.
__device__ __forceinline__ void mbarrier_init(uint32_t bar, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

// Makes initialisations visible to the cluster and to the copies that complete on them.
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives, and releases what this thread did before to whoever waits for the phase.
__device__ __forceinline__ void mbarrier_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

// Arrives for a warp, and releases what all its lanes did before. The barrier counts kWarpArrivals.
#ifdef NVFP4_GEMV_RACECHECK
// compute-sanitizer's racecheck knows a thread's own arrivals only: docs/notes/testing.md.
constexpr uint32_t kWarpArrivals = 32;
__device__ __forceinline__ void mbarrier_arrive_warp(uint32_t bar, uint32_t) { mbarrier_arrive(bar); }
#else
constexpr uint32_t kWarpArrivals = 1;
__device__ __forceinline__ void mbarrier_arrive_warp(uint32_t bar, uint32_t lane) {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(bar);
}
#endif

// Arrives, and makes the phase wait for `bytes` more of copies. The call comes before these copies are issued.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(bar),
                 "r"(bytes)
                 : "memory");
}

// Whether the phase of this parity is over. May sleep for a while first. The parity can only mean the current phase or
// the one before.
__device__ __forceinline__ bool mbarrier_try_wait_parity(uint32_t bar, uint32_t parity) {
    uint32_t over;
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t"
        "}"
        : "=r"(over)
        : "r"(bar), "r"(parity)
        : "memory");
    return over != 0;
}

// Waits for the phase of this parity to be over.
__device__ __forceinline__ void mbarrier_wait(uint32_t bar, uint32_t parity) {
    while (!mbarrier_try_wait_parity(bar, parity)) {
    }
}

// Arrives at an mbarrier of another CTA of the cluster. `peer_bar` is its address there (mapa).
__device__ __forceinline__ void mbarrier_arrive_cluster(uint32_t peer_bar) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(peer_bar) : "memory");
}

// Waits like mbarrier_wait, but acquires from the whole cluster: for barriers where threads of its other CTAs arrive.
__device__ __forceinline__ void mbarrier_wait_cluster(uint32_t bar, uint32_t parity) {
    uint32_t over;
    do {
        asm volatile(
            "{\n\t"
            ".reg .pred p;\n\t"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t"
            "}"
            : "=r"(over)
            : "r"(bar), "r"(parity)
            : "memory");
    } while (over == 0);
}

}  // namespace nvfp4::arch
