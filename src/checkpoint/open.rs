//! A checkpoint: finding layers and tensors in its files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use safetensors::Dtype;

use super::config::Configs;
use super::error::{CLOSE, closest};
use super::files::{Elsewhere, Found};
use super::{CheckpointError, Exporter, Layer, Note, known, other};
use crate::file::{FileError, Tensor, TensorFile};

/// A checkpoint: one safetensors file, or several with or without an index.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    files: Vec<TensorFile>,
    /// All tensors in alphabetical order.
    tensors: Vec<Place>,
    layers: BTreeMap<Box<str>, Exporter>,
    /// Tensors that the index has in other files than those above.
    elsewhere: Elsewhere,
    configs: Configs,
    /// The numbers of the files in which a tensor is ComfyUI's mark of a layer.
    marked: BTreeSet<u32>,
    notes: Vec<Note>,
}

/// A tensor by numbers: a model may have 370,000, each of whose names is in memory once.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The file's number.
    file: u32,
    /// The tensor's number in the file.
    tensor: u32,
}

impl Checkpoint {
    /// Opens a `.safetensors` file, an index (`model.safetensors.index.json`), or a directory with either. Reads
    /// `config.json` and `hf_quant_config.json` beside them, where they are there.
    ///
    /// Symbolic links are followed, since the files of a hub's cache are links. An index names files beside itself, and
    /// whatever a path leads to is opened only if it is a regular file.
    ///
    /// # Errors
    /// [`CheckpointError`]: files that cannot be read, are damaged or missing, a nonsensical index, a
    /// directory without safetensors files, configs beyond [limits](CheckpointError::ConfigLimit). A config that cannot
    /// be read is a [note](Self::notes).
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let path = path.as_ref();
        let found = Found::at(path)?;
        let files = found
            .files
            .into_iter()
            .map(TensorFile::open)
            .collect::<Result<Vec<_>, _>>()?;
        let configs = Configs::read(&found.directory, &files)?;
        let mut checkpoint = Self {
            path: path.into(),
            tensors: places(&files)?,
            files,
            layers: BTreeMap::new(),
            elsewhere: found.elsewhere,
            configs,
            marked: BTreeSet::new(),
            notes: found.notes,
        };
        let places = checkpoint.tensors.iter();
        let marks = places.filter(|place| known::is_comfy_mark(checkpoint.at(**place).name()));
        checkpoint.marked = marks.map(|place| place.file).collect();
        checkpoint.compare_with_index();
        checkpoint.layers = checkpoint.find_layers();
        checkpoint.notes.extend(checkpoint.configs.notes.clone());
        checkpoint.notes.extend(other::unsupported(&checkpoint));
        Ok(checkpoint)
    }

    /// Notes where the index and its files disagree. Of the index what no file has is kept.
    fn compare_with_index(&mut self) {
        let mut map = std::mem::take(&mut self.elsewhere.tensors);
        let mut notes = IndexNotes::default();
        let index_files = &map.files;
        let mut tensors = self.tensors().peekable();
        map.entries.retain(|(name, file)| {
            while let Some(unnamed) = tensors.next_if(|tensor| tensor.name() < &**name) {
                notes.unnamed.add(unnamed.name());
            }
            let Some(tensor) = tensors.next_if(|tensor| tensor.name() == &**name) else {
                notes.nowhere.add(name);
                return true;
            };
            let said = &*index_files[*file as usize];
            if tensor.file().path().file_name() != Some(said.as_ref()) {
                notes.misplaced.add(name);
            }
            false
        });
        tensors.for_each(|unnamed| notes.unnamed.add(unnamed.name()));
        map.entries.shrink_to_fit();
        // A file that was opened alone is not what the index speaks of.
        if self.elsewhere.opened {
            let notes = notes.of(&self.elsewhere.index);
            self.notes.extend(notes);
        }
        self.elsewhere.tensors = map;
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
    /// read, stacked experts, and an index that its files contradict.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// The tools that configs and files' metadata say have quantised the checkpoint, each with the file that says so.
    /// Tensors may have the names of others.
    pub fn declared_exporters(&self) -> impl Iterator<Item = (Exporter, &Path)> {
        self.configs.exporters()
    }

    /// The files whose metadata say that ComfyUI quantised layers in them.
    pub fn comfy_files(&self) -> impl Iterator<Item = &Path> {
        self.configs.comfy_files()
    }

    /// Names of the NVFP4 layers, in alphabetical order. Not all of them can be computed: opening one says so.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = &str> {
        self.layers.keys().map(|name| &**name)
    }

    /// A tensor, or `None` where there is none of that name.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let found = self
            .tensors
            .binary_search_by(|place| self.at(*place).name().cmp(name));
        Some(self.at(self.tensors[found.ok()?]))
    }

    fn at(&self, place: Place) -> Tensor<'_> {
        self.files[place.file as usize].at(place.tensor as usize)
    }

    /// A tensor that the user asked for by name.
    ///
    /// # Errors
    /// [`CheckpointError::NoTensor`], with the names that come closest.
    pub fn find_tensor(&self, name: &str) -> Result<Tensor<'_>, CheckpointError> {
        self.tensor(name).ok_or_else(|| CheckpointError::NoTensor {
            checkpoint: self.path.clone(),
            tensor: name.into(),
            close: closest(name, self.tensors().map(|tensor| tensor.name()), 3),
        })
    }

    /// Whether ComfyUI has marked layers of one of these files, in tensors or in the file's metadata, and no config says
    /// that ModelOpt has quantised this one: asked of a layer without a mark.
    pub(super) fn is_unmarked(&self, layer: &str, files: &[&Path]) -> bool {
        let by_tensors = self.marked.iter();
        let by_tensors = by_tensors.map(|file| self.files[*file as usize].path());
        let mut all = by_tensors.chain(self.comfy_files());
        all.any(|file| files.contains(&file)) && !self.configs.is_modelopts(layer, files)
    }

    pub(super) fn configs(&self) -> &Configs {
        &self.configs
    }

    /// All tensors, in alphabetical order.
    pub(super) fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        self.tensors.iter().map(|place| self.at(*place))
    }

    /// The tensors whose names begin so, each with what follows.
    pub(super) fn behind<'a>(
        &'a self,
        begin: String,
    ) -> impl Iterator<Item = (&'a str, Tensor<'a>)> + use<'a> {
        let before = |place: &Place| self.at(*place).name() < &*begin;
        let first = self.tensors.partition_point(before);
        let from_here = self.tensors[first..].iter().map(|place| self.at(*place));
        from_here.map_while(move |tensor| Some((tensor.name().strip_prefix(&begin)?, tensor)))
    }

    /// Refuses a layer of which a tensor is in another file than those that are open.
    pub(super) fn nothing_elsewhere(&self, layer: &str) -> Result<(), CheckpointError> {
        self.nothing_elsewhere_behind(layer, &['.'])
    }

    /// The same of a weight of several matrices, whose other tensors may also be named `NAME_bias`.
    pub(super) fn nothing_elsewhere_of_stack(&self, name: &str) -> Result<(), CheckpointError> {
        self.nothing_elsewhere_behind(name, &['.', '_'])
    }

    fn nothing_elsewhere_behind(
        &self,
        name: &str,
        separators: &[char],
    ) -> Result<(), CheckpointError> {
        let begins = separators
            .iter()
            .map(|separator| format!("{name}{separator}"));
        let found = |begin: String| self.elsewhere.tensors.beginning(&begin);
        match { begins }.find_map(found) {
            Some((tensor, file)) => Err(CheckpointError::Elsewhere {
                index: self.elsewhere.index.clone(),
                tensor: tensor.into(),
                file: file.into(),
                opened: self.elsewhere.opened,
            }),
            None => Ok(()),
        }
    }

    /// The error that a tensor is not there.
    pub(super) fn missing(&self, tensor: String, expected: &str) -> FileError {
        FileError::MissingTensor {
            file: self.path.clone(),
            tensor,
            expected: expected.into(),
        }
    }

    /// A layer by its name. A trailing dot, or the full name of one of its tensors, is understood.
    ///
    /// # Errors
    /// [`CheckpointError::NoLayer`] with the names that come closest. [`CheckpointError::NotNvfp4`] for a layer of
    /// another type, [`CheckpointError::StackedExperts`], [`CheckpointError::Mxfp4`] and
    /// [`CheckpointError::OtherTool`] for layers that are near to NVFP4. [`CheckpointError::File`] for a tensor that is missing or has another type or shape, a block scale that
    /// is NaN or negative, a global scale that is [not usable](crate::Error::GlobalScale).
    ///
    /// For layers whose product is more than codes, block scales and global scale say:
    /// [`CheckpointError::ChangesProduct`], [`CheckpointError::UnknownTensors`], [`CheckpointError::OtherLayout`],
    /// [`CheckpointError::BothDialects`], [`CheckpointError::Config`], [`CheckpointError::Elsewhere`].
    pub fn layer(&self, name: &str) -> Result<Layer<'_>, CheckpointError> {
        self.layer_by(name, Layer::open)
    }

    /// A layer by its name, whose block scales are not looked at.
    pub(super) fn unscanned(&self, name: &str) -> Result<Layer<'_>, CheckpointError> {
        self.layer_by(name, Layer::unscanned)
    }

    fn layer_by<'a>(
        &'a self,
        name: &str,
        open: impl FnOnce(&'a Self, &'a str, Exporter) -> Result<Layer<'a>, CheckpointError>,
    ) -> Result<Layer<'a>, CheckpointError> {
        let name = name.trim_end_matches('.');
        let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
        let known = |name: &str| self.layers.get_key_value(name);
        // Only a tensor's name is cut down to its layer's: "a.b" does not mean layer "a".
        let of_tensor = || known(stem).filter(|_| self.tensor(name).is_some());
        if let Some((name, exporter)) = known(name).or_else(of_tensor) {
            return open(self, name, *exporter);
        }
        self.nothing_elsewhere(name)?;
        for stem in [name, stem] {
            // Only a tensor's name is cut down to its layer's here, too.
            if stem != name && self.tensor(name).is_none() {
                continue;
            }
            if let Some(why) = other::why_not(self, stem) {
                return Err(why);
            }
            let weight = self.tensor(&format!("{stem}.weight"));
            let weight = weight.or_else(|| self.tensor(&format!("{stem}.weight_packed")));
            if let Some(weight) = weight {
                return Err(other::not_nvfp4(stem, &weight));
            }
        }
        // torchao's, by the name of the parameter or of its codes.
        let parameter = name.rsplit_once('.');
        let parameter = parameter.map(|(module, parameter)| format!("{module}._{parameter}"));
        if let Some(why) = parameter.and_then(|stem| other::why_not(self, &stem)) {
            return Err(why);
        }
        if let Some(codes) = self.tensor(name) {
            other::refuse_torchao(self, &codes)?;
        }
        // Several matrices in one tensor, as unquantised experts are.
        let is_float = |t: &Tensor<'_>| matches!(t.dtype(), Dtype::F32 | Dtype::F16 | Dtype::BF16);
        let stacked = |t: &Tensor<'_>| t.shape().len() > 2 && is_float(t);
        if let Some(tensor) = self.tensor(name).filter(stacked) {
            return Err(other::not_nvfp4(name, &tensor));
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

    /// The tool whose names an NVFP4 layer's tensors have, by the layer's exact name.
    pub fn exporter_of(&self, layer: &str) -> Option<Exporter> {
        self.layers.get(layer).copied()
    }

    /// Layers by the tensors that only NVFP4 has. The other tensors of a layer are checked when the layer is opened, so
    /// that the error can say what is missing.
    fn find_layers(&self) -> BTreeMap<Box<str>, Exporter> {
        let mut layers = BTreeMap::new();
        for codes in self.tensors() {
            for exporter in Exporter::ALL {
                let layer = codes.name().strip_suffix(exporter.codes());
                let layer = layer.and_then(|stem| stem.strip_suffix('.'));
                if let Some(layer) = layer.filter(|layer| self.has_nvfp4(exporter, layer, &codes)) {
                    layers.insert(layer.into(), exporter);
                }
            }
        }
        layers
    }

    /// Whether these codes of a layer with an exporter's names are NVFP4 ones, as far as headers tell.
    fn has_nvfp4(&self, exporter: Exporter, layer: &str, codes: &Tensor<'_>) -> bool {
        let tensor = |suffix: &str| self.tensor(&format!("{layer}.{suffix}"));
        let is_packed = matches!(codes.dtype(), Dtype::U8 | Dtype::F4);
        match exporter {
            Exporter::Of(dialect) => is_packed && tensor(dialect.global()).is_some(),
            Exporter::TorchAo => {
                let is_e4m3 = |scales: Tensor<'_>| scales.dtype() == Dtype::F8_E4M3;
                is_packed
                    && codes.shape().len() == 2
                    && tensor(exporter.scales()).is_some_and(is_e4m3)
            }
            // Asked first: looking a tensor up takes time, and a model may have 370,000.
            Exporter::Mlx if codes.dtype() != Dtype::U32 => false,
            Exporter::Mlx => {
                let fits = |scales: Tensor<'_>| other::is_mlx_nvfp4(codes, &scales);
                codes.shape().len() == 2 && tensor(exporter.scales()).is_some_and(fits)
            }
        }
    }
}

