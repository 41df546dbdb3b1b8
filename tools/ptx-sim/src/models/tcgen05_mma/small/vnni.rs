//! Chains of products on processors that add four products of bytes in 32 bits.

use super::super::inner::{ROWS, bits_of};
use super::{COLUMNS, Link, Tiles, runs};
use std::arch::x86_64::{
    __m512, __m512i, _mm512_add_epi32, _mm512_add_ps, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32,
    _mm512_mul_ps, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_sub_epi32,
};

fn integers(from: &[u32; COLUMNS]) -> __m512i {
    // SAFETY: both are 64 bytes, and any bits are a value of either.
    unsafe { std::mem::transmute(*from) }
}

fn words(from: __m512i) -> [u32; COLUMNS] {
    // SAFETY: as above.
    unsafe { std::mem::transmute(from) }
}

fn floats(from: [u32; COLUMNS]) -> __m512 {
    // SAFETY: as above.
    unsafe { std::mem::transmute(from) }
}

fn bits(from: __m512) -> [u32; COLUMNS] {
    // SAFETY: as above.
    unsafe { std::mem::transmute(from) }
}

/// The sums of each column of B times `more`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn offsets(b: &Tiles<COLUMNS>, more: u8) -> Vec<[u32; COLUMNS]> {
    let more = _mm512_set1_epi8(more.cast_signed());
    let of_tile = |tile: &[[u32; COLUMNS]]| {
        let mut sum = _mm512_setzero_si512();
        for b in tile {
            sum = _mm512_dpbusd_epi32(sum, more, integers(b));
        }
        words(sum)
    };
    b.all().map(of_tile).collect()
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn chain(links: &[Link<'_>], n: usize, cells: &mut [u32], pitch: usize) {
    let runs = runs(links);
    for (tile, column) in (0..n).step_by(COLUMNS).enumerate() {
        let width = COLUMNS.min(n - column);
        let mut d = [_mm512_setzero_ps(); ROWS];
        for (r, d) in d.iter_mut().enumerate() {
            let mut piece = [0; COLUMNS];
            piece[..width].copy_from_slice(&cells[r * pitch + column..][..width]);
            *d = floats(piece);
        }
        for run in &runs {
            add(run, tile, &mut d);
        }
        for (r, d) in d.into_iter().enumerate() {
            let cells = &mut cells[r * pitch + column..][..width];
            for (cell, d) in cells.iter_mut().zip(bits(d)) {
                *cell = bits_of(f32::from_bits(d));
            }
        }
    }
}

/// Adds a run onto the rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn add(run: &[Link<'_>], tile: usize, d: &mut [__m512; ROWS]) {
    let Some(first) = run.first() else { return };
    let unit = _mm512_set1_ps(first.product.unit);
    for (d, sum) in d.iter_mut().zip(sums(run, tile)) {
        let before = if first.accumulate {
            *d
        } else {
            _mm512_setzero_ps()
        };
        *d = _mm512_add_ps(before, _mm512_mul_ps(_mm512_cvtepi32_ps(sum), unit));
    }
}

/// The sums of a run's rows in the columns of a tile. Neither they nor their offsets leave 32 bits, unless to come
/// back.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn sums(run: &[Link<'_>], tile: usize) -> [__m512i; ROWS] {
    let mut sums = [_mm512_setzero_si512(); ROWS];
    let mut offset = _mm512_setzero_si512();
    for l in run {
        offset = _mm512_add_epi32(offset, integers(&l.product.offsets[tile]));
        for (a, b) in l.a.iter().zip(l.product.b.tile(tile)) {
            let b = integers(b);
            for (sum, a) in sums.iter_mut().zip(a) {
                *sum = _mm512_dpbusd_epi32(*sum, _mm512_set1_epi32(a.cast_signed()), b);
            }
        }
    }
    sums.map(|sum| _mm512_sub_epi32(sum, offset))
}
