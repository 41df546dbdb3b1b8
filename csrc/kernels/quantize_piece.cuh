// Quantising a piece of a vector: eight elements, half of a block. For the quantiser (quantize.cuh) and for kernels that
// quantise vectors when they read them. The arithmetic is the host's (src/quantize), operation by operation.
#pragma once

#include <cstdint>

#include "../arch/convert.cuh"
#include "../format/encode.cuh"

namespace nvfp4 {

constexpr int kPiece = 8; // elements

// Piece i of elements in memory.
template <class Load>
__device__ __forceinline__ void load_piece(const uint8_t *elements, int32_t i, float (&out)[kPiece]) {
    constexpr int kLoads = Load::kBytes * kPiece / 16;
    const auto *from = reinterpret_cast<const uint4 *>(elements) + int64_t(i) * kLoads;
#pragma unroll
    for (int j = 0; j < kLoads; ++j) Load::unpack(from[j], out + j * (kPiece / kLoads));
}

// A positive number that is not infinite.
__device__ __forceinline__ bool is_scale(float x) {
    return x > 0.0f && x <= 3.402823466e38f;
}

// The global scale that puts the largest block scale at E4M3's maximum.
__device__ __forceinline__ float global_scale(float amax) {
    constexpr float kRange = 6.0f * 448.0f;
    constexpr float kMinPositive = 1.175494351e-38f; // the smallest normal number
    return amax == 0.0f ? 1.0f : fmaxf(__fdiv_rn(amax, kRange), kMinPositive);
}

struct QuantizedPiece {
    uint8_t scale; // of the block
    uint32_t codes;
};

// The largest magnitude of a block. The next thread, or the one before, has the other half.
__device__ __forceinline__ float block_max(const float (&x)[kPiece]) {
    float amax = 0.0f;
#pragma unroll
    for (int i = 0; i < kPiece; ++i) amax = fmaxf(amax, fabsf(x[i]));
    return fmaxf(amax, __shfl_xor_sync(~0u, amax, 1));
}

__device__ __forceinline__ float decode_e4m3(uint8_t scale) {
    return __low2float(arch::cvt_e4m3x2(scale));
}

// The codes of numbers where a code of 1.0 is `step`.
__device__ __forceinline__ uint32_t encode_piece(const float (&x)[kPiece], float step) {
    float quotients[kPiece];
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
        // Zeros of either sign are code 0, and so is 0/0 of a step that has underflowed.
        const float a = __fdiv_rn(x[i], step);
        quotients[i] = fabsf(a) > 0.0f ? a : 0.0f;
    }
    return encode_e2m1x8(quotients);
}

// Quantises half a block.
__device__ __forceinline__ QuantizedPiece quantize_piece(const float (&x)[kPiece], float global) {
    const float amax = block_max(x);
    float scale = __fdiv_rn(amax, __fmul_rn(6.0f, global));
    scale = scale == 0.0f ? 1.0f : fmaxf(scale, 1.0f / 512.0f);

    QuantizedPiece piece;
    piece.scale = encode_e4m3(scale);
    piece.codes = encode_piece(x, __fmul_rn(decode_e4m3(piece.scale), global));
    return piece;
}

}  // namespace nvfp4
