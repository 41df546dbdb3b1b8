//! What can be wrong with a checkpoint.

use std::path::PathBuf;

use crate::file::FileError;
use crate::printable;

/// Why a checkpoint, or a layer of it, cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A file or a tensor is not what it must be.
    #[error(transparent)]
    File(#[from] FileError),
    /// No NVFP4 layer of that name.
    #[error("{}: no NVFP4 layer {layer:?}{}", printable::path(checkpoint), describe(close, *total))]
    NoLayer {
        /// The checkpoint's file or directory.
        checkpoint: PathBuf,
        /// The name that was asked for.
        layer: String,
        /// Names of layers that come close.
        close: Vec<String>,
        /// How many NVFP4 layers there are.
        total: usize,
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
        /// What is wrong with it.
        reason: String,
    },
    /// A directory without safetensors files.
    #[error(
        "{}: no *.safetensors file in this directory",
        printable::path(directory)
    )]
    Empty {
        /// The directory.
        directory: PathBuf,
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

/// The names that come closest to `wanted`, best first: those that contain it, or that share the
/// most of its dotted parts.
pub(super) fn closest<'a>(
    wanted: &str,
    names: impl Iterator<Item = &'a str>,
    most: usize,
) -> Vec<String> {
    let parts: Vec<&str> = wanted.split('.').filter(|p| !p.is_empty()).collect();
    let score = |name: &str| {
        let shared = name.split('.').filter(|p| parts.contains(p)).count();
        (!wanted.is_empty() && name.contains(wanted), shared)
    };
    let mut names: Vec<&str> = names.collect();
    // Stable: ties stay in alphabetical order.
    names.sort_by_key(|name| std::cmp::Reverse(score(name)));
    names.into_iter().take(most).map(str::to_owned).collect()
}
