// What gemv_stream and its two ways to multiply share.
#pragma once

#include <cstdint>

#include "../format/scale_layout.cuh"
#include "epilogue.cuh"

namespace nvfp4::stream {

constexpr uint32_t kTileRows = 16;
constexpr uint32_t kStepBlocks = 16;  // of a row
constexpr uint32_t kRowCodes = 128;   // bytes of a row's step
constexpr uint32_t kPieceBytes = 512; // 16 bytes a lane: four lanes a row, half a step of eight rows
constexpr uint32_t kStageCodes = 4 * kPieceBytes;
constexpr uint32_t kStageBytes = kStageCodes + kTileRows * kStepBlocks;

// Rows are counted in the order in which their scales lie: a row's place. In the 128x4 layout four rows 32
// apart follow each other. Of several batches, each has whole tiles of places, so that no tile has rows of
// two; what has no row there is computed with zeros and not stored.
struct Params {
    int32_t m, n, l;
    uint32_t steps;     // of a row
    uint32_t warps, stages;
    uint32_t steps_magic, warps_magic; // see divide
    uint32_t places;    // of a batch
    uint32_t unit_log2; // places that stay together: a row, or four
    uint32_t units_per_cta, units_left; // each CTA takes so many units; the first units_left one more
    uint32_t x_batches; // batches whose vectors a CTA keeps
    uint32_t dependent; // the launch may overlap with the previous grid
    uint32_t far_ahead; // fetch 256 bytes into L2 at once, not 128

    // Dynamic shared memory, in bytes from its start: the queues, then these.
    uint32_t x_at, zero_at, x_scale_at, sums_at, parts_at;

    const uint8_t *codes;
    const uint8_t *scales;
    ScaleLayout scale_layout;
    int64_t code_row_bytes, scale_batch_bytes;

    const uint8_t *vectors;
    int64_t vector_row_bytes, vector_batch_bytes;
    const uint8_t *vector_scales;
    ScaleLayout vector_scale_layout;
    int64_t vector_scale_batch_bytes;

    Epilogue epilogue;
};

// Keeps a value in its register: the compiler would compute it again wherever it is used.
__device__ __forceinline__ uint32_t keep(uint32_t value) {
    asm volatile("" : "+r"(value));
    return value;
}

}  // namespace nvfp4::stream
