//! The measuring part of `tune`, on a device.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use nvfp4_gemv::dispatch::measured::GpuModel;
use nvfp4_gemv::tune::{Found, Limits, Outcome, Progress, TuneError, Tuner};
use nvfp4_gemv::{Config, Error, Operands, Shape};
use serde_json::{Value, json};

use super::parts::{Ended, Part, one_by_one};
use super::store::Store;
use super::{Args, Rank, SECONDS, SUSTAINED, chain, sustain};
use crate::configs::one_line;
use crate::engine::Energy;
use crate::report::{Report, Table, count, time};

/// Rows of a problem's table, beside the best of each kernel.
const ROWS: usize = 4;
/// Steps of the bar for a problem.
pub(super) const STEPS: f64 = 100.0;

pub(super) fn run(args: &Args, as_json: bool) -> Result<Report> {
    if args.chain {
        return chain::run(args, as_json);
    }
    let problems = args.problems()?;
    let mut tuner = Tuner::new(0)?;
    let from = format!(
        "{}, `nvfp4-gemv tune{}{}{}`, {} s a problem",
        today(),
        if args.suite { " --suite" } else { "" },
        if args.chained { " --chained" } else { "" },
        match args.rank {
            Rank::Time => "",
            Rank::Sustained => " --rank sustained",
            Rank::Energy => " --rank energy",
        },
        args.seconds.unwrap_or(SECONDS)
    );
    let energy = Energy::of_device(0)?;
    if args.rank == Rank::Energy && energy.joules().is_none() {
        bail!("--rank energy: {}", energy.why_none());
    }
    let mut store = Store::open(args, tuner.machine(), from)?;
    let limits = Limits {
        time: Duration::from_secs_f64(args.seconds.unwrap_or(SECONDS)),
        ..Limits::default()
    };
    let gpu = tuner.machine().gpu.clone();
    begin(&gpu, as_json)?;
    let bar = Bar::new(problems.len());
    let tune = |i: usize, (shape, operands): &(Shape, Operands)| {
        let done = i as f64 * STEPS;
        bar.begin(i, title(shape, operands));
        let show = |progress: Progress| {
            bar.0.set_position((done + STEPS * progress.share) as u64);
            bar.0.set_message(format!(
                "{}: {}, best {}",
                title(shape, operands),
                count(progress.alive, "candidate"),
                time(progress.best)
            ));
        };
        let outcome = match args.chained {
            false => tuner.tune(shape, operands, &limits, show),
            true => tuner.tune_with_chains(shape, operands, &limits, show),
        };
        let mut outcome = match outcome {
            Ok(outcome) => outcome,
            Err(why @ TuneError::NoCandidates { .. }) => {
                return Ok(Ended::Skipped(why.to_string()));
            }
            // Errors of a call have hints of their own.
            Err(TuneError::Gemv(error)) => return Err(in_problem(error, shape, operands)),
            Err(other) => return Err(other.into()),
        };
        let mut text = describe(&outcome);
        let mut finals = None;
        if args.rank != Rank::Time {
            let time = Duration::from_secs_f64(args.sustained.unwrap_or(SUSTAINED));
            let show = |share| {
                let percent = 100.0 * share;
                let title = title(shape, operands);
                bar.0
                    .set_message(format!("{title}: repeating the best, {percent:.0}%"));
            };
            let of = &mut outcome;
            let ranked = sustain::rank(&mut tuner, of, args.rank, time, &energy, show)?;
            text.push_str(&ranked.text());
            finals = Some(ranked);
        }
        if args.chained && outcome.chained.is_empty() {
            text.push_str("  nothing chained: launches overlap from compute capability 9.0 on\n");
        }
        let mut json = to_json(&outcome);
        if let Some(finals) = finals {
            json["repeated"] = finals.json();
        }
        store.add([outcome.entry])?;
        Ok(Ended::Tuned(Part { text, json }))
    };
    let skipped = one_by_one(&problems, tune, |part| bar.print(part, as_json))?;
    bar.0.finish_and_clear();
    end(&gpu, &skipped, &store, as_json)?;
    Ok(Report {
        passed: skipped.len() < problems.len(),
        ..Report::nothing()
    })
}

/// Prints the text before all problems. JSON has it at the end.
pub(super) fn begin(gpu: &GpuModel, as_json: bool) -> Result<()> {
    if as_json {
        return Ok(());
    }
    let text = format!("{}, {} SMs\n", gpu.name, gpu.multiprocessors);
    let json = Value::Null;
    Part { text, json }.print(as_json)
}

/// Prints the text behind all problems.
pub(super) fn end(gpu: &GpuModel, skipped: &[String], store: &Store, as_json: bool) -> Result<()> {
    let mut text = String::new();
    for line in skipped {
        text.push_str(&format!("\nskipped: {line}\n"));
    }
    text.push_str(&store.line());
    let json = json!({
        "device": gpu.name,
        "multiprocessors": gpu.multiprocessors,
        "skipped": skipped,
        "stored_in": store.name(),
    });
    Part { text, json }.print(as_json)
}

