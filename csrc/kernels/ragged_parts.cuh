// Ragged rows of gemv_mma: K is any multiple of 16. A row of codes starts at a multiple of 8 bytes. Its linear scales
// start at any byte (the scales of all rows at a multiple of 4). Its last step may have fewer than 8 blocks.
// ragged_steps.cuh is for ragged rows of gemv_stream, whose steps and lanes are others.
//
// A stage has the codes where Loads has them. The 8 scales of a row's step lie in two words of four bytes, or in three
// where they do not start a word. So a stage has room for three a row. No byte behind the row's end is copied: zeros
// stand there, of codes and of scales.
#pragma once

#include "../arch/cp_async.cuh"
#include "../arch/shared.cuh"
#include "many_vectors.cuh"

namespace nvfp4::many {

struct RaggedLoads : Queue<NVFP4_MANY_RAGGED_STAGE_BYTES> {
    static constexpr uint32_t kRowScales = NVFP4_MANY_RAGGED_ROW_SCALES; // bytes of a row in a stage
    static constexpr uint32_t kWord = 4;

    // Sources of the next step. Codes are, as in Loads, this lane's two blocks of rows g and g + 8. Scales are the
    // first or the second word of row lane / 2, by the lane. Lanes with the first word also copy the third word, where
    // there is one.
    const uint8_t *codes[2], *scales;
    int32_t blocks_left; // of the rows, from this lane's first block on
    int32_t scales_left; // bytes of the row's scales, from the beginning of this lane's word on
    bool third;
    uint32_t step, end; // the next step, and the one behind the last

    using Queue::Queue;

    // Bytes from a word's beginning to the start of a row's scales.
    __device__ static __forceinline__ uint32_t behind_word(const uint8_t *scales) {
        return uint32_t(reinterpret_cast<uintptr_t>(scales)) % kWord;
    }

    // Address of the scales of the row at a place. Rows past M have the first row's scales, as they have its codes.
    __device__ static __forceinline__ const uint8_t *scales_of(const Params &p, uint32_t batch, uint32_t place) {
        const bool has = row_at(p.weights.scale_steps, place) < uint32_t(p.m);
        return nvfp4::scales_of(p.weights, batch) + place_offset(p.weights.scale_steps, has ? place : 0);
    }

    // Starts with step `from` of batch `of`, and ends before step `before`. The warp's first row has the place `first`.
    __device__ __forceinline__ void start(const Params &p, uint32_t of, uint32_t first, uint32_t from, uint32_t before,
                                          uint32_t lane) {
        const uint32_t g = lane / 4, t = lane % 4;
        step = from;
        end = before;
        const uint8_t *batch = codes_of(p.weights, of) + step * kRowCodes + t * 16;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t row = row_at(p.weights.scale_steps, first + g + 8 * i);
            codes[i] = batch + (row < uint32_t(p.m) ? row : 0) * p.weights.row_bytes;
        }
        const int32_t left = p.k / NVFP4_BLOCK - step * kStepBlocks; // of the rows, from the step on
        blocks_left = left - 2 * t;

        const uint32_t word = lane % 2;
        const uint8_t *const row = scales_of(p, of, first + lane / 2);
        const uint32_t behind = behind_word(row);
        scales = row - behind + int64_t(2 * step + word) * p.weights.scale_steps.group_stride;
        scales_left = left + behind - word * kWord;
        third = word == 0 && behind != 0;
    }

    // Copies the next step into the next stage.
    __device__ __forceinline__ void copy(uint32_t lane) const {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int block = 0; block < 2; ++block) {
                arch::cp_async_8(to + i * kPieceBytes + lane * 16 + block * 8, codes[i] + block * 8,
                                   blocks_left > block);
            }
        }
        const uint32_t at = to + 2 * kPieceBytes + lane / 2 * kRowScales;
        arch::cp_async_4_some(at + lane % 2 * kWord, scales, some(scales_left));
        // A row that has three words has linear scales, whose words follow each other.
        if (third) arch::cp_async_4_some(at + 2 * kWord, scales + 2 * kWord, some(scales_left - int32_t(2 * kWord)));
    }

    __device__ __forceinline__ void advance(const Params &p, uint32_t steps) {
        step += steps;
#pragma unroll
        for (int i = 0; i < 2; ++i) codes[i] += steps * kRowCodes;
        scales += int64_t(steps) * (kStepBlocks / 4 * p.weights.scale_steps.group_stride);
        blocks_left -= steps * kStepBlocks;
        scales_left -= steps * kStepBlocks;
    }

    // Reads the scales that a lane multiplies by.
    struct Reader {
        uint32_t at[2]; // bytes from a stage's start, of rows g and g + 8

        // Reads for the warp whose first row has the place `first`.
        __device__ __forceinline__ Reader(const Params &p, uint32_t batch, uint32_t first, uint32_t lane) {
            const uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint32_t row = g + 8 * i;
                at[i] = 2 * kPieceBytes + row * kRowScales + 2 * t + behind_word(scales_of(p, batch, first + row));
            }
        }

        // Scales of this lane's two blocks of row g + 8 * i, in the stage at shared address `from`.
        __device__ __forceinline__ uint32_t scales(uint32_t from, int i, uint32_t) const {
            return arch::ld_shared_8(from + at[i]) | arch::ld_shared_8(from + at[i] + 1) << 8;
        }
    };

  private:
    // Bytes of a word that are the row's.
    __device__ static __forceinline__ uint32_t some(int32_t left) { return max(min(left, int32_t(kWord)), 0); }
};

}  // namespace nvfp4::many
