// Stands in for cuBLAS, as far as llm.c's attention uses it: C = op(A) op(B) for each matrix of a batch, by columns.
// Every element is summed by a thread of its own.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <library_types.h>

using cublasHandle_t = void *;
using cublasStatus_t = int;
enum { CUBLAS_STATUS_SUCCESS, CUBLAS_GEMM_DEFAULT = -1 };
enum cublasMath_t { CUBLAS_DEFAULT_MATH, CUBLAS_TF32_TENSOR_OP_MATH };
enum cublasComputeType_t { CUBLAS_COMPUTE_16F, CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32 };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };

inline int cublasCreate(cublasHandle_t *) { return 0; }
inline int cublasDestroy(cublasHandle_t) { return 0; }
inline int cublasSetMathMode(cublasHandle_t, cublasMath_t) { return 0; }

template <class T>
__global__ void products(bool ta, bool tb, int m, int k, const T *a, int lda, size_t as, const T *b, int ldb, size_t bs,
                         T *c, int ldc, size_t cs) {
    int i = threadIdx.x, j = blockIdx.x;
    a += blockIdx.y * as, b += blockIdx.y * bs, c += blockIdx.y * cs;
    for (; i < m; i += blockDim.x) {
        float sum = 0;
        for (int x = 0; x < k; ++x)
            sum += float(a[ta ? i * lda + x : x * lda + i]) * float(b[tb ? x * ldb + j : j * ldb + x]);
        c[j * ldc + i] = T(sum);
    }
}

// Alpha is one and beta zero there.
inline int cublasSgemmStridedBatched(cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
                                     const float *, const float *a, int lda, size_t as, const float *b, int ldb,
                                     size_t bs, const float *, float *c, int ldc, size_t cs, int batch) {
    products<<<dim3(n, batch), 128>>>(ta, tb, m, k, a, lda, as, b, ldb, bs, c, ldc, cs);
    return 0;
}
inline int cublasGemmStridedBatchedEx(cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
                                      const void *, const void *a, cudaDataType, int lda, size_t as, const void *b,
                                      cudaDataType, int ldb, size_t bs, const void *, void *c, cudaDataType, int ldc,
                                      size_t cs, int batch, cublasComputeType_t, int) {
    using T = __nv_bfloat16;
    products<<<dim3(n, batch), 128>>>(ta, tb, m, k, static_cast<const T *>(a), lda, as, static_cast<const T *>(b), ldb,
                                      bs, static_cast<T *>(c), ldc, cs);
    return 0;
}
