/* nvfp4-gemv: y[l][n][m] = alpha * sum_k w[l][m][k] * x[l][n][k], w in NVFP4.
 *
 * The only C ABI of the CUDA paths, and bindgen's input. Every function may be called from any
 * thread; device work goes to the stream given, in the context that is current, and nothing is
 * allocated, synchronised or copied: every call can be captured into a CUDA graph, on any stream
 * but the legacy default one. Addresses must then stay valid until the last replay has run.
 */
#ifndef NVFP4_GEMV_H
#define NVFP4_GEMV_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Element type of the vectors. */
enum nvfp4_activation {
    NVFP4_ACTIVATION_NVFP4 = 0, /* packed E2M1, E4M3 block scales */
    NVFP4_ACTIVATION_F16 = 1,
    NVFP4_ACTIVATION_BF16 = 2,
    NVFP4_ACTIVATION_F32 = 3,
};

/* Element type of the output. */
enum nvfp4_output {
    NVFP4_OUTPUT_F16 = 0,
    NVFP4_OUTPUT_BF16 = 1,
    NVFP4_OUTPUT_F32 = 2,
};

/* Order of block scales in memory. */
enum nvfp4_scale_layout {
    NVFP4_SCALES_LINEAR = 0, /* [rows][K/16] */
    NVFP4_SCALES_128X4 = 1,  /* atoms of 128 rows x 4 scales, padded to whole atoms */
};

/* One problem. Pointers are device addresses; strides are in bytes unless they say otherwise.
 * The caller has checked everything: the launchers trust it. */
typedef struct nvfp4_gemv_args {
    int32_t m; /* rows of the weights, > 0 */
    int32_t n; /* vectors a batch, 1 to 16 */
    int32_t k; /* elements of a row, > 0, a multiple of 16 */
    int32_t l; /* batches, > 0 */

    uint64_t weight_codes;        /* [L][M][K/2], 8-byte aligned */
    uint64_t weight_scales;       /* E4M3, in the layout below, 4-byte aligned when 128x4 */
    int32_t weight_scale_layout;  /* enum nvfp4_scale_layout */
    float alpha;                  /* multiplies every output */
    uint64_t row_alpha;           /* f32, multiplies row m by element m; or 0 */
    int64_t row_alpha_batch_stride; /* in elements; 0 where all batches share them */

    int32_t activation;           /* enum nvfp4_activation */
    int32_t vector_scale_layout;  /* enum nvfp4_scale_layout, for NVFP4 vectors */
    uint64_t vectors;             /* NVFP4: 8-byte aligned; others: 16-byte aligned */
    int64_t vector_row_stride;    /* the same alignment */
    int64_t vector_batch_stride;  /* the same alignment */
    uint64_t vector_scales;       /* E4M3, for NVFP4 vectors; or 0 */
    int64_t vector_scale_row_stride; /* linear layout only */
    int64_t vector_scale_batch_stride;
    uint64_t vector_alpha;        /* f32 [L][N], multiplies each vector's outputs; or 0 */

    uint64_t output;              /* [L][N][M], aligned to its element */
    int32_t output_type;          /* enum nvfp4_output */
} nvfp4_gemv_args;

/* The kernels of the CUDA-core path. */
enum nvfp4_cuda_core_kernel {
    NVFP4_KERNEL_DIRECT = 0,      /* every activation; vectors decoded where they are used */
    NVFP4_KERNEL_INTEGER_DOT = 1, /* NVFP4 vectors, kept in shared memory as integers; as f16 with
                                     four blocks a load */
};

/* Which kernel, and how it cuts a problem. */
typedef struct nvfp4_cuda_core_config {
    int32_t kernel;          /* enum nvfp4_cuda_core_kernel */
    int32_t blocks_per_load; /* 4: 32-byte loads; integer dot on compute capability 10.0 and newer,
                                in architecture-specific code; needs K % 64 == 0, codes 32-byte and
                                scales 4-byte aligned. 2: 16-byte loads; needs K % 32 == 0, codes
                                16-byte and scales 2-byte aligned. 1: 8-byte loads. */
    int32_t warps;           /* warps a CTA: 1 to 8; integer dot with one or two vectors to 16 */
    int32_t k_split;         /* warps that share a row tile; divides `warps` */
    int32_t ctas;            /* integer dot: CTAs that share a batch's rows, > 0 */
    int32_t dependent;       /* 1: programmatic dependent launch, as in nvfp4_tile_config */
} nvfp4_cuda_core_config;

