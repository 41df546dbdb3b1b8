// Reverses 128 numbers through shared memory. Without -DFIXED it lacks the barrier that it needs.
//
// nvcc -ptx -lineinfo -arch=sm_80 reverse.cu -o reverse.ptx; the same with -DFIXED makes reverse_fixed.ptx.
__global__ void reverse(float *y, const float *x) {
    __shared__ float s[128];
    s[threadIdx.x] = x[threadIdx.x];
#ifdef FIXED
    __syncthreads();
#endif
    y[threadIdx.x] = s[127 - threadIdx.x];
}
