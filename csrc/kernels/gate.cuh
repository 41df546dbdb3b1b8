// What stands between gate and up, and down, in the MLP of a decoder layer. The arithmetic is src/gate.rs's, operation by
// operation: no contraction, no approximations of the hardware.
#pragma once

#include <cstdint>

#include "../shared.h"

namespace nvfp4 {

// exp(x) for x of -87 to 88; beyond them, exp(-87) and exp(88). e^x = 2^n e^r with n the integer nearest to x / ln 2. What
// becomes of NaN does not matter: a gate whose exponent is NaN multiplies by the NaN that it comes from.
__device__ __forceinline__ float exponential(float x) {
    constexpr float kLog2E = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
    constexpr float kRound = 12582912.0f; // 1.5 * 2^23: a sum with it has no digits behind the point
    x = fminf(fmaxf(x, -87.0f), 88.0f);
    const float shifted = __fadd_rn(__fmul_rn(x, kLog2E), kRound);
    const float n = __fadd_rn(shifted, -kRound);
    const float r = __fadd_rn(__fadd_rn(x, -__fmul_rn(n, kLn2High)), -__fmul_rn(n, kLn2Low));
    float sum = 1.0f / 5040;
    constexpr float kTerms[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
#pragma unroll
    for (int i = 0; i < 7; ++i) sum = __fadd_rn(__fmul_rn(sum, r), kTerms[i]);
    const uint32_t power = (__float_as_uint(shifted) - __float_as_uint(kRound) + 127) << 23;
    return __fmul_rn(sum, __uint_as_float(power));
}

// x / (1 + exp(-y)).
__device__ __forceinline__ float times_sigmoid(float x, float y) {
    return __fdiv_rn(x, __fadd_rn(1.0f, exponential(-y)));
}

// What becomes of elements of gate and as many of up.
template <int kCount>
__device__ __forceinline__ void gated(const nvfp4_gate &g, const float (&gate)[kCount], const float (&up)[kCount],
                                      float (&out)[kCount]) {
    // The kind is asked once, so that the elements' operations overlap.
    switch (g.kind) {
        case NVFP4_GATE_GELU_TANH:
#pragma unroll
            for (int i = 0; i < kCount; ++i) {
                // sqrt(8 / pi) (gate + 0.044715 gate^3), whose sigmoid is (1 + tanh) / 2 of half of it
                const float square = __fmul_rn(gate[i], gate[i]);
                const float factor = __fadd_rn(__fmul_rn(0.0713548163f, square), 1.59576912f);
                out[i] = __fmul_rn(times_sigmoid(gate[i], __fmul_rn(gate[i], factor)), up[i]);
            }
            break;
        case NVFP4_GATE_CLAMPED:
#pragma unroll
            for (int i = 0; i < kCount; ++i) {
                // Not fminf and fmaxf, which would make a number of NaN.
                const float x = gate[i] > g.limit ? g.limit : gate[i];
                const float y = up[i] > g.limit ? g.limit : up[i] < -g.limit ? -g.limit : up[i];
                out[i] = __fmul_rn(times_sigmoid(x, __fmul_rn(g.alpha, x)), __fadd_rn(y, 1.0f));
            }
            break;
        default:
#pragma unroll
            for (int i = 0; i < kCount; ++i) out[i] = __fmul_rn(times_sigmoid(gate[i], gate[i]), up[i]);
    }
}

}  // namespace nvfp4
