/*
 * A layer in a GPU's memory, in C: a call that is prepared once, compared with the CPU, and how long the host takes to
 * enqueue it. Needs CUDA's headers and libcuda, and the library with a feature of GPUs:
 *
 *     make -C crates/capi/examples device FEATURES=cuda CUDA=/usr/local/cuda
 */
#include "nvfp4_gemv.h"

#include <cuda.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROWS = 4096, K = 4096, N = 2, LAUNCHES = 64, TURNS = 200 };

static void check(nvfp4_status status) {
    if (status != NVFP4_OK) {
        fprintf(stderr, "error %d: %s\n", status, nvfp4_last_error());
        exit(1);
    }
}

static void cuda(CUresult result) {
    if (result != CUDA_SUCCESS) {
        const char *what = "unknown";
        cuGetErrorString(result, &what);
        fprintf(stderr, "CUDA: %s\n", what);
        exit(1);
    }
}

/* What a layer does not have stays an address of 0. */
static CUdeviceptr upload(const void *bytes, size_t count) {
    CUdeviceptr address = 0;
    if (bytes == NULL) return address;
    cuda(cuMemAlloc(&address, count));
    cuda(cuMemcpyHtoD(address, bytes, count));
    return address;
}

static double now(void) {
    struct timespec time;
    timespec_get(&time, TIME_UTC);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int main(void) {
    CUdevice device;
    CUcontext context;
    CUstream stream;
    cuda(cuInit(0));
    cuda(cuDeviceGet(&device, 0));
    cuda(cuDevicePrimaryCtxRetain(&context, device));
    cuda(cuCtxSetCurrent(context));
    cuda(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));

    /* A layer of the host, with factors and a bias, as a checkpoint's may have them: its parts go to the device. */
    float *dense = malloc(sizeof(float) * ROWS * K), *x = malloc(sizeof(float) * N * K);
    for (size_t i = 0; i < (size_t)ROWS * K; i++) dense[i] = (float)((i * 7919 + i / K) % 61) - 30.0f;
    for (size_t i = 0; i < (size_t)N * K; i++) x[i] = (float)(i % 13) - 6.0f;
    float *row_alpha = malloc(sizeof(float) * ROWS), *bias = malloc(sizeof(float) * ROWS);
    for (size_t i = 0; i < ROWS; i++) row_alpha[i] = 1.0f + (float)(i % 3), bias[i] = 1e4f * ((float)(i % 5) - 2.0f);
    nvfp4_linear *plain, *linear;
    nvfp4_weights parts;
    check(nvfp4_linear_from_dense(NVFP4_F32, dense, sizeof(float) * ROWS * K, ROWS, K, &plain));
    check(nvfp4_linear_weights(plain, &parts));
    parts.row_alpha = row_alpha, parts.bias = bias;
    check(nvfp4_linear_from_parts(&parts, &linear));
    nvfp4_linear_free(plain);
    check(nvfp4_linear_weights(linear, &parts));
    float *expected = calloc(N * ROWS, sizeof(float)), *y = calloc(N * ROWS, sizeof(float));
    nvfp4_vectors vectors = {.element = NVFP4_F32, .values = x, .values_bytes = sizeof(float) * N * K};
    nvfp4_output output = {.element = NVFP4_F32, .values = expected, .values_bytes = sizeof(float) * N * ROWS};
    check(nvfp4_linear_forward(linear, &vectors, N, &output));

    nvfp4_device_weights weights = {
        .rows = parts.rows,
        .k = parts.k,
        .codes = upload(parts.codes, parts.codes_bytes),
        .scales = upload(parts.scales, parts.scales_bytes),
        .layout = parts.layout,
        .global_kind = parts.global_kind,
        .global = parts.global,
        .row_alpha = upload(parts.row_alpha, sizeof(float) * parts.rows),
    };
    nvfp4_device_vectors on_device = {.element = NVFP4_F32, .values = upload(x, sizeof(float) * N * K)};
    nvfp4_device_output results = {
        .element = NVFP4_F32,
        .values = upload(y, sizeof(float) * N * ROWS),
        .bias = upload(parts.bias, sizeof(float) * parts.rows),
    };

    cuda(cuCtxSynchronize()); /* the copies have ended: the stream below is in no order with them */

    nvfp4_gpu *gpu;
    nvfp4_call *call;
    char *text;
    check(nvfp4_gpu_of_device(0, &gpu));
    check(nvfp4_call_prepare(gpu, &weights, &on_device, N, &results, NULL, 0, &call));
    check(nvfp4_call_plan(call, NVFP4_TEXT, &text));
    printf("%s\n", text);
    nvfp4_text_free(text);

    check(nvfp4_call_launch(call, stream));
    cuda(cuStreamSynchronize(stream));
    cuda(cuMemcpyDtoH(y, results.values, sizeof(float) * N * ROWS));
    float most = 0.0f;
    for (size_t i = 0; i < N * ROWS; i++) most = fmaxf(most, fabsf(expected[i]));
    size_t wrong = 0;
    for (size_t i = 0; i < N * ROWS; i++) wrong += !(fabsf(y[i] - expected[i]) <= 1e-4f * most);
    printf("largest result %g; %zu results are not near the CPU's\n", most, wrong);

    double best = INFINITY;
    for (int turn = 0; turn < TURNS; turn++) {
        double begin = now();
        for (int i = 0; i < LAUNCHES; i++) check(nvfp4_call_launch(call, stream));
        double end = now();
        cuda(cuStreamSynchronize(stream));
        best = fmin(best, (end - begin) / LAUNCHES);
    }
    printf("a launch takes the host %.2f us\n", 1e6 * best);

    nvfp4_call_free(call);
    nvfp4_gpu_free(gpu);
    nvfp4_linear_free(linear);
    free(dense), free(row_alpha), free(bias), free(x), free(expected), free(y);
    return wrong == 0 ? 0 : 1;
}
