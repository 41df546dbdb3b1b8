//! Matrices of a checkpoint that are not NVFP4, against f64.

use half::{bf16, f16};
use nvfp4_gemv::checkpoint::{
    Checkpoint, CheckpointError, DENSE_BLOCK, Dense, DenseElement, DenseScales, ModuleKind,
};
use nvfp4_gemv::file::FileError;
use nvfp4_gemv::format::{e2m1, e4m3};
use nvfp4_gemv::reference;
use nvfp4_gemv_cli::file::{self, NewTensor};
use safetensors::Dtype;
use tempfile::TempDir;

/// Neither is a multiple of a block's 128, or of what a CPU adds at once.
const M: usize = 150;
const K: usize = 300;

type Tensors = Vec<(String, NewTensor<'static>)>;

fn open(tensors: Tensors) -> (TempDir, Checkpoint) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    file::write(&path, tensors, None).unwrap();
    let checkpoint = Checkpoint::open(path).unwrap();
    (directory, checkpoint)
}

fn random(seed: u64, count: usize) -> Vec<f32> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| rng.f32() * 4.0 - 2.0).collect()
}

/// A matrix of a type: its tensor, and its elements.
fn matrix(dtype: Dtype) -> (NewTensor<'static>, Vec<f64>) {
    let values = random(1, M * K);
    let (bytes, values): (Vec<Vec<u8>>, Vec<f64>) = values
        .iter()
        .map(|x| match dtype {
            Dtype::F32 => (x.to_le_bytes().to_vec(), f64::from(*x)),
            Dtype::F16 => {
                let x = f16::from_f32(*x);
                (x.to_le_bytes().to_vec(), x.to_f64())
            }
            Dtype::BF16 => {
                let x = bf16::from_f32(*x);
                (x.to_le_bytes().to_vec(), x.to_f64())
            }
            _ => {
                let x = e4m3::encode(*x);
                (vec![x], f64::from(e4m3::decode(x)))
            }
        })
        .unzip();
    (NewTensor::new(dtype, &[M, K], bytes.concat()), values)
}

/// The rows and the products are those of a matrix in f64, within what is promised.
fn compare(dense: &Dense<'_>, w: &[f64]) {
    assert_eq!((dense.rows(), dense.k()), (M, K));
    let (mut row, unit) = (vec![0.0; K], 2f64.powi(-24));
    for m in [0, 1, 127, 128, M - 1] {
        dense.row(m, &mut row).unwrap();
        for (found, expected) in row.iter().zip(&w[m * K..]) {
            let off = (f64::from(*found) - expected).abs();
            assert!(off <= unit * expected.abs(), "{found} {expected}");
        }
    }
    let terms = (K + 2) as f64 * unit;
    let bound = terms / (1.0 - terms);
    for n in [1, 3] {
        let x = random(2, n * K);
        let mut y = vec![f32::NAN; n * M];
        dense.product(&x, n, &mut y).unwrap();
        for (at, y) in y.iter().enumerate() {
            let (x, w) = (&x[at / M * K..], &w[at % M * K..][..K]);
            let products = w.iter().zip(x).map(|(w, x)| w * f64::from(*x));
            let sum: f64 = products.clone().sum();
            let magnitude: f64 = products.map(f64::abs).sum();
            assert!((f64::from(*y) - sum).abs() <= bound * magnitude, "{at}");
        }
    }
}

