//! AVX2 with FMA and F16C: 128 elements (64 bytes of codes, 8 blocks) a step, tails copied into a
//! zeroed step.
//!
//! The kernels are generic functions without target features, inlined into the two functions at
//! the end of this file, which have them. Their loops are plain: a closure would be a function of
//! its own, without the features, and intrinsics would not be inlined into it.

#![allow(clippy::needless_range_loop)] // they index several arrays of registers at once

use std::arch::x86_64::*;

use crate::cpu::prepare::{DenseVector, Nvfp4Vector};
use crate::cpu::rows::{Kernels, MAX_ROWS, MAX_VECTORS, RowScales, Rows, Sums, by_size, sum_lanes};

/// Blocks of a step; also the lanes of an accumulator.
pub(super) const STEP: usize = 8;

/// The two kernels.
pub(super) const KERNELS: Kernels = Kernels {
    order: &ORDER,
    nvfp4,
    dense,
};

/// How far ahead of their use codes are fetched, in bytes.
const AHEAD: usize = 2048;

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

/// 64 bytes of codes and their 8 scales of a row, where `s` is a whole step.
#[inline(always)]
unsafe fn step<const TILED: bool>(rows: &Rows<'_>, r: usize, s: usize) -> ([__m256i; 2], __m256) {
    // SAFETY: the lengths were asserted and hold step `s`.
    unsafe {
        let at = rows.codes[r].as_ptr().wrapping_add(s * 64);
        _mm_prefetch::<_MM_HINT_NTA>(at.wrapping_add(AHEAD).cast());
        let bytes = match &rows.scales {
            RowScales::Linear(scales) if !TILED => {
                _mm_loadl_epi64(scales[r].as_ptr().wrapping_add(s * 8).cast())
            }
            RowScales::Tiled(scales) if TILED => {
                let at = scales.as_ptr().wrapping_add(s * 2 * 512 + r * 4);
                let first = at.cast::<i32>().read_unaligned();
                let second = at.wrapping_add(512).cast::<i32>().read_unaligned();
                _mm_setr_epi32(first, second, 0, 0)
            }
            _ => unreachable!(),
        };
        (load_pair(at), decode_scales(bytes))
    }
}

/// The same of a last step that is `left` blocks long, zeros past them.
#[inline(always)]
unsafe fn tail<const TILED: bool>(
    rows: &Rows<'_>,
    r: usize,
    s: usize,
    left: usize,
) -> ([__m256i; 2], __m256) {
    let mut codes = [0; 64];
    codes[..left * 8].copy_from_slice(&rows.codes[r][s * 64..]);
    let mut bytes = [0u8; 16];
    match &rows.scales {
        RowScales::Linear(scales) => bytes[..left].copy_from_slice(&scales[r][s * 8..]),
        RowScales::Tiled(scales) => {
            for (block, byte) in bytes.iter_mut().enumerate().take(left) {
                *byte = scales[(s * 2 + block / 4) * 512 + r * 4 + block % 4];
            }
        }
    }
    // SAFETY: 64 and 16 bytes; the caller's CPU has the features.
    unsafe {
        let scales = decode_scales(_mm_loadu_si128(bytes.as_ptr().cast()));
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

#[inline(always)]
unsafe fn nvfp4_rows<const R: usize, const N: usize, const TILED: bool>(
    rows: &Rows<'_>,
    x: &[Nvfp4Vector<'_>],
) -> Sums {
    rows.assert_lengths(R);
    let (steps, left) = (rows.blocks / STEP, rows.blocks % STEP);
    let lines = rows.blocks.div_ceil(16);
    let x: &[Nvfp4Vector<'_>; N] = x.try_into().expect("N vectors");
    assert!(x.iter().all(|x| x.planes.len() == 4 * lines
        && x.scales.len() == lines
        && x.corrections.len() == lines));
    // SAFETY: the caller's CPU has the features; steps stay inside the lengths asserted.
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); N]; R];
        for s in 0..steps {
            for r in 0..R {
                let (codes, scales) = step::<TILED>(rows, r, s);
                nvfp4_step(codes, scales, x, s, &mut acc[r]);
            }
        }
        if left > 0 {
            for r in 0..R {
                let (codes, scales) = tail::<TILED>(rows, r, steps, left);
                nvfp4_step(codes, scales, x, steps, &mut acc[r]);
            }
        }
        sums(acc)
    }
}

