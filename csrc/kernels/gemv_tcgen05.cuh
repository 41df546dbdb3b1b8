// GEMV of NVFP4 vectors on Blackwell's tensor cores: compute capability 10.x.
//
// Weights are the M operand, in tiles of 128 rows. The vectors are the N operand, 16 to 128 rows; rows of vectors that
// do not exist are zeros. A K step is 256 or 512 elements: one or two pieces of each row, 128 bytes of codes each, and
// the scales that belong to them. Tensor copies place the codes with the 128-byte swizzle. A stage of shared memory
// holds one step.
//
// The K steps of all tiles of all batches, one tile's after the other's, are dealt to the CTAs in equal shares. So a
// CTA may begin and end within a tile. It leaves the sums of such a part in the workspace. For each 32
// rows, the warp that stores its part last adds all parts, its own too, from the workspace, in the order of K.
//
// Warp 4 loads, warp 5 multiplies, and warps 0 to 3 take sums out of tensor memory. Tensor memory holds the sums of two
// parts: one is taken out while the next one is multiplied. Scales reach tensor memory by copies in the order of the
// multiplications that read them. Every stage has scale columns of its own, because a copy is not ordered after a
// multiplication that still reads its target.
//
// Verified in simulation, not yet on hardware.

#include "../shared.h"

enum {
    NVFP4_TCGEN05_ROWS = 128,         /* of a tile */
    NVFP4_TCGEN05_EPILOGUE_WARPS = 4, /* which have 32 rows of a tile each */
    NVFP4_TCGEN05_THREADS = (NVFP4_TCGEN05_EPILOGUE_WARPS + 2) * NVFP4_WARP,
    /* A piece of a K step: elements, bytes of codes of a row, atoms of scales. A step has one or two. */
    NVFP4_TCGEN05_PIECE_ELEMENTS = 256,
    NVFP4_TCGEN05_PIECE_BYTES = NVFP4_TCGEN05_PIECE_ELEMENTS / 2,
    NVFP4_TCGEN05_ATOM_ELEMENTS = NVFP4_ATOM_BLOCKS * NVFP4_BLOCK, /* of K; one matrix instruction has as many */
    NVFP4_TCGEN05_PIECE_ATOMS = NVFP4_TCGEN05_PIECE_ELEMENTS / NVFP4_TCGEN05_ATOM_ELEMENTS,
    NVFP4_TCGEN05_PATTERN_BYTES = 1024, /* after which the 128-byte swizzle repeats */
    NVFP4_TCGEN05_SHARED_ALIGN = 16,    /* of dynamic shared memory. Stages need a pattern's. */
    NVFP4_TCGEN05_MAX_STAGES = 12,
    /* Bytes of static shared memory: mbarriers, full and empty of each stage and of each of the two sums in tensor
     * memory; the address of tensor memory. */
    NVFP4_TCGEN05_STATIC_BYTES = (2 * NVFP4_TCGEN05_MAX_STAGES + 2 * 2 + 1) * 8,
    /* Columns of tensor memory: those of an atom's scales, and all that an SM has. Sums have one for each row of the N
     * operand. */
    NVFP4_TCGEN05_ATOM_COLUMNS = 4,
    NVFP4_TCGEN05_MAX_COLUMNS = 512,
    /* Vectors whose sums a thread takes out of tensor memory at once, and whose sums lie together in the workspace. */
    NVFP4_TCGEN05_TAKEN = 16,
    NVFP4_TCGEN05_QUAD = 4,
    /* Bytes of a stage for each piece of a step: the weights, and both operands' scales. Add the rows of the N
     * operand. */
    NVFP4_TCGEN05_STAGE_PIECE_BYTES = NVFP4_TCGEN05_ROWS * NVFP4_TCGEN05_PIECE_BYTES +
                                      2 * NVFP4_TCGEN05_PIECE_ATOMS * NVFP4_ATOM_BYTES,
};

/* Before its parameters the kernel takes two tensor maps: of the weights' codes (bytes of a row, rows, batches) and of
 * the vectors' (bytes of a row, vectors, batches). A box of vectors is a piece of all vectors of the pass. */
