//! The program, run as its users run it.
#![cfg(feature = "cli")]

mod bench;
#[cfg(unix)]
mod files;
mod hostile_files;
mod hostile_names;
mod numbers;
mod quantize;
mod run;
mod tune;
mod verify;

use std::process::{Command, Output};

use serde_json::Value;

const MODELOPT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/data/minilm-l0-modelopt.safetensors"
);
const COMPRESSED: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/data/minilm-l0-compressed-tensors.safetensors"
);
const LAYER: &str = "encoder.layer.0.intermediate.dense";

/// What the program is given of the environment that the tests run in: how to find the driver, which of its
/// devices to use, where to count coverage. Everything else, from `NVFP4_GEMV_PATH` to `COLUMNS`, could
/// change what it prints.
const KEPT: [&str; 4] = [
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "LLVM_PROFILE_FILE",
    "SystemRoot",
];

/// The program, started the same way whoever runs the tests. Every test that starts it begins with this.
fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvfp4-gemv"));
    command
        .env_clear()
        .envs(
            KEPT.iter()
                .filter_map(|name| Some((name, std::env::var_os(name)?))),
        )
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(std::process::Stdio::null());
    command
}

fn program(args: &[&str]) -> Output {
    command().args(args).output().unwrap()
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
    for command in [
        "info", "run", "verify", "quantize", "plan", "bench", "compare",
    ] {
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
    assert_eq!(names, ["cpu", "cuda-core", "cuda-core-tma", "tensor-core"]);
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
fn a_path_that_is_not_there_is_an_error_and_auto_says_why_it_is_not_taken() {
    let info = json(&["info"]);
    let Some(why) = info["cuda"]["why_none"].as_str() else {
        return; // there is a device
    };
    for path in ["cuda-core", "cuda-core-tma", "tensor-core"] {
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
    let mut forced = command();
    let forced = forced
        .args(["plan", "16", "16"])
        .env("NVFP4_GEMV_PATH", "cuda-core");
    assert_eq!(forced.output().unwrap().status.code(), Some(1));
    let unknown = forced.env("NVFP4_GEMV_PATH", "gpu").output().unwrap();
    assert!(text(&unknown.stderr).contains("\"gpu\" is not a path"));
}

/// Plans are for the architectures of the build, where it has any.
fn compiled_for(arch: &str) -> bool {
    let archs = json(&["info"])["cuda"]["archs"].clone();
    let archs = archs.as_array().unwrap();
    archs.is_empty() || archs.iter().any(|one| one == arch)
}

fn compiled_for_blackwell() -> bool {
    compiled_for("100a")
}

#[test]
fn plan_explains() {
    if !compiled_for_blackwell() {
        return;
    }
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
    assert_eq!(plan["others"].as_array().unwrap().len(), 3);
    // Linear scales: tensor cores cannot read them.
    let reason = plan["reason"].as_str().unwrap();
    assert!(reason.starts_with("not tensor-core"), "{reason}");
    let blackwell = ["--layout", "128x4", "--compute-capability", "10.0"];
    for (n, path) in [("1", "cuda-core"), ("8", "tensor-core")] {
        let plan = json(&[&["plan", "4096", "7168", "--n", n], &blackwell[..]].concat());
        assert_eq!(plan["path"], path);
        assert!(plan["reason"].as_str().unwrap().contains("modelled"));
    }
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
fn a_reader_that_goes_away_is_no_panic() {
    let mut child = command()
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
