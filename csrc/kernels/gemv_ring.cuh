// GEMV of one NVFP4, f16 or bf16 vector on CUDA cores, fed by bulk copies. sm_90 and newer; K a multiple of 256.
//
// A CTA takes a contiguous range of rows, four at a time: a unit. Producer warps copy whole rows into a ring of units
// in shared memory. mbarriers count the bytes that have landed and the warps that have read them. The other warps form
// groups that take units in turn. A thread of a group always has the same elements of K, in registers: 32 for each
// chunk, beside the elements of the other threads of its warp. It copies nothing but block scales, 16 bytes a lane,
// into its warp's own queue. Sums of a warp go to shared memory, and are added at the end in the order of the warps.
// Every order is fixed by the config.
//
// Where units are counted, CTAs have fewer rows of their own. They take the units behind those rows from a counter in
// the workspace, so that all CTAs end at about the same time. In a turn each group has one unit. A producer takes a
// unit for a group two turns before it copies it, and announces the unit's place in shared memory. Which CTA has a row
// changes nothing about the row's sum.
//
// Three units are made of this source: gemv_ring_select has the kernels whose batches select their matrix (nvfp4_select),
// gemv_ring_on_read those which also quantise the vector when they read it (nvfp4_on_read): each CTA all of it, since a
// block scale depends on the largest element of the vector. Batches that select nothing have matrices of their number.

#include "../shared.h"

enum {
    NVFP4_RING_UNIT_ROWS = 4,
    NVFP4_RING_CHUNK_BYTES = 16,   /* of codes: 32 elements */
    NVFP4_RING_SCALE_BYTES = 256,  /* of a unit's scales for one chunk of each of a warp's 32 lanes */
    NVFP4_RING_SCALE_SLOTS = 3,    /* units whose scales a warp has in its queue */
    NVFP4_RING_BAR_BYTES = 16,     /* a full and an empty barrier of a stage */
    NVFP4_RING_MAX_WARPS = 16,     /* that multiply */
    NVFP4_RING_MAX_PRODUCERS = 4,  /* warps that copy */
    NVFP4_RING_AHEAD = NVFP4_RING_SCALE_SLOTS - 1, /* turns from where a counted unit is taken to where it is copied */
    NVFP4_RING_PLACE_BYTES = 4,    /* of an announced place */
    NVFP4_RING_COUNTER_STRIDE = 128, /* bytes from one counter to the other */
    NVFP4_RING_QUANTIZED_ALIGN = 16, /* of a vector that is quantised when it is read */
    NVFP4_RING_LARGEST_BYTES = 4,    /* of the largest magnitude that a warp has found */
};

/* A row's place is its number, counted through all batches in the order in which scales lie. In the 128x4 layout four
 * rows 32 apart follow each other, and are a unit. Where there are several batches, each is whole units, and in the
 * 128x4 layout whole blocks of 128 rows. */
typedef struct nvfp4_ring_params {
    /* Fields that the first copy needs stand first. */
    uint32_t granules_per_cta, granules_left; /* each CTA takes so many; the first granules_left one more */
    uint32_t granule_log2;                /* places of a granule */
    uint32_t producers;
    uint32_t aligned;                     /* 3 where units start at multiples of four places, or 0 */
    uint32_t rows, places;                /* of all batches; places: some without a row in the 128x4 layout */
    uint32_t dealt;                       /* places that CTAs have of their own: all, or a multiple of four */
    uint32_t depth;                       /* units of a group in the ring */
    uint32_t groups;
    uint32_t row_warps;                   /* that share a row */
    uint32_t row_warps_magic;             /* 2^16 / row_warps, rounded up */
    uint32_t bars_at; /* dynamic shared memory, in bytes from its start: the ring, then these */
    nvfp4_weights weights;

    uint32_t chunks;    /* of a row */
    uint32_t dependent; /* the launch may overlap with the previous grid */
    uint32_t m;         /* rows of a batch */
    uint32_t m_magic;   /* 2^32 / m, rounded up, or 0 for one batch */
    uint32_t zero;      /* 0: see arch/registers.cuh */
    uint32_t scales_at, sums_at, sums_pitch;
    nvfp4_vectors vectors;
    nvfp4_epilogue epilogue;

    /* Fields for counted units: */
    NVFP4_POINTER(uint32_t) counters; /* units that were taken; warps that take no more. Zeros before and after */
    uint32_t turns; /* the most that a group has, one unit in each. All groups have room for all counted units twice */
    uint32_t announced_at;            /* places of a CTA's units in shared memory, turn by turn */

    /* Fields of gemv_ring_select, where places are counted in a batch. The first batches_more batches have a CTA more
     * than others. Of the others each CTA takes fewer_per_cta granules, the first fewer_left one more. */
    nvfp4_select select;
    uint32_t batches_more;
    uint32_t fewer_per_cta, fewer_left;

    /* Fields of gemv_ring_on_read: */
    uint32_t quantized_at; /* the vector in shared memory: codes, block scales, then a word of each warp */
    nvfp4_on_read on_read;
} nvfp4_ring_params;

#ifdef __CUDACC__

#include <type_traits>

#include "../arch/cp_async_bulk.cuh"
#include "../arch/convert.cuh"
#include "../arch/cp_async.cuh"
#include "../arch/griddepcontrol.cuh"
#include "../arch/mbarrier.cuh"
#include "../arch/memory.cuh"
#include "../arch/registers.cuh"
#include "../arch/shared.cuh"
#include "../entries.cuh"
#include "../format/dense.cuh"
#include "../format/operands.cuh"
#include "../format/scale_steps.cuh"
#include "epilogue.cuh"
#include "gate.cuh"
#include "integer_dot.cuh"
#include "quantize_piece.cuh"
#include "scaled_weights.cuh"
#include "warp_sums.cuh"

namespace nvfp4::ring {

using Params = nvfp4_ring_params;

constexpr int kWarp = NVFP4_WARP;
constexpr uint32_t kUnitRows = NVFP4_RING_UNIT_ROWS;
constexpr uint32_t kChunkBytes = NVFP4_RING_CHUNK_BYTES;
constexpr uint32_t kWarpScales = kWarp * 2; // bytes of a row's scales for a warp's chunk
constexpr uint32_t kScaleBytes = NVFP4_RING_SCALE_BYTES;
constexpr uint32_t kScaleLanes = kScaleBytes / 16;
constexpr uint32_t kMaxWarps = NVFP4_RING_MAX_WARPS;

// Bytes of a row's codes. The plan has seen to it that they can be counted in 32 bits.
__device__ __forceinline__ uint32_t row_bytes(const Params &p) { return uint32_t(p.weights.row_bytes); }

// A row's batch. The plan has seen to it that the quotient is exact.
__device__ __forceinline__ uint32_t batch_of(const Params &p, uint32_t row) {
    return __umulhi(row, p.m_magic);
}

// Where a thread that multiplies stands among the others.
struct Seat {
    uint32_t warp, lane, group, part; // part: the warp's number among those that share a row
    uint32_t chunk, stride;           // the thread's first chunk of a row; from one of its chunks to the next
    uint32_t thread, threads;         // of all groups

