// Common part of gemv_mma and gemv_wgmma: how work is divided, how weights come, and how sums become outputs. In a pass
// over the weights these kernels decode each weight once, and multiply it with all vectors of the pass. gemv_packed
// does that too. From this file it takes the constants, the decoding of a lane's codes (Codes), and elements of vectors
// (Eight). It divides its work, and brings its operands, in another way.
//
// A CTA takes a group of rows, in tiles. A tile has as many rows as one matrix instruction, and a warp has 16 of them.
// A tile's K may be shared by several sets of warps, called parts. A set goes over the tile in steps: a step is 128
// elements of K. A lane copies the codes that it will multiply into its warp's queue in shared memory, stages ahead, as
// in gemv_stream. It multiplies their values by their block scales. The products are operands A of matrix instructions.
//
// The vectors are operands B. A chunk is some steps, whose vectors lie in shared memory for all warps. While one chunk
// is multiplied, threads load a later chunk's elements into registers, and then put them into another buffer, in the
// order of A's pairs. Where few rows have a long K, the CTAs of a cluster share that K (sm_90), and add their sums
// through each other's shared memory. Every order of addition is fixed by the config.
#pragma once

#include "../shared.h"

enum {
    NVFP4_MANY_WARP_ROWS = 16,
    NVFP4_MANY_STEP_BLOCKS = 8, /* of a row */
    /* Stages of a warp's queue, a step each. A stage has 16 bytes of codes a lane for each half of the warp's rows, and
     * the scales. */
    NVFP4_MANY_STAGES = 4,
    NVFP4_MANY_STAGE_BYTES = 2 * 512 + NVFP4_MANY_WARP_ROWS * NVFP4_MANY_STEP_BLOCKS,
    /* Bytes of a stage of ragged rows (ragged_parts.cuh): those of a row's scales, and all. */
    NVFP4_MANY_RAGGED_ROW_SCALES = NVFP4_MANY_STEP_BLOCKS + 4,
    NVFP4_MANY_RAGGED_STAGE_BYTES = 2 * 512 + NVFP4_MANY_WARP_ROWS * NVFP4_MANY_RAGGED_ROW_SCALES,
    /* A piece is a step of as many vectors as share a pattern in shared memory. A warp holds one piece of a chunk in
     * registers; with more vectors in all it holds two (mma: three of 128). */
    NVFP4_MANY_COLUMNS = 8,
    NVFP4_MANY_HOLD_ONE = 32,
    /* Bytes of a step of a vector in shared memory: 16-bit floats. */
    NVFP4_MANY_VECTOR_STEP_BYTES = NVFP4_MANY_STEP_BLOCKS * NVFP4_BLOCK * 2,
    /* Alignment of the buffers of vectors: the order of the units in a buffer depends on the address. */
    NVFP4_MANY_VECTORS_ALIGN = 1024,
    /* Floats between the sums of two vectors, beyond the number of rows: lanes that store together then use different
     * banks. */
    NVFP4_MANY_SUMS_PAD = 4,
};

/* A row's place (row_at) is its number in the order in which scales lie. */
typedef struct nvfp4_many_params {
    int32_t m, n;
    uint32_t k, steps;   /* of a row: elements, and steps, of which the last one may have fewer elements */
    uint32_t l, groups;  /* batches, and groups of rows of each */
    uint32_t tiles;      /* of a group */
    uint32_t parts_log2; /* sets of warps that share a tile */
    uint32_t each;       /* steps of a chunk that a set takes: a chunk has each * parts */
    uint32_t cluster_log2;             /* CTAs of a cluster, which has one group */
    uint32_t chunks_each, chunks_left; /* chunks of each CTA; the first chunks_left take one more */
    /* Offsets in dynamic shared memory, in bytes: the buffers of vectors (x), and mbarriers. */
    uint32_t x_at, stored_at;

    nvfp4_weights weights;
    nvfp4_vectors vectors;
    nvfp4_epilogue epilogue;
} nvfp4_many_params;

#ifdef __CUDACC__

#include <type_traits>

