//! Whole nights, with a script for the program.

use std::fs;

use clap::Parser;
use nvfp4_gemv_documents::document::Case;
use nvfp4_gemv_documents::protocol::{Hello, PROTOCOL, Problem, Reply};

use super::*;
use crate::bench::testing::{document, script};
use crate::testing::contains;

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    args: NightlyArgs,
}

/// A machine with a GPU, and a program that measures one problem of three results: a script, which reads
/// from the machine's folder what to say. As the last good program it reads other times.
struct Machine {
    folder: tempfile::TempDir,
}

const SCRIPT: &str = r#"
    me=now folder=${0%/*}
    case $folder in */last-good) me=before folder=${folder%/out/last-good};; esac
    cd "$folder"
    echo "$me $@" >> calls
    case $1 in
    info) cat info;;
    verify) echo '{"passed": true, "computed": 3}';;
    bench)
        cat hello-$me
        while IFS= read -r line; do
            case $line in
            '{"open":'*) cat opened-$me;;
            '{"turn":'*)
                way=${line#*:}
                way=${way%?}
                echo "{\"turned\": {\"us\": $(cat us-$me-$way), \"sm_mhz\": 1980.0, \"watts\": null}}";;
            *) echo '{"failed": "what?"}';;
            esac
        done;;
    esac"#;

impl Machine {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let machine = Self { folder };
        let path = r#"{"name": "cuda-core", "available": true}"#;
        let info = format!(r#"{{"cuda": {{"why_none": null}}, "paths": [{path}]}}"#);
        machine.put("info", &info);
        for side in ["now", "before"] {
            machine.introduces(side, &document(), PROTOCOL);
            machine.opens(side, &document().cases[0]);
            for (way, us) in [10.0, 12.0, 14.0, 11.0].into_iter().enumerate() {
                machine.takes(side, way, us);
            }
        }
        script(machine.path(), SCRIPT);
        machine
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn at(&self, name: &str) -> String {
        self.path().join(name).display().to_string()
    }

    fn put(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).unwrap();
    }

    fn introduces(&self, side: &str, document: &Document, protocol: &str) {
        let problem = Problem::from(&document.cases[0]);
        let mut document = document.clone();
        document.cases.clear();
        let hello = Reply::Hello(Box::new(Hello {
            protocol: protocol.into(),
            document,
            problems: vec![problem],
            sustained: Vec::new(),
        }));
        let text = serde_json::to_string(&hello).unwrap() + "\n";
        self.put(&format!("hello-{side}"), &text);
    }

    fn opens(&self, side: &str, case: &Case) {
        let opened = serde_json::to_string(&Reply::Opened(Box::new(case.clone()))).unwrap();
        self.put(&format!("opened-{side}"), &(opened + "\n"));
    }

    /// Every turn of a way takes so long.
    fn takes(&self, side: &str, way: usize, us: f64) {
        self.put(&format!("us-{side}-{way}"), &us.to_string());
    }

    fn night(&self, options: &[&str]) -> Result<()> {
        let program = self.at("program");
        self.xtask(&[&["--program", &program], options].concat())
    }

    /// `cargo xtask nightly` with the machine's baseline and output.
    fn xtask(&self, options: &[&str]) -> Result<()> {
        let (baseline, out) = (self.at("base.json"), self.at("out"));
        let places = ["x", "--baseline", &baseline, "--out", &out];
        let args = Cli::parse_from([&places, options].concat()).args;
        command(&Workspace::locate()?, &args)
    }

    /// A night that must fail, and what its error must say.
    #[track_caller]
    fn fails(&self, options: &[&str], parts: &[&str]) {
        let error = self.night(options).unwrap_err();
        contains(&format!("{error:#}"), parts);
    }

    fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.path().join("calls")).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }

    fn written(&self, name: &str) -> String {
        fs::read_to_string(self.path().join("out").join(name)).unwrap()
    }

    /// All parts stand in the night's report.
    #[track_caller]
    fn says(&self, parts: &[&str]) {
        contains(&self.written("nightly.md"), parts);
    }

    /// The commit of the last good program.
    fn last_good(&self) -> Option<String> {
        let kept = LastGood::at(self.path().join("out/last-good"));
        let (_, origin) = kept.find().unwrap()?;
        origin.git_commit
    }
}

