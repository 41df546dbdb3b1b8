// NVFP4 layers for C and C++: y = W x + bias, W in NVFP4. crates/capi/README.md has the rules of all functions, and how
// to link. Made by cbindgen from crates/capi/src.

#ifndef NVFP4_GEMV_H
#define NVFP4_GEMV_H

#include <stddef.h>
#include <stdint.h>

// Version of the functions and structures here, as this header declares them. A library with another number of
// nvfp4_abi_version() does not fit the header.
#define NVFP4_ABI_VERSION 2

// All went well.
#define NVFP4_OK 0

// An argument that means nothing: NULL, a number that names nothing, text that is no UTF-8. And memory that cannot be
// used so, of the host or of a device: a misaligned address or stride, results over what is read.
#define NVFP4_BAD_ARGUMENT 1

// Operands that contradict each other or their sizes, and scales that are NaN or negative.
#define NVFP4_BAD_OPERAND 2

// A file that cannot be read, or a layer that is missing there or is not computed.
#define NVFP4_BAD_FILE 3

// A path, device, driver, kernel or memory that is not there.
#define NVFP4_UNAVAILABLE 4

// An error that CUDA reported.
#define NVFP4_CUDA_ERROR 5

// A fault of the library itself. Please report it.
#define NVFP4_PANIC 6

// Half precision numbers (IEEE binary16).
#define NVFP4_F16 0

// bfloat16 numbers.
#define NVFP4_BF16 1

// Single precision numbers: float.
#define NVFP4_F32 2

// E2M1 codes, two a byte with the even element in the low half, and E4M3 scales. For vectors only.
#define NVFP4_CODES 3

// Block scales row by row, as checkpoints have them.
#define NVFP4_LINEAR 0

// Block scales in atoms of 128 rows and 4 scales, as cuBLASLt's VEC16_UE4M3.
#define NVFP4_128X4 1

// A global scale that codes are multiplied by, as ModelOpt's.
#define NVFP4_MULTIPLIER 0

// A global scale that codes are divided by, as that of compressed-tensors.
#define NVFP4_DIVISOR 1

// All rows of gate, then all of up.
#define NVFP4_STACKED 0

// The first row of gate, the first of up, then the second of each.
#define NVFP4_INTERLEAVED 1

// Vectors are quantised as they are.
#define NVFP4_AS_THEY_ARE 0

// gate * sigmoid(gate) * up: SwiGLU.
#define NVFP4_SILU 1

// GeGLU with the tanh form of GELU.
#define NVFP4_GELU_TANH 2

// g * sigmoid(alpha * g) * (u + 1), of gate and up within a limit: gpt-oss's, with an alpha of 1.702 and a limit of 7.
#define NVFP4_CLAMPED 3

// RMSNorm.
#define NVFP4_RMS_NORM 4

// A plan as sentences, a line each.
#define NVFP4_TEXT 0

// A plan as one JSON object.
#define NVFP4_JSON 1

// A call that was prepared.
typedef struct nvfp4_call nvfp4_call;

// An open checkpoint: safetensors files of ModelOpt or compressed-tensors.
typedef struct nvfp4_checkpoint nvfp4_checkpoint;

// The experts of a mixture in a device's memory, which is the library's.
typedef struct nvfp4_device_experts nvfp4_device_experts;

// The experts of a mixture in host memory: MLPs of one size, of which each vector has a few.
typedef struct nvfp4_experts nvfp4_experts;

// A call of experts that was prepared, with memory for what lies between their layers.
typedef struct nvfp4_experts_call nvfp4_experts_call;

// A GPU: one of this machine, or a product that is elsewhere.
typedef struct nvfp4_gpu nvfp4_gpu;

// A linear layer y = W x + bias in host memory.
typedef struct nvfp4_linear nvfp4_linear;

// The MLP of a decoder layer in host memory: down * (silu(gate * x) * (up * x)), or with another gate in silu's place:
// nvfp4_mlp_with_gate.
typedef struct nvfp4_mlp nvfp4_mlp;

// The result of a function: NVFP4_OK or a kind of error.
typedef int32_t nvfp4_status;

