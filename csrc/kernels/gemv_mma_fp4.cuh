// GEMV on the block-scaled FP4 instruction of a warp (mma.sync, kind mxf4nvf4): compute capability 12.x. The
// instruction multiplies codes and block scales as they lie in memory: those of W with those of up to 128 NVFP4
// vectors. K is a multiple of 64.
//
// A CTA has a group of rows, 16 for each warp that multiplies. A step is 256 elements of K, of all rows of the group
// and of all vectors of the pass. It takes a stage of a ring in shared memory. One more warp brings steps, stages
// ahead. Codes come by tensor copies, which place 128 bytes a row with the 128-byte swizzle. Scales come by copies of
// four bytes, one row's for 64 elements, so that both layouts of scales come to lie alike. Elements past M, past the
// vectors or past K arrive as zeros, without memory traffic. The CTAs of a cluster share the steps of a group, and add
// their sums in the order of their ranks.
//
// W and the vectors are treated alike: a stage has the rows of W, then the vectors.

#include "../shared.h"

enum {
    NVFP4_MMA_FP4_WARP_ROWS = 16, /* of a warp that multiplies */
    NVFP4_MMA_FP4_MAX_WARPS = 8,  /* that multiply */
    NVFP4_MMA_FP4_MAX_STAGES = 8,
    /* A row's part of a step: elements, bytes of codes, and bytes of scales. */
    NVFP4_MMA_FP4_STEP = 256,
    NVFP4_MMA_FP4_ROW_BYTES = NVFP4_MMA_FP4_STEP / 2,
    NVFP4_MMA_FP4_ROW_SCALES = NVFP4_MMA_FP4_STEP / NVFP4_BLOCK,
    NVFP4_MMA_FP4_SLICE = 64,     /* elements of K of a matrix instruction */
    NVFP4_MMA_FP4_COLUMNS = 8,    /* vectors of one */
    NVFP4_MMA_FP4_ALIGN = 1024,   /* of stages, which start a pattern of the swizzle */
    NVFP4_MMA_FP4_BARRIER_BYTES = 2 * 8, /* of a stage: full and empty */
    /* Floats between the sums of two vectors, beyond the number of rows: lanes that store together then use different
     * banks. */
    NVFP4_MMA_FP4_SUMS_PAD = 4,
};

/* Before its parameters the kernel takes two tensor maps: of the weights' codes (bytes of a row, rows, batches) and of
 * the vectors' (bytes of a row, vectors, batches). */
typedef struct nvfp4_mma_fp4_params {
    int32_t m, n;
    int32_t first_batch; /* of this launch */
    uint32_t slices;     /* of a row: 64 elements each */
    uint32_t warps;      /* that multiply */
    uint32_t stages;
    uint32_t dependent;  /* the launch may overlap with the previous grid */
    /* Offsets in dynamic shared memory, in bytes: scales and mbarriers of all stages. Codes stand first. */
    uint32_t scales_at, barriers_at;
    uint32_t digits; /* of a vector: n counts them as vectors, and is a multiple; a vector's lie together */

    nvfp4_weights weights;
    nvfp4_vectors vectors;
    nvfp4_epilogue epilogue;
} nvfp4_mma_fp4_params;

#ifdef __CUDACC__

#include "../arch/cp_async_bulk.cuh"
#include "../arch/cluster.cuh"
#include "../arch/cp_async.cuh"
#include "../arch/griddepcontrol.cuh"
#include "../arch/ldmatrix.cuh"
#include "../arch/mbarrier.cuh"
#include "../arch/mma.cuh"
#include "../arch/shared.cuh"
#include "../entries.cuh"
#include "../format/operands.cuh"
#include "../format/scale_steps.cuh"
#include "epilogue.cuh"

namespace nvfp4::mma_fp4 {

using Params = nvfp4_mma_fp4_params;

constexpr uint32_t kWarp = NVFP4_WARP;
constexpr uint32_t kWarpRows = NVFP4_MMA_FP4_WARP_ROWS;
constexpr uint32_t kRowBytes = NVFP4_MMA_FP4_ROW_BYTES;
constexpr uint32_t kRowScales = NVFP4_MMA_FP4_ROW_SCALES;
constexpr uint32_t kSlices = NVFP4_MMA_FP4_STEP / NVFP4_MMA_FP4_SLICE; // of a step
constexpr uint32_t kSliceScales = kRowScales / kSlices;               // bytes of a row's
constexpr uint32_t kColumns = NVFP4_MMA_FP4_COLUMNS;
constexpr uint32_t kMostCluster = 8;

struct Maps {
    CUtensorMap weights; // bytes of a row, rows, batches
    CUtensorMap vectors; // bytes of a row, vectors, batches
};

// A CTA's share of the work: the steps begin..end of a group of rows, of a batch.
struct Work {
    uint32_t rows, first_row; // of the group
    uint32_t rank, ctas;      // of the cluster
    uint32_t begin, end;
    int32_t batch;

