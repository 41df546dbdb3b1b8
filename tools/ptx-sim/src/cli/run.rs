//! `ptx-sim run`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ptx_sim::coverage::Counters;
use ptx_sim::demangle::demangled;
use ptx_sim::files::{self, Existing};
use ptx_sim::launch::{Expectation, LaunchSpec, Prepared};
use ptx_sim::models::approx::Approximations;
use ptx_sim::report::Violation;
use ptx_sim::{
    Allowed, HazardChecks, Module, Multiprocessors, Note, Options, Policy, Profile, Program,
    Relaxation, Report, Sim, SimError, SumRule, Timing, Trace, Uninitialised,
};
use serde_json::json;

use super::progress::Progress;
use super::schedules::{Policies, Schedules, Timings};
use super::{Failure, coverage, entry, io_error, print_json, printable, streams};

pub(super) const HELP: &str = r#"Profiles:
  --profile strict holds a kernel to what the PTX ISA promises. --profile hardware allows everything that is
  known to be relied on without a promise, and notes where a kernel does. --allow takes one of them by its name.

Schedules:
  --policy and --timing choose who runs and when asynchronous operations complete. A policy and
  its seed decide everything, so a failure can be repeated: it is printed with both. To look for
  races and deadlocks, run
      ptx-sim run ... --policy all --timing all --seeds 20
  Coverage is that of all runs together. Where the bytes of a dumped buffer depend on the
  schedule, this is said.

Example of a specification:
  {
    "grid": [1, 1, 1], "block": [128, 1, 1], "shared": 0,
    "buffers": {
      "x": {"contents": {"f32": [1.0, 2.0]}},
      "w": {"contents": {"safetensors": {"file": "w.safetensors", "tensor": "w"}}},
      "y": {"size": 512, "dump": "y.bin"}
    },
    "params": [
      {"buffer": "x"}, {"u32": 7},
      {"struct": {"size": 16, "fields": [{"offset": 8, "value": {"buffer": "y"}}]}},
      {"tensor_map": {"buffer": "w", "type": "UINT8", "dims": [128, 64], "strides": [128],
                      "box": [128, 16], "swizzle": "128B"}}
    ]
  }
  Contents: fill (with size), file, safetensors, hex, f32, i32, random. A buffer without contents is
  poisoned. Random contents are integers or any finite bit pattern:
      {"random": {"type": "f16", "count": 4096, "seed": 1, "values": {"integers": [-4, 4]}}}, or "full".
  A buffer may say what it must hold after each run, all of it, as numbers, a file of elements, or a matrix product
  D[m][n] = alpha * sum over k of A[m][k] * B[n][k] of what buffers held before ("transposed" for [k][m] and [k][n]):
      "expect": {"type": "f32", "relative": 1e-3, "absolute": 0, "values": {"matmul":
          {"m": 128, "n": 64, "k": 32, "a": {"buffer": "a", "type": "f16"}, "b": {"buffer": "b", "type": "f16"}}}}
  An operand may have block scales along k, in a buffer of bytes, "linear" (rows x blocks) or "128x4":
      "a": {"buffer": "codes", "type": "e2m1",
            "scales": {"buffer": "scales", "type": "ue4m3", "block": 16, "layout": "128x4"}}
  Types: f64, f32, f16, bf16, e4m3, e5m2, e2m1 (two a byte), ue4m3, ue8m0, u8, i8, u32, i32. Values: u8 to u64, i8 to i64, f32, f64, hex, buffer, buffer_at {buffer, offset},
  tensor_map: the arguments of cuTensorMapEncodeTiled, enumerators as numbers or names. `cluster` gives
  the cluster's shape if the kernel does not. `"dependent": true` is a programmatic dependent launch: the
  grid before it ends at some time, and `griddepcontrol.wait` waits for that. `"before"` lists launches that the
  stream has before this one, each with its `kernel`; what they write, no CTA of a dependent launch may touch
  before it has waited. They run one after another, so that a dependent launch is held to all that they write; with
  --overlap they run together, so that it is also held to what they read, and to what they hold of a multiprocessor's
  shared and tensor memory. Coverage and timeline are of the launch itself. A buffer's `address`
  is where it lies, for memory that holds pointers. "variables" are contents of the module's variables, by name. Files
  lie below the specification's folder, and a `dump` below --out: no name has `..` or leads through a symbolic link.
  Files that are there already are not replaced without --force.

