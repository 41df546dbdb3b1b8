//! `tune --sample`: what the choice loses where no table has the problem, measured.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use anyhow::Result;
use nvfp4_gemv::dispatch::{Evidence, Reason};
use nvfp4_gemv::tune::{Judged, Limits, TuneError, Tuner};
use serde_json::{Value, json};

use super::lost::{Lost, summary};
use super::measure::{begin, title};
use super::parts::Part;
use super::sample::{Drawn, draw};
use super::{Args, SAMPLE_SECONDS};
use crate::configs::one_line;
use crate::report::{Report, count, time};

/// Configs of a problem that take turns, at most.
const CONFIGS: usize = 96;
/// Turns of a config, at most.
const ROUNDS: usize = 9;
/// The part of a problem's share of the time behind which the search begins no further round: what comes before and
/// behind the search takes the rest.
const SEARCH: f64 = 0.6;

pub(super) fn run(args: &Args, problems: usize, as_json: bool) -> Result<Report> {
    let seed = args.seed.unwrap_or(1);
    let drawn = draw(problems, seed);
    let mut tuner = Tuner::new(0)?;
    let gpu = tuner.machine().gpu.clone();
    begin(&gpu, as_json)?;
    #[cfg(feature = "jit")]
    {
        let of = |drawn: &Drawn| (drawn.shape, drawn.operands, drawn.chained);
        let all: Vec<_> = drawn.iter().map(of).collect();
        tuner.compile_to_judge(&all, CONFIGS)?;
    }
    let budget = Duration::from_secs_f64(args.seconds.unwrap_or(SAMPLE_SECONDS));
    let start = Instant::now();
    let (mut lost, mut skipped, mut longest) = (Vec::new(), Vec::new(), Duration::ZERO);
    let mut left = drawn.len();
    for (i, one) in drawn.iter().enumerate() {
        let rest = budget.saturating_sub(start.elapsed());
        if rest < longest {
            break;
        }
        left = drawn.len() - i - 1;
        let limits = Limits {
            time: rest.mul_f64(SEARCH / (left + 1) as f64),
            rounds: ROUNDS,
        };
        let title = format!(
            "{}, {}",
            title(&one.shape, &one.operands),
            if one.chained { "chained" } else { "isolated" }
        );
        let judged = tuner.judge(&one.shape, &one.operands, one.chained, CONFIGS, &limits);
        let judged = match judged {
            Ok(judged) => judged,
            Err(why @ TuneError::NoCandidates { .. }) => {
                skipped.push(why.to_string());
                continue;
            }
            Err(error) => {
                let _ = writeln!(io::stderr(), "while judging {title}:");
                return Err(error.into());
            }
        };
        longest = longest.max(judged.took);
        let text = line(&title, &judged);
        let json = to_json(one, &judged);
        Part { text, json }.print(as_json)?;
        lost.extend(sum_up(&judged));
    }
    end(&gpu.name, seed, left, &skipped, &lost).print(as_json)?;
    Ok(Report {
        passed: !lost.is_empty(),
        ..Report::nothing()
    })
}

fn in_table(judged: &Judged) -> bool {
    let by = judged.choice.reason;
    matches!(
        by,
        Reason::Best {
            evidence: Evidence::Measured { .. },
            ..
        }
    )
}

fn sum_up(judged: &Judged) -> Option<Lost> {
    Some(Lost {
        kernel: judged.choice.kernel()?,
        part: judged.lost(),
        in_table: in_table(judged),
    })
}

fn line(title: &str, judged: &Judged) -> String {
    let chosen = judged
        .choice
        .config
        .as_ref()
        .map_or_else(String::new, one_line);
    let mut text = format!(
        "{title}: {:.1}% lost\n  {} {chosen}\n",
        100.0 * judged.lost(),
        time(judged.choice_seconds)
    );
    if judged.choice.config != Some(judged.best) {
        let best = time(judged.best_seconds);
        text.push_str(&format!("  {best} {}\n", one_line(&judged.best)));
    }
    text
}

fn to_json(drawn: &Drawn, judged: &Judged) -> Value {
    let shape = &drawn.shape;
    let ranking = judged.ranking.iter();
    let ranking = ranking.map(|(config, found)| json!([config, found.median, found.rounds]));
    let failed = judged.failed.iter();
    let failed = failed.map(|(config, why)| json!({ "config": config, "why": why.to_string() }));
    json!({
        "m": shape.m(), "n": shape.n(), "k": shape.k(), "l": shape.l(),
        "activation": drawn.operands.activation.name(),
        "layout": drawn.operands.weight_layout.name(),
        "chained": drawn.chained,
        "choice": judged.choice.config,
        "reason": judged.choice.reason.to_string(),
        "in_table": in_table(judged),
        "choice_seconds": judged.choice_seconds,
        "best": judged.best,
        "best_seconds": judged.best_seconds,
        "lost": judged.lost(),
        "ranking": ranking.collect::<Vec<_>>(),
        "failed": failed.collect::<Vec<_>>(),
        "took_seconds": judged.took.as_secs_f64(),
    })
}

/// The summary that is printed behind all problems.
fn end(device: &str, seed: u64, left: usize, skipped: &[String], lost: &[Lost]) -> Part {
    let (mut text, summary) = summary(lost);
    for line in skipped {
        text.push_str(&format!("skipped: {line}\n"));
    }
    if left > 0 {
        let left = count(left, "problem");
        text.push_str(&format!("{left} not measured: the time was spent\n"));
    }
    let json = json!({
        "device": device,
        "seed": seed,
        "skipped": skipped,
        "not_measured": left,
        "summary": summary,
    });
    Part { text, json }
}
