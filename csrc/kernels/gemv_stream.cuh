// GEMV on the path of CUDA cores, multiplied on mma.sync, sm_80 and newer. Blocks are multiplied by themselves
// (block_products.cuh), or weights are multiplied by their scales first (scaled_products.cuh). Four units are made of
// this source. gemv_stream takes K a multiple of 256 in operands aligned to 16 bytes (whole_steps.cuh).
// gemv_stream_select takes the same, where batches select their matrix. gemv_stream_ragged takes other operands, and
// f32 vectors (ragged_steps.cuh). gemv_stream_ordered takes what gemv_stream takes, and adds up in the order of
// gemv_packed with long sums: a row is divided into parts, each of which one warp adds up.
//
// A CTA takes a contiguous range of rows in tiles of 16. A step is 256 elements of K of a tile's 16 rows; each warp
// takes as many steps as the others. A warp's steps lie one after the other in memory. Or the steps of a group of warps
// do, and its warps take them in turn, so that more bytes of a row are asked for at once. A warp copies the codes that
// it will multiply, stages ahead, into its own queue in shared memory: warps wait for memory only, not for each other.
// The vectors wait in shared memory, in the form in which they are multiplied. A warp's sums of a tile go to shared
// memory, and are added at the end in the order of warps. Every order is fixed by the config.

#include "stream_params.cuh"

#ifdef __CUDACC__

#include <type_traits>

#include "../arch/cp_async.cuh"
#include "../arch/griddepcontrol.cuh"
#include "../arch/registers.cuh"
#include "../arch/shared.cuh"
#include "../entries.cuh"
#include "block_products.cuh"
#include "ragged_steps.cuh"
#include "scaled_products.cuh"
#include "stream_work.cuh"
#include "whole_steps.cuh"

namespace nvfp4::stream {

#ifdef NVFP4_UNIT_RAGGED
using Steps = RaggedSteps;
#else
using Steps = WholeSteps;
#endif
constexpr uint32_t kStageBytes = Steps::kStageBytes;

constexpr int scaled_from(int activation) {
    switch (activation) {
    case NVFP4_ACTIVATION_F32: return NVFP4_STREAM_SCALED_FROM_F32;
    case NVFP4_ACTIVATION_BF16: return NVFP4_STREAM_SCALED_FROM_BF16;
    default: return NVFP4_STREAM_SCALED_FROM;
    }
}

template <int kActivation, int kVectors>
using Products =
    std::conditional_t<(!kOrdered && kVectors < scaled_from(kActivation)), BlockProducts<kActivation, kVectors>,
                       ScaledProducts<kActivation, kVectors>>;

constexpr uint32_t max_warps(int vectors) {
    if (kOrdered) return NVFP4_STREAM_MAX_WARPS_ORDERED;
    return vectors <= NVFP4_FEW_VECTORS ? NVFP4_STREAM_MAX_WARPS : NVFP4_STREAM_MAX_WARPS_OF_MANY;
}

// First and last group of warps that computed a tile.
struct Parts {
    uint16_t first, last;
};
static_assert(sizeof(Parts) == NVFP4_STREAM_PART_BYTES, "as the plan counts");

// Vectors on their way from memory to shared memory, in the form in which they are multiplied. A thread stages kEach
// blocks of each of eight vectors at once, or of all where they are fewer. Where nothing else has to be waited for,
// vectors are loaded before the weights: they would wait behind them.
template <class Products, int kVectors>
struct Staging {
    using Vectors = typename Products::Vectors;
    static constexpr uint32_t kFrom = sizeof(typename Vectors::Raw); // bytes of a block
    static constexpr int kMost = kFrom > 32 ? 2 : 4; // that registers have room for
    static constexpr int kEach = kVectors >= kMost ? 1 : kMost / kVectors;
    static constexpr int kAtOnce = kVectors < 8 ? kVectors : 8;
    static constexpr int kParts = kVectors * Vectors::kParts;
    static_assert(kVectors % kAtOnce == 0, "whole groups of vectors");

    typename Vectors::Raw raw[kAtOnce][kEach];
    uint8_t scale[kAtOnce][kEach];

