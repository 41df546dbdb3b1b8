// GEMV on CUDA cores from a ring of stages in shared memory, which bulk copies keep full. sm_90 and
// newer; K a multiple of 256.
//
// A CTA takes a contiguous range of rows and goes through it in tiles of 16, each in chunks of K. A stage
// holds the codes of one chunk: a piece of each of the tile's rows. Producer warps copy, chunk after chunk,
// as stages become free; groups of consumer warps take the stages in turn, and the warps of a group share
// the chunk's K, a slice of 256 elements each. Scales go from memory straight into the registers of the lane
// that multiplies by them, one stage ahead. A warp's sums of a tile wait in shared memory, where they are
// added in the order of warps at the end: every order is fixed by the configuration.
#pragma once

#include <cstdint>

#include "../arch/bulk_copy.cuh"
#include "../arch/copy_async.cuh"
#include "../arch/grid_dependency.cuh"
#include "../arch/mbarrier.cuh"
#include "../arch/named_barrier.cuh"
#include "../arch/shared.cuh"
#include "../format/scale_layout.cuh"
#include "block_dot.cuh"
#include "cuda_core.cuh"
#include "epilogue.cuh"

namespace nvfp4::ring {

constexpr uint32_t kTileRows = 16;
constexpr uint32_t kSliceCodes = 128; // bytes of codes of a row's slice
constexpr uint32_t kSliceBlocks = 16;
constexpr uint32_t kLaneBlocks = 4;  // four lanes share a row's slice
constexpr uint32_t kRowPadding = 16; // between rows in shared memory, against bank conflicts
constexpr uint32_t kMaxStages = 32;
constexpr uint32_t kProducers = 4; // warps
constexpr uint32_t kZeroBytes = 128; // what lanes without a vector read
constexpr uint32_t kStartBarrier = 1, kConsumerBarrier = 2, kProducerBarrier = 3;

// The most consumer warps: more sums and vectors take more registers a thread.
__host__ __device__ constexpr uint32_t max_consumers(int vectors) { return vectors <= 2 ? 16 : 12; }

__host__ __device__ constexpr uint32_t code_stride(uint32_t slices) {
    return slices * kSliceCodes + kRowPadding;
}
// Scales follow the codes in a stage: linear ones row by row, 128x4 ones in pieces of four blocks of all
// rows. Strides against bank conflicts.
__host__ __device__ constexpr uint32_t scale_stride(uint32_t slices, bool tiled) {
    return tiled ? 96 : slices % 8 == 7 ? slices * kSliceBlocks + 32 : slices * kSliceBlocks + 16;
}
__host__ __device__ constexpr uint32_t stage_bytes(uint32_t slices, bool tiled) {
    return kTileRows * code_stride(slices) +
           (tiled ? slices * (kSliceBlocks / 4) : kTileRows) * scale_stride(slices, tiled);
}

// Rows are counted in the order in which their scales lie: a row's place. In the 128x4 layout four rows 32
// apart follow each other. Batches have whole tiles of places, so that no tile has rows of two; what has no
// row there is computed like the last row and not stored.
struct Params {
    int32_t m, n, l;
    uint32_t slices;        // of a row
    uint32_t stage_slices;  // of a stage: the warps of a group
    uint32_t chunks;        // of a row
    uint32_t groups, stages;
    uint32_t places;        // of a batch
    uint32_t units_per_cta, units_left; // each CTA takes so many units; the first units_left one more
    uint32_t unit_log2;     // places of a unit
    uint32_t window;        // tiles whose sums wait in shared memory
    uint32_t x_batches;     // batches whose vectors a CTA keeps

    // Dynamic shared memory, in bytes from its start: the stages, then these.
    uint32_t stage_bytes, x_at, zero_at, x_scale_at, partial_at;

    const uint8_t *codes;
    const uint8_t *scales;
    ScaleLayout scale_layout;
    int64_t code_row_bytes, scale_batch_bytes;

    const uint8_t *vectors;
    int64_t vector_row_bytes, vector_batch_bytes;
    const uint8_t *vector_scales;
    ScaleLayout vector_scale_layout;
    int64_t vector_scale_batch_bytes;

