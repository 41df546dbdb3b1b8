// Dot products of weight blocks with vector blocks on mma.sync, a block of 16 a lane and row.
//
// A matrix instruction sums over K, and K here is spread over the four lanes t of a row. Blocks have scales of their
// own and must not be summed together. So the columns of B keep the lanes apart: column 2t + v holds vector v where K
// belongs to lane t, and zeros elsewhere. Lane t then has, in columns 2t and 2t + 1 of the result, what its own block
// gives with vectors v = 0 and 1, in rows g and g + 8. A lane holds one column of B only: lanes (g, t) with g / 2 = t
// read vector g % 2, other lanes zeros.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "../arch/bf16.cuh"
#include "../arch/convert.cuh"
#include "../arch/memory.cuh"
#include "../arch/mma.cuh"
#include "../arch/registers.cuh"
#include "../arch/shared.cuh"
#include "../format/e2m1.cuh"
#include "../shared.h"
#include "integer_dot.cuh"
#include "scaled_weights.cuh"

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

// Bytes of a block's pairs of f32, one for each vector, in shared memory: see Dot::vector_scale.
__host__ __device__ constexpr uint32_t x_scale_bytes(uint32_t vectors) { return vectors * 8; }

// Loads the pairs of two blocks.
template <int kVectors>
__device__ __forceinline__ void load_x_scales(uint32_t from, float2 (*to)[kVectors]) {
    constexpr int kTwo = kVectors == 1 ? 1 : 2; // one load has both blocks of one vector
#pragma unroll
    for (int b = 0; b < kTwo; ++b) {
        float2 *out = to[b];
#pragma unroll
        for (int i = 0; i < kVectors * 2 / kTwo; i += 2) {
            const float4 v = arch::ld_shared_v4_f32(from + b * x_scale_bytes(kVectors) + 8 * i);
            out[i] = make_float2(v.x, v.y), out[i + 1] = make_float2(v.z, v.w);
        }
    }
}

// Bits of a where the mask has ones, of b elsewhere: one instruction, where the compiler makes two of
// constant masks.
__device__ __forceinline__ uint32_t select_bits(uint32_t mask, uint32_t a, uint32_t b) {
    uint32_t bits;
    asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(bits) : "r"(a), "r"(b), "r"(mask));
    return bits;
}

// A lane's block of its vector, or zeros.
template <int kBytes>
struct VectorBlock {
    uint4 part[kBytes / 16];

    __device__ __forceinline__ void load(uint32_t at) {
        part[0] = arch::ld_shared_128(at);
        if constexpr (kBytes == 32) part[1] = arch::ld_shared_128(at + 16);
    }
};

// Dot products with one type of vectors. The constructor's `zero` is zeros for arch::hidden.
template <int kActivation>
struct Dot;

// NVFP4 vectors: integers, as integer_dot.cuh explains, but with 12 added to the integers of the weights. Exact.
//
// Let e be twice a code's value. One lookup makes 12 + e of codes without a sign and 0 of others; another lookup does
// so for codes with a sign. The sum of 4608 and the products (12 + e) * x is at least 0 and below 2^23. Its bits, as
// those of a float, are the sum times 2^-149. One fma makes of it the block's product, times the vector's scale;
// vector_scale prepares the fma's operands.
template <>
struct Dot<NVFP4_ACTIVATION_NVFP4> {
    static constexpr int kBlockBytes = 16; // of a vector's block in shared memory
    using Vector = VectorBlock<kBlockBytes>;
    static constexpr bool kHasScales = true; // vectors have block scales
    static constexpr int kParts = 1;      // columns of B that a vector takes

    static constexpr int kOffset = 12;         // of the weights' bytes
    static constexpr int kBias = 16 * 24 * 12; // of a block's sum: its greatest magnitude

    int8::Lookup positive, negative;
    int32_t bias[4];

    __device__ __forceinline__ explicit Dot(uint4 zero)
        : positive(arch::hidden(0x0f0e0d0cu, zero.x), 0x18141210u),
          negative(arch::hidden(0x090a0b0cu, zero.y), 0x00040608u) {
        const uint32_t zeros[4] = {zero.x, zero.y, zero.z, zero.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) bias[i] = arch::hidden(kBias, zeros[i]);
    }

