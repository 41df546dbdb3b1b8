//! Products of small integers, on processors that add several products of bytes at once.
//!
//! Tests mostly multiply small integers, because all sums of them are exact. Where all values of both operands are
//! multiples of powers of two by at most 127, they fit bytes, and integer sums say the same as sums in f32.
//!
//! Two kinds of processors have such instructions ([`Level`]). One adds four products in 32 bits. The other one adds two in
//! 16 bits, so values must be smaller there.

use super::super::idesc::Accumulator;
use super::Mma;
use super::inner::{self, ROWS, Transposed};

/// Values of a group: bytes that lie in a word of 32 bits.
const GROUP: usize = 4;

/// Integers up to this are exact in f32.
const EXACT: u32 = 1 << 24;

/// What a processor has for products of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    /// Four products of bytes are added in 32 bits: AVX512-VNNI.
    Four,
    /// Two are added in 16 bits: AVX2.
    Two,
}

impl Level {
    /// The best that this processor has.
    fn best() -> Option<Self> {
        [Level::Four, Level::Two]
            .into_iter()
            .find(|l| l.available())
    }

    #[cfg(target_arch = "x86_64")]
    fn available(self) -> bool {
        match self {
            Level::Four => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
            }
            Level::Two => is_x86_feature_detected!("avx2"),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn available(self) -> bool {
        false
    }

    /// The largest sum of magnitudes of products that it holds.
    fn most(self) -> u32 {
        match self {
            Level::Four => EXACT,
            // Half of it is what A's bytes are more than its values. A pair is a half of a group.
            Level::Two => 0x7fff,
        }
    }
}

/// A product whose operands are bytes.
#[derive(Debug)]
pub(super) struct Small {
    level: Level,
    /// `[m][k / 4]`: groups of bytes, each `more` than a value of A in units of its power of two.
    a: Vec<u32>,
    more: u8,
    /// `[k / 4][n]`: groups of the values of B in units of its power of two.
    b: Transposed<u32>,
    groups: usize,
    /// The product of both powers of two.
    unit: f32,
    /// No sum has more units than this.
    most: u32,
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
    plain && mma.disable_lanes == [0; 8] && Level::best().is_some()
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
        Self::at(Level::best()?, a, b, k)
    }

