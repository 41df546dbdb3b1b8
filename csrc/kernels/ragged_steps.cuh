// Steps of gemv_stream for any K, a multiple of 16: a row of codes starts at a multiple of 8 bytes, its linear scales
// anywhere, and its last step may have fewer than 16 blocks.
//
// A stage has the codes where WholeSteps has them, block by block. Of a row's linear scales it has the words, of four
// bytes, that they touch: five where they do not start with one.
#pragma once

#include "../arch/copy_async.cuh"
#include "../arch/shared.cuh"
#include "stream_work.cuh"

namespace nvfp4::stream {

struct RaggedSteps {
    static constexpr uint32_t kStageBytes = NVFP4_STREAM_RAGGED_STAGE_BYTES;
    static constexpr bool kWhole = false;
    static constexpr uint32_t kRowScales = NVFP4_STREAM_RAGGED_ROW_SCALES; // bytes of a row in a stage
    static constexpr uint32_t kWord = 4;

    // Blocks of a row.
    __device__ static __forceinline__ uint32_t blocks(const Params &p) {
        return uint32_t(p.code_row_bytes / (kBlock / 2));
    }

    // By how many bytes a row's scales start behind a word's beginning.
    __device__ static __forceinline__ uint32_t behind_word(const uint8_t *scales) {
        return uint32_t(reinterpret_cast<uintptr_t>(scales)) % kWord;
    }

    // What a lane copies of a tile's steps: blocks t, t + 4, t + 8 and t + 12 of a row, and word t of its scales. The
    // row's last lane has the fifth word.
    struct Sources {
        const uint8_t *codes[2], *scales[2]; // in rows g and g + 8, behind the tile's last step
        // There, how many blocks a row has from its first one on, and bytes the scales; below 0 where it ended before.
        int32_t blocks_left[2], scales_left[2];
        bool fifth[2];

        // Of a tile whose steps end at `end`.
        __device__ __forceinline__ void enter(const Params &p, const LaneRows &rows, uint32_t lane, uint32_t end) {
            constexpr int32_t kNone = -(1 << 30);
            const uint32_t t = lane % 4;
            const int32_t group = p.scale_layout.group_stride;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                // Where the CTA has no such row, or the row no such block, zeros are computed with.
                codes[i] = rows.codes(p) + rows.row[i] * p.code_row_bytes + end * kRowCodes + t * (kBlock / 2);
                blocks_left[i] = rows.has[i] ? int32_t(blocks(p) - (end * kStepBlocks + t)) : kNone;

                const uint8_t *const row = rows.scales(p) + rows.scales_of(p, i);
                const uint32_t behind = behind_word(row);
                const uint32_t groups = end * (kStepBlocks / 4) + t;
                scales[i] = row - behind + int64_t(groups) * group;
                if (p.scale_layout.tiled) {
                    scales_left[i] = int32_t(kWord * ((blocks(p) + 3) / 4 - groups));
                } else {
                    // A row's last words may reach into the next row, but not behind the last one's end.
                    const int64_t left = p.scales + p.l * p.scale_batch_bytes - scales[i];
                    scales_left[i] = int32_t(min(left, int64_t(kStepBlocks)));
                }
                scales_left[i] = rows.has[i] ? scales_left[i] : kNone;
                // The reader does not know which rows the CTA has.
                fifth[i] = t == 3 && (behind != 0 || !rows.has[i]);
            }
        }

        // The step `here`, counted from the last one's end, to the stage at shared address `to`, of this lane's pieces.
        __device__ __forceinline__ void copy(const Params &p, int32_t here, uint32_t to, uint32_t lane) const {
            const uint32_t g = lane / 4, t = lane % 4;
            const uint32_t codes_to = to - t * (kBlock / 2);
            const uint32_t scales_to = to - lane * 16 + kStageCodes + g * kRowScales + t * kWord;
            const int32_t scale_step = kStepBlocks / 4 * p.scale_layout.group_stride;
            const int32_t before = -here * int32_t(kStepBlocks); // blocks, and bytes of linear scales
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint8_t *const from = codes[i] + int64_t(here) * int32_t(kRowCodes);
#pragma unroll
                for (int q = 0; q < 4; ++q) {
                    arch::copy_async_8(codes_to + (2 * i + q / 2) * kPieceBytes + q % 2 * 32, from + q * 32,
                                       blocks_left[i] + before > 4 * q);
                }
                const uint8_t *const words = scales[i] + int64_t(here) * scale_step;
                const int32_t left = scales_left[i] + before;
                const uint32_t row_to = scales_to + i * 8 * kRowScales;
                arch::copy_async_4_some(row_to, words, some(left));
                if (fifth[i]) arch::copy_async_4_some(row_to + kWord, words + kWord, some(left - int32_t(kWord)));
            }
        }

      private:
        // Of a word, how many bytes there are.
        __device__ static __forceinline__ uint32_t some(int32_t left) { return max(min(left, int32_t(kWord)), 0); }
    };

    // Where a lane finds what it multiplies in a stage.
    struct Reader {
        uint32_t scales_at[2]; // bytes from the stage's start, of rows g and g + 8

        // The tile at a place of a batch.
        __device__ __forceinline__ void enter(const Params &p, uint32_t batch, uint32_t place, uint32_t lane) {
            const uint32_t g = lane / 4, t = lane % 4;
            const uint8_t *const scales = p.scales + batch * p.scale_batch_bytes;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint32_t row = g + 8 * i;
                scales_at[i] = kStageCodes + row * kRowScales + 2 * t +
                               behind_word(scales + place_offset(p.scale_layout, place + row));
            }
        }

        // A step's codes and scales, from the stage at shared address `from`, of this lane's pieces. `step` of its row.
        __device__ __forceinline__ void read(const Params &p, uint32_t step, uint32_t from, uint32_t lane,
                                             uint4 (&codes)[2][2], uint32_t (&scale_codes)[2][2]) const {
            const uint32_t stage = from - lane * 16;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    codes[i][h] = arch::load_shared_128(from + (2 * i + h) * kPieceBytes);
                    const uint32_t at = stage + scales_at[i] + h * 8;
                    scale_codes[i][h] = arch::load_shared_8(at) | arch::load_shared_8(at + 1) << 8;
                }
            }
            if (step + 1 < p.steps) return;
            // What the last step has behind the row's end is anything: its codes are zeros, its scales become them.
            const int32_t left = blocks(p) - (step * kStepBlocks + 2 * (lane % 4));
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int32_t here = left - 8 * h;
                const uint32_t kept = here > 1 ? 0xffffu : here > 0 ? 0xffu : 0;
#pragma unroll
                for (int i = 0; i < 2; ++i) scale_codes[i][h] &= kept;
            }
        }
    };
};

}  // namespace nvfp4::stream
