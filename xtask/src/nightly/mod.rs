//! `cargo xtask nightly`: verifies, measures, and compares: with the last good program, which takes turns with
//! tonight's on the same GPU, and, coarsely, with what the GPU model did before.

mod baseline;
mod compare;
pub(crate) mod history;
mod last_good;
mod paired;
mod report;
mod server;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use self::baseline::Baseline;
use self::compare::{Comparison, Rules};
use self::last_good::{LastGood, Origin};
use self::paired::{Night, Plan};
use self::report::Outcome;
use self::server::Server;
use crate::bench;
use crate::bench::document::Document;
use crate::bench::program::{Program, ProgramArgs};
use crate::workspace::Workspace;

#[derive(Debug, Args)]
pub(crate) struct NightlyArgs {
    /// The coarse check's shares of the ceiling [default: benches/baseline/MODEL.json]
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Past nights, one JSON object a line; this one is appended [default: history.jsonl in --out]
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// The folder of the last good program; tonight's takes its place where nothing got slower
    /// [default: last-good beside the history, last-good-cpu with --cpu]
    #[arg(long, value_name = "DIR")]
    last_good: Option<PathBuf>,
    /// Let tonight's program take turns with this one instead of the last good one, which stays
    #[arg(long, value_name = "FILE", conflicts_with_all = ["last_good", "from"])]
    against: Option<PathBuf>,
    /// Where bench.json, bench.md, bench.html and nightly.md go [default: target/nightly]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Add this run to the baseline as one more session, of which the newest five are kept; or let it
    /// replace all of them
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "add")]
    update_baseline: Option<Update>,
    #[command(flatten)]
    program: ProgramArgs,
    /// Look up in the baseline what `nvfp4-gemv bench --json` measured elsewhere: nothing is verified or measured
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Speed has changed on purpose: whatever the comparison finds, report it, succeed, and let tonight's program
    /// be the last good one
    #[arg(long, conflicts_with_all = ["from", "against", "slow_down"])]
    accept: bool,
    /// The quick suite instead of all; its program becomes the last good one only where there is none
    #[arg(long)]
    quick: bool,
    /// Rounds in which every result has a turn of each program, after two to warm up
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u16).range(3..=1000))]
    rounds: u16,
    /// Also repeat the results that the power limit slows down most (one vector, 28672x8192, linear scales) for so
    /// long each, and compare those; 0: do not
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = seconds)]
    sustained: f64,
    /// Measure the CPU path: to rehearse where there is no GPU
    #[arg(long, conflicts_with = "require_gpu")]
    cpu: bool,
    /// Fail where there is no GPU, instead of skipping everything
    #[arg(long)]
    require_gpu: bool,
    /// Fail where there is no baseline for this GPU model
    #[arg(long)]
    require_baseline: bool,
    /// Percent that a cold result must be slower at least to be a regression; of sustained ones it is 5
    #[arg(long, value_name = "PERCENT", default_value_t = DEFAULT_THRESHOLD, value_parser = percent)]
    threshold: f64,
    /// Slow tonight's program down on purpose, to see that it is noticed: cuda-core=5 ends each turn of the path
    /// with a read of 5% of the weights that the turn read
    #[arg(long, value_name = "PATH=PERCENT", conflicts_with = "update_baseline")]
    slow_down: Vec<String>,
}

/// What becomes of the sessions that a baseline has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Update {
    /// They stay
    Add,
    /// They go: what is measured has changed for good
    Replace,
}

const DEFAULT_THRESHOLD: f64 = 3.0;

/// How often what looks slower is measured again, each time by processes started anew.
const CONFIRMATIONS: usize = 2;

fn percent(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("expected 0 to 100".into()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected 0 to 3600 seconds".into()),
    }
}

