//! The inner loops of a matrix product, compiled for several instruction sets.
//!
//! Columns of B lie side by side, so that a loop over columns is one over vector lanes. The sum of an element is still
//! formed in ascending k, in every version to the same bits. A fused multiply-add gives the result that two roundings
//! would give. The reason is that products of elements that tensor cores multiply are exact in f64, and [`exact_f32`]
//! says where they are in f32.

use super::super::versions::versions;

/// Rows that are computed at a time.
pub(super) const ROWS: usize = 8;

/// Columns are filled up to a multiple of this.
pub(super) const COLUMNS: usize = 32;

/// Columns of a piece that is kept in registers.
const PIECE: usize = 16;

/// NaN as the tensor cores write it.
pub(super) const NAN_F32: u32 = 0x7fff_ffff;

/// Type of the numbers that products are formed of.
pub(super) trait Number: Copy + Default {
    /// Start of a sum: a sum of nothing but negative zeros is a negative zero.
    const START: Self;
    /// `a * b + c`.
    fn multiply_add<const FUSED: bool>(a: Self, b: Self, c: Self) -> Self;
    /// A sum's value.
    fn value(self) -> f64;
}

impl Number for f64 {
    const START: f64 = -0.0;

    #[inline(always)]
    fn multiply_add<const FUSED: bool>(a: f64, b: f64, c: f64) -> f64 {
        if FUSED { a.mul_add(b, c) } else { a * b + c }
    }

    #[inline(always)]
    fn value(self) -> f64 {
        self
    }
}

impl Number for f32 {
    const START: f32 = -0.0;

    #[inline(always)]
    fn multiply_add<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
        if FUSED { a.mul_add(b, c) } else { a * b + c }
    }

    #[inline(always)]
    fn value(self) -> f64 {
        f64::from(self)
    }
}

/// Twice E2M1 values: at most 64 products of at most 144.
impl Number for i16 {
    const START: i16 = 0;

    #[inline(always)]
    fn multiply_add<const FUSED: bool>(a: i16, b: i16, c: i16) -> i16 {
        a * b + c
    }

    #[inline(always)]
    fn value(self) -> f64 {
        f64::from(self) * 0.25
    }
}

/// B, `[k][columns]`: each row is as long as `stride`, a multiple of [`COLUMNS`].
#[derive(Debug)]
pub(super) struct Transposed<T> {
    pub(super) stride: usize,
    pub(super) values: Vec<T>,
}

impl<T: Copy + Default> Transposed<T> {
    /// From rows of `k` elements, one a column.
    pub(super) fn new<S: Copy>(rows: &[S], k: usize, value: impl Fn(S) -> T) -> Self {
        let stride = (rows.len() / k.max(1)).next_multiple_of(COLUMNS);
        let mut values = vec![T::default(); stride * k];
        match k {
            8 => transpose::<8, S, T>(rows, stride, &mut values, &value),
            16 => transpose::<16, S, T>(rows, stride, &mut values, &value),
            32 => transpose::<32, S, T>(rows, stride, &mut values, &value),
            64 => transpose::<64, S, T>(rows, stride, &mut values, &value),
            _ => {
                for (column, row) in rows.chunks_exact(k.max(1)).enumerate() {
                    for (v, x) in values[column..].iter_mut().step_by(stride).zip(row) {
                        *v = value(*x);
                    }
                }
            }
        }
        Self { stride, values }
    }
}

/// Rows of known length become columns, some side by side at a time.
fn transpose<const K: usize, S: Copy, T: Copy>(
    rows: &[S],
    stride: usize,
    values: &mut [T],
    value: impl Fn(S) -> T,
) {
    const SIDE_BY_SIDE: usize = 8;
    let (tiles, rest) = rows.as_chunks::<K>().0.as_chunks::<SIDE_BY_SIDE>();
    for (first, tile) in (0..).step_by(SIDE_BY_SIDE).zip(tiles) {
        for step in 0..K {
            let line = &mut values[step * stride + first..][..SIDE_BY_SIDE];
            for (v, row) in line.iter_mut().zip(tile) {
                *v = value(row[step]);
            }
        }
    }
    for (column, row) in (tiles.len() * SIDE_BY_SIDE..).zip(rest) {
        for (v, x) in values[column..].iter_mut().step_by(stride).zip(row) {
            *v = value(*x);
        }
    }
}

