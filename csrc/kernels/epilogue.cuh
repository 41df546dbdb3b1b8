// The last step of every kernel: the sum of a row and a vector becomes an output.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "../arch/bf16.cuh"
#include "../shared.h"

namespace nvfp4 {

// What a row and a vector need of their output, to be had before their sum.
struct Place {
    int64_t at;
    float row_alpha, vector_alpha;
};

// Reads nothing where `exists` is false.
__device__ __forceinline__ Place prepare(const nvfp4_epilogue &e, int32_t m, int32_t batch, int32_t row, int n,
                                         bool exists = true) {
    Place place = {batch * e.output_batch + int64_t(n) * m + row, 1.0f, 1.0f};
    if (e.row_alpha && exists) place.row_alpha = e.row_alpha[batch * e.row_alpha_batch + row];
    if (e.vector_alpha && exists) place.vector_alpha = e.vector_alpha[batch * e.vector_alpha_batch + n];
    return place;
}

// The same row with vector n, `step` vectors further on.
__device__ __forceinline__ void next_vector(const nvfp4_epilogue &e, int32_t m, int32_t batch, int n, bool exists,
                                            int step, Place &place) {
    place.at += int64_t(step) * m;
    if (e.vector_alpha && exists) place.vector_alpha = e.vector_alpha[batch * e.vector_alpha_batch + n];
}

__device__ __forceinline__ void store(const nvfp4_epilogue &e, const Place &place, float y) {
    y = y * e.alpha * place.row_alpha * place.vector_alpha;
    switch (e.output_type) {
        case NVFP4_OUTPUT_F16: static_cast<__half *>(e.output)[place.at] = __float2half_rn(y); break;
        case NVFP4_OUTPUT_BF16: static_cast<uint16_t *>(e.output)[place.at] = arch::cvt_to_bf16(y); break;
        default: static_cast<float *>(e.output)[place.at] = y;
    }
}

__device__ __forceinline__ void store(const nvfp4_epilogue &e, int32_t m, int32_t batch, int32_t row, int n,
                                      float y) {
    store(e, prepare(e, m, batch, row, n), y);
}

}  // namespace nvfp4