#include "../arch/cluster.cuh"
#include "../arch/cp_async.cuh"
#include "../arch/memory.cuh"
#include "../arch/shared.cuh"
#include "../format/operands.cuh"
#include "../format/scale_steps.cuh"
#include "epilogue.cuh"
#include "scaled_weights.cuh"

namespace nvfp4::many {

using Params = nvfp4_many_params;

constexpr int kWarp = NVFP4_WARP;
constexpr uint32_t kWarpRows = NVFP4_MANY_WARP_ROWS;
constexpr uint32_t kStepBlocks = NVFP4_MANY_STEP_BLOCKS;
constexpr uint32_t kStep = kStepBlocks * NVFP4_BLOCK; // elements
constexpr uint32_t kRowCodes = kStep / 2;             // bytes of a row's step
constexpr uint32_t kPieceBytes = 512;                 // 16 bytes a lane: a step of eight rows
constexpr uint32_t kVectorRow = 128; // bytes: half a step of a vector
constexpr int kColumns = NVFP4_MANY_COLUMNS; // of B
constexpr int kSlices = kStep / 16;  // matrix instructions of a step

// A CTA's part of the problem, and a warp's part of that. kTileWarps warps have a tile.
template <uint32_t kTileWarps>
struct Work {
    uint32_t batch, place;  // of the group's first row
    uint32_t rank;          // of the CTA in its cluster
    uint32_t chunk, chunks; // the CTA's first chunk, and how many it has
    uint32_t end;           // behind its last step
    uint32_t part;          // of the warp's set
    uint32_t row;           // of the group: the warp's first
    uint32_t warp, warps;   // this one, and all of the CTA

    __device__ __forceinline__ Work(const Params &p, uint32_t warp)
        : batch(0), warp(warp), warps(kTileWarps * p.tiles << p.parts_log2) {
        uint32_t group = blockIdx.x >> p.cluster_log2;
        rank = blockIdx.x - (group << p.cluster_log2);
        if (p.l > 1) { // a division delays the first copy
            batch = group / p.groups;
            group -= batch * p.groups;
        }
        place = group * p.tiles * kTileWarps * kWarpRows;
        chunk = rank * p.chunks_each + min(rank, p.chunks_left);
        chunks = p.chunks_each + (rank < p.chunks_left);
        end = min((chunk + chunks) * chunk_steps(p), p.steps);
        const uint32_t set = warp / kTileWarps, tile = set >> p.parts_log2;
        part = set - (tile << p.parts_log2);
        row = (tile * kTileWarps + warp % kTileWarps) * kWarpRows;
    }

    __device__ static __forceinline__ uint32_t chunk_steps(const Params &p) { return p.each << p.parts_log2; }
};

// A warp's queue of stages in shared memory.
template <uint32_t kStageBytes>
struct Queue {
    uint32_t last, to; // shared addresses of the last stage and of the next one

    __device__ __forceinline__ Queue(uint32_t warp, uint32_t base)
        : to(base + warp * NVFP4_MANY_STAGES * kStageBytes) {
        last = to + (NVFP4_MANY_STAGES - 1) * kStageBytes;
    }

    __device__ __forceinline__ uint32_t behind(uint32_t stage) const {
        return stage == last ? last - (NVFP4_MANY_STAGES - 1) * kStageBytes : stage + kStageBytes;
    }

    // Makes a stage of the copies since the last call. A stage may be empty, since stages are counted.
    __device__ __forceinline__ void commit() {
        arch::cp_async_commit_group();
        to = behind(to);
    }
};

// Copies a warp's steps from memory into its queue, stages ahead of the step that is multiplied. K is a multiple of 64,
// and codes are aligned to 16 bytes: RaggedLoads (ragged_parts.cuh) takes other rows.
struct Loads : Queue<NVFP4_MANY_STAGE_BYTES> {
    const uint8_t *codes[2], *scales; // of the next step: this lane's, in rows g and g + 8, and of row lane / 2
    uint32_t codes_end, scales_end;   // the steps from which on this lane has none
    uint32_t step, end;               // the next step, and the one behind the last

    using Queue::Queue;

