//! `plan`: which kernel computes a shape, and how fast each one is, as far as is known.

mod ranks;
mod reduction;

use std::path::PathBuf;

use anyhow::Result;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use nvfp4_gemv::dispatch::measured::{GpuModel, Measurements};
use nvfp4_gemv::dispatch::{self, Estimate, rank, workspace_bytes};
use nvfp4_gemv::kernel::plan::Launch;
use nvfp4_gemv::kernel::{Call, Job};
use nvfp4_gemv::tune::{TUNED_VARIABLE, Tuned};
use nvfp4_gemv::{
    Activation, Config, Error, Gpu, Kernel, Product, RawWorkspace, Refusal, ScaleLayout, Shape,
    Target, VectorAccuracy, select,
};
use nvfp4_gemv_parallel::shard::Split;
use serde_json::{Value, json};

use crate::configs::{launch_line, launches, one_line};
use crate::engine::{self, AskArgs, compiled_archs};
use crate::report::{Report, Table, bytes, count, time, wrong_usage};
use crate::shapes::{self, ShapeArgs, parse_n};

/// Says which kernel computes a shape, with which config, how fast each kernel is, and on what evidence; computes
/// nothing
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Evidence, from the best to the least: the file of tuned configs (`nvfp4-gemv tune`), `measured on` \
this model of GPU (tables that come with the crate), `after` the nearest problem measured on such a GPU, \
and `modelled` from the machine code and published rates. The share is of what a kernel reaches that only \
reads the weights; `<` stands before those of kernels that were slower than another one, nobody kept how much. Where \
nothing was measured that a time could follow from, `>` stands before the time that the share gives at the \
published rate of the GPU's memory, which no kernel reaches.

--tensor-parallel says what each of several GPUs computes of the layer, and whether that pays: cut by rows, which needs no \
sum where a layer cut along K follows, and cut along K, with the sum over all GPUs. What a sum takes is a model, which \
is printed with it: measured between two H200, and carried over to other GPUs and numbers of them by published figures.

Examples:
  nvfp4-gemv plan 4096,7168
  nvfp4-gemv plan 7168,16384 --n 4 --activation bf16
  nvfp4-gemv plan 4096,7168,8 --layout 128x4 --tuned tuned.jsonl
  nvfp4-gemv plan 4096,7168,8 --layout 128x4 --gpu h200 --chained
  nvfp4-gemv plan 4096,14336 --n 4 --gpu h200 --batch-invariant
  nvfp4-gemv plan 4096,7168,8,4 --layout 128x4 --gpu b200
  nvfp4-gemv plan 7168,16384 --n 16 --layout 128x4 --gpu b200 --no-workspace
  nvfp4-gemv plan 7168,16384 --n 16 --activation bf16 --layout 128x4 --gpu b200 --vector-accuracy bf16
  nvfp4-gemv plan 14336,4096 --gpu dgx-spark --json
  nvfp4-gemv plan 28672,8192 --gpu h200 --tensor-parallel 2
  nvfp4-gemv plan 8192,28672 --gpu b200 --tensor-parallel 8 --split k --activation bf16
  nvfp4-gemv plan 14336,4096 --compute-capability 12.0   # for a GPU that has no name here")]
