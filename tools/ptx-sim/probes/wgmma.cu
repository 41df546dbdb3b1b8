// wgmma: the numbers of its sums, and where its operands lie in shared memory. One warpgroup a CTA.
#include "common.cuh"

#include "../../../csrc/arch/wgmma.cuh"

// 64 rows of A, in registers, with eight columns of B: 32 bytes of K each, from eight rows of 128 bytes with the
// 128-byte swizzle. Four words of A, and of C, a thread; 1024 bytes of B a CTA.
#define OPERANDS                                                                                     \
    __shared__ __align__(1024) u32 s[256];                                                           \
    const u32 t = threadIdx.x, g = GID;                                                              \
    s[t] = b[blockIdx.x * 256 + t];                                                                  \
    s[t + 128] = b[blockIdx.x * 256 + t + 128];                                                      \
    fence_async();                                                                                   \
    __syncthreads();                                                                                 \
    const u64 rows = nvfp4::arch::wgmma_rows_descriptor(smem(s));

// Fence, instruction and wait in one piece: the compiler puts nothing in between.
#define ISSUED(predicate, instruction)                                                               \
    "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, " predicate ", 0;\n\twgmma.fence.sync.aligned;\n\t"        \
    "wgmma.mma_async.sync.aligned." instruction ";\n\twgmma.commit_group.sync.aligned;\n\t"          \
    "wgmma.wait_group.sync.aligned 0;\n\t}"

#define F32_SUMS(name, form, immediates)                                                             \
    extern "C" __global__ void __launch_bounds__(128)                                                \
        name(const u32* a, const u32* b, const u32* c, u32* o, u32 keep) {                           \
        OPERANDS                                                                                     \
        float d[4];                                                                                  \
        for (u32 i = 0; i < 4; i++) d[i] = __uint_as_float(c[4 * g + i]);                            \
        asm volatile(ISSUED("%9", form " {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p, " immediates)    \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                \
                     : "r"(a[4 * g]), "r"(a[4 * g + 1]), "r"(a[4 * g + 2]), "r"(a[4 * g + 3]),       \
                       "l"(rows), "r"(keep)                                                          \
                     : "memory");                                                                    \
        for (u32 i = 0; i < 4; i++) o[4 * g + i] = __float_as_uint(d[i]);                            \
    }
// Of the four words of C the first two.
#define F16_SUMS(name, form, immediates)                                                             \
    extern "C" __global__ void __launch_bounds__(128)                                                \
        name(const u32* a, const u32* b, const u32* c, u32* o, u32 keep) {                           \
        OPERANDS                                                                                     \
        u32 d[2] = {c[4 * g], c[4 * g + 1]};                                                         \
        asm volatile(ISSUED("%7", form " {%0, %1}, {%2, %3, %4, %5}, %6, p, " immediates)            \
                     : "+r"(d[0]), "+r"(d[1])                                                        \
                     : "r"(a[4 * g]), "r"(a[4 * g + 1]), "r"(a[4 * g + 2]), "r"(a[4 * g + 3]),       \
                       "l"(rows), "r"(keep)                                                          \
                     : "memory");                                                                    \
        o[2 * g] = d[0];                                                                             \
        o[2 * g + 1] = d[1];                                                                         \
    }
F32_SUMS(wgmma_f32_f16, "m64n8k16.f32.f16.f16", "1, 1, 0")
F32_SUMS(wgmma_f32_f16_negated, "m64n8k16.f32.f16.f16", "-1, 1, 0")
F32_SUMS(wgmma_f32_bf16, "m64n8k16.f32.bf16.bf16", "1, 1, 0")
F32_SUMS(wgmma_f32_tf32, "m64n8k8.f32.tf32.tf32", "1, 1")
F32_SUMS(wgmma_f32_e4m3, "m64n8k32.f32.e4m3.e4m3", "1, 1")
F32_SUMS(wgmma_f32_e5m2, "m64n8k32.f32.e5m2.e5m2", "1, 1")
F16_SUMS(wgmma_f16_f16, "m64n8k16.f16.f16.f16", "1, 1, 0")
F16_SUMS(wgmma_f16_e4m3, "m64n8k32.f16.e4m3.e4m3", "1, 1")

// The crate's own function: four slices of K, 64 columns. 16 words of A and 32 of C a thread; 8 KiB of B a CTA.
extern "C" __global__ void __launch_bounds__(128)
    wgmma_64_columns(const u32* a, const u32* b, const u32* c, u32* o) {
    using namespace nvfp4::arch;
    __shared__ __align__(1024) u32 s[2048];
    const u32 t = threadIdx.x, g = GID;
    for (u32 i = t; i < 2048; i += 128) s[i] = b[blockIdx.x * 2048 + i];
    fence_async();
    __syncthreads();
    const u64 rows = wgmma_rows_descriptor(smem(s));
    float d[32];
    u32 words[16];
    for (u32 i = 0; i < 32; i++) d[i] = __uint_as_float(c[32 * g + i]);
    for (u32 i = 0; i < 16; i++) words[i] = a[16 * g + i];
    wgmma_pin(words);
    wgmma_pin(d);
    wgmma_fence();
#pragma unroll
    for (u32 k = 0; k < 4; k++)
        wgmma_f16<64>(d, words[4 * k], words[4 * k + 1], words[4 * k + 2], words[4 * k + 3], rows + 2 * k, true);
    wgmma_commit_group();
    wgmma_wait_group<0>();
    wgmma_pin(d);
    for (u32 i = 0; i < 32; i++) o[32 * g + i] = __float_as_uint(d[i]);
}

// Both operands in shared memory, 64 x 64 x 16, by descriptors: a start (bytes from the image), the leading offset
// (bytes), and the upper word. Sums in f16.
#define LAYOUTS(name, transposed)                                                                    \
    extern "C" __global__ void __launch_bounds__(128)                                                \
        name(const u32* a, const u32* b, u32* o, u32 a_start, u32 a_leading, u32 a_upper, u32 b_start, \
             u32 b_leading, u32 b_upper) {                                                           \
        __shared__ __align__(1024) u32 sa[4096], sb[4096];                                           \
        const u32 t = threadIdx.x;                                                                   \
        _Pragma("unroll 1") for (u32 i = t; i < 4096; i += 128) {                                    \
            sa[i] = a[i];                                                                            \
            sb[i] = b[i];                                                                            \
        }                                                                                            \
        fence_async();                                                                               \
        __syncthreads();                                                                             \
        const u64 da = (u64)a_upper << 32 | (a_leading >> 4) << 16 | (smem(sa) + a_start) >> 4;      \
        const u64 db = (u64)b_upper << 32 | (b_leading >> 4) << 16 | (smem(sb) + b_start) >> 4;      \
        u32 d[16];                                                                                   \
        for (u32 i = 0; i < 16; i++) d[i] = 0;                                                       \
        asm volatile(ISSUED("%18", "m64n64k16.f16.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " \
                                   "%10, %11, %12, %13, %14, %15}, %16, %17, p, 1, 1, " transposed)  \
                     : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]),       \
                       "+r"(d[6]), "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]),     \
                       "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15])                            \
                     : "l"(da), "l"(db), "r"(0)                                                      \
                     : "memory");                                                                    \
        for (u32 i = 0; i < 16; i++) o[16 * t + i] = d[i];                                           \
    }
LAYOUTS(wgmma_layout_kk, "0, 0")
LAYOUTS(wgmma_layout_km, "0, 1")
LAYOUTS(wgmma_layout_mk, "1, 0")
LAYOUTS(wgmma_layout_mm, "1, 1")
