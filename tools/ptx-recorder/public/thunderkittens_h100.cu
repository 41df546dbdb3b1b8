// ThunderKittens, kernels/gemm/bf16_h100 (C = A B) and fp8_h100 (C = A B^T): the results have the operands' type.
#define KITTENS_HOPPER
#include "public.cuh"
#define main its_benchmark
#include SOURCE
#undef main

int main(int argc, char **argv) {
    Sizes s(argc, argv);
    using T = matmul_template<CONFIG>;
#ifdef F8
    Matrix<fp8e4m3> a(s.m, s.k, 1, 1), b(s.n, s.k, 2, 1);
    auto *c = unwritten<fp8e4m3>(s.m * s.n);
#else
    Matrix<bf16> a(s.m, s.k, 1), b(s.k, s.n, 2);
    auto *c = unwritten<bf16>(s.m * s.n);
#endif
    CHECK(cudaFuncSetAttribute(prototype::lcf::kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               MAX_SHARED_MEMORY - 1024));
    inner_run<T>(a.device, b.device, c, s.m, s.n, s.k, dim3(4), dim3(prototype::detail::NUM_THREADS_v<T>));
    expect(c, s.m, s.n, [&](size_t r, size_t n) {
#ifdef F8
        return dot(a, b, r, n);
#else
        float sum = 0;
        for (size_t k = 0; k < s.k; ++k)
            sum += a.at(r, k) * b.at(k, n);
        return sum;
#endif
    });
}