/* How the kernels that stream tiles of 128 rows through shared memory cut a problem. */
typedef struct nvfp4_tile_config {
    int32_t stages;    /* K steps of 256 elements in flight a CTA, 2 to 12; CUDA cores: even */
    int32_t cluster;   /* CTAs that share a tile's K steps, 1 to 8, none without a step */
    int32_t mma_n;     /* tensor cores: N of the matrix instruction, 16, 64 or 128; else 0 */
    int32_t dependent; /* 1: programmatic dependent launch. Weights and their scales are read before
                          the kernels before this one have ended: no kernel that may still be
                          running writes them. Those are all launches of this kind right before it
                          in the stream, and the kernel before the first of these. */
} nvfp4_tile_config;

/* How gemv_stream cuts a problem. */
typedef struct nvfp4_stream_config {
    int32_t warps;     /* of a CTA, 1 to 16; 12 with more than two vectors in a pass */
    int32_t stages;    /* of a warp's queue, 16 rows of 256 elements each: 3, 4 or 6 */
    int32_t vectors;   /* of a pass over the weights, at most: 1, 2, 4 or 8; at most four passes */
    int32_t fetch;     /* bytes of weights that L2 fetches at once: 128 or 256 */
    int32_t ctas;      /* that share the rows of all batches, > 0 */
    int32_t dependent; /* 1: programmatic dependent launch, as in nvfp4_tile_config */
} nvfp4_stream_config;

/* How gemv_ring cuts a problem. */
typedef struct nvfp4_ring_config {
    int32_t chunks;    /* of 32 elements that a thread has of a row: 1 or 2 */
    int32_t groups;    /* of warps, as many as a row takes, that share a CTA's rows; 16 warps at most */
    int32_t rows;      /* of a bulk copy's stage: 1, 2 or 4 */
    int32_t depth;     /* of a group's ring, four rows each: 1 to 8 */
    int32_t granule;   /* rows that stay in one CTA: 1 or 4 */
    int32_t cached;    /* not 0: block scales are kept in L1 */
    int32_t ctas;      /* that share the rows of all batches, > 0 */
    int32_t dependent; /* 1: programmatic dependent launch, as in nvfp4_tile_config */
} nvfp4_ring_config;

/* One problem's launches, with the addresses of its operands: bytes that own nothing, to be allocated,
 * copied and dropped by the caller. Written by nvfp4_gemv_prepare_*. */
typedef struct nvfp4_gemv_prepared {
    uint64_t opaque[512];
} __attribute__((aligned(64))) nvfp4_gemv_prepared;

/* What dispatch asks of a device. */
typedef struct nvfp4_device_info {
    char name[256];
    int32_t compute_major;
    int32_t compute_minor;
    int32_t multiprocessors;
    int32_t l2_bytes;
    int32_t shared_bytes; /* the most that a CTA can ask for */
    int64_t memory_bytes;
} nvfp4_device_info;

/* Each returns 0 or a cudaError_t. */

/* Prepares one problem's launches for the context that is current, and loads their kernels; enqueues
 * nothing. */

/* CUDA cores, sm_80 and newer. */
int32_t nvfp4_gemv_prepare_cuda_core(nvfp4_gemv_prepared *prepared, const nvfp4_gemv_args *args,
                                     const nvfp4_cuda_core_config *config);

/* The tiled kernels: NVFP4 vectors, both operands' scales 128x4, K a multiple of 32, codes and their
 * strides multiples of 16 bytes, scales aligned to 16 bytes. */

/* Tensor cores: compute capability 10.0 and 10.3. */
int32_t nvfp4_gemv_prepare_tensor_core(nvfp4_gemv_prepared *prepared, const nvfp4_gemv_args *args,
                                       const nvfp4_tile_config *config);

/* CUDA cores with the same load pipeline: compute capability 9.0 and newer. */
int32_t nvfp4_gemv_prepare_cuda_core_tma(nvfp4_gemv_prepared *prepared, const nvfp4_gemv_args *args,
                                         const nvfp4_tile_config *config);

/* CUDA cores with matrix instructions, sm_80 and newer: NVFP4, f16 and bf16 vectors; K a multiple of 256;
 * the weights' codes aligned to 16 bytes and their scales to 4. */
int32_t nvfp4_gemv_prepare_stream(nvfp4_gemv_prepared *prepared, const nvfp4_gemv_args *args,
                                  const nvfp4_stream_config *config);

/* CUDA cores fed by bulk copies, sm_90 and newer: NVFP4 vectors, n = 1; K a multiple of 256, M of 4 where
 * there are several batches, and of 128 where there are several and the scales are 128x4; the weights' codes
 * and scales aligned to 16 bytes. */
int32_t nvfp4_gemv_prepare_ring(nvfp4_gemv_prepared *prepared, const nvfp4_gemv_args *args,
                                const nvfp4_ring_config *config);

/* Enqueues prepared launches, as often as wanted, from any threads. The context that they were prepared
 * for is current. */
int32_t nvfp4_gemv_launch(const nvfp4_gemv_prepared *prepared, void *stream);

