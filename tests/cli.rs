//! The program, run as its users run it.
#![cfg(feature = "cli")]

use std::path::Path;
use std::process::{Command, Output};

use nvfp4_gemv::checkpoint::{Checkpoint, Dialect};
use nvfp4_gemv::file::{self, NewTensor, TensorFile};
use nvfp4_gemv::problem::Problem;
use nvfp4_gemv::{format::e2m1, reference};
use safetensors::Dtype;
use serde_json::Value;

const MODELOPT: &str = "tests/data/minilm-l0-modelopt.safetensors";
const COMPRESSED: &str = "tests/data/minilm-l0-compressed-tensors.safetensors";
const LAYER: &str = "encoder.layer.0.intermediate.dense";

fn program(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nvfp4-gemv"))
        .args(args)
        .env_remove("NVFP4_GEMV_PATH")
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What a successful call prints.
fn prints(args: &[&str]) -> String {
    let out = program(args);
    assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
    text(&out.stdout)
}

/// The JSON object of a call that succeeds.
fn json(args: &[&str]) -> Value {
    let args = [args, &["--json"]].concat();
    serde_json::from_str(&prints(&args)).unwrap()
}

/// The error of a call that must fail with 1, the same for people and for scripts.
fn fails(args: &[&str]) -> String {
    let out = program(args);
    assert_eq!(
        out.status.code(),
        Some(1),
        "{args:?}: {}",
        text(&out.stdout)
    );
    let error = text(&out.stderr);
    assert!(error.starts_with("error: "), "{error}");
    assert!(!error.contains("panicked"), "{error}");
    let out = program(&[args, &["--json"]].concat());
    assert_eq!(out.status.code(), Some(1));
    let json: Value = serde_json::from_slice(&out.stdout).unwrap();
    let message = json["error"].as_str().unwrap();
    assert!(error.contains(message), "{error} {message}");
    error
}

#[test]
fn help_has_examples_and_wrong_usage_exits_with_2() {
    assert!(prints(&["--help"]).contains("Exit codes"));
    for command in ["info", "run", "verify", "quantize", "plan", "bench"] {
        let help = prints(&[command, "--help"]);
        assert!(
            help.contains("Examples:") && help.contains("--json"),
            "{help}"
        );
    }
    for wrong in [
        &["frobnicate"][..],
        &["run"],
        &["plan", "x", "16"],
        &["plan", "16", "16", "--path", "gpu"],
        &["bench", "--shape", "1,2,3,4,5"],
        &["bench", "--shape", "16,24"],
        &["verify", "--problem", "x", "--contest"],
        &[
            "run",
            "--checkpoint",
            "c",
            "--layer",
            "l",
            "--random",
            "1",
            "--input",
            "a:b",
        ],
    ] {
        let out = program(wrong);
        assert_eq!(out.status.code(), Some(2), "{wrong:?}");
        assert!(!out.stderr.is_empty());
    }
}

#[test]
fn info_lists_every_path_with_its_state() {
    let info = json(&["info"]);
    let paths = info["paths"].as_array().unwrap();
    let names: Vec<_> = paths.iter().map(|p| p["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["cpu", "cuda-core", "tensor-core"]);
    assert_eq!(paths[0]["available"], true);
    for path in paths {
        assert_ne!(
            path["available"] == true,
            path["why_not"].is_string(),
            "{path}"
        );
    }
    assert!(info["cpu"]["implementations"].as_array().unwrap().len() >= 2);
    assert!(prints(&["info"]).contains("Paths"));
}

#[test]
fn run_computes_real_layers_within_their_bounds() {
    for (file, dialect) in [(MODELOPT, "modelopt"), (COMPRESSED, "compressed-tensors")] {
        for activation in ["nvfp4", "f16", "bf16", "f32"] {
            for layout in ["linear", "128x4"] {
                let run = json(&[
                    "run",
                    "--checkpoint",
                    file,
                    "--layer",
                    LAYER,
                    "--path",
                    "cpu",
                    "--activation",
                    activation,
                    "--layout",
                    layout,
                ]);
                assert_eq!(run["passed"], true, "{run}");
                assert_eq!(run["dialect"], dialect);
                assert_eq!(
                    (&run["m"], &run["k"], &run["n"]),
                    (&1536.into(), &384.into(), &8.into())
                );
                assert_eq!(run["path"], "cpu");
                assert!(run["reason"].as_str().unwrap().contains("forced"));
                assert!(run["seconds"]["median"].as_f64().unwrap() > 0.0);
                assert!(run["error"]["worst_bound"].as_f64().unwrap() > 0.0);
                // The recorded output is of unquantised activations.
                assert_eq!(run["recorded"].is_object(), activation == "f32");
                assert_eq!(run["quantisation_rms"].is_f64(), activation == "nvfp4");
            }
        }
    }
    let printed = prints(&[
        "run",
        "--checkpoint",
        MODELOPT,
        "--layer",
        LAYER,
        "--path",
        "cpu",
    ]);
    for label in [
        "layer", "shape", "path", "because", "time", "GB/s", "error", "allowed",
    ] {
        assert!(printed.contains(label), "{printed}");
    }
}

#[test]
fn run_fails_when_the_recorded_output_is_not_met() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wrong.safetensors");
    let original = TensorFile::open(MODELOPT).unwrap();
    let recorded = format!("{LAYER}.test_output_w4a16_f64");
    let tensors = original.tensors().map(|t| {
        let mut bytes = t.bytes().to_vec();
        if t.name() == recorded {
            // One mantissa bit of one element, of about 2^-10 of its value.
            bytes[8 * 1000 + 5] ^= 0x04;
        }
        let tensor = NewTensor {
            dtype: t.dtype(),
            shape: t.shape().to_vec(),
            bytes: bytes.into(),
        };
        (t.name().to_owned(), tensor)
    });
    file::write(&path, tensors, None).unwrap();
    let args = [
        "run",
        "--checkpoint",
        path.to_str().unwrap(),
        "--layer",
        LAYER,
        "--path",
        "cpu",
        "--activation",
        "f32",
        "--json",
    ];
    let out = program(&args);
    assert_eq!(out.status.code(), Some(1));
    let run: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(run["passed"], false);
    assert_eq!(run["error"]["passed"], true);
    assert_eq!(run["recorded"]["error"]["passed"], false);
    assert_eq!(run["recorded"]["error"]["worst_element"], 1000);
}

#[test]
fn run_takes_vectors_from_files_and_writes_results() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let y = at("y.safetensors");
    let input = format!("{COMPRESSED}:{LAYER}.test_input");
    let run = json(&[
        "run",
        "--checkpoint",
        MODELOPT,
        "--layer",
        LAYER,
        "--path",
        "cpu",
        "--input",
        &input,
        "--n",
        "3",
        "--activation",
        "f32",
        "--output",
        &y,
    ]);
    assert_eq!(run["n"], 3);
    let file = TensorFile::open(&y).unwrap();
    let written = file
        .get("y")
        .unwrap()
        .expect(Dtype::F32, &[3, 1536])
        .unwrap();
    let written = written.to_f32().unwrap();
    let checkpoint = Checkpoint::open(MODELOPT).unwrap();
    let recorded = checkpoint
        .find_tensor(&format!("{LAYER}.test_output_w4a16_f64"))
        .unwrap();
    for (y, recorded) in written.iter().zip(recorded.to_f64().unwrap()) {
        assert!((f64::from(*y) - recorded).abs() < 1e-4);
    }
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        1,
        "only the result is there"
    );

    let random = |seed: &str| {
        json(&[
            "run",
            "--checkpoint",
            MODELOPT,
            "--layer",
            LAYER,
            "--path",
            "cpu",
            "--random",
            seed,
            "--n",
            "16",
            "--activation",
            "bf16",
            "--output-type",
            "f16",
            "--output",
            &y,
        ]);
        std::fs::read(&y).unwrap()
    };
    let first = random("1");
    assert_eq!(first, random("1"));
    assert_ne!(first, random("2"));
}