    Epilogue epilogue;
};

// The row at a place of a batch, which may be past the end.
__device__ __forceinline__ uint32_t row_at(const Params &p, uint32_t place) {
    return p.scale_layout.tiled ? (place & ~127u) + (place / 4 & 31) + (place & 3) * 32 : place;
}

// A CTA's places, in its first batch and those after it.
struct Work {
    uint32_t batch;      // the first one
    uint32_t begin, end; // places, counted from the start of that batch
    uint32_t origin;     // of the first tile
    uint32_t tiles;

    __device__ __forceinline__ explicit Work(const Params &p) : batch(0) {
        const uint32_t cta = blockIdx.x;
        begin = (cta * p.units_per_cta + min(cta, p.units_left)) << p.unit_log2;
        end = begin + ((p.units_per_cta + (cta < p.units_left)) << p.unit_log2);
        origin = begin;
        if (p.l > 1) { // a division delays the first copy
            batch = begin / p.places;
            begin -= batch * p.places;
            end -= batch * p.places;
            origin = begin & ~(kTileRows - 1);
        }
        tiles = (end - origin + kTileRows - 1) / kTileRows;
    }
};

// A tile's batch, counted from the first of the CTA, and its first place there.
struct Tile {
    uint32_t batch = 0, place;

    __device__ __forceinline__ Tile(const Params &p, const Work &work, uint32_t tile)
        : place(work.origin + tile * kTileRows) {
        while (p.l > 1 && place >= p.places) {
            place -= p.places;
            ++batch;
        }
    }
};

struct Barriers {
    uint64_t full[kMaxStages], empty[kMaxStages];
};

// A place in the ring: the stage, and the parity of the phase of its barriers.
struct Position {
    uint32_t slot, parity = 0;

