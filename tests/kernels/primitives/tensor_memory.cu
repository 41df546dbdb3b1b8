// csrc/arch/tcgen05.cuh: allocation, copies of scales, loads, descriptors.
#include "../../../csrc/arch/cp_async_bulk.cuh"
#include "../../../csrc/arch/mbarrier.cuh"
#include "../../../csrc/arch/shared.cuh"
#include "../../../csrc/arch/tcgen05.cuh"

using namespace nvfp4;

// Two allocations by one warp. Wrong: 1, the permit is given up between them; 2, the first one stays;
// 3, half of it is freed.
extern "C" __global__ void allocations(uint32_t *out, uint32_t first, uint32_t second,
                                       uint32_t wrong) {
    __shared__ uint32_t storage[2];
    arch::tcgen05_alloc(arch::shared_address(&storage[0]), first);
    if (wrong == 1) arch::tcgen05_relinquish_alloc_permit();
    arch::tcgen05_alloc(arch::shared_address(&storage[1]), second);
    if (wrong != 1) arch::tcgen05_relinquish_alloc_permit();
    __syncwarp();
    const uint32_t a = storage[0], b = storage[1];
    out[0] = a;
    out[1] = b;
    if (wrong != 2) arch::tcgen05_dealloc(a, wrong == 3 ? first / 2 : first);
    arch::tcgen05_dealloc(b, second);
}

// Four atoms to 16 columns, and out[lane][column] = those. Wrong: 1, another stride; 2, atoms of the
// wrong half; 3, no wait for the copies.
extern "C" __global__ void __launch_bounds__(128)
    scales(const uint4 *in, uint32_t *out, uint32_t wrong) {
    __shared__ alignas(128) uint4 atoms[4 * 32];
    __shared__ uint64_t storage;
    __shared__ uint32_t tmem_storage;
    const uint32_t t = threadIdx.x, warp = t / 32, done = arch::shared_address(&storage);
    atoms[t] = in[t];
    arch::fence_proxy_async();
    if (warp == 0) {
        arch::tcgen05_alloc(arch::shared_address(&tmem_storage), 32);
        arch::tcgen05_relinquish_alloc_permit();
    }
    if (t == 0) {
        arch::mbarrier_init(done, 1);
        arch::fence_mbarrier_init();
    }
    arch::tcgen05_fence_before_thread_sync();
    __syncthreads();
    arch::tcgen05_fence_after_thread_sync();
    const uint32_t tmem = tmem_storage;
    if (t == 0) {
        for (uint32_t i = 0; i < 4; ++i) {
            const uint32_t atom = arch::shared_address(&atoms[32 * (wrong == 2 ? i ^ 2 : i)]);
            arch::tcgen05_cp_32x128b_warpx4(tmem + 4 * i, wrong == 1 ? arch::shared_descriptor(atom, 0, 0)
                                                            : arch::atom_descriptor(atom));
        }
        arch::tcgen05_commit(done);
    }
    if (wrong != 3) arch::mbarrier_wait(done, 0);
    __syncwarp();
    arch::tcgen05_fence_after_thread_sync();
    uint32_t columns[16];
    arch::tcgen05_ld_32x32b_x16(columns, tmem + (warp * 32 << 16));
    arch::tcgen05_wait_ld();
    for (uint32_t i = 0; i < 16; ++i) out[16 * t + i] = columns[i];
    arch::tcgen05_fence_before_thread_sync();
    __syncthreads();
    if (warp == 0) arch::tcgen05_dealloc(tmem, 32);
}

extern "C" __global__ void descriptors(uint64_t *out, uint32_t address, uint32_t stride,
                                       uint32_t swizzle) {
    out[0] = arch::shared_descriptor(address, stride, swizzle);
    out[1] = arch::rows_descriptor(address);
    out[2] = arch::atom_descriptor(address);
}

extern "C" __global__ void instructions(uint32_t *out) {
    out[threadIdx.x] = arch::nvfp4_instruction(8 * (threadIdx.x + 1));
}
