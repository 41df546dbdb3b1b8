// GEMV for many vectors on Hopper's warpgroup matrix instructions (wgmma), in two or three launches, and one more in
// front where batches are bundled. The first launch packs the vectors into a workspace, as 16-bit floats in the order in
// which they shall lie in shared memory. The second launch multiplies. sm_90a; K a multiple of 64.
//
// A group is the rows of W that a CTA multiplies at once, 16 a warp. A span is 256 elements of K: 128 bytes of codes of
// a row. The warps of one more warpgroup bring a span's operands to shared memory, stages ahead (bring_codes,
// bring_vectors, bring_scales). So a warp that multiplies has few instructions beside decoding. A lane reads 16 bytes
// of a row's codes at once, makes operands A of them in registers, and multiplies these with all vectors of the pass.
//
// Work is dealt in chunks: a chunk is some spans of a group. The chunks of all groups, one group's after the other's,
// go to the CTAs in equal shares, whatever M is. So a CTA may begin and end within a group. The sums of such a part go
// to the workspace, and the third launch adds the parts of each group, in the order of K.
//
// Batches that select the same matrix may be multiplied together, as the vectors of a bundle (bundle_batches.cuh). Then
// the launch in front makes the bundles, and each bundle counts as a batch. How many there are only the device knows: a
// CTA finds its share of the chunks itself.
//
// Order of K. Lane 4 * g + t multiplies 32 elements of each of its two rows in each half of a span. These are two of
// the eight 16-byte pieces of the row's 128 bytes: piece 2t in the first half, 2t + 1 in the second one. Eight lanes
// that read together have two rows that follow each other. In the 128-byte swizzle of tensor copies, one row has its
// pieces where the other row has those of the other half. So every bank is used once. Vectors are packed in the same
// order.

#include "bundle_batches.cuh"
#include "many_vectors.cuh"

enum {
    NVFP4_PACKED_GROUP_WARPS = 4, /* warps of a warpgroup */
    /* Warpgroups of a CTA that multiply, at most: with many vectors a thread needs registers for its sums. */
    NVFP4_PACKED_MAX_WARPGROUPS = 4,
    NVFP4_PACKED_MAX_WARPGROUPS_OF_MANY = 3,
    /* A span: blocks and bytes of codes of a row; halves, each a step of many_vectors.cuh. */
    NVFP4_PACKED_SPAN_BLOCKS = 16,
    NVFP4_PACKED_SPAN_BYTES = NVFP4_PACKED_SPAN_BLOCKS * NVFP4_BLOCK / 2,
    NVFP4_PACKED_SPAN_STEPS = NVFP4_PACKED_SPAN_BLOCKS / NVFP4_MANY_STEP_BLOCKS,
    NVFP4_PACKED_SCALE_UNIT = 16, /* bytes of scales that are copied at once */
    NVFP4_PACKED_COLUMN_BYTES = NVFP4_WARP * 4 * 4, /* a warp's sums of eight vectors */
    NVFP4_PACKED_MAX_STAGES = 8,
    /* Least number of vectors that are many. Then half a span is a stage of vectors: a smaller stage is free sooner. */
    NVFP4_PACKED_MANY = 128,
    /* Bytes of mbarriers of a stage: full and empty of the stage, and of each of its stages of vectors. */
    NVFP4_PACKED_BARRIER_BYTES = (2 + 2) * 8,
    NVFP4_PACKED_BARRIER_BYTES_OF_MANY = (2 + 2 * NVFP4_PACKED_SPAN_STEPS) * 8,
    /* Least number of vectors with which matrix instructions add up all spans of a warpgroup. With fewer, threads add
     * each chunk's sums in f32. That is more exact, since matrix instructions cut what they add to, but it takes twice
     * the registers. A call whose sums shall not depend on its number of vectors takes long sums in any case. */
    NVFP4_PACKED_LONG_SUMS = 64,
    NVFP4_PACKED_PACK_WARPS = 8, /* of a CTA that packs */
    NVFP4_PACKED_ADD_WARPS = 8,  /* of a CTA that adds */
};

/* The deal of the chunks of all groups. A group is rows of one batch. Groups are counted through all batches. */
typedef struct nvfp4_packed_deal {
    uint32_t groups;     /* of a batch */
    uint32_t chunks;     /* of a group */
    uint32_t ctas;       /* that multiply */
    uint32_t each, more; /* chunks of each CTA; the first `more` have one more; not known where batches are bundled */
    uint32_t warps;      /* of a CTA, for 16 rows of a group each */
} nvfp4_packed_deal;

/* Parameters of the launch that packs vectors. */
typedef struct nvfp4_pack_params {
    int32_t n;
    uint32_t k, spans, l; /* of a row: elements, and spans, of which the last one may be shorter; batches */

    nvfp4_vectors vectors;
    nvfp4_bundles bundles; /* whose count is null where batches are not bundled; else l and n are their most */
    /* Packed vectors in the workspace: one half of a span after the other, each as it shall lie in shared memory; whole
     * spans. */
    NVFP4_POINTER(uint8_t) packed;
    int64_t packed_batch_bytes;
} nvfp4_pack_params;

/* Parameters of the launch that multiplies. Beside them it takes a tensor map of the codes: bytes of a row, rows,
 * matrices; boxes are a group's span. */
