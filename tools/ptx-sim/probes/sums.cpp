// The sums. Groups of 16 rows of A meet one column of B; a group is filled up with zeros, and 8 groups are 128 rows.
#include "sums.h"

#include <math.h>
#include <string.h>

#include <map>
#include <stdexcept>

namespace {
const int LARGE = 18;          // exponent of large terms
const int LARGEST_DROP = 30;   // binary orders between a large term and a small one, at most
const unsigned C = 4;          // in the place of a block of products: C

struct Sum {
    uint8_t a[64] = {0}, b[64] = {0}, sa[4] = {0x38, 0x38, 0x38, 0x38}, sb[4] = {0x38, 0x38, 0x38, 0x38};
    float c = 0;
    uint32_t label = 0;
    Sum() { memset(b, 2, sizeof b); }  // ones
};

struct Random {
    uint64_t s;
    uint32_t next() {
        uint64_t z = (s += 0x9E3779B97F4A7C15ull);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return (uint32_t)((z ^ (z >> 31)) >> 16);
    }
    uint32_t below(uint32_t n) { return next() % n; }
};

// UE4M3 of 2^e, e from -6 to 8.
uint8_t power(int e) {
    if (e < -6 || e > 8) throw std::runtime_error("no such scale: 2^" + std::to_string(e));
    return (uint8_t)((e + 7) << 3);
}

// Sets product k of a block, or C, to sign * (one and a half, or one) * 2^e. Terms of a block have one e.
void put(Sum& s, unsigned block, unsigned k, int e, bool half_more, bool negative) {
    if (block == C) {
        s.c = (float)ldexp(half_more ? 1.5 : 1.0, e) * (negative ? -1.0f : 1.0f);
        return;
    }
    const int column = e >= 8 ? 8 : e >= 0 ? 2 : -6, code = e >= 8 ? 2 : 0;
    s.sb[block] = power(column);
    s.sa[block] = power(e - column - code);
    s.a[16 * block + k] = (uint8_t)((negative ? 8 : 0) | (code == 2 ? 6 : 2) | (half_more ? 1 : 0));
}

struct Sums {
    std::vector<Sum> all;
    Sum& add(Series series, uint32_t variant) {
        all.push_back(Sum());
        all.back().label = (uint32_t)series << 24 | (variant & 0xffffff);
        return all.back();
    }
};

void survives(Sums& to) {
    for (unsigned i = 0; i <= C; i++)
        for (unsigned j = i; j <= C; j++)
            for (unsigned l = 0; l <= C; l++) {
                if (l == i || l == j || (i == j && i == C)) continue;
                // Rounding shows in one order of blocks as in another.
                const unsigned shapes = (i == 0 && j <= 1) || i == C || j == C ? 4 : 1;
                for (unsigned shape = 0; shape < shapes; shape++)
                    for (int drop = 6; drop <= LARGEST_DROP; drop++) {
                        Sum& s = to.add(SURVIVES, i << 20 | j << 16 | l << 12 | shape << 8 | (unsigned)drop);
                        put(s, i, 0, LARGE, false, false);
                        put(s, j, i == j ? 1 : 0, LARGE, false, true);
                        put(s, l, 2, LARGE - drop, shape & 1, shape & 2);
                    }
            }
}

void groups(Sums& to) {
    struct {
        unsigned count, step;
    } lists[] = {{2, 1}, {4, 1}, {8, 1}, {16, 1}, {2, 4}, {4, 4}, {2, 8}};
    for (unsigned l = 1; l < 4; l++)
        for (unsigned which = 0; which < 7; which++)
            for (int drop = 10; drop <= LARGEST_DROP; drop++) {
                Sum& s = to.add(GROUPS, l << 20 | which << 16 | (unsigned)drop);
                put(s, 0, 0, LARGE, false, false);
                put(s, 0, 1, LARGE, false, true);
                for (unsigned n = 0; n < lists[which].count; n++)
                    put(s, l, n * lists[which].step, LARGE - drop, false, false);
            }
    // One in each of two blocks, and in all that are left.
    for (unsigned l = 1; l < 4; l++)
        for (int drop = 10; drop <= LARGEST_DROP; drop++) {
            Sum& s = to.add(GROUPS, l << 20 | 15 << 16 | (unsigned)drop);
            put(s, 0, 0, LARGE, false, false);
            put(s, 0, 1, LARGE, false, true);
            for (unsigned block = 1; block < 4; block++)
                if (l == 3 || block != l) put(s, block, 0, LARGE - drop, false, false);
        }
}

void final_rounding(Sums& to) {
    for (unsigned large : {0u, 3u, C})
        for (unsigned signs = 0; signs < 4; signs++)
            for (unsigned shape = 0; shape < 2; shape++)
                for (int drop = 20; drop <= 27; drop++) {
                    Sum& s = to.add(FINAL, large << 20 | signs << 16 | shape << 8 | (unsigned)drop);
                    put(s, large, 0, LARGE, shape == 1 && large == C, signs & 1);
                    put(s, 1, 0, LARGE - drop, shape, signs & 2);
                    put(s, 2, 0, LARGE - 2, false, signs & 1);
                }
}

void loss(Sums& to) {
    for (unsigned large : {0u, 2u, C})
        for (unsigned signs = 0; signs < 4; signs++)
            for (unsigned shape = 0; shape < 2; shape++)
                for (int drop = 19; drop <= LARGEST_DROP; drop++) {
                    Sum& s = to.add(LOSS, large << 20 | signs << 16 | shape << 8 | (unsigned)drop);
                    put(s, large, 0, LARGE, false, signs & 1);
                    for (unsigned block = 0; block < 4; block++)
                        for (unsigned k = 0; k < 16 && block != large; k++)
                            put(s, block, k, LARGE - drop, shape, signs & 2);
                    // Scales of almost 2: what is cut is almost all of it.
                    for (unsigned block = 0; block < 4 && shape; block++)
                        if (block != large) s.sa[block] |= 7, s.sb[block] |= 7;
                    if (large != C) put(s, C, 0, LARGE - drop, shape, signs & 2);
                }
}

// Products as small as codes and scales make them, and C far below: alone, and where two products cancel.
void nominal(Sums& to) {
    for (unsigned shape = 0; shape < 8; shape++)
        for (unsigned kind = 0; kind < 3; kind++)
            for (int drop = 4; drop <= LARGEST_DROP; drop++) {
                Sum& s = to.add(NOMINAL, shape << 16 | kind << 8 | (unsigned)drop);
                s.a[0] = s.a[1] = shape & 1 ? 1 : 2;  // a half is subnormal
                if (kind == 1) s.a[1] |= 8;
                if (kind == 2) s.a[1] = 0;
                if (shape & 1) s.b[0] = s.b[1] = 1;
                s.sa[0] = shape & 2 ? 1 : power(-3);  // 2^-9 is subnormal
                s.sb[0] = shape & 4 ? 1 : power(-3);
                int e = shape & 1 ? -2 : 0;
                e += shape & 2 ? -9 : -3;
                e += shape & 4 ? -9 : -3;
                s.c = (float)ldexp(1.5, e - drop);
            }
}

// A group of 16 rows has one column.
void random_sums(Sums& to, bool exact) {
    Random r{exact ? 8101u : 8102u};
    for (unsigned group = 0; group < (exact ? 16u : 48u); group++) {
        Sum column;
        for (uint8_t& code : column.b) code = (uint8_t)r.below(16);
        for (uint8_t& scale : column.sb) scale = exact ? power((int)r.below(3) - 1) : (uint8_t)r.below(0x7f);
        for (unsigned row = 0; row < 16; row++) {
            Sum& s = to.add(exact ? EXACT : RANDOM, group << 8 | row);
            memcpy(s.b, column.b, sizeof s.b);
            memcpy(s.sb, column.sb, sizeof s.sb);
            for (uint8_t& code : s.a) code = (uint8_t)r.below(16);
            for (uint8_t& scale : s.sa) scale = exact ? power((int)r.below(3) - 1) : (uint8_t)r.below(0x7f);
            if (exact) {
                s.c = ((int)r.below(4096) - 2048) / 16.0f;
            } else {
                const int e = (int)r.below(36) - 18;
                s.c = (float)ldexp((double)(0x800000 | r.below(0x800000)), e - 23) * (r.below(2) ? -1.0f : 1.0f);
            }
        }
    }
}

// UE4M3 of 2^e, e from -9: below -6 they are subnormal.
uint8_t any_power(int e) { return e < -6 ? (uint8_t)(1u << (e + 9)) : power(e); }

// As `put`, of a product as small as codes and scales make it: e from -20. False where there is no such product.
bool put_small(Sum& s, unsigned block, unsigned k, int e, bool half_more, bool negative) {
    const int codes = e < -18 ? e + 18 : 0, scales = e - codes;
    if (codes < (half_more ? -1 : -2)) return false;
    const int column = scales < 0 ? scales / 2 : 0;
    s.sb[block] = any_power(column);
    s.sa[block] = any_power(scales - column);
    s.a[16 * block + k] = (uint8_t)((negative ? 8 : 0) | (half_more ? 3 : codes == -2 ? 1 : 2));
    if (codes < 0) s.b[16 * block + k] = 1;
    return true;
}

// 16 products of 4, with the largest powers of two as scales: 2^22, where the scales alone say 2^16.
void put_large(Sum& s, unsigned block, bool negative) {
    for (unsigned k = 0; k < 16; k++) s.a[16 * block + k] = (uint8_t)(negative ? 12 : 4), s.b[16 * block + k] = 4;
    s.sa[block] = s.sb[block] = power(8);
}

// Two large terms cancel, two blocks or a block and C: is what lies 19 to 48 places below them still there?
void far(Sums& to) {
    const int TOP = 22;
    for (unsigned shape = 0; shape < 4; shape++) {
        for (unsigned i : {0u, 3u})
            for (unsigned l = 1; l < 3; l++)
                for (int drop = 19; drop <= 42; drop++) {
                    Sum s;
                    s.label = (uint32_t)FAR << 24 | i << 20 | l << 12 | shape << 8 | (unsigned)drop;
                    put_large(s, i, false);
                    s.c = -ldexpf(1.0f, TOP);
                    if (put_small(s, l, 2, TOP - drop, shape & 1, shape & 2)) to.all.push_back(s);
                }
        for (unsigned l : {0u, 1u, C})
            for (int drop = 19; drop <= (l == C ? 48 : 42); drop++) {
                Sum s;
                s.label = (uint32_t)FAR << 24 | 1 << 23 | l << 12 | shape << 8 | (unsigned)drop;
                put_large(s, 2, false);
                put_large(s, 3, true);
                if (l == C) put(s, C, 0, TOP - drop, shape & 1, shape & 2);
                else if (!put_small(s, l, 2, TOP - drop, shape & 1, shape & 2)) continue;
                to.all.push_back(s);
            }
    }
    // Two small ones, `step` products apart: only together are they large enough, if they are added before they are cut.
    for (unsigned step : {1u, 2u, 4u, 8u, 16u})
        for (int drop = 33; drop <= 40; drop++) {
            Sum s;
            s.label = (uint32_t)FAR << 24 | 3 << 22 | step << 8 | (unsigned)drop;
            put_large(s, 0, false);
            s.c = -ldexpf(1.0f, TOP);
            put_small(s, 1, 0, TOP - drop, false, false);
            put_small(s, 1 + step / 16, step % 16, TOP - drop, false, false);
            to.all.push_back(s);
        }
}

// Block 2 has no product that is not zero, and scales from none to the largest; C or a product lies far below them.
void idle(Sums& to) {
    const uint8_t scales[] = {0x38, 0x78, 0x7e, 0x08};  // 1, 256, 448, 2^-6
    for (unsigned kind = 0; kind < 5; kind++)
        for (unsigned size = 0; size < 4; size++)
            for (unsigned shape = 0; shape < 4; shape++)
                for (int drop = 16; drop <= 40; drop++) {
                    Sum s;
                    s.label = (uint32_t)IDLE << 24 | kind << 20 | size << 16 | shape << 8 | (unsigned)drop;
                    s.sa[2] = s.sb[2] = scales[size];
                    if (kind == 1) memset(s.a + 32, 2, 16), memset(s.b + 32, 0, 16);  // codes of B are zero
                    if (kind == 2) s.a[32] = 2, s.a[33] = 10;                           // products cancel
                    if (kind == 3) memset(s.a + 32, 2, 16), s.sa[2] = 0;                // a scale is zero
                    if (kind == 4) memset(s.a + 32, 2, 16), s.sa[2] = s.sb[2] = 0;
                    const int e = (size == 0 ? 0 : size == 3 ? -12 : 16) - drop;
                    if (shape & 1) {
                        if (e < -20 || !put_small(s, 0, 0, e, false, shape & 2)) continue;
                    } else {
                        put(s, C, 0, e, true, shape & 2);
                    }
                    to.all.push_back(s);
                }
}

std::vector<Sum> grouped(const std::vector<Sum>& all) {
    std::map<std::string, std::vector<Sum>> columns;
    std::vector<std::string> order;
    for (const Sum& s : all) {
        std::string column((const char*)s.b, sizeof s.b);
        column.append((const char*)s.sb, sizeof s.sb);
        if (!columns.count(column)) order.push_back(column);
        columns[column].push_back(s);
    }
    std::vector<Sum> rows;
    auto fill = [&](unsigned multiple, const Sum& like) {
        while (rows.size() % multiple) {
            Sum none;
            memcpy(none.b, like.b, sizeof none.b);
            memcpy(none.sb, like.sb, sizeof none.sb);
            rows.push_back(none);
        }
    };
    for (const std::string& column : order) {
        for (const Sum& s : columns[column]) rows.push_back(s);
        fill(16, rows.back());
    }
    fill(128, rows.back());
    return rows;
}
// A case of these sums; the names of its inputs begin with `from`.
void add_case(Topic& t, const char* name, const std::string& from, const Sums& sums, const char* entry,
              unsigned rows_a_cta, unsigned results_a_row, bool flags) {
    const std::vector<Sum> rows = grouped(sums.all);
    std::vector<uint32_t> a, sa, b, sb, c, labels;
    auto codes = [](std::vector<uint32_t>& to, const uint8_t* from) {
        for (unsigned word = 0; word < 8; word++) {
            uint32_t w = 0;
            for (unsigned i = 0; i < 8; i++) w |= (uint32_t)from[8 * word + i] << (4 * i);
            to.push_back(w);
        }
    };
    auto bytes = [](std::vector<uint32_t>& to, const uint8_t* from) {
        uint32_t w;
        memcpy(&w, from, 4);
        to.push_back(w);
    };
    for (size_t i = 0; i < rows.size(); i++) {
        const Sum& s = rows[i];
        codes(a, s.a);
        bytes(sa, s.sa);
        if (i % 16 == 0) codes(b, s.b), bytes(sb, s.sb);
        uint32_t bits;
        memcpy(&bits, &s.c, 4);
        c.push_back(bits);
        labels.push_back(s.label);
    }
    t.own(from + "labels", labels);
    Case& x = t.add(name, entry).tag("inexact");
    const char* names[] = {"a", "scales_a", "b", "scales_b", "c"};
    const std::vector<uint32_t>* inputs[] = {&a, &sa, &b, &sb, &c};
    for (unsigned i = 0; i < 5; i++) {
        const std::string tensor = t.own(from + names[i], *inputs[i]);
        x.in(names[i], tensor, t.bytes(tensor), 4);
    }
    x.out("out", 4 * results_a_row * rows.size());
    x.grid[0] = (unsigned)rows.size() / rows_a_cta;
    x.block[0] = flags ? rows_a_cta : 32;
    if (flags) x.out("flags", 4 * x.grid[0]);
}
}  // namespace

void add_sums(Topic& t, const char* entry, unsigned rows_a_cta, unsigned results_a_row, bool flags) {
    Sums sums, small;
    survives(sums);
    groups(sums);
    final_rounding(sums);
    loss(sums);
    nominal(sums);
    random_sums(sums, false);
    random_sums(sums, true);
    add_case(t, "sums", "in/", sums, entry, rows_a_cta, results_a_row, flags);
    far(small);
    idle(small);
    add_case(t, "sums_far", "in/far.", small, entry, rows_a_cta, results_a_row, flags);
}
