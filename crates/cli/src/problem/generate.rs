//! Random problems: the formats' full range, and data with exact answers.

use fastrand::Rng;
use nvfp4_gemv::Shape;
use nvfp4_gemv::format::{e2m1, e4m3};
use rayon::prelude::*;

use super::Problem;

/// A generator for row `row` of an operand, independent of every other row's.
fn row_rng(seed: u64, operand: u64, row: usize) -> Rng {
    // Odd constants spread consecutive rows and operands over the seed's 64 bits.
    let row = (row as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Rng::with_seed(seed ^ row.rotate_left(17) ^ operand.wrapping_mul(0xd1b5_4a32_d192_ed03))
}

/// A factor that keeps any result of `k` products of this format below 2^15, so that no output type overflows. 448 · 6
/// is the largest element, and 448² · 36 · K the largest sum.
pub(super) fn taming_alpha(k: usize) -> f32 {
    let largest = f64::from(e4m3::MAX * e2m1::MAX).powi(2) * k as f64;
    (15.0 - largest.log2()).floor().exp2() as f32
}

/// The most vectors that have all their elements in [`Problem::integers`].
const DENSE_VECTORS: usize = 16;
/// With more than [`DENSE_VECTORS`], about so many vectors have an element that is not 0 at each place.
const SPARSE_SHARE: usize = 8;

impl Problem {
    /// Fills codes and scales row by row, in parallel. No alpha, no result.
    pub(super) fn fill_rows(
        shape: Shape,
        seed: u64,
        codes: impl Fn(&mut Rng, &mut [u8]) + Sync,
        scales: impl Fn(&mut Rng, &mut [u8]) + Sync,
    ) -> Self {
        let fill = |rows: usize, operand: u64| {
            let mut code_bytes = vec![0; rows * shape.row_code_bytes()];
            let mut scale_bytes = vec![0; rows * shape.blocks()];
            code_bytes
                .par_chunks_exact_mut(shape.row_code_bytes())
                .zip(scale_bytes.par_chunks_exact_mut(shape.blocks()))
                .enumerate()
                .for_each(|(row, (code_row, scale_row))| {
                    let mut rng = row_rng(seed, operand, row);
                    codes(&mut rng, code_row);
                    scales(&mut rng, scale_row);
                });
            (code_bytes, scale_bytes)
        };
        let (a, sfa) = fill(shape.l() * shape.m(), 1);
        let (b, sfb) = fill(shape.l() * shape.n(), 2);
        Self {
            shape,
            a,
            sfa,
            b,
            sfb,
            alpha: None,
            c: None,
        }
    }

    /// All 16 codes, uniformly; all 127 finite non-negative scales, uniformly over the codes, so
    /// that subnormal scales meet large ones in a row. Alpha keeps every result finite in f16.
    pub fn full_range(shape: Shape, seed: u64) -> Self {
        let mut problem = Self::fill_rows(
            shape,
            seed,
            |rng, codes| rng.fill(codes),
            |rng, scales| scales.fill_with(|| rng.u8(..0x7f)),
        );
        // Not a power of two: multiplying by it rounds, as it does for real layers.
        let fraction = 0.75 + 0.25 * row_rng(seed, 3, 0).f32();
        problem.alpha = Some(vec![taming_alpha(shape.k()) * fraction]);
        problem
    }

    /// Every result is an integer of magnitude at most 256, and every partial sum in whatever order is exact in f32. So
    /// the answer has the same bits for every summation order and in every output type. An index that is off by one
    /// gives another integer.
    ///
    /// All non-zero codes occur in the weights, with scales 2 and 4; vectors are 0, ±1, ±2, ±3 times 1 or 2. The sign
    /// of each weight is chosen to bring the running sums back to zero, which keeps results small although every
    /// element counts. One sign cannot do that for many vectors at once. So where there are more than 16 vectors, most
    /// elements of a vector are 0, and each weight counts for about eight of them.
    pub fn integers(shape: Shape, seed: u64) -> Self {
        // The vectors first: the weights' signs depend on them.
        let n = shape.n();
        let mut problem = Self::fill_rows(
            shape,
            seed,
            |rng, codes| {
                codes.fill_with(|| {
                    let mut nibble = || {
                        if n > DENSE_VECTORS && rng.usize(..n) >= SPARSE_SHARE {
                            return 0;
                        }
                        // 0, 0.5, 1, 1.5 with either sign.
                        rng.u8(..4) | rng.u8(..2) << 3
                    };
                    nibble() | nibble() << 4
                });
            },
            |rng, scales| scales.fill_with(|| if rng.bool() { 0x40 } else { 0x48 }),
        );
        let (k, blocks) = (shape.k(), shape.blocks());
        // x[l][k][n]: the inner loop below runs over the vectors.
        let mut x = vec![0i32; shape.vector_elements()];
        for row in 0..shape.l() * n {
            let (batch, vector) = (row / n, row % n);
            for i in 0..k {
                let code = e2m1::unpack(&problem.b[row * (k / 2)..], i);
                let scale = e4m3::decode(problem.sfb[row * blocks + i / 16]);
                x[(batch * k + i) * n + vector] = (e2m1::decode(code) * scale) as i32;
            }
        }
        problem
            .a
            .par_chunks_exact_mut(shape.row_code_bytes())
            .zip(problem.sfa.par_chunks_exact(blocks))
            .enumerate()
            .for_each(|(row, (codes, scales))| {
                let mut rng = row_rng(seed, 4, row);
                let x = &x[row / shape.m() * k * n..][..k * n];
                // One row in a hundred with 16 vectors ends too far out; with fewer, almost none.
                if !(0..50).any(|_| balanced_row(&mut rng, codes, scales, x, n)) {
                    codes.fill(0);
                }
            });
        problem
    }
}

/// Fills a row of weights with codes of random magnitude, each with the sign that makes
/// `Σ_n y[n]²` smallest so far. Whether it ended within ±256 for every vector.
fn balanced_row(rng: &mut Rng, codes: &mut [u8], scales: &[u8], x: &[i32], n: usize) -> bool {
    let mut y = vec![0i32; n];
    for (i, x) in x.chunks_exact(n).enumerate() {
        let magnitude = rng.u8(1..8);
        let w = (e2m1::decode(magnitude) * e4m3::decode(scales[i / 16])) as i32;
        let drift: i32 = y.iter().zip(x).map(|(y, x)| y * x).sum();
        let negative = if drift == 0 { rng.bool() } else { drift > 0 };
        let w = if negative { -w } else { w };
        y.iter_mut().zip(x).for_each(|(y, x)| *y += w * x);
        let code = magnitude | u8::from(negative) << 3;
        let byte = &mut codes[i / 2];
        *byte = if i % 2 == 0 {
            code
        } else {
            *byte & 15 | code << 4
        };
    }
    y.iter().all(|y| y.abs() <= 256)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvfp4_gemv::Dims;
    use nvfp4_gemv::{ScaleLayout, Vectors, reference};

    use crate::problem::{CONTEST_TESTS, EdgeCase};
    use std::collections::HashSet;

    fn shape(m: usize, n: usize, k: usize, l: usize) -> Shape {
        Shape::new(Dims { m, n, k, l }).unwrap()
    }

    fn nibbles(bytes: &[u8]) -> HashSet<u8> {
        bytes.iter().flat_map(|b| [b & 15, b >> 4]).collect()
    }

    #[test]
    fn contest_rule() {
        let (m, k, l) = CONTEST_TESTS[0];
        let p = Problem::contest(shape(m, 1, k, l), 1111);
        for codes in [&p.a, &p.b] {
            let codes: HashSet<u8> = codes.iter().copied().collect();
            assert_eq!(codes, HashSet::from([0, 1, 2, 3]));
        }
        let scales: HashSet<u8> = p.sfa.iter().copied().collect();
        let values: Vec<f32> = [0x00, 0x38, 0x40].map(e4m3::decode).to_vec();
        assert_eq!(values, [0.0, 1.0, 2.0]);
        assert_eq!(scales, HashSet::from([0x00, 0x38, 0x40]));
    }

    #[test]
    fn full_range_has_every_code_and_scale_and_stays_finite_in_f16() {
        let p = Problem::full_range(shape(64, 2, 1024, 2), 3);
        assert_eq!(nibbles(&p.a).len(), 16);
        assert_eq!(nibbles(&p.b).len(), 16);
        let scales: HashSet<u8> = p.sfa.iter().copied().collect();
        assert_eq!(scales, (0..0x7f).collect());
        let truth = p.reference().unwrap();
        assert!(truth.magnitude.iter().all(|m| *m < 32768.0));
        assert!(truth.y.iter().any(|y| y.abs() > 0.01), "tamed too much");
    }

    #[test]
    fn rows_and_operands_and_seeds_differ() {
        let shape = shape(4, 2, 256, 2);
        let p = Problem::full_range(shape, 3);
        let rows: HashSet<&[u8]> = p.a.chunks(128).chain(p.b.chunks(128)).collect();
        assert_eq!(rows.len(), 8 + 4);
        assert_eq!(p, Problem::full_range(shape, 3));
        assert_ne!(p, Problem::full_range(shape, 4));
    }

    #[test]
    fn integers_are_small_and_not_zero() {
        for (m, n, k, l) in [
            (7, 1, 16, 2),
            (40, 16, 4112, 1),
            (8, 3, 16384, 1),
            (20, 17, 1056, 1),
            (20, 130, 1056, 2),
            (5, 1000, 2048, 1),
        ] {
            let p = Problem::integers(shape(m, n, k, l), 5);
            let truth = p.reference().unwrap();
            assert!(truth.y.iter().all(|y| y.fract() == 0.0 && y.abs() <= 256.0));
            assert!(truth.magnitude.iter().all(|m| *m < 2f64.powi(24)));
            let (nonzero, all) = (truth.y.iter().filter(|y| **y != 0.0).count(), truth.y.len());
            assert!(nonzero * 2 > all, "{nonzero} of {all}");
            assert!(!p.a.iter().any(|b| b & 7 == 0 || b & 0x70 == 0));
        }
    }

    #[test]
    fn padding_and_layouts_do_not_change_the_answer() {
        let p = Problem::full_range(shape(5, 3, 80, 2), 9).with_row_alpha(1);
        let truth = p.reference().unwrap();
        for layout in ScaleLayout::ALL {
            for x in [p.vectors(layout), p.padded_vectors(layout, 2)] {
                let x = x.unwrap();
                let w = p.weights(layout).unwrap();
                let y = reference::gemv(&p.shape, &w.view().unwrap(), &x.view()).unwrap();
                assert_eq!(y.y, truth.y);
            }
        }
        let dense = p.decoded_vectors().unwrap();
        let w = p.weights(ScaleLayout::Linear).unwrap();
        let x = Vectors::of(&dense);
        let y = reference::gemv(&p.shape, &w.view().unwrap(), &x).unwrap();
        assert_eq!(y.y, truth.y);
        for x in dense {
            assert_eq!(half::f16::from_f32(x).to_f32(), x);
            assert_eq!(half::bf16::from_f32(x).to_f32(), x);
        }
    }

    #[test]
    fn edge_cases_are_valid_for_odd_shapes() {
        for (m, n, k, l) in [(1, 1, 16, 1), (130, 2, 80, 3), (0, 1, 16, 1), (3, 1, 48, 0)] {
            let shape = shape(m, n, k, l);
            for &case in EdgeCase::all() {
                let truth = Problem::edge_case(shape, case, 1).reference().unwrap();
                let finite = |y: &f64| half::f16::from_f64(*y).is_finite();
                assert!(truth.y.iter().all(finite), "{case} {shape}");
            }
        }
    }
}
