// GEMV on CUDA cores with blocks multiplied on mma.sync. sm_80 and newer; K a multiple of 256.
//
// A CTA takes a contiguous range of rows in tiles of 16, and each of its warps as many steps of them as
// the others, one after the other in memory: a step is 256 elements of K of a tile's 16 rows. A lane copies
// the codes that it will multiply, stages ahead, into a queue in shared memory that nobody else touches:
// warps wait for memory only, not for each other. The vectors wait in shared memory, in the form in which
// they are multiplied. Sums of a warp's part of a tile go to shared memory, and are added in the order of
// warps at the end: every order is fixed by the configuration.
#pragma once

#include <cstdint>

#include "../arch/copy_async.cuh"
#include "../arch/grid_dependency.cuh"
#include "../arch/shared.cuh"
#include "../format/scale_layout.cuh"
#include "block_dot.cuh"
#include "cuda_core.cuh"
#include "epilogue.cuh"

namespace nvfp4::stream {

constexpr uint32_t kTileRows = 16;
constexpr uint32_t kStepBlocks = 16;  // of a row
constexpr uint32_t kRowCodes = 128;   // bytes of a row's step
constexpr uint32_t kPieceBytes = 512; // 16 bytes a lane: four lanes a row, half a step of eight rows
constexpr uint32_t kStageCodes = 4 * kPieceBytes;
constexpr uint32_t kStageBytes = kStageCodes + kTileRows * kStepBlocks;
constexpr uint32_t kZeroBlocks = 10; // what lanes without a vector read

// The most warps: more sums and vectors take more registers a thread.
__host__ __device__ constexpr uint32_t max_warps(int vectors) { return vectors <= 2 ? 16 : 12; }

// Rows are counted in the order in which their scales lie: a row's place. In the 128x4 layout four rows 32
// apart follow each other. Of several batches, each has whole tiles of places, so that no tile has rows of
// two; what has no row there is computed like the last row and not stored.
struct Params {
    int32_t m, n, l;
    uint32_t steps;     // of a row
    uint32_t warps, stages;
    uint32_t steps_magic, warps_magic; // see divide
    uint32_t places;    // of a batch
    uint32_t unit_log2; // places that stay together: a row, or four
    uint32_t units_per_cta, units_left; // each CTA takes so many units; the first units_left one more
    uint32_t x_batches; // batches whose vectors a CTA keeps
    uint32_t dependent; // the launch may overlap with the previous grid
    uint32_t far_ahead; // fetch 256 bytes into L2 at once, not 128

