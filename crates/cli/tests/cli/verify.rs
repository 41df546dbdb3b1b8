//! `verify`: cases that pass, cases that fail, and cases that travel through files.

use std::path::Path;

use nvfp4_gemv_cli::file::{self, NewTensor};
use nvfp4_gemv_cli::problem::{Problem, Rule, contest_tolerance};
use nvfp4_gemv_files::output::Destination;
use safetensors::Dtype;
use serde_json::Value;

use crate::{Folder, MODELOPT, contains, fails, json, prints, program, refuses, words};

/// The arguments of `verify` on the CPU: words, then an argument that is no word.
fn on_cpu<'a>(line: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    [&["verify", "--path", "cpu"], &words(line)[..], rest].concat()
}

#[test]
fn verify_passes_on_the_cpu() {
    let all = json(&on_cpu("--adversarial", &[]));
    assert_eq!(all["passed"], true);
    assert_eq!(all["failed"], 0);
    assert_eq!(all["skipped"], 0);
    assert!(all["computed"].as_u64().unwrap() > 900);
    let contest = json(&on_cpu("--contest", &["--case", "contest 128x"]));
    assert_eq!(contest["computed"], 6);
    assert_eq!(contest["passed"], true);
    let unknown = ["verify", "--case", "no such case", "--json"];
    let out = program(&unknown);
    assert_eq!(out.status.code(), Some(2));
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(report["error"].as_str().unwrap().contains("no case"));
}

/// Nothing that was not looked at is taken for evidence.
#[test]
fn verify_says_what_was_left_out() {
    let empty = json(&on_cpu("", &["--case", "x0 "]));
    assert!(empty["computed"].as_u64().unwrap() > 0);
    assert_eq!(empty["computed"], empty["without_elements"]);

    let automatic = json(&["verify", "--case", "integers 77x48"]);
    let on_the_cpu = automatic["device"].as_str().unwrap().starts_with("CPU");
    assert_eq!(automatic["why_not_gpu"].is_string(), on_the_cpu);
    for command in ["verify --case integers", "bench --shape 64,64 --rounds 1"] {
        let args = [&words(command)[..], &["--path", "cpu", "--require-gpu"]].concat();
        let error = fails(&args);
        assert!(error.contains("--require-gpu, and the path cpu"), "{error}");
    }
}

/// Everything that passed is computed again; without `--soak` nothing is.
#[test]
fn a_soak_computes_what_passed_again() {
    let case = ["--case", "integers 77x48"];
    let soaked = json(&on_cpu("--adversarial --soak 0.001", &case));
    assert_eq!(soaked["passed"], true);
    let soak = &soaked["soak"];
    assert_eq!(soak["cases"], soaked["computed"]);
    assert!(soak["rounds"].as_u64().unwrap() >= 1, "{soak}");
    assert!(
        soak["launches"].as_u64() >= soaked["computed"].as_u64(),
        "{soak}"
    );
    assert_eq!(soak["failures"], serde_json::json!([]));
    assert!(json(&on_cpu("--adversarial", &case))["soak"].is_null());
    // No row, no batch: there is nothing to hold against anything.
    let nothing = program(&on_cpu("--soak 0.001", &["--case", "integers 0x64"]));
    assert_eq!(nothing.status.code(), Some(1));
    for wrong in ["0", "-1", "NaN", "1e9"] {
        refuses(&on_cpu("--soak", &[wrong]));
    }
}

