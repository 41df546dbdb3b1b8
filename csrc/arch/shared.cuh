// Shared-memory addresses, and a warp's leader.
#pragma once

#include <cstdint>

namespace nvfp4::arch {

// The 32-bit address in the shared window that the instructions of this folder take.
__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// True in one lane, the same one at every call. All lanes must call it.
__device__ __forceinline__ bool elect_one() {
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

}  // namespace nvfp4::arch
