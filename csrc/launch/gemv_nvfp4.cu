// The CUDA-core kernels with integer dot products, for NVFP4 vectors.
#include "../kernels/gemv_nvfp4.cuh"
#include "gemv_cuda_core.cuh"

namespace nvfp4 {

template <int kBlocks>
static CudaCoreKernel nvfp4_kernel(int32_t n) {
    if (n <= 1) return gemv_nvfp4<1, kBlocks>;
    if (n <= 2) return gemv_nvfp4<2, kBlocks>;
    if (n <= 4) return gemv_nvfp4<4, kBlocks>;
    return gemv_nvfp4<8, kBlocks>;
}

cudaError_t prepare_nvfp4(Prepared &prepared, const nvfp4_gemv_args &a,
                          const nvfp4_cuda_core_config &c) {
    return for_each_pass(a, c, [&](CudaCoreParams &p) {
        const int vectors = p.n <= 2 ? p.n : p.n <= 4 ? 4 : 8;
        const int32_t tiles = row_tiles(p.m, p.row_step, int8::kRows);
        p.tiles_per_cta = tiles / c.ctas;
        p.tiles_left = tiles % c.ctas;
        Call call = {};
        call.kernel = reinterpret_cast<const void *>(
            c.blocks_per_load == 2 ? nvfp4_kernel<2>(p.n) : nvfp4_kernel<1>(p.n));
        call.grid_x = uint32_t(c.ctas);
        call.grid_y = uint32_t(std::min(p.l, kMostBatches)); // the kernel strides over the others
        call.threads = uint32_t(c.warps * kWarp);
        call.dependent = uint32_t(c.dependent);
        call.dynamic_shared =
            uint32_t(int8::shared_bytes(vectors, p.blocks, p.k_split, ceil_div(tiles, c.ctas)));
        return prepared.add(call, p);
    });
}

}  // namespace nvfp4
