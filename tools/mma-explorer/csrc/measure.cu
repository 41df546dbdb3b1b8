// Kernels of nothing but one matrix instruction, whichever `instruction.cuh` describes.
#include "instruction.cuh"
#include "types.cuh"

// Independent accumulators of a warp in `throughput`.
constexpr u32 CHAINS = 8;
// Instructions that follow each other in `latency` before the loop turns.
constexpr u32 LINKS = 16;

// Where the instruction is emulated, the compiler sees through it: products of fragments that stay the same are computed
// once, in front of the loop, and only additions stay in it. Then A changes with every instruction, by `step`, which is
// zero, and the compiler does not know it.
__device__ __forceinline__ void change(u32 (&a)[A_REGISTERS], u32 step) {
    if constexpr (EMULATED) {
#pragma unroll
        for (u32 i = 0; i < A_REGISTERS; ++i) a[i] += step;
    }
}

// A lane's fragments from memory: the compiler knows nothing of them, so that it cannot take two chains for one. `in` has
// the registers of A, of B, and of each accumulator, each as 32 words, one a lane.
template <u32 ACCUMULATORS>
__device__ __forceinline__ void load(u32 (&a)[A_REGISTERS], u32 (&b)[B_REGISTERS],
                                     u32 (&d)[ACCUMULATORS][C_REGISTERS], const u32 *in) {
    in += threadIdx.x % 32;
#pragma unroll
    for (u32 i = 0; i < A_REGISTERS; ++i, in += 32) a[i] = *in;
#pragma unroll
    for (u32 i = 0; i < B_REGISTERS; ++i, in += 32) b[i] = *in;
#pragma unroll
    for (u32 chain = 0; chain < ACCUMULATORS; ++chain) {
#pragma unroll
        for (u32 i = 0; i < C_REGISTERS; ++i, in += 32) d[chain][i] = *in;
    }
}

// Instructions that each wait for the one before: `turns` times LINKS of them. `cycles` gets what all of them took, by
// the SM's clock.
extern "C" __global__ void latency(u64 *cycles, u32 *out, const u32 *in, u32 turns,
                                   u32 step) {
    u32 a[A_REGISTERS], b[B_REGISTERS], d[1][C_REGISTERS];
    load(a, b, d, in);
    const u64 start = clock64();
#pragma unroll 1
    for (u32 turn = 0; turn < turns; ++turn) {
#pragma unroll
        for (u32 link = 0; link < LINKS; ++link) {
            multiply(d[0], a, b);
            change(a, step);
        }
    }
    const u64 end = clock64();
    for (u32 i = 0; i < C_REGISTERS; ++i) out[i * 32 + threadIdx.x] = d[0][i];
    if (threadIdx.x == 0) *cycles = end - start;
}

// Instructions that do not wait for each other: each warp has CHAINS accumulators, and multiplies into each of them
// `turns` times. `cycles` gets, for each warp, when it began and ended, by its SM's clock. `out` gets a number made of all
// chains for each of D's registers, C_REGISTERS words a thread, by thread.
extern "C" __global__ void throughput(u64 *cycles, u32 *out, const u32 *in, u32 turns,
                                   u32 step) {
    u32 a[A_REGISTERS], b[B_REGISTERS], d[CHAINS][C_REGISTERS];
    load(a, b, d, in);
    __syncthreads();
    const u64 start = clock64();
#pragma unroll 1
    for (u32 turn = 0; turn < turns; ++turn) {
#pragma unroll
        for (u32 chain = 0; chain < CHAINS; ++chain) {
            multiply(d[chain], a, b);
            change(a, step);
        }
    }
    const u64 end = clock64();
    const u64 thread = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    for (u32 i = 0; i < C_REGISTERS; ++i) {
        u32 all = 0;
        for (u32 chain = 0; chain < CHAINS; ++chain) all = all * 31 + d[chain][i];
        out[thread * C_REGISTERS + i] = all;
    }
    if (threadIdx.x % 32 == 0) {
        cycles[thread / 32 * 2] = start;
        cycles[thread / 32 * 2 + 1] = end;
    }
}
