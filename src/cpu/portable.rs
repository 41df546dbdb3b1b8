//! Plain Rust for any CPU, without fused multiply-add, which is a slow call where there is no
//! instruction for it.

use crate::cpu::prepare::{
    CHUNK, DENSE_STEP, Line, NVFP4_WORDS, SCALE_FACTOR, Tile, words, words_mut,
};
use crate::cpu::rows::{
    Decoded, Family, GROUP_ROWS, Kernels, MAX_VECTORS, Row, Rows, Sums, SumsOfRows, by_vectors,
    sum_lanes,
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
        decode: nvfp4_decode,
        multiply: nvfp4_multiply,
        decoded_bytes: DECODED_NVFP4 * 4,
        direct_tile: 256,
        decoded_tile: 64,
        decoded_rows: 8,
    },
    dense: Family {
        direct: dense,
        decode: dense_decode,
        multiply: dense_multiply,
        decoded_bytes: BLOCK * 4,
        direct_tile: 64,
        decoded_tile: 32,
        decoded_rows: 8,
    },
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

/// Twice the value of every code.
const DOUBLED: [i8; 16] = {
    let mut table = [0; 16];
    let mut code = 0;
    while code < 16 {
        table[code] = (e2m1::decode(code as u8) * 2.0) as i8;
        code += 1;
    }
    table
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
    let mut w = [0; 4];
    for half in 0..2 {
        let low: [u8; 4] =
            std::array::from_fn(|i| DOUBLED[usize::from(codes[half * 4 + i] & 15)] as u8);
        let high: [u8; 4] =
            std::array::from_fn(|i| DOUBLED[usize::from(codes[half * 4 + i] >> 4)] as u8);
        w[half * 2] = u32::from_le_bytes(low);
        w[half * 2 + 1] = u32::from_le_bytes(high);
    }
    w
}

/// The four words of a lane of a step.
#[inline(always)]
fn four_words(step: &[u32], lane: usize) -> [u32; 4] {
    std::array::from_fn(|plane| step[plane * LANES + lane])
}

fn nvfp4(rows: &Rows<'_>, x: &Tile<'_>) -> Sums {
    let mut sums = [[0.0; MAX_VECTORS]; GROUP_ROWS];
    let all = x.words();
    let words_each = x.blocks().next_multiple_of(LANES) * NVFP4_WORDS;
    for (row, sums) in rows.rows.iter().zip(&mut sums).take(rows.count) {
        let mut acc = [[0.0f32; LANES]; MAX_VECTORS];
        for (j, (codes, &scale)) in row.codes.chunks_exact(8).zip(row.scales).enumerate() {
            let w = decode_block(codes);
            // Kernels that read scales as f16 lack this factor; here it is taken out.
            let scale = SCALES[usize::from(scale)] / 256.0;
            let (step, lane) = (j / LANES * LANES * NVFP4_WORDS, j % LANES);
            for (x, acc) in all.chunks_exact(words_each).zip(&mut acc) {
                let step = &x[step..][..LANES * NVFP4_WORDS];
                let x_scale = f32::from_bits(step[4 * LANES + lane]);
                // Exact: 12 bits times twice 4.
                acc[lane] += products(w, four_words(step, lane)) as f32 * (scale * x_scale);
            }
        }
        *sums = acc.map(sum_lanes);
    }
    sums
}

fn nvfp4_decode(row: &Row<'_>, out: &mut [Line]) {
    let steps = words_mut(out).chunks_exact_mut(LANES * DECODED_NVFP4);
    let codes = row.codes.chunks(8 * LANES).zip(row.scales.chunks(LANES));
    for ((codes, scales), step) in codes.zip(steps) {
        step.fill(0);
        for (lane, (codes, &scale)) in codes.chunks_exact(8).zip(scales).enumerate() {
            for (plane, w) in decode_block(codes).into_iter().enumerate() {
                step[plane * LANES + lane] = w;
            }
            step[4 * LANES + lane] = (SCALES[usize::from(scale)] / 256.0).to_bits();
        }
    }
}

fn nvfp4_multiply(decoded: &Decoded<'_>, x: &Tile<'_>, sums: SumsOfRows<'_>) {
    by_vectors!(decoded, x, sums, nvfp4_rows,)
}

