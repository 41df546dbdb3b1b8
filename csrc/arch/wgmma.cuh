// Matrix instructions of a warpgroup (wgmma), one a function. A warpgroup is four warps of a CTA, the first of which
// has a number that is a multiple of four. All its 128 threads execute each function of this file together. Code for
// sm_90a alone. Rules are the PTX ISA's, section "Asynchronous Warpgroup Level Matrix Multiply-Accumulate
// Instructions".
//
// A multiplication is asynchronous. From its issue until the wait for its group, nothing may read or write its
// registers, nor write the shared memory that it reads. The order of calls:
//
//     wgmma_pin(a), wgmma_pin(d)      the compiler computes these registers before the fence
//     wgmma_fence()
//     wgmma_f16<N>(...), ...          several on one accumulator add up in order
//     wgmma_commit_group()            they are a group
//     wgmma_wait_group<0>()
//     wgmma_pin(d)                    the compiler reads the sums behind the wait
//
// Threads that wrote to shared memory call fence_proxy_async (cp_async_bulk.cuh), and then comes a barrier, before a
// multiplication reads what they wrote. A warp's wait tells of that warp alone: another barrier comes before shared
// memory is written again.
#pragma once

#include <cstdint>

namespace nvfp4::arch {

// Called before the first multiplication, and before one that finds registers of A or D changed by anything but a
// multiplication of the same N.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Makes a group of the multiplications since the last call.
__device__ __forceinline__ void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until all groups but the latest `kPending` are over.
template <int kPending>
__device__ __forceinline__ void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Makes the compiler compute these registers here, and hides from it how; this is no instruction. The compiler knows
// nothing of multiplications in flight, and would move arithmetic over fences and waits.
template <int kCount>
__device__ __forceinline__ void wgmma_pin(float (&registers)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

template <int kCount>
__device__ __forceinline__ void wgmma_pin(uint32_t (&registers)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

// Descriptor of B ("Matrix Descriptor Format"): rows of 128 bytes along K, one a column of B, with the 128-byte
// swizzle. Eight rows are a pattern of 1024 bytes, and start at a multiple of that. The next 16 of K are 32 bytes
// further on: 2 is added.
__device__ __forceinline__ uint64_t wgmma_rows_descriptor(uint32_t address) {
    return uint64_t((address & 0x3ffff) >> 4) | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

// Names of the type of A and B in PTX.
struct WgmmaF16 {
    static constexpr char kName[] = "f16";
};
struct WgmmaBf16 {
    static constexpr char kName[] = "bf16";
};

// One function for each size of D: N = 8, 16, 32, 64 and 128.
template <typename Element>
__device__ __forceinline__ void wgmma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                      uint64_t b, bool accumulate) {
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        "setp.ne.b32 p, %9, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.%10.%10 "
        "{%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, %8, p, 1, 1, 0;\n\t"
        "}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(uint32_t(accumulate)), "C"(Element::kName));
}

template <typename Element>
__device__ __forceinline__ void wgmma(float (&d)[8], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                      uint64_t b, bool accumulate) {
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        "setp.ne.b32 p, %13, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.%14.%14 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, "
        "{%8, %9, %10, %11}, %12, p, 1, 1, 0;\n\t"
        "}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(uint32_t(accumulate)), "C"(Element::kName));
}

template <typename Element>
__device__ __forceinline__ void wgmma(float (&d)[16], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                      uint64_t b, bool accumulate) {
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        "setp.ne.b32 p, %21, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.%22.%22 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "{%16, %17, %18, %19}, %20, p, 1, 1, 0;\n\t"
        "}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(uint32_t(accumulate)), "C"(Element::kName));
}

template <typename Element>
__device__ __forceinline__ void wgmma(float (&d)[32], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                      uint64_t b, bool accumulate) {
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        "setp.ne.b32 p, %37, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.%38.%38 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
        "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n\t"
        "}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(uint32_t(accumulate)), "C"(Element::kName));
}

template <typename Element>
__device__ __forceinline__ void wgmma(float (&d)[64], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                      uint64_t b, bool accumulate) {
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        "setp.ne.b32 p, %69, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.%70.%70 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
        "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
        "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "
        "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, p, 1, 1, 0;\n\t"
        "}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(uint32_t(accumulate)), "C"(Element::kName));
}

// D += A * B, or D = A * B: 64 x 16 times 16 x N, of f16 or bf16, in f32. Warp w of the group holds rows 16w to
// 16w + 15 of A and D. Its lane 4 * g + t gives columns 2t and 2t + 1 of A's rows g (a0) and g + 8 (a1); a2 and a3 are
// columns 2t + 8 and 2t + 9 of these rows. d[4 * i] and d[4 * i + 1] are columns 8 * i + 2t and 8 * i + 2t + 1 of row
// g. The two after them are the columns of row g + 8. `b`, B's descriptor, and `accumulate` are the same in all
// threads.
template <int kN>
__device__ __forceinline__ void wgmma_f16(float (&d)[kN / 2], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                          uint64_t b, bool accumulate) {
    wgmma<WgmmaF16>(d, a0, a1, a2, a3, b, accumulate);
}

template <int kN>
__device__ __forceinline__ void wgmma_bf16(float (&d)[kN / 2], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                           uint64_t b, bool accumulate) {
    wgmma<WgmmaBf16>(d, a0, a1, a2, a3, b, accumulate);
}

}  // namespace nvfp4::arch
