//! `quantize`: a checkpoint of f32, f16 or bf16 weights becomes one of NVFP4 weights.

mod calibration;
mod choice;
mod directory;
mod item;
mod label;
mod partial;
mod rope;

use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Result, bail};
use nvfp4_gemv::checkpoint::{Checkpoint, Dialect};
use nvfp4_gemv_cli::file;
use nvfp4_gemv_files::printable;
use serde_json::json;

use crate::destination::{files_of, output};
use crate::notes;
use crate::report::{Report, bytes, count, progress};
use crate::shapes;
use choice::{check_patterns, listed};
pub(crate) use directory::fused;
use item::{Maker, Plan, Sizes};

/// Quantises the 2-D weights of a safetensors checkpoint to NVFP4 and copies everything else
#[derive(Debug, clap::Args)]
#[command(after_help = help())]
pub(crate) struct Args {
    /// A .safetensors file, an index, or a directory; several files become one, but with --to
    input: PathBuf,
    /// The .safetensors file to write
    #[arg(required_unless_present = "to", conflicts_with = "to")]
    output: Option<PathBuf>,
    /// The directory to write instead, a file for each of the input, with configs; the input may be a GGUF file too
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// With --to: the parts of a fused layer (q, k and v; gate and up) share the largest one's global scale
    #[arg(long, requires = "to")]
    share_scales: bool,
    /// With --to: a file of statistics of the vectors that layers meet, which decide how elements are rounded
    #[arg(long, value_name = "FILE", requires = "to")]
    calibration: Option<PathBuf>,
    /// Whose tensor names, and whose arithmetic
    #[arg(long, value_parser = shapes::dialect(), default_value = "modelopt")]
    dialect: Dialect,
    /// Quantise only tensors that match one of these
    #[arg(long, value_name = "PATTERN")]
    include: Vec<String>,
    /// Do not quantise tensors that match one of these, instead of those below; `none` for all to be quantised
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Replace the output file if it is there already
    #[arg(long, conflicts_with = "to")]
    force: bool,
}

fn help() -> String {
    let by_default: String = choice::BY_DEFAULT
        .iter()
        .map(|(what, patterns)| format!("  {what}: {}\n", patterns))
        .collect();
    format!(
        "\
Quantised are tensors named `*.weight` of type F32, F16 or BF16 and shape [M, K] with K a multiple \
of 16. With --to they are also experts that are stacked in one tensor of three dimensions, which become a layer each. \
Everything else is copied as it is, and the report says what and why. Without --exclude these are copied:
{by_default}
The arithmetic is the tool's whose dialect is written. The output is labelled as weights only (W4A16_NVFP4, or no \
`input_activations`), with the names of the layers that are not quantised. An input that has layers of another \
dialect is refused. The output appears under its name when it is complete; \
whatever fails, no half-written file is left, except after SIGKILL, or where the input goes away while it \
is read (SIGBUS), on file systems without unnamed temporary files. A pipe or a device such as \
/dev/null is written in place; \
the input's own files are never replaced.

With --to the output is a directory: a file of layers for each of the input's, an index, config.json, \
hf_quant_config.json for modelopt, and the input directory's other small files. It is written beside its place, under \
the hidden name .NAME.partial, one matrix at a time, and gets its name when it is complete. After a failure the same \
command goes on with the files that are missing. The report says how far each layer moved: the root of the sum of \
squared differences over that of the elements. The rows and columns of stacked experts are told apart by the \
`hidden_size` of config.json. Matrices of a GGUF file become NVFP4, what is NVFP4 already is repacked, and what stays \
is written as F32, F16 or BF16; tokenizers are not converted.

A file of --calibration is a safetensors file with a tensor for each set of vectors: [K], the mean of each column's \
square, or [K, K], the mean product of each pair of columns. Its name has the names of the layers that meet these \
vectors, joined by `+`. Each layer that is quantised needs one. examples/llama collects them (--collect).

Patterns are matched against the whole tensor name; `*` stands for any characters, `?` for one, and `*.` at the \
beginning also for nothing. A pattern that matches no tensor is an error.

Examples:
  nvfp4-gemv quantize model.safetensors model-nvfp4.safetensors
  nvfp4-gemv quantize model/ out.safetensors --dialect compressed-tensors
  nvfp4-gemv quantize in.safetensors out.safetensors --include '*.mlp.*' --exclude '*.0.*'
  nvfp4-gemv quantize model/ --to model-nvfp4/ --share-scales
  nvfp4-gemv quantize model.Q8_0.gguf --to model-nvfp4/
  nvfp4-gemv quantize model.Q8_0.gguf --to model-nvfp4/ --calibration statistics.safetensors"
    )
}

