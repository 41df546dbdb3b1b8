// NVFP4_Kernels, nvfp4_gemm: C = A B^T in f16, of block-scaled operands.
#include "scaled.cuh"
#include <cuda.h>
#include SOURCE

int main(int argc, char **argv) {
    Sizes s(argc, argv);
    Scaled a(s.m, s.k, 4, 16, E2M1, UE4M3, 1), b(s.n, s.k, 4, 16, E2M1, UE4M3, 2);
    auto *c = unwritten<__half>(s.m * s.n);
    auto tensor = [](void *data) { return torch::Tensor{data}; };
    nvfp4_gemm(tensor(a.codes), tensor(b.codes), tensor(a.scales), tensor(b.scales), tensor(c), static_cast<int>(s.m),
               static_cast<int>(s.n), static_cast<int>(s.k));
    expect(c, s.m, s.n, [&](size_t r, size_t n) { return dot(a, b, r, n); });
}