Traces:
  --trace F writes a timeline of the run that failed, or else of the last one, in the Chrome trace
  format: open it in Perfetto or chrome://tracing, or draw it with `ptx-sim draw F -o F.svg`. Its
  axis counts steps of the simulator; it shows an order, not a time."#;

#[derive(clap::Args)]
pub(super) struct Run {
    /// The PTX file.
    #[arg(long)]
    ptx: PathBuf,
    /// The kernel, as the PTX names it or as C++ does, with or without its parameters' types and template arguments;
    /// not needed if there is only one, or the specification has a `kernel`.
    #[arg(long)]
    entry: Option<String>,
    /// The launch specification, a JSON file.
    #[arg(long)]
    launch: PathBuf,
    /// How warps take turns: fair, random[:SEED], starve[:SEED] or all[:SEED].
    #[arg(long, default_value = "fair")]
    policy: Policies,
    /// When asynchronous operations complete.
    #[arg(long, value_enum, default_value_t = Timings::Eager)]
    timing: Timings,
    /// Seeds to run each policy with, counted up from its own.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// How much ordering asynchronous operations may rely on: strict (only what the PTX ISA promises) or hardware (also
    /// what public kernels do without a promise).
    #[arg(long, default_value_t)]
    profile: Profile,
    /// Allow one thing that the profile does not: a name from the notes of `--profile hardware`. Can be repeated.
    #[arg(long, value_name = "KIND")]
    allow: Vec<Relaxation>,
    /// What accesses to shared and tensor memory do that nothing orders, those of a dependent launch to what a launch
    /// before it writes, and those to a CTA that has ended: error (end the run), warn (are reported at the end) or off
    /// (are not looked for: faster). Conflicts with copies in flight are errors in any case.
    #[arg(long, default_value_t)]
    hazards: HazardChecks,
    /// Thread-instructions after which a run is given up.
    #[arg(long, default_value_t = Options::default().budget)]
    budget: u64,
    /// Clusters that run at once.
    #[arg(long, default_value_t = Options::default().resident)]
    resident: usize,
    /// Multiprocessors: what a kernel reads as `%nsmid`.
    #[arg(long, default_value_t = Options::default().sms)]
    sms: u32,
    /// Runs the launches of the specification at the same time, as far as they are dependent ones, on so many
    /// multiprocessors, whose shared and tensor memory they share: 1 brings all CTAs together.
    #[arg(long, value_name = "MULTIPROCESSORS", conflicts_with = "trace",
          value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    overlap: Option<u32>,
    /// Report reads of bytes that nothing wrote, and go on.
    #[arg(long)]
    warn_uninitialised: bool,
    /// The results of ex2, rcp, sin and the like among those that the ISA allows: nearest, or an adversary's: low, high
    /// or mixed.
    #[arg(long, default_value_t)]
    approximations: Approximations,
    /// How matrix instructions round their sums: own (the simulator's: as an H200 was recorded, and tcgen05.mma rounded
    /// once), or as a published model says of a GPU: ampere, ada, hopper, blackwell or rtx-blackwell. An instruction
    /// that the model does not have ends the run.
    #[arg(long, value_name = "WHOSE", default_value_t)]
    sums: SumRule,
    /// Go on after a finding where that is possible, and with the next schedule where it is not; count findings by kind
    /// at the end, and end with status 1 if there are any.
    #[arg(long)]
    keep_going: bool,
    /// Directory for dumped buffers, made if it is not there; they are those of the last run.
    #[arg(long, default_value = ".")]
    out: PathBuf,
    /// Replace dumped buffers and the timeline where they are there already; never a file that is read.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    memory: super::Memory,
    /// Write a timeline to this file.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Events after which the timeline is cut.
    #[arg(long, default_value_t = ptx_sim::trace::DEFAULT_LIMIT, requires = "trace")]
    trace_limit: usize,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// Data that all runs have in common.
struct Job {
    program: Program,
    spec: LaunchSpec,
    prepared: Prepared,
    expectations: Vec<Expectation>,
}

impl Run {
    fn existing(&self) -> Existing {
        if self.force {
            Existing::Replace
        } else {
            Existing::Refuse
        }
    }