pub(crate) struct Args {
    #[command(flatten)]
    shape: ShapeArgs,
    /// Vectors a batch, in place of the shape's
    #[arg(long, value_parser = parse_n)]
    n: Option<usize>,
    /// Element type of the vectors
    #[arg(long, value_parser = shapes::activation(), default_value = "nvfp4")]
    activation: Activation,
    /// Layout of the block scales
    #[arg(long, value_parser = shapes::layout(), default_value = "linear")]
    layout: ScaleLayout,
    #[command(flatten)]
    ask: AskArgs,
    /// With results whose bits do not depend on the other vectors of a call, nor on their number; no tuned file is
    /// asked
    #[arg(long)]
    batch_invariant: bool,
    /// How close digits have to come to f16, bf16 and f32 vectors that they stand for on FP4 tensor cores, where these
    /// are expected to be faster; "exact": vectors are multiplied as they are
    #[arg(long, value_name = "ACCURACY", value_parser = shapes::accuracy(), default_value = "exact",
          conflicts_with = "tensor_parallel")]
    vector_accuracy: VectorAccuracy,
    /// For launches that follow each other with programmatic dependent launch, as layers of a model can
    #[arg(long)]
    chained: bool,
    /// For calls that give no workspace: kernels that need one cannot run, and others divide work otherwise
    #[arg(long, conflicts_with = "tensor_parallel")]
    no_workspace: bool,
    /// Plan for a GPU of this compute capability instead of this machine
    #[arg(long, value_name = "MAJOR.MINOR", value_parser = parse_capability)]
    compute_capability: Option<(i32, i32)>,
    /// Plan for this product instead of this machine
    #[arg(long, value_name = "NAME", value_parser = product(), ignore_case = true,
          conflicts_with = "compute_capability")]
    gpu: Option<&'static Product>,
    /// A file of `nvfp4-gemv tune`; without a GPU, plans for the one it was made on [default:
    /// NVFP4_GEMV_TUNED, or none]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["compute_capability", "gpu"])]
    tuned: Option<PathBuf>,
    /// Divide the layer among so many GPUs of the product
    #[arg(long, value_name = "RANKS", requires = "gpu", value_parser = clap::value_parser!(u16).range(1..=1024))]
    tensor_parallel: Option<u16>,
    /// How to divide it [default: both]
    #[arg(long, requires = "tensor_parallel", value_parser = split())]
    split: Option<Split>,
}

fn split() -> impl TypedValueParser<Value = Split> {
    shapes::one_of(Split::ALL.map(|split| match split {
        Split::Rows => (
            split,
            split.name(),
            "Each has rows, and a part of the result",
        ),
        Split::K => (
            split,
            split.name(),
            "Each has columns, and a summand of the result",
        ),
    }))
}

fn product() -> impl TypedValueParser<Value = &'static Product> {
    let names = Product::ALL.iter().map(|product| product.name);
    PossibleValuesParser::new(names)
        .map(|name| Product::of_name(&name).expect("clap knows the names"))
}

fn parse_capability(text: &str) -> Result<(i32, i32), String> {
    text.split_once('.')
        .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
        // The names of architectures are of two or three digits: sm_80, sm_103.
        .filter(|(major, minor)| (0..100).contains(major) && (0..10).contains(minor))
        .ok_or_else(|| "expected MAJOR.MINOR, for example 10.0".into())
}

/// The target of a plan.
struct Where {
    /// The GPU; none for host memory.
    gpu: Option<Gpu>,
    tuned: Option<Measurements>,
    /// Why this machine has no GPU, if it is for this machine.
    no_gpu: Option<Error>,
    /// Features that this build lacks for the GPU, and the build that the plan is for instead.
    other_build: Option<String>,
    product: Option<&'static Product>,
    /// The statement that no product of this compute capability is known, and which one stands for it.
    unknown: Option<String>,
}

/// This program compiles kernels at run time.
const COMPILES: bool = cfg!(feature = "jit");

impl Where {
    /// A GPU that is not in this machine, and perhaps not in this build.
    fn elsewhere(compiled: &'static str, compute_capability: (i32, i32)) -> Self {
        let archs = archs_for(compiled, compute_capability);
        let (major, minor) = compute_capability;
        let other_build = (archs != compiled && !COMPILES).then(|| {
            let lacks = match compiled {
                "" => "this build carries no kernels".into(),
                compiled => format!(
                    "this build has no code for compute capability {major}.{minor}, only for {compiled}"
                ),
            };
            format!("{lacks}; planned for a build with NVFP4_GEMV_ARCHS=\"{archs}\"")
        });
        Self {
            gpu: Some(Gpu::of_compute_capability(compute_capability, archs)),
            tuned: None,
            no_gpu: None,
            other_build,
            product: None,
            unknown: unknown(compute_capability),
        }
    }

