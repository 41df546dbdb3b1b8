//! Checkpoints: both dialects' real layers, and every way in which a file can be wrong.

use std::path::{Path, PathBuf};

use nvfp4_gemv::checkpoint::{Checkpoint, CheckpointError, Dialect};
use nvfp4_gemv::file::FileError;
use nvfp4_gemv::{GlobalScale, Vectors, reference};
use nvfp4_gemv_cli::file::{self, NewTensor};
use safetensors::Dtype;
use tempfile::TempDir;

const MODELOPT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/data/minilm-l0-modelopt.safetensors"
);
const COMPRESSED: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/data/minilm-l0-compressed-tensors.safetensors"
);
const INTERMEDIATE: &str = "encoder.layer.0.intermediate.dense";
const OUTPUT: &str = "encoder.layer.0.output.dense";

#[test]
fn real_layers_of_both_dialects_give_the_recorded_outputs() {
    for (file, dialect, layers) in [
        (
            MODELOPT,
            Dialect::ModelOpt,
            &[(INTERMEDIATE, 1536, 384)][..],
        ),
        (
            COMPRESSED,
            Dialect::CompressedTensors,
            &[(INTERMEDIATE, 1536, 384), (OUTPUT, 384, 1536)],
        ),
    ] {
        let checkpoint = Checkpoint::open(file).unwrap();
        let names: Vec<&str> = checkpoint.layers().collect();
        assert_eq!(names, layers.iter().map(|l| l.0).collect::<Vec<_>>());
        for &(name, rows, k) in layers {
            let layer = checkpoint.layer(name).unwrap();
            assert_eq!(
                (layer.rows(), layer.k(), layer.exporter()),
                (rows, k, dialect.into())
            );
            assert_eq!(layer.path(), Path::new(file));
            let tensor = |suffix: &str| checkpoint.find_tensor(&format!("{name}.{suffix}"));
            let x = tensor("test_input").unwrap().to_f32().unwrap();
            let recorded = tensor("test_output_w4a16_f64").unwrap().to_f64().unwrap();
            let y = reference::gemv(
                &layer.shape(8).unwrap(),
                &layer.weights().unwrap(),
                &Vectors::of(&x),
            )
            .unwrap();
            // Whoever recorded them may have rounded each dequantised weight to f32.
            for ((y, magnitude), recorded) in y.y.iter().zip(&y.magnitude).zip(&recorded) {
                assert!(
                    (y - recorded).abs() <= magnitude * 2f64.powi(-23),
                    "{y} {recorded}"
                );
            }
        }
    }
}

#[test]
fn global_scales_keep_their_direction() {
    let checkpoint = Checkpoint::open(MODELOPT).unwrap();
    let layer = checkpoint.layer(INTERMEDIATE).unwrap();
    assert!(matches!(layer.global(), GlobalScale::Multiplier(v) if v < 1e-3));
    let input = layer.input_global().unwrap();
    assert!(matches!(input, Some(GlobalScale::Multiplier(v)) if v < 0.1));
    let checkpoint = Checkpoint::open(COMPRESSED).unwrap();
    let layer = checkpoint.layer(INTERMEDIATE).unwrap();
    assert!(matches!(layer.global(), GlobalScale::Divisor(v) if v > 1e3));
    let input = layer.input_global().unwrap();
    assert!(matches!(input, Some(GlobalScale::Divisor(v)) if v > 10.0));
}

#[test]
fn layers_are_found_by_sloppy_names_but_not_by_wrong_ones() {
    let checkpoint = Checkpoint::open(COMPRESSED).unwrap();
    for suffix in ["", ".", ".weight_packed", ".weight_scale", ".test_input"] {
        let layer = checkpoint.layer(&format!("{OUTPUT}{suffix}")).unwrap();
        assert_eq!(layer.name(), OUTPUT);
    }
    let says = |name: &str| checkpoint.layer(name).unwrap_err().to_string();
    let error = says("encoder.layer.1.output.dense");
    assert!(
        error.contains("no NVFP4 layer \"encoder.layer.1.output.dense\""),
        "{error}"
    );
    assert!(
        error.contains(OUTPUT) && error.contains("minilm-l0"),
        "{error}"
    );
    assert!(says("").contains(INTERMEDIATE));
    assert!(says("encoder.layer.0.output").contains("no NVFP4 layer"));
    assert!(says(&format!("{OUTPUT}.nonsense")).contains("no NVFP4 layer"));
    let error = checkpoint
        .find_tensor("dense.weight_packed")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("did you mean") && error.contains("weight_packed"),
        "{error}"
    );
}

