//! AVX2 with FMA and F16C: 128 elements (64 bytes of codes, 8 blocks) a step, tails copied into a
//! zeroed step.
//!
//! The kernels are generic functions without target features, inlined into the two functions at
//! the end of this file, which have them. Their loops are plain: a closure would be a function of
//! its own, without the features, and intrinsics would not be inlined into it.

#![allow(clippy::needless_range_loop)] // they index several arrays of registers at once

use std::arch::x86_64::*;

use crate::cpu::prepare::{DENSE_STEP, Line, NVFP4_WORDS, Tile, words, words_mut};
use crate::cpu::rows::{
    Decoded, Decoding, Family, GROUP_ROWS, Kernels, MAX_VECTORS, Row, Rows, Sums, SumsOfRows,
    WHOLE_ROWS_UP_TO, by_size, by_vectors,
};
use crate::shape::BLOCK;

/// Blocks of a step; also the lanes of an accumulator.
pub(super) const STEP: usize = 8;

/// The kernels.
pub(super) const KERNELS: Kernels = Kernels {
    // The order that `even_and_odd_dwords` makes of blocks 0 1 2 3 and 4 5 6 7.
    lanes: &[0, 1, 4, 5, 2, 3, 6, 7],
    order: &ORDER,
    nvfp4: Family {
        direct: nvfp4,
        direct_tile: 256,
        direct_up_to: MAX_VECTORS,
        decoding: Some(Decoding {
            decode: nvfp4_decode,
            multiply: nvfp4_multiply,
            bytes: DECODED_NVFP4 * 4,
            tile: 64,
            rows: 16,
        }),
    },
    dense: Family {
        direct: dense,
        direct_tile: 128,
        direct_up_to: 7,
        decoding: Some(Decoding {
            decode: dense_decode,
            multiply: dense_multiply,
            bytes: BLOCK * 4,
            tile: 32,
            rows: 9,
        }),
    },
    parts: None,
};

/// Words of a decoded block: 16 weights in bytes, a scale.
const DECODED_NVFP4: usize = 5;

/// Interleaving the two bytes of a bf16 spreads a vector of codes over eight of floats: by half of
/// a 128-bit lane, by nibble and by parity of the byte.
const ORDER: [u8; 128] = {
    let mut order = [0; 128];
    let mut i = 0;
    while i < 128 {
        let (vector, upper, nibble, parity) = (i / 64, i / 32 % 2, i / 16 % 2, i / 8 % 2);
        let (lane, dword) = (i / 4 % 2, i % 4);
        let byte = lane * 16 + upper * 8 + dword * 2 + parity;
        order[i] = (vector * 64 + byte * 2 + nibble) as u8;
        i += 1;
    }
    order
};

/// 64 bytes of codes and their 8 scales of a row, where `s` is a whole step. The scales in order.
#[inline(always)]
unsafe fn step<const N: usize>(row: &Row<'_>, s: usize) -> ([__m256i; 2], __m128i) {
    // SAFETY: the lengths were asserted and hold step `s`.
    unsafe {
        let codes = row.codes.as_ptr().wrapping_add(s * 64);
        let scales = row.scales.as_ptr().wrapping_add(s * 8);
        row.ahead.fetch::<N, 1>(codes, scales);
        (load_pair(codes), _mm_loadl_epi64(scales.cast()))
    }
}

/// Loads a last step that is `left` blocks long, with zeros past these blocks.
#[inline(always)]
unsafe fn tail(row: &Row<'_>, s: usize, left: usize) -> ([__m256i; 2], __m128i) {
    let mut codes = [0; 64];
    codes[..left * 8].copy_from_slice(&row.codes[s * 64..]);
    let mut bytes = [0u8; 16];
    bytes[..left].copy_from_slice(&row.scales[s * 8..]);
    // SAFETY: 64 and 16 bytes; the caller's CPU has the features.
    unsafe {
        let scales = _mm_loadu_si128(bytes.as_ptr().cast());
        (load_pair(codes.as_ptr()), scales)
    }
}

