//! AVX-512: 256 elements (128 bytes of codes, 16 blocks) a step, tails by masked loads.

use std::arch::x86_64::*;

use crate::cpu::avx512_bf16;
use crate::cpu::loops::{Dense, Nvfp4, family};
use crate::cpu::rows::{Kernels, MAX_VECTORS, Row};
use crate::cpu::vector::{Products, Vector};

/// Kernels with VNNI.
pub(super) const VNNI: Kernels = Kernels {
    nvfp4: family! {
        Nvfp4<Avx512<true>>, "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni",
        direct_tile: 256,
        direct_up_to: MAX_VECTORS,
        decoding: { tile: 64, rows: 16, at_once: 2 },
    },
    ..BW
};

/// Kernels with VNNI and BF16.
pub(super) const BF16: Kernels = Kernels {
    parts: Some([avx512_bf16::ONE, avx512_bf16::TWO]),
    ..VNNI
};

/// Kernels without VNNI.
pub(super) const BW: Kernels = Kernels {
    lanes: &LANES,
    order: &ORDER,
    nvfp4: family! {
        Nvfp4<Avx512<false>>, "avx512f,avx512bw,avx512vl,avx512dq",
        direct_tile: 256,
        direct_up_to: MAX_VECTORS,
        decoding: { tile: 64, rows: 16, at_once: 2 },
    },
    dense: family! {
        Dense<F32>, "avx512f,avx512bw,avx512vl,avx512dq",
        direct_tile: 128,
        direct_up_to: MAX_VECTORS,
        decoding: { tile: 48, rows: 8, at_once: 4 },
    },
    parts: None,
};

/// The lane of each block, as `planes` orders blocks 0 to 7 and 8 to 15.
const LANES: [usize; 16] = {
    let mut lanes = [0; 16];
    let mut lane = 0;
    while lane < 16 {
        lanes[BLOCK_OF_LANE[lane] as usize] = lane;
        lane += 1;
    }
    lanes
};

/// The block in each lane.
const BLOCK_OF_LANE: [u8; 16] = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15];

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

/// The instructions, with VNNI or without.
#[derive(Clone, Copy)]
pub(super) enum Avx512<const VNNI: bool> {}

impl<const VNNI: bool> Vector for Avx512<VNNI> {
    const LANES: usize = 16;
    const ROWS: usize = 2;

    type Ints = __m512i;
    type Floats = __m512;

    #[inline(always)]
    unsafe fn codes<const TAIL: bool>(row: &Row<'_>, step: usize, half: usize) -> __m512i {
        // SAFETY: the row has the step, or the mask keeps to its rest; the caller's CPU has the features.
        unsafe {
            let at = row.codes.as_ptr().wrapping_add(step * 128 + half * 64);
            if TAIL {
                let left = row.scales.len() % Self::LANES;
                let blocks = left.saturating_sub(half * 8).min(8);
                let mask = ((1u128 << (blocks * 8)) - 1) as u64;
                _mm512_maskz_loadu_epi8(mask, at.cast())
            } else {
                _mm512_loadu_si512(at.cast())
            }
        }
    }

    #[inline(always)]
    unsafe fn scales<const TAIL: bool, const IN_LANES: bool>(row: &Row<'_>, step: usize) -> __m512 {
        // SAFETY: as for `codes`.
        unsafe {
            let at = row.scales.as_ptr().wrapping_add(step * Self::LANES);
            let mut bytes = if TAIL {
                let left = row.scales.len() % Self::LANES;
                _mm_maskz_loadu_epi8((1 << left) - 1, at.cast())
            } else {
                _mm_loadu_si128(at.cast())
            };
            if IN_LANES {
                let lanes = _mm_loadu_si128(BLOCK_OF_LANE.as_ptr().cast());
                bytes = _mm_shuffle_epi8(bytes, lanes);
            }
            _mm512_cvtph_ps(_mm256_slli_epi16::<7>(_mm256_cvtepu8_epi16(bytes)))
        }
    }

