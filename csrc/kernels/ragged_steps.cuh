// Ragged rows of gemv_stream: K is any multiple of 16. A row of codes starts at a multiple of 8 bytes. Its linear
// scales start at any byte (the scales of all rows at a multiple of 4). Its last step may have fewer than 16 blocks.
//
// A stage has the codes where WholeSteps has them. The 16 scales of a linear row's step lie in four words of four
// bytes, or in five where they do not start a word. So a stage has room for five a row. Behind the row's end these
// words have the next row's scales, which the reader makes zeros: a NaN among them times a code of zero would be NaN.
//
// Lanes are numbered 4 * g + t. Of rows g and g + 8, lane (g, t) multiplies blocks 2t, 2t + 1, 2t + 8 and 2t + 9 of a
// step, as everywhere in gemv_stream. It copies other blocks, so that four lanes copy 32 bytes next to each other.
#pragma once

#include "../arch/cp_async.cuh"
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
        return uint32_t(p.weights.row_bytes / (kBlock / 2));
    }

    // Bytes from a word's beginning to the start of a row's scales.
    __device__ static __forceinline__ uint32_t behind_word(const uint8_t *scales) {
        return uint32_t(reinterpret_cast<uintptr_t>(scales)) % kWord;
    }

    // Sources of a lane's copies, for the steps of a tile that its warp takes. A lane copies the blocks t, t + 4, t + 8
    // and t + 12 of a step of rows g and g + 8, and word t of the step's scales. Lane 3 of a row copies the fifth word,
    // too.
    struct Sources {
        const uint8_t *codes[2], *scales[2]; // past the last of the steps
        // Blocks that the row has from there on, counted from this lane's first; and bytes of scales that may be read.
        // A step needs 16 bytes of scales, which is the most here. Both are below 0 where the end came before.
        int32_t blocks_left[2], scales_left[2];
        bool fifth[2]; // this lane copies the fifth word

        // Enters a tile, for its steps before step `end`.
        __device__ __forceinline__ void enter(const Params &p, const LaneRows &rows, uint32_t lane, uint32_t end) {
            constexpr int32_t kNone = -(1 << 30);
            const uint32_t t = lane % 4;
            const int32_t group = p.weights.scale_steps.group_stride;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                // Where the CTA has no such row, or the row no such block, zeros are computed with.
                codes[i] = rows.codes(p) + rows.row[i] * p.weights.row_bytes + end * kRowCodes + t * (kBlock / 2);
                blocks_left[i] = rows.has[i] ? int32_t(blocks(p) - (end * kStepBlocks + t)) : kNone;

                const uint8_t *const row = rows.scales(p) + rows.scales_of(p, i);
                const uint32_t behind = behind_word(row);
                const uint32_t groups = end * (kStepBlocks / 4) + t;
                scales[i] = row - behind + int64_t(groups) * group;
                if (p.weights.scale_steps.tiled) {
                    scales_left[i] = int32_t(kWord * ((blocks(p) + 3) / 4 - groups));
                } else {
                    // A row's last words may reach into the next row, but not past the last row of all.
                    const int64_t left = p.weights.scales + p.l * p.weights.scale_matrix_bytes - scales[i];
                    scales_left[i] = int32_t(min(left, int64_t(kStepBlocks)));
                }
                scales_left[i] = rows.has[i] ? scales_left[i] : kNone;
                // Where the CTA has no such row, the reader may take it for one that needs the fifth word: zeros.
                fifth[i] = t == 3 && (behind != 0 || !rows.has[i]);
            }
        }

        // Copies a step, -1 for the last one, -2 for the one before. `to` is where this lane's codes would go in
        // WholeSteps.
        template <bool kBeside>
        __device__ __forceinline__ void copy(const Params &p, int32_t here, uint32_t to, uint32_t lane) const {
            const uint32_t g = lane / 4, t = lane % 4;
            // In a piece the codes of row g, half a step, are 64 bytes. `codes_to` is where block t lies there.
            const uint32_t codes_to = to - t * (kBlock / 2);
            const uint32_t scales_to = to - lane * 16 + kStageCodes + g * kRowScales + t * kWord;
            const int32_t scale_step = kStepBlocks / 4 * p.weights.scale_steps.group_stride;
            const int32_t before = -here * int32_t(kStepBlocks); // blocks, and bytes of scales, a byte each
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint8_t *const from = codes[i] + int64_t(here) * int32_t(kRowCodes);
#pragma unroll
                for (int q = 0; q < 4; ++q) {
                    arch::cp_async_8(codes_to + (2 * i + q / 2) * kPieceBytes + q % 2 * 32, from + q * 32,
                                       blocks_left[i] + before > 4 * q);
                }
                const uint8_t *const words = scales[i] + int64_t(here) * scale_step;
                const int32_t left = scales_left[i] + before;
                const uint32_t row_to = scales_to + i * 8 * kRowScales;
                arch::cp_async_4_some(row_to, words, some(left));
                if (fifth[i]) arch::cp_async_4_some(row_to + kWord, words + kWord, some(left - int32_t(kWord)));
            }
        }

      private:
        // Bytes of a word that may be read.
        __device__ static __forceinline__ uint32_t some(int32_t left) { return max(min(left, int32_t(kWord)), 0); }
    };

    // Reads a lane's codes and scales from a stage.
    struct Reader {
        uint32_t scales_at[2]; // bytes from the stage's start, of rows g and g + 8

        // Enters the tile at a place of a batch.
        __device__ __forceinline__ void enter(const Params &p, uint32_t batch, uint32_t place, uint32_t lane) {
            const uint32_t g = lane / 4, t = lane % 4;
            const uint8_t *const scales = scales_of(p.weights, batch);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint32_t row = g + 8 * i;
                scales_at[i] = kStageCodes + row * kRowScales + 2 * t +
                               behind_word(scales + place_offset(p.weights.scale_steps, place + row));
            }
        }

        // Reads the codes and scales of step `step` of a row. `from` is the shared address of this lane's pieces in the
        // stage.
        __device__ __forceinline__ void read(const Params &p, uint32_t step, uint32_t from, uint32_t lane,
                                             uint4 (&codes)[2][2], uint32_t (&scale_codes)[2][2]) const {
            const uint32_t stage = from - lane * 16;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    codes[i][h] = arch::ld_shared_128(from + (2 * i + h) * kPieceBytes);
                    const uint32_t at = stage + scales_at[i] + h * 8;
                    scale_codes[i][h] = arch::ld_shared_8(at) | arch::ld_shared_8(at + 1) << 8;
                }
            }
            if (step + 1 < p.steps) return;
            // Past the row's end codes are zeros, and scales may be anything: the scales are made zeros.
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
