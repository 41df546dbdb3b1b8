//! Experts against their MLPs one by one, and experts of checkpoints.

use half::{bf16, f16};
use nvfp4_gemv::quantize::quantize;
use nvfp4_gemv::{
    Activation, Dialect, Element, Error, Experts, GlobalScale, Linear, Mlp, Nvfp4Vectors, Output,
    RowOrder, ScaleLayout, Strides, VectorScale, Vectors, convert_scales,
};

const K: usize = 48;
const BETWEEN: usize = 32;
const M: usize = 80;
const EXPERTS: usize = 5;

fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut r = fastrand::Rng::with_seed(seed);
    (0..count)
        .map(|_| (r.f32() - 0.5) * 2f32.powi(r.i32(-3..3)))
        .collect()
}

fn layer(rows: usize, k: usize, seed: u64) -> Linear {
    let layer = Linear::from_dense(&numbers(seed, rows * k), rows, k).unwrap();
    layer.with_bias(numbers(seed + 100, rows)).unwrap()
}

fn mlp(seed: u64) -> Mlp {
    let [gate, up] = [1, 2].map(|part| layer(BETWEEN, K, 10 * seed + part));
    Mlp::new(gate, up, layer(M, BETWEEN, 10 * seed)).unwrap()
}

fn experts() -> Experts {
    Experts::new((0..EXPERTS as u64).map(mlp).collect::<Vec<_>>()).unwrap()
}

/// Choices of vectors: the same expert twice, no expert, experts that nobody chooses.
fn choices(n: usize, each: usize) -> (Vec<i32>, Vec<f32>) {
    let mut r = fastrand::Rng::with_seed(n as u64);
    let ids = (0..n * each).map(|_| r.i32(-1..EXPERTS as i32 - 1));
    (ids.collect(), numbers(3, n * each))
}

/// The expected results of experts, of an expert's results with all vectors that chose it, in their order.
fn expected(
    ids: &[i32],
    weights: &[f32],
    n: usize,
    result: impl Fn(&Mlp, &[usize]) -> Vec<f32>,
) -> Vec<f32> {
    let (experts, each) = (experts(), ids.len() / n);
    let mut of_slot = vec![vec![0.0; M]; ids.len()];
    for (expert, mlp) in experts.all().iter().enumerate() {
        let slots: Vec<usize> = (0..ids.len())
            .filter(|&slot| ids[slot] == expert as i32)
            .collect();
        let vectors: Vec<usize> = slots.iter().map(|slot| slot / each).collect();
        for (slot, y) in slots.iter().zip(result(mlp, &vectors).chunks(M)) {
            of_slot[*slot] = y.to_vec();
        }
    }
    let sum = |vector: usize, row: usize| {
        let own = vector * each..(vector + 1) * each;
        let terms = own.map(|slot| f64::from(weights[slot]) * f64::from(of_slot[slot][row]));
        terms.sum::<f64>() as f32
    };
    (0..n)
        .flat_map(|vector| (0..M).map(move |row| (vector, row)))
        .map(|(v, row)| sum(v, row))
        .collect()
}

fn forward(mlp: &Mlp, x: &Vectors<'_>, n: usize) -> Vec<f32> {
    let mut y = vec![f32::NAN; n * M];
    mlp.forward(x, n, Output::of(&mut y)).unwrap();
    y
}

