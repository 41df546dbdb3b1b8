//! Products of small integers, on processors that add four products of bytes at once.
//!
//! Tests mostly multiply small integers, because all sums of them are exact. Where all values of both operands are
//! multiples of powers of two by at most 127, they fit bytes, and integer sums say the same as sums in f32.

use super::super::idesc::Accumulator;
use super::Mma;
use super::inner::{self, ROWS, Transposed};

/// Values of a byte's group: as many as are multiplied and added at once.
const GROUP: usize = 4;

/// A product whose operands are bytes.
#[derive(Debug)]
pub(super) struct Small {
    /// `[m][k / 4]`: groups of bytes, each 128 more than a value of A in units of its power of two.
    a: Vec<u32>,
    /// `[k / 4][n]`: groups of the values of B in units of its power of two.
    b: Transposed<u32>,
    groups: usize,
    /// The product of both powers of two.
    unit: f32,
}

/// A product of a chain: [`ROWS`] rows of it, and whether it is added onto what is there.
pub(super) struct Link<'a> {
    a: &'a [u32],
    product: &'a Small,
    accumulate: bool,
}

/// Whether this processor has what it takes, and the MMA adds onto f32 without scale.
pub(super) fn takes(mma: &Mma) -> bool {
    let plain = mma.idesc.d == Accumulator::F32 && mma.scale_input_d == 0;
    plain && mma.disable_lanes == [0; 8] && available()
}

/// Values in units of a power of two, each with a number added, as groups of bytes.
fn groups(values: &[f32], unit: f32, more: u8) -> Vec<u32> {
    let mut bytes = vec![0; values.len()];
    inner::bytes_of(values, (1.0 / unit, more), &mut bytes);
    let groups = bytes.as_chunks::<GROUP>().0.iter();
    groups.map(|g| u32::from_le_bytes(*g)).collect()
}

impl Small {
    /// Of A `[m][k]` and B `[n][k]`, if their values are small and all sums exact in f32.
    pub(super) fn of(a: &[f32], b: &[f32], k: usize) -> Option<Self> {
        let of_a = inner::units(a)?;
        let of_b = inner::units(b)?;
        let fit = of_a.most <= 127.0 && of_b.most <= 127.0 && k.is_multiple_of(GROUP);
        // Sums are so many units at most, which f32 holds.
        let most = of_a.most * of_b.most * k as f32;
        let unit = of_a.unit * of_b.unit;
        let exact = most <= (1u32 << 24) as f32 && unit.is_normal() && (most * unit).is_finite();
        (fit && exact).then(|| Self {
            a: groups(a, of_a.unit, 128),
            b: Transposed::new(&groups(b, of_b.unit, 0), k / GROUP, |v| v),
            groups: k / GROUP,
            unit,
        })
    }

    /// [`ROWS`] rows from one on as a link of a chain.
    pub(super) fn link(&self, first: usize, accumulate: bool) -> Option<Link<'_>> {
        Some(Link {
            a: self
                .a
                .get(first * self.groups..(first + ROWS) * self.groups)?,
            product: self,
            accumulate,
        })
    }
}

#[cfg(target_arch = "x86_64")]
fn available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vnni")
}

#[cfg(not(target_arch = "x86_64"))]
fn available() -> bool {
    false
}