#[test]
fn bad_input_of_run_is_named() {
    let run = |rest: &[&str]| {
        let base = [
            "run",
            "--checkpoint",
            MODELOPT,
            "--layer",
            LAYER,
            "--path",
            "cpu",
        ];
        fails(&[&base, rest].concat())
    };
    assert!(run(&["--n", "0"]).contains("N = 0"));
    assert!(run(&["--n", "17"]).contains("N = 17"));
    assert!(run(&["--n", "9"]).contains("8 rows"));
    assert!(run(&["--random", "1", "--n", "17"]).contains("N = 17"));
    assert!(run(&["--input", "no-colon"]).contains("FILE:TENSOR"));
    assert!(run(&["--input", "gone.safetensors:x"]).contains("gone.safetensors"));
    assert!(run(&["--input", &format!("{MODELOPT}:nope")]).contains("no tensor \"nope\""));
    let weight = format!("{MODELOPT}:{LAYER}.weight");
    assert!(run(&["--input", &weight]).contains("expected F32, F16 or BF16"));
    assert!(run(&["--output", "/nonexistent/y.safetensors"]).contains("/nonexistent/y"));
    let layer = |file: &str, layer: &str| fails(&["run", "--checkpoint", file, "--layer", layer]);
    let error = layer(MODELOPT, "encoder.layer.9");
    assert!(
        error.contains("encoder.layer.9") && error.contains(LAYER),
        "{error}"
    );
    assert!(layer("gone", LAYER).contains("gone"));
    assert!(layer("tests", LAYER).contains("*.safetensors"));
    assert!(layer("Cargo.toml", LAYER).contains("not a valid safetensors file"));
}

