// Whole steps of gemv_stream: K is a multiple of 256, and codes and scales are aligned to 16 bytes.
//
// A row's step is eight pieces of 16 bytes of codes. Lane 4 * g + t copies pieces t and t + 4 of rows g and g + 8. It
// multiplies these, or in the order of gemv_packed (kOrdered) pieces 2t and 2t + 1, which other lanes copied. So that
// the eight lanes that read together use every bank once, lanes exchange the places of pieces t + 4 in pairs.
#pragma once

#include "../arch/cp_async.cuh"
#include "../arch/registers.cuh"
#include "../arch/shared.cuh"
#include "stream_work.cuh"

namespace nvfp4::stream {

struct WholeSteps {
    static constexpr uint32_t kStageBytes = NVFP4_STREAM_STAGE_BYTES;
    static constexpr bool kWhole = true;

    // Blocks of a row.
    __device__ static __forceinline__ uint32_t blocks(const Params &p) { return p.steps * kStepBlocks; }

    // Sources of a lane's copies, for the steps of a tile that its warp takes. Lane 4 * g + t copies word t of the
    // scales, too.
    struct Sources {
        const uint8_t *codes[2], *scales[2]; // in rows g and g + 8, past the last of the steps
        bool has[2];                         // there are such rows

        // Enters a tile, for its steps before step `end`.
        __device__ __forceinline__ void enter(const Params &p, const LaneRows &rows, uint32_t lane, uint32_t end) {
            const uint32_t t = lane % 4;
            const int64_t group = p.weights.scale_steps.group_stride;
            const uint8_t *const c = rows.codes(p) + end * kRowCodes + t * 16;
            const uint8_t *const s = rows.scales(p) + (end * (kStepBlocks / 4) + t) * group;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                // Where the CTA has no such row, zeros are computed with, and not stored.
                has[i] = rows.has[i];
                codes[i] = c + rows.row[i] * p.weights.row_bytes;
                scales[i] = s + rows.scales_of(p, i);
            }
        }

        // Copies a step, counted back from the end in steps of the row: -1 is the row's last one. A warp of a group
        // takes every so many of these steps. `to` is the shared address of this lane's pieces in the stage. With
        // kBeside L2 fetches 128 bytes of block scales at once, which the group's other warps need soon.
        template <bool kBeside>
        __device__ __forceinline__ void copy(const Params &p, int32_t here, uint32_t to, uint32_t lane) const {
            const uint32_t scales_to = to + kStageCodes - lane * 16 + lane * 4;
            const int32_t scale_step = kStepBlocks / 4 * p.weights.scale_steps.group_stride;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint8_t *from = codes[i] + int64_t(here) * int32_t(kRowCodes);
                if (p.far_ahead) {
                    arch::cp_async_16<256>(to + 2 * i * kPieceBytes, from, has[i]);
                } else {
                    arch::cp_async_16<128>(to + 2 * i * kPieceBytes, from, has[i]);
                }
                const uint32_t second = kOrdered ? to ^ 16 : to;
                arch::cp_async_16<128>(second + (2 * i + 1) * kPieceBytes, from + kRowCodes / 2, has[i]);
                const uint32_t row_to = scales_to + i * 8 * kStepBlocks;
                const uint8_t *const row = arch::mad_wide_s32(here, scale_step, scales[i]);
                if constexpr (kBeside) {
                    arch::cp_async_4_of_128(row_to, row, has[i]);
                } else {
                    arch::cp_async_4(row_to, row, has[i]);
                }
            }
        }
    };

    // Reads a lane's codes and scales from a stage.
    struct Reader {
        __device__ __forceinline__ void enter(const Params &, uint32_t, uint32_t, uint32_t) {}

        // Reads a step's codes and scales. `from` is the shared address of this lane's pieces in the stage.
        __device__ __forceinline__ void read(const Params &, uint32_t, uint32_t from, uint32_t lane,
                                             uint4 (&codes)[2][2], uint32_t (&scale_codes)[2][2]) const {
            const uint32_t g = lane / 4, t = lane % 4;
            if constexpr (kOrdered) {
                const uint32_t stage = from - lane * 16;
                const uint32_t first = stage + t / 2 * kPieceBytes + (4 * g + t % 2 * 2 + t / 2) * 16;
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const uint32_t scales = arch::ld_shared_32(stage + kStageCodes + (g + 8 * i) * kStepBlocks + 4 * t);
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        codes[i][h] = arch::ld_shared_128((first ^ h * 16) + 2 * i * kPieceBytes);
                        scale_codes[i][h] = scales >> 16 * h;
                    }
                }
                return;
            }
            const uint32_t scales_from = from + kStageCodes - lane * 16 + g * kStepBlocks + 2 * t;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    codes[i][h] = arch::ld_shared_128(from + (2 * i + h) * kPieceBytes);
                    scale_codes[i][h] = arch::ld_shared_16(scales_from + i * 8 * kStepBlocks + h * 8);
                }
            }
        }
    };
};

}  // namespace nvfp4::stream
