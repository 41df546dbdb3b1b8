// Loads of matrices from shared memory into the registers of a warp, as matrix instructions want them (ldmatrix).
#pragma once

#include <cstdint>

namespace nvfp4::arch {

// Loads four matrices of 8 rows of 16 bytes. Lane 8 * i + r has the shared address of row r of matrix i. Word i of lane
// 4 * g + t becomes word t of row g of matrix i. Volatile: not moved over waits for copies that fill shared memory.
__device__ __forceinline__ uint4 ldmatrix_x4(uint32_t row_address) {
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(row_address));
    return v;
}

}  // namespace nvfp4::arch