typedef struct nvfp4_packed_params {
    int32_t m, n;
    uint32_t k, spans; /* as above */
    uint32_t l;        /* batches */
    uint32_t chunk;    /* spans */
    /* Spans that matrix instructions add up, at most, with fewer than NVFP4_PACKED_LONG_SUMS vectors: a chunk, or
     * UINT32_MAX for all that a warpgroup has of a group. */
    uint32_t summed;
    uint32_t stages;   /* spans that shared memory has room for */
    nvfp4_packed_deal deal;
    /* Offsets in dynamic shared memory, in bytes: vectors, scales, mbarriers. Codes come first. */
    uint32_t vectors_at, scales_at, barriers_at;
    uint32_t scale_units;    /* of a stage */
    uint32_t scales_aligned; /* whether a unit of linear scales, a row's span, can be copied at once */

    nvfp4_weights weights;
    NVFP4_POINTER(const uint8_t) packed;
    int64_t packed_batch_bytes;
    /* Sums of parts of groups: [CTAs][2: where the CTA begins, where it ends][warps][columns][lanes] of four floats. A
     * CTA has at most two such parts. A column is eight vectors of N; of a column a lane has the sums that a matrix
     * instruction gives it. */
    NVFP4_POINTER(float) partial;

    nvfp4_epilogue epilogue;
    /* Of entry points that take operands of the epilogue. Where batches are bundled, l and n are the most bundles and
     * vectors of one, and `select` has the ids of bundles. */
    nvfp4_select select;
    nvfp4_bundles bundles;
} nvfp4_packed_params;

/* Parameters of the launch that adds the sums of parts. Its fields are those of nvfp4_packed_params. */
typedef struct nvfp4_packed_add_params {
    int32_t m, n;
    uint32_t l, columns; /* of eight vectors */
    nvfp4_packed_deal deal;
    NVFP4_POINTER(const float) partial;
    nvfp4_epilogue epilogue;
    nvfp4_select select;
    nvfp4_bundles bundles;
} nvfp4_packed_add_params;

#ifdef __CUDACC__

#include "../arch/cp_async_bulk.cuh"
#include "../arch/griddepcontrol.cuh"
#include "../arch/mbarrier.cuh"
#include "../arch/registers.cuh"
#include "../arch/wgmma.cuh"
#include "../entries.cuh"

namespace nvfp4::packed {

using Params = nvfp4_packed_params;
using PackParams = nvfp4_pack_params;
using AddParams = nvfp4_packed_add_params;

constexpr uint32_t kGroupWarps = NVFP4_PACKED_GROUP_WARPS, kGroupThreads = kGroupWarps * many::kWarp;
// Threads of a CTA, at most: those that multiply, and those that bring.
template <int kVectors>
constexpr uint32_t kMaxThreads = kGroupThreads *
    ((kVectors < NVFP4_PACKED_MANY ? NVFP4_PACKED_MAX_WARPGROUPS : NVFP4_PACKED_MAX_WARPGROUPS_OF_MANY) + 1);
// Registers of a thread that multiplies, and of one that brings: together no more than the CTA begins with.
template <int kVectors>
constexpr int kMultiplyingRegisters = kVectors < NVFP4_PACKED_MANY ? 104 : 144;
constexpr int kBringingRegisters = 56;
constexpr uint32_t kSpanBytes = NVFP4_PACKED_SPAN_BYTES;   // codes of a row
constexpr uint32_t kSpanGroups = NVFP4_PACKED_SPAN_BLOCKS / NVFP4_ATOM_BLOCKS; // of four blocks
constexpr uint32_t kSpanSteps = NVFP4_PACKED_SPAN_STEPS;
constexpr uint32_t kScaleUnit = NVFP4_PACKED_SCALE_UNIT;

struct Maps {
    CUtensorMap codes; // bytes of a row, rows, matrices
};

// Packs vectors: a warp packs a step of eight vectors, which is half a span. A lane packs one vector's elements for the
// four lanes t that will multiply with them: word w, eight elements, of each t. They lie in shared memory as
// many::Piece has them there.
template <int kActivation, int kVectors>
__device__ __forceinline__ void pack(const PackParams &p) {
    using Elements = many::Eight<kActivation>;
    constexpr uint32_t kOfStep = kVectors / many::kColumns;
    constexpr uint32_t kRows = kVectors * many::kVectorRow; // bytes of half a step of all vectors
    constexpr uint32_t kUnitBytes = Elements::kStepBytes / (many::kStep / 64); // 64 elements
    const uint32_t lane = threadIdx.x % many::kWarp;
    const uint32_t piece = blockIdx.x * NVFP4_PACKED_PACK_WARPS + threadIdx.x / many::kWarp;
    const uint32_t of_all = piece / kOfStep, steps = p.spans * kSpanSteps;
    const uint32_t batch = of_all / steps, step = of_all - batch * steps;

    arch::griddepcontrol_launch_dependents();
    arch::griddepcontrol_wait(); // the previous grid may write vectors, and read the workspace
    if (batch >= (p.bundles.count ? *p.bundles.count : p.l)) return;

    const uint32_t word = lane % 2 + lane / 16 * 2, column = lane / 2 % many::kColumns;
    const uint32_t first = piece % kOfStep * many::kColumns, half = step % kSpanSteps;
    // Vectors past the end repeat the last one: computed, not stored.
    const uint32_t n = min(first + column, uint32_t(p.n) - 1);
    const uint32_t group = step / kSpanSteps * kSpanGroups; // of 64 elements: a lane t's of both halves
    const Vector of = vector_of(p.bundles, p.n, batch, n);
    const uint8_t *const elements = values_of(p.vectors, of.batch) + of.n * p.vectors.row_bytes +
                                    int64_t(group) * kUnitBytes + (half * 4 + word) * (kUnitBytes / 8);
    const uint8_t *const scales = scales_of(p.vectors, of.batch) +
                                  row_offset(p.vectors.scale_steps, of.n) + half * 2 + word / 2;
    uint32_t pair[4][4] = {};
#pragma unroll
    for (uint32_t t = 0; t < 4; ++t) {
        if ((group + t) * 64 < p.k) {
            Elements eight;
            eight.load(elements + t * kUnitBytes, scales + int64_t(group + t) * p.vectors.scale_steps.group_stride);
            eight.pairs(pair[t]);
        }
    }
    uint8_t *const to = p.packed + batch * p.packed_batch_bytes + int64_t(step) * 2 * kRows + word / 2 * kRows +
                        (first + column) * many::kVectorRow;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
        *reinterpret_cast<uint4 *>(to + ((word % 2 * 4 + i) ^ column) * 16) =
            make_uint4(pair[0][i], pair[1][i], pair[2][i], pair[3][i]);
    }
    arch::fence_proxy_async_global(); // bulk copies read what was stored
}