// Vectors in a device's memory that become NVFP4, and where their parts go. nvfp4_device_vectors takes codes, scales and
// factors (`vector_alpha`, beside a global scale of 1) then.
typedef struct {
    // Vectors.
    size_t n;
    // Elements of a vector that is made: a multiple of 16.
    size_t k;
    // What is made of the vectors first: NVFP4_AS_THEY_ARE, a gate (NVFP4_SILU, NVFP4_GELU_TANH, NVFP4_CLAMPED) or
    // NVFP4_RMS_NORM.
    uint32_t first;
    // Of a gate: NVFP4_STACKED or NVFP4_INTERLEAVED, the order of the 2k elements that a vector has.
    uint32_t order;
    // Of NVFP4_CLAMPED: positive.
    float alpha;
    // Of NVFP4_CLAMPED: positive.
    float limit;
    // Of NVFP4_RMS_NORM: address of k weights of the vectors' type, 16-byte aligned.
    uint64_t norm_weight;
    // Of NVFP4_RMS_NORM: positive.
    float epsilon;
    // Whether the launch may begin before the work before it has ended; it waits before it reads or writes. For compute
    // capability 9.0 and up.
    uint32_t chained;
    // NVFP4_F16, NVFP4_BF16 or NVFP4_F32.
    uint32_t element;
    // How the block scales will lie.
    uint32_t layout;
    // Address of the vectors, 16-byte aligned.
    uint64_t values;
    // Bytes from a vector's values to the next one's; 0: nothing lies between them.
    size_t row_stride;
    // Written: address of the codes `[n][k/2]`, 8-byte aligned.
    uint64_t codes;
    // Written: address of the block scales. NVFP4_128X4: 16-byte aligned, and padded with zeros to 128 vectors.
    uint64_t scales;
    // Written: address of a float for each vector, its global scale; NaN for one that held a NaN or an infinity.
    uint64_t vector_alpha;
} nvfp4_quantization;

// Weights in a device's memory: an address of 0 stands for nothing.
typedef struct {
    // Rows, M.
    size_t rows;
    // Elements of a row, K.
    size_t k;
    // Address of the codes `[rows][k/2]`, 8-byte aligned.
    uint64_t codes;
    // Address of the block scales.
    uint64_t scales;
    // How they lie: NVFP4_LINEAR `[rows][k/16]`, or NVFP4_128X4.
    uint32_t layout;
    // NVFP4_MULTIPLIER or NVFP4_DIVISOR.
    uint32_t global_kind;
    // The global scale.
    float global;
    // Address of a float for each row, a factor, or 0.
    uint64_t row_alpha;
} nvfp4_device_weights;

// Vectors in a device's memory.
typedef struct {
    // NVFP4_F16, NVFP4_BF16, NVFP4_F32 or NVFP4_CODES.
    uint32_t element;
    // Address of elements `[n][k]`, 16-byte aligned, or of codes `[n][k/2]`, 8-byte aligned.
    uint64_t values;
    // Bytes from a vector's values to the next one's; 0: nothing lies between them.
    size_t row_stride;
    // Address of the block scales of codes; for other vectors nothing here and below is looked at.
    uint64_t scales;
    // Bytes from a vector's linear scales to the next one's; 0: nothing lies between them.
    size_t scale_row_stride;
    // How the scales lie.
    uint32_t layout;
    // NVFP4_MULTIPLIER or NVFP4_DIVISOR.
    uint32_t global_kind;
    // The global scale.
    float global;
    // Address of a float for each vector, a factor, or 0.
    uint64_t vector_alpha;
} nvfp4_device_vectors;

// Results in a device's memory, and what is added to them.
typedef struct {
    // NVFP4_F16, NVFP4_BF16 or NVFP4_F32.
    uint32_t element;
    // Address of the results `[n][rows]`.
    uint64_t values;
    // Bytes from a vector's results to the next one's; 0: nothing lies between them.
    size_t row_stride;
    // Address of a float for each row, which is added to its results, or 0.
    uint64_t bias;
    // Address of numbers that lie as the results do and are added to them, or 0. The results' own address: y += W x.
    uint64_t residual;
} nvfp4_device_output;

// Device memory for intermediate data. Calls that may run at the same time need one each. Calls on one stream may share
// one, if one thread at a time launches them.
typedef struct {
    // Its address, 256-byte aligned. The first 8192 bytes were set to zeros once.
    uint64_t address;
    // Its length: nvfp4_workspace_bytes says how much is used.
    uint64_t bytes;
} nvfp4_device_workspace;

