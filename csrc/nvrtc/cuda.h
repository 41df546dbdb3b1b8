// The part of the driver's header that the kernels use: a tensor map, as bytes. The driver writes them.
#pragma once

#include <stdint.h>

#include "../shared.h"

struct alignas(NVFP4_TENSOR_MAP_ALIGN) CUtensorMap {
    uint64_t bytes[NVFP4_TENSOR_MAP_BYTES / 8];
};
