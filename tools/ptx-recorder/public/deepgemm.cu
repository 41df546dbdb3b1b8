// DeepGEMM's sm_100 kernels for dense matrices, D = A B^T in bf16, with the launches that its host code makes:
// `sm100_bf16_gemm`, and with F8 `sm100_fp8_fp4_gemm_1d1d` of e4m3 with a scale for 128 elements.
#include "scaled.cuh"
#include <cuda.h>
#ifdef F8
#include <deep_gemm/impls/sm100_fp8_fp4_gemm_1d1d.cuh>
#else
#include <deep_gemm/impls/sm100_bf16_gemm.cuh>
#endif
using namespace deep_gemm;

constexpr uint32_t BLOCK = 128, STAGES = 4, SMS = 4, THREADS = 128;

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

template <class... A> static void launch(void (*kernel)(A...), uint32_t shared, A... arguments) {
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = CLUSTER, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = SMS, config.blockDim = 2 * THREADS, config.dynamicSmemBytes = shared;
    config.attrs = &cluster, config.numAttrs = 1;
    CHECK(cudaLaunchKernelEx(&config, kernel, arguments...));
}

int main(int argc, char **argv) {
    Sizes s(argc, argv);
    auto *d = unwritten<__nv_bfloat16>(s.m * s.n);
    auto m = static_cast<uint32_t>(s.m), n = static_cast<uint32_t>(s.n), k = static_cast<uint32_t>(s.k);
    constexpr auto SWIZZLE = CU_TENSOR_MAP_SWIZZLE_128B, NONE = CU_TENSOR_MAP_SWIZZLE_NONE;
    constexpr auto BF16 = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    constexpr auto K = cute::UMMA::Major::K;
    auto out = map(BF16, 2, d, n, m, 64, BLOCK, SWIZZLE);
    uint32_t shared = BLOCK * 128 * 2 + (32 * 3 + 2 * 2 + 1) * 8 + 4;
    shared += STAGES * (BLOCK + BLOCK / CLUSTER) * 128;
#ifdef F8
    constexpr auto BYTES = CU_TENSOR_MAP_DATA_TYPE_UINT8, WORDS = CU_TENSOR_MAP_DATA_TYPE_INT32;
    Scaled a(s.m, s.k, 8, 128, E4M3, UE8M0, 1), b(s.n, s.k, 8, 128, E4M3, UE8M0, 2);
    // Four scales of a row are a word; the words of one column of them lie side by side.
    auto words = [](const Scaled &x) {
        size_t blocks = x.columns / 128;
        std::vector<uint32_t> words((blocks + 3) / 4 * x.rows);
        for (size_t r = 0; r < x.rows; ++r)
            for (size_t i = 0; i < blocks; ++i)
                words[i / 4 * x.rows + r] |= static_cast<uint32_t>(x.factors[r * blocks + i]) << i % 4 * 8;
        return upload(words.data(), words.size());
    };
    uint64_t columns = (s.k / 128 + 3) / 4;
    shared += STAGES * 2 * BLOCK * 4;
    using E = cutlass::float_e4m3_t;
    launch(sm100_fp8_fp4_gemm_1d1d_impl<K, K, 128, 128, 128, 0, 0, 0, BLOCK, BLOCK, 128, 1, 128, 128, 128, STAGES, THREADS, THREADS,
                                        CLUSTER, false, SMS, false, false, GemmType::Normal, false, E, E,
                                        cutlass::bfloat16_t, epilogue::transform::EpilogueIdentity>,
           shared, static_cast<int *>(nullptr), m, n, k, map(BYTES, 1, a.codes, k, m, 128, BLOCK, SWIZZLE),
           map(BYTES, 1, b.codes, k, n, 128, BLOCK / CLUSTER, SWIZZLE), map(WORDS, 4, words(a), m, columns, BLOCK, 1, NONE),
           map(WORDS, 4, words(b), n, columns, BLOCK, 1, NONE), out);
#else
    Matrix<__nv_bfloat16> a(s.m, s.k, 1), b(s.n, s.k, 2);
    launch(sm100_bf16_gemm_impl<K, K, 0, 0, 0, BLOCK, BLOCK, 64, 1, 128, 128, 128, STAGES, THREADS, THREADS, CLUSTER,
                                false, SMS, 128, false, false, GemmType::Normal, false, cutlass::bfloat16_t, 100>,
           shared, static_cast<int *>(nullptr), m, n, k, map(BF16, 2, a.device, k, m, 64, BLOCK, SWIZZLE),
           map(BF16, 2, b.device, k, n, 64, BLOCK / CLUSTER, SWIZZLE), out);
#endif
    expect(d, s.m, s.n, [&](size_t r, size_t c) { return dot(a, b, r, c); });
}