pub(crate) fn command(workspace: &Workspace, args: &NightlyArgs) -> Result<()> {
    let out = args.out.clone().unwrap_or_else(|| workspace.nightly_dir());
    let history_file = args
        .history
        .clone()
        .unwrap_or_else(|| out.join("history.jsonl"));
    let program = match &args.from {
        Some(_) => None,
        None => Some(Program::find(workspace, &args.program)?),
    };
    if let Some(program) = &program
        && !args.cpu
        && let Some(why) = program.why_no_gpu()?
    {
        if args.require_gpu {
            bail!("no GPU: {why}");
        }
        println!(
            "skipped: no GPU ({why}); --require-gpu makes this an error, --cpu measures the CPU"
        );
        return Ok(());
    }
    let last_good = LastGood::at(args.last_good.clone().unwrap_or_else(|| {
        let folder = history_file.parent().unwrap_or(Path::new(""));
        folder.join(if args.cpu {
            "last-good-cpu"
        } else {
            "last-good"
        })
    }));
    let judged = match (&args.from, &program) {
        (Some(file), _) => looked_up(workspace, args, bench::read(file)?)?,
        (None, Some(program)) => {
            verify(program, args.cpu)?;
            measured(workspace, args, program, &last_good)?
        }
        (None, None) => bail!("there is neither a program nor a document"),
    };

    let Judged {
        document,
        before,
        outcome,
        baseline_file,
        baseline,
    } = judged;
    let against = outcome.compared.as_ref();
    let against = against.and_then(|(origin, _)| origin.git_commit.clone());
    let history = history::append(&history_file, &document, outcome.verdict(), against)?;
    let finding = outcome.finding(&document);
    bench::write(&out, &document, &history, std::slice::from_ref(&finding))?;
    crate::write::whole(&out.join("nightly.md"), &finding.markdown())?;
    let beside = out.join("last-good.json");
    match &before {
        Some(before) => crate::write::whole(&beside, &(serde_json::to_string(before)? + "\n"))?,
        // One of another night would be taken for this one's.
        None if beside.is_file() => std::fs::remove_file(&beside)?,
        None => {}
    }
    print!("{}", outcome.text(&document));
    println!(
        "written: {}",
        out.join("{bench.json,bench.md,bench.html,nightly.md}")
            .display()
    );

    if args.require_baseline && baseline.is_none() {
        bail!(
            "no baseline for {}: {} is not there",
            document.device.name,
            baseline_file.display()
        );
    }
    let accepted = args.accept || args.update_baseline == Some(Update::Replace);
    let passed = outcome.passed() || accepted;
    if let Some(update) = args.update_baseline.filter(|_| passed) {
        let kept = baseline.filter(|_| update == Update::Add);
        let mut baseline = kept.unwrap_or_else(|| Baseline::new(&document));
        baseline.add(&document)?;
        baseline.write(&baseline_file)?;
        println!(
            "baseline: {} has {} of at most {} sessions; three or more, from different machine starts, \
             make it trustworthy",
            baseline_file.display(),
            baseline.sessions.len(),
            baseline::MOST_SESSIONS
        );
    }
    if !passed {
        bail!(
            "something got slower, or is no longer measured; where that is on purpose, --accept makes tonight's \
             program the last good one"
        );
    }
    // A rehearsal is none, and what measured less than the last good program does not take its place.
    let whole = !args.quick && args.threshold <= DEFAULT_THRESHOLD;
    match &program {
        Some(program)
            if args.against.is_none()
                && document.slowed_percent.is_empty()
                && (whole || outcome.compared.is_none()) =>
        {
            follow(program, &document, &outcome, accepted, &last_good)
        }
        _ => Ok(()),
    }
}

/// Lets tonight's program be the last good one from now on, unless it is slower on average.
fn follow(
    program: &Program,
    document: &Document,
    outcome: &Outcome,
    accepted: bool,
    last_good: &LastGood,
) -> Result<()> {
    match outcome.may_follow() {
        why if why.is_ok() || accepted => {
            last_good.keep(program, document)?;
            println!(
                "the last good program is tonight's: {}",
                last_good.folder().display()
            );
        }
        // The report has said why.
        _ => println!("the last good program is not replaced"),
    }
    Ok(())
}

/// What a night measured and found.
struct Judged {
    document: Document,
    /// Of the last good program, measured in turns with tonight's.
    before: Option<Document>,
    outcome: Outcome,
    baseline_file: PathBuf,
    baseline: Option<Baseline>,
}