    /// Refuses outputs that could not be written after the runs, before the runs.
    fn check_outputs(&self, spec: &LaunchSpec, base: &Path) -> Result<(), SimError> {
        let mut inputs = vec![self.ptx.clone(), self.launch.clone()];
        inputs.extend(spec.input_paths(base));
        let inputs: Vec<&Path> = inputs.iter().map(PathBuf::as_path).collect();
        let dumps = spec.dump_paths(&self.out);
        if let Some(trace) = self.trace.as_ref().filter(|t| dumps.contains(t)) {
            return Err(SimError::Io {
                path: trace.display().to_string(),
                message: "both a dumped buffer and the timeline would be written to it".into(),
            });
        }
        spec.check_dumps_in(&self.out, self.existing(), &inputs)?;
        match &self.trace {
            Some(trace) => files::check_output(trace, self.existing(), &inputs),
            None => Ok(()),
        }
    }
}

fn load(r: &Run) -> Result<Job, SimError> {
    let module = Module::parse(&files::read_text(&r.ptx)?)?;
    let spec = LaunchSpec::parse(&files::read_text(&r.launch)?)?;
    let kernel = entry(&module, r.entry.as_deref().or(spec.kernel.as_deref()))?;
    let base = r.launch.parent().unwrap_or(Path::new("."));
    let sim = Sim::with_memory(module, r.memory.bytes()?);
    let prepared = spec.prepare_in(sim, &kernel, base)?;
    r.check_outputs(&spec, base)?;
    let program = prepared.sim.program(&kernel)?;
    let expectations = spec.expectations(&prepared, base)?;
    Ok(Job {
        program,
        spec,
        prepared,
        expectations,
    })
}

fn options(r: &Run, policy: Policy, timing: Timing) -> Options {
    Options {
        policy,
        timing,
        budget: r.budget,
        resident: r.resident,
        sms: r.sms,
        profile: r.profile,
        approximations: r.approximations,
        sums: r.sums,
        allow: r.allow.iter().fold(Allowed::NONE, |all, r| all.with(*r)),
        hazards: match r.hazards {
            HazardChecks::Error if r.keep_going => HazardChecks::Warn,
            checks => checks,
        },
        uninitialised: if r.warn_uninitialised || r.keep_going {
            Uninitialised::Warn
        } else {
            Uninitialised::Error
        },
        ..Options::default()
    }
}

/// One run from the beginning: the reports of all its launches, the last one's at the end. The trace is there if it was
/// asked for.
fn once(
    r: &Run,
    job: &Job,
    o: &Options,
) -> (Prepared, Result<Vec<Report>, SimError>, Option<Trace>) {
    let mut p = job.prepared.clone();
    if let Some(count) = r.overlap {
        let on = Multiprocessors {
            count,
            ..Multiprocessors::default()
        };
        let result = p.run_overlapped(o, on);
        return (p, result, None);
    }
    let mut reports = match p.run_before(o) {
        Ok(reports) => reports,
        Err(e) => return (p, Err(e), None),
    };
    let (result, trace) = match r.trace {
        None => (p.sim.run_program(&job.program, &p.launch, o, None), None),
        Some(_) => {
            let (result, trace) = p.sim.run_traced(&job.program, &p.launch, o, r.trace_limit);
            (result, Some(trace))
        }
    };
    let result = result.map(|report| {
        reports.push(report);
        reports
    });
    (p, result, trace)
}

fn write_trace(r: &Run, trace: Option<Trace>) -> Result<(), SimError> {
    let (Some(path), Some(trace)) = (&r.trace, trace) else {
        return Ok(());
    };
    let file = files::create(path, r.existing())?;
    let mut out = std::io::BufWriter::new(file);
    let written = trace.write_chrome(&mut out);
    written
        .and_then(|()| std::io::Write::flush(&mut out))
        .map_err(io_error(path))?;
    if let Some(n) = trace.truncated {
        let path = printable(&path.display().to_string());
        streams::say(&format!("{path}: truncated after {n} events"));
    }
    Ok(())
}

/// Results of all runs together.
#[derive(Default)]
struct Sum {
    counters: Counters,
    warnings: Vec<Violation>,
    dropped: u64,
    notes: Vec<Note>,
    /// Buffers whose contents are not the first run's, and the schedule that showed it.
    differing: Vec<(String, String)>,
    /// Errors of runs that had to end, with their schedules.
    failed: Vec<(SimError, String)>,
}

impl Sum {
    /// Adds the reports of a run's launches. Coverage is the last one's.
    fn add(&mut self, reports: &[Report]) {
        if let Some(report) = reports.last() {
            self.counters.merge(&report.coverage.counters);
        }
        reports.iter().for_each(|report| self.add_findings(report));
    }