    // Grid: x clusters of a group each, y batches. Every CTA of a cluster has a step or more.
    __device__ __forceinline__ explicit Work(const Params &p)
        : rows(p.warps * kWarpRows),
          first_row(arch::clusterid_x() * rows),
          rank(arch::cluster_ctarank()),
          ctas(arch::cluster_nctarank()),
          batch(p.first_batch + blockIdx.y) {
        const uint32_t steps = (p.slices + kSlices - 1) / kSlices;
        begin = steps * rank / ctas;
        end = steps * (rank + 1) / ctas;
    }
};

// A stage of the ring, by shared addresses. Each row of a stage has codes and scales.
struct Stage {
    uint32_t base, rows; // of the ring, and of a stage
    uint32_t slot = 0, parity = 0;

    __device__ __forceinline__ Stage(uint32_t base, uint32_t rows) : base(base), rows(rows) {}

    __device__ __forceinline__ uint32_t codes() const { return base + slot * rows * kRowBytes; }
    __device__ __forceinline__ uint32_t scales(const Params &p) const {
        return base + p.scales_at + slot * rows * kRowScales;
    }
    __device__ __forceinline__ uint32_t full(const Params &p) const {
        return base + p.barriers_at + slot * NVFP4_MMA_FP4_BARRIER_BYTES;
    }
    __device__ __forceinline__ uint32_t empty(const Params &p) const { return full(p) + 8; }

    __device__ __forceinline__ void advance(const Params &p) {
        if (++slot == p.stages) {
            slot = 0;
            parity ^= 1;
        }
    }
};

// Arrivals at a stage's full barrier for the rows of one matrix. One arrival has the bytes of its codes. Each lane
// arrives when the scales that it copies have landed.
constexpr uint32_t kArrivals = 1 + kWarp;

// Rows that come into stages: the group's rows of W, or the vectors.
struct Rows {
    const CUtensorMap *map;
    uint32_t batch; // there
    const uint8_t *scales; // of the batch
    const nvfp4_scale_steps &layout;
    uint32_t first, end; // of the matrix: those from `end` on do not exist
    uint32_t place, count; // of a stage: the first one, and how many
    uint64_t policy;

    // Brings a step of the rows into a stage. Called by a whole warp.
    __device__ __forceinline__ void bring(const Params &p, uint32_t step, const Stage &stage, uint32_t lane) const {
        const uint32_t full = stage.full(p);
        if (lane == 0) {
            arch::mbarrier_arrive_expect_tx(full, count * kRowBytes);
            arch::cp_async_bulk_tensor_3d(stage.codes() + place * kRowBytes, map, step * kRowBytes, first, batch, full, policy);
        }
        // Lanes take rows, and slices of them.
        const uint32_t slice = step * kSlices + lane % kSlices;
        const uint8_t *const from = scales + int64_t(slice) * layout.group_stride;
        uint32_t row = first + lane / kSlices;
        uint32_t to = stage.scales(p) + place * kRowScales + lane * kSliceScales;
        uint32_t left = count; // eight at least
#pragma unroll 1
        do {
            const bool exists = row < end && slice < p.slices;
            arch::cp_async_4(to, exists ? from + row_offset(layout, row) : scales, exists);
            row += kWarp / kSlices;
            to += kWarp * kSliceScales;
            left -= kWarp / kSlices;
        } while (left != 0);
        arch::cp_async_mbarrier_arrive_noinc(full);
    }
};

// Brings all steps of the CTA. Called by a whole warp.
template <int kVectors>
__device__ __forceinline__ void bring_steps(const Params &p, const Maps &maps, const Work &work, uint32_t base,
                                            uint32_t lane) {
    const Rows weights = {&maps.weights,
                          uint32_t(work.batch),
                          scales_of(p.weights, work.batch),
                          p.weights.scale_steps,
                          work.first_row,
                          uint32_t(p.m),
                          0,
                          work.rows,
                          arch::createpolicy_evict_first()};
    const Rows vectors = {&maps.vectors,
                          vectors_batch(p.vectors, work.batch),
                          scales_of(p.vectors, work.batch),
                          p.vectors.scale_steps,
                          0,
                          uint32_t(p.n),
                          work.rows,
                          kVectors,
                          arch::createpolicy_evict_last()};
    const Stage first(base, work.rows + kVectors);
    const uint32_t filled = min(work.begin + p.stages, work.end);
    const auto fill = [&](const Rows &rows) {
        Stage stage = first;
        uint32_t step = work.begin; // there is one at least
#pragma unroll 1
        do {
            rows.bring(p, step, stage, lane);
            stage.advance(p);
        } while (++step < filled);
    };
    // Vectors come first, because no stage can be multiplied without them. But the previous grid may write them.
    if (!p.dependent) fill(vectors);
    fill(weights);
    if (p.dependent) {
        arch::griddepcontrol_wait();
        fill(vectors);
    }
    arch::griddepcontrol_launch_dependents();
    Stage stage = first;
#pragma unroll 1
    for (uint32_t step = filled; step < work.end; ++step, stage.advance(p)) {
        arch::mbarrier_wait(stage.empty(p), stage.parity);
        arch::fence_proxy_async(); // the stage was read by loads
        weights.bring(p, step, stage, lane);
        vectors.bring(p, step, stage, lane);
    }
}

// Operands of lane 4 * g + t. For ldmatrix a lane has the address of one row of 16 bytes, of the first slice. In the
// swizzle the address for slice s is that one XOR 32 * s.
template <int kVectors>
struct Fragments {
    uint32_t a, b;               // from the start of a stage's codes: of W, and of the first eight vectors
    uint32_t a_scales, b_scales; // likewise of scales