// The chunks of each CTA: the first `more` CTAs have one more than `each`. `may_bundle`: batches may be bundled.
struct Shares {
    uint32_t each, more;

    template <class P>
    __device__ __forceinline__ Shares(const P &p, bool may_bundle) : each(p.deal.each), more(p.deal.more) {
        if (!may_bundle || !p.bundles.count) return;
        const uint32_t all = *p.bundles.count * p.deal.groups * p.deal.chunks;
        each = all / p.deal.ctas;
        more = all - each * p.deal.ctas;
    }

    // First chunk of a CTA, counted through all groups. For the CTA behind the last one: the number of chunks.
    __device__ __forceinline__ uint32_t first_chunk(uint32_t cta) const { return cta * each + min(cta, more); }
};

template <class P>
__device__ __forceinline__ uint32_t batch_of(const P &p, uint32_t group) {
    return p.l > 1 ? group / p.deal.groups : 0; // a division delays the first copy
}

// The first row of a group of this batch.
template <class P>
__device__ __forceinline__ uint32_t first_row(const P &p, uint32_t group, uint32_t batch) {
    return (group - batch * p.deal.groups) * p.deal.warps * many::kWarpRows;
}

// Warpgroups of a CTA that multiply. The last one may have warps without rows.
__device__ __forceinline__ uint32_t warpgroups(const Params &p) { return (p.deal.warps + kGroupWarps - 1) / kGroupWarps; }

// A condition that is the same in all lanes. The vote tells the compiler so.
__device__ __forceinline__ bool in_all(bool condition) { return __any_sync(~0u, condition); }

// The part of a group that a CTA has, and the parts behind it.
struct Part {
    uint32_t group, chunk, here; // its first chunk, and how many of the group
    uint32_t left;               // chunks of the parts behind it

    __device__ __forceinline__ Part(const Params &p, const Shares &shares) {
        const uint32_t first = shares.first_chunk(blockIdx.x);
        group = first / p.deal.chunks;
        chunk = first - group * p.deal.chunks;
        left = shares.each + (blockIdx.x < shares.more);
        take(p);
    }

    __device__ __forceinline__ bool next(const Params &p) {
        if (left == 0) return false;
        ++group;
        chunk = 0;
        take(p);
        return true;
    }

    __device__ __forceinline__ uint32_t first_span(const Params &p) const { return chunk * p.chunk; }
    __device__ __forceinline__ uint32_t end_span(const Params &p) const { return min((chunk + here) * p.chunk, p.spans); }

  private:
    __device__ __forceinline__ void take(const Params &p) {
        here = min(left, p.deal.chunks - chunk);
        left -= here;
    }
};

// A warp's position in the stages of shared memory, which spans take in turn. Codes and scales of a stage have the
// mbarriers `full` and `empty`. Each stage of vectors has mbarriers of these names, too. A phase of `full` is over when
// the bytes that were asked for have landed. A phase of `empty` is over when all warps that multiply have read them.
template <int kVectors>
struct Stage {
    static constexpr uint32_t kStepBytes = kVectors * 2 * many::kVectorRow;
    // Stages of vectors of a span, and steps of such a stage.
    static constexpr uint32_t kOfSpan = kVectors < NVFP4_PACKED_MANY ? 1 : kSpanSteps;
    static constexpr uint32_t kSteps = kSpanSteps / kOfSpan;
    static constexpr uint32_t kBytes = kSteps * kStepBytes;
    static constexpr uint32_t kBarrierBytes =
        kVectors < NVFP4_PACKED_MANY ? NVFP4_PACKED_BARRIER_BYTES : NVFP4_PACKED_BARRIER_BYTES_OF_MANY;
    static_assert(kBarrierBytes == (2 + 2 * kOfSpan) * 8, "as barriers are counted below");

    uint32_t at = 0, parity = 0;

    __device__ __forceinline__ void advance(const Params &p) {
        if (++at == p.stages) {
            at = 0;
            parity ^= 1;
        }
    }

