// Dot products of E2M1 codes in f16x2.
//
// Hardware decodes two codes to an f16x2 at once. Products of two values are multiples of 1/4 up to 36. Each half of an
// f16x2 sums eight of a block's 16 products: at most 288, or 1152 quarters, and f16 has 11 bits. So both halves are
// exact, and they are added in f32. The block's sum is exact, as integer_dot.cuh's is, and the f32 sum over blocks
// rounds in the same way.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "../arch/convert.cuh"
#include "../arch/mixed.cuh"

namespace nvfp4::half_dot {

// A block of 16 values.
struct Block {
    __half2 pair[8];

    __device__ __forceinline__ void decode(uint32_t low, uint32_t high) {
        decode_half(low, 0);
        decode_half(high, 4);
    }

    // Loads a block as `store` left it: two chunks, `stride` apart.
    __device__ __forceinline__ void load(const uint4 *at, int stride) {
        put(at[0], 0);
        put(at[stride], 4);
    }

    __device__ __forceinline__ void store(uint4 *at, int stride) const {
        at[0] = chunk(0);
        at[stride] = chunk(4);
    }

    // The sum of the 16 products with x.
    __device__ __forceinline__ float dot(const Block &x) const {
        __half2 sums = __hmul2(pair[0], x.pair[0]);
#pragma unroll
        for (int i = 1; i < 8; ++i) sums = __hfma2(pair[i], x.pair[i], sums);
        return arch::add_f32_f16(__high2half(sums), __low2float(sums));
    }

  private:
    __device__ __forceinline__ void decode_half(uint32_t codes, int first) {
        __half2 values[4];
        arch::cvt_e2m1x8(codes, values);
#pragma unroll
        for (int i = 0; i < 4; ++i) pair[first + i] = values[i];
    }
    __device__ __forceinline__ void put(const uint4 &v, int first) {
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) pair[first + i] = reinterpret_cast<const __half2 &>(words[i]);
    }
    __device__ __forceinline__ uint4 chunk(int first) const {
        const auto word = [&](int i) { return reinterpret_cast<const uint32_t &>(pair[first + i]); };
        return make_uint4(word(0), word(1), word(2), word(3));
    }
};

// A block's scale times a vector's: halves `i` of both. Exact: 4 bits by 4 bits.
__device__ __forceinline__ float scale_product(const __half2 &w, const __half2 &x, int i) {
    return i == 0 ? arch::fma_f32_f16(__low2half(w), __low2half(x))
                  : arch::fma_f32_f16(__high2half(w), __high2half(x));
}

}  // namespace nvfp4::half_dot
