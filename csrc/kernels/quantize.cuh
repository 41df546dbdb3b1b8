// Vectors of f16, bf16 or f32 become NVFP4: a global scale for each, block scales, codes.
//
// The arithmetic is the host quantiser's (src/quantize), operation by operation, so that the bits are the same: IEEE
// divisions, no contraction, no flushing of subnormals.
//
// Each of the CTAs that share a vector reads all of it for its largest magnitude, and then quantises its part. That
// needs no exchange between CTAs, and the vector is read from L2.
#pragma once

#include "../shared.h"

enum { NVFP4_QUANTIZE_THREADS = 256 };

typedef struct nvfp4_quantize_params {
    int32_t n, l, blocks;
    int32_t global_kind; /* NVFP4_GLOBAL_* */
    float global;        /* a multiplier, positive and finite; for SHARED */
    NVFP4_POINTER(const float) globals; /* [L][N], multipliers; for PER_VECTOR */

    NVFP4_POINTER(const uint8_t) vectors;
    int64_t vector_row_bytes, vector_batch_bytes;

    NVFP4_POINTER(uint8_t) codes;  /* [L][N][blocks * 8] */
    NVFP4_POINTER(uint8_t) scales; /* linear [L][N][blocks], or 128x4 */
    NVFP4_POINTER(float) alpha;    /* [L][N] */
} nvfp4_quantize_params;

#ifdef __CUDACC__

#include "../arch/convert.cuh"
#include "../arch/griddepcontrol.cuh"
#include "../entries.cuh"
#include "../format/dense.cuh"
#include "../format/encode.cuh"

namespace nvfp4 {

constexpr int kQuantizeThreads = NVFP4_QUANTIZE_THREADS;

// Maximum of all threads' values, returned to all threads.
__device__ __forceinline__ uint32_t cta_max(uint32_t value) {
    constexpr int kWarps = kQuantizeThreads / 32;
    __shared__ uint32_t of_warp[kWarps];
    value = __reduce_max_sync(~0u, value);
    __syncthreads(); // the last vector's values have been read
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kWarps; ++i) value = max(value, of_warp[i]);
    return value;
}

// Largest magnitude among a vector's elements, as bits.
template <class Load>
__device__ __forceinline__ uint32_t vector_max(const uint8_t *x, int32_t blocks) {
    const auto *pieces = reinterpret_cast<const uint4 *>(x);
    const int32_t count = blocks * Load::kBytes;
    uint32_t most = 0;
#pragma unroll 8
    for (int32_t i = threadIdx.x; i < count; i += kQuantizeThreads) {
        most = max(most, Load::max_magnitude(pieces[i]));
    }
    return cta_max(most);
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

struct QuantizedBlock {
    uint8_t scale;
    uint2 codes;
};

__device__ __forceinline__ QuantizedBlock quantize_block(const float (&x)[16], float global) {
    float amax = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; ++i) amax = fmaxf(amax, fabsf(x[i]));
    float scale = __fdiv_rn(amax, __fmul_rn(6.0f, global));
    scale = scale == 0.0f ? 1.0f : fmaxf(scale, 1.0f / 512.0f);

    QuantizedBlock block;
    block.scale = encode_e4m3(scale);
    const float decoded = __low2float(arch::cvt_e4m3x2(block.scale));
    const float step = __fmul_rn(decoded, global);
    float low[8], high[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        // Zeros of either sign are code 0, and so is 0/0 of a step that has underflowed.
        const float a = __fdiv_rn(x[i], step);
        const float b = __fdiv_rn(x[i + 8], step);
        low[i] = fabsf(a) > 0.0f ? a : 0.0f;
        high[i] = fabsf(b) > 0.0f ? b : 0.0f;
    }
    block.codes = make_uint2(encode_e2m1x8(low), encode_e2m1x8(high));
    return block;
}

// Writes the scales of four blocks of one row of an atom, of which n rows exist. The four lanes of a group also zero
// every n-th of the rows that do not exist, so that all n rows together fill the atom.
//
// A row's scales share a line of 16 bytes with those of the rows 32, 64 and 96 further on. Where none of those rows
// exist, whole lines are written.
__device__ __forceinline__ void store_scales_128x4(uint8_t *atom, uint32_t scales, int32_t row,
                                                   int32_t n) {
    constexpr int32_t kLines = NVFP4_ATOM_LINES, kLineBytes = NVFP4_ATOM_LINE_BYTES;
    const int32_t first = row + threadIdx.x % 4 * n;
    if (n <= kLines) {
        for (int32_t r = first; r < kLines; r += 4 * n) {
            *reinterpret_cast<uint4 *>(atom + r * kLineBytes) =
                make_uint4(r == row ? scales : 0, 0, 0, 0);
        }
    } else {
        for (int32_t r = first; r < NVFP4_ATOM_ROWS; r += 4 * n) {
            *reinterpret_cast<uint32_t *>(atom + r % kLines * kLineBytes + r / kLines * 4) =
                r == row ? scales : 0;
        }
    }
}

