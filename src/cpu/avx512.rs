//! AVX-512: 256 elements (128 bytes of codes, 16 blocks) a step, tails by masked loads.
//!
//! The kernels are generic functions without target features, inlined into the functions at the
//! end of this file, which have them; so one body serves with and without VNNI. Their loops are
//! plain: a closure would be a function of its own, without the features, and intrinsics would not
//! be inlined into it.

#![allow(clippy::needless_range_loop)] // they index several arrays of registers at once

use std::arch::x86_64::*;

use crate::cpu::avx512_bf16;
use crate::cpu::prepare::{DENSE_STEP, Line, NVFP4_WORDS, Tile, words, words_mut};
use crate::cpu::rows::{
    Decoded, Decoding, Family, GROUP_ROWS, Kernels, MAX_VECTORS, Row, Rows, Sums, SumsOfRows,
    WHOLE_ROWS_UP_TO, by_size, by_vectors,
};
use crate::shape::BLOCK;

/// Blocks of a step; also the lanes of an accumulator.
pub(super) const STEP: usize = 16;

/// Kernels with VNNI.
pub(super) const VNNI: Kernels = Kernels {
    lanes: &LANES,
    order: &ORDER,
    nvfp4: NVFP4_VNNI,
    dense: DENSE,
    parts: None,
};

/// Kernels with VNNI and BF16.
pub(super) const BF16: Kernels = Kernels {
    lanes: &LANES,
    order: &ORDER,
    nvfp4: NVFP4_VNNI,
    dense: DENSE,
    parts: Some([avx512_bf16::ONE, avx512_bf16::TWO]),
};

/// Kernels without VNNI.
pub(super) const BW: Kernels = Kernels {
    lanes: &LANES,
    order: &ORDER,
    nvfp4: NVFP4_BW,
    dense: DENSE,
    parts: None,
};

const NVFP4_VNNI: Family = Family {
    direct: nvfp4_vnni,
    direct_tile: 256,
    direct_up_to: MAX_VECTORS,
    decoding: Some(Decoding {
        decode: nvfp4_decode,
        multiply: nvfp4_multiply_vnni,
        bytes: DECODED_NVFP4 * 4,
        tile: 64,
        rows: 16,
    }),
};

const NVFP4_BW: Family = Family {
    direct: nvfp4_bw,
    direct_tile: 256,
    direct_up_to: MAX_VECTORS,
    decoding: Some(Decoding {
        decode: nvfp4_decode,
        multiply: nvfp4_multiply_bw,
        bytes: DECODED_NVFP4 * 4,
        tile: 64,
        rows: 16,
    }),
};

const DENSE: Family = Family {
    direct: dense,
    direct_tile: 128,
    direct_up_to: MAX_VECTORS,
    decoding: Some(Decoding {
        decode: dense_decode,
        multiply: dense_multiply,
        bytes: F32::WORDS * 4,
        tile: 48,
        rows: 8,
    }),
};

/// Words of a decoded block: 16 weights in bytes, a scale.
const DECODED_NVFP4: usize = 5;

/// The lane of each block, as `even_and_odd_dwords` orders blocks 0 to 7 and 8 to 15.
const LANES: [usize; STEP] = {
    let mut lanes = [0; STEP];
    let mut lane = 0;
    while lane < STEP {
        lanes[BLOCK_OF_LANE[lane] as usize] = lane;
        lane += 1;
    }
    lanes
};

/// The block in each lane.
const BLOCK_OF_LANE: [u8; STEP] = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15];

/// A dword of codes holds 8 successive elements; the dense kernel takes the same one of each of
/// 16 dwords at once.
const ORDER: [u8; 128] = {
    let mut order = [0; 128];
    let mut i = 0;
    while i < 128 {
        order[i] = (i % 16 * 8 + i / 16) as u8;
        i += 1;
    }
    order
};

/// `Σ` of the 16 products of `w + 12` (0..=24) and `x` (-12..=12) in each lane, plus `start`.
trait Dot {
    /// # Safety
    /// The CPU has the features of the implementation.
    unsafe fn dot(start: __m512i, w: [__m512i; 4], x: [__m512i; 4]) -> __m512i;
}