/// The sums over `steps` of k of a piece of `R` rows and [`PIECE`] columns.
#[inline(always)]
fn piece<T: Number, const R: usize, const FUSED: bool>(
    a: &[T],
    k: usize,
    b: &Transposed<T>,
    steps: std::ops::Range<usize>,
    column: usize,
) -> [[T; PIECE]; R] {
    let mut sums = [[T::START; PIECE]; R];
    for step in steps {
        let b = &b.values[step * b.stride + column..][..PIECE];
        for (r, sums) in sums.iter_mut().enumerate() {
            let x = a[r * k + step];
            for (sum, y) in sums.iter_mut().zip(b) {
                *sum = T::multiply_add::<FUSED>(x, *y, *sum);
            }
        }
    }
    sums
}

/// [`ROWS`] rows of A times B: `out` is `[row][b.stride]`.
#[inline(always)]
fn products<T: Number, const R: usize, const FUSED: bool>(
    a: &[T],
    k: usize,
    b: &Transposed<T>,
    out: &mut [T],
) {
    for column in (0..b.stride).step_by(PIECE) {
        for row in (0..ROWS).step_by(R) {
            let sums = piece::<T, R, FUSED>(&a[row * k..][..R * k], k, b, 0..k, column);
            for (r, sums) in sums.iter().enumerate() {
                out[(row + r) * b.stride + column..][..PIECE].copy_from_slice(sums);
            }
        }
    }
}

/// One product of a chain: its [`ROWS`] rows of A, B, and whether it is added onto what is there.
pub(super) struct Link<'a> {
    pub(super) a: &'a [f32],
    pub(super) k: usize,
    pub(super) b: &'a Transposed<f32>,
    pub(super) accumulate: bool,
}

/// Adds products onto [`ROWS`] rows of f32 in turn, each with one rounding an element: `cells` are `pitch` apart from
/// row to row, and `n` of each row are meant. One f32 addition rounds as f64 arithmetic and then a conversion would,
/// because f64 has more than twice the bits of f32.
#[inline(always)]
fn chain<T: Number, const R: usize, const FUSED: bool>(
    links: &[Link<'_>],
    n: usize,
    cells: &mut [u32],
    pitch: usize,
) {
    for column in (0..n).step_by(PIECE) {
        let width = PIECE.min(n - column);
        for row in (0..ROWS).step_by(R) {
            let mut d = [[0.0; PIECE]; R];
            for (r, d) in d.iter_mut().enumerate() {
                let cells = &cells[(row + r) * pitch + column..][..width];
                for (d, cell) in d.iter_mut().zip(cells) {
                    *d = f32::from_bits(*cell);
                }
            }
            for l in links {
                let a = &l.a[row * l.k..][..R * l.k];
                let sums = piece::<f32, R, FUSED>(a, l.k, l.b, 0..l.k, column);
                for (d, sums) in d.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
                    *d = if l.accumulate { *d } else { 0.0 } + sums;
                }
            }
            for (r, d) in d.iter().enumerate() {
                let cells = &mut cells[(row + r) * pitch + column..][..width];
                for (cell, d) in cells.iter_mut().zip(d) {
                    *cell = bits_of(*d);
                }
            }
        }
    }
}

