//! NVFP4 layers in safetensors checkpoints, as ModelOpt and compressed-tensors write them.
//!
//! | | ModelOpt | compressed-tensors (`nvfp4-pack-quantized`) |
//! |---|---|---|
//! | codes | `weight` U8 [N, K/2] | `weight_packed` U8 [N, K/2] |
//! | block scales | `weight_scale` F8_E4M3 [N, K/16], linear | the same |
//! | global scale | `weight_scale_2` F32, a multiplier | `weight_global_scale` F32, a divisor |
//! | activations' global scale | `input_scale`, a multiplier | `input_global_scale`, a divisor |
//!
//! torchao's and MLX's names mean the same ([`Exporter`]). Whose they are is found out layer by layer. Files are
//! mapped, and weights borrow from the map. Matrices that are not NVFP4 open as [`Dense`] ones, and [`Gguf`] reads
//! llama.cpp's files. [`AnyCheckpoint`] takes a path of either.
//!
//! A layer is computed from these tensors, and from `pre_quant_scale` where ModelOpt has it ([`Layer::column_alpha`]).
//! ComfyUI uses ModelOpt's names for codes and scales that lie otherwise, and marks such layers. Where others below its
//! name, a config beside the file or the file's metadata mean another product, the layer is an error that names them.
//! Where labels and tensors differ and the product is the same, the tensors are believed, and [`Layer::notes`] says so.
//!
//! ```no_run
//! use nvfp4_gemv::checkpoint::Checkpoint;
//! let checkpoint = Checkpoint::open("model.safetensors")?;
//! for name in checkpoint.layers() {
//!     let layer = checkpoint.layer(name)?;
//!     println!("{name}: {} x {}, {}", layer.rows(), layer.k(), layer.exporter());
//! }
//! # Ok::<(), nvfp4_gemv::checkpoint::CheckpointError>(())
//! ```

mod any;
mod comfy;
mod config;
mod dense;
mod error;
mod exporter;
mod files;
mod gate;
mod gguf;
mod globals;
mod joined;
mod json;
mod known;
mod modules;
mod mx;
mod note;
mod open;
mod other;
mod pattern;
mod pieces;
mod stacked;
mod torchao;

use std::borrow::Cow;
use std::path::Path;
use std::sync::OnceLock;

use safetensors::Dtype;

pub use any::AnyCheckpoint;
pub use config::{CONFIG_FILE, QUANT_CONFIG_FILE};
pub use dense::{DENSE_BLOCK, Dense, DenseElement, DenseScales};
pub use error::CheckpointError;
pub use exporter::Exporter;
pub use files::INDEX_FILE;
pub use gguf::{Gguf, GgufElement, GgufTensor};
pub use joined::{Gathered, Joined};
pub use modules::{Fp8Scales, Module, ModuleKind};
pub use note::Note;
pub use open::Checkpoint;
pub use pattern::name_matches;
pub use pieces::{Piece, Pieces, SendError};

pub use crate::dialect::Dialect;
pub use crate::types::RowOrder;

use crate::file::{FileError, Tensor};
use crate::tensor::check_column_alpha;
use crate::{Dims, GlobalScale, ScaleLayout, Shape, Weights};
use comfy::Mark;
use globals::Globals;
use known::Meaning;

/// One NVFP4 layer. Its tensors' types and shapes, its block scales and its global scale have been
/// checked.
#[derive(Debug)]
pub struct Layer<'a> {
    name: &'a str,
    exporter: Exporter,
    headers: Headers<'a>,
    globals: Globals,
    column_alpha: Option<Vec<f32>>,
    /// The codes with the low nibble first, where the file has the high one first and somebody has asked for them.
    swapped: OnceLock<Vec<u8>>,
}

