// A cluster launch through cudaLaunchKernelExC: CTAs hand numbers around through each other's dynamic shared memory,
// of which each has more than a kernel may have unasked.
#include "check.cuh"
#include <cooperative_groups.h>
#include <utility>

namespace cg = cooperative_groups;

constexpr int WORDS = 20000, CTAS = 4, THREADS = 64;

__global__ void rotate(int *out) {
    extern __shared__ int mine[];
    cg::cluster_group cluster = cg::this_cluster();
    int rank = cluster.block_rank();
    mine[WORDS - 1 - threadIdx.x] = 1000 * rank + threadIdx.x;
    cluster.sync();
    int *theirs = cluster.map_shared_rank(mine, (rank + 1) % CTAS);
    out[blockIdx.x * THREADS + threadIdx.x] = theirs[WORDS - 1 - threadIdx.x];
#ifndef FAULT // a CTA ends while another reads its memory
    cluster.sync();
#endif
}

int main() {
    int *out, host[2 * CTAS * THREADS];
    CHECK(cudaMalloc(&out, sizeof host));
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {CTAS, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = 2 * CTAS;
    config.blockDim = THREADS;
    config.dynamicSmemBytes = WORDS * sizeof(int);
    config.attrs = &attribute;
    config.numAttrs = 1;
    // More than 48 KiB must be asked for.
    EXPECT(cudaLaunchKernelEx(&config, rotate, out) == cudaErrorInvalidValue);
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue && cudaGetLastError() == cudaSuccess);
    EXPECT(cudaFuncSetAttribute(rotate, cudaFuncAttributeMaxDynamicSharedMemorySize, 300 << 10) ==
           cudaErrorInvalidValue);
    (void)cudaGetLastError();
    CHECK(cudaFuncSetAttribute(rotate, cudaFuncAttributeMaxDynamicSharedMemorySize, config.dynamicSmemBytes));
    int clusters = 0;
    CHECK(cudaOccupancyMaxActiveClusters(&clusters, rotate, &config));
    EXPECT(clusters > 0);
    CHECK(cudaLaunchKernelEx(&config, rotate, out));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 2 * CTAS * THREADS; ++i)
        EXPECT(host[i] == 1000 * ((i / THREADS + 1) % CTAS) + i % THREADS);
    puts("right");
}
