// csrc/arch/wgmma.cuh: D = A x B over slices of 16 of K, and what multiplications need around them.
#include "../../../csrc/arch/wgmma.cuh"

#include "../../../csrc/arch/cp_async_bulk.cuh"
#include "../../../csrc/arch/shared.cuh"

using namespace nvfp4;

// Columns of B: rows of 64 elements of K, as the test places them.
template <int kN>
struct Image {
    alignas(1024) uint8_t rows[kN * 128];
};

enum Wrong : uint32_t {
    kNone,
    kNoFence,
    kNoProxyFence,
    kNoBarrier,
    kNoWait,
    kOnePending,
    kNoCommit,
    kNextSlice,
    kNoSwizzle,
    kOverwritten,
};

// out[thread] = the thread's part of D, over slices 0..slices of K, `rounds` times: later rounds add to the sum. `a`
// holds four words a slice for each thread.
template <int kN, bool kBf16>
__device__ void multiply(const uint4 *b, const uint4 *a, float *out, uint32_t slices, uint32_t rounds, uint32_t wrong) {
    __shared__ Image<kN> image;
    const uint32_t t = threadIdx.x;
    for (uint32_t i = t; i < sizeof(image) / 16; i += 128) reinterpret_cast<uint4 *>(&image)[i] = b[i];
    if (wrong != kNoProxyFence) arch::fence_proxy_async();
    if (wrong != kNoBarrier) __syncthreads();
    const uint32_t at = arch::shared_address(&image);
    uint64_t rows = arch::wgmma_rows_descriptor(at);
    if (wrong == kNoSwizzle) rows &= ~(uint64_t(3) << 62);

    float d[kN / 2];
    for (float &sum : d) sum = 0;
    for (uint32_t round = 0; round < rounds; ++round) {
        for (uint32_t slice = 0; slice < slices; ++slice) {
            const uint4 words = a[t * slices + slice];
            uint32_t fragment[4] = {words.x, words.y, words.z, words.w};
            arch::wgmma_pin(fragment);
            arch::wgmma_pin(d);
            if (wrong != kNoFence) arch::wgmma_fence();
            const uint64_t here = rows + 2 * (wrong == kNextSlice ? slice ^ 1 : slice);
            const bool keep = round != 0 || slice != 0;
            if constexpr (kBf16) {
                arch::wgmma_bf16<kN>(d, fragment[0], fragment[1], fragment[2], fragment[3], here, keep);
            } else {
                arch::wgmma_f16<kN>(d, fragment[0], fragment[1], fragment[2], fragment[3], here, keep);
            }
            if (wrong != kNoCommit) arch::wgmma_commit_group();
            if (wrong == kOverwritten && t == 0) image.rows[0] = 0;
            if (wrong == kOnePending) {
                arch::wgmma_wait_group<1>();
            } else if (wrong != kNoWait) {
                arch::wgmma_wait_group<0>();
            }
            arch::wgmma_pin(d);
        }
    }
    for (uint32_t i = 0; i < kN / 2; ++i) out[t * (kN / 2) + i] = d[i];
}

template <bool kBf16>
__device__ void multiply_by(uint32_t n, const uint4 *b, const uint4 *a, float *out, uint32_t slices, uint32_t rounds,
                            uint32_t wrong) {
    if (n == 8) multiply<8, kBf16>(b, a, out, slices, rounds, wrong);
    if (n == 16) multiply<16, kBf16>(b, a, out, slices, rounds, wrong);
    if (n == 32) multiply<32, kBf16>(b, a, out, slices, rounds, wrong);
    if (n == 64) multiply<64, kBf16>(b, a, out, slices, rounds, wrong);
    if (n == 128) multiply<128, kBf16>(b, a, out, slices, rounds, wrong);
}

extern "C" __global__ void __launch_bounds__(128) f16(const uint4 *b, const uint4 *a, float *out, uint32_t n,
                                                     uint32_t slices, uint32_t rounds, uint32_t wrong) {
    multiply_by<false>(n, b, a, out, slices, rounds, wrong);
}

extern "C" __global__ void __launch_bounds__(128) bf16(const uint4 *b, const uint4 *a, float *out, uint32_t n,
                                                      uint32_t slices, uint32_t rounds, uint32_t wrong) {
    multiply_by<true>(n, b, a, out, slices, rounds, wrong);
}