    /// A product.
    fn of_product(compiled: &'static str, product: &'static Product) -> Self {
        let there = Self::elsewhere(compiled, product.compute_capability);
        Self {
            gpu: there.gpu.map(|gpu| Gpu::of_product(product, gpu.images)),
            product: Some(product),
            ..there
        }
    }

    /// A GPU that there are measurements of.
    fn of_model(compiled: &'static str, model: &GpuModel) -> Self {
        let there = Self::elsewhere(compiled, model.compute_capability);
        Self {
            gpu: there.gpu.map(|gpu| Gpu {
                name: model.name.clone(),
                multiprocessors: model.multiprocessors,
                ..gpu
            }),
            ..there
        }
    }
}

/// The notice for a compute capability that no product has.
fn unknown((major, minor): (i32, i32)) -> Option<String> {
    let all = Product::ALL.iter();
    let mut known: Vec<_> = all.map(|product| product.compute_capability).collect();
    if known.contains(&(major, minor)) {
        return None;
    }
    known.sort_unstable();
    known.dedup();
    let known = known.iter().map(|of| format!("{}.{}", of.0, of.1));
    let known: Vec<String> = known.collect();
    let stands_for_it = Product::of_compute_capability((major, minor));
    Some(format!(
        "no GPU of compute capability {major}.{minor} is known, only of {}; planned with the {} SMs of {}, as if this \
         version's kernels ran there",
        known.join(", "),
        stands_for_it.multiprocessors,
        stands_for_it.full_name,
    ))
}

/// The architectures to plan with for a GPU: this build's, where it has code for the GPU at all, else a
/// default build's, else the GPU's own. A program that compiles at run time does so for the GPU's own.
fn archs_for(compiled: &'static str, compute_capability: (i32, i32)) -> &'static str {
    let has_code = |archs: &&'static str| {
        let gpu = Gpu::of_compute_capability(compute_capability, archs);
        // The kernel that runs on the most devices.
        let runs = engine::runs_on(Kernel::Direct, &gpu);
        !matches!(
            runs,
            Ok(Err(
                Refusal::NoKernelImage { .. } | Refusal::BuiltWithoutKernels
            ))
        )
    };
    let builds = [compiled, Gpu::DEFAULT_IMAGES];
    let builds = builds.iter().take(if COMPILES { 1 } else { 2 }).copied();
    let known = builds.into_iter().find(has_code);
    known.unwrap_or_else(|| {
        // One small string for the one plan of a process.
        String::leak(Gpu::own_image(compute_capability))
    })
}

fn find_where(args: &Args, ask: engine::Ask) -> Result<Where> {
    let compiled = compiled_archs();
    if let Some(compute_capability) = args.compute_capability {
        return Ok(Where::elsewhere(compiled, compute_capability));
    }
    if let Some(product) = args.gpu {
        return Ok(Where::of_product(compiled, product));
    }
    let variable = || std::env::var_os(TUNED_VARIABLE).filter(|file| !file.is_empty());
    let file = args.tuned.clone().or_else(|| variable().map(PathBuf::from));
    // A path without a GPU to run it is the dispatch's business here, not an error yet.
    let (engine, no_gpu) = engine::open(match file {
        Some(_) => None, // the file's GPU may do
        None => ask.path(),
    })?;
    let gpu = match engine.target() {
        Target::Gpu(gpu) => Some(gpu.clone()),
        Target::Host => None,
    };
    let here = |tuned, no_gpu| Where {
        gpu,
        tuned,
        no_gpu,
        other_build: None,
        product: None,
        unknown: None,
    };
    match (file, no_gpu) {
        (Some(file), Some(_)) => {
            let table = Tuned::read_of_any(&file)?.measurements().clone();
            let there = Where::of_model(compiled, &table.machine.gpu);
            let tuned = Some(table);
            Ok(Where { tuned, ..there })
        }
        (Some(file), None) => Ok(here(Some(crate::tuned::here(&file)?), None)),
        (None, no_gpu) => Ok(here(None, no_gpu)),
    }
}

