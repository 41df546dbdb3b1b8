// The launches for compute capability 10.x and 12.x, and sums, which a Hopper has too.
#include <string.h>

#include "record.h"
#include "sums.h"

namespace {
struct Random {
    uint64_t s;
    uint32_t next() {
        uint64_t z = (s += 0x9E3779B97F4A7C15ull);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return (uint32_t)(z ^ (z >> 31));
    }
    uint32_t below(uint32_t n) { return (next() >> 1) % n; }
    std::vector<uint32_t> words(unsigned n) {
        std::vector<uint32_t> v(n);
        for (uint32_t& w : v) w = next();
        return v;
    }
};

// UE4M3 of 1/2, 1 or 2: sums of 64 products of such blocks are exact in f32, in whatever order.
uint8_t gentle(Random& r) { return (uint8_t)(0x30 + 8 * r.below(3)); }

uint32_t gentle_word(Random& r) {
    uint32_t w = 0;
    for (unsigned i = 0; i < 4; i++) w |= (uint32_t)gentle(r) << (8 * i);
    return w;
}

Topic mma_fp4() {
    Topic t;
    t.name = "mma_fp4";
    t.needs = 12;
    Random r{9001};
    const unsigned WARPS = 4, LANES = 32 * WARPS;
    std::vector<uint32_t> c(4 * LANES), sa(LANES), sb(LANES);
    for (uint32_t& x : c) {
        const float f = (float)((int)r.below(2048) - 1024) / 16.0f;
        memcpy(&x, &f, 4);
    }
    for (uint32_t& x : sa) x = gentle_word(r);
    for (uint32_t& x : sb) x = gentle_word(r);
    t.own("in/fragments.a", r.words(4 * LANES));
    t.own("in/fragments.b", r.words(2 * LANES));
    t.own("in/fragments.c", c);
    t.own("in/fragments.scales_a", sa);
    t.own("in/fragments.scales_b", sb);
    for (unsigned lanes = 0; lanes < 8; lanes++) {
        const std::string entry = "mma_fp4_a" + std::to_string(lanes / 4) + "_b" + std::to_string(lanes % 4);
        Case& x = t.add(entry, entry);
        for (const char* name : {"a", "b", "c", "scales_a", "scales_b"}) {
            const std::string tensor = std::string("in/fragments.") + name;
            x.in(name, tensor, t.bytes(tensor), 4);
        }
        x.out("out", 16 * LANES);
        x.grid[0] = WARPS;
    }
    add_sums(t, "sums_fp4", 16, 8, false);
    return t;
}

Topic sums_f16() {
    Topic t;
    t.name = "sums_f16";
    add_sums(t, "sums_f16", 16, 8, false);
    return t;
}

const unsigned ROWS = 128 * 128, ATOMS = 4 * 512, IMAGE = 2 * (ROWS + ATOMS);

// Where row `row` has the scales of its slice `k`, in atoms.
unsigned in_atoms(unsigned row, unsigned k) { return 512 * k + row % 32 * 16 + row / 32 * 4; }

struct Image {
    std::vector<uint8_t> bytes = std::vector<uint8_t>(IMAGE);
    uint8_t& scale(bool of_b, unsigned row, unsigned k, unsigned block) {
        return bytes[2 * ROWS + (of_b ? ATOMS : 0) + in_atoms(row, k) + block];
    }
    std::vector<uint32_t> words() const {
        std::vector<uint32_t> w(IMAGE / 4);
        memcpy(w.data(), bytes.data(), IMAGE);
        return w;
    }
};

// Random codes, which need no place of their own: what is read where shows all the same.
Image image(Random& r, bool exact) {
    Image x;
    for (unsigned i = 0; i < 2 * ROWS; i++) x.bytes[i] = (uint8_t)r.below(256);
    for (unsigned i = 2 * ROWS; i < IMAGE; i++) x.bytes[i] = exact ? gentle(r) : (uint8_t)r.below(0x7f);
    return x;
}

Case& multiply(Topic& t, const std::string& name, const std::string& in, unsigned n, unsigned slices, unsigned shift) {
    Case& x = t.add(name, "tcgen05_mma");
    x.in("in", in, IMAGE, 4).out("out", 4 * 128 * n).out("flags", 4).u32(n).u32(slices).u32(shift);
    x.block[0] = 128;
    return x;
}

// Steps that `roles` takes the clocks of.
const unsigned ROLE_STEPS = 64;

Topic tcgen05() {
    Topic t;
    t.name = "tcgen05";
    t.needs = 10;
    Random r{9101};
    for (unsigned columns : {32u, 64u, 128u, 256u})
        t.add("alloc_" + std::to_string(columns), "tcgen05_alloc").out("out", 8).u32(columns).u32(columns);
    t.add("alloc_128_32", "tcgen05_alloc").out("out", 8).u32(128).u32(32);
    t.add("commit_nothing", "tcgen05_commit_nothing").out("flags", 4).block[0] = 128;
    for (const char* shape : {"32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"})
        for (unsigned half = 0; half < (shape[0] == '3' ? 1u : 2u); half++) {
            Case& x = t.add(std::string("ld_st_") + shape + (half ? "_lower" : ""), std::string("tcgen05_ld_") + shape);
            x.out("loaded", 4 * 4 * 128).out("stored", 4 * 16 * 128).u32(half);
            x.block[0] = 128;
        }
    const std::string source = t.own("in/rows", r.words(1024));
    for (const char* shape :
         {"32x128b_warpx4", "128x128b", "128x256b", "4x256b", "64x128b_02_13", "64x128b_01_23"})
        for (unsigned gaps = 0; gaps < 2; gaps++) {
            Case& x = t.add(std::string("cp_") + shape + (gaps ? "_gaps" : ""), std::string("tcgen05_cp_") + shape);
            x.in("in", source, 4096, 4).out("out", 4 * 16 * 128).out("flags", 4);
            x.u32(gaps ? 16 : 2048).u32(gaps ? 256 : 128);  // leading and stride offset
            x.block[0] = 128;
        }
    Image exact = image(r, true), full = image(r, false);
    t.own("in/exact", exact.words());
    t.own("in/full", full.words());
    for (unsigned n : {16u, 32u, 64u, 128u})
        for (unsigned slices : {1u, 4u})
            multiply(t, "exact_n" + std::to_string(n) + "_k" + std::to_string(64 * slices), "in/exact", n, slices, 0);
    // Scales of B that begin elsewhere: the columns that an instruction reads for N up to 32.
    for (unsigned shift = 1; shift < 4; shift++)
        multiply(t, "scales_b_shift_" + std::to_string(shift), "in/exact", 16, 1, shift);
    // The same columns, with others beside them.
    for (unsigned n : {16u, 32u, 64u, 128u})
        multiply(t, "full_n" + std::to_string(n), "in/full", n, 4, 0).tag("inexact");
    // Rows 100 and up of A, and columns 16 and up of B, have NaN for scales.
    Image nan = exact;
    for (unsigned k = 0; k < 4; k++)
        for (unsigned block = 0; block < 4; block++) {
            for (unsigned row = 100; row < 128; row++) nan.scale(false, row, k, block) = 0x7f;
            for (unsigned column = 16; column < 128; column++) nan.scale(true, column, k, block) = 0x7f;
        }
    t.own("in/nan", nan.words());
    multiply(t, "nan_scales_n16", "in/nan", 16, 4, 0);
    add_sums(t, "sums_tcgen05", 128, 1, true);
    Case& roles = t.add("roles", "tcgen05_roles").tag("times");
    roles.in("in", "in/exact", IMAGE, 4).out("times", 12).out("flags", 8).u32(ROLE_STEPS);
    roles.block[0] = 128;
    // Columns 33 and up of B, which an instruction with N = 64 multiplies, though nobody stores them.
    Image inside = exact;
    for (unsigned k = 0; k < 4; k++)
        for (unsigned block = 0; block < 4; block++)
            for (unsigned column = 33; column < 128; column++) inside.scale(true, column, k, block) = 0x7f;
    t.own("in/nan_inside", inside.words());
    multiply(t, "nan_scales_inside_n64", "in/nan_inside", 64, 4, 0);
    auto in_turn = [&](const char* name, const char* in, unsigned n, unsigned apart) {
        Case& x = t.add(name, "tcgen05_mma_in_turn");
        x.in("in", in, IMAGE, 4).out("out", 4 * 128 * n).out("flags", 4).u32(n).u32(4).u32(apart);
        x.block[0] = 128;
    };
    in_turn("in_turn_n16", "in/exact", 16, 4);
    // Nothing orders these copies behind the multiplications that read what they overwrite.
    in_turn("one_place_n16", "in/exact", 16, 0);
    in_turn("in_turn_n8", "in/full", 8, 4);
    return t;
}

Topic tcgen05_pdl() {
    Topic t;
    t.name = "tcgen05_pdl";
    t.needs = 10;
    auto pair = [&](const char* name, const char* entry, unsigned columns) -> Case& {
        Case& x = t.add(name, entry).out("out", 8).u32(columns);
        x.first = "pdl_first";
        return x;
    };
    pair("wait_then_allocate_512", "pdl_wait_then_allocate", 512);
    pair("wait_then_allocate_32", "pdl_wait_then_allocate", 32);
    // Several CTAs of each kernel on every multiprocessor: one holds all of tensor memory, the others wait for it.
    Case& held = pair("allocate_while_held_512", "pdl_allocate_then_wait", 512);
    held.first = "pdl_hold";
    held.grid[0] = 1024;
    // Last: what allocates before it waits has to hope for room.
    pair("allocate_then_wait_256", "pdl_allocate_then_wait", 256);
    return t;
}
}  // namespace

void blackwell_topics(std::vector<Topic>& to) {
    to.push_back(sums_f16());
    to.push_back(mma_fp4());
    to.push_back(tcgen05());
    to.push_back(tcgen05_pdl());
}
