// GEMV for many vectors on mma.sync: each weight is decoded once, and multiplied with up to 128 vectors. sm_80 and
// newer; K a multiple of 64.
//
// A CTA takes a group of rows: up to 16 tiles of 16 rows. One warp, or several that share its K, computes a tile. A
// step is 128 elements of K of a tile. A lane copies the codes that it will multiply, stages ahead, into its warp's
// queue in shared memory, as in gemv_stream. It multiplies them by their block scales, into operands A of matrix
// instructions, and keeps these while it goes over the vectors.
//
// The vectors are operands B. The steps of a chunk lie in shared memory for all warps, in two buffers: while one is
// multiplied, threads load the next chunk's elements into registers, and put them in the order of A's pairs. Where
// few rows have a long K, the CTAs of a cluster share it (sm_90), and add their sums through each other's shared
// memory. Every order of addition is fixed by the configuration.

#include "../shared.h"

enum {
    NVFP4_MMA_TILE_ROWS = 16,
    NVFP4_MMA_STEP_BLOCKS = 8, /* of a row */
    /* Of a warp's queue: 16 bytes of codes a lane in each half of the tile's rows, and its scales. */
    NVFP4_MMA_STAGE_BYTES = 2 * 512 + NVFP4_MMA_TILE_ROWS * NVFP4_MMA_STEP_BLOCKS,
    NVFP4_MMA_MAX_WARPS = 16, /* of a CTA */
    /* The same for the most vectors, whose sums take 64 registers of a thread. */
    NVFP4_MMA_MAX_WARPS_OF_128 = 12,
    /* Bytes of a step of a vector in shared memory: 16-bit floats. */
    NVFP4_MMA_VECTOR_STEP_BYTES = NVFP4_MMA_STEP_BLOCKS * NVFP4_BLOCK * 2,
    /* Between the sums of two vectors stand so many floats more than there are rows, so that lanes that store
     * together use different banks. */
    NVFP4_MMA_SUMS_PAD = 4,
};

/* Rows are counted in the order in which their scales lie: a row's place (row_at). A cluster of CTAs, or a CTA, takes
 * 16 * tiles places. */
typedef struct nvfp4_mma_params {
    int32_t m, n;
    uint32_t k, steps;   /* of a row: elements, and steps, of which the last one may have 64 elements */
    uint32_t l, groups;  /* batches, and groups of rows of each */
    uint32_t tiles;      /* of a group */
    uint32_t parts_log2; /* warps that share a tile */
    uint32_t stages;
    uint32_t each;       /* steps of a chunk that a warp takes: a chunk has each * parts */
    uint32_t cluster_log2;          /* CTAs of a cluster */
    uint32_t chunks_each, chunks_left; /* chunks of each CTA; the first chunks_left take one more */
    uint32_t x_at;       /* the buffers of vectors, in bytes from the start of dynamic shared memory */

    NVFP4_POINTER(const uint8_t) codes;
    NVFP4_POINTER(const uint8_t) scales;
    nvfp4_scale_steps scale_layout;
    int64_t code_row_bytes, scale_batch_bytes;

    NVFP4_POINTER(const uint8_t) vectors;
    int64_t vector_row_bytes, vector_batch_bytes;
    NVFP4_POINTER(const uint8_t) vector_scales;
    nvfp4_scale_steps vector_scale_layout;
    int64_t vector_scale_batch_bytes;

    nvfp4_epilogue epilogue;
} nvfp4_mma_params;

#ifdef __CUDACC__

#include <type_traits>

#include "../arch/cluster.cuh"
#include "../arch/copy_async.cuh"
#include "../arch/grid_dependency.cuh"
#include "../arch/matrix_loads.cuh"
#include "../arch/memory.cuh"
#include "../arch/registers.cuh"
#include "../arch/shared.cuh"
#include "../entries.cuh"
#include "../format/scale_steps.cuh"
#include "epilogue.cuh"
#include "scaled_weights.cuh"

