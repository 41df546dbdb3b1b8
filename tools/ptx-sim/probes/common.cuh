// Shared by the probe kernels. No headers: the PTX should hold the probed instruction and
// as little else as possible.
#pragma once
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef unsigned short u16;
typedef unsigned char u8;

// Operand types of the element-wise probes, named after the inline-assembly constraint.
typedef u16 T_h;
typedef u32 T_r;
typedef u64 T_l;

// Element-wise probes: thread i applies one instruction to element i of each input.
// The last argument names the input set; only the recorder uses it.
#define GID (blockIdx.x * blockDim.x + threadIdx.x)
#define E1(name, to, ta, ins, set)                                                            \
    extern "C" __global__ void name(const T_##ta* a, T_##to* o, u32 n) {                      \
        u32 i = GID;                                                                          \
        if (i < n) {                                                                          \
            T_##to d;                                                                         \
            asm volatile(ins : "=" #to(d) : #ta(a[i]));                                       \
            o[i] = d;                                                                         \
        }                                                                                     \
    }
#define E2(name, to, ta, tb, ins, set)                                                        \
    extern "C" __global__ void name(const T_##ta* a, const T_##tb* b, T_##to* o, u32 n) {     \
        u32 i = GID;                                                                          \
        if (i < n) {                                                                          \
            T_##to d;                                                                         \
            asm volatile(ins : "=" #to(d) : #ta(a[i]), #tb(b[i]));                            \
            o[i] = d;                                                                         \
        }                                                                                     \
    }
#define E3(name, to, ta, tb, tc, ins, set)                                                    \
    extern "C" __global__ void name(const T_##ta* a, const T_##tb* b, const T_##tc* c,        \
                                    T_##to* o, u32 n) {                                       \
        u32 i = GID;                                                                          \
        if (i < n) {                                                                          \
            T_##to d;                                                                         \
            asm volatile(ins : "=" #to(d) : #ta(a[i]), #tb(b[i]), #tc(c[i]));                 \
            o[i] = d;                                                                         \
        }                                                                                     \
    }

// A tensor map as the kernel sees it: 128 opaque bytes.
struct __align__(64) TensorMap {
    u64 opaque[16];
};

// What shared memory holds before an asynchronous write.
#define POISON 0xEEEEEEEEu
// Polls of a barrier before a probe gives up: no probe can hang.
#define POLLS 4096

__device__ __forceinline__ u32 smem(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void mbar_init(u32 bar, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void mbar_arrive_expect(u32 bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ u32 mbar_test(u32 bar, u32 parity) {
    u32 ok;
    asm volatile(
        "{ .reg .pred p; mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2; "
        "selp.u32 %0, 1, 0, p; }"
        : "=r"(ok)
        : "r"(bar), "r"(parity)
        : "memory");
    return ok;
}
__device__ __forceinline__ void sleep_ns(u32 ns) {
    asm volatile("nanosleep.u32 %0;" ::"r"(ns) : "memory");
}
// 1 when the phase of the given parity completed within the bound.
__device__ __forceinline__ u32 mbar_poll(u32 bar, u32 parity) {
#pragma unroll 1
    for (u32 i = 0; i < POLLS; i++) {
        if (mbar_test(bar, parity)) return 1;
        sleep_ns(100);
    }
    return 0;
}
__device__ __forceinline__ void fence_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void fence_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void bulk_commit_wait() {
    asm volatile("cp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group 0;" ::: "memory");
}
__device__ __forceinline__ void cluster_sync() {
    asm volatile(
        "barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::
            : "memory");
}
__device__ __forceinline__ u32 cluster_rank() {
    u32 r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
__device__ __forceinline__ u32 mapa(u32 addr, u32 rank) {
    u32 r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(addr), "r"(rank));
    return r;
}