    // Dynamic shared memory, in bytes from its start: the queues, then these.
    uint32_t x_at, zero_at, x_scale_at, sums_at, parts_at;

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

// x / y where `magic` is 2^32 / y, rounded up, or 0 for a y of 1: exact while x * y stays below 2^32. A
// division proper would delay the first copy.
__device__ __forceinline__ uint32_t divide(uint32_t x, uint32_t magic) {
    return magic == 0 ? x : __umulhi(x, magic);
}

// The row at a place of a batch, which may be past the end.
__device__ __forceinline__ uint32_t row_at(const Params &p, uint32_t place) {
    return p.scale_layout.tiled ? (place & ~127u) + (place / 4 & 31) + (place & 3) * 32 : place;
}

// A CTA's places, counted from the start of its first batch.
struct Work {
    uint32_t batch, begin, end;
    uint32_t origin; // of the first tile
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

// A tile's batch, counted from the CTA's first, and its first place there.
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

// Which warps computed a tile.
struct Parts {
    uint16_t first, last;
};

// Blocks from a vector to the next in shared memory. One more than there are, or two vectors that are read
// at once would lie in the same banks.
__device__ __forceinline__ uint32_t x_blocks(const Params &p) { return p.steps * kStepBlocks + 1; }

// Keeps a value in its register: the compiler would compute it again wherever it is used.
__device__ __forceinline__ uint32_t keep(uint32_t value) {
    asm volatile("" : "+r"(value));
    return value;
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

// Vectors on their way from memory to shared memory, in the form that Dot multiplies: kEach blocks of each
// that a thread stages. Loaded before the weights, or they would wait behind them.
template <class Dot, int kVectors>
struct Staging {
    static constexpr int kEach = kVectors >= 4 ? 1 : 4 / kVectors;
    static constexpr uint32_t kFrom = Dot::kScaled ? kBlock / 2 : kBlock * 2; // bytes of a block

    static constexpr int kParts = kVectors * Dot::kParts;

    typename Dot::Raw raw[kVectors][kEach];
    uint8_t scale[kVectors][kEach];

    // The blocks from `first` on, of a batch.
    __device__ __forceinline__ void load(const Params &p, uint32_t batch, uint32_t first) {
        const uint32_t blocks = p.steps * kStepBlocks;
        const uint8_t *vectors = p.vectors + batch * p.vector_batch_bytes;
        const uint8_t *scales = p.vector_scales + batch * p.vector_scale_batch_bytes;
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
            // Vectors past the end repeat the last one: computed, not stored.
            const int n = kVectors == 1 ? 0 : min(v, p.n - 1);
#pragma unroll
            for (int j = 0; j < kEach; ++j) {
                const uint32_t block = first + threadIdx.x + j * p.warps * kWarp;
                if (block >= blocks) continue;
                raw[v][j].load(vectors + n * p.vector_row_bytes + block * kFrom);
                if constexpr (Dot::kScaled) {
                    scale[v][j] = arch::load_fresh_8(scales + p.vector_scale_layout.row_offset(n) +
                                                      p.vector_scale_layout.block_offset(block));
                }
            }
        }
    }

    // `batch` counts from the CTA's first.
    __device__ __forceinline__ void store(const Params &p, uint8_t *shared, uint32_t batch,
                                          uint32_t first) const {
        const uint32_t blocks = p.steps * kStepBlocks;
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
#pragma unroll
            for (int j = 0; j < kEach; ++j) {
                const uint32_t block = first + threadIdx.x + j * p.warps * kWarp;
                if (block >= blocks) continue;
#pragma unroll
                for (int part = 0; part < Dot::kParts; ++part) {
                    Dot::put(raw[v][j], part,
                             reinterpret_cast<uint4 *>(
                                 shared + p.x_at +
                                 ((batch * kParts + v * Dot::kParts + part) * x_blocks(p) + block) *
                                     Dot::kBlockBytes));
                }
                if constexpr (Dot::kScaled) {
                    reinterpret_cast<float2 *>(shared + p.x_scale_at +
                                               (batch * blocks + block) *
                                                   block_dot::x_scale_bytes(kVectors))[v] =
                        Dot::vector_scale(raw[v][j], __low2float(arch::cvt_e4m3x2(scale[v][j])));
                }
            }
        }
    }

    // All that is left after the first blocks of the first batch.
    __device__ __forceinline__ void finish(const Params &p, uint8_t *shared, uint32_t first_batch) {
        const uint32_t threads = p.warps * kWarp;
        const uint32_t batches = min(p.x_batches, p.l - first_batch);
        uint32_t first = kEach * threads;
#pragma unroll 1
        for (uint32_t batch = 0; batch < batches; ++batch, first = 0) {
#pragma unroll 1
            for (; first < p.steps * kStepBlocks; first += kEach * threads) {
                load(p, first_batch + batch, first);
                store(p, shared, batch, first);
            }
        }
        if (threadIdx.x < kZeroBlocks * Dot::kBlockBytes / 16) {
            reinterpret_cast<uint4 *>(shared + p.zero_at)[threadIdx.x] = make_uint4(0, 0, 0, 0);
        }
    }
};

// A warp's steps, from memory into its queue, stages ahead of what is multiplied.
struct Loads {
    uint32_t left, tile, step; // steps to load behind the current tile; the next tile, and where it begins
    int32_t here;              // steps to load of the current tile, below 0
    const uint8_t *codes[2], *scales[2]; // of this lane, in rows g and g + 8, behind the tile's last step
    bool has[2];                         // there are such rows

