//! Matrices that are not NVFP4: floating-point numbers as the files have them, FP8 with its scales among them.
//!
//! An engine multiplies such matrices elsewhere: on a GPU with a library of its own. [`Dense::product`] is the plain
//! product for tests and small heads.

use std::borrow::Cow;
use std::fmt;

use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::Dtype;

use super::gguf::blocks as gguf;
use super::known::{self, Meaning};
use super::{Checkpoint, CheckpointError, Note, changes, other};
use crate::check;
use crate::file::{FileError, Tensor};
use crate::format::e4m3;

/// The elements of a [`Dense`] matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DenseElement {
    /// 4 bytes each.
    F32,
    /// 2 bytes each, IEEE 754's.
    F16,
    /// 2 bytes each: the upper half of an f32.
    Bf16,
    /// A byte each, FP8: `e4m3fn`.
    E4m3,
    /// GGUF's `Q4_0`: of 32 elements an f16 and 16 bytes.
    Q4_0,
    /// GGUF's `Q4_1`: of 32 elements two f16 and 16 bytes.
    Q4_1,
    /// GGUF's `Q5_0`: of 32 elements an f16 and 20 bytes.
    Q5_0,
    /// GGUF's `Q5_1`: of 32 elements two f16 and 20 bytes.
    Q5_1,
    /// GGUF's `Q8_0`: of 32 elements an f16 and 32 bytes.
    Q8_0,
    /// GGUF's `Q4_K`: of 256 elements two f16 and 140 bytes.
    Q4K,
    /// GGUF's `Q5_K`: of 256 elements two f16 and 172 bytes.
    Q5K,
    /// GGUF's `Q6_K`: of 256 elements an f16 and 208 bytes.
    Q6K,
}

impl fmt::Display for DenseElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::E4m3 => "F8_E4M3",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        })
    }
}

impl DenseElement {
    /// Elements that are stored together, and the bytes they take.
    pub(super) const fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::E4m3 => (1, 1),
            Self::Q4_0 => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q8_0 => (32, 34),
            Self::Q4K => (256, 144),
            Self::Q5K => (256, 176),
            Self::Q6K => (256, 210),
        }
    }

    fn of(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F32 => Some(Self::F32),
            Dtype::F16 => Some(Self::F16),
            Dtype::BF16 => Some(Self::Bf16),
            Dtype::F8_E4M3 => Some(Self::E4m3),
            _ => None,
        }
    }

    /// The elements of these bytes, without [scales](DenseScales) beside them.
    pub(super) fn decode(self, bytes: &[u8], out: &mut [f32]) {
        fn each<const BYTES: usize>(
            bytes: &[u8],
            out: &mut [f32],
            of: impl Fn([u8; BYTES]) -> f32,
        ) {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *out = of(*bytes);
            }
        }
        fn blocks<const BYTES: usize, const ELEMENTS: usize>(
            bytes: &[u8],
            out: &mut [f32],
            of: fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
        ) {
            for (out, bytes) in out.as_chunks_mut().0.iter_mut().zip(bytes.as_chunks().0) {
                of(bytes, out);
            }
        }
        match self {
            Self::F32 => each(bytes, out, f32::from_le_bytes),
            Self::F16 => each(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
            Self::Bf16 => each(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
            Self::E4m3 => each(bytes, out, |[b]| e4m3::decode(b)),
            Self::Q4_0 => blocks(bytes, out, gguf::q4_0),
            Self::Q4_1 => blocks(bytes, out, gguf::q4_1),
            Self::Q5_0 => blocks(bytes, out, gguf::q5_0),
            Self::Q5_1 => blocks(bytes, out, gguf::q5_1),
            Self::Q8_0 => blocks(bytes, out, gguf::q8_0),
            Self::Q4K => blocks(bytes, out, gguf::q4_k),
            Self::Q5K => blocks(bytes, out, gguf::q5_k),
            Self::Q6K => blocks(bytes, out, gguf::q6_k),
        }
    }
}

