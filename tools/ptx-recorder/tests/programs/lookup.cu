// The driver's functions by name: each version of CUDA has its ABI of a function, and what is not there is no failure.
#include "check.cuh"
#include <cudaTypedefs.h>

static PFN_cuGetProcAddress_v12000 by_name;

static void *find(const char *name, int version, CUdriverProcAddressQueryResult expected) {
    void *found = &found;
    CUdriverProcAddressQueryResult status;
    EXPECT(by_name(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, &status) == CUDA_SUCCESS);
    if (status != expected || (found != nullptr) != (expected == CU_GET_PROC_ADDRESS_SUCCESS))
        printf("%s of version %d: %p, status %d\n", name, version, found, (int)status);
    EXPECT(status == expected && (found != nullptr) == (expected == CU_GET_PROC_ADDRESS_SUCCESS));
    return found;
}

#define FIND(function, version)                                                                                        \
    reinterpret_cast<PFN_##function##_v##version>(find(#function, version, CU_GET_PROC_ADDRESS_SUCCESS))

// The program's own function of a name that the driver has, too.
extern "C" CUresult cuStreamGetCtx(CUstream, CUcontext *) { return CUDA_ERROR_UNKNOWN; }

int main() {
    void *found;
    cudaDriverEntryPointQueryResult status;
    CHECK(cudaGetDriverEntryPointByVersion("cuGetProcAddress", &found, 12000, cudaEnableDefault, &status));
    EXPECT(found && status == cudaDriverEntryPointSuccess);
    by_name = reinterpret_cast<PFN_cuGetProcAddress_v12000>(found);

    // One name, several ABIs.
    CUcontext context, other;
    CUdevice device = -1;
    EXPECT(FIND(cuCtxGetCurrent, 4000)(&context) == CUDA_SUCCESS);
    EXPECT(FIND(cuCtxSynchronize, 2000)() == CUDA_SUCCESS);
    EXPECT(FIND(cuCtxSynchronize, 13000)(context) == CUDA_SUCCESS);
    EXPECT(FIND(cuCtxGetDevice, 2000)(&device) == CUDA_SUCCESS && device == 0);
    device = -1;
    EXPECT(FIND(cuCtxGetDevice, 13000)(&device, context) == CUDA_SUCCESS && device == 0);
    EXPECT(FIND(cuStreamGetCtx, 9020)(nullptr, &other) == CUDA_SUCCESS && other == context);
    CUgreenCtx green;
    EXPECT(FIND(cuStreamGetCtx, 12050)(nullptr, &other, &green) == CUDA_SUCCESS && other == context && !green);
    CUdeviceptr address;
    EXPECT(FIND(cuMemAlloc, 3020)(&address, 16) == CUDA_SUCCESS && address);
    EXPECT(FIND(cuMemFree, 3020)(address) == CUDA_SUCCESS);
    EXPECT(FIND(cuDeviceGetUuid, 11040) && FIND(cuCtxCreate, 12050) && FIND(cuMemsetD32, 3020));
    // A function that is not supported says so when it is called.
    CUgraph graph;
    EXPECT(FIND(cuGraphCreate, 10000)(&graph, 0) == CUDA_ERROR_NOT_SUPPORTED);

    // Nothing of that name, not yet of that version, and none of the driver's.
    find("cuFlyToTheMoon", 13000, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    find("cuGraphAddNode", 12000, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    find("malloc", 13000, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    find("cudaMalloc", 13000, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    CHECK(cudaGetDriverEntryPointByVersion("cuFlyToTheMoon", &found, 12000, cudaEnableDefault, &status));
    EXPECT(!found && status == cudaDriverEntryPointSymbolNotFound);
    EXPECT(cudaGetDriverEntryPointByVersion("cuInit", &found, 99000, cudaEnableDefault, &status) ==
           cudaErrorInvalidValue);
    puts("right");
}