#[inline(always)]
unsafe fn load_pair(at: *const u8) -> [__m256i; 2] {
    // SAFETY: the caller has 64 bytes there, and the features.
    unsafe {
        [
            _mm256_loadu_si256(at.cast()),
            _mm256_loadu_si256(at.add(32).cast()),
        ]
    }
}

/// Eight E4M3 scales, times 2^-8: E4M3 is f16 with a shorter exponent and mantissa, its bias 8
/// less.
#[inline(always)]
unsafe fn decode_scales(bytes: __m128i) -> __m256 {
    // SAFETY: the caller's CPU has the features.
    unsafe { _mm256_cvtph_ps(_mm_slli_epi16::<7>(_mm_cvtepu8_epi16(bytes))) }
}

/// The low and the high nibbles of a vector of codes.
#[inline(always)]
unsafe fn nibbles(codes: __m256i) -> [__m256i; 2] {
    // SAFETY: the caller's CPU has the features.
    unsafe {
        let mask = _mm256_set1_epi8(15);
        [
            _mm256_and_si256(codes, mask),
            _mm256_and_si256(_mm256_srli_epi16::<4>(codes), mask),
        ]
    }
}

/// Eight blocks of codes, as two dwords a block: the blocks' first dwords, then their second ones,
/// each in lane order.
#[inline(always)]
unsafe fn even_and_odd_dwords(codes: [__m256i; 2]) -> [__m256i; 2] {
    // SAFETY: the caller's CPU has the features.
    unsafe {
        let low = _mm256_castsi256_ps(codes[0]);
        let high = _mm256_castsi256_ps(codes[1]);
        [
            _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(low, high)),
            _mm256_castps_si256(_mm256_shuffle_ps::<0b11_01_11_01>(low, high)),
        ]
    }
}

/// Twice the weights of a step, plus 12, as the planes of a prepared vector; and the scales, times
/// 2^-8. Both in lane order.
#[inline(always)]
unsafe fn nvfp4_weights(codes: [__m256i; 2], scales: __m128i) -> ([__m256i; 4], __m256) {
    // SAFETY: the caller's CPU has the features.
    unsafe {
        let table = _mm256_broadcastsi128_si256(_mm_setr_epi8(
            12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0,
        ));
        let [even, odd] = even_and_odd_dwords(codes);
        let [even_low, even_high] = nibbles(even);
        let [odd_low, odd_high] = nibbles(odd);
        let w = [
            _mm256_shuffle_epi8(table, even_low),
            _mm256_shuffle_epi8(table, even_high),
            _mm256_shuffle_epi8(table, odd_low),
            _mm256_shuffle_epi8(table, odd_high),
        ];
        let scales = decode_scales(_mm_shufflelo_epi16::<0b11_01_10_00>(scales));
        (w, scales)
    }
}

/// Adds the blocks of a step to the lanes of `acc`. `x` is the step of the vector.
#[inline(always)]
unsafe fn nvfp4_blocks(w: [__m256i; 4], scales: __m256, x: *const u32, acc: __m256) -> __m256 {
    // SAFETY: the caller has a step there, and the features.
    unsafe {
        let x = x.cast::<__m256i>();
        // Nothing saturates: a pair is at most 576, a lane's four pairs 2304.
        let pairs = _mm256_add_epi16(
            _mm256_add_epi16(
                _mm256_maddubs_epi16(w[0], _mm256_load_si256(x)),
                _mm256_maddubs_epi16(w[1], _mm256_load_si256(x.add(1))),
            ),
            _mm256_add_epi16(
                _mm256_maddubs_epi16(w[2], _mm256_load_si256(x.add(2))),
                _mm256_maddubs_epi16(w[3], _mm256_load_si256(x.add(3))),
            ),
        );
        let blocks = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        let corrected = _mm256_add_epi32(blocks, _mm256_load_si256(x.add(5)));
        let scale = _mm256_mul_ps(scales, _mm256_load_ps(x.add(4).cast()));
        _mm256_fmadd_ps(_mm256_cvtepi32_ps(corrected), scale, acc)
    }
}

