// Matrix instructions of a warp (mma.sync), one a function. Lane 4 * g + t holds rows g and g + 8 of A, column g of B,
// and rows g and g + 8 of D in columns 2t and 2t + 1. A word of A or B is four bytes, or two 16-bit elements, that
// follow each other along K. A lane's first words (a0, a1, b0) are word t of K. Its second words (a2, a3, b1) stand
// half of K later.
#pragma once

#include <cstdint>

namespace nvfp4::arch {

// D = A * B + C of signed bytes: 16 x 32 times 32 x 8.
__device__ __forceinline__ void mma_s8(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                       uint32_t a3, uint32_t b0, uint32_t b1,
                                       const int32_t (&c)[4]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %11, %12, %13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]),
          "r"(c[3]));
}

// D += A * B of f16: 16 x 16 times 16 x 8.
__device__ __forceinline__ void mma_f16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                        uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// D += A * B of bf16: 16 x 16 times 16 x 8.
__device__ __forceinline__ void mma_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// D += A * B of E2M1 codes, each times the E4M3 scale of its 16 neighbours along K: 16 x 64 times 64 x 8. A row or
// column has four bytes of scales. Lane 4 * g + 2 * kRowLanes has those of row g, the lane behind it those of row
// g + 8, and lane 4 * g + kColumnLane those of column g. Compute capability 12.x, in code for that architecture or
// family alone.
template <int kRowLanes, int kColumnLane>
__device__ __forceinline__ void mma_fp4(float (&d)[4], const uint4 &a, uint32_t b0, uint32_t b1, uint32_t row_scales,
                                        uint32_t column_scales) {
    asm("mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, %10, {0, %12}, %11, {0, %13};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1), "r"(row_scales), "r"(column_scales),
          "n"(kRowLanes), "n"(kColumnLane));
}

}  // namespace nvfp4::arch
