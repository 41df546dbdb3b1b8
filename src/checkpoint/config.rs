//! Information on layers beside their tensors: `config.json`, `hf_quant_config.json`, and files' own metadata.
//!
//! The tensors are computed. A config may say that they mean something else, which is an error. Or a config may be
//! wrong about them, as published labels are, which is a [`Note`].

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use nvfp4_gemv_files::input::{self, InputError};
use serde_json::{Map, Value};

use super::comfy::Mark;
use super::gate::SaidOfGate;
use super::globals::Heads;
use super::json;
use super::pattern::{Pattern, Regexes};
use super::{CheckpointError, Dialect, Exporter, Note};
use crate::BLOCK;
use crate::file::TensorFile;

/// The model's config, with objects `quantization_config`.
pub const CONFIG_FILE: &str = "config.json";
/// ModelOpt's, with an object `quantization`.
pub const QUANT_CONFIG_FILE: &str = "hf_quant_config.json";
/// Entries of a file's metadata that hold the same objects.
const QUANT_CONFIG_ENTRY: &str = "hf_quant_config";
const CONFIG_ENTRY: &str = "quantization_config";
/// ComfyUI's entry.
const COMFY_ENTRY: &str = "_quantization_metadata";

/// The keys of what is said of quantisation, wherever they are: a model of several parts has them in its parts'
/// configs, and those in their own.
const SCHEME_KEYS: [&str; 3] = [CONFIG_ENTRY, "quantization", "compression_config"];

/// More than any config has: most have less than 1 MB, one that lists 70,000 modules by name 8 to 16.
const MOST_CONFIG_BYTES: u64 = 32 << 20;

/// Limit: more than any file has of [`SCHEME_KEYS`]. Each may have a note on each module.
const MOST_SCHEMES: usize = 16;

/// Limit: characters of names that are looked at to ask all configs for all of a checkpoint's names. A model of 370,000
/// tensors and 1700 patterns of the kind that is not looked up is at it, and takes a minute; published ones have a few.
const MOST_WORK: u128 = 1 << 36;

/// Facts about a layer's tensors that a config can agree or disagree with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    pub(super) name: &'a str,
    pub(super) exporter: Exporter,
    pub(super) has_input_scale: bool,
    pub(super) has_column_alpha: bool,
    /// The files that hold its codes and its block scales.
    pub(super) files: [&'a Path; 2],
}

/// Everything that configs and metadata say of a checkpoint's layers.
#[derive(Debug, Default)]
pub(super) struct Configs {
    /// Those of config files, then those of each file's metadata.
    schemes: Vec<Scheme>,
    /// How many are of config files.
    of_configs: usize,
    of_files: HashMap<PathBuf, Range<usize>>,
    comfy: Vec<Comfy>,
    heads: Option<Heads>,
    /// Whether `config.json` has heads of several models.
    several_heads: bool,
    /// Where there is a config of the model.
    pub(super) gate: Option<SaidOfGate>,
    /// The config files that were read.
    pub(super) files: Vec<PathBuf>,
    /// Configs and entries that were not read.
    pub(super) notes: Vec<Note>,
    regexes: Regexes,
}

impl Configs {
    /// Reads what lies in a checkpoint's directory and in its files' metadata.
    ///
    /// # Errors
    /// [`CheckpointError::ConfigLimit`] where asking it for the files' modules would not end soon.
    pub(super) fn read(directory: &Path, files: &[TensorFile]) -> Result<Self, CheckpointError> {
        let mut all = Self::default();
        for name in [CONFIG_FILE, QUANT_CONFIG_FILE] {
            let file = directory.join(name);
            let read = match input::read(&file, MOST_CONFIG_BYTES) {
                // A link that leads nowhere, as in a hub's cache that lacks a file, is no missing config.
                Err(InputError::Io(e))
                    if e.kind() == std::io::ErrorKind::NotFound
                        && file.symlink_metadata().is_err() =>
                {
                    continue;
                }
                Err(error) => Err(reason(error)),
                Ok(bytes) => json::parsed(&bytes),
            };
            if name == CONFIG_FILE {
                all.gate = Some(SaidOfGate::of(&read, &file));
            }
            match read {
                Ok(value) => {
                    all.files.push(file.clone());
                    if value
                        .get(CONFIG_ENTRY)
                        .is_some_and(|said| !said.is_object() && !said.is_null())
                    {
                        all.notes.push(Note::Unread {
                            file: file.clone(),
                            reason: format!("its `{CONFIG_ENTRY}` is no object"),
                        });
                    }
                    all.heads = all.heads.or_else(|| heads(&value));
                    all.several_heads |= with_heads(&value) > 1;
                    let own = value.get("quant_algo").map(|_| &value);
                    all.add(own.into_iter().chain(schemes(&value)).collect(), file, None)?;
                }
                Err(reason) => all.notes.push(Note::Unread { file, reason }),
            }
        }
        all.of_configs = all.schemes.len();
        for file in files {
            let before = all.schemes.len();
            all.read_metadata(file)?;
            let own = before..all.schemes.len();
            if !own.is_empty() {
                all.of_files.insert(file.path().into(), own);
            }
        }
        all.limit_work(files)?;
        Ok(all)
    }

    fn add(
        &mut self,
        found: Vec<&Value>,
        file: PathBuf,
        entry: Option<&'static str>,
    ) -> Result<(), CheckpointError> {
        if found.len() > MOST_SCHEMES {
            let reason = format!("it has more than {MOST_SCHEMES} configs of quantisation");
            return Err(CheckpointError::ConfigLimit { file, reason });
        }
        let regexes = &mut self.regexes;
        let scheme = |said: &Value| Scheme::of(said, file.clone(), entry, regexes);
        self.schemes.extend(found.into_iter().map(scheme));
        Ok(())
    }

