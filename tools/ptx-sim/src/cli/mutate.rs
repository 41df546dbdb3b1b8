//! `ptx-sim mutate`: how well does a launch notice planted faults?

use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use ptx_sim::launch::{LaunchSpec, Prepared};
use ptx_sim::mutate::{
    Finding, Golden, Kernel, Kind, Known, Mutant, Outcome, Score, Trial, campaign, host_mutants,
    schedules,
};
use ptx_sim::{Module, Options, Sim, SimError, files};

use super::{entry, print_json, streams};

/// The long help: the text, then the kinds.
pub(super) fn help() -> String {
    let mut s = HELP.to_string();
    s += "\n\nKinds of faults:\n";
    for k in Kind::ALL {
        s += &format!("  {:24}{}\n", k.name(), k.about());
    }
    s
}

const HELP: &str = "\
Each fault changes one thing: an instruction is left out, moved, or has another operand; or the
host makes another launch or tensor map. The faulty kernel then runs under several policies and
timings, up to the first run that notices: a violation, a hazard, a deadlock, far too many
instructions, or a buffer that differs from what is expected. What survives all of them is either
equivalent to the kernel, or a fault that this launch would not show: then the launch is too
small or its data too regular, or a check is missing.

What is expected is what the kernel itself writes without a fault, in all buffers. With --expect
it is the contents of a file, for the one buffer of the specification with a `dump`, or of a
directory with a file for each such buffer, named as `dump` says.

  ptx-sim mutate --ptx k.ptx --launch k.json --list
  ptx-sim mutate --ptx k.ptx --launch k.json --kinds drop-fence,drop-barrier
  ptx-sim mutate --ptx k.ptx --launch k.json --known equivalent.txt --json

