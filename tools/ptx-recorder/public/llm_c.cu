// llm.c, dev/cuda/attention_forward.cu: causal attention over M sequences of N tokens, with K heads of 32 elements. What
// is right says its own attention on the CPU.
#include "public.cuh"
#define main its_benchmark
#include SOURCE
#undef main

int main(int argc, char **argv) {
    Sizes s(argc, argv);
    size_t c = s.k * 32, all = s.m * s.n * c, scores = s.m * s.k * s.n * s.n;
    int b = static_cast<int>(s.m), t = static_cast<int>(s.n), heads = static_cast<int>(s.k);
    Matrix<float> in(s.m * s.n, 3 * c, 1, 1);
    std::vector<float> out(all), before(scores), weights(scores);
    attention_forward_cpu(out.data(), before.data(), weights.data(), in.host.data(), b, t, static_cast<int>(c), heads);
    auto *o = unwritten<float>(all);
    // The fourth and the fifth write no weights behind a query's place, and take memory of `cudaMalloc` to be zero there.
    std::vector<float> zeros(scores);
    attention_forward(NUMBER, o, nullptr, unwritten<float>(all), unwritten<float>(3 * all), unwritten<float>(scores),
                      upload(zeros.data(), scores), in.device, b, t, static_cast<int>(c), heads, 64);
    // The fifth rounds scores, weights and results to bf16.
    expect(o, s.m * s.n, c, [&](size_t r, size_t i) { return out[r * c + i]; }, NUMBER < 5 ? 0x1p-12f : 0x1p-6f);
}