    __device__ __forceinline__ void advance(uint32_t by, uint32_t stages) {
        slot += by;
        if (slot >= stages) {
            slot -= stages;
            parity ^= 1;
        }
    }
};

// By the producer warps: each copies a quarter of a stage's rows, codes in one bulk copy a row by one
// lane, and a quarter of the scales in pieces of 16 bytes by all.
__device__ __forceinline__ void copy(const Params &p, const Work &work, uint32_t shared, uint32_t full,
                                     uint32_t empty, uint32_t producer, uint32_t lane) {
    constexpr uint32_t kRows = kTileRows / kProducers;
    const bool tiled = p.scale_layout.tiled, leads = arch::elect_one();
    const uint64_t policy = arch::policy_evict_first();
    const uint32_t step = code_stride(p.stage_slices), scale_step = scale_stride(p.stage_slices, tiled);
    const uint32_t bytes = p.stage_slices * kSliceCodes;
    const uint32_t row_step = tiled ? 32 : 1;
    // Of the scales. Linear: a lane takes one slice of a row, and of the rows `pass` further. 128x4: one
    // unit of an atom, and of the atoms `pass` further.
    const uint32_t unit = lane % 4;
    const uint32_t my_row = tiled ? 0 : lane / p.stage_slices;
    const uint32_t pass = tiled ? 8 : min(kRows, kWarp / p.stage_slices);
    const uint32_t first_piece = tiled ? producer * p.stage_slices + lane / 4 : producer * kRows + my_row;
    const uint32_t last_piece = my_row < pass ? (producer + 1) * (tiled ? p.stage_slices : kRows) : 0;
    const uint32_t scales_to = kTileRows * step + first_piece * scale_step +
                               (tiled ? unit : lane - my_row * p.stage_slices) * 16;
    const uint32_t piece_step = pass * (tiled ? 512 : uint32_t(p.scale_layout.row_stride));
    const uint32_t chunk_scales = p.stage_slices * (tiled ? kSliceBlocks / 4 * 512 : kSliceBlocks);

    Position at = {0};
    bool reuses = false; // the ring has been filled once
#pragma unroll 1
    for (uint32_t t = 0; t < work.tiles; ++t) {
        const Tile tile(p, work, t);
        const uint32_t batch = work.batch + tile.batch;
        const uint8_t *codes = p.codes + int64_t(batch) * p.m * p.code_row_bytes;
        const uint32_t counted = work.origin + t * kTileRows, first = counted + producer * kRows;
        const uint32_t row = row_at(p, tile.place + producer * kRows);
        const uint8_t *from[kRows];
        bool copies[kRows];
        uint32_t rows = 0;
#pragma unroll
        for (uint32_t i = 0; i < kRows; ++i) {
            copies[i] = first + i >= work.begin && first + i < work.end;
            rows += copies[i];
            from[i] = codes + int64_t(min(row + i * row_step, uint32_t(p.m) - 1)) * p.code_row_bytes;
        }
        const uint8_t *scales = p.scales + batch * p.scale_batch_bytes;
        if (tiled) {
            const uint32_t place = tile.place + 4 * unit;
            scales += place / 128 * p.scale_layout.row_stride + place % 128 * 4 + first_piece * 512;
        } else {
            scales += (tile.place + first_piece) * p.scale_layout.row_stride +
                      (lane - my_row * p.stage_slices) * 16;
        }
        // The pieces that exist: of rows that the CTA has.
        uint32_t begin = first_piece, end = last_piece;
        if (tiled) {
            const uint32_t place = counted + 4 * unit;
            if (place < work.begin || place >= work.end) end = 0;
        } else {
            end = min(end, min(work.end - counted, p.m - tile.place));
        }
        uint32_t chunk = 0;
#pragma unroll 1
        do {
            const uint32_t bar = full + 8 * at.slot;
            if (reuses) arch::mbarrier_wait(empty + 8 * at.slot, at.parity ^ 1);
            const uint32_t stage = shared + at.slot * p.stage_bytes;
            if (leads) {
                if (reuses) arch::fence_proxy_async();
                arch::mbarrier_arrive_expect_tx(bar, rows * bytes);
                const uint32_t to = stage + producer * kRows * step;
#pragma unroll
                for (uint32_t i = 0; i < kRows; ++i) {
                    if (copies[i]) arch::load_bulk(to + i * step, from[i], bytes, bar, policy);
                    from[i] += bytes;
                }
            }
            const uint8_t *piece_from = scales;
            uint32_t to = stage + scales_to;
            for (uint32_t piece = begin; piece < end; piece += pass) {
                arch::copy_async_16(to, piece_from);
                to += pass * scale_step;
                piece_from += piece_step;
            }
            arch::mbarrier_arrive_copies(bar);
            scales += chunk_scales;
            at.advance(1, p.stages);
            reuses |= at.slot == 0;
        } while (++chunk < p.chunks);
    }
}

// Sums each of V values over the four lanes t of a row. Lane t ends up with values from
// t / 2 * (V / 2) + t % 2 * (V / 4) on, V / 4 of them; where V is 2, lanes of a pair with the same one.
template <int V>
__device__ __forceinline__ void reduce_scatter(float (&value)[V], uint32_t t) {
    const bool upper = t & 2;
#pragma unroll
    for (int i = 0; i < V / 2; ++i) {
        const float send = upper ? value[i] : value[i + V / 2];
        const float keep = upper ? value[i + V / 2] : value[i];
        value[i] = keep + __shfl_xor_sync(0xffffffffu, send, 2);
    }
    if constexpr (V == 2) {
        value[0] += __shfl_xor_sync(0xffffffffu, value[0], 1);
    } else {
        const bool odd = t & 1;
#pragma unroll
        for (int i = 0; i < V / 4; ++i) {
            const float send = odd ? value[i] : value[i + V / 4];
            const float keep = odd ? value[i + V / 4] : value[i];
            value[i] = keep + __shfl_xor_sync(0xffffffffu, send, 1);
        }
    }
}

// The vectors of a CTA's batches, in the form that Dot multiplies, by all consumers.
template <class Dot, int kVectors>
__device__ __forceinline__ void stage_vectors(const Params &p, const Dot &dot, uint8_t *shared,
                                              uint32_t first_batch, uint32_t threads) {
    const uint32_t blocks = p.slices * kSliceBlocks;
    const uint32_t batches = min(p.x_batches, p.l - first_batch);
#pragma unroll 1
    for (uint32_t b = 0; b < batches; ++b) {
        const uint8_t *vectors = p.vectors + (first_batch + b) * p.vector_batch_bytes;
        const uint8_t *scales = p.vector_scales + (first_batch + b) * p.vector_scale_batch_bytes;
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
            // Vectors past the end repeat the last one: computed, not stored.
            const int n = min(v, p.n - 1);
            const uint32_t to = (b * kVectors + v) * blocks;
            for (uint32_t block = threadIdx.x; block < blocks; block += threads) {
                constexpr uint32_t kFrom = Dot::kScaled ? kBlock / 2 : kBlock * 2; // bytes
                dot.stage(vectors + n * p.vector_row_bytes + block * kFrom,
                          reinterpret_cast<uint4 *>(shared + p.x_at +
                                                    (to + block) * Dot::kBlockBytes));
                if constexpr (Dot::kScaled) {
                    const uint8_t code = arch::load_cached_8(
                        scales + p.vector_scale_layout.row_offset(n) +
                        p.vector_scale_layout.block_offset(block));
                    // Both operands are times two.
                    reinterpret_cast<float *>(shared + p.x_scale_at)[(b * blocks + block) * kVectors +
                                                                     v] =
                        0.25f * __low2float(arch::cvt_e4m3x2(code));
                }
            }
        }
    }
    if (threadIdx.x < kZeroBytes / 16) {
        reinterpret_cast<uint4 *>(shared + p.zero_at)[threadIdx.x] = make_uint4(0, 0, 0, 0);
    }
}

