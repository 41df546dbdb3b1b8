// csrc/arch/memory.cuh: a kernel a function. Each thread copies one element from `in` + `offset`.
#include "../../../csrc/arch/memory.cuh"

#define KERNEL(name, Element)                                                                      \
    extern "C" __global__ void name(const uint8_t *in, Element *out, uint32_t offset) {            \
        out[threadIdx.x] = nvfp4::arch::name(in + offset + threadIdx.x * sizeof(Element));         \
    }

KERNEL(ld_global_nc_no_allocate_128, uint4)
KERNEL(ld_global_nc_no_allocate_64, uint2)
KERNEL(ld_global_128, uint4)
KERNEL(ld_global_64, uint2)
KERNEL(ld_global_nc_16, uint16_t)
KERNEL(ld_global_nc_8, uint8_t)
KERNEL(ld_global_8, uint8_t)
