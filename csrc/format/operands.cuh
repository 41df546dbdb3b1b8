// Addresses of a batch's weights and vectors, for all kernels. Two sources do not ask here in every case, and rely on
// matrices that follow each other. gemv_ring counts rows through all batches; ragged_steps.cuh takes the end of the
// last batch's scales for the end of all.
#pragma once

#include <cstdint>

#include "../shared.h"

namespace nvfp4 {

// The matrix of a batch that selects one (nvfp4_select).
struct Matrix {
    int32_t id;
    uint32_t number; // among all matrices: the id, or 0 where there is no such matrix
    bool exists;
};

// Kernels that take a selection ask here. Where ids are late they begin with griddepcontrol_wait.
__device__ __forceinline__ Matrix selected(const nvfp4_select &s, uint32_t batch) {
    const int32_t id = s.ids ? s.ids[batch] : int32_t(batch);
    const bool exists = uint32_t(id) < s.matrices;
    return {id, exists ? uint32_t(id) : 0, exists};
}

// The first code of a matrix. Without a selection batch l has matrix l.
__device__ __forceinline__ const uint8_t *codes_of(const nvfp4_weights &w, uint32_t matrix) {
    return w.codes + int64_t(matrix) * w.matrix_bytes;
}

// The first block scale of a matrix. Offsets of its rows and blocks count from there (scale_steps.cuh).
__device__ __forceinline__ const uint8_t *scales_of(const nvfp4_weights &w, uint32_t matrix) {
    return w.scales + int64_t(matrix) * w.scale_matrix_bytes;
}

// A vector by its batch, and its number in that batch.
struct Vector {
    uint32_t batch, n;
    bool exists;
};

// Vector n of a batch. Where batches are bundled, `batch` is the number of a bundle, and vector n is that of the bundle's
// n-th batch. Places behind a bundle's last batch have no vector: they have the address of batch 0's, so that they can be
// loaded from.
__device__ __forceinline__ Vector vector_of(const nvfp4_bundles &b, uint32_t width, uint32_t batch, uint32_t n) {
    if (!b.count) return {batch, n, true};
    const int32_t of = b.batches[int64_t(batch) * width + n];
    return {uint32_t(max(of, 0)), 0, of >= 0};
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
