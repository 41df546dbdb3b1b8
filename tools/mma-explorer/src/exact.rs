//! Problems whose result is exact, whatever the order of sums: small integers, and the answer in whole numbers.

use crate::blackwell::Scales;
use crate::matmul::Problem;
use crate::results::SumBits;
use crate::types::Type;
use crate::variants::Variant;

/// The operands of a problem as bytes, and what D must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exact {
    /// Rows of K elements.
    pub a: Vec<u8>,
    /// Columns of K elements.
    pub b: Vec<u8>,
    /// Rows of N elements.
    pub d: Vec<u8>,
    /// Block scales of A and of B ([`Scales`]), where the variant's kernel reads them from memory.
    pub scales: Option<[Vec<u8>; 2]>,
}

/// A generator of numbers that is the same everywhere (xorshift64*).
#[derive(Debug, Clone)]
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        // The state is never zero, and states of near seeds are far apart.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        (bits as usize * limit) >> 32
    }
}

/// Block scales are integers up to this one.
const LARGEST_SCALE: i64 = 4;

/// A type's integers of which K products, each up to their square, have an exact sum in the accumulator, and each of
/// their partial sums, too.
fn values(variant: &Variant, ty: Type, k: u32) -> Vec<i64> {
    let exact: i64 = match variant.accumulator {
        Type::F16 => 1 << 11,
        Type::F32 if !variant.sums_are_wide() => 1 << 14,
        Type::F32 => 1 << 24,
        // Sums of integers are exact unless they leave 32 bits.
        _ => 1 << 31,
    };
    let mut limit = 1;
    // Scales use up a part of the range, which is lost for the elements.
    let exact = match variant.scale() {
        Some(_) => exact / (LARGEST_SCALE * LARGEST_SCALE),
        None => exact,
    };
    // All integers of the narrow types; of the wide ones not more than a byte's.
    while limit < 128 && (limit + 1) * (limit + 1) * i64::from(k) < exact {
        limit += 1;
    }
    ty.integers(if ty.is_integer() && variant.accumulator == Type::S32 {
        255
    } else {
        limit
    })
}

impl Exact {
    /// A problem of random small integers.
    ///
    /// # Panics
    /// Where K is so large that not even sums of ones are exact in the accumulator: 2048 in f16.
    pub fn new(variant: &Variant, problem: Problem, seed: u64) -> Self {
        let Problem { m, n, k } = problem;
        let (m, n, k) = (m as usize, n as usize, k as usize);
        assert!(
            variant.accumulator != Type::F16 || k < 2048,
            "sums of {k} products are not exact in f16"
        );
        let mut random = Random::new(seed);
        let mut draw = |ty: Type, count: usize| -> Vec<i64> {
            let values = values(variant, ty, problem.k);
            (0..count)
                .map(|_| values[random.below(values.len())])
                .collect()
        };
        let (a, b) = (draw(variant.a, m * k), draw(variant.b, n * k));
        let scales = Scales::of(variant, problem);
        // Without scales all of K is one block.
        let block = scales.map_or(k, |[scales, _]| scales.block as usize);
        let blocks = k.div_ceil(block);
        let mut draw_scales = |rows: usize| -> Vec<i64> {
            let Some([scales, _]) = scales else {
                return vec![1; rows * blocks];
            };
            let all = (1..=LARGEST_SCALE).filter(|value| scales.encode(*value).is_some());
            let all: Vec<i64> = all.collect();
            (0..rows * blocks)
                .map(|_| all[random.below(all.len())])
                .collect()
        };
        let (scales_a, scales_b) = (draw_scales(m), draw_scales(n));
        let mut d = Vec::with_capacity(m * n * 4);
        for (row, of_row) in a.chunks_exact(k).zip(scales_a.chunks_exact(blocks)) {
            for (column, of_column) in b.chunks_exact(k).zip(scales_b.chunks_exact(blocks)) {
                let of_block = |(row, column): (&[i64], &[i64])| -> i64 {
                    let products = row.iter().zip(column);
                    match variant.bits() {
                        Some("xor") => products.map(|(x, y)| x ^ y).sum(),
                        // AND of single bits is their product.
                        _ => products.map(|(x, y)| x * y).sum(),
                    }
                };
                let sums = row.chunks(block).zip(column.chunks(block)).map(of_block);
                let scales = of_row.iter().zip(of_column);
                let sum: i64 = sums.zip(scales).map(|(sum, (x, y))| sum * x * y).sum();
                let code = variant.accumulator.encode(sum);
                let code = code.expect("values are chosen so that sums are exact");
                match variant.accumulator.bits() {
                    16 => d.extend((code as u16).to_le_bytes()),
                    _ => d.extend(code.to_le_bytes()),
                }
            }
        }
        Self {
            a: pack(variant, variant.a, &a, k),
            b: pack(variant, variant.b, &b, k),
            d,
            scales: scales.map(|[of_a, of_b]| {
                [
                    pack_scales(&of_a, &scales_a, blocks),
                    pack_scales(&of_b, &scales_b, blocks),
                ]
            }),
        }
    }