#[inline(always)]
unsafe fn nvfp4_direct<const R: usize, const N: usize>(rows: &Rows<'_>, x: &Tile<'_>) -> Sums {
    let blocks = x.blocks();
    rows.rows.iter().for_each(|row| row.assert_blocks(blocks));
    let x: [&[u32]; N] = x.vectors(blocks.next_multiple_of(STEP) * NVFP4_WORDS);
    let mut result = [[0.0; MAX_VECTORS]; GROUP_ROWS];
    // Four rows and four vectors at once would not fit the registers.
    if N <= WHOLE_ROWS_UP_TO {
        // SAFETY: the lengths were asserted; the caller's CPU has the features.
        unsafe { nvfp4_some::<R, N>(rows, 0, blocks, &x, &mut result) };
    } else {
        for first in 0..R {
            // SAFETY: as above.
            unsafe { nvfp4_some::<1, N>(rows, first, blocks, &x, &mut result) };
        }
    }
    result
}

/// `R` rows from `first` on.
#[inline(always)]
unsafe fn nvfp4_some<const R: usize, const N: usize>(
    rows: &Rows<'_>,
    first: usize,
    blocks: usize,
    x: &[&[u32]; N],
    result: &mut Sums,
) {
    let (steps, left) = (blocks / STEP, blocks % STEP);
    // SAFETY: the caller asserted the lengths and has the features; steps stay inside the lengths.
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); N]; R];
        for s in 0..steps {
            for r in 0..R {
                let row = &rows.rows[first + r];
                let (codes, scales) = step::<N>(row, s);
                let (w, scales) = nvfp4_weights(codes, scales);
                for v in 0..N {
                    let x = x[v].as_ptr().add(s * STEP * NVFP4_WORDS);
                    acc[r][v] = nvfp4_blocks(w, scales, x, acc[r][v]);
                }
            }
        }
        if left > 0 {
            for r in 0..R {
                let (codes, scales) = tail(&rows.rows[first + r], steps, left);
                let (w, scales) = nvfp4_weights(codes, scales);
                for v in 0..N {
                    let x = x[v].as_ptr().add(steps * STEP * NVFP4_WORDS);
                    acc[r][v] = nvfp4_blocks(w, scales, x, acc[r][v]);
                }
            }
        }
        for r in 0..R {
            result[first + r][..N].copy_from_slice(&sums(acc[r]));
        }
    }
}

/// Writes the weights of each step as planes, then its scales.
#[inline(always)]
unsafe fn nvfp4_decode_row(row: &Row<'_>, out: &mut [Line]) {
    let blocks = row.scales.len();
    row.assert_blocks(blocks);
    let (steps, left) = (blocks / STEP, blocks % STEP);
    let out = words_mut(out);
    assert!(out.len() >= blocks.div_ceil(STEP) * STEP * DECODED_NVFP4);
    // SAFETY: the lengths were asserted; the caller's CPU has the features.
    unsafe {
        for s in 0..blocks.div_ceil(STEP) {
            let (codes, scales) = if s < steps {
                step::<MAX_VECTORS>(row, s)
            } else {
                tail(row, s, left)
            };
            let (w, scales) = nvfp4_weights(codes, scales);
            let to = out.as_mut_ptr().add(s * STEP * DECODED_NVFP4);
            for plane in 0..4 {
                _mm256_store_si256(to.cast::<__m256i>().add(plane), w[plane]);
            }
            _mm256_store_ps(to.cast::<f32>().add(4 * STEP), scales);
        }
    }
}

#[inline(always)]
unsafe fn nvfp4_rows<const N: usize>(
    decoded: &Decoded<'_>,
    x: &Tile<'_>,
    mut sums_of_rows: SumsOfRows<'_>,
) {
    let steps = x.blocks().div_ceil(STEP);
    let x: [&[u32]; N] = x.vectors(steps * STEP * NVFP4_WORDS);
    let row_words = (steps * STEP * DECODED_NVFP4).next_multiple_of(16);
    decoded.assert_row_bytes(row_words * 4);
    let all = words(decoded.lines);
    // SAFETY: the lengths were asserted; the caller's CPU has the features.
    unsafe {
        for r in 0..decoded.rows {
            let row = all.as_ptr().add(r * row_words);
            let mut acc = [_mm256_setzero_ps(); N];
            for s in 0..steps {
                let at = row.add(s * STEP * DECODED_NVFP4).cast::<__m256i>();
                let w = [
                    _mm256_load_si256(at),
                    _mm256_load_si256(at.add(1)),
                    _mm256_load_si256(at.add(2)),
                    _mm256_load_si256(at.add(3)),
                ];
                let scales = _mm256_load_ps(at.add(4).cast());
                for v in 0..N {
                    let x = x[v].as_ptr().add(s * STEP * NVFP4_WORDS);
                    acc[v] = nvfp4_blocks(w, scales, x, acc[v]);
                }
            }
            sums_of_rows.add(r, 0, [sums(acc)]);
        }
    }
}

