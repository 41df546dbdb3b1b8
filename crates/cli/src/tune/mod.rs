//! `tune`: measures what this GPU does best with each problem, and keeps it in a file.

#[cfg(feature = "device")]
mod chain;
mod checkpoint;
#[cfg(feature = "device")]
mod judge;
#[cfg(any(feature = "device", test))]
mod lost;
#[cfg(feature = "device")]
mod measure;
#[cfg(feature = "device")]
mod parts;
mod sample;
#[cfg(feature = "device")]
mod store;
#[cfg(feature = "device")]
mod sustain;

use std::path::PathBuf;

use anyhow::Result;
use nvfp4_gemv::tune::TUNED_VARIABLE;
use nvfp4_gemv::{Activation, Operands, ScaleLayout, Shape};
use nvfp4_gemv_cli::problem::CONTEST_BENCHMARKS;
use serde_json::json;

use crate::bench::suite::LAYERS;
use crate::report::{Report, Table, wrong_usage};
use crate::shapes::{self, SYNTAX, parse_n, parse_shape};

/// Measures the kernels and configs that this GPU can run for a shape, and stores the best
#[derive(Debug, clap::Args)]
#[command(after_help = "\
All candidates of a problem take turns, each with weights that no cache holds, and the slow ones are \
dropped early: a problem takes a few seconds. --seconds is about the search alone, and the search measures every candidate \
once, however long that takes. Before it, memory is filled with operands and the ceiling is measured; the report says what \
each part took. The file belongs to this GPU, its driver and this version; \
with others it is refused. A program loads it with nvfp4_gemv::tune::Tuned::load, and nothing uses it \
unasked; `nvfp4-gemv plan --tuned FILE` shows what it says. Problems are added to a file that exists, and \
it is saved after each, so that an interrupted run loses one problem at most; several runs may add to one \
file at the same time.

What is found of a problem is printed when it ends. With --json that is a line, an object for each problem, and a last line \
with the device, what was skipped, and the file. Progress goes to stderr.

--rank says what is best. `time` is the time of cold launches in short bursts. `sustained` and `energy` are of launches \
that are repeated for seconds without rest, as a decoder does: there a GPU may reach its power limit and lower its \
clock, and a config that does less work beside its reads may win. They begin with the same search. Then the 6 best of its \
ranking that are within 10% of the first are repeated for --sustained seconds each, after a pause of one: about half a \
minute more a problem, and as much again with --chained. The file keeps cold times; what is faster cold than the best by \
this rank is left out of it, so that it is not taken.

--chain takes the shapes for the linear layers of a decoder layer, in their order, and tunes them where they follow each \
other: the config that is the fastest in a chain of one shape need not be the fastest between others. First each is \
tuned by itself, as with --chained. Then the best few configs of each take turns in the whole chain, while the others stay \
as they are, until nothing gets faster: a minute for four layers, for each type of vectors and layout of scales. The file \
is saved after each chain. It has one config for a problem: chains that share shapes belong into one command, or into files of \
their own. `nvfp4-gemv bench --suite decode` prints the layers of three models.

--sample judges what calls take without a file: problems are drawn at random, and in each of them that choice takes turns \
with up to 95 configs that may be faster. A problem has a line, and a summary says how many lose how much. Nothing is \
stored. --seconds is about all of it, but for kernels that have to be compiled: problems that it does not suffice for are \
left out, and counted.

Examples:
  nvfp4-gemv tune --shape 4096,7168 --out tuned.jsonl
  nvfp4-gemv tune --shape 4096,7168,8 --shape 8192,4096,1,4 --layout 128x4 --out tuned.jsonl
  nvfp4-gemv tune --shape 14336,4096 --activation nvfp4 --activation bf16   # prints, stores nothing
  nvfp4-gemv tune --shape 28672,8192 --rank sustained --out tuned.jsonl       # seconds a config: half a minute
  nvfp4-gemv tune --chain --layout linear --shape 6144,4096 --shape 4096,4096 --shape 28672,4096 --shape 4096,14336 \
      --out llama-8b.jsonl   # qkv, o, gate and up, down; then: bench --suite decode --tuned llama-8b.jsonl
  nvfp4-gemv tune --checkpoint model/ --n 1 --n 4 --layout linear --chained --out model.jsonl
  nvfp4-gemv tune --suite --chained --seconds 1.5 --replace --out h200.jsonl   # a built-in table, in minutes
  nvfp4-gemv tune --sample 100 --seed 7 --seconds 90   # how good the choice is where no table helps")]
