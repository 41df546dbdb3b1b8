// csrc/arch/mixed.cuh: one thread computes with one element of `in`, two halves and an f32.
#include "../../../csrc/arch/mixed.cuh"

#include <cstdint>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000

struct Operands {
    __half a, b;
    float c;
};

// Wrong: the other half.
extern "C" __global__ void add_f32_f16(const Operands *in, float *out, uint32_t wrong) {
    const Operands x = in[threadIdx.x];
    out[threadIdx.x] = nvfp4::arch::add_f32_f16(wrong ? x.b : x.a, x.c);
}

// Wrong: a square.
extern "C" __global__ void fma_f32_f16(const Operands *in, float *out, uint32_t wrong) {
    const Operands x = in[threadIdx.x];
    out[threadIdx.x] = nvfp4::arch::fma_f32_f16(x.a, wrong ? x.a : x.b);
}

#endif
