//! `verify`: what passes, what fails, and cases that travel through files.

use std::path::Path;

use nvfp4_gemv::problem::Problem;
use serde_json::Value;

use crate::{MODELOPT, fails, json, prints, program};

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

    // Of several cases, the first is written.
    json(&[
        "verify", "--path", "cpu", "--case", "sweep", "--dump", &again, "--force",
    ]);
    assert_eq!(Problem::read(&again).unwrap().shape.to_string(), "5x16");

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
