//! `cargo xtask fuzz`: builds the targets under `tools/fuzz/` with libFuzzer and runs them.
//!
//! libFuzzer needs no nightly compiler: its instrumentation is a pass of LLVM, which a stable compiler can
//! be told to run. Only sanitizers are nightly's, and `cargo fuzz run NAME` uses them on the same targets.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::cargo::Cargo;
use crate::process;
use crate::workspace::Workspace;

#[derive(Debug, Args)]
pub(crate) struct FuzzArgs {
    /// Targets to run; without any, all of them
    targets: Vec<String>,
    /// How long to run each target
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Where the random choices begin; 0 takes another seed each time and prints it
    #[arg(long, default_value_t = 1)]
    seed: u32,
    /// Run one target on this input only, as often as a failure said
    #[arg(long, value_name = "FILE", requires = "targets")]
    replay: Option<PathBuf>,
}

/// Flags of cargo-fuzz, except for the sanitizer: counters at every edge, and the operands of comparisons.
const INSTRUMENTATION: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// The target that takes words and inputs of the simulator's own tests, too.
const PTX: &str = "ptx";

/// An input that takes longer than this is a hang. Ordinary ones take milliseconds; the rest is for
/// machines that are slow or busy.
const HANG_SECONDS: u32 = 60;
/// Address space of a target, in MiB. A parser that allocates what an input says fails here.
const MEMORY_MIB: u64 = 2048;
/// Longest input, in bytes.
const LONGEST: u32 = 16384;

pub(crate) fn command(workspace: &Workspace, args: &FuzzArgs) -> Result<()> {
    let source = workspace.root().join("tools/fuzz");
    let all = targets(&source)?;
    if let Some(unknown) = args.targets.iter().find(|target| !all.contains(target)) {
        let all = all.join(", ");
        bail!("there is no target {unknown:?}; the targets are {all}");
    }
    let chosen = match args.targets.is_empty() {
        true => &all,
        false => &args.targets,
    };
    if let Some(input) = &args.replay {
        ensure!(chosen.len() == 1, "--replay takes one target");
        ensure!(input.is_file(), "{} is not a file", input.display());
    }
    let programs = build(workspace, chosen)?;
    let mut failed = Vec::new();
    for (target, program) in chosen.iter().zip(programs) {
        let run = Run {
            target,
            program: &program,
            source: &source,
            work: &workspace.folder("fuzz").join(target),
        };
        let passed = match &args.replay {
            Some(input) => run.replay(input)?,
            None => run.search(args.seconds, args.seed)?,
        };
        if !passed {
            failed.push(target.as_str());
        }
    }
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// A target is a file in `fuzz_targets`.
fn targets(source: &Path) -> Result<Vec<String>> {
    let directory = source.join("fuzz_targets");
    let mut names = Vec::new();
    for entry in
        fs::read_dir(&directory).with_context(|| format!("reading {}", directory.display()))?
    {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs")
            && let Some(name) = path.file_stem().and_then(|name| name.to_str())
        {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Builds targets and returns their programs. The instrumentation is for them only, not for build scripts
/// and macros, which is why the target triple is named.
fn build(workspace: &Workspace, chosen: &[String]) -> Result<Vec<PathBuf>> {
    let triple = process::host_triple()?;
    let cargo = Cargo::new(workspace)
        .env("RUSTFLAGS", INSTRUMENTATION)
        // Compiled faster, and fast enough.
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        // Overflow and failed assertions are failures.
        .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true")
        .env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "line-tables-only");
    let package = ["--release", "--locked", "--package", "nvfp4-gemv-fuzz"];
    let one = |bin: &String| {
        cargo.executable(&[&package[..], &["--target", &triple, "--bin", bin]].concat())
    };
    chosen.iter().map(one).collect()
}

struct Run<'a> {
    target: &'a str,
    program: &'a Path,
    /// The directory of the targets and the committed corpus.
    source: &'a Path,
    /// The folder for this target's findings.
    work: &'a Path,
}

impl Run<'_> {
    /// The target, with a limit on its memory and a directory for its files.
    fn program(&self) -> Result<Command> {
        let scratch = self.work.join("tmp");
        // libFuzzer ends a process without cleaning up after it.
        let _ = fs::remove_dir_all(&scratch);
        fs::create_dir_all(&scratch).with_context(|| format!("making {}", scratch.display()))?;
        let mut command = Command::new("sh");
        command
            .args(["-c", "ulimit -v \"$1\" && shift && exec \"$@\"", "sh"])
            .arg((MEMORY_MIB << 10).to_string())
            .arg(self.program)
            .arg(format!("-timeout={HANG_SECONDS}"))
            .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
            .env("TMPDIR", scratch)
            .env("RUST_BACKTRACE", "1");
        Ok(command)
    }

    fn replay(&self, input: &Path) -> Result<bool> {
        let mut command = self.program()?;
        command.arg(input);
        let status = command.status().with_context(|| process::line(&command))?;
        println!("{}: {status}", self.target);
        Ok(status.success())
    }

    /// Runs the corpus, then mutations of it. Inputs that were found before are tried again and added to.
    fn search(&self, seconds: u32, seed: u32) -> Result<bool> {
        let found = self.work.join("corpus");
        let failures = self.work.join("failures");
        for directory in [&found, &failures] {
            fs::create_dir_all(directory)
                .with_context(|| format!("making {}", directory.display()))?;
        }
        let mut prefix = OsString::from("-artifact_prefix=");
        prefix.push(failures.join("")); // with a slash at its end
        let mut dictionary = OsString::from("-dict=");
        dictionary.push(self.work.join("dict"));
        let words = words(self.target, self.source)?;
        fs::write(self.work.join("dict"), words).context("writing the dictionary")?;
        let mut command = self.program()?;
        command
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-seed={seed}"))
            .arg(format!("-max_len={LONGEST}"))
            .arg("-print_final_stats=1")
            .args([prefix, dictionary])
            .arg(&found)
            .arg(self.source.join("corpus").join(self.target));
        if self.target == PTX {
            // Whole kernels, to begin with.
            command.arg(self.source.join("../ptx-sim/conformance/ptx"));
        }
        let output = process::output(&mut command)?;
        let log = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            println!("{:12} {}", self.target, summary(&log));
            return Ok(true);
        }
        eprintln!("{}", process::tail(&log, 100));
        match saved_input(&log) {
            Some(input) => eprintln!(
                "{}: failed with {input}\nto repeat it: cargo xtask fuzz {} --replay {input}",
                self.target, self.target
            ),
            None => {
                let line = process::line(&command);
                eprintln!("{}: {} from {line}", self.target, output.status);
            }
        }
        Ok(false)
    }
}