// The parts of a layer in host memory.
typedef struct {
    // Rows, M.
    size_t rows;
    // Elements of a row, K: a multiple of 16.
    size_t k;
    // E2M1 codes `[rows][k/2]`, the even element in the low half of a byte.
    const uint8_t *codes;
    // Their length.
    size_t codes_bytes;
    // E4M3 block scales.
    const uint8_t *scales;
    // Their length.
    size_t scales_bytes;
    // How they lie: NVFP4_LINEAR `[rows][k/16]`, or NVFP4_128X4.
    uint32_t layout;
    // NVFP4_MULTIPLIER or NVFP4_DIVISOR.
    uint32_t global_kind;
    // The global scale.
    float global;
    // A factor for each row, or NULL.
    const float *row_alpha;
    // A number for each row, which is added to its results, or NULL.
    const float *bias;
} nvfp4_weights;

// Vectors in host memory, one after the other.
typedef struct {
    // NVFP4_F16, NVFP4_BF16, NVFP4_F32 or NVFP4_CODES.
    uint32_t element;
    // Elements `[n][k]`, or codes `[n][k/2]`.
    const void *values;
    // Their length.
    size_t values_bytes;
    // Block scales of codes; otherwise nothing here and below is looked at.
    const uint8_t *scales;
    // Their length.
    size_t scales_bytes;
    // How the scales lie.
    uint32_t layout;
    // NVFP4_MULTIPLIER or NVFP4_DIVISOR.
    uint32_t global_kind;
    // The global scale.
    float global;
} nvfp4_vectors;

// Results in host memory `[n][rows]`.
typedef struct {
    // NVFP4_F16, NVFP4_BF16 or NVFP4_F32.
    uint32_t element;
    // Whether results are added to what is there: y += W x + bias. 0: y = W x + bias.
    uint32_t accumulate;
    // Memory that shares no byte with what is read: vectors, layers' codes and scales, ids.
    void *values;
    // Its length.
    size_t values_bytes;
} nvfp4_output;

// A problem that is planned.
typedef struct {
    // Rows of the weights.
    size_t rows;
    // Elements of a row.
    size_t k;
    // Vectors.
    size_t n;
    // NVFP4_F16, NVFP4_BF16, NVFP4_F32 or NVFP4_CODES.
    uint32_t element;
    // Layout of the block scales, of NVFP4 vectors too.
    uint32_t layout;
    // Whether the launch is chained: see nvfp4_call_prepare.
    uint32_t chained;
} nvfp4_problem;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// NVFP4_ABI_VERSION of the library that is linked or loaded.
uint32_t nvfp4_abi_version(void);

// The library's own version, such as "0.1.0". The text is static.
const char *nvfp4_version(void);

// Opens a .safetensors file, an index, or a directory of a model. Larger files are mapped, and must not be truncated
// while they, or layers of them, are open.
//
// `path` is NULL or text, and `checkpoint` is NULL or has room for a pointer.
nvfp4_status nvfp4_checkpoint_open(const char *path,
                                   nvfp4_checkpoint **checkpoint);

// Closes a checkpoint. Layers that were made of it stay, and keep its files open.
//
// `checkpoint` is NULL or open, and nobody uses it any more.
void nvfp4_checkpoint_close(nvfp4_checkpoint *checkpoint);

// The number of NVFP4 layers.
//
// `checkpoint` is NULL or open, and `count` is NULL or has room for a number.
nvfp4_status nvfp4_checkpoint_count(const nvfp4_checkpoint *checkpoint, size_t *count);

// The name of a layer by its number, in alphabetical order. The text is valid while the checkpoint is open.
//
// `checkpoint` is NULL or open, and `name` is NULL or has room for a pointer.
nvfp4_status nvfp4_checkpoint_name(const nvfp4_checkpoint *checkpoint,
                                   size_t number,
                                   const char **name);

// A layer by its name, with its bias if it has one. Codes and scales stay in the files.
//
// `checkpoint` is NULL or open, `name` is NULL or text, and `linear` is NULL or has room for a pointer.
nvfp4_status nvfp4_linear_from_checkpoint(const nvfp4_checkpoint *checkpoint,
                                          const char *name,
                                          nvfp4_linear **linear);

// Enqueues the quantisation of vectors on a stream, a CUstream or cudaStream_t, as one kernel, each with a global scale of
// its own, and waits for nothing. It can be captured into a CUDA graph.
//
// `vectors` is NULL or there. A context is current, and `stream` is one of it. Every address is valid, for the bytes that
// sizes and strides reach, until the enqueued work has run. Nothing else writes the memory, or reads what is written,
// meanwhile. With `chained`, the launch before it in the stream waits for the launches before that one, as all kernels of
// this library do. All of this holds until the last replay of a graph that it was captured into.
nvfp4_status nvfp4_quantize(const nvfp4_quantization *vectors,
                            void *stream);

