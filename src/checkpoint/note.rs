//! Notes: facts about a checkpoint that are no errors, and that its user should know.

use std::fmt;
use std::path::PathBuf;

use nvfp4_gemv_files::printable;

/// Something about a checkpoint or a layer that changes no result of this crate, and may surprise. Shown, a note
/// is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// A config or a file's metadata says something else of a layer than its tensors, which are believed.
    Label {
        /// The file that says it.
        file: PathBuf,
        /// The layer.
        layer: String,
        /// The statement, and what the tensors are.
        says: String,
    },
    /// A tensor that is added to a layer's product, which the caller has to do.
    NotAdded {
        /// The tensor.
        tensor: String,
    },
    /// A layer's input scale is not usable. Vectors that are not quantised with it do not need it.
    InputScale {
        /// The fault, with the file and the tensor.
        reason: String,
    },
    /// A config is there and was not read.
    Unread {
        /// The file.
        file: PathBuf,
        /// Why not.
        reason: String,
    },
    /// Tensors of quantised layers that [`Checkpoint::layer`](super::Checkpoint::layer) does not open.
    Unsupported {
        /// Their kind, and the kind that is asked for.
        what: &'static str,
        /// The first of them.
        tensor: String,
        /// How many there are.
        total: usize,
    },
    /// The index of a sharded checkpoint and its files contradict each other. The files count.
    Index {
        /// The index.
        index: PathBuf,
        /// The contradiction, before a tensor's name.
        what: &'static str,
        /// The first tensor.
        tensor: String,
        /// How many there are.
        total: usize,
    },
    /// One file of several was opened; tensors in others are not seen.
    OneOfSeveral {
        /// The file.
        file: PathBuf,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Label { file, layer, says } => write!(
                f,
                "{}: layer {layer:?}: {}; the tensors are believed",
                printable::path(file),
                printable::text(says)
            ),
            Self::NotAdded { tensor } => {
                write!(
                    f,
                    "tensor {tensor:?} is not added: a result is the product alone"
                )
            }
            Self::InputScale { reason } => write!(
                f,
                "{}; vectors cannot be quantised with this input scale",
                printable::text(reason)
            ),
            Self::Unread { file, reason } => write!(
                f,
                "{}: not read: {}",
                printable::path(file),
                printable::text(reason)
            ),
            Self::Unsupported {
                what,
                tensor,
                total,
            } => {
                write!(f, "{what}: {tensor:?}{}", more(*total))
            }
            Self::Index {
                index,
                what,
                tensor,
                total,
            } => {
                let index = printable::path(index);
                write!(f, "{index}: {what} tensor {tensor:?}{}", more(*total))
            }
            Self::OneOfSeveral { file } => write!(
                f,
                "{}: one file of several; tensors of its layers in the others are not seen",
                printable::path(file)
            ),
        }
    }
}

/// How many there are beside the one that is named.
fn more(total: usize) -> String {
    match total {
        0 | 1 => String::new(),
        total => format!(" and {} more", total - 1),
    }
}
