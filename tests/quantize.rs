//! The quantiser: the tools' own codes and scales, and what must hold for any data.

use half::{bf16, f16};
use nvfp4_gemv::checkpoint::{Checkpoint, Dialect, Layer};
use nvfp4_gemv::format::{e2m1, e4m3};
use nvfp4_gemv::quantize::{
    Calibration, QuantizeError, Quantized, quantize, quantize_calibrated, quantize_vectors,
    quantize_vectors_or_nan,
};
use nvfp4_gemv::{Dims, Error, GlobalScale, Output, Shape, VectorScale, Vectors, gemv, reference};
use proptest::prelude::*;

const LAYER: &str = "encoder.layer.0.intermediate.dense";

fn data(file: &str) -> Checkpoint {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
    Checkpoint::open(format!("{data}/{file}.safetensors")).unwrap()
}

/// Numbers of scales and codes of the first 128 rows that differ from the layer's.
fn differences(q: &Quantized, layer: &Layer<'_>) -> (usize, usize) {
    assert_eq!((q.rows, q.k), (128, layer.k()));
    let scales = q.scales.iter().zip(layer.scales());
    let codes = (0..q.codes.len() * 2)
        .filter(|&i| e2m1::unpack(&q.codes, i) != e2m1::unpack(layer.codes(), i));
    (scales.filter(|(a, b)| a != b).count(), codes.count())
}

#[test]
fn reproduces_both_tools_bit_for_bit() {
    let modelopt = data("minilm-l0-modelopt");
    let original = modelopt
        .find_tensor(&format!("{LAYER}.original_f32_rows_0_128"))
        .unwrap();
    let (rows, k) = (original.shape()[0], original.shape()[1]);
    let original = original.to_f32().unwrap();
    for (checkpoint, dialect) in [
        (&modelopt, Dialect::ModelOpt),
        (
            &data("minilm-l0-compressed-tensors"),
            Dialect::CompressedTensors,
        ),
    ] {
        let layer = checkpoint.layer(LAYER).unwrap();
        assert_eq!(layer.exporter(), dialect.into());
        let q = quantize(&original, rows, k, dialect, Some(layer.global())).unwrap();
        assert_eq!(differences(&q, &layer), (0, 0), "{dialect}");
    }
}

/// The tools' formulas, operation by operation as their sources have them, in f32.
fn by_the_tools_formula(x: &[f32; 16], dialect: Dialect, global: f32) -> (u8, [u8; 16]) {
    let amax = x.iter().fold(0f32, |m, x| m.max(x.abs()));
    let (scale, step) = match dialect {
        Dialect::ModelOpt => {
            // per_block_amax / (6.0 * weights_scaling_factor_2), clamped, to float8_e4m3fn;
            // input / (weights_scaling_factor.to(float32) * weights_scaling_factor_2)
            let six_global = 6.0 * global;
            let scale = e4m3::encode((amax / six_global).max(0.001953125));
            (scale, e4m3::decode(scale) * global)
        }
        Dialect::CompressedTensors => {
            // scales = max_val_pos / 6.0; scales = global_scale * scales, to float8_e4m3fn;
            // scale = scale / global_scale; x / scale
            let local = amax / 6.0;
            let scale = e4m3::encode(global * local);
            (scale, e4m3::decode(scale) / global)
        }
    };
    (scale, x.map(|x| e2m1::encode(x / step)))
}

/// Values at the boundaries between codes and between scales, where another order of the same
/// operations rounds the other way.
#[test]
fn follows_the_tools_order_of_operations() {
    let mut rng = fastrand::Rng::with_seed(7);
    let near = |x: f32, rng: &mut fastrand::Rng| f32::from_bits(x.to_bits() + rng.u32(..3) - 1);
    let mut differ_in_another_order = 0;
    for dialect in Dialect::ALL {
        for _ in 0..20_000 {
            let global = match dialect {
                Dialect::ModelOpt => 1e-4 * (1.0 + rng.f32()),
                Dialect::CompressedTensors => 1e3 * (1.0 + rng.f32()),
            };
            let unit = dialect.global_scale(global).multiplier() as f32;
            // The largest element puts the scale between two codes, the others are between two
            // codes for one of the two.
            let code = rng.u8(0x20..0x7d);
            let middle = (e4m3::decode(code) + e4m3::decode(code + 1)) / 2.0;
            let mut x = [0f32; 16];
            x[0] = near(6.0 * middle * unit, &mut rng);
            let scale = e4m3::decode(code + rng.u8(..2));
            for x in &mut x[1..] {
                let boundary = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0][rng.usize(..7)];
                *x = near(boundary * (scale * unit), &mut rng);
            }
            let q = quantize(&x, 1, 16, dialect, Some(dialect.global_scale(global))).unwrap();
            let (scale, codes) = by_the_tools_formula(&x, dialect, global);
            assert_eq!(q.scales, [scale]);
            assert_eq!(q.codes, e2m1::pack(codes));
            // The test can tell the formula from the obvious one: multiplying by a reciprocal.
            let reciprocal = 1.0 / (e4m3::decode(scale) * unit);
            let other = x.map(|x| e2m1::encode(x * reciprocal));
            differ_in_another_order += usize::from(other != codes);
        }
    }
    assert!(differ_in_another_order > 1000, "{differ_in_another_order}");
}

