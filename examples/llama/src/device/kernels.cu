// What stands between the linear layers of a decoder, on a GPU. `kernels.rs` has the launches. NVRTC compiles this file
// for a model: SIZE is the number of elements of a head, a multiple of 32; GROUP is the number of heads of queries that a
// CTA of `attend` takes, all of which read one head of keys and values.
//
// The text's state is an array `step` in the device's memory: the number of tokens that were read before (a position),
// then the tokens of this pass. No launch has either as an argument, so that one CUDA graph does for all positions.
//
// Vectors that a linear layer reads are f32, or bf16 where an argument `halves` is 1.

constexpr int WARP = 32;
constexpr unsigned ALL = 0xffffffff;

__device__ float minus_infinity() { return __int_as_float(0xff800000); }

// Waits for the launches before this one, where launches may overlap; then the next one may come. All that a kernel reads
// may be what the launch before has written, so each begins with this.
__device__ void begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// To the nearest bf16, of two to the even one; NaN stays NaN.
__device__ unsigned short to_bf16(float x) {
    unsigned bits = __float_as_uint(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

__device__ float of_bf16(unsigned bits) { return __uint_as_float(bits << 16); }

__device__ void store(void* out, long long at, float x, int halves) {
    if (halves) {
        static_cast<unsigned short*>(out)[at] = to_bf16(x);
    } else {
        static_cast<float*>(out)[at] = x;
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

// RMSNorm of vectors, written so many times one behind the other.
extern "C" __global__ void rms_norm(const float* xs, const float* factors, float epsilon, void* out, int hidden, int copies,
                                int halves) {
    __shared__ float sums[WARP];
    begin();
    xs += (long long)blockIdx.x * hidden;
    float sum = 0;
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) sum += xs[i] * xs[i];
    sum = sum_of_warp(sum);
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    sum = 0;
    for (int warp = 0; warp < blockDim.x / WARP; warp++) sum += sums[warp];
    float factor = 1 / sqrtf(sum / hidden + epsilon);
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
        float x = xs[i] * factor * factors[i];
        for (int copy = 0; copy < copies; copy++) {
            store(out, ((long long)blockIdx.x * copies + copy) * hidden + i, x, halves);
        }
    }
}

// SwiGLU: of the results of gate and up `[2 size]`, gate / (1 + exp(-gate)) * up.
extern "C" __global__ void gate(const float* both, void* out, int size, int halves) {
    begin();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= size) return;
    const float* vector = both + 2ll * blockIdx.y * size;
    float gate = vector[i];
    store(out, (long long)blockIdx.y * size + i, gate / (1 + expf(-gate)) * vector[size + i], halves);
}

// A matrix `[rows][k]` of f32, or bf16 where `halves` is 1, by f32 vectors: y = W x, or y += W x. A warp has a row.
extern "C" __global__ void dense(const void* weights, const float* xs, float* ys, int rows, int k, int halves, int adds) {
    begin();
    int row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (row >= rows) return;
    const float* x = xs + (long long)blockIdx.y * k;
    float sum = 0;
    if (halves) {
        const uint4* w = reinterpret_cast<const uint4*>(static_cast<const unsigned short*>(weights) + (long long)row * k);
        for (int i = lane; i < k / 8; i += WARP) {
            uint4 eight = w[i];
            unsigned pairs[4] = {eight.x, eight.y, eight.z, eight.w};
            for (int j = 0; j < 4; j++) {
                sum += of_bf16(pairs[j] & 0xffff) * x[8 * i + 2 * j];
                sum += of_bf16(pairs[j] >> 16) * x[8 * i + 2 * j + 1];
            }
        }
    } else {
        const float4* w = reinterpret_cast<const float4*>(static_cast<const float*>(weights) + (long long)row * k);
        for (int i = lane; i < k / 4; i += WARP) {
            float4 four = w[i], other = reinterpret_cast<const float4*>(x)[i];
            sum += four.x * other.x + four.y * other.y + four.z * other.z + four.w * other.w;
        }
    }
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

// The experts of each token, the likeliest first, and their shares: those of the softmax, or where `normalised` is 1 so
// that they add up to 1. A warp has a token. Logits that are NaN give an id that no expert has. At most 1024 experts.
extern "C" __global__ void route(const float* logits, int experts, int top, int normalised, int* ids, float* shares) {
    begin();
    logits += (long long)blockIdx.x * experts;
    int lane = threadIdx.x;
    unsigned taken = 0;
    float first = 0, all = 0, sum = 0;
    for (int slot = 0; slot < top; slot++) {
        Best best = {minus_infinity(), NOTHING};
        for (int i = lane, bit = 0; i < experts; i += WARP, bit++) {
            if (taken >> bit & 1) continue;
            float logit = logits[i];
            best = better(best, {logit, logit == logit ? i : -1});
        }
        best = best_of_warp(best);
        if (slot == 0) {
            first = best.value;
            for (int i = lane; i < experts; i += WARP) all += expf(logits[i] - first);
            all = sum_of_warp(all);
        }
        if (best.at >= 0 && best.at % WARP == lane) taken |= 1u << best.at / WARP;
        float share = expf(best.value - first) / all;
        sum += share;
        if (lane == 0) {
            ids[blockIdx.x * top + slot] = best.at < 0 ? NOTHING : best.at;
            shares[blockIdx.x * top + slot] = share;
        }
    }
    if (!normalised) return;
    __syncwarp();
    for (int slot = lane; slot < top; slot += WARP) shares[blockIdx.x * top + slot] /= sum;
}

// Heads of queries and keys: their norm, where there are factors, and their rotation by a position. A warp has a head. A
// lane has the elements `lane + 32 i` of both halves of it.
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

// For passes of several tokens: turns queries where they lie, and writes keys and values `[kv][most][SIZE]`. A CTA of one
// warp has a head of a token.
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
constexpr int MOST_PARTS = WARPS * WARP;

// Softmax of the products with keys, and the sum of values by it. A CTA has the heads of a group and a part of the
// positions before a token; the last of them to end adds the parts up, always in the same order. Parts are as long as
// `gridDim.y` of them ask for, and no shorter than 32 positions. Where `own` is 1, the pass has one token, whose queries
// are turned here, and whose key and value the CTA of the last part writes; otherwise `turn` has done that.
// `parts` is `[n][heads][gridDim.y][LINE]`, `counters` are zeros `[n][heads / GROUP]`, before and after.
extern "C" __global__ void __launch_bounds__(WARPS * WARP)
    attend(const float* qkv, const float* q_factors, const float* k_factors, float epsilon, const float* cosines,
           const float* sines, float* keys, float* values, const int* step, int most, int heads, int kv, int own,
           float* parts, unsigned* counters, void* out, int halves) {
    __shared__ __align__(16) float q[GROUP][SIZE];
    __shared__ __align__(16) float sums[WARPS][GROUP][SIZE];
    __shared__ float largest[WARPS][GROUP], weights[WARPS][GROUP];
    __shared__ float shares[GROUP][MOST_PARTS], of_all[GROUP];
    __shared__ bool is_last;
    begin();
    int group = blockIdx.x, part = blockIdx.y, token = blockIdx.z;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int length = step[0] + token + 1;
    int each = (length + (int)gridDim.y - 1) / (int)gridDim.y;
    each = (each + WARPS * AT_ONCE - 1) / (WARPS * AT_ONCE) * (WARPS * AT_ONCE);
    int used = (length + each - 1) / each, start = part * each;
    if (part >= used) return;
    int end = min(start + each, length);
    int of = group * GROUP / (heads / kv);  // the head of keys and values
    qkv += (long long)token * (heads + 2 * kv) * SIZE;
    keys += (long long)of * most * SIZE;
    values += (long long)of * most * SIZE;

    if (own) {
        const float* cosine = cosines + (long long)(length - 1) * (SIZE / 2);
        const float* sine = sines + (long long)(length - 1) * (SIZE / 2);
        for (int head = warp; head < GROUP; head += WARPS) {
            const float* from = qkv + (group * GROUP + head) * SIZE;
            turn_head(from, q[head], q_factors, epsilon, cosine, sine, scale_of_queries());
        }
        if (end == length) {
            long long at = (long long)(length - 1) * SIZE;
            const float* from = qkv + (heads + of) * SIZE;
            if (warp == WARPS - 1) turn_head(from, keys + at, k_factors, epsilon, cosine, sine, 1);
            for (int i = threadIdx.x; i < SIZE; i += WARPS * WARP) values[at + i] = from[kv * SIZE + i];
        }
    } else {
        for (int i = threadIdx.x; i < GROUP * SIZE; i += WARPS * WARP) q[i / SIZE][i % SIZE] = qkv[group * GROUP * SIZE + i];
    }
    __syncthreads();

    float most_so_far[GROUP], weight[GROUP], sum[GROUP][EACH];
    for (int head = 0; head < GROUP; head++) {
        most_so_far[head] = minus_infinity();
        weight[head] = 0;
        for (int i = 0; i < EACH; i++) sum[head][i] = 0;
    }
    constexpr int TURNS = AT_ONCE / (WARP / LANES);
    for (int first = start + warp * AT_ONCE; first < end; first += WARPS * AT_ONCE) {
        // The value of a position is asked for with its key.
        float value[AT_ONCE][EACH];
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const float* row = values + (long long)min(first + i, end - 1) * SIZE + lane * EACH;
            #pragma unroll
            for (int j = 0; j < EACH; j++) value[i][j] = row[j];
        }
        float scores[GROUP][TURNS];
        #pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            int position = first + turn * (WARP / LANES) + lane / LANES;
            const float* key = keys + (long long)min(position, end - 1) * SIZE;
            #pragma unroll
            for (int head = 0; head < GROUP; head++) scores[head][turn] = 0;
            #pragma unroll
            for (int i = 0; i < SIZE; i += LANES * 4) {
                int at = i + lane % LANES * 4;
                float4 k = *reinterpret_cast<const float4*>(key + at);
                #pragma unroll
                for (int head = 0; head < GROUP; head++) {
                    float4 x = *reinterpret_cast<const float4*>(&q[head][at]);
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
            // A score that is minus infinity, or NaN, is its sum's: infinity less infinity is NaN.
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
                for (int j = 0; j < EACH; j++) sum[head][j] += w * value[i][j];
            }
        }
    }
    for (int head = 0; head < GROUP; head++) {
        if (lane == 0) {
            largest[warp][head] = most_so_far[head];
            weights[warp][head] = weight[head];
        }
        for (int i = 0; i < EACH; i++) sums[warp][head][lane * EACH + i] = sum[head][i];
    }
    __syncthreads();

    // The warps' sums as one: the result, or a part of it.
    long long line = ((long long)token * heads + group * GROUP) * gridDim.y;
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
            store(out, result + i, x / all, halves);
            continue;
        }
        float* to = parts + (line + (long long)head * gridDim.y + part) * LINE;
        to[at] = x;
        if (at == 0) {
            to[SIZE] = all;
            to[SIZE + 1] = now;
        }
    }
    if (used == 1) return;

    unsigned* counter = counters + token * (heads / GROUP) + group;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(counter, 1) == used - 1;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    if (threadIdx.x == 0) *counter = 0;
    for (int head = warp; head < GROUP; head += WARPS) {
        const float* from = parts + (line + (long long)head * gridDim.y) * LINE;
        float now = minus_infinity();
        for (int i = lane; i < used; i += WARP) now = fmaxf(now, __ldcg(from + i * LINE + SIZE + 1));
        for (int step = WARP / 2; step > 0; step /= 2) now = fmaxf(now, __shfl_xor_sync(ALL, now, step));
        float all = 0;
        for (int i = lane; i < used; i += WARP) {
            float less = exp2f(__ldcg(from + i * LINE + SIZE + 1) - now);
            shares[head][i] = less;
            all += less * __ldcg(from + i * LINE + SIZE);
        }
        all = sum_of_warp(all);
        if (lane == 0) of_all[head] = all;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < GROUP * SIZE; i += WARPS * WARP) {
        int head = i / SIZE, at = i % SIZE;
        const float* from = parts + (line + (long long)head * gridDim.y) * LINE + at;
        float x = 0;
        #pragma unroll 8
        for (int part = 0; part < used; part++) x += shares[head][part] * __ldcg(from + part * LINE);
        store(out, result + i, x / of_all[head], halves);
    }
}

// The likeliest token of each row of logits, the first of equals; -1 where a logit is NaN. CTAs have parts of a row; the
// last of them to end has the token. Where `goes_on` is 1 there is one row, and its token is the next step's.
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

// Random numbers, for a model that is there to be timed: 32-bit words of codes (any bits), of block scales (E4M3 from
// 0.5 to 1.875), f32 from -`size` to `size`, or pairs of bf16 with magnitudes from 2^-7 to 2^-5.
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
