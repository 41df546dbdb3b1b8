// Eight E2M1 codes of one 32-bit word as four f16x2.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "../arch/convert.cuh"

namespace nvfp4 {

// Eight decoded elements. How they are decoded decides which elements share an f16x2, and the factor on the values. Two
// operands that are decoded the same way match element by element.
struct E2m1x8 {
#if NVFP4_HAS_CVT_E2M1
    static constexpr float kFactor = 1.0f;
    __device__ static constexpr int low(int pair) { return 2 * pair; }
    __device__ static constexpr int high(int pair) { return 2 * pair + 1; }
#else
    static constexpr float kFactor = 1.0f / 16384.0f;
    __device__ static constexpr int low(int pair) { return pair; }
    __device__ static constexpr int high(int pair) { return pair + 4; }
#endif

    // pair[i] holds kFactor times elements low(i) and high(i).
    __half2 pair[4];

    __device__ __forceinline__ void decode(uint32_t codes) {
#if NVFP4_HAS_CVT_E2M1
        arch::cvt_e2m1x8(codes, pair);
#else
        // A code's exponent and mantissa, placed at the top of f16's mantissa and the bottom of its exponent, are 2^-14
        // of its value. That includes the subnormal code.
        constexpr uint32_t kSign = 0x80008000u;
        constexpr uint32_t kMagnitude = 0x0e000e00u;
        set(0, (codes << 12 & kSign) | (codes << 9 & kMagnitude));
        set(1, (codes << 8 & kSign) | (codes << 5 & kMagnitude));
        set(2, (codes << 4 & kSign) | (codes << 1 & kMagnitude));
        set(3, (codes & kSign) | (codes >> 3 & kMagnitude));
#endif
    }

    // Decodes like `decode`, but in fewer instructions, and -0 becomes 0.
    //
    // Let x be a code as a number, 0 to 15. 56 - 7x = 8 * (7 - x) + x has x's magnitude in its low three bits. It is
    // below 0 where x has a sign, except for -0. So one multiplication by 7 puts both in place. Every other code of the
    // word is multiplied at once. The part of another code's product that stands eight bits below is less than one, and
    // the ones that the constant has there keep it from borrowing. The part that stands above is behind the sign.
    __device__ __forceinline__ void decode_without_negative_zero(uint32_t codes) {
#if NVFP4_HAS_CVT_E2M1
        decode(codes);
#else
        constexpr uint32_t kOnes = 0x71ff71ffu; // in both halves, 56 << 9 and ones below it
        constexpr uint32_t kResult = 0x8e008e00u;
        const uint32_t even = codes & 0x0f0f0f0fu, odd = codes >> 4 & 0x0f0f0f0fu;
        set(0, (kOnes - even * (7u << 9)) & kResult);
        set(1, (kOnes - odd * (7u << 9)) & kResult);
        set(2, (kOnes - even * (7u << 1)) & kResult);
        set(3, (kOnes - odd * (7u << 1)) & kResult);
#endif
    }

    // Removes the factor, exactly.
    __device__ __forceinline__ void normalize() {
        if constexpr (kFactor != 1.0f) {
#pragma unroll
            for (int i = 0; i < 4; ++i) pair[i] = __hmul2(pair[i], __float2half2_rn(1 / kFactor));
        }
    }

  private:
    __device__ __forceinline__ void set(int i, uint32_t bits) {
        pair[i] = reinterpret_cast<const __half2 &>(bits);
    }
};

}  // namespace nvfp4