enum Vnni {}
impl Dot for Vnni {
    #[inline(always)]
    unsafe fn dot(start: __m512i, w: [__m512i; 4], x: [__m512i; 4]) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe {
            let sum = _mm512_dpbusd_epi32(start, w[0], x[0]);
            let sum = _mm512_dpbusd_epi32(sum, w[1], x[1]);
            let sum = _mm512_dpbusd_epi32(sum, w[2], x[2]);
            _mm512_dpbusd_epi32(sum, w[3], x[3])
        }
    }
}

enum Bw {}
impl Dot for Bw {
    #[inline(always)]
    unsafe fn dot(start: __m512i, w: [__m512i; 4], x: [__m512i; 4]) -> __m512i {
        // SAFETY: the caller's promise. Nothing saturates: a pair is at most 576, four 2304.
        unsafe {
            let pairs = _mm512_add_epi16(
                _mm512_add_epi16(
                    _mm512_maddubs_epi16(w[0], x[0]),
                    _mm512_maddubs_epi16(w[1], x[1]),
                ),
                _mm512_add_epi16(
                    _mm512_maddubs_epi16(w[2], x[2]),
                    _mm512_maddubs_epi16(w[3], x[3]),
                ),
            );
            _mm512_add_epi32(start, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
        }
    }
}

/// The codes of 64 bytes of step `s` of a row; in a tail of `left` blocks, zeros past them.
#[inline(always)]
pub(super) unsafe fn codes<const TAIL: bool>(
    row: &Row<'_>,
    s: usize,
    half: usize,
    left: usize,
) -> __m512i {
    // SAFETY: the row holds the step, or `left` blocks of it, which the mask keeps to.
    unsafe {
        let at = row.codes.as_ptr().wrapping_add(s * 128 + half * 64);
        if TAIL {
            let blocks = left.saturating_sub(half * 8).min(8);
            let mask = ((1u128 << (blocks * 8)) - 1) as u64;
            _mm512_maskz_loadu_epi8(mask, at.cast())
        } else {
            _mm512_loadu_si512(at.cast())
        }
    }
}

/// The scales of step `s` of a row, in order.
#[inline(always)]
pub(super) unsafe fn scale_bytes<const TAIL: bool>(
    row: &Row<'_>,
    s: usize,
    left: usize,
) -> __m128i {
    // SAFETY: the row holds the step, or `left` blocks of it, which the mask keeps to.
    unsafe {
        let at = row.scales.as_ptr().wrapping_add(s * STEP);
        if TAIL {
            _mm_maskz_loadu_epi8((1u16 << left) - 1, at.cast())
        } else {
            _mm_loadu_si128(at.cast())
        }
    }
}

/// Fetches what is ahead of step `s` into the caches, for a kernel of `N` vectors.
#[inline(always)]
pub(super) fn fetch<const N: usize>(row: &Row<'_>, s: usize) {
    let codes = row.codes.as_ptr().wrapping_add(s * 128);
    let scales = row.scales.as_ptr().wrapping_add(s * STEP);
    row.ahead.fetch::<N, 2>(codes, scales);
}

/// Sixteen E4M3 scales, times 2^-8: E4M3 is f16 with a shorter exponent and mantissa, its bias 8
/// less.
#[inline(always)]
pub(super) unsafe fn decode_scales(bytes: __m128i) -> __m512 {
    // SAFETY: the caller's CPU has the features.
    unsafe { _mm512_cvtph_ps(_mm256_slli_epi16::<7>(_mm256_cvtepu8_epi16(bytes))) }
}

/// Sixteen blocks of codes, as two dwords a block: the blocks' first dwords, then their second
/// ones, each in lane order.
#[inline(always)]
unsafe fn even_and_odd_dwords(low: __m512i, high: __m512i) -> [__m512i; 2] {
    // SAFETY: the caller's CPU has the features.
    unsafe {
        let (low, high) = (_mm512_castsi512_ps(low), _mm512_castsi512_ps(high));
        [
            _mm512_castps_si512(_mm512_shuffle_ps::<0b10_00_10_00>(low, high)),
            _mm512_castps_si512(_mm512_shuffle_ps::<0b11_01_11_01>(low, high)),
        ]
    }
}

/// Twice the weights of a step, plus 12, as the planes of a prepared vector; and the scales, times
/// 2^-8. Both in lane order.
#[inline(always)]
unsafe fn nvfp4_weights<const TAIL: bool>(
    row: &Row<'_>,
    s: usize,
    left: usize,
) -> ([__m512i; 4], __m512) {
    // SAFETY: the caller asserted the lengths and has the features.
    unsafe {
        let table = _mm512_broadcast_i32x4(_mm_setr_epi8(
            12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0,
        ));
        let nibble = _mm512_set1_epi8(15);
        let low = codes::<TAIL>(row, s, 0, left);
        let high = codes::<TAIL>(row, s, 1, left);
        let mut w = [_mm512_setzero_si512(); 4];
        for (dword, codes) in even_and_odd_dwords(low, high).into_iter().enumerate() {
            let high = _mm512_srli_epi16::<4>(codes);
            w[dword * 2] = _mm512_shuffle_epi8(table, _mm512_and_si512(codes, nibble));
            w[dword * 2 + 1] = _mm512_shuffle_epi8(table, _mm512_and_si512(high, nibble));
        }
        let in_order = scale_bytes::<TAIL>(row, s, left);
        let lanes = _mm_loadu_si128(BLOCK_OF_LANE.as_ptr().cast());
        (w, decode_scales(_mm_shuffle_epi8(in_order, lanes)))
    }
}

/// One step of an NVFP4 vector.
#[derive(Clone, Copy)]
struct Step {
    planes: [__m512i; 4],
    scales: __m512,
    corrections: __m512i,
}

/// Loads a step.
#[inline(always)]
unsafe fn load_step(at: *const u32) -> Step {
    // SAFETY: the caller has a step there, and the features.
    unsafe {
        let line = at.cast::<__m512i>();
        Step {
            planes: [
                _mm512_load_si512(line),
                _mm512_load_si512(line.add(1)),
                _mm512_load_si512(line.add(2)),
                _mm512_load_si512(line.add(3)),
            ],
            scales: _mm512_load_ps(line.add(4).cast()),
            corrections: _mm512_load_si512(line.add(5)),
        }
    }
}

/// Adds the blocks of a step to the lanes of `acc`.
#[inline(always)]
unsafe fn nvfp4_blocks<D: Dot>(w: [__m512i; 4], scales: __m512, x: Step, acc: __m512) -> __m512 {
    // SAFETY: the caller's CPU has the features.
    unsafe {
        let blocks = _mm512_cvtepi32_ps(D::dot(x.corrections, w, x.planes));
        _mm512_fmadd_ps(blocks, _mm512_mul_ps(scales, x.scales), acc)
    }
}

#[inline(always)]
unsafe fn nvfp4_direct<D: Dot, const R: usize, const N: usize>(
    rows: &Rows<'_>,
    x: &Tile<'_>,
) -> Sums {
    let blocks = x.blocks();
    rows.rows.iter().for_each(|row| row.assert_blocks(blocks));
    let x: [&[u32]; N] = x.vectors(blocks.next_multiple_of(STEP) * NVFP4_WORDS);
    let mut result = [[0.0; MAX_VECTORS]; GROUP_ROWS];
    // Four rows and four vectors at once would not fit the registers.
    if N <= WHOLE_ROWS_UP_TO || R == 1 {
        // SAFETY: the lengths were asserted; the caller's CPU has the features.
        unsafe { nvfp4_some::<D, R, N>(rows, 0, blocks, &x, &mut result) };
    } else {
        for first in (0..R).step_by(2) {
            // SAFETY: as above.
            unsafe { nvfp4_some::<D, 2, N>(rows, first, blocks, &x, &mut result) };
        }
    }
    result
}

/// `R` rows from `first` on.
#[inline(always)]
unsafe fn nvfp4_some<D: Dot, const R: usize, const N: usize>(
    rows: &Rows<'_>,
    first: usize,
    blocks: usize,
    x: &[&[u32]; N],
    result: &mut Sums,
) {
    let (steps, left) = (blocks / STEP, blocks % STEP);
    // SAFETY: the caller asserted the lengths and has the features; steps stay inside the lengths.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); N]; R];
        for s in 0..steps {
            nvfp4_step::<D, R, N, false>(rows, first, x, s, STEP, &mut acc);
        }
        if left > 0 {
            nvfp4_step::<D, R, N, true>(rows, first, x, steps, left, &mut acc);
        }
        for (result, sums) in result[first..].iter_mut().zip(sums(acc)) {
            result[..N].copy_from_slice(&sums);
        }
    }
}