fn nvfp4_rows<const N: usize>(decoded: &Decoded<'_>, x: &Tile<'_>, mut sums: SumsOfRows<'_>) {
    let steps = x.blocks().div_ceil(LANES);
    let x: [&[u32]; N] = x.vectors(steps * LANES * NVFP4_WORDS);
    let row_words = (steps * LANES * DECODED_NVFP4).next_multiple_of(16);
    for (r, row) in words(decoded.lines).chunks_exact(row_words).enumerate() {
        for (v, x) in x.iter().enumerate() {
            let mut acc = [0.0f32; LANES];
            let steps = row
                .chunks_exact(LANES * DECODED_NVFP4)
                .zip(x.chunks_exact(LANES * NVFP4_WORDS));
            for (w, x) in steps {
                for (lane, acc) in acc.iter_mut().enumerate() {
                    let sum = products(four_words(w, lane), four_words(x, lane)) as f32;
                    let scale = f32::from_bits(w[4 * LANES + lane]);
                    *acc += sum * (scale * f32::from_bits(x[4 * LANES + lane]));
                }
            }
            sums.add(r, v, [[sum_lanes(acc)]]);
        }
    }
}

fn dense(rows: &Rows<'_>, x: &Tile<'_>) -> Sums {
    let mut sums = [[0.0; MAX_VECTORS]; GROUP_ROWS];
    let all = x.words();
    let words_each = x.blocks().next_multiple_of(DENSE_STEP) * BLOCK;
    for (row, sums) in rows.rows.iter().zip(&mut sums).take(rows.count) {
        let mut acc = [[0.0f32; LANES]; MAX_VECTORS];
        for (j, (codes, &scale)) in row.codes.chunks_exact(8).zip(row.scales).enumerate() {
            let w = values(codes);
            let scale = SCALES[usize::from(scale)];
            for (x, acc) in all.chunks_exact(words_each).zip(&mut acc) {
                let x = &x[j * BLOCK..][..BLOCK];
                for i in 0..LANES {
                    let low = w[i] * f32::from_bits(x[i]);
                    let high = w[i + LANES] * f32::from_bits(x[i + LANES]);
                    acc[i] += (low + high) * scale;
                }
            }
        }
        *sums = acc.map(sum_lanes);
    }
    sums
}

/// The values of a block.
#[inline(always)]
fn values(codes: &[u8]) -> [f32; BLOCK] {
    std::array::from_fn(|i| e2m1::VALUES[usize::from(codes[i / 2] >> (i % 2 * 4) & 15)])
}

fn dense_decode(row: &Row<'_>, out: &mut [Line]) {
    let blocks = row.codes.chunks_exact(8).zip(row.scales);
    for ((codes, &scale), line) in blocks.zip(out) {
        // Exact: 2 bits times 4.
        let scale = SCALES[usize::from(scale)];
        line.0 = values(codes).map(|w| (w * scale).to_bits());
    }
}

fn dense_multiply(decoded: &Decoded<'_>, x: &Tile<'_>, sums: SumsOfRows<'_>) {
    by_vectors!(decoded, x, sums, dense_rows,)
}

fn dense_rows<const N: usize>(decoded: &Decoded<'_>, x: &Tile<'_>, mut sums: SumsOfRows<'_>) {
    let padded = x.blocks().next_multiple_of(DENSE_STEP) * BLOCK;
    let used = x.blocks() * BLOCK;
    let x: [&[u32]; N] = x.vectors(padded);
    for (r, row) in words(decoded.lines).chunks_exact(padded).enumerate() {
        let mut acc = [[0.0f32; LANES]; N];
        for at in (0..used).step_by(LANES) {
            let w = &row[at..][..LANES];
            for (x, acc) in x.iter().zip(&mut acc) {
                let x = &x[at..][..LANES];
                for i in 0..LANES {
                    acc[i] += f32::from_bits(w[i]) * f32::from_bits(x[i]);
                }
            }
        }
        sums.add(r, 0, [acc.map(sum_lanes)]);
    }
}

const _: () = assert!(SCALE_FACTOR == 256.0 / 4.0 && LANES * 2 == BLOCK);
