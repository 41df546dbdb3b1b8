// Tensor-map copies. Shared memory is poisoned first and dumped whole, so the layout of the box,
// the fill of what lies outside the tensor and the bytes left alone all show.
#include "common.cuh"
extern __shared__ __align__(1024) u32 dyn[];

__device__ __forceinline__ void poison(u32 words) {
#pragma unroll 1
    for (u32 i = threadIdx.x; i < words; i += blockDim.x) dyn[i] = POISON;
}
__device__ __forceinline__ void dump(u32* o, u32 words) {
#pragma unroll 1
    for (u32 i = threadIdx.x; i < words; i += blockDim.x) o[i] = dyn[i];
}

#define C1 "{%5}"
#define C2 "{%5, %6}"
#define C3 "{%5, %6, %7}"
#define C4 "{%5, %6, %7, %8}"
#define C5 "{%5, %6, %7, %8, %9}"
#define TENSOR_OPERANDS(bar)                                                                  \
    "r"(smem(dyn) + dst_off), "l"(&map), "r"(bar), "l"(policy), "h"(cta_mask), "r"(c0),       \
        "r"(c1), "r"(c2), "r"(c3), "r"(c4)

// Load with `expect` bytes expected at once: flags = {phase 0 complete, test of parity 1}.
#define TMA_LOAD(name, head, coords, tail)                                                    \
    extern "C" __global__ void name(const __grid_constant__ TensorMap map, u32* o,            \
                                    u32* flags, i32 c0, i32 c1, i32 c2, i32 c3, i32 c4,       \
                                    u32 dst_off, u32 expect, u32 words) {                     \
        __shared__ u64 bar;                                                                   \
        poison(words);                                                                        \
        if (threadIdx.x == 0) {                                                               \
            mbar_init(smem(&bar), 1);                                                         \
            fence_init();                                                                     \
        }                                                                                     \
        fence_async();                                                                        \
        __syncthreads();                                                                      \
        if (threadIdx.x == 0) {                                                               \
            u64 policy;                                                                       \
            u16 cta_mask = 1;                                                                 \
            asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;"                \
                         : "=l"(policy));                                                     \
            mbar_arrive_expect(smem(&bar), expect);                                           \
            asm volatile("cp.async.bulk.tensor." head " [%0], [%1, " coords "], [%2]" tail    \
                         ";" ::TENSOR_OPERANDS(smem(&bar))                                    \
                         : "memory");                                                         \
        }                                                                                     \
        u32 ok = mbar_poll(smem(&bar), 0);                                                    \
        __syncthreads();                                                                      \
        if (threadIdx.x == 0) {                                                               \
            flags[0] = ok;                                                                    \
            flags[1] = mbar_test(smem(&bar), 1);                                              \
        }                                                                                     \
        dump(o, words);                                                                       \
    }
#define CLUSTER_MBAR ".shared::cluster.global.tile.mbarrier::complete_tx::bytes"
TMA_LOAD(tma_load_1d, "1d" CLUSTER_MBAR, C1, "")
TMA_LOAD(tma_load_2d, "2d" CLUSTER_MBAR, C2, "")
TMA_LOAD(tma_load_3d, "3d" CLUSTER_MBAR, C3, "")
TMA_LOAD(tma_load_4d, "4d" CLUSTER_MBAR, C4, "")
TMA_LOAD(tma_load_5d, "5d" CLUSTER_MBAR, C5, "")
TMA_LOAD(tma_load_cta_2d, "2d.shared::cta.global.tile.mbarrier::complete_tx::bytes", C2, "")
TMA_LOAD(tma_load_hint_2d, "2d" CLUSTER_MBAR ".L2::cache_hint", C2, ", %3")
TMA_LOAD(tma_load_mask1_2d, "2d" CLUSTER_MBAR ".multicast::cluster", C2, ", %4")

// What a load counts: the copy runs with nothing expected while an arrival is still pending, so
// the tx-count goes below zero; once it has come to rest, `expect` bytes are expected and the
// last arrival made. flags[0] = 1 exactly when `expect` is what the copy counted.
#define TMA_COUNT(name, head, coords)                                                         \
    extern "C" __global__ void name(const __grid_constant__ TensorMap map, u32* o,            \
                                    u32* flags, i32 c0, i32 c1, i32 c2, i32 c3, i32 c4,       \
                                    u32 dst_off, u32 expect, u32 words) {                     \
        __shared__ u64 bar;                                                                   \
        poison(words);                                                                        \
        if (threadIdx.x == 0) {                                                               \
            mbar_init(smem(&bar), 1);                                                         \
            fence_init();                                                                     \
        }                                                                                     \
        fence_async();                                                                        \
        __syncthreads();                                                                      \
        if (threadIdx.x == 0) {                                                               \
            u64 policy = 0;                                                                   \
            u16 cta_mask = 1;                                                                 \
            asm volatile("cp.async.bulk.tensor." head " [%0], [%1, " coords "], [%2];" ::     \
                             TENSOR_OPERANDS(smem(&bar))                                      \
                         : "memory");                                                         \
            _Pragma("unroll 1") for (u32 i = 0; i < 1000; i++) sleep_ns(500);                 \
            asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(    \
                             smem(&bar)),                                                     \
                         "r"(expect)                                                          \
                         : "memory");                                                         \
            flags[1] = mbar_test(smem(&bar), 0);                                              \
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem(&bar))         \
                         : "memory");                                                         \
            flags[0] = mbar_test(smem(&bar), 0);                                              \
        }                                                                                     \
        __syncthreads();                                                                      \
        dump(o, words);                                                                       \
    }
