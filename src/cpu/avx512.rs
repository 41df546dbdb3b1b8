//! AVX-512: 256 elements (128 bytes of codes, 16 blocks) a step, tails by masked loads.
//!
//! The kernels are generic functions without target features, inlined into the functions at the
//! end of this file, which have them; so one body serves with and without VNNI. Their loops are
//! plain: a closure would be a function of its own, without the features, and intrinsics would not
//! be inlined into it.

#![allow(clippy::needless_range_loop)] // they index several arrays of registers at once

use std::arch::x86_64::*;

use crate::cpu::prepare::{DenseVector, Nvfp4Vector};
use crate::cpu::rows::{Kernels, MAX_ROWS, MAX_VECTORS, RowScales, Rows, Sums, by_size, sum_lanes};

/// Blocks of a step; also the lanes of an accumulator.
pub(super) const STEP: usize = 16;

/// With VNNI.
pub(super) const VNNI: Kernels = Kernels {
    order: &ORDER,
    nvfp4: nvfp4_vnni,
    dense,
};

/// Without VNNI.
pub(super) const BW: Kernels = Kernels {
    order: &ORDER,
    nvfp4: nvfp4_bw,
    dense,
};

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

/// How far ahead of their use codes are fetched, in bytes. Past the end of a row lies the next
/// row that the same stream will read. Fetched as non-temporal: weights that are larger than the
/// caches would only push other things out of them on their way through.
const AHEAD: usize = 2048;

/// `Σ` of four products of `w + 12` (0..=24) and `x` (-12..=12) in each dword.
trait Dot {
    /// # Safety
    /// The CPU has the features of the implementation.
    unsafe fn dot(w: [__m512i; 2], x: [__m512i; 2]) -> __m512i;
}

enum Vnni {}
impl Dot for Vnni {
    #[inline(always)]
    unsafe fn dot(w: [__m512i; 2], x: [__m512i; 2]) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe {
            let even = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w[0], x[0]);
            _mm512_dpbusd_epi32(even, w[1], x[1])
        }
    }
}

enum Bw {}
impl Dot for Bw {
    #[inline(always)]
    unsafe fn dot(w: [__m512i; 2], x: [__m512i; 2]) -> __m512i {
        // SAFETY: the caller's promise. Nothing saturates: pairs are at most 576, four 1152.
        unsafe {
            let even = _mm512_maddubs_epi16(w[0], x[0]);
            let odd = _mm512_maddubs_epi16(w[1], x[1]);
            _mm512_madd_epi16(_mm512_add_epi16(even, odd), _mm512_set1_epi16(1))
        }
    }
}

/// The codes of 64 bytes of step `s` of a row; in a tail of `left` blocks, zeros past them.
#[inline(always)]
unsafe fn codes<const TAIL: bool>(row: &[u8], s: usize, half: usize, left: usize) -> __m512i {
    // SAFETY: the row holds the step, or `left` blocks of it, which the mask keeps to.
    unsafe {
        let at = row.as_ptr().wrapping_add(s * 128 + half * 64);
        if TAIL {
            let blocks = left.saturating_sub(half * 8).min(8);
            let mask = ((1u128 << (blocks * 8)) - 1) as u64;
            _mm512_maskz_loadu_epi8(mask, at.cast())
        } else {
            _mm_prefetch::<_MM_HINT_NTA>(at.wrapping_add(AHEAD).cast());
            _mm512_loadu_si512(at.cast())
        }
    }
}

