// csrc/arch/convert.cuh and csrc/format/e2m1.cuh: one thread converts one element of `in`.
#include "../../../csrc/format/e2m1.cuh"

using namespace nvfp4;

__device__ uint32_t bits(__half2 pair) { return reinterpret_cast<uint32_t &>(pair); }
__device__ uint32_t index() { return blockIdx.x * blockDim.x + threadIdx.x; }

// Two E4M3 codes. Wrong: the pair the other way round.
extern "C" __global__ void e4m3_pairs(const uint16_t *in, uint32_t *out, uint32_t wrong) {
    const uint16_t codes = in[index()];
    out[index()] = bits(arch::cvt_e4m3x2(wrong ? uint16_t(codes << 8 | codes >> 8) : codes));
}

// Eight E2M1 codes as E2m1x8 has them, put in order. Wrong: in the order of the pairs.
extern "C" __global__ void e2m1_words(const uint32_t *in, uint16_t *out, uint32_t wrong) {
    E2m1x8 x;
    x.decode(in[index()]);
    x.normalize();
    for (int i = 0; i < 4; ++i) {
        const uint32_t pair = bits(x.pair[i]);
        out[8 * index() + (wrong ? 2 * i + 1 : E2m1x8::low(i))] = uint16_t(pair);
        out[8 * index() + (wrong ? 2 * i : E2m1x8::high(i))] = uint16_t(pair >> 16);
    }
}

#if NVFP4_HAS_CVT_E2M1
extern "C" __global__ void cvt_e2m1x8(const uint32_t *in, uint32_t *out, uint32_t wrong) {
    __half2 pairs[4];
    arch::cvt_e2m1x8(in[index()], pairs);
    for (int i = 0; i < 4; ++i) out[4 * index() + i] = bits(pairs[wrong ? i ^ 1 : i]);
}
#endif
