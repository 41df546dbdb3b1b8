// csrc/arch/mbarrier.cuh, with bulk copies where bytes are to be counted.
#include "../../../csrc/arch/cp_async_bulk.cuh"
#include "../../../csrc/arch/cluster.cuh"
#include "../../../csrc/arch/mbarrier.cuh"
#include "../../../csrc/arch/shared.cuh"

using namespace nvfp4;

enum Step : uint32_t { kArrive, kExpect, kCopy, kTry, kWait };

// One thread does what it is told: a step in the low byte, its argument above. For every step a word
// of output: what a try answers, else 2.
extern "C" __global__ void script(const uint8_t *from, const uint32_t *steps, uint32_t *out,
                                  uint32_t count, uint32_t arrivals) {
    __shared__ uint64_t storage;
    __shared__ alignas(16) uint8_t bytes[4096];
    const uint32_t bar = arch::shared_address(&storage);
    arch::mbarrier_init(bar, arrivals);
    arch::fence_mbarrier_init();
    uint32_t at = 0;
    for (uint32_t i = 0; i < count; ++i) {
        const uint32_t argument = steps[i] >> 8;
        uint32_t answer = 2;
        switch (steps[i] & 0xff) {
        case kArrive: arch::mbarrier_arrive(bar); break;
        case kExpect: arch::mbarrier_arrive_expect_tx(bar, argument); break;
        case kCopy:
            arch::cp_async_bulk(arch::shared_address(bytes + at), from, argument, bar,
                            arch::createpolicy_evict_first());
            at += argument;
            break;
        case kTry: answer = arch::mbarrier_try_wait_parity(bar, argument); break;
        case kWait: arch::mbarrier_wait(bar, argument); break;
        }
        out[i] = answer;
    }
}

// All threads write, arrive in either way, wait and read a neighbour's. Wrong: 1, an arrival too few is waited
// for; 2, one too many; 3, no wait; 4, initialised without a barrier after it; 5, twice the parity.
extern "C" __global__ void release(uint32_t *out, uint32_t wrong) {
    __shared__ uint64_t storage;
    __shared__ uint32_t numbers[2][128];
    const uint32_t bar = arch::shared_address(&storage), t = threadIdx.x;
    if (t == 0) {
        arch::mbarrier_init(bar, wrong == 1 ? 127 : wrong == 2 ? 129 : 128);
        arch::fence_mbarrier_init();
    }
    if (wrong != 4) __syncthreads();
    for (uint32_t phase = 0; phase < 2; ++phase) {
        numbers[phase][t] = 1000 * phase + t;
        if (t % 2) arch::mbarrier_arrive(bar);
        else arch::mbarrier_arrive_expect_tx(bar, 0);
        if (wrong != 3) arch::mbarrier_wait(bar, wrong == 5 ? 0 : phase);
        out[128 * phase + t] = numbers[phase][(t + 37) % 128];
    }
}

// Warp 0 hands `rounds` numbers to warp 1 through one place. Wrong: 1, the consumer does not say
// that it has read; 2, the producer's parity is the consumer's.
extern "C" __global__ void ring(uint32_t *out, uint32_t rounds, uint32_t wrong) {
    __shared__ uint64_t storage[2];
    __shared__ uint32_t place[32];
    const uint32_t full = arch::shared_address(&storage[0]), empty = full + 8;
    const uint32_t lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        arch::mbarrier_init(full, 32);
        arch::mbarrier_init(empty, 32);
        arch::fence_mbarrier_init();
    }
    __syncthreads();
    for (uint32_t i = 0; i < rounds; ++i) {
        if (threadIdx.x < 32) {
            if (wrong != 1) arch::mbarrier_wait(empty, wrong == 2 ? i & 1 : (i & 1) ^ 1);
            place[lane] = 100 * i + lane;
            arch::mbarrier_arrive(full);
        } else {
            arch::mbarrier_wait(full, i & 1);
            out[32 * i + lane] = place[lane];
            arch::mbarrier_arrive(empty);
        }
    }
}

// An initialisation that a cluster barrier without memory order hands on. Wrong: without the fence.
extern "C" __global__ void initialisation(uint32_t *out, uint32_t wrong) {
    __shared__ uint64_t storage;
    const uint32_t bar = arch::shared_address(&storage);
    if (threadIdx.x == 0) {
        arch::mbarrier_init(bar, 32);
        if (!wrong) arch::fence_mbarrier_init();
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    arch::barrier_cluster_wait();
    if (threadIdx.x >= 32) arch::mbarrier_arrive(bar);
    arch::mbarrier_wait(bar, 0);
    out[threadIdx.x] = threadIdx.x;
}