    // Loads the blocks from `first` on, of a batch, of the vectors from `vector` on.
    __device__ __forceinline__ void load(const Params &p, uint32_t batch, uint32_t first, int vector) {
        const uint32_t blocks = Steps::blocks(p);
        const uint8_t *vectors = values_of(p.vectors, batch);
        const uint8_t *scales = scales_of(p.vectors, batch);
        // A pass's vectors, of which there are few, are rows of the same 32 in the 128x4 layout.
        static_assert(kVectors <= NVFP4_ATOM_LINES);
        const int64_t next_scales =
            p.vectors.scale_steps.tiled ? NVFP4_ATOM_LINE_BYTES : p.vectors.scale_steps.row_stride;
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
            const uint32_t block = first + threadIdx.x + j * p.warps * kWarp;
            if constexpr (!Steps::kWhole) {
                // Blocks of the last step behind the row's end are zeros.
#pragma unroll
                for (int v = 0; v < kAtOnce; ++v) {
                    raw[v][j] = {};
                    scale[v][j] = 0;
                }
            }
            if (block >= blocks) continue;
            const uint8_t *const codes = vectors + block * kFrom;
            const uint8_t *const scale_codes = scales + block_offset(p.vectors.scale_steps, block);
#pragma unroll
            for (int v = 0; v < kAtOnce; ++v) {
                // Vectors past the end repeat the last one: computed, not stored.
                const int n = kVectors == 1 ? 0 : min(vector + v, p.n - 1);
                raw[v][j].load(codes + n * p.vectors.row_bytes);
                if constexpr (Vectors::kHasScales) scale[v][j] = arch::ld_global_8(scale_codes + n * next_scales);
            }
        }
    }

    // Stores the loaded blocks in shared memory. `batch` counts from the CTA's first.
    __device__ __forceinline__ void store(const Params &p, uint8_t *shared, uint32_t batch, uint32_t first,
                                          int vector) const {
        const uint32_t blocks = p.steps * kStepBlocks;
#pragma unroll
        for (int v = 0; v < kAtOnce; ++v) {
#pragma unroll
            for (int j = 0; j < kEach; ++j) {
                const uint32_t block = first + threadIdx.x + j * p.warps * kWarp;
                if (block >= blocks) continue;
                float factor = 1.0f;
                if constexpr (Vectors::kHasScales) factor = __low2float(arch::cvt_e4m3x2(scale[v][j]));
#pragma unroll
                for (int part = 0; part < Vectors::kParts; ++part) {
                    const uint32_t column = batch * kParts + (vector + v) * Vectors::kParts + part;
                    Vectors::put(raw[v][j], factor, part,
                                 reinterpret_cast<uint4 *>(shared + p.x_at + column * Vectors::column_bytes(p) +
                                                           Vectors::block_at(block)));
                }
                if constexpr (Products::kStoresScales) {
                    reinterpret_cast<float2 *>(shared + p.x_scale_at +
                                               (batch * blocks + block) * Vectors::kXScaleBytes)[vector + v] =
                        Vectors::scale(raw[v][j], factor);
                }
            }
        }
    }

    // Loads and stores all that is left after the first blocks of the first batch's first vectors: of the batches that
    // the CTA has places of, or of the first one where all batches share their vectors.
    __device__ __forceinline__ void finish(const Params &p, uint8_t *shared, const Work &work) {
        const uint32_t threads = p.warps * kWarp;
        uint32_t first = kEach * threads, batch = 0, begin = 0; // the batch's places begin there
#pragma unroll 1
        do {
#pragma unroll 1
            for (int vector = 0; vector < kVectors; vector += kAtOnce, first = 0) {
#pragma unroll 1
                for (; first < p.steps * kStepBlocks; first += kEach * threads) {
                    load(p, work.batch + batch, first, vector);
                    store(p, shared, batch, first, vector);
                }
            }
            ++batch;
            begin += p.places;
        } while (batch < p.x_batches && begin < work.end);
        if constexpr (Vectors::kZeroBlocks != 0) {
            if (threadIdx.x < Vectors::kZeroBlocks * Vectors::kBlockBytes / 16) {
                reinterpret_cast<uint4 *>(shared + p.zero_at)[threadIdx.x] = make_uint4(0, 0, 0, 0);
            }
        }
    }
};

// A warp of a group, and the steps that the group takes of a row.
template <bool kBeside>
struct Group {
    uint32_t number, member; // the warp is its group's `member`
    uint32_t beside_log2;    // 0 where it is the only one

