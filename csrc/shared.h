/* Constants and structures that the kernels share with the code that plans their launches, in plain C. The kernels
 * include this file; bindgen makes src/kernel/params.rs of it and of the first part of each kernel's file. */
#ifndef NVFP4_SHARED_H
#define NVFP4_SHARED_H

#include <stdbool.h>
#include <stdint.h>

/* A device address: a pointer for the kernels, a number for the code that plans. */
#ifdef __CUDACC__
#define NVFP4_POINTER(type) type *
#else
#define NVFP4_POINTER(type) uint64_t
#endif

/* Element type of the vectors. */
enum {
    NVFP4_ACTIVATION_NVFP4 = 0, /* packed E2M1, E4M3 block scales */
    NVFP4_ACTIVATION_F16 = 1,
    NVFP4_ACTIVATION_BF16 = 2,
    NVFP4_ACTIVATION_F32 = 3,
};

/* Element type of the output. */
enum {
    NVFP4_OUTPUT_F16 = 0,
    NVFP4_OUTPUT_BF16 = 1,
    NVFP4_OUTPUT_F32 = 2,
};

/* Order of block scales in memory. */
enum {
    NVFP4_SCALES_LINEAR = 0, /* [rows][K/16] */
    NVFP4_SCALES_128X4 = 1,  /* atoms of 128 rows x 4 scales, padded to whole atoms */
};

/* Source of the global scales of quantised vectors. */
enum {
    NVFP4_GLOBAL_COMPUTED = 0,   /* each vector's largest magnitude / 2688; 1 for zeros */
    NVFP4_GLOBAL_SHARED = 1,     /* `global` for all */
    NVFP4_GLOBAL_PER_VECTOR = 2, /* `globals`, one a vector */
};

/* What a gate does, of a layer's two halves `gate` and `up`; see src/gate.rs. */
enum {
    NVFP4_GATE_SILU = 0,
    NVFP4_GATE_GELU_TANH = 1,
    NVFP4_GATE_CLAMPED = 2,
};

typedef struct nvfp4_gate {
    int32_t kind;        /* NVFP4_GATE_* */
    int32_t interleaved; /* gate and up take turns, element by element: 1, or all of gate comes first: 0 */
    float alpha, limit;  /* of CLAMPED; else 0 */
} nvfp4_gate;

/* How the vectors of a call become NVFP4 ones, where a kernel quantises them when it reads them: nvfp4_vectors has their
 * elements then, and no scales. The result has the bits of `quantize_*`. */
typedef struct nvfp4_on_read {
    int32_t element;     /* NVFP4_ACTIVATION_F16, _BF16 or _F32 */
    int32_t gated;       /* `gate` makes one element of two: 1, or 0 */
    nvfp4_gate gate;
    int32_t global_kind; /* NVFP4_GLOBAL_COMPUTED or _SHARED */
    float global;        /* a multiplier, positive and finite; for SHARED */
    uint32_t copies;     /* batches that follow each other and have the same vectors */
} nvfp4_on_read;

enum {
    NVFP4_WARP = 32,  /* threads */
    NVFP4_BLOCK = 16, /* elements that share a scale */
    /* The most vectors of a pass that are few. Their sums leave a thread registers for more rows, or a CTA for more
     * warps, or an SM for a second CTA. */
    NVFP4_FEW_VECTORS = 2,
};

/* An atom of the 128x4 layout: the scales of 128 rows and four blocks. A line of an atom has the scales of the rows r,
 * r + 32, r + 64 and r + 96. */
enum {
    NVFP4_ATOM_ROWS = 128,
    NVFP4_ATOM_BLOCKS = 4,
    NVFP4_ATOM_BYTES = NVFP4_ATOM_ROWS * NVFP4_ATOM_BLOCKS,
    NVFP4_ATOM_LINES = 32,
    NVFP4_ATOM_LINE_BYTES = NVFP4_ATOM_BYTES / NVFP4_ATOM_LINES,
};

/* Offset of the block scale of (row, block), in one form for both layouts: the sum of
 *   linear  row * row_stride                                              and block
 *   128x4   row/128 * row_stride + row%32 * 16 + row%128/32 * 4           and block/4 * 512 + block%4
 * Since block = block/4 * 4 + block%4, only the step from one group of four blocks to the next differs
 * along K. */
typedef struct nvfp4_scale_steps {
    int64_t row_stride;   /* linear: bytes of a row; 128x4: bytes of a block of 128 rows */
    int32_t group_stride; /* bytes from four blocks to the next four: 4, or 512 */
    int32_t tiled;        /* 128x4: 1, else 0 */
} nvfp4_scale_steps;