    // Starts with step `from` of batch `of`, and ends before step `before`. The warp's first row has the place `first`.
    template <class P>
    __device__ __forceinline__ void start(const P &p, uint32_t of, uint32_t first, uint32_t from, uint32_t before,
                                          uint32_t lane) {
        const uint32_t g = lane / 4, t = lane % 4;
        step = from;
        end = before;
        const uint8_t *batch = codes_of(p.weights, of) + step * kRowCodes + t * 16;
        // Rows past M have the first row's codes and scales: computed with, and not stored. Elements past K are zeros.
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t row = row_at(p.weights.scale_steps, first + g + 8 * i);
            codes[i] = batch + (row < uint32_t(p.m) ? row : 0) * p.weights.row_bytes;
        }
        codes_end = (p.k + kStep - 1 - t * 32) / kStep;
        const uint32_t place = first + lane / 2, group = lane % 2;
        const bool has = row_at(p.weights.scale_steps, place) < uint32_t(p.m);
        scales = scales_of(p.weights, of) + int64_t(2 * step + group) * p.weights.scale_steps.group_stride +
                 place_offset(p.weights.scale_steps, has ? place : 0);
        scales_end = (p.k + kStep - 1 - group * 64) / kStep;
    }

    // Copies the next step into the next stage.
    __device__ __forceinline__ void copy(uint32_t lane) const {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            arch::cp_async_16<256>(to + i * kPieceBytes + lane * 16, codes[i], step < codes_end);
        }
        arch::cp_async_4(to + 2 * kPieceBytes + lane * 4, scales, step < scales_end);
    }

    template <class P>
    __device__ __forceinline__ void advance(const P &p, uint32_t steps) {
        step += steps;
#pragma unroll
        for (int i = 0; i < 2; ++i) codes[i] += steps * kRowCodes;
        scales += int64_t(steps) * (kStepBlocks / 4 * p.weights.scale_steps.group_stride);
    }

    // Reads the scales that a lane multiplies by.
    struct Reader {
        Reader() = default;
        __device__ __forceinline__ Reader(const Params &, uint32_t, uint32_t, uint32_t) {}

        // Scales of this lane's two blocks of row g + 8 * i, in the stage at shared address `from`.
        __device__ __forceinline__ uint32_t scales(uint32_t from, int i, uint32_t lane) const {
            return arch::ld_shared_16(from + 2 * kPieceBytes + (lane / 4 + 8 * i) * kStepBlocks + 2 * (lane % 4));
        }
    };
};

// Copies the steps of a warp whose set takes some steps of each chunk.
template <class Loads>
struct PartLoads : Loads {
    using Loads::end;
    using Loads::step;
    uint32_t left; // of the chunk

    template <class Work>
    __device__ __forceinline__ PartLoads(const Params &p, const Work &work, uint32_t lane, uint32_t base)
        : Loads(work.warp, base), left(p.each) {
        this->start(p, work.batch, work.place + work.row, work.chunk * Work::chunk_steps(p) + work.part * p.each,
                    work.end, lane);
    }

    __device__ __forceinline__ void next(const Params &p, uint32_t lane) {
        if (step < end) {
            this->copy(lane);
            uint32_t steps = 1;
            if (--left == 0) {
                left = p.each;
                steps = (p.each << p.parts_log2) - p.each + 1;
            }
            this->advance(p, steps);
        }
        this->commit();
    }
};

// A lane's weights of a step: rows g and g + 8.
template <class Weights>
struct Codes {
    uint4 codes[2];
    uint32_t scale[2][2];

    Codes() = default;
    // Reads the weights from the stage at shared address `from`.
    template <class Reader>
    __device__ __forceinline__ Codes(const Reader &reader, uint32_t from, uint32_t lane) {
        uint32_t scale_codes[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            scale_codes[i] = reader.scales(from, i, lane);
            codes[i] = arch::ld_shared_128(from + i * kPieceBytes + lane * 16);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) Weights::scales(scale_codes[i], scale[i]);
    }