pub(crate) fn run(args: &Args) -> Result<Report> {
    let ShapeArgs(shape) = args.shape;
    let n = args.n.unwrap_or(shape.n());
    let shape = shapes::of(shape.m(), n, shape.k(), shape.l())?;
    let activation = args.activation;
    let layout = args.layout;
    let mut call = Call::nowhere(&shape, activation, layout, ALLOCATED);
    if args.no_workspace {
        call = call.with_workspace(RawWorkspace::NONE)?;
    }
    let mut ask = args.ask.ask()?;
    ask = ask.batch_invariant(args.batch_invariant);
    if args.chained {
        ask = ask.chained();
    }
    let Where {
        gpu,
        tuned,
        no_gpu,
        other_build,
        product,
        unknown,
    } = find_where(args, ask)?;
    let mut options = ask.options();
    if let Some(tuned) = &tuned {
        options = options.tuned(tuned);
    }
    options = options.vector_accuracy(args.vector_accuracy);
    if args.tensor_parallel.is_some() && shape.is_empty() {
        wrong_usage!("{shape:#} has nothing to divide: M or L is 0");
    }
    if let (Some(ranks), Some(gpu), Some(product)) = (args.tensor_parallel, &gpu, product) {
        let splits = args.split.map_or(Split::ALL.to_vec(), |split| vec![split]);
        let layer = ranks::Layer {
            shape,
            activation,
            layout,
            gpu,
            product,
            options,
            chained: args.chained,
        };
        return ranks::report(&layer, ranks.into(), &splits, other_build.as_deref());
    }
    let target = gpu.as_ref().map_or(Target::Host, Target::Gpu);
    let choice = select(&shape, &call.operands(), target, &options)?;
    let reason = match (&no_gpu, ask.path()) {
        (Some(why), None) => engine::no_gpu(why),
        _ => choice.reason.to_string(),
    };
    let digits = choice.digits.unwrap_or(1);
    let with_digits = match (&gpu, choice.digits) {
        (Some(gpu), Some(_)) => Some(dispatch::plan(&call, gpu, &options)?.1),
        _ => None,
    };
    let kernels = match &gpu {
        Some(gpu) => {
            let mut lines = Line::of_gpu(&call, gpu, tuned.as_ref(), args.chained);
            if let (Some(config), Some(plan)) = (choice.config, &with_digits) {
                let chosen = lines
                    .iter_mut()
                    .filter(|line| line.kernel == config.kernel());
                chosen.for_each(|line| {
                    line.config = Ok(config);
                    line.passes = Some(passes(&config, &shape, digits));
                    line.launches = plan.launches().to_vec();
                });
            }
            if let Some(product) = product {
                lines
                    .iter_mut()
                    .for_each(|line| line.at_published_rate(&shape, product));
            }
            lines
        }
        None => Line::without_gpu(no_gpu.as_ref()),
    };
    let operands = call.operands();
    let workspace = match (&gpu, choice.config) {
        (Some(gpu), Some(_)) if choice.digits.is_some() => {
            workspace_bytes(&shape, &operands, gpu, &options)?
        }
        (Some(gpu), Some(config)) => config.workspace_bytes(&Job::new(&shape, &operands, gpu)),
        _ => 0,
    };
    let chosen = choice.config.map(|config| {
        let launches = match (&gpu, &with_digits) {
            (_, Some(plan)) => all_launches(plan.launches()),
            (Some(gpu), None) => {
                let (plan, first) = first_and_last(&config, &call, gpu, args.chained);
                launch_lines(&plan, first, passes(&config, &shape, 1))
            }
            (None, None) => String::new(),
        };
        format!(
            "  config: {}\n{}{}{}{}",
            one_line(&config),
            match choice.digits {
                None => String::new(),
                Some(digits) =>
                    format!("  vectors: {digits} digits each, made by the first launch\n"),
            },
            passes_line(&config, &shape, digits),
            match workspace {
                0 => String::new(),
                needed => format!("  workspace: {}\n", bytes(needed as usize)),
            },
            launches,
        )
    });
    let of_product = product.map(|product| {
        let Product {
            full_name,
            multiprocessors,
            memory_bandwidth,
            ..
        } = product;
        format!(
            "  GPU: {full_name}, {multiprocessors} SMs, memory of {} GB/s, as published\n",
            memory_bandwidth / 1_000_000_000
        )
    });
    let notes = [&unknown, &other_build].into_iter().flatten();
    let notes: String = notes.map(|note| format!("  note: {note}\n")).collect();
    let kernel = choice.kernel();
    let text = format!(
        "{shape} with {activation} vectors, {layout} scales: {}{}\n  because: {reason}\n{}{}{}\n{}\n\
         reads {} of weights ({} of codes, {} of scales)\n",
        choice.path,
        kernel.map_or(String::new(), |kernel| format!(", kernel {kernel}")),
        chosen.unwrap_or_default(),
        of_product.unwrap_or_default(),
        notes,
        match &gpu {
            Some(_) => table(&kernels, kernel),
            None => without_a_gpu(&kernels),
        },
        bytes(shape.weight_bytes()),
        bytes(shape.weight_code_bytes()),
        bytes(shape.weight_bytes() - shape.weight_code_bytes()),
    );
    Ok(Report::new(
        text,
        json!({
            "m": shape.m(), "n": shape.n(), "k": shape.k(), "l": shape.l(),
            "activation": activation.name(),
            "layout": layout.name(),
            "chained": args.chained,
            "batch_invariant": args.batch_invariant,
            "gpu": product.map(|product| json!({
                "name": product.name,
                "full_name": product.full_name,
                "compute_capability": format!("{}.{}", product.compute_capability.0, product.compute_capability.1),
                "multiprocessors": product.multiprocessors,
                "memory_bandwidth": product.memory_bandwidth,
            })),
            "path": choice.path.name(),
            "kernel": kernel.map(Kernel::name),
            "config": choice.config,
            "vector_accuracy": args.vector_accuracy.name(),
            "digits": choice.digits,
            "workspace_bytes": workspace,
            "reason": reason,
            "other_build": other_build,
            "unknown_gpu": unknown,
            "kernels": kernels.iter().map(Line::json).collect::<Vec<_>>(),
            "weight_bytes": shape.weight_bytes(),
        }),
    ))
}

