// csrc/arch/shared.cuh.
#include "../../../csrc/arch/shared.cuh"

using namespace nvfp4;

// Two buffers; each thread reads its neighbour's number by its 32-bit address. Wrong: 1, the other
// buffer; 2, the low half of the generic address, past the window.
extern "C" __global__ void addresses(uint32_t *out, uint32_t wrong) {
    __shared__ uint32_t other[64], numbers[64];
    const uint32_t t = threadIdx.x, next = (t + 1) % 64;
    numbers[t] = 1000 + t;
    other[t] = t;
    __syncthreads();
    uint32_t address = arch::shared_address(&numbers[next]);
    if (wrong == 1) address = arch::shared_address(&other[next]);
    if (wrong == 2) address += 1 << 20;
    uint32_t value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    out[t] = value;
}

// Lanes that are elected, at two calls. Wrong: 1, two lanes; 2, by half a warp.
extern "C" __global__ void elections(uint32_t *out, uint32_t wrong) {
    if (wrong == 2 && threadIdx.x % 32 >= 16) __syncwarp(); // the elections wait elsewhere
    const bool first = wrong == 1 ? threadIdx.x % 16 == 3 : arch::elect_sync();
    const bool second = wrong == 1 ? first : arch::elect_sync();
    out[2 * threadIdx.x] = first;
    out[2 * threadIdx.x + 1] = second;
}