#[test]
fn a_path_that_is_not_there_is_an_error_and_auto_says_why_it_is_not_taken() {
    let info = json(&["info"]);
    let Some(why) = info["cuda"]["why_none"].as_str() else {
        return; // there is a device
    };
    for path in ["cuda-core", "tensor-core"] {
        let error = fails(&[
            "run",
            "--checkpoint",
            MODELOPT,
            "--layer",
            LAYER,
            "--path",
            path,
        ]);
        assert!(
            error.contains(path) || error.contains("driver") || error.contains("device"),
            "{error}"
        );
        assert!(error.contains("hint: "), "{error}");
        fails(&["verify", "--path", path, "--case", "zeros 5x16"]);
        fails(&["plan", "128", "256", "--path", path]);
        fails(&["bench", "--path", path, "--shape", "16,16"]);
    }
    let run = json(&["run", "--checkpoint", MODELOPT, "--layer", LAYER]);
    assert_eq!(run["path"], "cpu");
    assert!(
        run["reason"].as_str().unwrap().contains("not cuda-core"),
        "{run} {why}"
    );
    let mut forced = Command::new(env!("CARGO_BIN_EXE_nvfp4-gemv"));
    let forced = forced
        .args(["plan", "16", "16"])
        .env("NVFP4_GEMV_PATH", "cuda-core");
    assert_eq!(forced.output().unwrap().status.code(), Some(1));
    let unknown = forced.env("NVFP4_GEMV_PATH", "gpu").output().unwrap();
    assert!(text(&unknown.stderr).contains("\"gpu\" is not a path"));
}

#[test]
fn plan_explains() {
    let plan = json(&[
        "plan",
        "4096",
        "7168",
        "8",
        "--n",
        "4",
        "--compute-capability",
        "10.0",
    ]);
    assert_eq!(plan["l"], 8);
    assert_ne!(plan["path"], "cpu");
    assert_eq!(plan["others"].as_array().unwrap().len(), 2);
    assert!(!plan["reason"].as_str().unwrap().is_empty());
    let old = fails(&["plan", "128", "256", "--compute-capability", "7.5"]);
    assert!(old.contains("compute capability 7.5"), "{old}");
    assert!(fails(&["plan", "128", "0"]).contains("K is 0"));
    assert!(fails(&["plan", "128", "24"]).contains("K = 24"));
    assert!(fails(&["plan", "128", "32", "--n", "17"]).contains("N = 17"));
    let huge = usize::MAX.to_string();
    assert!(fails(&["plan", &huge, "16"]).contains("overflow"));
    assert_eq!(json(&["plan", "0", "16", "--path", "cpu"])["path"], "cpu");
}