    // The next tile.
    __device__ __forceinline__ void enter(const Params &p, const Work &work, uint32_t lane) {
        const uint32_t g = lane / 4, t = lane % 4;
        const Tile of(p, work, tile);
        const uint32_t batch = work.batch + of.batch, counted = work.origin + tile * kTileRows;
        const int64_t group = p.scale_layout.group_stride;
        const uint32_t steps = min(left, p.steps - step), end = step + steps;
        const uint8_t *c = p.codes + int64_t(batch) * p.m * p.code_row_bytes + end * kRowCodes + t * 16;
        const uint8_t *s = p.scales + batch * p.scale_batch_bytes + (end * (kStepBlocks / 4) + t) * group;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            // Where the CTA has no such row, zeros are computed with, and not stored.
            const uint32_t mine = counted + g + 8 * i, place = of.place + g + 8 * i;
            has[i] = mine >= work.begin && mine < work.end;
            uint32_t row = row_at(p, place);
            has[i] = has[i] && row < uint32_t(p.m);
            row = has[i] ? row : 0;
            codes[i] = c + row * p.code_row_bytes;
            // In the 128x4 layout places lie four bytes apart in their block of 128.
            scales[i] = s + (p.scale_layout.tiled
                                 ? place / 128 * p.scale_layout.row_stride + place % 128 * 4
                                 : row * p.scale_layout.row_stride);
        }
        here = -int32_t(steps);
        left -= steps;
        step = 0;
        ++tile;
    }

    // To the shared address `to`, of this lane's pieces.
    __device__ __forceinline__ void next(const Params &p, const Work &work, uint32_t lane, uint32_t to) {
        if (here == 0 && left != 0) enter(p, work, lane);
        if (here != 0) {
            const uint32_t scales_to = to + kStageCodes - lane * 16 + lane * 4;
            const int32_t scale_step = kStepBlocks / 4 * p.scale_layout.group_stride;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint8_t *from = codes[i] + int64_t(here) * int32_t(kRowCodes);
                if (p.far_ahead) {
                    arch::copy_async_16<256>(to + 2 * i * kPieceBytes, from, has[i]);
                } else {
                    arch::copy_async_16<128>(to + 2 * i * kPieceBytes, from, has[i]);
                }
                arch::copy_async_16<128>(to + (2 * i + 1) * kPieceBytes, from + kRowCodes / 2, has[i]);
                arch::copy_async_4(scales_to + i * 8 * kStepBlocks, scales[i] + int64_t(here) * scale_step,
                                   has[i]);
            }
            ++here;
        }
        arch::commit_copies(); // an empty group too: groups are counted
    }
};

// Waits for the oldest stage.
__device__ __forceinline__ void wait_for_stage(uint32_t stages) {
    if (stages == 3) {
        arch::wait_copies<1>();
    } else if (stages == 4) {
        arch::wait_copies<2>();
    } else {
        arch::wait_copies<4>();
    }
}