/// The headers of a layer's tensors, which were checked with what else is known of the layer; their content was not.
#[derive(Debug)]
struct Headers<'a> {
    codes: Tensor<'a>,
    scales: Tensor<'a>,
    shape: Shape,
    /// Of the block scales.
    layout: ScaleLayout,
    /// Whether the high nibble of a byte of codes is the even element.
    high_first: bool,
    /// torchao's may have none, and MLX's have none.
    global: Option<Tensor<'a>>,
    input_global: Option<Tensor<'a>>,
    column_alpha: Option<Tensor<'a>>,
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
    pub fn exporter(&self) -> Exporter {
        self.exporter
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

    /// Codes `[M][K/2]`, the even element in the low nibble. Of a layer that has it in the high one they are copied
    /// when they are first asked for.
    pub fn codes(&self) -> &[u8] {
        let swapped = || self.headers.stored_codes().iter().map(swap_nibbles);
        match self.headers.high_first {
            true => self.swapped.get_or_init(|| swapped().collect()),
            false => self.headers.stored_codes(),
        }
    }

    /// Block scales in their [layout](Self::layout): `[M][K/16]`, if it is linear.
    pub fn scales(&self) -> &'a [u8] {
        self.headers.scales.bytes()
    }

    /// The layout of the block scales: linear, but for layers that ComfyUI or torchao has quantised.
    pub fn layout(&self) -> ScaleLayout {
        self.headers.layout
    }

    /// The weight's global scale; 1 where each row has a [factor](Self::row_alpha) instead.
    pub fn global(&self) -> GlobalScale {
        self.globals.shared
    }

    /// Factors of rows: the global scales of a fused layer whose parts have different ones.
    pub fn row_alpha(&self) -> Option<&[f32]> {
        self.globals.row_alpha.as_deref()
    }

    /// Factors of columns: AWQ's `pre_quant_scale`. Element `k` of each vector is multiplied by factor `k` before the
    /// product, and before the vector is quantised. [`weights`](Self::weights) have them, too; codes and scales alone
    /// do not.
    pub fn column_alpha(&self) -> Option<&[f32]> {
        self.column_alpha.as_deref()
    }

    /// The global scale for activations that the calibration found, where the file has one. Only vectors that are to
    /// be quantised with it need it: f16, bf16 and f32 vectors do not.
    ///
    /// # Errors
    /// [`FileError`] for a tensor of another type or shape, or one that is [not usable](crate::Error::GlobalScale):
    /// those of experts that no calibration reached are zero or infinite.
    pub fn input_global(&self) -> Result<Option<GlobalScale>, FileError> {
        let scale = |tensor| scalar(tensor, self.exporter);
        self.headers.input_global.as_ref().map(scale).transpose()
    }

    /// Notes on this layer: facts that are no errors, and that a user should know. They are labels that the tensors
    /// contradict, a bias that is not added, an input scale that is not usable.
    pub fn notes(&self) -> &[Note] {
        &self.headers.notes
    }

    /// The weights, borrowed from the mapped file, with their factors of rows and of columns.
    ///
    /// # Errors
    /// No errors, unless the file has been changed since the layer was opened.
    pub fn weights(&self) -> crate::Result<Weights<'_>> {
        let mut weights = self.checked(self.codes())?;
        if let Some(alpha) = self.row_alpha() {
            weights = weights.with_row_alpha(alpha)?;
        }
        match self.column_alpha() {
            Some(alpha) => weights.with_column_alpha(alpha),
            None => Ok(weights),
        }
    }

    /// Weights with these codes, whose content is not looked at.
    fn checked<'c>(&'c self, codes: &'c [u8]) -> crate::Result<Weights<'c>> {
        let (shape, layout) = (&self.headers.shape, self.layout());
        Weights::new(shape, codes, self.scales(), layout, self.global())
    }

    /// The codes, copied if they lie otherwise in the file.
    pub(crate) fn into_codes(mut self) -> Cow<'a, [u8]> {
        if self.headers.high_first {
            self.codes();
        }
        match self.swapped.take() {
            Some(codes) => codes.into(),
            None => self.headers.stored_codes().into(),
        }
    }

    /// The tensors of codes and of block scales.
    pub(crate) fn tensors(&self) -> [Tensor<'a>; 2] {
        [self.headers.codes, self.headers.scales]
    }

    /// Finds a layer's tensors and checks them.
    fn open(
        checkpoint: &'a Checkpoint,
        name: &'a str,
        exporter: Exporter,
    ) -> Result<Self, CheckpointError> {
        let layer = Self::unscanned(checkpoint, name, exporter)?;
        // The codes' order does not matter here.
        let stored = layer.headers.stored_codes();
        let scales = layer.headers.scales;
        layer.checked(stored).map_err(|e| scales.refused(e))?;
        Ok(layer)
    }

    /// Finds a layer's tensors and checks them, but for the content of the block scales.
    fn unscanned(
        checkpoint: &'a Checkpoint,
        name: &'a str,
        exporter: Exporter,
    ) -> Result<Self, CheckpointError> {
        let headers = Headers::of(checkpoint, name, exporter)?;
        let heads = checkpoint.configs().heads(name);
        let globals = match &headers.global {
            Some(global) => Globals::of(global, exporter, name, &headers.shape, heads)?,
            None => Globals::ONE,
        };
        let column_alpha = match &headers.column_alpha {
            None => None,
            Some(tensor) => {
                let alpha = tensor.to_f32_widened()?;
                check_column_alpha(&alpha, &headers.shape).map_err(|e| tensor.refused(e))?;
                Some(alpha)
            }
        };
        let mut layer = Self {
            name,
            exporter,
            globals,
            column_alpha,
            headers,
            swapped: OnceLock::new(),
        };
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
        exporter: Exporter,
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
        let codes = of(exporter.codes(), CODES)?;
        let own: Vec<&str> = exporter.names().collect();
        let beside = Beside::of(siblings.iter().copied(), name, codes, exporter, &own)?;
        let (rows, k) = match *codes.shape() {
            // Elements that a byte has two of, as torch's float4_e2m1fn_x2 packs them: the even one in the low nibble.
            [rows, k] if codes.dtype() == Dtype::F4 => (rows, k),
            // Words of little-endian bytes: eight elements each.
            [rows, words] if exporter == Exporter::Mlx => (rows, words.saturating_mul(8)),
            [rows, k_half] => (rows, k_half.saturating_mul(2)),
            [_, _, _] => return Err(other::stacked(name, &codes)),
            _ => return Err(codes.wrong(CODES).into()),
        };
        let stored = Shape::matrix(rows, k).map_err(|e| codes.refused(e))?;
        let linear = [rows, stored.blocks()];
        let scales = of(exporter.scales(), &format!("F8_E4M3 {linear:?}"))?;
        if other::is_mxfp4(&codes, &scales) {
            return Err(other::mxfp4(name, &scales));
        }
        let mark = comfy_mark(
            checkpoint,
            (name, exporter),
            &beside,
            &stored,
            [&codes, &scales],
        )?;
        let (shape, layout, dims) = match mark {
            None if exporter == Exporter::TorchAo => {
                let layout = torchao::layout(name, &codes, |suffix| found(suffix).is_some())?;
                (stored, layout, torchao::dims(&stored, layout))
            }
            None => (stored, ScaleLayout::Linear, linear),
            Some(mark) => {
                let shape = mark.cut(stored, &codes, found("bias").as_ref())?;
                (shape, ScaleLayout::Tiled128x4, padded(&stored))
            }
        };
        // Some writers have no type for E4M3, and give its bytes.
        let scales = match scales.dtype() {
            Dtype::U8 if scales.shape() == dims => scales,
            _ => scales.expect(Dtype::F8_E4M3, &dims)?,
        };
        if let Some(of_shape) = beside.weight_shape {
            check_shape(&of_shape, &shape)?;
        }
        if let Some(alpha) = &beside.column_alpha
            && alpha.shape() != [k]
        {
            return Err(alpha.wrong(format!("F32, F16 or BF16 [{k}]")).into());
        }
        let global = match exporter.global() {
            Some(suffix) if exporter.needs_global() => Some(of(suffix, ONE)?),
            suffix => suffix.and_then(&found),
        };
        let global = global.map(globals::expect).transpose()?;
        let input_global = exporter.input_global().and_then(&found);
        let facts = config::Facts {
            name,
            exporter,
            has_input_scale: input_global.is_some(),
            has_column_alpha: beside.column_alpha.is_some(),
            files: [codes.file().path(), scales.file().path()],
        };
        let mut notes = checkpoint.configs().check(&facts)?;
        notes.extend(beside.notes);
        Ok(Self {
            codes,
            scales,
            shape,
            layout,
            high_first: mark.is_some(),
            global,
            input_global,
            column_alpha: beside.column_alpha,
            notes,
        })
    }

    /// The codes as they lie in the file, without rows that fill it up.
    fn stored_codes(&self) -> &'a [u8] {
        &self.codes.bytes()[..self.shape.weight_code_bytes()]
    }
}

