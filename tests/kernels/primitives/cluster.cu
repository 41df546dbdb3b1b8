// csrc/arch/cluster.cuh and csrc/arch/griddepcontrol.cuh.
#include "../../../csrc/arch/cluster.cuh"
#include "../../../csrc/arch/griddepcontrol.cuh"
#include "../../../csrc/arch/shared.cuh"

using namespace nvfp4;

__device__ uint32_t cta() { return blockIdx.y * gridDim.x + blockIdx.x; }

#if __CUDA_ARCH__ >= 900
extern "C" __global__ void places(uint32_t *out) {
    uint32_t *mine = out + 3 * cta();
    mine[0] = arch::clusterid_x();
    mine[1] = arch::cluster_ctarank();
    mine[2] = arch::cluster_nctarank();
}

// Every CTA reads every CTA's numbers, in the order of ranks, and adds them in it. Wrong: 1, no
// barrier before; 2, none after; 3, arrivals that nobody waits for; 4, another rank; 5, a rank too
// many; 6, two arrivals to a wait.
extern "C" __global__ void exchange(float *out, const float *in, uint32_t wrong) {
    __shared__ float numbers[32];
    const uint32_t size = arch::cluster_nctarank(), t = threadIdx.x;
    numbers[t] = in[32 * cta() + t];
    if (wrong != 1) {
        arch::barrier_cluster_arrive();
        if (wrong == 6) arch::barrier_cluster_arrive();
        if (wrong != 3) arch::barrier_cluster_wait();
    }
    float sum = 0;
    float *mine = out + cta() * 32 * (size + 1) + t;
    for (uint32_t i = 0; i < size; ++i) {
        const uint32_t rank = wrong == 4 ? (i + 1) % size : wrong == 5 ? i + 1 : i;
        const uint32_t peer = arch::mapa(arch::shared_address(&numbers[t]), rank);
        const float number = arch::ld_shared_cluster_f32(peer);
        sum += number;
        mine[32 * i] = number;
    }
    mine[32 * size] = sum;
    if (wrong == 3) arch::barrier_cluster_wait();
    if (wrong != 2) {
        arch::barrier_cluster_arrive();
        arch::barrier_cluster_wait();
    }
}
#endif

// Nothing happens in a launch without the attribute.
extern "C" __global__ void dependent(uint32_t *out, uint32_t wrong) {
    arch::griddepcontrol_wait();
    out[threadIdx.x] = threadIdx.x + wrong;
    arch::griddepcontrol_launch_dependents();
}
