//! NVFP4 layers in safetensors checkpoints, as ModelOpt and compressed-tensors write them.
//!
//! | | ModelOpt | compressed-tensors (`nvfp4-pack-quantized`) |
//! |---|---|---|
//! | codes | `weight` U8 [N, K/2] | `weight_packed` U8 [N, K/2] |
//! | block scales | `weight_scale` F8_E4M3 [N, K/16], linear | the same |
//! | global scale | `weight_scale_2` F32, a multiplier | `weight_global_scale` F32, a divisor |
//! | activations' global scale | `input_scale`, a multiplier | `input_global_scale`, a divisor |
//!
//! The dialect is found out layer by layer. Files are mapped, and weights borrow from the map. Matrices that are not
//! NVFP4 open as [`Dense`] ones, and [`Gguf`] reads llama.cpp's files.
//!
//! A layer is computed from these tensors alone. Where others below its name, a config beside the file or the file's
//! metadata mean another product, the layer is an error that names them. Where labels and tensors differ and the
//! product is the same, the tensors are believed, and [`Layer::notes`] says so.
//!
//! ```no_run
//! use nvfp4_gemv::checkpoint::Checkpoint;
//! let checkpoint = Checkpoint::open("model.safetensors")?;
//! for name in checkpoint.layers() {
//!     let layer = checkpoint.layer(name)?;
//!     println!("{name}: {} x {}, {}", layer.rows(), layer.k(), layer.dialect());
//! }
//! # Ok::<(), nvfp4_gemv::checkpoint::CheckpointError>(())
//! ```

mod config;
mod dense;
mod error;
mod files;
mod gguf;
mod joined;
mod json;
mod known;
mod modules;
mod mx;
mod note;
mod open;
mod other;
mod pattern;
mod stacked;

use std::path::Path;

use safetensors::Dtype;

pub use config::{CONFIG_FILE, QUANT_CONFIG_FILE};
pub use dense::{DENSE_BLOCK, Dense, DenseElement, DenseScales};
pub use error::CheckpointError;
pub use files::INDEX_FILE;
pub use gguf::{Gguf, GgufElement, GgufTensor};
pub use joined::{Gathered, Joined, RowOrder};
pub use modules::{Fp8Scales, Module, ModuleKind};
pub use note::Note;
pub use open::Checkpoint;
pub use pattern::name_matches;

pub use crate::dialect::Dialect;

use crate::file::{FileError, Tensor};
use crate::{Dims, GlobalScale, ScaleLayout, Shape, Weights};
use known::Meaning;

/// One NVFP4 layer. Its tensors' types and shapes, its block scales and its global scale have been
/// checked.
#[derive(Debug)]
pub struct Layer<'a> {
    name: &'a str,
    dialect: Dialect,
    headers: Headers<'a>,
    global: GlobalScale,
}

/// The headers of a layer's tensors, which were checked with what else is known of the layer; their content was not.
#[derive(Debug)]
struct Headers<'a> {
    codes: Tensor<'a>,
    scales: Tensor<'a>,
    shape: Shape,
    global: Tensor<'a>,
    input_global: Option<Tensor<'a>>,
    notes: Vec<Note>,
}

impl<'a> Layer<'a> {
    /// The layer's name, without `.weight`.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// The file that holds the codes.
    pub fn path(&self) -> &'a Path {
        self.headers.codes.file().path()
    }

    /// Whose tensor names it uses.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Rows of the weight, M: the layer's output features.
    pub fn rows(&self) -> usize {
        self.headers.shape.m()
    }

    /// Elements of a row, K: the layer's input features.
    pub fn k(&self) -> usize {
        self.headers.shape.k()
    }

    /// The dimensions of a call with `n` vectors.
    ///
    /// # Errors
    /// [`Error::SizeOverflow`](crate::Error::SizeOverflow) for more vectors than memory can have.
    pub fn shape(&self, n: usize) -> crate::Result<Shape> {
        Shape::new(Dims {
            m: self.rows(),
            n,
            k: self.k(),
            l: 1,
        })
    }

    /// Codes `[M][K/2]`.
    pub fn codes(&self) -> &'a [u8] {
        self.headers.codes.bytes()
    }

    /// Block scales, linear `[M][K/16]`.
    pub fn scales(&self) -> &'a [u8] {
        self.headers.scales.bytes()
    }

    /// The weight's global scale.
    pub fn global(&self) -> GlobalScale {
        self.global
    }

    /// The global scale for activations that the calibration found, where the file has one. Only vectors that are to
    /// be quantised with it need it: f16, bf16 and f32 vectors do not.
    ///
    /// # Errors
    /// [`FileError`] for a tensor of another type or shape, or one that is [not usable](crate::Error::GlobalScale):
    /// those of experts that no calibration reached are zero or infinite.
    pub fn input_global(&self) -> Result<Option<GlobalScale>, FileError> {
        let scale = |tensor| scalar(tensor, self.dialect);
        self.headers.input_global.as_ref().map(scale).transpose()
    }

    /// Notes on this layer: facts that are no errors, and that a user should know. They are labels that the tensors
    /// contradict, a bias that is not added, an input scale that is not usable.
    pub fn notes(&self) -> &[Note] {
        &self.headers.notes
    }

    /// The weights, borrowed from the mapped file.
    ///
    /// # Errors
    /// No errors, unless the file has been changed since the layer was opened.
    pub fn weights(&self) -> crate::Result<Weights<'a>> {
        Weights::new(
            &self.headers.shape,
            self.codes(),
            self.scales(),
            ScaleLayout::Linear,
            self.global,
        )
    }

    /// Finds a layer's tensors and checks them.
    fn open(
        checkpoint: &'a Checkpoint,
        name: &'a str,
        dialect: Dialect,
    ) -> Result<Self, CheckpointError> {
        let headers = Headers::of(checkpoint, name, dialect)?;
        let scales = headers.scales;
        let mut layer = Self {
            name,
            dialect,
            global: scalar(&headers.global, dialect)?,
            headers,
        };
        layer.weights().map_err(|e| scales.refused(e))?;
        if let Err(error) = layer.input_global() {
            let reason = error.to_string();
            layer.headers.notes.push(Note::InputScale { reason });
        }
        Ok(layer)
    }
}

