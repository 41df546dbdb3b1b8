// Kernels between the linear layers of a decoder, on a GPU. `kernels.rs` has the launches. NVRTC compiles this file
// for a model: SIZE is the number of elements of a head, a multiple of 32; GROUP is the number of heads of queries that
// a CTA of `attend` takes, all of which read one head of keys and values.
//
// The text's state is an array `step` in the device's memory: the number of tokens that were read before (a position),
// then the tokens of this pass. No launch has either as an argument, so that one CUDA graph does for all positions.
//
// Vectors that a linear layer reads have the type that an argument says: F32, BF16 or F16.

constexpr int BF16 = 1, F16 = 2;

constexpr int WARP = 32;
constexpr unsigned ALL = 0xffffffff;

__device__ float minus_infinity() { return __int_as_float(0xff800000); }

// Where launches overlap: the next one may come, and read weights; it ends only after this one.
__device__ void let_next_come() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits for the launches before this one. What they write is read behind this.
__device__ void wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ void begin() {
    let_next_come();
    wait();
}

// To the nearest bf16, of two to the even one; NaN stays NaN.
__device__ unsigned short to_bf16(float x) {
    unsigned bits = __float_as_uint(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// To the nearest f16; past 65504 infinite.
__device__ unsigned short to_f16(float x) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

__device__ float of_bf16(unsigned bits) { return __uint_as_float(bits << 16); }

__device__ void store(void* out, long long at, float x, int type) {
    if (type == BF16) {
        static_cast<unsigned short*>(out)[at] = to_bf16(x);
    } else if (type == F16) {
        static_cast<unsigned short*>(out)[at] = to_f16(x);
    } else {
        static_cast<float*>(out)[at] = x;
    }
}

// Four elements, from a multiple of four on.
__device__ void store_four(void* out, long long at, float4 x, int type) {
    if (type == BF16 || type == F16) {
        bool is_bf16 = type == BF16;
        ushort4 four = {is_bf16 ? to_bf16(x.x) : to_f16(x.x), is_bf16 ? to_bf16(x.y) : to_f16(x.y),
                        is_bf16 ? to_bf16(x.z) : to_f16(x.z), is_bf16 ? to_bf16(x.w) : to_f16(x.w)};
        *reinterpret_cast<ushort4*>(static_cast<unsigned short*>(out) + at) = four;
    } else {
        *reinterpret_cast<float4*>(static_cast<float*>(out) + at) = x;
    }
}

__device__ float sum_of_warp(float x) {
    for (int step = WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL, x, step);
    return x;
}

// The rows of a table that the step's tokens name. A token that is none is a row of NaN.
extern "C" __global__ void embed(const int* step, const float* table, float* xs, int hidden, int vocabulary) {
    begin();
    int token = step[1 + blockIdx.x];
    bool known = token >= 0 && token < vocabulary;
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
        float x = known ? table[(long long)token * hidden + i] : __int_as_float(0x7fffffff);
        xs[(long long)blockIdx.x * hidden + i] = x;
    }
}

// RMSNorm of vectors of a multiple of four elements, at most 16 for each thread, written so many times one behind the
// other.
extern "C" __global__ void rms_norm(const float* xs, const float* factors, float epsilon, void* out, int hidden,
                                    int copies, int type) {
    constexpr int MOST = 4;
    __shared__ float sums[WARP];
    let_next_come();
    int fours = hidden / 4, lane = threadIdx.x % WARP;
    float4 factor[MOST], x[MOST];
    // The factors are weights: they are there before the vectors are.
    #pragma unroll
    for (int i = 0; i < MOST; i++) {
        int at = threadIdx.x + i * blockDim.x;
        if (at < fours) factor[i] = reinterpret_cast<const float4*>(factors)[at];
    }
    wait();
    xs += (long long)blockIdx.x * hidden;
    float sum = 0;
    #pragma unroll
    for (int i = 0; i < MOST; i++) {
        int at = threadIdx.x + i * blockDim.x;
        x[i] = at < fours ? reinterpret_cast<const float4*>(xs)[at] : float4{0, 0, 0, 0};
        sum += x[i].x * x[i].x + x[i].y * x[i].y + x[i].z * x[i].z + x[i].w * x[i].w;
    }
    sum = sum_of_warp(sum);
    if (lane == 0) sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    sum = sum_of_warp(lane < blockDim.x / WARP ? sums[lane] : 0);
    float scale = 1 / sqrtf(sum / hidden + epsilon);
    #pragma unroll
    for (int i = 0; i < MOST; i++) {
        int at = threadIdx.x + i * blockDim.x;
        if (at >= fours) break;
        float4 y = {x[i].x * scale * factor[i].x, x[i].y * scale * factor[i].y, x[i].z * scale * factor[i].z,
                    x[i].w * scale * factor[i].w};
        for (int copy = 0; copy < copies; copy++) {
            store_four(out, ((long long)blockIdx.x * copies + copy) * hidden + 4 * at, y, type);
        }
    }
}

__device__ float gated(float gate, float up) { return gate / (1 + expf(-gate)) * up; }

// SwiGLU: of the results of gate and up `[2 size]`, gate / (1 + exp(-gate)) * up. `size` is a multiple of four.
extern "C" __global__ void gate(const float* both, void* out, int size, int type) {
    begin();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= size / 4) return;
    const float4* gates = reinterpret_cast<const float4*>(both + 2ll * blockIdx.y * size);
    float4 g = gates[i], u = gates[size / 4 + i];
    float4 y = {gated(g.x, u.x), gated(g.y, u.y), gated(g.z, u.z), gated(g.w, u.w)};
    store_four(out, (long long)blockIdx.y * size + 4 * i, y, type);
}