    /// Refuses configs that have so many patterns and groups, or names so long, that they are a hostile checkpoint's.
    fn limit_work(&self, files: &[TensorFile]) -> Result<(), CheckpointError> {
        if self.schemes.is_empty() && self.comfy.is_empty() {
            return Ok(());
        }
        let of_files: Vec<NameLengths> = files.iter().map(NameLengths::of).collect();
        let all = of_files
            .iter()
            .fold(NameLengths::default(), |a, b| a.and(*b));
        let of_configs = self.schemes[..self.of_configs].iter();
        let mut works: Vec<(&Path, u128)> = of_configs
            .map(|scheme| (&*scheme.file, scheme.work(all)))
            .collect();
        for (file, lengths) in files.iter().zip(of_files) {
            let own = self.of_files.get(file.path()).cloned().unwrap_or_default();
            let own = self.schemes[own].iter();
            works.extend(own.map(|scheme| (file.path(), scheme.work(lengths))));
        }
        // Each is asked for a layer's name, and for all that it ends in.
        let comfy = self.comfy.iter();
        works.extend(comfy.map(|comfy| (&*comfy.file, all.of_parts)));
        let total: u128 = works.iter().map(|(_, work)| work).sum();
        match works.iter().max_by_key(|(_, work)| *work) {
            Some((file, _)) if total > MOST_WORK => Err(CheckpointError::ConfigLimit {
                file: (*file).into(),
                reason: format!(
                    "its patterns and groups, compared with the names of this checkpoint's tensors, make {total} \
                     steps, and {MOST_WORK} are the most"
                ),
            }),
            _ => Ok(()),
        }
    }

    fn read_metadata(&mut self, file: &TensorFile) -> Result<(), CheckpointError> {
        for entry in [QUANT_CONFIG_ENTRY, CONFIG_ENTRY] {
            let Some(text) = file.metadata().get(entry) else {
                continue;
            };
            let path = file.path().to_owned();
            match entry_value(text) {
                Ok(value) => {
                    let mut found = schemes(&value);
                    if found.is_empty() || value.get("quant_algo").is_some() {
                        found.insert(0, &value);
                    }
                    self.add(found, path, Some(entry))?;
                }
                Err(reason) => self.notes.push(Note::Unread {
                    file: path,
                    reason: format!("metadata entry {entry:?}: {reason}"),
                }),
            }
        }
        if let Some(text) = file.metadata().get(COMFY_ENTRY) {
            self.comfy.push(Comfy::of(text, file));
        }
        Ok(())
    }

    /// The tools that are said to have quantised the checkpoint, each with the file that says so.
    pub(super) fn exporters(&self) -> impl Iterator<Item = (Exporter, &Path)> {
        let schemes = self.schemes.iter();
        schemes.filter_map(|scheme| Some((scheme.exporter?, &*scheme.file)))
    }

    /// The files whose metadata say that ComfyUI quantised layers in them.
    pub(super) fn comfy_files(&self) -> impl Iterator<Item = &Path> {
        self.comfy.iter().map(|comfy| &*comfy.file)
    }

    /// ComfyUI's mark of a layer in a file's metadata.
    ///
    /// # Errors
    /// [`CheckpointError::OtherLayout`] where metadata do not say how the layer lies, such as those that name other
    /// layers of the file. [`CheckpointError::Config`] for a mark that is not understood or means another product.
    pub(super) fn comfy_mark(
        &self,
        name: &str,
        files: &[&Path],
    ) -> Result<Option<Mark>, CheckpointError> {
        let about = self
            .comfy
            .iter()
            .find_map(|comfy| Some((comfy, comfy.about(name, files)?)));
        let Some((comfy, mark)) = about else {
            return Ok(None);
        };
        let says = match mark {
            Some(Ok(mark)) if !comfy.beside_modelopt => return Ok(Some(*mark)),
            Some(Err(says)) => says,
            _ => {
                let told_by = match comfy.beside_modelopt {
                    true => format!(
                        "the file's metadata has an entry {COMFY_ENTRY:?}, and one of ModelOpt's config"
                    ),
                    false => format!(
                        "the file's metadata has an entry {COMFY_ENTRY:?}, which does not name it"
                    ),
                };
                return Err(CheckpointError::OtherLayout {
                    file: comfy.file.clone(),
                    layer: name.into(),
                    told_by,
                });
            }
        };
        Err(CheckpointError::Config {
            file: comfy.file.clone(),
            layer: name.into(),
            says: format!("says in metadata entry {COMFY_ENTRY:?} {says}"),
        })
    }

    /// The heads of a layer's attention: of the language model's, where the name tells that it is one of its layers.
    pub(super) fn heads(&self, layer: &str) -> Option<Heads> {
        const OTHERS: [&str; 6] = ["vision", "visual", "encoder", "audio", "image", "vit"];
        const OWN: [&str; 3] = ["language_model.", "text_model.", "model.layers."];
        let is_other = OTHERS.iter().any(|other| layer.contains(other));
        let is_own = OWN.iter().any(|own| layer.contains(own));
        self.heads
            .filter(|_| !is_other && (is_own || !self.several_heads))
    }

    /// Whether a config says that ModelOpt has quantised a layer.
    pub(super) fn is_modelopts(&self, name: &str, files: &[&Path]) -> bool {
        let of_modelopt = |scheme: &Scheme| {
            scheme.exporter == Some(Dialect::ModelOpt.into()) && scheme.claim(name).is_some()
        };
        self.about(files).any(of_modelopt)
    }

    /// Whether one of these files has ModelOpt's config in the entry of its metadata that ModelOpt writes when it makes
    /// a diffusion model's file ready for ComfyUI. It then puts block scales into the 128x4 layout, if it is asked to,
    /// and writes nothing of that.
    ///
    /// Source: nvidia-modelopt 0.47.0, `torch/export/unified_export_hf.py`.
    pub(super) fn may_be_swizzled(&self, files: &[&Path]) -> bool {
        let of_files = files.iter().filter_map(|file| self.of_files.get(*file));
        let schemes = of_files.flat_map(|of_file| &self.schemes[of_file.clone()]);
        let is_modelopts = |scheme: &Scheme| scheme.exporter == Some(Dialect::ModelOpt.into());
        { schemes }.any(|scheme| scheme.entry == Some(CONFIG_ENTRY) && is_modelopts(scheme))
    }

