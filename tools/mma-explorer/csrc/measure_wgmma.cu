// Kernels of nothing but one `wgmma`, whichever `instruction.cuh` describes: as `measure.cu` has them of `mma.sync`, and
// with the same parameters. A and B lie in shared memory, in rows of 128 bytes, which are four steps of the instruction.
#include "hopper.cuh"
#include "instruction.cuh"
#include "memory.cuh"
#include "types.cuh"

// Instructions between turns of the loop.
constexpr u32 CHAINS = 8;
constexpr u32 LINKS = 16;

struct __align__(1024) Operands {
    u32 a[64 * 32];
    u32 b[INSTRUCTION_N * 32];
};

// Fills A with the first word of `in`, and B with the second one.
__device__ __forceinline__ void fill(Operands &operands, const u32 *in) {
    const u32 a = in[0], b = in[1];
    for (u32 i = threadIdx.x; i < 64 * 32; i += blockDim.x) operands.a[i] = a;
    for (u32 i = threadIdx.x; i < INSTRUCTION_N * 32; i += blockDim.x) operands.b[i] = b;
    writes_before_multiplications();
    __syncthreads();
}

// A warpgroup whose instructions each wait for the one before to be over: `turns` times LINKS of them. `cycles` gets what
// all of them took. `step` is zero.
extern "C" __global__ void __launch_bounds__(128) latency(u64 *cycles, u32 *out, const u32 *in, u32 turns, u32 step) {
    __shared__ Operands operands;
    fill(operands, in);
    const u64 a = rows_of_128_bytes(shared_address(operands.a)), b = rows_of_128_bytes(shared_address(operands.b));
    u32 d[C_REGISTERS] = {};
    changed_here(d);
    const u64 start = clock64();
#pragma unroll 1
    for (u32 turn = 0; turn < turns; ++turn) {
#pragma unroll
        for (u32 link = 0; link < LINKS; ++link) {
            multiplications_begin();
            multiply(d, a + link % 4 * 2 + step, b + link % 4 * 2, 1);
            multiplications_commit();
            multiplications_wait<0>();
        }
    }
    const u64 end = clock64();
    changed_here(d);
    for (u32 i = 0; i < C_REGISTERS; ++i) out[threadIdx.x * C_REGISTERS + i] = d[i];
    if (threadIdx.x == 0) *cycles = end - start;
}

// Warpgroups that multiply CHAINS times a turn, each into its accumulator: instructions of one warpgroup on one
// accumulator do not wait for each other's results, they follow in the tensor core. `cycles` gets, for each warp, when it
// began and ended. `out` gets C_REGISTERS words a thread. `step` is zero.
extern "C" __global__ void __launch_bounds__(384) throughput(u64 *cycles, u32 *out, const u32 *in, u32 turns, u32 step) {
    __shared__ Operands operands;
    fill(operands, in);
    const u64 a = rows_of_128_bytes(shared_address(operands.a)), b = rows_of_128_bytes(shared_address(operands.b));
    u32 d[C_REGISTERS] = {};
    changed_here(d);
    const u64 start = clock64();
#pragma unroll 1
    for (u32 turn = 0; turn < turns; ++turn) {
        multiplications_begin();
#pragma unroll
        for (u32 chain = 0; chain < CHAINS; ++chain) multiply(d, a + chain % 4 * 2 + step, b + chain % 4 * 2, 1);
        multiplications_commit();
        multiplications_wait<1>();
    }
    multiplications_wait<0>();
    const u64 end = clock64();
    changed_here(d);
    const u64 thread = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    for (u32 i = 0; i < C_REGISTERS; ++i) out[thread * C_REGISTERS + i] = d[i];
    if (threadIdx.x % 32 == 0) {
        cycles[thread / 32 * 2] = start;
        cycles[thread / 32 * 2 + 1] = end;
    }
}
