// NVFP4 weights times NVFP4 vectors on CUDA cores, with integer dot products.
//
// A CTA takes a contiguous range of a batch's row tiles and decodes the vectors once, into shared
// memory. Its warps, or groups of k_split warps, take the tiles in turn; a lane's loads for its next
// step, which may be in the next tile, are in flight while it computes. Partial sums of all tiles
// wait in shared memory for one barrier. Every order is fixed by the configuration.
#pragma once

#include "row_tiles.cuh"

enum {
    NVFP4_DOT_ROWS = 4, /* of a tile */
    /* Warps of a CTA, at most, with up to two vectors and with more: more sums and decoded weights take more
     * registers a thread. */
    NVFP4_DOT_MAX_WARPS = 16,
    NVFP4_DOT_MAX_WARPS_OF_MANY = 8,
    /* A vector's block and its scale in shared memory, as integers and a float. */
    NVFP4_DOT_X_BYTES = 16,
    NVFP4_DOT_X_SCALE_BYTES = 4,
    /* The same as 16-bit floats, where a lane loads NVFP4_DOT_WIDE_BLOCKS blocks at once. Vectors then are
     * whole spans: what a warp loads at once of a row. */
    NVFP4_DOT_WIDE_BLOCKS = 4,
    NVFP4_DOT_WIDE_SPAN_BLOCKS = NVFP4_WARP * NVFP4_DOT_WIDE_BLOCKS,
    NVFP4_DOT_WIDE_X_BYTES = 32,
    NVFP4_DOT_WIDE_X_SCALE_BYTES = 2,
};

#ifdef __CUDACC__

#include "../arch/convert.cuh"
#include "../arch/grid_dependency.cuh"
#include "../arch/memory.cuh"
#include "cta_tiles.cuh"
#include "integer_dot.cuh"

namespace nvfp4 {

namespace int8 {

using namespace cta_tiles;

// Bytes of shared memory: vectors, their scales, partial sums.
__host__ __device__ inline int64_t shared_bytes(int vectors, int32_t blocks, int32_t k_split,
                                                int64_t tiles) {
    return int64_t(vectors) * blocks * (kBlock + 4) + tiles * k_split * kRows * vectors * 4;
}

// What a lane computes with in one step: kBlocks blocks of kRows rows.
template <int kBlocks>
struct Step {
    uint2 codes[kRows][kBlocks];
    uint16_t scales[kRows];
};

// Where a warp's loads are: steps of a tile, then the next tile of the group.
struct Cursor {
    int32_t tile, step, block; // block: this lane's first
    int32_t rows;              // of this tile that exist: kRows or fewer, perhaps none
    const uint8_t *codes, *scales;

    __device__ __forceinline__ void enter(const CudaCoreParams &p, int32_t batch) {
        const int32_t row = tile_row<kRows>(p, tile, 0);
        codes = p.codes + (int64_t(batch) * p.m + row) * p.code_row_bytes;
        scales = p.scales + batch * p.scale_layout.batch_bytes(p.m) + p.scale_layout.row_offset(row);
        rows = row < p.m ? min((p.m - 1 - row) / p.row_step + 1, kRows) : 0;
    }
};

// From memory straight into registers.
template <int kBlocks>
__device__ __forceinline__ void load(Step<kBlocks> &next, const CudaCoreParams &p,
                                     const Cursor &c) {
    const uint8_t *code_at = c.codes + int64_t(c.block) * (kBlock / 2);
    const uint8_t *scale_at = c.scales + p.scale_layout.block_offset(c.block);
    // Past the end of the rows or of K: zeros add nothing.
    const int rows = c.block < p.blocks ? c.rows : 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        next.scales[r] = 0;
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) next.codes[r][b] = make_uint2(0, 0);
        if (r >= rows) continue;
        if constexpr (kBlocks == 2) {
            const uint4 v = arch::load_stream_128(code_at + code_step(p, r));
            next.codes[r][0] = make_uint2(v.x, v.y);
            next.codes[r][1] = make_uint2(v.z, v.w);
            next.scales[r] = arch::load_cached_16(scale_at + scale_step(p, r));
        } else {
            next.codes[r][0] = arch::load_stream_64(code_at + code_step(p, r));
            next.scales[r] = arch::load_cached_8(scale_at + scale_step(p, r));
        }
    }
}

}  // namespace int8

