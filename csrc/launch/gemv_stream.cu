// Prepares gemv_stream.
#include "../kernels/gemv_stream.cuh"

#include <algorithm>

#include "arguments.cuh"
#include "prepared.cuh"

namespace nvfp4::stream {

struct Kernel {
    void (*function)(Params);
    uint32_t columns;       // that its vectors take
    uint32_t block_bytes;   // of a column's block in shared memory
    uint32_t x_scale_bytes; // of a block of all vectors
    uint32_t zero_blocks;
};

template <int kActivation, int kVectors>
static Kernel kernel() {
    using Vectors = typename Products<kActivation, kVectors>::Vectors;
    return {gemv_stream<kActivation, kVectors>, uint32_t(kVectors * Vectors::kParts), Vectors::kBlockBytes,
            Vectors::kHasScales ? Vectors::kXScaleBytes : 0, Vectors::kZeroBlocks};
}

template <int kActivation>
static Kernel kernel_for(int32_t n) {
    if (n <= 1) return kernel<kActivation, 1>();
    if (n <= 2) return kernel<kActivation, 2>();
    if (n <= 4) return kernel<kActivation, 4>();
    return kernel<kActivation, 8>();
}

static Kernel kernel_for(int32_t activation, int32_t n) {
    switch (activation) {
        case NVFP4_ACTIVATION_NVFP4: return kernel_for<NVFP4_ACTIVATION_NVFP4>(n);
        case NVFP4_ACTIVATION_F16: return kernel_for<NVFP4_ACTIVATION_F16>(n);
        case NVFP4_ACTIVATION_BF16: return kernel_for<NVFP4_ACTIVATION_BF16>(n);
        default: return {};
    }
}

// Lays out shared memory, and returns its size.
static uint32_t lay_out(Params &p, const Kernel &kernel) {
    const uint32_t blocks = p.steps * kStepBlocks;
    // Of the CTA that has most: a tile more where its first one is cut by the alignment.
    const uint32_t most = (p.units_per_cta + (p.units_left != 0)) << p.unit_log2;
    const uint32_t tiles = (most + kTileRows - 1) / kTileRows + (p.l > 1);
    p.x_batches = std::min<uint32_t>(p.l, (most + p.places - 2) / p.places + 1);
    p.x_at = p.warps * p.stages * kStageBytes;
    p.zero_at = p.x_at + p.x_batches * kernel.columns * (blocks + 1) * kernel.block_bytes;
    p.x_scale_at = p.zero_at + kernel.zero_blocks * kernel.block_bytes;
    p.sums_at = p.x_scale_at + p.x_batches * blocks * kernel.x_scale_bytes;
    p.parts_at = p.sums_at + (p.warps + tiles) * kTileRows * kernel.columns * 4;
    return p.parts_at + tiles * uint32_t(sizeof(Parts));
}

static cudaError_t prepare(Prepared &prepared, const nvfp4_gemv_args &a, const nvfp4_stream_config &c) {
    const int32_t blocks = a.k / kBlock;
    Params p = {};
    p.m = a.m;
    p.l = a.l;
    p.steps = uint32_t(blocks) / kStepBlocks;
    p.warps = uint32_t(c.warps);
    p.stages = uint32_t(c.stages);
    p.steps_magic = magic(p.steps);
    p.warps_magic = magic(p.warps);
    p.dependent = uint32_t(c.dependent);
    p.far_ahead = c.fetch == 256;
    p.scale_layout = ScaleLayout::make(a.weight_scale_layout, blocks, blocks);
    const bool tiled = p.scale_layout.tiled;
    const uint32_t whole = tiled ? 128 : a.l > 1 ? kTileRows : 1;
    p.places = (a.m + whole - 1) / whole * whole;
    p.unit_log2 = tiled ? 2 : 0;
    const uint32_t units = uint32_t((int64_t(p.places) * a.l) >> p.unit_log2);
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
    for (int32_t first = 0; first < a.n; first += c.vectors) {
        p.n = std::min(a.n - first, c.vectors);
        p.vectors = device<const uint8_t>(a.vectors) + first * a.vector_row_stride;
        p.vector_scales = device<const uint8_t>(a.vector_scales) + first * scale_row_bytes;
        p.epilogue = epilogue(a, first);
        const Kernel kernel = kernel_for(a.activation, p.n);
        if (kernel.function == nullptr) return cudaErrorInvalidValue;
        Call call = {};
        call.kernel = reinterpret_cast<const void *>(kernel.function);
        call.grid_x = uint32_t(c.ctas);
        call.grid_y = 1;
        call.threads = p.warps * kWarp;
        call.dynamic_shared = lay_out(p, kernel);
        call.dependent = uint32_t(c.dependent);
        const cudaError_t status = prepared.add(call, p);
        if (status != cudaSuccess) return status;
    }
    return cudaSuccess;
}

}  // namespace nvfp4::stream

extern "C" int32_t nvfp4_gemv_prepare_stream(nvfp4_gemv_prepared *prepared, const nvfp4_gemv_args *args,
                                             const nvfp4_stream_config *config) {
    return nvfp4::stream::prepare(nvfp4::Prepared::in(prepared), *args, *config);
}