#[inline(always)]
unsafe fn nvfp4_step<D: Dot, const R: usize, const N: usize, const TAIL: bool>(
    rows: &Rows<'_>,
    first: usize,
    x: &[&[u32]; N],
    s: usize,
    left: usize,
    acc: &mut [[__m512; N]; R],
) {
    // SAFETY: the caller asserted the lengths and has the features.
    unsafe {
        // The registers hold the weights of two rows only.
        let together = if R == 1 { 1 } else { 2 };
        for two in (0..R).step_by(together) {
            let mut w = [[_mm512_setzero_si512(); 4]; 2];
            let mut scales = [_mm512_setzero_ps(); 2];
            for r in 0..together {
                let row = &rows.rows[first + two + r];
                fetch::<N>(row, s);
                (w[r], scales[r]) = nvfp4_weights::<TAIL>(row, s, left);
            }
            for v in 0..N {
                let x = load_step(x[v].as_ptr().add(s * STEP * NVFP4_WORDS));
                for r in 0..together {
                    let acc = &mut acc[two + r][v];
                    *acc = nvfp4_blocks::<D>(w[r], scales[r], x, *acc);
                }
            }
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
            fetch::<MAX_VECTORS>(row, s);
            let (w, scales) = if s < steps {
                nvfp4_weights::<false>(row, s, STEP)
            } else {
                nvfp4_weights::<true>(row, s, left)
            };
            let to = out.as_mut_ptr().add(s * STEP * DECODED_NVFP4);
            for plane in 0..4 {
                _mm512_store_si512(to.cast::<__m512i>().add(plane), w[plane]);
            }
            _mm512_store_ps(to.cast::<f32>().add(4 * STEP), scales);
        }
    }
}

