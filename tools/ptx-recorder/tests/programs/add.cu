// Adds vectors, with every kind of memory that a program may have: device, pinned, managed, constant, global variables.
#include "check.cuh"
#include <cstring>

__constant__ float factors[2];
__device__ unsigned added;
__device__ unsigned start = 7;

__global__ void add(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
#ifndef FAULT // past the ends of the vectors
    if (i >= n)
        return;
#endif
    c[i] = a[i] * factors[0] + b[i] * factors[1];
    atomicAdd(&added, 1);
    if (i == 0)
        start += 1;
}

int main() {
    const int n = 1000;
    float *a, *b, *c;
    CHECK(cudaMalloc(&a, n * sizeof(float)));
    CHECK(cudaMallocManaged(&b, n * sizeof(float)));
    CHECK(cudaMallocHost(&c, n * sizeof(float)));
    float host[n];
    for (int i = 0; i < n; ++i) {
        host[i] = i;
        b[i] = 2 * i;
    }
    cudaStream_t stream;
    cudaEvent_t events[2];
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (cudaEvent_t &event : events)
        CHECK(cudaEventCreate(&event));
    CHECK(cudaMemcpyAsync(a, host, sizeof host, cudaMemcpyHostToDevice, stream));
    const float given[2] = {3, 0.5f};
    CHECK(cudaMemcpyToSymbol(factors, &given[1], sizeof(float), sizeof(float)));
    CHECK(cudaMemcpyToSymbol(factors, &given[0], sizeof(float)));
    CHECK(cudaEventRecord(events[0], stream));
    add<<<(n + 127) / 128, 128, 0, stream>>>(a, b, c, n);
    CHECK(cudaGetLastError());
    CHECK(cudaEventRecord(events[1], stream));
    CHECK(cudaStreamSynchronize(stream));
    float milliseconds;
    CHECK(cudaEventElapsedTime(&milliseconds, events[0], events[1]));
    for (int i = 0; i < n; ++i)
        EXPECT(c[i] == 4 * i);
    unsigned count;
    CHECK(cudaMemcpyFromSymbol(&count, added, sizeof count));
    EXPECT(count == n);
    unsigned *at;
    CHECK(cudaGetSymbolAddress((void **)&at, start));
    CHECK(cudaMemcpy(&count, at, sizeof count, cudaMemcpyDefault));
    EXPECT(count == 8);

    // Fills, copies of rows, copies on the device.
    CHECK(cudaMemset(a, 0, n * sizeof(float)));
    CHECK(cudaMemcpy2D(a, 8, host, 16, 4, 10, cudaMemcpyHostToDevice));
    float *copy;
    CHECK(cudaMalloc(&copy, n * sizeof(float)));
    CHECK(cudaMemcpy(copy, a, n * sizeof(float), cudaMemcpyDeviceToDevice));
    float back[n];
    CHECK(cudaMemcpy(back, copy, sizeof back, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 20; ++i)
        EXPECT(back[i] == (i % 2 ? 0 : 2 * i));

    // Properties that a device reports.
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    EXPECT(properties.major == 10 && properties.minor == 0 && properties.warpSize == 32);
    EXPECT(properties.sharedMemPerBlockOptin == 227 << 10 && properties.sharedMemPerMultiprocessor == 228 << 10);
    EXPECT(properties.maxThreadsPerBlock == 1024 && properties.maxGridSize[2] == 65535);
    EXPECT(properties.clusterLaunch == 1 && properties.cooperativeLaunch == 1 && properties.managedMemory == 1);
    EXPECT(properties.multiProcessorCount == 148 && strstr(properties.name, "ptx-sim"));
    EXPECT(properties.reservedSharedMemPerBlock == 1024 && properties.totalGlobalMem == 4ull << 30);
    int value, blocks;
    CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0));
    EXPECT(value == 10);
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 256, 0));
    EXPECT(blocks == 8);
    cudaFuncAttributes attributes;
    CHECK(cudaFuncGetAttributes(&attributes, add));
    EXPECT(attributes.maxThreadsPerBlock == 1024 && attributes.sharedSizeBytes == 0);
    cudaPointerAttributes pointer;
    CHECK(cudaPointerGetAttributes(&pointer, b));
    EXPECT(pointer.type == cudaMemoryTypeManaged);
    CHECK(cudaPointerGetAttributes(&pointer, host));
    EXPECT(pointer.type == cudaMemoryTypeUnregistered);
    CHECK(cudaFree(a));
    CHECK(cudaFree(b));
    CHECK(cudaFreeHost(c));
    puts("right");
}
