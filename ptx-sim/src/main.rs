//! The command-line program.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand, ValueEnum};
use ptx_sim::coverage::Counters;
use ptx_sim::launch::LaunchSpec;
use ptx_sim::{Launch, Module, Options, Policy, Report, Sim, SimError, Timing, Uninitialised};

/// Runs PTX kernels on the CPU and checks what a GPU would not.
///
/// Every memory access is checked for bounds, alignment and initialisation; barriers,
/// warp-synchronous instructions and deadlocks are checked too. An instruction that is not
/// modelled exactly ends the run with its name: nothing is guessed.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a kernel as a JSON specification says.
    #[command(after_long_help = SPEC_HELP)]
    Run(Run),
    /// Lists the opcodes of a PTX file and which of them are not executed.
    Inventory {
        /// The PTX file.
        file: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Measures the simulator's speed on a straight-line f32 kernel.
    Bench {
        /// Thread-instructions to run, in millions.
        #[arg(long, default_value_t = 400)]
        millions: u64,
    },
}

const SPEC_HELP: &str = r#"Example of a specification:
  {
    "grid": [1, 1, 1], "block": [128, 1, 1], "shared": 0,
    "buffers": {
      "x": {"contents": {"f32": [1.0, 2.0]}},
      "w": {"contents": {"safetensors": {"file": "w.safetensors", "tensor": "w"}}},
      "y": {"size": 512, "dump": "y.bin"}
    },
    "params": [
      {"buffer": "x"}, {"u32": 7},
      {"struct": {"size": 16, "fields": [{"offset": 8, "value": {"buffer": "y"}}]}}
    ]
  }
Contents: fill (with size), file, safetensors, hex, f32, i32. A buffer without contents is
poisoned. Values: u8 to u64, i8 to i64, f32, f64, hex, buffer, buffer_at {buffer, offset}.
Paths are relative to the specification; dumps go to --out."#;

#[derive(clap::Args)]
struct Run {
    /// The PTX file.
    #[arg(long)]
    ptx: PathBuf,
    /// Kernel name, as in the PTX; not needed if there is only one.
    #[arg(long)]
    entry: Option<String>,
    /// The launch specification, a JSON file.
    #[arg(long)]
    launch: PathBuf,
    /// How warps take turns: fair, random[:SEED] or starve[:SEED].
    #[arg(long, default_value = "fair")]
    policy: Policy,
    /// When asynchronous operations complete.
    #[arg(long, value_enum, default_value_t = When::Eager)]
    timing: When,
    /// Run this many times, with seeds counted up from the policy's.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Thread-instructions after which a run is given up.
    #[arg(long, default_value_t = Options::default().budget)]
    budget: u64,
    /// Clusters that run at once.
    #[arg(long, default_value_t = Options::default().resident)]
    resident: usize,
    /// Report reads of bytes that nothing wrote, and go on.
    #[arg(long)]
    warn_uninitialised: bool,
    /// Directory for dumped buffers.
    #[arg(long, default_value = ".")]
    out: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum When {
    Eager,
    Lazy,
    Random,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let (json, result) = match cli.command {
        Command::Run(r) => (r.json, run(&r)),
        Command::Inventory { file, json } => (json, inventory(&file, json)),
        Command::Bench { millions } => (false, bench(millions)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            if json {
                println!("{}", error_json(&e));
            } else {
                eprintln!("error: {e}");
            }
            ExitCode::FAILURE
        }
    }
}

fn error_json(e: &SimError) -> serde_json::Value {
    let mut v = serde_json::json!({ "error": e.to_string() });
    match e {
        SimError::Violation(x) => v["violation"] = serde_json::json!(x),
        SimError::Deadlock(x) => v["deadlock"] = serde_json::json!(x),
        _ => {}
    }
    v
}

fn read(path: &Path) -> Result<String, SimError> {
    let bytes = std::fs::read(path).map_err(|e| SimError::Io {
        path: path.display().to_string(),
        message: e.to_string(),
    })?;
    // nvcc ends its output in a zero byte now and then; anything that is not UTF-8 is not PTX.
    String::from_utf8(bytes).map_err(|e| SimError::Io {
        path: path.display().to_string(),
        message: e.to_string(),
    })
}

fn run(r: &Run) -> Result<(), SimError> {
    let module = Module::parse(&read(&r.ptx)?)?;
    let spec = LaunchSpec::parse(&read(&r.launch)?)?;
    let names: Vec<&str> = module.entries().collect();
    let kernel = match (&r.entry, names.as_slice()) {
        (Some(e), _) => e.clone(),
        (None, [one]) => one.to_string(),
        _ => {
            return Err(SimError::Launch(format!(
                "--entry is needed, one of: {}",
                names.join(", ")
            )));
        }
    };
    let base = r.launch.parent().unwrap_or(Path::new("."));
    let prepared = spec.prepare(module, &kernel, base)?;
    let program = prepared.sim.program(&kernel)?;
    let first = match r.policy {
        Policy::Random(s) | Policy::Starve(s) => s,
        Policy::Fair => 0,
    };
    let mut counters = Counters::default();
    let mut last = None;
    for seed in 0..r.seeds.max(1) {
        let policy = r.policy.with_seed(first.wrapping_add(seed));
        let options = Options {
            policy,
            timing: match r.timing {
                When::Eager => Timing::Eager,
                When::Lazy => Timing::Lazy,
                When::Random => Timing::Random,
            },
            budget: r.budget,
            resident: r.resident,
            uninitialised: if r.warn_uninitialised {
                Uninitialised::Warn
            } else {
                Uninitialised::Error
            },
            ..Options::default()
        };
        let mut p = prepared.clone();
        let started = Instant::now();
        let report = p
            .sim
            .run_program(&program, &p.launch, &options, None)
            .inspect_err(|_| {
                eprintln!("with --policy {policy}:");
            })?;
        counters.merge(&report.coverage.counters);
        last = Some((p, report, started.elapsed()));
    }
    let Some((p, mut report, elapsed)) = last else {
        return Ok(());
    };
    report.coverage = counters.summary(&program);
    spec.dump(&p, &r.out)?;
    if r.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&report).unwrap_or_default()
        );
    } else {
        print_report(&report);
        println!("last run: {:.3} s", elapsed.as_secs_f64());
    }
    Ok(())
}

