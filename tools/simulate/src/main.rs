//! `nvfp4-gemv-simulate`: the second half of `cargo xtask run --simulate`, and pictures of what warps do.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use nvfp4_gemv::checkpoint::Checkpoint;
use nvfp4_gemv::kernel::Tcgen05Config;
use nvfp4_gemv_files::printable;
use nvfp4_gemv_simulate::layer::{Difference, Problem, Run};
use nvfp4_gemv_simulate::warps::Drawn;
use nvfp4_gemv_simulate::{ptx, schedules, target};
use ptx_sim::{Policy, SimError, Timing};
use serde_json::{Value, json};

/// The seed of random schedules.
const SEED: u64 = 1;

/// Executes the tensor cores' kernel for the first 128 rows of a layer on the CPU, and compares it with the CPU path
///
/// The PTX of gemv_tcgen05 runs in ptx-sim under its own launch plan, once for every combination of who runs next
/// (in turn, at random, one warp starved) and when asynchronous operations complete (at once, late, at random).
#[derive(Debug, Parser)]
#[command(
    max_term_width = 100,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
struct Cli {
    #[command(flatten)]
    layer: Option<Args>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Draws what the warps of a CTA do while the kernel computes a small problem
    ///
    /// The kernel's PTX runs in ptx-sim. The picture shows simulated steps, not time on hardware.
    Picture {
        /// The kernel
        #[arg(long)]
        kernel: Drawn,
        /// Where the picture goes: an .svg file
        #[arg(long, value_name = "F")]
        out: PathBuf,
    },
}

/// The part of a checkpoint that is simulated.
#[derive(Debug, clap::Args)]
struct Args {
    /// Checkpoint: a .safetensors file, its index, or a directory
    #[arg(long, value_name = "F")]
    checkpoint: PathBuf,
    /// The layer's name, without `.weight`
    #[arg(long, value_name = "PREFIX")]
    layer: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Where the picture goes [default: simulate in the folder of what is built]
    #[arg(long, value_name = "FOLDER")]
    files: Option<PathBuf>,
}

/// Sums over all runs.
#[derive(Debug, Default)]
struct Outcome {
    runs: usize,
    warp_instructions: u64,
    thread_instructions: u64,
    /// The largest one, and the element that is closest to its bound.
    difference: Difference,
    broken: Option<Broken>,
}

/// A run that did what the ISA does not allow, or did not end.
#[derive(Debug)]
struct Broken {
    config: Tcgen05Config,
    schedule: String,
    error: SimError,
}

impl Outcome {
    fn add(&mut self, run: &Run) {
        self.runs += 1;
        self.warp_instructions += run.report.warp_instructions;
        self.thread_instructions += run.report.thread_instructions;
        let largest = self.difference.largest.max(run.difference.largest);
        if run.difference.share >= self.difference.share {
            self.difference = run.difference;
        }
        self.difference.largest = largest;
    }

    fn passed(&self) -> bool {
        self.broken.is_none() && self.difference.share <= 1.0
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let json = cli.layer.as_ref().is_some_and(|args| args.json);
    let done = match (&cli.command, &cli.layer) {
        (Some(Command::Picture { kernel, out }), _) => draw(*kernel, out).map(|()| true),
        (None, Some(args)) => run(args),
        (None, None) => Err(anyhow!("--checkpoint and --layer are required")),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let message = format!("{error:#}");
            match json {
                true => drop(print(&as_json(&json!({ "error": message })))),
                false => eprintln!("error: {}", printable::text(&message)),
            }
            ExitCode::FAILURE
        }
    }
}

/// Without nvcc there is no PTX.
fn need_compiler() -> Result<()> {
    match ptx::missing() {
        Some(why) => bail!(
            "the kernel is compiled to PTX by nvcc: {why}; `cargo xtask run --simulate` installs one"
        ),
        None => Ok(()),
    }
}

/// Writes the picture of a kernel's warps.
fn draw(kernel: Drawn, out: &Path) -> Result<()> {
    need_compiler()?;
    fs::write(out, kernel.picture()?).with_context(|| format!("cannot write {}", out.display()))
}

