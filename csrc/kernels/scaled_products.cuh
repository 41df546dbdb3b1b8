// A step of gemv_stream for many vectors: a column of B for each. What matrix instructions sum over K are all
// lanes' blocks, so each weight is multiplied by its block's scale before.
//
// A code's value (2 significant bits) times its scale (4 bits) has 6 bits, and is exact in f16 and in bf16. Matrix
// instructions sum eight such products a lane in turn; src/kernel/stream.rs derives what that may lose.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "../arch/bf16.cuh"
#include "../arch/convert.cuh"
#include "../arch/mma.cuh"
#include "../arch/shared.cuh"
#include "../format/e2m1.cuh"
#include "block_dot.cuh"
#include "stream_params.cuh"

namespace nvfp4::stream {

// Weights as pairs of 16-bit floats, times their scales and kFactor. Where codes are not converted in hardware,
// 2^-14 of a value times 2^7 of its scale is what f16 has room for.
struct ScaledF16 {
    using Order = E2m1x8;
    static constexpr float kFactor = E2m1x8::kFactor == 1.0f ? 1.0f : 1.0f / 128.0f;
    template <class... Words>
    __device__ static __forceinline__ void mma(float (&d)[4], Words... words) {
        arch::mma_f16(d, words...);
    }

    // Of two blocks.
    __device__ static __forceinline__ void scales(uint32_t codes, uint32_t (&scale)[2]) {
        const __half2 both =
            __hmul2(arch::cvt_e4m3x2(uint16_t(codes)), __float2half2_rn(kFactor / E2m1x8::kFactor));
        const __half2 low = __low2half2(both), high = __high2half2(both);
        scale[0] = reinterpret_cast<const uint32_t &>(low);
        scale[1] = reinterpret_cast<const uint32_t &>(high);
    }

    // Eight codes.
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

// The same with bf16, whose exponents have room for 2^-126 of a code's value times 2^119 of its scale.
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

    // As E2m1x8::decode_without_negative_zero does it, but a code a half: bf16's sign stands further from the
    // magnitude.
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
    // Exact for what bf16 holds, as it does every scale.
    __device__ static __forceinline__ uint32_t twice(float x) {
        return __byte_perm(__float_as_uint(x), 0, 0x3232);
    }
};

// How a block of a vector lies in memory, and becomes 16-bit floats in the order of the weights' pairs.
template <int kActivation>
struct ScaledVector {
    using Weights = std::conditional_t<kActivation == NVFP4_ACTIVATION_F16, ScaledF16, ScaledBf16>;
    using Raw = block_dot::Raw16;
    static constexpr bool kHasScales = false;
    __device__ static __forceinline__ void put(const Raw &raw, float, uint4 *to) {
        block_dot::put_16_bit<typename Weights::Order>(raw, to);
    }
};

// Values times scales are exact in f16: six bits, from 2^-10 to 2688.
template <>
struct ScaledVector<NVFP4_ACTIVATION_NVFP4> {
    using Weights = ScaledF16;
    using Raw = block_dot::Dot<NVFP4_ACTIVATION_NVFP4>::Raw;
    static constexpr bool kHasScales = true;
    __device__ static __forceinline__ void put(const Raw &raw, float scale, uint4 *to) {
        const __half2 scales = __float2half2_rn(scale);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            E2m1x8 values;
            values.decode_without_negative_zero(half ? raw.codes.y : raw.codes.x);
            values.normalize();
            uint32_t words[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const __half2 product = __hmul2(values.pair[i], scales);
                words[i] = reinterpret_cast<const uint32_t &>(product);
            }
            to[half] = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
};

template <int kActivation, int kVectors>
class ScaledProducts {
    static_assert(kVectors % 2 == 0 && kVectors <= 8, "lanes store two columns each");
    using Vector = ScaledVector<kActivation>;
    using Weights = typename Vector::Weights;

