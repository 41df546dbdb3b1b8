// A function that is launched on a stream: it must not call CUDA, and may wait for a thread that does. Errors are each
// thread's own.
#include "check.cuh"
#include <thread>

__global__ void add(int *data, int value) { data[threadIdx.x] += value; }

static cudaError_t inside;

static void calls(void *) {
    void *got;
    inside = cudaMalloc(&got, 16);
}

static void waits(void *data) {
    std::thread([data] {
        CHECK(cudaMemset(data, 0, 128));
        CHECK(cudaGetLastError());
    }).join();
}

int main() {
    int *data, host[32];
    CHECK(cudaMalloc(&data, sizeof host));
    CHECK(cudaLaunchHostFunc(nullptr, calls, nullptr));
    EXPECT(inside == cudaErrorNotPermitted && cudaGetLastError() == cudaErrorNotPermitted);
    EXPECT(cudaGetLastError() == cudaSuccess);
    EXPECT(cudaFree(host) == cudaErrorInvalidValue);
#ifdef FAULT // the thread's error is not this one's
    EXPECT(cudaGetLastError() == cudaSuccess);
#endif
    CHECK(cudaLaunchHostFunc(nullptr, waits, data));
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
    add<<<1, 32>>>(data, 3);
    CHECK(cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost));
    for (int i : host)
        EXPECT(i == 3);
    puts("right");
}
