// learn-cuda, 07_attention: O = softmax(Q K^T / sqrt(128)) V for each head, all of them bf16. M heads, N queries, K keys.
#include "public.cuh"
#include SOURCE

int main(int argc, char **argv) {
    constexpr int dim = 128;
    Sizes s(argc, argv);
    Matrix<__nv_bfloat16> q(s.m * s.n, dim, 1, 1), k(s.m * s.k, dim, 2, 1), v(s.m * s.k, dim, 3);
    auto *o = unwritten<__nv_bfloat16>(s.m * s.n * dim);
    FUNCTION(q.device, k.device, v.device, o, static_cast<int>(s.m), static_cast<int>(s.n), static_cast<int>(s.k), dim);
    std::vector<float> weights(s.k);
    auto wanted = [&](size_t r, size_t c) {
        size_t first = r / s.n * s.k;
        double sum = 0, all = 0;
        for (size_t i = 0; i < s.k; ++i) {
            if (c == 0)
                weights[i] = std::exp(dot(q, k, r, first + i) / std::sqrt(static_cast<float>(dim)));
            sum += weights[i] * v.at(first + i, c), all += weights[i];
        }
        return static_cast<float>(sum / all);
    };
    // Weights and results are rounded to bf16: 2^-9 of at most 4, each.
    expect(o, s.m * s.n, dim, wanted, 0x1p-6f);
}