impl<'a> Headers<'a> {
    fn of(
        checkpoint: &'a Checkpoint,
        name: &str,
        dialect: Dialect,
    ) -> Result<Self, CheckpointError> {
        checkpoint.nothing_elsewhere(name)?;
        let siblings: Vec<_> = checkpoint.behind(format!("{name}.")).collect();
        let found = |suffix: &str| {
            let named = siblings.iter().find(|(rest, _)| *rest == suffix);
            named.map(|(_, tensor)| *tensor)
        };
        let of = |suffix: &str, expected: &str| {
            found(suffix).ok_or_else(|| checkpoint.missing(format!("{name}.{suffix}"), expected))
        };
        let codes = of(dialect.codes(), "U8 [N, K/2]")?;
        let beside = Beside::of(
            siblings.iter().copied(),
            name,
            codes,
            dialect,
            names(dialect),
        )?;
        let &[rows, k_half] = codes.shape() else {
            return Err(match codes.shape() {
                [_, _, _] => other::stacked(name, &codes),
                _ => codes.wrong("U8 [N, K/2]").into(),
            });
        };
        let shape = Shape::matrix(rows, k_half.saturating_mul(2)).map_err(|e| codes.refused(e))?;
        let dims = [rows, shape.blocks()];
        let scales = of(dialect.scales(), &format!("F8_E4M3 {dims:?}"))?;
        if other::is_mxfp4(&codes, &scales) {
            return Err(other::mxfp4(name, &scales));
        }
        refuse_other_layout(checkpoint, name, &shape, [&codes, &scales])?;
        let scales = scales.expect(Dtype::F8_E4M3, &dims)?;
        if let Some(of_shape) = beside.weight_shape {
            check_shape(&of_shape, &shape)?;
        }
        let global = is_scalar(of(dialect.global(), ONE)?)?;
        let input_global = found(dialect.input_global());
        let facts = config::Facts {
            name,
            dialect,
            has_input_scale: input_global.is_some(),
            files: [codes.file().path(), scales.file().path()],
        };
        let mut notes = checkpoint.configs().check(&facts)?;
        notes.extend(beside.notes);
        Ok(Self {
            codes,
            scales,
            shape,
            global,
            input_global,
            notes,
        })
    }
}

/// Tensors below a layer's name beside its own, all of which are known not to change its product.
#[derive(Default)]
struct Beside<'a> {
    weight_shape: Option<Tensor<'a>>,
    notes: Vec<Note>,
}

