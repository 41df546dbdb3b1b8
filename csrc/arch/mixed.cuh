// f32 arithmetic with f16 operands, one instruction a function: sm_100 and newer.
#pragma once

#include <cuda_fp16.h>

namespace nvfp4::arch {

// a + c, rounded once.
__device__ __forceinline__ float add_f32_f16(__half a, float c) {
    float d;
    asm("add.rn.f32.f16 %0, %1, %2;" : "=f"(d) : "h"(__half_as_ushort(a)), "f"(c));
    return d;
}

// a * b, by adding -0: exact, except below f32's normal numbers.
__device__ __forceinline__ float fma_f32_f16(__half a, __half b) {
    float d;
    asm("fma.rn.f32.f16 %0, %1, %2, %3;"
        : "=f"(d)
        : "h"(__half_as_ushort(a)), "h"(__half_as_ushort(b)), "f"(-0.0f));
    return d;
}

}  // namespace nvfp4::arch
