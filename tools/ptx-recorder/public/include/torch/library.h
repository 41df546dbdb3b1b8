// In place of PyTorch's header, for files that include it for their launchers: a tensor is an address on the device.
#pragma once
#include <cassert>
#include <string>
#include <tuple>
#include <stdexcept>

namespace torch {
struct Tensor {
    void *data;
    void *data_ptr() const { return data; }
};
} // namespace torch

#define TORCH_CHECK(condition, ...)                                                                                    \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            throw std::runtime_error(__VA_ARGS__);                                                                     \
    } while (0)
