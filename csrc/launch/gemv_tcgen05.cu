// Launches the tensor-core kernel: sm_100a, sm_103a and their families.
#ifdef NVFP4_GEMV_NO_KERNELS // built for other architectures only

#include <cuda_runtime.h>

#include "../nvfp4_gemv.h"

extern "C" int32_t nvfp4_gemv_tensor_core(const nvfp4_gemv_args *, const nvfp4_tile_config *, void *) {
    return cudaErrorNoKernelImageForDevice;
}

#else

#include "../kernels/gemv_tcgen05.cuh"
#include "tiles.cuh"

namespace nvfp4 {

template <uint32_t kN>
static cudaError_t launch_tcgen05(const nvfp4_gemv_args &a, const nvfp4_tile_config &c,
                                  cudaStream_t stream) {
    tile::Maps maps;
    const cudaError_t status = tile::encode(&maps, a, 0, a.n, kN, tcgen05::Stage<kN>::kScaleRows);
    if (status != cudaSuccess) return status;
    tile::Params p = tile::params(a, c, 0, a.n);
    p.tmem_columns = tcgen05::columns(kN, p.stages);
    const tile::Kernel kernel = {reinterpret_cast<const void *>(tcgen05::gemv_tcgen05<kN>),
                                 tcgen05::kThreads, sizeof(tcgen05::Shared),
                                 tile::dynamic_bytes(tcgen05::Stage<kN>::kBytes, c.stages)};
    return tile::launch(kernel, maps, p, a, c, stream);
}

}  // namespace nvfp4

extern "C" int32_t nvfp4_gemv_tensor_core(const nvfp4_gemv_args *args,
                                          const nvfp4_tile_config *config, void *stream) {
    const auto s = static_cast<cudaStream_t>(stream);
    switch (config->mma_n) {
        case 16: return nvfp4::launch_tcgen05<16>(*args, *config, s);
        case 64: return nvfp4::launch_tcgen05<64>(*args, *config, s);
        case 128: return nvfp4::launch_tcgen05<128>(*args, *config, s);
        default: return cudaErrorInvalidValue;
    }
}

#endif
