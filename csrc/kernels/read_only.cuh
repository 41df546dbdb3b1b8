// Reads bytes and does nothing with them: the ceiling that a GEMV's weights are measured against.
#pragma once

#include <cstdint>

#include "../arch/memory.cuh"

namespace nvfp4 {

constexpr int kReadOnlyThreads = 256;

// `vectors` counts 16-byte pieces. The sum is stored only if it has one value in 2^32, so that the
// loads stay and no memory traffic is added.
__global__ void __launch_bounds__(kReadOnlyThreads)
    read_only(const uint8_t *data, int64_t vectors, uint32_t *sink) {
    constexpr int kUnroll = 4;
    const int64_t stride = int64_t(gridDim.x) * blockDim.x;
    uint32_t sum = 0;
    int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; i + (kUnroll - 1) * stride < vectors; i += kUnroll * stride) {
        uint4 v[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) v[u] = arch::load_stream_128(data + 16 * (i + u * stride));
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) sum ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
    }
    for (; i < vectors; i += stride) {
        const uint4 v = arch::load_stream_128(data + 16 * i);
        sum ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 0x9e3779b9u) *sink = sum;
}

}  // namespace nvfp4
