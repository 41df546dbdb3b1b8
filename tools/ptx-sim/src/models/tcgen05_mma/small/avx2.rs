//! Chains of products on processors that add two products of bytes in 16 bits.

use super::super::inner::{ROWS, bits_of};
use super::{COLUMNS, Link, Tiles, runs};
use std::arch::x86_64::{
    __m256, __m256i, _mm256_add_epi16, _mm256_add_ps, _mm256_cvtepi32_ps, _mm256_madd_epi16,
    _mm256_maddubs_epi16, _mm256_mul_ps, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32,
    _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256, _mm256_sub_epi16,
};

/// Vectors of the columns of a tile.
const VECTORS: usize = COLUMNS / 8;

/// Rows whose sums fit the registers.
const HALF: usize = ROWS / 2;

fn integers(from: &[u32; COLUMNS]) -> [__m256i; VECTORS] {
    // SAFETY: both are 64 bytes, and any bits are a value of either.
    unsafe { std::mem::transmute(*from) }
}

fn words(from: [__m256i; VECTORS]) -> [u32; COLUMNS] {
    // SAFETY: as above.
    unsafe { std::mem::transmute(from) }
}

fn floats(from: [u32; COLUMNS]) -> [__m256; VECTORS] {
    // SAFETY: as above.
    unsafe { std::mem::transmute(from) }
}

fn bits(from: [__m256; VECTORS]) -> [u32; COLUMNS] {
    // SAFETY: as above.
    unsafe { std::mem::transmute(from) }
}

/// The sums of each column of B times `more`, in two halves of a word.
#[target_feature(enable = "avx2")]
pub(super) fn offsets(b: &Tiles<COLUMNS>, more: u8) -> Vec<[u32; COLUMNS]> {
    let more = _mm256_set1_epi8(more.cast_signed());
    let of_tile = |tile: &[[u32; COLUMNS]]| {
        let mut sums = [_mm256_setzero_si256(); VECTORS];
        for b in tile {
            for (sum, b) in sums.iter_mut().zip(integers(b)) {
                *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(more, b));
            }
        }
        words(sums)
    };
    b.all().map(of_tile).collect()
}

#[target_feature(enable = "avx2")]
pub(super) fn chain(links: &[Link<'_>], n: usize, cells: &mut [u32], pitch: usize) {
    let runs = runs(links);
    for (tile, column) in (0..n).step_by(COLUMNS).enumerate() {
        let width = COLUMNS.min(n - column);
        for half in 0..ROWS / HALF {
            let mut d = [[_mm256_setzero_ps(); VECTORS]; HALF];
            for (r, d) in (half * HALF..).zip(&mut d) {
                let mut piece = [0; COLUMNS];
                piece[..width].copy_from_slice(&cells[r * pitch + column..][..width]);
                *d = floats(piece);
            }
            for run in &runs {
                add(run, tile, half, &mut d);
            }
            for (r, d) in (half * HALF..).zip(d) {
                let cells = &mut cells[r * pitch + column..][..width];
                for (cell, d) in cells.iter_mut().zip(bits(d)) {
                    *cell = bits_of(f32::from_bits(d));
                }
            }
        }
    }
}

/// Adds a run onto a half of the rows.
#[inline]
#[target_feature(enable = "avx2")]
fn add(run: &[Link<'_>], tile: usize, half: usize, d: &mut [[__m256; VECTORS]; HALF]) {
    let Some(first) = run.first() else { return };
    let unit = _mm256_set1_ps(first.product.unit);
    let sums = sums(run, tile, half);
    for (d, sum) in d.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
        let before = if first.accumulate {
            *d
        } else {
            _mm256_setzero_ps()
        };
        *d = _mm256_add_ps(before, _mm256_mul_ps(_mm256_cvtepi32_ps(*sum), unit));
    }
}

/// The sums of a half of a run's rows in the columns of a tile. Neither a pair of products nor their sum leaves 16
/// bits.
#[inline]
#[target_feature(enable = "avx2")]
fn sums(run: &[Link<'_>], tile: usize, half: usize) -> [[__m256i; VECTORS]; HALF] {
    let mut sums = [[_mm256_setzero_si256(); VECTORS]; HALF];
    let mut offset = [_mm256_setzero_si256(); VECTORS];
    for l in run {
        for (all, one) in offset.iter_mut().zip(integers(&l.product.offsets[tile])) {
            *all = _mm256_add_epi16(*all, one);
        }
        for (a, b) in l.a.iter().zip(l.product.b.tile(tile)) {
            let b = integers(b);
            for (sums, a) in sums.iter_mut().zip(&a.as_chunks::<HALF>().0[half]) {
                let a = _mm256_set1_epi32(a.cast_signed());
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(a, b));
                }
            }
        }
    }
    let ones = _mm256_set1_epi16(1);
    for sums in &mut sums {
        for (sum, offset) in sums.iter_mut().zip(offset) {
            *sum = _mm256_madd_epi16(_mm256_sub_epi16(*sum, offset), ones);
        }
    }
    sums
}