/// The weights of a quarter of a step: 8 of each of 2 blocks, which are lanes 0 to 3 and 4 to 7.
/// Vector `p` holds the elements that the order puts at `quarter * 32 + p * 8`.
#[inline(always)]
unsafe fn dense_weights(bytes: [[__m256i; 2]; 2], upper: bool) -> [__m256; 4] {
    // SAFETY: the caller's CPU has the features.
    unsafe {
        let upper_half = _mm256_set1_epi32(0xffff_0000_u32 as i32);
        let mut w = [_mm256_setzero_ps(); 4];
        for nibble in 0..2 {
            let [low, high] = bytes[nibble];
            let bf16 = if upper {
                _mm256_unpackhi_epi8(low, high)
            } else {
                _mm256_unpacklo_epi8(low, high)
            };
            w[nibble * 2] = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bf16));
            w[nibble * 2 + 1] = _mm256_castsi256_ps(_mm256_and_si256(bf16, upper_half));
        }
        w
    }
}

/// The two bytes of the bf16 values of 32 bytes of codes: of their low nibbles, of their high ones.
#[inline(always)]
unsafe fn dense_bytes(codes: __m256i) -> [[__m256i; 2]; 2] {
    // SAFETY: the caller's CPU has the features.
    unsafe {
        let low = _mm256_broadcastsi128_si256(_mm_setr_epi8(
            0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64,
        ));
        let high = _mm256_broadcastsi128_si256(_mm_setr_epi8(
            0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, -128, -65, -65, -65, -64, -64, -64, -64,
        ));
        let [first, second] = nibbles(codes);
        [
            [
                _mm256_shuffle_epi8(low, first),
                _mm256_shuffle_epi8(high, first),
            ],
            [
                _mm256_shuffle_epi8(low, second),
                _mm256_shuffle_epi8(high, second),
            ],
        ]
    }
}

/// The scales of the blocks in [`dense_weights`]: two blocks, two apart. `scales` are in order.
#[inline(always)]
unsafe fn pair_of_scales(scales: __m256, quarter: usize) -> __m256 {
    // SAFETY: the caller's CPU has the features.
    unsafe {
        let first = (quarter / 2 * 4 + quarter % 2) as i32;
        let pair = _mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2);
        _mm256_permutevar8x32_ps(scales, _mm256_add_epi32(_mm256_set1_epi32(first), pair))
    }
}

#[inline(always)]
unsafe fn dense_direct<const R: usize, const N: usize>(rows: &Rows<'_>, x: &Tile<'_>) -> Sums {
    let blocks = x.blocks();
    rows.rows.iter().for_each(|row| row.assert_blocks(blocks));
    let x: [&[u32]; N] = x.vectors(blocks.next_multiple_of(DENSE_STEP) * BLOCK);
    let mut result = [[0.0; MAX_VECTORS]; GROUP_ROWS];
    // Four rows and four vectors at once would not fit the registers.
    if N <= WHOLE_ROWS_UP_TO {
        // SAFETY: the lengths were asserted; the caller's CPU has the features.
        unsafe { dense_some::<R, N>(rows, 0, blocks, &x, &mut result) };
    } else {
        for first in 0..R {
            // SAFETY: as above.
            unsafe { dense_some::<1, N>(rows, first, blocks, &x, &mut result) };
        }
    }
    result
}

