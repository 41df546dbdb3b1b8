//! `run`: real layers, recorded outputs, vectors from files, bad input.

use std::path::Path;

use nvfp4_gemv::checkpoint::Checkpoint;
use nvfp4_gemv::file::TensorFile;
use nvfp4_gemv_cli::file::{self, NewTensor};
use safetensors::Dtype;
use serde_json::Value;

use crate::{
    COMPRESSED, Folder, LAYER, MODELOPT, contains, fails, json, prints, program, run_layer, words,
};

#[test]
fn run_computes_real_layers_within_their_bounds() {
    for (file, dialect) in [(MODELOPT, "modelopt"), (COMPRESSED, "compressed-tensors")] {
        for activation in ["nvfp4", "f16", "bf16", "f32"] {
            for layout in ["linear", "128x4"] {
                let operands = ["--activation", activation, "--layout", layout];
                let run = json(&run_layer(file, LAYER, &operands));
                assert_eq!(run["passed"], true, "{run}");
                assert_eq!(run["dialect"], dialect);
                let dimensions = ["m", "k", "n"].map(|name| run[name].as_u64().unwrap());
                assert_eq!(dimensions, [1536, 384, 8]);
                assert_eq!(run["path"], "cpu");
                assert!(run["reason"].as_str().unwrap().contains("asked for"));
                assert!(run["seconds"]["median"].as_f64().unwrap() > 0.0);
                assert!(run["error"]["worst_bound"].as_f64().unwrap() > 0.0);
                // The recorded output is of unquantised activations.
                assert_eq!(run["recorded"].is_object(), activation == "f32");
                assert_eq!(run["quantisation_rms"].is_f64(), activation == "nvfp4");
            }
        }
    }
    contains(
        &prints(&run_layer(MODELOPT, LAYER, &[])),
        &words("layer shape path because time GB/s error allowed"),
    );
}

#[test]
fn run_fails_when_the_recorded_output_is_not_met() {
    let dir = Folder::new();
    let path = dir.at("wrong.safetensors");
    let original = TensorFile::open(MODELOPT).unwrap();
    let recorded = format!("{LAYER}.test_output_w4a16_f64");
    let tensors = original.tensors().map(|t| {
        let mut bytes = t.bytes().to_vec();
        if t.name() == recorded {
            // One mantissa bit of one element, of about 2^-10 of its value.
            bytes[8 * 1000 + 5] ^= 0x04;
        }
        let tensor = NewTensor::new(t.dtype(), t.shape(), bytes);
        (t.name().to_owned(), tensor)
    });
    file::write(Path::new(&path), tensors, None).unwrap();
    let rest = words("--activation f32 --json");
    let out = program(&run_layer(&path, LAYER, &rest));
    assert_eq!(out.status.code(), Some(1));
    let run: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(run["passed"], false);
    assert_eq!(run["error"]["passed"], true);
    assert_eq!(run["recorded"]["error"]["passed"], false);
    assert_eq!(run["recorded"]["error"]["worst_element"], 1000);
}

#[test]
fn run_takes_vectors_from_files_and_writes_results() {
    let dir = Folder::new();
    let y = dir.at("y.safetensors");
    let input = format!("{COMPRESSED}:{LAYER}.test_input");
    let with = words("--n 3 --activation f32");
    let files = ["--input", &input, "--output", &y];
    let run = json(&run_layer(MODELOPT, LAYER, &[&with[..], &files].concat()));
    assert_eq!(run["n"], 3);
    let file = TensorFile::open(&y).unwrap();
    let written = file.get("y").unwrap();
    let written = written.expect(Dtype::F32, &[3, 1536]).unwrap();
    let written = written.to_f32().unwrap();
    let checkpoint = Checkpoint::open(MODELOPT).unwrap();
    let recorded = format!("{LAYER}.test_output_w4a16_f64");
    let recorded = checkpoint.find_tensor(&recorded).unwrap();
    for (y, recorded) in written.iter().zip(recorded.to_f64().unwrap()) {
        assert!((f64::from(*y) - recorded).abs() < 1e-4);
    }
    assert_eq!(dir.names(), ["y.safetensors"], "only the result is there");

    let random = |seed: &str| {
        let with = words("--n 16 --activation bf16 --output-type f16 --force");
        let rest = ["--random", seed, "--output", &y];
        json(&run_layer(MODELOPT, LAYER, &[&with[..], &rest].concat()));
        std::fs::read(&y).unwrap()
    };
    let first = random("1");
    assert_eq!(first, random("1"));
    assert_ne!(first, random("2"));
}