    /// Sums of a power of two and one, the one `k - 1` elements behind: D is right where sums keep so many bits below
    /// their largest term. `None` where no two factors have the power for their product, or the accumulator has not the
    /// sum.
    pub fn power_and_one(variant: &Variant, problem: Problem, power: u32) -> Option<Self> {
        let Problem { m, n, k } = problem;
        let (m, n, k) = (m as usize, n as usize, k as usize);
        let mut powers = (0..=power).rev();
        let of_a = powers.find(|power| variant.a.encode(1 << power).is_some())?;
        let of_b = power - of_a;
        variant.b.encode(1 << of_b)?;
        let code = variant.accumulator.encode((1 << power) + 1)?;
        let lines = |count: usize, power: u32| {
            let mut line = vec![0i64; k];
            line[k - 1] = 1;
            line[0] = 1 << power;
            line.repeat(count)
        };
        let bytes = variant.accumulator.bits() as usize / 8;
        Some(Self {
            a: pack(variant, variant.a, &lines(m, of_a), k),
            b: pack(variant, variant.b, &lines(n, of_b), k),
            d: code.to_le_bytes()[..bytes].repeat(m * n),
            scales: Scales::of(variant, problem).map(|scales| {
                scales.map(|scales| {
                    let blocks = k.div_ceil(scales.block as usize);
                    pack_scales(&scales, &vec![1; scales.rows() * blocks], blocks)
                })
            }),
        })
    }

    /// The first element of D that is wrong, in words; `None` where all are right.
    pub fn compare(&self, variant: &Variant, problem: Problem, d: &[u8]) -> Option<String> {
        let bytes = variant.accumulator.bits() as usize / 8;
        let pairs = self.d.chunks_exact(bytes).zip(d.chunks_exact(bytes));
        let wrong = pairs.enumerate().filter(|(_, (x, y))| x != y);
        let wrong: Vec<usize> = wrong.map(|(i, _)| i).collect();
        if d.len() != self.d.len() {
            return Some(format!("D has {} bytes, not {}", d.len(), self.d.len()));
        }
        let &first = wrong.first()?;
        let code = |d: &[u8]| -> String {
            let element = &d[first * bytes..][..bytes];
            element
                .iter()
                .rev()
                .map(|byte| format!("{byte:02x}"))
                .collect()
        };
        let (row, column) = (first / problem.n as usize, first % problem.n as usize);
        Some(format!(
            "{} of {} elements of D are wrong, first row {row} column {column}: {:?} bits {}, not {}",
            wrong.len(),
            self.d.len() / bytes,
            variant.accumulator,
            code(d),
            code(&self.d),
        ))
    }
}