/// Scales of a [`Dense`] matrix, which multiply its elements.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum DenseScales {
    /// None: the elements are the matrix.
    None,
    /// One for all.
    Tensor(f32),
    /// One for each row.
    Rows(Vec<f32>),
    /// One for each block of 128 rows and 128 columns: `[ceil(M / 128)][ceil(K / 128)]`. Blocks at the edges have
    /// fewer rows or columns.
    Blocks(Vec<f32>),
}

/// Rows and columns of the blocks of [`DenseScales::Blocks`].
pub const DENSE_BLOCK: usize = 128;

/// A matrix `[M][K]` of floating-point numbers, borrowed from its file.
///
/// An element is what its bytes say, times its scale, where there is one. GGUF's blocks have scales of their own, among
/// the bytes; an element of those is what ggml's definition says, in f32.
#[derive(Clone, Debug)]
pub struct Dense<'a> {
    pub(super) name: Cow<'a, str>,
    pub(super) element: DenseElement,
    pub(super) rows: usize,
    pub(super) k: usize,
    pub(super) bytes: &'a [u8],
    pub(super) scales: DenseScales,
    pub(super) order: StoredRows,
    pub(super) notes: Vec<Note>,
}

/// Where rows are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoredRows {
    /// Where they are in the matrix.
    InPlace,
    /// Each head of so many rows has the two halves of its rows in turns: rows 0, h / 2, 1, h / 2 + 1 and so on.
    HalvesInTurns(usize),
}

impl StoredRows {
    /// The place of a row.
    pub(super) fn of(self, row: usize) -> usize {
        match self {
            Self::InPlace => row,
            Self::HalvesInTurns(head) => {
                let (half, within) = (head / 2, row % head);
                row - within + within % half * 2 + within / half
            }
        }
    }
}

