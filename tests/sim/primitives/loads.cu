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
KERNEL(load_cached_16, uint16_t)
KERNEL(load_cached_8, uint8_t)
KERNEL(load_fresh_8, uint8_t)