    /// Whether a layer is what is said of it.
    ///
    /// # Errors
    /// [`CheckpointError::Config`] for what would change its product.
    pub(super) fn check(&self, layer: &Facts<'_>) -> Result<Vec<Note>, CheckpointError> {
        let mut notes = Vec::new();
        for scheme in self.about(&layer.files) {
            let of_layer = scheme.check(layer).map_err(|reason| {
                let says = scheme.says(reason);
                CheckpointError::Config {
                    file: scheme.file.clone(),
                    layer: layer.name.into(),
                    says,
                }
            })?;
            for note in of_layer {
                let note = scheme.note(layer.name, note);
                // A file that says it in several places.
                if !notes.contains(&note) {
                    notes.push(note);
                }
            }
        }
        Ok(notes)
    }

    /// The file that says of this file's modules that their vectors or results are transformed, and what it says.
    pub(super) fn transforms(&self, file: &Path) -> Option<(&Path, String)> {
        let said = |scheme: &Scheme| Some(scheme.says(scheme.transforms.clone()?));
        let files = [file];
        let mut schemes = self.about(&files);
        schemes.find_map(|scheme| Some((&*scheme.file, said(scheme)?)))
    }

    /// The schemes that speak of a module: a file's metadata speak of the file's own modules only.
    fn about(&self, files: &[&Path]) -> impl Iterator<Item = &Scheme> {
        let of_files = files.iter().filter_map(|file| self.of_files.get(*file));
        let mut of_files: Vec<Range<usize>> = of_files.cloned().collect();
        of_files.sort_unstable_by_key(|of_file| of_file.start);
        of_files.dedup();
        let all = std::iter::once(0..self.of_configs).chain(of_files);
        all.flat_map(|some| &self.schemes[some])
    }

    /// The quantisation of a module in words, as configs have them: `NVFP4`, `not quantised`; `None` where nothing is
    /// said. Several differ where configs do.
    pub(super) fn words(&self, module: &str, file: &Path) -> Option<String> {
        let mut all: Vec<String> = Vec::new();
        for scheme in self.about(&[file]) {
            let words = scheme.claim(module).map(|claim| claim.to_string());
            all.extend(words.filter(|words| !all.contains(words)));
        }
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Contradictions between configs and a module that is not NVFP4.
    pub(super) fn check_other(&self, module: &Other<'_>) -> Vec<Note> {
        let mut notes = Vec::new();
        for scheme in self.about(&[module.file]) {
            // MLX's config does not say which modules are quantised: their tensors do.
            if scheme.modes.is_some() {
                continue;
            }
            let claim = scheme.claim(module.name);
            let note = claim.and_then(|claim| claim.differs(module));
            let note = note.map(|note| scheme.note(module.name, note));
            notes.extend(note.filter(|note| !notes.contains(note)));
        }
        notes
    }
}

/// Lengths of a file's names, all together.
#[derive(Clone, Copy, Debug, Default)]
struct NameLengths {
    names: u128,
    /// Each as often as it has parts between dots.
    of_parts: u128,
}

impl NameLengths {
    fn of(file: &TensorFile) -> Self {
        let of_name = |name: &str| {
            let names = name.len() as u128;
            let parts = 1 + name.bytes().filter(|c| *c == b'.').count() as u128;
            Self {
                names,
                of_parts: names * parts,
            }
        };
        let names = file.tensors().map(|tensor| of_name(tensor.name()));
        names.fold(Self::default(), Self::and)
    }

    fn and(self, other: Self) -> Self {
        Self {
            names: self.names + other.names,
            of_parts: self.of_parts + other.of_parts,
        }
    }
}

/// Facts about a module that is not NVFP4.
#[derive(Clone, Copy, Debug)]
pub(super) struct Other<'a> {
    pub(super) name: &'a str,
    /// Its type in words.
    pub(super) found: &'a str,
    pub(super) is_fp8: bool,
    /// Whether it may be a linear layer, which defaults of configs are for.
    pub(super) is_linear: bool,
    pub(super) file: &'a Path,
}

/// The quantisation of a module according to a config.
#[derive(Debug)]
struct Claim {
    /// The kind in words; `None`: it is not quantised.
    kind: Option<String>,
    is_fp8: bool,
    /// Whether the module is named, and not one of all that there are.
    is_named: bool,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.as_deref().unwrap_or("not quantised"))
    }
}

impl Claim {
    /// The contradiction between this and a module, where there is one.
    fn differs(&self, module: &Other<'_>) -> Option<String> {
        let found = module.found;
        match &self.kind {
            None if module.is_fp8 => Some(format!("it is not quantised, and it is {found}")),
            Some(_) if module.is_fp8 && self.is_fp8 => None,
            Some(kind) if module.is_fp8 || self.is_named => {
                Some(format!("{kind}, and its tensors are {found}"))
            }
            Some(kind) if module.is_linear => Some(format!(
                "{kind} of all that is not excluded, and its tensors are {found}"
            )),
            _ => None,
        }
    }
}

/// Heads of a model's attention, or of its language model's.
fn heads(config: &Value) -> Option<Heads> {
    let number = |config: &Value, key: &str| usize::try_from(config.get(key)?.as_u64()?).ok();
    let of = |config: &Value| {
        let queries = number(config, "num_attention_heads")?;
        // A value that is no number, such as a list by layer, is not known.
        let or = |key: &str, absent: Option<usize>| match config.get(key) {
            None | Some(Value::Null) => absent,
            Some(_) => number(config, key),
        };
        let size = number(config, "hidden_size").and_then(|of| of.checked_div(queries));
        Some(Heads {
            queries,
            keys: or("num_key_value_heads", Some(queries))?,
            size: or("head_dim", size)?,
        })
    };
    of(config).or_else(|| of(config.get("text_config")?))
}