/// The decoded matrix, as f32.
fn decode(q: &Quantized) -> Vec<f32> {
    let w = q.weights().unwrap();
    (0..q.rows)
        .flat_map(|row| reference::decode_row(&w, 0, row))
        .map(|x| x as f32)
        .collect()
}

#[test]
fn sixteen_bit_inputs_are_quantised_as_their_f32_values() {
    let x: Vec<f32> = (0..64)
        .map(|i| ((i * 37 % 64) as f32 - 31.0) / 8.0)
        .collect();
    let half: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
    let brain: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
    for dialect in Dialect::ALL {
        let expected = quantize(&x, 2, 32, dialect, None).unwrap();
        assert_eq!(quantize(&half, 2, 32, dialect, None).unwrap(), expected);
        assert_eq!(quantize(&brain, 2, 32, dialect, None).unwrap(), expected);
    }
}

#[test]
fn zeros_and_tiny_values() {
    // The scale of a block of zeros is each tool's own; -0 becomes +0, what rounds to zero keeps
    // its sign.
    let mut x = [0.0f32; 48];
    x[16] = 6.0 * 448.0;
    (x[1], x[2]) = (-0.0, 0.0);
    (x[17], x[18]) = (-1.0, 1.0);
    x[32] = 1e-6;
    for (dialect, zeros) in [
        (Dialect::ModelOpt, 1.0),
        (Dialect::CompressedTensors, 0.125),
    ] {
        let q = quantize(&x, 1, 48, dialect, None).unwrap();
        assert_eq!(q.global.stored(), 1.0);
        assert_eq!(e4m3::decode(q.scales[0]), zeros);
        assert!(q.codes[..8].iter().all(|&c| c == 0));
        assert_eq!(e4m3::decode(q.scales[1]), 448.0);
        assert_eq!(q.codes[8..10], [0x87, 0x00]);
        let tiny = match dialect {
            Dialect::ModelOpt => e4m3::MIN_POSITIVE,
            Dialect::CompressedTensors => 0.125,
        };
        assert_eq!(e4m3::decode(q.scales[2]), tiny);
    }
    // Nothing but zeros: still a scale that can be used.
    for dialect in Dialect::ALL {
        let q = quantize(&[0.0f32; 16], 1, 16, dialect, None).unwrap();
        assert_eq!(q.global, dialect.global_scale(1.0));
        assert!(q.codes.iter().all(|&c| c == 0));
    }
}

#[test]
fn the_ends_of_f32_stay_usable() {
    for dialect in Dialect::ALL {
        for value in [f32::MAX, -f32::MAX, f32::MIN_POSITIVE, f32::from_bits(1)] {
            let q = quantize(&[value; 16], 1, 16, dialect, None).unwrap();
            let decoded = decode(&q)[0];
            assert!(decoded.is_finite(), "{dialect} {value:e}");
            let shape = Shape::matrix(1, 16).unwrap();
            let mut y = [f32::NAN];
            let (weights, x) = (q.weights().unwrap(), [1.0 / 16.0f32; 16]);
            let (x, output) = (Vectors::of(&x), Output::of(&mut y));
            gemv(&shape, &weights, &x, output, &nvfp4_gemv::Options::new()).unwrap();
            assert!(!y[0].is_nan(), "{dialect} {value:e}");
            if value.abs() > 1e-30 {
                assert!(
                    (decoded / value - 1.0).abs() < 1e-6,
                    "{decoded:e} {value:e}"
                );
            }
        }
    }
}