pub(crate) struct Args {
    /// M,K or M,K,L or M,K,L,N, also with `x` between: rows of the weights, elements of a row (a multiple of
    /// 16), batches, vectors a batch; may be repeated
    #[arg(long = "shape", value_name = SYNTAX, value_parser = parse_shape)]
    shapes: Vec<Shape>,
    /// The layers of a checkpoint: the shapes of its NVFP4 matrices, and of q, k and v, and of gate and up, joined as
    /// engines have them; no experts
    #[arg(long, value_name = "PATH")]
    checkpoint: Option<PathBuf>,
    /// Vectors of the layers of --checkpoint; may be repeated [default: 1]
    #[arg(long, value_parser = parse_n, requires = "checkpoint")]
    n: Vec<usize>,
    /// Print the problems, and measure nothing
    #[arg(long, conflicts_with_all = ["chain", "out", "replace"])]
    list: bool,
    /// Judge the choice that calls take without a file, by so many problems drawn at random: layers of models, shards of
    /// them and shapes around them; 1 to 128 vectors, NVFP4, f16 and bf16; both layouts; isolated and chained
    #[arg(long, value_name = "PROBLEMS", value_parser = sampled, conflicts_with_all = [
        "shapes", "checkpoint", "suite", "activation", "layout", "chained", "rank", "out", "replace"
    ])]
    sample: Option<usize>,
    /// The problems that --sample draws: the same number draws the same ones [default: 1]
    #[arg(long, requires = "sample")]
    seed: Option<u64>,
    /// The problems of the built-in tables: usual layer shapes, 1 to 16 vectors, all types (minutes). --activation and
    /// --layout leave those that have others out
    #[arg(long)]
    suite: bool,
    /// Element type of the vectors; may be repeated [default: nvfp4, and of --suite all]
    #[arg(long, value_parser = shapes::activation())]
    activation: Vec<Activation>,
    /// Layout of the scales; may be repeated [default: both]
    #[arg(long, value_parser = shapes::layout())]
    layout: Vec<ScaleLayout>,
    /// Also find the best configs for launches that follow each other with programmatic dependent launch, as layers
    /// of a model can: twice the time
    #[arg(long)]
    chained: bool,
    /// Tune the shapes as layers that follow each other with programmatic dependent launch, in this order: a chain for
    /// each type of vectors and layout of scales. A shape may be there several times
    #[arg(long, requires = "shapes", conflicts_with_all = ["suite", "chained", "rank", "checkpoint"])]
    chain: bool,
    /// What is best: all but `time` take seconds a config
    #[arg(long, value_enum, default_value_t = Rank::Time)]
    rank: Rank,
    /// How long --rank sustained and energy repeat each config; the last half counts [default: 4]
    #[arg(long, value_name = "SECONDS", value_parser = sustained)]
    sustained: Option<f64>,
    /// Seconds after which the search of a problem begins no further round. Its first round, which measures each
    /// candidate once, is always whole, and what comes before the search is not counted. Of --sample: seconds of all
    /// problems together [default: 3, and of --sample 120]
    #[arg(long, value_parser = seconds)]
    seconds: Option<f64>,
    /// The file to store in [default: NVFP4_GEMV_TUNED, or none]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Start the file anew instead of adding to it
    #[arg(long)]
    replace: bool,
}

/// The time by which candidates are ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Rank {
    /// The time of a cold launch in a short burst
    Time,
    /// The mean time of launches that are repeated for --sustained seconds
    Sustained,
    /// The energy that those take for each GB of weights, where the driver's management library (NVML) counts it
    Energy,
}

/// Seconds that a config is repeated for, where nothing else is asked for.
#[cfg(feature = "device")]
const SUSTAINED: f64 = 4.0;

/// Seconds of a problem's search, where nothing else is asked for.
#[cfg(feature = "device")]
const SECONDS: f64 = 3.0;
/// The same of a sample.
#[cfg(feature = "device")]
const SAMPLE_SECONDS: f64 = 120.0;