/* The three operands of a call, by address. Every kernel's parameters have them, beside the kernel's own geometry.
 * csrc/format/operands.cuh has the addresses of a batch's weights and vectors, csrc/kernels/epilogue.cuh the rest. */

/* The weights: one matrix for each batch, or the matrices that nvfp4_select names. */
typedef struct nvfp4_weights {
    NVFP4_POINTER(const uint8_t) codes;
    NVFP4_POINTER(const uint8_t) scales;
    nvfp4_scale_steps scale_steps;
    /* Bytes of codes from a row to the next and from a matrix to the next; bytes of scales from a matrix to the
     * next. */
    int64_t row_bytes, matrix_bytes, scale_matrix_bytes;
} nvfp4_weights;

/* The matrix of each batch, in the parameters of kernels that take a selection: see `selected`. */
typedef struct nvfp4_select {
    NVFP4_POINTER(const int32_t) ids; /* [L]; or null: batch l has matrix l */
    uint32_t matrices;                /* that there are */
    uint32_t late;                    /* a grid of the chain may write the ids: 1 or 0 */
} nvfp4_select;

/* Batches of one vector that select the same matrix, as `bundle_batches` lists them. A bundle is a matrix and such batches,
 * up to `width`, whose vectors are multiplied as vectors of that matrix. */
typedef struct nvfp4_bundles {
    NVFP4_POINTER(uint32_t) count;  /* of bundles; or null: batches are not bundled */
    NVFP4_POINTER(int32_t) batches; /* [bundles][width]: -1 behind a bundle's last batch */
} nvfp4_bundles;

/* The vectors of a pass: those of a batch follow each other. All batches share them where a batch's bytes are 0. */
typedef struct nvfp4_vectors {
    NVFP4_POINTER(const uint8_t) values; /* codes or elements */
    NVFP4_POINTER(const uint8_t) scales; /* of NVFP4 vectors; or null */
    nvfp4_scale_steps scale_steps;
    /* Bytes of values from a vector to the next and from a batch to the next; bytes of scales from a batch to the
     * next. */
    int64_t row_bytes, batch_bytes, scale_batch_bytes;
} nvfp4_vectors;

/* Epilogue of a sum: sum * alpha * row_alpha * vector_alpha + (bias + residual), rounded to the output's type. */
typedef struct nvfp4_epilogue {
    float alpha;            /* multiplies every output */
    int32_t output_type;    /* NVFP4_OUTPUT_* */
    int32_t has_operands;   /* whether one at least of those below, each of which may be null, is given: 1 or 0 */
    int32_t output_vector;  /* elements from a vector's outputs to the next one's */
    NVFP4_POINTER(void) output;
    int64_t output_batch;   /* elements from a batch's outputs to the next one's */
    NVFP4_POINTER(const float) row_alpha;    /* multiplies row m by element m */
    int64_t row_alpha_batch;                 /* elements from a matrix's to the next one's */
    NVFP4_POINTER(const float) vector_alpha; /* multiplies vector n by element n */
    int64_t vector_alpha_batch;              /* elements from a batch's to the next one's */
    NVFP4_POINTER(const float) bias;         /* element m is added to row m */
    int64_t bias_batch;                      /* elements from a matrix's to the next one's */
    NVFP4_POINTER(const void) residual;      /* added to outputs, of their type and strides; may be the output */
} nvfp4_epilogue;

/* Order of the 16-byte pieces that a tensor copy brings to shared memory. */
enum {
    NVFP4_SWIZZLE_NONE = 0,
    NVFP4_SWIZZLE_128 = 1, /* in rows of 128 bytes; repeats every eight rows */
};

enum {
    NVFP4_OLDEST_DRIVER = 12000, /* that has all functions that are called, as 1000 * major + 10 * minor of its CUDA */
};

enum {
    NVFP4_TENSOR_MAP_RANK = 4,   /* the most dimensions that a description has */
    NVFP4_TENSOR_MAP_BYTES = 128, /* of an encoded map */
    NVFP4_TENSOR_MAP_ALIGN = 64,  /* of where the driver encodes one */
};

/* A tensor map before the driver encodes it: bytes in memory as a box of dimensions, the innermost one first, and the
 * part of the box that one copy takes. L2 fetches 256 bytes at once. Elements outside of the tensor arrive as zeros. */
typedef struct nvfp4_tensor_map {
    NVFP4_POINTER(const void) address;
    uint64_t size[NVFP4_TENSOR_MAP_RANK];
    uint64_t stride[NVFP4_TENSOR_MAP_RANK]; /* bytes; of the innermost dimension 1 */
    uint32_t box_size[NVFP4_TENSOR_MAP_RANK];
    uint32_t rank;
    uint32_t swizzle; /* NVFP4_SWIZZLE_* */
} nvfp4_tensor_map;

#endif