    // A block in memory.
    struct Raw {
        uint2 codes;
        __device__ __forceinline__ void load(const uint8_t *from) { codes = arch::ld_global_64(from); }
        __device__ __forceinline__ uint4 block() const {
            return int8::Magnitudes(int8::Lookup(), codes).joined();
        }
    };

    __device__ static __forceinline__ void put(const Raw &raw, int, uint4 *to) { *to = raw.block(); }
    __device__ static __forceinline__ float total(const float (&sums)[kParts]) { return sums[0] * 0x1p49f; }

    // Operands of the fma for a block with a scale: the factor of sums, and the addend that removes the bias and the
    // weights' offset. The result is 2^-49 of the product: exact, with 18 bits at most. The scale is cut to a quarter,
    // because both operands of the product are times two.
    __device__ static __forceinline__ float2 vector_scale(const Raw &raw, float scale) {
        const uint4 x = raw.block();
        int32_t sum = 0;
        for (uint32_t word : {x.x, x.y, x.z, x.w}) sum = __dp4a(int32_t(word), 0x01010101, sum);
        return make_float2(scale * 0x1p98f, float(kBias + kOffset * sum) * (scale * -0x1p-51f));
    }

    // A word of weights is two registers: one with the positive codes' bytes, one with the others'. That costs an
    // instruction more for each, but adding the two would cost one for each, too.
    struct Weights {
        static constexpr int kLookups = 2;
        uint32_t row[2][kLookups][4];

        __device__ __forceinline__ Weights(const Dot &dot, uint2 upper, uint2 lower) {
            decode(dot, upper.x, row[0], 0);
            decode(dot, upper.y, row[0], 2);
            decode(dot, lower.x, row[1], 0);
            decode(dot, lower.y, row[1], 2);
        }

      private:
        __device__ static __forceinline__ void decode(const Dot &dot, uint32_t codes,
                                                      uint32_t (&to)[kLookups][4], int i) {
            const uint32_t flipped = codes ^ 0x88888888u;
            to[0][i] = dot.positive(codes);
            to[0][i + 1] = dot.positive(codes >> 16);
            to[1][i] = dot.negative(flipped);
            to[1][i + 1] = dot.negative(flipped >> 16);
        }
    };

    // Multiplies rows g and g + 8 with two vectors. vector_scale's operands make products of the sums d.
    __device__ __forceinline__ void multiply(const Weights &w, const Vector &x, float (&d)[4]) const {
        const uint4 b = x.part[0];
        int32_t sum[4] = {bias[0], bias[1], bias[2], bias[3]};
#pragma unroll
        for (int i = 0; i < Weights::kLookups; ++i) {
            const auto &u = w.row[0][i], &l = w.row[1][i];
            arch::mma_s8(sum, u[0], l[0], u[1], l[1], b.x, b.y, sum);
            arch::mma_s8(sum, u[2], l[2], u[3], l[3], b.z, b.w, sum);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) d[i] = __int_as_float(sum[i]);
    }
};

// A block of 16-bit elements in memory.
struct Raw16 {
    uint4 in[2];
    __device__ __forceinline__ void load(const uint8_t *from) {
        in[0] = arch::ld_global_128(from);
        in[1] = arch::ld_global_128(from + 16);
    }
};

// Stores a block as words of two 16-bit elements, in the order in which weights are decoded.
template <class Order>
__device__ __forceinline__ void put_16_bit(const Raw16 &raw, uint4 *to) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        uint32_t out[4];
        ordered_pairs<Order>(raw.in[half], out);
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
    static constexpr bool kHasScales = false;
    static constexpr int kParts = 1;

    __device__ __forceinline__ explicit Dot(uint4) {}

    using Raw = Raw16;
    __device__ static __forceinline__ void put(const Raw &raw, int, uint4 *to) { put_16_bit<E2m1x8>(raw, to); }
    __device__ static __forceinline__ float total(const float (&sums)[kParts]) {
        return sums[0] * (1.0f / E2m1x8::kFactor);
    }

    struct Weights {
        E2m1x8 row[2][2];
        __device__ __forceinline__ Weights(const Dot &, uint2 upper, uint2 lower) {
            row[0][0].decode_without_negative_zero(upper.x);
            row[0][1].decode_without_negative_zero(upper.y);
            row[1][0].decode_without_negative_zero(lower.x);
            row[1][1].decode_without_negative_zero(lower.y);
        }
        __device__ __forceinline__ uint32_t word(int r, int i) const {
            return reinterpret_cast<const uint32_t &>(row[r][i / 4].pair[i % 4]);
        }
    };

    __device__ __forceinline__ void multiply(const Weights &w, const Vector &x, float (&d)[4]) const {
        multiply_16_bit<arch::mma_f16>(w, x, d);
    }
};

