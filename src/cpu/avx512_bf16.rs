//! AVX-512 with BF16: f16 and bf16 vectors as bf16 parts.
//!
//! A value is the sum of `P` bf16 parts, without rounding: one for bf16, two for f16, whose 11 bits
//! are 8 and 3. `vdpbf16ps` multiplies pairs of bf16 values and adds both products to a lane of f32,
//! twice as many products as a fused multiply-add of f32. A 16-bit lookup decodes twice as many
//! weights as a 32-bit one.
//!
//! `vdpbf16ps` takes subnormal inputs as zero and makes zero of subnormal results. `Prepared` gives
//! these kernels only vectors for which neither occurs.

#![allow(clippy::needless_range_loop)] // they index several arrays of registers at once

use std::arch::x86_64::*;

use crate::cpu::avx512::{
    Products, STEP, codes, decode_scales, decoded_rows, dense_weights, fetch, pairs_of_scales,
    scale_bytes, sums,
};
use crate::cpu::prepare::{DENSE_STEP, Line, Tile, part_words, words_mut};
use crate::cpu::rows::{
    Decoded, Decoding, Family, GROUP_ROWS, MAX_VECTORS, Row, Rows, Sums, SumsOfRows,
    WHOLE_ROWS_UP_TO, by_size, by_vectors,
};

/// Kernels for vectors of one part.
pub(super) const ONE: Family = Family {
    direct: direct_one,
    direct_tile: 256,
    direct_up_to: 8,
    decoding: Some(Decoding {
        decode,
        multiply: multiply_part,
        bytes: Pairs::WORDS * 4,
        // A lane sums as many products: what `prepare` takes for granted of huge values.
        tile: 64,
        rows: 8,
    }),
};

/// Kernels for few vectors of two parts.
pub(super) const TWO: Family = Family {
    direct: direct_two,
    direct_tile: 64,
    direct_up_to: MAX_VECTORS,
    decoding: None,
};

/// The weights of 64 bytes of codes: vector `p` holds code `p` of each 16 bits.
#[inline(always)]
unsafe fn weights(codes: __m512i) -> [__m512i; 4] {
    // SAFETY: the caller's CPU has the features.
    unsafe {
        // The bf16 values of the codes, twice: the lookup takes the low five bits of each index.
        let table = _mm512_broadcast_i64x4(_mm256_setr_epi16(
            0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, -0x8000, -0x4100,
            -0x4080, -0x4040, -0x4000, -0x3fc0, -0x3f80, -0x3f40,
        ));
        [
            _mm512_permutexvar_epi16(codes, table),
            _mm512_permutexvar_epi16(_mm512_srli_epi16::<4>(codes), table),
            _mm512_permutexvar_epi16(_mm512_srli_epi16::<8>(codes), table),
            _mm512_permutexvar_epi16(_mm512_srli_epi16::<12>(codes), table),
        ]
    }
}

/// The bits as bf16 values.
#[inline(always)]
unsafe fn bf16s(bits: __m512i) -> __m512bh {
    // SAFETY: the types are equally large, and any bits are bf16 values.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(bits) }
}

/// Adds half number `half` of the steps to the lanes of `acc`: a lane sums half a block.
#[inline(always)]
unsafe fn add_half<const P: usize, const R: usize, const N: usize>(
    w: [[__m512i; 4]; R],
    scales: [__m512; R],
    x: &[&[u32]; N],
    half: usize,
    acc: &mut [[__m512; N]],
) {
    // SAFETY: the caller asserted the lengths and has the features. Tiles of vectors are whole cache lines, of which
    // each load takes one: the address is a multiple of 64.
    unsafe {
        let mut sum = [[_mm512_setzero_ps(); N]; R];
        for p in 0..4 {
            for part in 0..P {
                for v in 0..N {
                    let at = x[v].as_ptr().add(((half * 4 + p) * P + part) * 16);
                    let x = bf16s(_mm512_load_si512(at.cast()));
                    for r in 0..R {
                        sum[r][v] = _mm512_dpbf16_ps(sum[r][v], bf16s(w[r][p]), x);
                    }
                }
            }
        }
        for r in 0..R {
            for v in 0..N {
                acc[r][v] = _mm512_fmadd_ps(sum[r][v], scales[r], acc[r][v]);
            }
        }
    }
}

#[inline(always)]
unsafe fn direct<const P: usize, const R: usize, const N: usize>(
    rows: &Rows<'_>,
    x: &Tile<'_>,
) -> Sums {
    let blocks = x.blocks();
    rows.rows.iter().for_each(|row| row.assert_blocks(blocks));
    let x: [&[u32]; N] = x.vectors(blocks.next_multiple_of(DENSE_STEP) * part_words(P));
    let mut result = [[0.0; MAX_VECTORS]; GROUP_ROWS];
    // Four rows and four vectors at once would not fit the registers.
    if N <= WHOLE_ROWS_UP_TO || R == 1 {
        // SAFETY: the lengths were asserted; the caller's CPU has the features.
        unsafe { some_rows::<P, R, N>(rows, 0, blocks, &x, &mut result) };
    } else {
        for first in (0..R).step_by(2) {
            // SAFETY: as above.
            unsafe { some_rows::<P, 2, N>(rows, first, blocks, &x, &mut result) };
        }
    }
    result
}

