// A layer on the CPU, in C++: handles that free themselves, errors that are thrown.
//
//     make -C crates/capi/examples run
#include "nvfp4_gemv.h"

#include <cmath>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

template <auto free> struct Free {
    template <class T> void operator()(T *handle) const { free(handle); }
};
using Checkpoint = std::unique_ptr<nvfp4_checkpoint, Free<nvfp4_checkpoint_close>>;
using Layer = std::unique_ptr<nvfp4_linear, Free<nvfp4_linear_free>>;

void check(nvfp4_status status) {
    if (status != NVFP4_OK) {
        throw std::runtime_error(nvfp4_last_error());
    }
}

Layer of_checkpoint(const char *path) {
    nvfp4_checkpoint *opened;
    check(nvfp4_checkpoint_open(path, &opened));
    Checkpoint checkpoint(opened);
    const char *name;
    check(nvfp4_checkpoint_name(checkpoint.get(), 0, &name));
    nvfp4_linear *linear;
    check(nvfp4_linear_from_checkpoint(checkpoint.get(), name, &linear));
    return Layer(linear);
}

Layer of_dense(size_t rows, size_t k) {
    std::vector<float> dense(rows * k, 1.0f);
    nvfp4_linear *linear;
    check(nvfp4_linear_from_dense(NVFP4_F32, dense.data(), dense.size() * sizeof(float), rows, k, &linear));
    return Layer(linear);
}

std::vector<float> forward(const Layer &layer, size_t rows, const std::vector<float> &x, size_t n) {
    std::vector<float> y(n * rows);
    nvfp4_vectors vectors{};
    vectors.element = NVFP4_F32;
    vectors.values = x.data();
    vectors.values_bytes = x.size() * sizeof(float);
    nvfp4_output output{};
    output.element = NVFP4_F32;
    output.values = y.data();
    output.values_bytes = y.size() * sizeof(float);
    check(nvfp4_linear_forward(layer.get(), &vectors, n, &output));
    return y;
}

} // namespace

int main(int count, char **arguments) try {
    Layer layer = count > 1 ? of_checkpoint(arguments[1]) : of_dense(32, 64);
    nvfp4_weights weights;
    check(nvfp4_linear_weights(layer.get(), &weights));
    std::cout << weights.rows << " x " << weights.k << "\n";

    // A vector alone, and twice the same.
    std::vector<float> x(weights.k);
    for (size_t i = 0; i < x.size(); i++) {
        x[i] = std::cos(static_cast<float>(i));
    }
    std::vector<float> y = forward(layer, weights.rows, x, 1);
    std::vector<float> both = x;
    both.insert(both.end(), x.begin(), x.end());
    std::vector<float> twice = forward(layer, weights.rows, both, 2);
    for (size_t row = 0; row < weights.rows; row++) {
        float difference = std::abs(twice[row] - y[row]);
        if (twice[row] != twice[weights.rows + row] || difference > 1e-4f * (1.0f + std::abs(y[row]))) {
            throw std::runtime_error("row " + std::to_string(row) + " differs");
        }
    }
    try {
        forward(layer, weights.rows, x, 2);
        throw std::logic_error("half of the vectors are missing, and nobody noticed");
    } catch (const std::runtime_error &error) {
        std::cout << "refused: " << error.what() << "\n";
    }
    std::cout << "as expected\n";
} catch (const std::exception &error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
}
