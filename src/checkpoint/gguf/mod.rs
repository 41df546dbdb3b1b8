//! GGUF files, as llama.cpp has them.
//!
//! Sources: ggml's `docs/gguf.md`, `ggml-common.h` and `ggml-quants.c`. The header is read by `gguf-rs-lib`.

pub(super) mod blocks;
mod names;

use std::fmt;
use std::io::Cursor;
use std::ops::Range;
use std::path::{Path, PathBuf};

use gguf_rs_lib::format::{Metadata, MetadataValue};
use gguf_rs_lib::prelude::{GGUFFileReader, GGUFTensorType};
use rayon::prelude::*;

use super::dense::{Dense, DenseElement, DenseScales, StoredRows};
use super::error::closest;
use super::joined::Gathered;
use super::mx::{self, Mx};
use super::{CheckpointError, Note, files, known};
use crate::file::{Bytes, FileError};
use crate::{Dims, GlobalScale, Shape};
use names::{Architecture, Heads};

/// A GGUF file, or all files of a split model, in memory where they have up to [`READ_UP_TO`](crate::file::READ_UP_TO) bytes, or else mapped, as
/// [`TensorFile`](crate::file::TensorFile) is. Its header has been validated: every tensor lies inside the file, no two
/// overlap, and none has the name of another.
///
/// Tensors have the names of transformers where the architecture is known (`llama`, `qwen2`, `qwen3` and the latter
/// two's mixtures of experts): `model.layers.0.self_attn.q_proj` is `blk.0.attn_q` in the file. llama's rows of q and k
/// are stored in another order, and are put where transformers has them. Tensors of other architectures keep their own
/// names and the order of their rows.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    /// All parts, of a split model.
    files: Vec<(PathBuf, Bytes)>,
    metadata: Metadata,
    /// In the order of their names.
    tensors: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    name: Box<str>,
    stored: Box<str>,
    element: GgufElement,
    /// Outermost dimension first.
    shape: Vec<usize>,
    /// The number of its file.
    file: usize,
    range: Range<usize>,
    heads: Option<Heads>,
}

/// The type of a GGUF tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GgufElement {
    /// NVFP4 (type 40).
    Nvfp4,
    /// MXFP4 (type 39).
    Mxfp4,
    /// Numbers that [`Gguf::dense`] opens.
    Dense(DenseElement),
    /// Another type, which is not read, by its name in ggml.
    Other(&'static str),
}

impl fmt::Display for GgufElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nvfp4 => f.write_str("NVFP4"),
            Self::Mxfp4 => f.write_str("MXFP4"),
            Self::Dense(element) => element.fmt(f),
            Self::Other(name) => f.write_str(name),
        }
    }
}

impl GgufElement {
    fn of(of: GGUFTensorType) -> Self {
        match of {
            GGUFTensorType::NVFP4 => Self::Nvfp4,
            GGUFTensorType::MXFP4 => Self::Mxfp4,
            GGUFTensorType::F32 => Self::Dense(DenseElement::F32),
            GGUFTensorType::F16 => Self::Dense(DenseElement::F16),
            GGUFTensorType::BF16 => Self::Dense(DenseElement::Bf16),
            GGUFTensorType::Q4_0 => Self::Dense(DenseElement::Q4_0),
            GGUFTensorType::Q4_1 => Self::Dense(DenseElement::Q4_1),
            GGUFTensorType::Q5_0 => Self::Dense(DenseElement::Q5_0),
            GGUFTensorType::Q5_1 => Self::Dense(DenseElement::Q5_1),
            GGUFTensorType::Q8_0 => Self::Dense(DenseElement::Q8_0),
            GGUFTensorType::Q4_K => Self::Dense(DenseElement::Q4K),
            GGUFTensorType::Q5_K => Self::Dense(DenseElement::Q5K),
            GGUFTensorType::Q6_K => Self::Dense(DenseElement::Q6K),
            other => Self::Other(other.name()),
        }
    }