    fn at(level: Level, a: &[f32], b: &[f32], k: usize) -> Option<Self> {
        let of_a = inner::units(a)?;
        let of_b = inner::units(b)?;
        let fit = of_a.most <= 127.0 && of_b.most <= 127.0 && k.is_multiple_of(GROUP);
        // Sums are so many units at most, which f32 holds.
        let most = of_a.most * of_b.most * k as f32;
        let unit = of_a.unit * of_b.unit;
        let exact = most <= level.most() as f32 && unit.is_normal() && (most * unit).is_finite();
        // A's bytes have no sign.
        let more = match level {
            Level::Four => 128,
            Level::Two => of_a.most as u8,
        };
        (fit && exact).then(|| Self {
            level,
            a: groups(a, of_a.unit, more),
            more,
            b: Transposed::new(&groups(b, of_b.unit, 0), k / GROUP, |v| v),
            groups: k / GROUP,
            unit,
            most: most as u32,
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

/// Adds products onto [`ROWS`] rows of f32 in turn, as [`inner::chain_f32`] does: to the same bits, unless a cell is a
/// negative zero.
pub(super) fn chain(links: &[Link<'_>], n: usize, cells: &mut [u32], pitch: usize) {
    #[cfg(target_arch = "x86_64")]
    match links.first().map(|l| l.product.level) {
        // SAFETY: there are products of a level only on a processor that has it, which is what the function is compiled for.
        Some(Level::Four) if Level::Four.available() => unsafe {
            vnni::chain(links, n, cells, pitch);
        },
        // SAFETY: as above.
        Some(Level::Two) if Level::Two.available() => unsafe {
            avx2::chain(links, n, cells, pitch);
        },
        _ => {}
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (links, n, cells, pitch);
}

/// The first links of a chain that can be added up as integers before anything is rounded: how many, and what is known
/// behind them of the cells, namely that they are so many units at most. `known` is that of the cells before.
#[cfg(target_arch = "x86_64")]
fn run(links: &[Link<'_>], known: Option<(f32, u32)>) -> (usize, Option<(f32, u32)>) {
    let Some(first) = links.first() else {
        return (0, known);
    };
    let (level, unit) = (first.product.level, first.product.unit);
    let before = match known {
        _ if !first.accumulate => Some(0),
        Some((of, most)) if of == unit => Some(most),
        _ => None,
    };
    // Onto other cells, one sum at a time is rounded.
    let Some(before) = before.filter(|b| b + first.product.most <= EXACT) else {
        return (1, None);
    };
    let (mut count, mut most) = (1, first.product.most);
    for l in &links[1..] {
        let more = most + l.product.most;
        let joins = l.accumulate && l.product.unit == unit;
        if !joins || more > level.most() || before + more > EXACT {
            break;
        }
        (count, most) = (count + 1, more);
    }
    (count, Some((unit, before + most)))
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::super::inner::{ROWS, bits_of};
    use super::{Link, run};
    use std::arch::x86_64::{
        __m256, __m256i, _mm256_add_epi16, _mm256_add_ps, _mm256_cvtepi32_ps, _mm256_madd_epi16,
        _mm256_maddubs_epi16, _mm256_mul_ps, _mm256_set1_epi8, _mm256_set1_epi16,
        _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256,
        _mm256_sub_epi16,
    };

    /// Columns of a vector.
    const PIECE: usize = 8;

    fn integers(from: &[u32; PIECE]) -> __m256i {
        // SAFETY: both are 32 bytes, and any bits are a value of either.
        unsafe { std::mem::transmute(*from) }
    }

    fn bits(from: __m256) -> [u32; PIECE] {
        // SAFETY: as above.
        unsafe { std::mem::transmute(from) }
    }

    fn floats(from: &[u32; PIECE]) -> __m256 {
        // SAFETY: as above.
        unsafe { std::mem::transmute(*from) }
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn chain(links: &[Link<'_>], n: usize, cells: &mut [u32], pitch: usize) {
        let mut runs = Vec::new();
        let (mut rest, mut known) = (links, None);
        while !rest.is_empty() {
            let count;
            (count, known) = run(rest, known);
            runs.push(&rest[..count]);
            rest = &rest[count..];
        }
        for column in (0..n).step_by(PIECE) {
            let width = PIECE.min(n - column);
            let mut d = [_mm256_setzero_ps(); ROWS];
            for (r, d) in d.iter_mut().enumerate() {
                let mut piece = [0; PIECE];
                piece[..width].copy_from_slice(&cells[r * pitch + column..][..width]);
                *d = floats(&piece);
            }
            for run in &runs {
                let Some(first) = run.first() else { continue };
                let sums = sums(run, column);
                let unit = _mm256_set1_ps(first.product.unit);
                for (d, sum) in d.iter_mut().zip(sums) {
                    let before = if first.accumulate {
                        *d
                    } else {
                        _mm256_setzero_ps()
                    };
                    *d = _mm256_add_ps(before, _mm256_mul_ps(_mm256_cvtepi32_ps(sum), unit));
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

    /// The sums of a run's rows in a vector of columns. Neither a pair of products nor their sum leaves 16 bits.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn sums(run: &[Link<'_>], column: usize) -> [__m256i; ROWS] {
        let mut sums = [_mm256_setzero_si256(); ROWS];
        // What is too much because A's bytes are more than its values.
        let mut offset = _mm256_setzero_si256();
        for l in run {
            let (b, groups) = (&l.product.b, l.product.groups);
            let more = _mm256_set1_epi8(l.product.more.cast_signed());
            for group in 0..groups {
                let Some(b) = b.values[group * b.stride + column..].first_chunk() else {
                    break;
                };
                let b = integers(b);
                offset = _mm256_add_epi16(offset, _mm256_maddubs_epi16(more, b));
                for (r, sum) in sums.iter_mut().enumerate() {
                    let a = _mm256_set1_epi32(l.a[r * groups + group].cast_signed());
                    *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(a, b));
                }
            }
        }
        let ones = _mm256_set1_epi16(1);
        sums.map(|sum| _mm256_madd_epi16(_mm256_sub_epi16(sum, offset), ones))
    }
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

    /// The largest value or its negative.
    fn extreme(state: &mut u64, most: u64) -> f32 {
        most as f32 * if draw(state, 1) < 0.0 { -0.25 } else { 0.25 }
    }

    /// Chains of such products by bytes and by f32: `accumulates` says which are added onto what is there.
    fn compare(
        level: Level,
        (k, most): (usize, u64),
        value: fn(&mut u64, u64) -> f32,
        accumulates: &[bool],
        state: &mut u64,
    ) {
        let (n, pitch) = (24, 40);
        let mut cells: Vec<u32> = (0..ROWS * pitch)
            .map(|_| (draw(state, 1 << 20) / 3.0 + 1e-7).to_bits())
            .collect();
        let mut want = cells.clone();
        let operands: Vec<(Vec<f32>, Vec<f32>)> = accumulates
            .iter()
            .map(|_| {
                let a = (0..ROWS * k).map(|_| value(state, most)).collect();
                (a, (0..n * k).map(|_| value(state, most)).collect())
            })
            .collect();
        let small: Vec<_> = operands
            .iter()
            .filter_map(|(a, b)| Small::at(level, a, b, k))
            .collect();
        assert_eq!(small.len(), accumulates.len(), "{level:?}: {most}, {k}");
        let links: Vec<_> = small
            .iter()
            .zip(accumulates)
            .filter_map(|(s, accumulate)| s.link(0, *accumulate))
            .collect();
        chain(&links, n, &mut cells, pitch);
        let b: Vec<_> = operands
            .iter()
            .map(|(_, b)| Transposed::new(b, k, |v| v))
            .collect();
        let links: Vec<_> = operands
            .iter()
            .zip(&b)
            .zip(accumulates)
            .map(|(((a, _), b), accumulate)| inner::Link {
                a,
                k,
                b,
                accumulate: *accumulate,
            })
            .collect();
        inner::chain_f32(&links, n, &mut want, pitch);
        assert_eq!(cells, want, "{level:?}: {most}, {k}, {accumulates:?}");
    }

    #[test]
    fn integers_give_the_bits_of_f32() {
        let mut state = 3;
        let four = [(8, 127), (16, 127), (32, 90), (64, 6)];
        // The last one of each length is the largest that 16 bits hold.
        let two = [
            (8, 3),
            (8, 63),
            (16, 1),
            (16, 45),
            (32, 31),
            (64, 4),
            (64, 22),
        ];
        for (level, sizes) in [(Level::Four, &four[..]), (Level::Two, &two[..])] {
            if !level.available() {
                continue;
            }
            for &(k, most) in sizes {
                for accumulates in [
                    &[true, false, true][..],
                    &[false; 3],
                    &[true; 4],
                    // Long enough to leave 16 bits, where values are large, and 24 where they would.
                    &[&[false][..], &[true; 60]].concat(),
                ] {
                    for value in [draw, extreme] {
                        compare(level, (k, most), value, accumulates, &mut state);
                    }
                }
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn sums_are_rounded_one_by_one_where_they_may_not_be_exact() {
        let of = |unit: f32| {
            let a: Vec<f32> = [3.0, 1.0, 0.0, -2.0].map(|v| v * unit).repeat(ROWS);
            Small::at(Level::Two, &a, &[1.0; 4], 4).unwrap()
        };
        let (small, halves) = (of(1.0), of(0.5));
        assert_eq!((small.most, small.unit, halves.unit), (12, 1.0, 0.5));
        let new = || small.link(0, false).unwrap();
        let onto = || small.link(0, true).unwrap();
        let half = || halves.link(0, true).unwrap();
        assert_eq!(run(&[new(), onto(), onto()], None), (3, Some((1.0, 36))));
        assert_eq!(run(&[onto(), onto()], None), (1, None));
        assert_eq!(run(&[onto(), onto()], Some((1.0, 5))), (2, Some((1.0, 29))));
        assert_eq!(run(&[new(), new()], Some((1.0, 5))), (1, Some((1.0, 12))));
        assert_eq!(run(&[new(), half()], None), (1, Some((1.0, 12))));
        assert_eq!(run(&[half()], Some((1.0, 12))), (1, None));
        // What f32 holds, and what 16 bits hold.
        assert_eq!(run(&[onto()], Some((1.0, EXACT - 11))), (1, None));
        let last = (1, Some((1.0, EXACT)));
        assert_eq!(run(&[onto(), onto()], Some((1.0, EXACT - 12))), last);
        let many: Vec<_> = (0..3000).map(|_| onto()).collect();
        assert_eq!(run(&many, Some((1.0, 0))).0, 32767 / 12);
    }

    #[test]
    fn what_does_not_fit_a_byte_is_refused() {
        let of = |a: &[f32], b: &[f32], k| Small::at(Level::Four, a, b, k);
        assert!(of(&[127.0, 1.0, 0.0, -127.0], &[0.5, 0.0, 63.5, -1.0], 4).is_some());
        assert!(of(&[128.0, 1.0, 0.0, 0.0], &[1.0; 4], 4).is_none());
        assert!(of(&[1.0; 4], &[128.0, 1.0, 0.0, 0.0], 4).is_none());
        assert!(of(&[f32::NAN, 1.0, 0.0, 0.0], &[1.0; 4], 4).is_none());
        assert!(of(&[f32::INFINITY, 1.0, 0.0, 0.0], &[1.0; 4], 4).is_none());
        assert!(of(&[0.0; 4], &[0.0; 4], 4).is_some());
        // Four products of 8190 or 8128 are fewer than 2^15, four of 8255 are not.
        let of = |a: &[f32], b: &[f32], k| Small::at(Level::Two, a, b, k);
        assert!(of(&[90.0, 1.0, 0.0, 0.0], &[91.0, 1.0, 0.0, 0.0], 4).is_some());
        assert!(of(&[64.0, 1.0, 0.0, 0.0], &[127.0, 1.0, 0.0, 0.0], 4).is_some());
        assert!(of(&[127.0, 1.0, 0.0, 0.0], &[65.0, 1.0, 0.0, 0.0], 4).is_none());
    }
}
