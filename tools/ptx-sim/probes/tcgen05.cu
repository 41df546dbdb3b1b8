// tcgen05 of compute capability 10.x: tensor memory, its copies and loads, commits, and block-scaled multiplications.
// One CTA of 128 threads, but for sums. Every wait is bounded, and tensor memory is freed whatever happened.
#include "../../../csrc/arch/tcgen05.cuh"

#include "common.cuh"

using namespace nvfp4;

// Tensor memory, and a barrier that commits arrive at.
struct Scene {
    u64 barrier;
    u32 tmem;
};

__device__ __forceinline__ u32 begin(Scene& scene, u32 columns) {
    if (threadIdx.x < 32) {
        arch::tcgen05_alloc(smem(&scene.tmem), columns);
        arch::tcgen05_relinquish_alloc_permit();
    }
    if (threadIdx.x == 0) {
        mbar_init(smem(&scene.barrier), 1);
        fence_init();
    }
    fence_async();
    arch::tcgen05_fence_before_thread_sync();
    __syncthreads();
    arch::tcgen05_fence_after_thread_sync();
    return scene.tmem;
}

__device__ __forceinline__ void end(u32 tmem, u32 columns) {
    arch::tcgen05_fence_before_thread_sync();
    __syncthreads();
    arch::tcgen05_fence_after_thread_sync();
    if (threadIdx.x < 32) arch::tcgen05_dealloc(tmem, columns);
}

// Until what thread 0 committed is complete; 0 where that takes too long.
__device__ __forceinline__ u32 committed(Scene& scene) {
    const u32 done = mbar_poll(smem(&scene.barrier), 0);
    __syncwarp();
    arch::tcgen05_fence_after_thread_sync();
    return done;
}

__device__ __forceinline__ u32 own_lanes(u32 tmem) { return tmem + (threadIdx.x / 32 * 32 << 16); }

#define IN16(r)                                                                                            \
    "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(r[4]), "r"(r[5]), "r"(r[6]), "r"(r[7]), "r"(r[8]),     \
        "r"(r[9]), "r"(r[10]), "r"(r[11]), "r"(r[12]), "r"(r[13]), "r"(r[14]), "r"(r[15])

__device__ __forceinline__ void store_16_columns(u32 tmem, const u32 (&r)[16]) {
    asm volatile(
        "tcgen05.st.sync.aligned.32x32b.x16.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "
        "%14, %15, %16};\n\ttcgen05.wait::st.sync.aligned;" ::"r"(tmem),
        IN16(r)
        : "memory");
}

// What columns 0 to 15 of this thread's lane hold.
__device__ __forceinline__ void keep_16_columns(u32 tmem, u32* o) {
    u32 r[16];
    arch::tcgen05_ld_32x32b_x16(r, own_lanes(tmem));
    arch::tcgen05_wait_ld();
    for (u32 i = 0; i < 16; i++) o[16 * threadIdx.x + i] = r[i];
}

__device__ __forceinline__ void fill_16_columns(u32 tmem) {
    u32 r[16];
    for (u32 i = 0; i < 16; i++) r[i] = threadIdx.x << 8 | i;
    store_16_columns(own_lanes(tmem), r);
}

// Two allocations by one warp: where they are.
extern "C" __global__ void tcgen05_alloc(u32* o, u32 first, u32 second) {
    __shared__ u32 at[2];
    arch::tcgen05_alloc(smem(&at[0]), first);
    arch::tcgen05_alloc(smem(&at[1]), second);
    arch::tcgen05_relinquish_alloc_permit();
    __syncwarp();
    const u32 a = at[0], b = at[1];
    o[0] = a;
    o[1] = b;
    arch::tcgen05_dealloc(a, first);
    arch::tcgen05_dealloc(b, second);
}

// Commits with nothing to wait for.
extern "C" __global__ void tcgen05_commit_nothing(u32* flags) {
    __shared__ Scene scene;
    const u32 tmem = begin(scene, 32);
    if (threadIdx.x == 0) arch::tcgen05_commit(smem(&scene.barrier));
    const u32 done = committed(scene);
    if (threadIdx.x == 0) flags[0] = done;
    end(tmem, 32);
}