    // Shared addresses. `of` is the number of a stage of vectors in its span.
    __device__ __forceinline__ uint32_t codes(const Params &p, uint32_t base) const {
        return base + at * (p.deal.warps * (many::kWarpRows * kSpanBytes));
    }
    __device__ __forceinline__ uint32_t scales(const Params &p, uint32_t base) const {
        return base + p.scales_at + at * (p.scale_units * kScaleUnit);
    }
    __device__ __forceinline__ uint32_t vectors(const Params &p, uint32_t base, uint32_t of) const {
        return base + p.vectors_at + (at * kOfSpan + of) * kBytes;
    }
    // Shared addresses of mbarriers.
    __device__ __forceinline__ uint32_t barrier(const Params &p, uint32_t base, uint32_t index) const {
        return base + p.barriers_at + at * kBarrierBytes + 8 * index;
    }
    __device__ __forceinline__ uint32_t full(const Params &p, uint32_t base) const { return barrier(p, base, 0); }
    __device__ __forceinline__ uint32_t empty(const Params &p, uint32_t base) const { return barrier(p, base, 1); }
    __device__ __forceinline__ uint32_t vectors_full(const Params &p, uint32_t base, uint32_t of) const {
        return barrier(p, base, 2 + of);
    }
    __device__ __forceinline__ uint32_t vectors_empty(const Params &p, uint32_t base, uint32_t of) const {
        return barrier(p, base, 2 + kOfSpan + of);
    }
    // Waits until a stage is empty. Called by warps that bring: the phase before the first one counts as over.
    __device__ __forceinline__ void wait_empty(uint32_t empty) const { arch::mbarrier_wait(empty, parity ^ 1); }
};

// The matrix of a batch. Entry points without operands of the epilogue take no selection either.
template <bool kOperands, class P>
__device__ __forceinline__ Matrix matrix_of(const P &p, uint32_t batch) {
    if constexpr (kOperands) return selected(p.select, batch);
    return {int32_t(batch), batch, true};
}

// Brings codes: those of a group's span are a box. Zeros in place of a matrix that does not exist. Called by one
// thread.
template <int kVectors, bool kOperands>
__device__ __forceinline__ void bring_codes(const Params &p, const Shares &shares, const Maps &maps, uint32_t base) {
    Stage<kVectors> stage;
    const uint64_t policy = arch::createpolicy_evict_first();
    Part part(p, shares);
    do {
        const uint32_t batch = batch_of(p, part.group), row = first_row(p, part.group, batch);
        const Matrix matrix = matrix_of<kOperands>(p, batch);
        const uint32_t of = matrix.exists ? matrix.number : p.select.matrices; // a tensor map has zeros behind its end
#pragma unroll 1
        for (uint32_t span = part.first_span(p); span < part.end_span(p); ++span, stage.advance(p)) {
            const uint32_t full = stage.full(p, base);
            stage.wait_empty(stage.empty(p, base));
            arch::fence_proxy_async(); // the stage was read by loads
            arch::mbarrier_arrive_expect_tx(full, p.deal.warps * (many::kWarpRows * kSpanBytes));
            arch::cp_async_bulk_tensor_3d(stage.codes(p, base), &maps.codes, span * kSpanBytes, row, of, full, policy);
        }
    } while (part.next(p));
}

// Brings vectors: those of a stage are consecutive bytes. Called by one thread.
template <int kVectors>
__device__ __forceinline__ void bring_vectors(const Params &p, const Shares &shares, uint32_t base) {
    using Of = Stage<kVectors>;
    Of stage;
    const uint64_t policy = arch::createpolicy_evict_last();
    Part part(p, shares);
    do {
        const uint8_t *const packed = p.packed + batch_of(p, part.group) * p.packed_batch_bytes;
#pragma unroll 1
        for (uint32_t span = part.first_span(p); span < part.end_span(p); ++span, stage.advance(p)) {
#pragma unroll
            for (uint32_t of = 0; of < Of::kOfSpan; ++of) {
                const uint32_t full = stage.vectors_full(p, base, of);
                stage.wait_empty(stage.vectors_empty(p, base, of));
                arch::mbarrier_arrive_expect_tx(full, Of::kBytes);
                const uint8_t *const from = packed + int64_t(span * Of::kOfSpan + of) * Of::kBytes;
                arch::cp_async_bulk(stage.vectors(p, base, of), from, Of::kBytes, full, policy);
            }
        }
    } while (part.next(p));
}

constexpr uint32_t kScaleThreads = 2 * many::kWarp;