    /// Elements that are stored together, and the bytes they take.
    fn block(self) -> Option<(usize, usize)> {
        match self {
            Self::Nvfp4 => Some((NVFP4_BLOCK, NVFP4_BYTES)),
            Self::Mxfp4 => Some((mx::BLOCK, MXFP4_BYTES)),
            Self::Dense(element) => Some(element.block()),
            Self::Other(_) => None,
        }
    }
}

/// Elements of NVFP4 that are stored together: four scales, then the codes.
const NVFP4_BLOCK: usize = 64;
const NVFP4_BYTES: usize = 4 + NVFP4_BLOCK / 2;
/// A scale, then the codes.
const MXFP4_BYTES: usize = 1 + mx::BLOCK / 2;

/// One tensor of a [`Gguf`] file.
#[derive(Clone, Copy, Debug)]
pub struct GgufTensor<'a> {
    file: &'a Gguf,
    entry: &'a Entry,
}

impl<'a> GgufTensor<'a> {
    /// Its name: transformers' where that is known, or else the file's.
    pub fn name(&self) -> &'a str {
        &self.entry.name
    }

    /// Its name in the file.
    pub fn stored_name(&self) -> &'a str {
        &self.entry.stored
    }

    /// The type of its elements.
    pub fn element(&self) -> GgufElement {
        self.entry.element
    }

    /// Its shape, outermost dimension first: the reverse of the file's order.
    pub fn shape(&self) -> &'a [usize] {
        &self.entry.shape
    }

    /// Its bytes, as ggml lays them out.
    pub fn bytes(&self) -> &'a [u8] {
        &self.file.files[self.entry.file].1[self.entry.range.clone()]
    }

    /// The file that it is in.
    pub fn path(&self) -> &'a Path {
        &self.file.files[self.entry.file].0
    }

    fn wrong(&self, expected: impl Into<String>) -> FileError {
        FileError::WrongTensor {
            file: self.path().into(),
            tensor: self.entry.stored.to_string(),
            expected: expected.into(),
            found: self.to_string(),
        }
    }

    fn refused(&self, source: crate::Error) -> FileError {
        FileError::Content {
            file: self.path().into(),
            tensor: self.entry.stored.to_string(),
            source,
        }
    }

    /// The elements of a tensor of one dimension, of which no type stores several together.
    fn to_f32(self) -> Result<Vec<f32>, FileError> {
        match self.element() {
            GgufElement::Dense(element) if element.block().0 == 1 => {
                let mut values = vec![0.0; self.bytes().len() / element.block().1];
                element.decode(self.bytes(), &mut values);
                Ok(values)
            }
            _ => Err(self.wrong("F32, F16 or BF16")),
        }
    }
}

/// Type and shape, as error messages show them: `NVFP4 [1536, 576]`.
impl fmt::Display for GgufTensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.element(), self.shape())
    }
}

const DENSE: &str = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K or Q6_K";
const WEIGHT: &str = "weight";
/// Names of a weight's global scale, and of the one for its vectors, behind the module's.
const GLOBALS: [&str; 2] = ["scale", "weight.scale"];
const INPUTS: [&str; 2] = ["input_scale", "weight.input_scale"];

