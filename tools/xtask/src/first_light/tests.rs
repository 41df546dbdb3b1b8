use std::process::Command;

use serde_json::json;

use super::proof::Proof;
use super::*;
use crate::testing::contains;

fn step(name: &str, script: &str, needs: &[&str]) -> Step {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    Step {
        name: name.into(),
        what: "a test",
        seconds: 100_000,
        needs: needs.iter().map(|need| (*need).into()).collect(),
        on_gpu: false,
        proof: Proof::Status,
        action: Action::Run {
            command,
            output: None,
        },
    }
}

fn on_gpu(step: Step) -> Step {
    Step {
        on_gpu: true,
        ..step
    }
}

/// Far enough away for any machine.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(100_000)
}

fn ends(steps: Vec<Step>, over: Instant, alive: &mut dyn FnMut() -> bool) -> Vec<(String, End)> {
    let folder = tempfile::tempdir().unwrap();
    let mut steps = steps;
    let interrupted = AtomicBool::new(false);
    let ran = run(&mut steps, folder.path(), (over, &interrupted), alive).unwrap();
    ran.into_iter().map(|ran| (ran.name, ran.end)).collect()
}

fn skipped(why: &str) -> End {
    End::Skipped(why.into())
}

#[test]
fn what_fails_or_hangs_stops_only_what_needs_it() {
    // No time at all: it is killed at once, however fast the machine is.
    let hangs = Step {
        seconds: 0,
        ..step("hangs", "sleep 100000", &[])
    };
    let never = Step {
        action: Action::Never("no such unit".into()),
        ..step("never", "", &[])
    };
    let steps = vec![
        step("fails", "exit 7", &[]),
        hangs,
        never,
        step("after-fails", "true", &["fails"]),
        step("after-hangs", "true", &["hangs"]),
        step("after-both", "true", &["after-hangs"]),
        step("alone", "true", &["not-chosen"]),
    ];
    let ends = ends(steps, far(), &mut || true);
    let want = [
        ("fails", End::Failed("exit status: 7".into())),
        ("hangs", End::OutOfTime),
        ("never", skipped("no such unit")),
        ("after-fails", skipped("needs fails")),
        ("after-hangs", skipped("needs hangs")),
        ("after-both", skipped("needs after-hangs")),
        ("alone", End::Passed),
    ];
    assert_eq!(ends, want.map(|(name, end)| (name.to_owned(), end)));
}

/// A filter that names no trial, a program that finds no GPU: they end with 0, and what needs them must not begin.
#[test]
fn a_step_that_runs_nothing_fails() {
    let proven = |name: &str, script: &str, proof| Step {
        proof,
        ..step(name, script, &[])
    };
    let counts = |passed: u32| format!("echo 'test result: ok. {passed} passed; 0 failed;'");
    let steps = vec![
        proven("some", &counts(3), Proof::Trials),
        proven("none", &counts(0), Proof::Trials),
        proven("worse", "exit 3", Proof::Trials),
        proven("file", "true", Proof::Lines("absent".into())),
        step("after-none", "true", &["none"]),
    ];
    let ends = ends(steps, far(), &mut || true);
    assert_eq!(ends[0].1, End::Passed);
    assert_eq!(ends[1].1, End::Failed("no trial ran".into()));
    assert_eq!(ends[2].1, End::Failed("exit status: 3".into()));
    assert!(matches!(&ends[3].1, End::Failed(why) if why.starts_with("absent")));
    assert_eq!(ends[4].1, skipped("needs none"));
}

#[test]
fn a_gpu_that_does_not_answer_is_left_alone() {
    let steps = vec![
        step("build", "true", &[]),
        on_gpu(step("good", "true", &[])),
        on_gpu(step("bad", "exit 1", &[])),
        on_gpu(step("next", "true", &[])),
        step("replay", "true", &[]),
    ];
    let mut asked = 0;
    let ends = ends(steps, far(), &mut || {
        asked += 1;
        asked < 2
    });
    assert_eq!(asked, 2, "after each step on the GPU, and not after others");
    assert_eq!(ends[3].1, skipped("the GPU has not answered since bad"));
    assert_eq!(ends[4].1, End::Passed);
}

/// A night whose last word is that the GPU died did not pass.
#[test]
fn a_step_that_passes_and_leaves_no_gpu_fails() {
    let steps = vec![
        on_gpu(step("last", "true", &[])),
        on_gpu(step("next", "true", &[])),
    ];
    let ends = ends(steps, far(), &mut || false);
    assert_eq!(
        ends[0].1,
        End::Failed("the GPU does not answer any more".into())
    );
    assert_eq!(ends[1].1, skipped("the GPU has not answered since last"));
}

/// Ctrl-C: what runs is killed, what is known is kept.
#[test]
fn an_interrupted_night_begins_nothing_more() {
    let folder = tempfile::tempdir().unwrap();
    let mut steps = [step("runs", "sleep 100000", &[]), step("next", "true", &[])];
    let interrupted = AtomicBool::new(false);
    let ran = std::thread::scope(|scope| {
        // The step's log is there when it has begun.
        let log = folder.path().join("logs/runs.log");
        scope.spawn(|| {
            let log = log;
            while !log.exists() {
                std::thread::yield_now();
            }
            interrupted.store(true, Relaxed);
        });
        run(
            &mut steps,
            folder.path(),
            (far(), &interrupted),
            &mut || true,
        )
        .unwrap()
    });
    assert_eq!(ran[0].end, End::Failed(INTERRUPTED.into()));
    assert_eq!(ran[1].end, skipped(INTERRUPTED));
}

#[test]
fn nothing_begins_when_the_time_is_over() {
    let ends = ends(vec![step("a", "true", &[])], Instant::now(), &mut || true);
    assert_eq!(ends[0].1, skipped("no time is left"));
}

