// The load pipeline of gemv_tma: one thread streams a
// tile of 128 weight rows, and the vectors that go with it, through a ring of stages in shared memory.
//
// A K step is 256 elements: of each weight row and vector 128 bytes of codes, which tensor copies
// place with the 128-byte swizzle, and four atoms of the 128x4 scale layout. A stage holds one K step.
// Tensor copies fill what does not exist with zeros, without memory traffic: rows past M, vectors past
// n and their scales, whatever is past K. A stage's full barrier completes when all bytes have landed,
// its empty barrier when the consumers have read them. The K steps of a tile are split over the CTAs of
// a cluster.
#pragma once

#include "../shared.h"

enum {
    NVFP4_TILE_ROWS = 128,
    NVFP4_TILE_STEP_ELEMENTS = 256, /* of K */
    NVFP4_TILE_ROW_BYTES = NVFP4_TILE_STEP_ELEMENTS / 2, /* codes of a row in a K step */
    NVFP4_TILE_ATOM_ELEMENTS = NVFP4_ATOM_BLOCKS * NVFP4_BLOCK, /* of a row that an atom has scales for */
    NVFP4_TILE_STEP_ATOMS = NVFP4_TILE_STEP_ELEMENTS / NVFP4_TILE_ATOM_ELEMENTS,
    NVFP4_TILE_PATTERN_BYTES = 1024, /* after which the 128-byte swizzle repeats */
    NVFP4_TILE_MAX_STAGES = 12,
    NVFP4_TILE_SHARED_ALIGN = 16,    /* of dynamic shared memory. Stages need a pattern's. */
};

/* Bytes of a stage that takes so many vectors, and of each atom of their scales so many rows: to the next
 * start of a swizzle pattern. */
#define NVFP4_TILE_STAGE_BYTES(vector_rows, scale_rows)                                                   \
    (((NVFP4_TILE_ROWS + (vector_rows)) * NVFP4_TILE_ROW_BYTES +                                          \
      NVFP4_TILE_STEP_ATOMS * (NVFP4_ATOM_BYTES + (scale_rows) * NVFP4_ATOM_LINE_BYTES) +                 \
      NVFP4_TILE_PATTERN_BYTES - 1) / NVFP4_TILE_PATTERN_BYTES * NVFP4_TILE_PATTERN_BYTES)

/* Beside its parameters a kernel takes three tensor maps, before them: of the weights' codes (bytes of a row,
 * rows, batches), of the vectors' (bytes of a row, vectors, batches) and of the vectors' scales (bytes of an
 * atom's line, lines, atoms, batches). The vectors of a pass have a line each of every atom, and in it one of
 * four words: copies take whole lines. */
typedef struct nvfp4_tile_params {
    int32_t m, n;
    int32_t first_batch;   /* of this launch */
    uint32_t atoms;        /* of a row */
    uint32_t last_scales;  /* of a row's last atom that exist: 4, or 2 where K % 64 is 32 */
    uint32_t stages;
    uint32_t dependent;    /* the launch may overlap with the previous grid */
    uint32_t unused;
    uint32_t scale_column; /* which word of their lines has the vectors' scales: 0 to 3 */
    NVFP4_POINTER(const uint8_t) weight_scales; /* [L][tiles][atoms][512] */
    nvfp4_epilogue epilogue;
} nvfp4_tile_params;

#ifdef __CUDACC__

#include <cuda.h>

#include "../arch/bulk_copy.cuh"
#include "../arch/cluster.cuh"
#include "../arch/grid_dependency.cuh"
#include "../arch/mbarrier.cuh"
#include "../arch/shared.cuh"
#include "epilogue.cuh"

namespace nvfp4::tile {

using Params = nvfp4_tile_params;

constexpr uint32_t kRows = NVFP4_TILE_ROWS;
constexpr uint32_t kRowBytes = NVFP4_TILE_ROW_BYTES;
constexpr uint32_t kAtomElements = NVFP4_TILE_ATOM_ELEMENTS;
constexpr uint32_t kAtomBytes = NVFP4_ATOM_BYTES;
constexpr uint32_t kAtomLines = NVFP4_ATOM_LINES;
constexpr uint32_t kAtomLineBytes = NVFP4_ATOM_LINE_BYTES;
constexpr uint32_t kStepAtoms = NVFP4_TILE_STEP_ATOMS;
constexpr uint32_t kSwizzlePattern = NVFP4_TILE_PATTERN_BYTES;
constexpr uint32_t kMaxStages = NVFP4_TILE_MAX_STAGES;

// Where things lie in a stage that takes `kVectorRows_` vectors, the existing ones first. Of an atom of
// their scales it keeps the lines of `kScaleRows_` vectors.
template <uint32_t kVectorRows_, uint32_t kScaleRows_>
struct Stage {
    static constexpr uint32_t kVectorRows = kVectorRows_;
    static constexpr uint32_t kScaleRows = kScaleRows_;
    static constexpr uint32_t kVectorAtomBytes = kScaleRows * kAtomLineBytes;
    static constexpr uint32_t kWeights = 0;
    static constexpr uint32_t kVectors = kRows * kRowBytes;
    static constexpr uint32_t kWeightScales = kVectors + kVectorRows * kRowBytes;
    static constexpr uint32_t kVectorScales = kWeightScales + kStepAtoms * kAtomBytes;
    static constexpr uint32_t kBytes = NVFP4_TILE_STAGE_BYTES(kVectorRows, kScaleRows);
    static_assert(kVectorScales + kStepAtoms * kVectorAtomBytes <= kBytes, "all have room");
    static_assert(kVectors % kSwizzlePattern == 0, "operands start a swizzle pattern");