    // Decodes operands A of matrix instructions 2 * word and 2 * word + 1.
    __device__ __forceinline__ void decode(int word, uint32_t (&a)[2][4]) const {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t words[4] = {codes[i].x, codes[i].y, codes[i].z, codes[i].w};
            uint32_t pair[4];
            Weights::decode(words[word], scale[i][word / 2], pair);
#pragma unroll
            for (int j = 0; j < 4; ++j) a[j / 2][i + j % 2 * 2] = pair[j];
        }
    }
};

// Eight elements of a vector, on their way to shared memory.
template <int kActivation>
struct Eight {
    using Weights = std::conditional_t<kActivation == NVFP4_ACTIVATION_F16, ScaledF16, ScaledBf16>;
    static constexpr uint32_t kStepBytes = kStep * 2;
    uint4 raw;

    __device__ __forceinline__ void load(const uint8_t *elements, const uint8_t *) {
        raw = arch::ld_global_128(elements);
    }
    __device__ __forceinline__ void pairs(uint32_t (&out)[4]) const {
        ordered_pairs<typename Weights::Order>(raw, out);
    }
};

template <>
struct Eight<NVFP4_ACTIVATION_NVFP4> {
    using Weights = ScaledF16;
    static constexpr uint32_t kStepBytes = kStep / 2;
    uint32_t codes;
    uint8_t scale;

    __device__ __forceinline__ void load(const uint8_t *elements, const uint8_t *scale_at) {
        codes = arch::ld_global_32(elements);
        scale = arch::ld_global_8(scale_at);
    }
    __device__ __forceinline__ void pairs(uint32_t (&out)[4]) const {
        scaled_pairs(codes, __low2float(arch::cvt_e4m3x2(scale)), out);
    }
};

// A piece of a chunk of vectors: a step of eight vectors. A warp has the same pieces of every chunk. A lane has
// elements 32t + 8w to 32t + 8w + 7 of one vector of the piece, for its w and all four t.
//
// In shared memory half a step of a vector is a row of 128 bytes. A 16-byte unit stands at its number XOR the vector's,
// modulo 8: the 128-byte swizzle of wgmma. Matrix instruction i of a step's eight multiplies two pairs that lanes t
// decode from word i / 2 of their codes: 2 * (i % 2), and the next one. Unit 2 * (i % 4) of half i / 4 has what the
// first pairs of all t are multiplied with, and the next unit that of the second pairs.
template <int kActivation, int kVectors, bool kRagged>
struct Piece {
    using Elements = Eight<kActivation>;
    static constexpr uint32_t kOfStep = kVectors / kColumns;
    static constexpr uint32_t kRows = kVectors * kVectorRow; // bytes of half a step of all vectors

    const uint8_t *elements, *scales; // of the chunk that is loaded next: this lane's
    uint32_t step;                    // of the chunk
    uint32_t to;                      // of this lane's first unit, from the start of the buffer
    Elements eight[4];

    template <class P, class Work>
    __device__ __forceinline__ Piece(const P &p, const Work &work, uint32_t lane, uint32_t piece)
        : step(piece / kOfStep) {
        const uint32_t word = lane % 2 + lane / 16 * 2, column = lane / 2 % kColumns;
        const uint32_t first = piece % kOfStep * kColumns;
        // Vectors past the end repeat the last one: computed, not stored.
        const uint32_t n = min(first + column, uint32_t(p.n) - 1);
        const uint32_t at = work.chunk * Work::chunk_steps(p) + step;
        elements = values_of(p.vectors, work.batch) + n * p.vectors.row_bytes +
                   int64_t(at) * Elements::kStepBytes + word * (Elements::kStepBytes / 16);
        scales = scales_of(p.vectors, work.batch) + row_offset(p.vectors.scale_steps, n) +
                 int64_t(at) * 2 * p.vectors.scale_steps.group_stride + word / 2;
        to = (step * 2 + word / 2) * kRows + (first + column) * kVectorRow + ((word % 2 * 4) ^ column) * 16;
    }

    // Whether the chunk whose first step is `first` has such a piece.
    template <class P, class Work>
    __device__ __forceinline__ bool exists(const P &p, const Work &work, uint32_t first) const {
        return step < Work::chunk_steps(p) && first + step < work.end;
    }

    template <class P>
    __device__ __forceinline__ bool is_whole(const P &p, uint32_t first) const {
        return (first + step + 1) * kStep <= p.k;
    }

