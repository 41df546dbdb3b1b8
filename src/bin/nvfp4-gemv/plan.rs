//! `plan`: how fast each path is for a shape, as far as is known, and which one computes it.

use std::path::{Path as FilePath, PathBuf};

use anyhow::{Result, bail};
use nvfp4_gemv::path::measured::{self, Measurements};
use nvfp4_gemv::path::{Operands, Ranked, available, rank, select_tuned};
use nvfp4_gemv::tune::{TUNED_VARIABLE, Tuned};
use nvfp4_gemv::{Activation, Choice, Path, ScaleLayout, Shape, Target, Unavailable};
use serde_json::{Value, json};

use crate::engine::{self, PathArg, compiled_archs};
use crate::report::{Report, Table, bytes, time};
use crate::shapes::{ActivationArg, LayoutArg, ShapeArgs, parse_n};

/// Says which path computes a shape, how fast each is, and on what evidence; computes nothing
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Evidence, from the best to the least: the file of tuned configurations (`nvfp4-gemv tune`), `measured on` \
this model of GPU (tables that come with the crate), `after` the nearest problem measured on such a GPU, \
and `modelled` from the machine code and published rates. The share is of what a kernel reaches that only \
reads the weights.

Examples:
  nvfp4-gemv plan 4096,7168
  nvfp4-gemv plan 7168,16384 --n 4 --activation bf16
  nvfp4-gemv plan 4096,7168,8 --layout 128x4 --tuned tuned.json
  nvfp4-gemv plan 4096,7168,8 --layout 128x4 --gpu h200
  nvfp4-gemv plan 4096,7168,8,4 --layout 128x4 --compute-capability 10.0   # for a B200")]
pub(crate) struct Args {
    #[command(flatten)]
    shape: ShapeArgs,
    /// Vectors a batch, in place of the shape's
    #[arg(long, value_parser = parse_n)]
    n: Option<usize>,
    /// Element type of the vectors
    #[arg(long, value_enum, default_value = "nvfp4")]
    activation: ActivationArg,
    /// Layout of the block scales
    #[arg(long, value_enum, default_value = "linear")]
    layout: LayoutArg,
    /// Ask for a path instead of the automatic choice
    #[arg(long, value_enum, default_value = "auto")]
    path: PathArg,
    /// Plan for a GPU of this compute capability instead of this machine
    #[arg(long, value_name = "MAJOR.MINOR", value_parser = parse_capability)]
    compute_capability: Option<(i32, i32)>,
    /// Plan for a GPU that this crate comes with measurements of: a part of its name
    #[arg(long, value_name = "NAME", conflicts_with = "compute_capability")]
    gpu: Option<String>,
    /// A file of `nvfp4-gemv tune`; without a GPU, plans for the one it was made on [default:
    /// NVFP4_GEMV_TUNED, or none]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["compute_capability", "gpu"])]
    tuned: Option<PathBuf>,
}

/// The architectures of a default build.
const DEFAULT_ARCHS: &str = env!("NVFP4_GEMV_DEFAULT_ARCHS");

fn parse_capability(text: &str) -> Result<(i32, i32), String> {
    text.split_once('.')
        .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
        .ok_or_else(|| "expected MAJOR.MINOR, for example 10.0".into())
}

/// What a plan is for.
struct Where {
    target: Target,
    tuned: Option<Measurements>,
    /// Why this machine has no GPU, if it is for this machine.
    no_gpu: Option<nvfp4_gemv::Error>,
    /// What this build lacks for it, and what build the plan is for instead.
    other_build: Option<String>,
}

impl Where {
    /// A GPU that is not in this machine, and perhaps not in this build.
    fn elsewhere(
        compiled: &'static str,
        compute_capability: (i32, i32),
        model: Option<&'static str>,
        tuned: Option<Measurements>,
    ) -> Self {
        let target = |archs| Target::Cuda {
            compute_capability,
            archs,
            model,
        };
        let archs = archs_for(compiled, compute_capability);
        let (major, minor) = compute_capability;
        let other_build = (archs != compiled).then(|| {
            let lacks = match compiled {
                "" => "this build carries no kernels".into(),
                compiled => format!(
                    "this build has no code for compute capability {major}.{minor}, only for {compiled}"
                ),
            };
            format!("{lacks}; planned for a build with NVFP4_GEMV_ARCHS=\"{archs}\"")
        });
        Self {
            target: target(archs),
            tuned,
            no_gpu: None,
            other_build,
        }
    }
}

