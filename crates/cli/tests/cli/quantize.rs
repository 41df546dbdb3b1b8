//! `quantize`: its output, and that it leaves nothing behind when it fails.

use std::path::Path;

use nvfp4_gemv::checkpoint::{Checkpoint, Dialect, Note};
use nvfp4_gemv::file::TensorFile;
use nvfp4_gemv::{format::e2m1, reference};
use nvfp4_gemv_cli::file::{self, NewTensor};
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::{Folder, MODELOPT, command, contains, fails, json, prints, run_layer, text};

/// A model of one layer that can be quantised and tensors that cannot.
fn model(path: &Path, spoil: impl FnOnce(&mut Vec<f32>)) {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut weights: Vec<f32> = (0..64 * 32).map(|_| rng.f32() - 0.5).collect();
    spoil(&mut weights);
    let half: Vec<u8> = weights
        .iter()
        .flat_map(|x| half::bf16::from_f32(*x).to_le_bytes())
        .collect();
    let tensors = [
        ("fc1.weight", NewTensor::f32(&[64, 32], &weights)),
        ("fc1.bias", NewTensor::f32(&[64], &weights[..64])),
        ("fc2.weight", NewTensor::new(Dtype::BF16, &[32, 64], half)),
        ("odd.weight", NewTensor::f32(&[8, 24], &weights[..192])),
        ("norm.weight", NewTensor::f32(&[32], &weights[..32])),
        ("embed.weight", NewTensor::f32(&[64, 32], &weights)),
    ];
    let tensors = tensors.map(|(name, tensor)| (name.to_owned(), tensor));
    file::write(path, tensors, None).unwrap();
}

#[test]
fn quantize_writes_what_the_checkpoint_reader_and_run_read() {
    let dir = Folder::new();
    let source = dir.at("in.safetensors");
    model(Path::new(&source), |_| {});
    let original = TensorFile::open(&source).unwrap();
    for dialect in Dialect::ALL {
        let out = dir.at(&format!("{dialect}.safetensors"));
        let report = json(&["quantize", &source, &out, "--dialect", dialect.name()]);
        assert_eq!(report["quantised"], 2);
        assert_eq!(report["copied"], 4);
        let checkpoint = Checkpoint::open(&out).unwrap();
        assert_eq!(checkpoint.layers().collect::<Vec<_>>(), ["fc1", "fc2"]);
        for name in ["fc1", "fc2"] {
            let layer = checkpoint.layer(name).unwrap();
            assert_eq!(layer.exporter(), dialect.into());
            let original = original.get(&format!("{name}.weight")).unwrap();
            let original = original.to_f32_widened().unwrap();
            let weights = layer.weights().unwrap();
            for row in 0..layer.rows() {
                let decoded = reference::decode_row(&weights, 0, row);
                for (x, d) in original[row * layer.k()..].iter().zip(decoded) {
                    // Half the widest gap between codes, at the largest scale here.
                    assert!((f64::from(*x) - d).abs() <= 0.5 / 6.0 * 1.1, "{x} {d}");
                }
            }
            assert!((0..100).any(|i| e2m1::unpack(layer.codes(), i) > 8));
        }
        for copied in ["fc1.bias", "odd.weight", "norm.weight", "embed.weight"] {
            let copy = checkpoint.tensor(copied).unwrap();
            let original = original.get(copied).unwrap();
            assert_eq!(copy.dtype(), original.dtype());
            assert_eq!(copy.shape(), original.shape());
            assert_eq!(copy.bytes(), original.bytes());
        }
        let run = json(&run_layer(&out, "fc2", &[]));
        assert_eq!(run["passed"], true);
    }
    let chosen = |rest: &[&str]| {
        let out = dir.at("chosen.safetensors");
        json(&[&["quantize", &source, &out, "--force"], rest].concat())["quantised"].clone()
    };
    assert_eq!(chosen(&["--include", "fc1.*"]), 1);
    assert_eq!(chosen(&["--exclude", "*fc*"]), 1); // the embedding
    assert_eq!(chosen(&["--exclude", "none"]), 3);
    for option in ["--exclude", "--include"] {
        let error = fails(&["quantize", &source, &dir.at("none"), option, "*lmhead*"]);
        assert!(error.contains("\"*lmhead*\" matches no tensor"), "{error}");
    }
}