type Tensors = Vec<(String, NewTensor<'static>)>;

/// A small layer `fc` [2, 32] of a dialect, and a bf16 layer `plain`.
fn small(dialect: Dialect) -> Tensors {
    vec![
        (
            format!("fc.{}", dialect.codes()),
            NewTensor::new(Dtype::U8, &[2, 16], vec![0x12; 32]),
        ),
        (
            "fc.weight_scale".into(),
            NewTensor::new(Dtype::F8_E4M3, &[2, 2], vec![0x38, 0x40, 0x48, 0x30]),
        ),
        (
            format!("fc.{}", dialect.global()),
            NewTensor::f32(&[1], &[0.5]),
        ),
        (
            format!("fc.{}", dialect.input_global()),
            NewTensor::f32(&[], &[0.25]),
        ),
        (
            "plain.weight".into(),
            NewTensor::new(Dtype::BF16, &[2, 4], vec![0; 16]),
        ),
    ]
}

fn write(name: &str, tensors: Tensors) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    file::write(&path, tensors, None).unwrap();
    (dir, path)
}

/// The error of opening `fc` after `spoil`; the file's name is always in it.
fn message(dialect: Dialect, spoil: impl FnOnce(&mut Tensors)) -> String {
    let mut tensors = small(dialect);
    spoil(&mut tensors);
    let (_dir, path) = write("spoilt.safetensors", tensors);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let message = checkpoint.layer("fc").unwrap_err().to_string();
    assert!(message.contains("spoilt.safetensors"), "{message}");
    message
}

fn tensor<'a>(tensors: &'a mut Tensors, name: &str) -> &'a mut NewTensor<'static> {
    &mut tensors.iter_mut().find(|(n, _)| n == name).unwrap().1
}

#[test]
fn wrong_layers_are_named_with_what_was_expected() {
    for dialect in Dialect::ALL {
        let codes = format!("fc.{}", dialect.codes());
        let global = format!("fc.{}", dialect.global());
        let says = |name: &str, change: &dyn Fn(&mut NewTensor<'static>), expected: &str| {
            let error = message(dialect, |t| change(tensor(t, name)));
            assert!(error.contains(&format!("{name:?}")), "{error}");
            assert!(error.contains(expected), "{error}");
        };
        let (scale, of_scales) = ("fc.weight_scale", "expected F8_E4M3 [2, 2]");
        let not_rows = "is U8 [32]; expected U8 [N, K/2]";
        says(&codes, &|t| t.shape = vec![32], not_rows);
        let odd_k = "K = 8 is not a multiple of 16";
        says(&codes, &|t| t.shape = vec![8, 4], odd_k);
        says(scale, &|t| t.shape = vec![1, 4], of_scales);
        says(scale, &|t| t.dtype = Dtype::I8, of_scales);
        let nan = "row 1, block 1 is NaN";
        says(scale, &|t| t.bytes.to_mut()[3] = 0x7f, nan);
        let negative = "row 1, block 0 is negative";
        says(scale, &|t| t.bytes.to_mut()[2] = 0x81, negative);
        for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let bad = |t: &mut NewTensor<'_>| *t = NewTensor::f32(&[], &[bad]);
            says(&global, &bad, "positive and finite");
        }
        let two = |t: &mut NewTensor<'_>| *t = NewTensor::f32(&[2], &[1.0, 2.0]);
        says(&global, &two, "cannot be told, and they are [1.0, 2.0]");
        let many = |t: &mut NewTensor<'_>| *t = NewTensor::f32(&[9], &[1.0; 9]);
        says(&global, &many, "expected F32 [] or [1]");
        says(&global, &|t| t.dtype = Dtype::I32, "expected F32 [] or [1]");
        let error = message(dialect, |t| t.retain(|(n, _)| n != "fc.weight_scale"));
        assert!(
            error.contains("no tensor \"fc.weight_scale\"; expected F8_E4M3 [2, 2]"),
            "{error}"
        );
        let error = message(dialect, |t| t.retain(|(n, _)| *n != global));
        let expected = format!("no tensor {global:?}; expected F32 [] or [1]");
        assert!(error.contains(&expected), "{error}");
        let error = message(dialect, |t| t.retain(|(n, _)| *n != codes));
        let expected = format!("no tensor {codes:?}; expected U8 [N, K/2]");
        assert!(error.contains(&expected), "{error}");
    }
    let (_dir, path) = write("c.safetensors", small(Dialect::ModelOpt));
    let checkpoint = Checkpoint::open(path).unwrap();
    for name in ["plain", "plain.weight"] {
        let error = checkpoint.layer(name).unwrap_err().to_string();
        assert!(
            error.contains("layer \"plain\" is not NVFP4: its weight is BF16 [2, 4]"),
            "{error}"
        );
    }
    // No input scale is no error.
    let mut tensors = small(Dialect::ModelOpt);
    tensors.retain(|(n, _)| n != "fc.input_scale");
    let (_dir, path) = write("c.safetensors", tensors);
    let checkpoint = Checkpoint::open(path).unwrap();
    let layer = checkpoint.layer("fc").unwrap();
    assert!(layer.input_global().unwrap().is_none());
}