// 16 bytes of a row of a matrix, of eight bf16 or four f32, by as many elements of a vector: sum plus their products.
__device__ float plus_products(float sum, uint4 of_row, const float* xs, bool halves) {
    const float4* x = reinterpret_cast<const float4*>(xs);
    float4 first = x[0];
    if (halves) {
        float4 second = x[1];
        sum += of_bf16(of_row.x & 0xffff) * first.x + of_bf16(of_row.x >> 16) * first.y;
        sum += of_bf16(of_row.y & 0xffff) * first.z + of_bf16(of_row.y >> 16) * first.w;
        sum += of_bf16(of_row.z & 0xffff) * second.x + of_bf16(of_row.z >> 16) * second.y;
        return sum + (of_bf16(of_row.w & 0xffff) * second.z + of_bf16(of_row.w >> 16) * second.w);
    }
    sum += __uint_as_float(of_row.x) * first.x + __uint_as_float(of_row.y) * first.y;
    return sum + (__uint_as_float(of_row.z) * first.z + __uint_as_float(of_row.w) * first.w);
}

// A matrix `[rows][k]` of f32, or bf16 where `halves` is 1, by f32 vectors: y = W x, or y += W x. A warp has a row.
extern "C" __global__ void dense(const uint4* weights, const float* xs, float* ys, int rows, int k, int halves,
                                 int adds) {
    begin();
    int row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (row >= rows) return;
    xs += (long long)blockIdx.y * k;
    int piece = halves ? 8 : 4;  // elements of 16 bytes
    weights += (long long)row * (k / piece);
    float sum = 0;
    #pragma unroll 4
    for (int i = lane; i < k / piece; i += WARP) sum = plus_products(sum, weights[i], xs + i * piece, halves);
    sum = sum_of_warp(sum);
    long long at = (long long)blockIdx.y * rows + row;
    if (lane == 0) ys[at] = adds ? ys[at] + sum : sum;
}

// One value and where it stands. -1: a NaN, which is chosen before everything. Of equals the first is chosen.
struct Best {
    float value;
    int at;
};

__device__ Best better(Best a, Best b) {
    if (a.at < 0 || b.at < 0) return {0, -1};
    return a.value > b.value || (a.value == b.value && a.at < b.at) ? a : b;
}