/// The scales of step `s` of each row, times 2^-8.
#[inline(always)]
unsafe fn scales<const R: usize, const TILED: bool, const TAIL: bool>(
    rows: &Rows<'_>,
    s: usize,
    left: usize,
) -> [__m512; R] {
    // SAFETY: the lengths were asserted; the tail's loads are masked, and stop at its last atom.
    unsafe {
        let mask = if TAIL { (1u16 << left) - 1 } else { !0 };
        let mut bytes = [_mm_setzero_si128(); R];
        match &rows.scales {
            RowScales::Linear(scales) if !TILED => {
                for r in 0..R {
                    let at = scales[r].as_ptr().wrapping_add(s * 16);
                    bytes[r] = if TAIL {
                        _mm_maskz_loadu_epi8(mask, at.cast())
                    } else {
                        _mm_prefetch::<_MM_HINT_NTA>(at.wrapping_add(AHEAD / 8).cast());
                        _mm_loadu_si128(at.cast())
                    };
                }
            }
            RowScales::Tiled(scales) if TILED => {
                let first = scales.as_ptr().wrapping_add(s * 4 * 512);
                let atoms = if TAIL { left.div_ceil(4) } else { 4 };
                if R == MAX_ROWS {
                    let mut quad = [_mm_setzero_si128(); 4];
                    for a in 0..atoms {
                        quad[a] = _mm_loadu_si128(first.wrapping_add(a * 512).cast());
                    }
                    // Dword 4a + r holds four scales of row r.
                    let low = _mm256_set_m128i(quad[1], quad[0]);
                    let high = _mm256_set_m128i(quad[3], quad[2]);
                    let all = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
                    let transpose =
                        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
                    let all = _mm512_permutexvar_epi32(transpose, all);
                    let quarters = [
                        _mm512_extracti32x4_epi32::<0>(all),
                        _mm512_extracti32x4_epi32::<1>(all),
                        _mm512_extracti32x4_epi32::<2>(all),
                        _mm512_extracti32x4_epi32::<3>(all),
                    ];
                    bytes.copy_from_slice(&quarters[..R]);
                } else {
                    let mut four = [0; 4];
                    for a in 0..atoms {
                        let at = first.wrapping_add(a * 512);
                        four[a] = at.cast::<i32>().read_unaligned();
                    }
                    bytes[0] = _mm_setr_epi32(four[0], four[1], four[2], four[3]);
                }
                if TAIL {
                    // The padding may hold anything, a NaN too.
                    for bytes in &mut bytes {
                        *bytes = _mm_maskz_mov_epi8(mask, *bytes);
                    }
                }
            }
            _ => unreachable!(),
        }
        let mut scales = [_mm512_setzero_ps(); R];
        for r in 0..R {
            // E4M3 is f16 with a shorter exponent and mantissa, its bias 8 less.
            let f16 = _mm256_slli_epi16::<7>(_mm256_cvtepu8_epi16(bytes[r]));
            scales[r] = _mm512_cvtph_ps(f16);
        }
        scales
    }
}

