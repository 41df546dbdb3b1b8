// Input sets: edge patterns first, then patterns drawn by splitmix64 with a fixed seed.
#include <math.h>
#include <string.h>

#include <stdexcept>

#include "record.h"

namespace {
struct Rng {
    uint64_t s;
    uint64_t next() {
        uint64_t z = (s += 0x9E3779B97F4A7C15ull);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return z ^ (z >> 31);
    }
    uint32_t below(uint32_t n) { return (uint32_t)((next() >> 33) % n); }
};

typedef std::vector<uint32_t> V32;
typedef std::vector<uint64_t> V64;

const uint32_t F32_EDGES[24] = {
    0x00000000, 0x80000000, 0x3f800000, 0xbf800000, 0x7f800000, 0xff800000, 0x7fc00000, 0x00000001,
    0x807fffff, 0x00800000, 0x7f7fffff, 0x3f7fffff, 0x80000001, 0x80800000, 0xff7fffff, 0x3f800001,
    0x40000000, 0x3f000000, 0xffc00001, 0x7f800001, 0x33800000, 0x4b000000, 0x00800001, 0xffbfffff};
const uint32_t F16_EDGES[24] = {0x0000, 0x8000, 0x3c00, 0xbc00, 0x7c00, 0xfc00, 0x7e00, 0x0001,
                                0x83ff, 0x0400, 0x7bff, 0x3bff, 0x8001, 0x8400, 0xfbff, 0x3c01,
                                0x4000, 0x3800, 0xfe01, 0x7c01, 0x1400, 0x6400, 0x0401, 0xfdff};
const uint32_t BF16_EDGES[24] = {0x0000, 0x8000, 0x3f80, 0xbf80, 0x7f80, 0xff80, 0x7fc0, 0x0001,
                                 0x807f, 0x0080, 0x7f7f, 0x3f7f, 0x8001, 0x8080, 0xff7f, 0x3f81,
                                 0x4000, 0x3f00, 0xffc1, 0x7f81, 0x3380, 0x4300, 0x0081, 0xffbf};

float as_float(uint32_t b) {
    float f;
    memcpy(&f, &b, 4);
    return f;
}
uint32_t as_bits(float f) {
    uint32_t b;
    memcpy(&b, &f, 4);
    return b;
}

// f32 patterns that make rounding work: mantissas ending in runs, exponents near one another.
uint32_t random_f32(Rng& r) {
    uint32_t sign = (uint32_t)r.below(2) << 31;
    uint32_t pick = r.below(16);
    uint32_t mant = (uint32_t)r.next() & 0x7fffff;
    uint32_t cut = r.below(23), low = (1u << cut) - 1;
    switch (r.below(4)) {
        case 0: mant &= ~low; break;
        case 1: mant |= low; break;
        case 2: mant = (mant & ~low) | ((low + 1) >> 1); break;
        default: break;
    }
    if (pick < 3) return (uint32_t)r.next();
    if (pick < 5) return sign | mant;  // subnormal
    if (pick < 6) return sign | ((uint32_t)(1 + r.below(30)) << 23) | mant;
    if (pick < 7) return sign | ((uint32_t)(225 + r.below(30)) << 23) | mant;
    return sign | ((uint32_t)(107 + r.below(40)) << 23) | mant;
}
// 16-bit floats of `mb` mantissa bits, mostly of middling exponent.
uint32_t random_half(Rng& r, unsigned mb) {
    uint32_t pick = r.below(8);
    uint32_t bits = (uint32_t)r.next() & 0xffff;
    if (pick < 3) return bits;
    uint32_t emax = (1u << (15 - mb)) - 1, bias = emax / 2;
    uint32_t e = pick < 4 ? r.below(3) : bias - 6 + r.below(13);
    return (bits & 0x8000) | (e << mb) | (bits & ((1u << mb) - 1));
}

Column col16(const V32& v) {
    Column c{2, Bytes(v.size() * 2)};
    for (size_t i = 0; i < v.size(); i++) {
        uint16_t x = (uint16_t)v[i];
        memcpy(&c.data[2 * i], &x, 2);
    }
    return c;
}
Column col32(const V32& v) {
    Column c{4, Bytes(v.size() * 4)};
    memcpy(c.data.data(), v.data(), c.data.size());
    return c;
}
Column col64(const V64& v) {
    Column c{8, Bytes(v.size() * 8)};
    memcpy(c.data.data(), v.data(), c.data.size());
    return c;
}

// Values whose conversion to a small float is a tie or nearly one: between neighbours of a
// format with `mb` mantissa bits and least normal exponent `emin`, up to exponent `emax`.
void ties(V32& v, int mb, int emin, int emax) {
    for (int e = emin - 1; e <= emax; e++)
        for (int m = 0; m < (1 << mb); m++) {
            double step = ldexp(1.0, (e < emin ? emin : e) - mb);
            double x = e < emin ? m * step : ldexp(1.0, e) + m * step;
            uint32_t b = as_bits((float)(x + step / 2));
            for (int d = -1; d <= 1; d++) {
                v.push_back(b + d);
                v.push_back((b + d) | 0x80000000u);
            }
        }
}

V32 f32_unary() {
    Rng r{11};
    V32 v(F32_EDGES, F32_EDGES + 24);
    ties(v, 3, -6, 8);
    ties(v, 2, -14, 15);
    const float limits[] = {65504.f, 65519.f, 65520.f, 65536.f, 5.9604645e-8f, 2.9802322e-8f,
                            6.1035156e-5f, 6.1005116e-5f, 447.f, 448.f, 464.f, 480.f, 57344.f,
                            61440.f, 3.3895314e38f, 3.3961775e38f, 9.2e-41f, 4.6e-41f};
    for (float f : limits)
        for (int d = -2; d <= 2; d++) {
            v.push_back(as_bits(f) + d);
            v.push_back((as_bits(f) + d) | 0x80000000u);
        }
    while (v.size() < 3072) v.push_back(random_f32(r));
    return v;
}
V32 f32_integral() {
    Rng r{12};
    V32 v(F32_EDGES, F32_EDGES + 24);
    for (int k = -20; k <= 20; k++)
        for (int d = -1; d <= 1; d++) v.push_back(as_bits(k + 0.5f) + d);
    const double limits[] = {127, 127.5, 128, 128.5, 129, 255, 255.5, 256, 32767.5, 32768, 32768.5,
                             65535.5, 65536, 8388607.5, 16777215, 2147483520.0, 2147483648.0,
                             4294967040.0, 4294967296.0, 9223371487098961920.0,
                             9223372036854775808.0, 18446742974197923840.0,
                             18446744073709551616.0};
    for (double x : limits)
        for (int d = -1; d <= 1; d++) {
            v.push_back(as_bits((float)x) + d);
            v.push_back(as_bits((float)-x) + d);
        }
    while (v.size() < 1024) {
        uint32_t b = (uint32_t)r.next();
        v.push_back((b & 0x807fffff) | ((uint32_t)(120 + r.below(74)) << 23));
    }
    return v;
}

// Tuples: the edges' product (the first `e` of them), then random ones.
std::vector<V32> tuples(const uint32_t* edges, unsigned e, unsigned arity, unsigned n, unsigned kind) {
    Rng r{100 + kind * 10 + arity};
    std::vector<V32> c(arity);
    unsigned total = 1;
    for (unsigned k = 0; k < arity; k++) total *= e;
    for (unsigned i = 0; i < total; i++) {
        unsigned x = i;
        for (unsigned k = 0; k < arity; k++, x /= e) c[k].push_back(edges[x % e]);
    }
    while (c[0].size() < n) {
        uint32_t t[3];
        for (unsigned k = 0; k < arity; k++)
            t[k] = kind == 0 ? random_f32(r) : random_half(r, kind == 1 ? 10 : 7);
        unsigned pick = r.below(4);
        if (kind == 0 && pick == 0) {  // cancellation
            if (arity == 2)
                t[1] = (t[0] ^ 0x80000000u) + r.below(5) - 2;
            else
                t[2] = as_bits(-(as_float(t[0]) * as_float(t[1]))) + r.below(5) - 2;
        }
        if (kind != 0 && pick == 0) t[arity - 1] = ((t[0] ^ 0x8000u) + r.below(5) - 2) & 0xffff;
        for (unsigned k = 0; k < arity; k++) c[k].push_back(t[k]);
    }
    return c;
}
// Packed pairs: the tuples in the low half, random ones in the high half.
std::vector<V32> packed(const std::vector<V32>& lo, unsigned mb) {
    Rng r{500 + mb + lo.size()};
    std::vector<V32> c = lo;
    for (V32& v : c)
        for (uint32_t& x : v) x |= random_half(r, mb) << 16;
    return c;
}

const uint32_t I32_EDGES[] = {0, 1, 2, 3, 0x7f, 0x80, 0x81, 0xff, 0x100, 0x7fff, 0x8000, 0x8001, 0xffff,
                              0x10000, 0x7fffff, 0x800000, 0xffffff, 0x1000000, 0x7fffffff,
                              0x80000000, 0x80000001, 0xffff7fff, 0xffff8000, 0xffffff7f, 0xffffff80,
                              0xfffffffe, 0xffffffff, 0x55555555, 0xaaaaaaaa, 0x01234567};
const unsigned I32_COUNT = sizeof(I32_EDGES) / sizeof(I32_EDGES[0]);
uint32_t random_i32(Rng& r) {
    uint32_t x = (uint32_t)r.next();
    switch (r.below(4)) {
        case 0: return I32_EDGES[r.below(I32_COUNT)];
        case 1: return (uint32_t)((int32_t)x >> r.below(31));
        default: return x;
    }
}
uint64_t random_i64(Rng& r) {
    uint64_t x = r.next();
    switch (r.below(4)) {
        case 0: return (uint64_t)(int64_t)(int32_t)random_i32(r);
        case 1: return (uint64_t)((int64_t)x >> r.below(63));
        case 2: return ((uint64_t)random_i32(r) << 32) | random_i32(r);
        default: return x;
    }
}
uint32_t amount(Rng& r, uint32_t i) {
    const uint32_t odd[] = {63, 64, 65, 127, 128, 255, 256, 257, 0x10000, 0x80000000, 0xffffffff, 0x105};
    if (i % 8 == 7) return odd[r.below(12)];
    return r.below(42);
}
V32 ints32(uint64_t seed, unsigned n) {
    Rng r{seed};
    V32 v;
    for (unsigned i = 0; i < n; i++) v.push_back(i < I32_COUNT ? I32_EDGES[i] : random_i32(r));
    return v;
}
V64 ints64(uint64_t seed, unsigned n) {
    Rng r{seed};
    V64 v;
    for (unsigned i = 0; i < n; i++)
        v.push_back(i < I32_COUNT ? (uint64_t)(int64_t)(int32_t)I32_EDGES[i] : random_i64(r));
    v[40] = 0x8000000000000000ull;
    v[41] = 0x7fffffffffffffffull;
    return v;
}
V32 amounts(uint64_t seed, unsigned n) {
    Rng r{seed};
    V32 v;
    for (unsigned i = 0; i < n; i++) v.push_back(amount(r, i));
    return v;
}
V32 pool(uint64_t seed, unsigned n) {  // integers in no order
    Rng r{seed};
    V32 v;
    for (unsigned i = 0; i < n; i++) v.push_back(random_i32(r));
    return v;
}
V64 pool64(uint64_t seed, unsigned n) {
    Rng r{seed};
    V64 v;
    for (unsigned i = 0; i < n; i++) v.push_back(random_i64(r));
    return v;
}
V64 f64_patterns(uint64_t seed, unsigned n) {
    Rng r{seed};
    V64 v = {0, 1ull << 63, 0x3ff0000000000000, 0xbff0000000000000, 0x7ff0000000000000,
             0xfff0000000000000, 0x7ff8000000000000, 0xfff4000000000001, 1, 0x000fffffffffffff,
             0x7fefffffffffffff, 0x41dfffffffc00000, 0x41e0000000000000, 0xc1e0000000000000,
             0xc1e0000000200000, 0x47efffffe0000000, 0x47efffffefffffff, 0x47effffff0000000,
             0x36a0000000000000, 0x3690000000000000, 0x3690000000000001, 0x380fffffffffffff};
    while (v.size() < n) {
        uint64_t x = r.next();
        if (r.below(4)) {  // within f32's range; sometimes a tie
            x = (x & 0x800fffffffffffffull) | ((uint64_t)(870 + r.below(310)) << 52);
            if (r.below(2)) x = (x & ~0x1fffffffull) | 0x10000000ull;
        }
        v.push_back(x);
    }
    return v;
}
}  // namespace