    __device__ __forceinline__ Seat(const Params &p, uint32_t warp, uint32_t lane)
        : warp(warp), lane(lane), group(warp * p.row_warps_magic >> 16), part(warp - group * p.row_warps),
          chunk(part * kWarp + lane), stride(p.row_warps * kWarp), thread(warp * kWarp + lane),
          threads(p.groups * p.row_warps * kWarp) {}
};

// A scheduler says which units a CTA has, which comes next, and where their rows lie. There are three with the same
// functions: Dealt, with the CTA's own units alone, Selected, and Counted. OnRead is Selected for another vector.
struct Dealt {
    static constexpr bool kSelects = false;
    static constexpr bool kOnRead = false; // the vector is quantised when it is read
    uint32_t begin, end; // the CTA's own places
    uint32_t origin;     // of the first unit

    Dealt() = default;
    __device__ __forceinline__ explicit Dealt(const Params &p) {
        const uint32_t cta = blockIdx.x;
        begin = (cta * p.granules_per_cta + min(cta, p.granules_left)) << p.granule_log2;
        end = min(begin + ((p.granules_per_cta + (cta < p.granules_left)) << p.granule_log2), p.dealt);
        origin = begin & ~p.aligned;
    }

    // Place of the CTA's own unit i. Units are counted turn by turn.
    __device__ __forceinline__ uint32_t unit(uint32_t i) const { return origin + i * kUnitRows; }

    // Row r of the unit at a place.
    __device__ __forceinline__ static uint32_t row(const Params &p, uint32_t place, uint32_t r) {
        return p.weights.scale_steps.tiled ? (place & ~127u) + (place / 4 & 31) + r * 32 : place + r;
    }

    // Whether the CTA has row r of the unit at a place; and whether it has it as one of its own.
    __device__ __forceinline__ bool has(const Params &p, uint32_t place, uint32_t r) const {
        const bool mine = place + r >= begin && place + r < end;
        return mine && row(p, place, r) < p.rows;
    }
    __device__ __forceinline__ bool owns(const Params &p, uint32_t place, uint32_t r) const { return has(p, place, r); }

    // The batch of a row, the row's codes, and the scales of row 0. Rows are counted through all batches.
    __device__ __forceinline__ static uint32_t batch(const Params &p, uint32_t row) { return batch_of(p, row); }
    __device__ __forceinline__ static const uint8_t *codes(const Params &p, uint32_t row) {
        return p.weights.codes + uint64_t(row) * row_bytes(p);
    }
    __device__ __forceinline__ static const uint8_t *scales(const Params &p) { return p.weights.scales; }

    // The Place of a row's output.
    __device__ __forceinline__ static Place output(const Params &p, uint32_t row, bool exists) {
        const uint32_t batch = batch_of(p, row);
        return prepare(p.epilogue, batch, row - batch * p.m, 0, exists);
    }

    // Lets a producer copy the units of `work`, until all are on their way, or up to turn `turns`.
    template <class Work, class Producer>
    __device__ __forceinline__ static void copy(const Params &p, const Work &work, uint32_t base, Producer &producer,
                                                uint32_t turns) {
        while (producer.place < work.end && producer.turn < turns) {
            producer.copy(p, work, base, producer.place);
            producer.next(p);
        }
    }

    // What producers announce to consumers: nothing.
    struct Announced {
        __device__ __forceinline__ Announced(const Params &, uint32_t) {}
        __device__ __forceinline__ void clear(uint32_t, uint32_t) const {}
    };

    // A group's units, of which it multiplies one a turn.
    struct Units {
        uint32_t place; // of this turn's, if there is one

        __device__ __forceinline__ Units(const Params &, const Dealt &work, uint32_t group) : place(work.unit(group)) {}
        __device__ __forceinline__ bool more(const Dealt &work) const { return place < work.end; }
        __device__ __forceinline__ void next(const Params &p) { place += p.groups * kUnitRows; }

        // Copies the scales of the unit that comes NVFP4_RING_AHEAD turns later.
        template <class Scales>
        __device__ __forceinline__ void copy_scales(const Params &p, const Dealt &work, const Announced &,
                                                    Scales &scales) const { scales.next_own(p, work); }
    };

    // Calls store(i, row) for the thread's outputs i that are not of the CTA's own units.
    template <class Store>
    __device__ __forceinline__ void others(const Params &, const Announced &, const Seat &, const Store &) const {}
};

// The scheduler of batches that select their matrix. A CTA has units of one batch, blockIdx.x, and rows are counted in
// it: nothing that a matrix says has to be found again from unit to unit. The batch's last CTA may have none.
struct Selected : Dealt {
    static constexpr bool kSelects = true;
    Matrix matrix;

    __device__ __forceinline__ explicit Selected(const Params &p) : matrix(selected(p.select, blockIdx.x)) {
        const bool more = blockIdx.x < p.batches_more;
        const uint32_t each = more ? p.granules_per_cta : p.fewer_per_cta, left = more ? p.granules_left : p.fewer_left;
        begin = (blockIdx.y * each + min(blockIdx.y, left)) << p.granule_log2;
        end = min(begin + ((each + (blockIdx.y < left)) << p.granule_log2), p.dealt);
        origin = begin & ~p.aligned;
    }

    __device__ __forceinline__ static uint32_t batch(const Params &, uint32_t) { return blockIdx.x; }
    __device__ __forceinline__ const uint8_t *codes(const Params &p, uint32_t row) const {
        return codes_of(p.weights, matrix.number) + uint64_t(row) * row_bytes(p);
    }
    __device__ __forceinline__ const uint8_t *scales(const Params &p) const {
        return scales_of(p.weights, matrix.number);
    }
    __device__ __forceinline__ Place output(const Params &p, uint32_t row, bool exists) const {
        return prepare(p.epilogue, matrix, blockIdx.x, row, 0, exists);
    }

    // Stores the CTA's outputs where there is no matrix. Called by all threads.
    __device__ __forceinline__ void store_none(const Params &p) const {
        arch::griddepcontrol_wait(); // the previous grid may read the output, and write the residual
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < end - origin; i += blockDim.x) {
            const uint32_t at = unit(i / kUnitRows), r = i % kUnitRows;
            if (owns(p, at, r)) store(p.epilogue, output(p, row(p, at, r), true), 0.0f);
        }
    }
};

struct OnRead : Selected {
    using Selected::Selected;
    static constexpr bool kOnRead = true;
};

constexpr uint32_t kUnknown = ~0u;  // not announced yet
constexpr uint32_t kNone = ~0u - 1; // this group has nothing more

// The scheduler of counted units. Behind the CTA's own units come those that it takes from the counter.
struct Counted : Dealt {
    using Dealt::Dealt;