/// Products with scale factors: `sa` is `[row][count]`, `sb` has `count` rows.
#[inline(always)]
fn scaled_products<T: Number, const R: usize, const FUSED: bool>(
    a: &[T],
    k: usize,
    b: &Transposed<T>,
    (sa, sb, count): (&[f64], &Transposed<f64>, usize),
    out: &mut [f64],
) {
    let block = k / count;
    for column in (0..b.stride).step_by(PIECE) {
        for row in (0..ROWS).step_by(R) {
            let mut all = [[-0.0; PIECE]; R];
            for i in 0..count {
                let steps = i * block..(i + 1) * block;
                let sums = piece::<T, R, FUSED>(&a[row * k..][..R * k], k, b, steps, column);
                let sb = &sb.values[i * sb.stride + column..][..PIECE];
                for (r, (all, sums)) in all.iter_mut().zip(&sums).enumerate() {
                    let scale = sa[(row + r) * count + i];
                    for ((all, sum), sb) in all.iter_mut().zip(sums).zip(sb) {
                        *all += sum.value() * (scale * sb);
                    }
                }
            }
            for (r, all) in all.iter().enumerate() {
                out[(row + r) * b.stride + column..][..PIECE].copy_from_slice(all);
            }
        }
    }
}

#[inline(always)]
pub(super) fn bits_of(value: f32) -> u32 {
    if value.is_nan() {
        NAN_F32
    } else {
        value.to_bits()
    }
}

/// Adds sums onto cells of f32, times `scale` before: one rounding an element.
#[inline(always)]
fn accumulate<T: Number, const R: usize, const FUSED: bool>(
    cells: &mut [u32],
    scale: f64,
    sums: &[T],
) {
    for (cell, sum) in cells.iter_mut().zip(sums) {
        let old = f64::from(f32::from_bits(*cell)) * scale;
        *cell = bits_of((old + sum.value()) as f32);
    }
}

/// Sums that nothing is added to.
#[inline(always)]
fn store<T: Number, const R: usize, const FUSED: bool>(cells: &mut [u32], sums: &[T]) {
    for (cell, sum) in cells.iter_mut().zip(sums) {
        *cell = bits_of((0.0 + sum.value()) as f32);
    }
}

/// Two bit patterns of f32: the smallest power of two that every finite value is a multiple of (infinity for zeros),
/// and the largest magnitude.
#[inline(always)]
fn extent<T: Number, const R: usize, const FUSED: bool>(values: &[f32], out: &mut (u32, u32)) {
    const INFINITY: u32 = f32::INFINITY.to_bits();
    let (mut least, mut most) = (INFINITY, 0);
    for v in values {
        let bits = v.to_bits() & 0x7fff_ffff;
        // The value without its lowest bit; a power of two is nothing but that bit.
        let without = if bits & 0x007f_ffff == 0 {
            0
        } else {
            bits & bits.wrapping_sub(1)
        };
        let lowest = (f32::from_bits(bits) - f32::from_bits(without)).to_bits();
        least = least.min(if bits == 0 { INFINITY } else { lowest });
        most = most.max(bits);
    }
    *out = (least, most);
}

/// Values of f16, in arithmetic that needs no branch; `bytes` are little-endian pairs.
#[inline(always)]
fn decode_f16<T: Number, const R: usize, const FUSED: bool>(bytes: &[u8], out: &mut [f32]) {
    for (v, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        let bits = u32::from(u16::from_le_bytes([b[0], b[1]]));
        let (sign, magnitude) = ((bits & 0x8000) << 16, bits & 0x7fff);
        // Read as an f32 with the exponent's bias of f16, the value is too small by 2^112. Infinities and NaNs get all
        // ones.
        let finite = f32::from_bits(magnitude << 13) * f32::from_bits((127 + 112) << 23);
        let special = if magnitude >= 0x7c00 { 0x7f80_0000 } else { 0 };
        *v = f32::from_bits(finite.to_bits() | special | sign);
    }
}

/// Integers of less than eight bits, times a power of two before, as bytes of their lowest eight bits.
#[inline(always)]
fn to_bytes<T: Number, const R: usize, const FUSED: bool>(
    values: &[f32],
    times: f32,
    out: &mut [u8],
) {
    // Added to this, integers are the lowest bits of an f32.
    const INTEGERS: f32 = 1.5 * (1u32 << 23) as f32;
    for (byte, v) in out.iter_mut().zip(values) {
        *byte = (v * times + INTEGERS).to_bits() as u8;
    }
}