constexpr int NOTHING = 0x7fffffff;

__device__ Best best_of_warp(Best best) {
    for (int step = WARP / 2; step > 0; step /= 2) {
        Best other = {__shfl_xor_sync(ALL, best.value, step), __shfl_xor_sync(ALL, best.at, step)};
        best = better(best, other);
    }
    return best;
}

constexpr int MOST_EXPERTS = 1024, MOST_ROUTED = 8192;

// An f32 as an integer of the same order, above 0. Zeros are equal, and NaN is the largest.
__device__ unsigned key_of(float x) {
    unsigned bits = __float_as_uint(x + 0.0f);
    if (x != x) return ALL;
    return bits >> 31 ? ~bits : bits | 0x80000000;
}

__device__ float of_key(unsigned key) {
    return __uint_as_float(key >> 31 ? key & 0x7fffffff : ~key);
}

// What stands before experts: the RMSNorm of each vector, of a multiple of 8 elements up to MOST_ROUTED; the router's
// matrix by that, which is as `dense`'s; and the experts that a token has. A warp has an expert's logit. The last CTA of
// a token to end chooses: the likeliest experts, the first of equals first. Their shares are those of the softmax, or
// where `normalised` is 1 so that they add up to 1. Logits that are NaN give an id that no expert has.
// `counters` are zeros `[n]`, before and after.
extern "C" __global__ void __launch_bounds__(256)
    route(const float* xs, const float* factors, float epsilon, const uint4* weights, int hidden, int halves,
          float* normed, float* logits, unsigned* counters, int experts, int top, int normalised, int* ids,
          float* shares) {
    constexpr int THREADS = 256, MOST = 8;  // pieces of a row that are asked for before the vector is there
    constexpr int FOURS = MOST_ROUTED / 4 / THREADS;
    __shared__ __align__(16) float x[MOST_ROUTED];
    __shared__ unsigned keys[MOST_EXPERTS];
    __shared__ float sums[WARP];
    __shared__ bool is_last;
    let_next_come();
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, token = blockIdx.y;
    int expert = blockIdx.x * (THREADS / WARP) + warp, piece = halves ? 8 : 4;
    weights += (long long)min(expert, experts - 1) * (hidden / piece);
    // Weights are there before the vector is.
    uint4 ahead[MOST];
    #pragma unroll
    for (int i = 0; i < MOST; i++) {
        int at = lane + WARP * i;
        if (at < hidden / piece) ahead[i] = weights[at];
    }
    float4 factor[FOURS];
    #pragma unroll
    for (int i = 0; i < FOURS; i++) {
        int at = threadIdx.x + i * THREADS;
        if (at < hidden / 4) factor[i] = reinterpret_cast<const float4*>(factors)[at];
    }
    wait();
    const float4* from = reinterpret_cast<const float4*>(xs + (long long)token * hidden);
    float4* to = reinterpret_cast<float4*>(normed + (long long)token * hidden);
    float sum = 0;
    for (int i = threadIdx.x; i < hidden / 4; i += THREADS) {
        float4 four = from[i];
        reinterpret_cast<float4*>(x)[i] = four;
        sum += four.x * four.x + four.y * four.y + four.z * four.z + four.w * four.w;
    }
    sum = sum_of_warp(sum);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    float scale = 1 / sqrtf(sum_of_warp(lane < THREADS / WARP ? sums[lane] : 0) / hidden + epsilon);
    // A thread's own elements.
    #pragma unroll
    for (int i = 0; i < FOURS; i++) {
        int at = threadIdx.x + i * THREADS;
        if (at >= hidden / 4) break;
        float4 four = reinterpret_cast<float4*>(x)[at];
        four = {four.x * scale * factor[i].x, four.y * scale * factor[i].y, four.z * scale * factor[i].z,
                four.w * scale * factor[i].w};
        reinterpret_cast<float4*>(x)[at] = four;
        if (blockIdx.x == 0) to[at] = four;
    }
    __syncthreads();
    float logit = 0;
    #pragma unroll
    for (int i = 0; i < MOST; i++) {
        int at = lane + WARP * i;
        if (at < hidden / piece) logit = plus_products(logit, ahead[i], x + at * piece, halves);
    }
    for (int at = lane + WARP * MOST; at < hidden / piece; at += WARP) {
        logit = plus_products(logit, weights[at], x + at * piece, halves);
    }
    logit = sum_of_warp(logit);
    logits += (long long)token * experts;
    if (lane == 0 && expert < experts) logits[expert] = logit;
    __syncthreads();
    if (threadIdx.x == 0) {
        // The CTA's logits, then the count; the count, then others' logits.
        __threadfence();
        is_last = atomicAdd(counters + token, 1) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (!is_last) return;
    if (threadIdx.x == 0) counters[token] = 0;
    for (int i = threadIdx.x; i < experts; i += THREADS) keys[i] = key_of(__ldcg(logits + i));
    __syncthreads();
    if (warp > 0) return;

    // A lane has every 32nd expert, and knows its likeliest that was not taken; 0 for nothing.
    unsigned key = 0;
    int at = 0;
    auto look = [&]() {
        key = 0;
        for (int i = lane; i < experts; i += WARP) {
            if (keys[i] > key) {
                key = keys[i];
                at = i;
            }
        }
    };
    look();
    float first = of_key(__reduce_max_sync(ALL, key)), all = 0;
    if (!normalised) {
        for (int i = lane; i < experts; i += WARP) all += expf(of_key(keys[i]) - first);
        all = sum_of_warp(all);
    }
    for (int slot = 0; slot < top; slot++) {
        unsigned best = __reduce_max_sync(ALL, key);
        int id = __reduce_min_sync(ALL, key == best ? (unsigned)at : ALL);
        float share = expf(of_key(best) - first);
        if (normalised) all += share;
        if (lane == 0) {
            ids[token * top + slot] = best == ALL ? NOTHING : id;
            // The vector is multiplied: its memory is free.
            x[slot] = share;
        }
        if (key == best && at == id) {
            keys[id] = 0;
            look();
        }
        __syncwarp();
    }
    for (int slot = lane; slot < top; slot += WARP) shares[token * top + slot] = x[slot] / all;
}

// Heads of queries and keys: their norm, where there are factors, and their rotation by a position. A warp has a head.
// A lane has the elements `lane + 32 i` of both halves of it.
__device__ void turn_head(const float* head, float* to, const float* factors, float epsilon, const float* cosines,
                          const float* sines, float scale) {
    constexpr int EACH = (SIZE / 2 + WARP - 1) / WARP;
    int lane = threadIdx.x % WARP;
    float a[EACH], b[EACH], sum = 0;
    for (int i = 0; i < EACH; i++) {
        int at = lane + WARP * i;
        a[i] = at < SIZE / 2 ? head[at] : 0;
        b[i] = at < SIZE / 2 ? head[at + SIZE / 2] : 0;
        sum += a[i] * a[i] + b[i] * b[i];
    }
    float factor = 1;
    if (factors != nullptr) factor = 1 / sqrtf(sum_of_warp(sum) / SIZE + epsilon);
    for (int i = 0; i < EACH; i++) {
        int at = lane + WARP * i;
        if (at >= SIZE / 2) break;
        if (factors != nullptr) {
            a[i] = a[i] * factor * factors[at];
            b[i] = b[i] * factor * factors[at + SIZE / 2];
        }
        float cosine = cosines[at], sine = sines[at];
        to[at] = (a[i] * cosine - b[i] * sine) * scale;
        to[at + SIZE / 2] = (a[i] * sine + b[i] * cosine) * scale;
    }
}

// Scores are exponents of 2: queries are multiplied by 1 / sqrt(SIZE) and by log2(e).
__device__ float scale_of_queries() { return 1.44269504f / sqrtf((float)SIZE); }

// For passes of several tokens: turns queries where they lie, and writes keys and values `[kv][most][SIZE]`. A CTA of
// one warp has a head of a token.
extern "C" __global__ void turn(float* qkv, const float* q_factors, const float* k_factors, float epsilon,
                                const float* cosines, const float* sines, float* keys, float* values, const int* step,
                                int most, int heads, int kv) {
    begin();
    int head = blockIdx.x, token = blockIdx.y, position = step[0] + token;
    float* from = qkv + ((long long)token * (heads + 2 * kv) + head) * SIZE;
    cosines += (long long)position * (SIZE / 2);
    sines += (long long)position * (SIZE / 2);
    if (head < heads) {
        turn_head(from, from, q_factors, epsilon, cosines, sines, scale_of_queries());
        return;
    }
    bool is_key = head < heads + kv;
    int of = head - heads - (is_key ? 0 : kv);
    float* to = (is_key ? keys : values) + ((long long)of * most + position) * SIZE;
    if (is_key) {
        turn_head(from, to, k_factors, epsilon, cosines, sines, 1);
    } else {
        for (int i = threadIdx.x; i < SIZE; i += WARP) to[i] = from[i];
    }
}

constexpr int WARPS = 4;      // of a CTA of `attend`
constexpr int LANES = 8;      // that share a position's key
constexpr int AT_ONCE = 8;    // positions of a warp at once
constexpr int EACH = SIZE / WARP;  // elements of a value that a lane has
constexpr int LINE = SIZE + 4;     // of a part: a sum of values, the sum of their weights, the largest score
constexpr int TURNS = AT_ONCE / (WARP / LANES);
constexpr int QUARTERS = SIZE / (LANES * 4);  // of a key: what a lane has of it, in fours

// Keys and values of a warp's positions.
struct Rows {
    float4 key[TURNS][QUARTERS];
    float value[AT_ONCE][EACH];
};

// Positions past `last` are `last`.
__device__ void read_rows(Rows& rows, const float* keys, const float* values, int first, int last) {
    int lane = threadIdx.x % WARP;
    #pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        int position = min(first + turn * (WARP / LANES) + lane / LANES, last);
        const float* key = keys + (long long)position * SIZE + lane % LANES * 4;
        #pragma unroll
        for (int i = 0; i < QUARTERS; i++) {
            rows.key[turn][i] = *reinterpret_cast<const float4*>(key + i * LANES * 4);
        }
    }
    #pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        const float* row = values + (long long)min(first + i, last) * SIZE + lane * EACH;
        #pragma unroll
        for (int j = 0; j < EACH; j++) rows.value[i][j] = row[j];
    }
}

