// One instruction of one warp, as kernel NAME, of the namespace that includes this: what the instruction is in machine
// code is read from it. `in` has the registers of A, of B and of C, each as 32 words, one a lane; `out` gets those of D.
extern "C" __global__ void NAME(u32 *out, const u32 *in) {
    u32 a[A_REGISTERS], b[B_REGISTERS], d[C_REGISTERS];
    in += threadIdx.x;
#pragma unroll
    for (u32 i = 0; i < A_REGISTERS; ++i, in += 32) a[i] = *in;
#pragma unroll
    for (u32 i = 0; i < B_REGISTERS; ++i, in += 32) b[i] = *in;
#pragma unroll
    for (u32 i = 0; i < C_REGISTERS; ++i, in += 32) d[i] = *in;
    multiply(d, a, b);
#pragma unroll
    for (u32 i = 0; i < C_REGISTERS; ++i) out[i * 32 + threadIdx.x] = d[i];
}
