// Arguments that no GPU takes: each call fails, and the program goes on.
#include "check.cuh"
#include <cstdint>
#include <cstring>
#include <cudaTypedefs.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

__device__ int variable[4];

__global__ void kernel(int *out) { out[threadIdx.x] = variable[threadIdx.x % 4]; }

template <class F> static F driver(const char *name, unsigned version) {
    void *found;
    cudaDriverEntryPointQueryResult status;
    CHECK(cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &status));
    EXPECT(found);
    return reinterpret_cast<F>(found);
}
#define DRIVER(function, version) driver<PFN_##function##_v##version>(#function, version)
#define FAILS(call) EXPECT((call) != cudaSuccess)
#define REFUSES(call) EXPECT((call) == CUDA_ERROR_INVALID_VALUE)

// A file with these bytes, loaded as a module.
static CUresult load(const std::string &bytes) {
    int file = memfd_create("module", 0);
    EXPECT(file >= 0 && write(file, bytes.data(), bytes.size()) == (ssize_t)bytes.size());
    std::string name = "/proc/self/fd/" + std::to_string(file);
    CUmodule module;
    CUresult result = DRIVER(cuModuleLoad, 2000)(&module, name.c_str());
    close(file);
    return result;
}

static std::string number(uint64_t value, int bytes) {
    return std::string(reinterpret_cast<const char *>(&value), bytes);
}

int main() {
    const size_t huge[] = {257, SIZE_MAX, SIZE_MAX / 2 + 1, SIZE_MAX - 255};
    char *data, host[256] = {};
    CHECK(cudaMalloc(&data, sizeof host));
    for (size_t size : huge) {
        void *got;
        size_t pitch;
        FAILS(cudaMemcpy(data, host, size, cudaMemcpyHostToDevice));
        FAILS(cudaMemcpy(host, data, size, cudaMemcpyDeviceToHost));
        FAILS(cudaMemset(data, 0, size));
        FAILS(cudaMemset2D(data, 16, 0, 16, size));
        FAILS(cudaMemset2D(data, size, 0, 1, 3));
        FAILS(cudaMemcpy2D(data, size, host, size, 1, 3, cudaMemcpyHostToDevice));
        FAILS(cudaMemcpyToSymbol(variable, host, size));
        FAILS(cudaMemcpyToSymbol(variable, host, 4, size));
        FAILS(cudaMemcpyFromSymbol(host, variable, size));
        REFUSES(DRIVER(cuMemsetD32, 3020)((CUdeviceptr)data, 1, size));
        REFUSES(DRIVER(cuMemsetD16, 3020)((CUdeviceptr)data, 1, size));
        if (size > 257) {
            FAILS(cudaMalloc(&got, size));
            FAILS(cudaMallocManaged(&got, size));
            FAILS(cudaMallocPitch(&got, &pitch, size, 1));
            FAILS(cudaMallocPitch(&got, &pitch, 1, size));
        }
        CUDA_MEMCPY2D copy{};
        copy.srcMemoryType = CU_MEMORYTYPE_HOST;
        copy.srcHost = host;
        copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
        copy.dstDevice = (CUdeviceptr)data;
        copy.dstY = size;
        copy.dstPitch = size;
        copy.WidthInBytes = 4;
        copy.Height = 1;
        REFUSES(DRIVER(cuMemcpy2D, 3020)(&copy));
    }
    REFUSES(DRIVER(cuMemcpy2D, 3020)(nullptr));
    CUdeviceptr nothing;
    REFUSES(DRIVER(cuMemAlloc, 3020)(&nothing, 0));
    void *none = host;
    CHECK(cudaMalloc(&none, 0));
    EXPECT(!none);

    // Launches that do not fit.
    kernel<<<dim3(~0u, ~0u, ~0u), dim3(~0u, ~0u, ~0u)>>>((int *)data);
    FAILS(cudaGetLastError());
    void *arguments[] = {&data};
    EXPECT(cudaLaunchCooperativeKernel(kernel, 148 * 32 + 1, 32, arguments) == cudaErrorCooperativeLaunchTooLarge);
    CHECK(cudaLaunchCooperativeKernel(kernel, 2, 32, arguments));

    // Modules: files that are cut off, or hold things that only memory can; and none.
    EXPECT(load("") != CUDA_SUCCESS && load("PTX") != CUDA_SUCCESS);
    EXPECT(load(".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry nothing() { ret; }\n") == CUDA_SUCCESS);
    EXPECT(load(number(0x466243b1, 4) + number(1, 4) + number(0x1000, 8) + number(0, 8)) == CUDA_ERROR_NO_BINARY_FOR_GPU);
    for (uint64_t size : {uint64_t(1), uint64_t(1) << 40, UINT64_MAX})
        EXPECT(load(number(0xba55ed50, 4) + number(1, 2) + number(16, 2) + number(size, 8)) ==
               CUDA_ERROR_NO_BINARY_FOR_GPU);
    CUmodule module;
    REFUSES(DRIVER(cuModuleLoadData, 2000)(&module, nullptr));
    cudaKernel_t missing;
    FAILS(cudaLibraryGetKernel(&missing, nullptr, "kernel"));
    // A refused load makes no module: the GPU is the one of the program's own PTX.
    int value;
    CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0));
    EXPECT(value == 10);

    // Properties that a device reports.
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    EXPECT(properties.maxThreadsDim[0] == 1024 && properties.maxThreadsDim[1] == 1024 && properties.maxThreadsDim[2] == 64);
    EXPECT(properties.concurrentManagedAccess == 0);
    CHECK(cudaDeviceGetAttribute(&value, (cudaDeviceAttr)CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED, 0));
    EXPECT(value == 1);
    void *address;
    CHECK(cudaGetSymbolAddress(&address, variable));
    cudaPointerAttributes pointer;
    CHECK(cudaPointerGetAttributes(&pointer, address));
    EXPECT(pointer.type == cudaMemoryTypeDevice);
    puts("right");
}
