// Prepares gemv_ring: sm_90 and newer.
#ifdef NVFP4_GEMV_NO_KERNELS // built for other architectures only

#include <cuda_runtime.h>

#include "../nvfp4_gemv.h"

extern "C" int32_t nvfp4_gemv_prepare_ring(nvfp4_gemv_prepared *, const nvfp4_gemv_args *,
                                           const nvfp4_ring_config *) {
    return cudaErrorNoKernelImageForDevice;
}

#else

#include "../kernels/gemv_ring.cuh"

#include <algorithm>

#include "arguments.cuh"
#include "prepared.cuh"

namespace nvfp4::ring {

using Kernel = void (*)(Params);

template <int kActivation>
static Kernel kernel_for(int32_t n) {
    if (n <= 1) return gemv_ring<kActivation, 1>;
    if (n <= 2) return gemv_ring<kActivation, 2>;
    if (n <= 4) return gemv_ring<kActivation, 4>;
    return gemv_ring<kActivation, 8>;
}

static Kernel kernel_for(int32_t activation, int32_t n) {
    switch (activation) {
        case NVFP4_ACTIVATION_NVFP4: return kernel_for<NVFP4_ACTIVATION_NVFP4>(n);
        case NVFP4_ACTIVATION_F16: return kernel_for<NVFP4_ACTIVATION_F16>(n);
        case NVFP4_ACTIVATION_BF16: return kernel_for<NVFP4_ACTIVATION_BF16>(n);
        default: return nullptr;
    }
}

// Bytes of partial sums that wait for the end of a window, at most, unless one tile has more.
constexpr uint32_t kWindowBytes = 24 * 1024;

// Lays out shared memory, and returns its size.
static uint32_t lay_out(Params &p, uint32_t vectors, uint32_t vector_block_bytes, bool scaled) {
    const uint32_t blocks = p.slices * kSliceBlocks;
    const uint32_t warps = p.groups * p.stage_slices;
    // Of the CTA that has most: a tile more where its first one is cut by the alignment.
    const uint32_t most = (p.units_per_cta + (p.units_left != 0)) << p.unit_log2;
    const uint32_t tiles = (most + kTileRows - 1) / kTileRows + (p.l > 1);
    const uint32_t tile_bytes = warps * kTileRows * vectors * 4;
    p.window = std::max(1u, std::min(tiles, kWindowBytes / tile_bytes));
    p.x_batches = std::min<uint32_t>(p.l, (most + p.places - 2) / p.places + 1);
    p.stage_bytes = stage_bytes(p.stage_slices, p.scale_layout.tiled);
    p.x_at = p.stages * p.stage_bytes;
    p.zero_at = p.x_at + p.x_batches * vectors * blocks * vector_block_bytes;
    p.x_scale_at = p.zero_at + kZeroBytes;
    p.partial_at = p.x_scale_at + (scaled ? p.x_batches * vectors * blocks * 4 : 0);
    return p.partial_at + p.window * tile_bytes;
}

static cudaError_t prepare(Prepared &prepared, const nvfp4_gemv_args &a, const nvfp4_ring_config &c) {
    const int32_t blocks = a.k / kBlock;
    const bool scaled = a.activation == NVFP4_ACTIVATION_NVFP4;
    Params p = {};
    p.m = a.m;
    p.l = a.l;
    p.slices = a.k / 256;
    p.stage_slices = c.slices;
    p.groups = c.groups;
    p.stages = c.stages;
    p.chunks = p.slices / p.stage_slices;
    p.scale_layout = ScaleLayout::make(a.weight_scale_layout, blocks, blocks);
    const bool tiled = p.scale_layout.tiled;
    const uint32_t whole = tiled ? 128 : a.l > 1 ? kTileRows : 1;
    p.places = (a.m + whole - 1) / whole * whole;
    p.unit_log2 = tiled ? 2 : 0;
    const uint32_t units = (p.places * a.l) >> p.unit_log2;
    p.units_per_cta = units / c.ctas;
    p.units_left = units % c.ctas;
    p.codes = device<const uint8_t>(a.weight_codes);
    p.scales = device<const uint8_t>(a.weight_scales);
    p.code_row_bytes = a.k / 2;
    p.scale_batch_bytes = p.scale_layout.batch_bytes(a.m);
    p.vector_row_bytes = a.vector_row_stride;
    p.vector_batch_bytes = a.vector_batch_stride;
    p.vector_scale_layout = ScaleLayout::make(a.vector_scale_layout, blocks, a.vector_scale_row_stride);
    p.vector_scale_batch_bytes = a.vector_scale_batch_stride;
    const int64_t scale_row_bytes =
        p.vector_scale_layout.tiled ? 16 : p.vector_scale_layout.row_stride; // n <= 16 < 32 rows
    for (int32_t first = 0; first < a.n; first += kMaxVectors) {
        p.n = std::min(a.n - first, kMaxVectors);
        p.vectors = device<const uint8_t>(a.vectors) + first * a.vector_row_stride;
        p.vector_scales = device<const uint8_t>(a.vector_scales) + first * scale_row_bytes;
        p.epilogue = epilogue(a, first);
        const uint32_t vectors = p.n <= 2 ? p.n : p.n <= 4 ? 4 : 8;
        const uint32_t shared = lay_out(p, vectors, scaled ? 16 : 32, scaled);
        Call call = {};
        call.kernel = reinterpret_cast<const void *>(kernel_for(a.activation, p.n));
        if (call.kernel == nullptr) return cudaErrorInvalidValue;
        call.grid_x = uint32_t(c.ctas);
        call.grid_y = 1;
        call.threads = uint32_t(c.groups * c.slices + kProducers) * kWarp;
        call.static_shared = sizeof(Barriers);
        call.dynamic_shared = shared;
        call.dependent = uint32_t(c.dependent);
        const cudaError_t status = prepared.add(call, p);
        if (status != cudaSuccess) return status;
    }
    return cudaSuccess;
}

}  // namespace nvfp4::ring

extern "C" int32_t nvfp4_gemv_prepare_ring(nvfp4_gemv_prepared *prepared, const nvfp4_gemv_args *args,
                                           const nvfp4_ring_config *config) {
    return nvfp4::ring::prepare(nvfp4::Prepared::in(prepared), *args, *config);
}

#endif