// bf16 vectors. A code's exponent and mantissa bits, moved to bf16's places, are 2^-126 of its value, subnormal or not.
//
// A vector has two columns of B, which make up for that factor: otherwise sums would leave f32's normal numbers. The
// first column has the elements from 1 on, the second one the other elements times 2^124. Products of either column
// with weights and scales are multiples of 2^-149, f32's smallest, of 24 bits or fewer. So sums round as those of other
// vectors do.
template <>
struct Dot<NVFP4_ACTIVATION_BF16> {
    static constexpr int kBlockBytes = 32;
    using Vector = VectorBlock<kBlockBytes>;
    static constexpr bool kHasScales = false;
    static constexpr int kParts = 2;

    // Constants that the compiler does not know: otherwise it would mask twice as often, and shift right twice.
    uint32_t even_signs, odd_signs, sixteen;

    __device__ __forceinline__ explicit Dot(uint4 zero)
        : even_signs(arch::hidden(0x08080808u, zero.x)), odd_signs(arch::hidden(0x80808080u, zero.y)),
          sixteen(arch::hidden(16, zero.z)) {}

    using Raw = Raw16;
    __device__ static __forceinline__ void put(const Raw &raw, int part, uint4 *to) {
        uint4 words[2];
        put_16_bit<Weights>(raw, words);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint4 &w = words[i];
            to[i] = make_uint4(part_of(w.x, part), part_of(w.y, part), part_of(w.z, part), part_of(w.w, part));
        }
    }
    __device__ static __forceinline__ float total(const float (&sums)[kParts]) {
        return fmaf(sums[0], 0x1p126f, sums[1] * 4.0f);
    }

    // Two elements' part for one column of B.
    __device__ static __forceinline__ uint32_t part_of(uint32_t pair, int part) {
        // The exponent bits of 1 and the constant add up to 2^15.
        const uint32_t from_1 = ((pair & 0x7f807f80u) + 0x40804080u) & 0x80008000u;
        const uint32_t mask = (from_1 >> 15) * 0xffffu;
        return part == 0 ? pair & mask : arch::mul_bf16x2(pair & ~mask, 0x7d807d80u);
    }

    struct Weights {
        uint32_t row[2][8];

        __device__ __forceinline__ Weights(const Dot &dot, uint2 upper, uint2 lower) {
            decode(dot, upper.x, &row[0][0]);
            decode(dot, upper.y, &row[0][4]);
            decode(dot, lower.x, &row[1][0]);
            decode(dot, lower.y, &row[1][4]);
        }
        __device__ __forceinline__ uint32_t word(int r, int i) const { return row[r][i]; }
        __device__ static constexpr int low(int i) { return i; }
        __device__ static constexpr int high(int i) { return i + 4; }

        __device__ static __forceinline__ void decode(const Dot &dot, uint32_t codes, uint32_t *out) {
            // Signs of every other code. Where a sign lies that is not wanted, the magnitude covers it.
            constexpr uint32_t kMagnitude = 0x01c001c0u;
            const uint32_t even = codes & dot.even_signs, odd = codes & dot.odd_signs;
            const uint32_t signs[4] = {even << 12, odd << 8, even << 4, odd};
            const uint32_t sixth = codes >> 6;
            const uint32_t magnitudes[4] = {codes << 6, codes << 2, sixth * dot.sixteen, sixth};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                out[i] = select_bits(kMagnitude, magnitudes[i], signs[i]);
            }
        }
    };

    __device__ __forceinline__ void multiply(const Weights &w, const Vector &x, float (&d)[4]) const {
        multiply_16_bit<arch::mma_bf16>(w, x, d);
    }
};

}  // namespace nvfp4::block_dot
