// Launches the quantiser.
#include <cuda_runtime.h>

#include <algorithm>

#include "../kernels/quantize.cuh"
#include "../nvfp4_gemv.h"

namespace nvfp4 {

template <bool kTiled>
static const void *quantize_kernel(int32_t source) {
    switch (source) {
        case NVFP4_ACTIVATION_F16: return reinterpret_cast<const void *>(quantize<LoadF16, kTiled>);
        case NVFP4_ACTIVATION_BF16:
            return reinterpret_cast<const void *>(quantize<LoadBf16, kTiled>);
        case NVFP4_ACTIVATION_F32: return reinterpret_cast<const void *>(quantize<LoadF32, kTiled>);
        default: return nullptr;
    }
}

}  // namespace nvfp4

extern "C" int32_t nvfp4_gemv_quantize(const nvfp4_quantize_args *args, void *stream) {
    const nvfp4_quantize_args &a = *args;
    const void *kernel = a.scale_layout == NVFP4_SCALES_128X4
                             ? nvfp4::quantize_kernel<true>(a.source)
                             : nvfp4::quantize_kernel<false>(a.source);
    if (!kernel) return cudaErrorInvalidValue;
    nvfp4::QuantizeParams p = {};
    p.n = a.n;
    p.l = a.l;
    p.blocks = a.k / 16;
    p.global_kind = a.global_kind;
    p.global = a.global;
    p.globals = reinterpret_cast<const float *>(a.globals);
    p.vectors = reinterpret_cast<const uint8_t *>(a.vectors);
    p.vector_row_bytes = a.vector_row_stride;
    p.vector_batch_bytes = a.vector_batch_stride;
    p.codes = reinterpret_cast<uint8_t *>(a.codes);
    p.scales = reinterpret_cast<uint8_t *>(a.scales);
    p.alpha = reinterpret_cast<float *>(a.vector_alpha);
    void *arguments[] = {&p};
    const dim3 grid(unsigned(a.ctas), unsigned(a.n), unsigned(std::min(a.l, 65535)));
    return cudaLaunchKernel(kernel, grid, dim3(nvfp4::kQuantizeThreads), arguments, 0,
                            static_cast<cudaStream_t>(stream));
}
