//! Measurements of a night, and findings from the comparison with the last good program and with the baseline.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use nvfp4_gemv_documents::document::Document;

use super::NightlyArgs;
use super::baseline::{self, Baseline, Coarse};
use super::compare::{Comparison, Rules};
use super::last_good::{LastGood, Origin};
use super::paired::{self, Night, Plan};
use super::report::Outcome;
use super::server::Server;
use crate::bench::program::Program;
use crate::workspace::Workspace;

/// How often what looks slower is measured again, each time by processes started anew.
const CONFIRMATIONS: usize = 2;

/// The measurements and findings of a night.
pub(super) struct Judged {
    pub(super) document: Document,
    /// The document of the last good program, measured in turns with tonight's.
    pub(super) before: Option<Document>,
    pub(super) outcome: Outcome,
    pub(super) baseline_file: PathBuf,
    pub(super) baseline: Option<Baseline>,
}

/// A document that was measured elsewhere took turns with nothing.
pub(super) fn looked_up(
    workspace: &Workspace,
    args: &NightlyArgs,
    document: Document,
) -> Result<Judged> {
    let (baseline_file, baseline) = baseline_of(workspace, args, &document)?;
    let outcome = Outcome {
        compared: None,
        coarse: looked(baseline.as_ref(), &document)?,
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

fn looked(baseline: Option<&Baseline>, document: &Document) -> Result<Option<Coarse>> {
    baseline.map(|of| of.look_up(document)).transpose()
}

/// Measures, and measures what looks slower again.
pub(super) fn measured(
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
    let device = &night.tonight.device;
    if !args.cpu && device.kind == "cpu" {
        let notes = night.tonight.notes.join("; ");
        bail!(
            "the program measured {}, and not a GPU: {notes}",
            device.name
        );
    }
    let (baseline_file, baseline) = baseline_of(workspace, args, &night.tonight)?;
    let mut compared = Comparison::new(&night, rules);
    let mut coarse = looked(baseline.as_ref(), &night.tonight)?;
    for again in 1..=CONFIRMATIONS {
        let doubtful = compared.as_ref().map(Comparison::doubtful);
        let mut doubtful = doubtful.unwrap_or_default();
        let far = coarse.iter().flat_map(|of| &of.far);
        doubtful.extend(far.map(|far| far.key.clone()));
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
        let again = looked(baseline.as_ref(), &again.tonight)?;
        if let (Some(coarse), Some(again)) = (&mut coarse, again) {
            let far = &mut coarse.far;
            far.retain(|far| again.far.iter().any(|again| again.key == far.key));
        }
    }
    Ok(Judged {
        document: night.tonight,
        before: night.before,
        outcome: Outcome {
            compared: origin.zip(compared),
            coarse,
        },
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
    let start_tonight = || Server::start(program, &slowed);
    // Who starts first gets another part of the memory, for its code as well.
    let first = plan.earlier_first.then(start_earlier).transpose()?;
    let mut tonight = start_tonight()?;
    let mut earlier = first.map_or_else(start_earlier, Ok)?;
    let origin = earlier.as_ref().map(|(_, origin)| origin.clone());
    let earlier = earlier.as_mut().map(|(server, _)| server);
    Ok((paired::measure(&mut tonight, earlier, plan)?, origin))
}

fn bench_arguments(args: &NightlyArgs) -> Vec<OsString> {
    let suite = if args.quick { "quick" } else { "all" };
    let rounds = args.rounds.to_string();
    let all = ["--suite", suite, "--rounds", &rounds, "--path", "cpu"];
    let all = if args.cpu { &all[..] } else { &all[..4] };
    all.iter().map(OsString::from).collect()
}
