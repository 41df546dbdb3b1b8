// GEMV of NVFP4 vectors on CUDA cores, with the vectors decoded once.
//
// A CTA takes a contiguous range of a batch's tiles of rows, and decodes the vectors into shared memory. Its warps, or
// groups of k_split warps, take the tiles in turn. While a lane computes, its loads for its next step are in flight;
// that step may be in the next tile. Partial sums of all tiles wait in shared memory for one barrier. Every order is
// fixed by the config.
//
// One of two policies makes the products, both exactly. IntegerProducts loads 8 or 16 bytes of codes at once.
// HalfProducts loads 32 bytes (Blackwell).
#include "row_tiles.cuh"

enum {
    NVFP4_DOT_ROWS = 4, /* of a tile */
    /* Warps of a CTA, at most, with few vectors and with more: more sums and decoded weights take more
     * registers a thread. */
    NVFP4_DOT_MAX_WARPS = 16,
    NVFP4_DOT_MAX_WARPS_OF_MANY = 8,
    /* Bytes of a vector's block and of its scale in shared memory, as integers and a float. */
    NVFP4_DOT_X_BYTES = 16,
    NVFP4_DOT_X_SCALE_BYTES = 4,
    /* Blocks of a row that a lane, and that a warp (a span), loads at once for HalfProducts. Bytes of a vector's block
     * and of its scale there, as 16-bit floats. Vectors then are whole spans. */
    NVFP4_DOT_WIDE_BLOCKS = 4,
    NVFP4_DOT_WIDE_SPAN_BLOCKS = NVFP4_WARP * NVFP4_DOT_WIDE_BLOCKS,
    NVFP4_DOT_WIDE_X_BYTES = 32,
    NVFP4_DOT_WIDE_X_SCALE_BYTES = 2,
};

#ifdef __CUDACC__

#include "../arch/convert.cuh"
#include "../arch/griddepcontrol.cuh"
#include "../arch/memory.cuh"
#include "../entries.cuh"
#include "half_dot.cuh"
#include "integer_dot.cuh"
#include "warp_sums.cuh"

namespace nvfp4::dot {

using Params = nvfp4_direct_params;

constexpr int kRows = NVFP4_DOT_ROWS;

// The most threads of a CTA.
constexpr int max_threads(int vectors) {
    return (vectors <= NVFP4_FEW_VECTORS ? NVFP4_DOT_MAX_WARPS : NVFP4_DOT_MAX_WARPS_OF_MANY) * kWarp;
}

// Bytes from the first row of a tile to row r, of codes and of scales. Rows 32 apart are 4 bytes apart in a 128x4 atom.
__device__ __forceinline__ uint64_t code_step(const Params &p, int r) {
    return uint64_t(uint32_t(p.weights.row_bytes) * p.row_step * r);
}
__device__ __forceinline__ uint64_t scale_step(const Params &p, int r) {
    return uint64_t((p.weights.scale_steps.tiled ? 4 : uint32_t(p.weights.scale_steps.row_stride)) * r);
}

// A warp's share of the work: the steps of its part, of each row of its group's tiles.
struct Warp {
    int lane, groups, group, part;
    int32_t begin, end; // of the CTA's tiles of each of its batches

    __device__ __forceinline__ explicit Warp(const Params &p) {
        const int warp = threadIdx.x / kWarp;
        lane = threadIdx.x % kWarp;
        groups = blockDim.x / kWarp / p.k_split;
        group = warp / p.k_split;
        part = warp % p.k_split;
        // A division before the first load would delay it by hundreds of cycles; the plan has divided.
        const auto start_of = [&](int32_t cta) { return cta * p.tiles_per_cta + min(cta, p.tiles_left); };
        begin = start_of(blockIdx.x);
        end = start_of(blockIdx.x + 1);
    }
};

// A tile's weights in memory.
struct Tile {
    const uint8_t *codes, *scales;
    int32_t rows; // that exist: kRows or fewer, perhaps none

    __device__ __forceinline__ void enter(const Params &p, int32_t batch, int32_t tile) {
        const int32_t row = tile_row<kRows>(p, tile, 0);
        codes = codes_of(p.weights, batch) + int64_t(row) * p.weights.row_bytes;
        scales = scales_of(p.weights, batch) + row_offset(p.weights.scale_steps, row);
        rows = row < p.m ? min((p.m - 1 - row) / p.row_step + 1, kRows) : 0;
    }
};

// One block of a vector, in memory.
struct RawBlock {
    uint2 codes;
    uint8_t scale;