// Brings the scales of a span in units of 16 bytes. Called by kScaleThreads threads; `thread` is the number of this
// one. In the linear layout a unit is a row's. In the 128x4 layout a unit is a line of an atom, and the atoms lie as in
// memory. Scales outside of W or behind K are 0, so that zeros are multiplied to zeros.
template <int kVectors, bool kOperands>
__device__ __forceinline__ void bring_scales(const Params &p, const Shares &shares, uint32_t base, uint32_t thread) {
    Stage<kVectors> stage;
    const uint32_t groups = p.k / (NVFP4_BLOCK * NVFP4_ATOM_BLOCKS); // of a row
    Part part(p, shares);
    do {
        const uint32_t batch = batch_of(p, part.group), first = first_row(p, part.group, batch);
        const Matrix matrix = matrix_of<kOperands>(p, batch);
        const uint8_t *const scales = scales_of(p.weights, matrix.number);
#pragma unroll 1
        for (uint32_t span = part.first_span(p); span < part.end_span(p); ++span, stage.advance(p)) {
            stage.wait_empty(stage.empty(p, base));
            const uint32_t group = span * kSpanGroups;
#pragma unroll 1
            for (uint32_t unit = thread; unit < p.scale_units; unit += kScaleThreads) {
                const uint32_t to = stage.scales(p, base) + unit * kScaleUnit;
                if (p.weights.scale_steps.tiled) {
                    constexpr uint32_t kBlockUnits = kSpanGroups * NVFP4_ATOM_LINES;
                    const uint32_t block = first / NVFP4_ATOM_ROWS + unit / kBlockUnits, in_block = unit % kBlockUnits;
                    const bool has = matrix.exists && block * NVFP4_ATOM_ROWS < uint32_t(p.m) &&
                                     group + in_block / NVFP4_ATOM_LINES < groups;
                    const uint8_t *const from = scales + block * p.weights.scale_steps.row_stride +
                                                int64_t(group) * NVFP4_ATOM_BYTES + in_block * kScaleUnit;
                    arch::cp_async_16<128>(to, has ? from : scales, has);
                } else {
                    const uint32_t row = first + unit;
                    const bool has = matrix.exists && row < uint32_t(p.m);
                    const uint8_t *const from = scales + row * p.weights.scale_steps.row_stride + group * NVFP4_ATOM_BLOCKS;
                    if (p.scales_aligned) {
                        arch::cp_async_16<128>(to, has ? from : scales, has);
                    } else {
#pragma unroll
                        for (uint32_t t = 0; t < kSpanGroups; ++t) {
                            const bool exists = has && group + t < groups;
                            arch::cp_async_4(to + 4 * t, exists ? from + 4 * t : scales, exists);
                        }
                    }
                }
            }
            arch::cp_async_mbarrier_arrive_noinc(stage.full(p, base));
        }
    } while (part.next(p));
}

// Stores a lane's four outputs of a column: those of rows g and g + 8 of the warp's rows with vectors 2t and 2t + 1 of
// the column. What the outputs of kTogether vectors need beside their sums is asked for together: before the sums are
// known, where registers hold it.
template <bool kOperands, int kTogether>
struct Outputs {
    uint32_t batch, row;
    Matrix matrix;
    float row_alpha[2];
    // Of each vector: whether its outputs exist, the index of its output of row 0, and its factor.
    bool exists[kTogether];
    int64_t at[kTogether];
    float vector_alpha[kTogether];

    Outputs() = default;
    template <class P>
    __device__ __forceinline__ Outputs(const P &p, uint32_t group, uint32_t warp, uint32_t lane)
        : batch(batch_of(p, group)), matrix(matrix_of<kOperands>(p, batch)) {
        row = first_row(p, group, batch) + warp * many::kWarpRows + lane / 4;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t of = row + 8 * i;
            const bool has = kOperands && p.epilogue.has_operands && matrix.exists && of < uint32_t(p.m);
            row_alpha[i] = has ? row_alpha_of(p.epilogue, matrix.number, of) : 1.0f;
        }
    }

    // Asks for what the outputs of vector n and those behind it need.
    template <class P>
    __device__ __forceinline__ void ask(const P &p, uint32_t n) {
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
            Vector of = {batch, n + i, n + i < uint32_t(p.n)};
            if (kOperands && of.exists) of = vector_of(p.bundles, p.n, batch, n + i);
            exists[i] = of.exists;
            at[i] = prepare<false>(p.epilogue, of.batch, 0, of.n).at;
            const bool has = kOperands && p.epilogue.has_operands && matrix.exists && of.exists;
            vector_alpha[i] = has ? vector_alpha_of(p.epilogue, of.batch, of.n) : 1.0f;
        }
    }

    // `first`: the first of these vectors among the two of the column.
    template <class P>
    __device__ __forceinline__ void store(const P &p, int first, const float (&sum)[4]) const {
        constexpr int kOutputs = 2 * kTogether;
        float added[kOutputs];
        bool stored[kOutputs];
#pragma unroll
        for (int i = 0; i < kOutputs; ++i) {
            const int vector = i % kTogether, second = i / kTogether;
            const uint32_t of = row + 8 * second;
            stored[i] = exists[vector] && of < uint32_t(p.m);
            const bool has = kOperands && stored[i] && (p.epilogue.has_operands || !matrix.exists);
            added[i] = has ? added_to(p.epilogue, matrix, of, at[vector] + of) : -0.0f;
        }
#pragma unroll
        for (int i = 0; i < kOutputs; ++i) {
            const int vector = i % kTogether, second = i / kTogether;
            const Place place = {at[vector] + row + 8 * second, row_alpha[second], vector_alpha[vector], added[i]};
            const float y = !kOperands || matrix.exists ? sum[2 * second + first + vector] : 0.0f;
            if (stored[i]) nvfp4::store(p.epilogue, place, y);
        }
    }

    // Asks for and stores the outputs of a column.
    template <class P>
    __device__ __forceinline__ void column(const P &p, uint32_t column, uint32_t lane, const float (&sum)[4]) {
#pragma unroll
        for (int first = 0; first < 2; first += kTogether) {
            ask(p, column * many::kColumns + lane % 4 * 2 + first);
            store(p, first, sum);
        }
    }
};

// Floats from a lane's sums of one column to its sums of the next.
constexpr uint32_t kColumnFloats = NVFP4_PACKED_COLUMN_BYTES / sizeof(float);

