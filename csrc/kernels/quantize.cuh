// Vectors of f16, bf16 or f32 become NVFP4: a global scale for each, block scales, codes. What is quantised are the
// elements themselves, or what RMSNorm or a gate makes of them (nvfp4_quantize_params).
//
// Or a vector becomes several NVFP4 ones, its digits, whose sum comes close to a vector of 16 bits: src/quantize/digits.rs
// says what they are, and how close.
//
// The arithmetic is the host's (src/quantize, src/gate.rs), operation by operation, so that the bits are
// the same: IEEE divisions, no contraction, no flushing of subnormals.
//
// Each of the CTAs that share a vector reads all of it for its largest magnitude, and then quantises its part. That
// needs no exchange between CTAs, and the vector is read from L2. A thread has pieces of eight elements, and two threads
// have a block.
#pragma once

#include "../shared.h"

enum { NVFP4_QUANTIZE_THREADS = 256 };

typedef struct nvfp4_quantize_params {
    int32_t n, l, blocks;
    int32_t global_kind; /* NVFP4_GLOBAL_* */
    float global;        /* a multiplier, positive and finite; for SHARED */
    int32_t tiled;       /* scales go to the 128x4 layout: 1, else to the linear one: 0 */
    int32_t early;       /* dependent grids fetch nothing before they wait, and may start at once: 1 or 0 */
    int32_t digits;      /* of a vector; 1, but for kernels of `digits` */
    NVFP4_POINTER(const float) globals; /* [L][N], multipliers; for PER_VECTOR */

    /* A vector has `blocks` blocks of elements; twice as many if a gate makes one element of two. */
    NVFP4_POINTER(const uint8_t) vectors;
    int64_t vector_row_bytes, vector_batch_bytes;

    nvfp4_gate gate; /* of kernels that are `gated` */
    NVFP4_POINTER(const uint8_t) norm_weight; /* [K], of the vectors' type; of kernels that are `normed` */
    float epsilon;                            /* added to the mean square, before the root; positive */
    int32_t copies; /* each batch is written so often, one batch after the other: a divisor of L */

    NVFP4_POINTER(uint8_t) codes;  /* [L][N][digits][blocks * 8] */
    NVFP4_POINTER(uint8_t) scales; /* linear [L][N][digits][blocks], or 128x4 */
    NVFP4_POINTER(float) alpha;    /* [L][N] */
} nvfp4_quantize_params;

#ifdef __CUDACC__

#include "../arch/griddepcontrol.cuh"
#include "../entries.cuh"
#include "../format/dense.cuh"
#include "../format/e2m1.cuh"
#include "gate.cuh"
#include "quantize_piece.cuh"

namespace nvfp4 {

constexpr int kQuantizeThreads = NVFP4_QUANTIZE_THREADS;
constexpr int kQuantizeWarps = kQuantizeThreads / 32;

// The largest of all threads' values, returned to all threads. `of_warp` has a place for each warp.
__device__ __forceinline__ uint32_t cta_max(uint32_t value, uint32_t *of_warp) {
    value = __reduce_max_sync(~0u, value);
    __syncthreads(); // the last vector's values have been read
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kQuantizeWarps; ++i) value = max(value, of_warp[i]);
    return value;
}

// The sum of all threads' values, returned to all threads: the sum of each warp by exchanges, then the warps' in order.
__device__ __forceinline__ float cta_sum(float value, uint32_t *of_warp) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value = __fadd_rn(value, __shfl_xor_sync(~0u, value, step));
    __syncthreads(); // the last vector's values have been read
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = __float_as_uint(value);
    __syncthreads();
    value = __uint_as_float(of_warp[0]);
#pragma unroll
    for (int i = 1; i < kQuantizeWarps; ++i) value = __fadd_rn(value, __uint_as_float(of_warp[i]));
    return value;
}

// The three sources of what is quantised. All threads of a CTA make one, with a vector's first element. Then `piece` gives each thread the pieces that it asks for. `good` is false where elements are no numbers that count,
// though they may look like some.
template <class Load>
struct Plain {
    const uint8_t *x;
    static constexpr bool good = true;

    __device__ __forceinline__ Plain(const nvfp4_quantize_params &, const uint8_t *x, uint32_t *) : x(x) {}
    __device__ __forceinline__ void piece(int32_t i, float (&out)[kPiece]) const { load_piece<Load>(x, i, out); }
};

// Elements of gate and up, of which `gate` makes one.
template <class Load>
struct Gated {
    const uint8_t *x;
    const nvfp4_gate &gate;
    int32_t pieces; // of the result
    static constexpr bool good = true;