TMA_COUNT(tma_count_1d, "1d" CLUSTER_MBAR, C1)
TMA_COUNT(tma_count_2d, "2d" CLUSTER_MBAR, C2)
TMA_COUNT(tma_count_3d, "3d" CLUSTER_MBAR, C3)

// Store, plain or with a reduction: shared memory is filled with `src`, word for word.
#define S1 "{%2}"
#define S2 "{%2, %3}"
#define S3 "{%2, %3, %4}"
#define S4 "{%2, %3, %4, %5}"
#define S5 "{%2, %3, %4, %5, %6}"
#define TMA_STORE(name, head, coords)                                                         \
    extern "C" __global__ void name(const __grid_constant__ TensorMap map, const u32* src,    \
                                    i32 c0, i32 c1, i32 c2, i32 c3, i32 c4, u32 src_off,      \
                                    u32 words) {                                              \
        _Pragma("unroll 1") for (u32 i = threadIdx.x; i < words; i += blockDim.x) dyn[i] = src[i];\
        fence_async();                                                                        \
        __syncthreads();                                                                      \
        if (threadIdx.x == 0) {                                                               \
            asm volatile(head " [%0, " coords "], [%1];" ::"l"(&map),                         \
                         "r"(smem(dyn) + src_off), "r"(c0), "r"(c1), "r"(c2), "r"(c3),        \
                         "r"(c4)                                                              \
                         : "memory");                                                         \
            bulk_commit_wait();                                                               \
        }                                                                                     \
    }
#define ST(d) "cp.async.bulk.tensor." d ".global.shared::cta.tile.bulk_group"
#define RED(d, op) "cp.reduce.async.bulk.tensor." d ".global.shared::cta." op ".tile.bulk_group"
TMA_STORE(tma_store_1d, ST("1d"), S1)
TMA_STORE(tma_store_2d, ST("2d"), S2)
TMA_STORE(tma_store_3d, ST("3d"), S3)
TMA_STORE(tma_store_4d, ST("4d"), S4)
TMA_STORE(tma_store_5d, ST("5d"), S5)
TMA_STORE(tma_red_add_2d, RED("2d", "add"), S2)
TMA_STORE(tma_red_min_2d, RED("2d", "min"), S2)
TMA_STORE(tma_red_max_2d, RED("2d", "max"), S2)
TMA_STORE(tma_red_inc_2d, RED("2d", "inc"), S2)
TMA_STORE(tma_red_dec_2d, RED("2d", "dec"), S2)
TMA_STORE(tma_red_and_2d, RED("2d", "and"), S2)
TMA_STORE(tma_red_or_2d, RED("2d", "or"), S2)
TMA_STORE(tma_red_xor_2d, RED("2d", "xor"), S2)

