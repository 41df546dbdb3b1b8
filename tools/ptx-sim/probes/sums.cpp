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
}  // namespace

void add_sums(Topic& t, const char* entry, unsigned rows_a_cta, unsigned results_a_row, bool flags) {
    Sums sums;
    survives(sums);
    groups(sums);
    final_rounding(sums);
    loss(sums);
    nominal(sums);
    random_sums(sums, false);
    random_sums(sums, true);
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
    t.own("in/labels", labels);
    Case& x = t.add("sums", entry).tag("inexact");
    const char* names[] = {"a", "scales_a", "b", "scales_b", "c"};
    const std::vector<uint32_t>* inputs[] = {&a, &sa, &b, &sb, &c};
    for (unsigned i = 0; i < 5; i++) {
        const std::string tensor = t.own(std::string("in/") + names[i], *inputs[i]);
        x.in(names[i], tensor, t.bytes(tensor), 4);
    }
    x.out("out", 4 * results_a_row * rows.size());
    x.grid[0] = (unsigned)rows.size() / rows_a_cta;
    x.block[0] = flags ? rows_a_cta : 32;
    if (flags) x.out("flags", 4 * x.grid[0]);
}
