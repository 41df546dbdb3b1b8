// csrc/arch/mixed.cuh: one thread computes with one element of `in`, two halves and an f32.
#include "../../../csrc/arch/mixed.cuh"

#include <cstdint>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000

struct Operands {
    __half a, b;
    float c;
};

// Wrong: the other half.
extern "C" __global__ void add_mixed(const Operands *in, float *out, uint32_t wrong) {
    const Operands x = in[threadIdx.x];
    out[threadIdx.x] = nvfp4::arch::add_mixed(wrong ? x.b : x.a, x.c);
}

// Wrong: a square.
extern "C" __global__ void mul_mixed(const Operands *in, float *out, uint32_t wrong) {
    const Operands x = in[threadIdx.x];
    out[threadIdx.x] = nvfp4::arch::mul_mixed(x.a, wrong ? x.a : x.b);
}

#endif
