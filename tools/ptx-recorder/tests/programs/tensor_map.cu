// A structure with a tensor map inside, passed by value; another map in constant memory. Both read one matrix by TMA.
#include "check.cuh"
#include <cstdint>
#include <cudaTypedefs.h>

constexpr int ROWS = 64, COLUMNS = 96, BOX_ROWS = 8, BOX_COLUMNS = 32;

struct Job {
    int column;
    float *sums;
    CUtensorMap map; // aligned to 128 bytes by its type
    int row;
};

__constant__ CUtensorMap kept;

__device__ uint32_t shared_address(const void *p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

__global__ void add_boxes(const __grid_constant__ Job job) {
    __shared__ alignas(128) float boxes[2][BOX_ROWS][BOX_COLUMNS];
    __shared__ alignas(8) uint64_t arrived;
    uint32_t barrier = shared_address(&arrived);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"((int)sizeof boxes)
                     : "memory");
        for (int i = 0; i < 2; ++i)
            asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                         "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(boxes[i])),
                         "l"(i ? &kept : &job.map), "r"(job.column), "r"(job.row), "r"(barrier)
                         : "memory");
    }
    __syncthreads();
#ifndef FAULT // nobody waits for the copies
    asm volatile("{\n\t.reg .pred done;\n"
                 "again:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n\t"
                 "@!done bra again;\n\t}" ::"r"(barrier)
                 : "memory");
#endif
    float sum = 0;
    for (int i = 0; i < BOX_ROWS; ++i)
        sum += boxes[0][i][threadIdx.x] + boxes[1][i][threadIdx.x];
    job.sums[threadIdx.x] = sum;
}

int main() {
    static float matrix[ROWS][COLUMNS];
    for (int i = 0; i < ROWS * COLUMNS; ++i)
        matrix[i / COLUMNS][i % COLUMNS] = i;
    float *device = upload(&matrix[0][0], ROWS * COLUMNS);
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result));
    EXPECT(result == cudaDriverEntryPointSuccess && found);
    auto encode = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
    auto describe = [&](CUtensorMap *map, int box_columns) {
        const cuuint64_t sizes[] = {COLUMNS, ROWS}, strides[] = {COLUMNS * sizeof(float)};
        const cuuint32_t box[] = {(cuuint32_t)box_columns, BOX_ROWS}, steps[] = {1, 1};
        return encode(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, device, sizes, strides, box, steps,
                      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    };
    Job job{64, nullptr, {}, 16};
    EXPECT(describe(&job.map, 3) == CUDA_ERROR_INVALID_VALUE); // 12 bytes are no multiple of 16
    EXPECT(describe(&job.map, BOX_COLUMNS) == CUDA_SUCCESS);
    CHECK(cudaMemcpyToSymbol(kept, &job.map, sizeof kept));
    CHECK(cudaMalloc(&job.sums, BOX_COLUMNS * sizeof(float)));
    add_boxes<<<1, BOX_COLUMNS>>>(job);
    CHECK(cudaDeviceSynchronize());
    float sums[BOX_COLUMNS];
    CHECK(cudaMemcpy(sums, job.sums, sizeof sums, cudaMemcpyDeviceToHost));
    for (int i = 0; i < BOX_COLUMNS; ++i) {
        float expected = 0;
        for (int row = 0; row < BOX_ROWS; ++row)
            expected += 2 * matrix[job.row + row][job.column + i];
        EXPECT(sums[i] == expected);
    }
    puts("right");
}
