// bf16 arithmetic.
#pragma once

#include <cstdint>

namespace nvfp4::arch {

// Two products, subnormal numbers included. With fma, which sm_80 has: adding -0 changes nothing.
__device__ __forceinline__ uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
    uint32_t bits;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(bits) : "r"(a), "r"(b), "r"(0x80008000u));
    return bits;
}

}  // namespace nvfp4::arch