    // Of a unit that the CTA took, it has every row that exists.
    __device__ __forceinline__ bool has(const Params &p, uint32_t place, uint32_t r) const {
        const bool taken = place >= p.dealt;
        const bool mine = taken || (place + r >= begin && place + r < end);
        return mine && row(p, place, r) < p.rows;
    }
    __device__ __forceinline__ bool owns(const Params &p, uint32_t place, uint32_t r) const {
        return has(p, place, r) && place < end;
    }

    // Places of the units that the CTA took, in shared memory. Word i is unit i's. Words of its own units say nothing.
    struct Announced {
        uint32_t base, units;

        __device__ __forceinline__ Announced(const Params &p, uint32_t shared)
            : base(shared + p.announced_at), units(p.turns * p.groups) {}

        __device__ __forceinline__ uint32_t at(uint32_t unit) const { return base + unit * NVFP4_RING_PLACE_BYTES; }

        // Clears the words. Called by all of `threads` threads, before the first place is announced.
        __device__ __forceinline__ void clear(uint32_t thread, uint32_t threads) const {
#pragma unroll 1
            for (uint32_t i = thread; i < units; i += threads) arch::st_shared_32(at(i), kUnknown);
        }

        // Place of a unit, as soon as it is known.
        __device__ __forceinline__ uint32_t place(const Dealt &work, uint32_t unit) const {
            const uint32_t own = work.unit(unit);
            if (own < work.end) return own;
            uint32_t place = kNone;
            if (unit < units) {
                do place = arch::ld_relaxed_shared_32(at(unit));
                while (place == kUnknown);
            }
            return place;
        }
    };

    template <class Producer>
    __device__ __forceinline__ static void copy(const Params &p, const Counted &work, uint32_t base, Producer &producer,
                                                uint32_t turns) {
        while (producer.turn < turns) {
            work.announce(p, base, producer);
            uint32_t place = producer.place;
            if (place >= work.end) {
                place = arch::ld_relaxed_shared_32(Announced(p, base).at(producer.turn * p.groups + producer.group));
            }
            if (place == kNone) {
                if (--producer.left == 0) break;
            } else {
                producer.copy(p, work, base, place);
            }
            producer.next(p);
        }
    }

    // Takes the unit that the group has NVFP4_RING_AHEAD turns from now, if that is none of the CTA's own. It takes
    // none earlier, though the counter takes a while to answer: a unit that is taken late evens out more. The grid
    // before, which may use the counter, is over: this is behind the CTA's barrier, and so behind the consumers' wait
    // for that grid. The plan has seen to it that no unit of the first p.depth turns, nor of the NVFP4_RING_AHEAD
    // behind those, is counted.
    template <class Producer>
    __device__ __forceinline__ void announce(const Params &p, uint32_t base, Producer &producer) const {
        const Announced announced(p, base);
        const uint32_t i = (producer.turn + NVFP4_RING_AHEAD) * p.groups + producer.group;
        // Without room for its place no unit is taken, and none is lost: other groups have room.
        if (unit(i) < end || i >= announced.units) return;
        uint32_t place = kNone;
        if (producer.more) {
            place = p.dealt + arch::atom_add_relaxed(p.counters) * kUnitRows;
            producer.more = place < p.places;
        }
        arch::st_relaxed_shared_32(announced.at(i), producer.more ? place : kNone);
    }

    // Ends a producer's taking of units. The last one of all producers leaves zeros in the counters.
    __device__ __forceinline__ static void end_taking(const Params &p) {
        const uint32_t all = gridDim.x * p.producers;
        uint32_t *const ended = p.counters + NVFP4_RING_COUNTER_STRIDE / sizeof(uint32_t);
        if (arch::atom_add_acq_rel(ended) == all - 1) *p.counters = *ended = 0;
    }

    struct Units {
        uint32_t place, following, ahead; // of this turn's unit, of the next turn's, and of the one behind that
        uint32_t unit;                    // number of that last one

        __device__ __forceinline__ Units(const Params &p, const Counted &work, uint32_t group)
            : place(work.unit(group)), following(place + p.groups * kUnitRows),
              unit(group + NVFP4_RING_AHEAD * p.groups) {}
        __device__ __forceinline__ bool more(const Counted &) const { return place != kNone; }
        __device__ __forceinline__ void next(const Params &) {
            place = following;
            following = ahead;
        }

        template <class Scales>
        __device__ __forceinline__ void copy_scales(const Params &p, const Counted &work, const Announced &announced,
                                                    Scales &scales) {
            ahead = following == kNone ? kNone : announced.place(work, unit);
            unit += p.groups;
            if (ahead >= p.dealt) {
                scales.next_taken(p, ahead);
            } else {
                scales.next_own(p, work);
            }
        }
    };

    template <class Store>
    __device__ __forceinline__ void others(const Params &p, const Announced &announced, const Seat &seat,
                                           const Store &store) const {
        const uint32_t own = (end - origin + kUnitRows - 1) & ~(kUnitRows - 1);
#pragma unroll 1
        for (uint32_t i = own + seat.thread; i < announced.units * kUnitRows; i += seat.threads) {
            // Words behind a group's last unit may still change, but only between values that are no place.
            const uint32_t place = arch::ld_relaxed_shared_32(announced.at(i / kUnitRows));
            if (place >= kNone) continue;
            const uint32_t row = this->row(p, place, i % kUnitRows);
            if (row < p.rows) store(i, row);
        }
    }
};

// Bytes of the full and empty barriers of a stage; stages of a unit, of kRows rows each.
constexpr uint32_t kBarBytes = NVFP4_RING_BAR_BYTES;
template <uint32_t kRows>
constexpr uint32_t kStages = kUnitRows / kRows;

// Copies the units of every p.producers-th group, in one lane. In the first p.depth turns nobody else knows the full
// barriers yet: the producer makes each when it needs it, and waits for nothing.
template <uint32_t kRows>
struct Producer {
    uint32_t turn = 0, depth = 0, phase = 1;
    uint32_t first, group, place; // place: of the group's next unit, if that is one of the CTA's own
    // Of counted units alone:
    uint32_t left;    // groups that have not ended
    bool more = true; // the counter has, as far as is known

    __device__ __forceinline__ Producer(const Params &p, const Dealt &work, uint32_t producer)
        : first(producer), group(producer), place(work.unit(producer)),
          left((p.groups - producer + p.producers - 1) / p.producers) {}

    // Moves on to the next group. Behind the last group comes the first group's next turn.
    __device__ __forceinline__ void next(const Params &p) {
        place += p.producers * kUnitRows;
        group += p.producers;
        if (group >= p.groups) {
            place += (p.groups + first - group) * kUnitRows;
            group = first;
            ++turn;
            if (++depth == p.depth) {
                depth = 0;
                phase ^= 1;
            }
        }
    }