// Fills 16 columns lane by lane, loads four registers by `shape`, then stores four by it. `half`: the address starts 16
// lanes down.
#define LOADED_AND_STORED(name, shape, split)                                                              \
    extern "C" __global__ void name(u32* loaded, u32* stored, u32 half) {                                  \
        __shared__ Scene scene;                                                                            \
        const u32 tmem = begin(scene, 32), at = own_lanes(tmem) + (half * 16 << 16), t = threadIdx.x;      \
        fill_16_columns(tmem);                                                                             \
        u32 a, b, c, d;                                                                                    \
        asm volatile("tcgen05.ld.sync.aligned." shape ".b32 {%0, %1, %2, %3}, [%4]" split ";\n\t"          \
                     "tcgen05.wait::ld.sync.aligned;"                                                      \
                     : "=r"(a), "=r"(b), "=r"(c), "=r"(d)                                                  \
                     : "r"(at)                                                                             \
                     : "memory");                                                                          \
        loaded[4 * t] = a, loaded[4 * t + 1] = b, loaded[4 * t + 2] = c, loaded[4 * t + 3] = d;            \
        const u32 mark = 0x80000000u | t << 8;                                                             \
        asm volatile("tcgen05.st.sync.aligned." shape ".b32 [%0]" split ", {%1, %2, %3, %4};\n\t"          \
                     "tcgen05.wait::st.sync.aligned;" ::"r"(at),                                           \
                     "r"(mark), "r"(mark | 1), "r"(mark | 2), "r"(mark | 3)                                \
                     : "memory");                                                                          \
        keep_16_columns(tmem, stored);                                                                     \
        end(tmem, 32);                                                                                     \
    }
LOADED_AND_STORED(tcgen05_ld_32x32b, "32x32b.x4", "")
LOADED_AND_STORED(tcgen05_ld_16x64b, "16x64b.x4", "")
LOADED_AND_STORED(tcgen05_ld_16x128b, "16x128b.x2", "")
LOADED_AND_STORED(tcgen05_ld_16x256b, "16x256b.x1", "")
LOADED_AND_STORED(tcgen05_ld_16x32bx2, "16x32bx2.x4", ", 8")

// One copy from shared memory, rows as `leading` and `stride` say, without a swizzle.
#define COPIED(name, shape)                                                                                \
    extern "C" __global__ void name(const u32* in, u32* o, u32* flags, u32 leading, u32 stride) {          \
        __shared__ __align__(1024) u32 rows[1024];                                                         \
        __shared__ Scene scene;                                                                            \
        _Pragma("unroll 1") for (u32 i = threadIdx.x; i < 1024; i += 128) rows[i] = in[i];                 \
        const u32 tmem = begin(scene, 32);                                                                 \
        fill_16_columns(tmem);                                                                             \
        arch::tcgen05_fence_before_thread_sync();                                                                      \
        __syncthreads();                                                                                   \
        arch::tcgen05_fence_after_thread_sync();                                                                       \
        if (threadIdx.x == 0) {                                                                            \
            const u64 from = arch::shared_descriptor(smem(rows), stride, 0) | (u64)(leading >> 4) << 16;   \
            asm volatile("tcgen05.cp.cta_group::1." shape " [%0], %1;" ::"r"(tmem), "l"(from) : "memory"); \
            arch::tcgen05_commit(smem(&scene.barrier));                                                    \
        }                                                                                                  \
        const u32 done = committed(scene);                                                                 \
        if (threadIdx.x == 0) flags[0] = done;                                                             \
        keep_16_columns(tmem, o);                                                                          \
        end(tmem, 32);                                                                                     \
    }
COPIED(tcgen05_cp_32x128b_warpx4, "32x128b.warpx4")
COPIED(tcgen05_cp_128x128b, "128x128b")
COPIED(tcgen05_cp_128x256b, "128x256b")
COPIED(tcgen05_cp_4x256b, "4x256b")
COPIED(tcgen05_cp_64x128b_02_13, "64x128b.warpx2::02_13")
COPIED(tcgen05_cp_64x128b_01_23, "64x128b.warpx2::01_23")

// Operands as the instruction reads them: rows of four slices of 64 codes in the 128-byte swizzle, an atom of scales a
// slice.
struct Image {
    __align__(1024) u8 a[128 * 128], b[128 * 128], scales_a[4 * 512], scales_b[4 * 512];
};

// D = the first `slices` slices of A x B, N columns. The columns of B's scales begin `shift` columns before those that
// the instruction is given: what it reads of them.
extern "C" __global__ void __launch_bounds__(128)
    tcgen05_mma(const uint4* in, u32* o, u32* flags, u32 n, u32 slices, u32 shift) {
    __shared__ Image image;
    __shared__ Scene scene;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < sizeof(Image) / 16; i += 128) ((uint4*)&image)[i] = in[i];
    const u32 tmem = begin(scene, 256), scales_a = tmem + 128, scales_b = tmem + 160;
    if (threadIdx.x == 0) {
#pragma unroll 1
        for (u32 k = 0; k < slices; k++) {
            arch::tcgen05_cp_32x128b_warpx4(scales_a + 4 * k, arch::atom_descriptor(smem(image.scales_a) + 512 * k));
            arch::tcgen05_cp_32x128b_warpx4(scales_b + 4 * k, arch::atom_descriptor(smem(image.scales_b) + 512 * k));
        }
#pragma unroll 1
        for (u32 k = 0; k < slices; k++)
            arch::tcgen05_mma_mxf4nvf4(tmem, arch::rows_descriptor(smem(image.a) + 32 * k),
                            arch::rows_descriptor(smem(image.b) + 32 * k), arch::nvfp4_instruction(n),
                            scales_a + 4 * k, scales_b + 4 * k + shift, k != 0);
        arch::tcgen05_commit(smem(&scene.barrier));
    }
    const u32 done = committed(scene);
    if (threadIdx.x == 0) flags[0] = done;
