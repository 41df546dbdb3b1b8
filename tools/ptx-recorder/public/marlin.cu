// Marlin: C = A W in f16, where W has four bits an element, less 8, and an f16 scale for GROUP rows of a column
// (or, with -1, for a whole column).
#include "public.cuh"
#include SOURCE

int main(int argc, char **argv) {
    Sizes s(argc, argv);
    size_t rows = GROUP == -1 ? s.k : GROUP, groups = s.k / rows;
    Matrix<half> a(s.m, s.k, 1, 1);
    std::vector<float> w(s.k * s.n);
    std::vector<uint32_t> packed(w.size() / 8);
    std::vector<half> scales(groups * s.n);
    auto scale = [&](size_t r, size_t c) { return std::ldexp(1.f, number(3, r / rows * s.n + c, 1)); };
    auto code = [&](size_t r, size_t c) { return static_cast<uint32_t>(number(2, r * s.n + c, 7) + 8); };
    for (size_t r = 0; r < s.k; ++r)
        for (size_t c = 0; c < s.n; ++c)
            w[r * s.n + c] = (static_cast<float>(code(r, c)) - 8) * scale(r, c);
    // Sixteen rows are a line of words. 128 words are 64 columns of them: a word holds what a thread of mma.m16n8k16
    // takes of two tiles of eight columns, even elements in front.
    for (size_t i = 0; i < packed.size(); ++i) {
        size_t line = i / (2 * s.n), word = i % (2 * s.n), thread = word % 128 / 4, tile = word / 128 * 4 + word % 4;
        constexpr int order[] = {0, 2, 4, 6, 1, 3, 5, 7};
        for (int n = 0; n < 8; ++n) {
            int e = order[n];
            size_t r = line * 16 + thread % 4 * 2 + e % 2 + e % 4 / 2 * 8, c = tile * 16 + thread / 4 + e / 4 * 8;
            packed[i] |= code(r, c) << n * 4;
        }
    }
    for (size_t i = 0; i < scales.size(); ++i) {
        size_t g = i / s.n, at = i % s.n, from = at % 32 / 8 * 2 + at % 2 + at % 8 / 2 * 8;
        size_t c = GROUP == -1 ? at / 32 * 32 + from : at / 64 * 64 + at % 64 / 8 + at % 8 * 8;
        scales[i] = scale(g * rows, c);
    }
    std::vector<int> zeros(s.n / 128 * 16);
    auto *c = unwritten<half>(s.m * s.n);
    EXPECT(marlin_cuda(a.device, upload(packed.data(), packed.size()), c, upload(scales.data(), scales.size()),
                       static_cast<int>(s.m), static_cast<int>(s.n), static_cast<int>(s.k),
                       upload(zeros.data(), zeros.size()), GROUP) == 0);
    expect(c, s.m, s.n, [&](size_t r, size_t c) {
        float sum = 0;
        for (size_t k = 0; k < s.k; ++k)
            sum += a.at(r, k) * w[k * s.n + c];
        return sum;
    });
}
