/*
 * A layer on the CPU, in C: of a checkpoint that is named, its first one, or of a dense matrix. And how a GPU that need
 * not be in this machine would compute it.
 *
 *     make -C crates/capi/examples run
 */
#include "nvfp4_gemv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void check(nvfp4_status status) {
    if (status != NVFP4_OK) {
        fprintf(stderr, "error %d: %s\n", status, nvfp4_last_error());
        exit(1);
    }
}

static nvfp4_linear *of_checkpoint(const char *path) {
    nvfp4_checkpoint *checkpoint;
    nvfp4_linear *linear;
    const char *name;
    check(nvfp4_checkpoint_open(path, &checkpoint));
    check(nvfp4_checkpoint_name(checkpoint, 0, &name));
    printf("layer %s\n", name);
    check(nvfp4_linear_from_checkpoint(checkpoint, name, &linear));
    nvfp4_checkpoint_close(checkpoint); /* the layer keeps the file open */
    return linear;
}

static nvfp4_linear *of_dense(void) {
    static float dense[32 * 64];
    nvfp4_linear *linear;
    for (size_t i = 0; i < sizeof dense / sizeof *dense; i++) {
        dense[i] = (float)(i % 7) - 3.0f;
    }
    check(nvfp4_linear_from_dense(NVFP4_F32, dense, sizeof dense, 32, 64, &linear));
    return linear;
}

int main(int count, char **arguments) {
    if (nvfp4_abi_version() != NVFP4_ABI_VERSION) {
        fprintf(stderr, "the library does not fit the header\n");
        return 1;
    }
    nvfp4_linear *linear = count > 1 ? of_checkpoint(arguments[1]) : of_dense();
    nvfp4_weights weights;
    check(nvfp4_linear_weights(linear, &weights));
    printf("%zu x %zu\n", weights.rows, weights.k);

    /* Two vectors; the second one is twice the first. */
    size_t n = 2;
    float *x = calloc(n * weights.k, sizeof *x), *y = calloc(n * weights.rows, sizeof *y);
    if (x == NULL || y == NULL) {
        return 1;
    }
    for (size_t i = 0; i < weights.k; i++) {
        x[i] = sinf((float)i);
        x[weights.k + i] = 2.0f * x[i];
    }
    nvfp4_vectors vectors = {
        .element = NVFP4_F32, .values = x, .values_bytes = n * weights.k * sizeof *x};
    nvfp4_output output = {
        .element = NVFP4_F32, .values = y, .values_bytes = n * weights.rows * sizeof *y};
    check(nvfp4_linear_prepare(linear, n, NVFP4_F32)); /* from here on a call allocates nothing */
    check(nvfp4_linear_forward(linear, &vectors, n, &output));
    printf("y begins with %g %g %g\n", y[0], y[1], y[2]);
    for (size_t row = 0; row < weights.rows; row++) {
        float bias = weights.bias == NULL ? 0.0f : weights.bias[row];
        float first = y[row] - bias, second = y[weights.rows + row] - bias;
        if (fabsf(second - 2.0f * first) > 1e-4f * (fabsf(first) + fabsf(bias))) {
            fprintf(stderr, "row %zu: %g is not twice %g\n", row, second, first);
            return 1;
        }
    }

    nvfp4_gpu *gpu;
    char *plan;
    nvfp4_problem problem = {.rows = weights.rows, .k = weights.k, .n = n, .element = NVFP4_F32};
    check(nvfp4_gpu_of_product("h200", &gpu));
    check(nvfp4_plan(gpu, &problem, NVFP4_TEXT, &plan));
    printf("on an H200: %s\n", plan);
    nvfp4_text_free(plan);
    nvfp4_gpu_free(gpu);
    nvfp4_linear_free(linear);
    free(x);
    free(y);
    printf("as expected\n");
    return 0;
}