#pragma unroll 1
    for (u32 c = 0; c < n; c += 16) {
        u32 r[16];
        arch::tcgen05_ld_32x32b_x16(r, own_lanes(tmem) + c);
        arch::tcgen05_wait_ld();
        for (u32 i = 0; i < 16; i++) o[threadIdx.x * n + c + i] = r[i];
    }
    end(tmem, 256);
}

// As above, N of 8 or 16, each slice's scales copied right before its multiplication, `apart` columns behind those of the
// slice before: 0 is over columns that an earlier multiplication may still read.
extern "C" __global__ void __launch_bounds__(128)
    tcgen05_mma_in_turn(const uint4* in, u32* o, u32* flags, u32 n, u32 slices, u32 apart) {
    __shared__ Image image;
    __shared__ Scene scene;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < sizeof(Image) / 16; i += 128) ((uint4*)&image)[i] = in[i];
    const u32 tmem = begin(scene, 64), scales_a = tmem + 16, scales_b = tmem + 32;
    if (threadIdx.x == 0) {
#pragma unroll 1
        for (u32 k = 0; k < slices; k++) {
            arch::tcgen05_cp_32x128b_warpx4(scales_a + apart * k, arch::atom_descriptor(smem(image.scales_a) + 512 * k));
            arch::tcgen05_cp_32x128b_warpx4(scales_b + apart * k, arch::atom_descriptor(smem(image.scales_b) + 512 * k));
            arch::tcgen05_mma_mxf4nvf4(tmem, arch::rows_descriptor(smem(image.a) + 32 * k),
                            arch::rows_descriptor(smem(image.b) + 32 * k), arch::nvfp4_instruction(n),
                            scales_a + apart * k, scales_b + apart * k, k != 0);
        }
        arch::tcgen05_commit(smem(&scene.barrier));
    }
    const u32 done = committed(scene);
    if (threadIdx.x == 0) flags[0] = done;
#pragma unroll 1
    for (u32 c = 0; c < n; c += 8) {
        u32 d[8];
        asm volatile(
            "tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];\n\t"
            "tcgen05.wait::ld.sync.aligned;"
            : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]), "=r"(d[4]), "=r"(d[5]), "=r"(d[6]), "=r"(d[7])
            : "r"(own_lanes(tmem) + c)
            : "memory");
        for (u32 i = 0; i < 8; i++) o[threadIdx.x * n + c + i] = d[i];
    }
    end(tmem, 64);
}

__device__ __forceinline__ u32 clocks() {
    u32 t;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(t)::"memory");
    return t;
}

__device__ __forceinline__ void bulk_copy(u32 to, const void* from, u32 bytes, u32 bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(bar)
                 : "memory");
}

