// What stays in a register.
#pragma once

#include <cstdint>

namespace nvfp4::arch {

// A constant that the assembler does not know: one that it knows it moves into a register again for every use.
// `zero` is 0, and comes from memory or a parameter.
__device__ __forceinline__ uint32_t hidden(uint32_t constant, uint32_t zero) { return constant ^ zero; }

// The same where the compiler would rather compute the XOR again for every use: a product costs it more.
__device__ __forceinline__ uint32_t computed(uint32_t constant, uint32_t zero) {
    return constant + threadIdx.x * zero;
}

// A value that the compiler would compute again wherever it is used.
__device__ __forceinline__ uint32_t kept(uint32_t value) {
    asm volatile("" : "+r"(value));
    return value;
}

}  // namespace nvfp4::arch
