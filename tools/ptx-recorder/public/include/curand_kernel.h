// Stands in for cuRAND's device functions, where CUTLASS fills its operands: other numbers of the same distributions.
#pragma once
using curandState_t = unsigned long long;

__device__ inline void curand_init(unsigned long long seed, unsigned long long sequence, unsigned long long,
                                   curandState_t *state) {
    *state = seed * 0x9e3779b97f4a7c15 + sequence * 0xbf58476d1ce4e5b9;
}
__device__ inline double curand_uniform_double(curandState_t *state) {
    unsigned long long x = *state += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    return static_cast<double>((x >> 11) + 1) * 0x1p-53;
}
__device__ inline float curand_uniform(curandState_t *state) { return static_cast<float>(curand_uniform_double(state)); }
// A sum of twelve: near enough to a normal distribution.
__device__ inline float curand_normal(curandState_t *state) {
    float sum = -6;
    for (int i = 0; i < 12; ++i)
        sum += curand_uniform(state);
    return sum;
}
__device__ inline double curand_normal_double(curandState_t *state) { return curand_normal(state); }