/// How many bits sums of a variant keep below their largest term: `is_right` runs a product of
/// [`Exact::power_and_one`], and says whether it is. `None` of integers, whose sums are exact.
///
/// # Errors
/// Those of `is_right`.
pub fn sum_bits<E>(
    variant: &Variant,
    problem: Problem,
    mut is_right: impl FnMut(&Exact) -> Result<bool, E>,
) -> Result<Option<SumBits>, E> {
    if variant.a.is_integer() {
        return Ok(None);
    }
    let (mut bits, mut ends) = (0, false);
    while !ends && let Some(exact) = Exact::power_and_one(variant, problem, bits + 1) {
        ends = !is_right(&exact)?;
        bits += u32::from(!ends);
    }
    Ok((bits > 0 || ends).then_some(SumBits { bits, ends }))
}

/// Elements as they lie in memory: low bits first, each row of whole bytes.
fn pack(variant: &Variant, ty: Type, elements: &[i64], k: usize) -> Vec<u8> {
    let row_bytes = k * variant.container_bits(ty) as usize / 8;
    let mut bytes = vec![0; elements.len() / k * row_bytes];
    for (row, elements) in elements.chunks_exact(k).enumerate() {
        let row = &mut bytes[row * row_bytes..][..row_bytes];
        for (i, element) in elements.iter().enumerate() {
            let at = variant.bit_of(ty, i);
            let code = u64::from(ty.encode(*element).expect("a number of the type")) << (at % 8);
            // Bytes behind the element get zeros, and need not be there.
            for (byte, part) in row[at / 8..].iter_mut().zip(code.to_le_bytes()) {
                *byte |= part;
            }
        }
    }
    bytes
}