    __device__ __forceinline__ void load(const Params &p, int32_t batch, int32_t n, int32_t block) {
        codes = arch::ld_global_64(values_of(p.vectors, batch) + n * p.vectors.row_bytes +
                                    int64_t(block) * (kBlock / 2));
        scale = arch::ld_global_8(scales_of(p.vectors, batch) +
                                   row_offset(p.vectors.scale_steps, n) +
                                   block_offset(p.vectors.scale_steps, block));
    }
};

// Sums of a tile's rows for kVectors vectors, by integers. A load has kBlocks blocks of a row.
template <int kVectors_, int kBlocks>
class IntegerProducts {
  public:
    static constexpr int kVectors = kVectors_;
    static constexpr int kValues = kRows * kVectors;

    __device__ __forceinline__ IntegerProducts(const Params &p, const Warp &warp, uint4 *shared)
        : x(shared), x_scale(reinterpret_cast<float *>(x + kVectors * p.blocks)),
          first_block((warp.part * kWarp + warp.lane) * kBlocks), stride(p.k_split * kWarp * kBlocks),
          steps((p.blocks + stride - 1) / stride) {}

    // Shared memory behind the vectors.
    __device__ __forceinline__ float *end(const Params &p) const { return x_scale + kVectors * p.blocks; }

    // Starts the loads of the first step of a batch.
    __device__ __forceinline__ void begin(const Params &p, const Warp &warp, int32_t batch) {
        tile = warp.begin + warp.group;
        step = 0;
        block = first_block;
        if (tile < warp.end) from.enter(p, batch, tile);
        load_next(p, warp, batch);
    }

    // Decodes the batch's vectors into shared memory, [kVectors][blocks]. Called by all threads.
    __device__ __forceinline__ void decode_vectors(const Params &p, int32_t batch) const {
        for (int32_t i = threadIdx.x; i < kVectors * p.blocks; i += blockDim.x) {
            // Vectors past the end repeat the last one: computed, not stored.
            const int32_t n = kVectors == 1 ? 0 : min(i / p.blocks, p.n - 1);
            RawBlock raw;
            raw.load(p, batch, n, i % p.blocks);
            x[i] = int8::Magnitudes(lookup, raw.codes).joined();
            // Both operands are times two.
            x_scale[i] = 0.25f * __low2float(arch::cvt_e4m3x2(raw.scale));
        }
    }

    // Adds the sums of the next tile of the group.
    __device__ __forceinline__ void add(const Params &p, const Warp &warp, int32_t batch, int32_t,
                                        float (&sum)[kValues]) {
        int32_t at = first_block;
#pragma unroll 1
        for (int32_t s = 0; s < steps; ++s) {
            const Step now = next;
            load_next(p, warp, batch);
            const int32_t here = min(at, p.blocks - kBlocks);
            at += stride;
#pragma unroll
            for (int b = 0; b < kBlocks; ++b) {
                float scale[kRows];
#pragma unroll
                for (int r = 0; r < kRows; ++r) {
                    const __half2 both = arch::cvt_e4m3x2(now.scales[r]);
                    scale[r] = b == 0 ? __low2float(both) : __high2float(both);
                }
                if constexpr (kVectors == 1) {
                    const uint4 xb = x[here + b];
                    const float xs = x_scale[here + b];
#pragma unroll
                    for (int r = 0; r < kRows; ++r) {
                        const int8::Magnitudes w(lookup, now.codes[r][b]);
                        sum[r] = fmaf(w.dot(xb), scale[r] * xs, sum[r]);
                    }
                } else {
#pragma unroll
                    for (int half = 0; half < kRows; half += 2) {
                        const int8::Magnitudes w0(lookup, now.codes[half][b]);
                        const int8::Magnitudes w1(lookup, now.codes[half + 1][b]);
#pragma unroll
                        for (int n = 0; n < kVectors; ++n) {
                            const uint4 xb = x[n * p.blocks + here + b];
                            const float xs = x_scale[n * p.blocks + here + b];
                            float &s0 = sum[half * kVectors + n];
                            float &s1 = sum[(half + 1) * kVectors + n];
                            s0 = fmaf(w0.dot(xb), scale[half] * xs, s0);
                            s1 = fmaf(w1.dot(xb), scale[half + 1] * xs, s1);
                        }
                    }
                }
            }
        }
    }