impl Checkpoint {
    /// A matrix that is not NVFP4, by its module's name (`lm_head`) or its tensor's: F32, F16, BF16, or FP8 (E4M3)
    /// without scales, or with one for the tensor, each row, or each block of 128x128. The scales multiply, also those
    /// that are named `weight_scale_inv`. An input scale is for vectors that are FP8 too, and is left out.
    ///
    /// ```no_run
    /// use nvfp4_gemv::checkpoint::Checkpoint;
    /// let checkpoint = Checkpoint::open("model/")?;
    /// let head = checkpoint.dense("lm_head")?;
    /// let (x, mut logits) = (vec![0.0; head.k()], vec![0.0; head.rows()]);
    /// head.product(&x, 1, &mut logits)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CheckpointError::NoTensor`]. [`CheckpointError::File`] for another type, for more or fewer than two
    /// dimensions, for scales of another shape or that are not finite. [`CheckpointError::ChangesProduct`],
    /// [`CheckpointError::UnknownTensors`], [`CheckpointError::Config`] and [`CheckpointError::Elsewhere`] as
    /// [`layer`](Self::layer)'s.
    pub fn dense(&self, name: &str) -> Result<Dense<'_>, CheckpointError> {
        let (name, weight) = self.dense_weight(name)?;
        let &[rows, k] = weight.shape() else {
            return Err(weight.wrong("a matrix [M, K]").into());
        };
        let element = element_of(&weight)?;
        let (scales, notes) = self.dense_scales(name, &weight, element, [rows, k])?;
        Ok(Dense {
            name: name.into(),
            element,
            rows,
            k,
            bytes: weight.bytes(),
            scales,
            order: StoredRows::InPlace,
            notes,
        })
    }

    /// Experts that are stacked in one tensor `[E][M][K]` of F32, F16 or BF16, matrix by matrix. Some models have
    /// `[E][K][M]`: what is M, and what K, is not looked into.
    ///
    /// # Errors
    /// As [`dense`](Self::dense)'s; FP8 of three dimensions is refused.
    pub fn dense_experts(&self, name: &str) -> Result<Vec<Dense<'_>>, CheckpointError> {
        let (name, weight) = self.dense_weight(name)?;
        let &[experts, rows, k] = weight.shape() else {
            return Err(weight.wrong("stacked matrices [E, M, K]").into());
        };
        // There may be any number of empty ones.
        if weight.bytes().is_empty() {
            return Err(weight.wrong("matrices with elements").into());
        }
        let element = element_of(&weight)?;
        if element == DenseElement::E4m3 {
            return Err(weight.wrong("F32, F16 or BF16").into());
        }
        let (scales, notes) = self.dense_scales(name, &weight, element, [rows, k])?;
        let each = weight.bytes().len() / experts;
        let matrix = |expert: usize| Dense {
            name: format!("{name}.{expert}").into(),
            element,
            rows,
            k,
            bytes: &weight.bytes()[expert * each..(expert + 1) * each],
            scales: scales.clone(),
            order: StoredRows::InPlace,
            notes: notes.clone(),
        };
        Ok((0..experts).map(matrix).collect())
    }

    /// The module's name, and the tensor of its weight.
    fn dense_weight<'a>(&'a self, name: &str) -> Result<(&'a str, Tensor<'a>), CheckpointError> {
        let name = name.trim_end_matches('.');
        let weight = format!("{name}.{WEIGHT}");
        let found = match self.tensor(&weight).or_else(|| self.tensor(name)) {
            Some(found) => found,
            None => {
                self.nothing_elsewhere(name)?;
                self.find_tensor(&weight)?
            }
        };
        other::refuse_torchao(self, &found)?;
        let module = found.name().strip_suffix(&format!(".{WEIGHT}"));
        let module = module.unwrap_or(found.name());
        match found.shape().len() {
            3.. => self.nothing_elsewhere_of_stack(module)?,
            _ => self.nothing_elsewhere(module)?,
        }
        Ok((module, found))
    }

    /// The scales of a matrix, once nothing beside it is found that would make it another one.
    fn dense_scales(
        &self,
        name: &str,
        weight: &Tensor<'_>,
        element: DenseElement,
        [rows, k]: [usize; 2],
    ) -> Result<(DenseScales, Vec<Note>), CheckpointError> {
        // Parameters that have no `.weight` in their names have their scales as `NAME_scale`.
        let is_parameter = element == DenseElement::E4m3 && weight.name() == name;
        let separators: &[char] = match weight.shape().len() > 2 || is_parameter {
            true => &['.', '_'],
            false => &['.'],
        };
        let (mut scales, mut others) = (None, Vec::new());
        let beside = separators.iter().flat_map(|separator| {
            self.behind(format!("{name}{separator}"))
                .filter(|(_, tensor)| tensor.name() != weight.name())
        });
        for (rest, tensor) in beside {
            let is_fp8 = element == DenseElement::E4m3;
            if is_fp8 && SCALES.contains(&rest) {
                if let Some(first) = scales.replace(tensor) {
                    let expected = format!("no such tensor beside {:?}", first.name());
                    return Err(tensor.wrong(expected).into());
                }
            } else if !(is_fp8 && INPUT_SCALES.contains(&rest)) {
                others.push((rest, tensor));
            }
        }
        let notes = self.nothing_else(name, weight, others.into_iter())?;
        let scales = scales.map(|tensor| scales_of(&tensor, rows, k));
        Ok((scales.transpose()?.unwrap_or(DenseScales::None), notes))
    }

    /// Notes on these tensors beside a matrix and its scales, of which none may make its product another one. Nor may
    /// a config.
    pub(super) fn nothing_else<'a>(
        &self,
        name: &str,
        weight: &Tensor<'_>,
        tensors: impl Iterator<Item = (&'a str, Tensor<'a>)>,
    ) -> Result<Vec<Note>, CheckpointError> {
        if let Some((file, says)) = self.configs().transforms(weight.file().path()) {
            return Err(CheckpointError::Config {
                file: file.into(),
                layer: name.into(),
                says,
            });
        }
        let (mut notes, mut unknown) = (Vec::new(), Vec::new());
        for (rest, tensor) in tensors {
            match known::meaning(rest) {
                Some(Meaning::Nothing) => {}
                Some(Meaning::Added) => notes.push(Note::NotAdded {
                    tensor: tensor.name().into(),
                }),
                Some(Meaning::Changes(effect)) => return Err(changes(&tensor, name, effect)),
                Some(Meaning::ColumnAlpha) => {
                    return Err(changes(&tensor, name, known::SCALES_VECTORS));
                }
                Some(Meaning::Comfy | Meaning::WeightShape) | None => unknown.push(tensor),
            }
        }
        match unknown.first() {
            None => Ok(notes),
            Some(first) => {
                let names: Vec<&str> = unknown.iter().map(Tensor::name).collect();
                let file = first.file().path();
                Err(CheckpointError::unknown_tensors(file, name, &names))
            }
        }
    }
}

