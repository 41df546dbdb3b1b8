// Sums of 64 products and C, made so that their results tell how an instruction adds. docs/probes.md says what for.
#pragma once
#include "record.h"

// What a sum was made for: bits 24 to 31 of its label. The rest names the variant, and is read by nobody.
enum Series : uint32_t {
    PADDING,   // nothing: rows that fill a group of 16
    SURVIVES,  // two large terms cancel: is a small one still there?
    GROUPS,    // the same with several small ones, which only together are large enough
    FINAL,     // how the result becomes f32
    LOSS,      // a large term, and small ones that may all be lost
    NOMINAL,   // terms of subnormal codes or scales, whose exponents may be taken for larger than they are
    RANDOM,    // any codes, any scales
    EXACT,     // sums that every order gives exactly
    FAR,       // as SURVIVES, with the smallest codes and scales beside the largest
    IDLE,      // a block without a product that is not zero: does its exponent count?
};

// Adds the inputs to a topic, and the cases that run them through an entry point, `sums` and `sums_far`: so many
// results a row.
void add_sums(Topic& t, const char* entry, unsigned rows_a_cta, unsigned results_a_row, bool flags);