    __device__ __forceinline__ Gated(const nvfp4_quantize_params &p, const uint8_t *x, uint32_t *)
        : x(x), gate(p.gate), pieces(p.blocks * 2) {}

    __device__ __forceinline__ void piece(int32_t i, float (&out)[kPiece]) const {
        float a[kPiece], b[kPiece];
        load_piece<Load>(x, gate.interleaved ? 2 * i : i, a);
        load_piece<Load>(x, gate.interleaved ? 2 * i + 1 : pieces + i, b);
        if (gate.interleaved) {
            float even[kPiece], odd[kPiece];
#pragma unroll
            for (int j = 0; j < kPiece / 2; ++j) {
                even[j] = a[2 * j], odd[j] = a[2 * j + 1];
                even[j + kPiece / 2] = b[2 * j], odd[j + kPiece / 2] = b[2 * j + 1];
            }
            gated(gate, even, odd, out);
        } else {
            gated(gate, a, b, out);
        }
    }
};

// Elements divided by the root of their mean square, times their weights: RMSNorm.
template <class Load>
struct Normed {
    const uint8_t *x, *weight;
    float scale;
    bool good; // the sum of squares did not overflow

    __device__ __forceinline__ Normed(const nvfp4_quantize_params &p, const uint8_t *x, uint32_t *of_warp)
        : x(x), weight(p.norm_weight) {
        float sum = 0.0f;
        for (int32_t i = threadIdx.x; i < p.blocks * 2; i += kQuantizeThreads) {
            float v[kPiece];
            load_piece<Load>(x, i, v);
#pragma unroll
            for (int j = 0; j < kPiece; ++j) sum = __fadd_rn(sum, __fmul_rn(v[j], v[j]));
        }
        sum = cta_sum(sum, of_warp);
        good = sum <= 3.402823466e38f;
        const float mean = __fdiv_rn(sum, float(p.blocks * 16));
        scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, p.epsilon)));
    }

    __device__ __forceinline__ void piece(int32_t i, float (&out)[kPiece]) const {
        float w[kPiece];
        load_piece<Load>(x, i, out);
        load_piece<Load>(weight, i, w);
#pragma unroll
        for (int j = 0; j < kPiece; ++j) out[j] = __fmul_rn(__fmul_rn(out[j], scale), w[j]);
    }
};

// Largest magnitude among a vector's elements, as bits: infinity is above all numbers, NaN above infinity. The thread's
// own piece, the first one that it will quantise, is kept.
template <class Source>
__device__ __forceinline__ uint32_t vector_max(const Source &source, int32_t pieces, float (&own)[kPiece],
                                               uint32_t *of_warp) {
    uint32_t most = 0;
    int32_t step = 0;
    for (int32_t i = threadIdx.x; i < pieces; i += kQuantizeThreads, ++step) {
        float x[kPiece];
        source.piece(i, x);
        const bool is_own = step == int32_t(blockIdx.x);
#pragma unroll
        for (int j = 0; j < kPiece; ++j) {
            most = max(most, __float_as_uint(x[j]) & 0x7fffffffu);
            own[j] = is_own ? x[j] : own[j];
        }
    }
    return cta_max(most, of_warp);
}

// The power of two that is 2^9 times less than that of a vector's largest magnitude, which counts as 2^-100 at least; 1
// of zeros.
__device__ __forceinline__ float digits_global_scale(float amax) {
    constexpr uint32_t kLeast = 127 - 100, kMantissa = 23;
    return amax == 0.0f ? 1.0f : __uint_as_float((max(__float_as_uint(amax) >> kMantissa, kLeast) - 9) << kMantissa);
}

// A digit of half a block with a scale, and what is left behind it, exactly.
__device__ __forceinline__ QuantizedPiece digit_with(const float (&x)[kPiece], uint8_t scale, float global,
                                                     float (&left)[kPiece]) {
    const float step = __fmul_rn(decode_e4m3(scale), global);
    const QuantizedPiece piece = {scale, encode_piece(x, step)};
    E2m1x8 values;
    values.decode(piece.codes);
#pragma unroll
    for (int i = 0; i < kPiece / 2; ++i) {
        const int pair[] = {E2m1x8::low(i), E2m1x8::high(i)};
        const float of[] = {__low2float(values.pair[i]), __high2float(values.pair[i])};
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            left[pair[j]] = __fadd_rn(x[pair[j]], -__fmul_rn(__fmul_rn(of[j], 1.0f / E2m1x8::kFactor), step));
        }
    }
    return piece;
}

