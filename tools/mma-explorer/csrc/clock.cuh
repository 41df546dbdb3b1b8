// How fast the multiprocessors' clock is while a kernel runs: under load a GPU lowers it, and raises it within
// microseconds when the load is gone.
#pragma once

#include "types.cuh"

// When the first thread of the grid began, and when it was through: each time its cycles, and nanoseconds.
extern "C" {
__device__ u64 clock_counts[4];
}

// Nothing is kept in registers, of which the kernels have none to spare.
__device__ __forceinline__ void count_clock(u32 at) {
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    u64 nanoseconds;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(nanoseconds)::"memory");
    clock_counts[at] = clock64();
    clock_counts[at + 1] = nanoseconds;
}

__device__ __forceinline__ void clock_begins() {
    count_clock(0);
}

__device__ __forceinline__ void clock_ends() {
    count_clock(2);
}
