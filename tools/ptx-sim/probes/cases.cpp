// The list of launches, topic by topic.
#include <string.h>

#include <algorithm>
#include <stdexcept>

#include "record.h"

typedef std::vector<uint32_t> V32;

std::string Topic::shared(const std::string& set, unsigned column) {
    std::string name = "in/" + set + "." + std::to_string(column);
    if (!tensors.count(name)) {
        std::vector<Column> c = make_set(set);
        for (unsigned i = 0; i < c.size(); i++) {
            Tensor t;
            t.elem = c[i].elem;
            t.data = c[i].data;
            // Only the columns that a case uses are kept.
            if (i == column) tensors[name] = t;
        }
    }
    return name;
}
std::string Topic::own(const std::string& name, const V32& words) {
    Tensor t;
    t.elem = 4;
    t.data.resize(words.size() * 4);
    memcpy(t.data.data(), words.data(), t.data.size());
    tensors[name] = t;
    return name;
}
Case& Topic::add(const std::string& n, const std::string& entry) {
    for (const Case& c : cases)
        if (c.name == n) throw std::runtime_error("two cases named " + n);
    cases.push_back(Case());
    cases.back().name = n;
    cases.back().entry = entry;
    return cases.back();
}
Case& Case::in(const std::string& n, const std::string& tensor, size_t bytes, unsigned elem) {
    Param p;
    p.kind = Param::BUFFER;
    Buffer b;
    b.name = n;
    b.bytes = bytes;
    b.init = tensor;
    b.elem = elem;
    p.buffer = buf(b);
    params.push_back(p);
    return *this;
}
Case& Case::inout(const std::string& n, const std::string& tensor, size_t bytes, unsigned elem) {
    in(n, tensor, bytes, elem);
    buffers.back().out = true;
    return *this;
}
Case& Case::out(const std::string& n, size_t bytes, unsigned elem, uint8_t fill) {
    in(n, "", bytes, elem);
    buffers.back().out = true;
    buffers.back().fill = fill;
    return *this;
}
Case& Case::u32(uint32_t v) {
    Param p;
    p.value = v;
    params.push_back(p);
    return *this;
}