    /// Findings by kind.
    fn by_kind(&self) -> Vec<String> {
        let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
        let failed = self.failed.iter().map(|(e, _)| match e {
            SimError::Violation(v) => v.kind.name(),
            SimError::Deadlock(_) => "deadlock",
            _ => "other error",
        });
        let warned = self.warnings.iter().map(|w| (w.kind.name(), 1 + w.more));
        for (kind, n) in warned.chain(failed.map(|kind| (kind, 1))) {
            *kinds.entry(kind).or_default() += n;
        }
        kinds
            .into_iter()
            .map(|(kind, n)| format!("{n} {kind}"))
            .collect()
    }

    fn add_findings(&mut self, report: &Report) {
        self.dropped += report.warnings_dropped;
        for n in &report.notes {
            let same = |m: &Note| (m.relaxation, m.site.line) == (n.relaxation, n.site.line);
            if !self.notes.iter().any(same) {
                self.notes.push(n.clone());
            }
        }
        for w in &report.warnings {
            if self.warnings.contains(w) {
                continue;
            }
            if self.warnings.len() < Report::MAX_WARNINGS {
                self.warnings.push(w.clone());
            } else {
                self.dropped += 1;
            }
        }
    }

    /// Warnings, errors of runs that had to end, and how many there are of each kind.
    fn print_findings(&self) {
        for w in &self.warnings {
            outln!("warning: {w}");
        }
        if self.dropped > 0 {
            outln!("and {} more warnings", self.dropped);
        }
        let mut texts: Vec<(String, &str, usize)> = Vec::new();
        for (error, schedule) in &self.failed {
            let text = error.to_string();
            match texts.iter_mut().find(|(known, ..)| *known == text) {
                Some((.., more)) => *more += 1,
                None => texts.push((text, schedule, 0)),
            }
        }
        for (text, schedule, more) in texts {
            outln!("with {schedule}, and {more} more schedules:\nerror: {text}");
        }
        if !self.failed.is_empty() || !self.warnings.is_empty() {
            outln!("findings: {}", self.by_kind().join(", "));
        }
    }