/// Alignment of allocations.
const ALLOCATED: u64 = 256;

/// Passes over the weights that a config makes for a shape, with so many digits of each vector.
fn passes(config: &Config, shape: &Shape, digits: usize) -> usize {
    (shape.n() * digits).div_ceil(config.pass_vectors() as usize)
}

/// How many there are, where they are several.
fn passes_line(config: &Config, shape: &Shape, digits: usize) -> String {
    match passes(config, shape, digits) {
        0 | 1 => String::new(),
        passes => format!(
            "  passes: {passes} passes over the weights, of at most {}\n",
            count(config.pass_vectors() as usize / digits, "vector")
        ),
    }
}

/// All launches of a call, in their order.
fn all_launches(plan: &[Launch]) -> String {
    let lines = plan
        .iter()
        .map(|launch| format!("  launch: {}\n", launch_line(launch)));
    lines.collect()
}

/// Launches, and of which passes they are where these are several: `plan` has `first` of the first one, and those of
/// the last one.
fn launch_lines(plan: &[Launch], first: usize, passes: usize) -> String {
    let lines: Vec<String> = plan.iter().map(launch_line).collect();
    let (first, last) = lines.split_at(first);
    let named: Vec<(String, &[String])> = match passes {
        0 | 1 => vec![("launch".into(), first)],
        _ if first == last => vec![(format!("launch, {passes} times"), first)],
        2 => vec![("first launch".into(), first), ("last launch".into(), last)],
        _ => vec![
            (format!("launch, {} times", passes - 1), first),
            ("last launch".into(), last),
        ],
    };
    let lines = named.iter().flat_map(|(name, of)| {
        let lines = of.iter();
        lines.map(move |line| format!("  {name}: {line}\n"))
    });
    lines.collect()
}

