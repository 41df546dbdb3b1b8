// Sixteen bytes of f16, bf16 or f32 elements as floats, exactly.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace nvfp4 {

// The largest of eight 16-bit elements without their sign bits. So the bits of f16 and bf16
// order like magnitudes, infinity above all numbers and NaN above infinity.
__device__ __forceinline__ uint32_t max_magnitude_16(uint4 v) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        most = max(most, max(words[i] & 0x7fffu, words[i] >> 16 & 0x7fffu));
    }
    return most;
}

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

    // The largest magnitude, as the bits of an element.
    __device__ static __forceinline__ uint32_t max_magnitude(uint4 v) {
        return max_magnitude_16(v);
    }

    // Bits of a magnitude as a float.
    __device__ static __forceinline__ float magnitude(uint32_t bits) {
        return __half2float(__ushort_as_half(uint16_t(bits)));
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

    __device__ static __forceinline__ uint32_t max_magnitude(uint4 v) {
        return max_magnitude_16(v);
    }

    __device__ static __forceinline__ float magnitude(uint32_t bits) {
        return __uint_as_float(bits << 16);
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

    __device__ static __forceinline__ uint32_t max_magnitude(uint4 v) {
        constexpr uint32_t kMagnitude = 0x7fffffffu;
        return max(max(v.x & kMagnitude, v.y & kMagnitude),
                   max(v.z & kMagnitude, v.w & kMagnitude));
    }

    __device__ static __forceinline__ float magnitude(uint32_t bits) {
        return __uint_as_float(bits);
    }
};

}  // namespace nvfp4
