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
    assert!(layer("Cargo.toml", LAYER).contains("not a valid safetensors file"));
}