typedef struct nvfp4_tcgen05_params {
    int32_t m, n;
    uint32_t tiles;        /* of a batch */
    uint32_t atoms;        /* of a row */
    uint32_t last_scales;  /* of a row's last atom that exist: 4, or 2 where K % 64 is 32 */
    uint32_t steps;        /* of a tile */
    uint32_t pieces;       /* of a step */
    uint32_t stages;
    /* Shares: a unit is `unit` steps, one step or a tile's. Each CTA has `each` units, and the first `more` CTAs have
     * one more. */
    uint32_t unit, each, more;
    uint32_t dependent;    /* the launch may overlap with the previous grid */
    uint32_t tmem_columns; /* to allocate */
    uint32_t digits;       /* of a vector: n counts them as vectors, and is a multiple; a vector's lie together */
    nvfp4_weights weights; /* scales: 128x4 */
    nvfp4_vectors vectors; /* likewise */
    /* Counters of arrivals at a tile, for each warp that takes sums: [CTAs, the first one of the tile's][warps]. Zeros
     * before a launch and behind it. */
    NVFP4_POINTER(uint32_t) arrivals;
    /* Sums of parts of tiles: [CTAs][2: where the CTA begins, where it ends][n / 4, rounded up][rows][4]. The last CTA
     * has no second part: it ends with a tile. */
    NVFP4_POINTER(float) partial;
    nvfp4_epilogue epilogue;
} nvfp4_tcgen05_params;

#ifdef __CUDACC__

#include <cuda.h>

#include "../arch/cp_async_bulk.cuh"
#include "../arch/griddepcontrol.cuh"
#include "../arch/mbarrier.cuh"
#include "../arch/memory.cuh"
#include "../arch/shared.cuh"
#include "../arch/tcgen05.cuh"
#include "../entries.cuh"
#include "../format/operands.cuh"
#include "epilogue.cuh"

namespace nvfp4::tcgen05 {

using Params = nvfp4_tcgen05_params;

constexpr uint32_t kWarp = NVFP4_WARP, kThreads = NVFP4_TCGEN05_THREADS;
constexpr uint32_t kEpilogueWarps = NVFP4_TCGEN05_EPILOGUE_WARPS, kLoadWarp = kEpilogueWarps, kMmaWarp = kLoadWarp + 1;
constexpr uint32_t kEpilogueThreads = kEpilogueWarps * kWarp;
constexpr uint32_t kRows = NVFP4_TCGEN05_ROWS;
constexpr uint32_t kPieceBytes = NVFP4_TCGEN05_PIECE_BYTES;
constexpr uint32_t kPieceAtoms = NVFP4_TCGEN05_PIECE_ATOMS;
constexpr uint32_t kAtomCodeBytes = kPieceBytes / kPieceAtoms;
constexpr uint32_t kAtomBytes = NVFP4_ATOM_BYTES, kAtomLines = NVFP4_ATOM_LINES, kLineBytes = NVFP4_ATOM_LINE_BYTES;
constexpr uint32_t kAtomColumns = NVFP4_TCGEN05_ATOM_COLUMNS;
constexpr uint32_t kPatternBytes = NVFP4_TCGEN05_PATTERN_BYTES;
constexpr uint32_t kMaxStages = NVFP4_TCGEN05_MAX_STAGES;
constexpr uint32_t kSums = 2; // in tensor memory
constexpr uint32_t kTaken = NVFP4_TCGEN05_TAKEN, kQuad = NVFP4_TCGEN05_QUAD;
constexpr uint32_t kReady = 1; // the CTA barrier: 0 is __syncthreads'

static_assert(kEpilogueThreads == kRows, "a row for each thread that takes sums");
static_assert(kAtomLines == kWarp, "a line for each lane");

struct Maps {
    CUtensorMap weights; // bytes of a row, rows, batches
    CUtensorMap vectors; // bytes of a row, vectors, batches
};

struct Shared {
    uint64_t full[kMaxStages], empty[kMaxStages], sum_full[kSums], sum_empty[kSums];
    uint32_t tmem, unused;
};
static_assert(sizeof(Shared) == NVFP4_TCGEN05_STATIC_BYTES, "as the plan counts it");

// Offsets in a stage, where all pieces of one kind lie together.
template <uint32_t kN>
struct Stage {
    static constexpr uint32_t kWeightBytes = kRows * kPieceBytes, kVectorBytes = kN * kPieceBytes;
    static constexpr uint32_t kScaleBytes = kPieceAtoms * kAtomBytes; // of one operand
    static constexpr uint32_t kBytes = NVFP4_TCGEN05_STAGE_PIECE_BYTES + kVectorBytes; // of a piece
    static_assert(kWeightBytes + kVectorBytes + 2 * kScaleBytes == kBytes, "nothing else");
    static_assert(kVectorBytes % kPatternBytes == 0 && kBytes % kPatternBytes == 0, "operands start a pattern");