#[inline(always)]
unsafe fn nvfp4_step<const N: usize>(
    codes: [__m256i; 2],
    scales: __m256,
    x: &[Nvfp4Vector<'_>; N],
    s: usize,
    acc: &mut [__m256; N],
) {
    // SAFETY: the caller asserted the lengths and has the features.
    unsafe {
        // Twice the value, plus 12.
        let table = _mm256_broadcastsi128_si256(_mm_setr_epi8(
            12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0,
        ));
        let mut w = [[_mm256_setzero_si256(); 2]; 2];
        for half in 0..2 {
            let [low, high] = nibbles(codes[half]);
            w[half] = [
                _mm256_shuffle_epi8(table, low),
                _mm256_shuffle_epi8(table, high),
            ];
        }
        for v in 0..N {
            let mut half_blocks = [_mm256_setzero_si256(); 2];
            for half in 0..2 {
                let even = x[v].planes.get_unchecked(s * 2).0.as_ptr().add(half * 32);
                let odd = x[v]
                    .planes
                    .get_unchecked(s * 2 + 1)
                    .0
                    .as_ptr()
                    .add(half * 32);
                // Nothing saturates: pairs are at most 576, four 1152.
                let even = _mm256_maddubs_epi16(w[half][0], _mm256_load_si256(even.cast()));
                let odd = _mm256_maddubs_epi16(w[half][1], _mm256_load_si256(odd.cast()));
                let four = _mm256_add_epi16(even, odd);
                half_blocks[half] = _mm256_madd_epi16(four, _mm256_set1_epi16(1));
            }
            // Blocks 0 1 4 5 | 2 3 6 7, then in order.
            let blocks = _mm256_hadd_epi32(half_blocks[0], half_blocks[1]);
            let blocks = _mm256_permute4x64_epi64::<0b11_01_10_00>(blocks);
            let at = s % 2 * 8;
            let corrections = x[v].corrections.get_unchecked(s / 2).0.as_ptr();
            let corrections = _mm256_load_si256(corrections.add(at).cast());
            let blocks = _mm256_cvtepi32_ps(_mm256_add_epi32(blocks, corrections));
            let x_scales = _mm256_load_ps(x[v].scales.get_unchecked(s / 2).0.as_ptr().add(at));
            acc[v] = _mm256_fmadd_ps(blocks, _mm256_mul_ps(scales, x_scales), acc[v]);
        }
    }
}

#[inline(always)]
unsafe fn dense_rows<const R: usize, const N: usize, const TILED: bool>(
    rows: &Rows<'_>,
    x: &[DenseVector<'_>],
) -> Sums {
    rows.assert_lengths(R);
    let (steps, left) = (rows.blocks / STEP, rows.blocks % STEP);
    let x: &[DenseVector<'_>; N] = x.try_into().expect("N vectors");
    assert!(x.iter().all(|x| x.len() == rows.blocks.div_ceil(16) * 16));
    // SAFETY: the caller's CPU has the features; steps stay inside the lengths asserted.
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); N]; R];
        for s in 0..steps {
            for r in 0..R {
                let (codes, scales) = step::<TILED>(rows, r, s);
                dense_step(codes, scales, x, s, &mut acc[r]);
            }
        }
        if left > 0 {
            for r in 0..R {
                let (codes, scales) = tail::<TILED>(rows, r, steps, left);
                dense_step(codes, scales, x, steps, &mut acc[r]);
            }
        }
        sums(acc)
    }
}

#[inline(always)]
unsafe fn dense_step<const N: usize>(
    codes: [__m256i; 2],
    scales: __m256,
    x: &[DenseVector<'_>; N],
    s: usize,
    acc: &mut [__m256; N],
) {
    // SAFETY: the caller asserted the lengths and has the features.
    unsafe {
        // An E2M1 value is a bf16, of which these are the two bytes.
        let low = _mm256_broadcastsi128_si256(_mm_setr_epi8(
            0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64,
        ));
        let high = _mm256_broadcastsi128_si256(_mm_setr_epi8(
            0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, -128, -65, -65, -65, -64, -64, -64, -64,
        ));
        let upper_half = _mm256_set1_epi32(0xffff_0000_u32 as i32);
        // The factor that scales read as f16 lack.
        let scales = _mm256_mul_ps(scales, _mm256_set1_ps(256.0));
        for (half, codes) in codes.into_iter().enumerate() {
            let mut bytes = [[_mm256_setzero_si256(); 2]; 2];
            for (bytes, nibbles) in bytes.iter_mut().zip(nibbles(codes)) {
                *bytes = [
                    _mm256_shuffle_epi8(low, nibbles),
                    _mm256_shuffle_epi8(high, nibbles),
                ];
            }
            for upper in 0..2 {
                // Lanes of this vector hold two blocks, two apart.
                let block = half as i32 * 4 + upper as i32;
                let pairs = _mm256_add_epi32(
                    _mm256_set1_epi32(block),
                    _mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2),
                );
                let scale = _mm256_permutevar8x32_ps(scales, pairs);
                let mut sum = [_mm256_setzero_ps(); N];
                for (nibble, [low, high]) in bytes.into_iter().enumerate() {
                    let bf16 = if upper == 0 {
                        _mm256_unpacklo_epi8(low, high)
                    } else {
                        _mm256_unpackhi_epi8(low, high)
                    };
                    let w = [
                        _mm256_slli_epi32::<16>(bf16),
                        _mm256_and_si256(bf16, upper_half),
                    ];
                    for (parity, w) in w.into_iter().enumerate() {
                        let position = half * 64 + upper * 32 + nibble * 16 + parity * 8;
                        for v in 0..N {
                            let line = &x[v].get_unchecked(s * 8 + position / 16).0;
                            let x = _mm256_load_ps(line.as_ptr().add(position % 16));
                            sum[v] = _mm256_fmadd_ps(_mm256_castsi256_ps(w), x, sum[v]);
                        }
                    }
                }
                for v in 0..N {
                    acc[v] = _mm256_fmadd_ps(sum[v], scale, acc[v]);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn sums<const R: usize, const N: usize>(acc: [[__m256; N]; R]) -> Sums {
    let mut sums = [[0.0; MAX_VECTORS]; MAX_ROWS];
    for r in 0..R {
        for v in 0..N {
            let mut lanes = [0.0; STEP];
            // SAFETY: 8 floats; the caller's CPU has the features.
            unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), acc[r][v]) };
            sums[r][v] = sum_lanes(lanes);
        }
    }
    sums
}

#[target_feature(enable = "avx2,fma,f16c")]
fn nvfp4(rows: &Rows<'_>, x: &[Nvfp4Vector<'_>]) -> Sums {
    // SAFETY: this function's features are all that is used.
    unsafe { by_size!(rows, x, nvfp4_rows,) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn dense(rows: &Rows<'_>, x: &[DenseVector<'_>]) -> Sums {
    // SAFETY: this function's features are all that is used.
    unsafe { by_size!(rows, x, dense_rows,) }
}
