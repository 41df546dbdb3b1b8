// NVFP4 weights times NVFP4 vectors on the CUDA cores of Blackwell: 32 bytes of codes a load, which are four
// blocks of a row, decoded by hardware and multiplied in f16x2.
//
// CTAs, warps and lanes take rows and blocks as in gemv_nvfp4.cuh. A span is what a warp takes of a row in
// one step: four consecutive blocks a lane, 2048 elements. In shared memory the 16-byte chunks of a span
// stand by their number in the lane's 128 bytes, and then by lane: a warp reads 512 consecutive bytes.
// Registers that a group of rows has used are filled for the next step at once, so that nothing is copied.
#pragma once

#include "../arch/grid_dependency.cuh"
#include "../arch/memory.cuh"
#include "cta_tiles.cuh"
#include "half_dot.cuh"

namespace nvfp4 {

namespace wide {

using namespace cta_tiles;

constexpr int kBlocks = 4;                     // of a row that a lane loads at once
constexpr int kSpanBlocks = kWarp * kBlocks;
constexpr int kChunks = 2 * kBlocks;           // of 16 bytes, of a lane's vector elements in f16
constexpr int kSpanChunks = kWarp * kChunks;
constexpr int kLoadBytes = kBlocks * kBlock / 2;

// Bytes of shared memory: vectors and their scales in f16, whole spans; partial sums.
__host__ __device__ inline int64_t shared_bytes(int vectors, int32_t blocks, int32_t k_split,
                                                int64_t tiles) {
    const int64_t spans = (blocks + kSpanBlocks - 1) / kSpanBlocks;
    return vectors * spans * (kSpanChunks * 16 + kSpanBlocks * 2) +
           tiles * k_split * kRows * vectors * 4;
}

#if NVFP4_HAS_CVT_E2M1

// Where loads of a tile are. No rows: none.
struct Source {
    const uint8_t *codes, *scales;
    int32_t rows; // of this tile that exist: kRows or fewer

    __device__ __forceinline__ Source(const CudaCoreParams &p, int32_t batch, int32_t tile,
                                      int32_t end) {
        const int32_t row = tile_row<kRows>(p, tile, 0);
        codes = p.codes + (int64_t(batch) * p.m + row) * p.code_row_bytes;
        scales = p.scales + batch * p.scale_layout.batch_bytes(p.m) + p.scale_layout.row_offset(row);
        rows = tile < end && row < p.m ? min((p.m - 1 - row) / p.row_step + 1, kRows) : 0;
    }
};

// What a lane computes with in one step. Of rows that do not exist: anything. Their sums are not stored.
struct Step {
    uint32_t codes[kRows][kLoadBytes / 4];
    uint32_t scales[kRows];

