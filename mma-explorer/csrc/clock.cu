// How fast the multiprocessors' clock is, right behind a kernel that may have made the GPU lower it.
#include "types.cuh"

__device__ __forceinline__ u64 nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)::"memory");
    return now;
}

// One thread counts cycles for at least `duration` nanoseconds: `out` gets both.
extern "C" __global__ void count_cycles(u64 *out, u64 duration) {
    const u64 start = nanoseconds();
    const u64 first = clock64();
    u64 now = start;
    while (now - start < duration) now = nanoseconds();
    out[0] = clock64() - first;
    out[1] = now - start;
}
