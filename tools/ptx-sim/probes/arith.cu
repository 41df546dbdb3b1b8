// Floating-point arithmetic: see arith.inc.
#include "common.cuh"
#include "arith.inc"
