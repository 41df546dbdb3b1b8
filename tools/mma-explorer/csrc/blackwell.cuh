// The parts of `tcgen05` kernels: tensor memory, and the instructions around a multiplication. One PTX instruction a
// function. Code for sm_100a, sm_103a and sm_110a, and for the families sm_100f and sm_110f. Barriers and copies are those of `hopper.cuh`.
//
// Verified in simulation, not yet on hardware.
//
// Tensor memory has 128 lanes of 512 columns of 32 bits. An address is a lane in the upper half, a column in the lower.
// Multiplications, copies to tensor memory and commits of one thread run in its order, but a copy does not wait for an
// earlier multiplication that still reads what it writes. Nobody else knows when they ran: a commit makes a barrier say so.
#pragma once

#include "hopper.cuh"
#include "tensor_memory.cuh"
#include "types.cuh"

// True in one lane of a whole warp, always the same one. The compiler knows that it is one.
__device__ __forceinline__ bool elect_one() {
    u32 leader;
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "elect.sync _|p, 0xffffffff;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(leader));
    return leader != 0;
}

// By one whole warp, which waits until there are so many free: 32, 64, 128, 256 or 512 columns of all lanes. Writes their
// address to shared memory. The CTA does not allocate again. CTAS is 2 for kernels of pairs of CTAs: then a warp of each
// does it, and both get the same columns.
template <u32 CTAS>
__device__ __forceinline__ void columns_allocate(u32 to, u32 columns) {
    if constexpr (CTAS == 1) {
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(to), "r"(columns)
                     : "memory");
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
    } else {
        asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(to), "r"(columns)
                     : "memory");
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;" ::: "memory");
    }
}

// By the same warp, or warps, after the last access of all.
template <u32 CTAS>
__device__ __forceinline__ void columns_free(u32 tensor, u32 columns) {
    if constexpr (CTAS == 1) {
        asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(tensor), "r"(columns) : "memory");
    } else {
        asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" ::"r"(tensor), "r"(columns) : "memory");
    }
}

// This thread's earlier tcgen05 instructions come before the synchronisation that follows.
__device__ __forceinline__ void tensor_fence_before() {
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}

// The synchronisation before comes before this thread's later tcgen05 instructions.
__device__ __forceinline__ void tensor_fence_after() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }

// Arrives at a barrier when all that this thread has started so far is over.
__device__ __forceinline__ void tensor_commit(u32 barrier) {
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier) : "memory");
}

// The same at the barrier that has this place in each CTA of the cluster that `ctas` has a bit for. What was started for
// CTAS CTAs is over.
template <u32 CTAS>
__device__ __forceinline__ void tensor_commit_to(u32 barrier, unsigned short ctas) {
    if constexpr (CTAS == 1) {
        asm volatile(
            "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::"r"(
                barrier),
            "h"(ctas)
            : "memory");
    } else {
        asm volatile(
            "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::"r"(
                barrier),
            "h"(ctas)
            : "memory");
    }
}

// As `copy_box`, where the barrier may be the other CTA's of a pair: an address of `in_cta`.
__device__ __forceinline__ void copy_box_of_pair(u32 to, const TensorMap &map, u32 byte, u32 row, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2 [%0], "
        "[%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(&map), "r"(byte), "r"(row), "r"(barrier)
        : "memory");
}

// The address by which the cluster knows this place in the shared memory of one of its CTAs.
__device__ __forceinline__ u32 in_cta(u32 address, u32 cta) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(cta));
    return there;
}

// Arrives at a barrier of the cluster, and hands over to it what this thread knows.
__device__ __forceinline__ void barrier_arrive_in_cluster(u32 barrier) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Waits for such arrivals.
__device__ __forceinline__ void barrier_wait_in_cluster(u32 barrier, u32 parity) {
    u32 over = 0;
    while (over == 0) {
        asm volatile(
            "{\n\t.reg .pred p;\n\t"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t}"
            : "=r"(over)
            : "r"(barrier), "r"(parity)
            : "memory");
    }
}

// The descriptor of a matrix in shared memory: the distance of groups of eight rows, the constant 1 at bit 46, and the
// swizzle.
__device__ __forceinline__ u64 matrix_descriptor(u32 address, u32 eight_rows, u64 swizzle) {
    return u64((address & 0x3ffff) >> 4) | u64(eight_rows >> 4) << 32 | u64(1) << 46 | swizzle << 61;
}

// Rows of 128 bytes along K with the 128-byte swizzle, as copies of boxes write them. 32 bytes further along K are 2 more.
__device__ __forceinline__ u64 rows_descriptor(u32 address) { return matrix_descriptor(address, 1024, 2); }

// Block scales come in atoms of 512 bytes: of 128 rows the scales of four blocks that follow each other along K. Row r's
// are the word 16 * (r % 32) + 4 * (r / 32). In tensor memory an atom takes four columns.

// Copies an atom from shared memory: 32 lines of 16 bytes to lanes r, r + 32, r + 64 and r + 96 of four columns. Of a pair
// each CTA's own.
template <u32 CTAS>
__device__ __forceinline__ void copy_scales(u32 to, u32 atom) {
    const u64 from = matrix_descriptor(atom, 128, 0);
    if constexpr (CTAS == 1) {
        asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(to), "l"(from) : "memory");
    } else {
        asm volatile("tcgen05.cp.cta_group::2.32x128b.warpx4 [%0], %1;" ::"r"(to), "l"(from) : "memory");
    }
}

// Which of an atom's four scales a multiplication begins with: two fields of the instruction descriptor.
__device__ __forceinline__ u32 with_scale_ids(u32 what, u32 first) { return what | first << 4 | first << 29; }

// By a whole warp: 16 lanes of 32 columns, of which a lane of the warp gets what `wgmma` would give it of 16 rows.
// These are of each eight columns rows lane / 4 and lane / 4 + 8, columns 2 * (lane % 4) and the next one. Sums of 32
// bits.
__device__ __forceinline__ void load_sums(u32 (&to)[16], u32 from) {
    asm volatile(
        "tcgen05.ld.sync.aligned.16x256b.x4.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "[%16];"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]), "=r"(to[4]), "=r"(to[5]), "=r"(to[6]), "=r"(to[7]),
          "=r"(to[8]), "=r"(to[9]), "=r"(to[10]), "=r"(to[11]), "=r"(to[12]), "=r"(to[13]), "=r"(to[14]), "=r"(to[15])
        : "r"(from)
        : "memory");
}

// The same of sums of 16 bits, each of which has a column: two become one register.
__device__ __forceinline__ void load_sums(u32 (&to)[8], u32 from) {
    asm volatile("tcgen05.ld.sync.aligned.16x128b.x4.pack::16b.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]), "=r"(to[4]), "=r"(to[5]), "=r"(to[6]),
                   "=r"(to[7])
                 : "r"(from)
                 : "memory");
}

// Until the loads are over: nothing may use their registers before, and `changed_here` tells the compiler.
template <u32 COUNT>
__device__ __forceinline__ void sums_wait(u32 (&registers)[COUNT]) {
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
    changed_here(registers);
}
