// One `tcgen05.mma` of one thread, A and B in shared memory, D and scales in tensor memory, as kernel NAME, of the namespace
// that includes this: what the instruction is in machine code is read from it. It is compiled, not run.
extern "C" __global__ void NAME(u32 d, u64 a, u64 b, u32 what, u32 scales_a, u32 scales_b, u32 more) {
    multiply(d, a, b, what, scales_a, scales_b, more);
}