// Softmax of the products with keys, and the sum of values by it. A CTA has the heads of a group and a part of the
// positions before a token; the last of them to end adds the parts up, always in the same order. Parts are as long as
// `gridDim.y` of them ask for, and no shorter than 32 positions. Where `own` is 1, the pass has one token, whose
// queries are turned here, and whose key and value a CTA of the last part writes. What was read in earlier passes lies
// in the caches then, and the position in `step`, before the launch before has ended. Otherwise `turn` has turned, and
// has written.
// `parts` is `[n][heads][gridDim.y][LINE]`, `counters` are zeros `[n][heads / GROUP]`, before and after.
extern "C" __global__ void __launch_bounds__(WARPS * WARP)
    attend(const float* qkv, const float* q_factors, const float* k_factors, float epsilon, const float* cosines,
           const float* sines, float* keys, float* values, const int* step, int most, int heads, int kv, int own,
           float* parts, unsigned* counters, void* out, int type) {
    __shared__ __align__(16) float q[GROUP][SIZE];
    __shared__ __align__(16) float own_key[SIZE];
    __shared__ __align__(16) float sums[WARPS][GROUP][SIZE];
    __shared__ float largest[WARPS][GROUP], weights[WARPS][GROUP];
    __shared__ bool is_last;
    let_next_come();
    if (!own) wait();
    int group = blockIdx.x, part = blockIdx.y, token = blockIdx.z;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int length = step[0] + token + 1;
    int each = (length + (int)gridDim.y - 1) / (int)gridDim.y;
    each = (each + WARPS * AT_ONCE - 1) / (WARPS * AT_ONCE) * (WARPS * AT_ONCE);
    int used = (length + each - 1) / each, start = part * each;
    if (part >= used) return;
    int end = min(start + each, length);
    int of = group * GROUP / (heads / kv);  // the head of keys and values
    bool is_end = own && end == length;     // whose last position is the token's own
    qkv += (long long)token * (heads + 2 * kv) * SIZE;
    keys += (long long)of * most * SIZE;
    values += (long long)of * most * SIZE;

    Rows rows;
    int first = start + warp * AT_ONCE;
    // The last position that is in the caches. It may be that of the part before: its rows are then replaced below.
    int in_cache = is_end ? length - 2 : end - 1;
    bool has_some = first < end && in_cache >= 0;
    if (has_some) read_rows(rows, keys, values, first, in_cache);
    if (own) {
        wait();
        const float* cosine = cosines + (long long)(length - 1) * (SIZE / 2);
        const float* sine = sines + (long long)(length - 1) * (SIZE / 2);
        for (int head = warp; head < GROUP; head += WARPS) {
            const float* from = qkv + (group * GROUP + head) * SIZE;
            turn_head(from, q[head], q_factors, epsilon, cosine, sine, scale_of_queries());
        }
        if (is_end && warp == WARPS - 1) {
            turn_head(qkv + (heads + of) * SIZE, own_key, k_factors, epsilon, cosine, sine, 1);
        }
    } else {
        for (int i = threadIdx.x; i < GROUP * SIZE; i += WARPS * WARP) {
            q[i / SIZE][i % SIZE] = qkv[group * GROUP * SIZE + i];
        }
    }
    __syncthreads();
    const float* own_value = qkv + (heads + kv + of) * SIZE;
    // Of the groups that share the key, the first one writes.
    if (is_end && group * GROUP % (heads / kv) == 0) {
        long long at = (long long)(length - 1) * SIZE;
        for (int i = threadIdx.x; i < SIZE; i += WARPS * WARP) {
            keys[at + i] = own_key[i];
            values[at + i] = own_value[i];
        }
    }

    float most_so_far[GROUP], weight[GROUP], sum[GROUP][EACH];
    #pragma unroll
    for (int head = 0; head < GROUP; head++) {
        most_so_far[head] = minus_infinity();
        weight[head] = 0;
        #pragma unroll
        for (int i = 0; i < EACH; i++) sum[head][i] = 0;
    }
    for (; first < end; first += WARPS * AT_ONCE) {
        if (is_end && first + AT_ONCE >= length) {
            // The token's own position, which is in no cache yet.
            #pragma unroll
            for (int turn = 0; turn < TURNS; turn++) {
                if (first + turn * (WARP / LANES) + lane / LANES < length - 1) continue;
                #pragma unroll
                for (int i = 0; i < QUARTERS; i++) {
                    const float* key = own_key + i * LANES * 4 + lane % LANES * 4;
                    rows.key[turn][i] = *reinterpret_cast<const float4*>(key);
                }
            }
            #pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                if (first + i < length - 1) continue;
                #pragma unroll
                for (int j = 0; j < EACH; j++) rows.value[i][j] = own_value[lane * EACH + j];
            }
        }
        float scores[GROUP][TURNS];
        #pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            int position = first + turn * (WARP / LANES) + lane / LANES;
            #pragma unroll
            for (int head = 0; head < GROUP; head++) scores[head][turn] = 0;
            #pragma unroll
            for (int i = 0; i < QUARTERS; i++) {
                float4 k = rows.key[turn][i];
                #pragma unroll
                for (int head = 0; head < GROUP; head++) {
                    float4 x = *reinterpret_cast<const float4*>(&q[head][i * LANES * 4 + lane % LANES * 4]);
                    scores[head][turn] += k.x * x.x + k.y * x.y + k.z * x.z + k.w * x.w;
                }
            }
            #pragma unroll
            for (int head = 0; head < GROUP; head++) {
                for (int step = LANES / 2; step > 0; step /= 2) {
                    scores[head][turn] += __shfl_xor_sync(ALL, scores[head][turn], step);
                }
                if (position >= end) scores[head][turn] = minus_infinity();
            }
        }
        #pragma unroll
        for (int head = 0; head < GROUP; head++) {
            float now = most_so_far[head];
            for (int turn = 0; turn < TURNS; turn++) now = fmaxf(now, scores[head][turn]);
            for (int step = LANES; step < WARP; step *= 2) now = fmaxf(now, __shfl_xor_sync(ALL, now, step));
            // A score that is NaN is its sum's: fmaxf passes it over, and its weight is NaN.
            float less = exp2f(most_so_far[head] - now), all = 0;
            for (int turn = 0; turn < TURNS; turn++) {
                scores[head][turn] = exp2f(scores[head][turn] - now);
                all += scores[head][turn];
            }
            for (int step = LANES; step < WARP; step *= 2) all += __shfl_xor_sync(ALL, all, step);
            weight[head] = weight[head] * less + all;
            most_so_far[head] = now;
            for (int i = 0; i < EACH; i++) sum[head][i] *= less;
            #pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                constexpr int IN_TURN = WARP / LANES;
                float w = __shfl_sync(ALL, scores[head][i / IN_TURN], i % IN_TURN * LANES);
                for (int j = 0; j < EACH; j++) sum[head][j] += w * rows.value[i][j];
            }
        }
        int next = first + WARPS * AT_ONCE;
        if (next < end) read_rows(rows, keys, values, next, in_cache);
    }
    #pragma unroll
    for (int head = 0; head < GROUP; head++) {
        if (lane == 0) {
            largest[warp][head] = most_so_far[head];
            weights[warp][head] = weight[head];
        }
        for (int i = 0; i < EACH; i++) sums[warp][head][lane * EACH + i] = sum[head][i];
    }
    __syncthreads();

    // The warps' sums as one: the result, or a part of it.
    float* lines = parts + ((long long)token * heads + group * GROUP) * gridDim.y * LINE;
    long long result = ((long long)token * heads + group * GROUP) * SIZE;
    for (int i = threadIdx.x; i < GROUP * SIZE; i += WARPS * WARP) {
        int head = i / SIZE, at = i % SIZE;
        float now = largest[0][head], x = 0, all = 0;
        for (int of = 1; of < WARPS; of++) now = fmaxf(now, largest[of][head]);
        for (int of = 0; of < WARPS; of++) {
            float less = exp2f(largest[of][head] - now);
            x += less * sums[of][head][at];
            all += less * weights[of][head];
        }
        if (used == 1) {
            store(out, result + i, x / all, type);
            continue;
        }
        float* to = lines + (head * (int)gridDim.y + part) * LINE;
        to[at] = x;
        if (at == 0) {
            to[SIZE] = all;
            to[SIZE + 1] = now;
        }
    }
    if (used == 1) return;

    unsigned* counter = counters + token * (heads / GROUP) + group;
    __syncthreads();
    if (threadIdx.x == 0) {
        // The CTA's parts, then the count; the count, then others' parts.
        __threadfence();
        is_last = atomicAdd(counter, 1) == used - 1;
        __threadfence();
    }
    __syncthreads();
    if (!is_last) return;
    if (threadIdx.x == 0) *counter = 0;
    // A thread has four elements. It asks for so many parts at once.
    constexpr int ASKED = 8;
    for (int i = threadIdx.x; i < GROUP * SIZE / 4; i += WARPS * WARP) {
        int head = i / (SIZE / 4), at = i % (SIZE / 4) * 4;
        const float* from = lines + head * (int)gridDim.y * LINE;
        float now = minus_infinity(), all = 0;
        float4 x = {0, 0, 0, 0};
        for (int first = 0; first < used; first += ASKED) {
            float4 values[ASKED];
            float2 tail[ASKED];
            #pragma unroll
            for (int j = 0; j < ASKED; j++) {
                const float* line = from + min(first + j, used - 1) * LINE;
                values[j] = __ldcg(reinterpret_cast<const float4*>(line + at));
                tail[j] = __ldcg(reinterpret_cast<const float2*>(line + SIZE));
            }
            float before = now;
            #pragma unroll
            for (int j = 0; j < ASKED; j++) now = fmaxf(now, tail[j].y);
            float less = exp2f(before - now);
            all *= less;
            x = {x.x * less, x.y * less, x.z * less, x.w * less};
            #pragma unroll
            for (int j = 0; j < ASKED; j++) {
                float share = first + j < used ? exp2f(tail[j].y - now) : 0;
                all += share * tail[j].x;
                x.x += share * values[j].x;
                x.y += share * values[j].y;
                x.z += share * values[j].z;
                x.w += share * values[j].w;
            }
        }
        store_four(out, result + 4 * i, {x.x / all, x.y / all, x.z / all, x.w / all}, type);
    }
}

