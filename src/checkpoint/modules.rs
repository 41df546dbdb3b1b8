//! Modules of a checkpoint: what each is, from headers and configs alone.

use std::collections::HashMap;
use std::fmt;

use safetensors::Dtype;

use super::config::Other;
use super::stacked::{self, Stacked};
use super::{Checkpoint, CheckpointError, Exporter, Headers, Note, known, mx, other};
use crate::file::Tensor;

/// A module of a checkpoint: a weight with all tensors that belong to it, or a tensor that belongs to none.
#[derive(Debug)]
pub struct Module<'a> {
    name: &'a str,
    kind: ModuleKind,
    shape: Vec<usize>,
    tensors: Vec<Tensor<'a>>,
    config: Option<String>,
    notes: Vec<Note>,
}

/// The kind of a [`Module`], as its tensors say. Their content was not looked at.
#[derive(Debug)]
#[non_exhaustive]
pub enum ModuleKind {
    /// An NVFP4 matrix, which [`Checkpoint::layer`] opens, or experts that are stacked in one tensor, which
    /// [`Checkpoint::experts`] opens.
    Nvfp4 {
        /// Whose names the tensors have.
        exporter: Exporter,
        /// Weights only (W4A16): there is no scale to quantise vectors with.
        weights_only: bool,
        /// Stacked experts whose rows of a tensor are columns of matrices; they are transposed when they are gathered.
        transposed: bool,
    },
    /// Matrices in MXFP4 with gpt-oss's names, which [`Checkpoint::mxfp4`] converts to NVFP4.
    Mxfp4,
    /// Weights in FP8.
    Fp8 {
        /// E4M3 or E5M2.
        element: Dtype,
        /// Their scales.
        scales: Fp8Scales,
    },
    /// A weight of floating-point numbers: a matrix, or an array of several.
    Dense(Dtype),
    /// No weight: a norm, a bias by itself, a table of positions.
    Other(Dtype),
    /// A weight that is not computed, and why.
    Refused(Box<CheckpointError>),
}

/// The scales of weights in FP8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fp8Scales {
    /// None at all.
    None,
    /// One of the tensor.
    Tensor,
    /// One of each row.
    Rows,
    /// One of each block of so many rows and columns.
    Blocks(usize, usize),
}

impl fmt::Display for Fp8Scales {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("no scale"),
            Self::Tensor => f.write_str("a scale a tensor"),
            Self::Rows => f.write_str("a scale a row"),
            Self::Blocks(rows, columns) => write!(f, "a scale a block of {rows}x{columns}"),
        }
    }
}

impl ModuleKind {
    /// The kind in a word or two: `NVFP4`, `NVFP4 W4A16`, `MXFP4`, `FP8`, `BF16`, `other`, `refused`.
    pub fn name(&self) -> String {
        match self {
            Self::Nvfp4 {
                weights_only: true, ..
            } => "NVFP4 W4A16".into(),
            Self::Nvfp4 { .. } => "NVFP4".into(),
            Self::Mxfp4 => "MXFP4".into(),
            Self::Fp8 { .. } => FP8.into(),
            Self::Dense(dtype) => dtype.to_string(),
            Self::Other(_) => "other".into(),
            Self::Refused(_) => "refused".into(),
        }
    }
}

const FP8: &str = "FP8";

impl<'a> Module<'a> {
    /// Its name; of a tensor that belongs to no weight, the tensor's.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// The module's kind.
    pub fn kind(&self) -> &ModuleKind {
        &self.kind
    }

    /// The shape of the weight in elements, not in bytes of codes: rows and columns, of experts with their number in
    /// front. Of what is refused, the shape of its tensor.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Its tensors in alphabetical order.
    pub fn tensors(&self) -> &[Tensor<'a>] {
        &self.tensors
    }

    /// How many bytes they have.
    pub fn bytes(&self) -> usize {
        self.tensors.iter().map(|tensor| tensor.bytes().len()).sum()
    }

    /// How configs say that it is quantised, in their words; `not quantised` where it is excluded or not listed, `None`
    /// where they say nothing.
    pub fn config(&self) -> Option<&str> {
        self.config.as_deref()
    }

    /// Where configs and tensors disagree, and what else a user should know.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }
}

