// Shared memory: addresses, loads and stores. Barriers of a CTA, and a warp's leader.
#pragma once

#include <cstdint>

namespace nvfp4::arch {

// Address of `p` in the shared window: the 32 bits that the instructions of this folder take.
__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Elects a lane: true in one lane, the same one at every call. All lanes must call it.
__device__ __forceinline__ bool elect_sync() {
    uint32_t leader;
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        "elect.sync _|p, 0xffffffff;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t"
        "}"
        : "=r"(leader));
    return leader != 0;
}

// Waits at barrier `id` of the CTA until `threads` threads, whole warps, have come.
__device__ __forceinline__ void barrier_cta_sync(uint32_t id, uint32_t threads) {
    asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Arrives at barrier `id` of the CTA, and goes on without waiting.
__device__ __forceinline__ void barrier_cta_arrive(uint32_t id, uint32_t threads) {
    asm volatile("barrier.cta.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Loads from a shared address. Volatile: not moved over waits for copies that fill shared memory.
__device__ __forceinline__ uint4 ld_shared_128(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at));
    return v;
}

__device__ __forceinline__ float4 ld_shared_v4_f32(uint32_t at) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(at));
    return v;
}

__device__ __forceinline__ float2 ld_shared_v2_f32(uint32_t at) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at));
    return v;
}

__device__ __forceinline__ float ld_shared_f32(uint32_t at) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at));
    return v;
}

__device__ __forceinline__ uint2 ld_shared_64(uint32_t at) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    return v;
}

__device__ __forceinline__ uint32_t ld_shared_32(uint32_t at) {
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}

__device__ __forceinline__ uint16_t ld_shared_16(uint32_t at) {
    uint16_t v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
    return v;
}

__device__ __forceinline__ uint32_t ld_shared_8(uint32_t at) {
    uint32_t v;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}

__device__ __forceinline__ void st_shared_32(uint32_t at, uint32_t v) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}

__device__ __forceinline__ void st_shared_8(uint32_t at, uint8_t v) {
    asm volatile("st.shared.u8 [%0], %1;" ::"r"(at), "r"(uint32_t(v)) : "memory");
}

// Store and load of a word that threads of the CTA pass to each other while they run. Relaxed: the word orders no other
// memory.
__device__ __forceinline__ void st_relaxed_shared_32(uint32_t at, uint32_t v) {
    asm volatile("st.relaxed.cta.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}

__device__ __forceinline__ uint32_t ld_relaxed_shared_32(uint32_t at) {
    uint32_t v;
    asm volatile("ld.relaxed.cta.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
    return v;
}

__device__ __forceinline__ void st_shared_f32(uint32_t at, float v) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
}

}  // namespace nvfp4::arch