// A GPU of this machine, by its number.
//
// `gpu` is NULL or has room for a pointer.
nvfp4_status nvfp4_gpu_of_device(uint32_t number, nvfp4_gpu **gpu);

// Prepares y = W x + bias of n vectors for the CUDA context that is current: chooses a kernel, loads it, and keeps the
// launches. Reads no address; nothing is enqueued. A `workspace` of NULL is none.
//
// `gpu` is the context's: nvfp4_gpu_of_device of its number. Another kind of GPU than the context's is
// NVFP4_BAD_ARGUMENT.
//
// With `chained` launches may start before the work before them has ended; they read codes and scales at once and wait
// with everything else. The caller promises that no kernel that may still run writes codes or scales: not only the one
// right before a launch may, but all chained launches in a row before it, and the one before the first of them.
//
// All pointers are NULL or there; `call` is NULL or has room for a pointer. With `chained`, the promise above holds for
// every launch, and for every replay of a graph that one was captured into.
nvfp4_status nvfp4_call_prepare(const nvfp4_gpu *gpu,
                                const nvfp4_device_weights *weights,
                                const nvfp4_device_vectors *x,
                                size_t n,
                                const nvfp4_device_output *y,
                                const nvfp4_device_workspace *workspace,
                                uint32_t chained,
                                nvfp4_call **call);

// Enqueues a prepared call on a stream, a CUstream or cudaStream_t, and waits for nothing. It can be captured into a
// CUDA graph.
//
// `call` is NULL or prepared. The context that it was prepared in is current, and `stream` is one of it. Every address
// that it was prepared with is valid, for the bytes that sizes and strides reach, until the enqueued work has run.
// Nothing else writes the memory, or reads the results or the workspace, meanwhile. Between the launches of this call no
// other thread launches a call with the same workspace. All of this holds until the last replay of a graph that the
// call was captured into.
nvfp4_status nvfp4_call_launch(const nvfp4_call *call,
                               void *stream);

// Says what a prepared call launches, and why, as nvfp4_plan does.
//
// `call` is NULL or prepared, and `text` is NULL or has room for a pointer.
nvfp4_status nvfp4_call_plan(const nvfp4_call *call, uint32_t format, char **text);

// Frees a prepared call. Work that was enqueued goes on.
//
// `call` is NULL or prepared, and nobody uses it any more.
void nvfp4_call_free(nvfp4_call *call);

// Copies experts of the host to the device of the CUDA context that is current, and waits for that: codes, block scales
// in a layout (NVFP4_LINEAR or NVFP4_128X4), factors, biases. The experts of the host may be freed. Factors of columns
// are NVFP4_BAD_OPERAND.
//
// With `chained` launches may start before the work before them has ended; they read codes and scales at once and wait
// with everything else, ids among it. For compute capability 9.0 and up.
//
// `experts` is NULL or experts, and `on_device` is NULL or has room for a pointer. The context is there until all that was
// made for it has been freed. With `chained`, the launch before each of them in its stream waits for the launches before
// that one, as all kernels of this library do.
nvfp4_status nvfp4_experts_on_device(const nvfp4_experts *experts,
                                     uint32_t layout,
                                     uint32_t chained,
                                     nvfp4_device_experts **on_device);

// Frees experts of a device. Calls that were prepared keep what they need.
//
// `experts` is NULL or experts, and nobody uses it any more.
void nvfp4_device_experts_free(nvfp4_device_experts *experts);

// Prepares a call of n vectors, f16, bf16 or f32, each with so many experts: `ids` is the address of
// `int32_t [n][choices]`, of which -1 is none, and `weights` of `float [n][choices]`, which the experts' results are multiplied by
// before they are added. Vectors, ids and weights are read when a launch runs, so that they may change between launches.
// An id that is none of the experts' makes its vector's result NaN. Allocates memory for what lies between the layers;
// nothing is enqueued.
//
// `stream` is a CUstream or cudaStream_t of the context that is current, which is the experts'. With many vectors the
// per-thread default stream is NVFP4_BAD_OPERAND.
//
// All pointers are NULL or there; `call` is NULL or has room for a pointer. `stream` is there until the call has been
// freed.
nvfp4_status nvfp4_experts_call_prepare(const nvfp4_device_experts *experts,
                                        const nvfp4_device_vectors *x,
                                        size_t n,
                                        uint64_t ids,
                                        uint64_t weights,
                                        size_t choices,
                                        const nvfp4_device_output *y,
                                        void *stream,
                                        nvfp4_experts_call **call);

