// Floats to E4M3 and E2M1 codes: in hardware where there is an instruction, else the same bits.
#pragma once

#include <cstdint>

#include "../arch/convert.cuh"

namespace nvfp4 {

// The E4M3 code nearest to a number that is not negative and not NaN; ties to even, saturating.
__device__ __forceinline__ uint8_t encode_e4m3(float x) {
#if NVFP4_HAS_CVT_E4M3
    return arch::cvt_to_e4m3(x);
#else
    constexpr float kMax = 448.0f;
    if (x < 1.0f / 64.0f) {
        // Subnormal: a multiple of 2^-9. 8 of them are the first normal code, as they should be.
        return uint8_t(__float2uint_rn(__fmul_rn(x, 512.0f)));
    }
    // The mantissa rounded to 3 bits; a carry moves into the exponent, as it should.
    const uint32_t bits = __float_as_uint(fminf(x, kMax)) - (120u << 23);
    return uint8_t((bits + 0x7ffffu + (bits >> 20 & 1)) >> 20);
#endif
}

// The E2M1 codes nearest to eight numbers, number i in bits 4i to 4i + 3; ties to even, saturating. A zero keeps its
// sign. No number may be NaN.
__device__ __forceinline__ uint32_t encode_e2m1x8(const float (&x)[8]) {
#if NVFP4_HAS_CVT_E2M1
    return arch::cvt_to_e2m1x8(x);
#else
    uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float a = fminf(fabsf(x[i]), 6.0f);
        // Rounded as in encode_e4m3, to 1 bit of mantissa; code 2, 1.0, is the first normal one.
        const uint32_t bits = __float_as_uint(a) - (126u << 23);
        const uint32_t magnitude = a < 1.0f ? __float2uint_rn(a + a)
                                            : (bits + 0x1fffffu + (bits >> 22 & 1)) >> 22;
        codes |= (magnitude | __float_as_uint(x[i]) >> 31 << 3) << (4 * i);
    }
    return codes;
#endif
}

}  // namespace nvfp4
