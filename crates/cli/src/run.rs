//! `run`: computes a layer of a checkpoint.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use nvfp4_gemv::checkpoint::{AnyCheckpoint, Checkpoint};
use nvfp4_gemv::reference::Reference;
use nvfp4_gemv::{Activation, FloatType, Kernel, ScaleLayout, Shape};
use nvfp4_gemv_cli::file::{self, NewTensor};
use nvfp4_gemv_files::printable;
use serde_json::{Value, json};

use crate::destination::output;
use crate::engine::{self, AskArgs, Budget, Inputs, Operands};
use crate::inputs::Source;
use crate::layer::{OpenLayer, inputs_of};
use crate::measure::{Check, truth};
use crate::notes;
use crate::report::{Report, bytes, number};
use crate::shapes::{self, parse_n};

/// Computes a layer of an NVFP4 checkpoint; shows path, reason, time, GB/s and the error against
/// f64
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The vectors are, in this order: --input, --random, the layer's own `test_input` tensor where the \
checkpoint has one, random ones. With --activation nvfp4 they are quantised first, and the error \
is measured against f64 of the quantised operands; what quantising itself changed is shown beside \
it. A result that its type does not hold (more than 65504 in f16) fails. Notes on what the \
checkpoint says go to stderr. Times are medians with everything in memory already: on the CPU of single calls; on a GPU of samples \
for 0.2 seconds, each of which is the median of 11 replays of a CUDA graph of 40 launches, divided by the launches, so that \
what the host does for a call is not in it. A small layer is then served by caches, and `nvfp4-gemv bench` is what measures memory.

Examples:
  nvfp4-gemv run --checkpoint model.safetensors --layer encoder.layer.0.output.dense
  nvfp4-gemv run --checkpoint model/ --layer model.layers.0.mlp.down_proj --random 1 --n 4 \\
      --activation bf16 --path cuda-core
  nvfp4-gemv run --checkpoint m.safetensors --layer fc1 --input x.safetensors:x \\
      --output y.safetensors
  nvfp4-gemv run --checkpoint model.gguf --layer model.layers.0.mlp.down_proj --activation f16")]
pub(crate) struct Args {
    /// Checkpoint: a .safetensors file, its index, a directory, or a GGUF file
    #[arg(long, value_name = "F")]
    checkpoint: PathBuf,
    /// The layer's name, without `.weight`
    #[arg(long, value_name = "PREFIX")]
    layer: String,
    /// Vectors from a tensor [N, K] or [K] of a safetensors file
    #[arg(long, value_name = "F:TENSOR", conflicts_with = "random")]
    input: Option<String>,
    /// Random vectors between -1 and 1
    #[arg(long, value_name = "SEED")]
    random: Option<u64>,
    /// Element type of the vectors
    #[arg(long, value_parser = shapes::activation(), default_value = "nvfp4")]
    activation: Activation,
    /// How many vectors [default: all rows of the input, or 1]
    #[arg(long, value_parser = parse_n)]
    n: Option<usize>,
    #[command(flatten)]
    ask: AskArgs,
    /// With results whose bits do not depend on the other vectors of a call, nor on their number; no tuned file is
    /// asked
    #[arg(long)]
    batch_invariant: bool,
    /// Element type of the result
    #[arg(long, value_parser = shapes::output_type(), default_value = "f32")]
    output_type: FloatType,
    /// Layout that the weights' scales are given to the path in
    #[arg(long, value_parser = shapes::layout(), default_value = "linear")]
    layout: ScaleLayout,
    /// Write the result as tensor `y` [N, M] of a safetensors file
    #[arg(long, value_name = "F")]
    output: Option<PathBuf>,
    /// Replace the output file if it is there already
    #[arg(long, requires = "output")]
    force: bool,
}

