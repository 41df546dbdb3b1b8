// Warp-wide instructions, CTA reductions, special registers and atomics.
#include "common.cuh"

// d|p = shfl(a, b, c): out[2i] = d, out[2i+1] = p. Only the lanes of `mask` take part.
#define SHFL(mode)                                                                            \
    extern "C" __global__ void shfl_##mode(const u32* a, const u32* b, const u32* c, u32* o,  \
                                           u32 mask) {                                        \
        u32 i = GID;                                                                          \
        u32 av = a[i], bv = b[i], cv = c[i];                                                  \
        if ((mask >> (i & 31)) & 1) {                                                         \
            u32 d, q;                                                                         \
            asm volatile("{ .reg .pred p; shfl.sync." #mode                                   \
                         ".b32 %0|p, %2, %3, %4, %5; selp.u32 %1, 1, 0, p; }"                 \
                         : "=r"(d), "=r"(q)                                                   \
                         : "r"(av), "r"(bv), "r"(cv), "r"(mask));                             \
            o[2 * i] = d;                                                                     \
            o[2 * i + 1] = q;                                                                 \
        }                                                                                     \
    }
SHFL(up)
SHFL(down)
SHFL(bfly)
SHFL(idx)

// vote: out[4i..] = all, any, uni, ballot of (a != 0); then the same of the negated predicate.
extern "C" __global__ void vote(const u32* a, u32* o, u32 mask) {
    u32 i = GID;
    u32 av = a[i];
    if ((mask >> (i & 31)) & 1) {
        u32 d0, d1, d2, d3, e0, e3;
        asm volatile(
            "{ .reg .pred p, q; setp.ne.u32 p, %6, 0;\n\t"
            "vote.sync.all.pred q, p, %7; selp.u32 %0, 1, 0, q;\n\t"
            "vote.sync.any.pred q, p, %7; selp.u32 %1, 1, 0, q;\n\t"
            "vote.sync.uni.pred q, p, %7; selp.u32 %2, 1, 0, q;\n\t"
            "vote.sync.ballot.b32 %3, p, %7;\n\t"
            "vote.sync.all.pred q, !p, %7; selp.u32 %4, 1, 0, q;\n\t"
            "vote.sync.ballot.b32 %5, !p, %7; }"
            : "=r"(d0), "=r"(d1), "=r"(d2), "=r"(d3), "=r"(e0), "=r"(e3)
            : "r"(av), "r"(mask));
        o[6 * i] = d0;
        o[6 * i + 1] = d1;
        o[6 * i + 2] = d2;
        o[6 * i + 3] = d3;
        o[6 * i + 4] = e0;
        o[6 * i + 5] = e3;
    }
}

// match: out[4i..] = any.b32, all.b32, its predicate, any.b64 of (a, a ^ 1).
extern "C" __global__ void match(const u32* a, u32* o, u32 mask) {
    u32 i = GID;
    u32 av = a[i];
    if ((mask >> (i & 31)) & 1) {
        u32 d0, d1, d2, d3;
        u64 w = ((u64)av << 32) | (av ^ 1);
        asm volatile(
            "{ .reg .pred p;\n\t"
            "match.any.sync.b32 %0, %4, %6;\n\t"
            "match.all.sync.b32 %1|p, %4, %6; selp.u32 %2, 1, 0, p;\n\t"
            "match.any.sync.b64 %3, %5, %6; }"
            : "=r"(d0), "=r"(d1), "=r"(d2), "=r"(d3)
            : "r"(av), "l"(w), "r"(mask));
        o[4 * i] = d0;
        o[4 * i + 1] = d1;
        o[4 * i + 2] = d2;
        o[4 * i + 3] = d3;
    }
}

#define REDUX(name, ins)                                                                      \
    extern "C" __global__ void redux_##name(const u32* a, u32* o, u32 mask) {                 \
        u32 i = GID;                                                                          \
        u32 av = a[i];                                                                        \
        if ((mask >> (i & 31)) & 1) {                                                         \
            u32 d;                                                                            \
            asm volatile("redux.sync." ins " %0, %1, %2;" : "=r"(d) : "r"(av), "r"(mask));    \
            o[i] = d;                                                                         \
        }                                                                                     \
    }
REDUX(add_u32, "add.u32")
REDUX(add_s32, "add.s32")
REDUX(min_u32, "min.u32")
REDUX(min_s32, "min.s32")
REDUX(max_u32, "max.u32")
REDUX(max_s32, "max.s32")
REDUX(and_b32, "and.b32")
REDUX(or_b32, "or.b32")
REDUX(xor_b32, "xor.b32")

// elect: out[2i] = leader's lane, out[2i+1] = predicate.
extern "C" __global__ void elect(u32* o, u32 mask) {
    u32 i = GID;
    if ((mask >> (i & 31)) & 1) {
        u32 d, q;
        asm volatile("{ .reg .pred p; elect.sync %0|p, %2; selp.u32 %1, 1, 0, p; }"
                     : "=r"(d), "=r"(q)
                     : "r"(mask));
        o[2 * i] = d;
        o[2 * i + 1] = q;
    }
}

