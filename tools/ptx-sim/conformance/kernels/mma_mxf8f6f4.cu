// D[128][16] = (A * SFA)[128][128] * (B * SFB)[16][128]^T: A E4M3, B E5M2, one UE8M0 scale per 32.
// The four MMAs share one scale word per row and pick its byte with the scale factor ids.
// One CTA of 128 threads.
#include "ptx_ops.cuh"

constexpr uint32_t M = 128, N = 16, K = 128;
constexpr uint32_t STEPS = K / 32;      // K = 32 for kind::mxf8f6f4
constexpr uint32_t STEP_BYTES = 32;
constexpr uint32_t ATOM = 512;          // scales of 128 rows x four K steps
constexpr uint32_t COLUMNS = 32;
constexpr uint32_t SFA_COLUMN = 16, SFB_COLUMN = 20;

// "Instruction descriptor", kind::mxf8f6f4: A E4M3 (0), B E5M2 (1), scales UE8M0 (bit 23);
// SFB id in bits 4-5 and SFA id in bits 29-30 ("Scale Factor A ID": byte within the word).
__device__ constexpr uint32_t idesc(uint32_t scale_id) {
    return scale_id << 4 | 1u << 10 | (N >> 3) << 17 | 1u << 23 | (M >> 7) << 27 | scale_id << 29;
}

// a: [128][K] E4M3, b: [16][K] E5M2. sfa, sfb: one atom each in the 128x4 layout.
extern "C" __global__ void __launch_bounds__(128)
    mma_mxf8f6f4(const uint8_t *a, const uint8_t *b, const uint8_t *sfa, const uint8_t *sfb, float *d) {
    __shared__ alignas(1024) uint8_t a_tile[M * K];
    __shared__ alignas(1024) uint8_t b_tile[N * K];
    __shared__ alignas(128) uint8_t sfa_atom[ATOM];
    __shared__ alignas(128) uint8_t sfb_atom[ATOM];
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

    // A row of either operand is 128 bytes = 8 chunks of 16.
    for (uint32_t i = tid; i < M * 8; i += 128)
        *reinterpret_cast<uint4 *>(a_tile + swizzle_128b(i / 8, i % 8)) =
            reinterpret_cast<const uint4 *>(a)[i];
    for (uint32_t i = tid; i < N * 8; i += 128)
        *reinterpret_cast<uint4 *>(b_tile + swizzle_128b(i / 8, i % 8)) =
            reinterpret_cast<const uint4 *>(b)[i];
    // 512 bytes are 128 words: one per thread.
    reinterpret_cast<uint32_t *>(sfa_atom)[tid] = reinterpret_cast<const uint32_t *>(sfa)[tid];
    reinterpret_cast<uint32_t *>(sfb_atom)[tid] = reinterpret_cast<const uint32_t *>(sfb)[tid];

    // tcgen05.cp and tcgen05.mma read shared memory through the async proxy.
    fence_proxy_async_cta();
    tcgen05_fence_before();
    __syncthreads();
    tcgen05_fence_after();
    const uint32_t taddr = taddr_storage;

    if (warp == 0 && elect_one()) {
        const uint32_t a_addr = smem_addr(a_tile), b_addr = smem_addr(b_tile);
        // cp -> mma of one thread is a pipeline: no wait.
        tcgen05_cp_32x128b(taddr + SFA_COLUMN, scale_desc(smem_addr(sfa_atom)));
        tcgen05_cp_32x128b(taddr + SFB_COLUMN, scale_desc(smem_addr(sfb_atom)));
        for (uint32_t k = 0; k < STEPS; ++k)
            mma_mxf8f6f4(taddr, operand_desc(a_addr + k * STEP_BYTES), operand_desc(b_addr + k * STEP_BYTES),
                         idesc(k), taddr + SFA_COLUMN, taddr + SFB_COLUMN, k != 0);
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