pub(crate) fn run(args: &Args) -> Result<Report> {
    let dialect = args.dialect;
    let path = match (&args.to, &args.output) {
        (Some(to), _) => return directory::run(args, to),
        (None, Some(output)) => output,
        (None, None) => bail!("name the file to write, or --to a directory"),
    };
    let checkpoint = Checkpoint::open(&args.input)?;
    let inputs = files_of(&checkpoint).into_iter();
    let inputs = inputs.chain(checkpoint.config_files().to_vec());
    let output = output(path, args.force, inputs)?;
    label::refuse_another_dialect(&checkpoint, dialect)?;
    let tensors = checkpoint.files().iter().flat_map(|file| file.tensors());
    check_patterns(args, tensors.map(|tensor| tensor.name()))?;
    // One that is not read says nothing of the model.
    let config = directory::config_of(&checkpoint).unwrap_or_default();
    let mut plan = Plan::of(&checkpoint, &Sizes::of(&config.into()), args);
    plan.refuse_collisions(args)?;
    let shard = plan.joined();
    let copied = &plan.copied;
    if shard.matrices.is_empty() {
        bail!(
            "{}: nothing to quantise: no tensor `*.weight` of type F32, F16 or BF16 and shape \
             [M, K] with K a multiple of 16 is included and not excluded\n{}",
            printable::path(&args.input),
            copied.text("not quantised").trim_end()
        );
    }

    // First pass: all that can go wrong with the data. A matrix is made again when it is written, so that a model larger
    // than memory can be quantised.
    let bar = progress(shard.matrices.len() as u64, "quantising");
    let maker = Rc::new(Maker::new(dialect, None));
    let (mut before, mut after) = (0, 0);
    for matrix in &shard.matrices {
        bar.set_message(printable::text(&matrix.name).to_string());
        let made = maker.alone(matrix)?;
        before += checkpoint
            .tensor(&format!("{}.weight", matrix.name))
            .map_or(0, |tensor| tensor.bytes().len());
        after += made.codes.len() + made.scales.len();
        bar.inc(1);
    }
    bar.set_message("writing");
    let taken: Vec<String> = shard.matrices.iter().map(|of| of.name.clone()).collect();
    let metadata = label::metadata(&checkpoint, dialect, &taken, plan.left.clone());
    let pieces = shard.pieces(&maker, |matrix| vec![Rc::clone(matrix)]);
    let written = file::write_to(&output, pieces, Some(metadata))?;
    bar.finish_and_clear();
    let notes = notes::show(checkpoint.notes().iter());

    Ok(Report::new(
        format!(
            "{} quantised ({} to {}), {} copied\n  quantised: {}\n{}written {} ({}, {dialect})\n",
            count(taken.len(), "weight"),
            bytes(before),
            bytes(after),
            count(copied.count(), "tensor"),
            listed(&taken),
            copied.text("copied"),
            printable::path(path),
            bytes(written as usize),
        ),
        json!({
            "input": args.input.display().to_string(),
            "output": path.display().to_string(),
            "dialect": dialect.name(),
            "quantised": taken.len(),
            "quantised_layers": taken,
            "copied": copied.count(),
            "copied_tensors": copied.json(),
            "bytes_before": before,
            "bytes_after": after,
            "file_bytes": written,
            "notes": notes,
        }),
    ))
}

/// Why an output is not made of an input that other programs write to.
const CHANGED: &str = "the input has changed while it was read";
