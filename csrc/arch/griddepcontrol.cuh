// Programmatic dependent launch. Both functions do nothing in a launch without its attribute, and on architectures
// before sm_90.
#pragma once

namespace nvfp4::arch {

// Waits until the grids that this one depends on have ended and their writes can be seen.
__device__ __forceinline__ void griddepcontrol_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets grids that depend on this one start, once all CTAs have come here. A dependent grid sees the writes of this one
// only after its own griddepcontrol_wait.
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace nvfp4::arch