    __device__ __forceinline__ Group(const Params &p, uint32_t warp) : beside_log2(kBeside ? p.beside_log2 : 0) {
        number = warp >> beside_log2;
        member = warp - (number << beside_log2);
    }
    __device__ __forceinline__ uint32_t warps() const { return 1u << beside_log2; }
    // The warp's step of a row when its group is at step `step` of those that it counts.
    __device__ __forceinline__ uint32_t of_row(uint32_t step) const { return (step << beside_log2) + member; }
    // Number of this warp's sums of a tile. A tile's sums follow each other: `number` and `tile` grow along the steps.
    __device__ __forceinline__ uint32_t part(uint32_t tile) const { return ((number + tile) << beside_log2) + member; }
};

// Copies a warp's steps from memory into its queue, stages ahead of the step that is multiplied. Steps are its group's.
template <bool kBeside>
struct Loads {
    using Group = stream::Group<kBeside>;
    uint32_t left, tile, step; // steps to load behind the current tile; the next tile, and where it begins
    // The next step to load, counted back from the end of the current tile in steps of its rows: below 0, 0 at the end.
    int32_t here;
    Steps::Sources from;       // of the current tile

    __device__ __forceinline__ void enter(const Params &p, const Work &work, const Group &group, uint32_t lane) {
        const uint32_t steps = min(left, p.group_steps - step);
        from.enter(p, LaneRows(p, work, tile, lane), lane, group.of_row(step + steps));
        here = -int32_t(steps << group.beside_log2);
        left -= steps;
        step = 0;
        ++tile;
    }

    // Copies the next step to the shared address `to`, of this lane's pieces.
    __device__ __forceinline__ void next(const Params &p, const Work &work, const Group &group, uint32_t lane,
                                         uint32_t to) {
        if (here == 0 && left != 0) enter(p, work, group, lane);
        if (here != 0) {
            from.template copy<kBeside>(p, here, to, lane);
            here += group.warps();
        }
        arch::cp_async_commit_group(); // an empty group too: groups are counted
    }
};

// Waits for the oldest stage.
__device__ __forceinline__ void wait_for_stage(uint32_t stages) {
    if (stages == 3) {
        arch::cp_async_wait_group<1>();
    } else if (stages == 4) {
        arch::cp_async_wait_group<2>();
    } else {
        arch::cp_async_wait_group<4>();
    }
}

