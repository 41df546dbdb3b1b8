// ThunderKittens, kernels/gemm/bf16_b200 and fp8_b200: D = A B^T in bf16.
#define KITTENS_BLACKWELL
#include "public.cuh"
#define main its_benchmark
#include SOURCE
#undef main

int main(int argc, char **argv) {
    Sizes s(argc, argv);
    using C = CONFIG;
    using G = globals<C>;
    Matrix<ELEMENT> a(s.m, s.k, 1), b(s.n, s.k, 2);
    auto *d = unwritten<__nv_bfloat16>(s.m * s.n);
    G g{typename G::a_gl{a.device, nullptr, nullptr, s.m, s.k}, typename G::b_gl{b.device, nullptr, nullptr, s.n, s.k},
        typename G::d_gl{d, nullptr, nullptr, s.m, s.n}};
    CHECK(cudaFuncSetAttribute(kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, g.dynamic_shared_memory()));
    LaunchConfig<true, true> launch(g.grid(), g.block(), g.dynamic_shared_memory(), 0, C::CLUSTER_SIZE);
    CHECK(cudaLaunchKernelEx(launch, kernel<C>, g));
    expect(d, s.m, s.n, [&](size_t r, size_t n) { return dot(a, b, r, n); });
}