// Quantises a digit of half a block, and leaves what it leaves: an eighth of the block's largest magnitude at most. Called
// by whole warps.
__device__ __forceinline__ QuantizedPiece quantize_digit(float (&x)[kPiece], float global) {
    const float amax = block_max(x);
    const auto near = [&](float divisor) {
        return encode_e4m3(fmaxf(__fdiv_rn(amax, __fmul_rn(divisor, global)), 1.0f / 512.0f));
    };
    float left[kPiece];
    QuantizedPiece piece = digit_with(x, near(6.0f), global, left);
    const bool too_much = block_max(left) > __fmul_rn(amax, 0.125f);
    if (__any_sync(~0u, too_much)) {
        uint8_t scale = near(4.5f);
        if (__fmul_rn(__fmul_rn(4.5f, decode_e4m3(scale)), global) < amax) ++scale;
        float less[kPiece];
        const QuantizedPiece other = digit_with(x, scale, global, less);
        if (too_much) {
            piece = other;
#pragma unroll
            for (int i = 0; i < kPiece; ++i) left[i] = less[i];
        }
    }
#pragma unroll
    for (int i = 0; i < kPiece; ++i) x[i] = left[i];
    return piece;
}

// Writes the scales of four blocks of one row of an atom, of which n rows exist. The eight lanes that have the blocks also
// zero every n-th of the rows that do not exist, so that all n rows together fill the atom.
//
// A row's scales share a line of 16 bytes with those of the rows 32, 64 and 96 further on. Where none of those rows
// exist, whole lines are written.
__device__ __forceinline__ void store_scales_128x4(uint8_t *atom, uint32_t scales, int32_t row,
                                                   int32_t n) {
    constexpr int32_t kLines = NVFP4_ATOM_LINES, kLineBytes = NVFP4_ATOM_LINE_BYTES;
    const int32_t first = row + threadIdx.x % 8 * n;
    if (n <= kLines) {
        for (int32_t r = first; r < kLines; r += 8 * n) {
            *reinterpret_cast<uint4 *>(atom + r * kLineBytes) =
                make_uint4(r == row ? scales : 0, 0, 0, 0);
        }
    } else {
        for (int32_t r = first; r < NVFP4_ATOM_ROWS; r += 8 * n) {
            *reinterpret_cast<uint32_t *>(atom + r % kLines * kLineBytes + r / kLines * 4) =
                r == row ? scales : 0;
        }
    }
}

// Quantises one vector, which the CTAs along x share.
template <class Source, bool kDigits>
__device__ __forceinline__ void quantize_vector(const nvfp4_quantize_params &p, int32_t batch, int32_t row,
                                                uint32_t *of_warp) {
    constexpr int32_t kAtomRows = NVFP4_ATOM_ROWS;
    const int32_t pieces = p.blocks * 2;
    const int32_t padded = p.tiled ? (p.blocks + 3) / 4 * 4 : p.blocks;
    const int32_t digits = kDigits ? p.digits : 1, rows = p.n * digits;
    const int32_t padded_rows = p.tiled ? (rows + kAtomRows - 1) / kAtomRows * kAtomRows : rows;
    const int64_t vector = int64_t(batch) * p.n + row;
    const int32_t from = p.copies == 1 ? batch : batch / p.copies;
    const Source source(p, p.vectors + from * p.vector_batch_bytes + row * p.vector_row_bytes, of_warp);
    float own[kPiece] = {};
    const float amax = __uint_as_float(vector_max(source, pieces, own, of_warp));
    // The vectors have been read: what a dependent grid fetches now delays nothing here.
    if (!p.early) arch::griddepcontrol_launch_dependents();
    float global = kDigits                                  ? digits_global_scale(amax)
                   : p.global_kind == NVFP4_GLOBAL_COMPUTED ? global_scale(amax)
                   : p.global_kind == NVFP4_GLOBAL_SHARED ? p.global
                                                          : p.globals[vector];
    // A vector that cannot be quantised is written as zeros whose alpha is NaN.
    const bool good = source.good && (amax == 0.0f || is_scale(amax)) && is_scale(global);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        p.alpha[vector] = good ? global : __uint_as_float(0x7fc00000u);
    }
    if (!good) global = 1.0f;

    auto *codes = reinterpret_cast<uint32_t *>(p.codes) + vector * digits * pieces;
    uint8_t *scales = p.scales + int64_t(batch) * padded_rows * padded;
    // Whole warps stay together, for the exchanges.
    const int32_t step = int32_t(gridDim.x) * kQuantizeThreads;
    for (int32_t first = int32_t(blockIdx.x) * kQuantizeThreads; first < 2 * padded; first += step) {
        const int32_t i = first + int32_t(threadIdx.x);
        if (i - int32_t(threadIdx.x % 32) >= 2 * padded) continue;
        const bool exists = i < pieces;
        float values[kPiece];
#pragma unroll
        for (int j = 0; j < kPiece; ++j) values[j] = exists ? 0.0f : 1.0f; // a division of 0 takes the slow way
        if (exists && good) {
            if (first == int32_t(blockIdx.x) * kQuantizeThreads) {
#pragma unroll
                for (int j = 0; j < kPiece; ++j) values[j] = own[j];
            } else {
                source.piece(i, values);
            }
        }
        float of_digit = global;
#pragma unroll 1
        for (int32_t digit = 0; digit < digits; ++digit, of_digit *= 0.125f) {
            const int32_t at = row * digits + digit;
            const QuantizedPiece piece = kDigits ? quantize_digit(values, of_digit) : quantize_piece(values, global);
            if (exists) codes[digit * pieces + i] = piece.codes;
            if (!p.tiled) {
                if (exists && i % 2 == 0) scales[int64_t(at) * p.blocks + i / 2] = piece.scale;
                continue;
            }
            uint32_t scale = exists && i % 2 == 0 ? uint32_t(piece.scale) << (i / 2 % 4 * 8) : 0;
#pragma unroll
            for (int other = 1; other < 8; other *= 2) scale |= __shfl_xor_sync(~0u, scale, other);
            const int32_t above = at / kAtomRows * kAtomRows; // rows of the atoms before
            uint8_t *atom = scales + int64_t(above) * padded + int64_t(i / 8) * NVFP4_ATOM_BYTES;
            if (i < 2 * padded) store_scales_128x4(atom, scale, at - above, min(rows - above, kAtomRows));
        }
    }
}