template <class Products, int kVectors, bool kBeside>
__device__ __forceinline__ void run(const Params &p, uint8_t *shared) {
    constexpr int kParts = Products::Vectors::kParts;
    constexpr uint32_t kValues = kTileRows * kVectors * kParts;
    if (kSelects && p.select.late) arch::griddepcontrol_wait();
    const Work work(p);
    Staging<Products, kVectors> staging;
    // The previous grid may write vectors and read the output.
    const auto vectors = [&] {
        arch::griddepcontrol_launch_dependents();
        arch::griddepcontrol_wait();
        staging.load(p, work.batch, 0, 0);
    };
    if (p.ahead == 0) vectors();

    const uint32_t warp = threadIdx.x / kWarp, lane = arch::kept(threadIdx.x % kWarp);
    const uint32_t base = arch::shared_address(shared);
    const uint32_t queue = base + warp * p.stages * kStageBytes + lane * 16;

    // Each group has as many steps as the others, or parts; the first groups have one more.
    const Group<kBeside> group(p, warp);
    const uint32_t of_tile = kOrdered ? p.parts : p.group_steps;
    const uint32_t total = work.tiles * of_tile, each = divide(total, p.groups_magic);
    const uint32_t more = total - each * (p.warps >> group.beside_log2);
    const uint32_t first = group.number * each + min(group.number, more);
    uint32_t left = each + (group.number < more);
    uint32_t tile = divide(first, p.dealt_magic), step = first - tile * of_tile;
    uint32_t part = first; // of the CTA's
    if constexpr (kOrdered) { // in steps from here on
        const uint32_t behind = first + left, last = divide(behind, p.dealt_magic);
        left = (last - tile) * p.steps + (behind - last * of_tile - step) * p.part_steps;
        step *= p.part_steps;
    }

    Loads<kBeside> loads;
    loads.left = left;
    loads.tile = tile;
    loads.step = step;
    loads.here = 0;
    uint32_t to = queue;
    const auto fill = [&](uint32_t until) {
#pragma unroll 1
        for (; to != until; to += kStageBytes) loads.next(p, work, group, lane, to);
    };
    // Stages are filled in two loops, with the vectors between them. In one loop, the compiler computes the addresses
    // of all vectors before the first copy of weights, also where vectors come first. That takes half a microsecond
    // with eight of them (docs/notes/stream.md).
    const uint32_t last = queue + (p.stages - 1) * kStageBytes;
    if (p.ahead != 0) {
        fill(queue + p.ahead * kStageBytes);
        vectors();
    }
    fill(last);
    staging.store(p, shared, 0, 0, 0);
    staging.finish(p, shared, work);
    __syncthreads();

    Tile at(p, work, tile);
    // Where a CTA keeps the vectors of one batch, all its places have those.
    Products products(p, base, lane, p.x_batches > 1 ? at.batch : 0, group.of_row(step), group.beside_log2);
    Steps::Reader reader;
    reader.enter(p, work.batch + at.batch, at.place, lane);
    auto *const sums = reinterpret_cast<float *>(shared + p.sums_at);
    auto *const parts = reinterpret_cast<Parts *>(shared + p.parts_at);
    const bool notes = lane == 0 && group.member == 0; // for the group
    if (!kOrdered && left != 0 && step == 0 && notes) parts[tile].first = group.number;

    // Steps of this tile that are added up, and where they end.
    const auto of_sum = [&](uint32_t from) {
        const uint32_t steps = min(left, p.group_steps - from);
        return kOrdered ? min(steps, p.part_steps) : steps;
    };
    uint32_t here = of_sum(step), end = step + here;
    left -= here;
    uint32_t from = queue;
#pragma unroll 1
    while (here != 0) {
        wait_for_stage(p.stages);
        __syncwarp();
        uint4 codes[2][2];
        uint32_t scale_codes[2][2];
        reader.read(p, end - here, from, lane, codes, scale_codes);
        loads.next(p, work, group, lane, to); // into the stage before this one: all lanes have read it
        to = from;
        from = from == last ? queue : from + kStageBytes;

        products.step(codes, scale_codes);
        if (--here != 0) continue;

        if constexpr (kOrdered) {
            products.store(sums + part * kValues);
            ++part;
            if (end != p.group_steps) {
                here = of_sum(end);
                end += here;
                left -= here;
                products.clear();
                continue;
            }
            ++tile;
        } else {
            products.store(sums + group.part(tile) * kValues);
            if (end != p.group_steps) break;
            if (notes) parts[tile].last = group.number;
            ++tile;
            if (left != 0 && notes) parts[tile].first = group.number;
        }
        here = end = of_sum(0);
        left -= here;
        products.begin(p);
        at.place += kTileRows;
        if (at.place >= p.places) { // the next batch's vectors follow
            at.place -= p.places;
            ++at.batch;
            if (p.x_batches > 1) products.next_batch(p);
        }
        reader.enter(p, work.batch + at.batch, at.place, lane);
    }
    __syncthreads();

    for (uint32_t i = threadIdx.x; i < work.tiles * kTileRows * kVectors; i += p.warps * kWarp) {
        const uint32_t of = i / (kTileRows * kVectors), value = i % (kTileRows * kVectors);
        const uint32_t within = value / kVectors;
        const int n = value % kVectors;
        const Tile in(p, work, of);
        const uint32_t counted = work.origin + of * kTileRows + within;
        const uint32_t row = row_at(p.weights.scale_steps, in.place + within);
        if (counted < work.begin || counted >= work.end || row >= uint32_t(p.m) || n >= p.n) continue;
        uint32_t from, behind; // the tile's sums
        float y[kParts] = {};
        if constexpr (kOrdered) {
            from = of * p.parts;
            behind = from + p.parts;
        } else {
            const Parts part = parts[of];
            behind = (part.last + of + 1) << group.beside_log2;
            from = (part.first + of) << group.beside_log2;
        }
#pragma unroll 4
        for (uint32_t i = from; i < behind; ++i) {
#pragma unroll
            for (int j = 0; j < kParts; ++j) y[j] += sums[i * kValues + value * kParts + j];
        }
        const uint32_t batch = work.batch + in.batch;
        if constexpr (kSelects) {
            const Matrix matrix = selected(p.select, batch);
            store(p.epilogue, prepare(p.epilogue, matrix, batch, row, n), matrix.exists ? Products::total(y) : 0.0f);
        } else {
            store(p.epilogue, batch, row, n, Products::total(y));
        }
    }
}

}  // namespace nvfp4::stream