// The likeliest token of each row of logits, the first of equals; -1 where a logit is NaN. CTAs have parts of a row;
// the last of them to end has the token. Where `goes_on` is 1 there is one row, and its token is the next step's.
// `parts` is `[n][gridDim.x]`, `counters` are zeros `[n]`, before and after.
extern "C" __global__ void choose(const float* logits, int vocabulary, int2* parts, unsigned* counters, int* chosen,
                                  int* step, int goes_on) {
    __shared__ Best bests[WARP];
    __shared__ bool is_last;
    begin();
    int row = blockIdx.y, warps = blockDim.x / WARP;
    logits += (long long)row * vocabulary;
    parts += row * gridDim.x;
    auto of_block = [&](Best best) {
        best = best_of_warp(best);
        if (threadIdx.x % WARP == 0) bests[threadIdx.x / WARP] = best;
        __syncthreads();
        best = bests[0];
        for (int warp = 1; warp < warps; warp++) best = better(best, bests[warp]);
        return best;
    };
    Best best = {minus_infinity(), NOTHING};
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < vocabulary; i += gridDim.x * blockDim.x) {
        float logit = logits[i];
        best = better(best, {logit, logit == logit ? i : -1});
    }
    best = of_block(best);
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = {__float_as_int(best.value), best.at};
        __threadfence();
        is_last = atomicAdd(counters + row, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    best = {minus_infinity(), NOTHING};
    for (int i = threadIdx.x; i < gridDim.x; i += blockDim.x) {
        int2 part = __ldcg(parts + i);
        best = better(best, {__int_as_float(part.x), part.y});
    }
    best = of_block(best);
    if (threadIdx.x != 0) return;
    counters[row] = 0;
    chosen[row] = best.at;
    if (!goes_on) return;
    step[1] = best.at;
    step[0] += 1;
}

// Random numbers, for a model that is there to be timed. They are 32-bit words of codes (any bits), of block scales
// (E4M3 from 0.5 to 1.875), f32 from -`size` to `size`, or pairs of bf16 with magnitudes from 2^-7 to 2^-5.
extern "C" __global__ void random_words(unsigned* out, long long count, unsigned seed, int kind, float size) {
    begin();
    long long threads = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads) {
        // The finaliser of MurmurHash3, of a place that 64 bits say.
        unsigned bits = (unsigned)i * 0x9e3779b9u + (unsigned)(i >> 32) * 0x7feb352du + seed;
        bits = (bits ^ bits >> 16) * 0x85ebca6bu;
        bits = (bits ^ bits >> 13) * 0xc2b2ae35u;
        bits ^= bits >> 16;
        if (kind == 1) bits = (bits & 0x0f0f0f0f) | 0x30303030;
        if (kind == 2) bits = __float_as_uint(((int)bits) * (size / 2147483648.0f));
        if (kind == 3) bits = (bits & 0x80ff80ff) | 0x3c003c00;
        out[i] = bits;
    }
}