/// Adds products onto [`ROWS`] rows of f32 in turn, as [`inner::chain_f32`] does: to the same bits, unless a cell is a
/// negative zero.
pub(super) fn chain(links: &[Link<'_>], n: usize, cells: &mut [u32], pitch: usize) {
    #[cfg(target_arch = "x86_64")]
    if available() {
        // SAFETY: this processor has what the function is compiled for.
        unsafe { vnni::chain(links, n, cells, pitch) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (links, n, cells, pitch);
}

#[cfg(target_arch = "x86_64")]
mod vnni {
    use super::super::inner::{ROWS, bits_of};
    use super::Link;
    use std::arch::x86_64::{
        __m512, __m512i, _mm512_add_ps, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_mul_ps,
        _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512,
        _mm512_sub_epi32,
    };

    /// Columns of a vector.
    const PIECE: usize = 16;
    /// 128 four times.
    const OFFSETS: i32 = 0x8080_8080_u32.cast_signed();

    fn integers(from: &[u32; PIECE]) -> __m512i {
        // SAFETY: both are 64 bytes, and any bits are a value of either.
        unsafe { std::mem::transmute(*from) }
    }

    fn bits(from: __m512) -> [u32; PIECE] {
        // SAFETY: as above.
        unsafe { std::mem::transmute(from) }
    }

    fn floats(from: &[u32; PIECE]) -> __m512 {
        // SAFETY: as above.
        unsafe { std::mem::transmute(*from) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) fn chain(links: &[Link<'_>], n: usize, cells: &mut [u32], pitch: usize) {
        for column in (0..n).step_by(PIECE) {
            let width = PIECE.min(n - column);
            let mut d = [_mm512_setzero_ps(); ROWS];
            for (r, d) in d.iter_mut().enumerate() {
                let mut piece = [0; PIECE];
                piece[..width].copy_from_slice(&cells[r * pitch + column..][..width]);
                *d = floats(&piece);
            }
            for l in links {
                let sums = sums(l, column);
                let unit = _mm512_set1_ps(l.product.unit);
                for (d, sum) in d.iter_mut().zip(sums) {
                    let before = if l.accumulate {
                        *d
                    } else {
                        _mm512_setzero_ps()
                    };
                    *d = _mm512_add_ps(before, _mm512_mul_ps(_mm512_cvtepi32_ps(sum), unit));
                }
            }
            for (r, d) in d.iter().enumerate() {
                let cells = &mut cells[r * pitch + column..][..width];
                for (cell, d) in cells.iter_mut().zip(bits(*d)) {
                    *cell = bits_of(f32::from_bits(d));
                }
            }
        }
    }

    /// The sums of a product's rows in a vector of columns.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn sums(l: &Link<'_>, column: usize) -> [__m512i; ROWS] {
        let (b, groups) = (&l.product.b, l.product.groups);
        let mut sums = [_mm512_setzero_si512(); ROWS];
        // What the 128 of each byte of A adds too much.
        let mut offset = _mm512_setzero_si512();
        for group in 0..groups {
            let Some(b) = b.values[group * b.stride + column..].first_chunk() else {
                break;
            };
            let b = integers(b);
            offset = _mm512_dpbusd_epi32(offset, _mm512_set1_epi32(OFFSETS), b);
            for (r, sum) in sums.iter_mut().enumerate() {
                let a = _mm512_set1_epi32(l.a[r * groups + group].cast_signed());
                *sum = _mm512_dpbusd_epi32(*sum, a, b);
            }
        }
        sums.map(|sum| _mm512_sub_epi32(sum, offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(state: &mut u64, most: u64) -> f32 {
        *state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (((*state >> 33) % (2 * most + 1)) as f32 - most as f32) * 0.25
    }

    #[test]
    fn integers_give_the_bits_of_f32() {
        if !available() {
            return;
        }
        let (n, pitch, mut state) = (24, 40, 3);
        for (k, most) in [(8, 127), (16, 127), (32, 90), (64, 6)] {
            let mut cells: Vec<u32> = (0..ROWS * pitch)
                .map(|_| (draw(&mut state, 1 << 20) / 3.0 + 1e-7).to_bits())
                .collect();
            let mut want = cells.clone();
            let operands: Vec<(Vec<f32>, Vec<f32>)> = (0..3)
                .map(|_| {
                    let a = (0..ROWS * k).map(|_| draw(&mut state, most)).collect();
                    (a, (0..n * k).map(|_| draw(&mut state, most)).collect())
                })
                .collect();
            let small: Vec<_> = operands
                .iter()
                .filter_map(|(a, b)| Small::of(a, b, k))
                .collect();
            assert_eq!(small.len(), 3, "{k}");
            let links: Vec<_> = small
                .iter()
                .enumerate()
                .filter_map(|(i, s)| s.link(0, i != 1))
                .collect();
            chain(&links, n, &mut cells, pitch);
            let b: Vec<_> = operands
                .iter()
                .map(|(_, b)| Transposed::new(b, k, |v| v))
                .collect();
            let links: Vec<_> = operands
                .iter()
                .zip(&b)
                .enumerate()
                .map(|(i, ((a, _), b))| inner::Link {
                    a,
                    k,
                    b,
                    accumulate: i != 1,
                })
                .collect();
            inner::chain_f32(&links, n, &mut want, pitch);
            assert_eq!(cells, want, "{k}");
        }
    }

    #[test]
    fn what_does_not_fit_a_byte_is_refused() {
        assert!(Small::of(&[127.0, 1.0, 0.0, -127.0], &[0.5, 0.0, 63.5, -1.0], 4).is_some());
        assert!(Small::of(&[128.0, 1.0, 0.0, 0.0], &[1.0; 4], 4).is_none());
        assert!(Small::of(&[1.0; 4], &[128.0, 1.0, 0.0, 0.0], 4).is_none());
        assert!(Small::of(&[f32::NAN, 1.0, 0.0, 0.0], &[1.0; 4], 4).is_none());
        assert!(Small::of(&[f32::INFINITY, 1.0, 0.0, 0.0], &[1.0; 4], 4).is_none());
        assert!(Small::of(&[0.0; 4], &[0.0; 4], 4).is_some());
    }
}