namespace nvfp4::mma {

using Params = nvfp4_mma_params;

constexpr int kWarp = NVFP4_WARP;
constexpr uint32_t kTileRows = NVFP4_MMA_TILE_ROWS;
constexpr uint32_t kStepBlocks = NVFP4_MMA_STEP_BLOCKS;
constexpr uint32_t kStep = kStepBlocks * NVFP4_BLOCK; // elements
constexpr uint32_t kRowCodes = kStep / 2;             // bytes of a row's step
constexpr uint32_t kPieceBytes = 512;                 // 16 bytes a lane: a step of eight rows
constexpr uint32_t kStageBytes = NVFP4_MMA_STAGE_BYTES;
constexpr uint32_t kVectorRow = 128; // bytes: half a step of a vector
constexpr int kColumns = 8;          // of a matrix instruction's B

constexpr uint32_t max_warps(int vectors) {
    return vectors <= 64 ? NVFP4_MMA_MAX_WARPS : NVFP4_MMA_MAX_WARPS_OF_128;
}

// A CTA's part of the problem, and a warp's part of that.
struct Work {
    uint32_t batch, place;         // of the group's first row
    uint32_t rank;                 // of the CTA in its cluster
    uint32_t chunk, chunks;        // the CTA's first chunk, and how many it has
    uint32_t end;                  // behind its last step
    uint32_t tile, part;           // of the warp

    __device__ __forceinline__ Work(const Params &p, uint32_t warp) : batch(0) {
        uint32_t group = blockIdx.x >> p.cluster_log2;
        rank = blockIdx.x - (group << p.cluster_log2);
        if (p.l > 1) { // a division delays the first copy
            batch = group / p.groups;
            group -= batch * p.groups;
        }
        place = group * p.tiles * kTileRows;
        chunk = rank * p.chunks_each + min(rank, p.chunks_left);
        chunks = p.chunks_each + (rank < p.chunks_left);
        end = min((chunk + chunks) * (p.each << p.parts_log2), p.steps);
        tile = warp >> p.parts_log2;
        part = warp - (tile << p.parts_log2);
    }

    // A warp's first step of a chunk.
    __device__ __forceinline__ uint32_t first_step(const Params &p, uint32_t chunk) const {
        return ((chunk << p.parts_log2) + part) * p.each;
    }
};

// A warp's steps, from memory into its queue, stages ahead of what is multiplied.
struct Loads {
    const uint8_t *codes[2]; // of this lane, in rows g and g + 8
    const uint8_t *scales;   // of this lane's row, one of 16, and its four blocks of eight
    bool has[2], has_scales; // there are such rows
    uint32_t step, left;     // the next step, and how many follow of its chunk

    __device__ __forceinline__ Loads(const Params &p, const Work &work, uint32_t lane) {
        const uint32_t g = lane / 4, t = lane % 4, first = work.place + work.tile * kTileRows;
        const uint8_t *batch = p.codes + int64_t(work.batch) * p.m * p.code_row_bytes + t * 16;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            // Where there is no such row, zeros are computed with, and not stored.
            const uint32_t row = row_at(p.scale_layout, first + g + 8 * i);
            has[i] = row < uint32_t(p.m);
            codes[i] = batch + (has[i] ? row : 0) * p.code_row_bytes;
        }
        const uint32_t place = first + lane / 2;
        has_scales = row_at(p.scale_layout, place) < uint32_t(p.m);
        scales = p.scales + work.batch * p.scale_batch_bytes + lane % 2 * p.scale_layout.group_stride +
                 place_offset(p.scale_layout, has_scales ? place : 0);
        step = work.first_step(p, work.chunk);
        left = p.each;
    }

