// The last step of every kernel: the sum of a row and a vector becomes an output.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "../nvfp4_gemv.h"

namespace nvfp4 {

__host__ __device__ constexpr int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

struct Epilogue {
    float alpha;
    const float *row_alpha; // or null
    int64_t row_alpha_batch;
    const float *vector_alpha; // or null
    int64_t vector_alpha_batch;
    void *output;         // [L][N][M]
    int64_t output_batch; // elements of a batch: N * M of the whole problem
    int32_t output_type;

    // What a row and a vector need of their output, to be had before their sum.
    struct Place {
        int64_t at;
        float row_alpha, vector_alpha;
    };

    // Reads nothing where `exists` is false.
    __device__ __forceinline__ Place prepare(int32_t m, int32_t batch, int32_t row, int n,
                                             bool exists = true) const {
        Place place = {batch * output_batch + int64_t(n) * m + row, 1.0f, 1.0f};
        if (row_alpha && exists) place.row_alpha = row_alpha[batch * row_alpha_batch + row];
        if (vector_alpha && exists) place.vector_alpha = vector_alpha[batch * vector_alpha_batch + n];
        return place;
    }

    __device__ __forceinline__ void store(const Place &place, float y) const {
        y = y * alpha * place.row_alpha * place.vector_alpha;
        switch (output_type) {
            case NVFP4_OUTPUT_F16: static_cast<__half *>(output)[place.at] = __float2half_rn(y); break;
            case NVFP4_OUTPUT_BF16:
                static_cast<__nv_bfloat16 *>(output)[place.at] = __float2bfloat16_rn(y);
                break;
            default: static_cast<float *>(output)[place.at] = y;
        }
    }

    __device__ __forceinline__ void store(int32_t m, int32_t batch, int32_t row, int n, float y) const {
        store(prepare(m, batch, row, n), y);
    }
};

}  // namespace nvfp4
