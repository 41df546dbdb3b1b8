//! `bench`: time per path and problem, as a share of the memory ceiling.

pub(crate) mod document;
mod measure;
pub(crate) mod statistics;
mod suite;

use std::collections::HashMap;

use anyhow::{Result, bail};
use nvfp4_gemv::{Activation, FloatType, Path, ScaleLayout, Shape};

use self::document::Document;
use self::suite::{Suite, SuiteArg};
use crate::engine::{self, Case, Engine, PathArg, Plan};
use crate::report::{Report, Table, bytes, count, progress, time};
use crate::shapes::{ActivationArg, LayoutArg, OutputArg, SYNTAX, parse_n, parse_shape};

/// Measures the paths on each problem, with the share of the memory ceiling measured in the same rounds
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The ceiling, a kernel that only reads as many bytes as the weights have, and every path that can run \
a problem take turns in rounds. A round of a path is one CUDA graph of 48 launches or more over weights \
that no cache holds; on the CPU, 2 ms of calls. A path's share is the median of the rounds' ceiling time / \
time. Quote the share, not the time: times move from machine to machine.

isolated: a launch starts when the one before has ended. chained: programmatic dependent launch, where the \
path has it, for one vector; it reads its weights while the one before still runs.

Without a GPU, --suite measures a few problems on the CPU.

Examples:
  nvfp4-gemv bench
  nvfp4-gemv bench --suite all --json > bench.json    # `cargo xtask bench --from bench.json` draws it
  nvfp4-gemv bench --suite quick --activation nvfp4
  nvfp4-gemv bench --shape 4096,7168 --shape 7168,2048,4 --activation nvfp4 --activation bf16
  nvfp4-gemv bench --path cpu --shape 4096,4096,1,8 --rounds 51")]
pub(crate) struct Args {
    /// A list of problems; the options below replace its parts
    #[arg(long, value_enum)]
    suite: Option<SuiteArg>,
    /// M,K or M,K,L or M,K,L,N, also with `x` between: rows of the weights, elements of a row (a multiple of
    /// 16), batches, vectors a batch; may be repeated [default: the contest's benchmark shapes]
    #[arg(long = "shape", value_name = SYNTAX, value_parser = parse_shape)]
    shapes: Vec<Shape>,
    /// Vectors a batch, of every shape; may be repeated
    #[arg(long, value_parser = parse_n)]
    n: Vec<usize>,
    /// Element type of the vectors; may be repeated [default: nvfp4]
    #[arg(long, value_enum)]
    activation: Vec<ActivationArg>,
    /// Layout of the scales; may be repeated [default: linear]
    #[arg(long, value_enum)]
    layout: Vec<LayoutArg>,
    /// Only this path [default: every path of the GPU; the CPU where there is none]
    #[arg(long, value_enum, default_value = "auto")]
    path: PathArg,
    /// Element type of the result
    #[arg(long, value_enum, default_value = "f16")]
    output_type: OutputArg,
    /// Rounds to measure each problem for, after two to warm up
    #[arg(long, default_value_t = 21, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    rounds: u16,
    /// Rotate over about this many MiB of weights, and never less than 64 times the L2 cache; 0: the same
    /// weights every time
    #[arg(long, value_name = "MIB", default_value_t = DEFAULT_COLD_MIB)]
    cold: usize,
    /// The commit that the program was built from, for the document
    #[arg(long, value_name = "SHA")]
    commit: Option<String>,
    /// Add work to a path's launches, in percent of the weights' bytes: to rehearse a regression
    #[arg(long, value_name = "PATH=PERCENT", value_parser = parse_slow_down, hide = true)]
    slow_down: Vec<(Path, u32)>,
}

const DEFAULT_COLD_MIB: usize = 4096;

/// `PATH=PERCENT`.
fn parse_slow_down(text: &str) -> Result<(Path, u32), String> {
    let (path, percent) = text.split_once('=').ok_or("expected PATH=PERCENT")?;
    let path = path.parse().map_err(|e: nvfp4_gemv::Error| e.to_string())?;
    match percent.parse() {
        Ok(percent) if percent <= 100 => Ok((path, percent)),
        _ => Err("expected 0 to 100 percent".into()),
    }
}

impl Args {
    /// Whether what is measured is no longer the suite.
    fn replaces_parts(&self, forced: Option<Path>) -> bool {
        let lists = [
            self.shapes.is_empty(),
            self.n.is_empty(),
            self.activation.is_empty(),
            self.layout.is_empty(),
        ];
        let whole = lists.iter().all(|is_default| *is_default)
            && self.output_type == OutputArg::F16
            && self.cold == DEFAULT_COLD_MIB
            && forced.is_none_or(|forced| forced == Path::Cpu);
        !whole
    }
}