/// Simulates, prints, and says whether all was right.
fn run(args: &Args) -> Result<bool> {
    need_compiler()?;
    let checkpoint = Checkpoint::open(&args.checkpoint)?;
    let layer = checkpoint.layer(&args.layer)?;
    for note in checkpoint.notes().iter().chain(layer.notes()) {
        // Nothing can be done where stderr is closed.
        let _ = writeln!(io::stderr(), "note: {note}");
    }
    let problem = Problem::new(&checkpoint, &layer)?;
    let configs = problem.configs()?;
    let outcome = simulate(&problem, &configs)?;
    let picture = match &outcome.broken {
        None => Some(write_picture(&problem, &configs, args)?),
        Some(_) => None,
    };
    let shown = match args.json {
        true => as_json(&to_json(&problem, &configs, &outcome, picture.as_deref())),
        false => to_text(&problem, &configs, &outcome, picture.as_deref()),
    };
    print(&shown)?;
    Ok(outcome.passed())
}

fn as_json(value: &Value) -> String {
    format!("{}\n", printable::json(&format!("{value:#}")))
}

/// A reader that has gone away is no error.
fn print(shown: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(shown.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("standard output")
        }
        _ => Ok(()),
    }
}

/// Runs every config under every schedule, up to the first that breaks a rule.
fn simulate(problem: &Problem, configs: &[Tcgen05Config]) -> Result<Outcome> {
    let schedules = schedules::schedules(SEED);
    let bar = ProgressBar::new((configs.len() * schedules.len()) as u64);
    bar.set_style(ProgressStyle::with_template(
        "simulating {bar:30} {pos}/{len} {wide_msg}",
    )?);
    // Compiling the kernel comes first, and takes seconds.
    bar.set_message("nvcc makes PTX of gemv_tcgen05");
    bar.enable_steady_tick(Duration::from_millis(200));
    let mut outcome = Outcome::default();
    for &config in configs {
        let mut bits = None;
        for options in &schedules {
            let schedule = format!("policy {}, timing {}", options.policy, options.timing);
            let run = match problem.run(config, options) {
                Ok(run) => run,
                Err(error) => {
                    outcome.broken = Some(Broken {
                        config,
                        schedule,
                        error: error.downcast()?,
                    });
                    return Ok(outcome);
                }
            };
            let of_run: Vec<u32> = run.y.iter().map(|y| y.to_bits()).collect();
            if *bits.get_or_insert_with(|| of_run.clone()) != of_run {
                bail!("{}: other bits under {schedule}", fields(config));
            }
            outcome.add(&run);
            bar.inc(1);
            bar.set_message(format!("{}, {schedule}", fields(config)));
        }
    }
    bar.finish_and_clear();
    Ok(outcome)
}