#[inline(always)]
unsafe fn nvfp4_rows<D: Dot, const R: usize, const N: usize, const TILED: bool>(
    rows: &Rows<'_>,
    x: &[Nvfp4Vector<'_>],
) -> Sums {
    rows.assert_lengths(R);
    let (steps, tail) = (rows.blocks / STEP, rows.blocks % STEP);
    let lines = rows.blocks.div_ceil(STEP);
    let x: &[Nvfp4Vector<'_>; N] = x.try_into().expect("N vectors");
    assert!(x.iter().all(|x| x.planes.len() == 4 * lines
        && x.scales.len() == lines
        && x.corrections.len() == lines));
    // SAFETY: the caller's CPU has the features; steps and tail stay inside the lengths asserted.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); N]; R];
        for s in 0..steps {
            nvfp4_step::<D, R, N, TILED, false>(rows, x, s, STEP, &mut acc);
        }
        if tail > 0 {
            nvfp4_step::<D, R, N, TILED, true>(rows, x, steps, tail, &mut acc);
        }
        sums(acc)
    }
}

#[inline(always)]
unsafe fn nvfp4_step<
    D: Dot,
    const R: usize,
    const N: usize,
    const TILED: bool,
    const TAIL: bool,
>(
    rows: &Rows<'_>,
    x: &[Nvfp4Vector<'_>; N],
    s: usize,
    left: usize,
    acc: &mut [[__m512; N]; R],
) {
    // SAFETY: the caller asserted the lengths and has the features.
    unsafe {
        // Twice the value, plus 12.
        let table = _mm512_broadcast_i32x4(_mm_setr_epi8(
            12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0,
        ));
        let nibble = _mm512_set1_epi8(15);
        let (even, odd) = (
            _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
            _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31),
        );
        let scales = scales::<R, TILED, TAIL>(rows, s, left);
        for r in 0..R {
            let mut w = [[_mm512_setzero_si512(); 2]; 2];
            for (half, w) in w.iter_mut().enumerate() {
                let codes = codes::<TAIL>(rows.codes[r], s, half, left);
                let high = _mm512_srli_epi16::<4>(codes);
                w[0] = _mm512_shuffle_epi8(table, _mm512_and_si512(codes, nibble));
                w[1] = _mm512_shuffle_epi8(table, _mm512_and_si512(high, nibble));
            }
            for v in 0..N {
                let mut planes = [_mm512_setzero_si512(); 4];
                for (i, plane) in planes.iter_mut().enumerate() {
                    let line = x[v].planes.get_unchecked(s * 4 + i);
                    *plane = _mm512_load_si512(line.0.as_ptr().cast());
                }
                // Half blocks, then blocks: two dwords each.
                let a = D::dot(w[0], [planes[0], planes[1]]);
                let b = D::dot(w[1], [planes[2], planes[3]]);
                let blocks = _mm512_add_epi32(
                    _mm512_permutex2var_epi32(a, even, b),
                    _mm512_permutex2var_epi32(a, odd, b),
                );
                let correction =
                    _mm512_load_si512(x[v].corrections.get_unchecked(s).0.as_ptr().cast());
                let blocks = _mm512_cvtepi32_ps(_mm512_add_epi32(blocks, correction));
                let scale = _mm512_mul_ps(
                    scales[r],
                    _mm512_load_ps(x[v].scales.get_unchecked(s).0.as_ptr()),
                );
                acc[r][v] = _mm512_fmadd_ps(blocks, scale, acc[r][v]);
            }
        }
    }
}

#[inline(always)]
unsafe fn dense_rows<const R: usize, const N: usize, const TILED: bool>(
    rows: &Rows<'_>,
    x: &[DenseVector<'_>],
) -> Sums {
    rows.assert_lengths(R);
    let (steps, tail) = (rows.blocks / STEP, rows.blocks % STEP);
    let x: &[DenseVector<'_>; N] = x.try_into().expect("N vectors");
    assert!(x.iter().all(|x| x.len() == rows.blocks.div_ceil(STEP) * 16));
    // SAFETY: the caller's CPU has the features; steps and tail stay inside the lengths asserted.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); N]; R];
        for s in 0..steps {
            dense_step::<R, N, TILED, false>(rows, x, s, STEP, &mut acc);
        }
        if tail > 0 {
            dense_step::<R, N, TILED, true>(rows, x, steps, tail, &mut acc);
        }
        sums(acc)
    }
}

#[inline(always)]
unsafe fn dense_step<const R: usize, const N: usize, const TILED: bool, const TAIL: bool>(
    rows: &Rows<'_>,
    x: &[DenseVector<'_>; N],
    s: usize,
    left: usize,
    acc: &mut [[__m512; N]; R],
) {
    // SAFETY: the caller asserted the lengths and has the features.
    unsafe {
        let table = _mm512_setr_ps(
            0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
        );
        let scales = scales::<R, TILED, TAIL>(rows, s, left);
        for half in 0..2 {
            // A block is two dwords of codes, hence two lanes.
            let first = half as i32 * 8;
            let pairs = _mm512_add_epi32(
                _mm512_set1_epi32(first),
                _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7),
            );
            for r in 0..R {
                let codes = codes::<TAIL>(rows.codes[r], s, half, left);
                let scale = _mm512_permutexvar_ps(pairs, scales[r]);
                // The factor that scales read as f16 lack. Not at the end of the row: a sum of
                // tiny vectors would lose bits to underflow on the way there.
                let scale = _mm512_mul_ps(scale, _mm512_set1_ps(256.0));
                let mut sum = [_mm512_setzero_ps(); N];
                for p in 0..8 {
                    // The lookup takes the low four bits of each dword.
                    let index = _mm512_srlv_epi32(codes, _mm512_set1_epi32(4 * p as i32));
                    let w = _mm512_permutexvar_ps(index, table);
                    for v in 0..N {
                        let line = x[v].get_unchecked((s * 2 + half) * 8 + p);
                        sum[v] = _mm512_fmadd_ps(w, _mm512_load_ps(line.0.as_ptr()), sum[v]);
                    }
                }
                for v in 0..N {
                    acc[r][v] = _mm512_fmadd_ps(sum[v], scale, acc[r][v]);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn sums<const R: usize, const N: usize>(acc: [[__m512; N]; R]) -> Sums {
    let mut sums = [[0.0; MAX_VECTORS]; MAX_ROWS];
    for r in 0..R {
        for v in 0..N {
            let mut lanes = [0.0; STEP];
            // SAFETY: 16 floats; the caller's CPU has the features.
            unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), acc[r][v]) };
            sums[r][v] = sum_lanes(lanes);
        }
    }
    sums
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn nvfp4_vnni(rows: &Rows<'_>, x: &[Nvfp4Vector<'_>]) -> Sums {
    // SAFETY: this function's features are all that is used.
    unsafe { by_size!(rows, x, nvfp4_rows, Vnni,) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn nvfp4_bw(rows: &Rows<'_>, x: &[Nvfp4Vector<'_>]) -> Sums {
    // SAFETY: this function's features are all that is used.
    unsafe { by_size!(rows, x, nvfp4_rows, Bw,) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn dense(rows: &Rows<'_>, x: &[DenseVector<'_>]) -> Sums {
    // SAFETY: this function's features are all that is used.
    unsafe { by_size!(rows, x, dense_rows,) }
}
