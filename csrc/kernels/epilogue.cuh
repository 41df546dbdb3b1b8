// The last step of every kernel: the sum of a row and a vector becomes an output.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "../arch/bf16.cuh"
#include "../format/operands.cuh"
#include "../shared.h"

namespace nvfp4 {

// Element `at` of an array of a type.
__device__ __forceinline__ float load_float(const void *values, int32_t type, int64_t at) {
    switch (type) {
        case NVFP4_OUTPUT_F16: return __half2float(static_cast<const __half *>(values)[at]);
        case NVFP4_OUTPUT_BF16: return __uint_as_float(static_cast<const uint16_t *>(values)[at] << 16);
        default: return static_cast<const float *>(values)[at];
    }
}

// An output's index, its factors, and the number that is added to it. A Place may be read before the sum is known, but
// only behind griddepcontrol_wait.
struct Place {
    int64_t at;
    float row_alpha, vector_alpha, added;
};

// A row's factor and bias, and a vector's factor; where there are none, numbers that change nothing. Adding -0 changes
// no number.
__device__ __forceinline__ float row_alpha_of(const nvfp4_epilogue &e, int32_t matrix, int32_t row) {
    return e.row_alpha ? e.row_alpha[matrix * e.row_alpha_batch + row] : 1.0f;
}
__device__ __forceinline__ float bias_of(const nvfp4_epilogue &e, int32_t matrix, int32_t row) {
    return e.bias ? e.bias[matrix * e.bias_batch + row] : -0.0f;
}
__device__ __forceinline__ float vector_alpha_of(const nvfp4_epilogue &e, int32_t batch, int n) {
    return e.vector_alpha ? e.vector_alpha[batch * e.vector_alpha_batch + n] : 1.0f;
}

// Bias and residual, added to the output at index `at`, which is of this row.
__device__ __forceinline__ float added_to(const nvfp4_epilogue &e, int32_t matrix, int32_t row, int64_t at) {
    const float bias = bias_of(e, matrix, row);
    return e.residual ? bias + load_float(e.residual, e.output_type, at) : bias;
}

// The same with a selection. What is added to nothing is the residual where the id is -1, and NaN where it is another
// number.
__device__ __forceinline__ float added_to(const nvfp4_epilogue &e, const Matrix &matrix, int32_t row, int64_t at) {
    if (matrix.exists) return added_to(e, matrix.number, row, at);
    if (matrix.id != -1) return __int_as_float(0x7fffffff);
    return e.residual ? load_float(e.residual, e.output_type, at) : -0.0f;
}

// The Place of an output of a batch that has matrix `matrix`, whose row factors and bias it takes. Reads nothing where
// `exists` is false. With kOperands false the caller knows that the call has no operands; true is always right. A call
// without operands costs one question here, because chained launches wait for this.
template <bool kOperands = true>
__device__ __forceinline__ Place prepare(const nvfp4_epilogue &e, int32_t batch, int32_t matrix, int32_t row, int n,
                                         bool exists) {
    Place place = {batch * e.output_batch + int64_t(n) * e.output_vector + row, 1.0f, 1.0f, -0.0f};
    if (!kOperands || !e.has_operands || !exists) return place;
    place.row_alpha = row_alpha_of(e, matrix, row);
    place.vector_alpha = vector_alpha_of(e, batch, n);
    place.added = added_to(e, matrix, row, place.at);
    return place;
}

// The same without a selection: batch l has matrix l.
template <bool kOperands = true>
__device__ __forceinline__ Place prepare(const nvfp4_epilogue &e, int32_t batch, int32_t row, int n,
                                         bool exists = true) {
    return prepare<kOperands>(e, batch, batch, row, n, exists);
}

// The same with a selection. Without a matrix there are no factors and no bias.
__device__ __forceinline__ Place prepare(const nvfp4_epilogue &e, const Matrix &matrix, int32_t batch, int32_t row,
                                         int n, bool exists = true) {
    Place place = prepare(e, batch, matrix.number, row, n, exists && matrix.exists);
    if (exists && !matrix.exists) place.added = added_to(e, matrix, row, place.at);
    return place;
}

// Moves a place on by `step` vectors, to vector n of the same row.
__device__ __forceinline__ void next_vector(const nvfp4_epilogue &e, int32_t batch, int32_t row, int n, bool exists,
                                            int step, Place &place) {
    place.at += int64_t(step) * e.output_vector;
    if (!e.has_operands || !exists) return;
    place.vector_alpha = vector_alpha_of(e, batch, n);
    if (e.residual) place.added = added_to(e, batch, row, place.at);
}

__device__ __forceinline__ void store(const nvfp4_epilogue &e, const Place &place, float y) {
    y = fmaf(y * e.alpha * place.row_alpha, place.vector_alpha, place.added);
    switch (e.output_type) {
        case NVFP4_OUTPUT_F16: static_cast<__half *>(e.output)[place.at] = __float2half_rn(y); break;
        case NVFP4_OUTPUT_BF16: static_cast<uint16_t *>(e.output)[place.at] = arch::cvt_to_bf16(y); break;
        default: static_cast<float *>(e.output)[place.at] = y;
    }
}

// The sum of a vector's digits, of sums that come in the order of digits: each counts an eighth of the one before. Of one
// digit it is the sum itself, to the bit.
struct DigitSum {
    float y = -0.0f, weight = 1.0f;

    __device__ __forceinline__ void add(float sum) {
        y = fmaf(sum, weight, y);
        weight *= 0.125f;
    }
};

template <bool kOperands = true>
__device__ __forceinline__ void store(const nvfp4_epilogue &e, int32_t batch, int32_t row, int n, float y) {
    store(e, prepare<kOperands>(e, batch, row, n), y);
}

}  // namespace nvfp4
