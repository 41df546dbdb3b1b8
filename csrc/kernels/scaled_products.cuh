// A step of gemv_stream for many vectors: a column of B for each. What matrix instructions sum over K are all
// lanes' blocks, so each weight is multiplied by its block's scale before.
// Matrix instructions sum eight such products a lane in turn; src/kernel/stream.rs derives what that may lose.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "../arch/shared.cuh"
#include "../format/e2m1.cuh"
#include "block_dot.cuh"
#include "scaled_weights.cuh"
#include "stream_params.cuh"

namespace nvfp4::stream {

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

template <>
struct ScaledVector<NVFP4_ACTIVATION_NVFP4> {
    using Weights = ScaledF16;
    using Raw = block_dot::Dot<NVFP4_ACTIVATION_NVFP4>::Raw;
    static constexpr bool kHasScales = true;
    __device__ static __forceinline__ void put(const Raw &raw, float scale, uint4 *to) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            uint32_t words[4];
            scaled_pairs(half ? raw.codes.y : raw.codes.x, scale, words);
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
