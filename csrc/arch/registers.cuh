// Control over registers: values that stay in one, and how many a thread has.
#pragma once

#include <cstdint>

namespace nvfp4::arch {

// Two ways to keep a constant in a register. ptxas moves a constant that it knows into a register again before every
// use. It does not know a constant in which `zero` takes part: `zero` is 0, and comes from memory or a parameter.

// Keeps a constant by an XOR. Where registers are short, the compiler computes the XOR again for every use.
__device__ __forceinline__ uint32_t hidden(uint32_t constant, uint32_t zero) { return constant ^ zero; }

// Keeps a constant by a product with the thread's index. The compiler does not compute the product again, because it
// costs more than a register. The ring kernel is faster with this: docs/notes/ring.md.
__device__ __forceinline__ uint32_t computed(uint32_t constant, uint32_t zero) {
    return constant + threadIdx.x * zero;
}

// Keeps a value that the compiler would compute again wherever it is used.
__device__ __forceinline__ uint32_t kept(uint32_t value) {
    asm volatile("" : "+r"(value));
    return value;
}

// addend + a * b, in one instruction. Where a factor does not change in a loop, the compiler would turn the product of
// 32-bit numbers into one of 64-bit numbers, which takes five instructions.
__device__ __forceinline__ const uint8_t *mad_wide_s32(int32_t a, int32_t b, const uint8_t *addend) {
    const uint8_t *sum;
    asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(sum) : "r"(a), "r"(b), "l"(addend));
    return sum;
}

// Gives each thread kCount registers from now on, more than before: a multiple of 8 from 24 to 256. All warps of a
// warpgroup call it together. Waits until other warpgroups of the CTA have given up as many. Code for one architecture
// alone (sm_90a and newer).
template <int kCount>
__device__ __forceinline__ void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
// Leaves each thread kCount registers, no more than before. The others can go to other warpgroups.
template <int kCount>
__device__ __forceinline__ void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace nvfp4::arch