    fn compare(&mut self, job: &Job, first: &Prepared, now: &Prepared, schedule: &str) {
        for (name, b) in &now.buffers {
            let dumped = job.spec.buffers.get(name).is_some_and(|s| s.dump.is_some());
            let known = self.differing.iter().any(|d| d.0 == *name);
            if dumped && !known && first.sim.download(*b) != now.sim.download(*b) {
                self.differing.push((name.clone(), schedule.to_string()));
            }
        }
    }
}

/// `false` if there are findings that runs went on after.
pub(super) fn command(r: &Run) -> Result<bool, Failure> {
    let job = load(r)?;
    let schedules = Schedules {
        policies: r.policy,
        timings: r.timing,
        seeds: r.seeds,
    };
    let (runs, started) = (schedules.count(), Instant::now());
    let mut sum = Sum::default();
    let mut first: Option<Prepared> = None;
    let mut last = None;
    let progress = Progress::new();
    for (i, (policy, timing)) in schedules.iter().enumerate() {
        let schedule = format!("--policy {policy} --timing {timing}");
        progress.say(|| format!("run {} of {runs}: {schedule}", i + 1));
        let (p, result, trace) = once(r, &job, &options(r, policy, timing));
        let checked = result.and_then(|reports| {
            job.expectations.iter().try_for_each(|e| e.check(&p.sim))?;
            Ok(reports)
        });
        let mut reports = match checked {
            Ok(reports) => reports,
            Err(error) if r.keep_going && i as u64 + 1 < runs => {
                sum.failed.push((error, schedule));
                continue;
            }
            Err(error) => {
                drop(progress);
                sum.print_findings();
                write_trace(r, trace)?;
                return Err(Failure {
                    error,
                    schedule: Some((policy, timing)),
                });
            }
        };
        sum.add(&reports);
        match &first {
            Some(f) => sum.compare(&job, f, &p, &schedule),
            None if runs > 1 => first = Some(p.clone()),
            None => {}
        }
        last = reports.pop().map(|report| (p, report, trace));
    }
    drop(progress);
    let Some((p, mut report, trace)) = last else {
        return Ok(true);
    };
    write_trace(r, trace)?;
    std::fs::create_dir_all(&r.out).map_err(io_error(&r.out))?;
    job.spec.dump(&p, &r.out, r.existing())?;
    report.coverage = sum.counters.summary(&job.program);
    report.warnings.clone_from(&sum.warnings);
    report.warnings_dropped = sum.dropped;
    report.notes.clone_from(&sum.notes);
    let kinds = sum.by_kind();
    let clean = !r.keep_going || kinds.is_empty();
    let seconds = started.elapsed().as_secs_f64();
    if r.json {
        let mut v = json!(report);
        v["runs"] = json!(runs);
        v["seconds"] = json!(seconds);
        v["coverage"]["complete"] = json!(report.coverage.complete());
        let pair =
            |(buffer, schedule): &(String, String)| json!({"buffer": buffer, "schedule": schedule});
        v["differing"] = sum.differing.iter().map(pair).collect();
        v["failed"] = sum
            .failed
            .iter()
            .map(|(e, s)| json!({"error": e.to_string(), "schedule": s}))
            .collect();
        print_json(&v);
        return Ok(clean);
    }
    outln!(
        "{}: {} CTAs, {} warp instructions, {} thread instructions",
        demangled(&report.kernel),
        report.ctas,
        report.warp_instructions,
        report.thread_instructions
    );
    // What strangers' kernels print does nothing to a terminal.
    let hidden = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    for line in report.printed.replace(hidden, "?").lines() {
        outln!("printed: {line}");
    }
    if report.printed_dropped > 0 {
        outln!("and {} more texts were printed", report.printed_dropped);
    }
    sum.print_findings();
    for n in &report.notes {
        outln!("note: {n}");
    }
    for (buffer, schedule) in &sum.differing {
        outln!("warning: buffer {buffer} depends on the schedule: it differs with {schedule}");
    }
    coverage::print(&job.program, &report, runs);
    match runs {
        1 => outln!("1 run: {seconds:.3} s"),
        n if clean => outln!("{n} runs without a violation: {seconds:.3} s"),
        n => outln!("{n} runs: {seconds:.3} s"),
    }
    Ok(clean)
}
