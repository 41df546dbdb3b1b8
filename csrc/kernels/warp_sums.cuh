// Sums over the lanes of a warp.
#pragma once

namespace nvfp4 {

// Sums each of V values over the warp, V a power of two up to 32. Lane i * (32 / V) ends up with
// value i, in the first element.
template <int V>
__device__ __forceinline__ void reduce_scatter(float (&value)[V], int lane) {
    int left = V;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
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
