// Integer and bit instructions: see integer.inc.
#include "common.cuh"
#include "integer.inc"
