// The parts of kernels for sm_90 and later: barriers in shared memory, copies of boxes of a matrix, and, for sm_90a
// alone, the instructions around a `wgmma` multiplication. One PTX instruction a function.
//
// A `wgmma` multiplication is asynchronous: from when it is issued until its group was waited for, nothing may touch its
// accumulator, nor write the shared memory that it reads.
#pragma once

#include "types.cuh"

// Which of COUNT places a use takes, one after another, and the parity of that use.
template <u32 COUNT>
struct Place {
    u32 index = 0, parity = 0;

    __device__ __forceinline__ void advance() {
        if (++index == COUNT) {
            index = 0;
            parity ^= 1;
        }
    }
};

// The driver's description of a matrix in global memory: 128 bytes that only copies read.
struct __align__(64) TensorMap {
    u64 words[16];
};

// Once, by one thread. Nobody may use the barrier before `barriers_are_ready` and a barrier of the CTA or cluster.
__device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barriers_are_ready() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives, and makes the phase wait for so many bytes of copies.
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// Arrives at the barrier that has this place in a CTA of the cluster.
//
// What it says is that multiplications have read a stage, and may be said across CTAs: by the letter of the ISA that takes
// `.release.cluster`, and a wait with `.acquire.cluster`. They cost a fence of the whole GPU in each step. A multiplication
// that was waited for has read, and there is nothing else to hand over, so that public kernels use the scope of a CTA, and
// so does this one. ptx-sim accepts it in its profile `hardware` only.
__device__ __forceinline__ void barrier_arrive(u32 barrier, u32 cta) {
    asm volatile(
        "{\n\t.reg .b32 there;\n\t"
        "mapa.shared::cluster.u32 there, %0, %1;\n\t"
        "mbarrier.arrive.release.cta.shared::cluster.b64 _, [there];\n\t}" ::"r"(barrier),
        "r"(cta)
        : "memory");
}

// Arrives at a barrier of this CTA.
__device__ __forceinline__ void barrier_arrive_here(u32 barrier) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Waits until the phase of this parity is over.
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    u32 over = 0;
    while (over == 0) {
        asm volatile(
            "{\n\t.reg .pred p;\n\t"
            "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t}"
            : "=r"(over)
            : "r"(barrier), "r"(parity)
            : "memory");
    }
}

// All threads of the cluster. What they did before is seen by all of them behind it.
__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// This CTA's number in its cluster.
__device__ __forceinline__ u32 rank_in_cluster() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// The first use of a map is slow without it.
__device__ __forceinline__ void prefetch_map(const TensorMap &map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// This CTA's shared memory as the target of a copy. On sm_120 copies to `shared::cluster` become calls where the compiler
// does not see that the target is this CTA; `shared::cta` needs PTX 8.6, which knows sm_100 and later.
#if __CUDA_ARCH__ >= 1000
#define COPY_TARGET "shared::cta"
#else
#define COPY_TARGET "shared::cluster"
#endif

// Starts the copy of the map's box at a byte of K and a row. What lies beyond the matrix arrives as zeros. The barrier's
// phase waits for all of its bytes.
__device__ __forceinline__ void copy_box(u32 to, const TensorMap &map, u32 byte, u32 row, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d." COPY_TARGET
        ".global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(&map), "r"(byte), "r"(row), "r"(barrier)
        : "memory");
}

// The same into all CTAs of the cluster that `ctas` has a bit for: to the same place in each, and for its own barrier.
__device__ __forceinline__ void copy_box_to(u32 to, const TensorMap &map, u32 byte, u32 row, u32 barrier,
                                            unsigned short ctas) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(&map), "r"(byte), "r"(row), "r"(barrier), "h"(ctas)
        : "memory");
}

// Threads' writes of shared memory, before multiplications read them.
__device__ __forceinline__ void writes_before_multiplications() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Threads' reads of shared memory, which this thread was told of, before its copies write there.
__device__ __forceinline__ void reads_before_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The descriptor of a matrix in shared memory: rows of 128 bytes along K with the 128-byte swizzle, eight of them a
// pattern of 1024 bytes, which starts at a multiple of that. 32 bytes further along K are 2 more.
__device__ __forceinline__ u64 rows_of_128_bytes(u32 address) {
    return u64((address & 0x3ffff) >> 4) | u64(1024 >> 4) << 32 | u64(1) << 62;
}

// Before the first multiplication, and where the accumulator was touched since the last one.
__device__ __forceinline__ void multiplications_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// The multiplications since the last call are a group.
__device__ __forceinline__ void multiplications_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until no more than PENDING groups, the latest ones, are under way.
template <u32 PENDING>
__device__ __forceinline__ void multiplications_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// No instruction. The compiler, which knows nothing of multiplications under way, takes the registers for changed here,
// and so reads them behind the wait that stands before it.
template <u32 COUNT>
__device__ __forceinline__ void changed_here(u32 (&registers)[COUNT]) {
#pragma unroll
    for (u32 i = 0; i < COUNT; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}