#[test]
fn verify_passes_on_the_cpu() {
    let all = json(&["verify", "--adversarial", "--path", "cpu"]);
    assert_eq!(
        (&all["passed"], &all["failed"], &all["skipped"]),
        (&true.into(), &0.into(), &0.into())
    );
    assert!(all["computed"].as_u64().unwrap() > 900);
    let contest = json(&[
        "verify",
        "--contest",
        "--path",
        "cpu",
        "--case",
        "contest 128x",
    ]);
    assert_eq!(contest["computed"], 6);
    assert_eq!(contest["passed"], true);
    assert!(fails(&["verify", "--case", "no such case"]).contains("no case"));
}

#[test]
fn verify_dumps_and_replays() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let case = at("case.safetensors");
    let printed = prints(&[
        "verify",
        "--path",
        "cpu",
        "--case",
        "row-alpha 77x48",
        "--dump",
        &case,
    ]);
    assert!(printed.contains("replay it with"), "{printed}");
    let replay = json(&["verify", "--problem", &case, "--path", "cpu"]);
    assert_eq!(
        (&replay["passed"], &replay["computed"]),
        (&true.into(), &24.into())
    );
    let one = json(&[
        "verify",
        "--problem",
        &case,
        "--path",
        "cpu",
        "--layout",
        "128x4",
        "--activation",
        "f16",
        "--output-type",
        "bf16",
    ]);
    assert_eq!(one["computed"], 1);
    assert_eq!(one["cases"][0]["layout"], "128x4");

    // A wrong answer in the file is found, and can be dumped again.
    let mut problem = Problem::read(&case).unwrap();
    problem.c.as_mut().unwrap()[5] += 1.0;
    problem.write(&case).unwrap();
    let again = at("again.safetensors");
    let out = program(&[
        "verify",
        "--problem",
        &case,
        "--path",
        "cpu",
        "--dump",
        &again,
        "--json",
    ]);
    assert_eq!(out.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        (&report["passed"], &report["failed"]),
        (&false.into(), &24.into())
    );
    assert_eq!(report["cases"][0]["check"]["worst_element"], 5);
    assert_eq!(Problem::read(&again).unwrap(), problem);

    // Without c, the reference is the truth.
    problem.c = None;
    problem.write(&case).unwrap();
    assert_eq!(
        json(&["verify", "--problem", &case, "--path", "cpu"])["passed"],
        true
    );

    // Nothing fails, no case is named: nothing to write, and it says so.
    let none = at("none.safetensors");
    let args = [
        "verify",
        "--adversarial",
        "--path",
        "cpu",
        "--output-type",
        "bf16",
        "--dump",
        &none,
    ];
    assert!(prints(&args).contains("nothing is written"));
    assert!(!Path::new(&none).exists());

    for (bytes, says) in [(&b"rubbish"[..], "not a valid"), (b"", "empty")] {
        std::fs::write(&case, bytes).unwrap();
        assert!(fails(&["verify", "--problem", &case]).contains(says));
    }
    assert!(fails(&["verify", "--problem", MODELOPT]).contains("no tensor \"a\""));
}

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
        (
            "fc2.weight",
            NewTensor {
                dtype: Dtype::BF16,
                shape: vec![32, 64],
                bytes: half.into(),
            },
        ),
        ("odd.weight", NewTensor::f32(&[8, 24], &weights[..192])),
        ("norm.weight", NewTensor::f32(&[32], &weights[..32])),
        ("embed.weight", NewTensor::f32(&[64, 32], &weights)),
    ];
    let tensors = tensors.map(|(name, tensor)| (name.to_owned(), tensor));
    file::write(path, tensors, None).unwrap();
}