const CODES: &str = "U8 [N, K/2]";

/// A byte of codes with its two elements in the other order.
pub(crate) fn swap_nibbles(byte: &u8) -> u8 {
    byte.rotate_left(4)
}

/// The dimensions of a tensor of block scales in the 128x4 layout.
fn padded(shape: &Shape) -> [usize; 2] {
    [
        shape.m().next_multiple_of(128),
        shape.blocks().next_multiple_of(4),
    ]
}

/// Tensors below a layer's name beside its own, all of which are known not to change its product.
#[derive(Default)]
struct Beside<'a> {
    weight_shape: Option<Tensor<'a>>,
    column_alpha: Option<Tensor<'a>>,
    /// ComfyUI's mark.
    comfy: Option<Tensor<'a>>,
    notes: Vec<Note>,
}

impl<'a> Beside<'a> {
    fn of(
        tensors: impl Iterator<Item = (&'a str, Tensor<'a>)>,
        layer: &str,
        codes: Tensor<'a>,
        exporter: Exporter,
        own: &[&str],
    ) -> Result<Self, CheckpointError> {
        let mut beside = Self::default();
        let mut unknown: Vec<Tensor<'a>> = Vec::new();
        for (rest, tensor) in tensors {
            if own.contains(&rest) {
                continue;
            }
            let foreign = Dialect::ALL.iter().find(|other| {
                let other = Exporter::Of(**other);
                matches!(exporter, Exporter::Of(_))
                    && other != exporter
                    && other.names().any(|name| name == rest)
            });
            if let Some(other) = foreign {
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
                Some(Meaning::Comfy) => beside.comfy = Some(tensor),
                Some(Meaning::ColumnAlpha) if exporter == MODELOPT => {
                    beside.column_alpha = Some(tensor);
                }
                Some(Meaning::ColumnAlpha) => {
                    return Err(changes(&tensor, layer, known::SCALES_VECTORS));
                }
                Some(Meaning::Changes(effect)) => return Err(changes(&tensor, layer, effect)),
                None => unknown.push(tensor),
            }
        }
        match unknown.first() {
            None => Ok(beside),
            Some(first) => {
                let names: Vec<&str> = unknown.iter().map(Tensor::name).collect();
                let file = first.file().path();
                Err(CheckpointError::unknown_tensors(file, layer, &names))
            }
        }
    }