const WEIGHT: &str = "weight";

/// Scales of weights in FP8, by what follows the layer's name and a dot. All of them multiply.
const SCALES: [&str; 2] = ["weight_scale", "weight_scale_inv"];

/// Scales of their vectors, which matter to those who quantise these to FP8.
const INPUT_SCALES: [&str; 2] = ["input_scale", "activation_scale"];

fn element_of(weight: &Tensor<'_>) -> Result<DenseElement, FileError> {
    let element = DenseElement::of(weight.dtype());
    element.ok_or_else(|| weight.wrong("F32, F16, BF16 or F8_E4M3"))
}

fn scales_of(tensor: &Tensor<'_>, rows: usize, k: usize) -> Result<DenseScales, FileError> {
    let values = tensor.to_f32_widened()?;
    if let Some(at) = values.iter().position(|value| !value.is_finite()) {
        return Err(tensor.wrong(format!("finite scales, and element {at} is {}", values[at])));
    }
    let blocks = [rows.div_ceil(DENSE_BLOCK), k.div_ceil(DENSE_BLOCK)];
    match *tensor.shape() {
        [] | [1] | [1, 1] => Ok(DenseScales::Tensor(values[0])),
        [of] | [of, 1] if of == rows => Ok(DenseScales::Rows(values)),
        [a, b] | [a, 1, b, 1] if [a, b] == blocks => Ok(DenseScales::Blocks(values)),
        _ => Err(tensor.wrong(format!(
            "a scale of the tensor, [{rows}, 1] of its rows, or {blocks:?} of its blocks of 128x128"
        ))),
    }
}

impl<'a> Dense<'a> {
    /// The module's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type of its elements.
    pub fn element(&self) -> DenseElement {
        self.element
    }

