// D[128][16] = (A * SFA)[128][256] * (B * SFB)[16][256]^T: E2M1 codes, one UE4M3 scale per 16.
// One CTA of 128 threads.
#include "ptx_ops.cuh"

constexpr uint32_t M = 128, N = 16, K = 256;
constexpr uint32_t STEPS = K / 64;          // K = 64 for kind::mxf4nvf4
constexpr uint32_t STEP_BYTES = 64 / 2;     // two codes a byte
constexpr uint32_t ATOM = 512;              // scales of 128 rows x one K step
constexpr uint32_t COLUMNS = 64;

// Tensor memory columns. A scale atom takes four; each K step has its own, because a
// tcgen05.cp after an MMA is not ordered after it ("Pipelined tcgen05 Instructions").
constexpr uint32_t SFA_COLUMN = 16, SFB_COLUMN = SFA_COLUMN + 4 * STEPS;
static_assert(SFB_COLUMN + 4 * STEPS <= COLUMNS, "scales fit");

// "Instruction descriptor", kind::mxf4nvf4: A and B E2M1, scales UE4M3 with ids 0, K = 64.
constexpr uint32_t IDESC = 1u << 7 | 1u << 10 | (N >> 3) << 17 | (M >> 7) << 27;

// a: [128][K/2], b: [16][K/2] packed codes. sfa, sfb: STEPS atoms in the 128x4 layout, along K.
extern "C" __global__ void __launch_bounds__(128)
    mma_mxf4nvf4(const uint8_t *a, const uint8_t *b, const uint8_t *sfa, const uint8_t *sfb, float *d) {
    __shared__ alignas(1024) uint8_t a_tile[M * K / 2];
    __shared__ alignas(1024) uint8_t b_tile[N * K / 2];
    __shared__ alignas(128) uint8_t sfa_atoms[STEPS * ATOM];
    __shared__ alignas(128) uint8_t sfb_atoms[STEPS * ATOM];
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

    // A row of either operand is 256 codes = 128 bytes = 8 chunks of 16.
    for (uint32_t i = tid; i < M * 8; i += 128)
        *reinterpret_cast<uint4 *>(a_tile + swizzle_128b(i / 8, i % 8)) =
            reinterpret_cast<const uint4 *>(a)[i];
    for (uint32_t i = tid; i < N * 8; i += 128)
        *reinterpret_cast<uint4 *>(b_tile + swizzle_128b(i / 8, i % 8)) =
            reinterpret_cast<const uint4 *>(b)[i];
    // STEPS * 512 bytes are 128 chunks of 16: one per thread.
    reinterpret_cast<uint4 *>(sfa_atoms)[tid] = reinterpret_cast<const uint4 *>(sfa)[tid];
    reinterpret_cast<uint4 *>(sfb_atoms)[tid] = reinterpret_cast<const uint4 *>(sfb)[tid];

    // tcgen05.cp and tcgen05.mma read shared memory through the async proxy.
    fence_proxy_async_cta();
    tcgen05_fence_before();
    __syncthreads();
    tcgen05_fence_after();
    const uint32_t taddr = taddr_storage;

    if (warp == 0 && elect_one()) {
        const uint32_t a_addr = smem_addr(a_tile), b_addr = smem_addr(b_tile);
        for (uint32_t k = 0; k < STEPS; ++k) { // cp -> mma of one thread is a pipeline: no wait
            tcgen05_cp_32x128b(taddr + SFA_COLUMN + 4 * k, scale_desc(smem_addr(sfa_atoms) + k * ATOM));
            tcgen05_cp_32x128b(taddr + SFB_COLUMN + 4 * k, scale_desc(smem_addr(sfb_atoms) + k * ATOM));
        }
        for (uint32_t k = 0; k < STEPS; ++k)
            mma_mxf4nvf4(taddr, operand_desc(a_addr + k * STEP_BYTES), operand_desc(b_addr + k * STEP_BYTES),
                         IDESC, taddr + SFA_COLUMN + 4 * k, taddr + SFB_COLUMN + 4 * k, k != 0);
        tcgen05_commit(done); // tracks the copies and the MMAs
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
