// Thread block clusters and the shared memory of the other CTAs in them. sm_90 and newer.
#pragma once

#include <cstdint>

namespace nvfp4::arch {

// Index of this cluster in the grid, along x.
__device__ __forceinline__ uint32_t clusterid_x() {
    uint32_t index;
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(index));
    return index;
}

// Rank of this CTA in its cluster.
__device__ __forceinline__ uint32_t cluster_ctarank() {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Number of CTAs in the cluster.
__device__ __forceinline__ uint32_t cluster_nctarank() {
    uint32_t size;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
}

// Arrives at the cluster's barrier, and releases what this thread did before. Every thread of the cluster arrives,
// whole warps together.
__device__ __forceinline__ void barrier_cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

// Waits for the arrivals of all threads of the cluster, and acquires what they released.
__device__ __forceinline__ void barrier_cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Address, in CTA `rank`, of the shared variable that has this address here. That CTA must not have ended.
__device__ __forceinline__ uint32_t mapa(uint32_t address, uint32_t rank) {
    uint32_t peer;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(address), "r"(rank));
    return peer;
}

// Loads from the shared memory of a CTA of the cluster, at an address that mapa gave.
__device__ __forceinline__ float ld_shared_cluster_f32(uint32_t mapa) {
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(mapa) : "memory");
    return value;
}

}  // namespace nvfp4::arch