    uint32_t vectors, weight_scales, vector_scales, bytes;

    __device__ __forceinline__ explicit Stage(const Params &p)
        : vectors(p.pieces * kWeightBytes),
          weight_scales(p.pieces * (kWeightBytes + kVectorBytes)),
          vector_scales(p.pieces * (kWeightBytes + kVectorBytes + kScaleBytes)),
          bytes(p.pieces * kBytes) {}
};

// Dynamic shared memory is aligned to 16 bytes only.
__device__ __forceinline__ uint8_t *align_to_pattern(uint8_t *p) {
    return p + (-arch::shared_address(p) & (kPatternBytes - 1));
}

__device__ __forceinline__ uint32_t barrier(const uint64_t *barriers, uint32_t slot) {
    return arch::shared_address(barriers) + 8 * slot;
}

// A place in a ring: the slot, and the parity of the phase of its barriers.
struct Position {
    uint32_t slot = 0, parity = 0;

    __device__ __forceinline__ void advance(uint32_t slots) {
        if (++slot == slots) {
            slot = 0;
            parity ^= 1;
        }
    }
};

// First step of a CTA, counted through all tiles. For the CTA behind the last one: the number of steps.
__device__ __forceinline__ uint32_t first_step(const Params &p, uint32_t cta) {
    return (cta * p.each + min(cta, p.more)) * p.unit;
}

// The CTA that has a step.
__device__ __forceinline__ uint32_t cta_of(const Params &p, uint32_t step) {
    const uint32_t unit = step / p.unit, of_more = p.more * (p.each + 1);
    return unit < of_more ? unit / (p.each + 1) : p.more + (unit - of_more) / p.each;
}

// A CTA's part of a tile, one tile after the other: the tile's K steps `step` to `end`.
struct Part {
    uint32_t tile; // counted through all batches
    uint32_t step, end;
    uint32_t left; // steps of the parts behind it

    __device__ __forceinline__ explicit Part(const Params &p) {
        const uint32_t first = first_step(p, blockIdx.x);
        tile = first / p.steps;
        step = first - tile * p.steps;
        left = first_step(p, blockIdx.x + 1) - first;
        take(p);
    }

    __device__ __forceinline__ bool next(const Params &p) {
        if (left == 0) return false;
        ++tile;
        step = 0;
        take(p);
        return true;
    }

private:
    __device__ __forceinline__ void take(const Params &p) {
        end = min(step + left, p.steps);
        left -= end - step;
    }
};

__device__ __forceinline__ uint32_t batch_of(const Params &p, uint32_t tile) { return tile / p.tiles; }

// Atoms of a K step: the last one may have fewer.
__device__ __forceinline__ uint32_t step_atoms(const Params &p, uint32_t step) {
    const uint32_t most = p.pieces * kPieceAtoms;
    return min(most, p.atoms - step * most);
}

// Mask of the scales of a row's last atom that exist, in its 4 bytes. The other scales may be anything, NaN too, and
// must not be multiplied, not even by a zero.
__device__ __forceinline__ uint32_t scale_mask(const Params &p, uint32_t step) {
    return step + 1 == p.steps && p.last_scales < 4 ? (1u << 8 * p.last_scales) - 1 : 0xffffffffu;
}

// Lines that a pass's vectors have of each atom of scales.
__device__ __forceinline__ uint32_t vector_lines(const Params &p) { return min(uint32_t(p.n), kAtomLines); }

// Loads all K steps of a CTA, in one thread.
template <uint32_t kN>
class Loader {
public:
    __device__ __forceinline__ Loader(const Params &p, const Maps &maps, const Shared &shared, uint32_t stages)
        : p(p), maps(maps), shared(shared), stages(stages), stage(p), lines(vector_lines(p)),
          once(arch::createpolicy_evict_first()), again(arch::createpolicy_evict_last()) {}