    // To the shared address `to`, of the warp's stage.
    __device__ __forceinline__ void next(const Params &p, const Work &work, uint32_t lane, uint32_t to) {
        if (step < work.end) {
            // Behind the end of a row, where a step has 64 elements only, zeros.
            const uint32_t element = step * kStep;
            const bool in = element + lane % 4 * 32 < p.k;
            const bool scales_in = has_scales && element + lane % 2 * 64 < p.k;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                arch::copy_async_16<256>(to + i * kPieceBytes + lane * 16, codes[i] + (in ? step : 0) * kRowCodes,
                                         has[i] && in);
            }
            const int64_t at = int64_t(scales_in ? step : 0) * (kStepBlocks / 4 * p.scale_layout.group_stride);
            arch::copy_async_4(to + 2 * kPieceBytes + lane * 4, scales_in ? scales + at : p.scales, scales_in);
            ++step;
            if (--left == 0) {
                left = p.each;
                step += (p.each << p.parts_log2) - p.each;
            }
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
    } else if (stages == 6) {
        arch::wait_copies<4>();
    } else {
        arch::wait_copies<6>();
    }
}

// Eight elements of a vector, on their way to shared memory.
template <int kActivation>
struct Eight {
    using Weights = std::conditional_t<kActivation == NVFP4_ACTIVATION_F16, ScaledF16, ScaledBf16>;
    uint4 raw;

    __device__ __forceinline__ void load(const Params &, const uint8_t *vector, const uint8_t *, uint32_t element) {
        raw = arch::load_fresh_128(vector + element * 2);
    }
    __device__ __forceinline__ void clear() { raw = make_uint4(0, 0, 0, 0); }
    __device__ __forceinline__ void pairs(uint32_t (&out)[4]) const {
        ordered_pairs<typename Weights::Order>(raw, out);
    }
};

template <>
struct Eight<NVFP4_ACTIVATION_NVFP4> {
    using Weights = ScaledF16;
    uint32_t codes;
    uint8_t scale;

    __device__ __forceinline__ void load(const Params &p, const uint8_t *vector, const uint8_t *scales,
                                         uint32_t element) {
        codes = arch::load_fresh_32(vector + element / 2);
        scale = arch::load_fresh_8(scales + block_offset(p.vector_scale_layout, element / NVFP4_BLOCK));
    }
    __device__ __forceinline__ void clear() { codes = scale = 0; }
    __device__ __forceinline__ void pairs(uint32_t (&out)[4]) const {
        scaled_pairs(codes, __low2float(arch::cvt_e4m3x2(scale)), out);
    }
};

// A warp's share of a chunk of vectors, in pieces: one has a step of eight vectors. Of it, a lane has elements
// 32t + 8w to 32t + 8w + 7 of one vector for its w, and all four t.
//
// In shared memory half a step of a vector is a row of 128 bytes, with its 16-byte units in the order of their number
// XOR the vector's, modulo 8. Matrix instruction i of a step's eight multiplies what lanes t decode of word i / 2 of
// their codes, first pairs 2 * (i % 2), then the ones behind them: unit 2 * (i % 4) has the former of all t, the next
// unit the latter. (That is also the layout with which wgmma reads B.)
template <int kActivation, int kVectors>
struct Pieces {
    static constexpr uint32_t kOfStep = kVectors / kColumns;
    static constexpr uint32_t kRows = kVectors * kVectorRow; // bytes of half a step of all vectors
    Eight<kActivation> eight[4];

    __device__ __forceinline__ static uint32_t word(uint32_t lane) { return lane % 2 + lane / 16 * 2; }
    __device__ __forceinline__ static uint32_t column(uint32_t lane) { return lane / 2 % kColumns; }

    __device__ __forceinline__ static bool exists(const Params &p, uint32_t piece) {
        return piece % kOfStep * kColumns < uint32_t(p.n);
    }