/// How many objects have heads.
fn with_heads(config: &Value) -> usize {
    let Some(entries) = config.as_object() else {
        return 0;
    };
    let has = ["num_attention_heads", "num_heads"]
        .iter()
        .any(|key| entries.contains_key(*key));
    usize::from(has) + entries.values().map(with_heads).sum::<usize>()
}

fn reason(error: InputError) -> String {
    match error {
        InputError::Io(error) => error.to_string(),
        InputError::NotRegular(what) => format!("not a regular file but {what}"),
        InputError::TooLarge { most } => {
            format!("larger than {most} bytes, the most that are read")
        }
    }
}

/// The value of a metadata entry.
fn entry_value(text: &str) -> Result<Value, String> {
    match text.len() as u64 {
        ..=MOST_CONFIG_BYTES => json::parsed(text.as_bytes()),
        _ => Err(reason(InputError::TooLarge {
            most: MOST_CONFIG_BYTES,
        })),
    }
}

/// All objects under [`SCHEME_KEYS`], at any depth that is [parsed](json::parsed).
fn schemes(value: &Value) -> Vec<&Value> {
    fn collect<'a>(value: &'a Value, found: &mut Vec<&'a Value>) {
        match value {
            Value::Array(values) => values.iter().for_each(|value| collect(value, found)),
            Value::Object(values) => {
                for (key, value) in values {
                    if value.is_object() && SCHEME_KEYS.contains(&&**key) {
                        found.push(value);
                    }
                    collect(value, found);
                }
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    collect(value, &mut found);
    found
}

/// Names of modules, some of them as patterns.
#[derive(Debug, Default)]
struct Names {
    exact: HashSet<String>,
    /// Patterns that are the beginning of names, as most are. Each with what the config has for it.
    begins: HashMap<String, String>,
    /// The lengths of these in bytes.
    begin_lengths: BTreeSet<usize>,
    /// All others.
    patterns: Vec<(String, Pattern)>,
}

impl Names {
    /// Makes names of lists of strings. An entry that is no string is left out, and so is a regular expression that is
    /// not understood.
    fn of<'a>(lists: impl Iterator<Item = &'a Value>, regexes: &mut Regexes) -> Self {
        let mut names = Self::default();
        let all = lists.filter_map(Value::as_array).flatten();
        for name in all.filter_map(Value::as_str) {
            names.add(name, regexes);
        }
        names
    }

    /// Whether the name is understood.
    fn add(&mut self, name: &str, regexes: &mut Regexes) -> bool {
        let pattern = match name.strip_prefix("re:") {
            Some(regex) => Pattern::of_regex(regex, regexes),
            None if name.contains(['*', '?']) => Some(Pattern::Glob(name.into())),
            None => {
                self.exact.insert(name.into());
                return true;
            }
        };
        let Some(pattern) = pattern else {
            return false;
        };
        match pattern.beginning() {
            Some(begin) => {
                self.begin_lengths.insert(begin.len());
                self.begins.insert(begin.into(), name.into());
            }
            None => self.patterns.push((name.into(), pattern)),
        }
        true
    }

    /// The name or pattern that names a layer or a module that it is in.
    fn naming(&self, layer: &str) -> Option<&str> {
        let exact = modules(layer).find_map(|module| self.exact.get(module));
        let exact = exact.map(String::as_str);
        exact.or_else(|| self.pattern_of(layer))
    }

    /// Whether they name the layer itself.
    fn has(&self, layer: &str) -> bool {
        self.exact.contains(layer) || self.pattern_of(layer).is_some()
    }

    /// As [`Pattern::work`].
    fn work(&self) -> usize {
        let of_patterns = self.patterns.iter().map(|(_, pattern)| pattern.work());
        self.begin_lengths.len() + of_patterns.sum::<usize>()
    }

    fn pattern_of(&self, layer: &str) -> Option<&str> {
        let begins = |length: &usize| self.begins.get(layer.get(..*length)?);
        let begin = self.begin_lengths.iter().find_map(begins);
        let fits = |(_, pattern): &&(String, Pattern)| pattern.describes(layer);
        let other = || self.patterns.iter().find(fits).map(|(name, _)| name);
        begin.or_else(other).map(String::as_str)
    }
}

/// A layer's name, and those of the modules that it is in, the innermost first.
fn modules(layer: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(layer), |name| Some(name.rsplit_once('.')?.0))
}

/// The statements of one config on quantisation.
#[derive(Debug)]
struct Scheme {
    file: PathBuf,
    /// The entry of the file's metadata, where it is no config file.
    entry: Option<&'static str>,
    method: Option<String>,
    exporter: Option<Exporter>,
    /// MLX's words.
    modes: Option<Modes>,
    of_all: Algorithm,
    /// Algorithms by module, where there are several.
    of_layers: Option<HashMap<String, Algorithm>>,
    of_patterns: Vec<(Pattern, Algorithm)>,
    excluded: Names,
    /// The first format that is named, where none is NVFP4's.
    other_format: Option<String>,
    groups: Vec<Group>,
    /// The entry that transforms vectors or results, in words.
    transforms: Option<String>,
    /// The format of weights of which some are left out.
    sparsity: Option<String>,
}

/// MLX's config: the mode of all modules that are quantised, and of some by name.
#[derive(Debug)]
struct Modes {
    of_all: String,
    /// `None`: not quantised.
    of_modules: HashMap<String, Option<String>>,
}