// Enqueues a prepared call on the stream that it was prepared for: four to eleven kernels. Waits for nothing, and can be
// captured into a CUDA graph; where kernels are compiled when they are used, launch it once before.
//
// `call` is NULL or prepared. Every address that it was prepared with is valid, for the bytes that sizes and strides reach,
// until the enqueued work has run. Nothing else writes the memory, or reads the results, meanwhile. All of this holds
// until the last replay of a graph that the call was captured into.
nvfp4_status nvfp4_experts_call_launch(const nvfp4_experts_call *call);

// Frees a prepared call, and the memory between its layers when enqueued work has run.
//
// `call` is NULL or prepared, and nobody uses it any more. Graphs that it was captured into are not replayed any more.
void nvfp4_experts_call_free(nvfp4_experts_call *call);

// The text of the last error of a function that this thread called; empty if there was none. It is valid until the
// thread calls a function that fails.
const char *nvfp4_last_error(void);

// A layer of these parts, which are copied.
//
// `weights` is NULL or there, with memory as it says; `linear` is NULL or has room for a pointer.
nvfp4_status nvfp4_linear_from_parts(const nvfp4_weights *weights, nvfp4_linear **linear);

// A layer of these parts, whose codes and scales stay where they are: valid and unchanged until the layer has been
// freed, and whatever was made of it. Factors and bias are copied.
//
// As nvfp4_linear_from_parts, and codes and scales stay valid and unchanged until the layer has been freed,
// and whatever was made of it.
nvfp4_status nvfp4_linear_borrowing_parts(const nvfp4_weights *weights,
                                          nvfp4_linear **linear);

// A layer of a dense matrix `[rows][k]` of NVFP4_F16, NVFP4_BF16 or NVFP4_F32, quantised.
//
// `values` is NULL or has `values_bytes` bytes, and `linear` is NULL or has room for a pointer.
nvfp4_status nvfp4_linear_from_dense(uint32_t element,
                                     const void *values,
                                     size_t values_bytes,
                                     size_t rows,
                                     size_t k,
                                     nvfp4_linear **linear);

// Frees a layer.
//
// `linear` is NULL or a layer, and nobody uses it any more.
void nvfp4_linear_free(nvfp4_linear *linear);

// The parts of a layer, to copy them to a device for example. They are valid while the layer is there.
//
// `linear` is NULL or a layer, and `weights` is NULL or has room for the structure.
nvfp4_status nvfp4_linear_weights(const nvfp4_linear *linear,
                                  nvfp4_weights *weights);

// Makes memory for calls with n vectors of a type, so that the first such call allocates nothing either.
//
// `linear` is NULL or a layer.
nvfp4_status nvfp4_linear_prepare(const nvfp4_linear *linear,
                                  size_t n,
                                  uint32_t element);

// Computes n vectors on the CPU, on a pool of threads that the library keeps. A child of fork has none of them: where
// its parent has computed before, such a call of the child waits for ever.
//
// `linear` is NULL or a layer; `x` and `y` are NULL or there, with memory as they say.
nvfp4_status nvfp4_linear_forward(const nvfp4_linear *linear,
                                  const nvfp4_vectors *x,
                                  size_t n,
                                  const nvfp4_output *y);

// An MLP of three layers, with NVFP4_SILU between. It shares their memory; they may be freed.
//
// Layers are NULL or there, and `mlp` is NULL or has room for a pointer.
nvfp4_status nvfp4_mlp_new(const nvfp4_linear *gate,
                           const nvfp4_linear *up,
                           const nvfp4_linear *down,
                           nvfp4_mlp **mlp);

// An MLP whose gate and up are one layer, with the rows of both in an order: NVFP4_STACKED or NVFP4_INTERLEAVED. As
// nvfp4_mlp_new in all else.
//
// As nvfp4_mlp_new.
nvfp4_status nvfp4_mlp_joined(const nvfp4_linear *gate_up,
                              uint32_t order,
                              const nvfp4_linear *down,
                              nvfp4_mlp **mlp);

// An MLP of another one's layers, with another gate: NVFP4_SILU, NVFP4_GELU_TANH or NVFP4_CLAMPED, for which alone alpha
// and limit are looked at. It shares their memory; `mlp` stays as it was, and may be freed.
//
// `mlp` is NULL or an MLP, and `other` is NULL or has room for a pointer.
nvfp4_status nvfp4_mlp_with_gate(const nvfp4_mlp *mlp,
                                 uint32_t gate,
                                 float alpha,
                                 float limit,
                                 nvfp4_mlp **other);

