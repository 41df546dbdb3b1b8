// Addresses of a batch's weights and vectors, for all kernels.
#pragma once

#include <cstdint>

#include "../shared.h"

namespace nvfp4 {

// Number of a batch's matrix. In place of a matrix that does not exist, matrix 0 is read; the epilogue makes NaN of its
// outputs. Kernels read ids before griddepcontrol_wait, as they read weights: no grid that may still run writes them.
__device__ __forceinline__ uint32_t matrix_of(const nvfp4_select &s, uint32_t batch) {
    if (s.ids == nullptr) return batch;
    const uint32_t id = s.ids[batch];
    return id < s.matrices ? id : 0;
}

// Whether a batch's matrix exists.
__device__ __forceinline__ bool has_matrix(const nvfp4_select &s, uint32_t batch) {
    return s.ids == nullptr || uint32_t(s.ids[batch]) < s.matrices;
}

// The first code of a batch's matrix.
__device__ __forceinline__ const uint8_t *codes_of(const nvfp4_weights &w, uint32_t batch) {
    return w.codes + int64_t(matrix_of(w.select, batch)) * w.matrix_bytes;
}

// The first block scale of a batch's matrix. Offsets of its rows and blocks count from there (scale_steps.cuh).
__device__ __forceinline__ const uint8_t *scales_of(const nvfp4_weights &w, uint32_t batch) {
    return w.scales + int64_t(matrix_of(w.select, batch)) * w.scale_matrix_bytes;
}

// The batch whose vectors a batch multiplies with, a tensor map's coordinate: 0 where all batches share vectors.
__device__ __forceinline__ uint32_t vectors_batch(const nvfp4_vectors &v, uint32_t batch) {
    return v.batch_bytes == 0 ? 0 : batch;
}

// The first value of a batch's first vector, and its first block scale.
__device__ __forceinline__ const uint8_t *values_of(const nvfp4_vectors &v, uint32_t batch) {
    return v.values + int64_t(batch) * v.batch_bytes;
}
__device__ __forceinline__ const uint8_t *scales_of(const nvfp4_vectors &v, uint32_t batch) {
    return v.scales + int64_t(batch) * v.scale_batch_bytes;
}

}  // namespace nvfp4