    // Copies the unit at a place, each stage when it is free.
    template <class Work>
    __device__ __forceinline__ void copy(const Params &p, const Work &work, uint32_t base, uint32_t place) {
        const uint64_t policy = arch::createpolicy_evict_first();
        const uint32_t stage_bytes = kRows * row_bytes(p);
        const uint32_t slot = group * p.depth + depth;
        uint32_t to = base + slot * kUnitRows * row_bytes(p);
        uint32_t bar = base + p.bars_at + slot * kStages<kRows> * kBarBytes;
        const uint8_t *from = work.codes(p, work.row(p, place, 0));
        const bool whole = work.has(p, place, 0) && work.has(p, place, kUnitRows - 1);
#pragma unroll 1
        for (uint32_t s = 0; s < kUnitRows; s += kRows, bar += kBarBytes) {
            if (turn < p.depth) {
                arch::mbarrier_init(bar, 1);
                arch::fence_mbarrier_init();
            } else {
                arch::mbarrier_wait(bar + 8, phase);
                arch::fence_proxy_async(); // the stage was read by loads
            }
            uint32_t bytes = stage_bytes;
            if (!whole) {
                bytes = 0;
                for (uint32_t r = s; r < s + kRows; ++r) bytes += work.has(p, place, r) ? row_bytes(p) : 0;
            }
            arch::mbarrier_arrive_expect_tx(bar, bytes);
            // Rows that follow each other in memory are one copy.
            const uint32_t piece = whole && !p.weights.scale_steps.tiled ? stage_bytes : row_bytes(p);
            const uint64_t step = p.weights.scale_steps.tiled ? uint64_t(row_bytes(p)) * 32 : piece;
#pragma unroll 1
            for (uint32_t r = s, end = to + stage_bytes; to != end; ++r, to += piece, from += step) {
                if (whole || work.has(p, place, r)) arch::cp_async_bulk(to, from, piece, bar, policy);
            }
        }
    }
};

// Products of a thread's elements of rows with its elements of the vector, which stay in registers. NVFP4 vectors, as
// integers.
template <int kChunks>
struct IntegerProducts {
    static constexpr float kFactor = 1.0f; // of a sum
    // Constants that stay in registers: arch/registers.cuh.
    int8::Lookup lookup;
    int32_t bias;

    uint2 raw[kChunks][2];
    uint8_t raw_scale[kChunks][2];
    uint4 x[kChunks][2];
    __half2 scale[kChunks];

    __device__ __forceinline__ explicit IntegerProducts(uint32_t) {}

    // Addresses of a chunk's elements, and of the scale of the first of its two blocks. The second one's follows.
    struct Source {
        const uint8_t *values, *scales;
    };
    __device__ __forceinline__ static Source source(const Params &p, uint32_t batch, uint32_t chunk) {
        return {values_of(p.vectors, batch) + chunk * kChunkBytes,
                scales_of(p.vectors, batch) + block_offset(p.vectors.scale_steps, 2 * chunk)};
    }

    // Loads the thread's elements. `from` is the source of its first chunk, which has the number `chunk`; its chunks
    // are `stride` apart.
    __device__ __forceinline__ void load(const Params &p, const Source &from, uint32_t chunk, uint32_t stride) {
#pragma unroll
        for (int j = 0; j < kChunks; ++j) {
            // A stride is a multiple of a warp's chunks, and so of the four blocks that block_offset is linear in.
            const uint8_t *scales = from.scales + block_offset(p.vectors.scale_steps, 2 * j * stride);
#pragma unroll
            for (int b = 0; b < 2; ++b) {
                // Past the end: zeros.
                raw[j][b] = make_uint2(0, 0);
                raw_scale[j][b] = 0;
                if (chunk + j * stride >= p.chunks) continue;
                raw[j][b] = arch::ld_global_64(from.values + j * stride * kChunkBytes + 8 * b);
                raw_scale[j][b] = arch::ld_global_8(scales + b);
            }
        }
    }

    __device__ __forceinline__ void constants(const Params &p) {
        lookup = int8::Lookup(arch::computed(int8::kLookupLow, p.zero), arch::computed(int8::kLookupHigh, p.zero));
        bias = arch::computed(int8::kFloatBias, p.zero);
    }

    __device__ __forceinline__ void decode() {
#pragma unroll
        for (int j = 0; j < kChunks; ++j) {
#pragma unroll
            for (int b = 0; b < 2; ++b) {
                x[j][b] = int8::Magnitudes(lookup, raw[j][b]).joined();
            }
            // Both operands are times two.
            scale[j] = __hmul2(arch::cvt_e4m3x2(uint16_t(raw_scale[j][1] << 8 | raw_scale[j][0])),
                               __float2half2_rn(0.25f));
        }
    }

    // Multiplies the rows of a stage. Each chunk has the scales of two blocks.
    template <int kRows>
    __device__ __forceinline__ void multiply(const uint4 (&codes)[kRows][kChunks],
                                             const uint32_t (&scale_codes)[kRows][kChunks], float *sum) const {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
            for (int j = 0; j < kChunks; ++j) {
                // Exact: multiples of 2^-20 up to 50176, of eight significant bits.
                const __half2 both = __hmul2(arch::cvt_e4m3x2(uint16_t(scale_codes[r][j])), scale[j]);
                const uint4 c = codes[r][j];
                const float d0 = int8::Magnitudes(lookup, make_uint2(c.x, c.y)).dot(x[j][0], bias);
                const float d1 = int8::Magnitudes(lookup, make_uint2(c.z, c.w)).dot(x[j][1], bias);
                sum[r] = fmaf(d0, __low2float(both), sum[r]);
                sum[r] = fmaf(d1, __high2float(both), sum[r]);
            }
        }
    }
};

// Products with an NVFP4 vector that all threads of the CTA which multiply quantise together, piece by piece. Codes and
// scales go through shared memory: there each thread finds its own elements.
template <int kChunks>
struct QuantizedProducts : IntegerProducts<kChunks> {
    static constexpr uint32_t kCodes = kPiece / 2; // bytes of a piece
    static constexpr uint32_t kScales = 2;         // bytes of a chunk
    using IntegerProducts<kChunks>::IntegerProducts;

    // Piece i of the vector before it is quantised: as it is in memory, at `x`, or what the gate makes of two pieces.
    __device__ __forceinline__ static void piece(const Params &p, const uint8_t *x, uint32_t i, float (&out)[kPiece]) {
        const nvfp4_gate &gate = p.on_read.gate;
        uint32_t first = i, second = p.chunks * (kChunkBytes / kCodes) + i;
        if (p.on_read.gated && gate.interleaved) {
            first = 2 * i;
            second = first + 1;
        }
        if (!p.on_read.gated) return load_any(p, x, first, out);
        float low[kPiece], high[kPiece];
        load_any(p, x, first, low);
        load_any(p, x, second, high);
        float of_gate[kPiece], of_up[kPiece];
#pragma unroll
        for (int j = 0; j < kPiece; ++j) {
            const float even = 2 * j < kPiece ? low[2 * j % kPiece] : high[2 * j % kPiece];
            const float odd = 2 * j < kPiece ? low[2 * j % kPiece + 1] : high[2 * j % kPiece + 1];
            of_gate[j] = gate.interleaved ? even : low[j];
            of_up[j] = gate.interleaved ? odd : high[j];
        }
        gated(gate, of_gate, of_up, out);
    }