// Frees an MLP.
//
// `mlp` is NULL or an MLP, and nobody uses it any more.
void nvfp4_mlp_free(nvfp4_mlp *mlp);

// Computes n vectors on the CPU, as nvfp4_linear_forward.
//
// `mlp` is NULL or an MLP; `x` and `y` are NULL or there, with memory as they say.
nvfp4_status nvfp4_mlp_forward(const nvfp4_mlp *mlp,
                               const nvfp4_vectors *x,
                               size_t n,
                               const nvfp4_output *y);

// Experts of one size. They share the memory of `count` MLPs, which may be freed.
//
// `mlps` is NULL or has so many pointers, each NULL or an MLP; `experts` is NULL or has room for a pointer.
nvfp4_status nvfp4_experts_new(const nvfp4_mlp *const *mlps,
                               size_t count,
                               nvfp4_experts **experts);

// All experts of a layer of a checkpoint. `name` is their common name, such as "model.layers.0.mlp.experts"; `gate`, `up`
// and `down` name their layers, such as "gate_proj". Where one layer has the rows of gate and up in an order, `gate`
// names it and `up` is NULL; otherwise the order is not looked at. Codes and scales stay in the files, but for experts
// that are stacked in transposed tensors. The gate is the one that config.json names, and NVFP4_SILU where it names
// none; one that is not computed is NVFP4_BAD_FILE. nvfp4_experts_with_gate takes another one.
//
// `checkpoint` is NULL or open, names are NULL or text, and `experts` is NULL or has room for a pointer.
nvfp4_status nvfp4_experts_from_checkpoint(const nvfp4_checkpoint *checkpoint,
                                           const char *name,
                                           const char *gate,
                                           const char *up,
                                           uint32_t order,
                                           const char *down,
                                           nvfp4_experts **experts);

// Experts of others' layers, all with another gate than theirs: as nvfp4_mlp_with_gate.
//
// `experts` is NULL or experts, and `others` is NULL or has room for a pointer.
nvfp4_status nvfp4_experts_with_gate(const nvfp4_experts *experts,
                                     uint32_t gate,
                                     float alpha,
                                     float limit,
                                     nvfp4_experts **others);

// Frees experts.
//
// `experts` is NULL or experts, and nobody uses them any more.
void nvfp4_experts_free(nvfp4_experts *experts);

// Computes n vectors on the CPU, each by so many experts: `ids[n][choices]`, of which -1 is none, with their results
// multiplied by `weights[n][choices]` and summed.
//
// `experts` is NULL or experts; `ids` and `weights` are NULL or have so many numbers; `x` and `y` are NULL or there,
// with memory as they say.
nvfp4_status nvfp4_experts_forward(const nvfp4_experts *experts,
                                   const nvfp4_vectors *x,
                                   size_t n,
                                   const int32_t *ids,
                                   const float *weights,
                                   size_t choices,
                                   const nvfp4_output *y);

// A product by its name, such as "h200" or "rtx5090", for plans on machines without it.
//
// `name` is NULL or text, and `gpu` is NULL or has room for a pointer.
nvfp4_status nvfp4_gpu_of_product(const char *name, nvfp4_gpu **gpu);

// Frees what is known of a GPU.
//
// `gpu` is NULL or there, and nobody uses it any more.
void nvfp4_gpu_free(nvfp4_gpu *gpu);

// Says which kernel computes a problem, why, and by which launches, as NVFP4_TEXT or NVFP4_JSON. A `gpu` of NULL is the
// CPU. A workspace counts as large enough. The text is freed by nvfp4_text_free.
//
// `gpu` is NULL or there, `problem` is NULL or there, and `text` is NULL or has room for a pointer.
nvfp4_status nvfp4_plan(const nvfp4_gpu *gpu,
                        const nvfp4_problem *problem,
                        uint32_t format,
                        char **text);

// Bytes of a workspace that a call of the problem would use, 0 for none.
//
// `gpu` is NULL or there, `problem` is NULL or there, and `bytes` is NULL or has room for a number.
nvfp4_status nvfp4_workspace_bytes(const nvfp4_gpu *gpu,
                                   const nvfp4_problem *problem,
                                   uint64_t *bytes);

// Frees a text that a function here has made.
//
// `text` is NULL or such a text, and nobody uses it any more.
void nvfp4_text_free(char *text);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVFP4_GEMV_H */