/// The text in the place of the table where there is no GPU to plan for: all kernels lack the same.
fn without_a_gpu(lines: &[Line]) -> String {
    let why = lines.first().and_then(|line| line.config.as_ref().err());
    let why = why.map_or("", String::as_str);
    format!(
        "no kernel of a GPU: {why}\nfor a GPU that is not in this machine: --gpu NAME, such as h200 or b200 (all names: \
         nvfp4-gemv plan --help)\n"
    )
}

/// The launches of the first pass over the weights and of the last one, and how many are the first's: all others are as
/// the first. That is the plan of a call with one pass of as many vectors as there can be, and the last one.
fn first_and_last(config: &Config, call: &Call, gpu: &Gpu, chained: bool) -> (Vec<Launch>, usize) {
    let (shape, operands) = (call.shape(), call.operands());
    let most = config.pass_vectors() as usize;
    let of_last = (shape.n() - 1) % most + 1;
    let of = |n: usize| {
        let n = shape.n().min(n);
        let fewer = shapes::of(shape.m(), n, shape.k(), shape.l()).expect("sizes are no larger");
        let call = Call::nowhere(
            &fewer,
            operands.activation,
            operands.weight_layout,
            ALLOCATED,
        );
        launches(config, &call, gpu, chained)
    };
    (of(most + of_last), of(most).len())
}

/// A kernel: the config that it would take and its launches, or why it cannot run here.
struct Line {
    kernel: Kernel,
    config: Result<Config, String>,
    /// Passes over the weights.
    passes: Option<usize>,
    /// Launches of the first pass and of the last one.
    launches: Vec<Launch>,
    estimate: Option<Estimate>,
    /// Least time in seconds, where the estimate has no time: what its share gives at the memory's published rate.
    at_published_rate: Option<f64>,
}

impl Line {
    fn of_gpu(call: &Call, gpu: &Gpu, tuned: Option<&Measurements>, chained: bool) -> Vec<Self> {
        let ranked = rank(call.shape(), &call.operands(), gpu, tuned, chained);
        let line = |ranked: nvfp4_gemv::dispatch::Ranked| Self {
            kernel: ranked.kernel,
            passes: ranked
                .config
                .as_ref()
                .ok()
                .map(|config| passes(config, call.shape(), 1)),
            launches: match &ranked.config {
                Ok(config) => first_and_last(config, call, gpu, chained).0,
                Err(_) => Vec::new(),
            },
            config: ranked.config.map_err(|why| why.to_string()),
            estimate: ranked.estimate,
            at_published_rate: None,
        };
        ranked.into_iter().map(line).collect()
    }

    fn without_gpu(no_gpu: Option<&Error>) -> Vec<Self> {
        let why = match no_gpu {
            Some(why) => engine::reason_of(why),
            None => Refusal::OperandsOnHost.to_string(),
        };
        let line = |&kernel: &Kernel| Self {
            kernel,
            config: Err(why.clone()),
            passes: None,
            launches: Vec::new(),
            estimate: None,
            at_published_rate: None,
        };
        Kernel::ALL.iter().map(line).collect()
    }

    fn at_published_rate(&mut self, shape: &Shape, product: &Product) {
        let read = shape.weight_bytes() as f64 / product.memory_bandwidth as f64;
        let untimed = self.estimate.filter(|estimate| estimate.seconds.is_none());
        self.at_published_rate = untimed.map(|estimate| read / estimate.share);
    }

