// mma_pipelined with 64 columns: the tile that `ptx-sim bench` times.
#define PIPELINED_KERNEL mma_tile
#define PIPELINED_N 64
#include "mma_pipelined.cu"
