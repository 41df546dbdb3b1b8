// What stays in a register.
#pragma once

#include <cstdint>

namespace nvfp4::arch {

// Two ways to keep a constant in a register. ptxas moves a constant that it knows into a register again before every
// use. It does not know one in which `zero` takes part: that is 0, and comes from memory or a parameter.

// By an XOR. Where registers are short, the compiler computes it again for every use.
__device__ __forceinline__ uint32_t hidden(uint32_t constant, uint32_t zero) { return constant ^ zero; }

// By a product with the thread's index, which the compiler does not compute again: it costs more than a register. The
// ring kernel is faster with this: docs/notes/ring.md.
__device__ __forceinline__ uint32_t computed(uint32_t constant, uint32_t zero) {
    return constant + threadIdx.x * zero;
}

// A value that the compiler would compute again wherever it is used.
__device__ __forceinline__ uint32_t kept(uint32_t value) {
    asm volatile("" : "+r"(value));
    return value;
}

}  // namespace nvfp4::arch