    // Piece i in memory.
    __device__ __forceinline__ static void load_any(const Params &p, const uint8_t *x, uint32_t i, float (&out)[kPiece]) {
        switch (p.on_read.element) {
            case NVFP4_ACTIVATION_F16: load_piece<LoadF16>(x, i, out); break;
            case NVFP4_ACTIVATION_BF16: load_piece<LoadBf16>(x, i, out); break;
            default: load_piece<LoadF32>(x, i, out);
        }
    }

    // Quantises a batch's vector, and takes the thread's elements. Called by all threads that multiply, behind the wait
    // for the previous grid; ends with the barrier for all of the CTA. Returns the vector's global scale, or NaN for a
    // vector that cannot be quantised, which becomes zeros.
    __device__ __forceinline__ float take(const Params &p, const Seat &seat, uint32_t base, uint32_t batch) {
        const uint32_t codes = base + p.quantized_at, scales = codes + p.chunks * kChunkBytes;
        const uint32_t largest = scales + p.chunks * kScales;
        const uint8_t *const x = values_of(p.vectors, p.on_read.copies == 1 ? batch : batch / p.on_read.copies);
        const uint32_t pieces = p.chunks * (kChunkBytes / kCodes); // a multiple of a warp's lanes
        float global = 0.0f;
        bool good = false;
        float own[kPiece] = {}; // the thread's first piece, which is read once
        // Once through the vector for its largest magnitude, and once to quantise.
#pragma unroll 1
        for (int pass = 0; pass < 2; ++pass) {
            uint32_t most = 0;
#pragma unroll 1
            for (uint32_t i = seat.thread; i < pieces; i += seat.threads) {
                float values[kPiece];
                if (pass == 0 || i >= seat.threads) {
                    piece(p, x, i, values);
                } else {
#pragma unroll
                    for (int j = 0; j < kPiece; ++j) values[j] = own[j];
                }
                if (pass == 0) {
#pragma unroll
                    for (int j = 0; j < kPiece; ++j) {
                        most = max(most, __float_as_uint(values[j]) & 0x7fffffffu);
                        own[j] = i < seat.threads ? values[j] : own[j];
                    }
                    continue;
                }
#pragma unroll
                for (int j = 0; j < kPiece; ++j) values[j] = good ? values[j] : 0.0f;
                const QuantizedPiece quantized = quantize_piece(values, global);
                arch::st_shared_32(codes + i * kCodes, quantized.codes);
                if (i % 2 == 0) arch::st_shared_8(scales + i / 2, quantized.scale);
            }
            if (pass == 1) break;
            most = __reduce_max_sync(~0u, most);
            if (seat.lane == 0) arch::st_shared_32(largest + seat.warp * NVFP4_RING_LARGEST_BYTES, most);
            arch::barrier_cta_sync(1, seat.threads);
            // Warps are no more than lanes.
            most = seat.lane * kWarp < seat.threads
                       ? arch::ld_shared_32(largest + seat.lane * NVFP4_RING_LARGEST_BYTES)
                       : 0;
            const float amax = __uint_as_float(__reduce_max_sync(~0u, most));
            global = p.on_read.global_kind == NVFP4_GLOBAL_COMPUTED ? global_scale(amax) : p.on_read.global;
            good = (amax == 0.0f || is_scale(amax)) && is_scale(global);
            if (!good) global = 1.0f;
        }
        arch::barrier_cta_sync(0, seat.threads + p.producers * kWarp);
#pragma unroll
        for (int j = 0; j < kChunks; ++j) {
            const uint32_t chunk = seat.chunk + j * seat.stride;
            const bool exists = chunk < p.chunks; // past the end: zeros
            const uint4 both = exists ? arch::ld_shared_128(codes + chunk * kChunkBytes) : make_uint4(0, 0, 0, 0);
            const uint32_t of_both = exists ? arch::ld_shared_16(scales + chunk * kScales) : 0;
            this->raw[j][0] = make_uint2(both.x, both.y);
            this->raw[j][1] = make_uint2(both.z, both.w);
            this->raw_scale[j][0] = uint8_t(of_both);
            this->raw_scale[j][1] = uint8_t(of_both >> 8);
        }
        return good ? global : __uint_as_float(0x7fc00000u);
    }
};

// Products with 16-bit vectors, on mma.sync. Lane (g, t) has elements of row g of operand A and of column g of operand
// B: the same part of K. So each lane's weights are multiplied with its own elements of the vector, and D[g][g] is the
// sum over the four lanes of row g. Rows g + 8 of A are the same lanes' elements of another row of the weights. Matrix
// instructions sum over blocks: weights are multiplied by their scales before (scaled_weights.cuh).
template <int kActivation, int kChunks, int kChains>
struct MatrixProducts {
    using Weights = std::conditional_t<kActivation == NVFP4_ACTIVATION_F16, ScaledF16, ScaledBf16>;
    static constexpr float kFactor = 1.0f / Weights::kFactor;
    static constexpr uint32_t kVectorBytes = 4 * kChunkBytes; // of a chunk

    bool has_sums, odd; // the lane has D[g][g] and D[g + 8][g]; g is odd
    uint4 raw[kChunks][4];
    uint32_t x[kChunks][4][4]; // pairs of eight elements, in the order in which weights are decoded

    __device__ __forceinline__ explicit MatrixProducts(uint32_t lane)
        : has_sums(lane % 4 == lane / 8), odd(lane / 4 % 2) {}

    using Source = const uint8_t *;
    __device__ __forceinline__ static Source source(const Params &p, uint32_t batch, uint32_t chunk) {
        return values_of(p.vectors, batch) + chunk * kVectorBytes;
    }