    // Loads the piece of the next chunk, whose first step is `first`, and which has such a piece.
    template <class P>
    __device__ __forceinline__ void load(const P &p, uint32_t first) {
        if constexpr (kRagged) {
            load_ragged(p, first);
            return;
        }
        const int64_t group_stride = p.vectors.scale_steps.group_stride;
        // Where there is only half a step, the first half is loaded again, and not kept.
        const bool whole = is_whole(p, first);
        const uint8_t *const second = whole ? elements : elements - Elements::kStepBytes / 2;
        const uint8_t *const second_scales = whole ? scales + group_stride : scales;
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            eight[t].load((t < 2 ? elements : second) + t * (Elements::kStepBytes / 4),
                          (t < 2 ? scales : second_scales) + t % 2 * 2);
        }
    }

    template <class P>
    __device__ __forceinline__ void advance(const P &p, uint32_t chunk_steps) {
        elements += chunk_steps * Elements::kStepBytes;
        scales += int64_t(chunk_steps) * 2 * p.vectors.scale_steps.group_stride;
    }

    // Stores the loaded piece of the chunk whose first step is `first` into that chunk's buffer.
    template <class P>
    __device__ __forceinline__ void store(const P &p, uint32_t first, uint8_t *buffer) const {
        uint32_t pair[4][4];
#pragma unroll
        for (int t = 0; t < 4; ++t) eight[t].pairs(pair[t]);
        if (!kRagged && !is_whole(p, first)) {
#pragma unroll
            for (int i = 0; i < 4; ++i) pair[2][i] = pair[3][i] = 0;
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            *reinterpret_cast<uint4 *>(buffer + (to ^ i * 16)) =
                make_uint4(pair[0][i], pair[1][i], pair[2][i], pair[3][i]);
        }
    }

  private:
    // Loads where the last step of a row may have any number of blocks. Elements behind the row's end are zeros from
    // here on.
    template <class P>
    __device__ __forceinline__ void load_ragged(const P &p, uint32_t first) {
        const int64_t group_stride = p.vectors.scale_steps.group_stride;
        const auto of = [&](int t) {
            eight[t].load(elements + t * (Elements::kStepBytes / 4), scales + t / 2 * group_stride + t % 2 * 2);
        };
        if (is_whole(p, first)) {
#pragma unroll
            for (int t = 0; t < 4; ++t) of(t);
        } else {
            const uint32_t half = threadIdx.x % kWarp / 16; // of a block of t's: see the constructor's words
            const int32_t left = p.k / NVFP4_BLOCK - (first + step) * kStepBlocks - half;
#pragma unroll
            for (int t = 0; t < 4; ++t) {
                eight[t] = {};
                if (left > 2 * t) of(t);
            }
        }
    }
};

template <int kVectors>
constexpr int kHeldOf = kVectors > NVFP4_MANY_HOLD_ONE ? 2 : 1;

// A warp's pieces of the chunks to come: loaded to registers ahead, and stored to shared memory when a buffer is free.
template <int kActivation, int kVectors, int kHeld, bool kRagged = false>
struct Chunks {
    using Held = Piece<kActivation, kVectors, kRagged>;
    Held held[kHeld];

    template <class Work>
    __device__ __forceinline__ static Chunks of(const Params &p, const Work &work, uint32_t lane) {
        const auto piece = [&](uint32_t i) { return Held(p, work, lane, work.warp + i * work.warps); };
        if constexpr (kHeld == 1) {
            return {{piece(0)}};
        } else if constexpr (kHeld == 2) {
            return {{piece(0), piece(1)}};
        } else {
            return {{piece(0), piece(1), piece(2)}};
        }
    }

    template <class Work>
    __device__ __forceinline__ void load(const Params &p, const Work &work, uint32_t first) {
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
            if (held[i].exists(p, work, first)) held[i].load(p, first);
            held[i].advance(p, Work::chunk_steps(p));
        }
    }

    template <class Work>
    __device__ __forceinline__ void store(const Params &p, const Work &work, uint32_t first, uint8_t *buffer) const {
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
            if (held[i].exists(p, work, first)) held[i].store(p, first, buffer);
        }
    }
};

