// Common part of gemv_stream and its two ways to multiply: constants and parameters.
#pragma once

#include "../shared.h"

enum {
    NVFP4_STREAM_TILE_ROWS = 16,
    NVFP4_STREAM_STEP_BLOCKS = 16,    /* of a row */
    NVFP4_STREAM_PIECE_BYTES = 512,   /* 16 bytes a lane: four lanes a row, half a step of eight rows */
    NVFP4_STREAM_STAGE_BYTES = 4 * NVFP4_STREAM_PIECE_BYTES + NVFP4_STREAM_TILE_ROWS * NVFP4_STREAM_STEP_BLOCKS,
    /* Bytes where rows may start anywhere (ragged_steps.cuh): there is a word more of each row's scales. */
    NVFP4_STREAM_RAGGED_ROW_SCALES = NVFP4_STREAM_STEP_BLOCKS + 4,
    NVFP4_STREAM_RAGGED_STAGE_BYTES =
        4 * NVFP4_STREAM_PIECE_BYTES + NVFP4_STREAM_TILE_ROWS * NVFP4_STREAM_RAGGED_ROW_SCALES,
    NVFP4_STREAM_PART_BYTES = 4,      /* which warps computed a tile */

    /* Warps of a CTA, at most, with few vectors and with more: vectors on their way to shared memory
     * take registers, of which a thread has 128 or 168. */
    NVFP4_STREAM_MAX_WARPS = 16,
    NVFP4_STREAM_MAX_WARPS_OF_MANY = 12,
    NVFP4_STREAM_MAX_WARPS_ORDERED = 16, /* of gemv_stream_ordered */

    /* Least number of vectors with which weights carry their scales (scaled_products.cuh). With fewer, blocks are
     * multiplied by themselves (block_products.cuh). Measured on an H200: docs/notes/stream.md. One or two vectors
     * leave a column of B, of eight, for each of a row's four lanes. */
    NVFP4_STREAM_SCALED_FROM = 4,
    NVFP4_STREAM_SCALED_FROM_BF16 = 2,
    NVFP4_STREAM_SCALED_FROM_F32 = 1,
    /* Columns of B of an f32 vector there: parts of its elements, which are bf16. */
    NVFP4_STREAM_F32_COLUMNS = 3,

    /* Bytes of a vector's block in shared memory, as integers or as 16-bit floats. */
    NVFP4_STREAM_INTEGER_BYTES = 16,
    NVFP4_STREAM_FLOAT_BYTES = 32,
    /* Where blocks are multiplied by themselves: columns of B that a bf16 vector takes, blocks of zeros, and
     * bytes beside each block of an NVFP4 vector, for its scale. */
    NVFP4_STREAM_BF16_COLUMNS = 2,
    NVFP4_STREAM_ZERO_BLOCKS = 10,
    NVFP4_STREAM_X_SCALE_BYTES = 8,
};

/* A row's place is its number in the order in which scales lie. In the 128x4 layout four rows 32 apart follow each
 * other. Of several batches, each has whole tiles of places, so that no tile has rows of two batches. A place without a
 * row is computed with zeros and not stored. */
typedef struct nvfp4_stream_params {
    int32_t m, n, l;
    uint32_t steps;     /* of a row, the last of which may have fewer blocks than others */
    uint32_t warps, stages;
    /* Warps that take steps of a row side by side are a group: 1 << beside_log2 of them. A group has group_steps of a
     * row, of which each of its warps takes one step. */
    uint32_t beside_log2, group_steps;
    /* See divide: of what warps are dealt of a tile, group_steps or parts, and of the groups of a CTA. */
    uint32_t dealt_magic, groups_magic;
    uint32_t places;    /* of a batch */
    uint32_t unit_log2; /* places that stay together: a row, or four */
    uint32_t units_per_cta, units_left; /* each CTA takes so many units; the first units_left one more */
    uint32_t x_batches; /* batches whose vectors a CTA keeps, at most; 1 where all batches share their vectors */
    uint32_t ahead; /* stages, below `stages`, that are asked for before the previous grid has ended */
    uint32_t far_ahead; /* fetch 256 bytes into L2 at once, not 128 */

    /* Offsets in dynamic shared memory, in bytes: the queues come first, then these. */
    uint32_t x_at, zero_at, x_scale_at, sums_at, parts_at;

    nvfp4_weights weights;
    nvfp4_vectors vectors;
    nvfp4_epilogue epilogue;
    nvfp4_select select; /* of gemv_stream_select */
    /* Of gemv_stream_ordered: steps that matrix instructions add up, of the last part of a row perhaps fewer; and parts
     * of a row. A warp takes whole parts. */
    uint32_t part_steps, parts;
} nvfp4_stream_params;

#ifdef __CUDACC__

#include <cstdint>

#include "../format/operands.cuh"
#include "../format/scale_steps.cuh"
#include "epilogue.cuh"

namespace nvfp4::stream {

using Params = nvfp4_stream_params;

// Whether batches select their matrix (nvfp4_select).
#ifdef NVFP4_UNIT_SELECT
constexpr bool kSelects = true;
#else
constexpr bool kSelects = false;
#endif
// Whether sums are added in the order of gemv_packed with long sums.
#ifdef NVFP4_UNIT_ORDERED
constexpr bool kOrdered = true;
#else
constexpr bool kOrdered = false;
#endif
constexpr int kWarp = NVFP4_WARP;
constexpr int kBlock = NVFP4_BLOCK;
constexpr uint32_t kTileRows = NVFP4_STREAM_TILE_ROWS;
constexpr uint32_t kStepBlocks = NVFP4_STREAM_STEP_BLOCKS;
constexpr uint32_t kRowCodes = 128; // bytes of a row's step
constexpr uint32_t kPieceBytes = NVFP4_STREAM_PIECE_BYTES;
constexpr uint32_t kStageCodes = 4 * kPieceBytes;

}  // namespace nvfp4::stream

#endif
