// csrc/arch/tcgen05.cuh: multiplications, with what brings their operands and takes their results.
#include "../../../csrc/arch/cp_async_bulk.cuh"
#include "../../../csrc/arch/mbarrier.cuh"
#include "../../../csrc/arch/shared.cuh"
#include "../../../csrc/arch/tcgen05.cuh"

using namespace nvfp4;

// Operands that the test places: four K slices of 64 elements in rows of 128 bytes, an atom of scales a slice.
struct Image {
    alignas(1024) uint8_t a[128 * 128], b[128 * 128], scales_a[4 * 512], scales_b[4 * 512];
};

enum Wrong : uint32_t {
    kNone,
    kNoProxyFence,
    kNoWait,
    kNoFenceAfterWait,
    kNoWaitLoad,
    kNoFenceBeforeBarrier,
    kNoFenceAfterBarrier,
    kNoDealloc,
    kNoSwizzle,
    kNoStride,
    kAtomStride,
    kScalesExchanged,
    kHalfOfN,
    kOtherLanes,
    kNextColumn,
    kNoCommit,
};

// D = A x B over K slices first..last, `rounds` times; later ones add to the sum where `keep`. After
// each round out[round][row][n] = D.
extern "C" __global__ void __launch_bounds__(128)
    multiply(const uint4 *in, uint32_t *out, uint32_t n, uint32_t first, uint32_t last,
             uint32_t rounds, uint32_t keep, uint32_t wrong) {
    __shared__ Image image;
    __shared__ uint64_t storage;
    __shared__ uint32_t tmem_storage;
    const uint32_t t = threadIdx.x, warp = t / 32, done = arch::shared_address(&storage);
    for (uint32_t i = t; i < sizeof(Image) / 16; i += 128) reinterpret_cast<uint4 *>(&image)[i] = in[i];
    if (wrong != kNoProxyFence) arch::fence_proxy_async();
    if (warp == 0) {
        arch::tcgen05_alloc(arch::shared_address(&tmem_storage), 256);
        arch::tcgen05_relinquish_alloc_permit();
    }
    if (t == 0) {
        arch::mbarrier_init(done, 1);
        arch::fence_mbarrier_init();
    }
    arch::tcgen05_fence_before_thread_sync();
    __syncthreads();
    arch::tcgen05_fence_after_thread_sync();
    const uint32_t tmem = tmem_storage, scales_a = tmem + 128, scales_b = tmem + 160;
    const uint32_t instruction = arch::nvfp4_instruction(wrong == kHalfOfN ? n / 2 : n);

    const auto rows = [&](const uint8_t *p, uint32_t k) {
        const uint32_t at = arch::shared_address(p) + 32 * k;
        if (wrong == kNoSwizzle) return arch::shared_descriptor(at, 1024, 0);
        if (wrong == kNoStride) return arch::shared_descriptor(at, 0, 2);
        return arch::rows_descriptor(at);
    };
    const auto atom = [&](const uint8_t *p, uint32_t k) {
        const uint32_t at = arch::shared_address(p) + 512 * k;
        return wrong == kAtomStride ? arch::shared_descriptor(at, 64, 0) : arch::atom_descriptor(at);
    };
    for (uint32_t round = 0; round < rounds; ++round) {
        if (warp == 0) {
            if (arch::elect_sync()) {
                for (uint32_t k = first; k < last; ++k) {
                    arch::tcgen05_cp_32x128b_warpx4(scales_a + 4 * k, atom(image.scales_a, k));
                    arch::tcgen05_cp_32x128b_warpx4(scales_b + 4 * k, atom(image.scales_b, k));
                }
                for (uint32_t k = first; k < last; ++k) {
                    uint32_t sa = scales_a + 4 * k, sb = scales_b + 4 * k;
                    if (wrong == kScalesExchanged) sa = sb, sb = scales_a + 4 * k;
                    arch::tcgen05_mma_mxf4nvf4(tmem, rows(image.a, k), rows(image.b, k), instruction, sa, sb,
                                    k != first || (round != 0 && keep));
                }
                if (wrong != kNoCommit) arch::tcgen05_commit(done);
            }
            __syncwarp();
        }
        if (wrong != kNoWait) arch::mbarrier_wait(done, round & 1);
        __syncwarp();
        if (wrong != kNoFenceAfterWait) arch::tcgen05_fence_after_thread_sync();
        const uint32_t lanes = wrong == kOtherLanes ? 0 : warp * 32 << 16;
        for (uint32_t c = 0; c < n; c += 16) {
            uint32_t sums[16];
            arch::tcgen05_ld_32x32b_x16(sums, tmem + lanes + c + (wrong == kNextColumn));
            if (wrong != kNoWaitLoad) arch::tcgen05_wait_ld();
            for (uint32_t i = 0; i < 16; ++i) out[(round * 128 + t) * n + c + i] = sums[i];
        }
        if (wrong != kNoFenceBeforeBarrier) arch::tcgen05_fence_before_thread_sync();
        __syncthreads();
        if (wrong != kNoFenceAfterBarrier) arch::tcgen05_fence_after_thread_sync();
    }
    if (warp == 0 && wrong != kNoDealloc) arch::tcgen05_dealloc(tmem, 256);
}