    /// Refuses what stacked experts do not have, as far as is known.
    fn refuse_for_stacked(&self, experts: &str) -> Result<(), CheckpointError> {
        if let Some(shape) = &self.weight_shape {
            return Err(shape.wrong("no such tensor of stacked experts").into());
        }
        match &self.comfy {
            None => Ok(()),
            Some(mark) => {
                let told_by = format!("there is a tensor {:?}", mark.name());
                Err(other_layout(mark.file().path(), experts, told_by))
            }
        }
    }
}

/// The error that a tensor makes another product of a layer's.
fn changes(tensor: &Tensor<'_>, layer: &str, effect: &'static str) -> CheckpointError {
    CheckpointError::ChangesProduct {
        file: tensor.file().path().into(),
        layer: layer.into(),
        tensor: tensor.name().into(),
        effect,
    }
}

/// The one whose names ComfyUI uses, and whose layers may have factors of columns.
const MODELOPT: Exporter = Exporter::Of(Dialect::ModelOpt);

fn other_layout(file: &Path, layer: &str, told_by: String) -> CheckpointError {
    CheckpointError::OtherLayout {
        file: file.into(),
        layer: layer.into(),
        told_by,
    }
}

/// Refuses experts that a file's metadata say ComfyUI quantised, or may have.
fn refuse_comfy(
    checkpoint: &Checkpoint,
    (experts, exporter): (&str, Exporter),
    files: [&Path; 2],
) -> Result<(), CheckpointError> {
    let told_by = match checkpoint.configs().comfy_mark(experts, &files)? {
        Some(_) => "the file's metadata say that ComfyUI has quantised it",
        None if exporter == MODELOPT && checkpoint.is_unmarked(experts, &files) => UNMARKED,
        None => return Ok(()),
    };
    Err(other_layout(files[0], experts, told_by.into()))
}