// Quantises all vectors in a grid of (CTAs a vector, up to n, up to l).
template <class Source, bool kDigits = false>
__device__ __forceinline__ void quantize(const nvfp4_quantize_params &p) {
    __shared__ uint32_t of_warp[kQuantizeWarps];
    if (p.early) arch::griddepcontrol_launch_dependents();
    arch::griddepcontrol_wait();

    for (int32_t batch = int32_t(blockIdx.z); batch < p.l; batch += int32_t(gridDim.z)) {
        for (uint32_t row = blockIdx.y; row < uint32_t(p.n); row += gridDim.y) {
            quantize_vector<Source, kDigits>(p, batch, int32_t(row), of_warp);
        }
    }
}

}  // namespace nvfp4

// Entry points, by the source of what is quantised, and the vectors' type.
#define QUANTIZE(X)                                     \
    X(quantize_f16, nvfp4::Plain<nvfp4::LoadF16>)       \
    X(quantize_bf16, nvfp4::Plain<nvfp4::LoadBf16>)     \
    X(quantize_f32, nvfp4::Plain<nvfp4::LoadF32>)       \
    X(quantize_gated_f16, nvfp4::Gated<nvfp4::LoadF16>) \
    X(quantize_gated_bf16, nvfp4::Gated<nvfp4::LoadBf16>) \
    X(quantize_gated_f32, nvfp4::Gated<nvfp4::LoadF32>) \
    X(quantize_normed_f16, nvfp4::Normed<nvfp4::LoadF16>) \
    X(quantize_normed_bf16, nvfp4::Normed<nvfp4::LoadBf16>) \
    X(quantize_normed_f32, nvfp4::Normed<nvfp4::LoadF32>)

#define ENTRY(name, source)                                              \
    NVFP4_KERNEL(name)(                                                  \
    extern "C" __global__ void __launch_bounds__(NVFP4_QUANTIZE_THREADS) \
        name(nvfp4_quantize_params p) {                                  \
        nvfp4::quantize<source>(p);                                      \
    })
QUANTIZE(ENTRY)
#undef ENTRY

// The same of vectors that become several digits, by the vectors' type.
#define QUANTIZE_DIGITS(X)                      \
    X(quantize_digits_f16, nvfp4::LoadF16)      \
    X(quantize_digits_bf16, nvfp4::LoadBf16)    \
    X(quantize_digits_f32, nvfp4::LoadF32)

#define ENTRY(name, load)                                                \
    NVFP4_KERNEL(name)(                                                  \
    extern "C" __global__ void __launch_bounds__(NVFP4_QUANTIZE_THREADS) \
        name(nvfp4_quantize_params p) {                                  \
        nvfp4::quantize<nvfp4::Plain<load>, true>(p);                    \
    })
QUANTIZE_DIGITS(ENTRY)
#undef ENTRY

#endif