template <class Dot, int kVectors>
__device__ __forceinline__ void run(const Params &p, uint8_t *shared) {
    constexpr int kParts = kVectors * Dot::kParts; // columns of B
    constexpr int kPairs = (kParts + 1) / 2;
    constexpr int kSums = 2 * kParts; // of rows g and g + 8
    constexpr uint32_t kValues = kTileRows * kParts;
    const Work work(p);
    Staging<Dot, kVectors> staging;
    if (!p.dependent) staging.load(p, work.batch, 0);

    const uint32_t warp = threadIdx.x / kWarp, lane = keep(threadIdx.x % kWarp);
    const uint32_t g = lane / 4, t = lane % 4;
    const uint32_t base = arch::shared_address(shared);
    const uint32_t queue = base + warp * p.stages * kStageBytes + lane * 16;

    // As many steps for each warp, and one more for the first ones.
    const uint32_t total = work.tiles * p.steps, each = divide(total, p.warps_magic), more = total - each * p.warps;
    const uint32_t first = warp * each + min(warp, more);
    uint32_t left = each + (warp < more);
    uint32_t tile = divide(first, p.steps_magic), step = first - tile * p.steps;

    Loads loads;
    loads.left = left;
    loads.tile = tile;
    loads.step = step;
    loads.here = 0;
    const uint32_t last = queue + (p.stages - 1) * kStageBytes;
    uint32_t to = queue;
#pragma unroll 1
    do {
        loads.next(p, work, lane, to);
        to += kStageBytes;
    } while (to != last);

    arch::grid_dependency_launch();
    arch::grid_dependency_wait(); // the previous grid may write vectors and read the output
    if (p.dependent) staging.load(p, work.batch, 0);
    staging.store(p, shared, 0, 0);
    staging.finish(p, shared, work.batch);
    __syncthreads();

    const Dot dot(arch::load_shared_128(base + p.zero_at));
    const uint32_t blocks = p.steps * kStepBlocks;
    // Of B: this lane's vector, or zeros.
    const bool reads_x = g / 2 == t && (kParts > 1 || g % 2 == 0);
    const uint32_t pair_bytes = reads_x ? 2 * x_blocks(p) * Dot::kBlockBytes : 0;
    const uint32_t x_step = keep(reads_x ? kStepBlocks * Dot::kBlockBytes : 0);
    constexpr uint32_t kXScaleBytes = block_dot::x_scale_bytes(kVectors);
    constexpr uint32_t kXScaleStep = kStepBlocks * kXScaleBytes;
    Tile at(p, work, tile);
    uint32_t x = base + step * x_step +
                 (reads_x ? p.x_at + ((at.batch * kParts + g % 2) * x_blocks(p) + 2 * t) * Dot::kBlockBytes
                          : p.zero_at);
    uint32_t x_scale =
        base + p.x_scale_at + (at.batch * blocks + 2 * t) * kXScaleBytes + step * kXScaleStep;
    float sum[kSums] = {};
    auto *const sums = reinterpret_cast<float *>(shared + p.sums_at);
    auto *const parts = reinterpret_cast<Parts *>(shared + p.parts_at);
    if (left != 0 && step == 0 && lane == 0) parts[tile].first = warp;

    uint32_t here = min(left, p.steps - step), end = step + here; // steps of this tile, and where they end
    left -= here;
    uint32_t from = queue;
#pragma unroll 1
    while (here != 0) {
        wait_for_stage(p.stages);
        __syncwarp();
        uint4 codes[2][2];
        uint32_t scale_codes[2][2];
        const uint32_t scales_from = from + kStageCodes - lane * 16 + g * kStepBlocks + 2 * t;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                codes[i][h] = arch::load_shared_128(from + (2 * i + h) * kPieceBytes);
                scale_codes[i][h] = arch::load_shared_16(scales_from + i * 8 * kStepBlocks + h * 8);
            }
        }
        loads.next(p, work, lane, to); // into the stage before this one: all lanes have read it
        to = from;
        from = from == last ? queue : from + kStageBytes;

        // This lane's blocks: 2t, 2t + 1, 2t + 8 and 2t + 9 of the step.
        float scale[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i) block_dot::decode_scales(scale_codes[i], scale[i]);
        float2 x_scales[4][kVectors];
        if constexpr (Dot::kScaled) {
            block_dot::load_x_scales<kVectors>(x_scale, &x_scales[0]);
            block_dot::load_x_scales<kVectors>(x_scale + 8 * kXScaleBytes, &x_scales[2]);
        }
