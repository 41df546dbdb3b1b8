// Addresses of a batch's weights and vectors, for all kernels. Two sources do not ask here in every case, and rely on
// matrices that follow each other. gemv_ring counts rows through all batches; ragged_steps.cuh takes the end of the
// last batch's scales for the end of all.
#pragma once

#include <cstdint>

#include "../shared.h"

namespace nvfp4 {

// Number of a batch's matrix, in kernels that do not take `select`.
__device__ __forceinline__ uint32_t matrix_of(const nvfp4_weights &, uint32_t batch) { return batch; }

// Number of a batch's matrix, in kernels that take `select`. The matrix exists where its number is below `matrices`. A
// negative id becomes a number far above.
__device__ __forceinline__ uint32_t selected(const nvfp4_select &s, uint32_t batch) {
    return s.ids ? uint32_t(s.ids[batch]) : batch;
}

// The first code of a batch's matrix. A kernel that takes `select` passes the matrix's number for `batch`.
__device__ __forceinline__ const uint8_t *codes_of(const nvfp4_weights &w, uint32_t batch) {
    return w.codes + int64_t(matrix_of(w, batch)) * w.matrix_bytes;
}

// The first block scale of a batch's matrix; `batch` as in codes_of. Offsets of its rows and blocks count from there
// (scale_steps.cuh).
__device__ __forceinline__ const uint8_t *scales_of(const nvfp4_weights &w, uint32_t batch) {
    return w.scales + int64_t(matrix_of(w, batch)) * w.scale_matrix_bytes;
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
