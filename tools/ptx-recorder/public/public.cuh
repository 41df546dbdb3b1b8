// Shared by the programs around public kernels: operands, and the comparison of results.
#pragma once
#include "../tests/programs/check.cuh"
#include <cmath>
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <vector>

// An integer in -limit..=limit, the same for the same arguments: sums of products of such numbers are exact.
inline int number(uint64_t seed, uint64_t i, int limit) {
    uint64_t x = (seed << 40 ^ i) + 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return static_cast<int>((x >> 33) % (2 * limit + 1)) - limit;
}

// Bytes on the device that no kernel leaves by accident: what a kernel does not write is seen.
template <class T> T *unwritten(size_t count) {
    std::vector<uint8_t> bytes(count * sizeof(T), 0x7b);
    return reinterpret_cast<T *>(upload(bytes.data(), bytes.size()));
}

// A matrix of small integers, row by row, on both sides.
template <class T> struct Matrix {
    size_t rows, columns;
    std::vector<float> host;
    T *device;

    Matrix(size_t rows, size_t columns, uint64_t seed, int limit = 4) : rows(rows), columns(columns), host(rows * columns) {
        std::vector<T> cells(host.size());
        for (size_t i = 0; i < host.size(); ++i) {
            host[i] = static_cast<float>(number(seed, i, limit));
            cells[i] = T(host[i]);
        }
        device = upload(cells.data(), cells.size());
    }

    float at(size_t row, size_t column) const { return host[row * columns + column]; }
};

// Waits for the kernel and compares `rows` x `columns` results with what they must be: bit for bit, or with an error.
template <class T, class F> void expect(const T *device, size_t rows, size_t columns, F wanted, float error = 0) {
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    std::vector<T> cells(rows * columns);
    CHECK(cudaMemcpy(cells.data(), device, cells.size() * sizeof(T), cudaMemcpyDeviceToHost));
    size_t wrong = 0;
    for (size_t r = 0; r < rows; ++r)
        for (size_t c = 0; c < columns; ++c) {
            float is = static_cast<float>(cells[r * columns + c]);
            float must = static_cast<float>(T(static_cast<float>(wanted(r, c))));
            if (!(std::abs(is - must) <= error) && wrong++ == 0)
                printf("wrong: row %zu, column %zu is %g and not %g\n", r, c, is, must);
        }
    if (wrong > 0) {
        printf("wrong: %zu of %zu results\n", wrong, cells.size());
        exit(1);
    }
    puts("right");
}

// Row `r` of one matrix times row `c` of the other.
template <class A, class B> float dot(const Matrix<A> &a, const Matrix<B> &b, size_t r, size_t c) {
    const float *x = &a.host[r * a.columns], *y = &b.host[c * b.columns];
    float sum = 0;
    for (size_t k = 0; k < a.columns; ++k)
        sum += x[k] * y[k];
    return sum;
}

// The sizes that a program is given.
struct Sizes {
    size_t m, n, k;
    Sizes(int argc, char **argv) {
        EXPECT(argc >= 4);
        m = strtoul(argv[1], nullptr, 10), n = strtoul(argv[2], nullptr, 10), k = strtoul(argv[3], nullptr, 10);
    }
};
