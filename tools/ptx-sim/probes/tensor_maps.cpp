// Records the 128 bytes that cuTensorMapEncodeTiled writes, for several hundred sets of arguments:
// first sets that differ from another one in one argument, then random ones. Needs nothing but
// libcuda.so.1, and no CUDA header.
//
//   g++ -O1 -o tensor_maps tensor_maps.cpp -ldl && ./tensor_maps > tensor_maps.txt
//
// Each line is one call. All numbers are hexadecimal:
//   result type address dims strides box steps interleave swizzle promotion fill [words]
// Lists have commas between their entries ("-": no entry), `steps` are the element strides, and
// `words` are the map's 32-bit words without the zeros at the end.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef uint32_t u32;
typedef uint64_t u64;

struct Map {
    u32 type, rank;
    u64 address, dims[6], strides[5];
    u32 box[6], steps[6], interleave, swizzle, promotion, fill;
};

static int (*encode)(void*, u32, u32, u64, const u64*, const u64*, const u32*, const u32*, u32, u32, u32, u32);
static const u32 BITS[] = {8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6, 8};

template <class T> static void list(const T* v, u32 n) {
    printf(n ? " " : " -");
    for (u32 i = 0; i < n; i++) printf(i ? ",%llx" : "%llx", (unsigned long long)v[i]);
}

static void record(const Map& m) {
    alignas(64) u32 words[32];
    memset(words, 0xA5, sizeof words);
    int result = encode(words, m.type, m.rank, m.address, m.dims, m.strides, m.box, m.steps, m.interleave,
                        m.swizzle, m.promotion, m.fill);
    printf("%x %x %llx", result, m.type, (unsigned long long)m.address);
    list(m.dims, m.rank);
    list(m.strides, m.rank ? m.rank - 1 : 0);
    list(m.box, m.rank);
    list(m.steps, m.rank);
    printf(" %x %x %x %x", m.interleave, m.swizzle, m.promotion, m.fill);
    u32 n = 32;
    while (n && !words[n - 1]) n--;
    for (u32 i = 0; i < n && !result; i++) printf(" %x", words[i]);
    printf("\n");
}

static u64 state = 1;
static u64 draw() {  // splitmix64
    u64 z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}
static u64 below(u64 n) { return draw() % n; }
// A number of at most `most` bits, of any magnitude.
static u64 number(u32 most) {
    u64 bits = below(most + 1);
    return bits ? draw() >> (64 - bits) : 0;
}

static Map random() {
    Map m = {};
    m.type = below(13), m.rank = 1 + below(5), m.address = number(57) & ~31ull;
    m.interleave = m.rank > 2 ? below(4) % 3 : 0;
    m.swizzle = m.interleave == 2 ? 1 : below(4);
    m.promotion = below(4), m.fill = m.type > 5 ? below(2) : 0;
    u32 span = m.swizzle ? 16u << m.swizzle : 256, most = 256;
    for (u32 d = 0; d < 6; d++) {
        m.dims[d] = 1 + number(32), m.steps[d] = 1 + below(8);
        m.box[d] = d ? 1 + number(below(8)) % most : 16 * (1 + below(span / 16)) * 8 / BITS[m.type];
        if (d) most = most * 2 / (m.box[d] + 1) + 1;
        if (d < 5) m.strides[d] = number(40) & ~31ull;
    }
    return m;
}

#define EACH(field, from, to, value) \
    for (u64 i = from; i < to; i++) m = base, m.field = value, record(m);

int main() {
    void* lib = dlopen("libcuda.so.1", RTLD_NOW);
    auto call = [&](const char* name) { return (int (*)(...))dlsym(lib, name); };
    encode = (decltype(encode))dlsym(lib, "cuTensorMapEncodeTiled");
    int version = 0, device = 0;
    char name[99] = "";
    void* context;
    if (!encode || call("cuInit")(0) || call("cuDeviceGet")(&device, 0) ||
        call("cuCtxCreate_v2")(&context, 0, device))
        return 1;
    call("cuDeviceGetName")(name, 99, device);
    call("cuDriverGetVersion")(&version);
    printf("# %s, CUDA driver API %d\n", name, version);

    const Map five = {0, 5, 0x10000, {64, 7, 6, 5, 4, 3}, {0x100, 0x800, 0x4000, 0x20000, 0x100000},
                      {16, 2, 3, 4, 5, 1}, {1, 1, 1, 1, 1, 1}, 0, 0, 0, 0};
    Map base = five, m = base;
    EACH(rank, 0, 7, i)
    EACH(address, 0, 64, 1ull << i)
    for (u32 d = 0; d < 5; d++) {
        EACH(dims[d], 0, 34, 1ull << i)
        EACH(dims[d], 0, 2, i * 0x89abcdef)
        EACH(box[d], 0, 10, d ? 1 << i : 16 * (i + 1))
        EACH(box[d], 255, 258, i)
        EACH(steps[d], 0, 10, i)
    }
    for (u32 d = 0; d < 4; d++) {
        EACH(strides[d], 2, 42, 1ull << i)
        EACH(strides[d], 0, 1, i)
    }
    EACH(promotion, 0, 6, i)
    EACH(type, 0, 17, i)
    EACH(fill, 0, 3, i)
    for (u32 t = 0; t < 17; t++) {
        base = five, base.type = t, base.dims[0] = 256, base.box[0] = 128, m = base;
        EACH(swizzle, 0, 8, (m.box[0] = t > 12 ? 128 : 256 / BITS[t], i))
        EACH(fill, 1, 2, (m.box[0] = t > 12 ? 128 : 256 / BITS[t], i))
    }
    for (u32 k = 0; k < 4; k++) {
        base = five, base.interleave = k;
        EACH(swizzle, 0, 5, i)
        EACH(rank, 1, 5, (m.swizzle = k == 2, i))
        for (u32 d = 0; d < 5; d++) {
            EACH(steps[d], 2, 4, (m.swizzle = k == 2, i))
            EACH(box[d], 5, 9, (m.swizzle = k == 2, i))
        }
    }
    // How large a box may be: in bytes, in elements, with steps.
    base = five, base.rank = 3, base.box[0] = 256, base.box[2] = 4, base.steps[0] = 1;
    EACH(box[1], 120, 257, i)
    base.type = 1, base.box[0] = 128;
    EACH(box[1], 220, 257, i)
    EACH(box[1], 220, 257, (m.box[0] = 256, m.box[2] = 2, i))
    base.type = 4, base.box[0] = 256, base.box[2] = 1;
    EACH(box[1], 60, 257, i)
    base.steps[1] = 2;
    EACH(box[1], 110, 257, i)
    for (u32 i = 0; i < 400; i++) record(random());
}
