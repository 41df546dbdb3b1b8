//! `inspect`: says what is in a checkpoint.

mod gguf;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use nvfp4_gemv::checkpoint::{AnyCheckpoint, Checkpoint, Module, ModuleKind};
use nvfp4_gemv_files::printable;
use serde_json::{Value, json};

use crate::report::{Report, Table, bytes, count};

/// Shows the modules of a checkpoint: kinds, shapes, bytes, what configs say, and where they are wrong
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A module is a weight with all tensors that belong to it, or a tensor that belongs to no weight. Modules whose names \
differ in numbers only, and that are alike, are one line; `*` stands for the numbers. The columns:

  n       how many modules the line is of
  kind    NVFP4, or NVFP4 W4A16 without a scale for vectors; MXFP4 of gpt-oss; FP8; the type of weights that are not quantised; \
`other` for what is no weight (norms, buffers); `refused` for what this program does not compute, with the reason below
  shape   rows and columns in elements; of stacked experts, or of several matrices, with their number in front
  layout  of NVFP4 whose names the tensors have; of FP8 its scales
  config  how config.json, hf_quant_config.json or the file's metadata say that it is quantised; `-` where they say \
nothing

Below the table are the modules that are refused, and the notes: where configs or an index contradict the tensors, and \
what else changes no product. Only headers and configs are read, so that a checkpoint of any size takes seconds; a \
scale that is not usable is found when a layer is opened. A module that is refused is no error of this command.

Of a GGUF file each tensor is listed, with transformers' name where the architecture is known, and the file's own.

Examples:
  nvfp4-gemv inspect model/
  nvfp4-gemv inspect model.safetensors --each
  nvfp4-gemv inspect model/ --json | jq '.modules[] | select(.kind == \"refused\") | .name, .error'")]
pub(crate) struct Args {
    /// A .safetensors file, an index, a directory, or a GGUF file; links of a hub's cache are followed
    path: PathBuf,
    /// A line for each module
    #[arg(long)]
    each: bool,
}

pub(crate) fn run(args: &Args, as_json: bool) -> Result<Report> {
    let checkpoint = match AnyCheckpoint::open(&args.path)? {
        AnyCheckpoint::Safetensors(checkpoint) => *checkpoint,
        AnyCheckpoint::Gguf(file) => return Ok(gguf::show(&file, args.each, as_json)),
    };
    let modules = checkpoint.modules();
    let mut kinds = Kinds::new();
    for module in &modules {
        let (number, bytes) = kinds.entry(module.kind().name()).or_default();
        *number += 1;
        *bytes += module.bytes();
    }
    let tensors = modules.iter().map(|module| module.tensors().len()).sum();
    let all_bytes = kinds.values().map(|(_, bytes)| bytes).sum();

    if !as_json {
        let all = count(tensors, "tensor");
        let text = text(&checkpoint, &modules, &all, all_bytes, &kinds, args.each);
        return Ok(Report::new(text, Value::Null));
    }
    let kinds = kinds.iter().map(|(kind, (number, bytes))| {
        (kind.clone(), json!({ "modules": number, "bytes": bytes }))
    });
    let show = |path: &std::path::Path| path.display().to_string();
    let files = checkpoint.files().iter().map(|file| show(file.path()));
    let configs = checkpoint.config_files().iter().map(|file| show(file));
    Ok(Report::new(
        String::new(),
        json!({
            "path": show(checkpoint.path()),
            "files": files.collect::<Vec<_>>(),
            "config_files": configs.collect::<Vec<_>>(),
            "tensors": tensors,
            "bytes": all_bytes,
            "kinds": kinds.collect::<serde_json::Map<_, _>>(),
            "notes": texts(checkpoint.notes()),
            "modules": modules.iter().map(to_json).collect::<Vec<_>>(),
        }),
    ))
}

/// Modules of each kind, and their bytes.
type Kinds = BTreeMap<String, (usize, usize)>;

