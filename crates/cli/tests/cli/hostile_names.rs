//! Names that act on a terminal, or make up messages, wherever they come from.

use std::path::Path;

use nvfp4_gemv::checkpoint::Dialect;
use nvfp4_gemv::quantize::quantize;
use nvfp4_gemv_cli::file::{self, NewTensor};
use serde_json::json;

use crate::{Folder, H200, command, program, run_layer, text};

/// Clears the screen, makes up a line, turns the direction of writing.
const HOSTILE: &str = "\u{1b}[2Jx\nerror: made up\u{202e}\u{9b}31m\u{7}";

/// Nothing that acts, and no line that the program did not begin.
fn is_harmless(shown: &[u8]) {
    let shown = text(shown);
    let acts = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    assert!(!shown.contains(acts), "{shown:?}");
    assert!(!shown.contains("\nerror: made up"), "{shown}");
}

/// A call, its output for people, and its errors.
fn harmless(args: &[&str]) -> String {
    let out = program(args);
    is_harmless(&out.stdout);
    is_harmless(&out.stderr);
    assert!(!text(&out.stderr).contains("panicked"));
    // The output for scripts must be harmless, too, and still JSON.
    let as_json = program(&[args, &["--json"]].concat());
    is_harmless(&as_json.stdout);
    if !as_json.stdout.is_empty() {
        serde_json::from_slice::<serde_json::Value>(&as_json.stdout).unwrap();
    }
    text(&out.stdout) + &text(&out.stderr)
}

/// A quantised layer of a hostile name, a weight that is not, and hostile metadata.
fn checkpoint(path: &Path, layer: &str) {
    let values: Vec<f32> = (0..32 * 32).map(|i| i as f32 / 1024.0).collect();
    let q = quantize(&values, 32, 32, Dialect::ModelOpt, None).unwrap();
    let tensors = [
        ("test_input", NewTensor::f32(&[1, 32], &values[..32])),
        (
            "test_output_w4a16_f64",
            NewTensor::f64(&[1, 32], &[0.0; 32]),
        ),
        ("up.weight", NewTensor::f32(&[32, 32], &values)),
    ];
    let tensors = tensors.map(|(name, tensor)| (format!("{layer}.{name}"), tensor));
    let tensors = NewTensor::layer(layer, Dialect::ModelOpt, q)
        .into_iter()
        .chain(tensors);
    let metadata = [(layer.to_owned(), layer.to_owned())].into();
    file::write(path, tensors, Some(metadata)).unwrap();
}

#[test]
fn names_of_tensors_and_files_do_not_act() {
    let dir = Folder::new();
    let file = dir.at(&format!("{HOSTILE}.safetensors"));
    checkpoint(Path::new(&file), HOSTILE);
    for activation in ["nvfp4", "f32"] {
        let run = |layer: &str, rest: &[&str]| {
            let rest = [&["--activation", activation], rest].concat();
            harmless(&run_layer(&file, layer, &rest))
        };
        let shown = run(HOSTILE, &[]);
        assert!(shown.contains(r"\u{1b}[2Jx\nerror: made up"), "{shown}");
        run("x", &[]);
        run(&format!("{HOSTILE}.up"), &[]);
        let input = format!("{file}:{HOSTILE}.test_input");
        for input in [&input, HOSTILE, &format!("{file}:x")] {
            run(HOSTILE, &["--input", input]);
        }
        let y = dir.at(&format!("y{HOSTILE}"));
        run(HOSTILE, &["--output", &y]);
    }
    harmless(&["quantize", &file, &dir.at(&format!("q{HOSTILE}"))]);
    let says = json!({ "quant_method": HOSTILE }).to_string();
    std::fs::write(
        dir.at("config.json"),
        format!("{{\"quantization_config\": {says}}}"),
    )
    .unwrap();
    for each in [&["inspect", &file][..], &["inspect", &file, "--each"]] {
        let shown = harmless(each);
        assert!(shown.contains(r"\u{1b}[2Jx\nerror: made up"), "{shown}");
    }
    harmless(&["inspect", &dir.at(HOSTILE)]);
    std::fs::remove_file(dir.at("config.json")).unwrap();
    harmless(&["quantize", &file, &dir.at(&format!("none/{HOSTILE}"))]);
    harmless(&["quantize", &file, &file]);
    harmless(&["quantize", &dir.at(HOSTILE), &dir.at("out")]);
    harmless(&["verify", "--problem", &file]);
    harmless(&["verify", "--case", HOSTILE]);
    let dump = dir.at(&format!("dump{HOSTILE}"));
    let verify = ["verify", "--case", "zeros 5x16", "--path", "cpu"];
    harmless(&[&verify[..], &["--dump", &dump]].concat());
    harmless(&["plan", "16", "16", "--tuned", &file]);
    harmless(&["plan", "16", "16", "--gpu", HOSTILE]);
}