std::vector<Column> make_set(const std::string& s) {
    std::vector<Column> c;
    auto add32 = [&](const V32& v) { c.push_back(col32(v)); };
    auto add16 = [&](const V32& v) { c.push_back(col16(v)); };
    auto add64 = [&](const V64& v) { c.push_back(col64(v)); };
    if (s == "f32u") {
        add32(f32_unary());
    } else if (s == "f32uu") {
        V32 a = f32_unary(), b = a;
        for (size_t i = 0; i < b.size(); i++) b[i] = a[(i * 1237 + 5) % a.size()];
        add32(a);
        add32(b);
    } else if (s == "f32i") {
        add32(f32_integral());
    } else if (s == "f32p") {
        for (auto& v : tuples(F32_EDGES, 24, 2, 2048, 0)) add32(v);
    } else if (s == "f32t") {
        for (auto& v : tuples(F32_EDGES, 12, 3, 3072, 0)) add32(v);
    } else if (s == "h16hp") {
        for (auto& v : tuples(F16_EDGES, 24, 2, 2048, 1)) add16(v);
    } else if (s == "h16ht") {
        for (auto& v : tuples(F16_EDGES, 12, 3, 2560, 1)) add16(v);
    } else if (s == "h16p") {
        for (auto& v : packed(tuples(F16_EDGES, 24, 2, 2048, 1), 10)) add32(v);
    } else if (s == "h16t") {
        for (auto& v : packed(tuples(F16_EDGES, 12, 3, 2560, 1), 10)) add32(v);
    } else if (s == "b16hp") {
        for (auto& v : tuples(BF16_EDGES, 24, 2, 2048, 2)) add16(v);
    } else if (s == "b16ht") {
        for (auto& v : tuples(BF16_EDGES, 12, 3, 2560, 2)) add16(v);
    } else if (s == "b16p") {
        for (auto& v : packed(tuples(BF16_EDGES, 24, 2, 2048, 2), 7)) add32(v);
    } else if (s == "b16t") {
        for (auto& v : packed(tuples(BF16_EDGES, 12, 3, 2560, 2), 7)) add32(v);
    } else if (s == "all16") {
        V32 v;
        for (uint32_t i = 0; i < 65536; i++) v.push_back(i);
        add16(v);
    } else if (s == "fp8pairs") {  // every byte in each half, 16 times
        V32 v;
        for (uint32_t i = 0; i < 4096; i++) v.push_back((i & 255) | ((i * 167 + (i >> 8) * 31) & 255) << 8);
        add16(v);
    } else if (s == "f16s") {  // a sample of the 16-bit patterns: edges of both formats, and every 61st
        V32 v(F16_EDGES, F16_EDGES + 24);
        v.insert(v.end(), BF16_EDGES, BF16_EDGES + 24);
        for (uint32_t i = 0; i < 65536; i += 61) v.push_back(i);
        add16(v);
    } else if (s == "f16x2all") {  // every pattern in the low half, and (in another order) in the high
        V32 v;
        for (uint32_t i = 0; i < 65536; i++) v.push_back(i | (((i * 40503u + 77) & 0xffff) << 16));
        add32(v);
    } else if (s == "f16x2s") {
        V32 v;
        for (uint32_t i = 0; i < 65536; i += 31) v.push_back(i | (((i * 40503u + 77) & 0xffff) << 16));
        add32(v);
    } else if (s == "f64u") {
        add64(f64_patterns(31, 1024));
    } else if (s == "f64p") {
        add64(f64_patterns(32, 512));
        V64 b = f64_patterns(33, 512), rot = b;
        for (size_t i = 0; i < b.size(); i++) rot[i] = b[(i * 5 + 3) % b.size()];
        add64(rot);
    } else if (s == "i32u") {
        add32(ints32(41, 1024));
    } else if (s == "i32p") {
        add32(pool(42, 1024));
        add32(pool(43, 1024));
    } else if (s == "i32t") {
        add32(pool(44, 1024));
        add32(pool(45, 1024));
        add32(pool(46, 1024));
    } else if (s == "i32s") {
        add32(pool(47, 256));
        add32(pool(48, 256));
        add32(pool(49, 256));
    } else if (s == "i32div") {
        V32 a = pool(50, 1024), b = pool(51, 1024);
        for (size_t i = 0; i < b.size(); i++) {
            if (b[i] == 0) b[i] = 7;
            if (a[i] == 0x80000000u && b[i] == 0xffffffffu) b[i] = 0xfffffffeu;
        }
        add32(a);
        add32(b);
    } else if (s == "i16p") {
        add16(pool(52, 1024));
        add16(pool(53, 1024));
    } else if (s == "i16div") {
        V32 a = pool(54, 1024), b = pool(55, 1024);
        for (size_t i = 0; i < b.size(); i++) {
            if ((b[i] & 0xffff) == 0) b[i] = 7;
            if ((a[i] & 0xffff) == 0x8000 && (b[i] & 0xffff) == 0xffff) b[i] = 0xfffe;
        }
        add16(a);
        add16(b);
    } else if (s == "i16t") {
        add16(pool(56, 1024));
        add16(pool(57, 1024));
        add16(pool(58, 1024));
    } else if (s == "i16i16i32") {
        add16(pool(59, 1024));
        add16(pool(60, 1024));
        add32(pool(61, 1024));
    } else if (s == "i32i32i64") {
        add32(pool(62, 1024));
        add32(pool(63, 1024));
        add64(pool64(64, 1024));
    } else if (s == "i64u") {
        add64(ints64(65, 1024));
    } else if (s == "i64p") {
        add64(pool64(66, 512));
        add64(pool64(67, 512));
    } else if (s == "i64t") {
        add64(pool64(68, 512));
        add64(pool64(69, 512));
        add64(pool64(70, 512));
    } else if (s == "i64div") {
        V64 a = pool64(71, 512), b = pool64(72, 512);
        for (size_t i = 0; i < b.size(); i++) {
            if (b[i] == 0) b[i] = 7;
            if (b[i] == ~0ull) b[i] = ~1ull;
        }
        add64(a);
        add64(b);
    } else if (s == "i32field") {
        add32(pool(73, 1024));
        add32(amounts(74, 1024));
        V32 v = amounts(75, 1024);
        for (size_t i = 0; i + 3 < v.size(); i++) v[i] = v[i + 3];
        add32(v);
    } else if (s == "i64field") {
        add64(pool64(76, 512));
        V32 p = amounts(77, 512), l = amounts(78, 512);
        for (size_t i = 0; i + 3 < l.size(); i++) l[i] = l[i + 3];
        for (size_t i = 0; i < l.size(); i += 2) p[i] += 24, l[i] += i % 16;
        add32(p);
        add32(l);
    } else if (s == "i32amount2") {
        add32(amounts(79, 1024));
        V32 v = amounts(80, 1024);
        for (size_t i = 0; i + 3 < v.size(); i++) v[i] = v[i + 3];
        add32(v);
    } else if (s == "i32shift") {
        add32(pool(81, 512));
        add32(amounts(82, 512));
    } else if (s == "i16shift") {
        add16(pool(83, 512));
        add32(amounts(84, 512));
    } else if (s == "i64shift") {
        add64(pool64(85, 512));
        V32 v = amounts(86, 512);
        for (size_t i = 0; i < v.size(); i += 3) v[i] += 30;
        add32(v);
    } else if (s == "i32shf") {
        add32(pool(87, 512));
        add32(pool(88, 512));
        add32(amounts(89, 512));
    } else if (s == "i32fns") {
        Rng r{90};
        V32 a = pool(91, 1024), b, o;
        for (unsigned i = 0; i < 1024; i++) {
            b.push_back(r.below(32));
            o.push_back((uint32_t)((int)r.below(35) - 17));
        }
        add32(a);
        add32(b);
        add32(o);
    } else if (s == "iota16") {  // element i of 16 bits is i
        V32 v;
        for (uint32_t i = 0; i < 16384; i++) v.push_back(i);
        add16(v);
    } else if (s == "rand32") {
        add32(pool(92, 4096));
    } else if (s == "f32rand") {  // many specials: for the float types of tensor maps
        Rng r{93};
        V32 v;
        for (unsigned i = 0; i < 4096; i++) v.push_back(i % 5 ? random_f32(r) : F32_EDGES[r.below(24)]);
        add32(v);
    } else if (s == "f16rand") {
        Rng r{94};
        V32 v;
        for (unsigned i = 0; i < 2048; i++)
            v.push_back(random_half(r, 10) | (i % 5 ? random_half(r, 10) : F16_EDGES[r.below(24)]) << 16);
        add32(v);
    } else if (s == "bf16rand") {
        Rng r{95};
        V32 v;
        for (unsigned i = 0; i < 2048; i++)
            v.push_back(random_half(r, 7) | (i % 5 ? random_half(r, 7) : BF16_EDGES[r.below(24)]) << 16);
        add32(v);
    } else {
        throw std::runtime_error("no input set " + s);
    }
    return c;
}