    /// Rows, M: output features of a layer, tokens of an embedding.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row, K.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        let (elements, bytes) = self.element.block();
        self.k / elements * bytes
    }

    /// The bytes `[M][K]`, little-endian, at no particular alignment. They are the file's own, except of rows that it
    /// has in another order: those are copied.
    pub fn bytes(&self) -> Cow<'a, [u8]> {
        if self.order == StoredRows::InPlace {
            return self.bytes.into();
        }
        let rows = (0..self.rows).flat_map(|row| self.stored(row));
        rows.copied().collect()
    }

    /// The scales, which multiply the elements.
    pub fn scales(&self) -> &DenseScales {
        &self.scales
    }

    /// Notes: a bias that is not added.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// The bytes of a row.
    fn stored(&self, row: usize) -> &'a [u8] {
        let bytes = self.row_bytes();
        &self.bytes[self.order.of(row) * bytes..][..bytes]
    }

    /// One row in f32, such as an embedding by its token's number. F16 and BF16 are exact, FP8 with a scale is rounded
    /// once.
    ///
    /// # Errors
    /// A row that there is not, or an `out` of another length than [`k`](Self::k).
    pub fn row(&self, row: usize, out: &mut [f32]) -> crate::Result<()> {
        check::len("a row", "elements", out.len(), self.k)?;
        if row >= self.rows {
            return Err(crate::Error::BufferTooShort {
                operand: "matrix",
                unit: "rows",
                needed: row.saturating_add(1),
                got: self.rows,
                hint: String::new(),
            });
        }
        self.element.decode(self.stored(row), out);
        match &self.scales {
            DenseScales::None => {}
            DenseScales::Tensor(scale) => out.iter_mut().for_each(|x| *x *= scale),
            DenseScales::Rows(scales) => out.iter_mut().for_each(|x| *x *= scales[row]),
            DenseScales::Blocks(_) => {
                let scales = self.block_scales(row);
                for (block, scale) in out.chunks_mut(DENSE_BLOCK).zip(scales) {
                    block.iter_mut().for_each(|x| *x *= scale);
                }
            }
        }
        Ok(())
    }

    /// The scales of a row's blocks.
    fn block_scales(&self, row: usize) -> &[f32] {
        match &self.scales {
            DenseScales::Blocks(scales) => {
                let of_row = self.k.div_ceil(DENSE_BLOCK);
                &scales[row / DENSE_BLOCK * of_row..][..of_row]
            }
            _ => &[],
        }
    }

    /// The product with `n` vectors: `y[n][m] = Σ w[m][k] x[n][k]`, with `x` `[N][K]` and `y` `[N][M]`. It sums in f32,
    /// in an order that depends on K alone, on all threads of rayon's pool.
    ///
    /// With u = 2^-24 a result is off by at most `(K + 2) u / (1 - (K + 2) u)` times `Σ |w x|`, as long as nothing
    /// overflows or is below the least normal f32.
    ///
    /// # Errors
    /// Vectors or results of other lengths.
    pub fn product(&self, x: &[f32], n: usize, y: &mut [f32]) -> crate::Result<()> {
        check::len("vectors", "elements", x.len(), n.saturating_mul(self.k))?;
        check::len("results", "elements", y.len(), n.saturating_mul(self.rows))?;
        if n == 0 || self.rows == 0 {
            return Ok(());
        }
        if n == 1 {
            self.rows_times(x, 1, y);
            return Ok(());
        }
        let mut by_row = vec![0.0; self.rows * n];
        self.rows_times(x, n, &mut by_row);
        for (vector, results) in y.chunks_mut(self.rows).enumerate() {
            for (result, of_row) in results.iter_mut().zip(by_row.chunks(n)) {
                *result = of_row[vector];
            }
        }
        Ok(())
    }

    /// `y` is `[M][N]`.
    fn rows_times(&self, x: &[f32], n: usize, y: &mut [f32]) {
        let rows = y.par_chunks_mut(n).enumerate();
        rows.for_each_init(
            || vec![0.0; self.k],
            |decoded, (row, y)| {
                self.element.decode(self.stored(row), decoded);
                let vectors = (0..n).map(|vector| &x[vector * self.k..][..self.k]);
                for (y, x) in y.iter_mut().zip(vectors) {
                    *y = match &self.scales {
                        DenseScales::None => dot(decoded, x),
                        DenseScales::Tensor(scale) => dot(decoded, x) * scale,
                        DenseScales::Rows(scales) => dot(decoded, x) * scales[row],
                        DenseScales::Blocks(_) => {
                            let w = decoded.chunks(DENSE_BLOCK);
                            let sums = w.zip(x.chunks(DENSE_BLOCK)).map(|(w, x)| dot(w, x));
                            let scaled = sums.zip(self.block_scales(row)).map(|(sum, s)| sum * s);
                            scaled.sum()
                        }
                    };
                }
            },
        );
    }
}

/// A sum of products, in lanes that the compiler makes vectors of.
fn dot(w: &[f32], x: &[f32]) -> f32 {
    const LANES: usize = 16;
    let ((w, w_rest), (x, x_rest)) = (w.as_chunks::<LANES>(), x.as_chunks::<LANES>());
    let mut lanes = [0.0f32; LANES];
    for (w, x) in w.iter().zip(x) {
        for ((lane, w), x) in lanes.iter_mut().zip(w).zip(x) {
            *lane += w * x;
        }
    }
    for ((lane, w), x) in lanes.iter_mut().zip(w_rest).zip(x_rest) {
        *lane += w * x;
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// llama.cpp's converter takes the two halves of a head's rows in turns: this is where they went.
    #[test]
    fn rows_of_a_head_are_found_where_they_were_put() {
        let rows = 24;
        let head = 8;
        // [heads][2][head / 2] becomes [heads][head / 2][2].
        let mut stored = Vec::new();
        for first in (0..rows).step_by(head) {
            for j in 0..head / 2 {
                stored.extend([first + j, first + head / 2 + j]);
            }
        }
        for row in 0..rows {
            assert_eq!(stored[StoredRows::HalvesInTurns(head).of(row)], row);
            assert_eq!(StoredRows::InPlace.of(row), row);
        }
    }
}
