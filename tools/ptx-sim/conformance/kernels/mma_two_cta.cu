// D[256][64] = A[256][64] * B[64][64]^T, bf16 in, f32 out, by one pair of CTAs: each holds 128 rows
// of A, 32 rows of B (half of N) and the 128 result rows that belong to its rows of A ("Layout A").
// One cluster of two CTAs of 128 threads; rank 0 issues the MMAs for both.
#include "ptx_ops.cuh"

constexpr uint32_t M = 256, N = 64, K = 64;
constexpr uint32_t COLUMNS = 64;
constexpr uint32_t A_BYTES = M / 2 * K * 2, B_BYTES = N / 2 * K * 2; // one CTA's half
constexpr uint32_t STEP_BYTES = 16 * 2;                              // K = 16 for kind::f16

// "Instruction descriptor", kind::f16: D f32, A and B bf16, M and N of the pair.
constexpr uint32_t IDESC = 1u << 4 | 1u << 7 | 1u << 10 | (N >> 3) << 17 | (M >> 4) << 24;

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(128)
    mma_two_cta(const uint8_t *a, const uint8_t *b, float *d) {
    // The descriptors address both CTAs' shared memory: the tiles lie at the same offsets in each.
    __shared__ alignas(1024) uint8_t a_tile[A_BYTES];
    __shared__ alignas(1024) uint8_t b_tile[B_BYTES];
    __shared__ alignas(8) uint64_t ready_storage, done_storage;
    __shared__ uint32_t taddr_storage;

    const uint32_t tid = threadIdx.x, warp = tid / 32, rank = cluster_ctarank();
    const uint32_t ready = smem_addr(&ready_storage), done = smem_addr(&done_storage);

    if (tid == 0) {
        mbarrier_init(ready, 2); // rank 0's copy is used: one arrival from each CTA
        mbarrier_init(done, 1);  // the multicast commit arrives on both copies
        fence_mbarrier_init();
    }
    __syncwarp();
    // The peer runs, and its barriers exist, before anything below reaches for it.
    cluster_arrive();
    cluster_wait();

    if (warp == 0) { // collective over the pair: one warp of each CTA
        tmem_alloc<2>(smem_addr(&taddr_storage), COLUMNS);
        tmem_relinquish<2>();
    }

    // A row of either operand is 64 bf16 = 128 bytes = 8 chunks of 16.
    const uint4 *a_half = reinterpret_cast<const uint4 *>(a + rank * A_BYTES);
    const uint4 *b_half = reinterpret_cast<const uint4 *>(b + rank * B_BYTES);
    for (uint32_t i = tid; i < M / 2 * 8; i += 128)
        *reinterpret_cast<uint4 *>(a_tile + swizzle_128b(i / 8, i % 8)) = a_half[i];
    for (uint32_t i = tid; i < N / 2 * 8; i += 128)
        *reinterpret_cast<uint4 *>(b_tile + swizzle_128b(i / 8, i % 8)) = b_half[i];

    // The MMA reads through the async proxy, and rank 1's tiles on behalf of a thread of rank 0:
    // every writer fences, its CTA gathers, and one thread tells rank 0 with cluster scope.
    fence_proxy_async();
    tcgen05_fence_before();
    __syncthreads();
    tcgen05_fence_after();
    const uint32_t taddr = taddr_storage;
    if (tid == 0) {
        tcgen05_fence_before();
        mbarrier_arrive_cluster(mapa(ready, 0));
    }
    __syncwarp();

    if (rank == 0 && warp == 0) {
        while (!mbarrier_try_wait_cluster(ready, 0)) {
        }
        __syncwarp();
        tcgen05_fence_after();
        if (elect_one()) {
            const uint32_t a_addr = smem_addr(a_tile), b_addr = smem_addr(b_tile);
            for (uint32_t k = 0; k < K / 16; ++k) // same shape and accumulator: these run in order
                mma_f16<2>(taddr, operand_desc(a_addr + k * STEP_BYTES), operand_desc(b_addr + k * STEP_BYTES),
                           IDESC, k != 0);
            tcgen05_commit_pair(done, 0b11);
        }
        __syncwarp(); // the .aligned instructions below want the warp together
    }

    // The commit's arrival has cluster scope.
    while (!mbarrier_try_wait_cluster(done, 0)) {
    }
    __syncwarp();
    tcgen05_fence_after();

    // "Access restrictions": warp w has lanes 32w.. of its own CTA's tensor memory.
    for (uint32_t column = 0; column < N; column += 16) {
        uint32_t r[16];
        tmem_load_x16(r, taddr + (warp * 32 << 16) + column);
        tmem_wait_load();
        for (uint32_t j = 0; j < 16; ++j)
            d[(rank * (M / 2) + tid) * N + column + j] = __uint_as_float(r[j]);
    }

    // "Issue Granularity", deallocation: both CTAs are past their accesses, then one warp of each
    // frees the columns. The barrier also keeps rank 1 alive until the MMAs are done.
    tcgen05_fence_before();
    cluster_arrive();
    cluster_wait();
    if (warp == 0) {
        tcgen05_fence_after();
        tmem_dealloc<2>(taddr, COLUMNS);
    }
}
