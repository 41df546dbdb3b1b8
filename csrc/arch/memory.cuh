// Loads, stores and atomics of global memory, one instruction a function.
#pragma once

#include <cstdint>

namespace nvfp4::arch {

// ld.global.nc of data that is read once: not kept in L1; L2 fetches whole 256-byte lines.
__device__ __forceinline__ uint4 ld_global_nc_no_allocate_128(const void *p) {
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(p));
    return v;
}

__device__ __forceinline__ uint2 ld_global_nc_no_allocate_64(const void *p) {
    uint2 v;
    asm("ld.global.nc.L1::no_allocate.L2::256B.v2.u32 {%0, %1}, [%2];"
        : "=r"(v.x), "=r"(v.y)
        : "l"(p));
    return v;
}

// ld.global.nc of data that other warps of the SM read too: kept in L1.
__device__ __forceinline__ uint16_t ld_global_nc_16(const void *p) {
    return __ldg(static_cast<const unsigned short *>(p));
}

__device__ __forceinline__ uint8_t ld_global_nc_8(const void *p) {
    return __ldg(static_cast<const unsigned char *>(p));
}

// Data that a grid which this one depends on may still be writing: coherent ld.global, because ld.global.nc could be
// moved before griddepcontrol_wait. Kept in L1 too.
__device__ __forceinline__ uint4 ld_global_128(const void *p) {
    return *static_cast<const uint4 *>(p);
}

__device__ __forceinline__ uint2 ld_global_64(const void *p) {
    return *static_cast<const uint2 *>(p);
}

__device__ __forceinline__ uint32_t ld_global_32(const void *p) {
    return *static_cast<const uint32_t *>(p);
}

__device__ __forceinline__ uint8_t ld_global_8(const void *p) {
    return *static_cast<const uint8_t *>(p);
}

// Stores data that a later grid reads soon. With createpolicy_evict_last (cp_async_bulk.cuh) the data is the last to
// leave L2.
__device__ __forceinline__ void st_global_v4_f32(float *p, const float (&v)[4], uint64_t policy) {
    asm volatile("st.global.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(p), "f"(v[0]), "f"(v[1]),
                 "f"(v[2]), "f"(v[3]), "l"(policy)
                 : "memory");
}

// Loads data that other CTAs of the grid wrote. Volatile: not moved over the instruction that tells that they have
// written.
__device__ __forceinline__ float4 ld_global_v4_f32(const float *p) {
    float4 v;
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
    return v;
}

// Adds one to a counter that CTAs share, and returns its value before. Releases what this thread wrote, or knows to be
// written, to threads that add later, and acquires what earlier ones released.
__device__ __forceinline__ uint32_t atom_add_acq_rel(uint32_t *counter) {
    uint32_t before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}

// Adds one to a counter that CTAs share, and returns its value before. Orders no other memory.
__device__ __forceinline__ uint32_t atom_add_relaxed(uint32_t *counter) {
    uint32_t before;
    asm volatile("atom.add.relaxed.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}

}  // namespace nvfp4::arch
