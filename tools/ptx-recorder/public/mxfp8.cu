// learn-cuda, 09a_block_scaled_mm_sm120: C = A B^T in bf16, of MXFP8 operands whose scales lie row by row or, with
// PERMUTED, as ldmatrix takes them: four rows that are eight apart beside each other.
#include "scaled.cuh"
#include SOURCE

int main(int argc, char **argv) {
    Sizes s(argc, argv);
    Scaled a(s.m, s.k, 8, 32, E4M3, UE8M0, 1), b(s.n, s.k, 8, 32, E4M3, UE8M0, 2);
    auto *c = unwritten<__nv_bfloat16>(s.m * s.n);
    auto chars = [](const uint8_t *bytes) { return reinterpret_cast<const char *>(bytes); };
    auto scales = [&](const Scaled &x) {
        std::vector<uint8_t> all = x.factors;
#ifdef PERMUTED
        size_t blocks = x.columns / 32;
        for (size_t r = 0; r < x.rows; ++r)
            for (size_t b = 0; b < blocks; ++b)
                all[((r / 32 * 8 + r % 8) * (blocks / 4) + b / 4) * 16 + r / 8 % 4 * 4 + b % 4] = x.factors[r * blocks + b];
#endif
        return chars(upload(all.data(), all.size()));
    };
    FUNCTION(chars(a.codes), chars(b.codes), scales(a), scales(b), c, static_cast<int>(s.m), static_cast<int>(s.n),
             static_cast<int>(s.k));
    expect(c, s.m, s.n, [&](size_t r, size_t n) { return dot(a, b, r, n); });
}
