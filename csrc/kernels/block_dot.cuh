// Dot products of weight blocks with vector blocks on mma.sync, a block of 16 a lane and row.
//
// A matrix instruction sums over K, and K here is spread over the four lanes t of a row. Blocks have
// scales of their own and must not be summed together. So the columns of B keep the lanes apart: column
// 2t + v holds vector v where K belongs to lane t, and zeros elsewhere. Of the result, lane t then has
// in columns 2t and 2t + 1 what its own block gives with vectors v = 0 and 1, in rows g and g + 8.
// Of B a lane needs its own column only: of the lanes (g, t), those with g / 2 = t read vector g % 2,
// the others zeros.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "../arch/convert.cuh"
#include "../arch/memory.cuh"
#include "../arch/mma.cuh"
#include "../arch/shared.cuh"
#include "../format/e2m1.cuh"
#include "../nvfp4_gemv.h"
#include "integer_dot.cuh"

namespace nvfp4::block_dot {

// Two pairs of scales as floats.
__device__ __forceinline__ void decode_scales(const uint32_t (&codes)[2], float (&scale)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const __half2 both = arch::cvt_e4m3x2(uint16_t(codes[i]));
        scale[2 * i] = __low2float(both);
        scale[2 * i + 1] = __high2float(both);
    }
}

// Vector scales of two blocks, f32 [block][vector] in shared memory.
template <int kVectors>
__device__ __forceinline__ void load_x_scales(uint32_t from, float (*to)[kVectors]) {
    float *out = &to[0][0];
    if constexpr (kVectors == 1) {
        const float2 v = arch::load_shared_2_floats(from);
        out[0] = v.x, out[1] = v.y;
    } else {
#pragma unroll
        for (int i = 0; i < kVectors / 2; ++i) {
            const float4 v = arch::load_shared_4_floats(from + 16 * i);
            out[4 * i] = v.x, out[4 * i + 1] = v.y, out[4 * i + 2] = v.z, out[4 * i + 3] = v.w;
        }
    }
}

// A constant in a register, by all lanes. The compiler must not know it, or it moves it there again for
// every use.
__device__ __forceinline__ uint32_t hidden(uint32_t constant) {
    return __shfl_sync(0xffffffffu, constant, 0);
}

// A lane's block of its vector, or zeros.
template <int kBytes>
struct VectorBlock {
    uint4 part[kBytes / 16];

    __device__ __forceinline__ void load(uint32_t at) {
        part[0] = arch::load_shared_128(at);
        if constexpr (kBytes == 32) part[1] = arch::load_shared_128(at + 16);
    }
};

template <int kActivation>
struct Dot;

// NVFP4 vectors: integers, as integer_dot.cuh explains. Exact.
template <>
struct Dot<NVFP4_ACTIVATION_NVFP4> {
    static constexpr int kBlockBytes = 16; // of a vector's block in shared memory
    using Vector = VectorBlock<kBlockBytes>;
    static constexpr bool kScaled = true;  // vectors have block scales
    static constexpr float kFactor = 1.0f; // of the sums

    int8::Lookup lookup;
    int32_t bias[4];

    __device__ __forceinline__ Dot() : lookup(hidden(int8::kLookupLow), hidden(int8::kLookupHigh)) {
#pragma unroll
        for (int i = 0; i < 4; ++i) bias[i] = hidden(int8::kFloatBias);
    }

    // A block in memory.
    struct Raw {
        uint2 codes;
        __device__ __forceinline__ void load(const uint8_t *from) { codes = arch::load_fresh_64(from); }
    };

    __device__ __forceinline__ void put(const Raw &raw, uint4 *to) const {
        *to = int8::Magnitudes(lookup, raw.codes).joined();
    }

    struct Weights {
        int8::Magnitudes row[2];
        __device__ __forceinline__ Weights(const Dot &dot, uint2 upper, uint2 lower)
            : row{{dot.lookup, upper}, {dot.lookup, lower}} {}
    };

    // d: four times the products of rows g and g + 8 with two vectors.
    __device__ __forceinline__ void multiply(const Weights &w, const Vector &x, float (&d)[4]) const {
        const uint4 b = x.part[0];
        const auto &u = w.row[0], &l = w.row[1];
        int32_t plus[4], minus[4];
        arch::mma_s8(plus, u.positive[0], l.positive[0], u.positive[1], l.positive[1], b.x, b.y, bias);
        arch::mma_s8(minus, u.negative[0], l.negative[0], u.negative[1], l.negative[1], b.x, b.y, bias);
        arch::mma_s8(plus, u.positive[2], l.positive[2], u.positive[3], l.positive[3], b.z, b.w, plus);
        arch::mma_s8(minus, u.negative[2], l.negative[2], u.negative[3], l.negative[3], b.z, b.w, minus);
        // Both have the bias: their difference as floats is exact.
#pragma unroll
        for (int i = 0; i < 4; ++i) d[i] = __int_as_float(plus[i]) - __int_as_float(minus[i]);
    }
};