// Address of a lane's sums of a CTA's part: the part where the CTA begins, or where it `ends`.
template <class P>
__device__ __forceinline__ auto *partial_at(const P &p, uint32_t columns, uint32_t cta, bool ends, uint32_t warp,
                                            uint32_t lane) {
    return p.partial + int64_t((2 * cta + ends) * p.deal.warps + warp) * columns * kColumnFloats + lane * 4;
}

// A lane's weights of a span: rows g and g + 8.
template <class Weights>
struct Lane {
    uint32_t codes;  // shared address of the first half's in row g, from the start of a stage
    uint32_t scales; // of row g's, likewise
    uint32_t scale_codes[2];
    many::Codes<Weights> of; // the half that is multiplied

    __device__ __forceinline__ void read(int half, uint32_t stage) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            of.codes[i] = arch::ld_shared_128((stage + codes + i * 8 * kSpanBytes) ^ half * 16);
            Weights::scales(scale_codes[i] >> 16 * half, of.scale[i]);
        }
    }

    __device__ __forceinline__ void read_scales(uint32_t stage) {
#pragma unroll
        for (int i = 0; i < 2; ++i) scale_codes[i] = arch::ld_shared_32(stage + scales + i * 8 * kScaleUnit);
    }
};

// Multiplies all parts of the CTA. Called by the warps of a warpgroup that multiplies. kOperands: the epilogue may have
// operands. kAll: all warps have rows.
template <class Weights, class Element, int kVectors, bool kOperands, bool kAll>
__device__ __forceinline__ void multiply_parts(const Params &p, const Shares &shares, uint32_t base) {
    using Of = Stage<kVectors>;
    constexpr uint32_t kRows = Of::kStepBytes / 2;
    constexpr bool kLongSums = kVectors >= NVFP4_PACKED_LONG_SUMS;
    // Whether the operands of the epilogue are asked for before a part is multiplied: where registers hold them.
    constexpr bool kEarly = kOperands && kVectors == many::kColumns;
    constexpr int kTogether = kVectors <= 16 ? 2 : 1; // with more vectors there are no registers for more
    // Words of a lane's codes that are decoded and multiplied together, of the four in a step.
    constexpr int kWords = kVectors < NVFP4_PACKED_MANY ? 2 : 1;
    constexpr float kFactor = 1.0f / Weights::kFactor; // a power of two

    const uint32_t lane = arch::kept(threadIdx.x % many::kWarp);
    const uint32_t warp = arch::kept(threadIdx.x / many::kWarp); // of the group
    const bool has_rows = kAll || in_all(warp < p.deal.warps);
    const uint32_t g = lane / 4, t = lane % 4, row = warp * many::kWarpRows + g; // of the group
    Lane<Weights> weights;
    weights.codes = row * kSpanBytes + ((2 * t ^ g) * 16);

    Of stage;
    uint32_t behind = 0; // mbarrier of the stage of vectors before the one that is multiplied, if there is one
    // Operands A of two groups of instructions: one is multiplied while the other one is decoded.
    uint32_t a[2][kWords][2][4] = {}; // and zeros where a warp has no rows
    // Multiplies half a span, with vectors at shared address x. `add`: adds to the sums in d.
    const auto multiply = [&](float(&d)[kVectors / 2], uint32_t x, bool add) {
        const uint64_t rows = arch::wgmma_rows_descriptor(__shfl_sync(~0u, x, 0));
#pragma unroll
        for (int word = 0; word < 4; word += kWords) {
            // The multiplications that read these registers are over. The other group may still be multiplied.
            auto &operands = a[word / kWords % 2];
            arch::wgmma_wait_group<1>();
#pragma unroll
            for (int i = 0; i < kWords; ++i) {
                if (has_rows) weights.of.decode(word + i, operands[i]);
                arch::wgmma_pin(operands[i][0]);
                arch::wgmma_pin(operands[i][1]);
            }
            arch::wgmma_fence();
#pragma unroll
            for (int i = 0; i < 2 * kWords; ++i) {
                const int slice = 2 * word + i;
                // Only the lower word holds the address, in bits that shared memory does not exceed.
                const uint64_t b = rows >> 32 << 32 | (uint32_t(rows) + (slice / 4 * kRows + slice % 4 * 32) / 16);
                const auto &r = operands[i / 2][i % 2];
                arch::wgmma<Element>(d, r[0], r[1], r[2], r[3], b, kLongSums || slice != 0 || add);
            }
            arch::wgmma_commit_group();
        }
    };
    const auto multiply_span = [&](float(&d)[kVectors / 2], bool add) {
        arch::mbarrier_wait(stage.full(p, base), stage.parity);
        if (has_rows) weights.read_scales(stage.scales(p, base));
#pragma unroll
        for (uint32_t half = 0; half < kSpanSteps; ++half) {
            const uint32_t of = half / Of::kSteps, of_stage = half % Of::kSteps;
            if (has_rows) weights.read(half, stage.codes(p, base));
            if (half + 1 == kSpanSteps) arch::mbarrier_arrive_warp(stage.empty(p, base), lane);
            if (of_stage == 0) arch::mbarrier_wait(stage.vectors_full(p, base, of), stage.parity);
            multiply(d, stage.vectors(p, base, of) + of_stage * Of::kStepBytes, add || half != 0);
            // All multiplications of the stage before this one are over: the wait in front of the last group says so.
            if (of_stage == 0) {
                if (behind != 0) arch::mbarrier_arrive_warp(behind, lane);
                behind = stage.vectors_empty(p, base, of);
            }
        }
        stage.advance(p);
    };

    Part part(p, shares);
    bool begins = true; // with the CTA's first part
    do {
        const uint32_t first = first_row(p, part.group, batch_of(p, part.group));
        uint32_t spans = part.end_span(p) - part.first_span(p);
        const uint32_t of_atoms = first % NVFP4_ATOM_ROWS + row;
        weights.scales = p.weights.scale_steps.tiled
                             ? of_atoms / NVFP4_ATOM_ROWS * (kSpanGroups * NVFP4_ATOM_BYTES) + t * NVFP4_ATOM_BYTES +
                                   of_atoms % NVFP4_ATOM_LINES * NVFP4_ATOM_LINE_BYTES +
                                   of_atoms % NVFP4_ATOM_ROWS / NVFP4_ATOM_LINES * 4
                             : row * kScaleUnit + t * 4;
        Outputs<kOperands, kTogether> outputs;
        if constexpr (kEarly) {
            outputs = {p, part.group, warp, lane};
            outputs.ask(p, 2 * t);
        }
        float sum[kVectors / 2] = {};
        arch::wgmma_pin(sum);
        if constexpr (kLongSums) {
#pragma unroll 1
            for (; spans != 0; --spans) multiply_span(sum, true);
            arch::wgmma_wait_group<0>();
            arch::wgmma_pin(sum);
        } else {
#pragma unroll 1
            while (spans != 0) {
                const uint32_t of_chunk = min(p.summed, spans);
                spans -= of_chunk;
                float own[kVectors / 2];
#pragma unroll 1
                for (uint32_t span = 0; span < of_chunk; ++span) multiply_span(own, span != 0);
                arch::wgmma_wait_group<0>();
                arch::wgmma_pin(own);
#pragma unroll
                for (int i = 0; i < kVectors / 2; ++i) sum[i] += own[i];
            }
        }

        const auto scaled = [&](int column, float(&of)[4]) {
#pragma unroll
            for (int i = 0; i < 4; ++i) of[i] = sum[4 * column + i] * kFactor;
        };
        constexpr int kOfPass = kVectors / many::kColumns; // columns
        if (!has_rows) {
        } else if (part.here == p.deal.chunks) {
            if constexpr (!kEarly) outputs = {p, part.group, warp, lane};
#pragma unroll
            for (int column = 0; column < kOfPass; ++column) {
                float of[4];
                scaled(column, of);
                if constexpr (kEarly) outputs.store(p, 0, of);
                else outputs.column(p, column, lane, of);
            }
        } else {
            const uint32_t columns = (p.n + many::kColumns - 1) / many::kColumns;
            float *const partial = partial_at(p, columns, blockIdx.x, !begins, warp, lane);
#pragma unroll
            for (int column = 0; column < kOfPass; ++column) {
                float of[4];
                scaled(column, of);
                if (column >= columns) break;
                arch::st_global_v4_f32(partial + column * kColumnFloats, of, arch::createpolicy_evict_last());
            }
        }
        begins = false;
    } while (part.next(p));
}

