// NVFP4 weights times NVFP4 vectors on Blackwell's tensor cores: compute capability 10.x.
//
// Weights are the M operand, 128 rows a CTA; the vectors are the N operand, padded with zeros to 16.
// Warp 5 multiplies what warp 4 loads; the sums stay in tensor memory, whence warps 0 to 3 take them.
// Scales reach tensor memory by copies in the order of the multiplications that read them. Every stage
// has scale columns of its own, because a copy is not ordered after a multiplication that still reads
// its target.
//
// Verified in simulation, not yet on hardware.

#include "tile_pipeline.cuh"

enum {
    NVFP4_TCGEN05_THREADS = 192,
    NVFP4_TCGEN05_N = 16, /* of the matrix instruction: vectors of a pass at most, and rows of a stage */
    NVFP4_TCGEN05_STAGE_BYTES = NVFP4_TILE_STAGE_BYTES(NVFP4_TCGEN05_N, NVFP4_ATOM_LINES),
    /* Columns of tensor memory: the sums', and those of a stage's scales, four an atom and operand. A CTA
     * allocates a power of two. */
    NVFP4_TCGEN05_SUM_COLUMNS = 32,
    NVFP4_TCGEN05_ATOM_COLUMNS = 4,
    NVFP4_TCGEN05_STAGE_COLUMNS = 2 * NVFP4_TILE_STEP_ATOMS * NVFP4_TCGEN05_ATOM_COLUMNS,
    NVFP4_TCGEN05_MAX_COLUMNS = 512, /* of an SM */
};

#ifdef __CUDACC__

#include "../arch/tcgen05.cuh"
#include "../entries.cuh"