    /// Twice the weights, plus 12. Of the blocks' dwords of codes the even ones, then the odd ones: a block is a lane.
    #[inline(always)]
    unsafe fn planes(codes: [__m512i; 2]) -> [__m512i; 4] {
        // SAFETY: the caller's CPU has the features.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_setr_epi8(
                12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0,
            ));
            let nibble = _mm512_set1_epi8(15);
            let low = _mm512_castsi512_ps(codes[0]);
            let high = _mm512_castsi512_ps(codes[1]);
            let even = _mm512_castps_si512(_mm512_shuffle_ps::<0b10_00_10_00>(low, high));
            let odd = _mm512_castps_si512(_mm512_shuffle_ps::<0b11_01_11_01>(low, high));
            let even_high = _mm512_srli_epi16::<4>(even);
            let odd_high = _mm512_srli_epi16::<4>(odd);
            [
                _mm512_shuffle_epi8(table, _mm512_and_si512(even, nibble)),
                _mm512_shuffle_epi8(table, _mm512_and_si512(even_high, nibble)),
                _mm512_shuffle_epi8(table, _mm512_and_si512(odd, nibble)),
                _mm512_shuffle_epi8(table, _mm512_and_si512(odd_high, nibble)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn dot(planes: &[__m512i; 4], x: &[__m512i; 4], corrections: __m512i) -> __m512 {
        // SAFETY: the caller's CPU has the features.
        unsafe {
            let sums = if VNNI {
                let sum = _mm512_dpbusd_epi32(corrections, planes[0], x[0]);
                let sum = _mm512_dpbusd_epi32(sum, planes[1], x[1]);
                let sum = _mm512_dpbusd_epi32(sum, planes[2], x[2]);
                _mm512_dpbusd_epi32(sum, planes[3], x[3])
            } else {
                // Nothing saturates: bytes are at most 127, a pair 6096, four 24384.
                let pairs = _mm512_add_epi16(
                    _mm512_add_epi16(
                        _mm512_maddubs_epi16(planes[0], x[0]),
                        _mm512_maddubs_epi16(planes[1], x[1]),
                    ),
                    _mm512_add_epi16(
                        _mm512_maddubs_epi16(planes[2], x[2]),
                        _mm512_maddubs_epi16(planes[3], x[3]),
                    ),
                );
                let blocks = _mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
                _mm512_add_epi32(corrections, blocks)
            };
            _mm512_cvtepi32_ps(sums)
        }
    }

    #[inline(always)]
    unsafe fn splat(number: f32) -> __m512 {
        // SAFETY: the caller's CPU has the features.
        unsafe { _mm512_set1_ps(number) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller's CPU has the features.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the caller's CPU has the features.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    /// Halves, neighbours, neighbours of those, halves.
    #[inline(always)]
    unsafe fn sums<const R: usize, const N: usize>(acc: [[__m512; N]; R]) -> [[f32; N]; R] {
        let mut sums = [[0.0; N]; R];
        if N == 1 && R == 4 {
            // Four rows at once, in the same order: `pairs[i]` has half sums of rows 2 i and 2 i + 1.
            // SAFETY: the caller's CPU has the features; 8 floats are stored.
            unsafe {
                let mut pairs = [_mm512_setzero_ps(); 2];
                for i in 0..2 {
                    let (one, other) = (acc[2 * i][0], acc[2 * i + 1][0]);
                    let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(one, other);
                    let high = _mm512_shuffle_f32x4::<0b11_10_11_10>(one, other);
                    pairs[i] = _mm512_add_ps(low, high);
                }
                let eighths = add_neighbours(pairs[0], pairs[1]);
                let quarters = add_neighbours(eighths, eighths);
                let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(quarters, quarters);
                let high = _mm512_shuffle_f32x4::<0b11_01_11_01>(quarters, quarters);
                // Rows 0, 2, 0, 2, 1, 3, 1, 3.
                let mut all = [0.0; 8];
                let sum = _mm512_castps512_ps256(_mm512_add_ps(low, high));
                _mm256_storeu_ps(all.as_mut_ptr(), sum);
                for (sums, at) in sums.iter_mut().zip([0, 4, 1, 5]) {
                    sums[0] = all[at];
                }
            }
            return sums;
        }
        // Two rows and four vectors at once: `pairs[v]` has a half sum of each row.
        for (sums, acc) in sums.chunks_mut(2).zip(acc.chunks(2)) {
            // SAFETY: the caller's CPU has the features; 8 floats are stored.
            unsafe {
                let mut pairs = [_mm512_setzero_ps(); 4];
                for v in 0..N {
                    let (one, other) = (acc[0][v], acc[acc.len() - 1][v]);
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
                for (sums, all) in sums.iter_mut().zip(all) {
                    sums.copy_from_slice(&all[..N]);
                }
            }
        }
        sums
    }
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

/// The scales of half a step, each in the two lanes that hold its block.
#[inline(always)]
pub(super) unsafe fn pairs_of_scales(scales: __m512, half: usize) -> __m512 {
    // SAFETY: the caller's CPU has the features.
    unsafe {
        let first = _mm512_set1_epi32(half as i32 * 8);
        let pairs = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
        _mm512_permutexvar_ps(_mm512_add_epi32(first, pairs), scales)
    }
}

/// f32 values.
enum F32 {}

impl Products for F32 {
    type Vector = Avx512<false>;

    const PIECES: usize = 1;
    const PLANES: usize = 8;
    const PARTS: usize = 1;

    type Piece = __m512i;

    #[inline(always)]
    unsafe fn piece(codes: __m512i, _: usize) -> __m512i {
        codes
    }

    #[inline(always)]
    unsafe fn weights(codes: __m512i, plane: usize) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { dense_weights(codes, plane) }
    }

    #[inline(always)]
    unsafe fn scales(of_step: __m512, half: usize, _: usize) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { pairs_of_scales(of_step, half) }
    }
}
