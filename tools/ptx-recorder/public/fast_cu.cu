// fast.cu, examples/matmul: C^T = A B^T, all of them bf16.
#include "public.cuh"
#include <cassert>
#include <cuda.h>
#include <cuda/barrier>
typedef __nv_bfloat16 bf16;
#define CEIL_DIV(m, n) (((m) + (n) - 1) / (n))
#define cudaCheck CHECK
#include SOURCE

int main(int argc, char **argv) {
    Sizes s(argc, argv);
    Matrix<bf16> a(s.m, s.k, 1), b(s.n, s.k, 2);
    auto *c = unwritten<bf16>(s.m * s.n);
    int m = static_cast<int>(s.m), n = static_cast<int>(s.n), k = static_cast<int>(s.k);
    FUNCTION(m, n, k, a.device, b.device, c, nullptr);
    expect(c, s.n, s.m, [&](size_t r, size_t i) { return dot(a, b, i, r); });
}
