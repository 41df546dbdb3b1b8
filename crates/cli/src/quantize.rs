//! `quantize`: a checkpoint of f32, f16 or bf16 weights becomes one of NVFP4 weights.

mod calibration;
mod choice;
mod directory;
mod item;
mod label;
mod partial;
mod rope;

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Result, bail};
use indicatif::ProgressBar;
use nvfp4_gemv::checkpoint::{Checkpoint, Dialect};
use nvfp4_gemv::file::Tensor;
use nvfp4_gemv::quantize::{Quantized, quantize};
use nvfp4_gemv::{BLOCK, GlobalScale};
use nvfp4_gemv_cli::file::{self, Content, NewTensor, WriteError};
use nvfp4_gemv_files::printable;
use safetensors::Dtype;
use serde_json::json;

use crate::destination::{files_of, output};
use crate::notes;
use crate::report::{Report, bytes, count, progress};
use crate::shapes;
use choice::{Copied, check_patterns, listed};
pub(crate) use directory::fused;

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
    let tensors = || checkpoint.files().iter().flat_map(|file| file.tensors());
    check_patterns(args, tensors().map(|tensor| tensor.name()))?;
    // One that is not read says nothing of the model.
    let config = directory::config_of(&checkpoint).unwrap_or_default();
    let has_conv1d = choice::has_conv1d(&config.into());
    let why_copied = |tensor: &Tensor<'_>| choice::why_copied(tensor, has_conv1d, args);
    let chosen = |tensor: &Tensor<'_>| why_copied(tensor).is_none();
    let chosen_tensors = tensors().filter(chosen).count();
    if chosen_tensors == 0 {
        let mut none = Copied::default();
        for tensor in tensors() {
            let why = why_copied(&tensor).unwrap_or_default();
            none.add(tensor.name(), why);
        }
        bail!(
            "{}: nothing to quantise: no tensor `*.weight` of type F32, F16 or BF16 and shape \
             [M, K] with K a multiple of 16 is included and not excluded\n{}",
            printable::path(&args.input),
            none.text("not quantised").trim_end()
        );
    }

    // First pass: all that can go wrong with the data, and what is small. Codes are made again
    // when they are written, so that a model larger than memory can be quantised. They only mean
    // something with the scales of the first pass, so both passes have to find the same ones.
    let bar = progress(2 * chosen_tensors as u64, "quantising");
    let mut out: Vec<(String, Piece<'_>)> = Vec::new();
    let (mut before, mut after) = (0, 0);
    let mut copied = Copied::default();
    let (mut taken, mut left) = (Vec::new(), Vec::new());
    for tensor in tensors() {
        if let Some(why) = why_copied(&tensor) {
            copied.add(tensor.name(), why);
            left.extend(label::module_left(&checkpoint, &tensor));
            out.push((tensor.name().into(), Piece::Copy(tensor)));
            continue;
        }
        bar.set_message(printable::text(tensor.name()).to_string());
        let name = tensor.name();
        let layer = name.strip_suffix(".weight").unwrap_or(name);
        taken.push(layer.to_owned());
        let quantized = quantise(&tensor, dialect, None)?;
        let (rows, blocks) = (quantized.rows, quantized.k / BLOCK);
        before += tensor.bytes().len();
        after += quantized.codes.len() + quantized.scales.len();
        let global = quantized.global;
        let scales: Rc<[u8]> = quantized.scales.into();
        out.push((
            format!("{layer}.{}", dialect.scales()),
            Piece::Scales {
                shape: [rows, blocks],
                bytes: Rc::clone(&scales),
            },
        ));
        let shape: &[usize] = match dialect {
            Dialect::ModelOpt => &[],
            Dialect::CompressedTensors => &[1],
        };
        out.push((
            format!("{layer}.{}", dialect.global()),
            Piece::New(NewTensor::f32(shape, &[global.stored()])),
        ));
        out.push((
            format!("{layer}.{}", dialect.codes()),
            Piece::Codes {
                shape: [rows, quantized.k / 2],
                tensor,
                dialect,
                global,
                scales,
                bar: bar.clone(),
            },
        ));
        bar.inc(1);
    }
    refuse_collisions(&out)?;
    let metadata = label::metadata(&checkpoint, dialect, &taken, left);
    let written = file::write_to(&output, out, Some(metadata))?;
    bar.finish_and_clear();
    let notes = notes::show(checkpoint.notes().iter());

    Ok(Report::new(
        format!(
            "{} quantised ({} to {}), {} copied\n  quantised: {}\n{}written {} ({}, {dialect})\n",
            count(chosen_tensors, "weight"),
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
            "quantised": chosen_tensors,
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

/// A weight in NVFP4; errors name the file and the tensor.
fn quantise(
    tensor: &Tensor<'_>,
    dialect: Dialect,
    global: Option<GlobalScale>,
) -> Result<Quantized, WriteError> {
    let &[rows, k] = tensor.shape() else {
        return Err(tensor.wrong("[M, K]").into());
    };
    quantize(&tensor.to_f32_widened()?, rows, k, dialect, global)
        .map_err(|error| not_converted(tensor, error.to_string()))
}

/// Why the second pass refuses a tensor.
const CHANGED: &str = "the input has changed while it was read";

fn not_converted(tensor: &Tensor<'_>, reason: String) -> WriteError {
    WriteError::Conversion {
        file: tensor.file().path().into(),
        tensor: tensor.name().into(),
        reason,
    }
}

/// A tensor of the output.
enum Piece<'a> {
    Copy(Tensor<'a>),
    New(NewTensor<'a>),
    /// The block scales of the first pass.
    Scales {
        shape: [usize; 2],
        bytes: Rc<[u8]>,
    },
    /// Codes, made when they are written, for the scales of the first pass.
    Codes {
        shape: [usize; 2],
        tensor: Tensor<'a>,
        dialect: Dialect,
        global: GlobalScale,
        scales: Rc<[u8]>,
        bar: ProgressBar,
    },
}

impl Content for Piece<'_> {
    fn dtype(&self) -> Dtype {
        match self {
            Self::Copy(tensor) => tensor.dtype(),
            Self::New(tensor) => tensor.dtype,
            Self::Scales { .. } => Dtype::F8_E4M3,
            Self::Codes { .. } => Dtype::U8,
        }
    }

    fn shape(&self) -> &[usize] {
        match self {
            Self::Copy(tensor) => tensor.shape(),
            Self::New(tensor) => &tensor.shape,
            Self::Scales { shape, .. } | Self::Codes { shape, .. } => shape,
        }
    }

    fn bytes(&self) -> Result<Cow<'_, [u8]>, WriteError> {
        match self {
            Self::Copy(tensor) => Ok(tensor.bytes().into()),
            Self::New(tensor) => tensor.bytes(),
            Self::Scales { bytes, .. } => Ok(Cow::Borrowed(bytes)),
            Self::Codes {
                tensor,
                dialect,
                global,
                scales,
                bar,
                ..
            } => {
                bar.inc(1);
                let again = quantise(tensor, *dialect, Some(*global))?;
                // Other programs can write to the input while it is mapped.
                if again.scales[..] != scales[..] {
                    return Err(not_converted(tensor, CHANGED.into()));
                }
                Ok(again.codes.into())
            }
        }
    }

    fn byte_len(&self) -> usize {
        match self {
            Self::Copy(tensor) => tensor.bytes().len(),
            Self::New(tensor) => tensor.bytes.len(),
            Self::Scales { bytes, .. } => bytes.len(),
            Self::Codes { shape, .. } => shape[0] * shape[1],
        }
    }
}

/// A tensor that is copied may have the name of one that is made.
fn refuse_collisions(out: &[(String, Piece<'_>)]) -> Result<()> {
    let mut seen = HashSet::new();
    match out.iter().find(|(name, _)| !seen.insert(name)) {
        Some((name, _)) => {
            bail!("the output would have two tensors {name:?}; the input is quantised already")
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use nvfp4_gemv::file::TensorFile;

    use super::*;

    /// The scales of the first pass are in the output, so codes for other scales would be wrong.
    #[test]
    fn codes_are_refused_if_the_input_has_other_scales_by_then() {
        let folder = tempfile::tempdir().unwrap();
        let pass = |name: &str, values: &[f32]| {
            let path = folder.path().join(name);
            let tensors = [(String::from("a.weight"), NewTensor::f32(&[2, 32], values))];
            file::write(&path, tensors, None).unwrap();
            TensorFile::open(&path).unwrap()
        };
        let first = pass("first", &[0.5; 64]);
        let second = pass("second", &[0.25; 64]);
        let tensor = first.get("a.weight").unwrap();
        for dialect in Dialect::ALL {
            let quantized = quantise(&tensor, dialect, None).unwrap();
            let scales: Rc<[u8]> = quantized.scales.into();
            let codes_of = |tensor| Piece::Codes {
                shape: [2, 16],
                tensor,
                dialect,
                global: quantized.global,
                scales: Rc::clone(&scales),
                bar: ProgressBar::hidden(),
            };
            let same = codes_of(first.get("a.weight").unwrap());
            assert_eq!(same.bytes().unwrap(), quantized.codes);
            let changed = codes_of(second.get("a.weight").unwrap());
            let error = changed.bytes().unwrap_err();
            assert!(matches!(error, WriteError::Conversion { .. }), "{error}");
            assert!(error.to_string().contains(CHANGED), "{error}");
        }
    }
}
