//! Plain Rust for any CPU, without fused multiply-add, which is a slow call where there is no
//! instruction for it.
//!
//! Its loops are its own, not those of `loops`: they have the shapes of which the compiler makes vector code
//! (docs/notes/cpu.md, "One author for each loop").

use crate::cpu::prepare::{
    CHUNK, DENSE_STEP, DOUBLED, Line, NVFP4_WORDS, SCALE_FACTOR, Tile, words, words_mut,
};
use crate::cpu::rows::{
    Decoded, Decoding, Family, Kernels, MAX_VECTORS, Row, Rows, Sums, SumsOfRows,
};
use crate::format::{e2m1, e4m3};
use crate::shape::BLOCK;

/// Lanes of an accumulator; with NVFP4 vectors, also the blocks of a step.
pub(super) const LANES: usize = 8;

/// The kernels.
pub(super) const KERNELS: Kernels = Kernels {
    lanes: &[0, 1, 2, 3, 4, 5, 6, 7],
    order: &ORDER,
    nvfp4: Family {
        direct: nvfp4,
        run: None,
        direct_tile: 256,
        direct_up_to: MAX_VECTORS,
        decoding: Some(Decoding {
            decode: nvfp4_decode,
            multiply: nvfp4_multiply,
            bytes: DECODED_NVFP4 * 4,
            tile: 64,
            rows: 8,
        }),
        cut: None,
    },
    dense: Family {
        direct: dense,
        run: None,
        direct_tile: 64,
        direct_up_to: MAX_VECTORS,
        // Was slower: without fused multiply-add, decoding is a small part of the work.
        decoding: None,
        cut: None,
    },
    parts: None,
};

/// Words of a decoded block: 16 values as signed bytes, a scale.
const DECODED_NVFP4: usize = 5;

const ORDER: [u8; CHUNK] = {
    let mut order = [0; CHUNK];
    let mut i = 0;
    while i < CHUNK {
        order[i] = i as u8;
        i += 1;
    }
    order
};

/// Every scale.
const SCALES: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = e4m3::decode(code as u8);
        code += 1;
    }
    table
};

/// The 16 products of a block; a word holds four values of the weights, or of the vector.
#[inline(always)]
fn products(w: [u32; 4], x: [u32; 4]) -> i32 {
    let mut sum = 0;
    for (w, x) in w.into_iter().zip(x) {
        for (w, x) in w.to_le_bytes().into_iter().zip(x.to_le_bytes()) {
            sum += i32::from(w as i8) * i32::from(x as i8);
        }
    }
    sum
}

/// The doubled values of a block's codes, arranged as prepared vectors are.
#[inline(always)]
fn decode_block(codes: &[u8]) -> [u32; 4] {
    let mut planes = [[0u8; 4]; 4];
    for (i, &byte) in codes.iter().enumerate() {
        let [even, odd] = DOUBLED[usize::from(byte)];
        planes[i / 4 * 2][i % 4] = even as u8;
        planes[i / 4 * 2 + 1][i % 4] = odd as u8;
    }
    planes.map(u32::from_le_bytes)
}

/// The four words of a lane of a step.
#[inline(always)]
fn four_words(step: &[u32], lane: usize) -> [u32; 4] {
    std::array::from_fn(|plane| step[plane * LANES + lane])
}

/// The sum of all lanes: halves added until one is left, so log2(L) roundings.
#[inline(always)]
fn sum_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// The words of each vector; past the last vector, none.
fn vectors<'a>(x: &Tile<'a>, words_each: usize) -> [&'a [u32]; MAX_VECTORS] {
    let mut vectors: [&[u32]; MAX_VECTORS] = [&[]; MAX_VECTORS];
    for (vector, words) in vectors.iter_mut().zip(x.words().chunks_exact(words_each)) {
        *vector = words;
    }
    vectors
}

fn nvfp4(rows: &Rows<'_>, x: &Tile<'_>, sums: &mut Sums) {
    let cut = x.cut().min(x.blocks());
    let words_each = x.blocks().next_multiple_of(LANES) * NVFP4_WORDS;
    let all = vectors(x, words_each).map(|x| x.as_chunks::<{ LANES * NVFP4_WORDS }>().0);
    let x = &all[..x.count()];
    for (row, sums) in rows.rows.iter().zip(sums).take(rows.count) {
        let cuts = row.codes.chunks(8 * cut).zip(row.scales.chunks(cut));
        for (number, (codes, scales)) in cuts.enumerate() {
            let mut acc = [[0.0f32; LANES]; MAX_VECTORS];
            let first = number * cut / LANES;
            let steps = codes.chunks(8 * LANES).zip(scales.chunks(LANES));
            for (s, (codes, scales)) in steps.enumerate() {
                let w = decode_step(codes, scales);
                for (x, acc) in x.iter().zip(&mut acc) {
                    add_step(&w, &x[first + s], acc);
                }
            }
            add_lanes(sums, acc, x.len());
        }
    }
}

