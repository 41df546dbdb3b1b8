// Reads bytes by loads and does nothing with them. Together with read_bulk.cuh this is the ceiling that a GEMV's
// weights are measured against.
#pragma once

#include "../shared.h"

enum {
    NVFP4_READ_ONLY_MAX_THREADS = 1024,
    NVFP4_READ_PIECE = 16, /* bytes of a load */
};

/* Pieces are counted from `data`. */
typedef struct nvfp4_read_only_params {
    NVFP4_POINTER(const uint8_t) data; /* 16-byte aligned */
    int64_t pieces;
    int64_t cta_step;  /* from where a CTA begins to where the next one does */
    int64_t cta_reach; /* what a CTA reads lies within so many from where it begins */
    int64_t load_step; /* between two of the pieces that a thread has asked for at once */
    /* Each thread adds up the 32-bit words that it reads, and adds its sum to the sink where all of these bits are set
     * in the sum. With all bits that is one sum in 2^32: the loads stay, and no memory traffic is added. With no bits,
     * the sink gets the sum of all words. */
    uint32_t sum_bits;
    NVFP4_POINTER(uint32_t) sink;
} nvfp4_read_only_params;

#ifdef __CUDACC__

#include "../arch/memory.cuh"
#include "../entries.cuh"

namespace nvfp4::read_only {

__device__ __forceinline__ uint32_t sum_of(uint4 v) { return v.x + v.y + v.z + v.w; }

template <int kLoads>
__device__ __forceinline__ void read(const nvfp4_read_only_params &p) {
    const int64_t begin = blockIdx.x * p.cta_step, step = p.load_step;
    const int64_t end = min(begin + p.cta_reach, p.pieces);
    uint32_t sum = 0;
    int64_t i = begin + threadIdx.x;
    const uint8_t *from = p.data + NVFP4_READ_PIECE * i;
    const int64_t step_bytes = NVFP4_READ_PIECE * step;
    uint4 v[kLoads];
    for (; i + (kLoads - 1) * step < end; i += kLoads * step) {
#pragma unroll
        for (int u = 0; u < kLoads; ++u, from += step_bytes) v[u] = arch::ld_global_nc_no_allocate_128(from);
#pragma unroll
        for (int u = 0; u < kLoads; ++u) sum += sum_of(v[u]);
    }
#pragma unroll
    for (int u = 0; u < kLoads; ++u, i += step, from += step_bytes) {
        v[u] = make_uint4(0, 0, 0, 0);
        if (i < end) v[u] = arch::ld_global_nc_no_allocate_128(from);
    }
#pragma unroll
    for (int u = 0; u < kLoads; ++u) sum += sum_of(v[u]);
    if ((sum & p.sum_bits) == p.sum_bits) atomicAdd(p.sink, sum);
}

}  // namespace nvfp4::read_only

// Entry points, by loads that a thread has asked for at once, and launch bounds. One CTA of an SM lets the compiler
// have the registers of eight loads. With as few as it likes to take, it would wait for the first load before it asks
// for the last.
#define READ_ONLY(X)                                    \
    X(read_only_loads4, 4, NVFP4_READ_ONLY_MAX_THREADS) \
    X(read_only_loads8, 8, NVFP4_READ_ONLY_MAX_THREADS, 1)

#define READ_ONLY_ENTRY(name, loads, ...)                           \
    NVFP4_KERNEL(name)(                                             \
    extern "C" __global__ void __launch_bounds__(__VA_ARGS__) name( \
        const __grid_constant__ nvfp4_read_only_params p) {         \
        nvfp4::read_only::read<loads>(p);                           \
    })
READ_ONLY(READ_ONLY_ENTRY)

#endif