// barrier.red: out[3i..] = popc, and, or of (a != 0) over the CTA.
extern "C" __global__ void bar_red(const u32* a, u32* o) {
    u32 i = GID;
    u32 d0, d1, d2;
    asm volatile(
        "{ .reg .pred p, q; setp.ne.u32 p, %3, 0;\n\t"
        "barrier.sync.aligned 0;\n\t"
        "barrier.red.popc.aligned.u32 %0, 1, p;\n\t"
        "barrier.red.and.aligned.pred q, 1, p; selp.u32 %1, 1, 0, q;\n\t"
        "barrier.red.or.aligned.pred q, 2, !p; selp.u32 %2, 1, 0, q; }"
        : "=r"(d0), "=r"(d1), "=r"(d2)
        : "r"(a[i])
        : "memory");
    o[3 * i] = d0;
    o[3 * i + 1] = d1;
    o[3 * i + 2] = d2;
}

// Named barriers: warp 0 stores and arrives, warp 1 waits and reads; then the other way round.
extern "C" __global__ void bar_named(const u32* a, u32* o) {
    __shared__ u32 s[64];
    u32 t = threadIdx.x;
    if (t < 32) {
        s[t] = a[t] + 1;
        asm volatile("barrier.arrive 3, 64;" ::: "memory");
        asm volatile("barrier.sync 4, 64;" ::: "memory");
        o[t] = s[63 - t];
    } else {
        asm volatile("barrier.sync 3, 64;" ::: "memory");
        s[t] = s[63 - t] * 3;
        asm volatile("barrier.arrive 4, 64;" ::: "memory");
        o[t] = s[t];
    }
}

// Special registers of a 3-D launch: 22 words a thread.
extern "C" __global__ void sregs(u32* o) {
    u32 tid = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    u32 cta = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    u32* p = o + 22 * (cta * blockDim.x * blockDim.y * blockDim.z + tid);
    u32 v;
#define SREG(k, r)                            \
    asm volatile("mov.u32 %0, %%" r ";" : "=r"(v)); \
    p[k] = v;
    SREG(0, "tid.x") SREG(1, "tid.y") SREG(2, "tid.z")
    SREG(3, "ntid.x") SREG(4, "ntid.y") SREG(5, "ntid.z")
    SREG(6, "ctaid.x") SREG(7, "ctaid.y") SREG(8, "ctaid.z")
    SREG(9, "nctaid.x") SREG(10, "nctaid.y") SREG(11, "nctaid.z")
    SREG(12, "laneid") SREG(13, "lanemask_eq") SREG(14, "lanemask_le") SREG(15, "lanemask_lt")
    SREG(16, "lanemask_ge") SREG(17, "lanemask_gt")
    SREG(18, "total_smem_size") SREG(19, "dynamic_smem_size")
    SREG(20, "cluster_ctarank") SREG(21, "cluster_nctarank")
}

// Atomics: thread i owns mem[i]; out[i] = the value before. `space` global or shared.
#define ATOM(name, T, ctype, ins)                                                             \
    extern "C" __global__ void atom_global_##name(T* m, const T* a, T* o) {                   \
        u32 i = GID;                                                                          \
        T d;                                                                                  \
        asm volatile("atom.relaxed.gpu.global." ins " %0, [%1], %2;"                          \
                     : "=" ctype(d)                                                           \
                     : "l"(__cvta_generic_to_global(m + i)), ctype(a[i])                      \
                     : "memory");                                                             \
        o[i] = d;                                                                             \
    }                                                                                         \
    extern "C" __global__ void atom_shared_##name(T* m, const T* a, T* o) {                   \
        __shared__ T s[128];                                                                  \
        u32 i = GID;                                                                          \
        s[threadIdx.x] = m[i];                                                                \
        T d;                                                                                  \
        asm volatile("atom.relaxed.cta.shared::cta." ins " %0, [%1], %2;"                     \
                     : "=" ctype(d)                                                           \
                     : "r"(smem(s + threadIdx.x)), ctype(a[i])                                \
                     : "memory");                                                             \
        o[i] = d;                                                                             \
        m[i] = s[threadIdx.x];                                                                \
    }
ATOM(add_u32, u32, "r", "add.u32")
ATOM(add_s32, u32, "r", "add.s32")
ATOM(add_u64, u64, "l", "add.u64")
ATOM(min_s32, u32, "r", "min.s32")
ATOM(max_u32, u32, "r", "max.u32")
ATOM(inc_u32, u32, "r", "inc.u32")
ATOM(dec_u32, u32, "r", "dec.u32")
ATOM(exch_b32, u32, "r", "exch.b32")
ATOM(and_b32, u32, "r", "and.b32")
ATOM(or_b32, u32, "r", "or.b32")
ATOM(xor_b32, u32, "r", "xor.b32")
ATOM(add_f32, u32, "r", "add.f32")
ATOM(add_noftz_f16x2, u32, "r", "add.noftz.f16x2")
ATOM(add_noftz_bf16x2, u32, "r", "add.noftz.bf16x2")

extern "C" __global__ void atom_global_cas_b32(u32* m, const u32* a, const u32* b, u32* o) {
    u32 i = GID;
    u32 d;
    asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(d)
                 : "l"(__cvta_generic_to_global(m + i)), "r"(a[i]), "r"(b[i])
                 : "memory");
    o[i] = d;
}

// All threads of the grid on one word: only the sum is defined.
extern "C" __global__ void red_global_add_u32(u32* m, const u32* a) {
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(m)),
                 "r"(a[GID])
                 : "memory");
}
