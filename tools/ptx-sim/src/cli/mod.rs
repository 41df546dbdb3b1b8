//! Commands of the program.

/// Prints a line.
macro_rules! outln {
    ($($text:tt)*) => {
        $crate::cli::streams::line(&$crate::cli::printable(&format!($($text)*)))
    };
}

mod bench;
mod coverage;
mod draw;
mod inventory;
mod mutate;
mod progress;
mod replay;
mod run;
mod schedules;
mod streams;

use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ptx_sim::demangle::{demangled, is_called};
use ptx_sim::{Module, Policy, SimError, Timing};
use serde_json::{Value, json};

/// Runs PTX kernels on the CPU and checks what a GPU would not.
///
/// Every memory access is checked for bounds, alignment and initialisation; barriers,
/// warp-synchronous instructions, the ordering of asynchronous operations and deadlocks are checked
/// too. An instruction that is not modelled exactly ends the run with its name: nothing is guessed.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a kernel as a JSON specification says, under one schedule or many.
    ///
    /// The exit status is 0 if every run ended without a violation. Results go to stdout, all else
    /// to stderr.
    #[command(after_long_help = run::HELP)]
    Run(run::Run),
    /// Plants faults in a kernel and tells which of them its launch would notice.
    #[command(after_long_help = mutate::help())]
    Mutate(mutate::Mutate),
    /// Draws a trace that `run --trace` wrote as an SVG picture.
    Draw(draw::Draw),
    /// Replays recorded probes of a GPU: where the simulator differs, and how the GPU adds.
    ///
    /// docs/probes.md describes the files. With --out, writes what the simulator makes of them instead.
    Replay(replay::Replay),
    /// Lists the opcodes of a PTX file and which of them are not executed.
    Inventory(inventory::Inventory),
    /// Measures the simulator's speed: straight-line f32, and an NVFP4 tensor-core tile.
    Bench(bench::Bench),
}

#[derive(clap::Args)]
struct Memory {
    /// MiB that the launch may ask for in all: buffers, variables, and what CTAs that run at once have.
    /// Runs keep up to three copies.
    #[arg(long = "memory", value_name = "MIB", default_value_t = ptx_sim::DEFAULT_MEMORY >> 20)]
    mib: u64,
}

impl Memory {
    fn bytes(&self) -> Result<u64, SimError> {
        let bytes = self.mib.saturating_mul(1 << 20);
        if bytes != ptx_sim::DEFAULT_MEMORY {
            ptx_sim::check_memory(bytes)?;
        }
        Ok(bytes)
    }
}

/// Why a command failed.
#[derive(Debug)]
struct Failure {
    error: SimError,
    /// The schedule to repeat it with.
    schedule: Option<(Policy, Timing)>,
}

impl From<SimError> for Failure {
    fn from(error: SimError) -> Self {
        Self {
            error,
            schedule: None,
        }
    }
}

impl Failure {
    fn json(&self) -> Value {
        let mut v = json!({ "error": self.error.to_string() });
        match &self.error {
            SimError::Violation(x) => v["violation"] = json!(x),
            SimError::Deadlock(x) => v["deadlock"] = json!(x),
            _ => {}
        }
        if let Some((policy, timing)) = self.schedule {
            v["schedule"] = json!({"policy": policy.to_string(), "timing": timing.to_string()});
        }
        v
    }
}

pub(crate) fn main() -> ExitCode {
    let code = match Cli::try_parse() {
        Ok(cli) => run(&cli),
        Err(error) if error.use_stderr() => error.exit(),
        // Help, or the version.
        Err(help) => {
            streams::note(help.print());
            ExitCode::SUCCESS
        }
    };
    match streams::finish() {
        Ok(()) => code,
        Err(why) => {
            streams::say(&format!("error: standard output: {why}"));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> ExitCode {
    let (json, result) = match &cli.command {
        Command::Run(r) => match run::command(r) {
            // The findings are on stdout.
            Ok(false) => return ExitCode::FAILURE,
            other => (r.json, other.map(|_| ())),
        },
        Command::Mutate(m) => match mutate::command(m) {
            // The survivors are on stdout.
            Ok(false) => return ExitCode::FAILURE,
            other => (m.json, other.map(|_| ()).map_err(Failure::from)),
        },
        Command::Draw(d) => (false, draw::command(d).map_err(Failure::from)),
        Command::Replay(r) => (r.json, replay::command(r).map_err(Failure::from)),
        Command::Inventory(i) => (i.json, inventory::command(i).map_err(Failure::from)),
        // The report of a benchmark stands on stdout even where a goal is missed.
        Command::Bench(b) => (false, bench::command(b).map_err(Failure::from)),
    };
    let Err(failure) = result else {
        return ExitCode::SUCCESS;
    };
    if json {
        streams::line(&printable_json(&failure.json().to_string()));
    } else {
        if let Some((policy, timing)) = failure.schedule {
            streams::say(&format!("with --policy {policy} --timing {timing}:"));
        }
        let why = printable(&failure.error.to_string());
        streams::say(&format!("error: {why}"));
    }
    ExitCode::FAILURE
}

/// Text of several lines in which nothing but the ends of lines acts on a terminal: names of buffers and files
/// come from whoever made them.
pub(crate) fn printable(text: &str) -> String {
    let acts = |c: char| c != '\n' && !matches!(c, '\'' | '"' | '\\') && c.escape_debug().len() > 1;
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match acts(c) {
            true => shown.extend(c.escape_debug()),
            false => shown.push(c),
        }
    }
    shown
}

/// JSON that says the same, in which nothing acts on a terminal: such characters stand in its strings alone, where they
/// may be escaped. JSON itself leaves only those below U+0020 to no choice.
pub(crate) fn printable_json(json: &str) -> String {
    let acts = |c: char| c > '~' && c.escape_debug().len() > 1;
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        match acts(c) {
            true => {
                let units = c.encode_utf16(&mut [0; 2]).to_vec();
                shown.extend(units.iter().map(|unit| format!("\\u{unit:04x}")));
            }
            false => shown.push(c),
        }
    }
    shown
}

/// The kernel that is asked for, or the only one.
fn entry(module: &Module, asked: Option<&str>) -> Result<String, SimError> {
    let names: Vec<&str> = module.entries().collect();
    let meant: Vec<&str> = match asked {
        // Another kernel may be called so without its parameters.
        Some(asked) if names.contains(&asked) => vec![asked],
        Some(asked) => {
            let is_meant = |name: &&str| is_called(name, asked);
            names.iter().copied().filter(is_meant).collect()
        }
        None => names.clone(),
    };
    let why = match (asked, meant.as_slice()) {
        (_, [one]) => return Ok((*one).to_string()),
        // The file, or the launch, says what is wrong.
        (Some(asked), []) if names.is_empty() => return Ok(asked.to_string()),
        (Some(asked), []) => format!("no kernel is called {asked}; there are"),
        (Some(asked), _) => format!("several kernels are called {asked}; say which one of"),
        (None, _) => "--entry is needed, one of".into(),
    };
    let names = if meant.is_empty() { names } else { meant };
    let names: Vec<String> = names.into_iter().map(demangled).collect();
    Err(SimError::Launch(format!("{why}: {}", names.join("; "))))
}

fn io_error(path: &Path) -> impl Fn(std::io::Error) -> SimError + '_ {
    |e| SimError::Io {
        path: path.display().to_string(),
        message: e.to_string(),
    }
}

fn print_json(v: &impl serde::Serialize) {
    let text = serde_json::to_string_pretty(v).unwrap_or_default();
    streams::line(&printable_json(&text));
}
