// From the C ABI's arguments to the kernels' parameters.
#pragma once

#include <cuda_runtime.h>

#include "../kernels/epilogue.cuh"

namespace nvfp4 {

template <class T>
T *device(uint64_t address) {
    return reinterpret_cast<T *>(address);
}

// 2^32 / y rounded up, in 32 bits, for kernels that divide by multiplying; 0 for a y of 1.
inline uint32_t magic(uint32_t y) { return y == 1 ? 0 : uint32_t(((uint64_t(1) << 32) + y - 1) / y); }

// Of the vectors from `first` on.
inline Epilogue epilogue(const nvfp4_gemv_args &a, int32_t first) {
    const int64_t output_bytes = a.output_type == NVFP4_OUTPUT_F32 ? 4 : 2;
    Epilogue e = {};
    e.alpha = a.alpha;
    e.row_alpha = device<const float>(a.row_alpha);
    e.row_alpha_batch = a.row_alpha_batch_stride;
    e.vector_alpha = a.vector_alpha ? device<const float>(a.vector_alpha) + first : nullptr;
    e.vector_alpha_batch = a.n;
    e.output = device<uint8_t>(a.output) + int64_t(first) * a.m * output_bytes;
    e.output_batch = int64_t(a.n) * a.m;
    e.output_type = a.output_type;
    return e;
}

}  // namespace nvfp4