// Quantises one vector, which the CTAs along x share.
template <class Load, bool kTiled>
__device__ __forceinline__ void quantize_vector(const nvfp4_quantize_params &p, int32_t batch,
                                                int32_t row) {
    constexpr int32_t kAtomRows = NVFP4_ATOM_ROWS;
    const int32_t padded = kTiled ? (p.blocks + 3) / 4 * 4 : p.blocks;
    const int32_t padded_rows = kTiled ? (p.n + kAtomRows - 1) / kAtomRows * kAtomRows : p.n;
    const uint8_t *x = p.vectors + batch * p.vector_batch_bytes + row * p.vector_row_bytes;
    const int64_t vector = int64_t(batch) * p.n + row;
    const float amax = Load::magnitude(vector_max<Load>(x, p.blocks));
    // The vectors have been read: what a dependent grid fetches now delays nothing here.
    arch::griddepcontrol_launch_dependents();
    float global = p.global_kind == NVFP4_GLOBAL_COMPUTED ? global_scale(amax)
                   : p.global_kind == NVFP4_GLOBAL_SHARED ? p.global
                                                          : p.globals[vector];
    // A vector that cannot be quantised is written as zeros whose alpha is NaN.
    const bool good = (amax == 0.0f || is_scale(amax)) && is_scale(global);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        p.alpha[vector] = good ? global : __uint_as_float(0x7fc00000u);
    }
    if (!good) global = 1.0f;

    uint8_t *codes = p.codes + vector * p.blocks * 8;
    uint8_t *scales = p.scales + int64_t(batch) * padded_rows * padded;
    // Whole warps stay together, for the exchange of scales.
    const int32_t step = int32_t(gridDim.x) * kQuantizeThreads;
    for (int32_t first = int32_t(blockIdx.x) * kQuantizeThreads; first < padded; first += step) {
        const int32_t b = first + int32_t(threadIdx.x);
        uint32_t scale = 0;
        if (b < p.blocks) {
            constexpr int kElements = 16 / Load::kBytes;
            const auto *pieces = reinterpret_cast<const uint4 *>(x) +
                                 int64_t(b) * Load::kBytes;
            float values[16];
#pragma unroll
            for (int i = 0; i < Load::kBytes; ++i) {
                const uint4 piece = good ? pieces[i] : make_uint4(0, 0, 0, 0);
                Load::unpack(piece, values + i * kElements);
            }
            const QuantizedBlock block = quantize_block(values, global);
            *reinterpret_cast<uint2 *>(codes + int64_t(b) * 8) = block.codes;
            scale = block.scale;
            if constexpr (!kTiled) scales[int64_t(row) * p.blocks + b] = block.scale;
        }
        if constexpr (kTiled) {
            scale <<= 8 * (threadIdx.x % 4);
            scale |= __shfl_xor_sync(~0u, scale, 1);
            scale |= __shfl_xor_sync(~0u, scale, 2);
            const int32_t above = row / kAtomRows * kAtomRows; // rows of the atoms before
            uint8_t *atom = scales + int64_t(above) * padded + int64_t(b / 4) * NVFP4_ATOM_BYTES;
            if (b < padded) {
                store_scales_128x4(atom, scale, row - above, min(p.n - above, kAtomRows));
            }
        }
    }
}

// Quantises all vectors in a grid of (CTAs a vector, up to n, up to l).
template <class Load, bool kTiled>
__device__ __forceinline__ void quantize(const nvfp4_quantize_params &p) {
    arch::griddepcontrol_wait();

    for (int32_t batch = int32_t(blockIdx.z); batch < p.l; batch += int32_t(gridDim.z)) {
        for (uint32_t row = blockIdx.y; row < uint32_t(p.n); row += gridDim.y) {
            quantize_vector<Load, kTiled>(p, batch, int32_t(row));
        }
    }
}

}  // namespace nvfp4

// Entry points, by the vectors' type, and whether scales go to the 128x4 layout.
#define QUANTIZE(X)                                 \
    X(quantize_f16_linear, nvfp4::LoadF16, false)   \
    X(quantize_f16_128x4, nvfp4::LoadF16, true)     \
    X(quantize_bf16_linear, nvfp4::LoadBf16, false) \
    X(quantize_bf16_128x4, nvfp4::LoadBf16, true)   \
    X(quantize_f32_linear, nvfp4::LoadF32, false)   \
    X(quantize_f32_128x4, nvfp4::LoadF32, true)

#define ENTRY(name, load, tiled)                                         \
    NVFP4_KERNEL(name)(                                                  \
    extern "C" __global__ void __launch_bounds__(NVFP4_QUANTIZE_THREADS) \
        name(nvfp4_quantize_params p) {                                  \
        nvfp4::quantize<load, tiled>(p);                                 \
    })
QUANTIZE(ENTRY)
#undef ENTRY

#endif