    // Of the chunk whose first step is `step`.
    __device__ __forceinline__ void load(const Params &p, uint32_t batch, uint32_t lane, uint32_t step,
                                         uint32_t piece) {
        // Vectors past the end repeat the last one: computed, not stored.
        const uint32_t n = min(piece % kOfStep * kColumns + column(lane), uint32_t(p.n) - 1);
        const uint8_t *vector = p.vectors + batch * p.vector_batch_bytes + n * p.vector_row_bytes;
        const uint8_t *scales =
            p.vector_scales + batch * p.vector_scale_batch_bytes + row_offset(p.vector_scale_layout, n);
        const uint32_t element = (step + piece / kOfStep) * kStep + word(lane) * 8;
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            if (element + 32 * t < p.k) {
                eight[t].load(p, vector, scales, element + 32 * t);
            } else {
                eight[t].clear();
            }
        }
    }

    __device__ __forceinline__ void store(uint8_t *buffer, uint32_t lane, uint32_t piece) const {
        uint32_t pair[4][4];
#pragma unroll
        for (int t = 0; t < 4; ++t) eight[t].pairs(pair[t]);
        const uint32_t w = word(lane), c = column(lane), row = piece % kOfStep * kColumns + c;
        uint8_t *const to = buffer + (piece / kOfStep * 2 + w / 2) * kRows + row * kVectorRow;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t unit = (w % 2 * 4 + i) ^ c;
            *reinterpret_cast<uint4 *>(to + unit * 16) =
                make_uint4(pair[0][i], pair[1][i], pair[2][i], pair[3][i]);
        }
    }
};

// The chunks of vectors: a warp loads its pieces of the next one before it multiplies, and stores them after.
template <int kActivation, int kVectors>
struct Chunks {
    using Piece = Pieces<kActivation, kVectors>;
    static constexpr uint32_t kHeld = kVectors > 64 ? 2 : 1; // pieces that wait in registers
    Piece held[kHeld];

    // Pieces of the chunk's steps from `step` to `end`, or to the chunk's own end.
    __device__ __forceinline__ static uint32_t count(const Params &p, uint32_t step, uint32_t end) {
        return min(p.each << p.parts_log2, end - step) * Piece::kOfStep;
    }

    __device__ __forceinline__ void load(const Params &p, const Work &work, uint32_t warp, uint32_t lane,
                                         uint32_t step) {
        const uint32_t pieces = count(p, step, work.end), warps = p.tiles << p.parts_log2;
#pragma unroll
        for (uint32_t i = 0; i < kHeld; ++i) {
            const uint32_t piece = warp + i * warps;
            if (piece < pieces && Piece::exists(p, piece)) held[i].load(p, work.batch, lane, step, piece);
        }
    }

    __device__ __forceinline__ void store(const Params &p, const Work &work, uint32_t warp, uint32_t lane,
                                          uint32_t step, uint8_t *buffer) const {
        const uint32_t pieces = count(p, step, work.end), warps = p.tiles << p.parts_log2;
        uint32_t piece = warp;
#pragma unroll
        for (uint32_t i = 0; i < kHeld; ++i, piece += warps) {
            if (piece < pieces && Piece::exists(p, piece)) held[i].store(buffer, lane, piece);
        }
        // More than fit the registers.
#pragma unroll 1
        for (; piece < pieces; piece += warps) {
            if (!Piece::exists(p, piece)) continue;
            Piece late;
            late.load(p, work.batch, lane, step, piece);
            late.store(buffer, lane, piece);
        }
    }
};