#[test]
fn a_given_global_scale_that_is_too_small_saturates() {
    let q = quantize(
        &[1e6f32; 16],
        1,
        16,
        Dialect::ModelOpt,
        Some(GlobalScale::ONE),
    )
    .unwrap();
    assert_eq!(e4m3::decode(q.scales[0]), 448.0);
    assert!(q.codes.iter().all(|&c| c == 0x77));
}

#[test]
fn bad_input_is_named() {
    let mut x = [1.0f32; 96];
    x[40] = f32::NAN;
    x[70] = f32::INFINITY;
    match quantize(&x, 3, 32, Dialect::ModelOpt, None) {
        Err(
            e @ QuantizeError::NotFinite {
                row: 1, column: 8, ..
            },
        ) => {
            assert!(e.to_string().contains("row 1, column 8 is NaN"), "{e}");
        }
        other => panic!("{other:?}"),
    }
    x[40] = 1.0;
    let e = quantize_vectors(&x, 3, 32).unwrap_err();
    assert!(e.to_string().contains("row 2, column 6 is inf"), "{e}");
    let operand = |result: Result<Quantized, QuantizeError>| match result {
        Err(QuantizeError::Operand(e)) => e,
        other => panic!("{other:?}"),
    };
    let call =
        |rows, k, global| operand(quantize(&[1.0f32; 32], rows, k, Dialect::ModelOpt, global));
    assert_eq!(call(1, 0, None), Error::KZero);
    assert_eq!(call(1, 24, None), Error::KNotMultipleOfBlock { k: 24 });
    assert!(matches!(
        call(3, 16, None),
        Error::BufferTooShort {
            needed: 48,
            got: 32,
            ..
        }
    ));
    assert!(matches!(
        call(usize::MAX / 16, 16, None),
        Error::SizeOverflow { .. }
    ));
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let e = call(1, 32, Some(GlobalScale::Multiplier(bad)));
        assert!(matches!(e, Error::GlobalScale { .. }), "{e}");
    }
}

#[test]
fn vectors_have_a_scale_each() {
    let mut x = vec![0.01f32; 64];
    x[32..].fill(100.0);
    let q = quantize_vectors(&x, 2, 32).unwrap();
    assert_eq!(q.globals.len(), 2);
    assert!(q.globals[1] > 1000.0 * q.globals[0]);
    let shape = Shape::new(Dims {
        m: 1,
        n: 2,
        k: 32,
        l: 1,
    })
    .unwrap();
    let decoded = reference::decode_vectors(&shape, &q.vectors()).unwrap();
    for (x, d) in x.iter().zip(decoded) {
        assert!((d / f64::from(*x) - 1.0).abs() < 1e-6);
    }
    // Each row is what it would be alone.
    let alone = quantize(&x[32..], 1, 32, Dialect::ModelOpt, None).unwrap();
    assert_eq!(q.codes[16..], alone.codes[..]);
    assert_eq!(q.scales[2..], alone.scales[..]);
    assert_eq!(q.globals[1], alone.global.stored());
}

/// The host's rule that the device's quantiser must follow.
#[test]
fn vectors_without_errors_for_content() {
    let mut x = vec![0.01f32; 96];
    x[32..64].fill(100.0);
    let same = quantize_vectors(&x, 3, 32).unwrap();
    assert_eq!(quantize_vectors_or_nan(&x, 3, 32, None).unwrap(), same);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        x[40] = bad;
        let q = quantize_vectors_or_nan(&x, 3, 32, None).unwrap();
        assert_eq!(q.codes[16..32], [0; 16]);
        assert_eq!(q.scales[2..4], [0x38; 2]);
        assert_eq!(q.globals[1].to_bits(), f32::NAN.to_bits());
        for row in [0, 2] {
            assert_eq!(q.codes[row * 16..][..16], same.codes[row * 16..][..16]);
            assert_eq!(q.globals[row], same.globals[row]);
        }
    }
    x[40] = 1.0;
    // Given scales: one for all in either form, as quantise has it; one for each.
    let global = GlobalScale::Multiplier(0.25);
    let alone = quantize(&x, 3, 32, Dialect::ModelOpt, Some(global)).unwrap();
    for global in [global, GlobalScale::Divisor(4.0)] {
        let q = quantize_vectors_or_nan(&x, 3, 32, Some(VectorScale::Shared(global))).unwrap();
        assert_eq!((&q.codes, &q.scales), (&alone.codes, &alone.scales));
        assert_eq!(q.globals, [0.25; 3]);
    }
    let each = [0.25, 0.0, -1.0];
    let q = quantize_vectors_or_nan(&x, 3, 32, Some(VectorScale::PerVector(&each[..]))).unwrap();
    assert_eq!(q.codes[..16], alone.codes[..16]);
    assert!(q.codes[16..].iter().all(|&code| code == 0));
    assert!(q.globals[1].is_nan() && q.globals[2].is_nan());

    let error = |global| quantize_vectors_or_nan(&x, 3, 32, Some(global)).unwrap_err();
    for bad in [
        GlobalScale::Multiplier(0.0),
        GlobalScale::Divisor(f32::NAN),
        GlobalScale::Divisor(1e-45), // its reciprocal is infinite
    ] {
        let error = error(VectorScale::Shared(bad));
        assert!(matches!(error, Error::GlobalScale { .. }), "{error}");
    }
    let short = error(VectorScale::PerVector(&each[..2]));
    assert!(
        matches!(
            short,
            Error::BufferTooShort {
                needed: 3,
                got: 2,
                ..
            }
        ),
        "{short}"
    );
}