/// `R` rows from `first` on.
#[inline(always)]
unsafe fn dense_some<const R: usize, const N: usize>(
    rows: &Rows<'_>,
    first: usize,
    blocks: usize,
    x: &[&[u32]; N],
    result: &mut Sums,
) {
    let (steps, left) = (blocks / STEP, blocks % STEP);
    // SAFETY: the caller asserted the lengths and has the features; steps stay inside the lengths.
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); N]; R];
        for s in 0..steps {
            for r in 0..R {
                let row = &rows.rows[first + r];
                let (codes, scales) = step::<N>(row, s);
                dense_step(codes, decode_scales(scales), x, s, &mut acc[r]);
            }
        }
        if left > 0 {
            for r in 0..R {
                let (codes, scales) = tail(&rows.rows[first + r], steps, left);
                dense_step(codes, decode_scales(scales), x, steps, &mut acc[r]);
            }
        }
        for r in 0..R {
            result[first + r][..N].copy_from_slice(&sums(acc[r]));
        }
    }
}

#[inline(always)]
unsafe fn dense_step<const N: usize>(
    codes: [__m256i; 2],
    scales: __m256,
    x: &[&[u32]; N],
    s: usize,
    acc: &mut [__m256; N],
) {
    // SAFETY: the caller asserted the lengths and has the features.
    unsafe {
        // The factor that scales read as f16 lack.
        let scales = _mm256_mul_ps(scales, _mm256_set1_ps(256.0));
        for half in 0..2 {
            let bytes = dense_bytes(codes[half]);
            for upper in 0..2 {
                let quarter = half * 2 + upper;
                let scale = pair_of_scales(scales, quarter);
                let w = dense_weights(bytes, upper == 1);
                for v in 0..N {
                    let x = x[v].as_ptr().cast::<f32>().add(s * 128 + quarter * 32);
                    let mut sum = _mm256_mul_ps(w[0], _mm256_load_ps(x));
                    sum = _mm256_fmadd_ps(w[1], _mm256_load_ps(x.add(8)), sum);
                    sum = _mm256_fmadd_ps(w[2], _mm256_load_ps(x.add(16)), sum);
                    sum = _mm256_fmadd_ps(w[3], _mm256_load_ps(x.add(24)), sum);
                    acc[v] = _mm256_fmadd_ps(sum, scale, acc[v]);
                }
            }
        }
    }
}

/// Writes the weights of each step times their scales, which is exact, in the order of the vectors.
#[inline(always)]
unsafe fn dense_decode_row(row: &Row<'_>, out: &mut [Line]) {
    let blocks = row.scales.len();
    row.assert_blocks(blocks);
    let (steps, left) = (blocks / STEP, blocks % STEP);
    let out = words_mut(out);
    assert!(out.len() >= blocks.div_ceil(STEP) * STEP * BLOCK);
    // SAFETY: the lengths were asserted; the caller's CPU has the features.
    unsafe {
        for s in 0..blocks.div_ceil(STEP) {
            let (codes, scales) = if s < steps {
                step::<MAX_VECTORS>(row, s)
            } else {
                tail(row, s, left)
            };
            let scales = _mm256_mul_ps(decode_scales(scales), _mm256_set1_ps(256.0));
            for half in 0..2 {
                let bytes = dense_bytes(codes[half]);
                for upper in 0..2 {
                    let quarter = half * 2 + upper;
                    let scale = pair_of_scales(scales, quarter);
                    let w = dense_weights(bytes, upper == 1);
                    let to = out.as_mut_ptr().cast::<f32>().add(s * 128 + quarter * 32);
                    for p in 0..4 {
                        _mm256_store_ps(to.add(p * 8), _mm256_mul_ps(w[p], scale));
                    }
                }
            }
        }
    }
}

/// Rows that [`dense_rows`] multiplies at once.
const DENSE_ROWS: usize = 3;