#[inline(always)]
unsafe fn nvfp4_rows<D: Dot, const N: usize>(
    decoded: &Decoded<'_>,
    x: &Tile<'_>,
    mut sums_of_rows: SumsOfRows<'_>,
) {
    let steps = x.blocks().div_ceil(STEP);
    let x: [&[u32]; N] = x.vectors(steps * STEP * NVFP4_WORDS);
    let row_words = steps * STEP * DECODED_NVFP4;
    decoded.assert_row_bytes(row_words * 4);
    let all = words(decoded.lines).as_ptr();
    let together = decoded.rows / 2 * 2;
    // SAFETY: the lengths were asserted; the caller's CPU has the features.
    unsafe {
        for r in (0..together).step_by(2) {
            let sums = nvfp4_products::<D, 2, N>(all.add(r * row_words), &x, steps);
            sums_of_rows.add(r, 0, sums);
        }
        for r in together..decoded.rows {
            let sums = nvfp4_products::<D, 1, N>(all.add(r * row_words), &x, steps);
            sums_of_rows.add(r, 0, sums);
        }
    }
}

/// The sums of `R` decoded rows, which lie one after the other.
#[inline(always)]
unsafe fn nvfp4_products<D: Dot, const R: usize, const N: usize>(
    rows: *const u32,
    x: &[&[u32]; N],
    steps: usize,
) -> [[f32; N]; R] {
    // SAFETY: the caller asserted the lengths and has the features.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); N]; R];
        for s in 0..steps {
            let mut w = [[_mm512_setzero_si512(); 4]; R];
            let mut scales = [_mm512_setzero_ps(); R];
            for r in 0..R {
                let at = rows.add((r * steps + s) * STEP * DECODED_NVFP4);
                for plane in 0..4 {
                    w[r][plane] = _mm512_load_si512(at.cast::<__m512i>().add(plane));
                }
                scales[r] = _mm512_load_ps(at.cast::<f32>().add(4 * STEP));
            }
            for v in 0..N {
                let x = load_step(x[v].as_ptr().add(s * STEP * NVFP4_WORDS));
                for r in 0..R {
                    acc[r][v] = nvfp4_blocks::<D>(w[r], scales[r], x, acc[r][v]);
                }
            }
        }
        sums(acc)
    }
}

/// The scales of half a step, each in the two lanes that hold its block; with the factor that
/// scales read as f16 lack. Not at the end of the row: a sum of tiny vectors would lose bits to
/// underflow on the way there.
#[inline(always)]
pub(super) unsafe fn pairs_of_scales(scales: __m512, half: usize) -> __m512 {
    // SAFETY: the caller's CPU has the features.
    unsafe {
        let first = _mm512_set1_epi32(half as i32 * 8);
        let pairs = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
        let scales = _mm512_permutexvar_ps(_mm512_add_epi32(first, pairs), scales);
        _mm512_mul_ps(scales, _mm512_set1_ps(256.0))
    }
}

