//! Finding the files of a checkpoint, and layers and tensors in them.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};
use std::path::{Path, PathBuf};

use safetensors::Dtype;

use super::error::closest;
use super::{CheckpointError, Dialect, Layer};
use crate::file::{FileError, Tensor, TensorFile};
use crate::input;

/// The index in a directory of several files.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// A checkpoint: one safetensors file, or several with or without an index.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    files: Vec<TensorFile>,
    /// Which file holds a tensor.
    tensors: BTreeMap<String, usize>,
    layers: BTreeMap<String, Dialect>,
}

impl Checkpoint {
    /// Opens a `.safetensors` file, a `model.safetensors.index.json`, or a directory with either.
    ///
    /// # Errors
    /// [`CheckpointError`]: files that cannot be read or are damaged, a nonsensical index, a
    /// directory without safetensors files.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let path = path.as_ref();
        let files = files_of(path)?
            .into_iter()
            .map(TensorFile::open)
            .collect::<Result<Vec<_>, _>>()?;
        let mut tensors = BTreeMap::new();
        for (index, file) in files.iter().enumerate() {
            for tensor in file.tensors() {
                match tensors.entry(tensor.name().to_owned()) {
                    Entry::Vacant(entry) => {
                        entry.insert(index);
                    }
                    Entry::Occupied(entry) => {
                        return Err(CheckpointError::Duplicate {
                            tensor: entry.key().clone(),
                            first: files[*entry.get()].path().into(),
                            second: file.path().into(),
                        });
                    }
                }
            }
        }
        let mut checkpoint = Self {
            path: path.into(),
            files,
            tensors,
            layers: BTreeMap::new(),
        };
        checkpoint.layers = checkpoint.find_layers();
        Ok(checkpoint)
    }

    /// What was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files it consists of.
    pub fn files(&self) -> &[TensorFile] {
        &self.files
    }

    /// Names of the NVFP4 layers, in alphabetical order.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = &str> {
        self.layers.keys().map(String::as_str)
    }

    /// A tensor, or `None` where there is none of that name.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        self.files[*self.tensors.get(name)?].get(name)
    }

    /// A tensor that the user asked for by name.
    ///
    /// # Errors
    /// [`CheckpointError::NoTensor`], with the names that come closest.
    pub fn find_tensor(&self, name: &str) -> Result<Tensor<'_>, CheckpointError> {
        self.tensor(name).ok_or_else(|| CheckpointError::NoTensor {
            checkpoint: self.path.clone(),
            tensor: name.into(),
            close: closest(name, self.tensors.keys().map(String::as_str), 3),
        })
    }

    /// A tensor that must be there.
    pub(super) fn require(&self, name: &str, expected: &str) -> Result<Tensor<'_>, FileError> {
        self.tensor(name).ok_or_else(|| FileError::MissingTensor {
            file: self.path.clone(),
            tensor: name.into(),
            expected: expected.into(),
        })
    }

    /// A layer by its name. A trailing dot, or the full name of one of its tensors, is understood.
    ///
    /// # Errors
    /// [`CheckpointError::NoLayer`] with the names that come closest; [`CheckpointError::NotNvfp4`]
    /// for a layer of another type; [`CheckpointError::File`] for a tensor that is missing or has
    /// another type or shape, a block scale that is NaN or negative, a global scale that is
    /// [not usable](crate::Error::GlobalScale).
    pub fn layer(&self, name: &str) -> Result<Layer<'_>, CheckpointError> {
        let name = name.trim_end_matches('.');
        let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
        let known = |name: &str| self.layers.get_key_value(name);
        // Only a tensor's name is cut down to its layer's: "a.b" does not mean layer "a".
        let of_tensor = || known(stem).filter(|_| self.tensors.contains_key(name));
        if let Some((name, dialect)) = known(name).or_else(of_tensor) {
            return Ok(Layer::open(self, name, *dialect)?);
        }
        for stem in [name, stem] {
            let weight = self.tensor(&format!("{stem}.weight"));
            let weight = weight.or_else(|| self.tensor(&format!("{stem}.weight_packed")));
            if let Some(weight) = weight
                && (stem == name || self.tensors.contains_key(name))
            {
                return Err(CheckpointError::NotNvfp4 {
                    file: weight.file().path().into(),
                    layer: stem.into(),
                    found: weight.to_string(),
                });
            }
        }
        Err(CheckpointError::NoLayer {
            checkpoint: self.path.clone(),
            layer: name.into(),
            close: closest(name, self.layers(), 5),
            total: self.layers.len(),
        })
    }

    /// Layers by the tensors that only NVFP4 has. What else they need is checked when they are
    /// opened, so that the error can say what is missing.
    fn find_layers(&self) -> BTreeMap<String, Dialect> {
        let mut layers = BTreeMap::new();
        for name in self.tensors.keys() {
            for dialect in Dialect::ALL {
                let Some(layer) = name
                    .strip_suffix(dialect.codes())
                    .and_then(|stem| stem.strip_suffix('.'))
                else {
                    continue;
                };
                let packed = self.tensor(name).is_some_and(|t| t.dtype() == Dtype::U8);
                let global = self
                    .tensors
                    .contains_key(&format!("{layer}.{}", dialect.global()));
                if packed && global {
                    layers.insert(layer.to_owned(), dialect);
                }
            }
        }
        layers
    }
}

/// The safetensors files that a path means.
fn files_of(path: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    if path.extension().is_some_and(|e| e == "json") {
        return indexed_files(path);
    }
    if !path.is_dir() {
        return Ok(vec![path.into()]);
    }
    let index = path.join(INDEX_FILE);
    if index.exists() {
        return indexed_files(&index);
    }
    let read = |source| FileError::Read {
        file: path.into(),
        source,
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(read)? {
        let file = entry.map_err(read)?.path();
        if file.extension().is_some_and(|e| e == "safetensors") {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(CheckpointError::Empty {
            directory: path.into(),
        });
    }
    Ok(files)
}

/// More than any index has: the largest known, of some 90,000 tensors, has 9 MB.
const MOST_INDEX_BYTES: u64 = 64 << 20;

/// The files that an index names, once each. They must lie beside it: an index is data from
/// elsewhere, and must not make us open files anywhere else.
fn indexed_files(index: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    let wrong = |reason: String| CheckpointError::Index {
        file: index.into(),
        reason,
    };
    let text =
        input::read(index, MOST_INDEX_BYTES).map_err(|error| FileError::of_input(index, error))?;
    let json: serde_json::Value =
        serde_json::from_slice(&text).map_err(|e| wrong(e.to_string()))?;
    let map = json
        .get("weight_map")
        .and_then(|map| map.as_object())
        .ok_or_else(|| wrong("no object \"weight_map\"".into()))?;
    let mut names = BTreeSet::new();
    for (tensor, file) in map {
        match file.as_str() {
            Some(name) if Path::new(name).file_name() == Some(name.as_ref()) => {
                names.insert(name);
            }
            _ => {
                return Err(wrong(format!(
                    "tensor {tensor:?} is said to be in {file}, which is not the name of a file \
                     beside the index"
                )));
            }
        }
    }
    if names.is_empty() {
        return Err(wrong("\"weight_map\" is empty".into()));
    }
    let directory = index.parent().unwrap_or(Path::new("."));
    Ok(names.into_iter().map(|name| directory.join(name)).collect())
}