    // In a dependent launch the weights of the first stages are on their way before the previous grid has ended. The
    // vectors follow, since that grid may have written them.
    __device__ __forceinline__ void run() const {
        Part part(p);
        Position at;
        if (p.dependent) {
            Part ahead = part;
            Position there;
            bool more = true;
#pragma unroll 1
            do {
                load_weights(part, at.slot);
                at.advance(p.stages);
                more = next_step(part);
            } while (more && at.parity == 0);
            arch::griddepcontrol_wait();
#pragma unroll 1
            do {
                load_vectors(ahead, there.slot);
                there.advance(p.stages);
            } while (next_step(ahead) && there.parity == 0);
            if (!more) return;
        }
#pragma unroll 1
        do {
            // A fresh barrier counts as one whose phase before is over.
            arch::mbarrier_wait(barrier(shared.empty, at.slot), at.parity ^ 1);
            // The fences hand the order on to the copies that overwrite the stage's scale columns, after its next full
            // barrier.
            arch::tcgen05_fence_after_thread_sync();
            arch::tcgen05_fence_before_thread_sync();
            load_weights(part, at.slot);
            load_vectors(part, at.slot);
            at.advance(p.stages);
        } while (next_step(part));
    }

private:
    __device__ __forceinline__ bool next_step(Part &part) const { return ++part.step < part.end || part.next(p); }

    __device__ __forceinline__ void load_weights(const Part &part, uint32_t slot) const {
        const uint32_t to = stages + slot * stage.bytes, bar = barrier(shared.full, slot);
        const uint32_t atoms = step_atoms(p, part.step), pieces = (atoms + kPieceAtoms - 1) / kPieceAtoms;
        const uint32_t batch = batch_of(p, part.tile), row = (part.tile - batch * p.tiles) * kRows;
        arch::mbarrier_arrive_expect_tx(bar, pieces * (kRows + p.n) * kPieceBytes + atoms * (kAtomBytes + lines * kLineBytes));
#pragma unroll 1
        for (uint32_t piece = 0; piece < pieces; ++piece) {
            arch::cp_async_bulk_tensor_3d(to + piece * Stage<kN>::kWeightBytes, &maps.weights,
                           (part.step * p.pieces + piece) * kPieceBytes, row, batch, bar, once);
        }
        const int64_t atom = int64_t(row / kRows) * p.atoms + part.step * p.pieces * kPieceAtoms;
        arch::cp_async_bulk(to + stage.weight_scales, scales_of(p.weights, batch) + atom * kAtomBytes, atoms * kAtomBytes, bar,
                        once);
    }

    __device__ __forceinline__ void load_vectors(const Part &part, uint32_t slot) const {
        const uint32_t to = stages + slot * stage.bytes, bar = barrier(shared.full, slot);
        const uint32_t atoms = step_atoms(p, part.step), pieces = (atoms + kPieceAtoms - 1) / kPieceAtoms;
        const uint32_t batch = batch_of(p, part.tile);
#pragma unroll 1
        for (uint32_t piece = 0; piece < pieces; ++piece) {
            arch::cp_async_bulk_tensor_3d(to + stage.vectors + piece * Stage<kN>::kVectorBytes, &maps.vectors,
                           (part.step * p.pieces + piece) * kPieceBytes, 0, vectors_batch(p.vectors, batch), bar, again);
        }
        const uint8_t *const scales = scales_of(p.vectors, batch) +
                                      int64_t(part.step) * p.pieces * kPieceAtoms * kAtomBytes;
        const uint32_t copies = lines == kAtomLines ? 1 : atoms, bytes = atoms / copies * lines * kLineBytes;
#pragma unroll 1
        for (uint32_t i = 0; i < copies; ++i) {
            arch::cp_async_bulk(to + stage.vector_scales + i * kAtomBytes, scales + i * kAtomBytes, bytes, bar, again);
        }
    }

