// Dependent launches that overlap with nothing: the program has waited, copied, or taken another stream.
#include "check.cuh"

__global__ void first(int *data) { data[threadIdx.x] = threadIdx.x; }

// This kernel does not wait for the grid before: its result is right only if that grid has ended.
__global__ void second(int *data) { data[threadIdx.x] += 1; }

static void dependent(int *data, cudaStream_t stream) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = 1;
    config.blockDim = 96;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    CHECK(cudaLaunchKernelEx(&config, second, data));
}

int main() {
    int *device, *managed, host[96];
    CHECK(cudaMalloc(&device, sizeof host));
    CHECK(cudaMallocManaged(&managed, sizeof host));
    cudaStream_t a, b;
    CHECK(cudaStreamCreate(&a));
    CHECK(cudaStreamCreate(&b));
    cudaEvent_t event;
    CHECK(cudaEventCreate(&event));
    for (int *data : {device, managed}) {
        first<<<1, 96, 0, a>>>(data);
        CHECK(cudaDeviceSynchronize());
        dependent(data, a);
        CHECK(cudaStreamSynchronize(a));
        dependent(data, a);
        CHECK(cudaEventRecord(event, a));
        CHECK(cudaEventSynchronize(event));
        dependent(data, a);
        CHECK(cudaMemcpyAsync(host, data, 4, cudaMemcpyDefault, a));
        dependent(data, a);
#ifndef FAULT // the grid before may still run
        CHECK(cudaStreamSynchronize(a));
#endif
        dependent(data, a);
        CHECK(cudaMemcpy(host, data, sizeof host, cudaMemcpyDefault));
        for (int i = 0; i < 96; ++i)
            EXPECT(host[i] == i + 5);
    }
    // This launch does not depend on another stream's launch.
    first<<<1, 96, 0, a>>>(device);
    dependent(managed, b);
    dependent(device, a);
    CHECK(cudaDeviceSynchronize());
    puts("right");
}
