// Prepares the tensor-core kernel: sm_100a, sm_103a and their families.
#ifdef NVFP4_GEMV_NO_KERNELS // built for other architectures only

#include <cuda_runtime.h>

#include "../nvfp4_gemv.h"

extern "C" int32_t nvfp4_gemv_prepare_tensor_core(nvfp4_gemv_prepared *, const nvfp4_gemv_args *,
                                                  const nvfp4_tile_config *) {
    return cudaErrorNoKernelImageForDevice;
}

#else

#include "../kernels/gemv_tcgen05.cuh"
#include "tiles.cuh"

namespace nvfp4 {

template <uint32_t kN>
static cudaError_t prepare_tcgen05(Prepared &prepared, const nvfp4_gemv_args &a,
                                   const nvfp4_tile_config &c) {
    tile::Maps maps;
    const cudaError_t status = tile::encode(&maps, a, 0, a.n, kN, tcgen05::Stage<kN>::kScaleRows);
    if (status != cudaSuccess) return status;
    tile::Params p = tile::params(a, c, 0, a.n);
    p.tmem_columns = tcgen05::columns(kN, p.stages);
    const tile::Kernel kernel = {reinterpret_cast<const void *>(tcgen05::gemv_tcgen05<kN>),
                                 tcgen05::kThreads, sizeof(tcgen05::Shared),
                                 tile::dynamic_bytes(tcgen05::Stage<kN>::kBytes, c.stages)};
    return tile::add(prepared, kernel, maps, p, a, c);
}

}  // namespace nvfp4

extern "C" int32_t nvfp4_gemv_prepare_tensor_core(nvfp4_gemv_prepared *out,
                                                  const nvfp4_gemv_args *args,
                                                  const nvfp4_tile_config *config) {
    nvfp4::Prepared &prepared = nvfp4::Prepared::in(out);
    switch (config->mma_n) {
        case 16: return nvfp4::prepare_tcgen05<16>(prepared, *args, *config);
        case 64: return nvfp4::prepare_tcgen05<64>(prepared, *args, *config);
        case 128: return nvfp4::prepare_tcgen05<128>(prepared, *args, *config);
        default: return cudaErrorInvalidValue;
    }
}

#endif
