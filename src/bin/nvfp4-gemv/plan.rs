//! `plan`: which path computes a shape, and why.

use anyhow::Result;
use nvfp4_gemv::path::{Operands, available};
use nvfp4_gemv::{Activation, Path, ScaleLayout, Shape, Target, select};
use serde_json::json;

use crate::engine::{self, PathArg, compiled_archs};
use crate::report::{Report, bytes};
use crate::shapes::{ActivationArg, LayoutArg};

/// Says which path computes a shape, and why; computes nothing
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    nvfp4-gemv plan 4096 7168 1\n  \
    nvfp4-gemv plan 7168 16384 1 --n 4 --activation bf16\n  \
    nvfp4-gemv plan 4096 7168 8 --n 4 --layout 128x4 --compute-capability 10.0   # for a B200")]
pub(crate) struct Args {
    /// Rows of the weights
    m: usize,
    /// Elements of a row, a multiple of 16
    k: usize,
    /// Batches, each with weights of its own
    #[arg(default_value_t = 1)]
    l: usize,
    /// Vectors a batch
    #[arg(long, default_value_t = 1)]
    n: usize,
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
}

/// The architectures of a default build.
const DEFAULT_ARCHS: &str = env!("NVFP4_GEMV_DEFAULT_ARCHS");

fn parse_capability(text: &str) -> Result<(i32, i32), String> {
    text.split_once('.')
        .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
        .ok_or_else(|| "expected MAJOR.MINOR, for example 10.0".into())
}

pub(crate) fn run(args: &Args) -> Result<Report> {
    let shape = Shape::new(args.m, args.n, args.k, args.l)?;
    let activation = Activation::from(args.activation);
    let layout = ScaleLayout::from(args.layout);
    let operands = Operands::new(activation, layout);
    let forced = args.path.forced()?;
    // A path without a GPU to run it is the dispatch's business here, not an error yet.
    let (target, no_gpu) = match args.compute_capability {
        Some(compute_capability) => {
            let target = Target::Cuda {
                compute_capability,
                archs: match compiled_archs() {
                    // Built without kernels: plan for a build that has the usual ones.
                    "" => DEFAULT_ARCHS,
                    archs => archs,
                },
                model: None,
            };
            (target, None)
        }
        None => {
            let (engine, no_gpu) = engine::open(forced)?;
            (engine.target(), no_gpu)
        }
    };
    let choice = select(&shape, &operands, &target, forced)?;
    let reason = match (&no_gpu, forced) {
        (Some(why), None) => format!("not cuda-core: {}", reason_of(why)),
        _ => choice.reason.to_string(),
    };
    let mut text = format!(
        "{shape} with {activation} vectors: {}\n  because: {reason}\n",
        choice.path
    );
    let mut others = Vec::new();
    for path in Path::ALL.into_iter().filter(|path| *path != choice.path) {
        let why_not = match (&no_gpu, available(path, &shape, &operands, &target)) {
            (Some(why), _) if path != Path::Cpu => Some(reason_of(why)),
            (_, Err(why)) => Some(why.to_string()),
            (_, Ok(())) => None,
        };
        let state = match &why_not {
            Some(why) => format!("not available: {why}"),
            None => "available; ask for it with --path".into(),
        };
        text.push_str(&format!("  {path}: {state}\n"));
        others.push(json!({
            "path": path.name(), "available": why_not.is_none(), "why_not": why_not,
        }));
    }
    text.push_str(&format!(
        "  reads {} of weights ({} of codes, {} of scales)\n",
        bytes(shape.weight_bytes()),
        bytes(shape.weight_code_bytes()),
        bytes(shape.weight_bytes() - shape.weight_code_bytes()),
    ));
    Ok(Report {
        text,
        json: json!({
            "m": shape.m(), "n": shape.n(), "k": shape.k(), "l": shape.l(),
            "activation": activation.name(),
            "layout": layout.name(),
            "path": choice.path.name(),
            "reason": reason,
            "others": others,
            "weight_bytes": shape.weight_bytes(),
        }),
        passed: true,
    })
}

/// Why there is no GPU, without saying twice which path that concerns.
fn reason_of(error: &nvfp4_gemv::Error) -> String {
    match error {
        nvfp4_gemv::Error::PathUnavailable { reason, .. } => reason.to_string(),
        other => other.to_string(),
    }
}