/// Adds the lanes of so many vectors' sums to the sums.
#[inline(always)]
fn add_lanes(sums: &mut [f32; MAX_VECTORS], acc: [[f32; LANES]; MAX_VECTORS], count: usize) {
    for (sum, acc) in sums.iter_mut().zip(acc).take(count) {
        *sum += sum_lanes(acc);
    }
}

/// Up to eight blocks: planes as in prepared vectors, then scales.
#[inline(always)]
fn decode_step(codes: &[u8], scales: &[u8]) -> [u32; LANES * DECODED_NVFP4] {
    let mut step = [0; LANES * DECODED_NVFP4];
    for (lane, (codes, &scale)) in codes.chunks_exact(8).zip(scales).enumerate() {
        for (plane, w) in decode_block(codes).into_iter().enumerate() {
            step[plane * LANES + lane] = w;
        }
        // Kernels that read scales as f16 lack this factor; here it is taken out.
        step[4 * LANES + lane] = (SCALES[usize::from(scale)] / 256.0).to_bits();
    }
    step
}

/// Adds the blocks of a step to the lanes of `acc`.
#[inline(always)]
fn add_step(
    w: &[u32; LANES * DECODED_NVFP4],
    x: &[u32; LANES * NVFP4_WORDS],
    acc: &mut [f32; LANES],
) {
    for (lane, acc) in acc.iter_mut().enumerate() {
        let sum = products(four_words(w, lane), four_words(x, lane)) as f32;
        let scale = f32::from_bits(w[4 * LANES + lane]);
        // The product of scales is exact: twice 4 bits, or 4 and 16. So is that with a sum of NVFP4's products.
        *acc += sum * (scale * f32::from_bits(x[4 * LANES + lane]));
    }
}

fn nvfp4_decode(row: &Row<'_>, out: &mut [Line]) {
    let steps = words_mut(out)
        .as_chunks_mut::<{ LANES * DECODED_NVFP4 }>()
        .0;
    let codes = row.codes.chunks(8 * LANES).zip(row.scales.chunks(LANES));
    for ((codes, scales), step) in codes.zip(steps) {
        *step = decode_step(codes, scales);
    }
}

fn nvfp4_multiply(decoded: &Decoded<'_>, x: &Tile<'_>, sums: SumsOfRows<'_>) {
    let steps = x.blocks().div_ceil(LANES);
    let all = vectors(x, steps * LANES * NVFP4_WORDS);
    let x = &all[..x.count()];
    let row_words = (steps * LANES * DECODED_NVFP4).next_multiple_of(16);
    for (r, row) in words(decoded.lines).chunks_exact(row_words).enumerate() {
        for (v, x) in x.iter().enumerate() {
            let mut acc = [0.0f32; LANES];
            let w = row.as_chunks::<{ LANES * DECODED_NVFP4 }>().0;
            let x = x.as_chunks::<{ LANES * NVFP4_WORDS }>().0;
            for (w, x) in w.iter().zip(x) {
                add_step(w, x, &mut acc);
            }
            sums.sums[r * sums.pitch + v] += sum_lanes(acc);
        }
    }
}

fn dense(rows: &Rows<'_>, x: &Tile<'_>, sums: &mut Sums) {
    let cut = x.cut().min(x.blocks());
    let words_each = x.blocks().next_multiple_of(DENSE_STEP) * BLOCK;
    let all = vectors(x, words_each).map(|x| x.as_chunks::<BLOCK>().0);
    let x = &all[..x.count()];
    for (row, sums) in rows.rows.iter().zip(sums).take(rows.count) {
        let cuts = row.codes.chunks(8 * cut).zip(row.scales.chunks(cut));
        for (number, (codes, scales)) in cuts.enumerate() {
            let mut acc = [[0.0f32; LANES]; MAX_VECTORS];
            for (j, (codes, &scale)) in codes.chunks_exact(8).zip(scales).enumerate() {
                let w = values(codes);
                let scale = SCALES[usize::from(scale)];
                for (x, acc) in x.iter().zip(&mut acc) {
                    let x = x[number * cut + j].map(f32::from_bits);
                    for i in 0..LANES {
                        acc[i] += (w[i] * x[i] + w[i + LANES] * x[i + LANES]) * scale;
                    }
                }
            }
            add_lanes(sums, acc, x.len());
        }
    }
}

/// The values of a block.
#[inline(always)]
fn values(codes: &[u8]) -> [f32; BLOCK] {
    std::array::from_fn(|i| e2m1::VALUES[usize::from(codes[i / 2] >> (i % 2 * 4) & 15)])
}

const _: () = assert!(SCALE_FACTOR == 256.0 / 4.0 && LANES * 2 == BLOCK);