template <int kActivation, int kVectors>
__device__ __forceinline__ void run(const Params &p, uint8_t *shared) {
    using Weights = typename Eight<kActivation>::Weights;
    constexpr uint32_t kColumnTiles = kVectors / kColumns;
    constexpr uint32_t kRows = Pieces<kActivation, kVectors>::kRows;

    const uint32_t warp = threadIdx.x / kWarp, lane = arch::kept(threadIdx.x % kWarp);
    const uint32_t g = lane / 4, t = lane % 4;
    const Work work(p, warp);
    const uint32_t base = arch::shared_address(shared);
    const uint32_t queue = base + warp * p.stages * kStageBytes, last = queue + (p.stages - 1) * kStageBytes;

    Loads loads(p, work, lane);
    uint32_t to = queue;
#pragma unroll 1
    do {
        loads.next(p, work, lane, to);
        to += kStageBytes;
    } while (to != last);

    arch::grid_dependency_launch();
    arch::grid_dependency_wait(); // the previous grid may write vectors and read the output
    const uint32_t chunk_steps = p.each << p.parts_log2, buffer_bytes = chunk_steps * 2 * kRows;
    Chunks<kActivation, kVectors> chunks;
    uint32_t chunk_step = work.chunk * chunk_steps; // of the chunk that is multiplied
    uint32_t buffer = 0;                            // where it lies
    if (work.chunks != 0) {
        chunks.load(p, work, warp, lane, chunk_step);
        chunks.store(p, work, warp, lane, chunk_step, shared + p.x_at);
    }

    // Of B's rows a lane has the address of one, in units that the rows' order has mixed: see Pieces.
    const uint32_t b_row = lane % 8 * kVectorRow + ((lane / 8 ^ lane % 8) * 16);
    float sum[kColumnTiles][4] = {};
    uint32_t from = queue;
#pragma unroll 1
    for (uint32_t chunk = 0; chunk < work.chunks; ++chunk) {
        __syncthreads();
        const bool more = chunk + 1 < work.chunks;
        if (more) chunks.load(p, work, warp, lane, chunk_step + chunk_steps);

        const uint32_t first = chunk_step + work.part * p.each, end = min(first + p.each, work.end);
        uint32_t x = base + p.x_at + buffer * buffer_bytes + work.part * p.each * 2 * kRows + b_row;
#pragma unroll 1
        for (uint32_t step = first; step < end; ++step, x += 2 * kRows) {
            wait_for_stage(p.stages);
            __syncwarp();
            uint4 codes[2];
            uint32_t scale_codes[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                codes[i] = arch::load_shared_128(from + i * kPieceBytes + lane * 16);
                scale_codes[i] =
                    arch::load_shared_16(from + 2 * kPieceBytes + (g + 8 * i) * kStepBlocks + 2 * t);
            }
            loads.next(p, work, lane, to); // into the stage before this one: all lanes have read it
            to = from;
            from = from == last ? queue : from + kStageBytes;

            // Operands A of the step's eight matrix instructions.
            uint32_t a[8][4];
            uint32_t scale[2][2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                Weights::scales(scale_codes[i], scale[i]);
                const uint32_t words[4] = {codes[i].x, codes[i].y, codes[i].z, codes[i].w};
#pragma unroll
                for (int word = 0; word < 4; ++word) {
                    uint32_t pair[4];
                    Weights::decode(words[word], scale[i][word / 2], pair);
                    a[2 * word][i] = pair[0];
                    a[2 * word][2 + i] = pair[1];
                    a[2 * word + 1][i] = pair[2];
                    a[2 * word + 1][2 + i] = pair[3];
                }
            }
#pragma unroll
            for (uint32_t tile = 0; tile < kColumnTiles; ++tile) {
                if (tile != 0 && tile * kColumns >= uint32_t(p.n)) break;
                // Added at once, and not in the matrix instructions: those cut what they add to.
                float d[4] = {};
#pragma unroll
                for (int i = 0; i < 8; i += 2) {
                    const uint32_t at = x + (i / 4 * kVectors + tile * kColumns) * kVectorRow;
                    const uint4 b = arch::load_matrices(i % 4 ? at ^ 64 : at);
                    Weights::mma(d, a[i][0], a[i][1], a[i][2], a[i][3], b.x, b.y);
                    Weights::mma(d, a[i + 1][0], a[i + 1][1], a[i + 1][2], a[i + 1][3], b.z, b.w);
                }
#pragma unroll
                for (int i = 0; i < 4; ++i) sum[tile][i] += d[i];
            }
        }
        chunk_step += chunk_steps;
        buffer ^= 1;
        if (more) chunks.store(p, work, warp, lane, chunk_step, shared + p.x_at + buffer * buffer_bytes);
    }

    // The sums of each part, [parts][vectors][rows], where queues and vectors were.
    __syncthreads();
    const uint32_t rows = p.tiles * kTileRows, stride = rows + NVFP4_MMA_SUMS_PAD;
    {
        float *const mine = reinterpret_cast<float *>(shared) + work.part * kVectors * stride + work.tile * kTileRows;
#pragma unroll
        for (uint32_t tile = 0; tile < kColumnTiles; ++tile) {
            if (tile * kColumns >= uint32_t(p.n)) break;
#pragma unroll
            for (uint32_t i = 0; i < 4; ++i) {
                mine[(tile * kColumns + 2 * t + i % 2) * stride + g + i / 2 * 8] = sum[tile][i];
            }
        }
    }
#if __CUDA_ARCH__ >= 900
    if (p.cluster_log2 != 0) {
        arch::cluster_arrive();
        arch::cluster_wait();
    }
#endif
    __syncthreads();

    // The CTAs of a cluster take vectors in turn.
    const uint32_t warps = p.tiles << p.parts_log2, parts = 1u << p.parts_log2;
#pragma unroll 1
    for (uint32_t n = work.rank + (warp << p.cluster_log2); n < uint32_t(p.n); n += warps << p.cluster_log2) {
#pragma unroll 1
        for (uint32_t place = lane; place < rows; place += kWarp) {
            const uint32_t row = row_at(p.scale_layout, work.place + place);
            if (row >= uint32_t(p.m)) continue;
            const Place at = prepare(p.epilogue, p.m, work.batch, row, n);
            float y = 0.0f;
#if __CUDA_ARCH__ >= 900
            if (p.cluster_log2 != 0) {
#pragma unroll 1
                for (uint32_t rank = 0; rank < 1u << p.cluster_log2; ++rank) {
                    uint32_t peer = arch::peer_address(base, rank) + (n * stride + place) * 4;
#pragma unroll 1
                    for (uint32_t part = 0; part < parts; ++part, peer += kVectors * stride * 4) {
                        y += arch::load_peer(peer);
                    }
                }
            } else
#endif
            {
                const float *from_part = reinterpret_cast<const float *>(shared) + n * stride + place;
#pragma unroll 1
                for (uint32_t part = 0; part < parts; ++part) y += from_part[part * kVectors * stride];
            }
            store(p.epilogue, at, y * (1.0f / Weights::kFactor));
        }
    }
#if __CUDA_ARCH__ >= 900
    if (p.cluster_log2 != 0) { // others may still read this CTA's sums
        arch::cluster_arrive();
        arch::cluster_wait();
    }
#endif
}

}  // namespace nvfp4::mma