/// The architectures to plan with for a GPU: this build's, where it has code for the GPU at all, else a
/// default build's, else the GPU's own.
fn archs_for(compiled: &'static str, compute_capability: (i32, i32)) -> &'static str {
    let has_code = |archs: &&'static str| {
        let target = Target::Cuda {
            compute_capability,
            archs,
            model: None,
        };
        // The path that runs on the most devices, and a problem that each of them takes.
        let operands = Operands::new(Activation::Nvfp4, ScaleLayout::Linear);
        let can = |shape| available(Path::CudaCore, &shape, &operands, &target);
        !matches!(
            Shape::gemv(128, 256, 1).map(can),
            Ok(Err(
                Unavailable::NoKernelImage { .. } | Unavailable::BuiltWithoutKernels
            ))
        )
    };
    let known = [compiled, DEFAULT_ARCHS].into_iter().find(has_code);
    known.unwrap_or_else(|| {
        let (major, minor) = compute_capability;
        // Architecture-specific code exists from 9.0 on. One small string for the one plan of a process.
        let suffix = if major >= 9 { "a" } else { "" };
        String::leak(format!("{major}{minor}{suffix}"))
    })
}

fn find_where(args: &Args, forced: Option<Path>) -> Result<Where> {
    let there = |compute_capability, model, tuned| {
        Where::elsewhere(compiled_archs(), compute_capability, model, tuned)
    };
    if let Some(compute_capability) = args.compute_capability {
        return Ok(there(compute_capability, None, None));
    }
    if let Some(name) = &args.gpu {
        let table = builtin(name)?;
        let gpu = &table.machine.gpu;
        return Ok(there(gpu.compute_capability, Some(&gpu.name), None));
    }
    let variable = || std::env::var_os(TUNED_VARIABLE).filter(|file| !file.is_empty());
    let file = args.tuned.clone().or_else(|| variable().map(PathBuf::from));
    // A path without a GPU to run it is the dispatch's business here, not an error yet.
    let opened = engine::open(match file {
        Some(_) => None, // the file's GPU may do
        None => forced,
    })?;
    let (engine, no_gpu) = opened;
    match (file, no_gpu) {
        (Some(file), Some(_)) => {
            let table = Tuned::read_of_any(&file)?.measurements().clone();
            let gpu = &table.machine.gpu;
            let model = measured::builtin_for(&gpu.name, gpu.multiprocessors)
                .map(|table| table.machine.gpu.name.as_str());
            Ok(there(gpu.compute_capability, model, Some(table)))
        }
        (Some(file), None) => Ok(Where {
            target: engine.target(),
            tuned: Some(tuned_here(&file)?),
            no_gpu: None,
            other_build: None,
        }),
        (None, no_gpu) => Ok(Where {
            target: engine.target(),
            tuned: None,
            no_gpu,
            other_build: None,
        }),
    }
}

/// A file that was made on this machine.
#[cfg(feature = "cuda")]
fn tuned_here(file: &FilePath) -> Result<Measurements> {
    use nvfp4_gemv::{raw, tune};
    let machine = tune::machine(&raw::device_info(0)?)?;
    Ok(tune::Tuned::load(file, &machine)?.measurements().clone())
}

#[cfg(not(feature = "cuda"))]
fn tuned_here(file: &FilePath) -> Result<Measurements> {
    bail!(
        "{}: this build has no GPU paths",
        nvfp4_gemv::printable::path(file)
    )
}

/// The built-in table whose GPU's name has such a part.
fn builtin(name: &str) -> Result<&'static Measurements> {
    let has = |table: &&Measurements| {
        let of = table.machine.gpu.name.to_lowercase();
        of.contains(&name.to_lowercase())
    };
    let Some(table) = measured::builtin().iter().find(has) else {
        let names = measured::builtin()
            .iter()
            .map(|t| t.machine.gpu.name.as_str());
        bail!(
            "--gpu {name:?}: measured are {}; --compute-capability plans for others",
            names.collect::<Vec<_>>().join(", ")
        );
    };
    Ok(table)
}

