// learn-cuda, 07_attention: M heads, N queries, K keys.
#define HEAD_SIZE 128
#include "attention.cuh"
#include SOURCE

int main(int argc, char **argv) {
    Sizes s(argc, argv);
    Attention a(s.m, s.n, s.k);
    FUNCTION(a.q.device, a.k.device, a.v.device, a.o, static_cast<int>(s.m), static_cast<int>(s.n), static_cast<int>(s.k), HEAD_SIZE);
    a.check();
}