    const Params &p;
    const Maps &maps;
    const Shared &shared;
    uint32_t stages;
    Stage<kN> stage;
    uint32_t lines;
    uint64_t once, again;
};

// Writes zeros into the rows and lines of vectors that do not exist, in every stage. No copy writes there. Called by
// the threads that take sums, which have nothing to do yet.
template <uint32_t kN>
__device__ __forceinline__ void clear_missing_vectors(const Params &p, uint8_t *stages) {
    constexpr uint32_t kUnit = sizeof(uint4);
    const Stage<kN> stage(p);
    const uint32_t lines = vector_lines(p), rows = p.n;
#pragma unroll 1
    for (uint32_t slot = 0; slot < p.stages; ++slot, stages += stage.bytes) {
#pragma unroll 1
        for (uint32_t piece = 0; piece < p.pieces; ++piece) {
            uint8_t *const codes = stages + stage.vectors + piece * Stage<kN>::kVectorBytes;
#pragma unroll 1
            for (uint32_t at = rows * kPieceBytes + threadIdx.x * kUnit; at < Stage<kN>::kVectorBytes;
                 at += kEpilogueThreads * kUnit) {
                *reinterpret_cast<uint4 *>(codes + at) = make_uint4(0, 0, 0, 0);
            }
            // A thread has a line of one of the atoms.
            static_assert(kPieceAtoms * kAtomLines == kEpilogueThreads, "a line for each thread");
            if constexpr (kN > kAtomLines) continue; // more vectors than lines
            uint8_t *const scales = stages + stage.vector_scales + piece * Stage<kN>::kScaleBytes;
            if (threadIdx.x % kAtomLines >= lines) {
                *reinterpret_cast<uint4 *>(scales + threadIdx.x * kLineBytes) = make_uint4(0, 0, 0, 0);
            }
        }
    }
    arch::fence_proxy_async();
}

// Makes the scales of a row's last atom that do not exist zeros, for all rows of both operands. Called by a whole warp.
__device__ __forceinline__ void clear_missing_scales(uint8_t *atom_a, uint8_t *atom_b, uint32_t mask) {
    const uint32_t at = threadIdx.x % kWarp * kLineBytes;
    auto &a = *reinterpret_cast<uint4 *>(atom_a + at);
    auto &b = *reinterpret_cast<uint4 *>(atom_b + at);
    a = make_uint4(a.x & mask, a.y & mask, a.z & mask, a.w & mask);
    b = make_uint4(b.x & mask, b.y & mask, b.z & mask, b.w & mask);
    arch::fence_proxy_async();
}

// Makes the scales of vectors that do not exist zeros, in words of lines that also hold scales of other vectors.
// Missing vectors' scales are copied with the others, and may be anything. Called by a whole warp.
template <uint32_t kN>
__device__ __forceinline__ void clear_missing_words(const Params &p, uint8_t *atom_b, uint32_t atoms) {
    const uint32_t lane = threadIdx.x % kWarp;
#pragma unroll 1
    for (uint32_t i = 0; i < atoms; ++i) {
        auto *const words = reinterpret_cast<uint32_t *>(atom_b + i * kAtomBytes + lane * kLineBytes);
#pragma unroll
        for (uint32_t word = kN / 2 / kAtomLines; word < kN / kAtomLines; ++word) { // fewer have another entry point
            if (word * kAtomLines + lane >= uint32_t(p.n)) words[word] = 0;
        }
    }
    arch::fence_proxy_async();
}

// Multiplies all parts of the CTA. Called by a whole warp.
template <uint32_t kN>
__device__ __forceinline__ void multiply(const Params &p, const Shared &shared, uint8_t *stages, uint32_t tmem) {
    constexpr uint32_t kInstruction = arch::nvfp4_instruction(kN);
    const Stage<kN> stage(p);
    const uint32_t base = arch::shared_address(stages), step_columns = p.pieces * kPieceAtoms * kAtomColumns;
    const bool leader = arch::elect_sync();
    Position at, sum;
    Part part(p);
    uint32_t left = first_step(p, blockIdx.x + 1) - first_step(p, blockIdx.x);
    const uint32_t last_loads = min(left, p.stages);
    do {
        // The sums that were there before have been taken out behind this wait; a fresh barrier says so too.
        arch::mbarrier_wait(barrier(shared.sum_empty, sum.slot), sum.parity ^ 1);
        const uint32_t to = tmem + sum.slot * kN, begin = part.step;
#pragma unroll 1
        for (uint32_t step = begin; step < part.end; ++step) {
            arch::mbarrier_wait(barrier(shared.full, at.slot), at.parity);
            __syncwarp();
            // Dependent grids may start: this CTA has all that it ever asks the SM for, and its last loads are on their
            // way, or next.
            if (left == last_loads) arch::griddepcontrol_launch_dependents();
            const uint32_t atoms = step_atoms(p, step), offset = at.slot * stage.bytes;
            const uint32_t mask = scale_mask(p, step);
            if (mask != 0xffffffffu) {
                uint8_t *const last = stages + offset + (atoms - 1) * kAtomBytes;
                clear_missing_scales(last + stage.weight_scales, last + stage.vector_scales, mask);
                __syncwarp();
            }
            if constexpr (kN > kAtomLines) {
                if (uint32_t(p.n) < kN) {
                    clear_missing_words<kN>(p, stages + offset + stage.vector_scales, atoms);
                    __syncwarp();
                }
            }
            arch::tcgen05_fence_after_thread_sync();
            if (leader) {
                const uint32_t data = base + offset;
                const uint32_t scales_a = tmem + kSums * kN + at.slot * 2 * step_columns;
                const uint32_t scales_b = scales_a + step_columns;
#pragma unroll 1
                for (uint32_t i = 0; i < atoms; ++i) {
                    const uint32_t atom = i * kAtomBytes;
                    arch::tcgen05_cp_32x128b_warpx4(scales_a + i * kAtomColumns,
                                           arch::atom_descriptor(data + stage.weight_scales + atom));
                    arch::tcgen05_cp_32x128b_warpx4(scales_b + i * kAtomColumns,
                                           arch::atom_descriptor(data + stage.vector_scales + atom));
                }
#pragma unroll 1
                for (uint32_t i = 0; i < atoms; ++i) {
                    const uint32_t piece = i / kPieceAtoms, in_row = i % kPieceAtoms * kAtomCodeBytes;
                    arch::tcgen05_mma_mxf4nvf4(to, arch::rows_descriptor(data + piece * Stage<kN>::kWeightBytes + in_row),
                                    arch::rows_descriptor(data + stage.vectors + piece * Stage<kN>::kVectorBytes + in_row),
                                    kInstruction, scales_a + i * kAtomColumns, scales_b + i * kAtomColumns,
                                    step != begin || i != 0);
                }
                // Only where a load waits for it: none may be under way when the CTA ends.
                if (left > p.stages) arch::tcgen05_commit(barrier(shared.empty, at.slot));
                if (step + 1 == part.end) arch::tcgen05_commit(barrier(shared.sum_full, sum.slot));
            }
            __syncwarp();
            at.advance(p.stages);
            --left;
        }
        sum.advance(kSums);
    } while (part.next(p));
    // Waits until the last part's sums have been taken out, and so those of the part before.
    sum.advance(kSums);
    arch::mbarrier_wait(barrier(shared.sum_empty, sum.slot), sum.parity ^ 1);
}

// The CTAs that share a tile.
struct Sharers {
    uint32_t first, last; // CTAs
    bool begins_before;   // the first one has steps of the tile before