impl Modes {
    /// MLX's objects are told by entries that others have not both, and by `quant_method`, which they have not.
    fn of(value: &Value) -> Option<Self> {
        let is_mlx = value.get("bits")?.is_u64() && value.get("group_size")?.is_u64();
        if !is_mlx || value.get("quant_method").is_some() || value.get("quant_algo").is_some() {
            return None;
        }
        let mode = |of: &Value| text(of.get("mode")).unwrap_or("affine".into());
        let of_module = |(name, said): (&String, &Value)| {
            let is_quantised = said.is_object() || *said == Value::Bool(true);
            let is_module = is_quantised || *said == Value::Bool(false);
            let of = if said.is_object() { said } else { value };
            is_module.then(|| (name.clone(), is_quantised.then(|| mode(of))))
        };
        Some(Self {
            of_all: mode(value),
            of_modules: value.as_object()?.iter().filter_map(of_module).collect(),
        })
    }

    /// The mode of a module if it is quantised, and whether the module is named.
    fn mode(&self, module: &str) -> (Option<&str>, bool) {
        match self.of_modules.get(module) {
            Some(mode) => (mode.as_deref(), true),
            None => (Some(&self.of_all), false),
        }
    }
}

/// ModelOpt's name of what was done, and the elements of a block.
#[derive(Clone, Debug, Default)]
struct Algorithm {
    name: Option<String>,
    block: Option<Value>,
    zero_point: bool,
}

/// The name that says that each layer has its own.
const MIXED: &str = "MIXED_PRECISION";

impl Algorithm {
    fn of(value: &Value) -> Self {
        Self {
            name: text(value.get("quant_algo")),
            block: number(value.get("group_size")),
            zero_point: value.get("has_zero_point") == Some(&Value::Bool(true)),
        }
    }

    /// Notes on a layer that it is said of, or why its product would be another one.
    fn check(&self, layer: &Facts<'_>, notes: &mut Vec<String>) -> Result<(), String> {
        let Some(name) = &self.name else {
            return Ok(());
        };
        let algorithm = name.to_uppercase();
        if algorithm.contains("SVD") {
            return Err(format!(
                "{name}: a low-rank product is added, whose tensors are not there"
            ));
        }
        if !algorithm.contains("NVFP4") {
            notes.push(format!("{name}, and its tensors are NVFP4"));
            return Ok(());
        }
        if let Some(size) = wrong_block(self.block.as_ref()) {
            return Err(size);
        }
        if self.zero_point {
            return Err("`has_zero_point`, and there is no such tensor".into());
        }
        let weights_only = matches!(&*algorithm, "W4A16_NVFP4" | "NVFP4_W4A16" | "NVFP4A16");
        match &*algorithm {
            _ if weights_only && layer.has_input_scale => {
                notes.push(format!("{name}, and it has an input scale"));
            }
            _ if weights_only => {}
            "NVFP4" if layer.has_input_scale => {}
            "NVFP4" => notes.push(format!("{name}, and it has no input scale")),
            "NVFP4_AWQ" if layer.has_column_alpha => {}
            "NVFP4_AWQ" => notes.push(format!(
                "{name}, and it has no `pre_quant_scale`: right if that was folded into the layer before"
            )),
            "W4A8_NVFP4_FP8" => {
                notes.push(format!("{name}: its vectors are meant to be rounded to FP8"));
            }
            _ => notes.push(format!("{name}, which is not known, and its tensors are NVFP4")),
        }
        Ok(())
    }
}

impl Scheme {
    fn of(
        value: &Value,
        file: PathBuf,
        entry: Option<&'static str>,
        regexes: &mut Regexes,
    ) -> Self {
        let method = text(value.get("quant_method"));
        let modes = Modes::of(value);
        let exporter = match method.as_deref() {
            Some(method) if method.starts_with("modelopt") => Some(Dialect::ModelOpt.into()),
            Some("compressed-tensors") => Some(Dialect::CompressedTensors.into()),
            Some("torchao") => Some(Exporter::TorchAo),
            Some(_) => None,
            None if modes.is_some() => Some(Exporter::Mlx),
            None => value.get("quant_algo").map(|_| Dialect::ModelOpt.into()),
        };
        let layers = value.get("quantized_layers").and_then(Value::as_object);
        let (patterns, exact): (Vec<_>, Vec<_>) = layers
            .into_iter()
            .flatten()
            .map(|(name, value)| (name.clone(), Algorithm::of(value)))
            .partition(|(name, _)| name.contains(['*', '?']));
        let groups = value.get("config_groups").and_then(Value::as_object);
        let groups = || groups.into_iter().flat_map(|groups| groups.values());
        let formats = std::iter::once(value).chain(groups());
        let formats = formats.filter_map(|value| text(value.get("format")));
        let lists = ["exclude_modules", "ignore", "modules_to_not_convert"];
        Self {
            file,
            entry,
            method,
            exporter,
            modes,
            of_all: Algorithm::of(value),
            of_layers: layers.map(|_| exact.into_iter().collect()),
            of_patterns: patterns
                .into_iter()
                .map(|(name, of)| (Pattern::Glob(name), of))
                .collect(),
            excluded: Names::of(lists.iter().filter_map(|list| value.get(list)), regexes),
            other_format: match formats.clone().any(|format| format == NVFP4_FORMAT) {
                true => None,
                false => formats.clone().next(),
            },
            groups: groups().map(|group| Group::of(group, regexes)).collect(),
            transforms: transforms(value),
            sparsity: {
                let format = value.get("sparsity_config").and_then(|of| of.get("format"));
                text(format).filter(|format| format != "dense")
            },
        }
    }

    /// The characters that are looked at to ask it for all names of these lengths, about.
    fn work(&self, names: NameLengths) -> u128 {
        let of_patterns = self.of_patterns.iter().map(|(pattern, _)| pattern.work());
        let of_groups = self.groups.iter().map(|group| 1 + group.targets.work());
        let all = self.excluded.work() + of_patterns.chain(of_groups).sum::<usize>();
        all as u128 * names.names + names.of_parts
    }

