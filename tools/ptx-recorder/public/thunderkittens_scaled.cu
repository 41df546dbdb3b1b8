// ThunderKittens, kernels/gemm/nvfp4_b200 and mxfp8_b200: D = A B^T in bf16, of block-scaled operands.
#define KITTENS_BLACKWELL
#include "scaled.cuh"
#define main its_benchmark
#include SOURCE
#undef main

int main(int argc, char **argv) {
    Sizes s(argc, argv);
    auto *d = unwritten<__nv_bfloat16>(s.m * s.n);
#ifdef NVFP4
    using C = nvfp4_gemm::CONFIG;
    using G = nvfp4_gemm::globals<C>;
    Scaled a(s.m, s.k, 4, 16, E2M1, UE4M3, 1), b(s.n, s.k, 4, 16, E2M1, UE4M3, 2);
    float two = 2, half = .5f;
    float *a_all = upload(&two, 1), *b_all = upload(&half, 1);
    using Pair = __nv_fp4x2_e2m1;
    using Scales = ::half;
    G g{typename G::A_fp4x2_gl{reinterpret_cast<Pair *>(a.codes), nullptr, nullptr, s.m, s.k / 2},
        typename G::A_sc_gl{reinterpret_cast<Scales *>(a.scales), nullptr, s.m / 128, s.k / 64, nullptr},
        typename G::A_sc_global_gl{a_all, nullptr, nullptr, nullptr, nullptr},
        typename G::B_fp4x2_gl{reinterpret_cast<Pair *>(b.codes), nullptr, nullptr, s.n, s.k / 2},
        typename G::B_sc_gl{reinterpret_cast<Scales *>(b.scales), nullptr, s.n / 128, s.k / 64, nullptr},
        typename G::B_sc_global_gl{b_all, nullptr, nullptr, nullptr, nullptr},
        typename G::D_gl{d, nullptr, nullptr, s.m, s.n}};
#else
    using C = mxfp8_gemm::CONFIG;
    using G = mxfp8_gemm::globals<C>;
    Scaled a(s.m, s.k, 8, 32, E4M3, UE8M0, 1), b(s.n, s.k, 8, 32, E4M3, UE8M0, 2);
    G g{typename G::A_gl{reinterpret_cast<__nv_fp8_e4m3 *>(a.codes), nullptr, nullptr, s.m, s.k},
        typename G::A_sc_gl{reinterpret_cast<__nv_fp8_e8m0 *>(a.scales), s.m / 128, s.k / 128, nullptr, nullptr},
        typename G::B_gl{reinterpret_cast<__nv_fp8_e4m3 *>(b.codes), nullptr, nullptr, s.n, s.k},
        typename G::B_sc_gl{reinterpret_cast<__nv_fp8_e8m0 *>(b.scales), s.n / 128, s.k / 128, nullptr, nullptr},
        typename G::D_gl{d, nullptr, nullptr, s.m, s.n}};
#endif
    CHECK(cudaFuncSetAttribute(kernel_entrypoint<C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               g.dynamic_shared_memory()));
    LaunchConfig<true, true> launch(g.grid(), g.block(), g.dynamic_shared_memory(), 0, C::CLUSTER_SIZE);
    CHECK(cudaLaunchKernelEx(launch, kernel_entrypoint<C>, g));
    expect(d, s.m, s.n, [&](size_t r, size_t n) { return dot(a, b, r, n); });
}
