// Bundles batches by the matrix that they select (nvfp4_select), on the device: a kernel that multiplies bundles reads a
// matrix once for up to `width` batches. A launch of one CTA.
//
// Bundles come in the order of their matrices, and batches of a matrix in their own order. So the same ids give the same
// bundles, and the same bits of every result. Batches without a matrix are bundled as if they had one of two more: those
// with the id -1 have one, and those with another number that is none of a matrix have the other.
#pragma once

#include "../shared.h"

enum {
    NVFP4_BUNDLE_THREADS = 1024,
    /* What a CTA has shared memory for. */
    NVFP4_BUNDLE_MOST_BATCHES = 4096,
    NVFP4_BUNDLE_MOST_MATRICES = 4096,
    /* Kinds of batches: those of a matrix, those with the id -1, and those with another id that is none of a matrix. */
    NVFP4_BUNDLE_MOST_KINDS = NVFP4_BUNDLE_MOST_MATRICES + 2,
    /* Shared memory: a word for each batch, each kind and each warp. */
    NVFP4_BUNDLE_SHARED_BYTES =
        (NVFP4_BUNDLE_MOST_BATCHES + NVFP4_BUNDLE_MOST_KINDS + NVFP4_BUNDLE_THREADS / NVFP4_WARP) * 4,
};

typedef struct nvfp4_bundle_params {
    nvfp4_select select;
    nvfp4_bundles bundles;      /* where they go */
    NVFP4_POINTER(int32_t) ids; /* of each bundle's matrix, or a number that is none of a matrix */
    uint32_t l, width;          /* batches, and batches of a bundle, at most */
} nvfp4_bundle_params;

#ifdef __CUDACC__

#include "../arch/griddepcontrol.cuh"
#include "../entries.cuh"
#include "../format/operands.cuh"

namespace nvfp4 {

constexpr uint32_t kBundleThreads = NVFP4_BUNDLE_THREADS, kBundleWarps = kBundleThreads / NVFP4_WARP;

// Sum of the numbers of the threads before this one. Called by all threads.
__device__ __forceinline__ uint32_t sum_before(uint32_t own, uint32_t *of_warp) {
    const uint32_t lane = threadIdx.x % NVFP4_WARP, warp = threadIdx.x / NVFP4_WARP;
    uint32_t sum = own;
#pragma unroll
    for (uint32_t by = 1; by < NVFP4_WARP; by *= 2) {
        const uint32_t other = __shfl_up_sync(~0u, sum, by);
        if (lane >= by) sum += other;
    }
    if (lane == NVFP4_WARP - 1) of_warp[warp] = sum;
    __syncthreads();
    uint32_t before = 0;
    for (uint32_t w = 0; w < warp; ++w) before += of_warp[w];
    return before + sum - own;
}

__device__ __forceinline__ void bundle_batches(const nvfp4_bundle_params &p) {
    constexpr uint32_t kMostKinds = NVFP4_BUNDLE_MOST_KINDS;
    // Batches of a thread, at most; and kinds.
    constexpr uint32_t kEach = NVFP4_BUNDLE_MOST_BATCHES / kBundleThreads;
    constexpr uint32_t kEachKind = (kMostKinds + kBundleThreads - 1) / kBundleThreads;
    // The kind of each batch: its matrix, or the number of matrices (id -1), or one more (no such matrix).
    __shared__ alignas(16) uint32_t kind[NVFP4_BUNDLE_MOST_BATCHES];
    __shared__ uint32_t of_kind[kMostKinds]; // its batches; then its first bundle
    __shared__ uint32_t of_warp[kBundleWarps];
    static_assert(sizeof kind + sizeof of_kind + sizeof of_warp == NVFP4_BUNDLE_SHARED_BYTES, "as the plan says");
    const uint32_t kinds = p.select.matrices + 2, width = p.width;

    arch::griddepcontrol_launch_dependents();
    for (uint32_t i = threadIdx.x; i < kinds; i += kBundleThreads) of_kind[i] = 0;
    arch::griddepcontrol_wait(); // grids before write ids, and read bundles

    const uint32_t padded = (p.l + 3) / 4 * 4;
    for (uint32_t i = threadIdx.x; i < padded; i += kBundleThreads) {
        if (i < p.l) {
            const Matrix matrix = selected(p.select, i);
            kind[i] = matrix.exists ? matrix.number : p.select.matrices + (matrix.id != -1);
        } else {
            kind[i] = ~0u; // none
        }
    }
    __syncthreads();

    // A batch's number among those of its kind, and how many these are.
    uint32_t number[kEach], all[kEach];
#pragma unroll
    for (uint32_t each = 0; each < kEach; ++each) {
        const uint32_t i = threadIdx.x + each * kBundleThreads;
        number[each] = all[each] = 0;
        if (i >= p.l) break;
        const uint32_t own = kind[i];
        for (uint32_t j = 0; j < padded; j += 4) {
            const uint4 four = *reinterpret_cast<const uint4 *>(kind + j);
            const uint32_t same[4] = {four.x == own, four.y == own, four.z == own, four.w == own};
#pragma unroll
            for (uint32_t at = 0; at < 4; ++at) {
                all[each] += same[at];
                number[each] += j + at < i ? same[at] : 0;
            }
        }
        if (number[each] == 0) of_kind[own] = all[each];
    }
    __syncthreads();

    // The first bundle of each kind. A thread has kinds that follow each other.
    uint32_t bundles[kEachKind], own = 0;
#pragma unroll
    for (uint32_t each = 0; each < kEachKind; ++each) {
        const uint32_t at = threadIdx.x * kEachKind + each;
        bundles[each] = at < kinds ? (of_kind[at] + width - 1) / width : 0;
        own += bundles[each];
    }
    uint32_t first = sum_before(own, of_warp);
#pragma unroll
    for (uint32_t each = 0; each < kEachKind; ++each) {
        const uint32_t at = threadIdx.x * kEachKind + each;
        if (at < kinds) of_kind[at] = first;
        first += bundles[each];
    }
    if (threadIdx.x == kBundleThreads - 1) *p.bundles.count = first;
    __syncthreads();

#pragma unroll
    for (uint32_t each = 0; each < kEach; ++each) {
        const uint32_t i = threadIdx.x + each * kBundleThreads;
        if (i >= p.l) break;
        const uint32_t own = kind[i], bundle = of_kind[own] + number[each] / width, at = number[each] % width;
        int32_t *const batches = p.bundles.batches + int64_t(bundle) * width;
        batches[at] = int32_t(i);
        if (at == 0) {
            // Of batches without a matrix: -1, or any number that is none of a matrix.
            p.ids[bundle] = own < p.select.matrices ? int32_t(own) : int32_t(p.select.matrices - own) - 1;
        }
        if (number[each] + 1 == all[each]) { // the last one of its kind
            for (uint32_t none = at + 1; none < width; ++none) batches[none] = -1;
        }
    }
}

}  // namespace nvfp4

#define BUNDLE_BATCHES(X) X(bundle_batches)

#define ENTRY(name)                                                     \
    NVFP4_KERNEL(name)(                                                 \
    extern "C" __global__ void __launch_bounds__(NVFP4_BUNDLE_THREADS)  \
        name(nvfp4_bundle_params p) {                                   \
        nvfp4::bundle_batches(p);                                       \
    })
BUNDLE_BATCHES(ENTRY)
#undef ENTRY

#endif
