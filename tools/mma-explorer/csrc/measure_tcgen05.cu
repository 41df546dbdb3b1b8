// Kernels of nothing but one `tcgen05.mma`, whichever `instruction.cuh` describes: as `measure.cu` has them of `mma.sync`, and
// with the same parameters. A CTA has four warps, of which one thread multiplies.
//
// Verified in simulation, not yet on hardware.
//
// A and B lie in shared memory, in rows of 128 bytes, which are four steps of the instruction. `in` has 16 bytes that A is
// full of, 16 of B, the instruction descriptor, and a word of scales.
#include "blackwell.cuh"
#include "instruction.cuh"
#include "memory.cuh"
#include "types.cuh"

// Instructions between turns of the loop.
constexpr u32 CHAINS = 8;
constexpr u32 LINKS = 16;
// Tensor memory: sums of ACCUMULATORS, then scales of A and of B, the same for every instruction.
constexpr u32 SCALE_COLUMN = ACCUMULATORS * INSTRUCTION_N;
constexpr u32 ATOMS_B = (INSTRUCTION_N + LANES - 1) / LANES;
static_assert(SCALE_COLUMN + (SCALES != 0 ? (1 + ATOMS_B) * ATOM_COLUMNS : 0) <= ALL_COLUMNS);
static_assert(INSTRUCTION_M == LANES && INSTRUCTION_N % 32 == 0 && INSTRUCTION_K_BYTES == 32);

struct __align__(1024) Operands {
    u32 a[LANES * 32];
    u32 b[INSTRUCTION_N * 32];
    u32 scales[ATOM_BYTES / 4];
    u64 over;
    u32 address;
};

// The operands of one thread's multiplications.
struct Multiplier {
    u32 tensor, over;
    u64 a, b;
    u32 what;

    // By all threads: fills A, B and scales, and allocates all of tensor memory. The barrier `over` waits for one arrival.
    __device__ __forceinline__ Multiplier(Operands &operands, const u32 *in)
        : over(shared_address(&operands.over)), a(rows_descriptor(shared_address(operands.a))),
          b(rows_descriptor(shared_address(operands.b))), what(in[8]) {
        // The number of threads is a multiple of four.
        const u32 word_a = in[threadIdx.x % 4], word_b = in[4 + threadIdx.x % 4], scale = in[9];
        for (u32 i = threadIdx.x; i < LANES * 32; i += blockDim.x) operands.a[i] = word_a;
        for (u32 i = threadIdx.x; i < INSTRUCTION_N * 32; i += blockDim.x) operands.b[i] = word_b;
        for (u32 i = threadIdx.x; i < ATOM_BYTES / 4; i += blockDim.x) operands.scales[i] = scale;
        writes_before_multiplications();
        if (threadIdx.x < 32) columns_allocate<1>(shared_address(&operands.address), ALL_COLUMNS);
        if (threadIdx.x == 0) {
            barrier_init(over, 1);
            barriers_are_ready();
        }
        tensor_fence_before();
        __syncthreads();
        tensor_fence_after();
        tensor = *static_cast<volatile u32 *>(&operands.address);
        if constexpr (SCALES != 0) {
            if (is_multiplier()) {
                for (u32 i = 0; i < 1 + ATOMS_B; ++i) {
                    copy_scales<1>(tensor + SCALE_COLUMN + i * ATOM_COLUMNS, shared_address(operands.scales));
                }
            }
        }
    }

    // One thread of the first warp.
    __device__ __forceinline__ bool is_multiplier() const { return threadIdx.x < 32 && elect_one(); }

    // Instruction number `index` of a turn, into one of the accumulators. `step` is zero.
    __device__ __forceinline__ void one(u32 accumulator, u32 index, u32 step, u32 more) const {
        multiply(tensor + accumulator * INSTRUCTION_N, a + index % 4 * 2 + step, b + index % 4 * 2, what,
                 tensor + SCALE_COLUMN, tensor + SCALE_COLUMN + ATOM_COLUMNS, more);
    }

    // By all threads, when all is over: writes a number made of the first COUNT accumulators for each of D's registers,
    // C_REGISTERS words a thread, and frees the tensor memory.
    template <u32 COUNT>
    __device__ __forceinline__ void finish(u32 *out) const {
        constexpr u32 AT_ONCE = 8 * ACCUMULATOR_BITS / 16;
        const u32 warp = threadIdx.x / 32;
        __syncwarp();
        tensor_fence_after();
        out += (u64(blockIdx.x) * blockDim.x + threadIdx.x) * C_REGISTERS;
#pragma unroll 1
        for (u32 part = 0; part < INSTRUCTION_N / 16; ++part, out += AT_ONCE) {
            const u32 from = tensor + ((warp * 32 + part % 2 * 16) << 16) + part / 2 * 32;
            u32 all[AT_ONCE] = {};
#pragma unroll
            for (u32 accumulator = 0; accumulator < COUNT; ++accumulator) {
                u32 values[AT_ONCE];
                load_sums(values, from + accumulator * INSTRUCTION_N);
                sums_wait(values);
                for (u32 i = 0; i < AT_ONCE; ++i) all[i] = all[i] * 31 + values[i];
            }
            for (u32 i = 0; i < AT_ONCE; ++i) out[i] = all[i];
        }
        tensor_fence_before();
        __syncthreads();
        if (threadIdx.x < 32) {
            tensor_fence_after();
            columns_free<1>(tensor, ALL_COLUMNS);
        }
    }
};

// Instructions that each wait for the one before to be over: `turns` times LINKS of them. `cycles` gets what all of them
// took.
extern "C" __global__ void __launch_bounds__(128) latency(u64 *cycles, u32 *out, const u32 *in, u32 turns, u32 step) {
    extern __shared__ __align__(1024) u8 shared[];
    const Multiplier multiplier(*reinterpret_cast<Operands *>(shared), in);
    if (multiplier.is_multiplier()) {
        const u64 start = clock64();
#pragma unroll 1
        for (u32 turn = 0; turn < turns; ++turn) {
#pragma unroll
            for (u32 link = 0; link < LINKS; ++link) {
                multiplier.one(0, link, step, turn + link);
                tensor_commit(multiplier.over);
                barrier_wait(multiplier.over, link % 2);
            }
        }
        *cycles = clock64() - start;
    }
    tensor_fence_before();
    __syncthreads();
    multiplier.finish<1>(out);
}

// Instructions that do not wait for each other: CHAINS a turn, in turn into each accumulator. Those on one accumulator do
// not wait for each other's results, they follow in the tensor core. `cycles` gets, for each warp, when it began and when
// all was over.
extern "C" __global__ void __launch_bounds__(128) throughput(u64 *cycles, u32 *out, const u32 *in, u32 turns, u32 step) {
    extern __shared__ __align__(1024) u8 shared[];
    const Multiplier multiplier(*reinterpret_cast<Operands *>(shared), in);
    const u64 start = clock64();
    if (multiplier.is_multiplier()) {
#pragma unroll 1
        for (u32 turn = 0; turn < turns; ++turn) {
#pragma unroll
            for (u32 chain = 0; chain < CHAINS; ++chain) {
                multiplier.one(chain % ACCUMULATORS, chain / ACCUMULATORS, step, turn + chain / ACCUMULATORS);
            }
        }
        tensor_commit(multiplier.over);
    }
    barrier_wait(multiplier.over, 0);
    const u64 end = clock64();
    multiplier.finish<ACCUMULATORS>(out);
    if (threadIdx.x % 32 == 0) {
        const u64 warp = (u64(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
        cycles[warp * 2] = start;
        cycles[warp * 2 + 1] = end;
    }
}