template <class Weights, class Element, int kVectors, bool kOperands>
__device__ __forceinline__ void run(const Params &p, const Maps &maps, uint8_t *shared) {
    using Of = Stage<kVectors>;
    const uint32_t base = arch::shared_address(shared), multiplying = warpgroups(p) * kGroupThreads;
    if (threadIdx.x == 0) {
        arch::prefetch_tensormap(&maps.codes);
        const uint32_t warps = warpgroups(p) * kGroupWarps * arch::kWarpArrivals;
        for (Of stage; stage.parity == 0; stage.advance(p)) {
            arch::mbarrier_init(stage.full(p, base), 1 + kScaleThreads);
            arch::mbarrier_init(stage.empty(p, base), warps);
            for (uint32_t of = 0; of < Of::kOfSpan; ++of) {
                arch::mbarrier_init(stage.vectors_full(p, base, of), 1);
                arch::mbarrier_init(stage.vectors_empty(p, base, of), warps);
            }
        }
        arch::fence_mbarrier_init();
    }
    __syncthreads();
    arch::griddepcontrol_launch_dependents();
    if (kOperands && p.select.late) arch::griddepcontrol_wait();
    const Shares shares(p, kOperands);
    if (kOperands && shares.each == 0 && blockIdx.x >= shares.more) return;
    if (threadIdx.x < multiplying) {
        arch::setmaxnreg_inc<kMultiplyingRegisters<kVectors>>();
        arch::griddepcontrol_wait(); // grids before may still read the output
        if (in_all((threadIdx.x / kGroupThreads + 1) * kGroupWarps <= p.deal.warps)) {
            multiply_parts<Weights, Element, kVectors, kOperands, true>(p, shares, base);
        } else {
            multiply_parts<Weights, Element, kVectors, kOperands, false>(p, shares, base);
        }
    } else {
        arch::setmaxnreg_dec<kBringingRegisters>();
        const uint32_t thread = threadIdx.x - multiplying;
        if (thread == 0) {
            bring_codes<kVectors, kOperands>(p, shares, maps, base);
        } else if (thread == many::kWarp) {
            arch::griddepcontrol_wait(); // the previous grid packs
            bring_vectors<kVectors>(p, shares, base);
        } else if (thread >= 2 * many::kWarp) {
            bring_scales<kVectors, kOperands>(p, shares, base, thread - 2 * many::kWarp);
        }
    }
}

