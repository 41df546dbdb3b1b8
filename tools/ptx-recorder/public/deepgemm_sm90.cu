// DeepGEMM's sm_90 kernels for dense matrices, D = A B^T, with the launches that its host code makes. KERNEL 0 is
// `sm90_bf16_gemm`. 1 is `sm90_fp8_gemm_1d2d`: e4m3 with a scale for 128 elements of A and for 128 x 128 of B, D in bf16.
// 2 is `sm90_fp8_gemm_1d1d`: B has a scale for 128 elements, too, and the product is added onto D in f32.
#include "deepgemm.cuh"
#if KERNEL == 0
#include <deep_gemm/impls/sm90_bf16_gemm.cuh>
#elif KERNEL == 1
#include <deep_gemm/impls/sm90_fp8_gemm_1d2d.cuh>
#else
#include <deep_gemm/impls/sm90_fp8_gemm_1d1d.cuh>
#endif
using namespace deep_gemm;

constexpr uint32_t BLOCK_M = 128, BLOCK_N = KERNEL == 2 ? 120 : 128, STAGES = 4, SMS = 4, LOADS = 128, MATH = 256;

int main(int argc, char **argv) {
    Sizes s(argc, argv);
    auto m = static_cast<uint32_t>(s.m), n = static_cast<uint32_t>(s.n), k = static_cast<uint32_t>(s.k);
    constexpr auto K = cute::UMMA::Major::K;
    // Multicast is of A, so that a pair of CTAs has two tiles of the same rows.
    uint32_t shared = STAGES * (BLOCK_M + BLOCK_N) * 128 + 32 * 8;
    int *none = nullptr;
#if KERNEL == 0
    Matrix<__nv_bfloat16> a(s.m, s.k, 1), b(s.n, s.k, 2);
    auto *d = unwritten<__nv_bfloat16>(s.m * s.n);
    launch(SMS, LOADS + MATH,
           sm90_bf16_gemm_impl<K, K, 0, 0, 0, 1, BLOCK_M, BLOCK_N, 64, 128, 128, 128, STAGES, LOADS, MATH, CLUSTER, true,
                               SMS, GemmType::Normal, false, cutlass::bfloat16_t>,
           shared + BLOCK_M * BLOCK_N * 2, none, m, n, k, map(BF16, 2, a.device, k, m, 64, BLOCK_M, SWIZZLE),
           map(BF16, 2, b.device, k, n, 64, BLOCK_N, SWIZZLE), map(BF16, 2, d, n, m, 64, BLOCK_M, SWIZZLE));
    expect(d, s.m, s.n, [&](size_t r, size_t c) { return dot(a, b, r, c); });
#else
    Matrix<__nv_fp8_e4m3> a(s.m, s.k, 1), b(s.n, s.k, 2);
    size_t blocks = s.k / 128, b_rows = KERNEL == 1 ? 128 : 1;
    auto a_scale = [](size_t r, size_t i) { return std::ldexp(1.f, number(3, r * 1000 + i, 2)); };
    auto b_scale = [&](size_t r, size_t i) { return std::ldexp(1.f, number(4, r / b_rows * 1000 + i, 2)); };
    // The scales of one block of 128 elements lie side by side.
    auto factors = [&](size_t rows, auto scale) {
        std::vector<float> all(rows * blocks);
        for (size_t i = 0; i < all.size(); ++i)
            all[i] = scale(i % rows, i / rows);
        return upload(all.data(), all.size());
    };
    auto a_map = map(BYTES, 1, a.device, k, m, 128, BLOCK_M, SWIZZLE);
    auto b_map = map(BYTES, 1, b.device, k, n, 128, BLOCK_N, SWIZZLE);
    auto a_factors = map(FLOATS, 4, factors(s.m, a_scale), m, blocks, BLOCK_M, 1, NONE);
    shared += STAGES * BLOCK_M * 4;
    auto wanted = [&](size_t r, size_t c) {
        float sum = 0;
        for (size_t i = 0; i < s.k; ++i)
            sum += a.at(r, i) * a_scale(r, i / 128) * b.at(c, i) * b_scale(c, i / 128);
        return sum;
    };
#if KERNEL == 1
    auto *d = unwritten<__nv_bfloat16>(s.m * s.n);
    std::vector<float> b_factors;
    for (size_t c = 0; c < s.n; c += 128)
        for (size_t i = 0; i < blocks; ++i)
            b_factors.push_back(b_scale(c, i));
    launch(SMS, LOADS + MATH,
           sm90_fp8_gemm_1d2d_impl<K, 0, 0, 0, 1, BLOCK_M, BLOCK_N, 128, 128, 128, 128, STAGES, LOADS, MATH, CLUSTER, true,
                                   SMS, GemmType::Normal, cutlass::bfloat16_t, epilogue::transform::EpilogueIdentity>,
           shared + BLOCK_M * BLOCK_N * 2 + k / 128 * 4 + 8, upload(b_factors.data(), b_factors.size()), none, m, n, k,
           a_map, b_map, map(BF16, 2, d, n, m, 64, BLOCK_M, SWIZZLE), a_factors);
    expect(d, s.m, s.n, wanted);
#else
    std::vector<float> zeros(s.m * s.n);
    float *d = upload(zeros.data(), zeros.size());
    __nv_fp8_e4m3 *nothing = nullptr;
    cute::TmaDescriptor *no_maps = nullptr;
    launch(SMS, LOADS + MATH,
           sm90_fp8_gemm_1d1d_impl<0, 0, 0, 1, BLOCK_M, BLOCK_N, 128, 128, 128, STAGES, LOADS, MATH, CLUSTER, true, SMS,
                                   GemmType::Normal, float>,
           shared + BLOCK_M * BLOCK_N * 4 + STAGES * 128 * 4, nothing, nothing, none, no_maps, m, n, k, a_map, b_map, a_factors,
           map(FLOATS, 4, factors(s.n, b_scale), n, blocks, BLOCK_N, 1, NONE), map(FLOATS, 4, d, n, m, BLOCK_N, 64, NONE));
    expect(d, s.m, s.n, wanted);
#endif
#endif
}