#[test]
fn quantize_writes_what_the_checkpoint_reader_and_run_read() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let source = at("in.safetensors");
    model(Path::new(&source), |_| {});
    let original = TensorFile::open(&source).unwrap();
    for dialect in Dialect::ALL {
        let out = at(&format!("{dialect}.safetensors"));
        let report = json(&["quantize", &source, &out, "--dialect", dialect.name()]);
        assert_eq!(
            (&report["quantised"], &report["copied"]),
            (&2.into(), &4.into())
        );
        let checkpoint = Checkpoint::open(&out).unwrap();
        assert_eq!(checkpoint.layers().collect::<Vec<_>>(), ["fc1", "fc2"]);
        for name in ["fc1", "fc2"] {
            let layer = checkpoint.layer(name).unwrap();
            assert_eq!(layer.dialect(), dialect);
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
            let (a, b) = (
                original.get(copied).unwrap(),
                checkpoint.tensor(copied).unwrap(),
            );
            assert_eq!(
                (a.dtype(), a.shape(), a.bytes()),
                (b.dtype(), b.shape(), b.bytes())
            );
        }
        let run = json(&[
            "run",
            "--checkpoint",
            &out,
            "--layer",
            "fc2",
            "--path",
            "cpu",
        ]);
        assert_eq!(run["passed"], true);
    }
    let chosen = |rest: &[&str]| {
        let out = at("chosen.safetensors");
        json(&[&["quantize", &source, &out, "--force"], rest].concat())["quantised"].clone()
    };
    assert_eq!(chosen(&["--include", "fc1.*"]), 1);
    assert_eq!(chosen(&["--exclude", "*fc*"]), 1); // the embedding
    assert_eq!(chosen(&["--exclude", "nothing"]), 3);
}

#[test]
fn quantize_works_in_the_current_directory_and_on_directories() {
    let dir = tempfile::tempdir().unwrap();
    model(&dir.path().join("in.safetensors"), |_| {});
    let out = Command::new(env!("CARGO_BIN_EXE_nvfp4-gemv"))
        .args(["quantize", ".", "out.safetensors"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    Checkpoint::open(dir.path().join("out.safetensors")).unwrap();
}

#[test]
fn a_failed_quantize_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (source, out) = (at("in.safetensors"), at("out.safetensors"));
    let files = || {
        let mut names: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    model(Path::new(&source), |x| x[3 * 32 + 7] = f32::NAN);
    let error = fails(&["quantize", &source, &out]);
    assert!(
        error.contains("\"fc1.weight\"") && error.contains("row 3, column 7 is NaN"),
        "{error}"
    );
    assert_eq!(files(), ["in.safetensors"]);

    model(Path::new(&source), |_| {});
    std::fs::write(&out, "mine").unwrap();
    assert!(fails(&["quantize", &source, &out]).contains("--force"));
    // A truncated input, with --force: what is there stays.
    let good = std::fs::read(&source).unwrap();
    std::fs::write(&source, &good[..good.len() - 1]).unwrap();
    assert!(fails(&["quantize", &source, &out, "--force"]).contains("not a valid"));
    assert_eq!(std::fs::read(&out).unwrap(), b"mine");
    assert_eq!(files(), ["in.safetensors", "out.safetensors"]);

    assert!(fails(&["quantize", MODELOPT, &at("x")]).contains("nothing to quantise"));
    assert!(fails(&["quantize", &at("gone"), &at("x")]).contains("gone"));
    assert!(fails(&["quantize", MODELOPT, dir.path().to_str().unwrap()]).contains("directory"));
    model(Path::new(&source), |_| {});
    let error = fails(&["quantize", &source, "/nonexistent/out.safetensors"]);
    assert!(error.contains("cannot be written"), "{error}");
    assert_eq!(files(), ["in.safetensors", "out.safetensors"]);
}

#[test]
fn bench_reports_a_share_of_the_ceiling() {
    let bench = json(&[
        "bench",
        "--path",
        "cpu",
        "--shape",
        "256,512",
        "--shape",
        "64x64x2x3",
        "--activation",
        "nvfp4",
        "--activation",
        "f32",
        "--seconds",
        "0",
        "--cold",
        "1",
    ]);
    let results = bench["results"].as_array().unwrap();
    assert_eq!(results.len(), 4);
    for result in results {
        assert_eq!(result["path"], "cpu");
        for number in [
            "median_seconds",
            "gb_per_s",
            "ceiling_gb_per_s",
            "share_of_ceiling",
        ] {
            assert!(result[number].as_f64().unwrap() > 0.0, "{result}");
        }
    }
    assert_eq!(results[2]["n"], 3);
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_nvfp4-gemv"))
        .args(["verify", "--case", "zeros", "--path", "cpu"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert!(
        out.status.success() && out.stderr.is_empty(),
        "{}",
        text(&out.stderr)
    );
}
