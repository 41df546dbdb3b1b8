// DeepGEMM's sm_100 kernels for dense matrices, D = A B^T in bf16, with the launches that its host code makes:
// `sm100_bf16_gemm`, and with F8 `sm100_fp8_fp4_gemm_1d1d` of e4m3 with a scale for 128 elements.
#include "deepgemm.cuh"
#ifdef F8
#include <deep_gemm/impls/sm100_fp8_fp4_gemm_1d1d.cuh>
#else
#include <deep_gemm/impls/sm100_bf16_gemm.cuh>
#endif
using namespace deep_gemm;

constexpr uint32_t BLOCK = 128, STAGES = 4, SMS = 4, THREADS = 128;

int main(int argc, char **argv) {
    Sizes s(argc, argv);
    auto *d = unwritten<__nv_bfloat16>(s.m * s.n);
    auto m = static_cast<uint32_t>(s.m), n = static_cast<uint32_t>(s.n), k = static_cast<uint32_t>(s.k);
    constexpr auto K = cute::UMMA::Major::K;
    auto out = map(BF16, 2, d, n, m, 64, BLOCK, SWIZZLE);
    uint32_t shared = BLOCK * 128 * 2 + (32 * 3 + 2 * 2 + 1) * 8 + 4;
    shared += STAGES * (BLOCK + BLOCK / CLUSTER) * 128;
#ifdef F8
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
    launch(SMS, 2 * THREADS, sm100_fp8_fp4_gemm_1d1d_impl<K, K, 128, 128, 128, 0, 0, 0, BLOCK, BLOCK, 128, 1, 128, 128, 128, STAGES, THREADS, THREADS,
                                        CLUSTER, false, SMS, false, false, GemmType::Normal, false, E, E,
                                        cutlass::bfloat16_t, epilogue::transform::EpilogueIdentity>,
           shared, static_cast<int *>(nullptr), m, n, k, map(BYTES, 1, a.codes, k, m, 128, BLOCK, SWIZZLE),
           map(BYTES, 1, b.codes, k, n, 128, BLOCK / CLUSTER, SWIZZLE), map(WORDS, 4, words(a), m, columns, BLOCK, 1, NONE),
           map(WORDS, 4, words(b), n, columns, BLOCK, 1, NONE), out);
#else
    Matrix<__nv_bfloat16> a(s.m, s.k, 1), b(s.n, s.k, 2);
    launch(SMS, 2 * THREADS, sm100_bf16_gemm_impl<K, K, 0, 0, 0, BLOCK, BLOCK, 64, 1, 128, 128, 128, STAGES, THREADS, THREADS, CLUSTER,
                                false, SMS, 128, false, false, GemmType::Normal, false, cutlass::bfloat16_t, 100>,
           shared, static_cast<int *>(nullptr), m, n, k, map(BF16, 2, a.device, k, m, 64, BLOCK, SWIZZLE),
           map(BF16, 2, b.device, k, n, 64, BLOCK / CLUSTER, SWIZZLE), out);
#endif
    expect(d, s.m, s.n, [&](size_t r, size_t c) { return dot(a, b, r, c); });
}