pub(crate) fn run(args: &Args) -> Result<Report> {
    let ShapeArgs(shape) = args.shape;
    let n = args.n.unwrap_or(shape.n());
    let shape = Shape::new(shape.m(), n, shape.k(), shape.l())?;
    let activation = Activation::from(args.activation);
    let layout = ScaleLayout::from(args.layout);
    let operands = Operands::new(activation, layout);
    let forced = args.path.forced()?;
    let Where {
        target,
        tuned,
        no_gpu,
        other_build,
    } = find_where(args, forced)?;
    let tuned = tuned.as_ref();
    let choice = select_tuned(&shape, &operands, &target, forced, tuned)?;
    let reason = match (&no_gpu, forced) {
        (Some(why), None) => format!("not cuda-core: {}", reason_of(why)),
        _ => choice.reason.to_string(),
    };
    let ranked: Vec<Line> = rank(&shape, &operands, &target, tuned)
        .into_iter()
        .map(|ranked| Line::new(ranked, no_gpu.as_ref()))
        .collect();
    let note = other_build.as_ref().map(|note| format!("  note: {note}\n"));
    let text = format!(
        "{shape} with {activation} vectors, {layout} scales: {}\n  because: {reason}\n{}\n{}\n\
         reads {} of weights ({} of codes, {} of scales)\n",
        choice.path,
        note.unwrap_or_default(),
        table(&ranked, &choice),
        bytes(shape.weight_bytes()),
        bytes(shape.weight_code_bytes()),
        bytes(shape.weight_bytes() - shape.weight_code_bytes()),
    );
    let others = ranked.iter().filter(|line| line.ranked.path != choice.path);
    Ok(Report {
        text,
        json: json!({
            "m": shape.m(), "n": shape.n(), "k": shape.k(), "l": shape.l(),
            "activation": activation.name(),
            "layout": layout.name(),
            "path": choice.path.name(),
            "reason": reason,
            "other_build": other_build,
            "paths": ranked.iter().map(Line::json).collect::<Vec<_>>(),
            "others": others.map(Line::json).collect::<Vec<_>>(),
            "weight_bytes": shape.weight_bytes(),
        }),
        passed: true,
    })
}

/// A path, and why it cannot run here.
struct Line {
    ranked: Ranked,
    why_not: Option<String>,
}

impl Line {
    fn new(ranked: Ranked, no_gpu: Option<&nvfp4_gemv::Error>) -> Self {
        let why_not = match no_gpu {
            Some(why) if ranked.path != Path::Cpu => Some(reason_of(why)),
            _ => ranked.available.err().map(|why| why.to_string()),
        };
        Self { ranked, why_not }
    }

    fn json(&self) -> Value {
        let estimate = self.ranked.estimate.as_ref();
        json!({
            "path": self.ranked.path.name(),
            "available": self.why_not.is_none(),
            "why_not": self.why_not,
            "seconds": estimate.and_then(|estimate| estimate.seconds),
            "share_of_ceiling": estimate.map(|estimate| estimate.share),
            "evidence": estimate.map(|estimate| estimate.evidence.to_string()),
            "config": estimate.and_then(|estimate| estimate.config),
        })
    }
}

fn table(lines: &[Line], choice: &Choice) -> String {
    let mut table = Table::new(&["  path", "time", "share"]);
    let mut notes = vec![String::new()];
    for line in lines {
        let path = line.ranked.path;
        let mark = if path == choice.path { '*' } else { ' ' };
        let estimate = line.ranked.estimate.as_ref();
        let seconds = estimate.and_then(|estimate| estimate.seconds);
        table.row(vec![
            format!("{mark} {path}"),
            seconds.map_or("-".into(), time),
            estimate.map_or("-".into(), |e| format!("{:.0}%", 100.0 * e.share)),
        ]);
        let evidence = estimate.map(|estimate| estimate.evidence.to_string());
        let why_not = line
            .why_not
            .as_ref()
            .map(|why| format!("not available: {why}"));
        let unknown = || Some("available".to_owned());
        let note: Vec<String> = match (evidence, why_not) {
            (None, None) => unknown().into_iter().collect(),
            (evidence, why_not) => evidence.into_iter().chain(why_not).collect(),
        };
        notes.push(note.join("; "));
    }
    // The notes are long, and no column.
    let rows = table.to_string();
    rows.lines()
        .zip(notes)
        .map(|(row, note)| format!("{}\n", format!("{row}  {note}").trim_end()))
        .collect()
}

/// Why there is no GPU, without saying twice which path that concerns.
fn reason_of(error: &nvfp4_gemv::Error) -> String {
    match error {
        nvfp4_gemv::Error::PathUnavailable { reason, .. } => reason.to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_code_for_a_gpu_plans_for_one_that_has_it() {
        let there = |compiled, compute_capability| {
            let there = Where::elsewhere(compiled, compute_capability, None, None);
            let Target::Cuda { archs, .. } = there.target else {
                panic!("{:?}", there.target);
            };
            (archs, there.other_build)
        };
        assert_eq!(there("90a", (9, 0)), ("90a", None));
        // Too old for every path: no build would help, and the dispatch says so.
        assert_eq!(there("90a", (7, 5)), ("90a", None));
        let (archs, note) = there("90a", (10, 0));
        assert_eq!(archs, DEFAULT_ARCHS);
        let note = note.unwrap();
        assert!(
            note.contains("no code for compute capability 10.0, only for 90a"),
            "{note}"
        );
        let (archs, note) = there("90a", (12, 1));
        assert_eq!(archs, "121a");
        assert!(note.unwrap().contains("NVFP4_GEMV_ARCHS=\"121a\""));
        let (archs, note) = there("", (10, 0));
        assert_eq!(archs, DEFAULT_ARCHS);
        assert!(note.unwrap().contains("carries no kernels"));
    }
}
