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

template <int kChunks, bool kCached>
static Kernel kernel_for(int32_t rows) {
    switch (rows) {
        case 1: return gemv_ring<kChunks, 1, kCached>;
        case 2: return gemv_ring<kChunks, 2, kCached>;
        case 4: return gemv_ring<kChunks, 4, kCached>;
        default: return nullptr;
    }
}

template <int kChunks>
static Kernel kernel_for(const nvfp4_ring_config &c) {
    return c.cached ? kernel_for<kChunks, true>(c.rows) : kernel_for<kChunks, false>(c.rows);
}

// Lays out shared memory, and returns its size.
static uint32_t lay_out(Params &p, uint32_t chunks, uint32_t rows) {
    const uint32_t units_in_ring = p.groups * p.depth;
    // Of the CTA that has most: a unit more where its first one is cut by the alignment.
    const uint32_t most = (p.granules_per_cta + (p.granules_left != 0)) << p.granule_log2;
    p.sums_pitch = ((most + kUnitRows - 1) / kUnitRows + 1) * kUnitRows;
    p.scales_at = units_in_ring * kUnitRows * p.row_bytes;
    p.bars_at = p.scales_at + p.groups * p.row_warps * kScaleSlots * chunks * kScaleBytes;
    p.sums_at = p.bars_at + units_in_ring * (kUnitRows / rows) * kBarBytes;
    return p.sums_at + p.row_warps * p.sums_pitch * 4;
}

static cudaError_t prepare(Prepared &prepared, const nvfp4_gemv_args &a, const nvfp4_ring_config &c) {
    const int32_t blocks = a.k / kBlock;
    const ScaleLayout layout = ScaleLayout::make(a.weight_scale_layout, blocks, blocks);
    Params p = {};
    p.m = uint32_t(a.m);
    p.m_magic = a.l > 1 ? magic(p.m) : 0;
    p.rows = uint32_t(int64_t(a.m) * a.l);
    p.row_bytes = uint32_t(a.k) / 2;
    p.chunks = p.row_bytes / kChunkBytes;
    p.row_warps = uint32_t(ceil_div(p.chunks, c.chunks * kWarp));
    p.row_warps_magic = (0xffffu + p.row_warps) / p.row_warps;
    p.groups = uint32_t(c.groups);
    p.depth = uint32_t(c.depth);
    p.producers = std::min(p.groups, kMaxProducers);
    p.dependent = uint32_t(c.dependent);
    p.tiled = layout.tiled;
    p.aligned = layout.tiled || a.l > 1 ? kUnitRows - 1 : 0;
    p.places = layout.tiled ? (p.rows + 127) / 128 * 128 : p.rows;
    p.granule_log2 = c.granule == 4 ? 2 : 0;
    const uint32_t granules = (p.places + c.granule - 1) / c.granule;
    p.granules_per_cta = granules / c.ctas;
    p.granules_left = granules % c.ctas;
    p.codes = device<const uint8_t>(a.weight_codes);
    p.scales = device<const uint8_t>(a.weight_scales);
    p.scale_row_bytes = uint32_t(layout.row_stride);
    p.scale_group_bytes = uint32_t(layout.group_stride);
    p.vectors = device<const uint8_t>(a.vectors);
    p.vector_batch_bytes = a.vector_batch_stride;
    p.vector_scales = device<const uint8_t>(a.vector_scales);
    p.vector_scale_layout = ScaleLayout::make(a.vector_scale_layout, blocks, a.vector_scale_row_stride);
    p.vector_scale_batch_bytes = a.vector_scale_batch_stride;
    p.epilogue = epilogue(a, 0);
    Call call = {};
    call.kernel = reinterpret_cast<const void *>(c.chunks == 2 ? kernel_for<2>(c) : kernel_for<1>(c));
    if (call.kernel == nullptr) return cudaErrorInvalidValue;
    call.grid_x = uint32_t(c.ctas);
    call.grid_y = 1;
    call.threads = (p.groups * p.row_warps + p.producers) * kWarp;
    call.dynamic_shared = lay_out(p, uint32_t(c.chunks), uint32_t(c.rows));
    call.dependent = uint32_t(c.dependent);
    return prepared.add(call, p);
}

}  // namespace nvfp4::ring

extern "C" int32_t nvfp4_gemv_prepare_ring(nvfp4_gemv_prepared *prepared, const nvfp4_gemv_args *args,
                                           const nvfp4_ring_config *config) {
    return nvfp4::ring::prepare(nvfp4::Prepared::in(prepared), *args, *config);
}

#endif