fn dense<T: Element + PartialEq>() {
    let experts = experts();
    assert_eq!(
        (experts.k(), experts.rows(), experts.all().len()),
        (K, M, EXPERTS)
    );
    for (n, each) in [(1, 1), (1, 4), (3, 2), (20, 3)] {
        let (ids, weights) = choices(n, each);
        // Vectors with others' elements between them.
        let (row, values) = (K + 8, numbers(9, n * (K + 8)));
        let values: Vec<T> = values.into_iter().map(rounded).collect();
        let expected = expected(&ids, &weights, n, |mlp, vectors| {
            let own = vectors
                .iter()
                .flat_map(|&v| values[v * row..][..K].to_vec());
            forward(mlp, &Vectors::of(&own.collect::<Vec<T>>()), vectors.len())
        });
        let strides = Strides {
            row,
            batch: n * row,
        };
        let x = || strided(&values, strides);
        let mut y = vec![f32::NAN; n * M];
        experts
            .forward(&x(), n, &ids, &weights, Output::of(&mut y))
            .unwrap();
        assert_eq!(y, expected, "n = {n}, {each} each");

        // On top of a shared expert's, in bf16, with a bias.
        let (shared, bias) = (numbers(5, n * M), numbers(6, M));
        let mut y: Vec<bf16> = shared.iter().map(|&x| bf16::from_f32(x)).collect();
        let sums = y.iter().zip(&expected).zip(bias.iter().cycle());
        // The bits may differ by a rounding: the sum here begins with a rounded one.
        let sums: Vec<f32> = sums
            .map(|((y, sum), bias)| y.to_f32() + sum + bias)
            .collect();
        let output = Output::of(&mut y).accumulating().with_bias(&bias);
        experts.forward(&x(), n, &ids, &weights, output).unwrap();
        for (y, sum) in y.iter().zip(sums) {
            assert!(
                (y.to_f32() - sum).abs() <= sum.abs() / 128.0 + 1e-6,
                "{y} {sum}"
            );
        }
    }
}

fn rounded<T: Element>(x: f32) -> T {
    // By way of a layer's output, as the crate rounds: one row whose weight is 1.
    let one = [[0x02u8].as_slice(), &[0; 7]].concat();
    let layer = Linear::new(
        1,
        16,
        one,
        vec![0x38],
        ScaleLayout::Linear,
        GlobalScale::ONE,
    )
    .unwrap();
    let mut vector = [0.0; 16];
    vector[0] = x;
    let mut y = [T::round(0.0)];
    layer
        .forward(&Vectors::of(&vector), 1, Output::of(&mut y))
        .unwrap();
    y[0]
}

fn strided<T: Element>(values: &[T], strides: Strides) -> Vectors<'_> {
    match Vectors::of(values) {
        Vectors::F16(x) => Vectors::F16(x.with_strides(strides)),
        Vectors::Bf16(x) => Vectors::Bf16(x.with_strides(strides)),
        Vectors::F32(x) => Vectors::F32(x.with_strides(strides)),
        x => x,
    }
}

#[test]
fn vectors_meet_the_experts_that_they_chose() {
    dense::<f32>();
    dense::<f16>();
    dense::<bf16>();
}

#[test]
fn nvfp4_vectors_meet_the_experts_that_they_chose() {
    let experts = experts();
    for (n, each) in [(1, 2), (9, 2), (140, 1)] {
        let (ids, weights) = choices(n, each);
        let x = quantize(&numbers(8, n * K), n, K, Dialect::ModelOpt, None).unwrap();
        let globals: Vec<f32> = (0..n)
            .map(|v| x.global.multiplier() as f32 * (1.0 + v as f32))
            .collect();
        let expected = expected(&ids, &weights, n, |mlp, vectors| {
            let of = |values: &[u8], each: usize| -> Vec<u8> {
                vectors
                    .iter()
                    .flat_map(|&v| values[v * each..][..each].to_vec())
                    .collect()
            };
            let (codes, scales) = (of(&x.codes, K / 2), of(&x.scales, K / 16));
            let globals: Vec<f32> = vectors.iter().map(|&v| globals[v]).collect();
            let global = VectorScale::PerVector(globals.as_slice());
            let x = Vectors::Nvfp4(Nvfp4Vectors::new(
                codes.as_slice(),
                scales.as_slice(),
                ScaleLayout::Linear,
                global,
            ));
            forward(mlp, &x, vectors.len())
        });
        for layout in ScaleLayout::ALL {
            let scales = convert_scales(&x.scales, ScaleLayout::Linear, layout, n, K, 1).unwrap();
            let global = VectorScale::PerVector(globals.as_slice());
            let x = Vectors::Nvfp4(Nvfp4Vectors::new(
                x.codes.as_slice(),
                scales.as_slice(),
                layout,
                global,
            ));
            let mut y = vec![f32::NAN; n * M];
            experts.prepare(n, each, Activation::Nvfp4).unwrap();
            experts
                .forward(&x, n, &ids, &weights, Output::of(&mut y))
                .unwrap();
            assert_eq!(y, expected, "n = {n}, {layout}");
        }
    }
}