/// All tensors of these files in alphabetical order.
fn places(files: &[TensorFile]) -> Result<Vec<Place>, CheckpointError> {
    let at = |place: &Place| files[place.file as usize].at(place.tensor as usize);
    let total = files.iter().map(|file| file.tensors().len()).sum();
    let mut places: Vec<Place> = Vec::with_capacity(total);
    for (file, tensors) in files.iter().enumerate() {
        // The format's limit of a header is far below 2^32 tensors.
        places.extend((0..tensors.tensors().len()).map(|tensor| Place {
            file: file as u32,
            tensor: tensor as u32,
        }));
    }
    // Stable: of two tensors of one name the first file's comes first.
    places.sort_by(|a, b| at(a).name().cmp(at(b).name()));
    let mut pairs = places.windows(2).map(|pair| [at(&pair[0]), at(&pair[1])]);
    match pairs.find(|[first, second]| first.name() == second.name()) {
        None => Ok(places),
        Some([first, second]) => Err(CheckpointError::Duplicate {
            tensor: first.name().into(),
            first: first.file().path().into(),
            second: second.file().path().into(),
        }),
    }
}

/// Tensors of one kind: the first's name, and how many there are.
#[derive(Debug, Default)]
struct Several {
    first: Option<String>,
    total: usize,
}

impl Several {
    fn add(&mut self, name: &str) {
        self.first.get_or_insert_with(|| name.into());
        self.total += 1;
    }
}

/// Contradictions between an index and its files.
#[derive(Debug, Default)]
struct IndexNotes {
    misplaced: Several,
    unnamed: Several,
    nowhere: Several,
}

impl IndexNotes {
    fn of(self, index: &Path) -> impl Iterator<Item = Note> {
        let all = [
            (self.misplaced, "names another file than the one that has"),
            (self.unnamed, "does not name, and its files have,"),
            (self.nowhere, "names, and none of its files has,"),
        ];
        all.into_iter().filter_map(move |(tensors, what)| {
            Some(Note::Index {
                index: index.into(),
                what,
                tensor: tensors.first?,
                total: tensors.total,
            })
        })
    }
}