    // What arrives in a K step of `atoms` atoms. Boxes count in full, with what is outside.
    __device__ static constexpr uint32_t arriving(uint32_t atoms) {
        return (kRows + kVectorRows) * kRowBytes + atoms * kAtomBytes +
               kStepAtoms * kVectorAtomBytes;
    }
};

// What the tensor copies read, innermost dimension first.
struct Maps {
    CUtensorMap weights;       // bytes of a row, rows, batches
    CUtensorMap vectors;       // bytes of a row, vectors, batches
    CUtensorMap vector_scales; // bytes of an atom's line, n of its 32 lines, atoms, batches
};

// What one CTA computes: the K steps begin..end of a tile, of a batch.
struct Work {
    uint32_t tile, begin, end;
    int32_t batch;

    // Grid: x clusters of a tile each, y batches. Every CTA of a cluster has a K step or more.
    __device__ __forceinline__ explicit Work(const Params &p)
        : tile(arch::cluster_index_x()), batch(p.first_batch + blockIdx.y) {
        const uint32_t steps = (p.atoms + kStepAtoms - 1) / kStepAtoms;
        const uint32_t rank = arch::cluster_rank(), size = arch::cluster_size();
        begin = steps * rank / size;
        end = steps * (rank + 1) / size;
    }
};

// Atoms of a K step: the last one may have fewer.
__device__ __forceinline__ uint32_t step_atoms(const Params &p, uint32_t step) {
    return min(kStepAtoms, p.atoms - step * kStepAtoms);
}

// The scales of a row's last atom that exist, as a mask of its 4 bytes. The others may be anything,
// NaN too, and must not be multiplied, not even by a zero.
__device__ __forceinline__ uint32_t scale_mask(const Params &p, uint32_t atom) {
    return atom + 1 == p.atoms && p.last_scales < 4 ? (1u << 8 * p.last_scales) - 1 : 0xffffffffu;
}

struct Barriers {
    uint64_t full[kMaxStages], empty[kMaxStages];
};

// The ring, by shared addresses.
struct Ring {
    uint32_t data, full, empty;

    __device__ __forceinline__ Ring(const uint8_t *stages, const Barriers &barriers)
        : data(arch::shared_address(stages)),
          full(arch::shared_address(barriers.full)),
          empty(arch::shared_address(barriers.empty)) {}

    __device__ __forceinline__ uint32_t full_barrier(uint32_t slot) const { return full + 8 * slot; }
    __device__ __forceinline__ uint32_t empty_barrier(uint32_t slot) const {
        return empty + 8 * slot;
    }
};

// Dynamic shared memory is aligned to 16 bytes only.
__device__ __forceinline__ uint8_t *align_to_pattern(uint8_t *p) {
    return p + (-arch::shared_address(p) & (kSwizzlePattern - 1));
}

// By one thread, before a CTA barrier. `readers` arrive at the empty barrier of a stage.
__device__ __forceinline__ void init_barriers(const Ring &ring, uint32_t stages, uint32_t readers) {
    uint32_t s = 0;
#pragma unroll 1
    do {
        arch::mbarrier_init(ring.full_barrier(s), 1);
        arch::mbarrier_init(ring.empty_barrier(s), readers);
    } while (++s < stages);
    arch::fence_mbarrier_init();
}

// The first use of a tensor map is slow without it.
__device__ __forceinline__ void prefetch(const Maps &maps) {
    arch::prefetch_tensor_map(&maps.weights);
    arch::prefetch_tensor_map(&maps.vectors);
    arch::prefetch_tensor_map(&maps.vector_scales);
}

// A place in the ring: the stage, and the parity of the phase of its barriers.
struct Position {
    uint32_t slot = 0, parity = 0;

