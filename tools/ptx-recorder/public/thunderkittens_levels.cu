// ThunderKittens, kernels/gemm/educational_b200 and educational_h100: C = A B, all of them square.
#ifndef KITTENS_HOPPER
#define KITTENS_BLACKWELL
#endif
#include "public.cuh"
#define main its_benchmark
#include SOURCE
#undef main

int main(int argc, char **argv) {
    Sizes s(argc, argv);
    EXPECT(s.m == s.n && s.n == s.k);
    size_t n = s.n;
    Matrix<ELEMENT> a(n, n, 1), b(n, n, 2);
    auto *c = unwritten<ELEMENT>(n * n);
    matmul(a.device, b.device, c, static_cast<int>(n));
    expect(c, n, n, [&](size_t r, size_t col) {
        float sum = 0;
        for (size_t k = 0; k < n; ++k)
            sum += a.at(r, k) * b.at(k, col);
        return sum;
    });
}
