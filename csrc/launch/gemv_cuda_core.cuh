// Prepares the CUDA-core kernel of one activation type. Each activation is a translation unit of its own,
// so that they compile side by side.
#pragma once

#include <algorithm>

#include "../kernels/gemv_cuda_core.cuh"
#include "arguments.cuh"
#include "prepared.cuh"

namespace nvfp4 {

using CudaCoreKernel = void (*)(CudaCoreParams);

template <int kActivation, int kBlocks>
CudaCoreKernel cuda_core_kernel(int32_t n) {
    if (n <= 1) return gemv_cuda_core<kActivation, 1, kBlocks>;
    if (n <= 2) return gemv_cuda_core<kActivation, 2, kBlocks>;
    if (n <= 4) return gemv_cuda_core<kActivation, 4, kBlocks>;
    return gemv_cuda_core<kActivation, 8, kBlocks>;
}

// Calls `add` with the parameters of each pass over the weights: one for each kMaxVectors vectors.
template <class Add>
cudaError_t for_each_pass(const nvfp4_gemv_args &a, const nvfp4_cuda_core_config &c, Add add) {
    const int32_t blocks = a.k / kBlock;
    CudaCoreParams p = {};
    p.m = a.m;
    p.l = a.l;
    p.blocks = blocks;
    p.k_split = c.k_split;
    p.row_step = a.weight_scale_layout == NVFP4_SCALES_128X4 ? 32 : 1;
    p.codes = device<const uint8_t>(a.weight_codes);
    p.scales = device<const uint8_t>(a.weight_scales);
    p.scale_layout = ScaleLayout::make(a.weight_scale_layout, blocks, blocks);
    p.code_row_bytes = a.k / 2;
    p.vector_row_bytes = a.vector_row_stride;
    p.vector_batch_bytes = a.vector_batch_stride;
    p.vector_scale_layout =
        ScaleLayout::make(a.vector_scale_layout, blocks, a.vector_scale_row_stride);
    p.vector_scale_batch_bytes = a.vector_scale_batch_stride;
    const int64_t scale_row_bytes =
        p.vector_scale_layout.tiled ? 16 : p.vector_scale_layout.row_stride; // n <= 16 < 32 rows
    for (int32_t first = 0; first < a.n; first += kMaxVectors) {
        p.n = std::min(a.n - first, kMaxVectors);
        p.vectors = device<const uint8_t>(a.vectors) + first * a.vector_row_stride;
        p.vector_scales = device<const uint8_t>(a.vector_scales) + first * scale_row_bytes;
        p.epilogue = epilogue(a, first);
        const cudaError_t status = add(p);
        if (status != cudaSuccess) return status;
    }
    return cudaSuccess;
}

template <int kActivation>
cudaError_t prepare_cuda_core(Prepared &prepared, const nvfp4_gemv_args &a,
                              const nvfp4_cuda_core_config &c) {
    return for_each_pass(a, c, [&](const CudaCoreParams &p) {
        const CudaCoreKernel kernel = c.blocks_per_load == 2
                                          ? cuda_core_kernel<kActivation, 2>(p.n)
                                          : cuda_core_kernel<kActivation, 1>(p.n);
        const int64_t tiles = row_tiles(p.m, p.row_step, rows_per_warp(p.n));
        Call call = {};
        call.kernel = reinterpret_cast<const void *>(kernel);
        call.grid_x = uint32_t(ceil_div(tiles, c.warps / c.k_split));
        call.grid_y = uint32_t(std::min(a.l, kMostBatches)); // the kernel strides over the others
        call.threads = uint32_t(c.warps * kWarp);
        call.dependent = uint32_t(c.dependent);
        return prepared.add(call, p);
    });
}

// With integer dot products: four blocks a load in gemv_nvfp4_wide.cu, fewer in gemv_nvfp4.cu.
cudaError_t prepare_nvfp4(Prepared &, const nvfp4_gemv_args &, const nvfp4_cuda_core_config &);
cudaError_t prepare_nvfp4_wide(Prepared &, const nvfp4_gemv_args &, const nvfp4_cuda_core_config &);

// One a translation unit, gemv_cuda_core_<activation>.cu.
cudaError_t prepare_cuda_core_nvfp4(Prepared &, const nvfp4_gemv_args &,
                                    const nvfp4_cuda_core_config &);
cudaError_t prepare_cuda_core_f16(Prepared &, const nvfp4_gemv_args &,
                                  const nvfp4_cuda_core_config &);
cudaError_t prepare_cuda_core_bf16(Prepared &, const nvfp4_gemv_args &,
                                   const nvfp4_cuda_core_config &);
cudaError_t prepare_cuda_core_f32(Prepared &, const nvfp4_gemv_args &,
                                  const nvfp4_cuda_core_config &);

}  // namespace nvfp4
