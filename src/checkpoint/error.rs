//! Errors of checkpoints.

use std::path::{Path, PathBuf};

use nvfp4_gemv_files::printable;

use super::{Dialect, Note};
use crate::file::FileError;

/// Why a checkpoint, or a layer of it, cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A file or a tensor is not what it must be.
    #[error(transparent)]
    File(#[from] FileError),
    /// No NVFP4 layer of that name.
    #[error(
        "{}: no NVFP4 layer {layer:?}{}{}",
        printable::path(checkpoint),
        describe(close, *total),
        describe_notes(notes)
    )]
    NoLayer {
        /// The checkpoint's file or directory.
        checkpoint: PathBuf,
        /// The name that was asked for.
        layer: String,
        /// Names of layers that come close.
        close: Vec<String>,
        /// How many NVFP4 layers there are.
        total: usize,
        /// Possible reasons: files that were not opened, quantised layers that are not read.
        notes: Vec<Note>,
    },
    /// The layer is there, and is not NVFP4.
    #[error(
        "{}: layer {layer:?} is not NVFP4: its weight is {found}; expected U8 codes with \
         `weight_scale` and either `weight_scale_2` (ModelOpt) or `weight_global_scale` \
         (compressed-tensors)",
        printable::path(file)
    )]
    NotNvfp4 {
        /// The file that holds the weight.
        file: PathBuf,
        /// The layer.
        layer: String,
        /// Element type and shape of its weight.
        found: String,
    },
    /// Experts whose matrices are one tensor.
    #[error(
        "{}: {layer:?} are stacked experts and no single layer: tensor {tensor:?} is {found}",
        printable::path(file)
    )]
    StackedExperts {
        /// The file that holds the tensor.
        file: PathBuf,
        /// The name that was asked for.
        layer: String,
        /// The tensor of their codes.
        tensor: String,
        /// Its element type and shape.
        found: String,
    },
    /// A layer in MXFP4, not NVFP4.
    #[error(
        "{}: layer {layer:?} is MXFP4, not NVFP4: tensor {tensor:?} is {found}, one scale for 32 elements; \
         `Checkpoint::mxfp4` converts gpt-oss's",
        printable::path(file)
    )]
    Mxfp4 {
        /// The file that holds the scales.
        file: PathBuf,
        /// The layer.
        layer: String,
        /// The tensor of its scales.
        tensor: String,
        /// Its element type and shape.
        found: String,
    },
    /// A row in MXFP4 that NVFP4 does not hold exactly.
    #[error(
        "{}: layer {layer:?}: row {row} of matrix {matrix} is not converted from MXFP4 to NVFP4: {reason}",
        printable::path(file)
    )]
    MxRow {
        /// The file that holds it.
        file: PathBuf,
        /// The layer.
        layer: String,
        /// The matrix of several that are stacked, or 0.
        matrix: usize,
        /// The row.
        row: usize,
        /// Why not.
        reason: String,
    },
    /// A layer that another tool has quantised with names of its own, and to another format than is read.
    #[error(
        "{}: layer {layer:?} is quantised by {tool}, in a way that is not read: tensor {tensor:?} is {found}",
        printable::path(file)
    )]
    OtherTool {
        /// The file that holds the tensor.
        file: PathBuf,
        /// The layer.
        layer: String,
        /// The tool.
        tool: &'static str,
        /// The tensor whose name tells.
        tensor: String,
        /// Its element type and shape.
        found: String,
    },
    /// Tensors of both dialects below the name of one layer. Which are the layer's cannot be told.
    #[error(
        "{}: layer {layer:?} has tensors of two dialects: {:?} ({}) and {:?} ({})",
        printable::path(file),
        tensors[0], Dialect::ModelOpt, tensors[1], Dialect::CompressedTensors,
    )]
    BothDialects {
        /// The file that holds the first.
        file: PathBuf,
        /// The layer.
        layer: String,
        /// One of ModelOpt's, and one of compressed-tensors'.
        tensors: [String; 2],
    },
    /// Codes and block scales that may lie in another way than the dialects' own, and nothing tells which.
    #[error(
        "{}: layer {layer:?}: {}: its block scales may be in the 128x4 layout, and the high nibble of its codes may \
         come first, which cannot be told",
        printable::path(file),
        printable::text(told_by)
    )]
    OtherLayout {
        /// The file that says it.
        file: PathBuf,
        /// The layer.
        layer: String,
        /// The entry or tensor that makes it so.
        told_by: String,
    },
    /// A tensor that makes the layer's product another one.
    #[error(
        "{}: layer {layer:?} is not computed: tensor {tensor:?} {effect}, which this crate does not do",
        printable::path(file)
    )]
    ChangesProduct {
        /// The file that holds the tensor.
        file: PathBuf,
        /// The layer.
        layer: String,
        /// The tensor.
        tensor: String,
        /// The tensor's effect on the product.
        effect: &'static str,
    },
    /// Tensors below a layer's name that are not known. The product might depend on them.
    #[error(
        "{}: layer {layer:?} is not computed: its product might depend on what is not known here: {}",
        printable::path(file),
        quoted_of(tensors, *total)
    )]
    UnknownTensors {
        /// The file that holds the first of them.
        file: PathBuf,
        /// The layer.
        layer: String,
        /// The first of them.
        tensors: Vec<String>,
        /// How many there are.
        total: usize,
    },
    /// A config or metadata say what would make the layer's product another one.
    #[error(
        "{}: layer {layer:?} is not computed: this file {}",
        printable::path(file),
        printable::text(says)
    )]
    Config {
        /// The file that says it.
        file: PathBuf,
        /// The layer.
        layer: String,
        /// The file's statement that would change the product.
        says: String,
    },
    /// Configs or metadata say so much of modules that comparing it with this checkpoint's names would not end soon.
    /// Nothing of the checkpoint was opened.
    #[error("{}: not read: {reason}", printable::path(file))]
    ConfigLimit {
        /// The file that says it, or the most of it.
        file: PathBuf,
        /// The limit, and what is beyond it.
        reason: String,
    },
    /// The index says that a tensor of the layer is in a file that was not opened, or has no such tensor.
    #[error(
        "{}: says that tensor {tensor:?} is in {file:?}, which {}",
        printable::path(index),
        if *opened { "has no such tensor" } else { "was not opened; open the index or its directory" }
    )]
    Elsewhere {
        /// The index.
        index: PathBuf,
        /// The tensor.
        tensor: String,
        /// The file that the index names.
        file: String,
        /// Whether that file was opened.
        opened: bool,
    },
    /// Layers that are no parts of one matrix, or experts that are no matrices of one array.
    #[error(
        "layers {:?} and {:?} are not joined: {}",
        layers[0], layers[1],
        printable::text(reason)
    )]
    Join {
        /// Two of them.
        layers: [String; 2],
        /// The difference.
        reason: String,
    },
    /// No tensor of that name.
    #[error(
        "{}: no tensor {tensor:?}{}",
        printable::path(checkpoint),
        describe_tensors(close)
    )]
    NoTensor {
        /// The checkpoint's file or directory.
        checkpoint: PathBuf,
        /// The name that was asked for.
        tensor: String,
        /// Names of tensors that come close.
        close: Vec<String>,
    },
    /// The index of a sharded checkpoint makes no sense.
    #[error(
        "{}: not a valid index of a sharded checkpoint: {}",
        printable::path(file),
        printable::text(reason)
    )]
    Index {
        /// The index file.
        file: PathBuf,
        /// The fault in the index.
        reason: String,
    },
    /// Files of a checkpoint of several are not there: the index or the other files' names tell.
    #[error(
        "{}: {total} of this checkpoint's files {} missing: {}{}",
        printable::path(directory),
        if *total == 1 { "is" } else { "are" },
        quoted(files),
        if files.len() < *total { ", and more" } else { "" }
    )]
    MissingFiles {
        /// The directory.
        directory: PathBuf,
        /// The first of them.
        files: Vec<String>,
        /// How many there are.
        total: usize,
    },
    /// A directory without safetensors files.
    #[error(
        "{}: no *.safetensors file in this directory{}",
        printable::path(directory),
        describe_folders(folders)
    )]
    Empty {
        /// The directory.
        directory: PathBuf,
        /// Its folders that have such files, as those of a pipeline of several models do.
        folders: Vec<String>,
    },
    /// A directory has several models in GGUF files.
    #[error(
        "{}: several models in GGUF files: {}; open one of these",
        printable::path(directory),
        quoted(files)
    )]
    SeveralGguf {
        /// The directory.
        directory: PathBuf,
        /// A file of each.
        files: Vec<String>,
    },
    /// A directory has several indices, none of which has a usual name.
    #[error(
        "{}: several checkpoints, each with an index: {}; open one of these",
        printable::path(directory),
        quoted(files)
    )]
    SeveralIndices {
        /// The directory.
        directory: PathBuf,
        /// The indices.
        files: Vec<String>,
    },
    /// Two files of one checkpoint hold a tensor of the same name.
    #[error(
        "tensor {tensor:?} is in both {} and {}",
        printable::path(first),
        printable::path(second)
    )]
    Duplicate {
        /// The tensor.
        tensor: String,
        /// One file.
        first: PathBuf,
        /// The other file.
        second: PathBuf,
    },
}