const UNMARKED: &str = "ComfyUI has marked other layers of its file as its own, and not this one";

/// ComfyUI's mark of a layer: its own tensor's, or else that of a file's metadata.
///
/// # Errors
/// Codes and scales that may lie as ComfyUI's do and have no mark, as shapes, names and other layers' marks tell; a mark
/// that cannot be read, and two that differ.
fn comfy_mark(
    checkpoint: &Checkpoint,
    (name, exporter): (&str, Exporter),
    beside: &Beside<'_>,
    stored: &Shape,
    [codes, scales]: [&Tensor<'_>; 2],
) -> Result<Option<Mark>, CheckpointError> {
    let files = [codes.file().path(), scales.file().path()];
    let of_file = checkpoint.configs().comfy_mark(name, &files);
    let mark = match &beside.comfy {
        None => of_file?,
        Some(tensor) => {
            let mark = Mark::of_tensor(tensor, name)?;
            match of_file {
                // Metadata that name no layers say nothing of this one.
                Err(CheckpointError::OtherLayout { .. }) | Ok(None) => {}
                Ok(Some(of_file)) if of_file == mark => {}
                Err(error) => return Err(error),
                Ok(Some(_)) => {
                    return Err(CheckpointError::Config {
                        file: tensor.file().path().into(),
                        layer: name.into(),
                        says: format!(
                            "says one thing in tensor {:?}, and another in its metadata",
                            tensor.name()
                        ),
                    });
                }
            }
            Some(mark)
        }
    };
    let is_modelopts = exporter == MODELOPT;
    if mark.is_some() && is_modelopts {
        return Ok(mark);
    }
    let linear = [stored.m(), stored.blocks()];
    let told_by = if mark.is_some() {
        format!("it has ComfyUI's mark, and the names of {exporter}")
    } else if scales.shape() == padded(stored) && padded(stored) != linear {
        format!(
            "tensor {:?} is {scales}, padded for another layout",
            scales.name()
        )
    } else if is_modelopts && checkpoint.is_unmarked(name, &files) {
        UNMARKED.into()
    } else if is_modelopts
        && padded(stored) == linear
        && checkpoint.configs().may_be_swizzled(&files)
    {
        "the file's metadata has ModelOpt's config, as files for ComfyUI have".into()
    } else if is_modelopts
        && known::is_of_diffusion(name)
        && !checkpoint.configs().is_modelopts(name, &files)
    {
        "it has the name of a diffusion model's layer, and neither ComfyUI's mark nor ModelOpt's config is there".into()
    } else {
        return Ok(None);
    };
    Err(other_layout(scales.file().path(), name, told_by))
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
fn scalar(tensor: &Tensor<'_>, exporter: Exporter) -> Result<GlobalScale, FileError> {
    let [value] = is_scalar(*tensor)?.to_f32()?[..] else {
        return Err(tensor.wrong(ONE));
    };
    usable(tensor, exporter, value)
}

/// A number of a tensor as a global scale.
fn usable(tensor: &Tensor<'_>, exporter: Exporter, value: f32) -> Result<GlobalScale, FileError> {
    let global = exporter.global_scale(value).check("global scale");
    global.map_err(|e| tensor.refused(e))
}
