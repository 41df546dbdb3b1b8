// The sums of sums.cpp on mma.sync of f16, which every GPU since compute capability 8.0 has: a rehearsal. Codes times
// scales are exact in f16, and four instructions in a row take the 64 products of a sum.
#include "common.cuh"

// Codes k and k + 1 of a row, k even, times the scale of their block, as a pair of f16.
__device__ __forceinline__ u32 pair(const u32* codes, u32 scales, u32 k) {
    u32 halves = 0;
    const u32 scale = scales >> (8 * (k / 16)) & 0xff, e = scale >> 3 & 15, m = scale & 7;
    // 2^-9 is the unit of scales, and a half that of codes.
    const u32 steps = e == 0 ? m : (8 + m) << (e - 1);
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const u32 code = codes[k / 8] >> (4 * (k % 8 + i)) & 15, x = code >> 1 & 3, y = code & 1;
        const u32 twice = x == 0 ? y : (2 + y) << (x - 1);
        const float value = (float)(twice * steps) * (1.0f / 1024.0f);
        u16 half;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(code & 8 ? -value : value));
        halves |= (u32)half << (16 * i);
    }
    return halves;
}

extern "C" __global__ void sums_f16(const u32* a, const u32* scales_a, const u32* b, const u32* scales_b, const u32* c,
                                    u32* o) {
    const u32 lane = threadIdx.x, q = lane % 4, upper = 16 * blockIdx.x + lane / 4, lower = upper + 8;
    const u32 su = scales_a[upper], sl = scales_a[lower], sb = scales_b[blockIdx.x];
    const u32 *au = a + 8 * upper, *al = a + 8 * lower, *bc = b + 8 * blockIdx.x;
    float d0 = __uint_as_float(c[upper]), d1 = d0, d2 = __uint_as_float(c[lower]), d3 = d2;
#pragma unroll 1
    for (u32 k = 0; k < 64; k += 16) {
        const u32 near = k + 2 * q, far = near + 8;
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
                     : "r"(pair(au, su, near)), "r"(pair(al, sl, near)), "r"(pair(au, su, far)),
                       "r"(pair(al, sl, far)), "r"(pair(bc, sb, near)), "r"(pair(bc, sb, far)));
    }
    o[8 * upper + 2 * q] = __float_as_uint(d0);
    o[8 * upper + 2 * q + 1] = __float_as_uint(d1);
    o[8 * lower + 2 * q] = __float_as_uint(d2);
    o[8 * lower + 2 * q + 1] = __float_as_uint(d3);
}