/// A document that was measured elsewhere took turns with nothing.
fn looked_up(workspace: &Workspace, args: &NightlyArgs, document: Document) -> Result<Judged> {
    let (baseline_file, baseline) = baseline_of(workspace, args, &document)?;
    let outcome = Outcome {
        compared: None,
        coarse: report::coarse(baseline.as_ref(), &document)?,
    };
    Ok(Judged {
        document,
        before: None,
        outcome,
        baseline_file,
        baseline,
    })
}

fn baseline_of(
    workspace: &Workspace,
    args: &NightlyArgs,
    document: &Document,
) -> Result<(PathBuf, Option<Baseline>)> {
    let file = match &args.baseline {
        Some(file) => file.clone(),
        None => baseline::default_file(workspace, &document.device),
    };
    let baseline = Baseline::read(&file)?;
    Ok((file, baseline))
}

/// Measures, and measures what looks slower again.
fn measured(
    workspace: &Workspace,
    args: &NightlyArgs,
    program: &Program,
    last_good: &LastGood,
) -> Result<Judged> {
    let before = match &args.against {
        Some(file) => Some((Program::given(file, None)?, None)),
        None => last_good
            .find()?
            .map(|(program, origin)| (program, Some(origin))),
    };
    let rules = Rules {
        threshold: args.threshold / 100.0,
    };
    let measure =
        |only: Option<&BTreeSet<String>>, earlier_first: bool| -> Result<(Night, Option<Origin>)> {
            let plan = Plan {
                rounds: args.rounds.into(),
                sustain_seconds: args.sustained,
                only,
                earlier_first,
            };
            measure(args, program, &before, last_good, &plan)
        };
    let (night, origin) = measure(None, false)?;
    let (baseline_file, baseline) = baseline_of(workspace, args, &night.tonight)?;
    let mut compared = Comparison::new(&night, rules);
    let mut coarse = report::coarse(baseline.as_ref(), &night.tonight)?;
    for again in 1..=CONFIRMATIONS {
        let mut doubtful = compared
            .as_ref()
            .map(Comparison::doubtful)
            .unwrap_or_default();
        doubtful.extend(
            coarse
                .iter()
                .flat_map(|(far, _)| far)
                .map(|far| far.key.clone()),
        );
        if doubtful.is_empty() {
            break;
        }
        println!(
            "{} of the results look slower: measuring them again ({again} of {CONFIRMATIONS})",
            doubtful.len()
        );
        let (again, _) = measure(Some(&doubtful), again % 2 == 1)?;
        compared = compared
            .zip(Comparison::new(&again, rules))
            .map(|(first, again)| first.confirmed_by(&again));
        if let (Some((far, _)), Some((again, _))) = (
            &mut coarse,
            report::coarse(baseline.as_ref(), &again.tonight)?,
        ) {
            far.retain(|far| again.iter().any(|again| again.key == far.key));
        }
    }
    let outcome = Outcome {
        compared: origin.zip(compared),
        coarse,
    };
    Ok(Judged {
        document: night.tonight,
        before: night.before,
        outcome,
        baseline_file,
        baseline,
    })
}

/// One measurement, by programs started for it; and what the earlier one is.
fn measure(
    args: &NightlyArgs,
    program: &Program,
    before: &Option<(Program, Option<Origin>)>,
    last_good: &LastGood,
    plan: &Plan<'_>,
) -> Result<(Night, Option<Origin>)> {
    let options = bench_arguments(args);
    let start_earlier = || {
        let start = |(earlier, origin): &(Program, Option<Origin>)| {
            let server = Server::start(earlier, &options).with_context(|| match origin {
                Some(_) => format!("the last good program is of no use; {}", last_good.advice()),
                None => "the program of --against is of no use".into(),
            })?;
            let origin = match origin {
                Some(origin) => origin.clone(),
                None => Origin::of(&server.hello.document),
            };
            Ok::<_, anyhow::Error>((server, origin))
        };
        before.as_ref().map(start).transpose()
    };
    let mut slowed = options.clone();
    for slow_down in &args.slow_down {
        slowed.extend(["--slow-down".into(), slow_down.into()]);
    }
    let mut tonight = Server::start(program, &slowed)?;
    let mut earlier = start_earlier()?;
    let origin = earlier.as_ref().map(|(_, origin)| origin.clone());
    let night = paired::measure(
        &mut tonight,
        earlier.as_mut().map(|(server, _)| server),
        plan,
    )?;
    Ok((night, origin))
}