namespace nvfp4::tcgen05 {

constexpr uint32_t kEpilogueThreads = 128, kLoadWarp = 4, kMmaWarp = 5;
constexpr uint32_t kVectors = NVFP4_TCGEN05_N;
constexpr uint32_t kSumColumns = NVFP4_TCGEN05_SUM_COLUMNS;
constexpr uint32_t kAtomColumns = NVFP4_TCGEN05_ATOM_COLUMNS;
constexpr uint32_t kStageColumns = NVFP4_TCGEN05_STAGE_COLUMNS;

// Copies to tensor memory take whole atoms of scales.
using Stage = tile::Stage<kVectors, tile::kAtomLines>;

struct Shared {
    tile::Barriers barriers;
    uint64_t done;
    uint32_t tmem;
    tile::Partial<1, kVectors> partial;
};

// Whether warp 5 moves the vectors' scales in the stages, by ordinary stores. It then is a reader of a stage
// beside its multiplications.
__device__ __forceinline__ bool moves_scales(const tile::Params &p) { return p.scale_column != 0; }

// The loading thread's wait for an empty stage, handed on to the copies that overwrite the stage's
// scale columns after its next full barrier.
struct ReuseScaleColumns {
    __device__ static __forceinline__ void order() {
        arch::tcgen05_fence_after();
        arch::tcgen05_fence_before();
    }
};

// A lane of a warp changes one line of each atom of scales in a stage, before the copies to tensor memory.
static_assert(tile::kAtomLines == 32, "a line for each lane");

// By a whole warp: brings a word of each line of the vectors' atoms into the first place, where a
// multiplication by at most 32 vectors looks for them.
__device__ __forceinline__ void move_scales_to_first_column(uint8_t *data, uint32_t atoms,
                                                            uint32_t column) {
    uint8_t *line = data + threadIdx.x % 32 * tile::kAtomLineBytes;
    uint32_t i = 0;
#pragma unroll 1
    do {
        auto *words = reinterpret_cast<uint32_t *>(line + i * tile::kAtomBytes);
        words[0] = words[column];
    } while (++i < atoms);
    // The copies to tensor memory read through the async proxy, by which the next load of the stage writes.
    arch::fence_proxy_async();
}

// By a whole warp: makes the scales of a row's last atom that do not exist zeros, for all rows of
// both operands.
__device__ __forceinline__ void clear_missing_scales(uint8_t *atom_a, uint8_t *atom_b,
                                                     uint32_t mask) {
    const uint32_t at = threadIdx.x % 32 * tile::kAtomLineBytes;
    auto &a = *reinterpret_cast<uint4 *>(atom_a + at);
    auto &b = *reinterpret_cast<uint4 *>(atom_b + at);
    a = make_uint4(a.x & mask, a.y & mask, a.z & mask, a.w & mask);
    b = make_uint4(b.x & mask, b.y & mask, b.z & mask, b.w & mask);
    arch::fence_proxy_async();
}

// By a whole warp.
__device__ __forceinline__ void multiply_steps(const tile::Params &p, const tile::Ring &ring,
                                               uint8_t *stages, uint32_t tmem, uint32_t done,
                                               const tile::Work &work) {
    constexpr uint32_t kInstruction = arch::nvfp4_instruction(kVectors);
    constexpr uint32_t kAtomCodeBytes = tile::kAtomElements / 2;
    const bool leader = arch::elect_one();
    tile::Position at;
    uint32_t step = work.begin;
#pragma unroll 1
    do {
        arch::mbarrier_wait(ring.full_barrier(at.slot), at.parity);
        __syncwarp();
        const uint32_t atoms = tile::step_atoms(p, step);
        const uint32_t offset = at.slot * Stage::kBytes;
        if (moves_scales(p)) {
            move_scales_to_first_column(stages + offset + Stage::kVectorScales, atoms, p.scale_column);
        }
        const uint32_t mask = tile::scale_mask(p, step * tile::kStepAtoms + atoms - 1);
        if (mask != 0xffffffffu) {
            uint8_t *last = stages + offset + (atoms - 1) * tile::kAtomBytes;
            clear_missing_scales(last + Stage::kWeightScales, last + Stage::kVectorScales, mask);
        }
        __syncwarp();
        arch::tcgen05_fence_after();
        if (leader) {
            const uint32_t data = ring.data + offset;
            const uint32_t scales_a = tmem + kSumColumns + at.slot * kStageColumns;
            const uint32_t scales_b = scales_a + tile::kStepAtoms * kAtomColumns;
            uint32_t i = 0;
#pragma unroll 1
            do {
                const uint32_t atom = i * tile::kAtomBytes;
                arch::tmem_copy_scales(scales_a + i * kAtomColumns,
                                       arch::atom_descriptor(data + Stage::kWeightScales + atom));
                arch::tmem_copy_scales(scales_b + i * kAtomColumns,
                                       arch::atom_descriptor(data + Stage::kVectorScales + atom));
            } while (++i < atoms);
            i = 0;
#pragma unroll 1
            do {
                arch::mma_nvfp4(tmem, arch::rows_descriptor(data + Stage::kWeights + i * kAtomCodeBytes),
                                arch::rows_descriptor(data + Stage::kVectors + i * kAtomCodeBytes),
                                kInstruction, scales_a + i * kAtomColumns,
                                scales_b + i * kAtomColumns, step != work.begin || i != 0);
            } while (++i < atoms);
            // Only where a load waits for it: none may be under way when the CTA ends.
            if (step + p.stages < work.end) {
                arch::tcgen05_commit(ring.empty_barrier(at.slot));
                if (moves_scales(p)) arch::mbarrier_arrive(ring.empty_barrier(at.slot));
            }
            if (step + 1 == work.end) arch::tcgen05_commit(done);
        }
        __syncwarp();
        at.advance(1, p.stages);
    } while (++step < work.end);
}

// Grid: x clusters of a tile each, y batches. Dynamic shared memory: the stages, and a swizzle
// pattern less 16 bytes to align them.
extern "C" __global__ void __launch_bounds__(NVFP4_TCGEN05_THREADS)
    gemv_tcgen05(const __grid_constant__ tile::Maps maps,
                 const __grid_constant__ nvfp4_tile_params p) {
    extern __shared__ uint8_t dynamic[];
    __shared__ Shared shared;
    uint8_t *stages = tile::align_to_pattern(dynamic);
    const tile::Ring ring(stages, shared.barriers);
    const uint32_t done = arch::shared_address(&shared.done);
    const uint32_t warp = threadIdx.x / 32;
    const tile::Work work(p);

    const bool loads = warp == kLoadWarp && arch::elect_one();
    const tile::Loader<Stage, ReuseScaleColumns> loader(p, maps, ring, work);

    // The previous grid may be about to allocate what tensor memory there is, and the next one may hold
    // some while it waits for this grid to end: this grid allocates after the end of the one, and lets the
    // other start (in `refill`) when it has allocated.
    if (loads) {
        tile::prefetch(maps);
        arch::mbarrier_init(done, 1);
        // A stage is empty when its multiplications are complete.
        tile::init_barriers(ring, p.stages, moves_scales(p) ? 2 : 1);
        loader.fill();
    } else if (warp == kMmaWarp) {
        arch::grid_dependency_wait();
        arch::tmem_alloc(arch::shared_address(&shared.tmem), p.tmem_columns);
        arch::tmem_relinquish();
    }
    arch::tcgen05_fence_before();
    __syncthreads();
    arch::tcgen05_fence_after();
    const uint32_t tmem = shared.tmem;

    if (warp == kLoadWarp) {
        if (loads) loader.refill();
        __syncwarp();
    } else if (warp == kMmaWarp) {
        multiply_steps(p, ring, stages, tmem, done, work);
    } else {
        arch::mbarrier_wait(done, 0);
        __syncwarp();
        arch::tcgen05_fence_after();
        uint32_t sums[kVectors];
        arch::tmem_load_16_columns(sums, tmem + (warp * 32 << 16));
        arch::tmem_wait_load();
        arch::tcgen05_fence_before();
        arch::grid_dependency_wait(); // the previous grid may still read what is stored here
        for (uint32_t n = 0; n < kVectors; ++n) { // vectors past n are zeros
            shared.partial.sum[0][n][threadIdx.x] = __uint_as_float(sums[n]);
        }
    }

    arch::cluster_arrive();
    arch::cluster_wait();
    if (warp == kMmaWarp) { // nobody loads from tensor memory any more
        arch::tcgen05_fence_after();
        arch::tmem_dealloc(tmem, p.tmem_columns);
    } else if (warp < kEpilogueThreads / 32) {
        tile::reduce_and_store<kEpilogueThreads>(p, work, shared.partial, threadIdx.x);
    }
    arch::cluster_arrive(); // a peer may still read this CTA's partial sums
    arch::cluster_wait();
}

}  // namespace nvfp4::tcgen05

using nvfp4::tcgen05::gemv_tcgen05;
#define GEMV_TCGEN05(X) X(gemv_tcgen05)
NVFP4_TABLE(gemv_tcgen05, GEMV_TCGEN05)

#endif
