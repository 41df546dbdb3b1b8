// Copies from global to shared memory, and matrices from shared memory to registers: one PTX instruction a function.
#pragma once

#include "types.cuh"

// The address of shared memory as these instructions take it.
__device__ __forceinline__ u32 shared_address(const void *pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// Starts a copy of 16 bytes, of which only the first `bytes` are read; the rest becomes zero.
__device__ __forceinline__ void copy_16(u32 to, const void *from, u32 bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

// The copies that this thread has started since the last call are a group, also where there are none.
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING of this thread's groups are under way.
template <u32 PENDING>
__device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Loads COUNT (1, 2 or 4) matrices of 8 rows of 16 bytes, a register each. Lane 8 * i + r gives the address of row r of
// matrix i; lane 4 * r + q gets bytes 4 * q to 4 * q + 3 of row r.
template <u32 COUNT>
__device__ __forceinline__ void load_matrices(u32 *to, u32 from) {
    if constexpr (COUNT == 4) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(from)
                     : "memory");
    } else if constexpr (COUNT == 2) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                     : "=r"(to[0]), "=r"(to[1])
                     : "r"(from)
                     : "memory");
    } else {
        static_assert(COUNT == 1);
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                     : "=r"(to[0])
                     : "r"(from)
                     : "memory");
    }
}