impl<'a> Beside<'a> {
    fn of(
        tensors: impl Iterator<Item = (&'a str, Tensor<'a>)>,
        layer: &str,
        codes: Tensor<'a>,
        dialect: Dialect,
        own: [&str; 4],
    ) -> Result<Self, CheckpointError> {
        let mut beside = Self::default();
        let mut unknown: Vec<Tensor<'_>> = Vec::new();
        for (rest, tensor) in tensors {
            if own.contains(&rest) {
                continue;
            }
            let foreign = |other: &&Dialect| **other != dialect && names(**other).contains(&rest);
            if let Some(other) = Dialect::ALL.iter().find(foreign) {
                let (modelopt, compressed) = match other {
                    Dialect::ModelOpt => (tensor, codes),
                    Dialect::CompressedTensors => (codes, tensor),
                };
                return Err(other::both_dialects(layer, &modelopt, &compressed));
            }
            match known::meaning(rest) {
                Some(Meaning::Nothing) => {}
                Some(Meaning::Added) => beside.notes.push(Note::NotAdded {
                    tensor: tensor.name().into(),
                }),
                Some(Meaning::WeightShape) => beside.weight_shape = Some(tensor),
                Some(Meaning::OtherLayout) => {
                    let told_by = format!("there is a tensor {:?}", tensor.name());
                    return Err(other_layout(tensor.file().path(), layer, told_by));
                }
                Some(Meaning::Changes(effect)) => {
                    return Err(CheckpointError::ChangesProduct {
                        file: tensor.file().path().into(),
                        layer: layer.into(),
                        tensor: tensor.name().into(),
                        effect,
                    });
                }
                None => unknown.push(tensor),
            }
        }
        match unknown.first() {
            None => Ok(beside),
            Some(first) => Err(CheckpointError::UnknownTensors {
                file: first.file().path().into(),
                layer: layer.into(),
                tensors: unknown.iter().map(|t| t.name().into()).collect(),
            }),
        }
    }
}

/// Names of a dialect's own tensors of a layer.
fn names(dialect: Dialect) -> [&'static str; 4] {
    [
        dialect.codes(),
        dialect.scales(),
        dialect.global(),
        dialect.input_global(),
    ]
}

fn other_layout(file: &Path, layer: &str, told_by: String) -> CheckpointError {
    CheckpointError::OtherLayout {
        file: file.into(),
        layer: layer.into(),
        told_by,
    }
}

/// Refuses a layer that a file's metadata say ComfyUI quantised.
fn refuse_comfy(checkpoint: &Checkpoint, layer: &config::Facts<'_>) -> Result<(), CheckpointError> {
    match checkpoint.configs().other_layout(layer) {
        None => Ok(()),
        Some(file) => {
            let told_by = "the file's metadata has an entry \"_quantization_metadata\"";
            Err(other_layout(file, layer.name, told_by.into()))
        }
    }
}

/// Refuses codes and scales that lie as ComfyUI's do, as metadata and padded shapes tell.
fn refuse_other_layout(
    checkpoint: &Checkpoint,
    name: &str,
    shape: &Shape,
    [codes, scales]: [&Tensor<'_>; 2],
) -> Result<(), CheckpointError> {
    let facts = config::Facts {
        name,
        dialect: Dialect::ModelOpt,
        has_input_scale: false,
        files: [codes.file().path(), scales.file().path()],
    };
    refuse_comfy(checkpoint, &facts)?;
    let padded = [
        shape.m().next_multiple_of(128),
        shape.blocks().next_multiple_of(4),
    ];
    if scales.shape() == padded && padded != [shape.m(), shape.blocks()] {
        let told_by = format!(
            "tensor {:?} is {scales}, padded for another layout",
            scales.name()
        );
        return Err(other_layout(scales.file().path(), name, told_by));
    }
    Ok(())
}

/// Refuses a tensor that says another shape of the weight than its codes have.
fn check_shape(says: &Tensor<'_>, shape: &Shape) -> Result<(), FileError> {
    let expected = [shape.m(), shape.k()];
    let bytes = says.bytes();
    let said: Option<Vec<usize>> = match says.dtype() {
        Dtype::I64 => {
            let all = bytes.as_chunks().0.iter().copied().map(i64::from_le_bytes);
            all.map(|value| value.try_into().ok()).collect()
        }
        Dtype::I32 => {
            let all = bytes.as_chunks().0.iter().copied().map(i32::from_le_bytes);
            all.map(|value| value.try_into().ok()).collect()
        }
        _ => None,
    };
    match said {
        Some(said) if said == expected => Ok(()),
        Some(said) => Err(says.wrong(format!("{expected:?} as the codes have, and says {said:?}"))),
        None => Err(says.wrong("I64 or I32 [2]")),
    }
}

/// A tensor of one number.
const ONE: &str = "F32 [] or [1]";

fn is_scalar(tensor: Tensor<'_>) -> Result<Tensor<'_>, FileError> {
    match tensor.shape() {
        [] | [1] if tensor.dtype() == Dtype::F32 => Ok(tensor),
        _ => Err(tensor.wrong(ONE)),
    }
}

/// A global scale from a tensor of one F32 that is usable as one.
fn scalar(tensor: &Tensor<'_>, dialect: Dialect) -> Result<GlobalScale, FileError> {
    let [value] = is_scalar(*tensor)?.to_f32()?[..] else {
        return Err(tensor.wrong(ONE));
    };
    usable(tensor, dialect, value)
}

/// A number of a tensor as a global scale.
fn usable(tensor: &Tensor<'_>, dialect: Dialect, value: f32) -> Result<GlobalScale, FileError> {
    let global = dialect.global_scale(value).check("global scale");
    global.map_err(|e| tensor.refused(e))
}
