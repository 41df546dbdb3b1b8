// The driver's functions alone, found with dlsym: a module of PTX text, parameters in one block, an address in memory.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <dlfcn.h>

static const char PTX[] = R"(
.version 8.0
.target sm_90
.address_size 64
.visible .global .u32 calls = 5;
.visible .entry through(.param .u64 table, .param .u32 value) {
    .reg .b32 %r<4>; .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [table];
    ld.param.u32 %r1, [value];
    ld.global.u64 %rd2, [%rd1];
#ADD#
    st.global.u32 [%rd2+4], %r1;
    mov.u64 %rd3, calls;
    ld.global.u32 %r2, [%rd3];
    add.u32 %r2, %r2, 1;
    st.global.u32 [%rd3], %r2;
    ret;
})";

static void *library;

static void *find(const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        printf("no %s\n", name);
        exit(1);
    }
    return found;
}

#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)
#define DRIVER(function) reinterpret_cast<decltype(&function)>(find(TEXT(function)))
#define CALL(function, ...)                                                                                            \
    do {                                                                                                               \
        CUresult result = DRIVER(function)(__VA_ARGS__);                                               \
        if (result != CUDA_SUCCESS) {                                                                                  \
            const char *text = nullptr;                                                                                \
            DRIVER(cuGetErrorString)(result, &text);                                               \
            printf("%s: %s\n", TEXT(function), text);                                                                  \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

int main() {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        puts(dlerror());
        return 1;
    }
    char ptx[sizeof PTX + 64];
    strcpy(ptx, PTX);
    char *hole = strstr(ptx, "#ADD#");
#ifdef FAULT // an address that is none
    const char *line = "xor.b64 %rd2, %rd2, 0x8000000000000000;";
#else
    const char *line = "";
#endif
    char rest[sizeof PTX];
    strcpy(rest, hole + 5);
    strcpy(hole, line);
    strcat(hole, rest);
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction function;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, ptx);
    CALL(cuModuleGetFunction, &function, module, "through");
    CUdeviceptr table, data, calls;
    size_t size;
    CALL(cuMemAlloc, &table, sizeof data);
    CALL(cuMemAlloc, &data, 12);
    CALL(cuMemsetD32, data, 9, 3);
    CALL(cuMemcpyHtoD, table, &data, sizeof data);
    struct {
        CUdeviceptr table;
        unsigned value;
    } parameters = {table, 4711};
    size_t bytes = 12;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &parameters, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    CALL(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra);
    CALL(cuCtxSynchronize);
    unsigned host[3], count;
    CALL(cuMemcpyDtoH, host, data, sizeof host);
    CALL(cuModuleGetGlobal, &calls, &size, module, "calls");
    CALL(cuMemcpyDtoH, &count, calls, sizeof count);
    if (host[0] != 9 || host[1] != 4711 || host[2] != 9 || count != 6 || size != 4) {
        printf("%u %u %u, %u calls\n", host[0], host[1], host[2], count);
        return 1;
    }
    // A call that the stand-in does not have says so.
    CUgraph graph;
    if (DRIVER(cuGraphCreate)(&graph, 0) != CUDA_ERROR_NOT_SUPPORTED)
        return 1;
    puts("right");
}