/// Code `p` of each dword as f32.
#[inline(always)]
pub(super) unsafe fn dense_weights(codes: __m512i, p: usize) -> __m512 {
    // SAFETY: the caller's CPU has the features.
    unsafe {
        let table = _mm512_setr_ps(
            0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
        );
        // The lookup takes the low four bits of each dword.
        let index = _mm512_srlv_epi32(codes, _mm512_set1_epi32(4 * p as i32));
        _mm512_permutexvar_ps(index, table)
    }
}

#[inline(always)]
unsafe fn dense_direct<const R: usize, const N: usize>(rows: &Rows<'_>, x: &Tile<'_>) -> Sums {
    let blocks = x.blocks();
    rows.rows.iter().for_each(|row| row.assert_blocks(blocks));
    let x: [&[u32]; N] = x.vectors(blocks.next_multiple_of(DENSE_STEP) * BLOCK);
    let mut result = [[0.0; MAX_VECTORS]; GROUP_ROWS];
    // Four rows and four vectors at once would not fit the registers.
    if N <= WHOLE_ROWS_UP_TO || R == 1 {
        // SAFETY: the lengths were asserted; the caller's CPU has the features.
        unsafe { dense_some::<R, N>(rows, 0, blocks, &x, &mut result) };
    } else {
        for first in (0..R).step_by(2) {
            // SAFETY: as above.
            unsafe { dense_some::<2, N>(rows, first, blocks, &x, &mut result) };
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
        let mut acc = [[_mm512_setzero_ps(); N]; R];
        for s in 0..steps {
            dense_step::<R, N, false>(rows, first, x, s, STEP, &mut acc);
        }
        if left > 0 {
            dense_step::<R, N, true>(rows, first, x, steps, left, &mut acc);
        }
        for (result, sums) in result[first..].iter_mut().zip(sums(acc)) {
            result[..N].copy_from_slice(&sums);
        }
    }
}

#[inline(always)]
unsafe fn dense_step<const R: usize, const N: usize, const TAIL: bool>(
    rows: &Rows<'_>,
    first: usize,
    x: &[&[u32]; N],
    s: usize,
    left: usize,
    acc: &mut [[__m512; N]; R],
) {
    // SAFETY: the caller asserted the lengths and has the features.
    unsafe {
        let mut scales = [_mm512_setzero_ps(); R];
        for r in 0..R {
            let row = &rows.rows[first + r];
            fetch::<N>(row, s);
            scales[r] = decode_scales(scale_bytes::<TAIL>(row, s, left));
        }
        for half in 0..2 {
            if N <= WHOLE_ROWS_UP_TO {
                for r in 0..R {
                    let codes = codes::<TAIL>(&rows.rows[first + r], s, half, left);
                    let scale = pairs_of_scales(scales[r], half);
                    dense_half::<1, N>([codes], [scale], x, s * 2 + half, &mut acc[r..][..1]);
                }
            } else {
                let mut codes_of_rows = [_mm512_setzero_si512(); R];
                let mut scale = [_mm512_setzero_ps(); R];
                for r in 0..R {
                    codes_of_rows[r] = codes::<TAIL>(&rows.rows[first + r], s, half, left);
                    scale[r] = pairs_of_scales(scales[r], half);
                }
                dense_half::<R, N>(codes_of_rows, scale, x, s * 2 + half, acc);
            }
        }
    }
}

/// Adds half number `half` of a step to the lanes of `acc`.
#[inline(always)]
unsafe fn dense_half<const R: usize, const N: usize>(
    codes: [__m512i; R],
    scale: [__m512; R],
    x: &[&[u32]; N],
    half: usize,
    acc: &mut [[__m512; N]],
) {
    // SAFETY: the caller asserted the lengths and has the features.
    unsafe {
        let mut sum = [[_mm512_setzero_ps(); N]; R];
        for p in 0..8 {
            let mut w = [_mm512_setzero_ps(); R];
            for r in 0..R {
                w[r] = dense_weights(codes[r], p);
            }
            for v in 0..N {
                let x = x[v].as_ptr().cast::<f32>().add((half * 8 + p) * 16);
                let x = _mm512_load_ps(x);
                for r in 0..R {
                    sum[r][v] = _mm512_fmadd_ps(w[r], x, sum[r][v]);
                }
            }
        }
        for r in 0..R {
            for v in 0..N {
                acc[r][v] = _mm512_fmadd_ps(sum[r][v], scale[r], acc[r][v]);
            }
        }
    }
}

/// Writes the weights of each step times their scales, which is exact, in the order of the vectors.
#[inline(always)]
unsafe fn dense_decode_row(row: &Row<'_>, out: &mut [Line]) {
    let blocks = row.scales.len();
    row.assert_blocks(blocks);
    let steps = blocks / STEP;
    let out = words_mut(out);
    assert!(out.len() >= blocks.div_ceil(STEP) * STEP * BLOCK);
    // SAFETY: the lengths were asserted; the caller's CPU has the features.
    unsafe {
        for s in 0..steps {
            dense_decode_step::<false>(row, s, STEP, out.as_mut_ptr());
        }
        if !blocks.is_multiple_of(STEP) {
            dense_decode_step::<true>(row, steps, blocks % STEP, out.as_mut_ptr());
        }
    }
}

#[inline(always)]
unsafe fn dense_decode_step<const TAIL: bool>(row: &Row<'_>, s: usize, left: usize, out: *mut u32) {
    // SAFETY: the caller asserted the lengths and has the features.
    unsafe {
        fetch::<MAX_VECTORS>(row, s);
        let scales = decode_scales(scale_bytes::<TAIL>(row, s, left));
        for half in 0..2 {
            let codes = codes::<TAIL>(row, s, half, left);
            let scale = pairs_of_scales(scales, half);
            for p in 0..8 {
                let w = _mm512_mul_ps(dense_weights(codes, p), scale);
                let to = out.add(((s * 2 + half) * 8 + p) * 16);
                _mm512_store_ps(to.cast(), w);
            }
        }
    }
}

/// Products of decoded weights and vectors, both in lines of 16 words.
pub(super) trait Products {
    /// Words of a block.
    const WORDS: usize;

    /// Adds the products of two lines to the lanes of `acc`.
    ///
    /// # Safety
    /// The CPU has the features of the implementation.
    unsafe fn add(acc: __m512, w: __m512, x: __m512) -> __m512;
}

/// A word is an f32 value.
enum F32 {}
impl Products for F32 {
    const WORDS: usize = BLOCK;

    #[inline(always)]
    unsafe fn add(acc: __m512, w: __m512, x: __m512) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_fmadd_ps(w, x, acc) }
    }
}