fn bench_arguments(args: &NightlyArgs) -> Vec<OsString> {
    let suite = if args.quick { "quick" } else { "all" };
    let rounds = args.rounds.to_string();
    let mut all: Vec<OsString> = ["--suite", suite, "--rounds", &rounds]
        .map(OsString::from)
        .into();
    if args.cpu {
        all.extend(["--path".into(), "cpu".into()]);
    }
    all
}

/// Fast and wrong is no result.
fn verify(program: &Program, cpu: bool) -> Result<()> {
    for path in program.paths()? {
        if (path == "cpu") == cpu {
            let computed = program.verify(&path)?;
            println!("verified: {path}, {computed} results");
        }
    }
    Ok(())
}

/// Whole nights, with a script for the program.
#[cfg(all(test, unix))]
mod tests {
    use std::fs;

    use clap::Parser;

    use super::*;
    use crate::bench::document::Case;
    use crate::bench::protocol::{Hello, PROTOCOL, Problem, Reply};
    use crate::bench::testing::{document, script};

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
            machine.put(
                "info",
                r#"{"cuda": {"why_none": null}, "paths": [{"name": "cuda-core", "available": true}]}"#,
            );
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

        fn put(&self, name: &str, text: &str) {
            fs::write(self.path().join(name), text).unwrap();
        }

        fn introduces(&self, side: &str, document: &Document, protocol: &str) {
            let case = &document.cases[0];
            let problem = Problem {
                m: case.m,
                n: case.n,
                k: case.k,
                l: case.l,
                activation: case.activation.clone(),
                layout: case.layout.clone(),
                output_type: case.output_type.clone(),
            };
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
            let path = |name| self.path().join(name).display().to_string();
            let (program, baseline, out) = (path("program"), path("base.json"), path("out"));
            let places = [
                "x",
                "--program",
                &program,
                "--baseline",
                &baseline,
                "--out",
                &out,
            ];
            let args = Cli::parse_from([&places, options].concat()).args;
            command(&Workspace::locate()?, &args)
        }

        fn error(&self, options: &[&str]) -> String {
            format!("{:#}", self.night(options).unwrap_err())
        }

        fn calls(&self) -> Vec<String> {
            let calls = fs::read_to_string(self.path().join("calls")).unwrap_or_default();
            calls.lines().map(str::to_owned).collect()
        }

