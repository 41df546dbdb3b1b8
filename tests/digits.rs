//! Vectors of digits: how close they come to the vectors that they stand for, and their products on the CPU.

use half::{bf16, f16};
use nvfp4_gemv::checkpoint::Checkpoint;
use nvfp4_gemv::cpu::{Implementation, gemv_with};
use nvfp4_gemv::format::e2m1;
use nvfp4_gemv::quantize::{
    QuantizeError, QuantizedRows, quantize_digits, quantize_digits_or_nan, quantize_vectors,
};
use nvfp4_gemv::reference::{self, digits_error, error_bound};
use nvfp4_gemv::{
    Activation, Dims, Element, Error, FloatType, GlobalScale, Nvfp4Vectors, Output, ScaleLayout,
    Shape, VectorScale, Vectors, Weights, convert_scales, gemv,
};
use proptest::prelude::*;

/// The numbers that digits stand for, `[rows][k]`.
fn decoded(q: &QuantizedRows, rows: usize, k: usize) -> Vec<f64> {
    let shape = sized(0, rows, k, 1);
    reference::decode_vectors(&shape, &q.vectors()).unwrap()
}

fn sized(m: usize, n: usize, k: usize, l: usize) -> Shape {
    Shape::new(Dims { m, n, k, l }).unwrap()
}

/// The promises of `quantize_digits`' documentation, written again.
fn bound(digits: usize, block: &[f64], vector: &[f64]) -> f64 {
    let largest = |x: &[f64]| x.iter().fold(0f64, |most, x| most.max(x.abs()));
    let least = largest(vector).max(2f64.powi(-100)) / 4096.0;
    let most = largest(block).max(least) / 8f64.powi(digits as i32);
    most * (1.0 + 2f64.powi(-20))
}

/// Demands the bound of every element. Returns the largest share of it.
fn check_bound<T: Element>(x: &[T], k: usize, digits: usize) -> f64 {
    let rows = x.len() / k;
    let q = quantize_digits(x, rows, k, digits).unwrap();
    let got = decoded(&q, rows, k);
    let x: Vec<f64> = x.iter().map(|x| f64::from(x.to_f32())).collect();
    let mut closest = 0f64;
    for (row, got) in x.chunks_exact(k).zip(got.chunks_exact(k)) {
        for (block, got) in row.chunks_exact(16).zip(got.chunks_exact(16)) {
            let bound = bound(digits, block, row);
            for (x, got) in block.iter().zip(got) {
                assert!(
                    (x - got).abs() <= bound,
                    "{digits} digits: {x} became {got}"
                );
                closest = closest.max((x - got).abs() / bound);
            }
        }
    }
    closest
}

/// Blocks of magnitudes up to `spread` binary orders apart, with elements of any magnitude.
fn blocks(seed: u64, rows: usize, k: usize, top: i32, spread: i32) -> Vec<f32> {
    let mut r = fastrand::Rng::with_seed(seed);
    let row = |_| {
        let mut of_block = 0;
        (0..k)
            .map(|i| {
                if i % 16 == 0 {
                    of_block = top - r.i32(0..=spread);
                }
                let small = if r.u8(..4) == 0 { r.i32(0..12) } else { 0 };
                (r.f32() * 2.0 - 1.0) * ((of_block - small) as f32).exp2()
            })
            .collect::<Vec<f32>>()
    };
    (0..rows).flat_map(row).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn elements_are_within_their_bound(seed: u64, top in -20i32..15, spread in 0i32..30, digits in 1usize..=5) {
        let x = blocks(seed, 3, 96, top, spread);
        let halves: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
        let brains: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
        check_bound(&x, 96, digits);
        check_bound(&halves, 96, digits);
        check_bound(&brains, 96, digits);
    }

    /// Magnitudes to the ends of f32, at which global scales end.
    #[test]
    fn elements_are_within_their_bound_at_the_ends(seed: u64, top in -149i32..127, digits in 1usize..=5) {
        let x = blocks(seed, 2, 32, top, 20);
        check_bound(&x, 32, digits);
        let brains: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
        check_bound(&brains, 32, digits);
    }
}

/// The bound is no larger than it has to be: some element comes near, with every number of digits.
#[test]
fn the_bound_is_reached() {
    for (digits, near) in [(1, 0.999), (2, 0.9), (3, 0.7)] {
        let closest = (0..40).map(|seed| check_bound(&blocks(seed, 20, 320, 0, 8), 320, digits));
        let closest = closest.fold(0.0, f64::max);
        assert!(closest > near, "{digits} digits: {closest}");
    }
}