#[test]
fn floats_are_multiplied_within_the_bound() {
    for (dtype, element) in [
        (Dtype::F32, DenseElement::F32),
        (Dtype::F16, DenseElement::F16),
        (Dtype::BF16, DenseElement::Bf16),
    ] {
        let (weight, values) = matrix(dtype);
        let bytes = weight.bytes.to_vec();
        let bias = NewTensor::f32(&[M], &[0.5; M]);
        let (_folder, checkpoint) =
            open(vec![("a.weight".into(), weight), ("a.bias".into(), bias)]);
        for name in ["a", "a.weight", "a."] {
            let dense = checkpoint.dense(name).unwrap();
            assert_eq!(dense.name(), "a");
            assert_eq!(dense.element(), element);
            assert_eq!(dense.bytes(), bytes);
            assert_eq!(dense.bytes().len(), dense.row_bytes() * M);
            assert_eq!(*dense.scales(), DenseScales::None);
            // A bias is the caller's.
            assert_eq!(dense.notes().len(), 1);
            compare(&dense, &values);
        }
    }
}

/// A block's scale is found by rows and columns: exchanged, or one block further, the products are others.
#[test]
fn fp8_has_scales_of_tensors_rows_and_blocks() {
    let blocks = [M.div_ceil(DENSE_BLOCK), K.div_ceil(DENSE_BLOCK)];
    let of_blocks = blocks[0] * blocks[1];
    let scales = |count: usize| -> Vec<f32> { (0..count).map(|i| 0.01 * (1 + i) as f32).collect() };
    for (name, shape, count) in [
        ("", vec![], 0),
        ("weight_scale", vec![], 1),
        ("weight_scale", vec![1], 1),
        ("weight_scale", vec![M], M),
        ("weight_scale", vec![M, 1], M),
        ("weight_scale", blocks.to_vec(), of_blocks),
        ("weight_scale_inv", blocks.to_vec(), of_blocks),
        ("weight_scale", vec![blocks[0], 1, blocks[1], 1], of_blocks),
    ] {
        let (weight, mut values) = matrix(Dtype::F8_E4M3);
        let own = scales(count);
        for (at, value) in values.iter_mut().enumerate() {
            let (row, column) = (at / K, at % K);
            let scale = match count {
                0 => continue,
                1 => 0,
                M => row,
                _ => row / DENSE_BLOCK * blocks[1] + column / DENSE_BLOCK,
            };
            *value *= f64::from(own[scale]);
        }
        let mut tensors = vec![("a.weight".to_owned(), weight)];
        if count > 0 {
            tensors.push((format!("a.{name}"), NewTensor::f32(&shape, &own)));
            // That of vectors in FP8, which these are not.
            tensors.push(("a.input_scale".into(), NewTensor::f32(&[], &[0.0])));
        }
        let (_folder, checkpoint) = open(tensors);
        let dense = checkpoint.dense("a").unwrap();
        match dense.scales() {
            DenseScales::None => assert_eq!(count, 0),
            DenseScales::Tensor(one) => assert_eq!([*one], own[..]),
            DenseScales::Rows(all) | DenseScales::Blocks(all) => assert_eq!(*all, own),
            other => panic!("{other:?}"),
        }
        compare(&dense, &values);
    }
}

#[test]
fn experts_are_matrices_of_one_tensor() {
    let values = random(3, 2 * 4 * 8);
    let experts = NewTensor::f32(&[2, 4, 8], &values);
    let bias = NewTensor::f32(&[2, 4], &[0.0; 8]);
    let (_folder, checkpoint) = open(vec![
        ("experts.up".into(), experts),
        ("experts.up_bias".into(), bias),
    ]);
    let opened = checkpoint.dense_experts("experts.up").unwrap();
    assert_eq!(opened.len(), 2);
    for (expert, values) in opened.iter().zip(values.chunks(4 * 8)) {
        assert_eq!((expert.rows(), expert.k()), (4, 8));
        assert_eq!(expert.notes().len(), 1);
        for (m, values) in values.chunks(8).enumerate() {
            let mut row = [0.0; 8];
            expert.row(m, &mut row).unwrap();
            assert_eq!(row, values);
        }
    }
    let error = checkpoint.dense("experts.up").unwrap_err();
    assert!(error.to_string().contains("a matrix [M, K]"), "{error}");
}

