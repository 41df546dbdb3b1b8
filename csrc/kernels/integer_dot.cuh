// Integer dot products of E2M1 codes.
//
// Codes times two are the integers 0, 1, 2, 3, 4, 6, 8, 12 and their negatives. A byte permute (prmt) with the codes
// themselves as selector looks up four of them at once. Its sign-replicate mode makes 0 of codes with the sign bit. So
// a lookup of the codes and one of the codes with flipped signs give the positive and the negative magnitudes. Four
// products are one dp4a. The sum of a block is an exact integer of at most 2304 in magnitude. Times two scales it is
// exact in f32 (12 + 8 bits): only the f32 sum over blocks rounds.
#pragma once

#include <cstdint>

namespace nvfp4::int8 {

// Magnitudes of the eight codes without a sign, times two.
constexpr uint32_t kLookupLow = 0x03020100u;
constexpr uint32_t kLookupHigh = 0x0c080604u;

// An integer s in the low bits of this is the f32 12582912 + s, for |s| < 2^22.
constexpr int32_t kFloatBias = 0x4b400000;

struct Lookup {
    uint32_t low, high;

    __device__ __forceinline__ Lookup() : Lookup(kLookupLow, kLookupHigh) {}
    __device__ __forceinline__ Lookup(uint32_t low, uint32_t high) : low(low), high(high) {}

    // Twice the magnitudes of codes 0..3, where positive; 0 where the sign bit is set.
    __device__ __forceinline__ uint32_t operator()(uint32_t codes) const {
        uint32_t bytes;
        asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(codes));
        return bytes;
    }
};

// A block of 16 codes: bytes of the positive and of the negative magnitudes.
struct Magnitudes {
    uint32_t positive[4], negative[4];

    __device__ __forceinline__ Magnitudes(const Lookup &lookup, uint2 codes) {
        const uint32_t flipped_x = codes.x ^ 0x88888888u;
        const uint32_t flipped_y = codes.y ^ 0x88888888u;
        positive[0] = lookup(codes.x);
        positive[1] = lookup(codes.x >> 16);
        positive[2] = lookup(codes.y);
        positive[3] = lookup(codes.y >> 16);
        negative[0] = lookup(flipped_x);
        negative[1] = lookup(flipped_x >> 16);
        negative[2] = lookup(flipped_y);
        negative[3] = lookup(flipped_y >> 16);
    }

    // Four times the sum of the 16 products with x, as a float. `bias` is kFloatBias, in a register: both sums have it,
    // and their difference as floats is exact.
    __device__ __forceinline__ float dot(uint4 x, int32_t bias) const {
        const uint32_t words[4] = {x.x, x.y, x.z, x.w};
        int32_t plus = bias, minus = bias;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            plus = __dp4a(int32_t(positive[i]), int32_t(words[i]), plus);
            minus = __dp4a(int32_t(negative[i]), int32_t(words[i]), minus);
        }
        return __int_as_float(plus) - __int_as_float(minus);
    }

    // The signed integers, as vectors keep them.
    __device__ __forceinline__ uint4 joined() const {
        return make_uint4(__vsub4(positive[0], negative[0]), __vsub4(positive[1], negative[1]),
                          __vsub4(positive[2], negative[2]), __vsub4(positive[3], negative[3]));
    }
};

}  // namespace nvfp4::int8