fn describe(close: &[String], total: usize) -> String {
    let names = names(close);
    match (close, total) {
        (_, 0) => "; the checkpoint has no NVFP4 layer at all".into(),
        ([], 1) => "; it has 1 other".into(),
        ([], _) => format!("; it has {total} others"),
        (close, _) if close.len() == total => format!("; it has {names}"),
        _ => format!("; did you mean {names}? ({total} layers in all)"),
    }
}

fn describe_notes(notes: &[Note]) -> String {
    let all = notes.iter().map(|note| format!("; {note}"));
    all.collect()
}

impl CheckpointError {
    /// That these tensors are not known. A few of the names are kept: of layers that are in each other all together have
    /// as many as there are pairs of layers.
    pub(super) fn unknown_tensors(file: &Path, layer: &str, tensors: &[&str]) -> Self {
        Self::UnknownTensors {
            file: file.into(),
            layer: layer.into(),
            tensors: tensors
                .iter()
                .take(NAMED)
                .map(|&name| name.into())
                .collect(),
            total: tensors.len(),
        }
    }
}

/// Names that are shown of several.
const NAMED: usize = 6;

/// Names of tensors or files, the first few of them.
fn quoted(names: &[String]) -> String {
    quoted_of(names, names.len())
}

/// The same of so many, of which these are the first.
fn quoted_of(names: &[String], total: usize) -> String {
    let first = names.iter().take(NAMED).map(|name| format!("{name:?}"));
    let first = first.collect::<Vec<_>>().join(", ");
    match total.saturating_sub(NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

fn describe_folders(folders: &[String]) -> String {
    match folders {
        [] => String::new(),
        folders => format!("; open one of its folders: {}", quoted(folders)),
    }
}

fn describe_tensors(close: &[String]) -> String {
    match close {
        [] => String::new(),
        close => format!("; did you mean {}?", names(close)),
    }
}

fn names(close: &[String]) -> String {
    let names = close.iter().map(|name| printable::text(name).to_string());
    names.collect::<Vec<_>>().join(", ")
}

/// The names that resemble `wanted`, best first: those that contain it, or differ from it, or end in what differs from
/// it, by few characters. None where none does.
pub(super) fn closest<'a>(
    wanted: &str,
    names: impl Iterator<Item = &'a str>,
    most: usize,
) -> Vec<String> {
    if wanted.is_empty() {
        return Vec::new();
    }
    let typed: Vec<char> = wanted.chars().take(LONGEST).collect();
    let few = (typed.len() / 4).clamp(1, 8);
    let parts = wanted.split('.').count();
    let score = |name: &str| {
        if name.contains(wanted) {
            return Some(0);
        }
        let mut dots = name.rmatch_indices('.');
        let end = dots.nth(parts - 1).map_or("", |(dot, _)| &name[dot + 1..]);
        let whole = differing(&typed, name, few);
        [whole, differing(&typed, end, few)]
            .into_iter()
            .flatten()
            .min()
    };
    let scored = names.filter_map(|name| Some((score(name)?, name)));
    let mut scored: Vec<(usize, &str)> = scored.collect();
    // Stable: ties stay in alphabetical order.
    scored.sort_by_key(|(score, _)| *score);
    let best = scored.into_iter().take(most);
    best.map(|(_, name)| name.to_owned()).collect()
}

/// Layers that are suggested at most.
pub(super) const CLOSE: usize = 5;

/// Characters of a name that are compared.
const LONGEST: usize = 256;

/// How many characters are to be changed, added or taken away to come from one name to the other, if `few` or fewer.
fn differing(typed: &[char], name: &str, few: usize) -> Option<usize> {
    let name: Vec<char> = name.chars().take(LONGEST).collect();
    if name.len().abs_diff(typed.len()) > few {
        return None;
    }
    let mut row: Vec<usize> = (0..=name.len()).collect();
    for (i, a) in typed.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in name.iter().enumerate() {
            let changed = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
        if row.iter().all(|&so_far| so_far > few) {
            return None;
        }
    }
    let all = row[name.len()];
    (all <= few).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_suggested_resembles_what_was_typed() {
        let names = [
            "model.layers.0.mlp.down_proj",
            "model.layers.0.mlp.gate_proj",
            "model.layers.0.self_attn.q_proj",
            "model.layers.1.mlp.down_proj",
        ];
        let closest = |wanted, most| closest(wanted, names.into_iter(), most);
        // Misspelt, then those of the other layer.
        assert_eq!(
            closest("model.layers.0.mlp.dwon_proj", 2),
            [names[0], names[3]]
        );
        assert_eq!(closest("model.layers.7.mlp.down_proj", 1), [names[0]]);
        // Without its front, and misspelt as well.
        assert_eq!(closest("0.mlp.down_proj", 5), [names[0], names[3]]);
        assert_eq!(closest("self_attn.q_porj", 5), [names[2]]);
        assert_eq!(closest("down_proj", 5), [names[0], names[3]]);
        // Parts of it are everywhere, and nothing is like it.
        for wanted in ["model.layers.0.block_sparse_moe.router", "lm_head", "", "."] {
            let found = closest(wanted, 5);
            let like = wanted == "." && found.len() == 4;
            assert!(found.is_empty() || like, "{wanted}: {found:?}");
        }
    }
}