  private:
    // Weights that a lane multiplies in one step: kBlocks blocks of kRows rows.
    struct Step {
        uint2 codes[kRows][kBlocks];
        uint16_t scales[kRows];

        __device__ __forceinline__ void load(const Params &p, const Tile &from, int32_t block) {
            const uint8_t *code_at = from.codes + int64_t(block) * (kBlock / 2);
            const uint8_t *scale_at = from.scales + block_offset(p.weights.scale_steps, block);
            // Past the end of the rows or of K: zeros add nothing.
            const int rows = block < p.blocks ? from.rows : 0;
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                scales[r] = 0;
#pragma unroll
                for (int b = 0; b < kBlocks; ++b) codes[r][b] = make_uint2(0, 0);
                if (r >= rows) continue;
                if constexpr (kBlocks == 2) {
                    const uint4 v = arch::ld_global_nc_no_allocate_128(code_at + code_step(p, r));
                    codes[r][0] = make_uint2(v.x, v.y);
                    codes[r][1] = make_uint2(v.z, v.w);
                    scales[r] = arch::ld_global_nc_16(scale_at + scale_step(p, r));
                } else {
                    codes[r][0] = arch::ld_global_nc_no_allocate_64(code_at + code_step(p, r));
                    scales[r] = arch::ld_global_nc_8(scale_at + scale_step(p, r));
                }
            }
        }
    };

    // Loads the next step, which may be in the group's next tile.
    __device__ __forceinline__ void load_next(const Params &p, const Warp &warp, int32_t batch) {
        if (tile >= warp.end) return;
        next.load(p, from, block);
        block += stride;
        if (++step == steps) {
            step = 0;
            block = first_block;
            tile += warp.groups;
            if (tile < warp.end) from.enter(p, batch, tile);
        }
    }

    uint4 *const x;
    float *const x_scale;
    const int32_t first_block, stride, steps;
    const int8::Lookup lookup;

    // Position of the loads: steps of a tile, then the next tile of the group.
    int32_t tile, step, block; // block: this lane's first
    Tile from;
    Step next;
};

// Sums of a tile's rows for kVectors vectors, by f16x2 as half_dot.cuh explains. A load has four blocks of a row.
//
// A span is the part of a row that a warp takes in one step: four consecutive blocks a lane, 2048 elements. In shared
// memory the 16-byte chunks of a span stand by their number in the lane's 128 bytes, and then by lane. So a warp reads
// 512 consecutive bytes. Registers that a group of rows has used are filled for the next step at once, so that nothing
// is copied.
template <int kVectors_>
class HalfProducts {
  public:
    static constexpr int kVectors = kVectors_;
    static constexpr int kValues = kRows * kVectors;

    // This warp takes spans part, part + k_split, ...
    __device__ __forceinline__ HalfProducts(const Params &p, const Warp &warp, uint4 *shared)
        : spans((p.blocks + kSpanBlocks - 1) / kSpanBlocks), x(shared),
          x_scale(reinterpret_cast<__half *>(x + kVectors * spans * kSpanChunks)),
          last_load(p.blocks / kBlocks - 1), first_load(warp.part * kWarp + warp.lane),
          load_stride(p.k_split * kWarp) {}

    __device__ __forceinline__ float *end(const Params &) const {
        return reinterpret_cast<float *>(x_scale + kVectors * spans * kSpanBlocks);
    }

    // Lanes past the end of K repeat the last blocks of the row: the vector has zeros there.
    __device__ __forceinline__ void begin(const Params &p, const Warp &warp, int32_t batch) {
        from = tile_at(p, batch, warp.begin + warp.group, warp.part < spans ? warp.end : warp.begin);
        next = {};
        next.template load<kRows>(p, from, 0, min(first_load, last_load));
    }

    // Decodes the batch's vectors into shared memory, [kVectors][spans][kChunks][lane]. Called by all threads.
    __device__ __forceinline__ void decode_vectors(const Params &p, int32_t batch) const {
        for (int32_t i = threadIdx.x; i < kVectors * spans * kSpanBlocks; i += blockDim.x) {
            const int32_t block = i % (spans * kSpanBlocks);
            // Vectors past the end repeat the last one: computed, not stored.
            const int32_t n = kVectors == 1 ? 0 : min(i / (spans * kSpanBlocks), p.n - 1);
            RawBlock raw = {make_uint2(0, 0), 0};
            if (block < p.blocks) raw.load(p, batch, n, block);
            uint4 *const span = x + i / kSpanBlocks * kSpanChunks;
            half_dot::Block values;
            values.decode(raw.codes.x, raw.codes.y);
            values.store(span + i % kBlocks * (2 * kWarp) + i % kSpanBlocks / kBlocks, kWarp);
            x_scale[i] = __low2half(arch::cvt_e4m3x2(raw.scale));
        }
    }

