// A step of gemv_stream in which each lane keeps to its own blocks. Matrix instructions give the products of blocks
// (block_dot.cuh), which then are multiplied by the weights' block scales and added.
#pragma once

#include <cstdint>

#include "../arch/registers.cuh"
#include "../arch/shared.cuh"
#include "block_dot.cuh"
#include "stream_params.cuh"
#include "warp_sums.cuh"

namespace nvfp4::stream {

template <int kActivation, int kVectors>
class BlockProducts {
    using Dot = block_dot::Dot<kActivation>;
    static constexpr int kParts = kVectors * Dot::kParts; // columns of B
    static_assert(kParts <= 2, "each lane of a row has two columns of the eight");
    static constexpr int kSums = 2 * kParts; // of rows g and g + 8

  public:
    // Layout of vectors in shared memory.
    struct Vectors {
        using Raw = typename Dot::Raw;
        static constexpr int kParts = Dot::kParts; // columns of a vector
        static constexpr uint32_t kBlockBytes = Dot::kBlockBytes;
        static constexpr bool kHasScales = Dot::kHasScales;
        static constexpr uint32_t kXScaleBytes = block_dot::x_scale_bytes(kVectors); // of a block
        static constexpr uint32_t kZeroBlocks = 10; // for lanes without a vector to read

        // Bytes from a column to the next. One block more than there are, or two that are read at once would
        // lie in the same banks.
        __device__ static __forceinline__ uint32_t column_bytes(const Params &p) {
            return (p.steps * kStepBlocks + 1) * kBlockBytes;
        }
        __device__ static __forceinline__ uint32_t block_at(uint32_t block) { return block * kBlockBytes; }
        __device__ static __forceinline__ void put(const Raw &raw, float, int part, uint4 *to) {
            Dot::put(raw, part, to);
        }
        __device__ static __forceinline__ float2 scale(const Raw &raw, float scale) {
            return Dot::vector_scale(raw, scale);
        }
    };
    static constexpr bool kStoresScales = Dot::kHasScales; // beside the vectors

    // Starts at step `step` of a row; each further step is 1 << apart_log2 behind the one before. `batch` counts from
    // the CTA's first.
    __device__ __forceinline__ BlockProducts(const Params &p, uint32_t base, uint32_t lane, uint32_t batch,
                                             uint32_t step, uint32_t apart_log2)
        : dot(arch::ld_shared_128(base + p.zero_at)), lane(lane) {
        const uint32_t g = lane / 4, t = lane % 4, blocks = p.steps * kStepBlocks;
        // Addresses of this lane's column of B: its vector, or zeros.
        reads_x = g / 2 == t && (kParts > 1 || g % 2 == 0);
        x_step = reads_x ? kStepBlocks * Dot::kBlockBytes : 0;
        x = base + step * x_step +
            (reads_x ? p.x_at + (batch * kParts + g % 2) * Vectors::column_bytes(p) + 2 * t * Dot::kBlockBytes
                     : p.zero_at);
        x_scale = base + p.x_scale_at + (batch * blocks + 2 * t) * kXScaleBytes + step * kXScaleStep;
        x_step = arch::kept(x_step << apart_log2);
        x_scale_step = kXScaleStep << apart_log2;
    }

    // Multiplies this lane's blocks of a step: 2t, 2t + 1, 2t + 8 and 2t + 9 of rows g and g + 8. Each element of
    // `codes` and of `scale_codes` has two blocks.
    __device__ __forceinline__ void step(const uint4 (&codes)[2][2], const uint32_t (&scale_codes)[2][2]) {
        float scale[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i) block_dot::decode_scales(scale_codes[i], scale[i]);
        float2 x_scales[4][kVectors];
        if constexpr (Dot::kHasScales) {
            block_dot::load_x_scales<kVectors>(x_scale, &x_scales[0]);
            block_dot::load_x_scales<kVectors>(x_scale + 8 * kXScaleBytes, &x_scales[2]);
        }
#pragma unroll
        for (int b = 0; b < 4; ++b) {
            const uint4 &u = codes[0][b / 2], &l = codes[1][b / 2];
            const typename Dot::Weights w(dot, b % 2 ? make_uint2(u.z, u.w) : make_uint2(u.x, u.y),
                                          b % 2 ? make_uint2(l.z, l.w) : make_uint2(l.x, l.y));
            typename Dot::Vector v;
            v.load(x + (b / 2 * 8 + b % 2) * Dot::kBlockBytes);
            float d[4];
            dot.multiply(w, v, d);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int n = i % 2;
                if (n >= kParts) continue;
                if constexpr (Dot::kHasScales) d[i] = fmaf(d[i], x_scales[b][n].x, x_scales[b][n].y);
                float &s = sum[i / 2 * kParts + n];
                s = fmaf(d[i], scale[i / 2][b], s);
            }
        }
        x += x_step;
        x_scale += x_scale_step;
    }

    // Stores the warp's sums, [kTileRows][kParts].
    __device__ __forceinline__ void store(float *to) {
        const uint32_t g = lane / 4, t = lane % 4;
        reduce_scatter<4>(sum, lane);
        constexpr int kLanes = 4 / kSums; // that hold the same value
        const uint32_t value = t / kLanes;
        if (t % kLanes == 0) to[(g + value / kParts * 8) * kParts + value % kParts] = sum[0];
    }

    // Goes back to the beginning of the vectors, for another tile.
    __device__ __forceinline__ void begin(const Params &p) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) sum[i] = 0.0f;
        x -= p.group_steps * x_step;
        x_scale -= p.steps * kXScaleStep;
    }

    // Goes from the beginning of a batch's vectors to the beginning of the next batch's.
    __device__ __forceinline__ void next_batch(const Params &p) {
        if (reads_x) x += kParts * Vectors::column_bytes(p);
        x_scale += p.steps * kXScaleStep;
    }

    // A vector's sum, from the sums of its columns.
    __device__ static __forceinline__ float total(const float (&sums)[Dot::kParts]) { return Dot::total(sums); }

  private:
    static constexpr uint32_t kXScaleBytes = Vectors::kXScaleBytes;
    static constexpr uint32_t kXScaleStep = kStepBlocks * kXScaleBytes;

    Dot dot;
    uint32_t lane;
    bool reads_x;
    uint32_t x_step;
    uint32_t x_scale_step;
    uint32_t x, x_scale; // shared addresses, of this lane's next blocks
    float sum[kSums] = {};
};

}  // namespace nvfp4::stream
