// ThunderKittens, kernels/attention/mha_h100 and, with LCF, mha_h100_lcf: M heads, N queries and as many keys.
#define KITTENS_HOPPER
#include "attention.cuh"
#include <chrono>
#define main its_benchmark
#include SOURCE
#undef main

int main(int argc, char **argv) {
    Sizes s(argc, argv);
    auto heads = static_cast<unsigned>(s.m), n = static_cast<unsigned>(s.n);
    Attention a(s.m, s.n, s.n);
#ifdef LCF
    using T = attn_fwd_template<HEAD_SIZE>;
    using Q = T::layout::qo_global;
    using K = T::layout::kv_global;
    T::layout::globals g{Q{a.o, 1U, heads, n, nullptr}, Q{a.q.device, 1U, heads, n, nullptr},
                         K{a.k.device, 1U, heads, n, nullptr}, K{a.v.device, 1U, heads, n, nullptr}};
    auto *kernel = prototype::lcf::kernel<T>;
    dim3 grid(4);
    unsigned block = prototype::detail::NUM_THREADS_v<T>, shared = MAX_SHARED_MEMORY - 2000;
    constexpr bool CAUSAL = false;
#else
    using G = fwd_globals<HEAD_SIZE>;
    G g{G::q_gl{a.q.device, 1U, heads, n, HEAD_SIZE}, G::k_gl{a.k.device, 1U, heads, n, HEAD_SIZE}, G::v_gl{a.v.device, 1U, heads, n, HEAD_SIZE},
        G::l_gl{unwritten<float>(s.m * s.n), 1U, heads, 1U, n}, G::o_gl{a.o, 1U, heads, n, HEAD_SIZE}, static_cast<int>(n), 1};
    auto *kernel = fwd_attend_ker<HEAD_SIZE, CAUSAL>;
    dim3 grid(n / (CONSUMER_WARPGROUPS * 64), heads);
    unsigned block = 32 * NUM_WORKERS, shared = MAX_SHARED_MEMORY - 1024;
#endif
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    kernel<<<grid, block, shared>>>(g);
    a.check(CAUSAL);
}
