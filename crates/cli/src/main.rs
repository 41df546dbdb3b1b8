//! The `nvfp4-gemv` program: computes, verifies, inspects, loads, quantises, plans, tunes and measures NVFP4 GEMVs.
//!
//! Each subcommand is a file with its arguments and a `run` that returns a [`report::Report`].
//! Results go to stdout, as text or JSON; progress goes to stderr. Exit codes: 0 for success, 1
//! for a failed check or an error, 2 for wrong usage.

mod bench;
mod bus_error;
mod compare;
mod configs;
mod destination;
mod engine;
mod info;
mod inputs;
mod inspect;
#[cfg(feature = "jit")]
mod jit;
mod kernels;
mod layer;
mod load;
mod measure;
mod notes;
mod plan;
mod quantize;
mod report;
mod run;
mod shapes;
mod tune;
mod tuned;
mod verify;

use std::process::ExitCode;

#[cfg(unix)]
use anyhow::Context;
use anyhow::Result;
use clap::{Parser, Subcommand};

use report::{Report, Usage};

/// NVFP4 block-scaled GEMV (y = alpha · W x) on CUDA cores, Blackwell tensor cores and CPUs.
#[derive(Debug, Parser)]
#[command(
    name = "nvfp4-gemv",
    version,
    max_term_width = 100,
    after_help = "Start with `nvfp4-gemv info`, which says what this machine can run and why. Every \
                  command takes --json for scripts. Exit codes: 0 success, 1 a failed check or an \
                  error, 2 wrong usage."
)]
struct Cli {
    /// Print JSON instead of text: one object, or of `tune` one a line
    #[arg(long, global = true, display_order = 900)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Info(info::Args),
    Run(run::Args),
    Verify(verify::Args),
    Inspect(inspect::Args),
    Load(load::Args),
    Quantize(quantize::Args),
    Plan(plan::Args),
    Kernels(kernels::Args),
    Tune(tune::Args),
    Bench(bench::Args),
    Compare(compare::Args),
}

/// Ends the program. An error that quotes arguments quotes them as they may be printed.
fn wrong_usage(error: clap::Error) -> ! {
    let printable = std::env::args_os()
        .map(|argument| nvfp4_gemv_files::printable::text(&argument.to_string_lossy()).to_string());
    // Escaped arguments are wrong in the same way, unless the escaped character was the error.
    let error = Cli::try_parse_from(printable).err().unwrap_or(error);
    let as_json = std::env::args_os().any(|argument| argument == "--json");
    if as_json && error.use_stderr() {
        let text = error.to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
        let report = Report::error(&Usage(text.to_owned()).into(), false, true);
        if let Err(error) = report.print(true) {
            Report::say_unprinted(&error);
        }
        std::process::exit(error.exit_code());
    }
    if error.use_stderr() {
        error.exit();
    }
    // Help, or the version.
    let printed = report::to_stdout(|_| error.print());
    if let Err(error) = &printed {
        Report::say_unprinted(error);
    }
    std::process::exit(printed.is_err().into())
}

/// The arguments of a command, from the words behind its name.
#[cfg(test)]
pub(crate) fn parsed<T: clap::Args>(line: &str) -> T {
    let command = T::augment_args(clap::Command::new("test").no_binary_name(true));
    let matches = command.try_get_matches_from(line.split_whitespace());
    T::from_arg_matches(&matches.unwrap()).unwrap()
}

impl Command {
    fn run(self, json: bool) -> Result<Report> {
        match self {
            Self::Info(args) => info::run(&args),
            Self::Run(args) => run::run(&args),
            Self::Verify(args) => verify::run(&args),
            Self::Inspect(args) => inspect::run(&args, json),
            Self::Load(args) => load::run(&args),
            Self::Quantize(args) => quantize::run(&args),
            Self::Plan(args) => plan::run(&args),
            Self::Kernels(args) => kernels::run(&args),
            Self::Tune(args) => tune::run(&args, json),
            Self::Bench(args) => bench::run(&args),
            Self::Compare(args) => compare::run(&args),
        }
    }

    /// Whether the command, as it was asked for, takes `--path`.
    fn takes_path(&self) -> bool {
        match self {
            Self::Run(_) | Self::Verify(_) | Self::Plan(_) => true,
            Self::Bench(args) => args.takes_path(),
            _ => false,
        }
    }
}

/// Signals that end the program let it remove its temporary files first.
fn handle_signals() -> Result<()> {
    #[cfg(unix)]
    nvfp4_gemv_files::output::remove_temporaries_on_signals().context("cannot handle signals")?;
    Ok(())
}

fn main() -> ExitCode {
    bus_error::report();
    #[cfg(feature = "jit")]
    jit::show_progress();
    let cli = Cli::try_parse().unwrap_or_else(|error| wrong_usage(error));
    let takes_path = cli.command.takes_path();
    let result = handle_signals().and_then(|()| cli.command.run(cli.json));
    let failure = match &result {
        Err(error) if error.is::<Usage>() => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    };
    let report = result.unwrap_or_else(|error| Report::error(&error, takes_path, cli.json));
    match report.print(cli.json) {
        Ok(()) if report.passed => ExitCode::SUCCESS,
        Ok(()) => failure,
        Err(error) => {
            Report::say_unprinted(&error);
            ExitCode::FAILURE
        }
    }
}
