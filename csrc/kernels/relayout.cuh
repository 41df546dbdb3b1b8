// Block scales from the linear to the 128x4 layout and back.
//
// A CTA takes 128 rows of 8 atoms: 32 bytes of each linear row, one sector, and 4 KiB of atoms. Shared memory puts them
// in order, so that both sides are read and written in whole sectors.
#pragma once

#include "../shared.h"

enum {
    NVFP4_RELAYOUT_THREADS = 256,
    /* Rows of a CTA's tile, and its atoms of four blocks. */
    NVFP4_RELAYOUT_TILE_ROWS = 128,
    NVFP4_RELAYOUT_TILE_ATOMS = 8,
};

/* The 128x4 side is 16-byte aligned, and its padding is written as zeros. */
typedef struct nvfp4_relayout_params {
    int32_t m, l, blocks;
    NVFP4_POINTER(const uint8_t) source;
    NVFP4_POINTER(uint8_t) destination;
} nvfp4_relayout_params;

#ifdef __CUDACC__

#include <cstdint>

#include "../entries.cuh"

namespace nvfp4 {

constexpr int kRelayoutThreads = NVFP4_RELAYOUT_THREADS;
constexpr int kTileRows = NVFP4_RELAYOUT_TILE_ROWS;
constexpr int kTileAtoms = NVFP4_RELAYOUT_TILE_ATOMS;

// Loads `count` bytes of a word, the others zero. Linear rows have any alignment.
__device__ __forceinline__ uint32_t load_scales(const uint8_t *p, int32_t count) {
    if (count >= 4 && reinterpret_cast<uintptr_t>(p) % 4 == 0) {
        return *reinterpret_cast<const uint32_t *>(p);
    }
    uint32_t scales = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (i < count) scales |= uint32_t(p[i]) << (8 * i);
    }
    return scales;
}

__device__ __forceinline__ void store_scales(uint8_t *p, int32_t count, uint32_t scales) {
    if (count >= 4 && reinterpret_cast<uintptr_t>(p) % 4 == 0) {
        *reinterpret_cast<uint32_t *>(p) = scales;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (i < count) p[i] = uint8_t(scales >> (8 * i));
    }
}

// Words of an atom in shared memory, with a gap that puts the atoms of a row into other banks.
constexpr int kAtomWords = NVFP4_ATOM_BYTES / 4;
constexpr int kAtomStride = kAtomWords + NVFP4_ATOM_LINE_BYTES / 4;

// Converts all scales in a grid of any size: CTAs stride over tiles.
template <bool kToTiled>
__device__ __forceinline__ void relayout(const nvfp4_relayout_params &p) {
    __shared__ __align__(16) uint32_t tile[kTileAtoms * kAtomStride];
    const int32_t atoms = (p.blocks + 3) / 4;
    const int32_t row_tiles = (p.m + kTileRows - 1) / kTileRows;
    const int32_t atom_tiles = (atoms + kTileAtoms - 1) / kTileAtoms;
    const int64_t tiles = int64_t(p.l) * row_tiles * atom_tiles;

    for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        const int64_t rows_before = t / atom_tiles; // tiles of 128 rows, of all batches
        const int32_t first_atom = int32_t(t % atom_tiles) * kTileAtoms;
        const int32_t first_row = int32_t(rows_before % row_tiles) * kTileRows;
        const int64_t linear =
            (rows_before / row_tiles * p.m + first_row) * p.blocks + int64_t(first_atom) * 4;
        const int64_t tiled = (rows_before * atoms + first_atom) * (kAtomWords * 4);

        // Eight neighbours take the eight atoms of a row.
        const auto for_each_word = [&](auto use) {
#pragma unroll
            for (int i = threadIdx.x; i < kTileRows * kTileAtoms; i += kRelayoutThreads) {
                const int32_t row = i / kTileAtoms, atom = i % kTileAtoms;
                const int32_t left = first_row + row < p.m
                                         ? p.blocks - (first_atom + atom) * 4 : 0;
                use(linear + int64_t(row) * p.blocks + atom * 4, left,
                    tile[atom * kAtomStride + row % 32 * 4 + row / 32]);
            }
        };
        const auto for_each_vector = [&](auto use) {
#pragma unroll
            for (int i = threadIdx.x; i < kTileAtoms * kAtomWords / 4; i += kRelayoutThreads) {
                const int32_t atom = i / (kAtomWords / 4), word = i % (kAtomWords / 4) * 4;
                if (first_atom + atom < atoms) {
                    use(tiled + int64_t(i) * 16,
                        *reinterpret_cast<uint4 *>(&tile[atom * kAtomStride + word]));
                }
            }
        };
        if constexpr (kToTiled) {
            for_each_word([&](int64_t at, int32_t left, uint32_t &word) {
                word = load_scales(p.source + at, left);
            });
            __syncthreads();
            for_each_vector([&](int64_t at, const uint4 &vector) {
                *reinterpret_cast<uint4 *>(p.destination + at) = vector;
            });
        } else {
            for_each_vector([&](int64_t at, uint4 &vector) {
                vector = *reinterpret_cast<const uint4 *>(p.source + at);
            });
            __syncthreads();
            for_each_word([&](int64_t at, int32_t left, const uint32_t &word) {
                if (left > 0) store_scales(p.destination + at, left, word);
            });
        }
        __syncthreads(); // the next tile takes the same shared memory
    }
}

}  // namespace nvfp4

#define RELAYOUT(X)              \
    X(relayout_to_linear, false) \
    X(relayout_to_128x4, true)

#define ENTRY(name, tiled)                                               \
    NVFP4_KERNEL(name)(                                                  \
    extern "C" __global__ void __launch_bounds__(NVFP4_RELAYOUT_THREADS) \
        name(nvfp4_relayout_params p) {                                  \
        nvfp4::relayout<tiled>(p);                                       \
    })
RELAYOUT(ENTRY)
#undef ENTRY

#endif
