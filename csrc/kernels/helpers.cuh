// The kernels beside GEMV, compiled together: most of what they take to compile is headers.
#include "combine.cuh"
#include "quantize.cuh"
#include "read_only.cuh"
#include "relayout.cuh"

#ifdef __CUDACC__

#define HELPERS(X) COMBINE(X) QUANTIZE(X) QUANTIZE_DIGITS(X) READ_ONLY(X) RELAYOUT(X)
NVFP4_TABLE(helpers, HELPERS)

#endif
