// D[M][16] = (W * SFW)[M][K] * (X * SFX)[n][K]^T: E2M1 codes, one UE4M3 scale per 16, K a multiple
// of 256, n <= 16. Each CTA takes 128 rows and streams K through a ring of three shared-memory
// stages filled by TMA. 192 threads: warps 0-3 store the result, warp 4 loads, warp 5 multiplies.
// Other widths include this file: mma_tile.cu.
#include "ptx_ops.cuh"
#include <cuda.h>

#ifndef PIPELINED_KERNEL
#define PIPELINED_KERNEL mma_pipelined
#define PIPELINED_N 16
#endif

constexpr uint32_t M = 128, N = PIPELINED_N, STAGES = 3;
constexpr uint32_t STAGE_K = 256, STEPS = STAGE_K / 64, STEP_BYTES = 64 / 2;
constexpr uint32_t ATOM = 512; // scales of 128 rows x one K step

// A stage: both operands (128-byte rows, 128-byte swizzle), then both operands' scale atoms.
constexpr uint32_t W_BYTES = M * STAGE_K / 2, X_BYTES = N * STAGE_K / 2, SF_BYTES = STEPS * ATOM;
constexpr uint32_t X_AT = W_BYTES, SFW_AT = X_AT + X_BYTES, SFX_AT = SFW_AT + SF_BYTES;
constexpr uint32_t STAGE_BYTES = SFX_AT + SF_BYTES;
static_assert(STAGE_BYTES % 1024 == 0, "each stage starts a swizzle pattern");

// Tensor memory: the accumulator, then per stage four columns per K step and operand. Stages do not
// share scale columns: a tcgen05.cp is not ordered after an earlier MMA that reads its target.
constexpr uint32_t SCALE_COLUMN = N < 32 ? 32 : N, STAGE_COLUMNS = 2 * 4 * STEPS;
constexpr uint32_t COLUMNS = N < 32 ? 128 : 256;
static_assert(SCALE_COLUMN + STAGES * STAGE_COLUMNS <= COLUMNS, "scales fit");

// "Instruction descriptor", kind::mxf4nvf4: A and B E2M1, scales UE4M3 with ids 0, K = 64.
constexpr uint32_t IDESC = 1u << 7 | 1u << 10 | (N >> 3) << 17 | (M >> 7) << 27;

struct Barriers {
    uint64_t full[STAGES], empty[STAGES], done;
};

// Every lane waits; __syncwarp brings the warp together again after the loop.
static __device__ __forceinline__ void wait(const uint64_t &bar, uint32_t parity) {
    while (!mbarrier_try_wait(smem_addr(&bar), parity)) {
    }
    __syncwarp();
}

static __device__ __forceinline__ void load_stages(uint8_t *ring, const Barriers &bars, const CUtensorMap &w,
                                                   const CUtensorMap &x, const uint8_t *sfw,
                                                   const uint8_t *sfx, uint32_t stages) {
    const bool leader = elect_one();
    for (uint32_t i = 0; i < stages; ++i) {
        const uint32_t s = i % STAGES, turn = i / STAGES;
        if (turn > 0) {
            // The MMAs of the previous turn have read the stage and its scale columns. The fences
            // carry their order on through the arrive to the MMA warp, which overwrites those
            // columns ("Non-pipelined instructions, different thread", composed).
            wait(bars.empty[s], (turn - 1) & 1);
            tcgen05_fence_after();
            tcgen05_fence_before();
        }
        if (leader) {
            const uint32_t at = smem_addr(ring + s * STAGE_BYTES), full = smem_addr(&bars.full[s]);
            // Boxes count in full, with rows beyond the tensor filled with zeros.
            mbarrier_arrive_expect_tx(full, STAGE_BYTES);
            tma_load_2d(at, &w, i * (STAGE_K / 2), blockIdx.x * M, full);
            tma_load_2d(at + X_AT, &x, i * (STAGE_K / 2), 0, full);
            bulk_load(at + SFW_AT, sfw + (blockIdx.x * stages + i) * SF_BYTES, SF_BYTES, full);
            bulk_load(at + SFX_AT, sfx + i * SF_BYTES, SF_BYTES, full);
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
            const uint32_t sfa = taddr + SCALE_COLUMN + s * STAGE_COLUMNS, sfb = sfa + 4 * STEPS;
            for (uint32_t k = 0; k < STEPS; ++k) { // cp -> mma of one thread is a pipeline: no wait
                tcgen05_cp_32x128b(sfa + 4 * k, scale_desc(at + SFW_AT + k * ATOM));
                tcgen05_cp_32x128b(sfb + 4 * k, scale_desc(at + SFX_AT + k * ATOM));
            }
            for (uint32_t k = 0; k < STEPS; ++k)
                mma_mxf4nvf4(taddr, operand_desc(at + k * STEP_BYTES), operand_desc(at + X_AT + k * STEP_BYTES),
                             IDESC, sfa + 4 * k, sfb + 4 * k, i + k != 0);
            // Only where a load waits for it: no arrival may be under way when the CTA exits.
            if (i + STAGES < stages) tcgen05_commit(smem_addr(&bars.empty[s]));
            if (i + 1 == stages) tcgen05_commit(smem_addr(&bars.done));
        }
        __syncwarp();
    }
}

// sfw: per 128 rows, K/64 atoms in the 128x4 layout; sfx: K/64 atoms, rows n..127 padding.
extern "C" __global__ void __launch_bounds__(192)
    PIPELINED_KERNEL(const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap x,
                  const uint8_t *sfw, const uint8_t *sfx, float *d, uint32_t k) {
    extern __shared__ uint8_t unaligned[]; // STAGES * STAGE_BYTES + 1024
    __shared__ Barriers bars;
    __shared__ uint32_t taddr_storage;

    uint8_t *ring = unaligned + (-smem_addr(unaligned) & 1023); // to the swizzle pattern's start
    const uint32_t tid = threadIdx.x, warp = tid / 32, stages = k / STAGE_K;

    if (warp == 5) {
        tmem_alloc<1>(smem_addr(&taddr_storage), COLUMNS);
        tmem_relinquish<1>();
    }
    if (tid == 0) {
        for (uint32_t s = 0; s < STAGES; ++s) {
            mbarrier_init(smem_addr(&bars.full[s]), 1);
            mbarrier_init(smem_addr(&bars.empty[s]), 1);
        }
        mbarrier_init(smem_addr(&bars.done), 1);
        fence_mbarrier_init();
        fence_proxy_async_cta(); // TMA completes on the full barriers through the async proxy
    }
    tcgen05_fence_before();
    __syncthreads();
    tcgen05_fence_after();
    const uint32_t taddr = taddr_storage;

    if (warp == 4) {
        load_stages(ring, bars, w, x, sfw, sfx, stages);
    } else if (warp == 5) {
        multiply_stages(ring, bars, taddr, stages);
    } else {
        wait(bars.done, 0);
        tcgen05_fence_after();
#pragma unroll
        for (uint32_t n = 0; n < N; n += 16) {
            uint32_t r[16];
            tmem_load_x16(r, taddr + (warp * 32 << 16) + n); // "Access restrictions": warp w has lanes 32w..
            tmem_wait_load();
            for (uint32_t j = 0; j < 16; ++j) d[(blockIdx.x * M + tid) * N + n + j] = __uint_as_float(r[j]);
        }
        tcgen05_fence_before();
    }

    __syncthreads(); // no load from tensor memory is left when it is freed
    if (warp == 5) {
        tcgen05_fence_after();
        tmem_dealloc<1>(taddr, COLUMNS);
    }
}
