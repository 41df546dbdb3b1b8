// Programmatic dependent launch of kernels that take tensor memory, all of it: the first lets the second start at once,
// and allocates late. One warp.
#include "../../../csrc/arch/griddepcontrol.cuh"
#include "../../../csrc/arch/tcgen05.cuh"

#include "common.cuh"

using namespace nvfp4;

__device__ __forceinline__ void use(u32* o, u32 columns) {
    __shared__ u32 at;
    arch::tcgen05_alloc(smem(&at), columns);
    arch::tcgen05_relinquish_alloc_permit();
    __syncwarp();
    const u32 tmem = at;
    if (threadIdx.x == 0) *o = tmem;
    arch::tcgen05_dealloc(tmem, columns);
}

extern "C" __global__ void pdl_first(u32* o, u32 columns) {
    arch::griddepcontrol_launch_dependents();
#pragma unroll 1
    for (u32 i = 0; i < 200; i++) sleep_ns(1000);
    use(o, columns);
}

// Waits for the first, and allocates then: the order of this repository's kernels.
extern "C" __global__ void pdl_wait_then_allocate(u32* o, u32 columns) {
    arch::griddepcontrol_wait();
    use(o + 1, columns);
}

// Allocates while the first may still run. With half of tensor memory each, both have room.
extern "C" __global__ void pdl_allocate_then_wait(u32* o, u32 columns) {
    __shared__ u32 at;
    arch::tcgen05_alloc(smem(&at), columns);
    arch::tcgen05_relinquish_alloc_permit();
    __syncwarp();
    const u32 tmem = at;
    arch::griddepcontrol_wait();
    if (threadIdx.x == 0) o[1] = tmem < 0x10000;
    arch::tcgen05_dealloc(tmem, columns);
}

// Holds tensor memory while others begin: a kernel of somebody else's.
extern "C" __global__ void pdl_hold(u32* o, u32 columns) {
    __shared__ u32 at;
    arch::tcgen05_alloc(smem(&at), columns);
    arch::tcgen05_relinquish_alloc_permit();
    __syncwarp();
    const u32 tmem = at;
    arch::griddepcontrol_launch_dependents();
#pragma unroll 1
    for (u32 i = 0; i < 20; i++) sleep_ns(1000);
    if (threadIdx.x == 0) *o = tmem;
    arch::tcgen05_dealloc(tmem, columns);
}