/// Behind the first digit nothing is left of elements that are codes. -0 and 0 are both 0.
#[test]
fn codes_are_exact() {
    let x: Vec<f32> = (0..48)
        .map(|i| e2m1::VALUES[i * 5 % 16] * [1.0, 0.375, 1024.0][i / 16])
        .collect();
    let q = quantize_digits(&x, 1, 48, 3).unwrap();
    assert_eq!(
        decoded(&q, 1, 48),
        x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>()
    );
    assert_eq!(q.codes[24..], [0; 48]);
    let zeros = quantize_digits(&[-0.0f32; 32], 2, 16, 4).unwrap();
    assert_eq!((zeros.codes, zeros.globals), (vec![0; 64], vec![1.0; 2]));
}

/// Root mean square of what the layers' own activations are off by.
#[test]
fn real_activations_are_closer_than_by_rounding() {
    let mut layers = 0;
    for (file, names) in [
        ("minilm-l0-modelopt", &["intermediate"][..]),
        ("minilm-l0-compressed-tensors", &["intermediate", "output"]),
    ] {
        let path = format!(
            "{}/tests/data/{file}.safetensors",
            env!("CARGO_MANIFEST_DIR")
        );
        let checkpoint = Checkpoint::open(path).unwrap();
        for name in names {
            let name = format!("encoder.layer.0.{name}.dense.test_input");
            let x = checkpoint.find_tensor(&name).unwrap();
            let (rows, k) = (x.shape()[0], x.shape()[1]);
            let x = x.to_f32().unwrap();
            let rms = |y: &[f64]| {
                let off = x.iter().zip(y).map(|(x, y)| (f64::from(*x) - y).powi(2));
                off.sum::<f64>().sqrt()
            };
            let of_digits = |digits| {
                rms(&decoded(
                    &quantize_digits(&x, rows, k, digits).unwrap(),
                    rows,
                    k,
                ))
            };
            let brains: Vec<f64> = x.iter().map(|x| bf16::from_f32(*x).to_f64()).collect();
            let halves: Vec<f64> = x.iter().map(|x| f16::from_f32(*x).to_f64()).collect();
            let one = rms(&decoded(&quantize_vectors(&x, rows, k).unwrap(), rows, k));
            assert!(of_digits(3) < 0.5 * rms(&brains), "{name}");
            assert!(of_digits(4) < 0.4 * rms(&halves), "{name}");
            assert!(of_digits(1) < 1.2 * one, "{name}");
            layers += 1;
        }
    }
    assert_eq!(layers, 3);
}

/// A problem: weights of the full range, and bf16 vectors.
struct Case {
    shape: Shape,
    codes: Vec<u8>,
    scales: Vec<u8>,
    row_alpha: Vec<f32>,
    x: Vec<bf16>,
}

impl Case {
    fn new(shape: Shape, seed: u64) -> Self {
        let mut r = fastrand::Rng::with_seed(seed);
        let x = blocks(seed, shape.n() * shape.l(), shape.k(), 3, 10);
        Self {
            shape,
            codes: (0..shape.weight_code_bytes()).map(|_| r.u8(..)).collect(),
            scales: (0..shape.weight_scale_bytes(ScaleLayout::Linear))
                .map(|_| r.u8(0x20..0x60))
                .collect(),
            row_alpha: (0..shape.m()).map(|_| 0.5 + r.f32()).collect(),
            x: x.into_iter().map(bf16::from_f32).collect(),
        }
    }

    fn weights(&self) -> Weights<'_> {
        let (layout, global) = (ScaleLayout::Linear, GlobalScale::Divisor(3.0));
        let w = Weights::new(&self.shape, &self.codes, &self.scales, layout, global).unwrap();
        w.with_row_alpha(&self.row_alpha).unwrap()
    }

    fn digits(&self, digits: usize) -> QuantizedRows {
        let rows = self.shape.n() * self.shape.l();
        quantize_digits(&self.x, rows, self.shape.k(), digits).unwrap()
    }
}

fn implementations() -> impl Iterator<Item = Implementation> {
    Implementation::ALL.into_iter().filter(|i| i.available())
}