/* Prepare and launch at once. */
int32_t nvfp4_gemv_cuda_core(const nvfp4_gemv_args *args, const nvfp4_cuda_core_config *config,
                             void *stream);
int32_t nvfp4_gemv_tensor_core(const nvfp4_gemv_args *args, const nvfp4_tile_config *config,
                               void *stream);
int32_t nvfp4_gemv_cuda_core_tma(const nvfp4_gemv_args *args, const nvfp4_tile_config *config,
                                 void *stream);
int32_t nvfp4_gemv_stream(const nvfp4_gemv_args *args, const nvfp4_stream_config *config,
                          void *stream);
int32_t nvfp4_gemv_ring(const nvfp4_gemv_args *args, const nvfp4_ring_config *config, void *stream);

/* Enqueues a kernel that only reads `bytes` (rounded down to 16) at `data`, 16-byte aligned: the
 * ceiling for any kernel that must read them. `sink` is 4 bytes that are practically never
 * written. */
int32_t nvfp4_gemv_read_only(uint64_t data, int64_t bytes, uint64_t sink, int32_t multiprocessors,
                             void *stream);

/* Devices the driver shows; fails where there is no driver. */
int32_t nvfp4_gemv_device_count(int32_t *count);

/* Versions as 1000 * major + 10 * minor. A missing driver is version 0, not an error. */
int32_t nvfp4_gemv_versions(int32_t *driver, int32_t *runtime);

/* Properties of a device. */
int32_t nvfp4_gemv_device_info(int32_t device, nvfp4_device_info *info);

/* The device that is current on this thread. */
int32_t nvfp4_gemv_current_device(int32_t *device);

/* CUDA's text for a code that one of these returned. Static storage. */
const char *nvfp4_gemv_error_string(int32_t code);

/* Where the global scales of quantised vectors come from. */
enum nvfp4_global {
    NVFP4_GLOBAL_COMPUTED = 0,   /* each vector's largest magnitude / 2688; 1 for zeros */
    NVFP4_GLOBAL_SHARED = 1,     /* `global` for all */
    NVFP4_GLOBAL_PER_VECTOR = 2, /* `globals`, one a vector */
};

/* Vectors to quantise, and where to. A vector that holds a NaN or an infinity, or whose global scale
 * in `globals` is not positive and finite, is written as zeros with NaN in vector_alpha. The caller
 * has checked everything; no two regions overlap. */
typedef struct nvfp4_quantize_args {
    int32_t n; /* vectors a batch, 1 to 16 */
    int32_t k; /* elements of a vector, > 0, a multiple of 16 */
    int32_t l; /* batches, > 0 */

    int32_t source;              /* enum nvfp4_activation, not NVFP4 */
    uint64_t vectors;            /* 16-byte aligned */
    int64_t vector_row_stride;   /* the same alignment */
    int64_t vector_batch_stride; /* the same alignment */

    int32_t global_kind; /* enum nvfp4_global */
    float global;        /* a multiplier, positive and finite; for SHARED */
    uint64_t globals;    /* f32 [L][N], multipliers; for PER_VECTOR */

    uint64_t codes;        /* out: [L][N][K/2], 8-byte aligned */
    uint64_t scales;       /* out: E4M3, dense batches, padding zeroed; 16-byte aligned when 128x4 */
    int32_t scale_layout;  /* enum nvfp4_scale_layout */
    int32_t ctas;          /* CTAs that share a vector, > 0; the result does not depend on it */
    uint64_t vector_alpha; /* out: f32 [L][N], the multipliers, as nvfp4_gemv_args takes them */
} nvfp4_quantize_args;

/* Block scales [L][M][K/16] to bring from one layout into the other, densely packed batches. The
 * regions do not overlap. The 128x4 side is 16-byte aligned, and its padding is written as zeros. */
typedef struct nvfp4_relayout_args {
    int32_t m;  /* rows, > 0 */
    int32_t k;  /* elements of a row, > 0, a multiple of 16 */
    int32_t l;  /* batches, > 0 */
    int32_t to; /* enum nvfp4_scale_layout; the source has the other one */
    uint64_t source;
    uint64_t destination;
} nvfp4_relayout_args;

/* Enqueues the quantisation of vectors. sm_80 and newer. Returns 0 or a cudaError_t. From sm_90 on
 * it lets grids launched with programmatic stream serialisation start before it has written: they
 * wait (griddepcontrol.wait) before they read. Other launches are ordered as always. */
int32_t nvfp4_gemv_quantize(const nvfp4_quantize_args *args, void *stream);

/* Enqueues the change of a scale layout. Returns 0 or a cudaError_t. */
int32_t nvfp4_gemv_relayout(const nvfp4_relayout_args *args, void *stream);

#ifdef __cplusplus
}
#endif

#endif
