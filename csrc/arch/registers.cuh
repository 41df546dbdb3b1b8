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

// addend + a * b, in one instruction. Written as such, because the compiler turns a product of two 32-bit numbers of which one
// does not change in a loop into one of 64-bit numbers, which takes five.
__device__ __forceinline__ const uint8_t *mad_wide_s32(int32_t a, int32_t b, const uint8_t *addend) {
    const uint8_t *sum;
    asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(sum) : "r"(a), "r"(b), "l"(addend));
    return sum;
}

// By all warps of a warpgroup together: from now on each thread has kCount registers, a multiple of 8 from 24 to 256. Code
// for one architecture alone (sm_90a and newer). More than before: waits until other warpgroups of the CTA have given up as
// many.
template <int kCount>
__device__ __forceinline__ void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
// No more than before: what is given up is for others.
template <int kCount>
__device__ __forceinline__ void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace nvfp4::arch
