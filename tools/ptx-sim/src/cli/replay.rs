//! `replay`: recordings of probes, run in the simulator.

use std::io::Write;
use std::path::PathBuf;

use ptx_sim::files::{self, Existing};
use ptx_sim::recording::sums::{Sums, Verdict};
use ptx_sim::recording::{End, Ends, Recording, RecordingError, claims, outputs, replay};
use ptx_sim::{SimError, SumRule};
use serde_json::{Value, json};

use super::{io_error, printable_json, streams};

/// More than any recording has: the largest, of all that an H200 answers, has 4 MB.
const MOST_BYTES: u64 = 1 << 30;

#[derive(clap::Args)]
pub(crate) struct Replay {
    /// The recording: what `probes/build.sh` builds writes it
    file: PathBuf,
    /// The folder with the PTX of the probes
    #[arg(long, value_name = "DIR")]
    ptx: PathBuf,
    /// Compare nothing: write the recording as the simulator would have made it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// How matrix instructions round their sums: own (the simulator's), or as a published model says of a GPU: ampere,
    /// ada, hopper, blackwell or rtx-blackwell
    #[arg(long, value_name = "WHOSE", default_value_t)]
    sums: SumRule,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// A failure that has no place in PTX.
fn failure(what: impl ToString) -> SimError {
    SimError::Launch(what.to_string())
}

/// Replays, or records. Different results are no failure: the report says which they are.
pub(crate) fn command(args: &Replay) -> Result<(), SimError> {
    let file = args.file.display();
    let error = |why: &dyn std::fmt::Display| failure(format!("{file}: {why}"));
    let bytes = files::read(&args.file, MOST_BYTES)?;
    let recording = Recording::read(&bytes).map_err(|why| error(&why))?;
    let modules = recording.modules(&args.ptx).map_err(|why| error(&why))?;
    if let Some(out) = &args.out {
        let ends = recording.cases.iter().map(|case| {
            let end = outputs(case, &modules, &recording, args.sums)?;
            if let Err(why) = &end {
                outln!("{}: {why}", case.name);
            }
            Ok((case.name.clone(), end))
        });
        let ends: Ends = ends
            .collect::<Result<_, RecordingError>>()
            .map_err(|why| error(&why))?;
        let bytes = recording
            .with_outputs(&ends, "ptx-sim")
            .map_err(|why| error(&why))?;
        let mut file = files::create(out, Existing::Replace)?;
        return file.write_all(&bytes).map_err(io_error(out));
    }
    let mut different = Vec::new();
    for case in &recording.cases {
        let end = replay(case, &modules, &recording, args.sums).map_err(|why| error(&why))?;
        if let End::Different(why) | End::Unmodelled(why) = end {
            different.push((case.name.as_str(), case.status.as_str(), why));
        }
    }
    let claims = claims::claims(&recording).map_err(|why| error(&why))?;
    let roles = claims::roles(&recording).map_err(|why| error(&why))?;
    let sums = Sums::of(&recording).map_err(|why| error(&why))?;
    let sums = sums.map(|sums| sums.judge());
    let of_gpu = recording.said("gpu").unwrap_or("nobody");
    if args.json {
        let different: Vec<Value> = different
            .iter()
            .map(|(case, status, why)| json!({"case": case, "status": status, "why": why}))
            .collect();
        let report = json!({
            "topic": recording.said("topic"), "sums_of": args.sums.to_string(), "gpu": of_gpu, "cases": recording.cases.len(),
            "different": different, "claims": claims, "roles": roles, "sums": sums,
        });
        streams::line(&printable_json(&report.to_string()));
        return Ok(());
    }
    let cases = recording.cases.len();
    outln!(
        "{file}: of {of_gpu}: {} of {cases} cases are the same here",
        cases - different.len()
    );
    for (case, status, why) in &different {
        outln!("  {case} ({status}): {why}");
    }
    for claim in claims {
        let holds = if claim.holds {
            "holds"
        } else {
            "DOES NOT HOLD"
        };
        outln!("  {holds}: {} ({})", claim.says, claim.seen);
    }
    if let Some(roles) = roles {
        outln!("  clocks of a step: {roles:?}");
    }
    if let Some(sums) = sums {
        said(&sums);
    }
    Ok(())
}

fn said(sums: &Verdict) {
    outln!(
        "  sums: {} of {} come out by {:?}",
        sums.explained,
        sums.sums,
        sums.machine
    );
    outln!("    {} other rules explain as many", sums.as_good);
    outln!(
        "    {} come out by the published rule of FP4",
        sums.by_published
    );
    outln!(
        "    {} exact sums are wrong, columns agree: {}",
        sums.exact_sums_wrong,
        sums.columns_agree
    );
    outln!(
        "    roundings a bound must allow an instruction: {} at least {:?}",
        sums.roundings_at_least,
        sums.roundings
    );
}
