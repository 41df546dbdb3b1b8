// One `wgmma` of a warpgroup, A and B in shared memory, as kernel NAME, of the namespace that includes this: what the
// instruction is in machine code is read from it. It is compiled, not run.
extern "C" __global__ void NAME(u32 *out, u64 a, u64 b, u32 more) {
    u32 d[C_REGISTERS];
#pragma unroll
    for (u32 i = 0; i < C_REGISTERS; ++i) d[i] = out[i * 128 + threadIdx.x];
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    multiply(d, a, b, more);
    asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (u32 i = 0; i < C_REGISTERS; ++i) out[i * 128 + threadIdx.x] = d[i];
}