    __device__ __forceinline__ void add(const Params &p, const Warp &warp, int32_t batch, int32_t tile,
                                        float (&sum)[kValues]) {
        using half_dot::Block;
        const Tile after = tile_at(p, batch, tile + warp.groups, warp.end);
        int32_t load = first_load;
#pragma unroll 1
        for (int32_t span = warp.part; span < spans; span += p.k_split) {
            const uint4 *const xs = x + span * kSpanChunks + warp.lane;
            const uint2 *const xs_scale =
                reinterpret_cast<const uint2 *>(x_scale + span * kSpanBlocks) + warp.lane;
            // The next step, which may be in the next tile.
            load += load_stride;
            if (span + p.k_split >= spans) {
                load = first_load;
                from = after;
            }
            const int32_t load_here = min(load, last_load);
#pragma unroll
            for (int first = 0; first < kRows; first += kGroup) {
                __half2 scale[kGroup][2];
#pragma unroll
                for (int r = 0; r < kGroup; ++r) {
                    scale[r][0] = arch::cvt_e4m3x2(uint16_t(next.scales[first + r]));
                    scale[r][1] = arch::cvt_e4m3x2(uint16_t(next.scales[first + r] >> 16));
                }
#pragma unroll
                for (int b = 0; b < kBlocks; ++b) {
                    Block w[kGroup];
#pragma unroll
                    for (int r = 0; r < kGroup; ++r) {
                        w[r].decode(next.codes[first + r][2 * b], next.codes[first + r][2 * b + 1]);
                    }
#pragma unroll
                    for (int n = 0; n < kVectors; ++n) {
                        Block xb;
                        xb.load(xs + n * spans * kSpanChunks + 2 * b * kWarp, kWarp);
                        const uint2 s = xs_scale[n * spans * kWarp];
                        const __half2 xb_scale = reinterpret_cast<const __half2 &>(b < 2 ? s.x : s.y);
#pragma unroll
                        for (int r = 0; r < kGroup; ++r) {
                            float &y = sum[(first + r) * kVectors + n];
                            y = fmaf(w[r].dot(xb),
                                     half_dot::scale_product(scale[r][b / 2], xb_scale, b % 2), y);
                        }
                    }
                }
                next.template load<kGroup>(p, from, first, load_here);
            }
        }
    }

  private:
    static constexpr int kBlocks = NVFP4_DOT_WIDE_BLOCKS; // of a row that a lane loads at once
    static constexpr int kSpanBlocks = NVFP4_DOT_WIDE_SPAN_BLOCKS;
    static constexpr int kChunks = 2 * kBlocks; // of 16 bytes, of a lane's vector elements in f16
    static constexpr int kSpanChunks = kWarp * kChunks;
    static constexpr int kLoadBytes = kBlocks * kBlock / 2;
    // Rows whose decoded blocks are in registers together, and which are loaded again together. In groups of four, each
    // vector element is read from shared memory once. The compiler keeps one vector's elements for two groups.
    static constexpr int kGroup = kVectors == 1 ? 2 : 4;

    // Weights that a lane multiplies in one step. Rows that do not exist have any values: their sums are not stored.
    struct Step {
        uint32_t codes[kRows][kLoadBytes / 4];
        uint32_t scales[kRows];

        // Loads kCount rows of a tile from row `first`, a constant, on. `load` loads of the row come before this one.
        template <int kCount>
        __device__ __forceinline__ void load(const Params &p, const Tile &from, int first, int32_t load) {
            const uint8_t *code_at = from.codes + int64_t(load) * kLoadBytes + code_step(p, first);
            const uint8_t *scale_at =
                from.scales + int64_t(load) * p.weights.scale_steps.group_stride + scale_step(p, first);
#pragma unroll
            for (int r = 0; r < kCount; ++r) {
                if (first + r < from.rows) {
                    arch::ld_global_nc_no_allocate_256(codes[first + r], code_at);
                    scales[first + r] = arch::ld_global_nc_32(scale_at);
                }
                code_at += code_step(p, 1);
                scale_at += scale_step(p, 1);
            }
        }
    };

