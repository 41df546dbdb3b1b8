//! Checkpoints that failed before: each gives the result that its `case.json` says is right.

use std::fs;
use std::path::Path;

use nvfp4_gemv::checkpoint::{Checkpoint, Dialect};
use nvfp4_gemv::file::TensorFile;
use serde_json::Value;

use crate::{Folder, contains, fails, json, prints, program, run_layer, text};

const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/checkpoints");

/// The arguments that run a case's layer with its vectors.
fn of<'a>(model: &'a str, input: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    run_layer(model, "l", &[&["--input", input], rest].concat())
}

/// A case's result is what its file expects, in f32.
fn gives_the_result(case: &str, model: &str, input: &str) -> Value {
    let dir = Folder::new();
    let y = dir.at("y.safetensors");
    let run = json(&of(model, input, &["--activation", "f32", "--output", &y]));
    assert_eq!(run["passed"], true, "{case}");
    let file = TensorFile::open(&y).unwrap();
    let y = file.get("y").unwrap().to_f32().unwrap();
    let expected = TensorFile::open(format!("{CASES}/{case}/expected.safetensors")).unwrap();
    let expected = expected.get("y").unwrap().to_f64().unwrap();
    assert_eq!(y.len(), expected.len());
    let largest = expected.iter().fold(0.0f64, |m, y| m.max(y.abs()));
    for (y, expected) in y.iter().zip(&expected) {
        assert!(
            (f64::from(*y) - expected).abs() <= 1e-5 * largest,
            "{case}: {y} {expected}"
        );
    }
    run
}

#[test]
fn every_case_gives_what_is_right() {
    for entry in fs::read_dir(CASES).unwrap() {
        let path = entry.unwrap().path();
        let case = path.file_name().unwrap().to_str().unwrap();
        let model = path.join("model.safetensors");
        let model = model.to_str().unwrap();
        let input = format!("{CASES}/{case}/expected.safetensors:x");
        let refused = |activation: &str, parts: &[&str]| {
            let error = fails(&of(model, &input, &["--activation", activation]));
            contains(&error, parts);
        };
        let file = path.to_str().unwrap();
        let no_file = |what: &str| {
            let error = fails(&["run", "--checkpoint", file, "--layer", "l"]);
            contains(&error, &[case, what]);
        };
        match case {
            "README.md" => {}
            "git-lfs-pointer.safetensors" => no_file("a git-lfs pointer"),
            "header-only.gguf" => no_file("a GGUF file"),
            "awq-pre-quant-scale" => {
                let run = gives_the_result(case, model, &input);
                assert_eq!(run["column_alpha"], true);
                let shown = prints(&of(model, &input, &[]));
                contains(
                    &shown,
                    &["multiplied by the layer's `pre_quant_scale` first"],
                );
            }
            "both-dialects" => refused("f32", &["\"l.weight\" (modelopt)", "\"l.weight_packed\""]),
            "comfy-swizzled-hi-nibble" => {
                gives_the_result(case, model, &input);
                json(&of(model, &input, &["--layout", "128x4"]));
            }
            "ct-input-global-inf" => {
                let run = gives_the_result(case, model, &input);
                contains(
                    run["notes"][0].as_str().unwrap(),
                    &["\"l.input_global_scale\"", "inf"],
                );
                for activation in ["f16", "bf16"] {
                    json(&of(model, &input, &["--activation", activation]));
                }
                refused("nvfp4", &["\"l.input_global_scale\"", "do not need it"]);
            }
            "experts-3d-llama4-names" => {
                let run = |layer| fails(&["run", "--checkpoint", model, "--layer", layer]);
                let named = ["stacked experts", "\"experts.gate_up_proj\""];
                contains(&run("experts.gate_up_proj"), &named);
                contains(&run("model.layers.0.mlp.up_proj"), &named);
                contains(
                    &run("experts.gate_up_proj_weight_scale"),
                    &["stacked experts"],
                );
            }
            "f16-vector-overflow" => {
                refused("f16", &["vector 0, element 5 is 1e5", "too large for f16"]);
                gives_the_result(case, model, &input);
            }
            "quantise-names" => {
                for dialect in Dialect::ALL {
                    only_the_layer_is_quantised(model, dialect);
                }
            }
            other => panic!("{other} is not known here"),
        }
    }
}

fn only_the_layer_is_quantised(model: &str, dialect: Dialect) {
    const LAYER: &str = "model.layers.0.self_attn.q_proj";
    let dir = Folder::new();
    let out = dir.at("out.safetensors");
    let args = [
        "quantize",
        model,
        &out,
        "--force",
        "--dialect",
        dialect.name(),
    ];
    let printed = prints(&args);
    contains(
        &printed,
        &[
            &format!("quantised: {LAYER:?}"),
            "experts stacked in one tensor",
            "\"model.layers.0.mlp.experts.gate_up_proj\"",
        ],
    );
    let report = json(&args);
    assert_eq!(report["quantised_layers"], serde_json::json!([LAYER]));
    let checkpoint = Checkpoint::open(Path::new(&out)).unwrap();
    assert_eq!(checkpoint.layers().collect::<Vec<_>>(), [LAYER]);
    // The file's description of itself agrees with its tensors.
    assert_eq!(checkpoint.notes(), []);
    assert_eq!(checkpoint.layer(LAYER).unwrap().notes(), []);
    let run = json(&run_layer(&out, LAYER, &[]));
    assert_eq!(run["notes"], serde_json::json!([]));
}

/// A result that f16 does not hold fails, and is named.
#[test]
fn a_result_that_its_type_does_not_hold_fails() {
    let dir = Folder::new();
    let input = dir.at("x.safetensors");
    let case = format!("{CASES}/f16-vector-overflow");
    let x = [6e4f32; 2048];
    let tensor = nvfp4_gemv_cli::file::NewTensor::f32(&[2048], &x);
    nvfp4_gemv_cli::file::write(Path::new(&input), [("x".to_owned(), tensor)], None).unwrap();
    let (model, input) = (format!("{case}/model.safetensors"), format!("{input}:x"));
    for activation in ["f32", "f16", "bf16", "nvfp4"] {
        let args = |output| {
            of(
                &model,
                &input,
                &["--activation", activation, "--output-type", output],
            )
        };
        assert_eq!(json(&args("f32"))["passed"], true);
        let out = program(&args("f16"));
        assert_eq!(out.status.code(), Some(1), "{activation}");
        contains(&text(&out.stdout), &["FAILED", "is inf", "does not hold"]);
    }
    // Tiny numbers vanish in f16, and it is said how much that changes.
    let tiny = dir.at("tiny.safetensors");
    let tensor = nvfp4_gemv_cli::file::NewTensor::f32(&[2048], &[1e-9f32; 2048]);
    nvfp4_gemv_cli::file::write(Path::new(&tiny), [("x".to_owned(), tensor)], None).unwrap();
    let tiny = format!("{tiny}:x");
    let shown = prints(&of(&model, &tiny, &["--activation", "f16"]));
    contains(
        &shown,
        &["rounding    the vectors changed the result by 100.00%"],
    );
    let run = json(&of(&model, &tiny, &["--activation", "f32"]));
    assert!(run["conversion_rms"].is_null());
}
