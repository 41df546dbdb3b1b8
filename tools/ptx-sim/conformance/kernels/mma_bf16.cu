// D[128][16] = A[128][64] * B[16][64]^T, bf16 in, f32 out: the smallest tcgen05.mma.
// One CTA of 128 threads.
#include "ptx_ops.cuh"

constexpr uint32_t M = 128, N = 16, K = 64;
constexpr uint32_t COLUMNS = 32;          // tcgen05.alloc takes at least 32
constexpr uint32_t STEP_BYTES = 16 * 2;   // K = 16 for kind::f16

// "Instruction descriptor", kind::f16: D f32, A and B bf16, both K-major.
constexpr uint32_t IDESC = 1u << 4 | 1u << 7 | 1u << 10 | (N >> 3) << 17 | (M >> 4) << 24;

extern "C" __global__ void __launch_bounds__(128) mma_bf16(const uint8_t *a, const uint8_t *b, float *d) {
    // The swizzle pattern repeats every 1024 bytes and must start there for base offset 0.
    __shared__ alignas(1024) uint8_t a_tile[M * K * 2];
    __shared__ alignas(1024) uint8_t b_tile[N * K * 2];
    __shared__ alignas(8) uint64_t done_storage;
    __shared__ uint32_t taddr_storage;

    const uint32_t tid = threadIdx.x, warp = tid / 32;
    const uint32_t done = smem_addr(&done_storage);

    if (warp == 0) {
        tmem_alloc<1>(smem_addr(&taddr_storage), COLUMNS);
        tmem_relinquish<1>();
    }
    if (tid == 0) {
        mbarrier_init(done, 1);
        fence_mbarrier_init();
    }

    // A row of either operand is 64 bf16 = 128 bytes = 8 chunks of 16.
    for (uint32_t i = tid; i < M * 8; i += 128)
        *reinterpret_cast<uint4 *>(a_tile + swizzle_128b(i / 8, i % 8)) =
            reinterpret_cast<const uint4 *>(a)[i];
    for (uint32_t i = tid; i < N * 8; i += 128)
        *reinterpret_cast<uint4 *>(b_tile + swizzle_128b(i / 8, i % 8)) =
            reinterpret_cast<const uint4 *>(b)[i];

    // "Shared Memory Accesses": tcgen05.mma reads through the async proxy, so every writer fences
    // its own stores before it signals.
    fence_proxy_async_cta();
    tcgen05_fence_before();
    __syncthreads();
    tcgen05_fence_after();
    const uint32_t taddr = taddr_storage;

    if (warp == 0 && elect_one()) {
        const uint32_t a_addr = smem_addr(a_tile), b_addr = smem_addr(b_tile);
        for (uint32_t k = 0; k < K / 16; ++k) // same shape and accumulator: these run in order
            mma_f16<1>(taddr, operand_desc(a_addr + k * STEP_BYTES), operand_desc(b_addr + k * STEP_BYTES),
                       IDESC, k != 0);
        tcgen05_commit(done); // the thread that issued the MMAs; implies fence::before_thread_sync
    }
    __syncwarp(); // the .aligned instructions below want the warp together

    while (!mbarrier_try_wait(done, 0)) {
    }
    __syncwarp();
    tcgen05_fence_after();

    uint32_t r[N];
    tmem_load_x16(r, taddr + (warp * 32 << 16)); // "Access restrictions": warp w has lanes 32w..
    tmem_wait_load();
    for (uint32_t j = 0; j < N; ++j) d[tid * N + j] = __uint_as_float(r[j]);

    // Every warp's loads are complete and ordered before the one warp frees the columns.
    tcgen05_fence_before();
    __syncthreads();
    if (warp == 0) {
        tcgen05_fence_after();
        tmem_dealloc<1>(taddr, COLUMNS);
    }
}