    __device__ __forceinline__ void load(const Params &p, Source from, uint32_t chunk, uint32_t stride) {
#pragma unroll
        for (int j = 0; j < kChunks; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                raw[j][i] = make_uint4(0, 0, 0, 0); // past the end
                if (chunk + j * stride >= p.chunks) continue;
                raw[j][i] = arch::ld_global_128(from + j * stride * kVectorBytes + 16 * i);
            }
        }
    }

    __device__ __forceinline__ void constants(const Params &) {}

    __device__ __forceinline__ void decode() {
#pragma unroll
        for (int j = 0; j < kChunks; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) ordered_pairs<typename Weights::Order>(raw[j][i], x[j][i]);
        }
    }

    template <int kRows>
    __device__ __forceinline__ void multiply(const uint4 (&codes)[kRows][kChunks],
                                             const uint32_t (&scale_codes)[kRows][kChunks], float *sum) const {
        static_assert(kRows % 2 == 0, "a matrix instruction has two rows of each lane");
#pragma unroll
        for (int r = 0; r < kRows; r += 2) {
            float d[kChains][4] = {};
#pragma unroll
            for (int j = 0; j < kChunks; ++j) {
                uint32_t scale[2][2];
#pragma unroll
                for (int i = 0; i < 2; ++i) Weights::scales(scale_codes[r + i][j], scale[i]);
                const uint4 &u = codes[r][j], &l = codes[r + 1][j];
                const uint32_t upper[4] = {u.x, u.y, u.z, u.w}, lower[4] = {l.x, l.y, l.z, l.w};
#pragma unroll
                for (int word = 0; word < 4; ++word) {
                    uint32_t a[2][4];
                    Weights::decode(upper[word], scale[0][word / 2], a[0]);
                    Weights::decode(lower[word], scale[1][word / 2], a[1]);
                    const uint32_t(&b)[4] = x[j][word];
                    float(&to)[4] = d[word % kChains];
                    Weights::mma(to, a[0][0], a[1][0], a[0][1], a[1][1], b[0], b[1]);
                    Weights::mma(to, a[0][2], a[1][2], a[0][3], a[1][3], b[2], b[3]);
                }
            }
            // Sums of rows g and g + 8.
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float y = odd ? d[0][2 * i + 1] : d[0][2 * i];
                if constexpr (kChains == 2) y += odd ? d[1][2 * i + 1] : d[1][2 * i];
                sum[r + i] = has_sums ? y : 0.0f;
            }
        }
    }
};

constexpr uint32_t kScaleSlots = NVFP4_RING_SCALE_SLOTS;

// A warp's queue of the block scales of its group's units, as a lane copies and reads them. In the 128x4 layout
// the next unit needs the other half of each sector: kCached keeps that half in L1, where shared memory leaves some.
template <int kChunks, bool kCached>
struct ScaleQueue {
    static constexpr uint32_t kSlot = kChunks * kScaleBytes;
    uint32_t place;      // of the CTA's next own unit, in the linear layout of this lane's row
    uint32_t row = 0;    // of a unit, in the linear layout: this lane's
    const uint8_t *from; // of the layout's first scales: this lane's part of K
    bool copies, exists; // this lane anything; its part of K
    uint32_t slots;      // shared address
    uint32_t to, end;    // shared addresses: this lane's next slot, behind the last
    uint32_t at, at_end; // the same of the scales that it reads
    uint32_t pitch;      // of their rows

    template <class Work>
    __device__ __forceinline__ ScaleQueue(const Params &p, const Work &work, const Seat &seat, uint32_t base)
        : place(work.unit(seat.group)), copies(seat.lane < kChunks * kScaleLanes),
          slots(base + p.scales_at + seat.warp * kScaleSlots * kSlot), to(slots + seat.lane * 16),
          end(to + kScaleSlots * kSlot) {
        const uint32_t part_at = seat.lane / kScaleLanes * p.row_warps + seat.part; // counted in 1024 elements
        if (p.weights.scale_steps.tiled) {
            const uint32_t at = part_at * 16 + seat.lane % kScaleLanes; // counted in 64 elements
            from = work.scales(p) + at * uint32_t(p.weights.scale_steps.group_stride);
            exists = at * 2 < p.chunks;
        } else {
            const uint32_t at = part_at * 4 + seat.lane % 4; // counted in 256 elements
            row = seat.lane / 4 % 4;
            place += row;
            from = work.scales(p) + at * 16;
            exists = at * 8 < p.chunks;
        }
    }

    // Copies the scales of the CTA's next own unit. In the 128x4 layout all rows of a unit's block exist.
    __device__ __forceinline__ void next_own(const Params &p, const Dealt &work) {
        if (copies) {
            copy(p, place, place < work.end && (place >= work.begin || p.weights.scale_steps.tiled));
            place += p.groups * kUnitRows;
        }
        arch::cp_async_commit_group(); // an empty group too: groups are counted
    }

    // Copies the scales of a unit from the counter, or of none.
    __device__ __forceinline__ void next_taken(const Params &p, uint32_t unit) {
        if (copies) copy(p, unit + row, unit != kNone && unit + row < p.places);
        arch::cp_async_commit_group();
    }

    // Copies the scales at a place, and zeros for scales that do not exist: products with zeros are stored nowhere, or
    // add nothing.
    __device__ __forceinline__ void copy(const Params &p, uint32_t place, bool has) {
        has = has && exists;
        // In the 128x4 layout places lie four bytes apart in their block of 128.
        const uint8_t *at = from + uint64_t(p.weights.scale_steps.tiled ? place / 128 : place) *
                                       uint32_t(p.weights.scale_steps.row_stride);
        if (p.weights.scale_steps.tiled) at += place % 128 * 4;
        if constexpr (kCached) {
            arch::cp_async_ca_16(to, has ? at : p.weights.scales, has);
        } else {
            arch::cp_async_16<128>(to, has ? at : p.weights.scales, has);
        }
        to += kSlot;
        if (to == end) to -= kScaleSlots * kSlot;
    }

    // Called before the first read.
    __device__ __forceinline__ void start(const Params &p, uint32_t lane) {
        at = slots + (p.weights.scale_steps.tiled ? lane / 2 * 16 + lane % 2 * 2 : lane * 2);
        at_end = at + kScaleSlots * kSlot;
        pitch = p.weights.scale_steps.tiled ? 4 : kWarpScales;
    }

    // Reads the scales of the two blocks of chunk j of row r.
    __device__ __forceinline__ uint32_t read(uint32_t r, uint32_t j) const {
        return arch::ld_shared_16(at + r * pitch + j * kScaleBytes);
    }

    // Moves on to the scales of the next unit.
    __device__ __forceinline__ void next() {
        at += kSlot;
        if (at == at_end) at -= kScaleSlots * kSlot;
    }
};

// A group's stages in the ring, as a thread reads them.
template <int kChunks, uint32_t kRows>
struct GroupStages {
    uint32_t unit_bytes;
    uint32_t codes, bar;      // shared addresses: the next row's codes, the next stage's barriers
    uint32_t left, phase = 0; // left: units up to the ring's end
    uint32_t at[kChunks];     // of the thread's chunks in a row

    // Makes the empty barriers. They are ready behind the CTA's barrier.
    __device__ __forceinline__ GroupStages(const Params &p, const Seat &seat, uint32_t base) {
        unit_bytes = kUnitRows * row_bytes(p);
        codes = base + seat.group * p.depth * unit_bytes;
        bar = base + p.bars_at + seat.group * p.depth * kStages<kRows> * kBarBytes;
        if (seat.part == 0 && seat.lane == 0) {
#pragma unroll 1
            for (uint32_t i = 0; i < p.depth * kStages<kRows>; ++i) {
                arch::mbarrier_init(bar + i * kBarBytes + 8, p.row_warps * arch::kWarpArrivals);
            }
        }
        __syncwarp();
    }

    // Computes what only reads need.
    __device__ __forceinline__ void start(const Params &p, const Seat &seat) {
#pragma unroll
        for (int j = 0; j < kChunks; ++j) {
            at[j] = min(seat.chunk + j * seat.stride, p.chunks - 1) * kChunkBytes;
        }
        left = p.depth;
    }

