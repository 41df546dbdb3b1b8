// Attention for the programs around it: O = softmax(Q K^T / sqrt(HEAD_SIZE)) V for each head, all of them bf16.
#pragma once
#include "public.cuh"

struct Attention {
    size_t heads, queries, keys;
    Matrix<__nv_bfloat16> q, k, v;
    __nv_bfloat16 *o;

    Attention(size_t heads, size_t queries, size_t keys)
        : heads(heads), queries(queries), keys(keys), q(heads * queries, HEAD_SIZE, 1, 1), k(heads * keys, HEAD_SIZE, 2, 1),
          v(heads * keys, HEAD_SIZE, 3), o(unwritten<__nv_bfloat16>(heads * queries * HEAD_SIZE)) {}

    // With `causal`, a query sees no keys behind its own place.
    void check(bool causal = false) const {
        std::vector<float> weights(keys);
        auto wanted = [&](size_t r, size_t c) {
            size_t first = r / queries * keys, all = causal ? r % queries + 1 : keys;
            double sum = 0, weight = 0;
            for (size_t i = 0; i < all; ++i) {
                if (c == 0)
                    weights[i] = std::exp(dot(q, k, r, first + i) / std::sqrt(static_cast<float>(HEAD_SIZE)));
                sum += weights[i] * v.at(first + i, c), weight += weights[i];
            }
            return static_cast<float>(sum / weight);
        };
        // Weights and results are rounded to bf16: 2^-9 of at most 4, each.
        expect(o, heads * queries, HEAD_SIZE, wanted, 0x1p-6f);
    }
};