impl Gguf {
    /// Opens a file and validates its header, which may have up to a million tensors. Of a split model
    /// (`model-00001-of-00003.gguf`) all files are opened, whichever of them is named; they lie beside each other.
    ///
    /// # Errors
    /// [`CheckpointError::File`]: a file that cannot be read, is damaged or truncated, or is another part of a split
    /// model than its name says. [`CheckpointError::MissingFiles`] for parts that are not there.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        let path = path.into();
        let named = Header::read(&path)?;
        let mut parts = match named.split {
            None => vec![named],
            Some(split) => {
                let mut parts = Vec::new();
                for (at, file) in split.files(&path)?.into_iter().enumerate() {
                    let part = Header::read(&file)?;
                    let expected = Split {
                        number: at as u64,
                        ..split
                    };
                    if part.split != Some(expected) {
                        let found = part
                            .split
                            .map_or("no part".into(), |split| split.to_string());
                        return Err(wrong(
                            &file,
                            format!("it should be {expected} and is {found}"),
                        )
                        .into());
                    }
                    parts.push(part);
                }
                parts
            }
        };
        // The first part has what is said of the model.
        let metadata = std::mem::take(&mut parts[0].metadata);
        let architecture = metadata.get_string(ARCHITECTURE);
        let architecture = architecture.and_then(Architecture::of);
        let (mut tensors, mut files) = (Vec::new(), Vec::new());
        for (at, part) in parts.into_iter().enumerate() {
            for mut entry in part.tensors {
                if let Some(name) = architecture.and_then(|of| of.published(&entry.stored)) {
                    entry.name = name.into();
                }
                entry.heads = architecture.and_then(|of| of.permuted(&entry.stored));
                entry.file = at;
                tensors.push(entry);
            }
            files.push((part.path, part.bytes));
        }
        let said = unsigned(&metadata, "split.tensors.count");
        if let Some(said) = said.filter(|said| files.len() > 1 && *said != tensors.len() as u64) {
            let reason = format!(
                "{said} tensors in all parts by its own count, and {} are there",
                tensors.len()
            );
            return Err(wrong(&files[0].0, reason).into());
        }
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        let mut pairs = tensors.windows(2);
        if let Some(pair) = pairs.find(|pair| pair[0].name == pair[1].name) {
            let [first, second] = [&pair[0].stored, &pair[1].stored];
            let reason = format!("tensors {first:?} and {second:?} have one name");
            return Err(wrong(&files[pair[1].file].0, reason).into());
        }
        Ok(Self {
            path,
            files,
            metadata,
            tensors,
        })
    }

    /// The files: one, or all parts of a split model in their order.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.files.iter().map(|(path, _)| &**path)
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The model's architecture, such as `llama`: the entry `general.architecture`.
    pub fn architecture(&self) -> Option<&str> {
        self.text(ARCHITECTURE)
    }

    /// The keys of the metadata.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.metadata.keys().map(|key| &**key)
    }

    /// Whether the metadata has an entry, of whatever type.
    pub fn has_entry(&self, key: &str) -> bool {
        self.metadata.contains_key(key)
    }

    /// An entry of the metadata that is a text.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.metadata.get_string(key)
    }

    /// An entry that is an integer, and not negative.
    pub fn integer(&self, key: &str) -> Option<u64> {
        unsigned(&self.metadata, key)
    }

    /// An entry that is a floating-point number.
    pub fn float(&self, key: &str) -> Option<f64> {
        self.metadata.get_f64(key)
    }

    /// An entry that is a list of texts, such as the tokens of a vocabulary (`tokenizer.ggml.tokens`).
    pub fn texts(&self, key: &str) -> Option<Vec<&str>> {
        let MetadataValue::Array(array) = self.metadata.get(key)? else {
            return None;
        };
        array.values.iter().map(MetadataValue::as_str).collect()
    }

    /// An entry that is a list of integers, such as the kinds of the tokens (`tokenizer.ggml.token_type`).
    pub fn integers(&self, key: &str) -> Option<Vec<i64>> {
        let MetadataValue::Array(array) = self.metadata.get(key)? else {
            return None;
        };
        let integer = |value: &MetadataValue| {
            let unsigned = || value.as_u64().and_then(|value| i64::try_from(value).ok());
            value.as_i64().or_else(unsigned)
        };
        array.values.iter().map(integer).collect()
    }

    /// All tensors, in the order of their names.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = GgufTensor<'_>> {
        let file = self;
        self.tensors
            .iter()
            .map(move |entry| GgufTensor { file, entry })
    }

    /// A tensor by its name, or `None` where there is none of that name.
    pub fn tensor(&self, name: &str) -> Option<GgufTensor<'_>> {
        let found = self
            .tensors
            .binary_search_by(|entry| (*entry.name).cmp(name));
        let (file, entry) = (self, &self.tensors[found.ok()?]);
        Some(GgufTensor { file, entry })
    }

    /// A matrix of one of the types of [`DenseElement`], by its module's name or its tensor's.
    ///
    /// # Errors
    /// [`CheckpointError::NoTensor`]; [`CheckpointError::File`] for another type or shape, and for rows of q and k
    /// whose number does not go with the heads'; [`CheckpointError::UnknownTensors`] for a scale beside it.
    pub fn dense(&self, name: &str) -> Result<Dense<'_>, CheckpointError> {
        let (name, weight) = self.module(name)?;
        let &[rows, k] = weight.shape() else {
            return Err(weight.wrong("a matrix [M, K]").into());
        };
        self.dense_of(name, weight, [rows, k])
    }

    /// Matrices that are stacked in one tensor `[E][M][K]`, such as experts, of the types of [`dense`](Self::dense).
    ///
    /// # Errors
    /// As [`dense`](Self::dense)'s.
    pub fn dense_experts(&self, name: &str) -> Result<Vec<Dense<'_>>, CheckpointError> {
        let (name, weight) = self.module(name)?;
        let &[experts, rows, k] = weight.shape() else {
            return Err(weight.wrong("stacked matrices [E, M, K]").into());
        };
        // There may be any number of empty ones.
        if weight.bytes().is_empty() {
            return Err(weight.wrong("matrices with elements").into());
        }
        let all = self.dense_of(name, weight, [rows, k])?;
        let each = all.bytes.len() / experts;
        let matrix = |expert: usize| Dense {
            name: format!("{name}.{expert}").into(),
            bytes: &all.bytes[expert * each..(expert + 1) * each],
            ..all.clone()
        };
        Ok((0..experts).map(matrix).collect())
    }

    fn dense_of<'a>(
        &'a self,
        name: &'a str,
        weight: GgufTensor<'a>,
        [rows, k]: [usize; 2],
    ) -> Result<Dense<'a>, CheckpointError> {
        let GgufElement::Dense(element) = weight.element() else {
            return Err(weight.wrong(DENSE).into());
        };
        Ok(Dense {
            name: name.into(),
            element,
            rows,
            k,
            bytes: weight.bytes(),
            scales: DenseScales::None,
            order: self.order(&weight, rows)?,
            notes: self.beside(name, &[])?,
        })
    }

    /// The elements of a tensor of one dimension in F32, F16 or BF16, in f32: a norm, a bias. `name` is the tensor's
    /// (`model.norm.weight`).
    ///
    /// # Errors
    /// [`CheckpointError::NoTensor`]; [`CheckpointError::File`] as of [`dense`](Self::dense).
    pub fn vector(&self, name: &str) -> Result<Vec<f32>, CheckpointError> {
        let tensor = self.find(name)?;
        let &[elements] = tensor.shape() else {
            return Err(tensor.wrong("one dimension").into());
        };
        let stored = tensor.to_f32()?;
        let order = self.order(&tensor, elements)?;
        Ok((0..elements).map(|at| stored[order.of(at)]).collect())
    }

    /// A matrix in NVFP4 or MXFP4 as NVFP4 weights, or several that are stacked `[E][M][K]`. Not one number is rounded:
    ///
    /// - NVFP4 keeps its codes and block scales, in another order. Scales 0x7F mean 0 in GGUF, and become 0. A tensor
    ///   `.scale` or `.weight.scale` is the global scale; where there is none, that is 1.
    /// - MXFP4 keeps its codes. Its scales become powers of two in E4M3, with a global scale, or a factor for each row
    ///   where the powers span too much.
    ///
    /// # Errors
    /// [`CheckpointError::MxRow`] for a row of MXFP4 that NVFP4 does not hold exactly. [`CheckpointError::File`] for
    /// another type or shape, for a scale of NVFP4 that has a sign, or a global scale that is
    /// [not usable](crate::Error::GlobalScale). Others as of [`dense`](Self::dense).
    pub fn weights(&self, name: &str) -> Result<Gathered<'static>, CheckpointError> {
        let (name, weight) = self.module(name)?;
        let (l, m, k) = match *weight.shape() {
            [m, k] => (1, m, k),
            [l, m, k] => (l, m, k),
            _ => return Err(weight.wrong("[M, K] or [E, M, K]").into()),
        };
        let shape = Shape::new(Dims { m, n: 1, k, l }).map_err(|error| weight.refused(error))?;
        let order = self.order(&weight, m)?;
        match weight.element() {
            GgufElement::Nvfp4 => {
                self.notes(name)?;
                let globals = self.named_globals(name, &GLOBALS, shape.l())?;
                nvfp4(weight, shape, order, globals)
            }
            GgufElement::Mxfp4 => {
                self.notes(name)?;
                let mx = mxfp4(weight, shape, order);
                mx.to_nvfp4()
                    .map_err(|row| mx::mx_row(weight.path(), name, row))
            }
            _ => Err(weight.wrong("NVFP4 or MXFP4").into()),
        }
    }

    /// The global scales of an NVFP4 module that the file has, one, or one for each expert: `.scale` or `.weight.scale`.
    /// [`weights`](Self::weights) has them, too; here nothing else of the module is read.
    ///
    /// # Errors
    /// As [`input_globals`](Self::input_globals).
    pub fn globals(&self, name: &str) -> Result<Option<Vec<GlobalScale>>, CheckpointError> {
        self.globals_of_weight(name, &GLOBALS)
    }

    /// The global scales for vectors of an NVFP4 module that the file has, one, or one for each expert: `.input_scale`.
    ///
    /// # Errors
    /// [`CheckpointError::NoTensor`] for the module, [`CheckpointError::File`] for a scale of another type or shape, or
    /// one that is [not usable](crate::Error::GlobalScale).
    pub fn input_globals(&self, name: &str) -> Result<Option<Vec<GlobalScale>>, CheckpointError> {
        self.globals_of_weight(name, &INPUTS)
    }

    fn globals_of_weight(
        &self,
        name: &str,
        names: &[&str],
    ) -> Result<Option<Vec<GlobalScale>>, CheckpointError> {
        let (name, weight) = self.module(name)?;
        let experts = match *weight.shape() {
            [experts, _, _] => experts,
            _ => 1,
        };
        self.named_globals(name, names, experts)
    }

    /// A module's global scales of one of these names.
    fn named_globals(
        &self,
        module: &str,
        names: &[&str],
        experts: usize,
    ) -> Result<Option<Vec<GlobalScale>>, CheckpointError> {
        let tensors = names
            .iter()
            .map(|rest| self.tensor(&format!("{module}.{rest}")));
        let tensors: Vec<_> = tensors.flatten().collect();
        let tensor = match tensors[..] {
            [] => return Ok(None),
            [tensor] => tensor,
            [_, second, ..] => {
                return Err(second.wrong("one such tensor, and there are two").into());
            }
        };
        let is_f32 = tensor.element() == GgufElement::Dense(DenseElement::F32);
        let values = tensor.to_f32()?;
        if !is_f32 || ![1, experts].contains(&values.len()) {
            return Err(tensor.wrong(format!("F32 [1] or [{experts}]")).into());
        }
        let check = |value: &f32| GlobalScale::Multiplier(*value).check("global scale");
        let globals: crate::Result<Vec<_>> = values.iter().map(check).collect();
        Ok(Some(globals.map_err(|error| tensor.refused(error))?))
    }

    /// Notes on the tensors beside a module's weight: none changes the product, but those that are known here.
    fn beside(&self, module: &str, own: &[&str]) -> Result<Vec<Note>, CheckpointError> {
        let begin = format!("{module}.");
        let first = self.tensors.partition_point(|entry| *entry.name < *begin);
        let (mut notes, mut unknown) = (Vec::new(), Vec::new());
        for entry in &self.tensors[first..] {
            let Some(rest) = entry.name.strip_prefix(&*begin) else {
                break;
            };
            match known::meaning(rest) {
                _ if rest == WEIGHT || own.contains(&rest) => {}
                Some(known::Meaning::Added) => notes.push(Note::NotAdded {
                    tensor: entry.name.to_string(),
                }),
                // Experts have others' names between: those are modules of their own.
                _ if self.is_module(&entry.name, module) => {}
                _ => unknown.push(&*entry.stored),
            }
        }
        match unknown.is_empty() {
            true => Ok(notes),
            false => Err(CheckpointError::unknown_tensors(
                &self.path, module, &unknown,
            )),
        }
    }

    /// Whether a tensor below a module's name belongs to a module of its own there: one that has a weight.
    fn is_module(&self, tensor: &str, module: &str) -> bool {
        let mut stems = tensor.rmatch_indices('.').map(|(dot, _)| &tensor[..dot]);
        stems.any(|stem| {
            stem.len() > module.len()
                && stem.strip_prefix(module) != Some(".weight")
                && self.tensor(&format!("{stem}.{WEIGHT}")).is_some()
        })
    }

    /// The tensor of a module's weight, by the module's name or the tensor's.
    ///
    /// # Errors
    /// [`CheckpointError::NoTensor`].
    pub fn weight(&self, name: &str) -> Result<GgufTensor<'_>, CheckpointError> {
        Ok(self.module(name)?.1)
    }

    /// Notes on what is beside a module's weight and changes no product, such as a bias.
    ///
    /// # Errors
    /// [`CheckpointError::NoTensor`] for the module; [`CheckpointError::UnknownTensors`].
    pub fn notes(&self, name: &str) -> Result<Vec<Note>, CheckpointError> {
        let (name, weight) = self.module(name)?;
        let own = match weight.element() {
            GgufElement::Nvfp4 => [GLOBALS, INPUTS].concat(),
            GgufElement::Mxfp4 => INPUTS.to_vec(),
            _ => Vec::new(),
        };
        self.beside(name, &own)
    }

    /// The tensor of a module's weight, with the module's name.
    fn module(&self, name: &str) -> Result<(&str, GgufTensor<'_>), CheckpointError> {
        let name = name.trim_end_matches('.');
        let weight = match self.tensor(&format!("{name}.{WEIGHT}")) {
            Some(weight) => weight,
            None => self.find(name)?,
        };
        let module = weight.name().strip_suffix(WEIGHT);
        let module = module.and_then(|module| module.strip_suffix('.'));
        Ok((module.unwrap_or(weight.name()), weight))
    }

    fn find(&self, name: &str) -> Result<GgufTensor<'_>, CheckpointError> {
        // Of a weight its module's name, unless the tensor's own was asked for.
        let end = if name.ends_with(WEIGHT) {
            ""
        } else {
            ".weight"
        };
        let names = self.tensors.iter().map(|entry| &*entry.name);
        let names = names.map(|name| name.strip_suffix(end).unwrap_or(name));
        self.tensor(name).ok_or_else(|| CheckpointError::NoTensor {
            checkpoint: self.path.clone(),
            tensor: name.into(),
            close: closest(name, names, 3),
        })
    }

    /// The order of a tensor's rows.
    fn order(&self, tensor: &GgufTensor<'_>, rows: usize) -> Result<StoredRows, CheckpointError> {
        let Some(heads) = tensor.entry.heads else {
            return Ok(StoredRows::InPlace);
        };
        let of_all = self.architecture().unwrap_or_default();
        let key = format!("{of_all}.attention.head_count");
        let of_keys = format!("{key}_kv");
        let own = match heads {
            // As many as there are of queries, if nothing is said.
            Heads::Keys if self.metadata.contains_key(&of_keys) => of_keys,
            Heads::Keys | Heads::Queries => key,
        };
        let order = self
            .integer(&own)
            .and_then(|count| names::order(rows, count));
        order.ok_or_else(|| {
            let expected = format!(
                "rows of whole heads, of whose number the entry {own:?} says {}",
                match self.metadata.get(&own) {
                    None => "nothing".into(),
                    Some(value) => value
                        .as_u64()
                        .map_or("something else".into(), |n| n.to_string()),
                }
            );
            tensor.wrong(expected).into()
        })
    }
}

