// Makes kernels ready, and enqueues prepared launches.
#include "prepared.cuh"

#include "driver.cuh"

namespace nvfp4 {

namespace {

// Contexts that a kernel is ready in, by their ids, which CUDA never uses twice. Entries that collide
// replace each other: the kernel is made ready again, which changes nothing.
struct Ready {
    static constexpr uint32_t kContexts = 16;
    std::atomic<const void *> kernel;
    std::atomic<uint64_t> contexts[kContexts];
};

constexpr uint32_t kKernels = 256;
Ready ready[kKernels]; // zeros

// A kernel's entry, or none where all are taken.
Ready *entry(const void *kernel) {
    const uint32_t first = uint32_t(reinterpret_cast<uintptr_t>(kernel) / 16);
    for (uint32_t i = 0; i < kKernels; ++i) {
        Ready &one = ready[(first + i) % kKernels];
        const void *taken = one.kernel.load(std::memory_order_relaxed);
        if (!taken && one.kernel.compare_exchange_strong(taken, kernel, std::memory_order_relaxed)) {
            return &one;
        }
        if (taken == kernel) return &one;
    }
    return nullptr;
}

// The current context, or 0 where there is none yet or the driver cannot say.
uint64_t context_id() {
    static std::atomic<void *> found;
    decltype(&cuCtxGetId) get_id;
    unsigned long long id = 0;
    if (driver_function("cuCtxGetId", found, &get_id) != cudaSuccess) return 0;
    return get_id(nullptr, &id) == CUDA_SUCCESS ? id : 0;
}

cudaError_t enqueue(const Launch &launch, const uint8_t *bytes, uint32_t grid_y, cudaStream_t stream) {
    const Call &call = launch.call;
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(call.grid_x, grid_y);
    config.blockDim = dim3(call.threads);
    config.dynamicSmemBytes = call.dynamic_shared;
    config.stream = stream;
    config.attrs = attributes;
    if (call.cluster) {
        cudaLaunchAttribute &cluster = attributes[config.numAttrs++];
        cluster.id = cudaLaunchAttributeClusterDimension;
        cluster.val.clusterDim = {call.cluster, 1, 1};
    }
    if (call.dependent) {
        cudaLaunchAttribute &dependent = attributes[config.numAttrs++];
        dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        dependent.val.programmaticStreamSerializationAllowed = 1;
    }
    void *parameters[Launch::kMostParameters];
    for (uint32_t i = 0; i < Launch::kMostParameters; ++i) {
        // CUDA only reads them. It takes as many as the kernel has.
        parameters[i] = launch.parameters[i] == Launch::kNowhere
                            ? nullptr
                            : const_cast<uint8_t *>(bytes) + launch.parameters[i];
    }
    return cudaLaunchKernelExC(&config, call.kernel, parameters);
}

// As many launches as all batches take: the parameters differ from one to the next.
cudaError_t enqueue_in_parts(const Launch &launch, const Prepared &prepared, cudaStream_t stream) {
    Prepared part = prepared;
    for (int64_t first = 0; first < launch.batches; first += kMostBatches) {
        const auto value = int32_t(first);
        std::memcpy(part.bytes + launch.first_batch, &value, sizeof value);
        const int64_t batches = std::min<int64_t>(launch.batches - first, kMostBatches);
        const cudaError_t status = enqueue(launch, part.bytes, uint32_t(batches), stream);
        if (status != cudaSuccess) return status;
    }
    return cudaSuccess;
}

}  // namespace

static cudaError_t load(const Call &call) {
    cudaFuncAttributes attributes; // asked for to have the kernel loaded: the first launch need not
    cudaError_t status = cudaFuncGetAttributes(&attributes, call.kernel);
    if (status != cudaSuccess || call.dynamic_shared == 0) return status;
    int device = 0, most = 0;
    status = cudaGetDevice(&device);
    if (status != cudaSuccess) return status;
    status = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (status != cudaSuccess) return status;
    return cudaFuncSetAttribute(call.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                most - int(call.static_shared));
}

cudaError_t make_ready(const Call &call) {
    const uint64_t context = context_id();
    Ready *known = context ? entry(call.kernel) : nullptr;
    std::atomic<uint64_t> *slot = known ? &known->contexts[context % Ready::kContexts] : nullptr;
    if (slot && slot->load(std::memory_order_acquire) == context) return cudaSuccess;
    // The stream may be in a capture, which loading is no part of.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaError_t status = cudaThreadExchangeStreamCaptureMode(&mode);
    if (status != cudaSuccess) return status;
    const cudaError_t loaded = load(call);
    status = cudaThreadExchangeStreamCaptureMode(&mode);
    if (loaded != cudaSuccess) return loaded;
    if (status == cudaSuccess && slot) slot->store(context, std::memory_order_release);
    return status;
}

cudaError_t enqueue(const Prepared &prepared, cudaStream_t stream) {
    for (uint32_t i = 0; i < prepared.launches; ++i) {
        const Launch &launch = prepared.launch[i];
        const bool in_parts = launch.batches > kMostBatches;
        const cudaError_t status =
            in_parts ? enqueue_in_parts(launch, prepared, stream)
                     : enqueue(launch, prepared.bytes, launch.call.grid_y, stream);
        if (status != cudaSuccess) return status;
    }
    return cudaSuccess;
}

}  // namespace nvfp4

extern "C" int32_t nvfp4_gemv_launch(const nvfp4_gemv_prepared *prepared, void *stream) {
    return nvfp4::enqueue(*reinterpret_cast<const nvfp4::Prepared *>(prepared),
                          static_cast<cudaStream_t>(stream));
}