#[test]
fn sharded_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let mut first = small(Dialect::ModelOpt);
    // The tensors of one layer may be in several files.
    let second = first.split_off(2);
    file::write(&at("a.safetensors"), first, None).unwrap();
    file::write(&at("b.safetensors"), second, None).unwrap();
    let check = |path: &Path| {
        let checkpoint = Checkpoint::open(path).unwrap();
        assert_eq!(checkpoint.layers().collect::<Vec<_>>(), ["fc"]);
        assert_eq!(checkpoint.layer("fc").unwrap().codes(), [0x12; 32]);
        assert_eq!(checkpoint.files().len(), 2);
    };
    check(dir.path());
    let index = at("model.safetensors.index.json");
    std::fs::write(
        &index,
        r#"{"metadata": {}, "weight_map": {"fc.weight": "a.safetensors",
            "fc.weight_scale": "a.safetensors", "fc.weight_scale_2": "b.safetensors"}}"#,
    )
    .unwrap();
    // A file that the index does not name is none of the checkpoint's.
    std::fs::copy(at("a.safetensors"), at("copy.safetensors")).unwrap();
    check(&index);
    check(dir.path());

    let says = |text: &str| {
        std::fs::write(&index, text).unwrap();
        Checkpoint::open(dir.path()).unwrap_err().to_string()
    };
    assert!(says("{").contains("not a valid index"));
    assert!(says("[]").contains("weight_map"));
    assert!(says(r#"{"weight_map": {}}"#).contains("empty"));
    assert!(says(r#"{"weight_map": {"x": 1}}"#).contains("\"x\""));
    for outside in [
        "../a.safetensors",
        "/etc/passwd",
        "..",
        "",
        "d/a.safetensors",
    ] {
        let error = says(&format!(r#"{{"weight_map": {{"x": "{outside}"}}}}"#));
        assert!(error.contains("beside the index"), "{error}");
    }
    assert!(says(r#"{"weight_map": {"x": "gone.safetensors"}}"#).contains("gone.safetensors"));

    std::fs::remove_file(&index).unwrap();
    let error = Checkpoint::open(dir.path()).unwrap_err();
    assert!(
        matches!(error, CheckpointError::Duplicate { .. }),
        "{error}"
    );
    let empty = tempfile::tempdir().unwrap();
    let error = Checkpoint::open(empty.path()).unwrap_err();
    assert!(matches!(error, CheckpointError::Empty { .. }), "{error}");
    let error = Checkpoint::open(empty.path().join("no")).unwrap_err();
    assert!(
        matches!(error, CheckpointError::File(FileError::Read { .. })),
        "{error}"
    );
}

/// Opens whatever is there and looks at everything in it.
fn use_all(path: &Path) -> Result<(), CheckpointError> {
    let checkpoint = Checkpoint::open(path)?;
    for file in checkpoint.files() {
        for tensor in file.tensors() {
            let _ = (
                tensor.bytes(),
                tensor.elements(),
                tensor.to_f32(),
                tensor.to_f64(),
            );
        }
    }
    for name in checkpoint.layers() {
        let layer = checkpoint.layer(name)?;
        let _ = (layer.codes(), layer.scales(), layer.weights());
        let _ = layer.input_global();
    }
    let _ = checkpoint.layer("fc");
    Ok(())
}

#[test]
fn truncated_and_hostile_files_are_errors() {
    let (_dir, path) = write("f.safetensors", small(Dialect::ModelOpt));
    use_all(&path).unwrap();
    let good = std::fs::read(&path).unwrap();
    for length in 0..good.len() {
        std::fs::write(&path, &good[..length]).unwrap();
        assert!(use_all(&path).is_err(), "{length} of {} bytes", good.len());
    }
    let header = 8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    for at in 0..header {
        for bit in 0..8 {
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            std::fs::write(&path, &bad).unwrap();
            let _ = use_all(&path);
        }
    }
    // Sizes that overflow, offsets that lie, nested rubbish: by hand, as nobody flips bits so well.
    for text in [
        r#"{"fc.weight":{"dtype":"U8","shape":[18446744073709551615,2],"data_offsets":[0,0]}}"#,
        r#"{"fc.weight":{"dtype":"U8","shape":[0,18446744073709551615],"data_offsets":[0,0]},
            "fc.weight_scale_2":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}"#,
        r#"{"fc.weight":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}}"#,
        r#"{"fc.weight":{"dtype":"U8","shape":[4],"data_offsets":[0,18446744073709551615]}}"#,
        r#"{"fc.weight":{"dtype":"NONE","shape":[4],"data_offsets":[0,4]}}"#,
        r#"{"fc.weight":{"dtype":"U8","shape":[-1],"data_offsets":[0,4]}}"#,
        r#"{"fc.weight":{}}"#,
        r#"{"__metadata__":1}"#,
        "[]",
        "null",
        &"[".repeat(100_000),
    ] {
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend(text.as_bytes());
        bytes.extend([0, 0, 128, 63]);
        std::fs::write(&path, &bytes).unwrap();
        assert!(use_all(&path).is_err(), "{}", &text[..text.len().min(100)]);
    }
    for length in [u64::MAX, u64::MAX - 7, 1 << 40, 0] {
        std::fs::write(&path, length.to_le_bytes()).unwrap();
        assert!(use_all(&path).is_err());
    }
}
