// A step of gemv_stream for many vectors, a column of B for each, and for f32 vectors, three columns for each. Matrix
// instructions sum over K, and so over blocks of all lanes. So each weight is multiplied by its block's scale before.
// Eight instructions in a chain make half a step; src/kernel/stream.rs derives what that may lose. Or, with kOrdered,
// all instructions of a part of a row are a chain, as in gemv_packed with long sums. Each instruction then has the same
// elements as one of gemv_packed's, and the chain the same order: the bits are the same, where mma.sync and wgmma sum
// by one rule.
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

// A block of a vector: how it lies in memory, and becomes 16-bit floats in the order of the weights' pairs.
template <int kActivation>
struct ScaledVector {
    using Weights = std::conditional_t<kActivation == NVFP4_ACTIVATION_F16, ScaledF16, ScaledBf16>;
    using Raw = block_dot::Raw16;
    static constexpr bool kHasScales = false;
    static constexpr int kParts = 1; // columns of B that a vector takes
    __device__ static __forceinline__ void put(const Raw &raw, float, int, uint4 *to) {
        block_dot::put_16_bit<typename Weights::Order>(raw, to);
    }
};

template <>
struct ScaledVector<NVFP4_ACTIVATION_NVFP4> {
    using Weights = ScaledF16;
    using Raw = block_dot::Dot<NVFP4_ACTIVATION_NVFP4>::Raw;
    static constexpr bool kHasScales = true;
    static constexpr int kParts = 1;
    __device__ static __forceinline__ void put(const Raw &raw, float scale, int, uint4 *to) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            uint32_t words[4];
            scaled_pairs(half ? raw.codes.y : raw.codes.x, scale, words);
            to[half] = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
};

// An f32 has 24 significant bits, a bf16 eight. So an f32 is the sum of three bf16: the upper half of its bits, the
// upper half of what is left, and the rest. All three have its sign. Bits below bf16's least, 2^-133, are lost, which
// only numbers below 2^-109 have.
template <>
struct ScaledVector<NVFP4_ACTIVATION_F32> {
    using Weights = ScaledBf16;
    static constexpr bool kHasScales = false;
    static constexpr int kParts = NVFP4_STREAM_F32_COLUMNS;
    static_assert(kParts * 8 == 24, "all significant bits");

    // A block in memory.
    struct Raw {
        uint4 in[4];
        __device__ __forceinline__ void load(const uint8_t *from) {
#pragma unroll
            for (int i = 0; i < 4; ++i) in[i] = arch::ld_global_128(from + 16 * i);
        }
    };

    __device__ static __forceinline__ void put(const Raw &raw, float, int part, uint4 *to) {
        using Order = Weights::Order;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint4 &a = raw.in[2 * half], &b = raw.in[2 * half + 1];
            const uint32_t elements[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
            uint32_t words[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint32_t low = part_of(__uint_as_float(elements[Order::low(i)]), part);
                const uint32_t high = part_of(__uint_as_float(elements[Order::high(i)]), part);
                words[i] = __byte_perm(low, high, 0x7632);
            }
            to[half] = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }

  private:
    // One of the three parts of an f32, as a bf16 in the upper half of the word.
    __device__ static __forceinline__ uint32_t part_of(float x, int part) {
        uint32_t bits = __float_as_uint(x);
#pragma unroll
        for (int i = 0; i < part; ++i) {
            const float upper = __uint_as_float(bits & 0xffff0000u);
            // An infinity less itself would be NaN.
            x = x == upper ? 0.0f : x - upper;
            bits = __float_as_uint(x);
        }
        return bits;
    }
};

template <int kActivation, int kVectors>
class ScaledProducts {
    using Vector = ScaledVector<kActivation>;
    using Weights = typename Vector::Weights;
    static constexpr uint32_t kColumns = kVectors * Vector::kParts; // of B
    static constexpr uint32_t kTiles = (kColumns + 7) / 8;          // matrix instructions for them

  public:
    // Layout of vectors in shared memory.
    struct Vectors {
        using Raw = typename Vector::Raw;
        static constexpr int kParts = Vector::kParts;
        static constexpr uint32_t kBlockBytes = 32;
        static constexpr bool kHasScales = Vector::kHasScales;
        static constexpr uint32_t kXScaleBytes = 0;
        static constexpr uint32_t kZeroBlocks = 0;

        // Bytes from a column to the next: half a block more than there are (of the whole one that the plan leaves).
        // Blocks that the lanes t read at once lie beside each other. So eight lanes, of two columns, read all banks.
        __device__ static __forceinline__ uint32_t column_bytes(const Params &p) {
            return p.steps * kStepBlocks * kBlockBytes + kBlockBytes / 2;
        }
        __device__ static __forceinline__ uint32_t block_at(uint32_t block) {
            // Lane t's blocks of a step are 2t, 2t + 1, 2t + 8 and 2t + 9, or 4t to 4t + 3.
            if (kOrdered) return ((block & ~15u) + block % 4 * 4 + block / 4 % 4) * kBlockBytes;
            return ((block & ~7u) + block % 2 * 4 + block / 2 % 4) * kBlockBytes;
        }
        __device__ static __forceinline__ void put(const Raw &raw, float scale, int part, uint4 *to) {
            Vector::put(raw, scale, part, to);
        }
    };
    static constexpr bool kStoresScales = false;

