//! `bench`: time per path and shape, as a share of the memory ceiling.

use std::time::Duration;

use anyhow::Result;
use nvfp4_gemv::problem::{CONTEST_BENCHMARKS, Problem};
use nvfp4_gemv::{Activation, FloatType, Path, ScaleLayout, Shape, path, select};
use serde_json::json;

use crate::engine::{self, Budget, Engine, PathArg};
use crate::report::{Report, Table, bytes, progress, time};
use crate::shapes::{ActivationArg, LayoutArg, OutputArg, parse_shape};
use crate::verify::operands;

/// Measures each path on each shape, with the share of the memory ceiling measured in the same run
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The weights are rotated over --cold bytes, so that no cache serves them, and the ceiling is how \
fast this machine reads as many bytes and does nothing else, measured beside each shape in the \
same run. Quote the share, not the time: times move from machine to machine.

Examples:
  nvfp4-gemv bench
  nvfp4-gemv bench --shape 4096,7168 --shape 7168,2048,4 --activation nvfp4 --activation bf16
  nvfp4-gemv bench --path cpu --shape 4096,4096,1,8 --seconds 5 --json")]
pub(crate) struct Args {
    /// M,K or M,K,L or M,K,L,N; may be repeated [default: the contest's benchmark shapes]
    #[arg(long = "shape", value_name = "M,K[,L[,N]]", value_parser = parse_shape)]
    shapes: Vec<Shape>,
    /// Element type of the vectors; may be repeated
    #[arg(long, value_enum, default_value = "nvfp4")]
    activation: Vec<ActivationArg>,
    /// Only this path [default: every path that can run]
    #[arg(long, value_enum, default_value = "auto")]
    path: PathArg,
    /// Element type of the result
    #[arg(long, value_enum, default_value = "f16")]
    output_type: OutputArg,
    /// Layout of the scales
    #[arg(long, value_enum, default_value = "linear")]
    layout: LayoutArg,
    /// Seconds to measure each combination for, at least
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// Rotate over this many MiB of weights, at least
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    cold: usize,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected 0 to 3600".into()),
    }
}

pub(crate) fn run(args: &Args) -> Result<Report> {
    let forced = args.path.forced()?;
    let shapes = match &args.shapes[..] {
        [] => CONTEST_BENCHMARKS
            .iter()
            .map(|&(m, k, l)| Shape::gemv(m, k, l))
            .collect::<nvfp4_gemv::Result<Vec<_>>>()?,
        shapes => shapes.to_vec(),
    };
    let engines = engines(forced)?;
    let combinations: usize = engines.iter().map(|e| e.paths().len()).sum::<usize>()
        * shapes.len()
        * args.activation.len();
    let bar = progress(combinations as u64, "measuring");
    let mut table = Table::new(&[
        "shape", "path", "vectors", "bytes", "time", "GB/s", "ceiling", "share", "runs",
    ]);
    let mut results = Vec::new();
    let mut skipped = Vec::new();
    for engine in &engines {
        for shape in shapes.iter().filter(|shape| !shape.is_empty()) {
            for activation in &args.activation {
                let activation = Activation::from(*activation);
                let dispatch = path::Operands::new(activation, ScaleLayout::from(args.layout));
                let paths = engine.paths().iter();
                for &path in paths.filter(|path| forced.is_none_or(|forced| forced == **path)) {
                    bar.set_message(format!("{shape} {path} {activation}"));
                    match select(shape, &dispatch, &engine.target(), Some(path)) {
                        Ok(_) => {
                            let row = measure(args, engine.as_ref(), shape, activation, path)?;
                            table.row(row.cells());
                            results.push(row.json());
                        }
                        Err(why) if forced.is_none() => skipped.push(format!("{shape}: {why}")),
                        Err(why) => return Err(why.into()),
                    }
                    bar.inc(1);
                }
            }
        }
    }
    bar.finish_and_clear();
    let mut text = String::new();
    for engine in &engines {
        text.push_str(&format!("{}\n", engine.device()));
    }
    text.push_str(&format!("\n{table}"));
    skipped.dedup();
    for line in &skipped {
        text.push_str(&format!("skipped {line}\n"));
    }
    Ok(Report {
        text,
        json: json!({
            "devices": engines.iter().map(|e| e.device()).collect::<Vec<_>>(),
            "results": results,
            "skipped": skipped,
        }),
        passed: true,
    })
}

/// Every engine there is, or the one that the forced path needs.
fn engines(forced: Option<Path>) -> Result<Vec<Box<dyn Engine>>> {
    let mut engines = vec![engine::open(forced)?.0];
    if forced.is_none() && !engines[0].paths().contains(&Path::Cpu) {
        engines.push(engine::open(Some(Path::Cpu))?.0);
    }
    Ok(engines)
}

/// One line of the table.
struct Row {
    shape: Shape,
    path: Path,
    activation: Activation,
    seconds: f64,
    runs: usize,
    gb_per_s: f64,
    ceiling: f64,
}

fn measure(
    args: &Args,
    engine: &dyn Engine,
    shape: &Shape,
    activation: Activation,
    path: Path,
) -> Result<Row> {
    let problem = Problem::full_range(*shape, 1);
    let operands = operands(
        &problem,
        ScaleLayout::from(args.layout),
        activation,
        FloatType::from(args.output_type),
    )?;
    let budget = Budget {
        runs: 5,
        time: Duration::from_secs_f64(args.seconds),
        cold_bytes: args.cold.saturating_mul(1 << 20),
    };
    // The ceiling before and after: what else the machine does changes with time.
    let bytes = shape.weight_bytes();
    let before = engine.read_ceiling(bytes, budget.cold_bytes.max(bytes))?;
    let timing = engine.time(&operands, Some(path), budget)?;
    let after = engine.read_ceiling(bytes, timing.rotated_bytes)?;
    Ok(Row {
        shape: *shape,
        path,
        activation,
        seconds: timing.median,
        runs: timing.runs,
        gb_per_s: shape.weight_bytes() as f64 / timing.median / 1e9,
        ceiling: before.max(after) / 1e9,
    })
}

impl Row {
    fn cells(&self) -> Vec<String> {
        vec![
            self.shape.to_string(),
            self.path.to_string(),
            self.activation.to_string(),
            bytes(self.shape.weight_bytes()),
            time(self.seconds),
            format!("{:.1}", self.gb_per_s),
            format!("{:.1}", self.ceiling),
            format!("{:.0}%", 100.0 * self.gb_per_s / self.ceiling),
            self.runs.to_string(),
        ]
    }

    fn json(&self) -> serde_json::Value {
        let shape = &self.shape;
        json!({
            "m": shape.m(), "n": shape.n(), "k": shape.k(), "l": shape.l(),
            "path": self.path.name(),
            "activation": self.activation.name(),
            "weight_bytes": shape.weight_bytes(),
            "median_seconds": self.seconds,
            "runs": self.runs,
            "gb_per_s": self.gb_per_s,
            "ceiling_gb_per_s": self.ceiling,
            "share_of_ceiling": self.gb_per_s / self.ceiling,
        })
    }
}
