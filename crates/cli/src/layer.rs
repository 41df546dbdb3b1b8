//! The layer that `run` computes, of a checkpoint of either format.

use std::path::{Path, PathBuf};

use anyhow::Result;
use nvfp4_gemv::checkpoint::{
    AnyCheckpoint, Checkpoint, CheckpointError, Gathered, Gguf, GgufTensor, Layer, Note,
};
use nvfp4_gemv::{Dims, GlobalScale, ScaleLayout, Shape};

use crate::destination::files_of;

/// One layer. Its bias is not part of it.
pub(crate) enum OpenLayer<'a> {
    Safetensors(&'a Checkpoint, Layer<'a>),
    /// NVFP4 of GGUF, or MXFP4 that was converted.
    Gguf {
        file: &'a Gguf,
        weight: GgufTensor<'a>,
        weights: Gathered<'static>,
        notes: Vec<Note>,
    },
}

impl<'a> OpenLayer<'a> {
    /// # Errors
    /// Those of [`Checkpoint::layer`] and [`Gguf::weights`]; [`CheckpointError::StackedExperts`].
    pub(crate) fn of(
        checkpoint: &'a AnyCheckpoint,
        name: &str,
    ) -> std::result::Result<Self, CheckpointError> {
        let file = match checkpoint {
            AnyCheckpoint::Safetensors(checkpoint) => {
                return Ok(Self::Safetensors(checkpoint, checkpoint.layer(name)?));
            }
            AnyCheckpoint::Gguf(file) => file,
        };
        let weight = file.weight(name)?;
        if weight.shape().len() > 2 {
            return Err(CheckpointError::StackedExperts {
                file: weight.path().into(),
                layer: name.into(),
                tensor: weight.stored_name().into(),
                found: weight.to_string(),
            });
        }
        Ok(Self::Gguf {
            file,
            weight,
            weights: file.weights(name)?,
            notes: file.notes(name)?,
        })
    }

    pub(crate) fn name(&self) -> &'a str {
        match self {
            Self::Safetensors(_, layer) => layer.name(),
            Self::Gguf { weight, .. } => {
                let name = weight.name();
                name.strip_suffix(".weight").unwrap_or(name)
            }
        }
    }

    /// The file of its codes.
    pub(crate) fn path(&self) -> &'a Path {
        match self {
            Self::Safetensors(_, layer) => layer.path(),
            Self::Gguf { weight, .. } => weight.path(),
        }
    }

    /// Whose names or which format it has, for people.
    pub(crate) fn stored(&self) -> String {
        match self {
            Self::Safetensors(_, layer) => layer.exporter().to_string(),
            Self::Gguf { weight, .. } => format!("GGUF's {}", weight.element()),
        }
    }

    /// The same for programs.
    pub(crate) fn dialect(&self) -> &'static str {
        match self {
            Self::Safetensors(_, layer) => layer.exporter().name(),
            Self::Gguf { .. } => "gguf",
        }
    }

    pub(crate) fn shape(&self, n: usize) -> nvfp4_gemv::Result<Shape> {
        match self {
            Self::Safetensors(_, layer) => layer.shape(n),
            Self::Gguf { weights, .. } => {
                let (m, k) = (weights.shape().m(), weights.shape().k());
                Shape::new(Dims { m, n, k, l: 1 })
            }
        }
    }

    pub(crate) fn k(&self) -> usize {
        match self {
            Self::Safetensors(_, layer) => layer.k(),
            Self::Gguf { weights, .. } => weights.shape().k(),
        }
    }

    pub(crate) fn codes(&self) -> &[u8] {
        match self {
            Self::Safetensors(_, layer) => layer.codes(),
            Self::Gguf { weights, .. } => weights.codes(),
        }
    }

    /// Block scales in their [`layout`](Self::layout).
    pub(crate) fn scales(&self) -> &[u8] {
        match self {
            Self::Safetensors(_, layer) => layer.scales(),
            Self::Gguf { weights, .. } => weights.scales(),
        }
    }

    pub(crate) fn layout(&self) -> ScaleLayout {
        match self {
            Self::Safetensors(_, layer) => layer.layout(),
            Self::Gguf { .. } => ScaleLayout::Linear,
        }
    }

    pub(crate) fn global(&self) -> GlobalScale {
        match self {
            Self::Safetensors(_, layer) => layer.global(),
            Self::Gguf { weights, .. } => weights.global(),
        }
    }

    pub(crate) fn row_alpha(&self) -> Option<&[f32]> {
        match self {
            Self::Safetensors(_, layer) => layer.row_alpha(),
            Self::Gguf { weights, .. } => weights.row_alpha(),
        }
    }

    pub(crate) fn column_alpha(&self) -> Option<&[f32]> {
        match self {
            Self::Safetensors(_, layer) => layer.column_alpha(),
            Self::Gguf { weights, .. } => weights.column_alpha(),
        }
    }

    /// The global scale for vectors, where the file has one.
    pub(crate) fn input_global(&self) -> Result<Option<GlobalScale>> {
        match self {
            Self::Safetensors(_, layer) => Ok(layer.input_global()?),
            Self::Gguf { file, .. } => {
                let globals = file.input_globals(self.name())?;
                Ok(globals.and_then(|all| all.first().copied()))
            }
        }
    }

    pub(crate) fn notes(&self) -> &[Note] {
        match self {
            Self::Safetensors(_, layer) => layer.notes(),
            Self::Gguf { notes, .. } => notes,
        }
    }

    /// The checkpoint, where it is one that may have test data beside a layer.
    pub(crate) fn safetensors(&self) -> Option<&'a Checkpoint> {
        match self {
            Self::Safetensors(checkpoint, _) => Some(checkpoint),
            Self::Gguf { .. } => None,
        }
    }
}

/// The files that a checkpoint is read from.
pub(crate) fn inputs_of(checkpoint: &AnyCheckpoint) -> Vec<PathBuf> {
    match checkpoint {
        AnyCheckpoint::Safetensors(checkpoint) => {
            let mut files = files_of(checkpoint);
            files.extend(checkpoint.config_files().to_vec());
            files
        }
        AnyCheckpoint::Gguf(file) => file.files().map(Path::to_owned).collect(),
    }
}