#[test]
fn a_night_from_the_first_program_to_a_regression() {
    let machine = Machine::new();
    machine.night(&["--commit", "one"]).unwrap();
    machine.says(&["took turns with no other", "no baseline for Test GPU"]);
    let commit = document().git_commit;
    assert_eq!(machine.last_good(), commit);

    let before = machine.calls().len();
    machine.night(&[]).unwrap();
    machine.says(&[
        "Nothing got slower of 3 results, in turns with the program of commit 0123456789ab",
    ]);
    let calls = machine.calls().split_off(before);
    let suite = "--suite all --rounds 12 --serve --json";
    let verify = "now verify --path cuda-core --json".to_owned();
    let before = format!("before bench --commit {} {suite}", commit.unwrap());
    assert_eq!(calls[2..], [verify, format!("now bench {suite}"), before]);
    assert!(machine.path().join("out/last-good.json").is_file());

    // 5% slower: noticed, measured twice more, and the last good program stays.
    let mut slower = document();
    slower.git_commit = Some("two".into());
    machine.introduces("now", &slower, PROTOCOL);
    machine.takes("now", 2, 14.0 * 1.05);
    let before = machine.calls().len();
    machine.fails(&[], &["got slower"]);
    machine.says(&[
            "1 got slower, 0 are no longer measured of 3 results",
            "| 4096x7168x8 n=1 nvfp4 128x4 tensor-core | SLOWER | +5.0% | +5.0% to +5.0% | 14.00 us | 14.70 us |",
            "| tensor-core, nvfp4 | 1 | +5.0% |",
        ]);
    let calls = machine.calls().split_off(before);
    let served = calls.iter().filter(|call| call.contains("--serve"));
    let served: Vec<&str> = served.filter_map(|call| call.split(' ').next()).collect();
    // Differences that only come from who starts first turn round in the second measurement.
    let in_turns = [["now", "before"], ["before", "now"], ["now", "before"]];
    assert_eq!(served, in_turns.concat());
    assert_eq!(machine.last_good().as_deref(), Some("0123456789abcdef"));
    assert!(machine.written("bench.html").contains("SLOWER"));
    assert_eq!(machine.written("history.jsonl").lines().count(), 3);

    // A loss below the threshold passes, and still does not become what is compared with.
    machine.takes("now", 2, 14.0 * 1.02);
    machine.night(&[]).unwrap();
    assert_eq!(machine.last_good().as_deref(), Some("0123456789abcdef"));
    machine.takes("now", 2, 13.0);
    machine.night(&[]).unwrap();
    machine.says(&["1 got faster"]);
    assert_eq!(machine.last_good().as_deref(), Some("two"));
}

#[test]
fn a_result_that_is_no_longer_measured_fails_the_night() {
    let machine = Machine::new();
    machine.night(&[]).unwrap();
    let mut fewer = document().cases[0].clone();
    fewer.paths.pop();
    machine.opens("now", &fewer);
    machine.fails(&[], &["no longer measured"]);
    machine.says(&["tensor-core chained | missing |"]);
}

#[test]
fn a_problem_that_is_no_longer_listed_fails_the_night() {
    let machine = Machine::new();
    machine.night(&[]).unwrap();
    let mut other = document();
    other.cases[0].k = 64;
    machine.introduces("now", &other, PROTOCOL);
    machine.opens("now", &other.cases[0]);
    machine.fails(&[], &["no longer measured"]);
    machine.says(&["| 4096x7168x8 n=1 nvfp4 128x4 | missing |"]);
}

/// A comparison that leaves something out must not pass.
#[test]
fn a_last_good_program_that_cannot_measure_a_problem_fails_the_night() {
    let machine = Machine::new();
    machine.night(&[]).unwrap();
    machine.put("opened-before", "{\"failed\": \"out of memory\"}\n");
    let opening = "opening 4096x7168x8 n=1 nvfp4 128x4";
    machine.fails(&[], &[opening, "out of memory"]);
    let mut elsewhere = document();
    elsewhere.device.name = "a CPU".into();
    machine.introduces("before", &elsewhere, PROTOCOL);
    machine.fails(&[], &["the last good one a CPU"]);
}

#[test]
fn a_change_on_purpose_is_accepted_and_a_quick_night_replaces_nothing() {
    let machine = Machine::new();
    machine.night(&["--quick"]).unwrap();
    assert_eq!(machine.last_good().as_deref(), Some("0123456789abcdef"));
    let mut slower = document();
    slower.git_commit = Some("two".into());
    machine.introduces("now", &slower, PROTOCOL);
    machine.night(&["--quick"]).unwrap();
    assert_eq!(machine.last_good().as_deref(), Some("0123456789abcdef"));
    machine.takes("now", 2, 20.0);
    machine.fails(&["--update-baseline"], &["--accept"]);
    assert!(!machine.path().join("base.json").exists());
    machine.night(&["--accept"]).unwrap();
    machine.says(&["1 got slower"]);
    assert_eq!(machine.last_good().as_deref(), Some("two"));
}

#[test]
fn a_program_that_talks_without_end_is_ended() {
    let machine = Machine::new();
    script(
        machine.path(),
        "case $1 in info) cat \"${0%/*}/info\";; verify) echo '{\"passed\": true}';; *) while :; do echo no; done;; esac",
    );
    machine.fails(&[], &["said \"no\""]);
}