fn print_report(r: &Report) {
    println!(
        "{}: {} CTAs, {} warp instructions, {} thread instructions",
        r.kernel, r.ctas, r.warp_instructions, r.thread_instructions
    );
    for w in &r.warnings {
        println!("warning: {w}");
    }
    if r.warnings_dropped > 0 {
        println!("and {} more warnings", r.warnings_dropped);
    }
    let c = &r.coverage;
    println!("{} of {} instructions executed", c.executed, c.instructions);
    for (what, sites) in [
        ("never executed", &c.never_executed),
        ("branch never taken", &c.never_taken),
        ("branch always taken", &c.always_taken),
    ] {
        for s in sites {
            println!("  {what}: {s}");
        }
    }
}

fn inventory(file: &Path, json: bool) -> Result<(), SimError> {
    let module = Module::parse(&read(file)?)?;
    let list = ptx_sim::inventory::inventory(&module);
    if json {
        println!(
            "{}",
            serde_json::to_string_pretty(&list).unwrap_or_default()
        );
        return Ok(());
    }
    for e in &list.opcodes {
        match &e.unmodelled {
            None => println!("{:7}  {}", e.count, e.opcode),
            Some(why) => println!(
                "{:7}  {}  NOT EXECUTED (line {}): {why}",
                e.count, e.opcode, e.first_line
            ),
        }
    }
    let missing = list
        .opcodes
        .iter()
        .filter(|e| e.unmodelled.is_some())
        .count();
    for p in &list.problems {
        println!("problem: {p}");
    }
    println!(
        "{} opcodes, {missing} of them not executed",
        list.opcodes.len()
    );
    Ok(())
}

fn bench(millions: u64) -> Result<(), SimError> {
    const LENGTH: usize = 1000;
    let mut body = String::new();
    for i in 0..LENGTH {
        let (d, a, b) = (i % 8, (i + 1) % 8, (i + 3) % 8);
        body += &match i % 3 {
            0 => format!("fma.rn.f32 %f{d}, %f{a}, %f{b}, %f{d};\n"),
            1 => format!("mul.rn.f32 %f{d}, %f{a}, %f{b};\n"),
            _ => format!("add.rn.f32 %f{d}, %f{a}, %f{b};\n"),
        };
    }
    let ptx = format!(
        ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k() {{\n\
         .reg .f32 %f<8>;\n{body}ret;\n}}"
    );
    let mut sim = Sim::new(Module::parse(&ptx)?);
    let program = sim.program("k")?;
    let per_cta = 256 * (LENGTH as u64 + 1);
    let ctas = (millions * 1_000_000 / per_cta).clamp(1, 1 << 30);
    let launch = Launch::new("k", [ctas as u32, 1, 1], [256, 1, 1]);
    let started = Instant::now();
    let r = sim.run_program(&program, &launch, &Options::default(), None)?;
    let s = started.elapsed().as_secs_f64();
    println!(
        "straight-line f32: {:.0} million thread-instructions/s ({} in {s:.2} s, one core)",
        r.thread_instructions as f64 / s / 1e6,
        r.thread_instructions
    );
    Ok(())
}