    __device__ __forceinline__ void advance(uint32_t by, uint32_t stages) {
        slot += by;
        if (slot >= stages) {
            slot -= stages;
            parity ^= 1;
        }
    }
};

// Where consumers read a stage with ordinary loads: between those, which the empty barrier orders, and
// the copies that overwrite the stage through the async proxy.
struct ReuseAfterLoads {
    __device__ static __forceinline__ void order() { arch::fence_proxy_async(); }
};

// What one thread of a CTA does: it loads all K steps of `work`, first `fill`, then `refill`.
template <class Stage, class Reuse>
class Loader {
public:
    __device__ __forceinline__ Loader(const Params &p, const Maps &maps, const Ring &ring,
                                      const Work &work)
        : p(p), maps(maps), ring(ring), work(work), once(arch::policy_evict_first()),
          again(arch::policy_evict_last()),
          weight_scales(p.weight_scales + (int64_t(work.batch) * ((p.m + kRows - 1) / kRows) +
                                           work.tile) * p.atoms * kAtomBytes),
          first(min(p.stages, work.end - work.begin)) {}

    // The first K steps, one for each stage. In a dependent launch their weights are on their way before
    // the previous grid has ended; what that grid may have written, the vectors, follows.
    __device__ __forceinline__ void fill() const {
        uint32_t s = 0; // there is a K step at least
        if (p.dependent) {
#pragma unroll 1
            do load_weights(work.begin + s, s); while (++s < first);
            arch::grid_dependency_wait();
            s = 0;
#pragma unroll 1
            do load_vectors(work.begin + s, s); while (++s < first);
        } else {
#pragma unroll 1
            do {
                load_weights(work.begin + s, s);
                load_vectors(work.begin + s, s);
            } while (++s < first);
        }
    }

    // The others, each into the stage that becomes empty. Lets dependent grids start: before, the CTA must
    // have everything that it ever asks the SM for, because they may take what is left and wait for its end.
    __device__ __forceinline__ void refill() const {
        Position at;
#pragma unroll 1
        for (uint32_t step = work.begin + first; step < work.end; ++step) {
            arch::mbarrier_wait(ring.empty_barrier(at.slot), at.parity);
            Reuse::order();
            load_weights(step, at.slot);
            load_vectors(step, at.slot);
            at.advance(1, p.stages);
        }
        arch::grid_dependency_launch();
    }

private:
    __device__ __forceinline__ void load_weights(uint32_t step, uint32_t slot) const {
        const uint32_t to = ring.data + slot * Stage::kBytes, bar = ring.full_barrier(slot);
        const uint32_t atoms = step_atoms(p, step);
        arch::mbarrier_arrive_expect_tx(bar, Stage::arriving(atoms));
        arch::load_box(to + Stage::kWeights, &maps.weights, step * kRowBytes, work.tile * kRows,
                       work.batch, bar, once);
        arch::load_bulk(to + Stage::kWeightScales,
                        weight_scales + int64_t(step) * kStepAtoms * kAtomBytes, atoms * kAtomBytes,
                        bar, once);
    }

    __device__ __forceinline__ void load_vectors(uint32_t step, uint32_t slot) const {
        const uint32_t to = ring.data + slot * Stage::kBytes, bar = ring.full_barrier(slot);
        arch::load_box(to + Stage::kVectors, &maps.vectors, step * kRowBytes, 0, work.batch, bar,
                       again);
        arch::load_box(to + Stage::kVectorScales, &maps.vector_scales, 0, 0, step * kStepAtoms,
                       work.batch, bar, again);
    }

    const Params &p;
    const Maps &maps;
    const Ring &ring;
    const Work &work;
    uint64_t once, again;
    const uint8_t *weight_scales;
    uint32_t first;
};

// Sums of one CTA: `kParts` for each vector and row.
template <uint32_t kParts, uint32_t kVectors>
struct Partial {
    float sum[kParts][kVectors][kRows];
};

// By kThreads threads of every CTA of the cluster, after a cluster barrier (a CTA barrier where
// there is one CTA): adds the partial sums in the order of ranks and parts, and stores. No CTA may
// end before another cluster barrier.
template <uint32_t kThreads, uint32_t kParts, uint32_t kVectors>
__device__ __forceinline__ void reduce_and_store(const Params &p, const Work &work,
                                                 const Partial<kParts, kVectors> &partial,
                                                 uint32_t thread) {
    const uint32_t size = arch::cluster_size();
    for (uint32_t i = arch::cluster_rank() * kThreads + thread; i < p.n * kRows;
         i += size * kThreads) {
        const uint32_t n = i / kRows, row = i % kRows;
        float y = 0.0f;
        uint32_t rank = 0;
#pragma unroll 1
        do {
#pragma unroll
            for (uint32_t part = 0; part < kParts; ++part) {
                const uint32_t at = arch::shared_address(&partial.sum[part][n][row]);
                y += arch::load_peer(arch::peer_address(at, rank));
            }
        } while (++rank < size);
        const int32_t m = work.tile * kRows + row;
        if (m < p.m) store(p.epilogue, p.m, work.batch, m, n, y);
        if constexpr (kVectors * kRows <= kThreads) break; // there is one for each thread at most
    }
}

}  // namespace nvfp4::tile

#endif