    // A tile, which has no rows if its number is `end` or more.
    __device__ __forceinline__ static Tile tile_at(const Params &p, int32_t batch, int32_t tile, int32_t end) {
        Tile at;
        at.enter(p, batch, tile);
        if (tile >= end) at.rows = 0;
        return at;
    }

    const int32_t spans;
    uint4 *const x;
    __half *const x_scale;
    const int32_t last_load, first_load, load_stride;

    Tile from;
    Step next;
};

template <class Products>
__device__ __forceinline__ void run(const Params &p) {
    constexpr int kVectors = Products::kVectors, kValues = Products::kValues;
    extern __shared__ uint4 shared[];
    const Warp warp(p);
    Products products(p, warp, shared);
    float *const partial = products.end(p); // [tile][k_split][kValues]
    arch::griddepcontrol_launch_dependents();
    for (int32_t batch = blockIdx.y; batch < p.l; batch += gridDim.y) {
        products.begin(p, warp, batch);
        // The previous grid may write vectors and read the output. The wait is over at once after the first batch.
        arch::griddepcontrol_wait();
        products.decode_vectors(p, batch);
        __syncthreads();

        for (int32_t tile = warp.begin + warp.group; tile < warp.end; tile += warp.groups) {
            float sum[kValues] = {};
            products.add(p, warp, batch, tile, sum);
            reduce_scatter<kWarp>(sum, warp.lane);
            constexpr int kLanes = kWarp / kValues; // lanes that hold the same value
            if (warp.lane % kLanes == 0) {
                partial[((tile - warp.begin) * p.k_split + warp.part) * kValues + warp.lane / kLanes] = sum[0];
            }
        }
        __syncthreads();

        for (int32_t i = threadIdx.x; i < (warp.end - warp.begin) * kValues; i += blockDim.x) {
            const int32_t t = i / kValues, value = i % kValues;
            const int32_t row = tile_row<kRows>(p, warp.begin + t, value / kVectors);
            const int n = value % kVectors;
            if (row >= p.m || n >= p.n) continue;
            float y = 0.0f;
            for (int s = 0; s < p.k_split; ++s) y += partial[(t * p.k_split + s) * kValues + value];
            store(p.weights.select, p.epilogue, batch, row, n, y);
        }
        // The next batch's vectors may be written at once: nobody reads this batch's behind the barrier above. The next
        // batch's partial sums come after the next barrier.
    }
}

}  // namespace nvfp4::dot

// Entry points, by vectors of a pass and the policy that makes products.
#ifdef NVFP4_UNIT_WIDE
#define UNIT gemv_dot_wide
#define GEMV_DOT(X)                                 \
    X(gemv_dot_n1_b4, 1, nvfp4::dot::HalfProducts<1>) \
    X(gemv_dot_n2_b4, 2, nvfp4::dot::HalfProducts<2>) \
    X(gemv_dot_n4_b4, 4, nvfp4::dot::HalfProducts<4>) \
    X(gemv_dot_n8_b4, 8, nvfp4::dot::HalfProducts<8>)
#else
#define UNIT gemv_dot
#define GEMV_DOT(X)                                    \
    X(gemv_dot_n1_b1, 1, nvfp4::dot::IntegerProducts<1, 1>) \
    X(gemv_dot_n8_b1, 8, nvfp4::dot::IntegerProducts<8, 1>) \
    X(gemv_dot_n1_b2, 1, nvfp4::dot::IntegerProducts<1, 2>) \
    X(gemv_dot_n2_b2, 2, nvfp4::dot::IntegerProducts<2, 2>) \
    X(gemv_dot_n4_b2, 4, nvfp4::dot::IntegerProducts<4, 2>) \
    X(gemv_dot_n8_b2, 8, nvfp4::dot::IntegerProducts<8, 2>)
#endif

#define ENTRY(name, vectors, ...)                                                     \
    NVFP4_KERNEL(name)(                                                               \
    extern "C" __global__ void __launch_bounds__(nvfp4::dot::max_threads(vectors), 1) \
        name(const __grid_constant__ nvfp4_direct_params p) {                         \
        nvfp4::dot::run<__VA_ARGS__>(p);                                              \
    })
GEMV_DOT(ENTRY)
NVFP4_TABLE(UNIT, GEMV_DOT)

#endif
