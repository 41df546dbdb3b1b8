//! Checks that CI runs beside the tests. Every check runs, also after one has failed.

pub(crate) mod bindings;
mod compat;
mod docs;
mod examples;
mod no_compiler;
mod package;
mod record;
mod simulator;
mod workflows;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::cargo::Cargo;
use crate::process;
use crate::toolchain;
use crate::workspace::Workspace;

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Checks to run; without any, all of them
    #[arg(value_enum)]
    checks: Vec<Check>,
    /// Skip these checks
    #[arg(long, value_enum)]
    skip: Vec<Check>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Check {
    /// cargo fmt --check
    Fmt,
    /// clippy without a warning: all targets of the workspace, and library and program with fewer features
    Clippy,
    /// Documentation without a warning, also without features
    Doc,
    /// Documentation as docs.rs builds it: DOCS_RS set, no nvcc, what needs feature cuda marked as such
    DocsRs,
    /// The examples compile and run; where there is no GPU, those that need one say so
    Examples,
    /// Library and program without CUDA build where there is neither nvcc nor a C or C++ compiler, and a build with
    /// CUDA says so first
    NoCompiler,
    /// The published packages: small, and library, tests, benches and program compile from them alone
    Package,
    /// .github/workflows: actions by commit, --locked, least permissions, no credentials left behind
    Workflows,
    /// src/ffi.rs and src/kernel/params.rs are what bindgen makes of csrc
    Bindings,
    /// What tests/recorded/gpu.json says of tests on GPUs: that none failed, and which folders have changed since
    Record,
    /// Long trials, optimised: conformance kernels with 200 seeds, all configs of the crate's kernels, all planted
    /// faults, and what NVRTC makes for every GPU
    Simulator,
    /// A small language model answers with NVFP4 weights, and as its dense reference does (fetches it: 93 MB)
    Chat,
    /// What a call that is not prepared takes of the host, in instructions of an optimised build
    Instructions,
    /// The crate compiles in one graph with candle-core and candle's features of cudarc
    Compat,
    /// The same with candle's own kernels, and the modules for candle on CUDA (compiles the kernels: minutes)
    CompatCuda,
}

/// The surroundings that a check works with.
#[derive(Debug)]
struct Context<'a> {
    workspace: &'a Workspace,
    /// Cargo in the repository, with the toolchain in its environment.
    cargo: Cargo,
}

impl Context<'_> {
    /// Cargo for checks that only read Rust code.
    fn cargo_without_kernels(&self) -> Cargo {
        self.cargo.clone().env("NVFP4_GEMV_NO_KERNELS", "1")
    }
}

pub(crate) fn command(workspace: &Workspace, args: &CheckArgs) -> Result<()> {
    let toolchain = toolchain::ensure(workspace)?;
    let context = Context {
        workspace,
        cargo: Cargo::new(workspace).with_toolchain(&toolchain),
    };
    let chosen: Vec<Check> = Check::value_variants()
        .iter()
        .copied()
        .filter(|check| args.checks.is_empty() || args.checks.contains(check))
        .filter(|check| !args.skip.contains(check))
        .collect();
    if chosen.is_empty() {
        bail!("no check is left to run");
    }
    let mut results = Vec::new();
    for check in chosen {
        eprintln!("\n== check {}", check.name());
        let start = Instant::now();
        let outcome = check.run(&context);
        if let Err(error) = &outcome {
            eprintln!("error: {error:#}");
        }
        results.push((check, start.elapsed(), outcome.is_ok()));
    }
    summarise(&results)
}

impl Check {
    fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn run(self, context: &Context<'_>) -> Result<()> {
        match self {
            Self::Fmt => context.cargo.run(["fmt", "--all", "--", "--check"]),
            Self::Clippy => clippy(context),
            Self::Doc => docs::check(context),
            Self::DocsRs => docs::check_as_docs_rs(context),
            Self::Examples => examples::check(context),
            Self::NoCompiler => no_compiler::check(context),
            Self::Package => package::check(context.workspace),
            Self::Workflows => workflows::check(context.workspace),
            Self::Bindings => bindings::check(context.workspace),
            Self::Record => record::check(context.workspace),
            Self::Simulator => simulator::check(context),
            Self::Chat => chat(context),
            Self::Instructions => {
                let test = ["test", "--release", "--package", "nvfp4-gemv-cli"];
                let counted = ["--test", "instructions", "--", "--nocapture"];
                context.cargo.run([test, counted].concat())
            }
            Self::Compat => compat::check(context, false),
            Self::CompatCuda => compat::check(context, true),
        }
    }
}

