//! Checkpoints of either format by one door.

use std::io::Read;
use std::path::{Path, PathBuf};

use nvfp4_gemv_files::input;

use super::{Checkpoint, CheckpointError, Dense, Gathered, Gguf, RowOrder};
use crate::file::FileError;

/// A checkpoint of either format.
///
/// ```no_run
/// use nvfp4_gemv::checkpoint::AnyCheckpoint;
/// let checkpoint = AnyCheckpoint::open("model")?; // a directory, a safetensors file, an index, a GGUF file
/// let down = checkpoint.weights("model.layers.0.mlp.down_proj")?;
/// let head = checkpoint.dense("lm_head")?;
/// # drop((down, head));
/// # Ok::<(), nvfp4_gemv::checkpoint::CheckpointError>(())
/// ```
#[derive(Debug)]
pub enum AnyCheckpoint {
    /// Safetensors files.
    Safetensors(Box<Checkpoint>),
    /// A GGUF file, or those of a split model.
    Gguf(Box<Gguf>),
}

impl AnyCheckpoint {
    /// Opens a file that begins as GGUF files do, or a directory that has no safetensors files and one model in GGUF
    /// files, with [`Gguf::open`]; everything else with [`Checkpoint::open`].
    ///
    /// # Errors
    /// Those of the two. [`CheckpointError::SeveralGguf`] for a directory with several models in GGUF files.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let path = path.as_ref();
        if is_gguf(path) {
            return Ok(Self::Gguf(Box::new(Gguf::open(path)?)));
        }
        let error = match Checkpoint::open(path) {
            Ok(checkpoint) => return Ok(Self::Safetensors(Box::new(checkpoint))),
            Err(error) => error,
        };
        if !matches!(error, CheckpointError::Empty { .. }) {
            return Err(error);
        }
        let models = models_in(path)?;
        match &models[..] {
            [] => Err(error),
            [model] => Ok(Self::Gguf(Box::new(Gguf::open(model)?))),
            several => {
                let name = |file: &PathBuf| {
                    file.file_name()
                        .unwrap_or_default()
                        .to_string_lossy()
                        .into()
                };
                Err(CheckpointError::SeveralGguf {
                    directory: path.into(),
                    files: several.iter().map(name).collect(),
                })
            }
        }
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        match self {
            Self::Safetensors(checkpoint) => checkpoint.path(),
            Self::Gguf(file) => file.path(),
        }
    }

    /// The weights of a module that is NVFP4, or MXFP4 that NVFP4 holds exactly: a layer, or experts that are stacked.
    ///
    /// # Errors
    /// Those of [`Checkpoint::layer`], [`experts`](Checkpoint::experts), [`mxfp4`](Checkpoint::mxfp4) and
    /// [`Gguf::weights`].
    pub fn weights(&self, name: &str) -> Result<Gathered<'_>, CheckpointError> {
        let checkpoint = match self {
            Self::Safetensors(checkpoint) => checkpoint,
            Self::Gguf(file) => return file.weights(name),
        };
        let order = RowOrder::Stacked;
        match checkpoint.joined(&[name], order) {
            Ok(layer) => Ok(layer.gather()),
            Err(CheckpointError::StackedExperts { layer, .. }) => {
                let (experts, part) = layer.rsplit_once('.').unwrap_or(("", &layer));
                Ok(checkpoint.experts(experts, &[part], order)?.gather())
            }
            Err(CheckpointError::Mxfp4 { layer, .. }) => checkpoint.mxfp4(&layer),
            Err(error) => Err(error),
        }
    }

    /// A matrix that is not NVFP4.
    ///
    /// # Errors
    /// Those of [`Checkpoint::dense`] and [`Gguf::dense`].
    pub fn dense(&self, name: &str) -> Result<Dense<'_>, CheckpointError> {
        match self {
            Self::Safetensors(checkpoint) => checkpoint.dense(name),
            Self::Gguf(file) => file.dense(name),
        }
    }
}

/// Whether a file begins as GGUF files do.
fn is_gguf(path: &Path) -> bool {
    let mut begin = [0; 4];
    let read = input::open(path).map(|(mut file, _)| file.read_exact(&mut begin));
    matches!(read, Ok(Ok(()))) && begin == *b"GGUF"
}

/// The models of a directory in GGUF files: of a split model its first file.
fn models_in(directory: &Path) -> Result<Vec<PathBuf>, FileError> {
    let read = |source| FileError::Read {
        file: directory.into(),
        source,
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(read)? {
        let path = entry.map_err(read)?.path();
        if path.extension().is_some_and(|of| of == "gguf") && is_gguf(&path) {
            files.push(path);
        }
    }
    files.sort();
    // The parts of a split model follow each other.
    files.dedup_by(|file, first| {
        split_model(file).is_some_and(|stem| split_model(first) == Some(stem))
    });
    Ok(files)
}

/// The common parts of the names of all files of a split model: `model` and `00003` of `model-00001-of-00003.gguf`.
fn split_model(file: &Path) -> Option<(&str, &str)> {
    let name = file.file_name()?.to_str()?;
    let (rest, total) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let are_numbers = [number, total]
        .iter()
        .all(|n| n.len() == 5 && n.bytes().all(|c| c.is_ascii_digit()));
    are_numbers.then_some((stem, total))
}