    // Starts at step `step` of a row; each further step is 1 << apart_log2 behind the one before. `batch` counts from
    // the CTA's first.
    __device__ __forceinline__ ScaledProducts(const Params &p, uint32_t base, uint32_t lane, uint32_t batch,
                                              uint32_t step, uint32_t apart_log2)
        : lane(lane), apart(kStepBytes << apart_log2) {
        const uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
        for (uint32_t tile = 0; tile < kTiles; ++tile) {
            // Columns past the vectors are computed like others, and not stored.
            const uint32_t here = kColumns - 8 * tile < 8 ? kColumns - 8 * tile : 8, column = 8 * tile + g % here;
            x[tile] = base + p.x_at + (batch * kColumns + column) * Vectors::column_bytes(p) +
                      t * Vectors::kBlockBytes + step * kStepBytes;
        }
    }

    __device__ __forceinline__ void step(const uint4 (&codes)[2][2], const uint32_t (&scale_codes)[2][2]) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            uint32_t scale[2][2];
#pragma unroll
            for (int i = 0; i < 2; ++i) Weights::scales(scale_codes[i][h], scale[i]);
            // Sums of half a step, added to `sum` behind it, not in the matrix instructions: those cut what they add
            // to.
            float own[kTiles][4] = {};
            float (&d)[kTiles][4] = kOrdered ? sum : own;
#pragma unroll
            for (int word = 0; word < 4; ++word) {
                const uint4 &u = codes[0][h], &l = codes[1][h];
                const uint32_t upper[4] = {u.x, u.y, u.z, u.w}, lower[4] = {l.x, l.y, l.z, l.w};
                uint32_t a[2][4];
                Weights::decode(upper[word], scale[0][word / 2], a[0]);
                Weights::decode(lower[word], scale[1][word / 2], a[1]);
#pragma unroll
                for (uint32_t tile = 0; tile < kTiles; ++tile) {
                    const uint4 b = arch::ld_shared_128(x[tile] + (8 * h + word / 2 * 4) * Vectors::kBlockBytes +
                                                          word % 2 * 16);
                    Weights::mma(d[tile], a[0][0], a[1][0], a[0][1], a[1][1], b.x, b.y);
                    Weights::mma(d[tile], a[0][2], a[1][2], a[0][3], a[1][3], b.z, b.w);
                }
            }
#pragma unroll
            for (uint32_t i = 0; i < 4 * kTiles && !kOrdered; ++i) sum[i / 4][i % 4] += d[i / 4][i % 4];
        }
        advance(apart);
    }

    // Stores the warp's sums, [kTileRows][kColumns]. This lane has those of rows g and g + 8, columns 2t and 2t + 1 of
    // each eight.
    __device__ __forceinline__ void store(float *to) const {
        const uint32_t g = lane / 4;
#pragma unroll
        for (uint32_t tile = 0; tile < kTiles; ++tile) {
            const uint32_t column = 8 * tile + lane % 4 * 2;
            if (column >= kColumns) return;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float *const row = to + (g + 8 * i) * kColumns + column;
                row[0] = sum[tile][2 * i] * kStored;
                if (kColumns % 2 == 0 || column + 1 < kColumns) row[1] = sum[tile][2 * i + 1] * kStored;
            }
        }
    }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (uint32_t i = 0; i < 4 * kTiles; ++i) sum[i / 4][i % 4] = 0.0f;
    }

    __device__ __forceinline__ void begin(const Params &p) {
        clear();
        advance(-(p.steps * kStepBytes));
    }

    __device__ __forceinline__ void next_batch(const Params &p) { advance(kColumns * Vectors::column_bytes(p)); }

    __device__ static __forceinline__ float total(const float (&sums)[Vector::kParts]) {
        float y = sums[0];
#pragma unroll
        for (int i = 1; i < Vector::kParts; ++i) y += sums[i];
        return y * (kFactor / kStored);
    }

  private:
    static constexpr uint32_t kStepBytes = kStepBlocks * Vectors::kBlockBytes;
    // The factor that ends a sum, a power of two, and what of it is in sums that are stored. gemv_packed multiplies
    // before it adds parts, which may overflow.
    static constexpr float kFactor = 1.0f / Weights::kFactor;
    static constexpr float kStored = kOrdered ? kFactor : 1.0f;

    __device__ __forceinline__ void advance(uint32_t bytes) {
#pragma unroll
        for (uint32_t tile = 0; tile < kTiles; ++tile) x[tile] += bytes;
    }

    uint32_t lane, apart;
    uint32_t x[kTiles]; // shared addresses, of this lane's next blocks
    float sum[kTiles][4] = {};
};

}  // namespace nvfp4::stream
