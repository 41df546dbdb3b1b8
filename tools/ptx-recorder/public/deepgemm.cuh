// Shared by the programs around DeepGEMM: tensor maps and launches, as its host code makes them.
#pragma once
#include "scaled.cuh"
#include <cuda.h>

constexpr auto SWIZZLE = CU_TENSOR_MAP_SWIZZLE_128B, NONE = CU_TENSOR_MAP_SWIZZLE_NONE;
constexpr auto BF16 = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
constexpr auto BYTES = CU_TENSOR_MAP_DATA_TYPE_UINT8, WORDS = CU_TENSOR_MAP_DATA_TYPE_INT32;
constexpr auto FLOATS = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;

static CUtensorMap map(CUtensorMapDataType type, size_t size, void *data, uint64_t columns, uint64_t rows,
                       uint32_t box_columns, uint32_t box_rows, CUtensorMapSwizzle swizzle) {
    CUtensorMap map;
    uint64_t dims[] = {columns, rows}, strides[] = {columns * size};
    uint32_t box[] = {box_columns, box_rows}, steps[] = {1, 1};
    EXPECT(cuTensorMapEncodeTiled(&map, type, 2, data, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS);
    return map;
}

template <class... A>
static void launch(uint32_t grid, uint32_t block, void (*kernel)(A...), uint32_t shared, A... arguments) {
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = CLUSTER, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared;
    config.attrs = &cluster, config.numAttrs = 1;
    CHECK(cudaLaunchKernelEx(&config, kernel, arguments...));
}