    // kCount rows of a tile from `first`, a constant, on. `load` loads of the row come before this one.
    template <int kCount>
    __device__ __forceinline__ void load(const CudaCoreParams &p, const Source &from, int first,
                                         int32_t load) {
        const uint8_t *code_at = from.codes + int64_t(load) * kLoadBytes + code_step(p, first);
        const uint8_t *scale_at =
            from.scales + int64_t(load) * p.scale_layout.group_stride + scale_step(p, first);
#pragma unroll
        for (int r = 0; r < kCount; ++r) {
            if (first + r < from.rows) {
                arch::load_stream_256(codes[first + r], code_at);
                scales[first + r] = arch::load_cached_32(scale_at);
            }
            code_at += code_step(p, 1);
            scale_at += scale_step(p, 1);
        }
    }
};

#endif

}  // namespace wide

template <int kVectors>
__global__ void __launch_bounds__(wide::max_threads(kVectors), 1)
    gemv_nvfp4_wide(const __grid_constant__ CudaCoreParams p) {
#if NVFP4_HAS_CVT_E2M1
    using namespace wide;
    using half_dot::Block;
    constexpr int kValues = kRows * kVectors;
    // Rows whose decoded blocks are in registers together, and which are loaded again together. In fours each
    // vector element is read from shared memory once; the compiler keeps one vector's for two groups.
    constexpr int kGroup = kVectors == 1 ? 2 : 4;
    const int32_t spans = (p.blocks + kSpanBlocks - 1) / kSpanBlocks;
    extern __shared__ uint4 shared[];
    uint4 *const x = shared; // [kVectors][spans][kChunks][lane]
    __half *const x_scale = reinterpret_cast<__half *>(x + kVectors * spans * kSpanChunks);
    float *const partial = reinterpret_cast<float *>(x_scale + kVectors * spans * kSpanBlocks);

    const int warp = threadIdx.x / kWarp;
    const int lane = threadIdx.x % kWarp;
    const int groups = blockDim.x / kWarp / p.k_split;
    const int group = warp / p.k_split;
    const int part = warp % p.k_split;
    // This warp takes spans part, part + k_split, ...
    const int32_t last_load = p.blocks / kBlocks - 1;
    const int32_t first_load = part * kWarp + lane;
    const int32_t load_stride = p.k_split * kWarp;

    const auto start_of = [&](int32_t cta) {
        return cta * p.tiles_per_cta + min(cta, p.tiles_left);
    };
    const int32_t begin = start_of(blockIdx.x);
    const int32_t end = start_of(blockIdx.x + 1);
    arch::grid_dependency_launch();
    for (int32_t batch = blockIdx.y; batch < p.l; batch += gridDim.y) {
        // Lanes past the end of K repeat the last blocks of the row: the vector has zeros there.
        Source from(p, batch, begin + group, part < spans ? end : begin);
        Step step = {};
        step.template load<kRows>(p, from, 0, min(first_load, last_load));
        // The previous grid may write vectors and read the output. At once after the first batch.
        arch::grid_dependency_wait();

        for (int32_t i = threadIdx.x; i < kVectors * spans * kSpanBlocks; i += blockDim.x) {
            const int32_t block = i % (spans * kSpanBlocks);
            // Vectors past the end repeat the last one: computed, not stored.
            const int32_t n = kVectors == 1 ? 0 : min(i / (spans * kSpanBlocks), p.n - 1);
            uint2 codes = make_uint2(0, 0);
            uint8_t scale = 0;
            if (block < p.blocks) {
                codes = arch::load_fresh_64(p.vectors + batch * p.vector_batch_bytes +
                                            n * p.vector_row_bytes + int64_t(block) * (kBlock / 2));
                scale = arch::load_fresh_8(p.vector_scales + batch * p.vector_scale_batch_bytes +
                                           p.vector_scale_layout.row_offset(n) +
                                           p.vector_scale_layout.block_offset(block));
            }
            uint4 *const span = x + i / kSpanBlocks * kSpanChunks;
            Block values;
            values.decode(codes.x, codes.y);
            values.store(span + i % kBlocks * (2 * kWarp) + i % kSpanBlocks / kBlocks, kWarp);
            x_scale[i] = __low2half(arch::cvt_e4m3x2(scale));
        }
        __syncthreads();

        for (int32_t tile = begin + group; tile < end; tile += groups) {
            const Source after(p, batch, tile + groups, end);
            float sum[kValues] = {};
            int32_t load = first_load;
#pragma unroll 1
            for (int32_t span = part; span < spans; span += p.k_split) {
                const uint4 *const xs = x + span * kSpanChunks + lane;
                const uint2 *const xs_scale =
                    reinterpret_cast<const uint2 *>(x_scale + span * kSpanBlocks) + lane;
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
                        scale[r][0] = arch::cvt_e4m3x2(uint16_t(step.scales[first + r]));
                        scale[r][1] = arch::cvt_e4m3x2(uint16_t(step.scales[first + r] >> 16));
                    }
#pragma unroll
                    for (int b = 0; b < kBlocks; ++b) {
                        Block w[kGroup];
#pragma unroll
                        for (int r = 0; r < kGroup; ++r) {
                            w[r].decode(step.codes[first + r][2 * b], step.codes[first + r][2 * b + 1]);
                        }
#pragma unroll
                        for (int n = 0; n < kVectors; ++n) {
                            Block xb;
                            xb.load(xs + n * spans * kSpanChunks + 2 * b * kWarp, kWarp);
                            const uint2 s = xs_scale[n * spans * kWarp];
                            const __half2 xb_scale =
                                reinterpret_cast<const __half2 &>(b < 2 ? s.x : s.y);
#pragma unroll
                            for (int r = 0; r < kGroup; ++r) {
                                float &y = sum[(first + r) * kVectors + n];
                                y = fmaf(w[r].dot(xb),
                                         half_dot::scale_product(scale[r][b / 2], xb_scale, b % 2),
                                         y);
                            }
                        }
                    }
                    step.template load<kGroup>(p, from, first, load_here);
                }
            }
            reduce_scatter(sum, lane);
            constexpr int kLanes = kWarp / kValues; // lanes that hold the same value
            if (lane % kLanes == 0) {
                partial[((tile - begin) * p.k_split + part) * kValues + lane / kLanes] = sum[0];
            }
        }
        __syncthreads();

        for (int32_t i = threadIdx.x; i < (end - begin) * kValues; i += blockDim.x) {
            const int32_t t = i / kValues, value = i % kValues;
            const int32_t row = tile_row<kRows>(p, begin + t, value / kVectors);
            const int n = value % kVectors;
            if (row >= p.m || n >= p.n) continue;
            float y = 0.0f;
            for (int s = 0; s < p.k_split; ++s) y += partial[(t * p.k_split + s) * kValues + value];
            p.epilogue.store(p.m, batch, row, n, y);
        }
        // The next batch's vectors may be written at once, as in gemv_nvfp4.
    }
#endif
}

}  // namespace nvfp4