/// Headers, indices and files of configs are JSON, and what reads JSON quotes what it does not take.
#[test]
fn errors_do_not_quote_what_acts() {
    let dir = Folder::new();
    let name = serde_json::to_string(HOSTILE).unwrap();
    for header in [
        format!(r#"{{{name}: {{"dtype": {name}, "shape": [1], "data_offsets": [0, 4]}}}}"#),
        format!(r#"{{{name}: {{"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}}}"#),
        format!(r#"{{{name}: {{{name}: 1}}}}"#),
        format!(r#"{{"__metadata__": {{{name}: 1}}}}"#),
    ] {
        let file = dir.at("bad.safetensors");
        let bytes = [
            &(header.len() as u64).to_le_bytes(),
            header.as_bytes(),
            &[0; 4],
        ]
        .concat();
        std::fs::write(&file, bytes).unwrap();
        harmless(&["run", "--checkpoint", &file, "--layer", "x"]);
        harmless(&["inspect", &file]);
        harmless(&["verify", "--problem", &file]);
    }
    for index in [
        format!(r#"{{"weight_map": {{{name}: {name}}}}}"#),
        format!(r#"{{"weight_map": {{{name}: 1}}}}"#),
        format!(r#"{{"weight_map": {{{name}: "/etc/passwd"}}}}"#),
        format!("{{{HOSTILE}"),
    ] {
        let file = dir.at("model.safetensors.index.json");
        std::fs::write(&file, index).unwrap();
        harmless(&["run", "--checkpoint", &file, "--layer", "x"]);
        harmless(&["inspect", &file]);
    }
    let table = std::fs::read_to_string(H200).unwrap();
    for from in ["\"from\"", "\"ring\"", "\"NVIDIA H200\""] {
        let file = dir.at("tuned.jsonl");
        assert!(table.contains(from), "{from}");
        std::fs::write(&file, table.replace(from, &name)).unwrap();
        harmless(&["plan", "4096", "4096", "--tuned", &file]);
    }
}

#[test]
fn arguments_and_the_environment_do_not_act() {
    for args in [
        &[HOSTILE][..],
        &["run", HOSTILE],
        &[&format!("--{HOSTILE}")],
        &["plan", HOSTILE, "16"],
        &["plan", "16", "16", "--path", HOSTILE],
        &["plan", "16", "16", "--compute-capability", HOSTILE],
        &["bench", "--shape", HOSTILE],
        &["bench", "--slow-down", HOSTILE],
        &["bench", "--slow-down", &format!("{HOSTILE}=1")],
        &["compare", "--a", HOSTILE, "--b", &format!("cpu:{HOSTILE}")],
        &["tune", "--shape", "16,16", "--seconds", HOSTILE],
    ] {
        harmless(args);
    }
    for (name, args) in [
        ("NVFP4_GEMV_PATH", &["info"][..]),
        ("NVFP4_GEMV_TUNED", &["plan", "16", "16"]),
        ("CUDA_VISIBLE_DEVICES", &["info"]),
    ] {
        let out = command().args(args).env(name, HOSTILE).output().unwrap();
        is_harmless(&out.stdout);
        is_harmless(&out.stderr);
    }
}