/// Rows whose blocks have very different magnitudes.
fn matrix() -> impl Strategy<Value = (usize, Vec<f32>)> {
    (1usize..4, 1usize..4).prop_flat_map(|(rows, blocks)| {
        let block = (-20i32..10, prop::collection::vec(-1f32..1.0, 16)).prop_map(|(e, x)| {
            x.into_iter()
                .map(|x| x * (e as f32).exp2())
                .collect::<Vec<_>>()
        });
        prop::collection::vec(block, rows * blocks)
            .prop_map(move |x| (blocks * 16, x.into_iter().flatten().collect()))
    })
}

/// Whether a block is so small that its scale is subnormal, with fewer than 4 bits.
fn has_coarse_scale(amax: f32, q: &Quantized) -> bool {
    f64::from(amax) / 6.0 / q.global.multiplier() < 1.0 / 64.0
}

proptest! {
    /// Every element is at the code nearest to it, given its block's scale: off by no more than
    /// half the distance to the next code, or saturated.
    #[test]
    fn every_element_is_at_the_nearest_code((k, x) in matrix(), modelopt: bool) {
        let dialect = Dialect::ALL[usize::from(modelopt)];
        let q = quantize(&x, x.len() / k, k, dialect, None).unwrap();
        for (i, &x) in x.iter().enumerate() {
            let step = f64::from(e4m3::decode(q.scales[i / 16])) * q.global.multiplier();
            let got = f64::from(e2m1::decode(e2m1::unpack(&q.codes, i))) * step;
            let best = e2m1::VALUES
                .iter()
                .map(|v| (f64::from(*v) * step - f64::from(x)).abs())
                .fold(f64::INFINITY, f64::min);
            // The quotient that is rounded has three f32 roundings of its own.
            let slack = 4.0 * 2f64.powi(-24) * f64::from(x.abs());
            prop_assert!((got - f64::from(x)).abs() <= best + slack, "{x} became {got}");
        }
    }

    /// A block's largest element loses at most 1/16 (the scale's rounding) plus 1/6 (half the gap between 4 and 6) of
    /// its magnitude, if the scale is a normal number.
    #[test]
    fn error_of_a_block_is_bounded((k, x) in matrix(), modelopt: bool) {
        let dialect = Dialect::ALL[usize::from(modelopt)];
        let q = quantize(&x, x.len() / k, k, dialect, None).unwrap();
        let decoded = decode(&q);
        for (x, d) in x.chunks(16).zip(decoded.chunks(16)) {
            let amax = x.iter().fold(0f32, |m, x| m.max(x.abs()));
            if has_coarse_scale(amax, &q) {
                continue;
            }
            for (x, d) in x.iter().zip(d) {
                prop_assert!((x - d).abs() <= amax * (1.0 / 6.0) * (1.0 + 1.0 / 15.0));
            }
        }
    }

    /// Quantised numbers are a fixed point if the scale is a normal number. (They are compared as numbers: the code -0
    /// becomes 0.)
    #[test]
    fn quantising_again_changes_nothing((k, x) in matrix(), modelopt: bool) {
        let dialect = Dialect::ALL[usize::from(modelopt)];
        let once = quantize(&x, x.len() / k, k, dialect, None).unwrap();
        let decoded = decode(&once);
        let again = quantize(&decoded, once.rows, k, dialect, Some(once.global)).unwrap();
        let decoded_again = decode(&again);
        for (i, x) in x.chunks(16).enumerate() {
            let amax = x.iter().fold(0f32, |m, x| m.max(x.abs()));
            if !has_coarse_scale(amax, &once) {
                prop_assert_eq!(once.scales[i], again.scales[i]);
                prop_assert_eq!(&decoded[i * 16..][..16], &decoded_again[i * 16..][..16]);
            }
        }
    }
}