/// On every implementation: within the bound of roundings of the exact sum of digits, and so within that and
/// `digits_error` of the exact product of the bf16 vectors.
#[test]
fn products_are_within_their_bounds() {
    let shapes = [
        (1, 1, 16, 1),
        (37, 3, 80, 2),
        (130, 2, 272, 1),
        (20, 11, 48, 2),
    ];
    for (seed, (m, n, k, l)) in shapes.into_iter().enumerate() {
        let case = Case::new(sized(m, n, k, l), seed as u64);
        let (shape, w) = (&case.shape, case.weights());
        let exact = reference::gemv(shape, &w, &Vectors::of(&case.x)).unwrap();
        for digits in 2..=5 {
            let q = case.digits(digits);
            let truth = reference::gemv(shape, &w, &q.vectors()).unwrap();
            let off = digits_error(shape, &w, &Vectors::of(&case.x), digits).unwrap();
            let rows = sized(m, n * digits, k, l);
            for implementation in implementations() {
                let roundings = implementation.roundings(&rows, Activation::Nvfp4);
                let mut y = vec![f32::NAN; shape.outputs()];
                gemv_with(implementation, shape, &w, &q.vectors(), Output::of(&mut y)).unwrap();
                for (i, y) in y.into_iter().enumerate() {
                    let bound =
                        error_bound(truth.y[i], truth.magnitude[i], roundings, FloatType::F32);
                    let error = (f64::from(y) - truth.y[i]).abs();
                    assert!(
                        error <= bound,
                        "{implementation} {digits}: {y} for {}",
                        truth.y[i]
                    );
                    let from_exact = (f64::from(y) - exact.y[i]).abs();
                    assert!(
                        from_exact <= bound + off[i],
                        "{implementation} {digits}: {i}"
                    );
                }
            }
        }
    }
}

/// A result is the sum of the products of its digits, in their order, with all that the epilogue has, in both layouts of
/// scales, where batches select matrices, and in calls that find memory.
#[test]
fn results_are_sums_of_the_products_of_digits() {
    let (m, n, k, digits) = (21, 3, 112, 3);
    let matrices = Case::new(sized(m, n, k, 2), 5);
    let ids = [1, -1, 0];
    let shape = sized(m, n, k, ids.len());
    let case = Case::new(shape, 6);
    let q = case.digits(digits);
    let all = matrices.weights();
    let w = all.select(&ids).unwrap();
    let bias: Vec<f32> = (0..m).map(|i| i as f32 - 9.5).collect();
    let residual: Vec<f32> = (0..shape.outputs()).map(|i| (i % 23) as f32).collect();

    // The products of digits, without factors.
    let plain = Weights::new(
        &matrices.shape,
        &matrices.codes,
        &matrices.scales,
        ScaleLayout::Linear,
        GlobalScale::ONE,
    );
    let plain = plain.unwrap();
    let plain = plain.select(&ids).unwrap();
    let rows = sized(m, n * digits, k, ids.len());
    let single = Vectors::nvfp4(&q.codes, &q.scales, ScaleLayout::Linear, GlobalScale::ONE);
    let mut sums = vec![f32::NAN; rows.outputs()];
    gemv(
        &rows,
        &plain,
        &single,
        Output::of(&mut sums),
        &Default::default(),
    )
    .unwrap();
    let want: Vec<f32> = (0..shape.outputs())
        .map(|i| {
            let (vector, row) = (i / m, i % m);
            let of =
                |d: usize| f64::from(sums[(vector * digits + d) * m + row]) / 8f64.powi(d as i32);
            let mut y = (of(0) + of(1) + of(2)) * (1.0 / 3.0f64) as f32 as f64;
            y *= f64::from(matrices.row_alpha[row]) * f64::from(q.globals[vector]);
            let has_matrix = ids[vector / n] >= 0;
            let bias = if has_matrix {
                f64::from(bias[row])
            } else {
                0.0
            };
            (y + bias + f64::from(residual[i])) as f32
        })
        .collect();

    for layout in ScaleLayout::ALL {
        let scales = convert_scales(
            &q.scales,
            ScaleLayout::Linear,
            layout,
            n * digits,
            k,
            ids.len(),
        );
        let scales = scales.unwrap();
        let globals = VectorScale::PerVector(&q.globals[..]);
        let x = Nvfp4Vectors::new(&q.codes[..], &scales[..], layout, globals).with_digits(digits);
        let x = Vectors::Nvfp4(x);
        for _ in 0..2 {
            let mut y = vec![f32::NAN; shape.outputs()];
            let output = Output::of(&mut y).with_bias(&bias).adding(&residual);
            gemv(&shape, &w, &x, output, &Default::default()).unwrap();
            for (i, (y, want)) in y.iter().zip(&want).enumerate() {
                // Products of factors round in f64 in another order.
                assert!(
                    (y - want).abs() <= 2f32.powi(-23) * want.abs(),
                    "{i}: {y} for {want}"
                );
            }
        }
    }
    // One global scale for all vectors.
    let one = sized(m, 1, k, 2);
    let q = quantize_digits(&[bf16::ONE; 224], 2, k, 2).unwrap();
    let shared = VectorScale::Shared(GlobalScale::Multiplier(q.globals[0]));
    let shared = Nvfp4Vectors::new(&q.codes[..], &q.scales[..], ScaleLayout::Linear, shared);
    let run = |x: &Vectors<'_>| {
        let mut y = vec![f32::NAN; one.outputs()];
        gemv(
            &one,
            &matrices.weights(),
            x,
            Output::of(&mut y),
            &Default::default(),
        )
        .unwrap();
        y
    };
    assert_eq!(
        run(&Vectors::Nvfp4(shared.with_digits(2))),
        run(&q.vectors())
    );
}

