//! Two programs, or one, measured turn by turn on the same GPU.
//!
//! The time of a result depends on the state that the GPU is in: its clock, its power, its temperature, and what ran
//! before. So two programs are not measured one after the other. Both are running, and take turns within every problem,
//! so that each meets the same states; only then does a difference mean that one is slower.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use nvfp4_gemv_documents::alternate::{WARM_UP, alternate};
use nvfp4_gemv_documents::document::{Case, Document, Measured, Method, Turn};
use nvfp4_gemv_documents::protocol::Problem;

use super::server::Server;
use crate::bench::view::{key, label, problem};

/// How to measure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan<'a> {
    pub(super) rounds: usize,
    /// How long results that are worth it are sustained; 0: not at all.
    pub(super) sustain_seconds: f64,
    /// The only results to measure, by [`key`]; or all.
    pub(super) only: Option<&'a BTreeSet<String>>,
    /// Whether the last good program starts, opens and sustains before tonight's does. Who is first gets another part
    /// of the memory.
    pub(super) earlier_first: bool,
}

/// The measurements: one document a program, with the same rounds.
#[derive(Clone, Debug)]
pub(super) struct Night {
    pub(super) tonight: Document,
    /// The last good program's, if there is one. It has no problem that tonight's has not.
    pub(super) before: Option<Document>,
    /// Results and problems of the last good program that tonight's no longer has.
    pub(super) missing: Vec<String>,
}

/// One program's part.
struct Side<'a> {
    server: &'a mut Server,
    document: Document,
}

impl<'a> Side<'a> {
    fn new(server: &'a mut Server) -> Self {
        let document = server.hello.document.clone();
        Self { server, document }
    }
}

/// Lets tonight's program and, if there is one, the last good program take turns on every problem of
/// tonight's.
pub(super) fn measure(
    tonight: &mut Server,
    before: Option<&mut Server>,
    plan: &Plan<'_>,
) -> Result<Night> {
    let problems = tonight.hello.problems.clone();
    let sustained = tonight.hello.sustained.clone();
    let known = before.as_ref().map(|before| before.hello.problems.clone());
    let mut missing = Vec::new();
    let mut sides = vec![Side::new(tonight)];
    sides.extend(before.map(Side::new));
    if let [now, earlier] = &sides[..] {
        let (now, earlier) = (&now.document, &earlier.document);
        if now.device.name != earlier.device.name {
            bail!(
                "tonight's program measures {}, and the last good one {}",
                now.device.name,
                earlier.device.name
            );
        }
        if now.suite == earlier.suite {
            let gone = known.iter().flatten();
            let gone = gone.filter(|known| !problems.contains(known));
            missing.extend(gone.map(Problem::to_string));
        }
    }
    let bar = progress(problems.len() as u64);
    for asked in &problems {
        // A problem that the last good program does not know is new. It must be able to measure any other problem, as
        // tonight's program must: a comparison that leaves something out would pass.
        let is_new = known.as_ref().is_some_and(|known| !known.contains(asked));
        let mut cases: Vec<(usize, Case)> = Vec::with_capacity(sides.len());
        let turn = if plan.earlier_first { [1, 0] } else { [0, 1] };
        for at in turn {
            if let Some(side) = sides.get_mut(at)
                && !(at == 1 && is_new)
            {
                cases.push((at, side.server.open(asked)?));
            }
        }
        cases.sort_by_key(|(at, _)| *at);
        let opened: Vec<Case> = cases.into_iter().map(|(_, case)| case).collect();
        bar.set_message(problem(&opened[0]));
        if let [now, earlier] = &opened[..] {
            missing.extend(gone(now, earlier));
        }
        let worth = sustained.contains(asked) && plan.sustain_seconds > 0.0;
        take_turns(&mut sides, opened, plan, worth)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let ended = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
    let mut documents = sides.into_iter().map(|side| Document {
        date_utc: ended.clone(),
        method: Method {
            sustained_seconds: (plan.sustain_seconds > 0.0).then_some(plan.sustain_seconds),
            ..side.document.method
        },
        ..side.document
    });
    Ok(Night {
        tonight: documents.next().context("there is no program")?,
        before: documents.next(),
        missing,
    })
}

/// Results that only the earlier case has.
fn gone(now: &Case, earlier: &Case) -> Vec<String> {
    let is_gone = |path: &&Measured| now.paths.iter().all(|other| label(other) != label(path));
    let gone = earlier.paths.iter().filter(is_gone);
    gone.map(|path| key(earlier, path)).collect()
}

/// The ceiling or a path of one side's case: what takes turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    side: usize,
    /// The way's number in the program.
    way: usize,
}

/// Measures one problem on all sides that opened it, and adds it to their documents.
fn take_turns(
    sides: &mut [Side<'_>],
    mut cases: Vec<Case>,
    plan: &Plan<'_>,
    sustain: bool,
) -> Result<()> {
    let parts = parts(&cases, plan.only);
    // Only some results are measured again, and this problem has none of them.
    if plan.only.is_some() && parts.iter().all(|part| part.way == 0) {
        return Ok(());
    }
    let turns = alternate(parts.len(), WARM_UP, plan.rounds, |at| {
        let part = parts[at];
        sides[part.side].server.turn(part.way)
    })?;
    let mut sustained = Vec::new();
    if sustain {
        let mut order = parts.clone();
        if plan.earlier_first {
            order.reverse();
        }
        for part in &order {
            let server = &mut sides[part.side].server;
            sustained.push((*part, server.sustain(part.way, plan.sustain_seconds)?));
        }
    }
    for (at, case) in cases.iter_mut().enumerate() {
        for (part, sustained) in sustained.iter().filter(|(part, _)| part.side == at) {
            *case.sustained_mut(part.way).context("an unknown way")? = Some(sustained.clone());
        }
        case.compare_energy();
        let mine = |way: usize| {
            parts
                .iter()
                .position(|part| (part.side, part.way) == (at, way))
        };
        let ways: Vec<usize> = (0..=case.paths.len())
            .filter(|way| mine(*way).is_some())
            .collect();
        let turns: Vec<Vec<Turn>> = ways
            .iter()
            .filter_map(|way| Some(turns[mine(*way)?].clone()))
            .collect();
        let mut way = 0;
        case.paths.retain(|_| {
            way += 1;
            ways.contains(&way)
        });
        case.complete(&turns);
    }
    for (side, case) in sides.iter_mut().zip(cases) {
        side.document.cases.push(case);
    }
    Ok(())
}

/// All ways that take turns, in the order of a round. The programs stand side by side for the ceiling and for each
/// result, so that compared figures are measured within milliseconds.
fn parts(cases: &[Case], only: Option<&BTreeSet<String>>) -> Vec<Part> {
    let mut parts: Vec<Part> = (0..cases.len()).map(|side| Part { side, way: 0 }).collect();
    let Some(now) = cases.first() else {
        return parts;
    };
    for path in &now.paths {
        if only.is_some_and(|only| !only.contains(&key(now, path))) {
            continue;
        }
        for (side, case) in cases.iter().enumerate() {
            let same = |other: &Measured| label(other) == label(path);
            parts.extend(
                case.paths
                    .iter()
                    .position(same)
                    .map(|at| Part { side, way: at + 1 }),
            );
        }
    }
    parts
}

fn progress(problems: u64) -> ProgressBar {
    let bar = ProgressBar::new(problems).with_prefix("measuring");
    match ProgressStyle::with_template("{prefix} [{bar:30}] {pos}/{len} {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
