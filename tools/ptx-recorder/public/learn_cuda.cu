// learn-cuda, 02b_matmul_sm80, 02c_matmul_sm120, 02e_matmul_sm100: C = A B^T, all of them bf16.
#include "public.cuh"
#include <tuple>
#include SOURCE

int main(int argc, char **argv) {
    Sizes s(argc, argv);
    Matrix<__nv_bfloat16> a(s.m, s.k, 1), b(s.n, s.k, 2);
    auto *c = unwritten<__nv_bfloat16>(s.m * s.n);
    FUNCTION(a.device, b.device, c, static_cast<int>(s.m), static_cast<int>(s.n), static_cast<int>(s.k));
    expect(c, s.m, s.n, [&](size_t r, size_t n) { return dot(a, b, r, n); });
}