fn dequantised(q: &Quantized) -> Vec<f64> {
    let value = |i: usize| {
        let (code, scale) = (e2m1::unpack(&q.codes, i), q.scales[i / 16]);
        f64::from(e2m1::decode(code)) * f64::from(e4m3::decode(scale)) * q.global.multiplier()
    };
    (0..q.rows * q.k).map(value).collect()
}

/// A row's weighted error, as `Calibration` defines it: `eᵀ H e` with a hundredth of its mean on H's diagonal.
fn weighted_error(e: &[f64], h: &[f32]) -> f64 {
    let k = e.len();
    let mean = (0..k).map(|i| f64::from(h[i * k + i])).sum::<f64>() / k as f64;
    let products = (0..k * k).map(|at| {
        let added = if at / k == at % k { 0.01 * mean } else { 0.0 };
        e[at / k] * e[at % k] * (f64::from(h[at]) + added)
    });
    products.sum()
}

/// The mean products of some vectors `[N][K]`.
fn mean_products(x: &[f32], k: usize) -> Vec<f32> {
    let n = (x.len() / k) as f64;
    let product = |at: usize| {
        let of_one = |x: &[f32]| f64::from(x[at / k]) * f64::from(x[at % k]);
        (x.chunks(k).map(of_one).sum::<f64>() / n) as f32
    };
    (0..k * k).map(product).collect()
}

/// A block with an element of 7 among numbers that a scale of 1 has exactly, but for the 7.
#[test]
fn calibration_decides_which_elements_a_scale_is_for() {
    let mut x = [6.0, 4.0, 3.0, 2.0, 1.5, 1.0, 0.5, -6.0].repeat(2);
    x[0] = 7.0;
    let scale = |of_first: f32, of_others: f32| {
        let mut squares = [of_others; 16];
        squares[0] = of_first;
        let calibration = Calibration::of_squares(&squares).unwrap();
        let one = Some(GlobalScale::ONE);
        let q = quantize_calibrated(&x, 1, 16, Dialect::ModelOpt, one, &calibration).unwrap();
        e4m3::decode(q.scales[0])
    };
    let plain = quantize(&x, 1, 16, Dialect::ModelOpt, Some(GlobalScale::ONE)).unwrap();
    assert_eq!(e4m3::decode(plain.scales[0]), 1.125);
    assert_eq!(scale(0.0, 1.0), 1.0);
    // 4 times 1.75 is 7, and nothing else is.
    assert_eq!(scale(1.0, 0.0), 1.75);
}