#pragma unroll
        for (int b = 0; b < 4; ++b) {
            const uint4 &u = codes[0][b / 2], &l = codes[1][b / 2];
            const typename Dot::Weights w(dot, b % 2 ? make_uint2(u.z, u.w) : make_uint2(u.x, u.y),
                                          b % 2 ? make_uint2(l.z, l.w) : make_uint2(l.x, l.y));
#pragma unroll
            for (int pair = 0; pair < kPairs; ++pair) {
                typename Dot::Vector v;
                v.load(x + pair * pair_bytes + (b / 2 * 8 + b % 2) * Dot::kBlockBytes);
                float d[4];
                dot.multiply(w, v, d);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int n = 2 * pair + i % 2;
                    if (n >= kParts) continue;
                    if constexpr (Dot::kScaled) d[i] = fmaf(d[i], x_scales[b][n].x, x_scales[b][n].y);
                    float &s = sum[i / 2 * kParts + n];
                    s = fmaf(d[i], scale[i / 2][b], s);
                }
            }
        }
        x += x_step;
        x_scale += kXScaleStep;
        if (--here != 0) continue;

        // This warp's part of the tile. Parts of the same tile follow each other: see finish.
        reduce_scatter(sum, t);
        float *part = sums + (warp + tile) * kValues;
        if constexpr (kSums == 2) {
            if (t % 2 == 0) part[g + 8 * (t / 2)] = sum[0];
        } else {
            constexpr int kEach = kSums / 4;
            const uint32_t value = t / 2 * (kSums / 2) + t % 2 * kEach;
            part += (g + value / kParts * 8) * kParts + value % kParts;
#pragma unroll
            for (int i = 0; i < kEach; ++i) part[i] = sum[i];
        }
        if (end != p.steps) break;
        if (lane == 0) parts[tile].last = warp;
#pragma unroll
        for (int i = 0; i < kSums; ++i) sum[i] = 0.0f;
        ++tile;
        if (left != 0 && lane == 0) parts[tile].first = warp;
        here = end = min(left, p.steps);
        left -= here;
        x -= p.steps * x_step;
        x_scale -= p.steps * kXScaleStep;
        at.place += kTileRows;
        if (at.place >= p.places) { // the next batch's vectors follow
            at.place -= p.places;
            if (reads_x) x += kParts * x_blocks(p) * Dot::kBlockBytes;
            x_scale += blocks * kXScaleBytes;
        }
    }
    __syncthreads();

    // Part w of tile t is number w + t: both grow along the steps.
    for (uint32_t i = threadIdx.x; i < work.tiles * kTileRows * kVectors; i += p.warps * kWarp) {
        const uint32_t of = i / (kTileRows * kVectors), value = i % (kTileRows * kVectors);
        const uint32_t within = value / kVectors;
        const int n = value % kVectors;
        const Tile in(p, work, of);
        const uint32_t counted = work.origin + of * kTileRows + within;
        const uint32_t row = row_at(p, in.place + within);
        if (counted < work.begin || counted >= work.end || row >= uint32_t(p.m) || n >= p.n) continue;
        const Parts part = parts[of];
        float y[Dot::kParts] = {};
#pragma unroll 4
        for (uint32_t w = part.first; w <= part.last; ++w) {
#pragma unroll
            for (int j = 0; j < Dot::kParts; ++j) y[j] += sums[(w + of) * kValues + value * Dot::kParts + j];
        }
        p.epilogue.store(p.m, work.batch + in.batch, row, n, Dot::total(y));
    }
}

template <int kActivation, int kVectors>
__global__ void __launch_bounds__(max_warps(kVectors) * kWarp, 1)
    gemv_stream(const __grid_constant__ Params p) {
    extern __shared__ __align__(128) uint8_t dynamic[];
    run<block_dot::Dot<kActivation, kVectors>, kVectors>(p, dynamic);
}

}  // namespace nvfp4::stream
