// Programmatic dependent launch. Both do nothing in a launch without that attribute. sm_90 and newer.
#pragma once

namespace nvfp4::arch {

// Until the grids this one depends on have ended and what they wrote is visible.
__device__ __forceinline__ void grid_dependency_wait() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Lets the dependent grid start once every CTA has said so, or ended.
__device__ __forceinline__ void grid_dependency_launch() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace nvfp4::arch