#[test]
fn quantize_says_what_it_left_as_it_was_and_why() {
    let dir = Folder::new();
    let (source, out) = (dir.at("in.safetensors"), dir.at("out.safetensors"));
    model(Path::new(&source), |_| {});
    let args = ["quantize", &source, &out, "--force"];
    let reasons = [
        ("embed.weight", "excluded by \"*embed*\" (embeddings)"),
        ("fc1.bias", "not named `*.weight`"),
        ("norm.weight", "1 dimension, not 2"),
        ("odd.weight", "K = 24, not a multiple of 16"),
    ];
    let report = json(&args);
    let copied = report["copied_tensors"].as_array().unwrap();
    let mut listed: Vec<_> = copied
        .iter()
        .map(|one| ["tensor", "why"].map(|key| one[key].as_str().unwrap()))
        .map(<(&str, &str)>::from)
        .collect();
    listed.sort_unstable();
    assert_eq!(listed, reasons);
    let printed = prints(&args);
    assert!(printed.starts_with("2 weights quantised ("), "{printed}");
    for (name, why) in reasons {
        contains(&printed, &[&format!("copied, {why}: {name:?}\n")]);
    }
    let one = prints(&[&args[..], &["--include", "fc1.*"]].concat());
    assert!(one.starts_with("1 weight quantised ("), "{one}");
    contains(&one, &["not included by --include: \"fc2.weight\""]);
    // If nothing is left to quantise, the reasons help.
    let none = fails(&[&args[..], &["--exclude", "*"]].concat());
    contains(&none, &["nothing to quantise", "K = 24"]);
}

/// A file's own label.
fn label(path: &str, entry: &str) -> Value {
    let file = TensorFile::open(path).unwrap();
    serde_json::from_str(&file.metadata()[entry]).unwrap()
}

#[test]
fn the_output_is_labelled_as_what_it_is() {
    let dir = Folder::new();
    let (source, out) = (dir.at("in.safetensors"), dir.at("out.safetensors"));
    model(Path::new(&source), |_| {});
    let report = json(&["quantize", &source, &out]);
    assert_eq!(report["quantised_layers"], json!(["fc1", "fc2"]));
    let said = &label(&out, "hf_quant_config")["quantization"];
    assert_eq!(said["quant_algo"], "W4A16_NVFP4");
    assert_eq!(said["group_size"], 16);
    assert_eq!(said["exclude_modules"], json!(["embed", "odd"]));

    let out = dir.at("ct.safetensors");
    let compressed = ["--dialect", "compressed-tensors"];
    json(&[&["quantize", &source, &out], &compressed[..]].concat());
    let said = label(&out, "quantization_config");
    let group = &said["config_groups"]["group_0"];
    assert_eq!(said["ignore"], json!(["embed", "odd"]));
    assert!(group["input_activations"].is_null());
    assert_eq!(group["weights"]["group_size"], 16);

    // Layers that were there before keep their input scales, and each is labelled as it is.
    for (dialect, input_scale) in [
        ("modelopt", "fc1.input_scale"),
        ("compressed-tensors", "fc1.input_global_scale"),
    ] {
        let half = dir.at("half.safetensors");
        let args = ["quantize", &source, &half, "--dialect", dialect, "--force"];
        json(&[&args[..], &["--include", "fc1.*"]].concat());
        let file = TensorFile::open(&half).unwrap();
        let copy = |t: nvfp4_gemv::file::Tensor<'_>| {
            let tensor = NewTensor::new(t.dtype(), t.shape(), t.bytes().to_vec());
            (t.name().to_owned(), tensor)
        };
        let mut tensors: Vec<_> = file.tensors().map(copy).collect();
        tensors.push((input_scale.into(), NewTensor::f32(&[1], &[0.5])));
        let metadata = file.metadata().clone();
        file::write(Path::new(&half), tensors, Some(metadata)).unwrap();
        json(&["quantize", &half, &out, "--dialect", dialect, "--force"]);
        let checkpoint = Checkpoint::open(&out).unwrap();
        for layer in ["fc1", "fc2"] {
            let layer = checkpoint.layer(layer).unwrap();
            let mut notes = layer.notes().iter();
            assert!(
                notes.all(|note| matches!(note, Note::NotAdded { .. })),
                "{dialect}"
            );
            assert_eq!(
                layer.input_global().unwrap().is_some(),
                layer.name() == "fc1"
            );
        }
        if dialect == "modelopt" {
            let said = &label(&out, "hf_quant_config")["quantization"];
            assert_eq!(said["quant_algo"], "MIXED_PRECISION");
            let layers = &said["quantized_layers"];
            assert_eq!(layers["fc1"]["quant_algo"], "NVFP4");
            assert_eq!(layers["fc2"]["quant_algo"], "W4A16_NVFP4");
        }
    }
}

