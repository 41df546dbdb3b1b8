// Reads bytes and does nothing with them: the ceiling that a GEMV's weights are measured against.
#pragma once

#include "../shared.h"

enum {
    NVFP4_READ_ONLY_THREADS = 256,
    NVFP4_READ_ONLY_CTAS = 8,  /* of an SM: they fill it on every architecture */
    NVFP4_READ_ONLY_LOADS = 4, /* of 16 bytes, that a thread has asked for at once */
};

typedef struct nvfp4_read_only_params {
    NVFP4_POINTER(const uint8_t) data; /* 16-byte aligned */
    int64_t pieces;                    /* of 16 bytes */
    /* Takes the sum if it has one value in 2^32, so that the loads stay and no memory traffic is added. */
    NVFP4_POINTER(uint32_t) sink;
} nvfp4_read_only_params;

#ifdef __CUDACC__

#include "../arch/memory.cuh"
#include "../entries.cuh"

extern "C" __global__ void __launch_bounds__(NVFP4_READ_ONLY_THREADS)
    read_only(nvfp4_read_only_params p) {
    const uint8_t *const data = p.data;
    const int64_t vectors = p.pieces;
    constexpr int kUnroll = NVFP4_READ_ONLY_LOADS;
    const int64_t stride = int64_t(gridDim.x) * blockDim.x;
    uint32_t sum = 0;
    int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; i + (kUnroll - 1) * stride < vectors; i += kUnroll * stride) {
        uint4 v[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) v[u] = nvfp4::arch::load_stream_128(data + 16 * (i + u * stride));
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) sum ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
    }
    for (; i < vectors; i += stride) {
        const uint4 v = nvfp4::arch::load_stream_128(data + 16 * i);
        sum ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 0x9e3779b9u) *p.sink = sum;
}

#define READ_ONLY(X) X(read_only)

#endif
