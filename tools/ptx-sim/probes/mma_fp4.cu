// Block-scaled mma.sync of compute capability 12.x: E2M1 codes, a UE4M3 scale for 16 of them. One warp a CTA.
#include "common.cuh"

#define FP4(ta, tb)                                                                                        \
    asm volatile("mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X"              \
                 ".f32.e2m1.e2m1.f32.ue4m3 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "                 \
                 "{%10, %11, %12, %13}, %14, {0, " #ta "}, %15, {0, " #tb "};"                              \
                 : "=f"(d0), "=f"(d1), "=f"(d2), "=f"(d3)                                                  \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(__uint_as_float(c0)),         \
                   "f"(__uint_as_float(c1)), "f"(__uint_as_float(c2)), "f"(__uint_as_float(c3)), "r"(sa),  \
                   "r"(sb))

// One instruction, its registers as they are given: the fragments of A, B, C and D, and which lanes' scales are
// taken. Lane t has a[4t..], b[2t..], c[4t..], sa[t] and sb[t].
#define SELECTED(ta, tb)                                                                                   \
    extern "C" __global__ void mma_fp4_a##ta##_b##tb(const u32* a, const u32* b, const u32* c,             \
                                                     const u32* scales_a, const u32* scales_b, u32* o) {   \
        const u32 t = GID;                                                                                 \
        const u32 a0 = a[4 * t], a1 = a[4 * t + 1], a2 = a[4 * t + 2], a3 = a[4 * t + 3];                  \
        const u32 b0 = b[2 * t], b1 = b[2 * t + 1];                                                        \
        const u32 c0 = c[4 * t], c1 = c[4 * t + 1], c2 = c[4 * t + 2], c3 = c[4 * t + 3];                  \
        const u32 sa = scales_a[t], sb = scales_b[t];                                                      \
        float d0, d1, d2, d3;                                                                              \
        FP4(ta, tb);                                                                                       \
        o[4 * t] = __float_as_uint(d0);                                                                    \
        o[4 * t + 1] = __float_as_uint(d1);                                                                \
        o[4 * t + 2] = __float_as_uint(d2);                                                                \
        o[4 * t + 3] = __float_as_uint(d3);                                                                \
    }
SELECTED(0, 0)
SELECTED(0, 1)
SELECTED(0, 2)
SELECTED(0, 3)
SELECTED(1, 0)
SELECTED(1, 1)
SELECTED(1, 2)
SELECTED(1, 3)

// Sums (sums.cpp): CTA g has rows 16g to 16g + 15, all of which meet the same column, eight times.
extern "C" __global__ void sums_fp4(const u32* a, const u32* scales_a, const u32* b, const u32* scales_b, const u32* c,
                                    u32* o) {
    const u32 lane = threadIdx.x, q = lane % 4, upper = 16 * blockIdx.x + lane / 4, lower = upper + 8;
    const u32 a0 = a[8 * upper + q], a1 = a[8 * lower + q], a2 = a[8 * upper + q + 4], a3 = a[8 * lower + q + 4];
    const u32 b0 = b[8 * blockIdx.x + q], b1 = b[8 * blockIdx.x + q + 4];
    const u32 c0 = c[upper], c1 = c0, c2 = c[lower], c3 = c2;
    const u32 sa = scales_a[q == 1 ? lower : upper], sb = scales_b[blockIdx.x];
    float d0, d1, d2, d3;
    FP4(0, 0);
    o[8 * upper + 2 * q] = __float_as_uint(d0);
    o[8 * upper + 2 * q + 1] = __float_as_uint(d1);
    o[8 * lower + 2 * q] = __float_as_uint(d2);
    o[8 * lower + 2 * q + 1] = __float_as_uint(d3);
}