/// An integer that is not negative, of a type with a sign or without one.
fn unsigned(metadata: &Metadata, key: &str) -> Option<u64> {
    let value = metadata.get(key)?;
    let signed = || value.as_i64().and_then(|value| u64::try_from(value).ok());
    value.as_u64().or_else(signed)
}

/// The part of a file before its tensors' bytes.
struct Header {
    path: PathBuf,
    bytes: Bytes,
    metadata: Metadata,
    tensors: Vec<Entry>,
    /// Which part of a split model it is.
    split: Option<Split>,
}

fn wrong(path: &Path, reason: String) -> FileError {
    FileError::Gguf {
        file: path.into(),
        reason,
    }
}

impl Header {
    fn read(path: &Path) -> Result<Self, FileError> {
        let bytes = Bytes::of(path).map_err(|error| FileError::of_input(path, error))?;
        let header = GGUFFileReader::new(Cursor::new(&bytes[..]));
        let header = header.map_err(|error| wrong(path, error.to_string()))?;
        let metadata = header.metadata().clone();
        let split = unsigned(&metadata, "split.count").filter(|parts| *parts > 1);
        let split = split.map(|parts| Split {
            parts,
            number: unsigned(&metadata, "split.no").unwrap_or(0),
        });
        let mut tensors = Vec::with_capacity(header.tensor_count());
        for info in header.tensor_infos() {
            let stored = info.name();
            let begin = header.tensor_data_offset().checked_add(info.data_offset());
            let end = begin.and_then(|begin| begin.checked_add(info.expected_data_size()));
            let range = [begin, end].map(|at| at.and_then(|at| usize::try_from(at).ok()));
            let [Some(begin), Some(end)] = range else {
                return Err(wrong(
                    path,
                    format!("tensor {stored:?} lies outside of any file"),
                ));
            };
            let shape = info.shape().dims().iter().rev().map(|d| *d as usize);
            let entry = Entry {
                name: stored.into(),
                stored: stored.into(),
                element: GgufElement::of(info.tensor_type()),
                shape: shape.collect(),
                file: 0,
                range: begin..end,
                heads: None,
            };
            let checked = entry.check(bytes.len());
            checked.map_err(|reason| wrong(path, format!("tensor {stored:?}: {reason}")))?;
            tensors.push(entry);
        }
        drop(header);
        Ok(Self {
            path: path.into(),
            bytes,
            metadata,
            tensors,
            split,
        })
    }
}