#[test]
fn what_would_be_another_product_is_refused() {
    let refused = |more: Tensors| {
        let (weight, _) = matrix(Dtype::F8_E4M3);
        let weight = ("a.weight".to_owned(), weight);
        let (_folder, checkpoint) = open([vec![weight], more].concat());
        checkpoint.dense("a").unwrap_err()
    };
    let one = |name: &str| vec![(format!("a.{name}"), NewTensor::f32(&[1], &[1.0]))];
    for name in ["pre_quant_scale", "lora_a", "weight_zero_point"] {
        let error = refused(one(name));
        let of = matches!(error, CheckpointError::ChangesProduct { .. });
        assert!(of, "{name}: {error}");
    }
    for name in ["scale_weight", "weight_global_scale"] {
        let error = refused(one(name));
        let of = matches!(error, CheckpointError::UnknownTensors { .. });
        assert!(of, "{name}: {error}");
    }
    let wrong = |more: Tensors, says: &str| {
        let error = refused(more);
        let is_wrong = matches!(error, CheckpointError::File(FileError::WrongTensor { .. }));
        assert!(is_wrong && error.to_string().contains(says), "{error}");
    };
    let scales = |shape: &[usize], value: f32| {
        let values = vec![value; shape.iter().product()];
        vec![("a.weight_scale".into(), NewTensor::f32(shape, &values))]
    };
    // A parameter has no `.weight` in its name, and its scale another name.
    let (_folder, checkpoint) = open(vec![
        ("a.w1".into(), matrix(Dtype::F8_E4M3).0),
        ("a.w1_scale".into(), NewTensor::f32(&[1], &[0.5])),
    ]);
    let error = checkpoint.dense("a.w1").unwrap_err();
    assert!(error.to_string().contains("a.w1_scale"), "{error}");
    // Of q, k and v; of blocks of another size.
    wrong(scales(&[3], 1.0), "[2, 3] of its blocks");
    wrong(scales(&[5, 10], 1.0), "[2, 3] of its blocks");
    wrong(scales(&[1], f32::NAN), "element 0 is NaN");
    let both = [scales(&[1], 1.0), one("weight_scale_inv")].concat();
    wrong(both, "a.weight_scale");
}

#[test]
fn what_is_no_matrix_of_floats_is_refused() {
    let (_folder, checkpoint) = open(vec![
        (
            "codes.weight".into(),
            NewTensor::new(Dtype::U8, &[2, 8], vec![0; 16]),
        ),
        ("norm.weight".into(), NewTensor::f32(&[8], &[1.0; 8])),
    ]);
    let error = checkpoint.dense("codes").unwrap_err().to_string();
    assert!(error.contains("F32, F16, BF16 or F8_E4M3"), "{error}");
    let error = checkpoint.dense("norm").unwrap_err().to_string();
    assert!(error.contains("a matrix [M, K]"), "{error}");
    let error = checkpoint.dense("normm").unwrap_err();
    assert!(matches!(error, CheckpointError::NoTensor { .. }), "{error}");
    assert!(error.to_string().contains("norm.weight"), "{error}");
}

#[test]
fn a_rotated_checkpoint_is_refused() {
    let (folder, _) = open(vec![("a.weight".into(), matrix(Dtype::BF16).0)]);
    let config = r#"{"quantization_config": {"transform_config": {"config_groups": {"u": {"type": "hadamard"}}}}}"#;
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let error = checkpoint.dense("a").unwrap_err();
    assert!(matches!(error, CheckpointError::Config { .. }), "{error}");
}

#[test]
fn lengths_are_checked() {
    let (_folder, checkpoint) = open(vec![("a.weight".into(), matrix(Dtype::BF16).0)]);
    let dense = checkpoint.dense("a").unwrap();
    let (x, mut y) = (vec![0.0; K], vec![0.0; M]);
    dense.product(&x[1..], 1, &mut y).unwrap_err();
    dense.product(&x, 1, &mut y[1..]).unwrap_err();
    dense.product(&x, 2, &mut y).unwrap_err();
    dense.product(&[], 0, &mut []).unwrap();
    dense.row(M, &mut vec![0.0; K]).unwrap_err();
    dense.row(0, &mut vec![0.0; K - 1]).unwrap_err();
}

