// D[M][N] = A[M][K] * B[N][K]^T: f16 in, f32 out, M and N multiples of 128, K one of 64. A matrix
// multiplication as programs launch it: each CTA of a two-dimensional grid takes 128 x 128 of D and
// streams K through a ring of four shared-memory stages filled by TMA. 192 threads: warps 0-3 store
// the result, warp 4 loads, warp 5 multiplies.
#include "ptx_ops.cuh"
#include <cuda.h>

constexpr uint32_t M = 128, N = 128, STAGES = 4;
constexpr uint32_t STAGE_K = 64, STEP_K = 16, STEPS = STAGE_K / STEP_K;

// A stage: both operands, in rows of 128 bytes with the 128-byte swizzle.
constexpr uint32_t A_BYTES = M * STAGE_K * 2, B_BYTES = N * STAGE_K * 2, STAGE_BYTES = A_BYTES + B_BYTES;
static_assert(A_BYTES % 1024 == 0 && STAGE_BYTES % 1024 == 0, "each operand starts a swizzle pattern");

// "Instruction descriptor", kind::f16: D f32, A and B f16.
constexpr uint32_t IDESC = 1u << 4 | (N >> 3) << 17 | (M >> 4) << 24;

struct Barriers {
    uint64_t full[STAGES], empty[STAGES], done;
};

// Every lane waits; __syncwarp brings the warp together again after the loop.
static __device__ __forceinline__ void wait(const uint64_t &bar, uint32_t parity) {
    while (!mbarrier_try_wait(smem_addr(&bar), parity)) {
    }
    __syncwarp();
}

static __device__ __forceinline__ void load_stages(uint8_t *ring, const Barriers &bars, const CUtensorMap &a,
                                                   const CUtensorMap &b, uint32_t stages) {
    const bool leader = elect_one();
    for (uint32_t i = 0; i < stages; ++i) {
        const uint32_t s = i % STAGES, turn = i / STAGES;
        if (turn > 0) wait(bars.empty[s], (turn - 1) & 1);
        if (leader) {
            const uint32_t at = smem_addr(ring + s * STAGE_BYTES), full = smem_addr(&bars.full[s]);
            mbarrier_arrive_expect_tx(full, STAGE_BYTES);
            tma_load_2d(at, &a, i * STAGE_K, blockIdx.y * M, full);
            tma_load_2d(at + A_BYTES, &b, i * STAGE_K, blockIdx.x * N, full);
        }
        __syncwarp();
    }
}

static __device__ __forceinline__ void multiply_stages(const uint8_t *ring, const Barriers &bars,
                                                       uint32_t taddr, uint32_t stages) {
    const bool leader = elect_one();
    for (uint32_t i = 0; i < stages; ++i) {
        const uint32_t s = i % STAGES;
        wait(bars.full[s], (i / STAGES) & 1); // TMA wrote through the async proxy: no proxy fence
        tcgen05_fence_after();
        if (leader) {
            const uint32_t at = smem_addr(ring + s * STAGE_BYTES);
            for (uint32_t k = 0; k < STEPS; ++k)
                mma_f16<1>(taddr, operand_desc(at + k * STEP_K * 2),
                           operand_desc(at + A_BYTES + k * STEP_K * 2), IDESC, i + k != 0);
            // Only where a load waits for it: no arrival may be under way when the CTA exits.
            if (i + STAGES < stages) tcgen05_commit(smem_addr(&bars.empty[s]));
            if (i + 1 == stages) tcgen05_commit(smem_addr(&bars.done));
        }
        __syncwarp();
    }
}

// n is the length of D's rows, gridDim.x * N.
extern "C" __global__ void __launch_bounds__(192)
    mma_matmul(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float *d, uint32_t n,
               uint32_t k) {
    extern __shared__ uint8_t unaligned[]; // STAGES * STAGE_BYTES + 1024
    __shared__ Barriers bars;
    __shared__ uint32_t taddr_storage;

    uint8_t *ring = unaligned + (-smem_addr(unaligned) & 1023); // to the swizzle pattern's start
    const uint32_t tid = threadIdx.x, warp = tid / 32, stages = k / STAGE_K;

    if (warp == 5) {
        tmem_alloc<1>(smem_addr(&taddr_storage), N);
        tmem_relinquish<1>();
    }
    if (tid == 0) {
        for (uint32_t s = 0; s < STAGES; ++s) {
            mbarrier_init(smem_addr(&bars.full[s]), 1);
            mbarrier_init(smem_addr(&bars.empty[s]), 1);
        }
        mbarrier_init(smem_addr(&bars.done), 1);
        fence_mbarrier_init();
    }
    tcgen05_fence_before();
    __syncthreads();
    tcgen05_fence_after();
    const uint32_t taddr = taddr_storage;

    if (warp == 4) {
        load_stages(ring, bars, a, b, stages);
    } else if (warp == 5) {
        multiply_stages(ring, bars, taddr, stages);
    } else {
        wait(bars.done, 0);
        tcgen05_fence_after();
        float *row = d + static_cast<size_t>(blockIdx.y * M + tid) * n + blockIdx.x * N;
#pragma unroll
        for (uint32_t col = 0; col < N; col += 16) {
            uint32_t r[16];
            tmem_load_x16(r, taddr + (warp * 32 << 16) + col); // "Access restrictions": warp w has lanes 32w..
            tmem_wait_load();
            for (uint32_t j = 0; j < 16; ++j) row[col + j] = __uint_as_float(r[j]);
        }
        tcgen05_fence_before();
    }

    __syncthreads(); // no load from tensor memory is left when it is freed
    if (warp == 5) {
        tcgen05_fence_after();
        tmem_dealloc<1>(taddr, N);
    }
}
