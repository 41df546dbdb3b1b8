// Sixteen bytes of f16, bf16 or f32 elements as floats, exactly.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace nvfp4 {

struct LoadF16 {
    static constexpr int kBytes = 2;
    __device__ static __forceinline__ void unpack(uint4 v, float *out) {
        const __half2 *h = reinterpret_cast<const __half2 *>(&v);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            out[2 * i] = __low2float(h[i]);
            out[2 * i + 1] = __high2float(h[i]);
        }
    }
};

struct LoadBf16 {
    static constexpr int kBytes = 2;
    __device__ static __forceinline__ void unpack(uint4 v, float *out) {
        const uint32_t *w = reinterpret_cast<const uint32_t *>(&v);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            out[2 * i] = __uint_as_float(w[i] << 16);
            out[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
        }
    }
};

struct LoadF32 {
    static constexpr int kBytes = 4;
    __device__ static __forceinline__ void unpack(uint4 v, float *out) {
        out[0] = __uint_as_float(v.x);
        out[1] = __uint_as_float(v.y);
        out[2] = __uint_as_float(v.z);
        out[3] = __uint_as_float(v.w);
    }
};

}  // namespace nvfp4
