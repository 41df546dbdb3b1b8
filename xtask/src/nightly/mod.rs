//! `cargo xtask nightly`: verifies, measures, and compares with what was measured before.

mod baseline;
mod compare;
pub(crate) mod history;
mod report;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use self::baseline::Baseline;
use self::compare::{Comparison, Rules};
use self::report::Outcome;
use crate::bench;
use crate::bench::document::Document;
use crate::bench::program::{Program, ProgramArgs};
use crate::workspace::Workspace;

#[derive(Debug, Args)]
pub(crate) struct NightlyArgs {
    /// What to compare with [default: benches/baseline/MODEL.json]
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Past nights, one JSON object a line; this one is appended [default: history.jsonl in --out]
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// Where bench.json, bench.md, bench.html and nightly.md go [default: target/nightly]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Add this run to the baseline as one more session, of which the newest five are kept; or let it
    /// replace all of them
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "add")]
    update_baseline: Option<Update>,
    #[command(flatten)]
    program: ProgramArgs,
    /// Judge what `nvfp4-gemv bench --json` measured elsewhere: nothing is verified or measured
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// The quick suite instead of all
    #[arg(long)]
    quick: bool,
    /// Measure the CPU path: to rehearse where there is no GPU
    #[arg(long, conflicts_with = "require_gpu")]
    cpu: bool,
    /// Fail where there is no GPU, instead of skipping everything
    #[arg(long)]
    require_gpu: bool,
    /// Fail where there is no baseline for this GPU model
    #[arg(long)]
    require_baseline: bool,
    /// Percent that a path must be slower at least to be a regression
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0, value_parser = percent)]
    threshold: f64,
    /// Slow a path down on purpose, to see that it is noticed: cuda-core=10 reads 10% of the weights again
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

fn percent(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("expected 0 to 100".into()),
    }
}

pub(crate) fn command(workspace: &Workspace, args: &NightlyArgs) -> Result<()> {
    let out = args.out.clone().unwrap_or_else(|| workspace.nightly_dir());
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
    if let Some(program) = &program {
        verify(program, args.cpu)?;
    }
    let document = match (&args.from, &program) {
        (Some(file), _) => bench::read(file)?,
        (None, Some(program)) => program.bench(&bench_arguments(args))?,
        (None, None) => bail!("there is neither a program nor a document"),
    };

    let file = match &args.baseline {
        Some(file) => file.clone(),
        None => baseline::default_file(workspace, &document.device),
    };
    let baseline = Baseline::read(&file)?;
    let rules = Rules {
        threshold: args.threshold / 100.0,
    };
    let outcome = match &baseline {
        None => Outcome::NoBaseline,
        Some(baseline) => Outcome::Compared(judge(args, &program, baseline, &document, rules)?),
    };

    let history_file = match &args.history {
        Some(file) => file.clone(),
        None => out.join("history.jsonl"),
    };
    let history = history::append(&history_file, &document, outcome.verdict())?;
    let finding = outcome.finding(&document, &file);
    bench::write(&out, &document, &history, std::slice::from_ref(&finding))?;
    std::fs::write(out.join("nightly.md"), finding.markdown())
        .with_context(|| format!("writing {}", out.join("nightly.md").display()))?;
    print!("{}", outcome.text(&document, &file));
    println!(
        "written: {}",
        out.join("{bench.json,bench.md,bench.html,nightly.md}")
            .display()
    );

    if args.require_baseline && matches!(outcome, Outcome::NoBaseline) {
        bail!(
            "no baseline for {}: {} is not there",
            document.device.name,
            file.display()
        );
    }
    if let Some(update) = args.update_baseline {
        let kept = baseline.filter(|_| update == Update::Add);
        let mut baseline = kept.unwrap_or_else(|| Baseline::new(&document));
        baseline.add(&document)?;
        baseline.write(&file)?;
        println!(
            "baseline: {} has {} of at most {} sessions; three or more, from different machine starts, \
             make it trustworthy",
            file.display(),
            baseline.sessions.len(),
            baseline::MOST_SESSIONS
        );
        return Ok(());
    }
    if !outcome.passed() {
        bail!("something got slower, or is no longer measured");
    }
    Ok(())
}

/// Compares; and what looks slower is measured once more, by another process: what is only there once is
/// noise.
fn judge(
    args: &NightlyArgs,
    program: &Option<Program>,
    baseline: &Baseline,
    document: &Document,
    rules: Rules,
) -> Result<Comparison> {
    let first = Comparison::new(baseline, document, rules)?;
    match program {
        Some(program) if first.regressions().next().is_some() => {
            println!("something looks slower: measuring once more");
            let again = program.bench(&bench_arguments(args))?;
            let again = Comparison::new(baseline, &again, rules)?;
            Ok(first.confirmed_by(&again))
        }
        _ => Ok(first),
    }
}