    /// The entry's value, with its place.
    fn says(&self, says: String) -> String {
        match self.entry {
            Some(entry) => format!("metadata entry {entry:?} says {says}"),
            None => format!("says {says}"),
        }
    }

    fn note(&self, module: &str, says: String) -> Note {
        Note::Label {
            file: self.file.clone(),
            layer: module.into(),
            says: self.says(says),
        }
    }

    /// The algorithm of a module, and whether the module is named; `None` where others are listed and it is not.
    fn algorithm(&self, module: &str) -> Option<(&Algorithm, bool)> {
        match (&self.of_layers, &self.of_all.name) {
            (Some(of_layers), name) if name.as_deref().is_none_or(|name| name == MIXED) => {
                let fits = |(pattern, _): &&(Pattern, Algorithm)| pattern.describes(module);
                let pattern = || self.of_patterns.iter().find(fits).map(|(_, of)| of);
                let exact = modules(module).find_map(|module| of_layers.get(module));
                exact.or_else(pattern).map(|algorithm| (algorithm, true))
            }
            _ => Some((&self.of_all, false)),
        }
    }

    /// The quantisation of a module; `None` where nothing is said.
    fn claim(&self, module: &str) -> Option<Claim> {
        let not_quantised = |is_named| Claim {
            kind: None,
            is_fp8: false,
            is_named,
        };
        if self.excluded.naming(module).is_some() {
            return Some(not_quantised(true));
        }
        if let Some(modes) = &self.modes {
            let (mode, is_named) = modes.mode(module);
            return Some(Claim {
                kind: mode.map(str::to_owned),
                is_fp8: mode == Some("mxfp8"),
                is_named,
            });
        }
        let Some((algorithm, is_named)) = self.algorithm(module) else {
            return Some(not_quantised(false));
        };
        if let Some(name) = algorithm.name.as_ref().filter(|name| *name != MIXED) {
            return Some(Claim {
                is_fp8: name.to_uppercase().starts_with("FP8"),
                kind: Some(name.clone()),
                is_named,
            });
        }
        if !self.groups.is_empty() {
            let (groups, is_named) = self.groups_of(module);
            let is_nvfp4 = |group: &&&Group| group.verdict == Verdict::Nvfp4;
            let Some(group) = groups.iter().find(is_nvfp4).or(groups.first()) else {
                return Some(not_quantised(false));
            };
            return Some(Claim {
                kind: Some(group.kind()),
                is_fp8: group.is_fp8,
                is_named,
            });
        }
        let method = self.method.as_ref().filter(|_| self.exporter.is_none())?;
        Some(Claim {
            kind: Some(method.clone()),
            is_fp8: method.contains("fp8"),
            is_named: false,
        })
    }

    /// Ok: contradictions between this scheme and the layer's tensors. Err: why the layer's product would be another
    /// one.
    fn check(&self, layer: &Facts<'_>) -> Result<Vec<String>, String> {
        if let Some(transforms) = &self.transforms {
            return Err(transforms.clone());
        }
        let mut notes = Vec::new();
        if let Some(sparsity) = &self.sparsity {
            notes.push(format!(
                "`sparsity_config` {sparsity:?}, and its tensors have all elements"
            ));
        }
        match (&self.method, self.exporter) {
            (_, Some(exporter)) if exporter != layer.exporter => notes.push(format!(
                "{exporter}, and its tensors have the names of {}",
                layer.exporter
            )),
            (Some(method), None) => notes.push(format!(
                "`quant_method` {method:?}, and its tensors are NVFP4 of {}",
                layer.exporter
            )),
            _ => {}
        }
        if let Some(modes) = &self.modes {
            match modes.mode(layer.name) {
                (Some("nvfp4"), _) => {}
                (Some(mode), _) => {
                    notes.push(format!("`mode` {mode:?}, and its tensors are NVFP4"))
                }
                (None, _) => notes.push("it is not quantised, and its tensors are NVFP4".into()),
            }
            return Ok(notes);
        }
        if let Some(by) = self.excluded.naming(layer.name) {
            notes.push(format!(
                "{by:?} is not quantised, and its tensors are NVFP4"
            ));
            return Ok(notes);
        }
        match self.algorithm(layer.name) {
            Some((algorithm, _)) if algorithm.name.as_deref() == Some(MIXED) => {}
            Some((algorithm, _)) => algorithm.check(layer, &mut notes)?,
            None => notes.push("nothing of it among `quantized_layers`, and it is NVFP4".into()),
        }
        self.check_groups(layer, &mut notes)?;
        Ok(notes)
    }

    /// The groups that a module may be in, and whether they name it: one that does counts before those that are for a
    /// kind of layers.
    fn groups_of(&self, module: &str) -> (Vec<&Group>, bool) {
        let groups = || self.groups.iter();
        let naming: Vec<&Group> = groups().filter(|g| g.targets.has(module)).collect();
        match naming.is_empty() {
            false => (naming, true),
            true => (groups().filter(|group| group.perhaps).collect(), false),
        }
    }

    fn check_groups(&self, layer: &Facts<'_>, notes: &mut Vec<String>) -> Result<(), String> {
        if let Some(format) = &self.other_format {
            notes.push(format!("format {format:?}, and its tensors are NVFP4"));
        }
        let (candidates, _) = self.groups_of(layer.name);
        if candidates.is_empty() {
            if !self.groups.is_empty() {
                notes.push("nothing of it in `config_groups`, and it is NVFP4".into());
            }
            return Ok(());
        }
        let is_nvfp4 = |group: &&&Group| group.verdict == Verdict::Nvfp4;
        let agree = candidates.iter().filter(is_nvfp4);
        if agree.clone().next().is_some() {
            let all = |vectors: GroupVectors| agree.clone().all(|group| group.vectors == vectors);
            // Where an algorithm is named, its check has made these notes already.
            let (named, has) = (self.of_all.name.is_some(), layer.has_input_scale);
            if !named && has && all(GroupVectors::AsTheyAre) {
                notes.push("weights only, and it has an input scale".into());
            } else if !named && !has && all(GroupVectors::Scaled) {
                notes.push("its vectors are quantised, and it has no input scale".into());
            }
            return Ok(());
        }
        for group in candidates {
            match &group.verdict {
                Verdict::Changes(why) => return Err(why.clone()),
                Verdict::Other(what) => {
                    notes.push(format!("{what}, and its tensors are NVFP4"));
                    return Ok(());
                }
                Verdict::Nvfp4 => {}
            }
        }
        Ok(())
    }
}

