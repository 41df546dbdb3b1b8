// Two kernels, the second launched as dependent on the first: programmatic dependent launch.
#include "check.cuh"

__global__ void first(int *data) {
    data[threadIdx.x] = 3 * threadIdx.x;
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__global__ void second(const int *data, int *out) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
#ifdef FAULT
    out[threadIdx.x] = data[threadIdx.x];
#else
    out[threadIdx.x] = data[threadIdx.x] + 1;
#endif
}

int main() {
    int *data, *out, host[96];
    CHECK(cudaMalloc(&data, sizeof host));
    CHECK(cudaMalloc(&out, sizeof host));
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = 1;
    config.blockDim = 96;
    CHECK(cudaLaunchKernelEx(&config, first, data));
    config.attrs = &attribute;
    config.numAttrs = 1;
    CHECK(cudaLaunchKernelEx(&config, second, (const int *)data, out));
    CHECK(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 96; ++i)
        EXPECT(host[i] == 3 * i + 1);
    puts("right");
}
