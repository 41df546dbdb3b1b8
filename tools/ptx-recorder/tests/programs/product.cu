// A product by tcgen05.mma, checked on the host: a conformance kernel of ptx-sim with a program around it.
#include "check.cuh"
#include <cuda_bf16.h>
#include "ptx_ops.cuh"
#ifdef FAULT // the loads of the result do not wait for the product
#define mbarrier_try_wait(barrier, parity) true
#endif
#include "mma_bf16.cu"

int main() {
    static __nv_bfloat16 a[M][K], b[N][K];
    auto number = [](uint32_t i) { return static_cast<float>(static_cast<int>(i * 2654435761u >> 28) - 8); };
    for (uint32_t i = 0; i < M * K; ++i)
        a[i / K][i % K] = __float2bfloat16(number(i));
    for (uint32_t i = 0; i < N * K; ++i)
        b[i / K][i % K] = __float2bfloat16(number(i + 7777));
    auto *a_device = upload(&a[0][0], M * K), *b_device = upload(&b[0][0], N * K);
    static float d[M][N];
    float *d_device;
    CHECK(cudaMalloc(&d_device, sizeof d));
    mma_bf16<<<1, 128>>>((const uint8_t *)a_device, (const uint8_t *)b_device, d_device);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(d, d_device, sizeof d, cudaMemcpyDeviceToHost));
    for (uint32_t m = 0; m < M; ++m)
        for (uint32_t n = 0; n < N; ++n) {
            float sum = 0; // small integers: exact
            for (uint32_t k = 0; k < K; ++k)
                sum += __bfloat162float(a[m][k]) * __bfloat162float(b[n][k]);
            EXPECT(d[m][n] == sum);
        }
    puts("right");
}
