//! `cargo xtask nightly`: verifies, measures, and compares: with the last good program, which takes turns with
//! tonight's on the same GPU, and, coarsely, with what the GPU model did before.

mod baseline;
mod compare;
pub(crate) mod history;
mod judge;
mod last_good;
mod paired;
mod report;
mod server;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use nvfp4_gemv_documents::document::Document;
use nvfp4_gemv_documents::statistics::LEAST_VALUES;

use self::baseline::Baseline;
use self::judge::{Judged, looked_up, measured};
use self::last_good::LastGood;
use self::report::Outcome;
use crate::bench;
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
    /// Rounds in which every result has a turn of each program, after two to warm up: 8 or more, since no interval of
    /// fewer is 99% sure; of 12 or more, one that something disturbed does not hide a loss
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u16).range(i64::from(LEAST_VALUES)..=1000))]
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

/// The treatment of the sessions that a baseline has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Update {
    /// They stay
    Add,
    /// They go: what is measured has changed for good
    Replace,
}

const DEFAULT_THRESHOLD: f64 = 3.0;

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
    let out = args.out.clone();
    let out = out.unwrap_or_else(|| workspace.folder("nightly"));
    // One of another night would be taken for this one's.
    let report = out.join("nightly.md");
    if report.is_file() {
        std::fs::remove_file(&report)?;
    }
    let result = night(workspace, args, &out);
    if let Err(why) = &result
        && !report.is_file()
    {
        std::fs::create_dir_all(&out)?;
        let text = format!("# Nightly\n\nThere is nothing to compare: {why:#}\n");
        crate::write::whole(&report, &text)?;
    }
    result
}

fn night(workspace: &Workspace, args: &NightlyArgs, out: &Path) -> Result<()> {
    let history_file = args.history.clone();
    let history_file = history_file.unwrap_or_else(|| out.join("history.jsonl"));
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
    bench::write(out, &document, &history, std::slice::from_ref(&finding))?;
    crate::write::whole(&out.join("nightly.md"), finding.markdown())?;
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

#[cfg(test)]
mod tests;