/// `R` rows from `first` on.
#[inline(always)]
unsafe fn some_rows<const P: usize, const R: usize, const N: usize>(
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
            step::<P, R, N, false>(rows, first, x, s, STEP, &mut acc);
        }
        if left > 0 {
            step::<P, R, N, true>(rows, first, x, steps, left, &mut acc);
        }
        for (result, sums) in result[first..].iter_mut().zip(sums(acc)) {
            result[..N].copy_from_slice(&sums);
        }
    }
}

#[inline(always)]
unsafe fn step<const P: usize, const R: usize, const N: usize, const TAIL: bool>(
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
            if R == 1 {
                let w = weights(codes::<TAIL>(&rows.rows[first], s, half, left));
                let scale = pairs_of_scales(scales[0], half);
                add_half::<P, 1, N>([w], [scale], x, s * 2 + half, acc);
                continue;
            }
            // The registers hold the weights of two rows only.
            for r in (0..R).step_by(2) {
                let mut w = [[_mm512_setzero_si512(); 4]; 2];
                let mut scale = [_mm512_setzero_ps(); 2];
                for i in 0..2 {
                    w[i] = weights(codes::<TAIL>(&rows.rows[first + r + i], s, half, left));
                    scale[i] = pairs_of_scales(scales[r + i], half);
                }
                add_half::<P, 2, N>(w, scale, x, s * 2 + half, &mut acc[r..][..2]);
            }
        }
    }
}

/// Writes the weights of each step times their scales in the order of the vectors: pairs of bf16 values. A weight has
/// two significant bits and a scale four, so their product is a bf16 value.
#[inline(always)]
unsafe fn decode_row(row: &Row<'_>, out: &mut [Line]) {
    let blocks = row.scales.len();
    row.assert_blocks(blocks);
    let steps = blocks / STEP;
    let out = words_mut(out);
    assert!(out.len() >= blocks.div_ceil(STEP) * STEP * Pairs::WORDS);
    // SAFETY: the lengths were asserted; the caller's CPU has the features.
    unsafe {
        for s in 0..steps {
            decode_step::<false>(row, s, STEP, out.as_mut_ptr());
        }
        if !blocks.is_multiple_of(STEP) {
            decode_step::<true>(row, steps, blocks % STEP, out.as_mut_ptr());
        }
    }
}

#[inline(always)]
unsafe fn decode_step<const TAIL: bool>(row: &Row<'_>, s: usize, left: usize, out: *mut u32) {
    // SAFETY: the caller asserted the lengths and has the features. Decoded tiles are whole cache lines, of which each
    // store takes one: the address is a multiple of 64.
    unsafe {
        fetch::<MAX_VECTORS>(row, s);
        let scales = decode_scales(scale_bytes::<TAIL>(row, s, left));
        for half in 0..2 {
            let codes = codes::<TAIL>(row, s, half, left);
            let scale = pairs_of_scales(scales, half);
            for p in 0..4 {
                // The lower and the upper half of each dword have codes p of their own. The lower bits of both are 0.
                let low = _mm512_mul_ps(dense_weights(codes, p), scale);
                let high = _mm512_mul_ps(dense_weights(codes, p + 4), scale);
                let low = _mm512_srli_epi32::<16>(_mm512_castps_si512(low));
                let pairs = _mm512_or_si512(_mm512_castps_si512(high), low);
                _mm512_store_si512(out.add(((s * 2 + half) * 4 + p) * 16).cast(), pairs);
            }
        }
    }
}

/// A word is two bf16 values.
enum Pairs {}
impl Products for Pairs {
    const WORDS: usize = part_words(1);

    #[inline(always)]
    unsafe fn add(acc: __m512, w: __m512, x: __m512) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            let (w, x) = (_mm512_castps_si512(w), _mm512_castps_si512(x));
            _mm512_dpbf16_ps(acc, bf16s(w), bf16s(x))
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn direct_one(rows: &Rows<'_>, x: &Tile<'_>) -> Sums {
    // SAFETY: this function's features are all that is used.
    unsafe { by_size!(rows, x, direct, 1,) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn direct_two(rows: &Rows<'_>, x: &Tile<'_>) -> Sums {
    // SAFETY: this function's features are all that is used.
    unsafe { by_size!(rows, x, direct, 2,) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn decode(row: &Row<'_>, out: &mut [Line]) {
    // SAFETY: this function's features are all that is used.
    unsafe { decode_row(row, out) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn multiply_part(decoded: &Decoded<'_>, x: &Tile<'_>, sums: SumsOfRows<'_>) {
    // SAFETY: this function's features are all that is used.
    unsafe { by_vectors!(decoded, x, sums, decoded_rows, Pairs,) }
}
