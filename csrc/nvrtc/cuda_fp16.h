// CUDA's f16 types and functions, as far as the kernels use them: NVRTC brings no headers of its own. Each function is
// the PTX instruction that CUDA's header has for it, so that a kernel has the same machine code by both. In particular
// __hmul2 is a multiplication without a rounding mode, which the assembler may fuse with an addition, there as here.
#pragma once

#include <stdint.h>

struct alignas(2) __half {
    uint16_t bits;
};

// A word, and not two halves: the compiler would take it apart wherever it is copied.
struct __half2 {
    uint32_t word; // the first one in the low half
};

__device__ __forceinline__ __half __ushort_as_half(uint16_t bits) {
    __half half;
    half.bits = bits;
    return half;
}

__device__ __forceinline__ __half __float2half_rn(float a) {
    __half half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half.bits) : "f"(a));
    return half;
}

__device__ __forceinline__ float __half2float(__half a) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(a.bits));
    return value;
}

__device__ __forceinline__ __half2 __float2half2_rn(float a) {
    __half2 pair;
    asm("{.reg .b16 both; cvt.rn.f16.f32 both, %1; mov.b32 %0, {both, both};}" : "=r"(pair.word) : "f"(a));
    return pair;
}

__device__ __forceinline__ float __low2float(__half2 a) {
    float value;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low;}" : "=f"(value) : "r"(a.word));
    return value;
}

__device__ __forceinline__ float __high2float(__half2 a) {
    float value;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, high;}" : "=f"(value) : "r"(a.word));
    return value;
}

__device__ __forceinline__ float2 __half22float2(__half2 a) { return make_float2(__low2float(a), __high2float(a)); }

__device__ __forceinline__ __half2 __low2half2(__half2 a) {
    __half2 pair;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {low, low};}"
        : "=r"(pair.word)
        : "r"(a.word));
    return pair;
}

__device__ __forceinline__ __half2 __high2half2(__half2 a) {
    __half2 pair;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {high, high};}"
        : "=r"(pair.word)
        : "r"(a.word));
    return pair;
}

__device__ __forceinline__ __half2 __hmul2(__half2 a, __half2 b) {
    __half2 pair;
    asm("mul.f16x2 %0, %1, %2;" : "=r"(pair.word) : "r"(a.word), "r"(b.word));
    return pair;
}

__device__ __forceinline__ __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
    __half2 pair;
    asm("fma.rn.f16x2 %0, %1, %2, %3;"
        : "=r"(pair.word)
        : "r"(a.word), "r"(b.word), "r"(c.word));
    return pair;
}