#[test]
fn the_baseline_is_a_coarse_check() {
    let machine = Machine::new();
    machine.fails(&["--require-baseline"], &["no baseline for Test GPU"]);
    assert!(!machine.path().join("base.json").exists());
    machine.night(&["--update-baseline"]).unwrap();
    machine.night(&["--update-baseline"]).unwrap();
    // Both programs get slower alike, so only the baseline can tell.
    for side in ["now", "before"] {
        machine.takes(side, 1, 12.0 * 1.08);
    }
    machine.night(&["--require-baseline"]).unwrap();
    for side in ["now", "before"] {
        machine.takes(side, 1, 12.0 * 1.13);
    }
    machine.fails(&[], &[]);
    machine.says(&[
        "Nothing got slower of 3",
        "1 result takes more than 10% longer",
        "in the worst of the 2 sessions of Test GPU <1>",
        "| 4096x7168x8 n=1 nvfp4 128x4 cuda-core | 83% | 74% |",
    ]);
    // A document from elsewhere is looked up too.
    let bench = machine.at("elsewhere.json");
    fs::copy(machine.at("out/bench.json"), &bench).unwrap();
    let error = machine.xtask(&["--from", &bench]).unwrap_err();
    contains(&error.to_string(), &["got slower"]);
}

#[test]
fn what_the_baseline_has_and_the_night_lacks_fails_it() {
    let machine = Machine::new();
    machine.night(&["--update-baseline"]).unwrap();
    fs::remove_dir_all(machine.path().join("out/last-good")).unwrap();
    let mut fewer = document().cases[0].clone();
    fewer.paths.pop();
    machine.opens("now", &fewer);
    machine.fails(&[], &["no longer measured"]);
    machine.says(&["newest session has 4096x7168x8 n=1 nvfp4 128x4 tensor-core chained, which"]);

    let mut nothing = document();
    nothing.cases.clear();
    machine.put("nothing.json", &serde_json::to_string(&nothing).unwrap());
    let error = machine
        .xtask(&["--from", &machine.at("nothing.json")])
        .unwrap_err();
    contains(&error.to_string(), &["none of the 0 results"]);
}

/// The program names a GPU, and measures the CPU because it cannot be opened.
#[test]
fn a_night_on_the_cpu_instead_of_a_gpu_fails() {
    let machine = Machine::new();
    machine.night(&[]).unwrap();
    let mut on_the_cpu = document();
    on_the_cpu.device.kind = "cpu".into();
    on_the_cpu.notes.push("not cuda-core: out of memory".into());
    machine.introduces("now", &on_the_cpu, PROTOCOL);
    machine.introduces("before", &on_the_cpu, PROTOCOL);
    machine.fails(&["--require-gpu"], &["not a GPU", "out of memory"]);
    // Not the report of the night before.
    machine.says(&["There is nothing to compare", "out of memory"]);
}

#[test]
fn a_rehearsal_says_so_and_is_kept_nowhere() {
    let machine = Machine::new();
    machine.night(&[]).unwrap();
    let mut slowed = document();
    slowed.git_commit = Some("slowed".into());
    slowed.slowed_percent = [("cuda-core".into(), 5)].into();
    machine.introduces("now", &slowed, PROTOCOL);
    machine.night(&["--slow-down", "cuda-core=5"]).unwrap();
    let mut serves = machine.calls();
    serves.retain(|call| call.contains("--serve"));
    assert!(serves[1].contains("--slow-down cuda-core=5"), "{serves:?}");
    assert!(!serves[2].contains("--slow-down"), "{serves:?}");
    assert!(machine.written("bench.html").contains("REHEARSAL"));
    assert_eq!(machine.last_good().as_deref(), Some("0123456789abcdef"));
    machine.fails(&["--update-baseline"], &["on purpose"]);
}

#[test]
fn a_last_good_program_that_is_of_no_use_says_what_to_do() {
    let machine = Machine::new();
    machine.night(&[]).unwrap();
    machine.introduces("before", &document(), "nvfp4-gemv/turns/0");
    machine.fails(&[], &["begin anew", "speaks nvfp4-gemv/turns/0"]);
    machine.put("hello-before", "{\"error\": \"no device\"}\n");
    machine.fails(&[], &["no device"]);
}

#[test]
fn a_program_that_ends_early_is_an_error() {
    let machine = Machine::new();
    machine.put("us-now-1", "-1");
    machine.fails(&[], &["another question"]);
    machine.put("opened-now", "{\"failed\": \"out of memory\"}\n");
    machine.fails(&[], &["out of memory"]);
}

#[test]
fn without_a_gpu_nothing_is_measured() {
    let machine = Machine::new();
    let info = r#"{"cuda": {"why_none": "no driver"}, "paths": []}"#;
    machine.put("info", info);
    machine.night(&[]).unwrap();
    let error = machine.night(&["--require-gpu"]).unwrap_err();
    assert_eq!(error.to_string(), "no GPU: no driver");
    assert_eq!(machine.calls(), ["now info --json"; 2]);
}

#[test]
fn a_damaged_baseline_is_no_reason_to_pass() {
    let machine = Machine::new();
    machine.put("base.json", "{\"schema\"");
    machine.fails(&[], &["base.json cannot be used: it is no JSON"]);
}