/// The name that compressed-tensors has for layers of this crate's kind.
const NVFP4_FORMAT: &str = "nvfp4-pack-quantized";

/// A group of `config_groups`.
#[derive(Debug)]
struct Group {
    targets: Names,
    /// Whether it may be for any layer: for a class, such as Linear, or for what is no pattern.
    perhaps: bool,
    verdict: Verdict,
    is_fp8: bool,
    vectors: GroupVectors,
}

/// How a group says that vectors are quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupVectors {
    AsTheyAre,
    /// Quantised with a scale of the checkpoint's.
    Scaled,
    /// Quantised with scales that are found on the way.
    Dynamic,
}

/// Verdict of a group on its weights.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Nvfp4,
    /// The group says that the weights are something else, and the tensors show that they are not.
    Other(String),
    /// The group asks for something that would change the product.
    Changes(String),
}

impl Group {
    fn of(value: &Value, regexes: &mut Regexes) -> Self {
        let listed = value.get("targets").and_then(Value::as_array);
        let listed = listed.into_iter().flatten().filter_map(Value::as_str);
        let mut targets = Names::default();
        let mut perhaps = listed.clone().next().is_none();
        for target in listed {
            let is_understood = targets.add(target, regexes);
            perhaps |= !is_understood || target.starts_with(char::is_uppercase);
        }
        let inputs = value.get("input_activations").filter(|v| !v.is_null());
        let vectors = match inputs.map(|inputs| inputs.get("dynamic")) {
            None => GroupVectors::AsTheyAre,
            Some(Some(Value::Bool(true))) => GroupVectors::Dynamic,
            Some(_) => GroupVectors::Scaled,
        };
        let weights = value.get("weights").unwrap_or(&Value::Null);
        let is = |key: &str, expected: Value| weights.get(key) == Some(&expected);
        Self {
            targets,
            perhaps,
            verdict: Verdict::of(weights, text(value.get("format"))),
            is_fp8: is("num_bits", 8.into()) && is("type", "float".into()),
            vectors,
        }
    }

    /// Its kind of weights in words.
    fn kind(&self) -> String {
        match &self.verdict {
            _ if self.is_fp8 => "FP8".into(),
            Verdict::Nvfp4 if self.vectors == GroupVectors::AsTheyAre => {
                "NVFP4, weights only".into()
            }
            Verdict::Nvfp4 => "NVFP4".into(),
            Verdict::Other(what) | Verdict::Changes(what) => what.clone(),
        }
    }
}

impl Verdict {
    fn of(weights: &Value, format: Option<String>) -> Self {
        let of = |key: &str| weights.get(key).filter(|value| !value.is_null());
        let (bits, kind) = (of("num_bits"), of("type"));
        let is = |value: Option<&Value>, expected: Value| value.is_none_or(|v| *v == expected);
        if !is(bits, 4.into()) || !is(kind, "float".into()) {
            let show = |value: Option<&Value>| value.map_or("?".into(), shown);
            return Self::Other(format!("{} bits of type {}", show(bits), show(kind)));
        }
        if let Some(size) = wrong_block(of("group_size")) {
            return Self::Changes(size);
        }
        if of("symmetric") == Some(&Value::Bool(false)) {
            return Self::Changes("weights have zero points, whose tensor is not there".into());
        }
        match of("actorder").map(shown) {
            Some(order) if order.eq_ignore_ascii_case("group") => {
                return Self::Changes(
                    "columns are in the order of activations, whose tensor is not there".into(),
                );
            }
            _ => {}
        }
        if let Some(format) = format.filter(|format| format != NVFP4_FORMAT) {
            return Self::Other(format!("format {format:?}"));
        }
        let (strategy, scales) = (text(of("strategy")), text(of("scale_dtype")));
        if let Some(strategy) = strategy.filter(|s| !["tensor_group", "group"].contains(&&**s)) {
            return Self::Other(format!("`strategy` {strategy:?}"));
        }
        match scales.filter(|scales| !scales.contains("e4m3")) {
            Some(scales) => Self::Other(format!("`scale_dtype` {scales:?}")),
            None => Self::Nvfp4,
        }
    }
}

/// The difference between the elements of a block and NVFP4's, where there is one.
fn wrong_block(size: Option<&Value>) -> Option<String> {
    let size = size?;
    let is_block = size.as_u64() == Some(BLOCK as u64) || size.as_f64() == Some(BLOCK as f64);
    (!is_block).then(|| format!("`group_size` {}; blocks of NVFP4 have {BLOCK}", shown(size)))
}

/// The entry of a config that says that vectors or results are transformed on the way, in words. compressed-tensors has
/// `transform_config`, AutoRound `rotation_config`, FP-Quant `hadamard_group_size` and `transform_init`. A Hadamard matrix that is computed
/// shows in no tensor.
fn transforms(config: &Value) -> Option<String> {
    let entry = transform_entry(config)?;
    Some(format!(
        "`{entry}`: vectors or results are transformed (rotated) on the way"
    ))
}

