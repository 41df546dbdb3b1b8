//! `tune --chain`: layers that follow each other, tuned where they do.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::Result;
use nvfp4_gemv::tune::{ChainOutcome, Limits, TuneError, Tuner};
use nvfp4_gemv::{Activation, Operands, ScaleLayout, Shape};
use serde_json::{Value, json};

use super::measure::{Bar, STEPS, begin, describe, end, to_json, today};
use super::parts::{Ended, Part, one_by_one};
use super::store::Store;
use super::{Args, SECONDS};
use crate::configs::one_line;
use crate::report::{Report, Table, count, time};

pub(super) fn run(args: &Args, as_json: bool) -> Result<Report> {
    let mut tuner = Tuner::new(0)?;
    let from = format!(
        "{}, `nvfp4-gemv tune --chain`, {} s a problem",
        today(),
        args.seconds.unwrap_or(SECONDS)
    );
    let mut store = Store::open(args, tuner.machine(), from)?;
    let limits = Limits {
        time: Duration::from_secs_f64(args.seconds.unwrap_or(SECONDS)),
        ..Limits::default()
    };
    let gpu = tuner.machine().gpu.clone();
    begin(&gpu, as_json)?;
    let chains = chains(args);
    let bar = Bar::new(chains.len());
    let tune = |i: usize, &(activation, layout): &(Activation, ScaleLayout)| {
        let title = format!(
            "a chain of {}, {activation} vectors, {layout} scales",
            count(args.shapes.len(), "layer")
        );
        let operands = Operands::new(activation, layout);
        let layers: Vec<(Shape, Operands)> =
            args.shapes.iter().map(|&shape| (shape, operands)).collect();
        bar.begin(i, title.clone());
        let found = tuner.tune_chain(&layers, &limits, |progress| {
            bar.0
                .set_position(((i as f64 + progress.share) * STEPS) as u64);
            let alive = count(progress.alive, "candidate");
            bar.0
                .set_message(format!("{title}: {alive}, best {}", time(progress.best)));
        });
        let found = match found {
            Ok(found) => found,
            Err(why @ TuneError::NoCandidates { .. }) => {
                return Ok(Ended::Skipped(format!("{title}: {why}")));
            }
            // Errors of a call have hints of their own.
            Err(TuneError::Gemv(error)) => {
                let _ = writeln!(io::stderr(), "while tuning {title}:");
                return Err(error.into());
            }
            Err(other) => return Err(other.into()),
        };
        let mut text: String = found.problems.iter().map(describe).collect();
        text.push_str(&format!("\n{title}\n{}", layers_of(&found)));
        let json = json_of(&found, activation, layout);
        store.add(found.problems.into_iter().map(|outcome| outcome.entry))?;
        Ok(Ended::Tuned(Part { text, json }))
    };
    let skipped = one_by_one(&chains, tune, |part| bar.print(part, as_json))?;
    bar.0.finish_and_clear();
    end(&gpu, &skipped, &store, as_json)?;
    Ok(Report {
        passed: skipped.len() < chains.len(),
        ..Report::nothing()
    })
}

/// A chain for each type of vectors and layout of scales.
fn chains(args: &Args) -> Vec<(Activation, ScaleLayout)> {
    let mut chains = Vec::new();
    for &activation in args.activations() {
        for &layout in args.layouts() {
            if !chains.contains(&(activation, layout)) {
                chains.push((activation, layout));
            }
        }
    }
    chains
}

/// The layers, with what was found for each, and what that brings.
fn layers_of(found: &ChainOutcome) -> String {
    let mut table = Table::new(["  layer", "config in the chain", "in a chain of its own"]);
    for &problem in &found.layers {
        let shape = found.problems[problem].entry.shape;
        let (config, alone) = (found.configs[problem], found.apart[problem]);
        table.row(vec![
            format!("  {shape}"),
            one_line(&config),
            match alone == config {
                true => "the same".into(),
                false => one_line(&alone),
            },
        ]);
    }
    format!(
        "{table}  all layers once: {} with these, {} with what is best for each shape alone, {} with what the library \
         picks without a file\n",
        time(found.seconds),
        time(found.apart_seconds),
        time(found.chosen_seconds),
    )
}

fn json_of(found: &ChainOutcome, activation: Activation, layout: ScaleLayout) -> Value {
    let problems: Vec<Value> = found.problems.iter().map(to_json).collect();
    json!({
        "activation": activation.name(),
        "layout": layout.name(),
        "layers": found.layers,
        "configs": found.configs,
        "apart": found.apart,
        "seconds": found.seconds,
        "apart_seconds": found.apart_seconds,
        "picked_seconds": found.chosen_seconds,
        "problems": problems,
    })
}