    // Reads the next stage's codes, when they have landed.
    __device__ __forceinline__ void read(const Params &p, uint32_t lane, uint4 (&to)[kRows][kChunks]) {
        arch::mbarrier_wait(bar, phase);
#pragma unroll
        for (uint32_t r = 0; r < kRows; ++r) {
#pragma unroll
            for (int j = 0; j < kChunks; ++j) to[r][j] = arch::ld_shared_128(codes + at[j]);
            codes += row_bytes(p);
        }
        arch::mbarrier_arrive_warp(bar + 8, lane);
        bar += kBarBytes;
    }

    // Called behind a unit's stages. Behind the last unit of the ring comes the first.
    __device__ __forceinline__ void next(const Params &p) {
        if (--left == 0) {
            left = p.depth;
            phase ^= 1;
            codes -= p.depth * unit_bytes;
            bar -= p.depth * kStages<kRows> * kBarBytes;
        }
    }
};

// A thread that multiplies. Its functions are its steps.
template <class Products, int kChunks, uint32_t kRows, bool kCached, class Work>
struct Consumer {
    using Scales = ScaleQueue<kChunks, kCached>;
    using Stages = GroupStages<kChunks, kRows>;
    const Params &p;
    const Work &work;
    const uint32_t base;
    const Seat seat;

    // All steps. Their order is tuned: what need not wait for the previous grid is computed before the wait, which each
    // launch of a chain has in its way.
    __device__ __forceinline__ void run(const uint8_t *shared) const {
        uint32_t batch = work.batch(p, min(work.unit(seat.group), work.end - 1)); // also of a group without units
        Products vector(seat.lane);
        const typename Products::Source source = Products::source(p, batch, seat.chunk);
        if (!Work::kOnRead && !p.dependent) vector.load(p, source, seat.chunk, seat.stride);
        Scales scales(p, work, seat, base);
#pragma unroll 1
        for (uint32_t i = 1; i < kScaleSlots; ++i) scales.next_own(p, work);
        Stages stages(p, seat, base);
        const typename Work::Announced announced(p, base);
        announced.clear(seat.thread, seat.threads);
        bool has_output;
        const uint32_t output_row = arch::kept(row_of(seat.thread, has_output));
        const Place output = take_vector(vector, source, batch, output_row, has_output);

        scales.start(p, seat.lane);
        stages.start(p, seat);
        uint32_t sums = base + p.sums_at + (seat.part * p.sums_pitch + seat.group * kUnitRows + seat.lane / 8) * 4;
        typename Work::Units units(p, work, seat.group);
#pragma unroll 1
        while (units.more(work)) {
            if (!Work::kSelects && p.m_magic != 0 && batch_of(p, units.place) != batch) {
                batch = batch_of(p, units.place);
                // Kept: or the addresses would be computed before the loop, and take registers in it.
                const uint32_t chunk = arch::kept(seat.chunk);
                vector.load(p, Products::source(p, batch, chunk), chunk, seat.stride);
                vector.decode();
            }
            // Of the units that were asked for only the last may still be under way.
            arch::cp_async_wait_group<kScaleSlots - 2>();
            __syncwarp();
            units.copy_scales(p, work, announced, scales); // into the slot of the turn before: all lanes have read it
            multiply_unit(vector, scales, stages, sums);
            units.next(p);
        }
        arch::cp_async_wait_group<0>(); // of scales past the last unit: no thread may end before them
        arch::barrier_cta_sync(1, seat.threads);

        const float *const all = reinterpret_cast<const float *>(shared + p.sums_at);
        if (has_output) store(p.epilogue, output, total(all, seat.thread));
        store_others(announced, all, output.vector_alpha);
    }

    // Row of the CTA's own output i, if there is one.
    __device__ __forceinline__ uint32_t row_of(uint32_t i, bool &exists) const {
        const uint32_t at = work.unit(i / kUnitRows);
        exists = work.owns(p, at, i % kUnitRows);
        return work.row(p, at, i % kUnitRows);
    }

    // Takes the vector, and finds an output's place while that is on its way. Behind it the mbarriers are ready.
    __device__ __forceinline__ Place take_vector(Products &vector, const typename Products::Source &source,
                                                 uint32_t batch, uint32_t output_row, bool has_output) const {
        if constexpr (Work::kOnRead) {
            if (p.dependent) arch::griddepcontrol_wait();
            const float vector_alpha = vector.take(p, seat, base, batch);
            Place output = work.output(p, output_row, has_output);
            output.vector_alpha = vector_alpha;
            vector.constants(p);
            vector.decode();
            return output;
        }
        if (p.dependent) {
            arch::griddepcontrol_wait(); // the previous grid may write the vector and read the output
            vector.load(p, source, seat.chunk, seat.stride);
        }
        const Place output = work.output(p, output_row, has_output);
        vector.constants(p);
        vector.decode();
        arch::barrier_cta_sync(0, seat.threads + p.producers * kWarp);
        return output;
    }

    // Multiplies a unit, and leaves the warp's sums of its rows in shared memory.
    __device__ __forceinline__ void multiply_unit(const Products &vector, Scales &scales, Stages &stages,
                                                  uint32_t &sums) const {
        float sum[kUnitRows] = {};
#pragma unroll
        for (uint32_t s = 0; s < kStages<kRows>; ++s) {
            uint4 codes[kRows][kChunks];
            uint32_t scale_codes[kRows][kChunks];
#pragma unroll
            for (uint32_t r = 0; r < kRows; ++r) {
#pragma unroll
                for (int j = 0; j < kChunks; ++j) scale_codes[r][j] = scales.read(s * kRows + r, j);
            }
            stages.read(p, seat.lane, codes);
            vector.template multiply<kRows>(codes, scale_codes, sum + s * kRows);
        }
        scales.next();
        stages.next(p);
        reduce_scatter<kWarp>(sum, seat.lane);
        if (seat.lane % 8 == 0) arch::st_shared_f32(sums, sum[0]);
        sums += p.groups * kUnitRows * 4;
    }

    // Sum of the sums of all warps that share the row of output i.
    __device__ __forceinline__ float total(const float *all, uint32_t i) const {
        float y = 0.0f;
        float part[kMaxWarps]; // all loads before the first sum
#pragma unroll
        for (uint32_t w = 0; w < kMaxWarps; ++w) part[w] = w < p.row_warps ? all[w * p.sums_pitch + i] : 0.0f;
#pragma unroll
        for (uint32_t w = 0; w < kMaxWarps; ++w) y += part[w];
        return y * Products::kFactor;
    }

    // The Place of an output of the vector with this global scale, which counts where the vector was quantised here.
    __device__ __forceinline__ Place place(uint32_t row, float vector_alpha) const {
        Place place = work.output(p, row, true);
        if constexpr (Work::kOnRead) place.vector_alpha = vector_alpha;
        return place;
    }