  public:
    // How vectors lie in shared memory.
    struct Vectors {
        using Raw = typename Vector::Raw;
        static constexpr int kParts = 1;
        static constexpr uint32_t kBlockBytes = 32;
        static constexpr bool kHasScales = Vector::kHasScales;
        static constexpr uint32_t kXScaleBytes = 0;
        static constexpr uint32_t kZeroBlocks = 0;

        // Half a block more than there are (of the whole one that the plan leaves), and blocks that the lanes
        // t read at once beside each other: eight lanes, of two columns, read all banks.
        __device__ static __forceinline__ uint32_t column_bytes(const Params &p) {
            return p.steps * kStepBlocks * kBlockBytes + kBlockBytes / 2;
        }
        __device__ static __forceinline__ uint32_t block_at(uint32_t block) {
            return ((block & ~7u) + block % 2 * 4 + block / 2 % 4) * kBlockBytes;
        }
        __device__ static __forceinline__ void put(const Raw &raw, float scale, int, uint4 *to) {
            Vector::put(raw, scale, to);
        }
    };
    static constexpr bool kStoresScales = false;

    __device__ __forceinline__ ScaledProducts(const Params &p, uint32_t base, uint32_t lane, uint32_t batch,
                                              uint32_t step)
        : lane(lane) {
        // Columns past the vectors are computed like others, and not stored.
        const uint32_t column = lane / 4 % kVectors, t = lane % 4;
        x = base + p.x_at + (batch * kVectors + column) * Vectors::column_bytes(p) + t * Vectors::kBlockBytes +
            step * kStepBytes;
    }

    __device__ __forceinline__ void step(const uint4 (&codes)[2][2], const uint32_t (&scale_codes)[2][2]) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            uint32_t scale[2][2];
#pragma unroll
            for (int i = 0; i < 2; ++i) Weights::scales(scale_codes[i][h], scale[i]);
            // Added at once, and not in the matrix instructions: those cut what they add to.
            float d[4] = {};
#pragma unroll
            for (int word = 0; word < 4; ++word) {
                const uint4 &u = codes[0][h], &l = codes[1][h];
                const uint32_t upper[4] = {u.x, u.y, u.z, u.w}, lower[4] = {l.x, l.y, l.z, l.w};
                uint32_t a[2][4];
                Weights::decode(upper[word], scale[0][word / 2], a[0]);
                Weights::decode(lower[word], scale[1][word / 2], a[1]);
                const uint4 b =
                    arch::load_shared_128(x + (8 * h + word / 2 * 4) * Vectors::kBlockBytes + word % 2 * 16);
                Weights::mma(d, a[0][0], a[1][0], a[0][1], a[1][1], b.x, b.y);
                Weights::mma(d, a[0][2], a[1][2], a[0][3], a[1][3], b.z, b.w);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[i] += d[i];
        }
        x += kStepBytes;
    }

    // The warp's sums, [kTileRows][kVectors]. This lane's are of rows g and g + 8, columns 2t and 2t + 1.
    __device__ __forceinline__ void store(float *to) const {
        const uint32_t g = lane / 4, column = lane % 4 * 2;
        if (column >= kVectors) return;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float *const row = to + (g + 8 * i) * kVectors + column;
            row[0] = sum[2 * i];
            row[1] = sum[2 * i + 1];
        }
    }

    __device__ __forceinline__ void begin(const Params &p) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] = 0.0f;
        x -= p.steps * kStepBytes;
    }

    __device__ __forceinline__ void next_batch(const Params &p) { x += kVectors * Vectors::column_bytes(p); }

    __device__ static __forceinline__ float total(const float (&sums)[1]) {
        return sums[0] * (1.0f / Weights::kFactor);
    }

  private:
    static constexpr uint32_t kStepBytes = kStepBlocks * Vectors::kBlockBytes;

    uint32_t lane;
    uint32_t x; // shared address, of this lane's next blocks
    float sum[4] = {};
};

}  // namespace nvfp4::stream
