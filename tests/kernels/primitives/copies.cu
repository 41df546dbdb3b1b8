// csrc/arch/cp_async_bulk.cuh, with an mbarrier to wait for.
#include "../../../csrc/arch/cp_async_bulk.cuh"
#include "../../../csrc/arch/mbarrier.cuh"
#include "../../../csrc/arch/shared.cuh"

using namespace nvfp4;

constexpr uint32_t kBytes = 8192;

struct Place {
    uint64_t bar;
    alignas(1024) uint8_t bytes[kBytes];
};

__device__ uint32_t init(Place &place) {
    const uint32_t bar = arch::shared_address(&place.bar);
    if (threadIdx.x == 0) {
        arch::mbarrier_init(bar, 1);
        arch::fence_mbarrier_init();
    }
    __syncthreads();
    return bar;
}

__device__ void store(uint8_t *out, const Place &place, uint32_t at, uint32_t bytes) {
    for (uint32_t i = 16 * threadIdx.x; i < bytes; i += 16 * blockDim.x) {
        *reinterpret_cast<uint4 *>(out + i) = *reinterpret_cast<const uint4 *>(place.bytes + at + i);
    }
}

// `bytes` from `in` + `offset` to `at`. Wrong: 1, nobody waits; 2, an odd count of bytes.
extern "C" __global__ void bulk(const uint8_t *in, uint8_t *out, uint32_t offset, uint32_t bytes,
                                uint32_t at, uint32_t evict_last, uint32_t wrong) {
    __shared__ Place place;
    const uint32_t bar = init(place);
    if (threadIdx.x == 0) {
        const uint32_t count = wrong == 2 ? bytes - 8 : bytes;
        arch::mbarrier_arrive_expect_tx(bar, count);
        arch::cp_async_bulk(arch::shared_address(place.bytes + at), in + offset, count, bar,
                        evict_last ? arch::createpolicy_evict_last() : arch::createpolicy_evict_first());
    }
    if (wrong != 1) arch::mbarrier_wait(bar, 0);
    store(out, place, at, bytes);
}

// A box of a rank 3 map to `at`. Wrong: 1, x and y exchanged; 2, some bytes are not waited for.
extern "C" __global__ void box3(const __grid_constant__ CUtensorMap map, uint8_t *out, int32_t x,
                                int32_t y, int32_t z, uint32_t bytes, uint32_t at, uint32_t wrong) {
    __shared__ Place place;
    const uint32_t bar = init(place);
    if (threadIdx.x == 0) {
        arch::prefetch_tensormap(&map);
        arch::mbarrier_arrive_expect_tx(bar, wrong == 2 ? bytes - 128 : bytes);
        arch::cp_async_bulk_tensor_3d(arch::shared_address(place.bytes + at), &map, wrong == 1 ? y : x,
                       wrong == 1 ? x : y, z, bar, arch::createpolicy_evict_first());
    }
    arch::mbarrier_wait(bar, 0);
    store(out, place, at, bytes);
}

// A copy over what the threads have stored, or loaded where `loads`. Wrong: 1, no fence; 2, no
// barrier.
extern "C" __global__ void overwrite(const uint8_t *in, uint8_t *out, uint32_t loads,
                                     uint32_t wrong) {
    __shared__ Place place;
    const uint32_t bar = init(place);
    uint32_t sum = 0;
    if (loads) {
        if (threadIdx.x == 0) {
            arch::mbarrier_arrive_expect_tx(bar, 1024);
            arch::cp_async_bulk(arch::shared_address(place.bytes), in, 1024, bar,
                            arch::createpolicy_evict_first());
        }
        arch::mbarrier_wait(bar, 0);
        for (uint32_t i = threadIdx.x; i < 1024; i += blockDim.x) sum += place.bytes[i];
    } else {
        for (uint32_t i = threadIdx.x; i < 1024; i += blockDim.x) place.bytes[i] = 0xee;
    }
    if (wrong != 1) arch::fence_proxy_async();
    if (wrong != 2) __syncthreads();
    if (threadIdx.x == 0) {
        arch::mbarrier_arrive_expect_tx(bar, 1024);
        arch::cp_async_bulk(arch::shared_address(place.bytes), in + 1024, 1024, bar,
                        arch::createpolicy_evict_first());
    }
    arch::mbarrier_wait(bar, loads ? 1 : 0);
    store(out, place, 0, 1024);
    out[1024 + threadIdx.x] = uint8_t(sum);
}