// Prefetches change nothing that a program can see; a load follows.
extern "C" __global__ void tma_prefetch_2d(const __grid_constant__ TensorMap map, u32* o,
                                           u32* flags, i32 c0, i32 c1, u32 expect, u32 words) {
    __shared__ u64 bar;
    poison(words);
    if (threadIdx.x == 0) {
        asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
        asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(&map),
                     "r"(c0), "r"(c1)
                     : "memory");
        mbar_init(smem(&bar), 1);
        fence_init();
    }
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        mbar_arrive_expect(smem(&bar), expect);
        asm volatile("cp.async.bulk.tensor.2d" CLUSTER_MBAR " [%0], [%1, {%2, %3}], [%4];" ::"r"(
                         smem(dyn)),
                     "l"(&map), "r"(c0), "r"(c1), "r"(smem(&bar))
                     : "memory");
    }
    u32 ok = mbar_poll(smem(&bar), 0);
    __syncthreads();
    if (threadIdx.x == 0) flags[0] = ok;
    dump(o, words);
}

// Multicast in a cluster: CTA r loads the box at row c1 + r * rows to offset r * bytes of every CTA
// in mask[r], and expects expect[r] bytes itself.
extern "C" __global__ void tma_multicast_2d(const __grid_constant__ TensorMap map, u32* o,
                                            u32* flags, const u32* mask, const u32* expect,
                                            i32 c0, i32 c1, u32 rows, u32 bytes, u32 words) {
    __shared__ u64 bar;
    u32 rank = cluster_rank();
    poison(words);
    if (threadIdx.x == 0) {
        mbar_init(smem(&bar), 1);
        fence_init();
        mbar_arrive_expect(smem(&bar), expect[rank]);
    }
    fence_async();
    cluster_sync();
    if (threadIdx.x == 0 && mask[rank] != 0)
        asm volatile("cp.async.bulk.tensor.2d" CLUSTER_MBAR
                     ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(
                         smem(dyn) + rank * bytes),
                     "l"(&map), "r"(c0), "r"(c1 + (i32)(rank * rows)), "r"(smem(&bar)),
                     "h"((u16)mask[rank])
                     : "memory");
    u32 ok = mbar_poll(smem(&bar), 0);
    if (threadIdx.x == 0) flags[rank] = ok;
    __syncthreads();
    dump(o + rank * words, words);
    cluster_sync();
}

// Load into the other CTA of a cluster: destination and barrier by mapa.
extern "C" __global__ void tma_load_remote_bar_2d(const __grid_constant__ TensorMap map, u32* o,
                                                  u32* flags, i32 c0, i32 c1, u32 expect,
                                                  u32 words) {
    __shared__ u64 bar;
    u32 rank = cluster_rank();
    poison(words);
    if (threadIdx.x == 0) {
        mbar_init(smem(&bar), 1);
        fence_init();
        if (rank == 1) mbar_arrive_expect(smem(&bar), expect);
    }
    fence_async();
    cluster_sync();
    if (threadIdx.x == 0 && rank == 0)
        asm volatile("cp.async.bulk.tensor.2d" CLUSTER_MBAR " [%0], [%1, {%2, %3}], [%4];" ::"r"(
                         mapa(smem(dyn), 1)),
                     "l"(&map), "r"(c0), "r"(c1), "r"(mapa(smem(&bar), 1))
                     : "memory");
    u32 ok = 1;
    if (rank == 1) ok = mbar_poll(smem(&bar), 0);
    cluster_sync();
    if (threadIdx.x == 0) flags[rank] = ok;
    dump(o + rank * words, words);
    cluster_sync();
}