/// Rows that [`decoded_rows`] multiplies at once.
const ROWS_AT_ONCE: usize = 4;

/// Adds the sums of decoded rows, whose weights have been multiplied by their scales.
#[inline(always)]
pub(super) unsafe fn decoded_rows<P: Products, const N: usize>(
    decoded: &Decoded<'_>,
    x: &Tile<'_>,
    mut sums_of_rows: SumsOfRows<'_>,
) {
    let used = x.blocks().next_multiple_of(STEP) * P::WORDS;
    let x: [&[u32]; N] = x.vectors(used);
    decoded.assert_row_bytes(used * 4);
    let all = words(decoded.lines).as_ptr();
    let together = decoded.rows / ROWS_AT_ONCE * ROWS_AT_ONCE;
    // SAFETY: the lengths were asserted; the caller's CPU has the features.
    unsafe {
        for r in (0..together).step_by(ROWS_AT_ONCE) {
            let sums = products::<P, ROWS_AT_ONCE, N>(all.add(r * used), &x, used);
            sums_of_rows.add(r, 0, sums);
        }
        for r in together..decoded.rows {
            let sums = products::<P, 1, N>(all.add(r * used), &x, used);
            sums_of_rows.add(r, 0, sums);
        }
    }
}

/// The sums of `R` decoded rows of `used` words, which lie one after the other.
#[inline(always)]
unsafe fn products<P: Products, const R: usize, const N: usize>(
    rows: *const u32,
    x: &[&[u32]; N],
    used: usize,
) -> [[f32; N]; R] {
    // SAFETY: the caller asserted the lengths and has the features. Decoded rows and tiles of vectors are whole cache
    // lines, of which each load takes one: the address is a multiple of 64.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); N]; R];
        for at in (0..used).step_by(16) {
            let mut w = [_mm512_setzero_ps(); R];
            for r in 0..R {
                w[r] = _mm512_load_ps(rows.add(r * used + at).cast());
            }
            for v in 0..N {
                let x = _mm512_load_ps(x[v].as_ptr().add(at).cast());
                for r in 0..R {
                    acc[r][v] = P::add(acc[r][v], w[r], x);
                }
            }
        }
        sums(acc)
    }
}

