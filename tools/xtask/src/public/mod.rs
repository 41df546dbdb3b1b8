//! `cargo xtask public-kernels`: kernels of public repositories in the simulator, and what is expected of each.

mod cases;
mod compile;
mod document;
mod run;

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;

use self::cases::{Cases, Fault, Kernel, Repository};
use self::compile::Compiler;
use self::run::{Mode, Outcome, Runner};
use crate::cargo::Cargo;
use crate::workspace::Workspace;
use crate::{process, toolchain};

#[derive(Debug, Args)]
pub(crate) struct PublicArgs {
    /// The folder of the repositories, each in a folder by its name
    #[arg(long, value_name = "FOLDER")]
    from: PathBuf,
    /// Only kernels whose names contain this; can be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Plant the listed faults too
    #[arg(long)]
    faults: bool,
    /// Use programs that an earlier call has compiled
    #[arg(long)]
    keep: bool,
    /// Write the tables of tools/ptx-sim/docs/public-kernels.md; kernels and faults that do not run keep their rows
    #[arg(long)]
    update: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The results of a kernel.
#[derive(Debug, Serialize)]
struct Became {
    name: String,
    repository: String,
    /// Runs of each profile and schedule; none where it could not be compiled.
    runs: Vec<run::Run>,
    faults: Vec<Planted>,
    /// Differences from the list.
    differences: Vec<String>,
}

/// The result of a planted fault.
#[derive(Debug, Serialize)]
struct Planted {
    name: String,
    /// The first schedule that noticed, and how; none if none did.
    noticed: Option<run::Run>,
}

pub(crate) fn command(workspace: &Workspace, args: &PublicArgs) -> Result<()> {
    let folder = workspace.root().join("tools/ptx-recorder/public");
    let list = folder.join("kernels.toml");
    let text = std::fs::read_to_string(&list);
    let cases = Cases::parse(&text.with_context(|| format!("cannot read {}", list.display()))?)?;
    let chosen: Vec<&Kernel> = cases
        .kernels
        .iter()
        .filter(|k| args.only.is_empty() || args.only.iter().any(|o| k.name.contains(o.as_str())))
        .collect();
    if chosen.is_empty() {
        bail!("no kernel of {} has such a name", list.display());
    }
    let from = std::path::absolute(&args.from)?;
    let commits = commits(&cases, &from)?;
    let toolchain = toolchain::ensure(workspace)?;
    let cargo = Cargo::new(workspace).with_toolchain(&toolchain);
    process::run(&mut cargo.command(["build", "--release", "--package", "ptx-recorder"]))?;
    let compiler = Compiler::new(workspace, &toolchain, &folder, &from, args.keep)?;
    let runner = Runner::new(workspace.release_dir().join("ptx-record"));
    let mut results = Vec::new();
    for (i, kernel) in chosen.iter().enumerate() {
        let repository = cases.repository(kernel)?;
        let started = Instant::now();
        let result = one(kernel, repository, &compiler, &runner, args.faults)?;
        let seconds = started.elapsed().as_secs();
        let count = chosen.len();
        eprintln!(
            "[{}/{count}] {}: {} ({seconds} s)",
            i + 1,
            kernel.name,
            summary(&result)
        );
        for difference in &result.differences {
            eprintln!("    {difference}");
        }
        results.push(result);
    }
    let different = results.iter().filter(|r| !r.differences.is_empty()).count();
    if args.json {
        let all = serde_json::json!({"commits": commits, "kernels": results});
        println!("{}", serde_json::to_string_pretty(&all)?);
    }
    match different {
        0 => {
            // Tables of what is not expected would call it right.
            if args.update {
                document::update(workspace, &cases, &results)?;
            }
            eprintln!("{} kernels: all as expected", results.len());
            Ok(())
        }
        n => bail!(
            "{n} of {} kernels are not as {} says",
            results.len(),
            list.display()
        ),
    }
}

/// The commits that lie in the folder; one that is not that of the list is said, and is no error.
fn commits(cases: &Cases, from: &std::path::Path) -> Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    for r in &cases.repositories {
        let place = from.join(&r.name);
        let mut git = Command::new("git");
        let output = process::output(git.arg("-C").arg(&place).args(["rev-parse", "HEAD"]))?;
        let here = match output.status.success() {
            true => String::from_utf8_lossy(&output.stdout).trim().to_string(),
            false => "unknown".to_string(),
        };
        if here != r.commit {
            eprintln!(
                "{} is at {here}, the list was made with {}",
                r.name, r.commit
            );
        }
        all.push((r.name.clone(), here));
    }
    Ok(all)
}

fn one(
    kernel: &Kernel,
    repository: &Repository,
    compiler: &Compiler,
    runner: &Runner,
    faults: bool,
) -> Result<Became> {
    let mut result = Became {
        name: kernel.name.clone(),
        repository: repository.name.clone(),
        runs: Vec::new(),
        faults: Vec::new(),
        differences: Vec::new(),
    };
    let program = match compiler.compile(kernel, repository)? {
        Ok(program) => program,
        Err(message) => {
            result
                .differences
                .push(format!("does not compile: {message}"));
            return Ok(result);
        }
    };
    for mode in Mode::ALL {
        let runs = runner.all(&program, kernel, mode)?;
        let expected = kernel.expected(mode);
        result
            .differences
            .extend(run::differences(mode, expected, &runs));
        result.runs.extend(runs);
    }
    if faults {
        for fault in &kernel.faults {
            let noticed = runner.planted(&program, kernel, &fault.name)?;
            result.differences.extend(judge(fault, noticed.as_ref()));
            let name = fault.name.clone();
            result.faults.push(Planted { name, noticed });
        }
    }
    Ok(result)
}

/// Whether a fault was noticed as the list says.
fn judge(fault: &Fault, noticed: Option<&run::Run>) -> Option<String> {
    let how = match noticed.map(|r| &r.outcome) {
        None | Some(Outcome::Right) => "nobody",
        Some(Outcome::Error(message)) if message.contains("has no fault") => "no such fault",
        Some(Outcome::Error(_)) => "check",
        Some(Outcome::Wrong(_)) => "output",
    };
    (how != fault.noticed).then(|| {
        format!(
            "fault {}: noticed by {how}, expected: {}",
            fault.name, fault.noticed
        )
    })
}

fn summary(result: &Became) -> String {
    let mut parts = Vec::new();
    for mode in Mode::ALL {
        let runs: Vec<_> = result.runs.iter().filter(|r| r.mode == mode).collect();
        let right = runs.iter().filter(|r| r.outcome == Outcome::Right).count();
        parts.push(format!("{} {right} of {} right", mode.name(), runs.len()));
    }
    if !result.faults.is_empty() {
        let noticed = result.faults.iter().filter(|f| f.noticed.is_some()).count();
        parts.push(format!(
            "{noticed} of {} faults noticed",
            result.faults.len()
        ));
    }
    match result.differences.is_empty() {
        true => format!("as expected: {}", parts.join(", ")),
        false => format!("NOT AS EXPECTED: {}", parts.join(", ")),
    }
}
