// bf16 arithmetic.
#pragma once

#include <cstdint>

namespace nvfp4::arch {

// Two bf16 products, subnormal numbers included. The instruction is fma, which sm_80 has; adding -0 changes nothing.
__device__ __forceinline__ uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
    uint32_t bits;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(bits) : "r"(a), "r"(b), "r"(0x80008000u));
    return bits;
}

// The bf16 nearest to x, ties to even. Written as asm, because cuda_bf16.h takes long to compile.
__device__ __forceinline__ uint16_t cvt_to_bf16(float x) {
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

}  // namespace nvfp4::arch