/// Batch invariance holds for vectors of digits: they are vectors of NVFP4, more of them.
#[test]
fn digits_are_batch_invariant_where_that_is_asked_for() {
    let case = Case::new(sized(33, 9, 4128, 1), 8);
    let options = nvfp4_gemv::Options::new().batch_invariant(true);
    let all = case.digits(3);
    let mut together = vec![0f32; case.shape.outputs()];
    gemv(
        &case.shape,
        &case.weights(),
        &all.vectors(),
        Output::of(&mut together),
        &options,
    )
    .unwrap();
    let one = sized(33, 1, 4128, 1);
    for (x, want) in case.x.chunks_exact(4128).zip(together.chunks_exact(33)) {
        let q = quantize_digits(x, 1, 4128, 3).unwrap();
        let mut y = [0f32; 33];
        gemv(
            &one,
            &case.weights(),
            &q.vectors(),
            Output::of(&mut y),
            &options,
        )
        .unwrap();
        assert_eq!(y, want);
    }
}

#[test]
fn wrong_digits_are_errors() {
    let x = [bf16::ONE; 32];
    for digits in [0, 6, usize::MAX] {
        let error = quantize_digits(&x, 1, 32, digits).unwrap_err();
        let QuantizeError::Operand(error) = error else {
            panic!("{error}");
        };
        assert!(
            matches!(error, Error::Digits { digits: of, .. } if of == digits),
            "{error}"
        );
        let q = quantize_digits(&x, 1, 32, 2).unwrap();
        let globals = VectorScale::PerVector(&q.globals[..]);
        let v = Nvfp4Vectors::new(&q.codes[..], &q.scales[..], ScaleLayout::Linear, globals);
        let v = Vectors::Nvfp4(v.with_digits(digits));
        let case = Case::new(sized(2, 1, 32, 1), 1);
        let mut y = [7f32; 2];
        let got = gemv(
            &case.shape,
            &case.weights(),
            &v,
            Output::of(&mut y),
            &Default::default(),
        );
        assert_eq!(got.unwrap_err(), error);
        assert_eq!(y, [7.0; 2], "written");
        assert_eq!(
            reference::gemv(&case.shape, &case.weights(), &v).unwrap_err(),
            error
        );
    }
    // Codes of two digits are no codes of three.
    let q = quantize_digits(&x, 1, 32, 2).unwrap();
    let three = QuantizedRows { digits: 3, ..q };
    let case = Case::new(sized(2, 1, 32, 1), 1);
    let got = reference::gemv(&case.shape, &case.weights(), &three.vectors());
    assert!(matches!(got, Err(Error::BufferTooShort { .. })), "{got:?}");
    // A vector that cannot be quantised is an error, or NaN.
    let bad = [bf16::ONE, bf16::NAN].repeat(16);
    assert!(matches!(
        quantize_digits(&bad, 1, 32, 3),
        Err(QuantizeError::NotFinite { .. })
    ));
    let q = quantize_digits_or_nan(&bad, 1, 32, 3).unwrap();
    assert!(q.globals[0].is_nan() && q.codes == [0; 48]);
}