// Adds the warps' sums of `tiles` tiles from `first` on, and stores.
template <int kVectors>
__device__ __forceinline__ void finish(const Params &p, const Work &work, const uint8_t *shared,
                                       uint32_t first, uint32_t tiles, uint32_t warps, float factor) {
    constexpr uint32_t kValues = kTileRows * kVectors;
    const float *partial = reinterpret_cast<const float *>(shared + p.partial_at);
    for (uint32_t i = threadIdx.x; i < tiles * kValues; i += warps * kWarp) {
        const uint32_t t = i / kValues, value = i % kValues;
        const uint32_t within = value / kVectors;
        const int n = value % kVectors;
        const Tile tile(p, work, first + t);
        const uint32_t counted = work.origin + (first + t) * kTileRows + within;
        const uint32_t row = row_at(p, tile.place + within);
        if (counted < work.begin || counted >= work.end || row >= uint32_t(p.m) || n >= p.n) continue;
        const float *at = partial + t * warps * kValues + value;
        float y = 0.0f;
#pragma unroll 4
        for (uint32_t w = 0; w < warps; ++w) y += at[w * kValues];
        p.epilogue.store(p.m, work.batch + tile.batch, row, n, y * factor);
    }
}

// Keeps a value in its register: the compiler would compute it again wherever it is used.
__device__ __forceinline__ uint32_t keep(uint32_t value) {
    asm volatile("" : "+r"(value));
    return value;
}

template <int kVectors, int kFirst = 0>
__device__ __forceinline__ void load_x_scales(uint32_t from, uint4 *to) {
    if constexpr (kFirst < kVectors) {
        to[kFirst] = arch::load_shared_128<16 * kFirst>(from);
        load_x_scales<kVectors, kFirst + 1>(from, to);
    }
}

