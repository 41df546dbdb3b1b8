// Conversions from and to the NVFP4 formats, in hardware where the architecture has them.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

// cvt.f16x2.e2m1x2 needs an architecture- or family-specific target of Blackwell.
#if (defined(__CUDA_ARCH_SPECIFIC__) && __CUDA_ARCH_SPECIFIC__ >= 1000) || \
    (defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH_FAMILY_SPECIFIC__ >= 1000)
#define NVFP4_HAS_CVT_E2M1 1
#else
#define NVFP4_HAS_CVT_E2M1 0
#endif

// cvt.f16x2.e4m3x2 came with sm_89.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define NVFP4_HAS_CVT_E4M3 1
#else
#define NVFP4_HAS_CVT_E4M3 0
#endif

namespace nvfp4::arch {

// Eight E2M1 codes to four f16x2: pair i holds elements 2i (low half) and 2i + 1.
__device__ __forceinline__ void cvt_e2m1x8(uint32_t codes, __half2 (&pairs)[4]) {
    uint32_t h[4];
    asm("{\n\t"
        ".reg .b8 b<4>;\n\t"
        "mov.b32 {b0, b1, b2, b3}, %4;\n\t"
        "cvt.rn.f16x2.e2m1x2 %0, b0;\n\t"
        "cvt.rn.f16x2.e2m1x2 %1, b1;\n\t"
        "cvt.rn.f16x2.e2m1x2 %2, b2;\n\t"
        "cvt.rn.f16x2.e2m1x2 %3, b3;\n\t"
        "}"
        : "=r"(h[0]), "=r"(h[1]), "=r"(h[2]), "=r"(h[3])
        : "r"(codes));
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = reinterpret_cast<__half2 &>(h[i]);
}

// Two E4M3 codes to f16x2, the low byte in the low half. Exact: f16 holds every E4M3 value.
__device__ __forceinline__ __half2 cvt_e4m3x2(uint16_t codes) {
#if NVFP4_HAS_CVT_E4M3
    uint32_t h;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(h) : "h"(codes));
    return reinterpret_cast<__half2 &>(h);
#else
    // Exponent and mantissa bits, moved to f16's places, are 2^-8 of the value, subnormals included. Block scales have
    // no sign, and no NaN in checked data.
    const uint32_t spread = (codes & 0x7fu) << 7 | (codes & 0x7f00u) << 15;
    return __hmul2(reinterpret_cast<const __half2 &>(spread), __float2half2_rn(256.0f));
#endif
}

// The nearest E4M3 code, ties to even, saturating.
__device__ __forceinline__ uint8_t cvt_to_e4m3(float x) {
    uint16_t codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(0.0f), "f"(x));
    return uint8_t(codes);
}

// The nearest E2M1 codes of eight numbers, ties to even, saturating; number i in bits 4i to 4i + 3.
// A zero keeps its sign, a NaN becomes 6.
__device__ __forceinline__ uint32_t cvt_to_e2m1x8(const float (&x)[8]) {
    uint32_t codes;
    asm("{\n\t"
        ".reg .b8 b<4>;\n\t"
        "cvt.rn.satfinite.e2m1x2.f32 b0, %2, %1;\n\t"
        "cvt.rn.satfinite.e2m1x2.f32 b1, %4, %3;\n\t"
        "cvt.rn.satfinite.e2m1x2.f32 b2, %6, %5;\n\t"
        "cvt.rn.satfinite.e2m1x2.f32 b3, %8, %7;\n\t"
        "mov.b32 %0, {b0, b1, b2, b3};\n\t"
        "}"
        : "=r"(codes)
        : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "f"(x[4]), "f"(x[5]), "f"(x[6]), "f"(x[7]));
    return codes;
}

}  // namespace nvfp4::arch