fn transform_entry(config: &Value) -> Option<&str> {
    const WORDS: [&str; 3] = ["hadamard", "rotat", "spinquant"];
    let says = |key: &str, value: &Value| match key {
        "transform_config" => !says_nothing(value.get("config_groups").unwrap_or(value)),
        // A module's name.
        _ if key.contains('.') => false,
        _ => {
            let key = key.to_lowercase();
            let is_named =
                key.starts_with("transform_") || WORDS.iter().any(|word| key.contains(word));
            is_named && !says_nothing(value)
        }
    };
    let inside = match config {
        Value::Array(values) => return values.iter().find_map(transform_entry),
        Value::Object(entries) => entries,
        _ => return None,
    };
    let own = inside.iter().find(|(key, value)| says(key, value));
    let own = own.map(|(key, _)| &**key);
    own.or_else(|| inside.values().find_map(transform_entry))
}

/// Whether a value is none, false, zero, empty, or the identity.
fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => ["", "none", "identity"].contains(&&*text.to_lowercase()),
        Value::Array(values) => values.is_empty(),
        Value::Object(entries) => entries.is_empty(),
        Value::Bool(true) => false,
    }
}

/// A value as text: strings without their quotes.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn text(value: Option<&Value>) -> Option<String> {
    value.filter(|value| !value.is_null()).map(shown)
}

fn number(value: Option<&Value>) -> Option<Value> {
    value.filter(|value| !value.is_null()).cloned()
}

/// ComfyUI's words on the layers of a file.
#[derive(Debug)]
struct Comfy {
    file: PathBuf,
    /// The layers that it names, with their marks; `None` where it does not say which it means.
    layers: Option<HashMap<String, Result<Mark, String>>>,
    /// Their names, in the order of the names read backwards: those that end alike follow each other.
    by_end: Vec<String>,
    /// Whether the file's metadata have ModelOpt's config, too. ModelOpt writes this entry as well: with the low nibble
    /// first, and with block scales in either layout, of which the entry says nothing.
    beside_modelopt: bool,
}

impl Comfy {
    fn of(text: &str, file: &TensorFile) -> Self {
        let value = entry_value(text).unwrap_or_default();
        let layers = value.get("layers").and_then(Value::as_object);
        let layers = layers.filter(|layers| !layers.is_empty());
        let marks = |layers: &Map<String, Value>| {
            let layers = layers
                .iter()
                .map(|(name, said)| (name.clone(), Mark::of(said)));
            layers.collect()
        };
        let has = |entry: &str| file.metadata().contains_key(entry);
        let names = layers.into_iter().flat_map(Map::keys);
        let mut by_end: Vec<String> = names.cloned().collect();
        by_end.sort_unstable_by(|a, b| a.bytes().rev().cmp(b.bytes().rev()));
        Self {
            file: file.path().into(),
            layers: layers.map(marks),
            by_end,
            beside_modelopt: has(CONFIG_ENTRY) || has(QUANT_CONFIG_ENTRY),
        }
    }

    /// The mark of a layer that it names, with or without what the layer's name begins with elsewhere. `None` in it:
    /// it does not name the layer, which is in its file.
    fn about(&self, name: &str, files: &[&Path]) -> Option<Option<&Result<Mark, String>>> {
        let Some(layers) = &self.layers else {
            return files.contains(&&*self.file).then_some(None);
        };
        if let Some(mark) = layers.get(name) {
            return Some(Some(mark));
        }
        // Names that agree from some dot on may be those of another file's layers.
        if !files.contains(&&*self.file) {
            return None;
        }
        let shorter = std::iter::successors(Some(name), |name| Some(name.split_once('.')?.1));
        let end = format!(".{name}");
        let before = |listed: &String| listed.bytes().rev().lt(end.bytes().rev());
        let longer = self.by_end[self.by_end.partition_point(before)..].iter();
        let longer = longer.take_while(|listed| listed.ends_with(&end));
        let mut shorter = shorter.filter_map(|name| layers.get(name));
        // Of several the first by name.
        Some(shorter.next().or_else(|| layers.get(longer.min()?)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde_json::json;

    use super::*;

    fn group_of(targets: &[&str]) -> Group {
        Group::of(&json!({ "targets": targets }), &mut Regexes::default())
    }

    #[test]
    fn groups_are_for_layers_classes_and_what_is_not_understood() {
        for (targets, names, perhaps) in [
            (&["a.l"][..], true, false),
            // A module that the layer is in is not it.
            (&["a"], false, false),
            (&["re:^a\\.l$"], true, false),
            (&["a.*", "Linear"], true, true),
            (&["re:b.*"], false, false),
            (&["b", "Linear"], false, true),
            (&["re:(a|b)"], true, false),
            (&["re:(b|c)"], false, false),
            (&["re:(?!b)"], false, true),
            (&[], false, true),
        ] {
            let group = group_of(targets);
            assert_eq!(group.targets.has("a.l"), names, "{targets:?}");
            assert_eq!(group.perhaps, perhaps, "{targets:?}");
        }
    }

    /// A model of experts names each of its layers. Walking all names for each layer would take minutes.
    #[test]
    fn a_layer_is_found_among_many_targets_without_walking_them() {
        let name = |i: usize| format!("model.layers.{}.mlp.experts.{i}.down_proj", i % 60);
        let targets: Vec<String> = (0..50_000).map(name).collect();
        let weights = json!({ "num_bits": 4, "type": "float", "group_size": 16 });
        let value =
            json!({ "config_groups": { "group_0": { "targets": targets, "weights": weights } } });
        let scheme = Scheme::of(&value, PathBuf::new(), None, &mut Regexes::default());
        let start = Instant::now();
        for name in &targets {
            let layer = Facts {
                name,
                exporter: Dialect::CompressedTensors.into(),
                has_input_scale: false,
                has_column_alpha: false,
                files: [Path::new(""); 2],
            };
            assert_eq!(scheme.check(&layer), Ok(Vec::new()));
            assert!(start.elapsed() < Duration::from_secs(20));
        }
    }
}