// By the consumer warps.
template <class Dot, int kVectors>
__device__ __forceinline__ void consume(const Params &p, const Work &work, uint8_t *shared,
                                        uint32_t full, uint32_t empty) {
    constexpr int kPairs = (kVectors + 1) / 2;
    constexpr int kSums = 2 * kVectors; // of rows g and g + 8
    constexpr uint32_t kValues = kTileRows * kVectors;
    const uint32_t warps = p.groups * p.stage_slices;
    const uint32_t warp = threadIdx.x / kWarp, lane = keep(threadIdx.x % kWarp);
    // A division by a small number, once.
    const uint32_t group = warp / p.stage_slices, slice = warp - group * p.stage_slices;
    const uint32_t g = lane / 4, t = lane % 4;
    const uint32_t blocks = p.slices * kSliceBlocks;

    const Dot dot;
    arch::grid_dependency_wait(); // the previous grid may write vectors and read the output
    stage_vectors<Dot, kVectors>(p, dot, shared, work.batch, warps * kWarp);
    arch::named_barrier_sync(kStartBarrier, (warps + kProducers) * kWarp);

    const uint32_t base = arch::shared_address(shared);
    const uint32_t row_stride = code_stride(p.stage_slices);
    const uint32_t lane_codes = base + slice * kSliceCodes + t * 32;
    const bool tiled = p.scale_layout.tiled;
    const uint32_t scale_row = tiled ? 4 : scale_stride(p.stage_slices, false);
    const uint32_t lane_scales = base + kTileRows * row_stride +
                                 (slice * 4 + t) * (tiled ? scale_stride(p.stage_slices, true) : 4);
    // Of B: this lane's vector, or zeros.
    const bool reads_x = g / 2 == t && (kVectors > 1 || g % 2 == 0);
    const uint32_t pair_bytes = reads_x ? 2 * blocks * Dot::kBlockBytes : 0;
    const uint32_t slice_x = reads_x ? kSliceBlocks * Dot::kBlockBytes : 0;
    constexpr uint32_t kSliceXScales = kSliceBlocks * kVectors * 4;
    const uint32_t x_step = keep(p.groups * p.stage_slices * slice_x);
    const uint32_t x_scale_step = keep(p.groups * p.stage_slices * kSliceXScales);

    // Of this lane, in the chunk.
    uint32_t x = base + (group * p.stage_slices + slice) * slice_x +
                 (reads_x ? p.x_at + (g % 2 * blocks + t * kLaneBlocks) * Dot::kBlockBytes : p.zero_at);
    uint32_t x_scale = base + p.x_scale_at + (group * p.stage_slices + slice) * kSliceXScales +
                       t * kLaneBlocks * kVectors * 4;
    uint32_t codes_at[2], scales_at[2]; // in stage 0
    float sum[kSums] = {};
    Position at = {group};
    uint32_t tile = 0, waiting = 0, place = work.origin; // waiting: tiles whose sums are in shared memory
    uint32_t chunk = group;                              // this group's next of the tile
#pragma unroll 1
    while (true) {
        const uint32_t counted = work.origin + tile * kTileRows;
        const uint32_t scale_rows = tiled ? kTileRows : p.m - place; // padding has none in linear order
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            // Rows that the CTA has not are read as the nearest that it has.
            const uint32_t row = min(max(counted + g + 8 * i, work.begin), work.end - 1) - counted;
            codes_at[i] = lane_codes + row * row_stride;
            scales_at[i] = lane_scales + min(row, scale_rows - 1) * scale_row;
        }
#pragma unroll 1
        for (; chunk < p.chunks; chunk += p.groups) {
            arch::mbarrier_wait(full + 8 * at.slot, at.parity);
            const uint32_t stage = at.slot * p.stage_bytes;
            uint4 codes[2][2];
            uint32_t scale_codes[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                codes[i][0] = arch::load_shared_128<0>(stage + codes_at[i]);
                codes[i][1] = arch::load_shared_128<16>(stage + codes_at[i]);
                scale_codes[i] = arch::load_shared_32(stage + scales_at[i]);
            }
            // At once, or the compiler puts arithmetic between the loads.
            __syncwarp();
            if (lane == 0) arch::mbarrier_arrive(empty + 8 * at.slot);
            at.advance(p.groups, p.stages);
            uint4 x_scales[kVectors]; // f32 [4 blocks][vectors]
            if constexpr (Dot::kScaled) load_x_scales<kVectors>(x_scale, x_scales);
            float scale[2][kLaneBlocks];
            block_dot::decode_scales(scale_codes[0], scale[0]);
            block_dot::decode_scales(scale_codes[1], scale[1]);
#pragma unroll
            for (int b = 0; b < int(kLaneBlocks); ++b) {
                const uint4 &u = codes[0][b / 2], &l = codes[1][b / 2];
                const typename Dot::Weights w(dot, b % 2 ? make_uint2(u.z, u.w) : make_uint2(u.x, u.y),
                                              b % 2 ? make_uint2(l.z, l.w) : make_uint2(l.x, l.y));
#pragma unroll
                for (int pair = 0; pair < kPairs; ++pair) {
                    typename Dot::Vector v;
                    v.load(x + pair * pair_bytes + b * Dot::kBlockBytes);
                    float d[4];
                    dot.multiply(w, v, d);
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const int n = 2 * pair + i % 2;
                        if (n >= kVectors) continue;
                        float factor = scale[i / 2][b];
                        if constexpr (Dot::kScaled) {
                            factor *= reinterpret_cast<const float *>(x_scales)[b * kVectors + n];
                        }
                        float &s = sum[i / 2 * kVectors + n];
                        s = fmaf(d[i], factor, s);
                    }
                }
            }
            x += x_step;
            x_scale += x_scale_step;
        }

        // The sums of the tile: zeros where the group had no part of it.
        chunk -= p.chunks;
        x -= p.slices * slice_x;
        x_scale -= p.slices * kSliceXScales;
        reduce_scatter(sum, t);
        float *to = reinterpret_cast<float *>(shared + p.partial_at) + (waiting * warps + warp) * kValues;
        if constexpr (kSums == 2) {
            if (t % 2 == 0) to[g + 8 * (t / 2)] = sum[0];
        } else {
            constexpr int kEach = kSums / 4;
            const uint32_t first = t / 2 * (kSums / 2) + t % 2 * kEach;
            to += (g + first / kVectors * 8) * kVectors + first % kVectors;
#pragma unroll
            for (int i = 0; i < kEach; ++i) to[i] = sum[i];
        }