#[test]
fn steps_are_chosen_with_what_they_need() {
    let chosen = |only: &str, skip: &str| -> Result<String> {
        let mut steps = vec![
            step("build", "", &[]),
            step("probe-a", "", &["build"]),
            step("replay-a", "", &["probe-a"]),
            step("bench", "", &["build"]),
        ];
        let words =
            |words: &str| -> Vec<String> { words.split_whitespace().map(Into::into).collect() };
        choose(&mut steps, &words(only), &words(skip))?;
        let names: Vec<String> = steps.into_iter().map(|step| step.name).collect();
        Ok(names.join(" "))
    };
    for (only, skip, expected) in [
        ("", "", "build probe-a replay-a bench"),
        ("replay", "", "build probe-a replay-a"),
        ("bench probe", "", "build probe-a bench"),
        ("", "probe", "build replay-a bench"),
        ("replay", "build", "probe-a replay-a"),
    ] {
        assert_eq!(chosen(only, skip).unwrap(), expected);
    }
    let error = chosen("prob x", "").unwrap_err();
    contains(&format!("{error:#}"), &["\"x\"", "--list"]);
}

#[test]
fn a_night_becomes_an_archive() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("first-light-x");
    let prints = |name: &str, script: &str, file: &str| {
        let mut step = step(name, script, &[]);
        if let Action::Run { output, .. } = &mut step.action {
            *output = Some(file.into());
        }
        step
    };
    let verdict = json!({
        "cases": 3, "different": [{"case": "x|y", "status": "ok", "why": "one\ntwo"}],
        "claims": [{"says": "A", "holds": false, "seen": "1 of 2"}],
        "sums": {"exact_sums_wrong": 0, "columns_agree": true, "explained": 5, "sums": 6, "as_good": 0,
            "roundings_at_least": 96, "roundings": {"loss": 23.5},
            "machine": {"fraction": 25, "cut": "zero", "result": "zero", "exponents": "factors", "chain": 64,
                "grain": 1, "c_with_products": true}},
    });
    let verdict = format!("cat <<'X'\n{verdict}\nX");
    let by_rule = json!({"cases": 3, "different": [{"case": "sums"}], "sums_of": "rtx-blackwell"});
    let by_rule = format!("echo '{by_rule}'");
    let same = r#"echo '{"cases": 1, "different": [], "sums_of": "rtx-blackwell"}'"#;
    let of = |verdict, wrong| json!({"m": 7168, "k": 2048, "l": 4, "data": "full-range", "verdict": verdict, "groups": 224, "groups_that_differ": wrong});
    let predicted = json!([of("confirmed", 0), of("refuted", 7)]);
    let predicted = format!("echo '{predicted}'");
    let mut steps = vec![
        prints("replay-mma_fp4", &verdict, "replays/mma_fp4.json"),
        prints("rule-mma_fp4", &by_rule, "published/rule-mma_fp4.json"),
        prints("rule-sums_f16", same, "published/rule-sums_f16.json"),
        prints(
            "predicted-mma_fp4",
            &predicted,
            "published/predicted-mma_fp4.json",
        ),
        prints("bench", "echo half; exit 1", BENCH),
        step("talks", "echo heard", &[]),
    ];
    let ran = run(
        &mut steps,
        &out,
        (far(), &AtomicBool::new(false)),
        &mut || true,
    )
    .unwrap();
    let manifest = Manifest {
        steps: ran,
        ..archive::tests::manifest()
    };
    let error = finish(&out, &manifest).unwrap_err();
    contains(&format!("{error:#}"), &["not every step passed"]);

    let archive = archive::read(&folder.path().join("first-light-x.zip")).unwrap();
    assert_eq!(archive.files["logs/talks.log"], b"heard\n");
    let is_there = archive.files.contains_key(BENCH);
    assert!(!is_there, "what a failed step left is no result");
    assert_eq!(archive.manifest.steps.len(), 6);
    let summary = String::from_utf8(archive.files["summary.md"].clone()).unwrap();
    contains(
        &summary,
        &[
            "| bench | FAILED: exit status: 1 |",
            "mma_fp4: 1 of 3 cases differ",
            "x y (ok): one two",
            "**does not hold**: A (1 of 2)",
            "5 of 6 results",
            "cut (zero) 25 places",
            "ASSUMED_ROUNDINGS must be 96 at least",
            "rule-mma_fp4: **refuted** for rtx-blackwell, or not asked: 1 of 3 cases differ, among them sums",
            "rule-sums_f16: **confirmed** for rtx-blackwell: 1 cases",
            "**confirmed**: M = 7168, K = 2048, L = 4, full-range: 0 of 224 groups",
            "**refuted**: M = 7168, K = 2048, L = 4, full-range: 7 of 224 groups",
        ],
    );
    assert!(!summary.contains("No probe has asked"), "{summary}");
    assert!(!summary.contains("**Known**"), "{summary}");
}

/// The page of a GPU that only the probes of a Hopper ran on.
#[test]
fn what_was_not_asked_and_what_is_known_is_said() {
    let replay = serde_json::json!({
        "cases": 2, "claims": [], "sums": null, "different": [
            {"case": "mbar_stale_state", "status": "ok", "why": "two phases"},
            {"case": "another", "status": "ok", "why": "a byte"},
        ],
    });
    let replays = [("async".to_string(), replay)].into();
    let page = report::markdown(&archive::tests::manifest(), &replays, &[].into());
    let known = "two phases. **Known** of an H200: refused: ";
    contains(&page, &[known, "another (ok): a byte\n"]);
    assert_eq!(page.matches("No probe has asked.").count(), 2, "{page}");
    contains(&page, &["Nobody has asked."]);
}
