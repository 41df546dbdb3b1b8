// Warp-level matrix instructions. One warp each.
#include "common.cuh"

#define LDMATRIX(name, ins, nreg, ...)                                                        \
    extern "C" __global__ void name(const u32* src, const u32* addr, u32* o) {                \
        __shared__ __align__(128) u32 s[512];                                                 \
        u32 t = threadIdx.x;                                                                  \
        _Pragma("unroll 1") for (u32 i = t; i < 512; i += 32) s[i] = src[i];                  \
        __syncthreads();                                                                      \
        u32 d[4] = {0, 0, 0, 0};                                                              \
        asm volatile("ldmatrix.sync.aligned.m8n8." ins ".shared::cta.b16 " __VA_ARGS__        \
                     ", [%4];"                                                                \
                     : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                         \
                     : "r"(smem(s) + addr[t]));                                               \
        for (u32 k = 0; k < nreg; k++) o[t * nreg + k] = d[k];            \
    }
LDMATRIX(ldmatrix_x1, "x1", 1, "{%0}")
LDMATRIX(ldmatrix_x2, "x2", 2, "{%0, %1}")
LDMATRIX(ldmatrix_x4, "x4", 4, "{%0, %1, %2, %3}")
LDMATRIX(ldmatrix_x1_trans, "x1.trans", 1, "{%0}")
LDMATRIX(ldmatrix_x2_trans, "x2.trans", 2, "{%0, %1}")
LDMATRIX(ldmatrix_x4_trans, "x4.trans", 4, "{%0, %1, %2, %3}")

#define STMATRIX(name, ins, nreg, ...)                                                        \
    extern "C" __global__ void name(const u32* src, const u32* addr, u32* o) {                \
        __shared__ __align__(128) u32 s[512];                                                 \
        u32 t = threadIdx.x;                                                                  \
        _Pragma("unroll 1") for (u32 i = t; i < 512; i += 32) s[i] = POISON;                  \
        __syncthreads();                                                                      \
        u32 d[4];                                                                             \
        for (u32 k = 0; k < 4; k++) d[k] = src[t * 4 + k];                \
        asm volatile("stmatrix.sync.aligned.m8n8." ins ".shared::cta.b16 [%0], " __VA_ARGS__  \
                     ";" ::"r"(smem(s) + addr[t]),                                            \
                     "r"(d[0]), "r"(d[1]), "r"(d[2]), "r"(d[3])                               \
                     : "memory");                                                             \
        __syncthreads();                                                                      \
        _Pragma("unroll 1") for (u32 i = t; i < 512; i += 32) o[i] = s[i];                    \
    }
STMATRIX(stmatrix_x1, "x1", 1, "{%1}")
STMATRIX(stmatrix_x2, "x2", 2, "{%1, %2}")
STMATRIX(stmatrix_x4, "x4", 4, "{%1, %2, %3, %4}")
STMATRIX(stmatrix_x1_trans, "x1.trans", 1, "{%1}")
STMATRIX(stmatrix_x4_trans, "x4.trans", 4, "{%1, %2, %3, %4}")

extern "C" __global__ void movmatrix(const u32* src, u32* o) {
    u32 d;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(src[threadIdx.x]));
    o[threadIdx.x] = d;
}

// mma: each warp of the CTA takes its own fragments: a[4], b[2], c[4] words a thread, d[4] out.
#define FRAGMENTS                                                                             \
    u32 t = GID;                                                                              \
    u32 d0 = 0, d1 = 0, d2 = 0, d3 = 0;                                                       \
    u32 a0 = a[4 * t], a1 = a[4 * t + 1], a2 = a[4 * t + 2], a3 = a[4 * t + 3];               \
    u32 b0 = b[2 * t], b1 = b[2 * t + 1];                                                     \
    u32 c0 = c[4 * t], c1 = c[4 * t + 1], c2 = c[4 * t + 2], c3 = c[4 * t + 3];
#define MMA(name, ins, dlist, alist, blist, clist)                                            \
    extern "C" __global__ void name(const u32* a, const u32* b, const u32* c, u32* o) {       \
        FRAGMENTS                                                                             \
        asm volatile("mma.sync.aligned." ins " " dlist ", " alist ", " blist ", " clist ";"   \
                     : "+r"(d0), "+r"(d1), "+r"(d2), "+r"(d3)                                 \
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c0),         \
                       "r"(c1), "r"(c2), "r"(c3));                                            \
        o[4 * t] = d0;                                                                        \
        o[4 * t + 1] = d1;                                                                    \
        o[4 * t + 2] = d2;                                                                    \
        o[4 * t + 3] = d3;                                                                    \
    }
// The same with the f32 accumulators in f32 registers.
#define MMAF(name, ins, alist, blist)                                                         \
    extern "C" __global__ void name(const u32* a, const u32* b, const u32* c, u32* o) {       \
        FRAGMENTS                                                                             \
        float f0, f1, f2, f3;                                                                 \
        asm volatile("mma.sync.aligned." ins " {%0, %1, %2, %3}, " alist ", " blist           \
                     ", {%10, %11, %12, %13};"                                                \
                     : "=f"(f0), "=f"(f1), "=f"(f2), "=f"(f3)                                 \
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1),                  \
                       "f"(__uint_as_float(c0)), "f"(__uint_as_float(c1)),                    \
                       "f"(__uint_as_float(c2)), "f"(__uint_as_float(c3)));                   \
        d0 = __float_as_uint(f0);                                                             \
        d1 = __float_as_uint(f1);                                                             \
        d2 = __float_as_uint(f2);                                                             \
        d3 = __float_as_uint(f3);                                                             \
        o[4 * t] = d0;                                                                        \
        o[4 * t + 1] = d1;                                                                    \
        o[4 * t + 2] = d2;                                                                    \
        o[4 * t + 3] = d3;                                                                    \
    }
#define A4 "{%4, %5, %6, %7}"
#define B2 "{%8, %9}"
MMAF(mma_m16n8k16_f32_f16, "m16n8k16.row.col.f32.f16.f16.f32", A4, B2)
MMAF(mma_m16n8k16_f32_bf16, "m16n8k16.row.col.f32.bf16.bf16.f32", A4, B2)
MMAF(mma_m16n8k8_f32_f16, "m16n8k8.row.col.f32.f16.f16.f32", "{%4, %5}", "{%8}")
MMAF(mma_m16n8k8_f32_tf32, "m16n8k8.row.col.f32.tf32.tf32.f32", A4, B2)
MMAF(mma_m16n8k32_f32_e4m3, "m16n8k32.row.col.f32.e4m3.e4m3.f32", A4, B2)
MMA(mma_m16n8k16_f16_f16, "m16n8k16.row.col.f16.f16.f16.f16", "{%0, %1}", A4, B2, "{%10, %11}")
MMA(mma_m16n8k32_s8, "m16n8k32.row.col.s32.s8.s8.s32", "{%0, %1, %2, %3}", A4, B2, "{%10, %11, %12, %13}")
MMA(mma_m16n8k32_u8_s8, "m16n8k32.row.col.s32.u8.s8.s32", "{%0, %1, %2, %3}", A4, B2, "{%10, %11, %12, %13}")
MMA(mma_m16n8k32_satfinite_s8, "m16n8k32.row.col.satfinite.s32.s8.s8.s32", "{%0, %1, %2, %3}", A4, B2, "{%10, %11, %12, %13}")