pub(crate) fn run(args: &Args) -> Result<Report> {
    let ask = args.ask.ask()?;
    let ask = ask.batch_invariant(args.batch_invariant);
    let checkpoint = AnyCheckpoint::open(&args.checkpoint)?;
    let layer = OpenLayer::of(&checkpoint, &args.layer)?;
    if let Some(n) = args.n {
        engine::check_memory_of(&layer.shape(n)?)?;
    }
    let input = args.input.as_deref();
    let mut source = Source::find(&layer, input, args.random, args.n)?;
    if let Some(alpha) = layer.column_alpha() {
        source.multiply(alpha);
    }
    let inputs = inputs_of(&checkpoint)
        .into_iter()
        .chain(source.files.clone());
    let output = args.output.as_ref();
    let output = output
        .map(|path| self::output(path, args.force, inputs))
        .transpose()?;
    let shape = layer.shape(source.n)?;
    let activation = args.activation;
    let calibrated = match activation {
        Activation::Nvfp4 => layer.input_global().context(
            "the layer's input scale is not usable; vectors of --activation f32, f16 and bf16 do not need it",
        )?,
        _ => None,
    };
    let (x, scale_from) = source.convert(activation, layer.k(), calibrated)?;
    let operands = operands(&layer, shape, x, args)?;

    let (engine, _) = engine::open(ask.path())?;
    let outcome = engine.compute(&operands, ask)?;
    let y = outcome.y.to_f64();
    let truth = truth(&operands)?;
    let check = Check::derived(&y, &truth, outcome.roundings, operands.output);
    let recorded = recorded(&layer, &source, activation)?.map(|(name, recorded)| {
        let against = Reference {
            y: recorded,
            magnitude: truth.magnitude.clone(),
        };
        let check = Check::derived(&y, &against, outcome.roundings, operands.output);
        (name, check)
    });
    let conversion = conversion(&operands, &source, &truth)?;
    let timing = engine.time(&operands, ask, BUDGET)?;
    let gb_per_s = shape.weight_bytes() as f64 / timing.median / 1e9;
    if let Some(output) = &output {
        let (dtype, bytes) = outcome.y.encoded();
        let tensor = NewTensor::new(dtype, &[shape.n(), shape.m()], &bytes);
        file::write_to(output, [("y".to_owned(), tensor)], None)?;
    }

    let mut text = format!(
        "layer       {} ({}, {})\n\
         shape       M = {}, K = {}, N = {}; {} of weights\n\
         vectors     {activation}, from {}\n",
        printable::text(layer.name()),
        layer.stored(),
        printable::path(layer.path()),
        shape.m(),
        shape.k(),
        shape.n(),
        bytes(shape.weight_bytes()),
        source.from,
    );
    if layer.column_alpha().is_some() {
        text.push_str("            multiplied by the layer's `pre_quant_scale` first\n");
    }
    if let Some(from) = scale_from {
        text.push_str(&format!("            quantised with {from}\n"));
    }
    let kernel = outcome.kernel;
    text.push_str(&format!(
        "path        {}{} on {}\n\
         because     {}\n\
         time        {timing}, {gb_per_s:.1} GB/s\n\
         error       {}\n",
        outcome.path,
        kernel.map_or(String::new(), |kernel| format!(", kernel {kernel},")),
        engine.device(),
        outcome.reason,
        check.text(),
    ));
    if let Some((name, check)) = &recorded {
        text.push_str(&format!(
            "recorded    {} against {}\n",
            check.text(),
            printable::text(name)
        ));
    }
    if let Some(relative) = conversion {
        text.push_str(&format!(
            "{}  the vectors changed the result by {} (relative, root mean square)\n",
            match activation {
                Activation::Nvfp4 => "quantising",
                _ => "rounding  ",
            },
            percent(relative)
        ));
    }
    if let Some(path) = &args.output {
        text.push_str(&format!("written     {}:y\n", printable::path(path)));
    }
    let of_checkpoint = layer.safetensors().map_or(&[][..], Checkpoint::notes);
    let notes = notes::show(of_checkpoint.iter().chain(layer.notes()));
    let passed = check.passed && recorded.as_ref().is_none_or(|(_, check)| check.passed);
    Ok(Report {
        text,
        json: json!({
            "layer": layer.name(),
            "file": layer.path().display().to_string(),
            "dialect": layer.dialect(),
            "m": shape.m(), "n": shape.n(), "k": shape.k(),
            "activation": activation.name(),
            "output_type": operands.output.name(),
            "layout": operands.layout.name(),
            "input": source.from,
            "column_alpha": layer.column_alpha().is_some(),
            "input_scale": scale_from,
            "path": outcome.path.name(),
            "kernel": kernel.map(Kernel::name),
            "reason": outcome.reason,
            "device": engine.device(),
            "seconds": { "median": timing.median, "min": timing.min, "runs": timing.runs(), "samples": timing.samples },
            "weight_bytes": shape.weight_bytes(),
            "gb_per_s": gb_per_s,
            "error": check.json(),
            "recorded": recorded.map_or(Value::Null, |(name, check)| {
                json!({ "tensor": name, "error": check.json() })
            }),
            "conversion_rms": conversion.map_or(Value::Null, number),
            "quantisation_rms": match activation {
                Activation::Nvfp4 => conversion.map_or(Value::Null, number),
                _ => Value::Null,
            },
            "output": args.output.as_ref().map(|path| path.display().to_string()),
            "notes": notes,
            "passed": passed,
        }),
        passed,
    })
}