    // Stores the thread's outputs but the first of the CTA's own.
    __device__ __forceinline__ void store_others(const typename Work::Announced &announced, const float *all,
                                                 float vector_alpha) const {
#pragma unroll 1
        for (uint32_t i = seat.thread + seat.threads; i < work.end - work.origin; i += seat.threads) {
            bool exists;
            const uint32_t row = row_of(i, exists);
            if (exists) store(p.epilogue, place(row, vector_alpha), total(all, i));
        }
        const auto put = [&](uint32_t i, uint32_t row) { store(p.epilogue, place(row, vector_alpha), total(all, i)); };
        work.others(p, announced, seat, put);
    }
};

template <int kActivation, int kChunks, uint32_t kRows, bool kCached, class Work>
__device__ __forceinline__ void gemv(const Params &p) {
    constexpr bool kCounted = std::is_same_v<Work, Counted>;
    if (Work::kSelects && p.select.late) arch::griddepcontrol_wait();
    extern __shared__ __align__(128) uint8_t dynamic[];
    const uint32_t base = arch::shared_address(dynamic);
    const uint32_t warp = __shfl_sync(0xffffffffu, threadIdx.x / kWarp, 0), lane = threadIdx.x % kWarp;
    const Work work(p);
    if constexpr (Work::kSelects) {
        if (work.begin >= work.end) return;
        if (!work.matrix.exists) {
            work.store_none(p);
            return;
        }
    }
    if (__builtin_expect(warp < p.producers, 1)) {
        Producer<kRows> producer(p, work, warp);
        uint32_t turns = p.depth;
#pragma unroll 1
        for (int pass = 0; pass < 2; ++pass, turns = kCounted ? p.turns : ~0u) {
            if (lane == 0) Work::copy(p, work, base, producer, turns);
            __syncwarp();
            if (pass == 0) arch::barrier_cta_sync(0, (p.groups * p.row_warps + p.producers) * kWarp);
        }
        if constexpr (kCounted) {
            if (lane == 0) work.end_taking(p);
        }
    } else {
        arch::griddepcontrol_launch_dependents();
        // Two chains of matrix instructions, where registers have room for two.
        constexpr int kChains = kCounted || (Work::kSelects && kChunks == 2) ? 1 : 2;
        using Integers = std::conditional_t<Work::kOnRead, QuantizedProducts<kChunks>, IntegerProducts<kChunks>>;
        using Products = std::conditional_t<kActivation == NVFP4_ACTIVATION_NVFP4, Integers,
                                            MatrixProducts<kActivation, kChunks, kChains>>;
        const Seat seat(p, warp - p.producers, lane);
        Consumer<Products, kChunks, kRows, kCached, Work>{p, work, base, seat}.run(dynamic);
    }
}

}  // namespace nvfp4::ring

// Entry points, by chunks of a thread, rows of a stage, whether L1 keeps block scales or L2 alone, and the scheduler.
// Two chunks with other numbers of rows than two: integers only, four rows only where the vector is not quantised here.
#define GEMV_RING_OF(X, name, activation, scheduler) \
    X(name##_c1_r2_l2, activation, 1, 2, false, scheduler) \
    X(name##_c1_r2_l1, activation, 1, 2, true, scheduler)  \
    X(name##_c1_r4_l2, activation, 1, 4, false, scheduler) \
    X(name##_c1_r4_l1, activation, 1, 4, true, scheduler)  \
    X(name##_c2_r2_l2, activation, 2, 2, false, scheduler) \
    X(name##_c2_r2_l1, activation, 2, 2, true, scheduler)
#define GEMV_RING_NVFP4(X, name, scheduler)                                   \
    GEMV_RING_OF(X, name##_nvfp4, NVFP4_ACTIVATION_NVFP4, scheduler)          \
    X(name##_nvfp4_c2_r1_l2, NVFP4_ACTIVATION_NVFP4, 2, 1, false, scheduler)  \
    X(name##_nvfp4_c2_r1_l1, NVFP4_ACTIVATION_NVFP4, 2, 1, true, scheduler)
#define GEMV_RING_ALL(X, name, scheduler)                                     \
    GEMV_RING_NVFP4(X, name, scheduler)                                       \
    X(name##_nvfp4_c2_r4_l2, NVFP4_ACTIVATION_NVFP4, 2, 4, false, scheduler)  \
    X(name##_nvfp4_c2_r4_l1, NVFP4_ACTIVATION_NVFP4, 2, 4, true, scheduler)   \
    GEMV_RING_OF(X, name##_f16, NVFP4_ACTIVATION_F16, scheduler)              \
    GEMV_RING_OF(X, name##_bf16, NVFP4_ACTIVATION_BF16, scheduler)
// Warps of a CTA for which a thread's registers are counted out. To quantise a vector takes more registers than products
// do, and the CTAs of two launches would not fit an SM. Counted for 24 warps there are 80, with which two CTAs of 12 fit.
#define MOST_WARPS (NVFP4_RING_MAX_WARPS + NVFP4_RING_MAX_PRODUCERS)
#ifdef NVFP4_UNIT_ON_READ
#undef MOST_WARPS
#define MOST_WARPS 24
#define UNIT gemv_ring_on_read
#define GEMV_RING(X) GEMV_RING_NVFP4(X, gemv_ring_on_read, OnRead)
#elif defined(NVFP4_UNIT_SELECT)
#define UNIT gemv_ring_select
#define GEMV_RING(X) GEMV_RING_ALL(X, gemv_ring_select, Selected)
#else
#define UNIT gemv_ring
#define GEMV_RING_COUNTED(X, name, activation, rows)        \
    X(name##_l2_counted, activation, 2, rows, false, Counted) \
    X(name##_l1_counted, activation, 2, rows, true, Counted)
#define GEMV_RING(X)                                                                 \
    GEMV_RING_ALL(X, gemv_ring, Dealt)                                               \
    GEMV_RING_COUNTED(X, gemv_ring_nvfp4_c2_r1, NVFP4_ACTIVATION_NVFP4, 1)           \
    GEMV_RING_COUNTED(X, gemv_ring_nvfp4_c2_r2, NVFP4_ACTIVATION_NVFP4, 2)           \
    GEMV_RING_COUNTED(X, gemv_ring_f16_c2_r2, NVFP4_ACTIVATION_F16, 2)               \
    GEMV_RING_COUNTED(X, gemv_ring_bf16_c2_r2, NVFP4_ACTIVATION_BF16, 2)
#endif

#define ENTRY(name, activation, chunks, rows, cached, scheduler)                                            \
    NVFP4_KERNEL(name)(                                                                                     \
    extern "C" __global__ void __launch_bounds__(MOST_WARPS * NVFP4_WARP, 1)                             \
        name(const __grid_constant__ nvfp4_ring_params p) {                                                 \
        nvfp4::ring::gemv<activation, chunks, rows, cached, nvfp4::ring::scheduler>(p);                     \
    })
GEMV_RING(ENTRY)
NVFP4_TABLE(UNIT, GEMV_RING)

#endif