/// Problems of a sample: as many as a day is enough for.
fn sampled(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(problems) if (1..=10_000).contains(&problems) => Ok(problems),
        _ => Err("expected 1 to 10000 problems".into()),
    }
}

/// Below a second the power limit is not reached.
fn sustained(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (1.0..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected 1 to 600 seconds".into()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.01..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected 0.01 to 3600".into()),
    }
}

impl Args {
    /// The file to store in.
    fn out(&self) -> Option<PathBuf> {
        let variable = || std::env::var_os(TUNED_VARIABLE).filter(|file| !file.is_empty());
        self.out.clone().or_else(|| variable().map(PathBuf::from))
    }

    /// Refuses options that would mean nothing.
    fn check(&self) -> Result<()> {
        if self.sustained.is_some() && self.rank == Rank::Time {
            wrong_usage!(
                "--sustained is for --rank sustained and --rank energy: nothing else is repeated"
            );
        }
        if self.replace && self.out().is_none() {
            wrong_usage!(
                "--replace starts a file anew, and there is none: --out or {TUNED_VARIABLE} names it"
            );
        }
        Ok(())
    }

    fn activations(&self) -> &[Activation] {
        match &self.activation[..] {
            [] => &[Activation::Nvfp4],
            asked => asked,
        }
    }

    fn layouts(&self) -> &[ScaleLayout] {
        match &self.layout[..] {
            [] => &[ScaleLayout::Linear, ScaleLayout::Tiled128x4],
            asked => asked,
        }
    }

    /// The problems that are asked for, each once, and whether calls are chained. With `--chained` they are so, too.
    fn listed(&self) -> Result<Vec<sample::Drawn>> {
        if let Some(problems) = self.sample {
            return Ok(sample::draw(problems, self.seed.unwrap_or(1)));
        }
        let drawn = |(shape, operands)| sample::Drawn {
            shape,
            operands,
            chained: self.chained,
        };
        Ok(self.problems()?.into_iter().map(drawn).collect())
    }

    /// The problems that are asked for, each once.
    fn problems(&self) -> Result<Vec<(Shape, Operands)>> {
        if self.shapes.is_empty() && !self.suite && self.checkpoint.is_none() {
            wrong_usage!("nothing to tune: give --shape {SYNTAX}, --checkpoint PATH, or --suite");
        }
        let of_layers = self.checkpoint.as_deref().map(|path| match &self.n[..] {
            [] => checkpoint::shapes(path, &[1]),
            n => checkpoint::shapes(path, n),
        });
        let of_layers = of_layers.transpose()?.unwrap_or_default();
        let mut problems = Vec::new();
        let mut add = |shape: Shape, activation, layout| {
            let problem = (shape, Operands::new(activation, layout));
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        };
        for &shape in self.shapes.iter().chain(&of_layers) {
            for &activation in self.activations() {
                for &layout in self.layouts() {
                    add(shape, activation, layout);
                }
            }
        }
        if self.suite {
            let is_asked = |activation, layout| {
                (self.activation.is_empty() || self.activation.contains(&activation))
                    && (self.layout.is_empty() || self.layout.contains(&layout))
            };
            for (shape, activation, layout) in suite()? {
                if is_asked(activation, layout) {
                    add(shape, activation, layout);
                }
            }
        }
        Ok(problems)
    }
}

/// The problems of a built-in table: few, since what is not in it follows the nearest.
fn suite() -> Result<Vec<(Shape, Activation, ScaleLayout)>> {
    const VECTORS: [(Activation, &[usize]); 4] = [
        (Activation::Nvfp4, &[1, 2, 4, 8, 16]),
        (Activation::F16, &[1, 4]),
        (Activation::Bf16, &[1, 8]),
        (Activation::F32, &[1]),
    ];
    let mut problems = Vec::new();
    for (m, k, l) in CONTEST_BENCHMARKS.into_iter().chain(LAYERS) {
        for (activation, vectors) in VECTORS {
            for &n in vectors {
                for layout in ScaleLayout::ALL {
                    problems.push((shapes::of(m, n, k, l)?, activation, layout));
                }
            }
        }
    }
    Ok(problems)
}

