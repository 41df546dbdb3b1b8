// fast.cu, examples/matmul: C^T = A B^T, all of them bf16.
#include "public.cuh"
#include <cassert>
#include <cuda.h>
#include <cuda/barrier>
typedef __nv_bfloat16 bf16;
#define CEIL_DIV(m, n) (((m) + (n) - 1) / (n))
#define cudaCheck CHECK
#include SOURCE

// Some take memory for their measurements, too.
static void run(void (*f)(int, int, int, bf16 *, bf16 *, bf16 *), int m, int n, int k, bf16 *a, bf16 *b, bf16 *c) {
    f(m, n, k, a, b, c);
}
static void run(void (*f)(int, int, int, bf16 *, bf16 *, bf16 *, int *), int m, int n, int k, bf16 *a, bf16 *b, bf16 *c) {
    f(m, n, k, a, b, c, nullptr);
}

int main(int argc, char **argv) {
    Sizes s(argc, argv);
    Matrix<bf16> a(s.m, s.k, 1), b(s.n, s.k, 2);
    auto *c = unwritten<bf16>(s.m * s.n);
    run(FUNCTION, static_cast<int>(s.m), static_cast<int>(s.n), static_cast<int>(s.k), a.device, b.device, c);
    expect(c, s.n, s.m, [&](size_t r, size_t i) { return dot(a, b, i, r); });
}