fn text(
    checkpoint: &Checkpoint,
    modules: &[Module<'_>],
    tensors: &str,
    all_bytes: usize,
    kinds: &Kinds,
    each: bool,
) -> String {
    let mut lines: BTreeMap<Line, Vec<&Module<'_>>> = BTreeMap::new();
    for module in modules {
        let line = Line::of(module, each);
        lines.entry(line).or_default().push(module);
    }
    let mut text = format!(
        "{}: {}, {}, {}\n",
        printable::path(checkpoint.path()),
        count(checkpoint.files().len(), "file"),
        tensors,
        bytes(all_bytes)
    );
    for file in checkpoint.config_files() {
        text.push_str(&format!("config {}\n", printable::path(file)));
    }
    let mut table = Table::new([
        "\nmodule", "n", "kind", "shape", "bytes", "layout", "config",
    ]);
    let (mut refused, mut notes) = (String::new(), String::new());
    for (line, modules) in &lines {
        table.row(line.cells(modules));
        let of = |text: String| format!("  {text}{}\n", line.others(modules.len()));
        let first = modules[0];
        if let ModuleKind::Refused(error) = first.kind() {
            refused.push_str(&of(error.to_string()));
        }
        notes.extend(first.notes().iter().map(|note| of(note.to_string())));
    }
    let of_all = checkpoint.notes().iter().map(|note| format!("  {note}\n"));
    notes.insert_str(0, &of_all.collect::<String>());
    if !lines.is_empty() {
        text.push_str(&table.to_string());
    }
    for (what, lines) in [("refused", refused), ("notes", notes)] {
        if !lines.is_empty() {
            text.push_str(&format!("\n{what}:\n{lines}"));
        }
    }
    text.push('\n');
    for (kind, (number, of_kind)) in kinds {
        let (number, of_kind) = (count(*number, "module"), bytes(*of_kind));
        text.push_str(&format!("{kind}: {number}, {of_kind}\n"));
    }
    text
}

/// Everything that modules of one line of the table have in common, as it is shown.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    name: String,
    kind: String,
    shape: String,
    layout: String,
    config: String,
    /// Whether there are notes, and how many.
    notes: usize,
}

/// A name with `*` in the place of numbers, or as it is.
fn pattern(name: &str, each: bool) -> String {
    let part = |part| match str::bytes(part).all(|c| c.is_ascii_digit()) && !part.is_empty() {
        true if !each => "*",
        _ => part,
    };
    name.split('.').map(part).collect::<Vec<_>>().join(".")
}

impl Line {
    fn of(module: &Module<'_>, each: bool) -> Self {
        let shape: Vec<String> = module.shape().iter().map(usize::to_string).collect();
        Self {
            name: pattern(module.name(), each),
            kind: module.kind().name(),
            shape: shape.join("x"),
            layout: layout(module.kind()).unwrap_or("-".into()),
            config: module.config().unwrap_or("-").to_owned(),
            notes: module.notes().len(),
        }
    }

    fn cells(&self, modules: &[&Module<'_>]) -> Vec<String> {
        let all = modules.iter().map(|module| module.bytes()).sum();
        vec![
            printable::text(&self.name).to_string(),
            modules.len().to_string(),
            self.kind.clone(),
            self.shape.clone(),
            bytes(all),
            self.layout.clone(),
            printable::text(&self.config).to_string(),
        ]
    }

    /// The modules of which the same is to be said.
    fn others(&self, modules: usize) -> String {
        match modules {
            0 | 1 => String::new(),
            _ => format!(
                "; so {} more of {}",
                modules - 1,
                printable::text(&self.name)
            ),
        }
    }
}

/// How the tensors of a weight lie, or what their scales are of.
fn layout(kind: &ModuleKind) -> Option<String> {
    match kind {
        ModuleKind::Nvfp4 {
            exporter,
            transposed,
            ..
        } => Some(match transposed {
            true => format!("{exporter}, transposed"),
            false => exporter.to_string(),
        }),
        ModuleKind::Fp8 { scales, .. } => Some(scales.to_string()),
        _ => None,
    }
}

fn texts(all: &[impl ToString]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

fn to_json(module: &Module<'_>) -> Value {
    let kind = module.kind();
    json!({
        "name": module.name(),
        "kind": kind.name(),
        "shape": module.shape(),
        "bytes": module.bytes(),
        "layout": layout(kind),
        "dialect": match kind {
            ModuleKind::Nvfp4 { exporter, .. } => Some(exporter.name()),
            _ => None,
        },
        "tensors": module.tensors().iter().map(|tensor| tensor.name()).collect::<Vec<_>>(),
        "config": module.config(),
        "notes": texts(module.notes()),
        "error": match kind {
            ModuleKind::Refused(error) => Some(error.to_string()),
            _ => None,
        },
    })
}
