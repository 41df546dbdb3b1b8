//! A checkpoint: finding layers and tensors in its files.

use std::collections::{BTreeMap, btree_map::Entry};
use std::path::{Path, PathBuf};

use safetensors::Dtype;

use super::config::Configs;
use super::error::{CLOSE, closest};
use super::files::{Elsewhere, Found};
use super::{CheckpointError, Dialect, Layer, Note, other};
use crate::file::{FileError, Tensor, TensorFile};

/// A checkpoint: one safetensors file, or several with or without an index.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    files: Vec<TensorFile>,
    /// The file that holds a tensor, by the tensor's name: an index into `files`.
    tensors: BTreeMap<String, usize>,
    layers: BTreeMap<String, Dialect>,
    /// Tensors that the index has in other files than those above.
    elsewhere: Elsewhere,
    configs: Configs,
    notes: Vec<Note>,
}

impl Checkpoint {
    /// Opens a `.safetensors` file, a `model.safetensors.index.json`, or a directory with either. Reads `config.json`
    /// and `hf_quant_config.json` beside them, where they are there.
    ///
    /// # Errors
    /// [`CheckpointError`]: files that cannot be read, are damaged or missing, a nonsensical index, a
    /// directory without safetensors files. A config that cannot be read is a [note](Self::notes).
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let path = path.as_ref();
        let found = Found::at(path)?;
        let files = found
            .files
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
        let mut elsewhere = found.elsewhere;
        elsewhere
            .tensors
            .retain(|name, _| !tensors.contains_key(name));
        let configs = Configs::read(&found.directory, &files);
        let mut checkpoint = Self {
            path: path.into(),
            files,
            tensors,
            layers: BTreeMap::new(),
            elsewhere,
            configs,
            notes: found.notes,
        };
        checkpoint.layers = checkpoint.find_layers();
        checkpoint.notes.extend(checkpoint.configs.notes.clone());
        checkpoint.notes.extend(other::unsupported(&checkpoint));
        Ok(checkpoint)
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files it consists of.
    pub fn files(&self) -> &[TensorFile] {
        &self.files
    }

    /// The config files beside them that were read.
    pub fn config_files(&self) -> &[PathBuf] {
        &self.configs.files
    }

    /// Notes on the checkpoint: facts that are no errors, and that a user should know, such as configs that are not
    /// read and stacked experts.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// The dialects that configs and files' metadata say the checkpoint has, each with the file that says so. Tensors
    /// may have others.
    pub fn declared_dialects(&self) -> impl Iterator<Item = (Dialect, &Path)> {
        self.configs.dialects()
    }

    /// The files whose metadata say that ComfyUI quantised layers in them.
    pub fn comfy_files(&self) -> impl Iterator<Item = &Path> {
        self.configs.comfy_files()
    }

    /// Names of the NVFP4 layers, in alphabetical order. Not all of them can be computed: opening one says so.
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

    pub(super) fn configs(&self) -> &Configs {
        &self.configs
    }

    /// All tensors, in alphabetical order.
    pub(super) fn tensors(&self) -> impl Iterator<Item = Tensor<'_>> {
        self.tensors.keys().filter_map(|name| self.tensor(name))
    }

    /// The tensors below a layer's name, each with what follows the name and a dot.
    pub(super) fn below<'a>(&'a self, layer: &str) -> impl Iterator<Item = (&'a str, Tensor<'a>)> {
        let begin = format!("{layer}.");
        self.tensors
            .range(begin.clone()..)
            .map_while(move |(name, _)| Some((name.strip_prefix(&begin)?, self.tensor(name)?)))
    }

    /// Refuses a layer of which a tensor is in another file than those that are open.
    pub(super) fn nothing_elsewhere(&self, layer: &str) -> Result<(), CheckpointError> {
        let begin = format!("{layer}.");
        match self.elsewhere.tensors.range(begin.clone()..).next() {
            Some((tensor, file)) if tensor.starts_with(&begin) => Err(CheckpointError::Elsewhere {
                index: self.elsewhere.index.clone(),
                tensor: tensor.clone(),
                file: file.clone(),
                opened: self.elsewhere.opened,
            }),
            _ => Ok(()),
        }
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
    /// [`CheckpointError::NoLayer`] with the names that come closest. [`CheckpointError::NotNvfp4`] for a layer of
    /// another type, [`CheckpointError::StackedExperts`] and [`CheckpointError::Mxfp4`] for layers that are near to
    /// NVFP4. [`CheckpointError::File`] for a tensor that is missing or has another type or shape, a block scale that
    /// is NaN or negative, a global scale that is [not usable](crate::Error::GlobalScale).
    ///
    /// For layers whose product is more than codes, block scales and global scale say:
    /// [`CheckpointError::ChangesProduct`], [`CheckpointError::UnknownTensors`], [`CheckpointError::OtherLayout`],
    /// [`CheckpointError::BothDialects`], [`CheckpointError::Config`], [`CheckpointError::Elsewhere`].
    pub fn layer(&self, name: &str) -> Result<Layer<'_>, CheckpointError> {
        let name = name.trim_end_matches('.');
        let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
        let known = |name: &str| self.layers.get_key_value(name);
        // Only a tensor's name is cut down to its layer's: "a.b" does not mean layer "a".
        let of_tensor = || known(stem).filter(|_| self.tensors.contains_key(name));
        if let Some((name, dialect)) = known(name).or_else(of_tensor) {
            return Layer::open(self, name, *dialect);
        }
        self.nothing_elsewhere(name)?;
        for stem in [name, stem] {
            // Only a tensor's name is cut down to its layer's here, too.
            if stem != name && !self.tensors.contains_key(name) {
                continue;
            }
            if let Some(why) = other::why_not(self, stem) {
                return Err(why);
            }
            let weight = self.tensor(&format!("{stem}.weight"));
            let weight = weight.or_else(|| self.tensor(&format!("{stem}.weight_packed")));
            if let Some(weight) = weight {
                return Err(CheckpointError::NotNvfp4 {
                    file: weight.file().path().into(),
                    layer: stem.into(),
                    found: weight.to_string(),
                });
            }
        }
        // Several matrices in one tensor, as unquantised experts are.
        let is_float = |t: &Tensor<'_>| matches!(t.dtype(), Dtype::F32 | Dtype::F16 | Dtype::BF16);
        let stacked = |t: &Tensor<'_>| t.shape().len() > 2 && is_float(t);
        if let Some(tensor) = self.tensor(name).filter(stacked) {
            return Err(CheckpointError::NotNvfp4 {
                file: tensor.file().path().into(),
                layer: name.into(),
                found: tensor.to_string(),
            });
        }
        Err(CheckpointError::NoLayer {
            checkpoint: self.path.clone(),
            layer: name.into(),
            close: match self.layers.len() {
                // Few enough to name them all.
                ..=CLOSE => self.layers().map(str::to_owned).collect(),
                _ => closest(name, self.layers(), CLOSE),
            },
            total: self.layers.len(),
            notes: self.notes.clone(),
        })
    }

    /// Layers by the tensors that only NVFP4 has. The other tensors of a layer are checked when the layer is opened, so
    /// that the error can say what is missing.
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