/// Draws the last config.
fn write_picture(problem: &Problem, configs: &[Tcgen05Config], args: &Args) -> Result<PathBuf> {
    let config = *configs.last().context("a config")?;
    let svg = problem.picture(config, &schedules::options(Policy::Fair, Timing::Random))?;
    let folder = match &args.files {
        Some(folder) => folder.clone(),
        None => target().join("simulate"),
    };
    let file = folder.join("pipeline.svg");
    fs::create_dir_all(&folder)
        .and_then(|()| fs::write(&file, svg))
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

fn to_text(
    problem: &Problem,
    configs: &[Tcgen05Config],
    outcome: &Outcome,
    picture: Option<&Path>,
) -> String {
    let (shape, difference) = (problem.shape(), &outcome.difference);
    let mut text = format!(
        "simulated   the first {} rows, by the tensor cores' kernel: gemv_tcgen05, PTX for sm_{} by nvcc {}\n\
         configs     {}\n\
         executed    {} instructions of threads, {} of warps: {} runs, each config under {} schedules\n",
        shape.m(),
        ptx::BLACKWELL,
        ptx::compiler(),
        configs
            .iter()
            .map(|&config| fields(config))
            .collect::<Vec<_>>()
            .join("; "),
        grouped(outcome.thread_instructions),
        grouped(outcome.warp_instructions),
        outcome.runs,
        schedules::schedules(SEED).len(),
    );
    match &outcome.broken {
        Some(Broken {
            config,
            schedule,
            error,
        }) => text.push_str(&format!(
            "hazards     FAILED: {}, {schedule}: {error}\n",
            fields(*config)
        )),
        None => text.push_str("hazards     none found; every schedule gave the same bits\n"),
    }
    if outcome.runs > 0 {
        text.push_str(&format!(
            "difference  {} (to the CPU path's result: max {:.2e}; at element {}: {:.2e} of {:.2e} allowed, {:.0}%)\n",
            match difference.share <= 1.0 {
                true => "ok",
                false => "FAILED",
            },
            difference.largest,
            difference.element,
            difference.there,
            difference.bound,
            100.0 * difference.share,
        ));
    }
    if let Some(file) = picture {
        let here = env::current_dir().unwrap_or_default();
        let file = file.strip_prefix(here).unwrap_or(file);
        text.push_str(&format!(
            "picture     {}: what the kernel's warps did, and what they waited for\n",
            printable::path(file)
        ));
    }
    text
}

fn to_json(
    problem: &Problem,
    configs: &[Tcgen05Config],
    outcome: &Outcome,
    picture: Option<&Path>,
) -> Value {
    let (shape, difference) = (problem.shape(), &outcome.difference);
    let config = |config: &Tcgen05Config| {
        json!({
            "step": config.step, "stages": config.stages, "ctas": config.ctas, "divided": config.divided,
        })
    };
    json!({
        "kernel": "gemv_tcgen05",
        "m": shape.m(), "n": shape.n(), "k": shape.k(),
        "arch": ptx::BLACKWELL,
        "nvcc": ptx::compiler(),
        "configs": configs.iter().map(config).collect::<Vec<_>>(),
        "schedules": schedules::schedules(SEED).len(),
        "runs": outcome.runs,
        "warp_instructions": outcome.warp_instructions,
        "thread_instructions": outcome.thread_instructions,
        "hazard": outcome.broken.as_ref().map(|broken| json!({
            "config": config(&broken.config),
            "schedule": broken.schedule,
            "error": broken.error.to_string(),
        })),
        "difference": {
            "passed": difference.share <= 1.0,
            "max": difference.largest,
            "element": difference.element,
            "there": difference.there,
            "bound": difference.bound,
        },
        "picture": picture.map(|file| file.display().to_string()),
        "passed": outcome.passed(),
    })
}

fn fields(config: Tcgen05Config) -> String {
    let Tcgen05Config {
        step,
        stages,
        ctas,
        divided,
        ..
    } = config;
    let tiles = if divided { "divided" } else { "whole" };
    format!("step {step}, stages {stages}, ctas {ctas}, {tiles} tiles")
}

/// A number with a comma before every third digit.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
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
    fn a_layer_is_required_or_a_picture() {
        let parsed = |args: &str| Cli::try_parse_from(args.split(' '));
        let layer = parsed("simulate --checkpoint f --layer l").unwrap();
        assert!(layer.layer.is_some() && layer.command.is_none());
        let picture = parsed("simulate picture --kernel stream --out f.svg").unwrap();
        assert!(picture.layer.is_none() && picture.command.is_some());
        for wrong in [
            "simulate",
            "simulate --layer l",
            "simulate picture --kernel direct --out f",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1234567, "1,234,567"),
        ] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn a_broken_rule_and_a_difference_past_its_bound_fail() {
        assert!(Outcome::default().passed());
        let mut far = Outcome::default();
        far.difference.share = 1.01;
        assert!(!far.passed());
        let broken = Broken {
            config: Tcgen05Config {
                step: 256,
                stages: 2,
                ctas: 1,
                ..Tcgen05Config::DEFAULT
            },
            schedule: String::new(),
            error: SimError::Launch(String::new()),
        };
        let broken = Outcome {
            broken: Some(broken),
            ..Outcome::default()
        };
        assert!(!broken.passed());
    }
}