/// Gate and up as one layer, in both orders, have the bits of two layers.
#[test]
fn gate_and_up_in_one_layer() {
    for n in [1, 3, 40] {
        let x = numbers(4, n * K);
        let (gate, up) = (numbers(1, BETWEEN * K), numbers(2, BETWEEN * K));
        let rows = |of: &[f32]| -> Vec<Vec<f32>> { of.chunks(K).map(<[f32]>::to_vec).collect() };
        let (gate_rows, up_rows) = (rows(&gate), rows(&up));
        let stacked = [gate_rows.concat(), up_rows.concat()].concat();
        let pairs = gate_rows.into_iter().zip(up_rows);
        let interleaved: Vec<f32> = pairs.flat_map(|(gate, up)| [gate, up].concat()).collect();
        // One global scale for all, so that codes and block scales are the same.
        let whole = quantize(&stacked, 2 * BETWEEN, K, Dialect::ModelOpt, None).unwrap();
        let of = |values: &[f32]| {
            let (rows, global) = (values.len() / K, Some(whole.global));
            Linear::from_quantized(quantize(values, rows, K, Dialect::ModelOpt, global).unwrap())
                .unwrap()
        };
        let down = layer(M, BETWEEN, 7);
        let apart = Mlp::new(of(&gate), of(&up), down.clone()).unwrap();
        let expected = forward(&apart, &Vectors::of(&x), n);
        for (order, both) in [
            (RowOrder::Stacked, &stacked),
            (RowOrder::Interleaved, &interleaved),
        ] {
            let mlp = Mlp::joined(of(both), order, down.clone()).unwrap();
            assert_eq!((mlp.k(), mlp.rows()), (K, M));
            mlp.prepare(n, Activation::F32).unwrap();
            assert_eq!(forward(&mlp, &Vectors::of(&x), n), expected, "{order}");
        }
    }
    let error = Mlp::joined(layer(31, K, 1), RowOrder::Stacked, layer(M, 16, 1)).unwrap_err();
    let expected = "gate and up's M is 31, and twice down's K is 32; they must be equal";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_written() {
    let experts = experts();
    let x = numbers(1, 2 * K);
    let mut y = [7.0f32; 2 * M];
    let mut error = |x: &[f32], ids: &[i32], weights: &[f32], n, len: usize| {
        let output = Output::of(&mut y[..len]);
        experts
            .forward(&Vectors::of(x), n, ids, weights, output)
            .unwrap_err()
            .to_string()
    };
    let ones = [1.0; 4];
    assert_eq!(
        error(&x, &[0, 1, 5, -1], &ones, 2, 2 * M),
        "slot 0 of vector 1 has expert 5, and there are 5"
    );
    assert_eq!(
        error(&x, &[0, 1, -2, -1], &ones, 2, 2 * M),
        "slot 0 of vector 1 has expert -2, and there are 5"
    );
    assert!(error(&x, &[0, 1, 1], &ones[..3], 2, 2 * M).starts_with("ids of experts"));
    assert!(error(&x, &[0], &ones[..1], 2, 2 * M).starts_with("ids of experts"));
    assert!(error(&x, &[0, 1], &ones[..1], 2, 2 * M).starts_with("weights of experts"));
    // Also where no expert is chosen.
    assert!(error(&x[1..], &[-1, -1], &ones[..2], 2, 2 * M).starts_with("vectors"));
    assert!(error(&x, &[-1, -1], &ones[..2], 2, M).starts_with("output"));
    assert_eq!(y, [7.0; 2 * M]);

    experts
        .forward(&Vectors::of(&x), 2, &[], &[], Output::of(&mut y))
        .unwrap();
    assert_eq!(y, [0.0; 2 * M]);
    experts
        .forward(&Vectors::of(&x[..0]), 0, &[], &[], Output::of(&mut y[..0]))
        .unwrap();

    assert!(matches!(
        Experts::new([]),
        Err(Error::LayersMismatch { found: 0, .. })
    ));
    let other = Mlp::new(layer(16, K, 1), layer(16, K, 2), layer(M + 16, 16, 3)).unwrap();
    let error = Experts::new([mlp(1), other]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "an expert's M is 96, and expert 0's M is 80; they must be equal"
    );
}

#[cfg(feature = "checkpoint")]
mod of_checkpoints {
    use std::sync::Arc;

    use nvfp4_gemv::Gate;
    use nvfp4_gemv::checkpoint::{Checkpoint, CheckpointError};
    use nvfp4_gemv::quantize::Quantized;
    use nvfp4_gemv_cli::file::{self, NewTensor};
    use safetensors::Dtype;
    use tempfile::TempDir;

    use super::*;

    type Tensors = Vec<(String, NewTensor<'static>)>;

    fn open(tensors: Tensors) -> (TempDir, Arc<Checkpoint>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model.safetensors");
        file::write(&path, tensors, None).unwrap();
        let checkpoint = Checkpoint::open(path).unwrap();
        (directory, Arc::new(checkpoint))
    }

    fn quantized(rows: usize, k: usize, seed: u64) -> Quantized {
        quantize(&numbers(seed, rows * k), rows, k, Dialect::ModelOpt, None).unwrap()
    }

    /// Tensors of one expert's part, and its bias.
    fn part(name: &str, rows: usize, k: usize, seed: u64) -> Tensors {
        let layer = NewTensor::layer(name, Dialect::ModelOpt, quantized(rows, k, seed));
        let bias = NewTensor::f32(&[rows], &numbers(seed + 100, rows));
        let bias = (format!("{name}.bias"), bias);
        layer.into_iter().chain([bias]).collect()
    }

    /// The same of all experts in one tensor.
    fn stacked(name: &str, rows: usize, k: usize, seeds: [u64; 3], transpose: bool) -> Tensors {
        let all = seeds.map(|seed| quantized(rows, k, seed));
        let bytes = |bytes: &[u8]| -> Vec<u8> {
            let columns = bytes.len() / rows;
            match transpose {
                false => bytes.to_vec(),
                true => (0..bytes.len())
                    .map(|i| bytes[i % rows * columns + i / rows])
                    .collect(),
            }
        };
        let shape = |columns: usize| match transpose {
            false => [3, rows, columns],
            true => [3, columns, rows],
        };
        let of = |suffix: &str| format!("{name}{suffix}");
        let biases = seeds.map(|seed| numbers(seed + 100, rows)).concat();
        let globals = all.each_ref().map(|q| q.global.stored());
        vec![
            (
                of(""),
                NewTensor::new(
                    Dtype::U8,
                    &shape(k / 2),
                    all.each_ref().map(|q| bytes(&q.codes)).concat(),
                ),
            ),
            (
                of("_weight_scale"),
                NewTensor::new(
                    Dtype::F8_E4M3,
                    &shape(k / 16),
                    all.each_ref().map(|q| bytes(&q.scales)).concat(),
                ),
            ),
            (of("_weight_scale_2"), NewTensor::f32(&[3], &globals)),
            (of("_bias"), NewTensor::f32(&[3, rows], &biases)),
        ]
    }

    fn result(experts: &Experts) -> Vec<f32> {
        let (n, x, ids) = (4, numbers(1, 4 * K), [0, 2, 1, 1, -1, 2, 0, 1]);
        let mut y = vec![f32::NAN; n * M];
        experts
            .forward(
                &Vectors::of(&x),
                n,
                &ids,
                &numbers(2, 8),
                Output::of(&mut y),
            )
            .unwrap();
        y
    }

    /// The seeds of an expert's gate, up and down.
    fn seeds(expert: u64) -> [u64; 3] {
        [1, 2, 0].map(|part| 10 * expert + part)
    }

    #[test]
    fn experts_of_files_however_they_are_stored() {
        let expected = result(&Experts::new((0..3).map(mlp).collect::<Vec<_>>()).unwrap());
        let mut tensors = Vec::new();
        for expert in 0..3 {
            let [gate, up, down] = seeds(expert);
            let name = |of| format!("m.experts.{expert}.{of}");
            tensors.extend(part(&name("gate"), BETWEEN, K, gate));
            tensors.extend(part(&name("up"), BETWEEN, K, up));
            tensors.extend(part(&name("down"), M, BETWEEN, down));
        }
        let (_directory, checkpoint) = open(tensors);
        let of = |checkpoint: &Arc<Checkpoint>, gate_up: &[&str]| {
            Experts::from_checkpoint(checkpoint, "m.experts", gate_up, RowOrder::Stacked, "down")
        };
        assert_eq!(result(&of(&checkpoint, &["gate", "up"]).unwrap()), expected);
        assert!(matches!(
            of(&checkpoint, &["gate", "down"]),
            Err(CheckpointError::Join { .. })
        ));
        assert!(matches!(
            of(&checkpoint, &["gate", "away"]),
            Err(CheckpointError::NoLayer { .. })
        ));
        assert!(matches!(
            of(&checkpoint, &[]),
            Err(CheckpointError::Join { .. })
        ));

        for transpose in [false, true] {
            let all: [[u64; 3]; 3] = std::array::from_fn(|expert| seeds(expert as u64));
            let [gates, ups, downs] = [0, 1, 2].map(|part| all.map(|expert| expert[part]));
            let mut tensors = stacked("m.experts.gate", BETWEEN, K, gates, transpose);
            tensors.extend(stacked("m.experts.up", BETWEEN, K, ups, transpose));
            tensors.extend(stacked("m.experts.down", M, BETWEEN, downs, transpose));
            let (_directory, checkpoint) = open(tensors);
            assert_eq!(result(&of(&checkpoint, &["gate", "up"]).unwrap()), expected);
        }
    }

    /// AWQ's factors of columns, of experts one set for all or one each, in a tensor or in several.
    #[test]
    fn factors_of_columns_are_the_experts() {
        let result = |each: bool, stack: bool| {
            let alpha = |expert: u64| numbers(if each { 50 + expert } else { 50 }, K);
            let mut tensors = Vec::new();
            if stack {
                let all = [seeds(0), seeds(1), seeds(2)];
                let [gates, ups, downs] = [0, 1, 2].map(|part| all.map(|expert| expert[part]));
                let alpha = match each {
                    true => NewTensor::f32(&[3, K], &[0, 1, 2].map(alpha).concat()),
                    false => NewTensor::f32(&[K], &alpha(0)),
                };
                tensors.extend(stacked("m.experts.gate", BETWEEN, K, gates, false));
                tensors.push(("m.experts.gate_pre_quant_scale".into(), alpha));
                tensors.extend(stacked("m.experts.up", BETWEEN, K, ups, false));
                tensors.extend(stacked("m.experts.down", M, BETWEEN, downs, false));
            } else {
                for expert in 0..3 {
                    let [gate, up, down] = seeds(expert);
                    let name = |of| format!("m.experts.{expert}.{of}");
                    let alpha = NewTensor::f32(&[K], &alpha(expert));
                    tensors.extend(part(&name("gate"), BETWEEN, K, gate));
                    tensors.push((name("gate.pre_quant_scale"), alpha));
                    tensors.extend(part(&name("up"), BETWEEN, K, up));
                    tensors.extend(part(&name("down"), M, BETWEEN, down));
                }
            }
            let (_directory, checkpoint) = open(tensors);
            let (order, parts) = (RowOrder::Stacked, &["gate", "up"]);
            let experts = Experts::from_checkpoint(&checkpoint, "m.experts", parts, order, "down");
            result(&experts.unwrap())
        };
        assert_eq!(result(true, true), result(true, false));
        assert_eq!(result(false, true), result(false, false));
        assert_ne!(result(true, true), result(false, true));
    }

    /// gpt-oss has rows of gate and up in turns, in one tensor.
    #[test]
    fn gate_and_up_of_one_tensor() {
        for (order, transpose) in [(RowOrder::Stacked, false), (RowOrder::Interleaved, true)] {
            let (both, down) = ([1, 11, 21], [0, 10, 20]);
            let mut tensors = stacked("m.experts.gate_up", 2 * BETWEEN, K, both, transpose);
            tensors.extend(stacked("m.experts.down", M, BETWEEN, down, transpose));
            let (_directory, checkpoint) = open(tensors);
            let found =
                Experts::from_checkpoint(&checkpoint, "m.experts", &["gate_up"], order, "down")
                    .unwrap();
            let mlps = both.into_iter().zip(down).map(|(both, down)| {
                Mlp::joined(layer(2 * BETWEEN, K, both), order, layer(M, BETWEEN, down)).unwrap()
            });
            let expected = result(&Experts::new(mlps.collect::<Vec<_>>()).unwrap());
            assert_eq!(result(&found), expected);
        }
    }

    /// Biases and the order of rows alone would be a wrong answer of gpt-oss: its gate stands in config.json.
    #[test]
    fn the_gate_is_what_the_config_names() {
        let mut tensors = stacked("m.experts.gate_up", 2 * BETWEEN, K, [1, 11, 21], true);
        tensors.extend(stacked("m.experts.down", M, BETWEEN, [0, 10, 20], true));
        let (directory, checkpoint) = open(tensors);
        let of = |checkpoint: &Arc<Checkpoint>| {
            let (parts, order) = (["gate_up"], RowOrder::Interleaved);
            Experts::from_checkpoint(checkpoint, "m.experts", &parts, order, "down")
        };
        let silu = of(&checkpoint).unwrap();
        let said = |config: &str| {
            std::fs::write(directory.path().join("config.json"), config).unwrap();
            of(&Arc::new(Checkpoint::open(directory.path()).unwrap()))
        };
        let named = [
            (r#"{"hidden_act": "silu"}"#, Gate::Silu),
            (
                r#"{"text_config": {"hidden_activation": "gelu_pytorch_tanh"}}"#,
                Gate::GeluTanh,
            ),
            (
                r#"{"model_type": "gpt_oss", "hidden_act": "silu", "swiglu_limit": 7.0}"#,
                Gate::GPT_OSS,
            ),
        ];
        let mut results = Vec::new();
        for (config, gate) in named {
            let experts = said(config).unwrap();
            assert!(experts.all().iter().all(|expert| expert.gate() == gate));
            // As MLPs that were given the gate one by one.
            let mlps = silu.all().iter().cloned();
            let mlps: Result<Vec<Mlp>, _> = mlps.map(|mlp| mlp.with_gate(gate)).collect();
            let result_of = result(&experts);
            assert_eq!(result_of, result(&Experts::new(mlps.unwrap()).unwrap()));
            assert_eq!(result_of, result(&silu.clone().with_gate(gate).unwrap()));
            assert!(!results.contains(&result_of), "{gate:?} changes the result");
            results.push(result_of);
        }
        for (config, says) in [
            (r#"{"hidden_act": "relu"}"#, r#""hidden_act": "relu""#),
            (
                r#"{"hidden_act": "silu", "swiglu_limit": 10.0}"#,
                r#""swiglu_limit": 10.0"#,
            ),
            ("{", "is not read"),
        ] {
            let error = said(config).unwrap_err();
            assert!(matches!(error, CheckpointError::Config { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains(says) && text.contains("m.experts"), "{text}");
        }
        let limit = Gate::Clamped {
            alpha: 1.0,
            limit: f32::NAN,
        };
        assert!(matches!(silu.with_gate(limit), Err(Error::Factor { .. })));
    }

    #[test]
    fn a_bias_of_stacked_experts_that_does_not_fit() {
        let mut tensors = stacked("m.experts.gate_up", 2 * BETWEEN, K, [1, 11, 21], false);
        tensors.last_mut().unwrap().1 = NewTensor::f32(&[2 * BETWEEN], &[0.0; 2 * BETWEEN]);
        tensors.extend(stacked("m.experts.down", M, BETWEEN, [0, 10, 20], false));
        let (_directory, checkpoint) = open(tensors);
        let (parts, order) = (["gate_up"], RowOrder::Stacked);
        let error =
            Experts::from_checkpoint(&checkpoint, "m.experts", &parts, order, "down").unwrap_err();
        assert!(
            error.to_string().contains("m.experts.gate_up_bias"),
            "{error}"
        );
    }

    /// q, k and v in one layer have the bits of three layers, with a bias that one of them has.
    #[test]
    fn layers_that_are_joined() {
        let parts = [("q", 48, 1), ("k", 48, 2), ("v", 48, 3)];
        let mut tensors = Vec::new();
        for (name, rows, seed) in parts {
            tensors.extend(part(name, rows, K, seed));
        }
        tensors.retain(|(name, _)| name != "k.bias");
        let (_directory, checkpoint) = open(tensors);
        let n = 3;
        let x = numbers(9, n * K);
        let of = |layer: &Linear| {
            let mut y = vec![f32::NAN; n * layer.rows()];
            layer
                .forward(&Vectors::of(&x), n, Output::of(&mut y))
                .unwrap();
            y
        };
        let each = parts.map(|(name, ..)| of(&Linear::from_checkpoint(&checkpoint, name).unwrap()));
        let names = parts.map(|(name, ..)| name);
        for order in RowOrder::ALL {
            let joined = Linear::joined_from_checkpoint(&checkpoint, &names, order).unwrap();
            let y = of(&joined);
            for vector in 0..n {
                for row in 0..48 {
                    for (part, each) in each.iter().enumerate() {
                        let at = match order {
                            RowOrder::Stacked => part * 48 + row,
                            RowOrder::Interleaved => row * 3 + part,
                        };
                        assert_eq!(y[vector * 144 + at], each[vector * 48 + row], "{order}");
                    }
                }
            }
        }
        // By the names of tensors, or with a dot, as `layer` takes them: with the biases.
        let stacked = Linear::joined_from_checkpoint(&checkpoint, &names, RowOrder::Stacked);
        let tensors = ["q.weight", "k.weight", "v."];
        let sloppy = Linear::joined_from_checkpoint(&checkpoint, &tensors, RowOrder::Stacked);
        assert_eq!(of(&sloppy.unwrap()), of(&stacked.unwrap()));
        let one = Linear::joined_from_checkpoint(&checkpoint, &["v"], RowOrder::Stacked).unwrap();
        assert_eq!(of(&one), each[2]);
        let none: [&str; 0] = [];
        for names in [&none[..], &["q", "w"]] {
            assert!(Linear::joined_from_checkpoint(&checkpoint, names, RowOrder::Stacked).is_err());
        }
    }
}