/// The sum of the lanes of each accumulator: halves, neighbours, neighbours of those, halves.
#[inline(always)]
pub(super) unsafe fn sums<const R: usize, const N: usize>(acc: [[__m512; N]; R]) -> [[f32; N]; R] {
    let mut sums = [[0.0; N]; R];
    // SAFETY: the caller's CPU has the features; 8 floats are stored.
    unsafe {
        for first in (0..R).step_by(2) {
            // Two rows and four vectors at once: `pairs[v]` has a half sum of each row.
            let mut pairs = [_mm512_setzero_ps(); 4];
            for v in 0..N {
                let one = acc[first][v];
                let other = acc[(first + 1).min(R - 1)][v];
                let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(one, other);
                let high = _mm512_shuffle_f32x4::<0b11_10_11_10>(one, other);
                pairs[v] = _mm512_add_ps(low, high);
            }
            let [a, b, c, d] = pairs;
            let quarters = add_neighbours(add_neighbours(a, b), add_neighbours(c, d));
            let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(quarters, quarters);
            let high = _mm512_shuffle_f32x4::<0b11_01_11_01>(quarters, quarters);
            let mut all = [[0.0; 4]; 2];
            let sum = _mm512_castps512_ps256(_mm512_add_ps(low, high));
            _mm256_storeu_ps(all.as_mut_ptr().cast(), sum);
            for r in first..R.min(first + 2) {
                sums[r].copy_from_slice(&all[r - first][..N]);
            }
        }
    }
    sums
}

/// The sums of neighbouring lanes of each 128 bits: two of `a`, two of `b`.
#[inline(always)]
unsafe fn add_neighbours(a: __m512, b: __m512) -> __m512 {
    // SAFETY: the caller's CPU has the features.
    unsafe {
        _mm512_add_ps(
            _mm512_shuffle_ps::<0b10_00_10_00>(a, b),
            _mm512_shuffle_ps::<0b11_01_11_01>(a, b),
        )
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn nvfp4_vnni(rows: &Rows<'_>, x: &Tile<'_>) -> Sums {
    // SAFETY: this function's features are all that is used.
    unsafe { by_size!(rows, x, nvfp4_direct, Vnni,) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn nvfp4_multiply_vnni(decoded: &Decoded<'_>, x: &Tile<'_>, sums: SumsOfRows<'_>) {
    // SAFETY: this function's features are all that is used.
    unsafe { by_vectors!(decoded, x, sums, nvfp4_rows, Vnni,) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn nvfp4_bw(rows: &Rows<'_>, x: &Tile<'_>) -> Sums {
    // SAFETY: this function's features are all that is used.
    unsafe { by_size!(rows, x, nvfp4_direct, Bw,) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn nvfp4_multiply_bw(decoded: &Decoded<'_>, x: &Tile<'_>, sums: SumsOfRows<'_>) {
    // SAFETY: this function's features are all that is used.
    unsafe { by_vectors!(decoded, x, sums, nvfp4_rows, Bw,) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn nvfp4_decode(row: &Row<'_>, out: &mut [Line]) {
    // SAFETY: this function's features are all that is used.
    unsafe { nvfp4_decode_row(row, out) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn dense(rows: &Rows<'_>, x: &Tile<'_>) -> Sums {
    // SAFETY: this function's features are all that is used.
    unsafe { by_size!(rows, x, dense_direct,) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn dense_decode(row: &Row<'_>, out: &mut [Line]) {
    // SAFETY: this function's features are all that is used.
    unsafe { dense_decode_row(row, out) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn dense_multiply(decoded: &Decoded<'_>, x: &Tile<'_>, sums: SumsOfRows<'_>) {
    // SAFETY: this function's features are all that is used.
    unsafe { by_vectors!(decoded, x, sums, decoded_rows, F32,) }
}