/// A case that failed must fail again. Integers allow no error at all, and the derived bound would allow this one.
#[test]
fn a_replay_holds_results_against_what_the_case_did() {
    let dir = Folder::new();
    // A name that a shell would take apart.
    let case = dir.at("it's a case.safetensors");
    let printed = prints(&on_cpu("", &["--case", "integers 77x48", "--dump", &case]));
    let (_, command) = printed.split_once("replay it with\n  nvfp4-gemv ").unwrap();
    contains(
        command,
        &["it'\\''s a case.safetensors' --path cpu --layout linear"],
    );
    let replay = |command: &str| {
        let line = format!("{:?} {command}", env!("CARGO_BIN_EXE_nvfp4-gemv"));
        let shell = std::process::Command::new("sh")
            .args(["-c", &line])
            .output();
        shell.unwrap().status.code()
    };
    assert_eq!(replay(command), Some(0));
    let (mut problem, rule) = Problem::read_with_rule(&case).unwrap();
    assert_eq!(rule.as_deref(), Some("exact"));
    let c = problem.c.as_mut().unwrap();
    let at = c.iter().position(|c| *c != 0.0).unwrap();
    c[at] *= 1.0 + 1e-6;
    let output = Destination::new(&case).replace(true);
    problem.write_to(&output, Rule::Exact).unwrap();
    assert_eq!(replay(command), Some(1));
    problem.write_to(&output, Rule::Derived).unwrap();
    assert_eq!(replay(command), Some(0));

    // The contest's tolerance is for its own type of results: all variants of its data pass.
    let contest = dir.at("contest.safetensors");
    prints(&on_cpu(
        "",
        &["--case", "contest 128x256", "--dump", &contest],
    ));
    let (problem, rule) = Problem::read_with_rule(&contest).unwrap();
    assert_eq!(rule.as_deref(), Some("contest"));
    let expected = problem.c.as_deref().unwrap();
    let all = json(&on_cpu("", &["--problem", &contest]));
    assert_eq!(
        (&all["passed"], &all["computed"]),
        (&true.into(), &24.into())
    );
    for case in all["cases"].as_array().unwrap() {
        let is_contest = case["activation"] == "nvfp4" && case["output_type"] == "f16";
        let check = &case["check"];
        let expected = expected[check["worst_element"].as_u64().unwrap() as usize];
        let bound = check["worst_bound"].as_f64().unwrap();
        assert_eq!(bound == contest_tolerance(expected), is_contest, "{case}");
    }

    // A rule of another version.
    let tensors = [("a", &problem.a, 128), ("b", &problem.b, 1)].map(|(name, codes, rows)| {
        let tensor = NewTensor::new(Dtype::U8, &[1, rows, 128], &codes[..]);
        (name.to_owned(), tensor)
    });
    let scales =
        [("sfa", &problem.sfa, 128), ("sfb", &problem.sfb, 1)].map(|(name, scales, rows)| {
            let tensor = NewTensor::new(Dtype::F8_E4M3, &[1, rows, 16], &scales[..]);
            (name.to_owned(), tensor)
        });
    let metadata = [("nvfp4_gemv.rule".to_owned(), "close enough".to_owned())].into();
    let tensors = tensors.into_iter().chain(scales);
    file::write(contest.as_ref(), tensors, Some(metadata)).unwrap();
    let error = fails(&["verify", "--problem", &contest]);
    contains(
        &error,
        &["contest.safetensors", "\"close enough\"", "does not know"],
    );
}

#[test]
fn verify_dumps_and_replays() {
    let dir = Folder::new();
    let case = dir.at("case.safetensors");
    let printed = prints(&on_cpu("", &["--case", "row-alpha 77x48", "--dump", &case]));
    assert!(printed.contains("replay it with"), "{printed}");
    let replay = json(&on_cpu("", &["--problem", &case]));
    assert_eq!(replay["passed"], true);
    assert_eq!(replay["computed"], 24);
    let operands = "--layout 128x4 --activation f16 --output-type bf16";
    let one = json(&on_cpu(operands, &["--problem", &case]));
    assert_eq!(one["computed"], 1);
    assert_eq!(one["cases"][0]["layout"], "128x4");

    // A wrong answer in the file is found, and can be dumped again.
    let mut problem = Problem::read(&case).unwrap();
    problem.c.as_mut().unwrap()[5] += 1.0;
    problem.write(&case).unwrap();
    let again = dir.at("again.safetensors");
    let files = ["--problem", &case, "--dump", &again];
    let out = program(&on_cpu("--json", &files));
    assert_eq!(out.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["passed"], false);
    assert_eq!(report["failed"], 24);
    assert_eq!(report["cases"][0]["check"]["worst_element"], 5);
    assert_eq!(Problem::read(&again).unwrap(), problem);

    // The first of several cases is written.
    json(&on_cpu("--case sweep --force", &["--dump", &again]));
    assert_eq!(Problem::read(&again).unwrap().shape.to_string(), "5x16");

    // Without c, the reference is the truth.
    problem.c = None;
    problem.write(&case).unwrap();
    let replay = json(&on_cpu("", &["--problem", &case]));
    assert_eq!(replay["passed"], true);

    // Nothing fails, no case is named: nothing to write, and it says so.
    let none = dir.at("none.safetensors");
    let args = on_cpu("--adversarial --output-type bf16", &["--dump", &none]);
    assert!(prints(&args).contains("nothing is written"));
    assert!(!Path::new(&none).exists());

    for (bytes, says) in [
        (&b"rubbish"[..], "not a safetensors file but text"),
        (b"", "empty"),
    ] {
        std::fs::write(&case, bytes).unwrap();
        assert!(fails(&["verify", "--problem", &case]).contains(says));
    }
    assert!(fails(&["verify", "--problem", MODELOPT]).contains("no tensor \"a\""));
}

/// A result of f16 that overflows is no right one, whatever bound there is.
#[test]
fn a_result_that_overflows_fails() {
    let dir = Folder::new();
    let case = dir.at("case.safetensors");
    let shape = nvfp4_gemv::Shape::matrix(8, 64).unwrap();
    let mut problem = Problem::integers(shape, 1);
    problem.alpha = Some(vec![1e6]);
    problem.write(&case).unwrap();
    for (output, code) in [("f32", 0), ("bf16", 0), ("f16", 1)] {
        let out = program(&on_cpu("--output-type", &[output, "--problem", &case]));
        let printed = String::from_utf8(out.stdout).unwrap();
        assert_eq!(out.status.code(), Some(code), "{output}: {printed}");
        assert_eq!(
            printed.contains("which the type of the result does not hold"),
            code == 1
        );
    }
}