pub(crate) fn run(args: &Args) -> Result<Report> {
    let forced = args.path.forced()?;
    let (engine, _) = engine::open(forced)?;
    let mut suite = Suite::new(args.suite, engine.paths() == [Path::Cpu]);
    let cases = cases(args, &suite)?;
    if args.replaces_parts(forced) {
        suite.name = "custom";
    }
    let plan = Plan {
        rounds: args.rounds.into(),
        cold_bytes: args.cold.saturating_mul(1 << 20),
    };
    let slowed: HashMap<Path, u32> = args.slow_down.iter().copied().collect();
    let bar = progress(cases.len() as u64, "measuring");
    let mut measured = Vec::with_capacity(cases.len());
    for case in &cases {
        let Case {
            shape,
            activation,
            layout,
            ..
        } = case;
        bar.set_message(format!("{shape} {activation} {layout}"));
        measured.push(measure::case(
            engine.as_ref(),
            case,
            forced,
            &slowed,
            &plan,
        )?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let document = Document {
        schema: document::SCHEMA.into(),
        crate_version: env!("CARGO_PKG_VERSION").into(),
        git_commit: args.commit.clone(),
        date_utc: humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string(),
        host: host(),
        suite: suite.name.into(),
        device: engine.describe(),
        method: document::Method {
            rounds: plan.rounds,
            cold_bytes: plan.cold_bytes,
        },
        slowed_percent: slowed
            .iter()
            .map(|(path, percent)| (path.to_string(), *percent))
            .collect(),
        cases: measured,
    };
    Ok(Report {
        text: text(engine.as_ref(), &document),
        json: serde_json::to_value(&document)?,
        passed: true,
    })
}

/// Every combination that the suite and the options ask for.
fn cases(args: &Args, suite: &Suite) -> Result<Vec<Case>> {
    let n = &args.n;
    let with_n = |shapes: &[(usize, usize, usize)], n: &[usize]| {
        let all = shapes
            .iter()
            .flat_map(|&(m, k, l)| n.iter().map(move |&n| Shape::new(m, n, k, l)));
        all.collect::<nvfp4_gemv::Result<Vec<_>>>()
    };
    let shapes = match (&args.shapes[..], &n[..]) {
        ([], []) => with_n(&suite.shapes, suite.vectors)?,
        ([], n) => with_n(&suite.shapes, n)?,
        (shapes, []) => shapes.to_vec(),
        (shapes, n) => {
            let shapes: Vec<_> = shapes.iter().map(|s| (s.m(), s.k(), s.l())).collect();
            with_n(&shapes, n)?
        }
    };
    let activations = match &args.activation[..] {
        [] => suite.activations.to_vec(),
        some => some.iter().map(|a| Activation::from(*a)).collect(),
    };
    let layouts = match &args.layout[..] {
        [] => suite.layouts.to_vec(),
        some => some
            .iter()
            .map(|layout| ScaleLayout::from(*layout))
            .collect(),
    };
    if let Some(empty) = shapes.iter().find(|shape| shape.is_empty()) {
        bail!("{empty:#} has nothing to measure: M or L is 0");
    }
    let output = FloatType::from(args.output_type);
    let mut cases = Vec::new();
    for &shape in &shapes {
        for &activation in &activations {
            for &layout in &layouts {
                cases.push(Case {
                    shape,
                    activation,
                    layout,
                    output,
                });
            }
        }
    }
    Ok(cases)
}

/// The machine's name, where it says it.
fn host() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// For people.
fn text(engine: &dyn Engine, document: &Document) -> String {
    let mut table = Table::new(&[
        "shape", "vectors", "scales", "path", "bytes", "time", "GB/s", "ceiling", "share", "5..95%",
    ]);
    let mut skipped = Vec::new();
    for case in &document.cases {
        let shape = Shape::new(case.m, case.n, case.k, case.l)
            .map_or_else(|error| error.to_string(), |shape| shape.to_string());
        for path in &case.paths {
            let shares = measure::shares(&case.ceiling.samples_us, &path.samples_us);
            let at = |q| 100.0 * statistics::quantile(&shares, q);
            table.row(vec![
                shape.clone(),
                case.activation.clone(),
                case.layout.clone(),
                label(path),
                bytes(case.weight_bytes),
                time(path.median_us * 1e-6),
                format!("{:.1}", path.gb_per_s),
                format!("{:.1}", case.ceiling.gb_per_s),
                format!("{:.1}%", 100.0 * path.share_of_ceiling),
                format!("{:.1}..{:.1}", at(0.05), at(0.95)),
            ]);
        }
        for path in &case.skipped {
            skipped.push(format!(
                "skipped {shape} with {} vectors, {} scales: {}: {}\n",
                case.activation, case.layout, path.path, path.why
            ));
        }
    }
    let slowed: String = document
        .slowed_percent
        .iter()
        .map(|(path, percent)| format!("slowed down on purpose: {path} by {percent}%\n"))
        .collect();
    // Of a suite, what cannot run is the rule, not the exception.
    if document.suite != "custom" {
        skipped.clear();
    }
    format!(
        "{}, {}\n{slowed}\n{table}* the path that the library picks\n{}",
        engine.device(),
        count(document.method.rounds, "round"),
        skipped.concat(),
    )
}

/// Path, mode where it is not the usual, and a mark where it is picked.
fn label(path: &document::Measured) -> String {
    let chained = match path.mode.as_str() {
        "chained" => " chained",
        _ => "",
    };
    let mark = if path.picked { "*" } else { "" };
    format!("{}{chained}{mark}", path.path)
}