// Clocks of the kernels' two roles, one after the other, for `steps` steps of 256 codes of 128 rows: of the thread that
// multiplies, to issue (times[0]) and until all is complete (times[1]); of the thread that loads, where each step waits
// for the step before (times[2]).
extern "C" __global__ void __launch_bounds__(128) tcgen05_roles(const uint4* in, u32* times, u32* flags, u32 steps) {
    __shared__ Image image;
    __shared__ Scene scene;
    __shared__ u64 step_done, loaded;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < sizeof(Image) / 16; i += 128) ((uint4*)&image)[i] = in[i];
    if (threadIdx.x == 0) {
        mbar_init(smem(&step_done), 1);
        mbar_init(smem(&loaded), 1);
    }
    const u32 tmem = begin(scene, 64), scales_a = tmem + 16, scales_b = tmem + 32;
    const u64 a = arch::rows_descriptor(smem(image.a)), b = arch::rows_descriptor(smem(image.b));
    const u64 sa = arch::atom_descriptor(smem(image.scales_a)), sb = arch::atom_descriptor(smem(image.scales_b));
    u32 start = 0, done;
    if (threadIdx.x == 0) {
        start = clocks();
#pragma unroll 1
        for (u32 step = 0; step < steps; step++) {
#pragma unroll
            for (u32 k = 0; k < 4; k++) {  // descriptors count in units of 16 bytes
                arch::tcgen05_cp_32x128b_warpx4(scales_a + 4 * k, sa + 32 * k);
                arch::tcgen05_cp_32x128b_warpx4(scales_b + 4 * k, sb + 32 * k);
            }
#pragma unroll
            for (u32 k = 0; k < 4; k++)
                arch::tcgen05_mma_mxf4nvf4(tmem, a + 2 * k, b + 2 * k, arch::nvfp4_instruction(16), scales_a + 4 * k,
                                           scales_b + 4 * k, step != 0 || k != 0);
            arch::tcgen05_commit(smem(&step_done));
        }
        times[0] = clocks() - start;
        arch::tcgen05_commit(smem(&scene.barrier));
    }
    done = committed(scene);
    if (threadIdx.x == 0) {
        times[1] = clocks() - start;
        flags[0] = done;
    }
    __syncthreads();
    if (threadIdx.x == 32) {
        start = clocks();
        done = 1;
#pragma unroll 1
        for (u32 step = 0; step < steps && done; step++) {
            mbar_arrive_expect(smem(&loaded), 16384 + 2048 + 2048);
            bulk_copy(smem(image.a), in, 16384, smem(&loaded));
            bulk_copy(smem(image.scales_a), in + 2048, 2048, smem(&loaded));
            bulk_copy(smem(image.b), in + 1024, 2048, smem(&loaded));
            done = 0;
#pragma unroll 1
            for (u32 i = 0; i < 1 << 20 && !done; i++) done = mbar_test(smem(&loaded), step & 1);
        }
        times[2] = clocks() - start;
        flags[1] = done;
    }
    end(tmem, 64);
}

// Sums (sums.cpp): CTA i has rows 128i to 128i + 127, of which each 16 meet a column of their own.
extern "C" __global__ void __launch_bounds__(128)
    sums_tcgen05(const u32* a, const u32* scales_a, const u32* b, const u32* scales_b, const u32* c, u32* o,
                 u32* flags) {
    __shared__ struct {
        __align__(1024) u32 a[128 * 32], b[16 * 32], scales_a[128], scales_b[128];
    } image;
    __shared__ Scene scene;
    const u32 t = threadIdx.x, row = 128 * blockIdx.x + t, atom = t % 32 * 4 + t / 32;
    // 16 bytes at a time go where the swizzle has them.
#pragma unroll
    for (u32 i = 0; i < 8; i++) image.a[32 * t + ((i / 4 ^ t % 8) * 4 | i % 4)] = a[8 * row + i];
    image.scales_a[atom] = scales_a[row];
    image.scales_b[atom] = t < 8 ? scales_b[8 * blockIdx.x + t] : 0;
    if (t < 16)
#pragma unroll
        for (u32 i = 0; i < 8; i++)
            image.b[32 * t + ((i / 4 ^ t % 8) * 4 | i % 4)] = t < 8 ? b[8 * (8 * blockIdx.x + t) + i] : 0;
    const u32 tmem = begin(scene, 64), at_a = tmem + 32, at_b = tmem + 48;
    u32 r[16];
    for (u32 i = 0; i < 16; i++) r[i] = c[row];
    store_16_columns(own_lanes(tmem), r);
    arch::tcgen05_fence_before_thread_sync();
    __syncthreads();
    arch::tcgen05_fence_after_thread_sync();
    if (t == 0) {
        arch::tcgen05_cp_32x128b_warpx4(at_a, arch::atom_descriptor(smem(image.scales_a)));
        arch::tcgen05_cp_32x128b_warpx4(at_b, arch::atom_descriptor(smem(image.scales_b)));
        arch::tcgen05_mma_mxf4nvf4(tmem, arch::rows_descriptor(smem(image.a)), arch::rows_descriptor(smem(image.b)),
                        arch::nvfp4_instruction(16), at_a, at_b, true);
        arch::tcgen05_commit(smem(&scene.barrier));
    }
    const u32 done = committed(scene);
    if (t == 0) flags[blockIdx.x] = done;
    u32 d[8];
    // In one piece: the choice below may go through memory, and not before the registers have their values.
    asm volatile(
        "tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];\n\t"
        "tcgen05.wait::ld.sync.aligned;"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]), "=r"(d[4]), "=r"(d[5]), "=r"(d[6]), "=r"(d[7])
        : "r"(own_lanes(tmem))
        : "memory");
    u32 sum = 0;
#pragma unroll
    for (u32 i = 0; i < 8; i++)
        if (i == t / 16) sum = d[i];
    o[row] = sum;
    end(tmem, 64);
}