#pragma unroll
        for (int i = 0; i < kSums; ++i) sum[i] = 0.0f;
        ++tile;
        ++waiting;
        place += kTileRows;
        if (place >= p.places) { // the next batch's vectors follow
            place -= p.places;
            if (reads_x) x += kVectors * blocks * Dot::kBlockBytes;
            x_scale += kVectors * blocks * 4;
        }
        if (tile != work.tiles && waiting != p.window) continue;
        arch::named_barrier_sync(kConsumerBarrier, warps * kWarp);
        finish<kVectors>(p, work, shared, tile - waiting, waiting, warps, Dot::kFactor);
        if (tile == work.tiles) break;
        arch::named_barrier_sync(kConsumerBarrier, warps * kWarp);
        waiting = 0;
    }
}

template <int kActivation, int kVectors>
__global__ void __launch_bounds__((max_consumers(kVectors) + kProducers) * kWarp, 1)
    gemv_ring(const __grid_constant__ Params p) {
    extern __shared__ __align__(128) uint8_t dynamic[];
    __shared__ Barriers barriers;
    const uint32_t full = arch::shared_address(barriers.full);
    const uint32_t empty = arch::shared_address(barriers.empty);
    const uint32_t consumers = p.groups * p.stage_slices * kWarp;
    const Work work(p);

    if (threadIdx.x >= consumers) {
        const uint32_t s = threadIdx.x - consumers;
        if (s < p.stages) {
            arch::mbarrier_init(full + 8 * s, kProducers * (1 + kWarp));
            arch::mbarrier_init(empty + 8 * s, p.stage_slices);
            arch::fence_mbarrier_init();
        }
        arch::named_barrier_sync(kProducerBarrier, kProducers * kWarp);
        arch::named_barrier_arrive(kStartBarrier, consumers + kProducers * kWarp);
        arch::grid_dependency_launch();
        copy(p, work, arch::shared_address(dynamic), full, empty, (threadIdx.x - consumers) / kWarp,
             threadIdx.x % kWarp);
    } else {
        consume<block_dot::Dot<kActivation>, kVectors>(p, work, dynamic, full, empty);
    }
}

}  // namespace nvfp4::ring