/// The problems, as a table and JSON.
fn list(problems: &[sample::Drawn]) -> Report {
    let mut table = Table::new("M|K|L|N|vectors|scales|chained".split('|'));
    let mut all = Vec::new();
    for sample::Drawn {
        shape,
        operands,
        chained,
    } in problems
    {
        let (vectors, scales) = (operands.activation.name(), operands.weight_layout.name());
        let numbers = [shape.m(), shape.k(), shape.l(), shape.n()];
        let numbers = numbers.map(|number| number.to_string());
        let words = [vectors, scales, if *chained { "yes" } else { "no" }];
        table.row([&numbers[..], &words.map(String::from)].concat());
        all.push(json!({
            "m": shape.m(), "k": shape.k(), "l": shape.l(), "n": shape.n(),
            "activation": vectors, "layout": scales, "chained": chained,
        }));
    }
    Report::new(table.to_string(), json!({ "problems": all }))
}

/// Results are printed problem by problem, as JSON if that is asked for.
#[cfg(feature = "device")]
pub(crate) fn run(args: &Args, json: bool) -> Result<Report> {
    args.check()?;
    match args.sample {
        _ if args.list => Ok(list(&args.listed()?)),
        Some(problems) => judge::run(args, problems, json),
        None => measure::run(args, json),
    }
}

#[cfg(not(feature = "device"))]
pub(crate) fn run(args: &Args, _: bool) -> Result<Report> {
    args.check()?;
    let problems = args.listed()?;
    if args.list {
        return Ok(list(&problems));
    }
    let _ = (args.seconds, args.chain);
    Err(nvfp4_gemv::Error::PathUnavailable {
        path: nvfp4_gemv::GemvPath::CudaCore,
        reason: nvfp4_gemv::Refusal::BuiltWithoutCuda,
    }
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsed;

    /// A wish is measured, or refused, and not ignored.
    #[test]
    fn every_option_means_something() {
        let problems = |line: &str| parsed::<Args>(line).problems().unwrap();
        let all = problems("--suite");
        assert_eq!(all.len(), suite().unwrap().len());
        let some = problems("--suite --activation f16 --layout linear");
        assert!(!some.is_empty() && some.iter().all(|problem| all.contains(problem)));
        for (_, operands) in &some {
            let of = (operands.activation, operands.weight_layout);
            assert_eq!(of, (Activation::F16, ScaleLayout::Linear));
        }
        // Beside a shape, the suite is the same.
        let beside = problems("--suite --shape 64,64 --activation f16 --layout linear");
        assert_eq!(beside.len(), some.len() + 1);
        // Nothing asked for: as before.
        let defaults: Vec<_> = problems("--shape 64,64")
            .iter()
            .map(|(_, operands)| (operands.activation, operands.weight_layout))
            .collect();
        assert_eq!(
            defaults,
            ScaleLayout::ALL.map(|layout| (Activation::Nvfp4, layout))
        );
        let check = |line: &str| parsed::<Args>(&format!("--shape 64,64 {line}")).check();
        for meaningless in [
            "--sustained 5",
            "--rank time --sustained 5",
            "--chain --sustained 5",
        ] {
            let error = check(meaningless).unwrap_err().to_string();
            assert!(error.contains("--rank sustained"), "{error}");
        }
        check("--rank energy --sustained 5").unwrap();
        let sampled = parsed::<Args>("--sample 5 --seed 3 --list").listed();
        assert_eq!(sampled.unwrap(), sample::draw(5, 3));
        let listed = parsed::<Args>("--shape 64,64 --chained --list").listed();
        assert!(listed.unwrap().iter().all(|problem| problem.chained));
        check("--replace --out f").unwrap();
        if std::env::var_os(TUNED_VARIABLE).is_none() {
            assert!(
                check("--replace")
                    .unwrap_err()
                    .to_string()
                    .contains("--out")
            );
        }
    }

    #[test]
    fn the_suite_has_each_problem_once() {
        let suite = suite().unwrap();
        for (i, problem) in suite.iter().enumerate() {
            assert!(!suite[..i].contains(problem), "{problem:?} twice");
        }
        for activation in Activation::ALL {
            assert!(suite.iter().any(|(_, of, _)| *of == activation));
        }
    }
}