// Vectors of a pass, by their type.
#define GEMV_MMA_OF(X, name, activation) \
    X(gemv_mma_##name##_n8, activation, 8) \
    X(gemv_mma_##name##_n16, activation, 16) \
    X(gemv_mma_##name##_n32, activation, 32) \
    X(gemv_mma_##name##_n64, activation, 64) \
    X(gemv_mma_##name##_n128, activation, 128)
#define GEMV_MMA(X)                               \
    GEMV_MMA_OF(X, nvfp4, NVFP4_ACTIVATION_NVFP4) \
    GEMV_MMA_OF(X, f16, NVFP4_ACTIVATION_F16)     \
    GEMV_MMA_OF(X, bf16, NVFP4_ACTIVATION_BF16)

#define ENTRY(name, activation, vectors)                                                      \
    extern "C" __global__ void __launch_bounds__(nvfp4::mma::max_warps(vectors) * NVFP4_WARP, 1) \
        name(const __grid_constant__ nvfp4_mma_params p) {                                    \
        extern __shared__ __align__(1024) uint8_t dynamic[];                                  \
        nvfp4::mma::run<activation, vectors>(p, dynamic);                                     \
    }
GEMV_MMA(ENTRY)
NVFP4_TABLE(gemv_mma, GEMV_MMA)

#endif
