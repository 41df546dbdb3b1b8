//! The `mma-explorer` program: lists matrix instructions, compiles them, checks what came out, and measures it.
//!
//! Results go to stdout, as text or JSON; progress goes to stderr. Exit codes: 0 for success, 1 for a failed check or
//! an error, 2 for wrong usage.

mod cli;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use mma_explorer::cache::Cache;
use mma_explorer::device::Device;
use mma_explorer::nvrtc;
use nvfp4_gemv_files::output::stdout_was_closed;
use nvfp4_gemv_files::printable;

use cli::Report;

/// Every matrix instruction of NVIDIA GPUs: listed, compiled at run time, simulated, measured.
#[derive(Debug, Parser)]
#[command(
    name = "mma-explorer",
    version,
    max_term_width = 100,
    after_help = "Without a command: on a machine with a GPU `run --size 4096`, which measures all of its variants in \
                  minutes; on others `check --arch 90a`: a table of every variant of an H200, with the machine \
                  instruction that it becomes, and whether a matrix product with it is exact in the simulator. \
                  `cargo xtask toolchain --nvrtc` installs what compiles."
)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Args)]
struct Common {
    /// Print one JSON object instead of text
    #[arg(long, global = true, display_order = 900)]
    json: bool,
    /// Compile everything, and keep nothing on disk
    #[arg(long, global = true, display_order = 901)]
    no_cache: bool,
}

impl Common {
    fn cache(&self) -> Cache {
        if self.no_cache {
            Cache::none()
        } else {
            Cache::of_user(&nvrtc::NAMES)
        }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    Info(cli::info::Args),
    List(cli::list::Args),
    Compile(cli::compile::Args),
    Check(cli::check::Args),
    Run(cli::run::Args),
    Sweep(cli::sweep::Args),
    Report(cli::report::Args),
}

/// The command that runs where nothing was asked for.
fn usual() -> Command {
    let args = match Device::open(0) {
        Ok(_) => MEASURE,
        Err(error) => {
            eprintln!("note: nothing is measured: {error}");
            CHECK
        }
    };
    Cli::parse_from(args).command.expect("there is one")
}

/// The commands of [`usual`].
const MEASURE: &[&str] = &["mma-explorer", "run", "--size", "4096"];
const CHECK: &[&str] = &["mma-explorer", "check", "--arch", "90a"];

fn main() -> ExitCode {
    let cli = Cli::parse();
    let cache = cli.common.cache();
    let result: Result<Report> = match &cli.command.unwrap_or_else(usual) {
        Command::Info(args) => cli::info::run(args, &cache),
        Command::List(args) => cli::list::run(args),
        Command::Compile(args) => cli::compile::run(args, &cache),
        Command::Check(args) => cli::check::run(args, &cache),
        Command::Run(args) => cli::run::run(args, &cache),
        Command::Sweep(args) => cli::sweep::run(args, &cache),
        Command::Report(args) => cli::report::run(args),
    };
    let report = result.unwrap_or_else(|error| Report::error(&error, cli.common.json));
    let shown = match cli.common.json {
        true => format!("{}\n", printable::json(&format!("{:#}", report.json))),
        false => report.text,
    };
    let mut out = io::stdout().lock();
    let mut print = || match stdout_was_closed() {
        true => Err(io::Error::other("it was closed when this program started")),
        false => out.write_all(shown.as_bytes()).and_then(|()| out.flush()),
    };
    match print() {
        // A reader that has gone away (`| head`) is no error.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let _ = writeln!(io::stderr(), "error: standard output: {error}");
            ExitCode::FAILURE
        }
        _ if report.passed => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn usual_commands_are_commands() {
        let command = |args: &[&str]| Cli::parse_from(args).command;
        assert!(matches!(command(MEASURE), Some(Command::Run(_))));
        assert!(matches!(command(CHECK), Some(Command::Check(_))));
    }
}
