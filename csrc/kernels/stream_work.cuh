// A CTA's part of a problem of gemv_stream: its rows, in tiles.
#pragma once

#include "stream_params.cuh"

namespace nvfp4::stream {

// x / y where `magic` is 2^32 / y, rounded up, or 0 for a y of 1: exact while x * y stays below 2^32. A
// division proper would delay the first copy.
__device__ __forceinline__ uint32_t divide(uint32_t x, uint32_t magic) {
    return magic == 0 ? x : __umulhi(x, magic);
}

// A CTA's places, counted from the start of its first batch.
struct Work {
    uint32_t batch, begin, end;
    uint32_t origin; // of the first tile
    uint32_t tiles;

    __device__ __forceinline__ explicit Work(const Params &p) : batch(0) {
        const uint32_t cta = blockIdx.x;
        begin = (cta * p.units_per_cta + min(cta, p.units_left)) << p.unit_log2;
        end = begin + ((p.units_per_cta + (cta < p.units_left)) << p.unit_log2);
        origin = begin;
        if (p.l > 1) { // a division delays the first copy
            batch = begin / p.places;
            begin -= batch * p.places;
            end -= batch * p.places;
            origin = begin & ~(kTileRows - 1);
        }
        tiles = (end - origin + kTileRows - 1) / kTileRows;
    }
};

// A tile's batch, counted from the CTA's first, and its first place there.
struct Tile {
    uint32_t batch = 0, place;

    __device__ __forceinline__ Tile(const Params &p, const Work &work, uint32_t tile)
        : place(work.origin + tile * kTileRows) {
        while (p.l > 1 && place >= p.places) {
            place -= p.places;
            ++batch;
        }
    }
};

// Rows of a tile that this lane copies: g and g + 8, with g = lane / 4.
struct LaneRows {
    uint32_t matrix;
    uint32_t place[2], row[2];
    bool has[2]; // the CTA has such a row, and the row a matrix; else `row` is 0, and nothing is read

    __device__ __forceinline__ LaneRows(const Params &p, const Work &work, uint32_t tile, uint32_t lane) {
        const uint32_t g = lane / 4;
        const Tile of(p, work, tile);
        matrix = work.batch + of.batch;
        bool exists = true;
        if constexpr (kSelects) {
            // The tile behind the last batch's last one counts as the last batch's, and has no rows.
            const Matrix its = selected(p.select, min(matrix, uint32_t(p.l) - 1));
            matrix = its.number;
            exists = its.exists;
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t mine = work.origin + tile * kTileRows + g + 8 * i;
            place[i] = of.place + g + 8 * i;
            row[i] = row_at(p.weights.scale_steps, place[i]);
            has[i] = exists && mine >= work.begin && mine < work.end && row[i] < uint32_t(p.m);
            row[i] = has[i] ? row[i] : 0;
        }
    }

    // Addresses of the matrix's codes and scales, and the offset of row i's scales. The 128x4 layout orders scales by
    // place.
    __device__ __forceinline__ const uint8_t *codes(const Params &p) const {
        return codes_of(p.weights, matrix);
    }
    __device__ __forceinline__ const uint8_t *scales(const Params &p) const {
        return nvfp4::scales_of(p.weights, matrix);
    }
    __device__ __forceinline__ int64_t scales_of(const Params &p, int i) const {
        return p.weights.scale_steps.tiled ? place_offset(p.weights.scale_steps, place[i]) : place_offset(p.weights.scale_steps, row[i]);
    }
};

}  // namespace nvfp4::stream