/// The scales of rows of `blocks` blocks as they lie in memory. Scales that belong to no row are zero.
fn pack_scales(scales: &Scales, values: &[i64], blocks: usize) -> Vec<u8> {
    let mut bytes = vec![0; scales.bytes()];
    for (row, values) in values.chunks_exact(blocks).enumerate() {
        for (block, value) in values.iter().enumerate() {
            let code = scales.encode(*value).expect("a number of the type");
            bytes[scales.place(row, block)] = code;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::variants;

    #[test]
    fn elements_lie_in_their_containers() {
        let packed = |name: &str, elements: &[i64]| {
            let variant = variants::find(name).unwrap();
            pack(&variant, variant.a, elements, elements.len())
        };
        for (name, elements, bytes) in [
            (
                "mma.m16n8k64.s32.s4.s4",
                &[1, -1, 7, -8][..],
                &[0xf1, 0x87][..],
            ),
            (
                "mma.m16n8k256.s32.b1.b1.and",
                &[1, 0, 0, 0, 1, 1, 0, 1],
                &[0xb1],
            ),
            ("mma.m16n8k16.f32.f16.f16", &[1, -2], &[0, 0x3c, 0, 0xc0]),
            // 9.7.14.5.14: E2M1 in the central four bits of a byte, E3M2 in the lower six.
            (
                "mma.m16n8k32.f8f6f4.f32.e2m1.e2m1",
                &[1, -6],
                &[0x2 << 2, 0xf << 2],
            ),
            ("mma.m16n8k32.f8f6f4.f32.e3m2.e2m1", &[1, -1], &[0x0c, 0x2c]),
            ("mma.m16n8k64.mxf4.f32.e2m1.e2m1.ue8m0", &[1, -6], &[0xf2]),
        ] {
            assert_eq!(packed(name, elements), bytes, "{name}");
        }
        // 9.7.16.10.5: sixteen elements side by side, and the rest of 16 bytes.
        let sixteen: Vec<i64> = (0..16).map(|i| if i == 3 { -6 } else { 1 }).collect();
        let e2m1 = packed("tcgen05.m128n256k32.f8f6f4.f32.e2m1.e3m2", &sixteen);
        assert_eq!(e2m1[..8], [0x22, 0xf2, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22]);
        assert_eq!(e2m1[8..], [0; 8]);
        let e3m2 = packed("tcgen05.m128n256k32.f8f6f4.f32.e3m2.e3m2", &sixteen);
        // 0x0c three times, then 0x36 (-6): six bits each.
        assert_eq!(e3m2[..3], [0x0c, 0xc3, 0xd8]);
        assert_eq!((e3m2.len(), &e3m2[12..]), (16, &[0; 4][..]));
    }

    #[test]
    fn products_are_sums_of_columns() {
        let variant = variants::find("mma.m16n8k32.s32.s8.u8").unwrap();
        let problem = Problem { m: 2, n: 3, k: 16 };
        let exact = Exact::new(&variant, problem, 7);
        let sum = |(row, column): (usize, usize)| -> i32 {
            let pairs = exact.a[row * 16..]
                .iter()
                .zip(&exact.b[column * 16..][..16]);
            pairs
                .map(|(a, b)| i32::from(*a as i8) * i32::from(*b))
                .sum()
        };
        let d = exact.d.chunks_exact(4);
        let d = d.map(|c| i32::from_le_bytes(c.try_into().unwrap()));
        let sums = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)].map(sum);
        assert_eq!(d.collect::<Vec<_>>(), sums);
        let mut wrong = exact.d.clone();
        wrong[16] ^= 1;
        assert_eq!(exact.compare(&variant, problem, &exact.d), None);
        let said = exact.compare(&variant, problem, &wrong).unwrap();
        let expected = "1 of 6 elements of D are wrong, first row 1 column 1";
        assert!(said.starts_with(expected), "{said}");
        assert!(exact.compare(&variant, problem, &exact.d[4..]).is_some());
    }

    #[test]
    fn powers_that_factors_and_sums_have() {
        let problem = Problem { m: 1, n: 2, k: 64 };
        let has = |name: &str, power: u32| {
            let variant = variants::find(name).unwrap();
            Exact::power_and_one(&variant, problem, power)
        };
        let f16 = has("wgmma.m64n256k16.f32.f16.f16", 20).unwrap();
        let sum = ((1 << 20) as f32 + 1.0).to_bits().to_le_bytes();
        assert_eq!(f16.d, sum.repeat(2));
        // 2^15 and 2^5 in f16, and ones at the end.
        assert_eq!(f16.a[..2], 0x7800u16.to_le_bytes());
        assert_eq!(f16.b[..2], 0x5000u16.to_le_bytes());
        assert_eq!(f16.a[126..], 0x3c00u16.to_le_bytes());
        let e4m3 = "wgmma.m64n256k32.f32.e4m3.e4m3";
        assert!(has(e4m3, 16).is_some() && has(e4m3, 17).is_none());
        let in_half = "wgmma.m64n256k16.f16.f16.f16";
        assert!(has(in_half, 10).is_some() && has(in_half, 11).is_none());
        assert!(has("wgmma.m64n256k16.f32.bf16.bf16", 24).is_none());
    }

    #[test]
    fn every_variants_values_are_many_and_exact() {
        for variant in variants::all() {
            for ty in [variant.a, variant.b] {
                let values = values(&variant, ty, 256);
                let most = values.iter().map(|value| value.abs()).max().unwrap();
                let enough = if ty == Type::B1 { 2 } else { 4 };
                assert!(values.len() >= enough, "{}: {values:?}", variant.name());
                match variant.accumulator {
                    Type::F16 => assert!(most * most * 256 <= 2048, "{}", variant.name()),
                    Type::F32 if !variant.sums_are_wide() => {
                        assert!(most * most * 256 <= 1 << 14, "{}", variant.name())
                    }
                    Type::F32 => assert!(most * most * 256 <= 1 << 24, "{}", variant.name()),
                    _ => {}
                }
            }
        }
    }
}
