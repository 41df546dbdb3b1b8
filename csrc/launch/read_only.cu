// The read-only ceiling.
#include <cuda_runtime.h>

#include "../kernels/read_only.cuh"
#include "../nvfp4_gemv.h"

extern "C" int32_t nvfp4_gemv_read_only(uint64_t data, int64_t bytes, uint64_t sink,
                                        int32_t multiprocessors, void *stream) {
    const auto *source = reinterpret_cast<const uint8_t *>(data);
    auto *out = reinterpret_cast<uint32_t *>(sink);
    int64_t vectors = bytes / 16;
    void *arguments[] = {&source, &vectors, &out};
    // Eight CTAs an SM fill it on every architecture.
    return cudaLaunchKernel(reinterpret_cast<const void *>(nvfp4::read_only),
                            dim3(8 * multiprocessors), dim3(nvfp4::kReadOnlyThreads), arguments, 0,
                            static_cast<cudaStream_t>(stream));
}