/// A part of a split model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Split {
    /// How many parts there are.
    parts: u64,
    /// Which this is, from 0.
    number: u64,
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "part {} of {}",
            self.number.saturating_add(1),
            self.parts
        )
    }
}

impl Split {
    /// The files of all parts, by the name of this one. The file format has at most 65,535 parts.
    fn files(self, path: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let ends = |number: u64| format!("-{number:05}-of-{:05}.gguf", self.parts);
        let stem = name.strip_suffix(&ends(self.number.saturating_add(1)));
        let stem = stem.filter(|_| self.parts <= u64::from(u16::MAX));
        let Some(stem) = stem else {
            let reason = format!(
                "it is {self} of a split model, which its name does not say (\"-00001-of-00003.gguf\")"
            );
            return Err(wrong(path, reason).into());
        };
        let name = |number: u64| format!("{stem}{}", ends(number));
        let directory = path.parent().unwrap_or(Path::new("")).to_owned();
        files::all_there(&directory, (1..=self.parts).map(name))
    }
}

const ARCHITECTURE: &str = "general.architecture";

impl Entry {
    /// Whether its bytes are what its type and shape say, inside of a file of so many.
    fn check(&self, file: usize) -> Result<(), String> {
        if self.range.start > self.range.end || self.range.end > file {
            return Err("it lies outside of the file".into());
        }
        let Some((elements, bytes)) = self.element.block() else {
            return Ok(());
        };
        let (last, others) = self.shape.split_last().ok_or("it has no dimension")?;
        if !last.is_multiple_of(elements) {
            return Err(format!(
                "rows of {last} elements, no multiple of {elements}"
            ));
        }
        let rows = others.iter().try_fold(1usize, |all, d| all.checked_mul(*d));
        let expected = rows.and_then(|rows| rows.checked_mul(last / elements * bytes));
        match expected == Some(self.range.len()) {
            true => Ok(()),
            false => Err(format!("{} bytes", self.range.len())),
        }
    }
}