/// Blocks and exponents of experts in MXFP4, as gpt-oss names them.
fn gpt_oss(blocks: &[u8], scales: &[u8]) -> Tensors {
    let of_row = 2;
    vec![
        (
            "experts.up_blocks".into(),
            NewTensor::new(Dtype::U8, &[2, 3, of_row, 16], blocks.to_vec()),
        ),
        (
            "experts.up_scales".into(),
            NewTensor::new(Dtype::U8, &[2, 3, of_row], scales.to_vec()),
        ),
        ("experts.up_bias".into(), NewTensor::f32(&[2, 3], &[0.0; 6])),
    ]
}

#[test]
fn mxfp4_of_gpt_oss_is_nvfp4_exactly() {
    let mut rng = fastrand::Rng::with_seed(5);
    let blocks: Vec<u8> = (0..2 * 3 * 2 * 16).map(|_| rng.u8(..)).collect();
    let near: Vec<u8> = (0..12).map(|_| rng.u8(115..130)).collect();
    // Each row spans 2^17, and all together more.
    let far: Vec<u8> = (0..12).map(|at| 20 + at / 2 * 35 + at % 2 * 17).collect();
    for (scales, by_row) in [(&near, false), (&far, true)] {
        let (_folder, checkpoint) = open(gpt_oss(&blocks, scales));
        let modules = checkpoint.modules();
        let module = modules
            .iter()
            .find(|module| module.name() == "experts.up")
            .unwrap();
        assert!(matches!(module.kind(), ModuleKind::Mxfp4), "{module:?}");
        assert_eq!(module.shape(), [2, 3, 64]);
        let gathered = checkpoint.mxfp4("experts.up").unwrap();
        assert_eq!(gathered.row_alpha().is_some(), by_row);
        let shape = gathered.shape();
        assert_eq!((shape.l(), shape.m(), shape.k()), (2, 3, 64));
        let weights = gathered.weights().unwrap();
        for (row, scales) in scales.chunks(2).enumerate() {
            let found = reference::decode_row(&weights, row / 3, row % 3);
            for (column, found) in found.into_iter().enumerate() {
                let code = e2m1::unpack(&blocks[row * 32..], column);
                let power = 2f64.powi(i32::from(scales[column / 32]) - 127);
                assert_eq!(
                    found,
                    f64::from(e2m1::decode(code)) * power,
                    "{row} {column}"
                );
            }
        }
    }
}

#[test]
fn mxfp4_that_nvfp4_does_not_hold_names_the_row() {
    let error_of = |scales: [u8; 12]| {
        let (_folder, checkpoint) = open(gpt_oss(&[0x11; 192], &scales));
        checkpoint.mxfp4("experts.up").unwrap_err()
    };
    let mut scales = [127; 12];
    (scales[8], scales[9]) = (100, 118);
    let error = error_of(scales);
    let at = matches!(
        error,
        CheckpointError::MxRow {
            matrix: 1,
            row: 1,
            ..
        }
    );
    assert!(at, "{error}");
    scales[9] = 255;
    assert!(error_of(scales).to_string().contains("is NaN"));
    let mut tensors = gpt_oss(&[0x11; 192], &[127; 12]);
    tensors.push(("experts.up_lora_a".into(), NewTensor::f32(&[1], &[1.0])));
    let (_folder, checkpoint) = open(tensors);
    let error = checkpoint.mxfp4("experts.up").unwrap_err();
    assert!(
        matches!(error, CheckpointError::ChangesProduct { .. }),
        "{error}"
    );
    let error = checkpoint.mxfp4("experts.down").unwrap_err();
    assert!(matches!(error, CheckpointError::NoTensor { .. }), "{error}");
}