#[inline(always)]
unsafe fn dense_rows<const N: usize>(
    decoded: &Decoded<'_>,
    x: &Tile<'_>,
    mut sums_of_rows: SumsOfRows<'_>,
) {
    let used = x.blocks().next_multiple_of(STEP) * BLOCK;
    let row_words = x.blocks().next_multiple_of(DENSE_STEP) * BLOCK;
    let x: [&[u32]; N] = x.vectors(row_words);
    decoded.assert_row_bytes(row_words * 4);
    let all = words(decoded.lines).as_ptr().cast::<f32>();
    let together = decoded.rows / DENSE_ROWS * DENSE_ROWS;
    // SAFETY: the lengths were asserted; the caller's CPU has the features.
    unsafe {
        for r in (0..together).step_by(DENSE_ROWS) {
            let rows = all.add(r * row_words);
            let sums = dense_products::<DENSE_ROWS, N>(rows, row_words, &x, used);
            sums_of_rows.add(r, 0, sums);
        }
        for r in together..decoded.rows {
            let sums = dense_products::<1, N>(all.add(r * row_words), row_words, &x, used);
            sums_of_rows.add(r, 0, sums);
        }
    }
}

/// The sums of `R` decoded rows, `pitch` apart, over `used` elements.
#[inline(always)]
unsafe fn dense_products<const R: usize, const N: usize>(
    rows: *const f32,
    pitch: usize,
    x: &[&[u32]; N],
    used: usize,
) -> [[f32; N]; R] {
    // SAFETY: the caller asserted the lengths and has the features.
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); N]; R];
        for at in (0..used).step_by(8) {
            let mut w = [_mm256_setzero_ps(); R];
            for r in 0..R {
                w[r] = _mm256_load_ps(rows.add(r * pitch + at));
            }
            for v in 0..N {
                let x = _mm256_load_ps(x[v].as_ptr().cast::<f32>().add(at));
                for r in 0..R {
                    acc[r][v] = _mm256_fmadd_ps(w[r], x, acc[r][v]);
                }
            }
        }
        let mut result = [[0.0; N]; R];
        for r in 0..R {
            result[r] = sums(acc[r]);
        }
        result
    }
}

/// The sum of the lanes of each accumulator: neighbours, neighbours of those, halves.
#[inline(always)]
unsafe fn sums<const N: usize>(acc: [__m256; N]) -> [f32; N] {
    // SAFETY: the caller's CPU has the features; 4 floats are stored.
    unsafe {
        let mut four = [_mm256_setzero_ps(); 4];
        four[..N].copy_from_slice(&acc);
        let pairs = [
            _mm256_hadd_ps(four[0], four[1]),
            _mm256_hadd_ps(four[2], four[3]),
        ];
        let halves = _mm256_hadd_ps(pairs[0], pairs[1]);
        let low = _mm256_castps256_ps128(halves);
        let high = _mm256_extractf128_ps::<1>(halves);
        let mut all = [0.0; 4];
        _mm_storeu_ps(all.as_mut_ptr(), _mm_add_ps(low, high));
        let mut sums = [0.0; N];
        sums.copy_from_slice(&all[..N]);
        sums
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn nvfp4(rows: &Rows<'_>, x: &Tile<'_>) -> Sums {
    // SAFETY: this function's features are all that is used.
    unsafe { by_size!(rows, x, nvfp4_direct,) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn nvfp4_decode(row: &Row<'_>, out: &mut [Line]) {
    // SAFETY: this function's features are all that is used.
    unsafe { nvfp4_decode_row(row, out) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn nvfp4_multiply(decoded: &Decoded<'_>, x: &Tile<'_>, sums: SumsOfRows<'_>) {
    // SAFETY: this function's features are all that is used.
    unsafe { by_vectors!(decoded, x, sums, nvfp4_rows,) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn dense(rows: &Rows<'_>, x: &Tile<'_>) -> Sums {
    // SAFETY: this function's features are all that is used.
    unsafe { by_size!(rows, x, dense_direct,) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn dense_decode(row: &Row<'_>, out: &mut [Line]) {
    // SAFETY: this function's features are all that is used.
    unsafe { dense_decode_row(row, out) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn dense_multiply(decoded: &Decoded<'_>, x: &Tile<'_>, sums: SumsOfRows<'_>) {
    // SAFETY: this function's features are all that is used.
    unsafe { by_vectors!(decoded, x, sums, dense_rows,) }
}