/// The words of a target's mutations: those of its dictionary, and for PTX the simulator's list of opcodes, whole and in
/// parts.
fn words(target: &str, source: &Path) -> Result<String> {
    let read = |file: PathBuf| {
        let text = fs::read_to_string(&file);
        text.with_context(|| format!("reading {}", file.display()))
    };
    let mut words = read(source.join("dict").join(format!("{target}.dict")))?;
    if target == PTX {
        let list = read(source.join("../ptx-sim/tests/data/opcodes.txt"))?;
        let lines = list.lines().filter(|line| !line.starts_with('#'));
        let mut all = BTreeSet::new();
        for opcode in lines.filter_map(|line| line.split_whitespace().nth(1)) {
            all.insert(format!("\"{opcode}\"\n"));
            let modifiers = opcode.split('.').skip(1);
            all.extend(modifiers.map(|modifier| format!("\".{modifier}\"\n")));
        }
        words.extend(all);
    }
    Ok(words)
}

/// Inputs and covered edges, from the last status line and the final statistics.
fn summary(log: &str) -> String {
    let after = |name: &str| {
        log.lines()
            .rev()
            .find_map(|line| line.split_once(name))
            .and_then(|(_, rest)| rest.split_whitespace().next())
            .unwrap_or("?")
    };
    format!(
        "{:>9} inputs, {:>6} edges, {:>4} MiB",
        after("stat::number_of_executed_units:"),
        after("cov:"),
        after("stat::peak_rss_mb:")
    )
}

/// The path that libFuzzer wrote the failing input to.
fn saved_input(log: &str) -> Option<&str> {
    log.lines()
        .find_map(|line| line.split_once("Test unit written to "))
        .map(|(_, path)| path.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_understood() {
        let log = "#9\tNEW    cov: 812 ft: 1 corp: 2/4b\n#16\tDONE   cov: 823 ft: 9 corp: 3/7b\n\
                   stat::number_of_executed_units: 16\nstat::peak_rss_mb:              27\n";
        assert_eq!(summary(log), "       16 inputs,    823 edges,   27 MiB");
        let log = "artifact_prefix='/w/'; Test unit written to /w/crash-1f\nBase64: AA==";
        assert_eq!(saved_input(log), Some("/w/crash-1f"));
        assert_eq!(saved_input("no"), None);
    }

    /// Each target is a program of the package, with a corpus and a dictionary.
    #[test]
    fn targets_are_complete() {
        let source = Workspace::locate().unwrap().root().join("tools/fuzz");
        let manifest = fs::read_to_string(source.join("Cargo.toml")).unwrap();
        let all = targets(&source).unwrap();
        assert!(all.len() >= 6, "{all:?}");
        for target in all {
            let path = format!("path = \"fuzz_targets/{target}.rs\"");
            assert!(manifest.contains(&path), "{target} is not in the manifest");
            let inputs = fs::read_dir(source.join("corpus").join(&target));
            assert!(inputs.unwrap().count() > 1);
            let words = words(&target, &source).unwrap();
            if target == PTX {
                let all = ["\"abs.f32\"\n", "\".cta_group::2\"\n", "\"%laneid\"\n"];
                crate::testing::contains(&words, &all);
            }
        }
    }
}