// Adds the sums of a CTA's warps, and of a cluster's CTAs, and stores the outputs. A warp's sums are of 16 rows: of
// each eight vectors this lane has rows g and g + 8 with vectors 2t and 2t + 1. Shared memory has no other use any
// more.
template <int kVectors, class Work>
__device__ __forceinline__ void finish(const Params &p, const Work &work, uint8_t *shared, uint32_t lane,
                                       const float (&sum)[kVectors / 2], float factor) {
    const uint32_t rows = work.warps / (1u << p.parts_log2) * kWarpRows, stride = rows + NVFP4_MANY_SUMS_PAD;
    const uint32_t g = lane / 4, t = lane % 4, base = arch::shared_address(shared);
    // [parts][vectors][rows]
    float *const mine = reinterpret_cast<float *>(shared) + work.part * kVectors * stride + work.row;
#pragma unroll
    for (int i = 0; i < kVectors / 2; ++i) {
        const uint32_t n = i / 4 * kColumns + 2 * t + i % 2;
        if (i / 4 * kColumns < p.n) mine[n * stride + g + i % 4 / 2 * 8] = sum[i];
    }
#if __CUDA_ARCH__ >= 900
    if (p.cluster_log2 != 0) {
        arch::barrier_cluster_arrive();
        arch::barrier_cluster_wait();
    }
#endif
    __syncthreads();

    // Lanes take rows. Warps, and the CTAs of a cluster, take vectors in turn.
    const uint32_t parts = 1u << p.parts_log2, part_bytes = kVectors * stride * 4;
    const uint32_t first = work.rank + (work.warp << p.cluster_log2), step = work.warps << p.cluster_log2;
    // Some vectors at once, so that their loads are on the way together.
    constexpr uint32_t kTogether = kVectors < 32 ? 2 : 8;
#pragma unroll 1
    for (uint32_t place = lane; place < rows && first < uint32_t(p.n); place += kWarp) {
        const uint32_t row = row_at(p.weights.scale_steps, work.place + place);
        if (row >= uint32_t(p.m)) continue;
        Place at = prepare(p.epilogue, work.batch, row, first);
#pragma unroll 1
        for (uint32_t n = first; n < uint32_t(p.n); n += kTogether * step) {
            uint32_t from[kTogether];
            float y[kTogether] = {};
#pragma unroll
            for (uint32_t i = 0; i < kTogether; ++i) { // past the end the first one again
                from[i] = base + ((n + i * step < uint32_t(p.n) ? n + i * step : n) * stride + place) * 4;
            }
#if __CUDA_ARCH__ >= 900
            if (p.cluster_log2 != 0) {
#pragma unroll 1
                for (uint32_t rank = 0; rank < 1u << p.cluster_log2; ++rank) {
#pragma unroll 1
                    for (uint32_t part = 0; part < parts; ++part) {
#pragma unroll
                        for (uint32_t i = 0; i < kTogether; ++i) {
                            y[i] += arch::ld_shared_cluster_f32(arch::mapa(from[i] + part * part_bytes, rank));
                        }
                    }
                }
            } else
#endif
            {
#pragma unroll 1
                for (uint32_t part = 0; part < parts; ++part) {
#pragma unroll
                    for (uint32_t i = 0; i < kTogether; ++i) {
                        y[i] += arch::ld_shared_f32(from[i] + part * part_bytes);
                    }
                }
            }
#pragma unroll
            for (uint32_t i = 0; i < kTogether; ++i) {
                const uint32_t of = n + i * step;
                if (of >= uint32_t(p.n)) break;
                store(p.epilogue, at, y[i] * factor);
                next_vector(p.epilogue, work.batch, row, of + step, of + step < uint32_t(p.n), step, at);
            }
        }
    }
#if __CUDA_ARCH__ >= 900
    if (p.cluster_log2 != 0) { // others may still read this CTA's sums
        arch::barrier_cluster_arrive();
        arch::barrier_cluster_wait();
    }
#endif
}

}  // namespace nvfp4::many

#endif
