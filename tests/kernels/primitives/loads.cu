// csrc/arch/memory.cuh: a kernel a function. Each thread copies one element from `in` + `offset`.
#include "../../../csrc/arch/memory.cuh"

#define KERNEL(name, Element)                                                                      \
    extern "C" __global__ void name(const uint8_t *in, Element *out, uint32_t offset) {            \
        out[threadIdx.x] = nvfp4::arch::name(in + offset + threadIdx.x * sizeof(Element));         \
    }

KERNEL(load_stream_128, uint4)
KERNEL(load_stream_64, uint2)
KERNEL(load_fresh_128, uint4)
KERNEL(load_fresh_64, uint2)
KERNEL(load_cached_32, uint32_t)
KERNEL(load_cached_16, uint16_t)
KERNEL(load_cached_8, uint8_t)
KERNEL(load_fresh_8, uint8_t)

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
struct Words {
    uint32_t v[8];
};
extern "C" __global__ void load_stream_256(const uint8_t *in, Words *out, uint32_t offset) {
    nvfp4::arch::load_stream_256(out[threadIdx.x].v, in + offset + threadIdx.x * sizeof(Words));
}
#endif
