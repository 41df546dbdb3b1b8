// Sums over the lanes of a warp.
#pragma once

namespace nvfp4 {

// Sums each of V values over every kLanes lanes that follow each other. V and kLanes are powers of two, V <= kLanes.
// Lane i * (kLanes / V) of these lanes ends up with the sum of value i, in the first element.
template <int kLanes, int V>
__device__ __forceinline__ void reduce_scatter(float (&value)[V], int lane) {
    static_assert(V <= kLanes, "a value a lane");
    int left = V;
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
        if (left > 1) {
            left /= 2;
            const bool upper = lane & offset;
#pragma unroll
            for (int i = 0; i < V / 2; ++i) {
                if (i >= left) break;
                const float send = upper ? value[i] : value[i + left];
                const float keep = upper ? value[i + left] : value[i];
                value[i] = keep + __shfl_xor_sync(0xffffffffu, send, offset);
            }
        } else {
            value[0] += __shfl_xor_sync(0xffffffffu, value[0], offset);
        }
    }
}

}  // namespace nvfp4
