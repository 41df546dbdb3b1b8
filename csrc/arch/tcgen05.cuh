// tcgen05: fifth-generation tensor cores and tensor memory, one instruction a function. Code for compute capability
// 10.x alone. Rules are the PTX ISA's, section "TensorCore 5th Generation Family Instructions".
//
// An address in tensor memory has the lane (row) in its upper half and the column in its lower half. Copies,
// multiplications and commits of one thread run in its order, with one exception: a copy does not wait for an earlier
// multiplication that still reads the copy's target.
#pragma once

#include <cstdint>

namespace nvfp4::arch {

// Allocates `columns` columns of all 128 lanes, a power of two from 32 to 512. One whole warp calls it, and waits for
// room. Writes the address to shared memory, at `to`.
__device__ __forceinline__ void tcgen05_alloc(uint32_t to, uint32_t columns) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(to),
                 "r"(columns)
                 : "memory");
}

// Promises that the CTA will not allocate again. Called by the warp that allocated.
__device__ __forceinline__ void tcgen05_relinquish_alloc_permit() {
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
}

// Frees tensor memory. One whole warp calls it, before the CTA ends and after the last access.
__device__ __forceinline__ void tcgen05_dealloc(uint32_t tmem, uint32_t columns) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(tmem), "r"(columns)
                 : "memory");
}

// Orders this thread's earlier tcgen05 instructions before a synchronisation that follows.
__device__ __forceinline__ void tcgen05_fence_before_thread_sync() {
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}

// Orders a synchronisation before this thread's tcgen05 instructions that follow.
__device__ __forceinline__ void tcgen05_fence_after_thread_sync() {
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

// Copies a scale atom: 32 rows of 16 bytes go to lanes r, r + 32, r + 64 and r + 96 of four columns.
__device__ __forceinline__ void tcgen05_cp_32x128b_warpx4(uint32_t tmem, uint64_t atom_descriptor) {
    asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(tmem),
                 "l"(atom_descriptor)
                 : "memory");
}

// D (f32, in tensor memory) = A x B, plus D where `accumulate`: 128 x N x 64 E2M1 codes from shared
// memory, an E4M3 scale for each 16 from tensor memory.
__device__ __forceinline__ void tcgen05_mma_mxf4nvf4(uint32_t d, uint64_t a, uint64_t b, uint32_t instruction,
                                          uint32_t scales_a, uint32_t scales_b, bool accumulate) {
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        "setp.ne.b32 p, %6, 0;\n\t"
        "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16 "
        "[%0], %1, %2, %3, [%4], [%5], p;\n\t"
        "}" ::"r"(d),
        "l"(a), "l"(b), "r"(instruction), "r"(scales_a), "r"(scales_b), "r"(uint32_t(accumulate))
        : "memory");
}

// Arrives at an mbarrier when this thread's copies and multiplications so far are complete.
__device__ __forceinline__ void tcgen05_commit(uint32_t bar) {
    asm volatile(
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(bar)
        : "memory");
}

// Loads 16 columns. A whole warp calls it: lane t of warp w of a warpgroup gets columns 0..15 of row 32 * w + t.
__device__ __forceinline__ void tcgen05_ld_32x32b_x16(uint32_t (&r)[16], uint32_t tmem) {
    asm volatile(
        "tcgen05.ld.sync.aligned.32x32b.x16.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "
        "%11, %12, %13, %14, %15}, [%16];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]),
          "=r"(r[7]), "=r"(r[8]), "=r"(r[9]), "=r"(r[10]), "=r"(r[11]), "=r"(r[12]), "=r"(r[13]),
          "=r"(r[14]), "=r"(r[15])
        : "r"(tmem)
        : "memory");
}

// Waits until this thread's loads from tensor memory have landed in their registers.
__device__ __forceinline__ void tcgen05_wait_ld() {
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
}

// "Shared memory descriptor": address, stride between groups of eight rows, the constant 0b001 at bit 46, swizzle at
// bit 61. Neither of the two operands below uses the leading offset.
__device__ __forceinline__ uint64_t shared_descriptor(uint32_t address, uint32_t stride,
                                                      uint64_t swizzle) {
    return uint64_t((address & 0x3ffff) >> 4) | uint64_t(stride >> 4) << 32 | 1ull << 46 |
           swizzle << 61;
}

// Descriptor of rows of 128 bytes along K with the 128-byte swizzle: eight rows are a pattern of 1024 bytes.
__device__ __forceinline__ uint64_t rows_descriptor(uint32_t address) {
    return shared_descriptor(address, 1024, 2);
}

// Descriptor of a scale atom: 32 rows of 16 bytes, unswizzled.
__device__ __forceinline__ uint64_t atom_descriptor(uint32_t address) {
    return shared_descriptor(address, 128, 0);
}

// "Instruction descriptor" for kind::mxf4nvf4: A and B E2M1, E4M3 scales, 128 x N x 64.
__host__ __device__ constexpr uint32_t nvfp4_instruction(uint32_t n) {
    return 1u << 7 | 1u << 10 | (n >> 3) << 17 | (128u >> 7) << 27;
}

}  // namespace nvfp4::arch