template <int kVectors, int kBlocks>
__global__ void __launch_bounds__(int8::max_threads(kVectors), 1)
    gemv_nvfp4(const __grid_constant__ CudaCoreParams p) {
    using namespace int8;
    constexpr int kValues = kRows * kVectors;
    extern __shared__ uint4 shared[];
    uint4 *const x = shared;                                                   // [kVectors][blocks]
    float *const x_scale = reinterpret_cast<float *>(x + kVectors * p.blocks); // the same
    float *const partial = x_scale + kVectors * p.blocks; // [tile][k_split][kValues]

    const int warp = threadIdx.x / kWarp;
    const int lane = threadIdx.x % kWarp;
    const int groups = blockDim.x / kWarp / p.k_split;
    const int group = warp / p.k_split;
    const int part = warp % p.k_split;
    const int32_t first_block = (part * kWarp + lane) * kBlocks;
    const int32_t stride = p.k_split * kWarp * kBlocks;
    const int32_t steps = (p.blocks + stride - 1) / stride;
    const Lookup lookup;

    // This CTA's tiles of each of its batches. A division before the first load would delay it by
    // hundreds of cycles; the launcher has divided.
    const auto start_of = [&](int32_t cta) {
        return cta * p.tiles_per_cta + min(cta, p.tiles_left);
    };
    const int32_t begin = start_of(blockIdx.x);
    const int32_t end = start_of(blockIdx.x + 1);
    arch::grid_dependency_launch();
    for (int32_t batch = blockIdx.y; batch < p.l; batch += gridDim.y) {
        Cursor cursor;
        cursor.tile = begin + group;
        cursor.step = 0;
        cursor.block = first_block;
        if (cursor.tile < end) cursor.enter(p, batch);
        Step<kBlocks> next;
        const auto load_next = [&] {
            if (cursor.tile >= end) return;
            load(next, p, cursor);
            cursor.block += stride;
            if (++cursor.step == steps) {
                cursor.step = 0;
                cursor.block = first_block;
                cursor.tile += groups;
                if (cursor.tile < end) cursor.enter(p, batch);
            }
        };
        load_next();
        // The previous grid may write vectors and read the output. At once after the first batch.
        arch::grid_dependency_wait();

        for (int32_t i = threadIdx.x; i < kVectors * p.blocks; i += blockDim.x) {
            const int32_t block = i % p.blocks;
            // Vectors past the end repeat the last one: computed, not stored.
            const int32_t n = kVectors == 1 ? 0 : min(i / p.blocks, p.n - 1);
            const uint8_t *at = p.vectors + batch * p.vector_batch_bytes +
                                n * p.vector_row_bytes + int64_t(block) * (kBlock / 2);
            x[i] = Magnitudes(lookup, arch::load_fresh_64(at)).joined();
            const uint8_t *scale_at = p.vector_scales + batch * p.vector_scale_batch_bytes +
                                      p.vector_scale_layout.row_offset(n) +
                                      p.vector_scale_layout.block_offset(block);
            // Both operands are times two.
            x_scale[i] = 0.25f * __low2float(arch::cvt_e4m3x2(arch::load_fresh_8(scale_at)));
        }
        __syncthreads();

        for (int32_t tile = begin + group; tile < end; tile += groups) {
            float sum[kValues] = {};
            int32_t block = first_block;
#pragma unroll 1
            for (int32_t s = 0; s < steps; ++s) {
                const Step<kBlocks> step = next;
                load_next();
                const int32_t here = min(block, p.blocks - kBlocks);
                block += stride;
#pragma unroll
                for (int b = 0; b < kBlocks; ++b) {
                    float scale[kRows];
#pragma unroll
                    for (int r = 0; r < kRows; ++r) {
                        const __half2 both = arch::cvt_e4m3x2(step.scales[r]);
                        scale[r] = b == 0 ? __low2float(both) : __high2float(both);
                    }
                    if constexpr (kVectors == 1) {
                        const uint4 xb = x[here + b];
                        const float xs = x_scale[here + b];
#pragma unroll
                        for (int r = 0; r < kRows; ++r) {
                            const Magnitudes w(lookup, step.codes[r][b]);
                            sum[r] = fmaf(w.dot(xb), scale[r] * xs, sum[r]);
                        }
                    } else {
#pragma unroll
                        for (int half = 0; half < kRows; half += 2) {
                            const Magnitudes w0(lookup, step.codes[half][b]);
                            const Magnitudes w1(lookup, step.codes[half + 1][b]);
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
        // The next batch's vectors may be written at once: nobody reads this one's after the barrier
        // above. Its partial sums come after the next barrier.
    }
}

}  // namespace nvfp4

#endif
