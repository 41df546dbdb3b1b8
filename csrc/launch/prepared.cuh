// Launches that are ready to be enqueued: what every GEMV launcher fills, and one function enqueues.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>

#include "../nvfp4_gemv.h"

namespace nvfp4 {

constexpr int32_t kMostBatches = 65535; // of a grid's y

// How a kernel is launched, without its parameters.
struct Call {
    const void *kernel;
    uint32_t grid_x, grid_y;
    uint32_t threads;
    uint32_t static_shared; // bytes of the kernel's own; matters beside dynamic ones only
    uint32_t dynamic_shared;
    uint32_t cluster;   // CTAs along x, or 0 for a launch without clusters
    uint32_t dependent; // 1: programmatic dependent launch
};

struct Launch {
    static constexpr uint32_t kMostParameters = 2;
    static constexpr uint32_t kNowhere = ~0u;

    Call call;
    uint32_t parameters[kMostParameters]; // where each lies in Prepared::bytes, or kNowhere
    // A kernel whose grid holds kMostBatches only: the batches there are, and where in `bytes` the first
    // one of a launch stands. kNowhere: grid_y is all.
    uint32_t first_batch;
    int32_t batches;
};

// All of a problem: one launch for each pass over the weights. No pointer into itself, so that its
// bytes can be copied.
struct Prepared {
    static constexpr uint32_t kMostLaunches = 4;
    static constexpr uint32_t kAlign = 64; // of a tensor map
    static constexpr uint32_t kBytes = 3712;

    alignas(kAlign) uint32_t launches;
    uint32_t used;
    Launch launch[kMostLaunches];
    alignas(kAlign) uint8_t bytes[kBytes];

    static Prepared &in(nvfp4_gemv_prepared *opaque) {
        auto *prepared = new (opaque) Prepared;
        prepared->launches = 0;
        prepared->used = 0;
        return *prepared;
    }

    // Adds a launch whose kernel takes `parameters`, and makes its kernel ready.
    template <class... Parameters>
    cudaError_t add(const Call &call, const Parameters &...parameters);

    // The launch last added is one of several: as many as `batches` take. The int32_t `first_batch`, a
    // member of its parameter number `parameter`, counts on.
    template <class P>
    void repeat(uint32_t parameter, int32_t P::*first_batch, int32_t batches) {
        Launch &last = launch[launches - 1];
        auto *p = reinterpret_cast<P *>(bytes + last.parameters[parameter]);
        last.first_batch = uint32_t(reinterpret_cast<uint8_t *>(&(p->*first_batch)) - bytes);
        last.batches = batches;
    }

  private:
    template <class P>
    bool append(uint32_t *at, const P &p) {
        static_assert(std::is_trivially_copyable<P>::value, "a kernel's parameter is bytes");
        *at = (used + kAlign - 1) / kAlign * kAlign;
        if (*at + sizeof p > kBytes) return false;
        std::memcpy(bytes + *at, &p, sizeof p);
        used = *at + uint32_t(sizeof p);
        return true;
    }
};

static_assert(sizeof(Prepared) <= sizeof(nvfp4_gemv_prepared) &&
                  alignof(Prepared) <= alignof(nvfp4_gemv_prepared),
              "fits what callers allocate");
static_assert(std::is_trivially_copyable<Prepared>::value, "callers copy the bytes");

// Loads a kernel, and lets it have all the dynamic shared memory that a CTA of the device can beside its
// static one, if it takes any. Once a kernel and context. Always the same value for a kernel: the attribute
// belongs to the process, and another thread may be about to launch.
cudaError_t make_ready(const Call &call);

cudaError_t enqueue(const Prepared &prepared, cudaStream_t stream);

template <class... Parameters>
cudaError_t Prepared::add(const Call &call, const Parameters &...parameters) {
    static_assert(sizeof...(Parameters) <= Launch::kMostParameters, "more parameters than a launch has");
    if (launches == kMostLaunches) return cudaErrorInvalidConfiguration;
    Launch &added = launch[launches];
    added.call = call;
    added.first_batch = Launch::kNowhere;
    added.batches = 0;
    for (uint32_t &at : added.parameters) at = Launch::kNowhere;
    uint32_t *at = added.parameters;
    if (!(append(at++, parameters) && ...)) return cudaErrorInvalidConfiguration;
    ++launches;
    return make_ready(call);
}

}  // namespace nvfp4
