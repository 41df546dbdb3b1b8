// GEMV on CUDA cores, multiplied on mma.sync: blocks by themselves (block_products.cuh), or weights that carry
// their scales (scaled_products.cuh). sm_80 and newer; K a multiple of 256.
//
// A CTA takes a contiguous range of rows in tiles of 16, and each of its warps as many steps of them as
// the others, one after the other in memory: a step is 256 elements of K of a tile's 16 rows. A lane copies
// the codes that it will multiply, stages ahead, into a queue in shared memory that nobody else touches:
// warps wait for memory only, not for each other. The vectors wait in shared memory, in the form in which
// they are multiplied. Sums of a warp's part of a tile go to shared memory, and are added in the order of
// warps at the end: every order is fixed by the configuration.

#include "stream_params.cuh"

#ifdef __CUDACC__

#include <type_traits>

#include "../arch/copy_async.cuh"
#include "../arch/grid_dependency.cuh"
#include "../arch/registers.cuh"
#include "../arch/shared.cuh"
#include "../entries.cuh"
#include "block_products.cuh"
#include "scaled_products.cuh"

namespace nvfp4::stream {

constexpr int scaled_from(int activation) {
    return activation == NVFP4_ACTIVATION_BF16 ? NVFP4_STREAM_SCALED_FROM_BF16 : NVFP4_STREAM_SCALED_FROM;
}

template <int kActivation, int kVectors>
using Products =
    std::conditional_t<(kVectors < scaled_from(kActivation)), BlockProducts<kActivation, kVectors>,
                       ScaledProducts<kActivation, kVectors>>;

constexpr uint32_t max_warps(int vectors) {
    return vectors <= NVFP4_FEW_VECTORS ? NVFP4_STREAM_MAX_WARPS : NVFP4_STREAM_MAX_WARPS_OF_MANY;
}

// x / y where `magic` is 2^32 / y, rounded up, or 0 for a y of 1: exact while x * y stays below 2^32. A
// division proper would delay the first copy.
__device__ __forceinline__ uint32_t divide(uint32_t x, uint32_t magic) {
    return magic == 0 ? x : __umulhi(x, magic);
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
static_assert(sizeof(Parts) == NVFP4_STREAM_PART_BYTES, "as the plan counts");

// Vectors on their way from memory to shared memory, in the form in which they are multiplied: kEach blocks of each
// that a thread stages. Loaded before the weights, or they would wait behind them.
template <class Products, int kVectors>
struct Staging {
    using Vectors = typename Products::Vectors;
    static constexpr int kEach = kVectors >= 4 ? 1 : 4 / kVectors;
    static constexpr uint32_t kFrom = Vectors::kHasScales ? kBlock / 2 : kBlock * 2; // bytes of a block
    static constexpr int kParts = kVectors * Vectors::kParts;

    typename Vectors::Raw raw[kVectors][kEach];
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
                if constexpr (Vectors::kHasScales) {
                    scale[v][j] = arch::load_fresh_8(scales + row_offset(p.vector_scale_layout, n) +
                                                      block_offset(p.vector_scale_layout, block));
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
                float factor = 1.0f;
                if constexpr (Vectors::kHasScales) factor = __low2float(arch::cvt_e4m3x2(scale[v][j]));
#pragma unroll
                for (int part = 0; part < Vectors::kParts; ++part) {
                    const uint32_t column = batch * kParts + v * Vectors::kParts + part;
                    Vectors::put(raw[v][j], factor, part,
                                 reinterpret_cast<uint4 *>(shared + p.x_at + column * Vectors::column_bytes(p) +
                                                           Vectors::block_at(block)));
                }
                if constexpr (Products::kStoresScales) {
                    reinterpret_cast<float2 *>(shared + p.x_scale_at +
                                               (batch * blocks + block) * Vectors::kXScaleBytes)[v] =
                        Vectors::scale(raw[v][j], factor);
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
        if constexpr (Vectors::kZeroBlocks != 0) {
            if (threadIdx.x < Vectors::kZeroBlocks * Vectors::kBlockBytes / 16) {
                reinterpret_cast<uint4 *>(shared + p.zero_at)[threadIdx.x] = make_uint4(0, 0, 0, 0);
            }
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
            uint32_t row = row_at(p.scale_layout, place);
            has[i] = has[i] && row < uint32_t(p.m);
            row = has[i] ? row : 0;
            codes[i] = c + row * p.code_row_bytes;
            scales[i] = s + (p.scale_layout.tiled ? place_offset(p.scale_layout, place)
                                                  : place_offset(p.scale_layout, row));
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

template <class Products, int kVectors>
__device__ __forceinline__ void run(const Params &p, uint8_t *shared) {
    constexpr int kParts = Products::Vectors::kParts;
    constexpr uint32_t kValues = kTileRows * kVectors * kParts;
    const Work work(p);
    Staging<Products, kVectors> staging;
    if (!p.dependent) staging.load(p, work.batch, 0);

    const uint32_t warp = threadIdx.x / kWarp, lane = arch::kept(threadIdx.x % kWarp);
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

    Tile at(p, work, tile);
    Products products(p, base, lane, at.batch, step);
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

        products.step(codes, scale_codes);
        if (--here != 0) continue;

        // This warp's part of the tile. Parts of the same tile follow each other: see finish.
        products.store(sums + (warp + tile) * kValues);
        if (end != p.steps) break;
        if (lane == 0) parts[tile].last = warp;
        ++tile;
        if (left != 0 && lane == 0) parts[tile].first = warp;
        here = end = min(left, p.steps);
        left -= here;
        products.begin(p);
        at.place += kTileRows;
        if (at.place >= p.places) { // the next batch's vectors follow
            at.place -= p.places;
            products.next_batch(p);
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
        const uint32_t row = row_at(p.scale_layout, in.place + within);
        if (counted < work.begin || counted >= work.end || row >= uint32_t(p.m) || n >= p.n) continue;
        const Parts part = parts[of];
        float y[kParts] = {};
#pragma unroll 4
        for (uint32_t w = part.first; w <= part.last; ++w) {
#pragma unroll
            for (int j = 0; j < kParts; ++j) y[j] += sums[(w + of) * kValues + value * kParts + j];
        }
        store(p.epilogue, p.m, work.batch + in.batch, row, n, Products::total(y));
    }
}

}  // namespace nvfp4::stream

// Vectors of a pass, by their type.
#define GEMV_STREAM_OF(X, name, activation) \
    X(gemv_stream_##name##_n1, activation, 1) \
    X(gemv_stream_##name##_n2, activation, 2) \
    X(gemv_stream_##name##_n4, activation, 4) \
    X(gemv_stream_##name##_n8, activation, 8)
#define GEMV_STREAM(X)                               \
    GEMV_STREAM_OF(X, nvfp4, NVFP4_ACTIVATION_NVFP4) \
    GEMV_STREAM_OF(X, f16, NVFP4_ACTIVATION_F16)     \
    GEMV_STREAM_OF(X, bf16, NVFP4_ACTIVATION_BF16)

#define ENTRY(name, activation, vectors)                                                         \
    extern "C" __global__ void __launch_bounds__(nvfp4::stream::max_warps(vectors) * NVFP4_WARP, 1) \
        name(const __grid_constant__ nvfp4_stream_params p) {                                    \
        extern __shared__ __align__(128) uint8_t dynamic[];                                      \
        nvfp4::stream::run<nvfp4::stream::Products<activation, vectors>, vectors>(p, dynamic);   \
    }
GEMV_STREAM(ENTRY)
NVFP4_TABLE(gemv_stream, GEMV_STREAM)

#endif
