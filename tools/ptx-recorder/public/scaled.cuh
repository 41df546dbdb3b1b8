// A matrix of narrow numbers with a scale for each block of a row.
#pragma once
#include "public.cuh"

// Numbers of a format, and their codes.
struct Code {
    float value;
    uint8_t code;
};
constexpr Code E2M1[] = {{0, 0}, {.5f, 1}, {1, 2}, {2, 4}, {-.5f, 9}, {-1, 10}, {-3, 13}};
constexpr Code E4M3[] = {{0, 0}, {.5f, 0x30}, {1, 0x38}, {2, 0x40}, {-.5f, 0xb0}, {-1, 0xb8}, {-3, 0xc4}};
constexpr Code UE4M3[] = {{.5f, 0x30}, {1, 0x38}, {1.5f, 0x3c}, {2, 0x40}};
constexpr Code UE8M0[] = {{.5f, 126}, {1, 127}, {2, 128}, {4, 129}};

// `bits` of an element (4: the even one of a byte lies low), and elements that share a scale. The scales lie as
// tensor cores take them: 512 bytes for 128 rows and four blocks, row r and block b at 16 (r % 32) + 4 (r / 32) + b.
struct Scaled {
    size_t rows, columns;
    std::vector<float> host;
    std::vector<uint8_t> factors; // codes of the scales, row by row
    uint8_t *codes, *scales;

    template <size_t C, size_t S>
    Scaled(size_t rows, size_t columns, int bits, size_t block, const Code (&elements)[C], const Code (&some)[S],
           uint64_t seed)
        : rows(rows), columns(columns), host(rows * columns) {
        size_t blocks = columns / block;
        std::vector<uint8_t> packed(rows * columns * bits / 8), scale((rows + 127) / 128 * 128 * ((blocks + 3) / 4 * 4));
        factors.resize(rows * blocks);
        auto pick = [](uint64_t seed, size_t i, size_t n) { return static_cast<size_t>(number(seed, i, 1 << 20) + (1 << 20)) % n; };
        for (size_t r = 0; r < rows; ++r)
            for (size_t c = 0; c < columns; ++c) {
                size_t b = c / block;
                Code factor = some[pick(seed + 100, r * blocks + b, S)], element = elements[pick(seed, r * columns + c, C)];
                size_t at = (r / 128 * ((blocks + 3) / 4) + b / 4) * 512 + r % 32 * 16 + r / 32 % 4 * 4 + b % 4;
                scale[at] = factors[r * blocks + b] = factor.code;
                size_t i = r * columns + c;
                if (bits == 4)
                    packed[i / 2] |= element.code << i % 2 * 4;
                else
                    packed[i] = element.code;
                host[i] = element.value * factor.value;
            }
        codes = upload(packed.data(), packed.size());
        scales = upload(scale.data(), scale.size());
    }
};

inline float dot(const Scaled &a, const Scaled &b, size_t r, size_t c) {
    const float *x = &a.host[r * a.columns], *y = &b.host[c * b.columns];
    float sum = 0; // multiples of 1/64 below 2^17: exact
    for (size_t k = 0; k < a.columns; ++k)
        sum += x[k] * y[k];
    return sum;
}