/// Bytes of each row in the order of the matrix, of several matrices.
fn rows<'a>(
    weight: GgufTensor<'a>,
    shape: &Shape,
    order: StoredRows,
    of_row: usize,
) -> impl IndexedParallelIterator<Item = &'a [u8]> {
    let (m, bytes) = (shape.m(), weight.bytes());
    (0..shape.l() * m).into_par_iter().map(move |row| {
        let stored = row - row % m + order.of(row % m);
        &bytes[stored * of_row..][..of_row]
    })
}

/// Codes of 2 N elements of which byte j has elements j and j + N, in the order of NVFP4.
fn in_order(stored: &[u8], out: &mut [u8]) {
    let half = stored.len();
    let code = |at: usize| stored[at % half] >> (at / half * 4) & 15;
    for (pair, out) in out.iter_mut().enumerate() {
        *out = code(2 * pair) | code(2 * pair + 1) << 4;
    }
}

fn nvfp4(
    weight: GgufTensor<'_>,
    shape: Shape,
    order: StoredRows,
    globals: Option<Vec<GlobalScale>>,
) -> Result<Gathered<'static>, CheckpointError> {
    let of_row = shape.k() / NVFP4_BLOCK * NVFP4_BYTES;
    let mut codes = vec![0; shape.weight_code_bytes()];
    let mut scales = vec![0; shape.l() * shape.m() * shape.blocks()];
    let codes_of = codes.par_chunks_exact_mut(shape.row_code_bytes());
    let scales_of = scales.par_chunks_exact_mut(shape.blocks());
    let stored = rows(weight, &shape, order, of_row);
    let signed = codes_of.zip(scales_of).zip(stored).enumerate();
    let signed = signed.filter_map(|(row, ((codes, scales), stored))| {
        let blocks = stored.chunks_exact(NVFP4_BYTES);
        let (codes, scales) = (codes.chunks_exact_mut(32), scales.chunks_exact_mut(4));
        let mut signed = None;
        for (at, ((stored, codes), scales)) in blocks.zip(codes).zip(scales).enumerate() {
            let (own, stored) = stored.split_at(4);
            for (stored, codes) in stored.chunks_exact(8).zip(codes.chunks_exact_mut(8)) {
                in_order(stored, codes);
            }
            for (block, (scale, own)) in scales.iter_mut().zip(own).enumerate() {
                // ggml reads E4M3's NaN as 0.
                *scale = if *own == 0x7f { 0 } else { *own };
                if *own & 0x80 != 0 {
                    signed.get_or_insert((row, at * 4 + block, *own));
                }
            }
        }
        signed
    });
    if let Some((row, block, scale)) = signed.min() {
        let (matrix, row) = (row / shape.m(), row % shape.m());
        return Err(weight
            .wrong(format!(
                "scales without a sign, and of matrix {matrix}, row {row}, block {block} it is {scale:#04x}"
            ))
            .into());
    }
    let globals = globals.unwrap_or_else(|| vec![GlobalScale::ONE]);
    let is_one = globals.iter().all(|global| *global == globals[0]);
    let by_row = || {
        let of_expert = globals.iter().map(|global| global.stored());
        of_expert
            .flat_map(|global| vec![global; shape.m()])
            .collect()
    };
    Ok(Gathered {
        shape,
        codes: codes.into(),
        scales: scales.into(),
        global: if is_one { globals[0] } else { GlobalScale::ONE },
        row_alpha: (!is_one).then(by_row),
        column_alpha: None,
    })
}

fn mxfp4(weight: GgufTensor<'_>, shape: Shape, order: StoredRows) -> Mx<'static> {
    let blocks = shape.k() / mx::BLOCK;
    let mut codes = vec![0; shape.weight_code_bytes()];
    let mut exponents = vec![0; shape.l() * shape.m() * blocks];
    let codes_of = codes.par_chunks_exact_mut(shape.row_code_bytes());
    let exponents_of = exponents.par_chunks_exact_mut(blocks);
    let stored = rows(weight, &shape, order, blocks * MXFP4_BYTES);
    let all = codes_of.zip(exponents_of).zip(stored);
    all.for_each(|((codes, exponents), stored)| {
        let blocks = stored.chunks_exact(MXFP4_BYTES);
        let codes = codes.chunks_exact_mut(mx::BLOCK / 2);
        for ((stored, codes), exponent) in blocks.zip(codes).zip(exponents) {
            *exponent = stored[0];
            in_order(&stored[1..], codes);
        }
    });
    Mx {
        shape,
        codes: codes.into(),
        exponents: exponents.into(),
    }
}