/// Facts about values of f16.
#[derive(Debug, Default)]
pub(super) struct Whole {
    /// Whether the values are integers below 2048.
    pub(super) all: bool,
    /// The largest magnitude, if they are.
    pub(super) most: u16,
}

/// Integers from little-endian f16, as bytes of their lowest eight bits.
#[inline(always)]
fn f16_to_bytes<T: Number, const R: usize, const FUSED: bool>(
    values: &[u8],
    out: &mut [u8],
    found: &mut Whole,
) {
    let (mut lost, mut most) = (0, 0);
    for (byte, value) in out.iter_mut().zip(values.as_chunks::<2>().0) {
        let bits = u16::from_le_bytes(*value);
        let (magnitude, exponent) = (bits & 0x7fff, bits >> 10 & 0x1f);
        let significand = bits & 0x3ff | 0x400;
        // Bits behind the point. All of the significand where the value is below one, too large, or not finite.
        let behind = 25u16.wrapping_sub(exponent).min(15);
        let integer = significand >> behind;
        lost |= match magnitude {
            0 => 0,
            _ => integer << behind ^ significand,
        };
        most = most.max(integer);
        let sign = 0u16.wrapping_sub(bits >> 15);
        *byte = (integer ^ sign).wrapping_sub(sign) as u8;
    }
    *found = Whole {
        all: lost == 0,
        most,
    };
}