#[test]
fn bad_input_of_run_is_named() {
    let run = |rest: &[&str]| fails(&run_layer(MODELOPT, LAYER, rest));
    assert!(run(&["--n", "9"]).contains("8 rows"));
    assert!(run(&["--input", "no-colon"]).contains("FILE:TENSOR"));
    assert!(run(&["--input", "gone.safetensors:x"]).contains("gone.safetensors"));
    assert!(run(&["--input", &format!("{MODELOPT}:nope")]).contains("no tensor \"nope\""));
    let weight = format!("{MODELOPT}:{LAYER}.weight");
    assert!(run(&["--input", &weight]).contains("expected F32, F16 or BF16"));
    assert!(run(&["--output", "/nonexistent/y.safetensors"]).contains("/nonexistent/y"));
    let layer = |file: &str, layer: &str| fails(&["run", "--checkpoint", file, "--layer", layer]);
    let error = layer(MODELOPT, "encoder.layer.9");
    contains(&error, &["encoder.layer.9", LAYER]);
    assert!(layer("gone", LAYER).contains("gone"));
    assert!(layer("tests", LAYER).contains("*.safetensors"));
    assert!(layer("Cargo.toml", LAYER).contains("not a safetensors file but text"));
}

/// Held against what PyPI `gguf` dequantises the files' tensors to, and not only against the operands that were read.
#[test]
fn run_computes_layers_of_gguf_files() {
    let dir = Folder::new();
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/gguf/");
    let [x_file, y_file] = ["x.safetensors", "y.safetensors"].map(|name| dir.at(name));
    for (file, layer, stored, factor) in [
        ("llama", "model.layers.0.mlp.gate_proj", "GGUF's NVFP4", 1.0),
        // Its rows are in another order in the file.
        (
            "llama",
            "model.layers.0.self_attn.k_proj",
            "GGUF's NVFP4",
            0.25,
        ),
        ("llama", "model.layers.0.mlp.up_proj", "GGUF's MXFP4", 1.0),
        // Each row has a factor.
        ("types", "mxfp4_wide", "GGUF's MXFP4", 1.0),
        ("types", "nvfp4_scaled", "GGUF's NVFP4", 0.0123f32),
    ] {
        let expected = TensorFile::open(format!("{data}{file}.safetensors")).unwrap();
        let expected = expected.get(&format!("{layer}.weight")).unwrap();
        let &[m, k] = expected.shape() else {
            panic!("{expected}")
        };
        let weights = expected.to_f32().unwrap();
        let x: Vec<f32> = (0..2 * k)
            .map(|i| ((i * 37 % 64) as f32 - 31.0) / 32.0)
            .collect();
        let x_tensor = NewTensor::f32(&[2, k], &x);
        file::write(Path::new(&x_file), [("x".to_owned(), x_tensor)], None).unwrap();
        let checkpoint = format!("{data}{file}.gguf");
        let input = format!("{x_file}:x");
        let rest = [
            "--input",
            &input,
            "--activation",
            "f32",
            "--output",
            &y_file,
            "--force",
        ];
        let run = json(&run_layer(&checkpoint, layer, &rest));
        assert_eq!(
            (&run["passed"], &run["dialect"]),
            (&true.into(), &"gguf".into())
        );
        let dimensions = ["m", "k", "n"].map(|name| run[name].as_u64().unwrap() as usize);
        assert_eq!((dimensions, &run["layer"]), ([m, k, 2], &layer.into()));
        let y = TensorFile::open(&y_file).unwrap();
        let y = y.get("y").unwrap().to_f32().unwrap();
        for (at, y) in y.iter().enumerate() {
            let products = weights[at % m * k..][..k].iter().zip(&x[at / m * k..]);
            let products = products.map(|(w, x)| f64::from(w * factor) * f64::from(*x));
            let (sum, size) = products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
            assert!(
                (f64::from(*y) - sum).abs() <= 1e-5 * size,
                "{layer} {at}: {y} and {sum}"
            );
        }
        contains(
            &prints(&run_layer(&checkpoint, layer, &[])),
            &[stored, layer, ".gguf"],
        );
    }
    let [types, llama] = ["types", "llama"].map(|name| format!("{data}{name}.gguf"));
    let calibrated = json(&run_layer(
        &types,
        "nvfp4_scaled",
        &["--activation", "nvfp4"],
    ));
    contains(calibrated["input_scale"].as_str().unwrap(), &["calibrated"]);
    for (file, layer, parts) in [
        (
            &types,
            "nvfp4_exps",
            &["nvfp4_exps", "stacked experts", "[3, 4, 64]"][..],
        ),
        (
            &types,
            "nvfp4_signed",
            &["nvfp4_signed", "scales without a sign"],
        ),
        (&types, "mxfp4_too_wide", &["mxfp4_too_wide", "row"]),
        (&types, "lora", &["lora_a"]),
        (&types, "f16", &["expected NVFP4 or MXFP4"]),
        (
            &llama,
            "model.layers.0.mlp.gate_prj",
            &["model.layers.0.mlp.gate_proj"],
        ),
    ] {
        contains(&fails(&run_layer(file, layer, &[])), parts);
    }
    // An input is not written over.
    let over = ["--output", &types, "--force"];
    contains(&fails(&run_layer(&types, "nvfp4", &over)), &["types.gguf"]);
}