// A block of 16-bit elements in memory.
struct Raw16 {
    uint4 in[2];
    __device__ __forceinline__ void load(const uint8_t *from) {
        in[0] = arch::load_fresh_128(from);
        in[1] = arch::load_fresh_128(from + 16);
    }
};

// Words of two 16-bit elements, in the order in which weights are decoded: Order::low(i) and high(i)
// of eight elements share word i.
template <class Order>
__device__ __forceinline__ void put_16_bit(const Raw16 &raw, uint4 *to) {
    const uint4 (&in)[2] = raw.in;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const uint32_t words[4] = {in[half].x, in[half].y, in[half].z, in[half].w};
        uint32_t out[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int low = Order::low(i), high = Order::high(i);
            // Element e is half e % 2 of word e / 2.
            out[i] = __byte_perm(words[low / 2], words[high / 2],
                                 (low % 2 ? 0x32 : 0x10) | (high % 2 ? 0x7600 : 0x5400));
        }
        to[half] = make_uint4(out[0], out[1], out[2], out[3]);
    }
}

// Products of rows g and g + 8 with two vectors.
template <auto kMma, class Weights, class Vector>
__device__ __forceinline__ void multiply_16_bit(const Weights &w, const Vector &x, float (&d)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) d[i] = 0.0f;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const uint4 b = x.part[half];
        const int i = 4 * half;
        kMma(d, w.word(0, i), w.word(1, i), w.word(0, i + 1), w.word(1, i + 1), b.x, b.y);
        kMma(d, w.word(0, i + 2), w.word(1, i + 2), w.word(0, i + 3), w.word(1, i + 3), b.z, b.w);
    }
}

template <>
struct Dot<NVFP4_ACTIVATION_F16> {
    static constexpr int kBlockBytes = 32;
    using Vector = VectorBlock<kBlockBytes>;
    static constexpr bool kScaled = false;
    static constexpr float kFactor = 1.0f / E2m1x8::kFactor;

    using Raw = Raw16;
    __device__ __forceinline__ void put(const Raw &raw, uint4 *to) const { put_16_bit<E2m1x8>(raw, to); }

    struct Weights {
        E2m1x8 row[2][2];
        __device__ __forceinline__ Weights(const Dot &, uint2 upper, uint2 lower) {
            row[0][0].decode(upper.x);
            row[0][1].decode(upper.y);
            row[1][0].decode(lower.x);
            row[1][1].decode(lower.y);
        }
        __device__ __forceinline__ uint32_t word(int r, int i) const {
            return reinterpret_cast<const uint32_t &>(row[r][i / 4].pair[i % 4]);
        }
    };

    __device__ __forceinline__ void multiply(const Weights &w, const Vector &x, float (&d)[4]) const {
        multiply_16_bit<arch::mma_f16>(w, x, d);
    }
};

template <>
struct Dot<NVFP4_ACTIVATION_BF16> {
    static constexpr int kBlockBytes = 32;
    using Vector = VectorBlock<kBlockBytes>;
    static constexpr bool kScaled = false;
    static constexpr float kFactor = 1.0f;

    using Raw = Raw16;
    __device__ __forceinline__ void put(const Raw &raw, uint4 *to) const { put_16_bit<Weights>(raw, to); }

    struct Weights {
        uint32_t row[2][8];

        __device__ __forceinline__ Weights(const Dot &, uint2 upper, uint2 lower) {
            decode(upper.x, &row[0][0]);
            decode(upper.y, &row[0][4]);
            decode(lower.x, &row[1][0]);
            decode(lower.y, &row[1][4]);
        }
        __device__ __forceinline__ uint32_t word(int r, int i) const { return row[r][i]; }
        __device__ static constexpr int low(int i) { return i; }
        __device__ static constexpr int high(int i) { return i + 4; }

        // A code's exponent and mantissa placed into bf16's make 2^-126 of its value, subnormal or
        // not; the product with 2^126 is exact.
        __device__ static __forceinline__ void decode(uint32_t codes, uint32_t *out) {
            constexpr uint32_t kSign = 0x80008000u, kMagnitude = 0x01c001c0u;
            const uint32_t bits[4] = {
                (codes << 12 & kSign) | (codes << 6 & kMagnitude),
                (codes << 8 & kSign) | (codes << 2 & kMagnitude),
                (codes << 4 & kSign) | (codes >> 2 & kMagnitude),
                (codes & kSign) | (codes >> 6 & kMagnitude),
            };
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                // A product with fma, which sm_80 has: adding -0 changes nothing.
                asm("fma.rn.bf16x2 %0, %1, %2, %3;"
                    : "=r"(out[i])
                    : "r"(bits[i]), "r"(0x7e807e80u), "r"(0x80008000u));
            }
        }
    };

    __device__ __forceinline__ void multiply(const Weights &w, const Vector &x, float (&d)[4]) const {
        multiply_16_bit<arch::mma_bf16>(w, x, d);
    }
};

}  // namespace nvfp4::block_dot
