// Tensor maps of the tiled kernels.
#include "tiles.cuh"

#include "driver.cuh"

namespace nvfp4::tile {

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

struct Dimension {
    uint64_t size, stride; // bytes; the innermost dimension's stride is 1
    uint32_t box;
};

template <int kRank>
cudaError_t encode_bytes(Encode encode, CUtensorMap *map, uint64_t address,
                         const Dimension (&dims)[kRank], CUtensorMapSwizzle swizzle) {
    cuuint64_t sizes[kRank], strides[kRank];
    cuuint32_t box[kRank], element_strides[kRank];
    for (int i = 0; i < kRank; ++i) {
        sizes[i] = dims[i].size;
        strides[i] = dims[i].stride;
        box[i] = dims[i].box;
        element_strides[i] = 1;
    }
    const CUresult result = encode(
        map, CU_TENSOR_MAP_DATA_TYPE_UINT8, kRank, reinterpret_cast<void *>(address), sizes,
        strides + 1, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

cudaError_t encode(Maps *maps, const nvfp4_gemv_args &a, int32_t first, int32_t n,
                   uint32_t vector_rows, uint32_t scale_rows) {
    static std::atomic<void *> found;
    Encode encode;
    cudaError_t status = driver_function("cuTensorMapEncodeTiled", found, &encode);
    if (status != cudaSuccess) return status;
    const uint64_t row = uint64_t(a.k) / 2, m = a.m, l = a.l;
    status = encode_bytes<3>(encode, &maps->weights, a.weight_codes,
                             {{row, 1, kRowBytes}, {m, row, kRows}, {l, row * m, 1}},
                             CU_TENSOR_MAP_SWIZZLE_128B);
    if (status != cudaSuccess) return status;
    // The strides of a single row or batch are not used, but must be valid.
    const uint64_t row_stride = a.n > 1 ? a.vector_row_stride : row;
    const uint64_t batch_stride = a.l > 1 ? a.vector_batch_stride : row_stride * a.n;
    status = encode_bytes<3>(
        encode, &maps->vectors, a.vectors + first * row_stride,
        {{row, 1, kRowBytes}, {uint64_t(n), row_stride, vector_rows}, {l, batch_stride, 1}},
        CU_TENSOR_MAP_SWIZZLE_128B);
    if (status != cudaSuccess) return status;
    const uint64_t atoms = ceil_div(a.k, kAtomElements);
    return encode_bytes<4>(encode, &maps->vector_scales, a.vector_scales + first * kAtomRowBytes,
                           {{kAtomRowBytes, 1, kAtomRowBytes},
                            {uint64_t(n), kAtomRowBytes, scale_rows},
                            {atoms, kAtomBytes, kStepAtoms},
                            {l, l > 1 ? uint64_t(a.vector_scale_batch_stride) : atoms * kAtomBytes, 1}},
                           CU_TENSOR_MAP_SWIZZLE_NONE);
}

}  // namespace nvfp4::tile
