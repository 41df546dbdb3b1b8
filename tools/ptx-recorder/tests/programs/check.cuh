// Shared by the test programs: they end with status 1 where CUDA or their own check finds something wrong.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        cudaError_t check_ = (call);                                                                                   \
        if (check_ != cudaSuccess) {                                                                                   \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(check_));                          \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

// A check of the program's own.
#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);                                           \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

// A device buffer with contents.
template <class T> T *upload(const T *host, size_t count) {
    T *device;
    CHECK(cudaMalloc(&device, count * sizeof(T)));
    CHECK(cudaMemcpy(device, host, count * sizeof(T), cudaMemcpyHostToDevice));
    return device;
}
