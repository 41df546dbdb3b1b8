// The sum of a token's experts: results of several batches, each times a weight, become one result.
//
// A thread sums one element of a token, slot by slot: the order is fixed, and there are no atomics.
#pragma once

#include "../shared.h"

enum {
    NVFP4_COMBINE_THREADS = 128,
};

typedef struct nvfp4_combine_params {
    int32_t m, n;       /* elements of a result, tokens */
    int32_t slots;      /* results that become one */
    int32_t input_type; /* of the results: NVFP4_OUTPUT_* */
    NVFP4_POINTER(const uint8_t) inputs;  /* [N][slots][M] */
    int64_t input_slot;                   /* elements from a slot's results to the next one's */
    NVFP4_POINTER(const float) weights;   /* [N][slots] */
    NVFP4_POINTER(const int32_t) ids;     /* [N][slots], whose slots of -1 count as nothing; or null */
    nvfp4_epilogue epilogue;              /* of one batch, whose vectors are the tokens */
} nvfp4_combine_params;

#ifdef __CUDACC__

#include "../arch/griddepcontrol.cuh"
#include "../entries.cuh"
#include "epilogue.cuh"

namespace nvfp4 {

constexpr int kCombineThreads = NVFP4_COMBINE_THREADS;

// Sums of results of one type.
template <int32_t kType>
__device__ __forceinline__ void combine_of(const nvfp4_combine_params &p, int32_t row) {
    constexpr int kAtOnce = 8; // slots whose operands are asked for together
    for (int32_t token = int32_t(blockIdx.y); token < p.n; token += int32_t(gridDim.y)) {
        const Place place = prepare(p.epilogue, 0, row, token);
        const int64_t first = int64_t(token) * p.slots;
        float sum = 0.0f;
        for (int32_t from = 0; from < p.slots; from += kAtOnce) {
            float weight[kAtOnce], value[kAtOnce];
            int32_t id[kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const int64_t slot = first + min(from + i, p.slots - 1);
                id[i] = p.ids ? p.ids[slot] : 0;
                weight[i] = p.weights[slot];
                value[i] = load_float(p.inputs, kType, slot * p.input_slot + row);
            }
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                if (from + i < p.slots && id[i] != -1) sum = fmaf(weight[i], value[i], sum);
            }
        }
        store(p.epilogue, place, sum);
    }
}

__device__ __forceinline__ void combine(const nvfp4_combine_params &p) {
    // What depends on a sum waits for it, and fetches little before.
    arch::griddepcontrol_launch_dependents();
    arch::griddepcontrol_wait();

    const int32_t row = int32_t(blockIdx.x) * kCombineThreads + int32_t(threadIdx.x);
    if (row >= p.m) return;
    switch (p.input_type) {
        case NVFP4_OUTPUT_F16: combine_of<NVFP4_OUTPUT_F16>(p, row); break;
        case NVFP4_OUTPUT_BF16: combine_of<NVFP4_OUTPUT_BF16>(p, row); break;
        default: combine_of<NVFP4_OUTPUT_F32>(p, row);
    }
}

}  // namespace nvfp4

#define COMBINE(X) X(combine)

#define ENTRY(name)                                                      \
    NVFP4_KERNEL(name)(                                                  \
    extern "C" __global__ void __launch_bounds__(NVFP4_COMBINE_THREADS)  \
        name(nvfp4_combine_params p) {                                   \
        nvfp4::combine(p);                                               \
    })
COMBINE(ENTRY)
#undef ENTRY

#endif