/// A median of many calls, but no waiting.
const BUDGET: Budget = Budget {
    runs: 11,
    time: Duration::from_millis(200),
};

/// The layer and the vectors, as an engine takes them.
fn operands<'a>(
    layer: &'a OpenLayer<'_>,
    shape: Shape,
    mut x: Inputs,
    args: &Args,
) -> nvfp4_gemv::Result<Operands<'a>> {
    let layout = args.layout;
    let in_layout = |linear: Cow<'a, [u8]>, rows: usize| match layout {
        ScaleLayout::Linear => Ok(linear),
        layout => {
            nvfp4_gemv::convert_scales(&linear, ScaleLayout::Linear, layout, rows, shape.k(), 1)
                .map(Cow::Owned)
        }
    };
    let scales = match layer.layout() == layout {
        true => layer.scales().into(),
        false => {
            let (from, rows, k) = (layer.layout(), shape.m(), shape.k());
            nvfp4_gemv::convert_scales(layer.scales(), from, layout, rows, k, 1)?.into()
        }
    };
    if let Inputs::Nvfp4 {
        scales,
        layout: of_vectors,
        ..
    } = &mut x
    {
        *scales = in_layout(std::mem::take(scales).into(), shape.n())?.into_owned();
        *of_vectors = layout;
    }
    Ok(Operands {
        shape,
        codes: layer.codes().into(),
        scales,
        layout,
        global: layer.global(),
        row_alpha: layer.row_alpha().map(Into::into),
        x,
        output: args.output_type,
    })
}

/// The result that the checkpoint records for its test input, where that is what was computed.
fn recorded(
    layer: &OpenLayer<'_>,
    source: &Source,
    activation: Activation,
) -> Result<Option<(String, Vec<f64>)>> {
    let name = format!("{}.test_output_w4a16_f64", layer.name());
    let tensor = layer.safetensors().and_then(|of| of.tensor(&name));
    let Some(tensor) = tensor else {
        return Ok(None);
    };
    if !source.is_test_input || activation != Activation::F32 {
        return Ok(None);
    }
    let mut y = tensor.to_f64()?;
    let rows = layer.shape(1)?.m();
    y.truncate(source.n * rows);
    if y.len() != source.n * rows {
        let expected = format!("F64 [{} or more, {rows}]", source.n);
        return Err(tensor.wrong(expected).into());
    }
    Ok(Some((name, y)))
}

/// How much the conversion of the vectors changed the true result: root of the mean square of the
/// difference, over that of the result of the vectors as they were. Nothing where it changed nothing.
fn conversion(
    operands: &Operands<'_>,
    source: &Source,
    converted: &Reference,
) -> nvfp4_gemv::Result<Option<f64>> {
    let is_exact = match &operands.x {
        Inputs::Nvfp4 { .. } => false,
        Inputs::F16(x) => x.iter().zip(&source.values).all(|(a, b)| a.to_f32() == *b),
        Inputs::Bf16(x) => x.iter().zip(&source.values).all(|(a, b)| a.to_f32() == *b),
        Inputs::F32(_) => true,
    };
    if is_exact {
        return Ok(None);
    }
    let original = truth(&Operands {
        x: Inputs::F32(source.values.clone()),
        ..operands.clone()
    })?;
    let square = |y: &mut dyn Iterator<Item = f64>| y.map(|y| y * y).sum::<f64>();
    let pairs = original.y.iter().zip(&converted.y);
    let difference = square(&mut pairs.map(|(a, b)| a - b));
    let size = square(&mut original.y.iter().copied());
    let relative = (difference / size).sqrt();
    Ok(relative.is_finite().then_some(relative))
}

/// A share; the digits of small ones count.
fn percent(share: f64) -> String {
    match share {
        s if s >= 1e-3 => format!("{:.2}%", 100.0 * s),
        s => format!("{:.1e}%", 100.0 * s),
    }
}