        fn written(&self, name: &str) -> String {
            fs::read_to_string(self.path().join("out").join(name)).unwrap()
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
        let text = machine.written("nightly.md");
        assert!(text.contains("took turns with no other"), "{text}");
        assert!(text.contains("no baseline for Test GPU"), "{text}");
        let commit = document().git_commit;
        assert_eq!(machine.last_good(), commit);

        let before = machine.calls().len();
        machine.night(&[]).unwrap();
        let text = machine.written("nightly.md");
        assert!(
            text.contains(
                "Nothing got slower of 3 results, in turns with the program of commit 0123456789ab"
            ),
            "{text}"
        );
        let calls = machine.calls().split_off(before);
        let suite = "--suite all --rounds 9 --serve --json";
        assert_eq!(
            calls[2..],
            [
                "now verify --path cuda-core --json".to_owned(),
                format!("now bench {suite}"),
                format!("before bench --commit {} {suite}", commit.unwrap()),
            ]
        );
        assert!(machine.path().join("out/last-good.json").is_file());

        // 5% slower: noticed, measured twice more, and the last good program stays.
        let mut slower = document();
        slower.git_commit = Some("two".into());
        machine.introduces("now", &slower, PROTOCOL);
        machine.takes("now", 2, 14.0 * 1.05);
        let before = machine.calls().len();
        let error = machine.error(&[]);
        assert!(error.contains("got slower"), "{error}");
        let text = machine.written("nightly.md");
        for part in [
            "1 got slower, 0 are no longer measured of 3 results",
            "| 4096x7168x8 n=1 nvfp4 128x4 tensor-core | SLOWER | +5.0% | +5.0% to +5.0% | 14.00 us | 14.70 us |",
            "| tensor-core, nvfp4 | 1 | +5.0% |",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        let served = machine.calls().split_off(before);
        let served: Vec<&str> = served
            .iter()
            .filter(|call| call.contains("--serve"))
            .filter_map(|call| call.split(' ').next())
            .collect();
        assert_eq!(served, ["now", "before"].repeat(3));
        assert_eq!(machine.last_good().as_deref(), Some("0123456789abcdef"));
        assert!(machine.written("bench.html").contains("SLOWER"));
        assert_eq!(machine.written("history.jsonl").lines().count(), 3);

        // A loss below the threshold passes, and still does not become what is compared with.
        machine.takes("now", 2, 14.0 * 1.02);
        machine.night(&[]).unwrap();
        assert_eq!(machine.last_good().as_deref(), Some("0123456789abcdef"));
        machine.takes("now", 2, 13.0);
        machine.night(&[]).unwrap();
        assert!(machine.written("nightly.md").contains("1 got faster"));
        assert_eq!(machine.last_good().as_deref(), Some("two"));
    }

    #[test]
    fn a_result_that_is_no_longer_measured_fails_the_night() {
        let machine = Machine::new();
        machine.night(&[]).unwrap();
        let mut fewer = document().cases[0].clone();
        fewer.paths.pop();
        machine.opens("now", &fewer);
        let error = machine.error(&[]);
        assert!(error.contains("no longer measured"), "{error}");
        let text = machine.written("nightly.md");
        assert!(text.contains("tensor-core chained | missing |"), "{text}");
    }

    #[test]
    fn a_problem_that_is_no_longer_listed_fails_the_night() {
        let machine = Machine::new();
        machine.night(&[]).unwrap();
        let mut other = document();
        other.cases[0].k = 64;
        machine.introduces("now", &other, PROTOCOL);
        machine.opens("now", &other.cases[0]);
        let error = machine.error(&[]);
        assert!(error.contains("no longer measured"), "{error}");
        let text = machine.written("nightly.md");
        assert!(
            text.contains("| 4096x7168x8 n=1 nvfp4 128x4 | missing |"),
            "{text}"
        );
    }

    /// A comparison that leaves something out must not pass.
    #[test]
    fn a_last_good_program_that_cannot_measure_a_problem_fails_the_night() {
        let machine = Machine::new();
        machine.night(&[]).unwrap();
        machine.put("opened-before", "{\"failed\": \"out of memory\"}\n");
        let error = machine.error(&[]);
        assert!(
            error.contains("opening 4096x7168x8 n=1 nvfp4 128x4")
                && error.contains("out of memory"),
            "{error}"
        );
        let mut elsewhere = document();
        elsewhere.device.name = "a CPU".into();
        machine.introduces("before", &elsewhere, PROTOCOL);
        let error = machine.error(&[]);
        assert!(error.contains("the last good one a CPU"), "{error}");
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
        let error = machine.error(&["--update-baseline"]);
        assert!(error.contains("--accept"), "{error}");
        assert!(!machine.path().join("base.json").exists());
        machine.night(&["--accept"]).unwrap();
        assert!(machine.written("nightly.md").contains("1 got slower"));
        assert_eq!(machine.last_good().as_deref(), Some("two"));
    }

    #[test]
    fn a_program_that_talks_without_end_is_ended() {
        let machine = Machine::new();
        script(
            machine.path(),
            "case $1 in info) cat \"${0%/*}/info\";; verify) echo '{\"passed\": true}';; *) while :; do echo no; done;; esac",
        );
        let error = machine.error(&[]);
        assert!(error.contains("said \"no\""), "{error}");
    }

    #[test]
    fn the_baseline_is_a_coarse_check() {
        let machine = Machine::new();
        let error = machine.error(&["--require-baseline"]);
        assert!(error.contains("no baseline for Test GPU"), "{error}");
        assert!(!machine.path().join("base.json").exists());
        machine.night(&["--update-baseline"]).unwrap();
        machine.night(&["--update-baseline"]).unwrap();
        // Both programs alike, so only the baseline can tell.
        for side in ["now", "before"] {
            machine.takes(side, 1, 12.0 * 1.08);
        }
        machine.night(&["--require-baseline"]).unwrap();
        for side in ["now", "before"] {
            machine.takes(side, 1, 12.0 * 1.13);
        }
        machine.error(&[]);
        let text = machine.written("nightly.md");
        assert!(text.contains("Nothing got slower of 3"), "{text}");
        assert!(
            text.contains("1 result takes more than 10% longer")
                && text.contains("in the worst of the 2 sessions of Test GPU <1>")
                && text.contains("| 4096x7168x8 n=1 nvfp4 128x4 cuda-core | 83% | 74% |"),
            "{text}"
        );
        // A document from elsewhere is looked up too.
        let bench = machine.path().join("out/bench.json").display().to_string();
        let path = |name| machine.path().join(name).display().to_string();
        let args = [
            "x",
            "--from",
            &bench,
            "--baseline",
            &path("base.json"),
            "--out",
            &path("else"),
        ];
        let error =
            command(&Workspace::locate().unwrap(), &Cli::parse_from(args).args).unwrap_err();
        assert!(error.to_string().contains("got slower"), "{error}");
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
        let serves = machine
            .calls()
            .into_iter()
            .filter(|call| call.contains("--serve"));
        let serves: Vec<String> = serves.collect();
        assert!(serves[1].contains("--slow-down cuda-core=5"), "{serves:?}");
        assert!(!serves[2].contains("--slow-down"), "{serves:?}");
        assert!(machine.written("bench.html").contains("REHEARSAL"));
        assert_eq!(machine.last_good().as_deref(), Some("0123456789abcdef"));
        let error = machine.error(&["--update-baseline"]);
        assert!(error.contains("on purpose"), "{error}");
    }

    #[test]
    fn a_last_good_program_that_is_of_no_use_says_what_to_do() {
        let machine = Machine::new();
        machine.night(&[]).unwrap();
        machine.introduces("before", &document(), "nvfp4-gemv/turns/0");
        let error = machine.error(&[]);
        assert!(
            error.contains("begin anew") && error.contains("speaks nvfp4-gemv/turns/0"),
            "{error}"
        );
        machine.put("hello-before", "{\"error\": \"no device\"}\n");
        let error = machine.error(&[]);
        assert!(error.contains("no device"), "{error}");
    }

    #[test]
    fn a_program_that_ends_early_is_an_error() {
        let machine = Machine::new();
        machine.put("us-now-1", "-1");
        let error = machine.error(&[]);
        assert!(error.contains("another question"), "{error}");
        machine.put("opened-now", "{\"failed\": \"out of memory\"}\n");
        let error = machine.error(&[]);
        assert!(error.contains("out of memory"), "{error}");
    }

    #[test]
    fn without_a_gpu_nothing_is_measured() {
        let machine = Machine::new();
        machine.put(
            "info",
            r#"{"cuda": {"why_none": "no driver"}, "paths": []}"#,
        );
        machine.night(&[]).unwrap();
        let error = machine.error(&["--require-gpu"]);
        assert_eq!(error, "no GPU: no driver");
        assert_eq!(machine.calls(), ["now info --json"; 2]);
    }

    #[test]
    fn a_damaged_baseline_is_no_reason_to_pass() {
        let machine = Machine::new();
        machine.put("base.json", "{\"schema\"");
        let error = machine.error(&[]);
        assert!(
            error.contains("base.json cannot be used: it is no JSON"),
            "{error}"
        );
    }
}