    __device__ __forceinline__ Sharers(const Params &p, uint32_t tile)
        : first(cta_of(p, tile * p.steps)), last(cta_of(p, (tile + 1) * p.steps - 1)),
          begins_before(first_step(p, first) < tile * p.steps) {}

    // Address of a row's sums of a part: those of four vectors, and of four more after each kQuadFloats.
    __device__ __forceinline__ float *part(const Params &p, uint32_t cta) const {
        const uint32_t ends = cta == first && begins_before;
        return p.partial + (int64_t(2 * cta + ends) * quads(p) * kRows + threadIdx.x) * kQuad;
    }

    __device__ __forceinline__ static uint32_t quads(const Params &p) { return (p.n + kQuad - 1) / kQuad; }
};
constexpr uint32_t kQuadFloats = kRows * kQuad;

// The outputs of a row. A vector's digits may lie in two goes of kTaken.
struct Outputs {
    uint32_t batch, row;
    uint32_t vector = 0, digit = 0; // the next ones
    DigitSum of_digits;

    __device__ __forceinline__ Outputs(const Params &p, uint32_t tile)
        : batch(batch_of(p, tile)), row((tile - batch * p.tiles) * kRows + threadIdx.x) {}

    __device__ __forceinline__ void store(const Params &p, uint32_t first, const float (&sum)[kTaken]) {
        if (row >= uint32_t(p.m)) return;
#pragma unroll
        for (uint32_t i = 0; i < kTaken; ++i) {
            if (i != 0 && first + i >= uint32_t(p.n)) break;
            of_digits.add(sum[i]);
            if (++digit == p.digits) {
                nvfp4::store(p.epilogue, batch, row, vector, of_digits.y);
                ++vector;
                digit = 0;
                of_digits = DigitSum();
            }
        }
    }
};

// Adds all parts of a tile in the order of K, for kTaken vectors from `first` on. Many loads are under way at once.
__device__ __forceinline__ void add_parts(const Params &p, const Sharers &sharers, uint32_t first, float (&sum)[kTaken]) {
    constexpr uint32_t kAtOnce = 4, kQuads = kTaken / kQuad;
    const uint32_t last_quad = Sharers::quads(p) - 1;
#pragma unroll
    for (uint32_t i = 0; i < kTaken; ++i) sum[i] = 0.0f;
#pragma unroll 1
    for (uint32_t cta = sharers.first; cta <= sharers.last; cta += kAtOnce) {
        float4 of[kAtOnce][kQuads];
        // Parts that do not exist repeat the last one: no branch comes between the loads.
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce; ++i) {
            const float *const part = sharers.part(p, min(cta + i, sharers.last));
#pragma unroll
            for (uint32_t q = 0; q < kQuads; ++q) {
                of[i][q] = arch::ld_global_v4_f32(part + min(first / kQuad + q, last_quad) * kQuadFloats);
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce; ++i) {
            const bool exists = cta + i <= sharers.last;
#pragma unroll
            for (uint32_t q = 0; q < kQuads; ++q) {
                sum[q * kQuad] += exists ? of[i][q].x : 0.0f;
                sum[q * kQuad + 1] += exists ? of[i][q].y : 0.0f;
                sum[q * kQuad + 2] += exists ? of[i][q].z : 0.0f;
                sum[q * kQuad + 3] += exists ? of[i][q].w : 0.0f;
            }
        }
    }
}

// Leaves a part's sums in the workspace. Called by each warp that takes sums. Returns whether the warp came last of
// those that share the tile's rows.
template <class Take>
__device__ __forceinline__ bool leave_part(const Params &p, const Sharers &sharers, Take take) {
    const uint32_t quads = Sharers::quads(p);
    const uint64_t again = arch::createpolicy_evict_last();
    float *const part = sharers.part(p, blockIdx.x);
#pragma unroll 1
    for (uint32_t first = 0; first < uint32_t(p.n); first += kTaken) {
        float sum[kTaken];
        take(first, sum);
#pragma unroll
        for (uint32_t q = 0; q < kTaken / kQuad; ++q) {
            const uint32_t quad = first / kQuad + q;
            const float of[kQuad] = {sum[q * kQuad], sum[q * kQuad + 1], sum[q * kQuad + 2], sum[q * kQuad + 3]};
            if (q == 0 || quad < quads) arch::st_global_v4_f32(part + quad * kQuadFloats, of, again);
        }
    }
    __syncwarp();
    const uint32_t warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, others = sharers.last - sharers.first;
    uint32_t last = 0;
    if (lane == 0) {
        uint32_t *const arrivals = p.arrivals + sharers.first * kEpilogueWarps + warp;
        last = arch::atom_add_acq_rel(arrivals) == others;
        if (last) *arrivals = 0; // for the next launch
    }
    __syncwarp(); // lane 0 acquired what the others wrote
    return __shfl_sync(~0u, last, 0) != 0;
}

template <uint32_t kN>
__device__ __forceinline__ void take_sums(const Params &p, const Shared &shared, uint32_t tmem) {
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t rows = threadIdx.x / kWarp * kWarp << 16;
    Position sum;
    Part part(p);
    do {
        const uint32_t empty = barrier(shared.sum_empty, sum.slot), from = tmem + rows + sum.slot * kN;
        arch::mbarrier_wait(barrier(shared.sum_full, sum.slot), sum.parity);
        __syncwarp();
        arch::tcgen05_fence_after_thread_sync();
        const auto take = [&](uint32_t first, float(&taken)[kTaken]) {
            uint32_t words[kTaken];
            arch::tcgen05_ld_32x32b_x16(words, from + first);
            arch::tcgen05_wait_ld();
#pragma unroll
            for (uint32_t i = 0; i < kTaken; ++i) taken[i] = __uint_as_float(words[i]);
            if (kN == kTaken || first + kTaken >= uint32_t(p.n)) { // the last ones
                arch::tcgen05_fence_before_thread_sync();
                arch::mbarrier_arrive_warp(empty, lane);
            }
        };
        const bool whole = part.end - part.step == p.steps;
        const Sharers sharers(p, part.tile);
        if (whole || leave_part(p, sharers, take)) {
            Outputs outputs(p, part.tile);
#pragma unroll 1
            for (uint32_t first = 0; first < uint32_t(p.n); first += kTaken) {
                float of[kTaken];
                if (whole) {
                    take(first, of);
                } else {
                    add_parts(p, sharers, first, of);
                }
                outputs.store(p, first, of);
            }
        }
        __syncwarp();
        sum.advance(kSums);
    } while (part.next(p));
}

// Makes the mbarriers, in one thread. Nobody else uses them before the CTA barrier.
__device__ __forceinline__ void init_barriers(const Params &p, const Shared &shared) {
#pragma unroll 1
    for (uint32_t s = 0; s < p.stages; ++s) {
        arch::mbarrier_init(barrier(shared.full, s), 1);
        arch::mbarrier_init(barrier(shared.empty, s), 1);
    }
    for (uint32_t s = 0; s < kSums; ++s) {
        arch::mbarrier_init(barrier(shared.sum_full, s), 1);
        arch::mbarrier_init(barrier(shared.sum_empty, s), kEpilogueWarps * arch::kWarpArrivals);
    }
    arch::fence_mbarrier_init();
}

// Runs a CTA. Grid: CTAs, each with a unit of steps or more. Dynamic shared memory: the stages, and a swizzle pattern
// less 16 bytes to align them.
template <uint32_t kN>
__device__ __forceinline__ void run(const Params &p, const Maps &maps, uint8_t *dynamic, Shared &shared) {
    uint8_t *const stages = align_to_pattern(dynamic);
    const uint32_t warp = threadIdx.x / kWarp;
    if (warp == kLoadWarp) {
        const bool loads = arch::elect_sync();
        if (loads) {
            arch::prefetch_tensormap(&maps.weights);
            arch::prefetch_tensormap(&maps.vectors);
            init_barriers(p, shared);
        }
        __syncwarp();
        arch::barrier_cta_arrive(kReady, kThreads); // and does not wait for tensor memory
        if (loads) Loader<kN>(p, maps, shared, arch::shared_address(stages)).run();
        return;
    }
    if (warp == kMmaWarp) {
        // The previous grid may be about to allocate what tensor memory there is. The next grid may hold some while it
        // waits for this grid to end. So this grid allocates after the end of the previous one, and lets the next one
        // start (in `multiply`) when it has allocated.
        arch::griddepcontrol_wait();
        arch::tcgen05_alloc(arch::shared_address(&shared.tmem), p.tmem_columns);
        arch::tcgen05_relinquish_alloc_permit();
    } else {
        clear_missing_vectors<kN>(p, stages);
        arch::griddepcontrol_wait(); // the previous grid may still read what is stored, and use the workspace
    }
    arch::tcgen05_fence_before_thread_sync();
    arch::barrier_cta_sync(kReady, kThreads);
    arch::tcgen05_fence_after_thread_sync();
    const uint32_t tmem = shared.tmem;
    if (warp == kMmaWarp) {
        multiply<kN>(p, shared, stages, tmem);
        __syncwarp();
        arch::tcgen05_fence_after_thread_sync();
        arch::tcgen05_dealloc(tmem, p.tmem_columns);
    } else {
        take_sums<kN>(p, shared, tmem);
    }
}

}  // namespace nvfp4::tcgen05

// Entry points, by rows of the N operand.
#define GEMV_TCGEN05(X)     \
    X(gemv_tcgen05_n16, 16) \
    X(gemv_tcgen05_n32, 32) \
    X(gemv_tcgen05_n64, 64) \
    X(gemv_tcgen05_n128, 128)

#define ENTRY(name, vectors)                                                                                      \
    NVFP4_KERNEL(name)(                                                                                           \
    extern "C" __global__ void __launch_bounds__(NVFP4_TCGEN05_THREADS, 2)                                        \
        name(const __grid_constant__ nvfp4::tcgen05::Maps maps, const __grid_constant__ nvfp4_tcgen05_params p) { \
        extern __shared__ uint8_t dynamic[];                                                                      \
        __shared__ nvfp4::tcgen05::Shared shared;                                                                 \
        nvfp4::tcgen05::run<vectors>(p, maps, dynamic, shared);                                                   \
    })
GEMV_TCGEN05(ENTRY)
NVFP4_TABLE(gemv_tcgen05, GEMV_TCGEN05)

#endif