/// Endings of the names of tensors that are weights.
const WEIGHTS: [&str; 3] = [".weight", ".weight_packed", ".qweight"];

/// Limit: prefixes of a tensor's name that may be its module's. A hostile name has any number of them.
const MOST_STEMS: usize = 64;

impl Checkpoint {
    /// All modules in alphabetical order. Every tensor is in one of them. Only headers, configs and ComfyUI's marks are
    /// looked at: opening a [`layer`](Self::layer) may still find a scale that is not usable.
    pub fn modules(&self) -> Vec<Module<'_>> {
        let mut weights: HashMap<&str, (Tensor<'_>, Vec<Tensor<'_>>)> = HashMap::new();
        let mut are_stacked = false;
        for tensor in self.tensors() {
            let Some(name) = self.module_of_weight(&tensor) else {
                continue;
            };
            are_stacked |= tensor.shape().len() > 2;
            weights.entry(name).or_insert((tensor, Vec::new()));
        }
        let mut modules = Vec::new();
        for tensor in self.tensors() {
            let name = tensor.name();
            let ends = name.rmatch_indices(|c| c == '.' || (are_stacked && c == '_'));
            let ends = ends.take(MOST_STEMS);
            let mut stems = std::iter::once(name).chain(ends.map(|(end, _)| &name[..end]));
            match stems.find(|stem| weights.contains_key(stem)) {
                Some(stem) => weights.entry(stem).and_modify(|of| of.1.push(tensor)),
                None => {
                    modules.push(self.lone(tensor));
                    continue;
                }
            };
        }
        for (name, (weight, tensors)) in weights {
            modules.push(self.module(name, weight, tensors));
        }
        modules.sort_unstable_by_key(|module| module.name);
        modules
    }

    /// The name of the module whose weight a tensor is.
    fn module_of_weight<'a>(&self, tensor: &Tensor<'a>) -> Option<&'a str> {
        let (name, shape) = (tensor.name(), tensor.shape());
        if let Some(name) = WEIGHTS.iter().find_map(|ending| name.strip_suffix(ending)) {
            return Some(name);
        }
        if let Some(name) = other::torchao_weight(tensor) {
            return Some(name);
        }
        if let Some(name) = other::mx_blocks(self, tensor) {
            return Some(name);
        }
        let is_stack = match tensor.dtype() {
            Dtype::U8 => other::is_stacked(self, tensor),
            Dtype::F8_E4M3 | Dtype::F8_E5M2 => shape.len() == 3 && !name.ends_with("scale"),
            _ => shape.len() == 3 && is_float(tensor.dtype()) && name.contains("expert"),
        };
        is_stack.then(|| stacked::stem(name))
    }

    /// A tensor that belongs to no weight.
    fn lone<'a>(&'a self, tensor: Tensor<'a>) -> Module<'a> {
        let has_codes = matches!(
            tensor.dtype(),
            Dtype::U8 | Dtype::I8 | Dtype::F4 | Dtype::F8_E4M3 | Dtype::F8_E5M2
        );
        Module {
            name: tensor.name(),
            kind: match has_codes && tensor.shape().len() > 1 {
                true => ModuleKind::Refused(Box::new(other::not_nvfp4(tensor.name(), &tensor))),
                false => ModuleKind::Other(tensor.dtype()),
            },
            shape: tensor.shape().to_vec(),
            tensors: vec![tensor],
            config: None,
            notes: Vec::new(),
        }
    }

    fn module<'a>(
        &'a self,
        name: &'a str,
        weight: Tensor<'a>,
        tensors: Vec<Tensor<'a>>,
    ) -> Module<'a> {
        let mut notes = Vec::new();
        let mut shape = weight.shape().to_vec();
        let is_alone = tensors.len() == 1;
        let kind = match self.kind(name, &weight, is_alone, &mut shape, &mut notes) {
            Ok(kind) => kind,
            Err(error) => ModuleKind::Refused(Box::new(error)),
        };
        let file = weight.file().path();
        let of_kind = |found: &str, is_fp8: bool| {
            self.configs().check_other(&Other {
                name,
                found,
                is_fp8,
                is_linear: matches!(shape.len(), 2 | 3) && !known::is_embedding(name),
                file,
            })
        };
        match &kind {
            ModuleKind::Fp8 { .. } => notes.extend(of_kind(FP8, true)),
            ModuleKind::Mxfp4 => notes.extend(of_kind(&kind.name(), false)),
            ModuleKind::Dense(dtype) => notes.extend(of_kind(&dtype.to_string(), false)),
            _ => {}
        }
        let is_weight = !matches!(kind, ModuleKind::Other(_));
        let words = || self.configs().words(name, file);
        Module {
            config: is_weight.then(words).flatten(),
            name,
            kind,
            shape,
            tensors,
            notes,
        }
    }

    fn kind(
        &self,
        name: &str,
        weight: &Tensor<'_>,
        is_alone: bool,
        shape: &mut Vec<usize>,
        notes: &mut Vec<Note>,
    ) -> Result<ModuleKind, CheckpointError> {
        let dtype = weight.dtype();
        if let Some(exporter) = self.exporter_of(name) {
            let headers = Headers::of(self, name, exporter);
            // Stacked experts with the names of a layer.
            if !matches!(headers, Err(CheckpointError::StackedExperts { .. })) {
                let headers = headers?;
                *shape = vec![headers.shape.m(), headers.shape.k()];
                *notes = headers.notes;
                return Ok(ModuleKind::Nvfp4 {
                    exporter,
                    weights_only: headers.input_global.is_none(),
                    transposed: false,
                });
            }
        }
        match shape.len() {
            3.. => self.nothing_elsewhere_of_stack(name)?,
            _ => self.nothing_elsewhere(name)?,
        }
        if other::is_stacked(self, weight) {
            let experts = Stacked::of(self, *weight)?;
            let of = experts.shape;
            *shape = vec![of.l(), of.m(), of.k()];
            *notes = experts.notes;
            return Ok(ModuleKind::Nvfp4 {
                exporter: experts.exporter,
                weights_only: !experts.has_input_scale,
                transposed: experts.is_transposed,
            });
        }
        if dtype == Dtype::U8
            && other::mx_blocks(self, weight).is_some()
            && let [outer @ .., blocks, 16] = &shape[..]
        {
            *shape = [outer, &[blocks.saturating_mul(mx::BLOCK)]].concat();
            return Ok(ModuleKind::Mxfp4);
        }
        other::refuse_torchao(self, weight)?;
        match dtype {
            Dtype::F8_E4M3 | Dtype::F8_E5M2 if shape.len() > 1 => Ok(ModuleKind::Fp8 {
                element: dtype,
                scales: self.fp8_scales(name, shape),
            }),
            _ if is_float(dtype) && shape.len() > 1 => Ok(ModuleKind::Dense(dtype)),
            _ if is_float(dtype) => Ok(ModuleKind::Other(dtype)),
            // Tensors beside it tell more.
            _ => Err((!is_alone)
                .then(|| other::why_not(self, name))
                .flatten()
                .unwrap_or_else(|| other::not_nvfp4(name, weight))),
        }
    }

    fn fp8_scales(&self, name: &str, shape: &[usize]) -> Fp8Scales {
        const ENDINGS: [&str; 6] = [
            ".weight_scale",
            ".weight_scale_inv",
            ".scale",
            "_weight_scale",
            "_weight_scale_inv",
            "_scale",
        ];
        let tensors = ENDINGS.map(|ending| self.tensor(&format!("{name}{ending}")));
        let Some(scales) = tensors.into_iter().flatten().next() else {
            return Fp8Scales::None;
        };
        let &[.., rows, columns] = shape else {
            return Fp8Scales::None;
        };
        let block = |of: usize, scales: usize| match scales {
            0 => 0,
            _ if of.div_ceil(128) == scales => 128,
            _ => of.div_ceil(scales),
        };
        match *scales.shape() {
            _ if scales.elements() == 1 => Fp8Scales::Tensor,
            [.., a, 1] if a == rows => Fp8Scales::Rows,
            [.., a] if a == rows && scales.shape().len() == shape.len() - 1 => Fp8Scales::Rows,
            [.., a, b] => Fp8Scales::Blocks(block(rows, a), block(columns, b)),
            _ => Fp8Scales::Tensor,
        }
    }
}

fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16)
}
