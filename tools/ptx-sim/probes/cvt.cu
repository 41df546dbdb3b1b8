// Conversions: see cvt.inc.
#include "common.cuh"
#include "cvt.inc"
