//! AVX-512 with BF16: f16 and bf16 vectors as bf16 parts.
//!
//! A value is the sum of `P` bf16 parts, without rounding: one for bf16, two for f16, whose 11 bits
//! are 8 and 3. `vdpbf16ps` multiplies pairs of bf16 values and adds both products to a lane of f32,
//! twice as many products as a fused multiply-add of f32. A 16-bit lookup decodes twice as many
//! weights as a 32-bit one.
//!
//! `vdpbf16ps` takes subnormal inputs as zero and makes zero of subnormal results. `Prepared` gives
//! these kernels only vectors for which neither occurs.

use std::arch::x86_64::*;

use crate::cpu::avx512::{Avx512, dense_weights, pairs_of_scales};
use crate::cpu::loops::{Dense, family};
use crate::cpu::rows::{Family, MAX_VECTORS};
use crate::cpu::vector::Products;

/// Kernels for vectors of one part.
pub(super) const ONE: Family = family! {
    Dense<Parts<1>>, "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16",
    direct_tile: 256,
    direct_up_to: 8,
    // A lane sums as many products as the tile has blocks: what `prepare` takes for granted of huge values.
    decoding: { tile: 64, rows: 8, at_once: 4 },
};

/// Kernels for few vectors of two parts.
pub(super) const TWO: Family = family! {
    Dense<Parts<2>>, "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16",
    direct_tile: 64,
    direct_up_to: MAX_VECTORS,
    decoding: None,
};

/// Pairs of bf16 values: a lane sums half a block.
enum Parts<const P: usize> {}

/// The bits of a register as bf16 values.
#[inline(always)]
unsafe fn bf16s(bits: __m512) -> __m512bh {
    // SAFETY: the types are equally large, and any bits are bf16 values.
    unsafe { std::mem::transmute::<__m512, __m512bh>(bits) }
}

impl<const P: usize> Products for Parts<P> {
    type Vector = Avx512<false>;

    const PIECES: usize = 1;
    const PLANES: usize = 4;
    const PARTS: usize = P;

    type Piece = __m512i;

    #[inline(always)]
    unsafe fn piece(codes: __m512i, _: usize) -> __m512i {
        codes
    }

    /// Code `plane` of each 16 bits.
    #[inline(always)]
    unsafe fn weights(codes: __m512i, plane: usize) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            // The bf16 values of the codes, twice: the lookup takes the low five bits of each index.
            let table = _mm512_broadcast_i64x4(_mm256_setr_epi16(
                0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, -0x8000, -0x4100,
                -0x4080, -0x4040, -0x4000, -0x3fc0, -0x3f80, -0x3f40,
            ));
            let index = match plane {
                0 => codes,
                1 => _mm512_srli_epi16::<4>(codes),
                2 => _mm512_srli_epi16::<8>(codes),
                _ => _mm512_srli_epi16::<12>(codes),
            };
            _mm512_castsi512_ps(_mm512_permutexvar_epi16(index, table))
        }
    }

    #[inline(always)]
    unsafe fn scales(of_step: __m512, half: usize, _: usize) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { pairs_of_scales(of_step, half) }
    }

    /// A weight has two significant bits and a scale four, so their product is a bf16 value.
    #[inline(always)]
    unsafe fn scaled(codes: __m512i, _: usize, plane: usize, scales: __m512) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            // The lower and the upper half of each dword have codes of their own. The lower bits of both are 0.
            let low = _mm512_mul_ps(dense_weights(codes, plane), scales);
            let high = _mm512_mul_ps(dense_weights(codes, plane + 4), scales);
            let low = _mm512_srli_epi32::<16>(_mm512_castps_si512(low));
            _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(high), low))
        }
    }

    #[inline(always)]
    unsafe fn first(w: __m512, x: __m512) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { Self::add(w, x, _mm512_setzero_ps()) }
    }

    #[inline(always)]
    unsafe fn add(w: __m512, x: __m512, sum: __m512) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_dpbf16_ps(sum, bf16s(w), bf16s(x)) }
    }
}