/// Vectors whose elements are all equal see the sum of a row alone. What each element is rounded by adds up without
/// feedback.
#[test]
fn errors_are_fed_back_to_other_columns() {
    let x = [
        6.0, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7,
    ];
    let calibration = Calibration::of_products(&[1.0; 256], 16).unwrap();
    for dialect in Dialect::ALL {
        let sum = |q: &Quantized| dequantised(q).iter().sum::<f64>();
        let plain = quantize(&x, 1, 16, dialect, None).unwrap();
        let fed = quantize_calibrated(&x, 1, 16, dialect, None, &calibration).unwrap();
        assert!((sum(&plain) - 16.5).abs() > 2.0, "{}", sum(&plain));
        assert!((sum(&fed) - 16.5).abs() < 0.3, "{}", sum(&fed));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Fewer vectors than columns, columns of zeros, and rows of several groups that are quantised at once.
    #[test]
    fn calibration_never_makes_a_row_worse(seed: u64, rows in 1usize..20, blocks in 1usize..5, n in 1usize..40) {
        let mut random = fastrand::Rng::with_seed(seed);
        let k = 16 * blocks;
        let mut numbers = |count: usize| -> Vec<f32> {
            (0..count).map(|_| (random.f32() - 0.5) * 2f32.powf(4.0 * random.f32())).collect()
        };
        let (w, mut x) = (numbers(rows * k), numbers(n * k));
        (0..n).for_each(|vector| x[vector * k + seed as usize % k] = 0.0);
        let h = mean_products(&x, k);
        let diagonal: Vec<f32> = (0..k).map(|i| h[i * k + i]).collect();
        let alone: Vec<f32> = (0..k * k).map(|at| if at / k == at % k { h[at] } else { 0.0 }).collect();
        let of_products = Calibration::of_products(&h, k).unwrap();
        let of_squares = Calibration::of_squares(&diagonal).unwrap();
        for dialect in Dialect::ALL {
            let plain = quantize(&w, rows, k, dialect, None).unwrap();
            let made = |of: &Calibration| quantize_calibrated(&w, rows, k, dialect, None, of).unwrap();
            for (of, h) in [(&of_products, &h), (&of_squares, &alone)] {
                let made = made(of);
                prop_assert_eq!(made.global, plain.global);
                let (a, b) = (dequantised(&plain), dequantised(&made));
                let error = |row: usize, of: &[f64]| {
                    let all = row * k..(row + 1) * k;
                    let e: Vec<f64> = all.map(|i| f64::from(w[i]) - of[i]).collect();
                    weighted_error(&e, h)
                };
                for row in 0..rows {
                    let (before, after) = (error(row, &a), error(row, &b));
                    prop_assert!(after <= before * (1.0 + 1e-4), "row {}: {} after {}", row, after, before);
                }
                // A row does not depend on those that it is quantised with.
                let last = &w[(rows - 1) * k..];
                let last = quantize_calibrated(last, 1, k, dialect, Some(made.global), of).unwrap();
                prop_assert!(made.codes.ends_with(&last.codes) && made.scales.ends_with(&last.scales));
            }
            // Products without a connection are squares.
            let of_alone = Calibration::of_products(&alone, k).unwrap();
            prop_assert_eq!(made(&of_alone), made(&of_squares));
        }
    }
}

/// Only what columns are to each other counts.
#[test]
fn a_calibration_has_no_unit() {
    let w: Vec<f32> = (0..4 * 32).map(|i| 1e3 * (i as f32 * 0.7).sin()).collect();
    let made = |square: f32| {
        let calibration = Calibration::of_squares(&[square; 32]).unwrap();
        quantize_calibrated(&w, 4, 32, Dialect::ModelOpt, None, &calibration).unwrap()
    };
    // To the ends of f32, where squares times squared errors are beyond it.
    for unit in [10, -120, -140, 126] {
        assert_eq!(made(1.0), made((unit as f32).exp2()), "{unit}");
    }
    assert_ne!(
        made(1.0),
        quantize(&w, 4, 32, Dialect::ModelOpt, None).unwrap()
    );
    // Vectors of zeros tell nothing.
    assert_eq!(made(1.0), made(0.0));
}

#[test]
fn statistics_that_no_vectors_have_are_refused() {
    let changed = |row: usize, column: usize, value: f32| {
        let mut h = mean_products(&[1.0; 16], 16);
        h[row * 16 + column] = value;
        Calibration::of_products(&h, 16).unwrap_err().to_string()
    };
    for (row, column, value) in [
        (3, 3, -1.0),
        (3, 3, f32::NAN),
        (4, 2, f32::INFINITY),
        (2, 4, f32::NAN),
        (2, 4, 0.5),
    ] {
        let error = changed(row, column, value);
        assert!(error.contains("is no mean of products"), "{error}");
    }
    // Each pair could be one's; all together could not.
    let mut h = vec![0.0; 256];
    (0..16).for_each(|i| h[i * 16 + i] = 1.0);
    for (i, j) in [(0, 1), (1, 2)] {
        (h[i * 16 + j], h[j * 16 + i]) = (1.0, 1.0);
    }
    let error = Calibration::of_products(&h, 16).unwrap_err();
    assert_eq!(error, QuantizeError::NoMoments { column: 2 });
    let error = Calibration::of_squares(&[1.0, -1.0]).unwrap_err();
    assert!(
        matches!(error, QuantizeError::Statistic { row: 1, .. }),
        "{error}"
    );
    let error = Calibration::of_products(&[1.0; 255], 16).unwrap_err();
    assert!(
        matches!(error, QuantizeError::Operand(Error::BufferTooShort { .. })),
        "{error}"
    );
    let calibration = Calibration::of_squares(&[1.0; 32]).unwrap();
    let of_other = quantize_calibrated(&[1.0; 16], 1, 16, Dialect::ModelOpt, None, &calibration);
    let error = of_other.unwrap_err();
    assert!(error.to_string().contains("calibration"), "{error}");
}