    fn json(&self) -> Value {
        let estimate = self.estimate.as_ref();
        json!({
            "kernel": self.kernel.name(),
            "path": self.kernel.path().name(),
            "available": self.config.is_ok(),
            "why_not": self.config.as_ref().err(),
            "seconds": estimate.and_then(|estimate| estimate.seconds),
            "seconds_at_published_rate": self.at_published_rate,
            "share_of_ceiling": estimate.map(|estimate| estimate.share),
            "is_bound": estimate.map(|estimate| estimate.evidence.is_bound()),
            "evidence": estimate.map(|estimate| estimate.evidence.to_string()),
            "config": self.config.as_ref().ok(),
            "passes": self.passes,
            "launches_of_passes": self.passes.map(|passes| [1, passes]),
            "launches": self.launches,
        })
    }
}

fn table(lines: &[Line], chosen: Option<Kernel>) -> String {
    let mut table = Table::new(["  kernel", "time", "share"]);
    let mut notes = vec![String::new()];
    for line in lines {
        let kernel = line.kernel;
        let mark = if Some(kernel) == chosen { '*' } else { ' ' };
        let estimate = line.estimate.as_ref();
        let bound = estimate.is_some_and(|estimate| estimate.evidence.is_bound());
        let (more, less) = if bound { (">", "<") } else { ("", "") };
        let seconds = estimate.and_then(|estimate| estimate.seconds);
        let seconds = seconds.map(|seconds| format!("{more}{}", time(seconds)));
        let at_least = line
            .at_published_rate
            .map(|seconds| format!(">{}", time(seconds)));
        table.row(vec![
            format!("{mark} {kernel}"),
            seconds.or(at_least).unwrap_or("-".into()),
            estimate.map_or("-".into(), |e| format!("{less}{:.0}%", 100.0 * e.share)),
        ]);
        let evidence = estimate.map(|estimate| estimate.evidence.to_string());
        let why_not = line.config.as_ref().err();
        let why_not = why_not.map(|why| format!("not available: {why}"));
        let note: Vec<String> = evidence.into_iter().chain(why_not).collect();
        notes.push(note.join("; "));
    }
    table.with_notes(&notes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "jit")]
    #[test]
    fn a_build_without_code_for_a_gpu_plans_for_what_it_compiles() {
        let there = |compiled, compute_capability| {
            let there = Where::elsewhere(compiled, compute_capability);
            (there.gpu.unwrap().images, there.other_build)
        };
        assert_eq!(there("90a", (9, 0)), ("90a", None));
        assert_eq!(there("90a", (10, 0)), ("100a", None));
        assert_eq!(there("", (8, 9)), ("89", None));
    }

    #[cfg(not(feature = "jit"))]
    #[test]
    fn a_build_without_code_for_a_gpu_plans_for_one_that_has_it() {
        let there = |compiled, compute_capability| {
            let there = Where::elsewhere(compiled, compute_capability);
            (there.gpu.unwrap().images, there.other_build)
        };
        assert_eq!(there("90a", (9, 0)), ("90a", None));
        // Too old for every kernel: no build would help, and the dispatch says so.
        assert_eq!(there("90a", (7, 5)), ("90a", None));
        let (archs, note) = there("90a", (10, 0));
        assert_eq!(archs, Gpu::DEFAULT_IMAGES);
        let note = note.unwrap();
        assert!(
            note.contains("no code for compute capability 10.0, only for 90a"),
            "{note}"
        );
        let (archs, note) = there("90a", (11, 0));
        assert_eq!(archs, "110a");
        assert!(note.unwrap().contains("NVFP4_GEMV_ARCHS=\"110a\""));
        let (archs, note) = there("", (10, 0));
        assert_eq!(archs, Gpu::DEFAULT_IMAGES);
        assert!(note.unwrap().contains("carries no kernels"));
    }
}