#[test]
fn quantize_does_not_make_files_of_two_dialects() {
    let dir = Folder::new();
    let (source, out) = (dir.at("in.safetensors"), dir.at("out.safetensors"));
    model(Path::new(&source), |_| {});
    let [one, other] = Dialect::ALL.map(Dialect::name);
    for (dialect, other) in [(one, other), (other, one)] {
        let half = dir.at("half.safetensors");
        let args = ["quantize", &source, &half, "--dialect", dialect, "--force"];
        json(&[&args[..], &["--include", "fc1.*"]].concat());
        let error = fails(&["quantize", &half, &out, "--dialect", other]);
        contains(&error, &["\"fc1\"", dialect, other]);
        assert!(!Path::new(&out).exists());
    }
    // Layers of a tool whose names are not written.
    let mlx = dir.at("mlx.safetensors");
    let words = NewTensor::zeros(Dtype::U32, &[32, 4]);
    let scales = NewTensor::zeros(Dtype::U8, &[32, 2]);
    let plain = NewTensor::f32(&[32, 32], &[1.0; 1024]);
    let tensors = [
        ("a.weight", words),
        ("a.scales", scales),
        ("b.weight", plain),
    ];
    let tensors = tensors.map(|(name, tensor)| (name.to_owned(), tensor));
    file::write(Path::new(&mlx), tensors, None).unwrap();
    contains(
        &fails(&["quantize", &mlx, &out]),
        &["\"a\"", "mlx", "modelopt"],
    );
    // Labels, where no tensor tells.
    let beside = |name: &str, text: &str| std::fs::write(dir.at(name), text).unwrap();
    for (name, text, dialect) in [
        (
            "config.json",
            r#"{"quantization_config": {"quant_method": "compressed-tensors"}}"#,
            "modelopt",
        ),
        (
            "hf_quant_config.json",
            r#"{"quantization": {"quant_algo": "FP8"}}"#,
            "compressed-tensors",
        ),
    ] {
        beside(name, text);
        let error = fails(&["quantize", &source, &out, "--dialect", dialect]);
        contains(&error, &[name, dialect]);
        // A config is an input, and not replaced.
        let over = dir.at(name);
        let error = fails(&["quantize", &source, &over, "--force"]);
        contains(&error, &[name]);
        assert_eq!(std::fs::read_to_string(&over).unwrap(), text);
        std::fs::remove_file(&over).unwrap();
    }
    let metadata = [("_quantization_metadata".to_owned(), "{}".to_owned())].into();
    let tensor = NewTensor::f32(&[32, 32], &[1.0; 1024]);
    file::write(
        Path::new(&source),
        [("fc.weight".to_owned(), tensor)],
        Some(metadata),
    )
    .unwrap();
    contains(&fails(&["quantize", &source, &out]), &["ComfyUI"]);
}

#[test]
fn quantize_works_in_the_current_directory_and_on_directories() {
    let dir = Folder::new();
    model(Path::new(&dir.at("in.safetensors")), |_| {});
    let out = command()
        .args(["quantize", ".", "out.safetensors"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    Checkpoint::open(dir.at("out.safetensors")).unwrap();
}

#[test]
fn a_failed_quantize_leaves_nothing_behind() {
    let dir = Folder::new();
    let (source, out) = (dir.at("in.safetensors"), dir.at("out.safetensors"));
    model(Path::new(&source), |x| x[3 * 32 + 7] = f32::NAN);
    let error = fails(&["quantize", &source, &out]);
    contains(&error, &["\"fc1.weight\"", "row 3, column 7 is NaN"]);
    assert_eq!(dir.names(), ["in.safetensors"]);

    model(Path::new(&source), |_| {});
    std::fs::write(&out, "mine").unwrap();
    assert!(fails(&["quantize", &source, &out]).contains("--force"));
    // A truncated input, with --force: what is there stays.
    let good = std::fs::read(&source).unwrap();
    std::fs::write(&source, &good[..good.len() - 1]).unwrap();
    assert!(fails(&["quantize", &source, &out, "--force"]).contains("not a valid"));
    assert_eq!(std::fs::read(&out).unwrap(), b"mine");
    assert_eq!(dir.names(), ["in.safetensors", "out.safetensors"]);

    assert!(fails(&["quantize", MODELOPT, &dir.at("x")]).contains("nothing to quantise"));
    assert!(fails(&["quantize", &dir.at("gone"), &dir.at("x")]).contains("gone"));
    assert!(fails(&["quantize", MODELOPT, dir.path()]).contains("directory"));
    model(Path::new(&source), |_| {});
    let error = fails(&["quantize", &source, "/nonexistent/out.safetensors"]);
    assert!(error.contains("cannot be written"), "{error}");
    assert_eq!(dir.names(), ["in.safetensors", "out.safetensors"]);
}