    __device__ __forceinline__ Fragments(const Work &work, uint32_t warp, uint32_t lane) {
        const uint32_t matrix = lane / 8, r = lane % 8, g = lane / 4, t = lane % 4;
        // Matrices of W: rows g and rows g + 8 of the first half of a slice, then of the second half.
        a = (warp * kWarpRows + matrix % 2 * 8 + r) * kRowBytes + ((matrix / 2 ^ r) * 16);
        // Matrices of eight vectors: the two halves of a slice, and those of the next one.
        b = (work.rows + r) * kRowBytes + ((matrix ^ r) * 16);
        // An instruction takes four bytes of scales of each row from one of its lanes. Lanes t = 0 and 1 have those of
        // rows g and g + 8 for slices 0 and 1, lanes t = 2 and 3 for slices 2 and 3. Lane t has a vector's for slice t.
        a_scales = (warp * kWarpRows + t % 2 * 8 + g) * kRowScales + t / 2 * (2 * kSliceScales);
        b_scales = (work.rows + g) * kRowScales + t * kSliceScales;
    }

    // Adds a stage's products to `sum`. Of each eight vectors this lane has rows g and g + 8 with vectors 2t and
    // 2t + 1.
    __device__ __forceinline__ void multiply(uint32_t codes, uint32_t scales,
                                             float (&sum)[kVectors / kColumns][4]) const {
        uint4 rows[kSlices];
#pragma unroll
        for (uint32_t s = 0; s < kSlices; ++s) rows[s] = arch::ldmatrix_x4((codes + a) ^ (32 * s));
        const uint2 row_scales = arch::ld_shared_64(scales + a_scales);
#pragma unroll
        for (uint32_t tile = 0; tile < kVectors / kColumns; ++tile) {
            const uint32_t at = codes + b + tile * (kColumns * kRowBytes);
            const uint4 first = arch::ldmatrix_x4(at), second = arch::ldmatrix_x4(at ^ 64);
            const uint32_t column_scales = arch::ld_shared_32(scales + b_scales + tile * (kColumns * kRowScales));
            // The sums of a step are added in f32, and not by the instructions: how those add is not known.
            float d[4] = {};
            arch::mma_fp4<0, 0>(d, rows[0], first.x, first.y, row_scales.x, column_scales);
            arch::mma_fp4<0, 1>(d, rows[1], first.z, first.w, row_scales.y, column_scales);
            arch::mma_fp4<1, 2>(d, rows[2], second.x, second.y, row_scales.x, column_scales);
            arch::mma_fp4<1, 3>(d, rows[3], second.z, second.w, row_scales.y, column_scales);
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[tile][i] += d[i];
        }
    }
};

// Barrier of all threads of the cluster.
__device__ __forceinline__ void meet() {
    arch::barrier_cluster_arrive();
    arch::barrier_cluster_wait();
}

// Adds the sums of a cluster's CTAs, [vectors][rows] in the shared memory of each, and stores the outputs.
__device__ __forceinline__ void finish(const Params &p, const Work &work, uint32_t base) {
    const uint32_t stride = work.rows + NVFP4_MMA_FP4_SUMS_PAD;
#pragma unroll 1
    for (uint32_t i = work.rank * blockDim.x + threadIdx.x; i * p.digits < p.n * work.rows;
         i += work.ctas * blockDim.x) {
        const uint32_t n = i / work.rows, of_group = i - n * work.rows, row = work.first_row + of_group;
        if (row >= uint32_t(p.m)) continue;
        const Place place = prepare(p.epilogue, work.batch, row, n);
        uint32_t at = base + (n * p.digits * stride + of_group) * 4;
        DigitSum of_digits;
        uint32_t digit = 0; // there is one at least
#pragma unroll 1
        do {
            // All loads are on the way together.
            float part[kMostCluster];
#pragma unroll
            for (uint32_t rank = 0; rank < kMostCluster; ++rank) {
                part[rank] = rank < work.ctas ? arch::ld_shared_cluster_f32(arch::mapa(at, rank)) : 0.0f;
            }
            float y = part[0];
#pragma unroll
            for (uint32_t rank = 1; rank < kMostCluster; ++rank) y += part[rank];
            of_digits.add(y);
            at += stride * 4;
        } while (++digit < p.digits);
        store(p.epilogue, place, of_digits.y);
    }
}

template <int kVectors>
__device__ __forceinline__ void run(const Params &p, const Maps &maps, uint8_t *shared) {
    const uint32_t base = arch::shared_address(shared), warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const Work work(p);
    Stage stage(base, work.rows + kVectors);
    if (threadIdx.x == 0) {
        arch::prefetch_tensormap(&maps.weights);
        arch::prefetch_tensormap(&maps.vectors);
        for (Stage each = stage; each.parity == 0; each.advance(p)) {
            arch::mbarrier_init(each.full(p), 2 * kArrivals);
            arch::mbarrier_init(each.empty(p), p.warps * arch::kWarpArrivals);
        }
        arch::fence_mbarrier_init();
    }
    __syncthreads();
    float sum[kVectors / kColumns][4] = {};
    if (warp == p.warps) {
        bring_steps<kVectors>(p, maps, work, base, lane);
    } else {
        const Fragments<kVectors> fragments(work, warp, lane);
        uint32_t step = work.begin; // there is one at least
#pragma unroll 1
        do {
            arch::mbarrier_wait(stage.full(p), stage.parity);
            fragments.multiply(stage.codes(), stage.scales(p), sum);
            arch::mbarrier_arrive_warp(stage.empty(p), lane);
            stage.advance(p);
        } while (++step < work.end);
    }
    __syncthreads(); // stages make room for sums
    if (warp != p.warps) {
        const uint32_t stride = work.rows + NVFP4_MMA_FP4_SUMS_PAD;
#pragma unroll
        for (uint32_t i = 0; i < kVectors / 2; ++i) {
            const uint32_t n = i / 4 * kColumns + lane % 4 * 2 + i % 2;
            const uint32_t row = warp * kWarpRows + lane / 4 + i % 4 / 2 * 8;
            arch::st_shared_f32(base + (n * stride + row) * 4, sum[i / 4][i % 4]);
        }
    }
    if (work.ctas == 1) {
        __syncthreads();
    } else {
        meet();
    }
    arch::griddepcontrol_wait(); // the previous grid may write factors, and read the output
    finish(p, work, base);
    if (work.ctas != 1) meet(); // others may still read this CTA's sums
}

}  // namespace nvfp4::mma_fp4

// Entry points, by vectors of a pass.
#define GEMV_MMA_FP4(X)      \
    X(gemv_mma_fp4_n8, 8)    \
    X(gemv_mma_fp4_n16, 16)  \
    X(gemv_mma_fp4_n32, 32)  \
    X(gemv_mma_fp4_n64, 64)  \
    X(gemv_mma_fp4_n128, 128)

#define ENTRY(name, vectors)                                                                                     \
    NVFP4_KERNEL(name)(                                                                                          \
    extern "C" __global__ void __launch_bounds__((NVFP4_MMA_FP4_MAX_WARPS + 1) * NVFP4_WARP, 1)                  \
        name(const __grid_constant__ nvfp4::mma_fp4::Maps maps, const __grid_constant__ nvfp4_mma_fp4_params p) { \
        extern __shared__ __align__(1024) uint8_t dynamic[];                                                     \
        nvfp4::mma_fp4::run<vectors>(p, maps, dynamic);                                                          \
    })
GEMV_MMA_FP4(ENTRY)
NVFP4_TABLE(gemv_mma_fp4, GEMV_MMA_FP4)

#endif
