//! AVX2 with FMA and F16C: 128 elements (64 bytes of codes, 8 blocks) a step, tails by masked loads.

use std::arch::x86_64::*;

use crate::cpu::loops::{Dense, Nvfp4, family};
use crate::cpu::rows::{Kernels, MAX_VECTORS, Row};
use crate::cpu::vector::{HALVES, Products, Vector};

/// The kernels.
pub(super) const KERNELS: Kernels = Kernels {
    // The order that `planes` makes of blocks 0 1 2 3 and 4 5 6 7.
    lanes: &[0, 1, 4, 5, 2, 3, 6, 7],
    order: &HALVES,
    nvfp4: family! {
        Nvfp4<Avx2>, "avx2,fma,f16c",
        direct_tile: 256,
        direct_up_to: MAX_VECTORS,
        decoding: { tile: 64, rows: 16, at_once: 1 },
    },
    dense: family! {
        Dense<Avx2>, "avx2,fma,f16c",
        direct_tile: 128,
        direct_up_to: 7,
        decoding: { tile: 32, rows: 9, at_once: 3 },
    },
    parts: None,
};

/// The instructions.
#[derive(Clone, Copy)]
pub(super) enum Avx2 {}

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

impl Vector for Avx2 {
    const LANES: usize = 8;
    const ROWS: usize = 1;

    type Ints = __m256i;
    type Floats = __m256;

    #[inline(always)]
    unsafe fn codes<const TAIL: bool>(row: &Row<'_>, step: usize, half: usize) -> __m256i {
        // SAFETY: the row has the step, or the mask keeps to its rest; the caller's CPU has the features.
        unsafe {
            let at = row.codes.as_ptr().wrapping_add(step * 64 + half * 32);
            if TAIL {
                let left = row.scales.len() as i64 % 8 - half as i64 * 4;
                let blocks = _mm256_setr_epi64x(0, 1, 2, 3);
                let mask = _mm256_cmpgt_epi64(_mm256_set1_epi64x(left), blocks);
                _mm256_maskload_epi64(at.cast(), mask)
            } else {
                _mm256_loadu_si256(at.cast())
            }
        }
    }

    #[inline(always)]
    unsafe fn scales<const TAIL: bool, const IN_LANES: bool>(row: &Row<'_>, step: usize) -> __m256 {
        // SAFETY: the row has the step, or its rest is copied; the caller's CPU has the features.
        unsafe {
            let mut bytes = if TAIL {
                let rest = &row.scales[step * 8..];
                let mut bytes = [0u8; 8];
                bytes[..rest.len()].copy_from_slice(rest);
                _mm_loadl_epi64(bytes.as_ptr().cast())
            } else {
                _mm_loadl_epi64(row.scales.as_ptr().wrapping_add(step * 8).cast())
            };
            if IN_LANES {
                bytes = _mm_shufflelo_epi16::<0b11_01_10_00>(bytes);
            }
            _mm256_cvtph_ps(_mm_slli_epi16::<7>(_mm_cvtepu8_epi16(bytes)))
        }
    }

    /// Twice the weights, plus 12. Of the blocks' dwords of codes the even ones, then the odd ones: a block is a lane.
    #[inline(always)]
    unsafe fn planes(codes: [__m256i; 2]) -> [__m256i; 4] {
        // SAFETY: the caller's CPU has the features.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_setr_epi8(
                12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0,
            ));
            let low = _mm256_castsi256_ps(codes[0]);
            let high = _mm256_castsi256_ps(codes[1]);
            let even = _mm256_shuffle_ps::<0b10_00_10_00>(low, high);
            let odd = _mm256_shuffle_ps::<0b11_01_11_01>(low, high);
            let [even_low, even_high] = nibbles(_mm256_castps_si256(even));
            let [odd_low, odd_high] = nibbles(_mm256_castps_si256(odd));
            [
                _mm256_shuffle_epi8(table, even_low),
                _mm256_shuffle_epi8(table, even_high),
                _mm256_shuffle_epi8(table, odd_low),
                _mm256_shuffle_epi8(table, odd_high),
            ]
        }
    }

    #[inline(always)]
    unsafe fn dot(planes: &[__m256i; 4], x: &[__m256i; 4], corrections: __m256i) -> __m256 {
        // SAFETY: the caller's CPU has the features. Nothing saturates: bytes are at most 127, a pair 6096, four 24384.
        unsafe {
            let pairs = _mm256_add_epi16(
                _mm256_add_epi16(
                    _mm256_maddubs_epi16(planes[0], x[0]),
                    _mm256_maddubs_epi16(planes[1], x[1]),
                ),
                _mm256_add_epi16(
                    _mm256_maddubs_epi16(planes[2], x[2]),
                    _mm256_maddubs_epi16(planes[3], x[3]),
                ),
            );
            let blocks = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
            _mm256_cvtepi32_ps(_mm256_add_epi32(blocks, corrections))
        }
    }

    #[inline(always)]
    unsafe fn splat(number: f32) -> __m256 {
        // SAFETY: the caller's CPU has the features.
        unsafe { _mm256_set1_ps(number) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the caller's CPU has the features.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the caller's CPU has the features.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    /// Neighbours, neighbours of those, halves.
    #[inline(always)]
    unsafe fn sums<const R: usize, const N: usize>(acc: [[__m256; N]; R]) -> [[f32; N]; R] {
        let mut sums = [[0.0; N]; R];
        for (sums, acc) in sums.iter_mut().zip(acc) {
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
                sums.copy_from_slice(&all[..N]);
            }
        }
        sums
    }
}

/// A piece has 8 weights of each of 2 blocks, which are lanes 0 to 3 and 4 to 7.
impl Products for Avx2 {
    type Vector = Self;

    const PIECES: usize = 2;
    const PLANES: usize = 4;
    const PARTS: usize = 1;

    type Piece = [__m256; 4];

    /// Plane `p` has the elements that the order puts at `(half * 2 + piece) * 32 + p * 8`.
    #[inline(always)]
    unsafe fn piece(codes: __m256i, piece: usize) -> [__m256; 4] {
        // SAFETY: the caller's CPU has the features.
        unsafe {
            // The bytes of the bf16 values of the codes.
            let low = _mm256_broadcastsi128_si256(_mm_setr_epi8(
                0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64,
            ));
            let high = _mm256_broadcastsi128_si256(_mm_setr_epi8(
                0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, -128, -65, -65, -65, -64, -64, -64,
                -64,
            ));
            let upper_half = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            let mut planes = [_mm256_setzero_ps(); 4];
            for (planes, codes) in planes.chunks_exact_mut(2).zip(nibbles(codes)) {
                let low = _mm256_shuffle_epi8(low, codes);
                let high = _mm256_shuffle_epi8(high, codes);
                let bf16 = match piece {
                    0 => _mm256_unpacklo_epi8(low, high),
                    _ => _mm256_unpackhi_epi8(low, high),
                };
                planes[0] = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bf16));
                planes[1] = _mm256_castsi256_ps(_mm256_and_si256(bf16, upper_half));
            }
            planes
        }
    }

    #[inline(always)]
    unsafe fn weights(piece: [__m256; 4], plane: usize) -> __m256 {
        piece[plane]
    }

    #[inline(always)]
    unsafe fn scales(of_step: __m256, half: usize, piece: usize) -> __m256 {
        // SAFETY: the caller's CPU has the features.
        unsafe {
            let first = _mm256_set1_epi32((half * 4 + piece) as i32);
            let blocks = _mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2);
            _mm256_permutevar8x32_ps(of_step, _mm256_add_epi32(first, blocks))
        }
    }
}