// Entry points, by vectors of a pass, their type, and whether warps take steps side by side.
#define GEMV_STREAM_OF(X, name, activation) \
    X(name##_n1, activation, 1, false)      \
    X(name##_n2, activation, 2, false)      \
    X(name##_n4, activation, 4, false)      \
    X(name##_n8, activation, 8, false)
#ifdef NVFP4_UNIT_RAGGED
#define UNIT gemv_stream_ragged
#define GEMV_STREAM(X)                                             \
    GEMV_STREAM_OF(X, gemv_stream_ragged_nvfp4, NVFP4_ACTIVATION_NVFP4) \
    GEMV_STREAM_OF(X, gemv_stream_ragged_f16, NVFP4_ACTIVATION_F16)     \
    GEMV_STREAM_OF(X, gemv_stream_ragged_bf16, NVFP4_ACTIVATION_BF16)   \
    X(gemv_stream_ragged_f32_n1, NVFP4_ACTIVATION_F32, 1, false)   \
    X(gemv_stream_ragged_f32_n2, NVFP4_ACTIVATION_F32, 2, false)   \
    X(gemv_stream_ragged_f32_n4, NVFP4_ACTIVATION_F32, 4, false)
#else
#define GEMV_STREAM_WHOLE(X, name, activation) \
    GEMV_STREAM_OF(X, name, activation)        \
    X(name##_n16, activation, 16, false)
#ifdef NVFP4_UNIT_SELECT
#define UNIT gemv_stream_select
#define GEMV_STREAM(X)                                                           \
    GEMV_STREAM_WHOLE(X, gemv_stream_select_nvfp4, NVFP4_ACTIVATION_NVFP4) \
    GEMV_STREAM_WHOLE(X, gemv_stream_select_f16, NVFP4_ACTIVATION_F16)     \
    GEMV_STREAM_WHOLE(X, gemv_stream_select_bf16, NVFP4_ACTIVATION_BF16)
#elif defined(NVFP4_UNIT_ORDERED)
#define UNIT gemv_stream_ordered
#define GEMV_STREAM(X)                                                      \
    GEMV_STREAM_OF(X, gemv_stream_ordered_nvfp4, NVFP4_ACTIVATION_NVFP4) \
    GEMV_STREAM_OF(X, gemv_stream_ordered_f16, NVFP4_ACTIVATION_F16)     \
    GEMV_STREAM_OF(X, gemv_stream_ordered_bf16, NVFP4_ACTIVATION_BF16)
#else
#define UNIT gemv_stream
#define GEMV_STREAM_MORE(X, name, activation)     \
    GEMV_STREAM_WHOLE(X, name, activation)        \
    X(name##_n1_beside, activation, 1, true)      \
    X(name##_n2_beside, activation, 2, true)
#define GEMV_STREAM(X)                                             \
    GEMV_STREAM_MORE(X, gemv_stream_nvfp4, NVFP4_ACTIVATION_NVFP4) \
    GEMV_STREAM_MORE(X, gemv_stream_f16, NVFP4_ACTIVATION_F16)     \
    GEMV_STREAM_MORE(X, gemv_stream_bf16, NVFP4_ACTIVATION_BF16)
#endif
#endif

#define ENTRY(name, activation, vectors, beside)                                                    \
    NVFP4_KERNEL(name)(                                                                             \
    extern "C" __global__ void __launch_bounds__(nvfp4::stream::max_warps(vectors) * NVFP4_WARP, 1) \
        name(const __grid_constant__ nvfp4_stream_params p) {                                       \
        extern __shared__ __align__(128) uint8_t dynamic[];                                         \
        nvfp4::stream::run<nvfp4::stream::Products<activation, vectors>, vectors, beside>(p, dynamic); \
    })
GEMV_STREAM(ENTRY)
NVFP4_TABLE(UNIT, GEMV_STREAM)

#endif
