// Conversions to codes, of csrc/format/encode.cuh and csrc/arch/convert.cuh.
#include "../../../csrc/format/encode.cuh"

using namespace nvfp4;

__device__ uint32_t index() { return blockIdx.x * blockDim.x + threadIdx.x; }

// Wrong: a little too small, so that no tie is one.
__device__ float scaled(float x, uint32_t wrong) { return wrong ? x * 0.99999994f : x; }

extern "C" __global__ void encode_e4m3s(const float *in, uint8_t *out, uint32_t wrong) {
    out[index()] = encode_e4m3(scaled(in[index()], wrong));
}

__device__ void read(float (&x)[8], const float *in, uint32_t wrong) {
    for (int i = 0; i < 8; ++i) x[i] = scaled(in[8 * index() + i], wrong);
}

extern "C" __global__ void encode_e2m1s(const float *in, uint32_t *out, uint32_t wrong) {
    float x[8];
    read(x, in, wrong);
    out[index()] = encode_e2m1x8(x);
}

// Conversions of numbers that only the instructions take.
#if NVFP4_HAS_CVT_E4M3
extern "C" __global__ void cvt_to_e4m3(const float *in, uint8_t *out, uint32_t wrong) {
    out[index()] = arch::cvt_to_e4m3(scaled(in[index()], wrong));
}
#endif

#if NVFP4_HAS_CVT_E2M1
extern "C" __global__ void cvt_to_e2m1x8(const float *in, uint32_t *out, uint32_t wrong) {
    float x[8];
    read(x, in, wrong);
    out[index()] = arch::cvt_to_e2m1x8(x);
}
#endif