/// The workspace's packages as cargo knows them: their targets, and their own metadata.
fn packages(cargo: &Cargo) -> Result<Vec<Value>> {
    let mut command = cargo.command(["metadata", "--no-deps", "--format-version", "1"]);
    let mut metadata: Value =
        serde_json::from_str(&process::stdout(&mut command)?).context("cargo metadata")?;
    match metadata["packages"].take() {
        Value::Array(packages) => Ok(packages),
        _ => bail!("cargo metadata: no packages"),
    }
}

/// The library's package.
fn library(cargo: &Cargo) -> Result<Value> {
    let mut packages = packages(cargo)?.into_iter();
    let library = packages.find(|package| package["name"] == "nvfp4-gemv");
    library.context("cargo metadata: no package nvfp4-gemv")
}

fn clippy(context: &Context<'_>) -> Result<()> {
    let deny = ["--", "-D", "warnings"];
    let whole = ["clippy", "--all-targets", "--workspace"];
    context.cargo.run([&whole[..], &deny].concat())?;
    // Each set of features would compile all kernels again.
    let cargo = context.cargo_without_kernels();
    let clippy = |arguments: &[&str]| cargo.run([&["clippy"], arguments, &deny].concat());
    let without = |package| ["--no-default-features", "--package", package];
    let program = without("nvfp4-gemv-cli");
    clippy(&[&["--all-targets"], &program[..]].concat())?;
    let jit = ["--features", "jit"];
    clippy(&[&["--all-targets"], &program[..], &jit].concat())?;
    let library = without("nvfp4-gemv");
    clippy(&[&["--all-targets"], &library[..], &crate::test::JIT_FEATURES].concat())?;
    // Alone: its feature would be that of all.
    let speaks = ["--package", "nvfp4-gemv-llama", "--features", "cuda"];
    clippy(&[&["--all-targets"], &speaks[..]].concat())?;
    let parallel = without("nvfp4-gemv-parallel");
    clippy(&[&["--all-targets"], &parallel[..]].concat())?;
    // Not the tests: those of the repository bring features that they need. `package` checks what is published.
    for features in ["", "device", "cuda", "jit", "checkpoint", "tune"] {
        let only = ["--lib", "--features", features];
        clippy(&[&without("nvfp4-gemv")[..], &only].concat())?;
    }
    Ok(())
}

fn chat(context: &Context<'_>) -> Result<()> {
    let gguf = crate::toolchain::fetch_model(context.workspace)?;
    // An earlier quantiser's.
    let quantised = context.workspace.folder(crate::QUANTISED);
    if quantised.is_dir() {
        std::fs::remove_dir_all(quantised)?;
    }
    let answer = |arithmetic: &str| {
        let mut talk = crate::talk(context.workspace, &gguf)?;
        talk.args([
            "What is the capital of France?",
            "--tokens",
            "40",
            "--arithmetic",
            arithmetic,
        ]);
        process::stdout(&mut talk)
    };
    let (answer, expected) = (answer("nvfp4")?, answer("reference")?);
    eprintln!("{}", answer.trim());
    if answer != expected {
        bail!("its dense reference says: {}", expected.trim());
    }
    match answer.contains("Paris") {
        true => Ok(()),
        false => bail!("the model has forgotten its geography"),
    }
}

fn summarise(results: &[(Check, Duration, bool)]) -> Result<()> {
    eprintln!("\n== summary");
    for (check, time, passed) in results {
        let verdict = if *passed { "ok" } else { "FAILED" };
        eprintln!(
            "{:12} {verdict:6} {:6.1} s",
            check.name(),
            time.as_secs_f64()
        );
    }
    let failed = results.iter().filter(|(_, _, passed)| !passed);
    let failed: Vec<String> = failed.map(|(check, _, _)| check.name()).collect();
    if !failed.is_empty() {
        bail!(
            "{} of {} checks failed; to repeat: cargo xtask check {}",
            failed.len(),
            results.len(),
            failed.join(" ")
        );
    }
    Ok(())
}