// Adds the parts of a group and stores the outputs. The group is the one that is divided where CTA blockIdx.x + 1
// begins, and nowhere before. A warp has the rows of one warp that multiplied, and one column of vectors.
__device__ __forceinline__ void add(const AddParams &p) {
    const uint32_t lane = threadIdx.x % many::kWarp;
    const uint32_t piece = blockIdx.y * NVFP4_PACKED_ADD_WARPS + threadIdx.x / many::kWarp;
    const uint32_t warp = piece / p.columns, column = piece - warp * p.columns;
    arch::griddepcontrol_launch_dependents();
    arch::griddepcontrol_wait(); // the previous grid writes sums
    const Shares shares(p, true);
    const uint32_t border = shares.first_chunk(blockIdx.x + 1), group = border / p.deal.chunks;
    const uint32_t first = group * p.deal.chunks;
    if (first == border || shares.first_chunk(blockIdx.x) > first || warp >= p.deal.warps) return;

    float sum[4] = {};
    uint32_t cta = blockIdx.x, begin = shares.first_chunk(cta);
#pragma unroll 1
    do {
        const float *const at = partial_at(p, p.columns, cta, begin < first, warp, lane) + column * kColumnFloats;
        const float4 part = *reinterpret_cast<const float4 *>(at);
        sum[0] += part.x;
        sum[1] += part.y;
        sum[2] += part.z;
        sum[3] += part.w;
        begin = shares.first_chunk(++cta);
    } while (begin < first + p.deal.chunks);
    Outputs<true, 2>(p, group, warp, lane).column(p, column, lane, sum);
}

}  // namespace nvfp4::packed

// Entry points that pack vectors, by their type and their number in a pass. Entry points that multiply, by the type of
// packed vectors: once for epilogues without operands, where each output is a few instructions, and once for others.
#define GEMV_PACKED_PACK_OF(X, name, activation) \
    X(gemv_packed_pack_##name##_n8, activation, 8) \
    X(gemv_packed_pack_##name##_n16, activation, 16) \
    X(gemv_packed_pack_##name##_n32, activation, 32) \
    X(gemv_packed_pack_##name##_n64, activation, 64) \
    X(gemv_packed_pack_##name##_n128, activation, 128)
#define GEMV_PACKED_PACK(X)                               \
    GEMV_PACKED_PACK_OF(X, nvfp4, NVFP4_ACTIVATION_NVFP4) \
    GEMV_PACKED_PACK_OF(X, f16, NVFP4_ACTIVATION_F16)     \
    GEMV_PACKED_PACK_OF(X, bf16, NVFP4_ACTIVATION_BF16)
#define GEMV_PACKED_OF(X, name, Weights, Element, end, operands) \
    X(gemv_packed_##name##_n8##end, Weights, Element, 8, operands) \
    X(gemv_packed_##name##_n16##end, Weights, Element, 16, operands) \
    X(gemv_packed_##name##_n32##end, Weights, Element, 32, operands) \
    X(gemv_packed_##name##_n64##end, Weights, Element, 64, operands) \
    X(gemv_packed_##name##_n128##end, Weights, Element, 128, operands)
#define GEMV_PACKED(X)                                                                      \
    GEMV_PACKED_OF(X, f16, nvfp4::ScaledF16, nvfp4::arch::WgmmaF16, , false)                \
    GEMV_PACKED_OF(X, f16, nvfp4::ScaledF16, nvfp4::arch::WgmmaF16, _operands, true)        \
    GEMV_PACKED_OF(X, bf16, nvfp4::ScaledBf16, nvfp4::arch::WgmmaBf16, , false)             \
    GEMV_PACKED_OF(X, bf16, nvfp4::ScaledBf16, nvfp4::arch::WgmmaBf16, _operands, true)

#define PACK_ENTRY(name, activation, vectors)                                          \
    NVFP4_KERNEL(name)(                                                                \
    extern "C" __global__ void __launch_bounds__(NVFP4_PACKED_PACK_WARPS * NVFP4_WARP) \
        name(const __grid_constant__ nvfp4_pack_params p) {                            \
        nvfp4::packed::pack<activation, vectors>(p);                                   \
    })
GEMV_PACKED_PACK(PACK_ENTRY)
#define ENTRY(name, Weights, Element, vectors, operands)                                                        \
    NVFP4_KERNEL(name)(                                                                                         \
    extern "C" __global__ void __launch_bounds__(nvfp4::packed::kMaxThreads<vectors>, 1)                        \
        name(const __grid_constant__ nvfp4::packed::Maps maps, const __grid_constant__ nvfp4_packed_params p) { \
        extern __shared__ __align__(1024) uint8_t dynamic[];                                                    \
        nvfp4::packed::run<Weights, Element, vectors, operands>(p, maps, dynamic);                              \
    })
GEMV_PACKED(ENTRY)
NVFP4_KERNEL(gemv_packed_add)(
extern "C" __global__ void __launch_bounds__(NVFP4_PACKED_ADD_WARPS * NVFP4_WARP)
    gemv_packed_add(const __grid_constant__ nvfp4_packed_add_params p) {
    nvfp4::packed::add(p);
})
#define GEMV_PACKED_ALL(X) BUNDLE_BATCHES(X) GEMV_PACKED_PACK(X) GEMV_PACKED(X) X(gemv_packed_add)
NVFP4_TABLE(gemv_packed, GEMV_PACKED_ALL)

#endif
