// Reads bytes by bulk copies into a ring in shared memory and does nothing with them. Together with read_only.cuh this
// is the ceiling that a GEMV's weights are measured against. A CTA is one warp. sm_90 and newer.
#include "../shared.h"

enum {
    NVFP4_READ_BULK_BAR_BYTES = 8, /* of shared memory for each stage, behind all of them */
};

/* Numbers of bytes are all multiples of 16. */
typedef struct nvfp4_read_bulk_params {
    NVFP4_POINTER(const uint8_t) data; /* 16-byte aligned */
    int64_t bytes;
    int64_t cta_step;    /* from where a CTA begins to where the next one does */
    int64_t cta_reach;   /* what a CTA reads lies within so many from where it begins */
    int64_t copy_step;   /* from where a copy of a CTA begins to where its next one does */
    uint32_t copy_bytes; /* of a copy, unless it is the last: a stage of the ring */
    uint32_t stages;
    uint32_t sums; /* not 0: the sum of all 32-bit words is added to the sink, which takes longer */
    NVFP4_POINTER(uint32_t) sink;
} nvfp4_read_bulk_params;

#ifdef __CUDACC__

#include "../arch/cp_async_bulk.cuh"
#include "../arch/mbarrier.cuh"
#include "../arch/shared.cuh"
#include "../entries.cuh"

namespace nvfp4::read_bulk {

using Params = nvfp4_read_bulk_params;

// A stage and the copy that it is for: stages are used one after the other, again and again.
struct Turn {
    const uint32_t stages_at, bars_at, copy_bytes, stages;
    int64_t at;
    uint32_t stage = 0, phase = 0;

    __device__ __forceinline__ Turn(const Params &p, uint32_t base, int64_t begin)
        : stages_at(base), bars_at(base + p.stages * p.copy_bytes), copy_bytes(p.copy_bytes), stages(p.stages),
          at(begin) {}

    __device__ __forceinline__ uint32_t bar() const { return bars_at + stage * NVFP4_READ_BULK_BAR_BYTES; }
    __device__ __forceinline__ uint32_t shared() const { return stages_at + stage * copy_bytes; }
    __device__ __forceinline__ uint32_t bytes(int64_t end) const {
        return uint32_t(min(int64_t(copy_bytes), end - at));
    }
    __device__ __forceinline__ void next(int64_t step) {
        at += step;
        if (++stage == stages) {
            stage = 0;
            phase ^= 1;
        }
    }
};

__device__ __forceinline__ void copy(const Params &p, const Turn &turn, int64_t end, uint64_t policy) {
    arch::mbarrier_arrive_expect_tx(turn.bar(), turn.bytes(end));
    arch::cp_async_bulk(turn.shared(), p.data + turn.at, turn.bytes(end), turn.bar(), policy);
}

__device__ __forceinline__ uint32_t sum_of(uint32_t shared, uint32_t bytes, uint32_t lane) {
    uint32_t sum = 0;
    for (uint32_t at = 16 * lane; at < bytes; at += 16 * NVFP4_WARP) {
        const uint4 v = arch::ld_shared_128(shared + at);
        sum += v.x + v.y + v.z + v.w;
    }
    return sum;
}

__device__ __forceinline__ void read(const Params &p) {
    extern __shared__ __align__(128) uint8_t ring[];
    const uint32_t lane = threadIdx.x;
    const int64_t begin = blockIdx.x * p.cta_step, end = min(begin + p.cta_reach, p.bytes);
    const uint64_t policy = arch::createpolicy_evict_first();
    Turn ahead(p, arch::shared_address(ring), begin), turn = ahead;
    if (lane == 0) {
        for (uint32_t i = 0; i < p.stages; ++i) arch::mbarrier_init(turn.bars_at + i * NVFP4_READ_BULK_BAR_BYTES, 1);
        arch::fence_mbarrier_init();
        for (uint32_t i = 0; i < p.stages && ahead.at < end; ++i, ahead.next(p.copy_step)) copy(p, ahead, end, policy);
    }
    __syncthreads();  // the mbarriers are ready
    uint32_t sum = 0;
    for (; turn.at < end; turn.next(p.copy_step)) {
        arch::mbarrier_wait(turn.bar(), turn.phase);
        if (p.sums != 0) {
            sum += sum_of(turn.shared(), turn.bytes(end), lane);
            arch::fence_proxy_async();
        }
        __syncwarp();
        if (lane == 0 && ahead.at < end) {
            copy(p, ahead, end, policy);
            ahead.next(p.copy_step);
        }
    }
    if (p.sums != 0) atomicAdd(p.sink, sum);
}

}  // namespace nvfp4::read_bulk

extern "C" __global__ void __launch_bounds__(NVFP4_WARP) read_bulk(const __grid_constant__ nvfp4_read_bulk_params p) {
    nvfp4::read_bulk::read(p);
}

#define READ_BULK(X) X(read_bulk)
NVFP4_TABLE(read_bulk, READ_BULK)

#endif