versions!(products_f64[f64](a: &[f64], k: usize, b: &Transposed<f64>, out: &mut [f64]) = products);
versions!(products_f32[f32](a: &[f32], k: usize, b: &Transposed<f32>, out: &mut [f32]) = products);
versions!(scaled_f64[f64](
    a: &[f64], k: usize, b: &Transposed<f64>, scales: (&[f64], &Transposed<f64>, usize), out: &mut [f64]
) = scaled_products);
versions!(scaled_i16[i16](
    a: &[i16], k: usize, b: &Transposed<i16>, scales: (&[f64], &Transposed<f64>, usize), out: &mut [f64]
) = scaled_products);
versions!(accumulate_f64[f64](cells: &mut [u32], scale: f64, sums: &[f64]) = accumulate);
versions!(accumulate_f32[f32](cells: &mut [u32], scale: f64, sums: &[f32]) = accumulate);
versions!(store_f64[f64](cells: &mut [u32], sums: &[f64]) = store);
versions!(store_f32[f32](cells: &mut [u32], sums: &[f32]) = store);
versions!(chain_f32[f32](links: &[Link<'_>], n: usize, cells: &mut [u32], pitch: usize) = chain);
versions!(extent_of[f32](values: &[f32], out: &mut (u32, u32)) = extent);
versions!(bytes_of[f32](values: &[f32], times: f32, out: &mut [u8]) = to_bytes);
versions!(f16_integers[f32](values: &[u8], out: &mut [u8], found: &mut Whole) = f16_to_bytes);
versions!(
    /// Values of f16 from little-endian pairs of bytes.
    f16_values[f32](bytes: &[u8], out: &mut [f32]) = decode_f16
);

/// The unit that values are multiples of.
pub(super) struct Units {
    /// A power of two, 1 for zeros.
    pub(super) unit: f32,
    /// The largest magnitude, in units.
    pub(super) most: f32,
}

/// The largest power of two that all values are multiples of, if they are finite.
pub(super) fn units(values: &[f32]) -> Option<Units> {
    let mut of = (0, 0);
    extent_of(values, &mut of);
    let (unit, most) = (f32::from_bits(of.0), f32::from_bits(of.1));
    match (most == 0.0, most.is_finite()) {
        (true, _) => Some(Units { unit: 1.0, most }),
        (_, true) => Some(Units {
            unit,
            most: most / unit,
        }),
        _ => None,
    }
}

/// Whether every sum of `k` products of these values is exact in f32, in any order. Then f32 arithmetic gives
/// the bits that f64 arithmetic gives.
pub(super) fn exact_f32(a: &[f32], b: &[f32], k: usize) -> bool {
    let (mut ea, mut eb) = ((0, 0), (0, 0));
    extent_of(a, &mut ea);
    extent_of(b, &mut eb);
    let value = |bits| f64::from(f32::from_bits(bits));
    let unit = value(ea.0) * value(eb.0);
    let most = value(ea.1) * value(eb.1) * k as f64;
    // Sums are multiples of the unit, and so few of them that 24 bits hold the number. NaN compares false.
    unit == f64::INFINITY && most == 0.0
        || unit >= f64::from(f32::MIN_POSITIVE)
            && most <= unit * f64::from(1u32 << 24)
            && most <= f64::from(f32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(state: &mut u64) -> u64 {
        *state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        *state >> 33
    }

    #[test]
    fn every_version_sums_in_ascending_k() {
        let (k, n, mut state) = (16, 40, 7);
        let mut draw = |count: usize| -> Vec<f64> {
            let f16 = |s: &mut u64| half::f16::from_bits(random(s) as u16 & 0xbbff);
            (0..count).map(|_| f64::from(f16(&mut state))).collect()
        };
        let (a, b) = (draw(ROWS * k), draw(n * k));
        let t = Transposed::new(&b, k, |v| v);
        assert_eq!(t.stride, 64);
        let (mut best, mut plain) = (vec![0.0; ROWS * 64], vec![0.0; ROWS * 64]);
        products_f64(&a, k, &t, &mut best);
        products::<f64, 2, false>(&a, k, &t, &mut plain);
        for row in 0..ROWS {
            for col in 0..n {
                let want = (0..k).fold(-0.0, |s, i| s + a[row * k + i] * b[col * k + i]);
                assert_eq!(best[row * 64 + col].to_bits(), f64::to_bits(want));
                assert_eq!(plain[row * 64 + col].to_bits(), f64::to_bits(want));
            }
        }
    }

    #[test]
    fn all_values_of_f16() {
        let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let mut values = vec![0.0; 1 << 16];
        f16_values(&bytes, &mut values);
        for (bits, v) in values.iter().enumerate() {
            let want = half::f16::from_bits(bits as u16).to_f32();
            let same = v.to_bits() == want.to_bits() || v.is_nan() && want.is_nan();
            assert!(same, "{bits:#x}: {v}, not {want}");
        }
    }

    #[test]
    fn integers_of_f16() {
        for bits in 0..=u16::MAX {
            let value = half::f16::from_bits(bits).to_f32();
            let mut byte = [0];
            let mut found = Whole::default();
            f16_integers(&bits.to_le_bytes(), &mut byte, &mut found);
            let whole = value.fract() == 0.0 && value.abs() < 2048.0;
            assert_eq!(found.all, whole, "{bits:#x}: {value}");
            if whole {
                assert_eq!(f32::from(found.most), value.abs());
                assert_eq!(byte[0], value as i32 as u8);
            }
        }
    }

    #[test]
    fn f32_is_used_only_where_it_is_exact() {
        assert!(exact_f32(&[1.0, -4.0, 0.0], &[3.0, 0.5], 64));
        assert!(exact_f32(&[0.0; 4], &[f32::MAX; 4], 16));
        // 2^12 + 1 squared has 25 bits.
        assert!(!exact_f32(&[4097.0], &[4097.0], 1));
        assert!(exact_f32(&[4096.0], &[4097.0], 1));
        // Sixteen products of 2^20 each are 2^24 units; with 17 they need not fit.
        assert!(exact_f32(&[1024.0, 1.0], &[1024.0, 1.0], 16));
        assert!(!exact_f32(&[1024.0, 1.0], &[1024.0, 1.0], 17));
        assert!(!exact_f32(&[f32::INFINITY], &[1.0], 1));
        assert!(!exact_f32(&[f32::NAN, 1.0], &[1.0], 1));
        assert!(!exact_f32(&[f32::INFINITY], &[0.0], 1));
        // Exact in f64 only: far below what f32 can hold.
        assert!(!exact_f32(&[1e-30], &[1e-30], 1));
    }
}