fn bench_arguments(args: &NightlyArgs) -> Vec<std::ffi::OsString> {
    let suite = if args.quick { "quick" } else { "all" };
    let mut all: Vec<std::ffi::OsString> = vec!["--suite".into(), suite.into()];
    if args.cpu {
        all.extend(["--path".into(), "cpu".into()]);
    }
    for slow_down in &args.slow_down {
        all.extend(["--slow-down".into(), slow_down.into()]);
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
    use std::path::Path;

    use clap::Parser;

    use super::*;
    use crate::bench::testing::{document, script};

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: NightlyArgs,
    }

    /// A machine with a GPU, which measures `now`.
    struct Machine {
        folder: tempfile::TempDir,
    }

    impl Machine {
        fn new(now: &Document) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let machine = Self { folder };
            machine.measures(now);
            machine.with_info(
                r#"{"cuda": {"why_none": null}, "paths": [{"name": "cuda-core", "available": true}]}"#,
            );
            script(
                machine.path(),
                "cd \"${0%/*}\"; echo \"$@\" >> calls; case $1 in\n info) cat info;;\n bench) cat now;;\n \
                 verify) echo '{\"passed\": true, \"computed\": 3}';;\nesac",
            );
            machine
        }

        fn path(&self) -> &Path {
            self.folder.path()
        }

        fn measures(&self, now: &Document) {
            fs::write(self.path().join("now"), serde_json::to_string(now).unwrap()).unwrap();
        }

        fn with_info(&self, info: &str) {
            fs::write(self.path().join("info"), info).unwrap();
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

        fn calls(&self) -> Vec<String> {
            let calls = fs::read_to_string(self.path().join("calls")).unwrap();
            calls.lines().map(str::to_owned).collect()
        }

        fn written(&self, name: &str) -> String {
            fs::read_to_string(self.path().join("out").join(name)).unwrap()
        }
    }

    #[test]
    fn a_night_from_the_first_baseline_to_a_regression() {
        let machine = Machine::new(&document());
        machine.night(&[]).unwrap();
        assert!(machine.written("nightly.md").contains("no baseline"));
        let error = machine
            .night(&["--require-baseline"])
            .unwrap_err()
            .to_string();
        assert!(error.contains("no baseline for Test GPU"), "{error}");
        assert!(!machine.path().join("base.json").exists());
        machine.night(&["--update-baseline"]).unwrap();
        machine.night(&["--update-baseline"]).unwrap();
        machine
            .night(&["--require-gpu", "--require-baseline"])
            .unwrap();
        assert!(machine.written("nightly.md").contains("Nothing got slower"));

        let mut slower = document();
        for us in &mut slower.cases[0].paths[0].samples_us {
            *us *= 1.1;
        }
        slower.slowed_percent = [("cuda-core".into(), 10)].into();
        machine.measures(&slower);
        let before = machine.calls().len();
        let error = machine
            .night(&["--slow-down", "cuda-core=10"])
            .unwrap_err()
            .to_string();
        assert!(error.contains("slower"), "{error}");
        let calls = machine.calls().split_off(before);
        let bench = "bench --suite all --slow-down cuda-core=10 --json";
        assert_eq!(calls[2..], ["verify --path cuda-core --json", bench, bench]);
        let page = machine.written("bench.html");
        assert!(page.contains("SLOWER") && page.contains("REHEARSAL"));
        assert_eq!(machine.written("history.jsonl").lines().count(), 6);

        let error = machine
            .night(&["--update-baseline"])
            .unwrap_err()
            .to_string();
        assert!(error.contains("on purpose"), "{error}");
        slower.slowed_percent.clear();
        machine.measures(&slower);
        machine.night(&["--update-baseline=replace"]).unwrap();
        machine.night(&[]).unwrap();
    }

    #[test]
    fn without_a_gpu_nothing_is_measured() {
        let machine = Machine::new(&document());
        machine.with_info(r#"{"cuda": {"why_none": "no driver"}, "paths": []}"#);
        machine.night(&[]).unwrap();
        let error = machine.night(&["--require-gpu"]).unwrap_err().to_string();
        assert_eq!(error, "no GPU: no driver");
        assert_eq!(machine.calls(), ["info --json"; 2]);
    }

    #[test]
    fn a_damaged_baseline_is_no_reason_to_pass() {
        let machine = Machine::new(&document());
        fs::write(machine.path().join("base.json"), "{\"schema\"").unwrap();
        let error = format!("{:#}", machine.night(&[]).unwrap_err());
        assert!(
            error.contains("base.json cannot be used: it is no JSON"),
            "{error}"
        );
    }
}
