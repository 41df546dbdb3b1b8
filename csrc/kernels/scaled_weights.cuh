// Weights times their block scales, as pairs of 16-bit floats, for matrix instructions that sum over several blocks.
// Pairs of a vector's elements in the same order.
//
// A code's value (2 significant bits) times its scale (4 bits) has 6 bits, and is exact in f16 and in bf16.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "../arch/bf16.cuh"
#include "../arch/convert.cuh"
#include "../arch/mma.cuh"
#include "../format/e2m1.cuh"

namespace nvfp4 {

// Weights as pairs of f16, times their scales and kFactor. Where codes are not converted in hardware, f16 has room for
// 2^-14 of a value times 2^7 of its scale.
struct ScaledF16 {
    using Order = E2m1x8;
    static constexpr float kFactor = E2m1x8::kFactor == 1.0f ? 1.0f : 1.0f / 128.0f;
    template <class... Words>
    __device__ static __forceinline__ void mma(float (&d)[4], Words... words) {
        arch::mma_f16(d, words...);
    }

    // Scales of two blocks, each as a pair.
    __device__ static __forceinline__ void scales(uint32_t codes, uint32_t (&scale)[2]) {
        const __half2 both =
            __hmul2(arch::cvt_e4m3x2(uint16_t(codes)), __float2half2_rn(kFactor / E2m1x8::kFactor));
        const __half2 low = __low2half2(both), high = __high2half2(both);
        scale[0] = reinterpret_cast<const uint32_t &>(low);
        scale[1] = reinterpret_cast<const uint32_t &>(high);
    }

    // Decodes eight codes and multiplies them by their scale.
    __device__ static __forceinline__ void decode(uint32_t codes, uint32_t scale, uint32_t (&to)[4]) {
        E2m1x8 values;
        values.decode_without_negative_zero(codes);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const __half2 product = __hmul2(values.pair[i], reinterpret_cast<const __half2 &>(scale));
            to[i] = reinterpret_cast<const uint32_t &>(product);
        }
    }
};

// Weights as pairs of bf16, times their scales and kFactor. bf16's exponents have room for 2^-126 of a code's value
// times 2^119 of its scale.
struct ScaledBf16 {
    struct Order {
        __device__ static constexpr int low(int i) { return i; }
        __device__ static constexpr int high(int i) { return i + 4; }
    };
    static constexpr float kFactor = 1.0f / 128.0f;
    template <class... Words>
    __device__ static __forceinline__ void mma(float (&d)[4], Words... words) {
        arch::mma_bf16(d, words...);
    }

    __device__ static __forceinline__ void scales(uint32_t codes, uint32_t (&scale)[2]) {
        const __half2 both = arch::cvt_e4m3x2(uint16_t(codes));
        scale[0] = twice(__low2float(both) * 0x1p119f);
        scale[1] = twice(__high2float(both) * 0x1p119f);
    }

    // Decodes as E2m1x8::decode_without_negative_zero does, but one code in each half at once: bf16's sign stands
    // further from the magnitude.
    __device__ static __forceinline__ void decode(uint32_t codes, uint32_t scale, uint32_t (&to)[4]) {
        constexpr uint32_t kOnes = 0x0e3f0e3fu; // in both halves, 56 << 6 and ones below it
        constexpr uint32_t kResult = 0x81c081c0u;
        const uint32_t upper = codes >> 8;
        const uint32_t pairs[4] = {codes & 0x000f000fu, codes & 0x00f000f0u, upper & 0x000f000fu,
                                   upper & 0x00f000f0u};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            to[i] = arch::mul_bf16x2((kOnes - pairs[i] * (i % 2 ? 7u << 2 : 7u << 6)) & kResult, scale);
        }
    }

  private:
    // A number as a pair of bf16. Exact for numbers that bf16 holds, as it holds every scale.
    __device__ static __forceinline__ uint32_t twice(float x) {
        return __byte_perm(__float_as_uint(x), 0, 0x3232);
    }
};

// Eight 16-bit elements as four words, in the order in which weights are decoded: elements Order::low(i) and high(i)
// share word i.
template <class Order>
__device__ __forceinline__ void ordered_pairs(const uint4 &in, uint32_t (&out)[4]) {
    const uint32_t words[4] = {in.x, in.y, in.z, in.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int low = Order::low(i), high = Order::high(i);
        // Element e is half e % 2 of word e / 2.
        out[i] = __byte_perm(words[low / 2], words[high / 2],
                             (low % 2 ? 0x32 : 0x10) | (high % 2 ? 0x7600 : 0x5400));
    }
}

// Eight NVFP4 elements of a vector times their block's scale, which is exact in f16: six bits, from 2^-10 to 2688.
__device__ __forceinline__ void scaled_pairs(uint32_t codes, float scale, uint32_t (&out)[4]) {
    const __half2 scales = __float2half2_rn(scale);
    E2m1x8 values;
    values.decode_without_negative_zero(codes);
    values.normalize();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const __half2 product = __hmul2(values.pair[i], scales);
        out[i] = reinterpret_cast<const uint32_t &>(product);
    }
}

}  // namespace nvfp4