namespace {
// An input that is a tensor of the topic, whole.
void give(Topic& t, Case& c, const std::string& name, const std::string& tensor, bool out = false) {
    if (out)
        c.inout(name, tensor, t.bytes(tensor), t.elem(tensor));
    else
        c.in(name, tensor, t.bytes(tensor), t.elem(tensor));
}

void elementwise(Topic& t, const char* name, unsigned out_elem, std::vector<unsigned> in_elems,
                 const std::string& set) {
    std::vector<std::string> names;
    for (unsigned k = 0; k < in_elems.size(); k++) {
        names.push_back(t.shared(set, k));
        if (!t.tensors.count(names[k]) || t.elem(names[k]) != in_elems[k])
            throw std::runtime_error(std::string(name) + ": set " + set + " does not fit");
    }
    Case& c = t.add(name, name);
    const char* letters[] = {"a", "b", "c"};
    size_t n = t.bytes(names[0]) / in_elems[0];
    for (unsigned k = 0; k < names.size(); k++) give(t, c, letters[k], names[k]);
    c.out("out", n * out_elem, out_elem).u32((uint32_t)n);
    c.block[0] = 128;
    c.grid[0] = (unsigned)((n + 127) / 128);
}
const unsigned SIZE_h = 2, SIZE_r = 4, SIZE_l = 8;
#define E1(name, to, ta, ins, set) elementwise(t, #name, SIZE_##to, {SIZE_##ta}, set);
#define E2(name, to, ta, tb, ins, set) \
    elementwise(t, #name, SIZE_##to, {SIZE_##ta, SIZE_##tb}, set);
#define E3(name, to, ta, tb, tc, ins, set) \
    elementwise(t, #name, SIZE_##to, {SIZE_##ta, SIZE_##tb, SIZE_##tc}, set);

Topic cvt() {
    Topic t;
    t.name = "cvt";
#include "cvt.inc"
    return t;
}
Topic arith() {
    Topic t;
    t.name = "arith";
#include "arith.inc"
    return t;
}
Topic integer() {
    Topic t;
    t.name = "integer";
#include "integer.inc"
    return t;
}

struct Rng {
    uint64_t s;
    uint32_t next() {
        uint64_t z = (s += 0x9E3779B97F4A7C15ull);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return (uint32_t)(z ^ (z >> 31));
    }
    uint32_t below(uint32_t n) { return (next() >> 1) % n; }
};

Topic warp() {
    Topic t;
    t.name = "warp";
    Rng r{7001};
    const unsigned N = 2048, HALF = 512;  // lanes; fewer with half a warp
    V32 a, b, c, bp, cp_up, cp_other;
    for (unsigned i = 0; i < N; i++) {
        unsigned w = i / 32;
        static uint32_t wb, wc;
        if (i % 32 == 0) {
            const uint32_t segs[] = {0x00, 0x10, 0x18, 0x1c, 0x1e, 0x1f};
            wb = w < 32 ? w : r.below(64);
            wc = (segs[w % 6] << 8) | 0x1f;
            if (w % 4 == 3) wc = segs[w % 6] << 8;
            if (w >= 32) wc = r.next() & 0x1f1f;
        }
        a.push_back(r.next());
        b.push_back(w % 2 && w >= 24 ? r.below(64) : wb);
        c.push_back(w >= 48 ? r.next() & 0x1f1f : wc);
        bp.push_back(r.below(16));
        cp_up.push_back(0x1000);
        cp_other.push_back(0x100f);
    }
    std::string ta = t.own("in/shfl.a", a), tb = t.own("in/shfl.b", b), tc = t.own("in/shfl.c", c);
    std::string tbp = t.own("in/shfl.b.half", bp), tup = t.own("in/shfl.c.half_up", cp_up),
                tot = t.own("in/shfl.c.half", cp_other);
    for (const char* mode : {"up", "down", "bfly", "idx"}) {
        std::string e = std::string("shfl_") + mode;
        for (unsigned k = 0; k < 3; k++) {
            const char* suffix[] = {"", "_low", "_high"};
            const uint32_t mask[] = {0xffffffff, 0x0000ffff, 0xffff0000};
            Case& x = t.add(e + suffix[k], e);
            x.block[0] = 128;
            x.grid[0] = (k ? HALF : N) / 128;
            give(t, x, "a", ta);
            give(t, x, "b", k ? tbp : tb);
            give(t, x, "c", k ? (strcmp(mode, "up") ? tot : tup) : tc);
            x.out("out", (k ? HALF : N) * 8).u32(mask[k]);
        }
    }
    // Votes and matches: 16 warps.
    V32 v, m;
    for (unsigned i = 0; i < 512; i++) {
        unsigned w = i / 32, lane = i % 32;
        v.push_back(w == 0   ? 0
                    : w == 1 ? 1
                    : w == 2 ? lane == 5
                    : w == 3 ? lane != 31
                    : w == 4 ? 0x80000000u
                    : w == 5 ? lane < 16
                             : r.below(2));
        m.push_back(w == 0 ? 42 : w == 1 ? lane : w == 2 ? (lane == 9) : w == 3 ? lane / 16 : r.below(4));
    }
    std::string tv = t.own("in/vote", v), tm = t.own("in/match", m);
    V32 rx;
    for (unsigned i = 0; i < 512; i++)
        rx.push_back(i / 32 < 4 ? r.below(100) - 50 : i / 32 < 6 ? 0xffffffffu - r.below(2) : r.next());
    std::string tr = t.own("in/redux", rx);
    const uint32_t masks[] = {0xffffffff, 0x0000ffff, 0x0f0f0f0f, 0x80000001, 0x00000040, 0xfffffffe};
    const char* mnames[] = {"full", "low", "nibbles", "ends", "one", "not0"};
    for (unsigned k = 0; k < 6; k++) {
        std::string s = std::string("_") + mnames[k];
        Case& x = t.add("vote" + s, "vote");
        give(t, x, "a", tv);
        x.out("out", 512 * 24).u32(masks[k]);
        x.block[0] = 128, x.grid[0] = 4;
        Case& y = t.add("match" + s, "match");
        give(t, y, "a", tm);
        y.out("out", 512 * 16).u32(masks[k]);
        y.block[0] = 128, y.grid[0] = 4;
        Case& z = t.add("elect" + s, "elect");
        z.out("out", 64 * 8).u32(masks[k]);
        z.block[0] = 64;
        z.tag("leader");  // the ISA leaves the choice of leader to the machine
    }
    for (const char* op : {"add_u32", "add_s32", "min_u32", "min_s32", "max_u32", "max_s32", "and_b32",
                           "or_b32", "xor_b32"})
        for (unsigned k = 0; k < 4; k++) {
            Case& x = t.add(std::string("redux_") + op + "_" + mnames[k], std::string("redux_") + op);
            give(t, x, "a", tr);
            x.out("out", 512 * 4).u32(masks[k]);
            x.block[0] = 128, x.grid[0] = 4;
        }
    {
        Case& x = t.add("bar_red", "bar_red");
        give(t, x, "a", tv);
        x.out("out", 512 * 12);
        x.block[0] = 128, x.grid[0] = 4;
        Case& y = t.add("bar_named", "bar_named");
        y.in("a", tr, 256, 4).out("out", 256);
        y.block[0] = 64;
        Case& z = t.add("sregs", "sregs");
        z.block[0] = 3, z.block[1] = 5, z.block[2] = 4;
        z.grid[0] = 2, z.grid[1] = 3, z.grid[2] = 2;
        z.smem = 1280;
        z.out("out", 12 * 60 * 22 * 4);
    }
    struct {
        const char* op;
        const char* set;
    } atoms[] = {{"add_u32", "i32p"}, {"add_s32", "i32p"}, {"add_u64", "i64p"}, {"min_s32", "i32p"},
                 {"max_u32", "i32p"}, {"inc_u32", "i32p"}, {"dec_u32", "i32p"}, {"exch_b32", "i32p"},
                 {"and_b32", "i32p"}, {"or_b32", "i32p"}, {"xor_b32", "i32p"}, {"add_f32", "f32p"},
                 {"add_noftz_f16x2", "h16p"}, {"add_noftz_bf16x2", "b16p"}};
    for (auto& x : atoms)
        for (const char* space : {"global", "shared"}) {
            std::string m0 = t.shared(x.set, 0), a0 = t.shared(x.set, 1);
            std::string e = std::string("atom_") + space + "_" + x.op;
            Case& y = t.add(e, e);
            size_t bytes = std::min<size_t>(t.bytes(m0), 1024 * t.elem(m0));
            y.inout("m", m0, bytes, t.elem(m0)).in("a", a0, bytes, t.elem(m0)).out("out", bytes, t.elem(m0));
            y.block[0] = 128;
            y.grid[0] = (unsigned)(bytes / t.elem(m0) / 128);
        }
    {
        V32 mem, cmp, val;
        for (unsigned i = 0; i < 256; i++) {
            mem.push_back(r.below(4));
            cmp.push_back(r.below(4));
            val.push_back(r.next());
        }
        Case& x = t.add("atom_global_cas_b32", "atom_global_cas_b32");
        std::string tm1 = t.own("atom_global_cas_b32/m.in", mem), tc1 = t.own("atom_global_cas_b32/a.in", cmp),
                    tv1 = t.own("atom_global_cas_b32/b.in", val);
        give(t, x, "m", tm1, true);
        give(t, x, "a", tc1);
        give(t, x, "b", tv1);
        x.out("out", 1024);
        x.block[0] = 128, x.grid[0] = 2;
        Case& y = t.add("red_global_add_u32", "red_global_add_u32");
        y.out("m", 4, 4, 0).in("a", tr, 2048, 4);
        y.block[0] = 128, y.grid[0] = 4;
    }
    return t;
}

void script(Topic& t, const char* name, V32 ops, const char* tag = "") {
    std::string n = std::string("mbar_") + name;
    std::string s = t.own(n + "/script.in", ops);
    Case& c = t.add(n, "mbar_script");
    give(t, c, "script", s);
    c.out("out", ops.size() * 2).u32((uint32_t)(ops.size() / 2));
    c.block[0] = 1;
    if (*tag) c.tag(tag);
}

Topic async_() {
    Topic t;
    t.name = "async";
    Rng r{7002};
    std::string rnd = t.shared("rand32", 0);
    // Bulk copies.
    struct {
        const char* name;
        const char* entry;
        uint32_t src, dst, bytes, expect;
        const char* tag;
    } g2s[] = {
        {"bulk_g2s_16", "bulk_g2s", 0, 0, 16, 16, ""},
        {"bulk_g2s_48_off", "bulk_g2s", 16, 32, 48, 48, ""},
        {"bulk_g2s_1024", "bulk_g2s", 0, 0, 1024, 1024, ""},
        {"bulk_g2s_4080_off", "bulk_g2s", 4096, 16, 4080, 4080, ""},
        {"bulk_g2s_expect_more", "bulk_g2s", 0, 0, 256, 272, "incomplete"},
        {"bulk_g2s_cta_512", "bulk_g2s_cta", 128, 64, 512, 512, ""},
        {"bulk_g2s_hint_512", "bulk_g2s_hint", 256, 0, 512, 512, ""},
    };
    for (auto& g : g2s) {
        uint32_t words = (g.dst + g.bytes + 32) / 4;
        Case& c = t.add(g.name, g.entry);
        give(t, c, "src", rnd);
        c.out("out", words * 4).out("flags", 8).u32(g.src).u32(g.dst).u32(g.bytes).u32(g.expect).u32(words);
        c.block[0] = 64;
        c.smem = words * 4;
        if (*g.tag) c.tag(g.tag);
    }
    for (uint32_t k : {2u, 7u}) {
        Case& c = t.add("bulk_g2s_many_" + std::to_string(k), "bulk_g2s_many");
        give(t, c, "src", rnd);
        c.out("out", k * 160 + 32).out("flags", 4).u32(k).u32(160).u32((k * 160 + 32) / 4);
        c.block[0] = 64;
        c.smem = k * 160 + 32;
    }
    {
        Case& c = t.add("bulk_ring_9", "bulk_ring");
        give(t, c, "src", rnd);
        c.out("out", 9 * 256).out("flags", 4).u32(9).u32(256);
        c.block[0] = 64;
        c.smem = 512;
    }
    for (uint32_t bytes : {16u, 272u, 2048u}) {
        Case& c = t.add("bulk_s2g_" + std::to_string(bytes), "bulk_s2g");
        give(t, c, "src", rnd);
        c.out("dst", bytes + 96).u32(bytes == 272 ? 48 : 0).u32(bytes == 272 ? 32 : 0).u32(bytes).u32(
            (bytes + 64) / 4);
        c.block[0] = 64;
        c.smem = bytes + 64;
    }
    {
        Case& c = t.add("bulk_s2g_read", "bulk_s2g_read");
        give(t, c, "src", rnd);
        c.out("dst", 1024).u32(1024);
        c.block[0] = 64;
        c.smem = 1024;
    }
    struct {
        const char* op;
        const char* set;
    } reds[] = {{"add_u32", "i32p"}, {"add_s32", "i32p"}, {"add_u64", "i64p"}, {"min_u32", "i32p"},
                {"max_s32", "i32p"}, {"min_s64", "i64p"}, {"inc_u32", "i32p"}, {"dec_u32", "i32p"},
                {"and_b32", "i32p"}, {"or_b64", "i64p"}, {"xor_b32", "i32p"}, {"add_f32", "f32p"},
                {"add_f64", "f64p"}, {"add_noftz_f16", "h16p"}, {"min_f16", "h16p"},
                {"add_noftz_bf16", "b16p"}, {"max_bf16", "b16p"}};
    for (auto& x : reds) {
        std::string s = t.shared(x.set, 0), d = t.shared(x.set, 1);
        std::string e = std::string("bulk_red_") + x.op;
        Case& c = t.add(e, e);
        uint32_t bytes = (uint32_t)std::min<size_t>(t.bytes(s), 4096);
        c.in("src", s, bytes, t.elem(s)).inout("dst", d, bytes, t.elem(d)).u32(bytes);
        c.block[0] = 64;
        c.smem = bytes;
    }
    // cp.async.
    struct {
        const char* name;
        uint32_t n;
    } cps[] = {{"cp_async_ca_4", 4}, {"cp_async_ca_8", 8}, {"cp_async_ca_16", 16}, {"cp_async_cg_16", 16}};
    for (auto& x : cps) {
        V32 valid;
        for (unsigned i = 0; i < 64; i++) valid.push_back(i < 17 ? std::min(i, x.n) : r.below(x.n + 1));
        std::string tv = t.own(std::string(x.name) + "/valid.in", valid);
        Case& c = t.add(x.name, x.name);
        give(t, c, "src", rnd);
        c.out("out", 64 * x.n + 32);
        give(t, c, "valid", tv);
        c.u32((64 * x.n + 32) / 4);
        c.block[0] = 64;
        c.smem = 64 * x.n + 32;
    }
    {
        V32 ig;
        for (unsigned i = 0; i < 64; i++) ig.push_back(r.below(2));
        std::string ti = t.own("cp_async_ignore/ignore.in", ig);
        Case& c = t.add("cp_async_ignore", "cp_async_ignore");
        give(t, c, "src", rnd);
        c.out("out", 1056);
        give(t, c, "ignore", ti);
        c.u32(264);
        c.block[0] = 64;
        c.smem = 1056;
        Case& d = t.add("cp_async_mbar", "cp_async_mbar");
        give(t, d, "src", rnd);
        d.out("out", 1056).out("flags", 4).u32(264);
        d.block[0] = 64;
        d.smem = 1056;
    }
    // mbarrier sequences, one thread each.
    enum { INIT = 3, ARRIVE = 7, ARRIVE_N = 13, NOCOMPLETE = 19, DROP = 29, DROP_N = 37, EXPECT = 43,
           COMPLETE = 53, TEST_LAST = 61, TEST_PREV = 67, PARITY = 71, INVAL = 79, ARRIVE_EXPECT = 83,
           PENDING_PREV = 97, TRY_PARITY = 101 };
    script(t, "fresh", {INIT, 1, PARITY, 0, PARITY, 1, ARRIVE, 0, PARITY, 0, PARITY, 1, TEST_LAST, 0});
    script(t, "two_phases", {INIT, 1, ARRIVE, 0, PARITY, 0, PARITY, 1, ARRIVE, 0, PARITY, 0, PARITY, 1,
                             TEST_LAST, 0, TEST_PREV, 0, ARRIVE, 0, PARITY, 0, PARITY, 1, TEST_LAST, 0},
           "unspecified");
    script(t, "count3", {INIT, 3, ARRIVE, 0, PARITY, 0, ARRIVE, 0, TEST_LAST, 0, TEST_PREV, 0, ARRIVE, 0,
                         PARITY, 0, PARITY, 1, TEST_LAST, 0, ARRIVE, 0, PARITY, 0, PARITY, 1, TEST_LAST, 0,
                         TEST_PREV, 0});
    script(t, "arrive_count", {INIT, 10, ARRIVE_N, 4, PARITY, 0, ARRIVE_N, 6, PARITY, 0, ARRIVE_N, 10,
                               PARITY, 0, PARITY, 1, ARRIVE_N, 1, TEST_LAST, 0, TEST_PREV, 0});
    script(t, "no_complete", {INIT, 5, NOCOMPLETE, 2, PARITY, 0, NOCOMPLETE, 2, TEST_LAST, 0, ARRIVE, 0,
                              PARITY, 0, NOCOMPLETE, 4, PARITY, 1, ARRIVE, 0, PARITY, 1});
    script(t, "drop", {INIT, 3, DROP, 0, ARRIVE, 0, PARITY, 0, ARRIVE, 0, PARITY, 0, ARRIVE, 0, PARITY, 1,
                       ARRIVE, 0, PARITY, 1, PARITY, 0});
    script(t, "drop_count", {INIT, 8, DROP_N, 3, ARRIVE_N, 5, PARITY, 0, ARRIVE_N, 4, PARITY, 1, ARRIVE, 0,
                             PARITY, 1, DROP_N, 4, ARRIVE, 0, PARITY, 0, ARRIVE, 0, PARITY, 1});
    script(t, "expect", {INIT, 1, EXPECT, 64, ARRIVE, 0, PARITY, 0, COMPLETE, 32, PARITY, 0, COMPLETE, 32,
                         PARITY, 0, TEST_LAST, 0});
    script(t, "arrive_expect", {INIT, 2, ARRIVE_EXPECT, 16, PARITY, 0, COMPLETE, 16, PARITY, 0,
                                ARRIVE_EXPECT, 32, PARITY, 0, COMPLETE, 16, COMPLETE, 16, PARITY, 0, PARITY, 1});
    script(t, "complete_first", {INIT, 1, COMPLETE, 128, PARITY, 0, EXPECT, 128, PARITY, 0, ARRIVE, 0,
                                 PARITY, 0});
    script(t, "complete_first_arrive_expect", {INIT, 1, COMPLETE, 128, PARITY, 0, ARRIVE_EXPECT, 128,
                                               PARITY, 0, ARRIVE, 0, PARITY, 1});
    script(t, "negative_then_arrive", {INIT, 1, COMPLETE, 64, ARRIVE, 0, PARITY, 0, EXPECT, 64, PARITY, 0},
           "unspecified");
    script(t, "expect_max", {INIT, 1, EXPECT, 1048575, ARRIVE, 0, PARITY, 0, COMPLETE, 1048575, PARITY, 0});
    script(t, "count_max", {INIT, 1048575, ARRIVE, 0, ARRIVE_N, 1048573, PARITY, 0, ARRIVE, 0, PARITY, 0,
                            ARRIVE, 0, PARITY, 1});
    script(t, "reinit", {INIT, 2, ARRIVE, 0, INVAL, 0, INIT, 1, PARITY, 0, ARRIVE, 0, PARITY, 0, INVAL, 0,
                         INIT, 1, PARITY, 0, PARITY, 1});
    script(t, "try_wait", {INIT, 1, TRY_PARITY, 1, ARRIVE, 0, TRY_PARITY, 0, ARRIVE, 0, TRY_PARITY, 1});
    script(t, "try_wait_timeout", {INIT, 1, TRY_PARITY, 0, ARRIVE, 0, TRY_PARITY, 0, TRY_PARITY, 1});
    script(t, "pending_prev", {INIT, 4, ARRIVE, 0, ARRIVE, 0, PENDING_PREV, 0, ARRIVE, 0, PENDING_PREV, 0,
                               ARRIVE, 0, PENDING_PREV, 0, ARRIVE, 0, PENDING_PREV, 0});
    script(t, "stale_state", {INIT, 1, ARRIVE, 0, ARRIVE, 0, TEST_PREV, 0, TEST_LAST, 0, PARITY, 0, PARITY, 1},
           "unspecified");
    {
        Case& c = t.add("mbar_full_empty", "mbar_full_empty");
        give(t, c, "src", rnd);
        c.out("out", 11 * 128).out("flags", 256).u32(11);
        c.block[0] = 64;
    }
    // Clusters.
    {
        Case& c = t.add("cluster_sregs_221", "cluster_sregs");
        c.grid[0] = 4, c.grid[1] = 4, c.grid[2] = 2;
        c.cluster[0] = 2, c.cluster[1] = 2, c.cluster[2] = 1;
        c.out("out", 32 * 80);
        Case& d = t.add("cluster_sregs_212", "cluster_sregs");
        d.grid[0] = 4, d.grid[1] = 3, d.grid[2] = 4;
        d.cluster[0] = 2, d.cluster[1] = 1, d.cluster[2] = 2;
        d.out("out", 48 * 80);
        Case& e = t.add("cluster_sregs_none", "cluster_sregs");
        e.grid[0] = 2, e.grid[1] = 2;
        e.out("out", 4 * 80);
        Case& f = t.add("cluster_explicit", "cluster_explicit");
        f.grid[0] = 4;
        f.out("out", 32);
    }
    for (unsigned n : {2u, 4u, 8u}) {
        std::string s = "_" + std::to_string(n);
        Case& c = t.add("cluster_map" + s, "cluster_map");
        c.grid[0] = n, c.cluster[0] = n, c.cluster[1] = c.cluster[2] = 1;
        c.out("out", n * n * 32);
        Case& d = t.add("cluster_write" + s, "cluster_write");
        d.grid[0] = 2 * n, d.cluster[0] = n, d.cluster[1] = d.cluster[2] = 1;
        d.block[0] = 64;
        give(t, d, "a", rnd);
        d.out("out", 2 * n * 64 * 8 + 2 * n * 4);
        Case& e = t.add("cluster_arrive" + s, "cluster_arrive");
        e.grid[0] = n, e.cluster[0] = n, e.cluster[1] = e.cluster[2] = 1;
        e.out("out", n * 4).out("flags", 4);
    }
    auto pair = [&](const char* entry) -> Case& {
        Case& c = t.add(entry, entry);
        c.grid[0] = 2, c.cluster[0] = 2, c.cluster[1] = c.cluster[2] = 1;
        return c;
    };
    pair("cluster_tx").out("flags", 8);
    {
        Case& c = pair("cluster_st_async");
        give(t, c, "a", rnd);
        c.out("out", 2 * 32 * 48).out("flags", 8);
        c.smem = 32 * 48;
    }
    for (const char* op : {"add_u32", "min_s32", "inc_u32", "xor_b32"}) {
        std::string e = std::string("cluster_red_async_") + op;
        std::string m = t.shared("i32p", 0), a = t.shared("i32p", 1);
        Case& c = pair(e.c_str());
        c.in("m", m, 256, 4).in("a", a, 256, 4).out("out", 256).out("flags", 8);
        c.smem = 128;
    }
    for (const char* e : {"cluster_bulk_s2s", "cluster_bulk_red_add_u32"}) {
        Case& c = pair(e);
        give(t, c, "a", rnd);
        c.out("out", 2 * 2048).out("flags", 8).u32(768).u32(512);
        c.smem = 2048;
        c.block[0] = 64;
    }
    struct {
        const char* name;
        unsigned n;
        V32 mask;
    } mcs[] = {{"both", 2, {3, 3}}, {"self", 2, {1, 2}}, {"cross", 2, {2, 1}}, {"one", 2, {3, 0}},
               {"four", 4, {15, 5, 0, 8}}};
    for (auto& m : mcs) {
        std::string n = std::string("cluster_bulk_multicast_") + m.name;
        const uint32_t bytes = 208, words = (m.n * bytes + 32) / 4;
        V32 expect(m.n, 0);
        for (unsigned k = 0; k < m.n; k++)
            for (unsigned q = 0; q < m.n; q++)
                if (m.mask[k] >> q & 1) expect[q] += bytes;
        std::string tm = t.own(n + "/mask.in", m.mask), te = t.own(n + "/expect.in", expect);
        Case& c = t.add(n, "cluster_bulk_multicast");
        c.grid[0] = m.n, c.cluster[0] = m.n, c.cluster[1] = c.cluster[2] = 1;
        c.block[0] = 64;
        give(t, c, "src", rnd);
        c.out("out", m.n * words * 4).out("flags", m.n * 4);
        give(t, c, "mask", tm);
        give(t, c, "expect", te);
        c.u32(bytes).u32(words);
        c.smem = words * 4;
    }
    {
        Case& c = pair("cluster_barrier_forms");
        c.block[0] = 64;
        c.out("out", 512);
        Case& d = t.add("griddep", "griddep");
        d.out("out", 256);
        d.grid[0] = 2;
    }
    return t;
}

// ---- Tensor maps ----
enum Type { U8, U16, U32, S32, U64, S64, F16, F32, F64, BF16, F32_FTZ, TF32, TF32_FTZ, U4A8, U4A16, U6A16 };
unsigned type_bits(unsigned t) {
    const unsigned bits[] = {8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6};
    return bits[t];
}
// Bytes an element takes in shared memory (in halves of a byte for the packed types).
unsigned smem_bits(unsigned t) {
    if (t == U4A16 || t == U6A16) return 8;
    return type_bits(t);
}

Map make_map(unsigned type, std::vector<uint64_t> dims, std::vector<uint64_t> strides,
             std::vector<uint32_t> box, unsigned swizzle = 0, unsigned oob = 0,
             std::vector<uint32_t> es = {}) {
    Map m;
    m.type = type;
    m.rank = (unsigned)dims.size();
    std::copy(dims.begin(), dims.end(), m.dims);
    std::copy(strides.begin(), strides.end(), m.strides);
    std::copy(box.begin(), box.end(), m.box);
    std::copy(es.begin(), es.end(), m.elem_strides);
    m.swizzle = swizzle;
    m.oob = oob;
    return m;
}
uint32_t inner_bytes(const Map& m) { return m.box[0] * smem_bits(m.type) / 8; }
uint32_t box_rows(const Map& m) {
    uint32_t n = 1;
    for (unsigned k = 1; k < m.rank; k++) n *= (m.box[k] + m.elem_strides[k] - 1) / m.elem_strides[k];
    return n;
}
uint32_t box_bytes(const Map& m) { return inner_bytes(m) * box_rows(m); }
uint32_t span(const Map& m) {
    const uint32_t s[] = {16, 32, 64, 128, 128, 128, 128};
    return s[m.swizzle];
}

struct Tma {
    Topic t;
    Param map_param(Case& c, Map m, const std::string& tensor, bool out) {
        Buffer b;
        b.name = "tensor";
        b.bytes = t.bytes(tensor);
        b.init = tensor;
        b.elem = t.elem(tensor);
        b.out = out;
        m.buffer = c.buf(b);
        Param p;
        p.kind = Param::MAP;
        p.map = m;
        return p;
    }
    Case& load(const std::string& name, const Map& m, const std::string& set, std::vector<int> at,
               uint32_t dst_off = 0, int64_t expect = -1, std::string entry = "") {
        if (entry.empty()) entry = "tma_load_" + std::to_string(m.rank) + "d";
        std::string tensor = t.shared(set, 0);
        Case& c = t.add(name, entry);
        c.params.push_back(map_param(c, m, tensor, false));
        uint32_t words = (dst_off + std::max(box_bytes(m), box_rows(m) * (m.swizzle ? span(m) : 16)) + 64) / 4;
        c.out("out", words * 4).out("flags", 8);
        at.resize(5, 0);
        for (int x : at) c.u32((uint32_t)x);
        c.u32(dst_off).u32(expect < 0 ? box_bytes(m) : (uint32_t)expect).u32(words);
        c.block[0] = 64;
        c.smem = words * 4;
        return c;
    }
    // The same load, counted: one case for each candidate.
    void count(const std::string& name, const Map& m, const std::string& set, std::vector<int> at,
               std::vector<uint32_t> candidates) {
        std::sort(candidates.begin(), candidates.end());
        candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
        for (uint32_t e : candidates)
            load(name + "_" + std::to_string(e), m, set, at, 0, e, "tma_count_" + std::to_string(m.rank) + "d")
                .tag("quiescent");
    }
    Case& store(const std::string& name, const Map& m, const std::string& set, const std::string& src_set,
                std::vector<int> at, uint32_t src_off = 0, std::string entry = "") {
        if (entry.empty()) entry = "tma_store_" + std::to_string(m.rank) + "d";
        std::string tensor = t.shared(set, 0), src = t.shared(src_set, src_set == "rand32" ? 0 : 0);
        Case& c = t.add(name, entry);
        c.params.push_back(map_param(c, m, tensor, true));
        // Only as much of the tensor as the map reaches is kept.
        uint64_t need = (m.dims[0] * type_bits(m.type) + 7) / 8;
        for (unsigned k = 1; k < m.rank; k++) need += (m.dims[k] - 1) * m.strides[k - 1];
        c.buffers.back().bytes = std::min<uint64_t>(c.buffers.back().bytes, (need + m.offset + 79) / 16 * 16);
        uint32_t words = (src_off + std::max(box_bytes(m), box_rows(m) * (m.swizzle ? span(m) : 16)) + 64) / 4;
        c.in("src", src, std::min<size_t>(t.bytes(src), 16384), t.elem(src));
        if (words * 4 > c.buffers.back().bytes) throw std::runtime_error(name + ": source too small");
        at.resize(5, 0);
        for (int x : at) c.u32((uint32_t)x);
        c.u32(src_off).u32(words);
        c.block[0] = 64;
        c.smem = words * 4;
        return c;
    }
    void encode(const std::string& name, Map m) {
        Case& c = t.add("encode_" + name, "");
        Buffer b;
        b.name = "tensor";
        b.bytes = 65536;
        m.buffer = c.buf(b);
        Param p;
        p.kind = Param::MAP;
        p.map = m;
        c.params.push_back(p);
        c.encode_only = true;
    }
};

Topic tma() {
    Tma x;
    Topic& t = x.t;
    t.name = "tma";
    const char* sw[] = {"none", "32b", "64b", "128b", "128b_atom32", "128b_atom32_flip8", "128b_atom64"};
    // Swizzles with the inner box at the span, and below it.
    for (unsigned s = 0; s < 4; s++)
        for (uint32_t inner : {16u, 32u, 48u, 64u, 96u, 128u}) {
            if (s && inner > (16u << s)) continue;
            Map m = make_map(U8, {256, 128}, {256}, {inner, 16}, s);
            std::string n = std::string(sw[s]) + "_" + std::to_string(inner);
            x.load("swizzle_" + n, m, "iota16", {32, 3});
            if (s && inner < (16u << s))
                x.count("count_swizzle_" + n, m, "iota16", {32, 3}, {box_bytes(m), 16 * (16u << s)});
        }
    x.load("wide_256x8", make_map(U8, {256, 128}, {256}, {256, 8}), "iota16", {0, 1});
    x.load("rows_256", make_map(U8, {256, 128}, {256}, {16, 256}), "iota16", {16, -100});
    x.load("swizzle_128b_rows_40", make_map(U16, {128, 128}, {256}, {64, 40}, 3), "iota16", {8, 2});
    // The pattern follows the address, not the box: destinations inside the 1024-byte pattern.
    for (unsigned s = 1; s < 4; s++)
        for (uint32_t off : {128u, 256u, 512u, 896u, 1024u})
            x.load("offset_" + std::string(sw[s]) + "_" + std::to_string(off),
                   make_map(U8, {256, 128}, {256}, {16u << s, 12}, s), "iota16", {0, 0}, off);
    // Every element type, without a swizzle and with the 128-byte one.
    struct {
        const char* name;
        unsigned type;
        const char* set;
    } types[] = {{"u8", U8, "rand32"}, {"u16", U16, "rand32"}, {"u32", U32, "rand32"}, {"s32", S32, "rand32"},
                 {"u64", U64, "rand32"}, {"s64", S64, "rand32"}, {"f16", F16, "f16rand"}, {"f32", F32, "f32rand"},
                 {"f64", F64, "rand32"}, {"bf16", BF16, "bf16rand"}, {"f32_ftz", F32_FTZ, "f32rand"},
                 {"tf32", TF32, "f32rand"}, {"tf32_ftz", TF32_FTZ, "f32rand"}};
    for (auto& y : types) {
        unsigned e = type_bits(y.type) / 8;
        uint64_t width = 112 / e - 1;  // ends inside 16 bytes; the rest of the 128-byte row is padding
        std::string n = y.name;
        for (unsigned s : {0u, 3u}) {
            Map m = make_map(y.type, {width, 60}, {128}, {128 / e, 8}, s);
            x.load("type_" + n + "_" + sw[s], m, y.set, {0, 4});
        }
        Map m = make_map(y.type, {width, 60}, {128}, {64 / e, 8}, 0);
        x.load("type_" + n + "_oob", m, y.set, {64 / (int)e, 56});
        x.load("type_" + n + "_oob_neg", m, y.set, {-16 / (int)e, -2});
        bool is_float = y.type >= F16 && y.type != S64;
        if (is_float) {
            m.oob = 1;
            x.load("type_" + n + "_oob_nan", m, y.set, {64 / (int)e, 56});
            x.load("type_" + n + "_oob_nan_all", m, y.set, {1000, 1000});
        }
    }
    // Ranks. Strides padded beyond the dimensions.
    std::vector<uint64_t> d5 = {40, 5, 4, 3, 3}, s5 = {48, 256, 1040, 3136};
    std::vector<uint32_t> b5 = {32, 4, 2, 2, 2};
    for (unsigned rank = 1; rank <= 5; rank++) {
        std::vector<uint64_t> d(d5.begin(), d5.begin() + rank), st(s5.begin(), s5.begin() + rank - 1);
        std::vector<uint32_t> b(b5.begin(), b5.begin() + rank);
        std::string n = "rank" + std::to_string(rank);
        for (unsigned type : {(unsigned)U8, (unsigned)U16}) {
            std::string tn = type == U8 ? "_u8" : "_u16";
            int unit = type == U8 ? 16 : 8;
            d[0] = 40 * unit / 16, b[0] = 32 * unit / 16;
            unsigned s = type == U16 ? 1 : 0;  // u16: 32 bytes, swizzled
            Map m = make_map(type, d, st, b, s);
            x.load(n + tn, m, "iota16", {0, 1, 1, 1, 1});
            x.load(n + tn + "_end", m, "iota16", {2 * unit, 2, 3, 2, 2});
            x.load(n + tn + "_neg", m, "iota16", {-unit, -1, -1, -1, -1});
            for (unsigned k = 1; k < rank; k++) {
                std::vector<int> past(5, 0), before(5, 0);
                past[k] = (int)d[k] - 1;
                before[k] = -1;
                if (type == U8) {
                    x.load(n + tn + "_past" + std::to_string(k), m, "iota16", past);
                    x.load(n + tn + "_before" + std::to_string(k), m, "iota16", before);
                }
            }
            Map ms = m;
            x.store("store_" + n + tn, ms, "iota16", "rand32", {0, 1, 1, 1, 1});
            x.store("store_" + n + tn + "_end", ms, "iota16", "rand32", {2 * unit, 2, 3, 2, 2});
            x.store("store_" + n + tn + "_neg", ms, "iota16", "rand32", {-unit, -1, -1, -1, -1});
        }
    }
    // Far outside.
    Map plain = make_map(U8, {200, 60}, {256}, {64, 8});
    x.load("far_past", plain, "iota16", {208, 0});
    x.load("far_rows", plain, "iota16", {0, 60});
    x.load("far_negative", plain, "iota16", {-64, 0});
    // Does what lies outside count? Whole boxes expected, and counted.
    x.count("count_inside", plain, "iota16", {0, 0}, {512, 496});
    x.count("count_right_edge", plain, "iota16", {160, 0}, {512, 384, 320, 0});
    x.count("count_bottom_edge", plain, "iota16", {0, 57}, {512, 192, 0});
    x.count("count_corner", plain, "iota16", {160, 57}, {512, 144, 120, 0});
    x.count("count_negative", plain, "iota16", {-32, -4}, {512, 128, 0});
    x.count("count_outside", plain, "iota16", {304, 0}, {512, 0});
    x.count("count_1d_edge", make_map(U8, {200}, {}, {64}), "iota16", {192}, {64, 8, 16, 0});
    x.count("count_3d_edge", make_map(U8, {20, 5, 4}, {48, 256}, {16, 4, 2}), "iota16", {0, 3, 3},
            {128, 32, 0});
    x.count("count_swizzled_edge", make_map(U8, {200, 60}, {256}, {64, 8}, 2), "iota16", {160, 57},
            {512, 144, 120, 0});
    x.load("expect_more", plain, "iota16", {0, 0}, 0, 528).tag("incomplete");
    x.load("expect_full_corner", plain, "iota16", {160, 57});
    // Element strides.
    for (uint32_t es : {2u, 3u, 8u}) {
        std::string n = "estride" + std::to_string(es);
        Map m = make_map(U8, {200, 60}, {256}, {32, 16}, 0, 0, {1, es});
        x.load(n, m, "iota16", {16, 3});
        x.load(n + "_neg", m, "iota16", {16, -1});
        x.load(n + "_end", m, "iota16", {16, 53});
        x.count("count_" + n, m, "iota16", {16, 3}, {box_bytes(m), 512});
        Map q = make_map(U16, {100, 60}, {256}, {16, 16}, 1, 0, {1, es});
        x.load(n + "_swizzle_32b", q, "iota16", {8, 3});
        x.store("store_" + n, m, "iota16", "rand32", {16, 3});
    }
    {
        Map m = make_map(U8, {200, 60}, {256}, {32, 8}, 0, 0, {2, 1});
        x.load("estride_dim0", m, "iota16", {16, 3});
        x.count("count_estride_dim0", m, "iota16", {16, 3}, {256, 128});
        Map q = make_map(U8, {48, 5, 4, 3}, {48, 256, 1040}, {16, 4, 4, 3}, 0, 0, {1, 2, 3, 2});
        x.load("estride_4d", q, "iota16", {16, 0, 0, 0});
        x.load("estride_4d_shift", q, "iota16", {16, 1, -2, -1});
    }
    // Other forms of the load.
    x.load("form_shared_cta", plain, "iota16", {16, 2}, 0, -1, "tma_load_cta_2d");
    x.load("form_hint", plain, "iota16", {16, 2}, 0, -1, "tma_load_hint_2d");
    x.load("form_mask1", plain, "iota16", {16, 2}, 0, -1, "tma_load_mask1_2d").cluster[0] = 1;
    for (unsigned l2 = 1; l2 < 4; l2++) {
        Map m = plain;
        m.l2 = l2;
        x.load("l2_promotion_" + std::to_string(l2), m, "iota16", {16, 2});
    }
    {
        Map m = plain;
        m.offset = 4112;
        x.load("base_offset", m, "iota16", {16, 2});
        std::string tensor = t.shared("iota16", 0);
        Case& c = t.add("prefetch", "tma_prefetch_2d");
        c.params.push_back(x.map_param(c, plain, tensor, false));
        c.out("out", 576).out("flags", 4).u32(16).u32(2).u32(512).u32(144);
        c.block[0] = 64;
        c.smem = 576;
    }
    // Stores: swizzles, edges, far outside.
    for (unsigned s = 0; s < 4; s++) {
        uint32_t inner = s ? 16u << s : 64;
        Map m = make_map(U8, {109, 20}, {128}, {inner, 8}, s);
        x.store(std::string("store_") + sw[s], m, "iota16", "rand32", {0, 1});
        x.store(std::string("store_") + sw[s] + "_corner", m, "iota16", "rand32", {96, 15});
        x.store(std::string("store_") + sw[s] + "_neg", m, "iota16", "rand32", {-16, -3}, s ? 1024 : 128);
    }
    x.store("store_outside", make_map(U8, {112, 20}, {128}, {64, 8}), "iota16", "rand32", {0, 20});
    for (auto& y : types) {
        unsigned e = type_bits(y.type) / 8;
        Map m = make_map(y.type, {112 / e - 1, 20}, {128}, {64 / e, 8});
        x.store("store_type_" + std::string(y.name), m, "iota16", y.set, {64 / (int)e, 15});
    }
    // Reductions.
    struct {
        const char* op;
        const char* name;
        unsigned type;
        const char *set, *src;
    } reds[] = {{"add", "u32", U32, "rand32", "i32p"}, {"add", "s32", S32, "rand32", "i32p"},
                {"add", "u64", U64, "rand32", "i32p"}, {"add", "f32", F32, "f32rand", "f32p"},
                {"add", "f16", F16, "f16rand", "h16p"}, {"add", "bf16", BF16, "bf16rand", "b16p"},
                {"min", "u32", U32, "rand32", "i32p"}, {"min", "s32", S32, "rand32", "i32p"},
                {"max", "s64", S64, "rand32", "i32p"}, {"min", "f16", F16, "f16rand", "h16p"},
                {"max", "bf16", BF16, "bf16rand", "b16p"}, {"inc", "u32", U32, "rand32", "i32p"},
                {"dec", "u32", U32, "rand32", "i32p"}, {"and", "u32", U32, "rand32", "i32p"},
                {"or", "u64", U64, "rand32", "i32p"}, {"xor", "s32", S32, "rand32", "i32p"}};
    for (auto& y : reds) {
        unsigned e = type_bits(y.type) / 8;
        Map m = make_map(y.type, {112 / e - 1, 20}, {128}, {64 / e, 16});
        std::string n = std::string("red_") + y.op + "_" + y.name;
        x.store(n, m, y.set, y.src, {0, 0}, 0, std::string("tma_red_") + y.op + "_2d");
        x.store(n + "_edge", m, y.set, y.src, {64 / (int)e, 12}, 0, std::string("tma_red_") + y.op + "_2d");
    }
    // Multicast within a cluster.
    struct {
        const char* name;
        unsigned n, swizzle;
        int c0, c1;
        V32 mask;
    } mcs[] = {{"both", 2, 0, 0, 0, {3, 3}}, {"self", 2, 0, 0, 4, {1, 2}}, {"cross", 2, 2, 0, 0, {2, 1}},
               {"one", 2, 2, 16, 2, {3, 0}}, {"edge", 2, 0, 160, 56, {3, 3}}, {"four", 4, 2, 0, 0, {15, 5, 0, 8}}};
    for (auto& mc : mcs) {
        std::string n = std::string("multicast_") + mc.name;
        Map m = make_map(U8, {200, 60}, {256}, {64, 8}, mc.swizzle);
        const uint32_t bytes = 512, words = (mc.n * bytes + 64) / 4;
        V32 expect(mc.n, 0);
        for (unsigned k = 0; k < mc.n; k++)
            for (unsigned q = 0; q < mc.n; q++)
                if (mc.mask[k] >> q & 1) expect[q] += bytes;
        std::string tensor = t.shared("iota16", 0), tm = t.own(n + "/mask.in", mc.mask),
                    te = t.own(n + "/expect.in", expect);
        Case& c = t.add(n, "tma_multicast_2d");
        c.params.push_back(x.map_param(c, m, tensor, false));
        c.out("out", mc.n * words * 4).out("flags", mc.n * 4);
        give(t, c, "mask", tm);
        give(t, c, "expect", te);
        c.u32((uint32_t)mc.c0).u32((uint32_t)mc.c1).u32(8).u32(bytes).u32(words);
        c.grid[0] = mc.n, c.cluster[0] = mc.n, c.cluster[1] = c.cluster[2] = 1;
        c.block[0] = 64;
        c.smem = words * 4;
    }
    {
        Case& c = t.add("load_remote", "tma_load_remote_bar_2d");
        std::string tensor = t.shared("iota16", 0);
        c.params.push_back(x.map_param(c, make_map(U8, {200, 60}, {256}, {64, 8}, 2), tensor, false));
        c.out("out", 2 * 576).out("flags", 8).u32(16).u32(2).u32(512).u32(144);
        c.grid[0] = 2, c.cluster[0] = 2, c.cluster[1] = c.cluster[2] = 1;
        c.block[0] = 64;
        c.smem = 576;
    }
    // What cuTensorMapEncodeTiled accepts. 0 is success.
    auto map2 = [&](unsigned type = U8) { return make_map(type, {256, 64}, {256}, {64, 8}); };
    {
        Map m;
        x.encode("ok", map2());
        m = map2(), m.offset = 8, x.encode("base_8", m);
        m = map2(), m.offset = 16, x.encode("base_16", m);
        m = map2(), m.dims[0] = 0, x.encode("dim_0", m);
        m = map2(), m.dims[1] = 1ull << 32, x.encode("dim_2p32", m);
        m = map2(), m.dims[1] = (1ull << 32) + 1, x.encode("dim_2p32_1", m);
        m = map2(), m.strides[0] = 264, x.encode("stride_264", m);
        m = map2(), m.strides[0] = 272, x.encode("stride_272", m);
        m = map2(), m.strides[0] = 0, x.encode("stride_0", m);
        m = map2(), m.strides[0] = 128, x.encode("stride_less_than_row", m);
        m = map2(), m.strides[0] = 1ull << 40, x.encode("stride_2p40", m);
        m = map2(), m.strides[0] = (1ull << 40) - 16, x.encode("stride_2p40_16", m);
        m = map2(), m.box[0] = 0, x.encode("box_0", m);
        m = map2(), m.box[1] = 0, x.encode("box_rows_0", m);
        m = map2(), m.box[0] = 256, x.encode("box_256", m);
        m = map2(), m.box[0] = 272, x.encode("box_272", m);
        m = map2(), m.box[1] = 256, x.encode("box_rows_256", m);
        m = map2(), m.box[1] = 257, x.encode("box_rows_257", m);
        m = map2(), m.box[0] = 40, x.encode("box_inner_40", m);
        m = map2(), m.box[0] = 8, x.encode("box_inner_8", m);
        m = map2(), m.dims[0] = 20, x.encode("box_wider_than_tensor", m);
        m = map2(), m.box[0] = 256, m.box[1] = 256, x.encode("box_64k", m);
        m = make_map(U8, {256, 64, 64}, {256, 16384}, {256, 256, 4}), x.encode("box_256k", m);
        m = map2(), m.elem_strides[1] = 0, x.encode("estride_0", m);
        m = map2(), m.elem_strides[1] = 8, x.encode("estride_8", m);
        m = map2(), m.elem_strides[1] = 9, x.encode("estride_9", m);
        m = map2(), m.elem_strides[0] = 2, x.encode("estride_dim0_2", m);
        m = map2(), m.elem_strides[0] = 9, x.encode("estride_dim0_9", m);
        for (unsigned s = 0; s < 8; s++) {
            m = map2(), m.swizzle = s, x.encode("swizzle_" + std::to_string(s) + "_inner_64", m);
            m = map2(), m.swizzle = s, m.box[0] = 128;
            x.encode("swizzle_" + std::to_string(s) + "_inner_128", m);
            m = map2(), m.swizzle = s, m.box[0] = 144;
            x.encode("swizzle_" + std::to_string(s) + "_inner_144", m);
        }
        m = map2(), m.swizzle = 1, m.box[0] = 32, x.encode("swizzle_1_inner_32", m);
        for (unsigned ty = 0; ty < 17; ty++) {
            m = map2(ty), m.box[0] = 16, m.dims[0] = 32;
            x.encode("type_" + std::to_string(ty), m);
            m.oob = 1, x.encode("type_" + std::to_string(ty) + "_nan", m);
        }
        for (unsigned ty : {(unsigned)U4A16, (unsigned)U6A16}) {
            m = map2(ty), m.box[0] = 128, m.dims[0] = 128;
            x.encode("type_" + std::to_string(ty) + "_box_128", m);
            m.swizzle = 3, x.encode("type_" + std::to_string(ty) + "_box_128_swizzle_3", m);
            m.swizzle = 2, x.encode("type_" + std::to_string(ty) + "_box_128_swizzle_2", m);
            m.swizzle = 3, m.offset = 16, x.encode("type_" + std::to_string(ty) + "_base_16", m);
        }
        m = map2(U4A8), m.dims[0] = 31, m.box[0] = 32, x.encode("u4_dim_odd", m);
        m = map2(U4A8), m.dims[0] = 64, m.box[0] = 48, x.encode("u4_box_48", m);
        m = map2(U4A8), m.dims[0] = 512, m.box[0] = 256, m.swizzle = 3, x.encode("u4_box_256_swizzle_3", m);
        m = map2(), m.rank = 0, x.encode("rank_0", m);
        m = map2(), m.rank = 1, x.encode("rank_1", m);
        m = make_map(U8, {16, 2, 2, 2, 2}, {16, 32, 64, 128}, {16, 2, 2, 2, 2}), x.encode("rank_5", m);
        m = make_map(U8, {16, 8, 8}, {64, 16}, {16, 2, 2}), x.encode("strides_descend", m);
        m = map2(), m.interleave = 1, x.encode("interleave_16b_rank_2", m);
        m = make_map(U8, {16, 8, 8}, {64, 512}, {16, 2, 2}), m.interleave = 1, x.encode("interleave_16b_rank_3", m);
        m.interleave = 2, m.swizzle = 1, x.encode("interleave_32b_swizzle_32b", m);
        m.swizzle = 0, x.encode("interleave_32b_swizzle_none", m);
        m = map2(), m.l2 = 3, x.encode("l2_256b", m);
        m = map2(), m.l2 = 4, x.encode("l2_4", m);
        m = map2(), m.oob = 2, x.encode("oob_2", m);
    }
    // Last, because a GPU may refuse them: extreme coordinates, 4-bit types, the other swizzle atoms.
    x.load("far_min", plain, "iota16", {(int)0x80000000, 5});
    x.load("far_max", plain, "iota16", {16, 0x7fffffff});
    x.load("u4_align8_none", make_map(U4A8, {96, 40}, {64}, {64, 8}), "rand32", {0, 0});
    x.load("u4_align8_edge", make_map(U4A8, {96, 40}, {64}, {64, 8}), "rand32", {64, 36});
    x.load("u4_align8_swizzle_32b", make_map(U4A8, {96, 40}, {64}, {64, 8}, 1), "rand32", {32, 1});
    x.load("u4_align8_swizzle_128b", make_map(U4A8, {512, 40}, {256}, {256, 8}, 3), "rand32", {128, 1});
    x.load("u4_align8_neg", make_map(U4A8, {96, 40}, {64}, {64, 8}), "rand32", {-32, -1});
    x.count("count_u4_align8", make_map(U4A8, {96, 40}, {64}, {64, 8}), "rand32", {64, 36}, {256, 64, 0});
    x.store("store_u4_align8", make_map(U4A8, {96, 20}, {64}, {64, 8}), "iota16", "rand32", {64, 16});
    for (unsigned s = 4; s < 7; s++)
        x.load(std::string("swizzle_") + sw[s], make_map(U8, {256, 128}, {256}, {128, 16}, s), "iota16", {32, 3});
    x.load("u4_align16_none", make_map(U4A16, {128, 40}, {64}, {128, 8}), "rand32", {0, 0});
    x.load("u4_align16_swizzle_128b", make_map(U4A16, {128, 40}, {64}, {128, 8}, 3), "rand32", {0, 36});
    // What is not aligned. A copy must start at a multiple of 16 bytes in dimension 0.
    auto tile = [](unsigned type, unsigned s = 0, unsigned inner = 64) {
        unsigned e = type_bits(type) / 8;
        return make_map(type, {240 / e, 60}, {256}, {inner / e, 8}, s);
    };
    x.load("unaligned_u8_1", tile(U8), "iota16", {1, 2});
    x.load("unaligned_u8_4", tile(U8), "iota16", {4, 2});
    x.load("unaligned_u8_8", tile(U8), "iota16", {8, 2});
    x.load("unaligned_u8_neg", tile(U8), "iota16", {-1, 0});
    x.load("unaligned_u8_past", tile(U8), "iota16", {244, 0});
    x.load("unaligned_u8_rows_outside", tile(U8), "iota16", {4, 60});
    x.load("unaligned_u16_4", tile(U16), "iota16", {4, 2});
    x.load("unaligned_u32_1", tile(U32), "iota16", {1, 2});
    x.load("unaligned_u64_1", tile(U64), "iota16", {1, 2});
    x.load("unaligned_32b_u8_8", tile(U8, 1, 32), "iota16", {8, 2});
    x.load("unaligned_128b_u16_5", make_map(U16, {128, 128}, {256}, {64, 40}, 3), "iota16", {5, 2});
    x.load("unaligned_1d", make_map(U8, {200}, {}, {64}), "iota16", {8});
    x.load("unaligned_3d", make_map(U8, {40, 5, 4}, {48, 256}, {32, 4, 2}), "iota16", {8, 0, 0});
    x.store("unaligned_store_u8_8", make_map(U8, {112, 20}, {128}, {64, 8}), "iota16", "rand32", {8, 1});
    x.store("unaligned_store_neg", make_map(U8, {112, 20}, {128}, {64, 8}), "iota16", "rand32", {-4, 1});
    x.store("unaligned_store_past", make_map(U8, {112, 20}, {128}, {64, 8}), "iota16", "rand32", {120, 1});
    x.store("unaligned_red", make_map(U32, {28, 20}, {128}, {16, 8}), "rand32", "i32p", {1, 1}, 0,
            "tma_red_add_2d");
    for (uint32_t off : {16u, 64u}) {  // shared memory: 128 bytes
        x.load("unaligned_dst_" + std::to_string(off), tile(U8), "iota16", {16, 2}, off);
        x.store("unaligned_src_" + std::to_string(off), make_map(U8, {112, 20}, {128}, {64, 8}), "iota16", "rand32",
                {16, 1}, off);
    }
    x.load("unaligned_dst_64_swizzle_64b", tile(U8, 2), "iota16", {16, 2}, 64);
    // Stores at negative coordinates, which documents call invalid, go to the end as well.
    std::stable_partition(t.cases.begin(), t.cases.end(), [](const Case& c) {
        return c.name.rfind("store_", 0) != 0 || c.name.find("_neg") == std::string::npos;
    });
    // The rule holds wherever no case says that it breaks it: coordinate 0 is the first number.
    for (const Case& c : t.cases) {
        if (c.encode_only || c.name.rfind("unaligned_", 0) == 0) continue;
        for (const Param& p : c.params) {
            if (p.kind != Param::U32) continue;
            if ((int64_t)(int32_t)p.value * type_bits(c.params[0].map.type) % 128)
                throw std::runtime_error("tma/" + c.name + ": coordinate 0 is not a multiple of 16 bytes");
            break;
        }
    }
    return t;
}

Topic matrix() {
    Topic t;
    t.name = "matrix";
    Rng r{7003};
    std::string src = t.shared("iota16", 0);
    V32 addr, padded;
    for (unsigned i = 0; i < 32; i++) {
        addr.push_back(16 * ((i * 11 + 3) % 32));       // rows scattered, none twice
        padded.push_back(i * 48);                       // rows 48 bytes apart
    }
    std::string a0 = t.own("in/addr.scattered", addr), a1 = t.own("in/addr.padded", padded);
    for (const char* e : {"ldmatrix_x1", "ldmatrix_x2", "ldmatrix_x4", "ldmatrix_x1_trans", "ldmatrix_x2_trans",
                          "ldmatrix_x4_trans", "stmatrix_x1", "stmatrix_x2", "stmatrix_x4", "stmatrix_x1_trans",
                          "stmatrix_x4_trans"})
        for (unsigned k = 0; k < 2; k++) {
            bool load = e[0] == 'l';
            unsigned regs = strstr(e, "x4") ? 4 : strstr(e, "x2") ? 2 : 1;
            Case& c = t.add(std::string(e) + (k ? "_padded" : ""), e);
            c.in("src", src, 2048, 2);
            give(t, c, "addr", k ? a1 : a0);
            c.out("out", load ? 128 * regs : 2048);
        }
    {
        Case& c = t.add("movmatrix", "movmatrix");
        c.in("src", src, 128, 2).out("out", 128);
    }
    // mma: `exact` holds small integers, whose sums every order of addition gets right; `random`
    // holds floats, whose low bits depend on the machine's summation.
    const unsigned W = 4, N = W * 32;
    auto half = [](int v, unsigned mb) -> uint32_t {  // a small integer as a 16-bit float
        if (v == 0) return 0;
        float f = (float)v;
        uint32_t b;
        memcpy(&b, &f, 4);
        uint32_t e = (b >> 23 & 255) - 127, bias = (1u << (14 - mb)) - 1;
        return (b >> 31) << 15 | ((e + bias) << mb) | ((b & 0x7fffff) >> (23 - mb));
    };
    auto f32bits = [](float f) {
        uint32_t b;
        memcpy(&b, &f, 4);
        return b;
    };
    auto fill = [&](const std::string& name, unsigned words, int kind) {
        V32 v;
        for (unsigned i = 0; i < words * N; i++) switch (kind) {
                case 0: v.push_back(half((int)r.below(17) - 8, 10) | half((int)r.below(17) - 8, 10) << 16); break;
                case 1: v.push_back(half((int)r.below(17) - 8, 7) | half((int)r.below(17) - 8, 7) << 16); break;
                case 2: v.push_back(f32bits((float)((int)r.below(17) - 8))); break;
                case 3: v.push_back(f32bits((float)((int)r.below(2001) - 1000))); break;
                case 4: v.push_back(r.next()); break;
                case 5: {  // e4m3: 0 and +-0.5, 1, 2
                    uint32_t w = 0;
                    for (int k = 0; k < 4; k++)
                        w |= (r.below(5) ? (0x38 + 8 * ((int)r.below(3) - 1)) | r.below(2) << 7 : 0) << (8 * k);
                    v.push_back(w);
                    break;
                }
                case 6: {  // f16 of middling exponents
                    uint32_t w = 0;
                    for (int k = 0; k < 2; k++) w |= ((r.next() & 0x83ff) | (11 + r.below(8)) << 10) << (16 * k);
                    v.push_back(w);
                    break;
                }
                case 7: {  // bf16
                    uint32_t w = 0;
                    for (int k = 0; k < 2; k++) w |= ((r.next() & 0x807f) | (123 + r.below(8)) << 7) << (16 * k);
                    v.push_back(w);
                    break;
                }
                case 8: v.push_back((r.next() & 0x807fffff) | (123 + r.below(8)) << 23); break;
                case 9: v.push_back(half((int)r.below(401) - 200, 10) | half((int)r.below(401) - 200, 10) << 16); break;
                case 10: v.push_back(r.next() & 0x7f7f7f7f & ~0x08080808u); break;
                case 11: v.push_back(0x7fffffffu - r.below(100000)); break;
            }
        return t.own("in/" + name, v);
    };
    struct {
        const char *name, *entry;
        int a, b, c;
        bool inexact;
    } mmas[] = {{"mma_f16_exact", "mma_m16n8k16_f32_f16", 0, 0, 3, false},
                {"mma_bf16_exact", "mma_m16n8k16_f32_bf16", 1, 1, 3, false},
                {"mma_f16_k8_exact", "mma_m16n8k8_f32_f16", 0, 0, 3, false},
                {"mma_tf32_exact", "mma_m16n8k8_f32_tf32", 2, 2, 3, false},
                {"mma_e4m3_exact", "mma_m16n8k32_f32_e4m3", 5, 5, 3, false},
                {"mma_f16acc_exact", "mma_m16n8k16_f16_f16", 0, 0, 9, false},
                {"mma_s8", "mma_m16n8k32_s8", 4, 4, 4, false},
                {"mma_u8_s8", "mma_m16n8k32_u8_s8", 4, 4, 4, false},
                {"mma_s8_overflow", "mma_m16n8k32_s8", 10, 10, 11, false},
                {"mma_s8_satfinite", "mma_m16n8k32_satfinite_s8", 10, 10, 11, false},
                {"mma_f16_random", "mma_m16n8k16_f32_f16", 6, 6, 8, true},
                {"mma_bf16_random", "mma_m16n8k16_f32_bf16", 7, 7, 8, true},
                {"mma_tf32_random", "mma_m16n8k8_f32_tf32", 8, 8, 8, true},
                {"mma_f16acc_random", "mma_m16n8k16_f16_f16", 6, 6, 6, true}};
    for (auto& m : mmas) {
        std::string n = m.name;
        std::string a = fill(n + ".a", 4, m.a), b = fill(n + ".b", 2, m.b), c0 = fill(n + ".c", 4, m.c);
        Case& c = t.add(n, m.entry);
        give(t, c, "a", a);
        give(t, c, "b", b);
        give(t, c, "c", c0);
        c.out("out", N * 16);
        c.block[0] = 64;
        c.grid[0] = N / 64;
        if (m.inexact) c.tag("inexact");
    }
    return t;
}

// A float format, and how exponents are drawn.
struct Floats {
    unsigned exponent, mantissa;
    enum Style { MIDDLING, WIDE, ANY, SMALL, LARGE } style;

    uint32_t draw(Rng& r) const {
        const uint32_t top = (1u << exponent) - 1, bias = top >> 1;
        uint32_t e = 0;
        switch (style) {
            case MIDDLING: e = bias - 4 + r.below(8); break;
            case WIDE: e = r.below(top); break;        // all but the last
            case ANY: e = r.below(8) ? bias : r.below(top + 1); break;
            case SMALL: e = r.below(3); break;
            case LARGE: e = top - 1 - r.below(3); break;
        }
        const uint32_t sign = r.below(2) << (exponent + mantissa);
        return sign | e << mantissa | (r.next() & ((1u << mantissa) - 1));
    }
    uint32_t word(Rng& r) const {
        const unsigned bits = 1 + exponent + mantissa;
        if (bits == 32) return draw(r);
        uint32_t w = 0;
        for (unsigned at = 0; at < 32; at += bits) w |= draw(r) << at;
        return w;
    }
};

Topic wgmma() {
    Topic t;
    t.name = "wgmma";
    Rng r{9001};
    const unsigned ctas = 2;
    auto words = [&](const std::string& name, unsigned n, auto draw) {
        V32 v;
        for (unsigned i = 0; i < n; i++) v.push_back(draw());
        return t.own("in/" + name, v);
    };
    // Numbers.
    struct Type {
        const char* entry;
        unsigned exponent, mantissa;
        bool f16_sums;
    } types[] = {{"wgmma_f32_f16", 5, 10, false},  {"wgmma_f32_bf16", 8, 7, false},
                 {"wgmma_f16_f16", 5, 10, true},   {"wgmma_f32_tf32", 8, 23, false},
                 {"wgmma_f32_e4m3", 4, 3, false},  {"wgmma_f32_e5m2", 5, 2, false},
                 {"wgmma_f16_e4m3", 4, 3, true},   {"wgmma_f32_f16_negated", 5, 10, false}};
    const char* styles[] = {"middling", "wide", "any", "small", "large"};
    for (const Type& ty : types)
        for (unsigned k = 0; k < 5; k++) {
            const std::string n = std::string(ty.entry) + "_" + styles[k];
            const Floats of{ty.exponent, ty.mantissa, (Floats::Style)k};
            // A sum of products of small or large factors lies elsewhere than its factors.
            const Floats sums = ty.f16_sums ? Floats{5, 10, (Floats::Style)k} : Floats{8, 23, k == 1 || k == 2 ? Floats::WIDE : Floats::MIDDLING};
            auto element = [&] { return of.word(r); };
            auto sum = [&] { return sums.word(r); };
            const std::string a = words(n + ".a", ctas * 512, element), b = words(n + ".b", ctas * 256, element),
                              c0 = words(n + ".c", ctas * 512, sum);
            for (unsigned keep = 0; keep < 2; keep++) {
                Case& c = t.add(n + (keep ? "" : "_alone"), ty.entry);
                give(t, c, "a", a);
                give(t, c, "b", b);
                give(t, c, "c", c0);
                c.out("out", ctas * (ty.f16_sums ? 1024 : 2048)).u32(keep);
                c.block[0] = 128;
                c.grid[0] = ctas;
            }
        }
    for (unsigned k = 0; k < 2; k++) {
        const std::string n = std::string("wgmma_64_columns_") + styles[k];
        const Floats of{5, 10, (Floats::Style)k}, sums{8, 23, Floats::MIDDLING};
        Case& c = t.add(n, "wgmma_64_columns");
        give(t, c, "a", words(n + ".a", 2048, [&] { return of.word(r); }));
        give(t, c, "b", words(n + ".b", 2048, [&] { return of.word(r); }));
        give(t, c, "c", words(n + ".c", 4096, [&] { return sums.word(r); }));
        c.out("out", 16384);
        c.block[0] = 128;
    }
    // Layouts: images of small integers, whose sums f16 holds.
    auto integers = [&] {
        uint32_t w = 0;
        for (unsigned at = 0; at < 32; at += 16) {
            const uint32_t magnitude = r.below(5);
            const uint32_t code[] = {0, 0x3c00, 0x4000, 0x4200, 0x4400};
            w |= (code[magnitude] | (magnitude ? r.below(2) << 15 : 0)) << at;
        }
        return w;
    };
    const std::string images[2] = {words("image.a", 4096, integers), words("image.b", 4096, integers)};
    struct Place {
        unsigned start, leading, stride, base, mode;
        uint32_t upper() const { return stride >> 4 | base << 17 | mode << 30; }
    };
    auto layout = [&](const std::string& name, bool ta, bool tb, Place a, Place b) {
        Case& c = t.add(name, std::string("wgmma_layout_") + (ta ? "m" : "k") + (tb ? "m" : "k"));
        give(t, c, "a", images[0]);
        give(t, c, "b", images[1]);
        c.out("out", 8192);
        c.u32(a.start).u32(a.leading).u32(a.upper()).u32(b.start).u32(b.leading).u32(b.upper());
        c.block[0] = 128;
    };
    const char* modes[] = {"plain", "128b", "64b", "32b"};
    const unsigned spans[] = {16, 128, 64, 32};
    const Place rows{0, 0, 1024, 0, 1};
    for (unsigned mode = 0; mode < 4; mode++)
        for (unsigned transposed = 0; transposed < 2; transposed++) {
            const unsigned span = spans[mode];
            const std::string n = std::string("layout_") + modes[mode] + (transposed ? "_mn" : "_k");
            auto both = [&](const std::string& what, Place p) {
                layout(n + "_a_" + what, transposed, false, p, rows);
                layout(n + "_b_" + what, false, transposed, rows, p);
            };
            if (mode == 0) {
                both("dense", Place{0, 1024, 128, 0, 0});
                both("exchanged", Place{0, 128, 1024, 0, 0});
                both("gaps", Place{16, 272, 656, 0, 0});
            } else if (transposed) {
                both("dense", Place{0, 2 * 8 * span, 8 * span, 0, mode});
                both("exchanged", Place{0, 8 * span, 8 * span * (128 / span), 0, mode});
                both("gaps", Place{0, 3 * 8 * span, 1024, 0, mode});
            } else {
                both("dense", Place{0, 0, 8 * span, 0, mode});
                both("leading", Place{0, 4096 + 16, 8 * span, 0, mode});
                both("gaps", Place{0, 0, 16 * span, 0, mode});
                for (unsigned at = 32; at < span; at += 32) both("k" + std::to_string(at), Place{at, 0, 8 * span, 0, mode});
            }
            // Patterns that start elsewhere than at a multiple of their size, with a base offset and without.
            if (mode != 0)
                for (unsigned line : {1u, 5u}) {
                    const unsigned leading = transposed ? 2 * 8 * span : 0;
                    both("line" + std::to_string(line), Place{128 * line, leading, 8 * span, 0, mode});
                    both("base" + std::to_string(line), Place{128 * line, leading, 8 * span, line, mode});
                }
        }
    const Place columns{0, 2048, 1024, 0, 1};
    layout("layout_128b_mn_both", true, true, columns, columns);
    return t;
}
}  // namespace

std::vector<Topic> all_topics() {
    std::vector<Topic> v;
    v.push_back(cvt());
    v.push_back(arith());
    v.push_back(integer());
    v.push_back(warp());
    v.push_back(async_());
    v.push_back(tma());
    v.push_back(matrix());
    v.push_back(wgmma());
    blackwell_topics(v);
    return v;
}