fn in_problem(error: Error, shape: &Shape, operands: &Operands) -> anyhow::Error {
    let _ = writeln!(io::stderr(), "while tuning {}:", title(shape, operands));
    error.into()
}

pub(super) fn title(shape: &Shape, operands: &Operands) -> String {
    format!(
        "{shape}, {} vectors, {} scales",
        operands.activation, operands.weight_layout
    )
}

/// A problem's table: the best few, and the best of each kernel.
pub(super) fn describe(outcome: &Outcome) -> String {
    let entry = &outcome.entry;
    let mut table = Table::new(["  config", "time", "share", "rounds"]);
    for (ranking, what) in [(&outcome.ranking, ""), (&outcome.chained, "chained ")] {
        for (i, (config, found)) in ranking.iter().enumerate() {
            let before = &ranking[..i];
            let first_of_kernel = before
                .iter()
                .all(|(other, _)| other.kernel() != config.kernel());
            if i < ROWS || first_of_kernel {
                table.row(vec![
                    format!("  {what}{}", one_line(config)),
                    time(found.median),
                    format!("{:.1}%", 100.0 * entry.ceiling_seconds / found.median),
                    found.rounds.to_string(),
                ]);
            }
        }
    }
    let mut text = format!(
        "\n{}: {}, ceiling {}\n{table}",
        title(&entry.shape, &entry.operands),
        count(outcome.ranking.len(), "candidate"),
        time(entry.ceiling_seconds),
    );
    let [all, before, search, first_round] = seconds_of(outcome);
    text.push_str(&format!(
        "  took {all:.1} s: {before:.1} s for operands and the ceiling, then {search:.1} s of search, {first_round:.1} of \
         which measured every candidate once\n"
    ));
    for (config, why) in &outcome.failed {
        text.push_str(&format!("  did not run: {}: {why}\n", one_line(config)));
    }
    text
}

/// Seconds of a problem: in all, before the search, the search, and its first round.
fn seconds_of(outcome: &Outcome) -> [f64; 4] {
    let took = &outcome.took;
    let all = [took.all, took.before, took.search, took.first_round];
    all.map(|time| time.as_secs_f64())
}

pub(super) fn to_json(outcome: &Outcome) -> Value {
    let entry = &outcome.entry;
    let shape = &entry.shape;
    let list = |ranking: &[(Config, Found)]| -> Vec<Value> {
        let one = |(config, found): &(Config, Found)| {
            json!({
                "kernel": config.kernel().name(),
                "config": config,
                "median_seconds": found.median,
                "min_seconds": found.min,
                "rounds": found.rounds,
                "share_of_ceiling": entry.ceiling_seconds / found.median,
            })
        };
        ranking.iter().map(one).collect()
    };
    let failed: Vec<Value> = outcome
        .failed
        .iter()
        .map(|(config, why)| json!({ "config": config, "why": why.to_string() }))
        .collect();
    let [all, before, search, first_round] = seconds_of(outcome);
    json!({
        "m": shape.m(), "n": shape.n(), "k": shape.k(), "l": shape.l(),
        "activation": entry.operands.activation.name(),
        "layout": entry.operands.weight_layout.name(),
        "ceiling_seconds": entry.ceiling_seconds,
        "ranking": list(&outcome.ranking),
        "chained": list(&outcome.chained),
        "failed": failed,
        "took": { "seconds": all, "before_search": before, "search": search, "first_round": first_round },
    })
}

/// Progress on stderr: a bar on a terminal, and elsewhere a line as each problem begins.
pub(super) struct Bar(pub(super) ProgressBar, usize);

impl Bar {
    pub(super) fn new(problems: usize) -> Self {
        let bar = ProgressBar::new((problems as f64 * STEPS) as u64).with_prefix("tuning");
        let bar = match ProgressStyle::with_template("{prefix} [{bar:30}] {percent:>3}% {msg}") {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        };
        Self(bar, problems)
    }

    /// Problem `i` begins.
    pub(super) fn begin(&self, i: usize, title: String) {
        if self.0.is_hidden() {
            // An error here is ignored: measurements must not be lost because stderr is closed.
            let _ = writeln!(io::stderr(), "tuning {} of {}: {title}", i + 1, self.1);
        }
        self.0.set_message(title);
    }

    /// Prints what was found above the bar.
    pub(super) fn print(&self, part: Part, as_json: bool) -> Result<()> {
        self.0.suspend(|| part.print(as_json))
    }
}

/// The date in UTC, as `2026-11-21`.
pub(super) fn today() -> String {
    let mut date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    date.truncate("2026-11-21".len());
    date
}