A list of known survivors has entries as --list prints names, with `*` for any text, and behind
each, indented, the reason:

  [equivalent my_kernel]
  drop-alloc `tcgen05.relinquish_alloc_permit*
      One CTA is resident, so that nothing waits for the permit.

The exit status is 1 if a fault survives that no list explains.";

#[derive(clap::Args)]
pub(super) struct Mutate {
    /// The PTX file.
    #[arg(long)]
    ptx: PathBuf,
    /// The kernel, as the PTX names it or as C++ does, with or without its parameters' types and template arguments;
    /// not needed if there is only one.
    #[arg(long)]
    entry: Option<String>,
    /// The launch specification, as for `run`.
    #[arg(long)]
    launch: PathBuf,
    /// The expected content of dumped buffers, a file or a directory; otherwise what the sound kernel writes.
    #[arg(long)]
    expect: Option<PathBuf>,
    /// Kinds of faults, separated by commas; all if not given. Their names are at the end of
    /// `--help`.
    #[arg(long, value_delimiter = ',')]
    kinds: Vec<Kind>,
    /// List of survivors that are known and why.
    #[arg(long)]
    known: Option<PathBuf>,
    /// Print the faults without running them.
    #[arg(long)]
    list: bool,
    /// Seeds of the random policies; each adds three runs of every survivor.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    seeds: u64,
    #[command(flatten)]
    memory: super::Memory,
    /// Faults run at once; as many as there are cores if not given.
    #[arg(long)]
    threads: Option<usize>,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// Whether every survivor is explained.
pub(super) fn command(a: &Mutate) -> Result<bool, SimError> {
    let module = Module::parse(&files::read_text(&a.ptx)?)?;
    let spec = LaunchSpec::parse(&files::read_text(&a.launch)?)?;
    let entry = entry(&module, a.entry.as_deref().or(spec.kernel.as_deref()))?;
    let kernel = Kernel::new(&module, &entry)?;
    let base = a.launch.parent().unwrap_or(Path::new("."));
    let has_others = !spec.before.is_empty();
    let of = if has_others { &module } else { kernel.module() };
    let sim = Sim::with_memory(of.clone(), a.memory.bytes()?);
    let mut prepared = spec.prepare_in(sim, &entry, base)?;
    // No fault is planted in these.
    prepared.run_before(&Options::default())?;
    let known = match &a.known {
        None => Known::default(),
        Some(f) => Known::parse(&files::read_text(f)?).map_err(|e| SimError::Io {
            path: f.display().to_string(),
            message: e.to_string(),
        })?,
    };
    let mut mutants = kernel.mutants();
    mutants.extend(host_mutants(&prepared.launch));
    mutants.retain(|m| a.kinds.is_empty() || a.kinds.contains(&m.kind));
    if a.list {
        list(&mutants, a.json);
        return Ok(true);
    }
    let golden = match &a.expect {
        None => Golden::record(&kernel, prepared)?,
        Some(path) => {
            let want = expected(&spec, &prepared, path)?;
            Golden::expect(prepared, want)?
        }
    };
    let findings = run(a, &kernel, &golden, mutants)?;
    let score = Score::new(&entry, &findings, &known);
    if a.json {
        print_json(&json(&findings, &known, &entry));
    } else {
        table(&score, &findings, &known);
    }
    Ok(score.survived == 0 && score.panicked == 0)
}

fn run(
    a: &Mutate,
    kernel: &Kernel,
    golden: &Golden,
    mutants: Vec<Mutant>,
) -> Result<Vec<Finding>, SimError> {
    let check = |p: &_, o: &_| golden.check(p, o);
    let trials: Vec<Trial<'_>> = schedules(a.seeds)
        .into_iter()
        .map(|(policy, timing)| Trial {
            name: "launch".into(),
            options: Options {
                policy,
                timing,
                timeouts: 50,
                ..Options::default()
            },
            check: &check,
        })
        .collect();
    let (total, done, left) = (mutants.len(), AtomicUsize::new(0), AtomicUsize::new(0));
    let live = std::io::stderr().is_terminal();
    let progress = |_: usize, f: &Finding| {
        let n = done.fetch_add(1, Ordering::Relaxed) + 1;
        if f.outcome == Outcome::Survived {
            left.fetch_add(1, Ordering::Relaxed);
        }
        let survivors = left.load(Ordering::Relaxed);
        if live {
            let _ = write!(
                std::io::stderr(),
                "\r{n} of {total} faults, {survivors} survivors"
            );
        } else if n % 500 == 0 {
            streams::say(&format!("{n} of {total} faults, {survivors} survivors"));
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = a.threads.unwrap_or(cores);
    let findings = campaign(kernel, mutants, &trials, threads, &progress);
    if live {
        streams::say("");
    }
    findings.map_err(|e| SimError::Launch(e.to_string()))
}

/// The contents that `--expect` names, by buffer.
fn expected(
    spec: &LaunchSpec,
    prepared: &Prepared,
    path: &Path,
) -> Result<BTreeMap<String, Vec<u8>>, SimError> {
    let limit = prepared.sim.memory_limit();
    let dumped: Vec<_> = spec
        .buffers
        .iter()
        .filter(|(name, _)| prepared.buffers.contains_key(*name))
        .filter_map(|(name, b)| Some((name, b.dump.as_ref()?)))
        .collect();
    if path.is_dir() {
        let all = dumped
            .into_iter()
            .map(|(name, file)| Ok((name.clone(), files::read_below(path, file, limit)?)));
        return all.collect();
    }
    match dumped.as_slice() {
        [(name, _)] => Ok(BTreeMap::from([(
            (*name).clone(),
            files::read(path, limit)?,
        )])),
        _ => Err(SimError::Launch(format!(
            "{} buffers have a dump, so --expect must be a directory",
            dumped.len()
        ))),
    }
}

fn list(mutants: &[Mutant], json: bool) {
    if json {
        let all: Vec<_> = mutants
            .iter()
            .map(|m| {
                serde_json::json!({
                    "id": m.id(), "kind": m.kind.name(), "line": m.line, "detail": m.detail,
                    "instruction": m.text, "replacement": m.replacement(),
                })
            })
            .collect();
        print_json(&all);
        return;
    }
    for m in mutants {
        outln!("{:6}  {}", m.line, m.id());
    }
}

/// Why a survivor may live.
fn reason<'a>(known: &'a Known, kernel: &'a str, m: &Mutant) -> Option<&'a str> {
    let n = known.of(kernel, m).next()?;
    Some(&known.entries[n].reason)
}

fn json(findings: &[Finding], known: &Known, kernel: &str) -> serde_json::Value {
    let all: Vec<_> = findings
        .iter()
        .map(|f| {
            let mut v = serde_json::json!({
                "id": f.mutant.id(), "kind": f.mutant.kind.name(), "line": f.mutant.line,
                "instruction": f.mutant.text,
            });
            match &f.outcome {
                Outcome::Caught { by, trial, message } => {
                    v["outcome"] = "caught".into();
                    v["by"] = by.name().into();
                    v["trial"] = (*trial).into();
                    v["message"] = message.as_str().into();
                }
                Outcome::Survived => {
                    v["outcome"] = "survived".into();
                    v["reason"] = serde_json::json!(reason(known, kernel, &f.mutant));
                }
                Outcome::Unreached => v["outcome"] = "not reached".into(),
                Outcome::Panicked(m) => {
                    v["outcome"] = "panicked".into();
                    v["message"] = m.as_str().into();
                }
            }
            v
        })
        .collect();
    all.into()
}

fn table(score: &Score, findings: &[Finding], known: &Known) {
    outln!(
        "{:24}{:>8}{:>8}{:>8}{:>10}",
        "kind",
        "faults",
        "caught",
        "known",
        "survived"
    );
    for (kind, [all, caught, explained, survived]) in &score.kinds {
        outln!("{kind:24}{all:8}{caught:8}{explained:8}{survived:10}");
    }
    outln!("{score}");
    for f in findings {
        let what = match &f.outcome {
            Outcome::Survived if reason(known, &score.kernel, &f.mutant).is_none() => "survived",
            Outcome::Panicked(_) => "panicked",
            _ => continue,
        };
        outln!("{what}  {}", f.mutant);
        for r in f.mutant.replacement() {
            outln!("          now {r}");
        }
    }
    let lines: BTreeSet<u32> = findings
        .iter()
        .filter(|f| f.outcome == Outcome::Unreached)
        .map(|f| f.mutant.line)
        .collect();
    if !lines.is_empty() {
        outln!(
            "not reached by this launch: {} lines with faults, the first is line {}",
            lines.len(),
            lines.first().copied().unwrap_or(0)
        );
    }
}
